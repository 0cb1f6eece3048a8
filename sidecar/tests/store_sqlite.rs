//! What only a store in a file has: its file, its bounds, and what a process that ended leaves in it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod store_support;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use outrigger_protocol::a2a::artifact::{Artifact, ArtifactUpdate};
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::state::State;
use outrigger_protocol::a2a::task::{Change, Task};
use outrigger_protocol::config::{self, Limits};
use outrigger_sidecar::a2a::store::{Clock, Key, OpenError, Query, Sqlite, Store, StoreError, open};
use store_support::bed::{Bed, process};
use store_support::sqlite::SqliteBed;

fn raw(text: &str) -> Raw {
    Raw::parse(text).unwrap()
}

fn task(id: &str) -> Task {
    let message = raw(&format!("{{\"messageId\":\"{id}\"}}"));
    Task::new(id.into(), id.into(), "".into(), message, true, jiff::Timestamp::UNIX_EPOCH)
}

fn to(state: State) -> Change {
    Change { state: Some(state), ..Change::default() }
}

fn chunk(text: &str, append: bool) -> Change {
    let json = format!(r#"{{"artifactId":"a","parts":[{{"text":"{text}"}}]}}"#);
    let artifact = Artifact::whole("a".into(), None, raw(&json));
    Change { artifacts: vec![ArtifactUpdate { artifact, append, last: false }], ..Change::default() }
}

fn try_open(path: &Path) -> Result<Sqlite, OpenError> {
    let (live, metrics) = process(Limits::default());
    Sqlite::open(path, live, metrics, Clock::system())
}

fn refusal(path: &Path) -> String {
    try_open(path).err().expect("it is refused").to_string()
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    assert!(refusal(&at("no/such/folder.db")).contains("no/such/folder.db"));
    fs::write(at("text"), "this is no database, though it is longer than a header of one: ".repeat(20)).unwrap();
    assert!(refusal(&at("text")).contains("not a database"));
    assert!(fs::read_to_string(at("text")).unwrap().starts_with("this is no database"));
    let other = rusqlite::Connection::open(at("other.db")).unwrap();
    other.execute_batch("CREATE TABLE mine (x)").unwrap();
    assert!(refusal(&at("other.db")).contains("stays untouched"));
    let store = try_open(&at("tasks.db")).unwrap();
    assert!(refusal(&at("tasks.db")).contains("in use by another process"));
    drop(store);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while matches!(try_open(&at("tasks.db")), Err(OpenError::InUse(_))) {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let later = rusqlite::Connection::open(at("later.db")).unwrap();
    later.execute_batch("PRAGMA application_id = 1330992210; PRAGMA user_version = 99").unwrap();
    assert!(refusal(&at("later.db")).contains("written by a later version (schema 99"));
}

#[tokio::test]
async fn the_configuration_opens_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tasks.db").display().to_string();
    let (live, metrics) = process(Limits::default());
    let store = open(&config::Store::Sqlite { path, durable: true }, live, metrics.clone()).unwrap();
    let made = store.create(task("a"), None, None).await.unwrap();
    store.append(&made, to(State::Working), None).await.unwrap();
    assert!(store.append(&made, to(State::Working), None).await.is_err());
    assert!(store.status().ready);
    assert_eq!(metrics.store_seconds.with_label_values(&["append"]).get_sample_count(), 2);
    assert_eq!(metrics.store_errors.with_label_values(&["append", "conflict"]).get(), 1);
    let (live, metrics) = process(Limits::default());
    let url_env = "OUTRIGGER_TEST_NO_SUCH_VARIABLE".to_owned();
    let place = config::Store::Postgres { url_env, schema: "a".into(), ca_file: None };
    let error = open(&place, live, metrics).err().unwrap().to_string();
    assert!(error.contains("OUTRIGGER_TEST_NO_SUCH_VARIABLE"), "{error}");
}

#[tokio::test]
async fn a_process_that_was_killed_at_any_moment_leaves_whole_changes() {
    let bed = SqliteBed::new();
    let store = bed.open(Limits::default()).await;
    let copies = tempfile::tempdir().unwrap();
    let mut moment = 0;
    let mut seen = store.create(task("a"), None, None).await.unwrap();
    for i in 0..40 {
        // Others write at the same time.
        let others: Vec<_> = (0..5).map(|j| store.create(task(&format!("{i}-{j}")), None, None)).collect();
        let change = Change { message: Some(raw(&i.to_string())), ..chunk(&"x".repeat(500), i > 0) };
        let writing = join_all(others);
        let appending = store.append(&seen, change, None);
        // What a killed process leaves: the files as they are at this moment.
        let copying = async {
            tokio::task::yield_now().await;
            moment += 1;
            for name in ["tasks.db", "tasks.db-wal"] {
                let _ = fs::copy(bed.folder().join(name), copies.path().join(format!("{moment}{}", &name[5..])));
            }
        };
        let (others, appended, ()) = futures::join!(writing, appending, copying);
        assert!(others.iter().all(Result::is_ok));
        seen = appended.unwrap();
    }
    for i in 1..=moment {
        let left = try_open(&copies.path().join(format!("{i}.db"))).unwrap();
        let task = match left.get("a").await {
            Ok(task) => task,
            Err(StoreError::NotFound) if i == 1 => continue,
            Err(other) => panic!("{other}"),
        };
        assert!(task.version >= u64::from(i - 1_u32), "what was told as written is there");
        let log = left.events("a", 0, 1_000).await.unwrap();
        assert!(log.iter().map(|e| e.version).eq(1..=task.version));
        assert_eq!(left.conversation("", "a").await.unwrap().messages.len() as u64, task.version.min(20));
        assert_eq!(left.orphans(1_000).await.unwrap().len() as u64, left.open_tasks("").await.unwrap());
    }
}

#[tokio::test]
async fn tasks_keys_and_contexts_are_bounded_and_run_out() {
    let mut bed = SqliteBed::new();
    let hour = Duration::from_hours(1);
    let mut now = jiff::Timestamp::from_second(1_700_000_000).unwrap();
    bed.set(now).await;
    let limits = Limits { max_tasks: 3, task_retention_ms: 3_600_000, ..Limits::default() };
    let store = bed.open(limits.clone()).await;
    let mut made = Vec::new();
    let key = Key { id: "k".into(), hash: "h".into(), turn: "t".into() };
    for id in ["a", "b", "c"] {
        let key = (id == "a").then(|| key.clone());
        made.push(store.create(task(id), key, None).await.unwrap());
    }
    let full = store.create(task("d"), None, None).await;
    assert!(matches!(full, Err(StoreError::Full(why)) if why.contains("3 tasks")));
    store.append(&made[2], to(State::Completed), None).await.unwrap();
    now += Duration::from_secs(1);
    bed.set(now).await;
    store.append(&made[0], to(State::Failed), None).await.unwrap();
    store.create(task("d"), None, None).await.unwrap();
    assert!(matches!(store.get("c").await, Err(StoreError::NotFound)), "c ended first");
    assert!(store.get("a").await.is_ok());
    assert_eq!((store.open_tasks("").await.unwrap(), list(&*store).await), (2, 3));
    drop(store);
    // Numbers are found again.
    let store = bed.open(limits).await;
    assert_eq!((store.open_tasks("").await.unwrap(), list(&*store).await), (2, 3));
    now += hour * 2;
    bed.set(now).await;
    store.sweep().await.unwrap();
    assert!(matches!(store.get("a").await, Err(StoreError::NotFound)));
    assert!(store.get("b").await.is_ok(), "what lives stays");
    assert!(store.conversation("", "a").await.unwrap().messages.is_empty());
    assert_eq!(store.key("k").await.unwrap().unwrap().key, key);
    now += hour * 24;
    bed.set(now).await;
    assert_eq!(store.key("k").await.unwrap(), None);
    store.create(task("e"), Some(key), None).await.unwrap();
    store.sweep().await.unwrap();
    assert_eq!(&*store.key("k").await.unwrap().unwrap().task, "e");
}

async fn list(store: &dyn Store) -> u64 {
    store.list(Query { caller: "".into(), limit: 10, ..Query::default() }).await.unwrap().total
}

#[tokio::test]
async fn ten_thousand_chunks_are_replayed_and_cost_what_they_are() {
    let bed = SqliteBed::new();
    let store = bed.open(Limits::default()).await;
    let mut seen = store.create(task("a"), None, None).await.unwrap();
    for i in 0..10_000 {
        seen = store.append(&seen, chunk(&i.to_string(), i > 0), None).await.unwrap();
    }
    let mut known = 0;
    while known < seen.version {
        let events = store.events("a", known, 500).await.unwrap();
        assert!(events.iter().map(|e| e.version).eq(known + 1..=known + events.len() as u64));
        known += events.len() as u64;
    }
    let half = store.at("a", 5_001).await.unwrap();
    assert_eq!((half.version, half.artifacts[0].parts()), (5_001, 5_000));
    store.append(&seen, to(State::Completed), None).await.unwrap();
    drop(store);
    let store = bed.open(Limits::default()).await;
    assert_eq!(store.get("a").await.unwrap().artifacts[0].parts(), 10_000);
    let bytes = fs::metadata(bed.folder().join("tasks.db")).unwrap().len();
    assert!(bytes < 8 << 20, "{bytes} bytes for 1.5 MB of events");
}

#[tokio::test]
async fn a_log_that_is_too_long_loses_its_beginning_and_says_so() {
    let bed = SqliteBed::new();
    let store = bed.open(Limits::default()).await;
    let mut seen = store.create(task("a"), None, None).await.unwrap();
    let fat = "x".repeat(2 << 20);
    for _ in 0..40 {
        // Replaced each time, so that the task itself stays small.
        seen = store.append(&seen, chunk(&fat, false), None).await.unwrap();
    }
    let Err(StoreError::Trimmed(first)) = store.events("a", 0, 10).await else { panic!("80 MB were written") };
    assert!((2..seen.version).contains(&first));
    let kept = store.events("a", first - 1, 100).await.unwrap();
    assert!(kept.iter().map(|e| e.version).eq(first..=seen.version));
    assert!(matches!(store.at("a", 1).await, Err(StoreError::Trimmed(_))));
    assert_eq!(store.at("a", seen.version).await.unwrap(), seen);
}

#[tokio::test]
async fn followers_hear_of_every_change() {
    let bed = SqliteBed::new();
    let store = bed.open(Limits::default()).await;
    let made = store.create(task("a"), None, None).await.unwrap();
    let mut follower = store.subscribe("a").await.unwrap();
    let reader = {
        let store: Arc<Sqlite> = Arc::clone(&store);
        tokio::spawn(async move {
            let mut known = 1;
            loop {
                let events = store.events("a", known, 16).await.unwrap();
                for event in events {
                    assert_eq!(event.version, known + 1);
                    known += 1;
                    if event.change.state == Some(State::Completed) {
                        return known;
                    }
                }
                if follower.borrow_and_update().version <= known {
                    follower.changed().await.expect("the end comes before the sender goes");
                }
            }
        })
    };
    let mut seen = made;
    for i in 0..500 {
        seen = store.append(&seen, chunk(&i.to_string(), true), None).await.unwrap();
    }
    store.append(&seen, to(State::Completed), None).await.unwrap();
    let known = tokio::time::timeout(Duration::from_secs(20), reader).await.expect("the end is heard of").unwrap();
    assert_eq!(known, 502);
    assert!(matches!(store.subscribe("b").await, Err(StoreError::NotFound)));
}
