//! What only a store in a shared database has: other replicas, connections that break, a database that is down.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod store_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::state::State;
use outrigger_protocol::a2a::task::{Change, Task};
use outrigger_protocol::config::Limits;
use outrigger_sidecar::a2a::store::postgres::Place;
use outrigger_sidecar::a2a::store::{LEASE, OpenError, Postgres, Store, StoreError};
use store_support::bed::process;
use store_support::postgres::Server;
use tokio::time::{Instant, sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(20);
/// How often connections break in a test.
const CUTS: usize = 8;

fn task(id: &str) -> Task {
    let message = Raw::parse(&format!("{{\"messageId\":\"{id}\"}}")).unwrap();
    Task::new(id.into(), id.into(), "".into(), message, true, jiff::Timestamp::UNIX_EPOCH)
}

fn to(state: State) -> Change {
    Change { state: Some(state), ..Change::default() }
}

fn said(n: usize) -> Change {
    Change { message: Some(Raw::parse(&n.to_string()).unwrap()), ..Change::default() }
}

fn replica(place: Place) -> Arc<Postgres> {
    let (live, metrics) = process(Limits::default());
    Arc::new(Postgres::open(place, live, metrics).unwrap())
}

/// Waits for something that must come.
async fn until<F: Future<Output = bool>>(what: &str, is: impl Fn() -> F) {
    let deadline = Instant::now() + PATIENCE;
    while !is().await {
        assert!(Instant::now() < deadline, "{what}");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn replicas_that_start_together_make_one_schema_and_follow_each_other() {
    let Some(server) = Server::start().await else { return };
    let replicas: Vec<_> = (0..4).map(|pod| replica(server.place("together", pod))).collect();
    let renewed = futures::future::join_all(replicas.iter().map(|r| r.renew())).await;
    assert!(renewed.iter().all(Result::is_ok), "{renewed:?}");
    let [a, b] = [&replicas[0], &replicas[1]];
    let mut seen = a.create(task("t"), None, None).await.unwrap();
    let mut follower = b.subscribe("t").await.unwrap();
    assert_eq!(follower.borrow_and_update().version, 1);
    let reading = async {
        let mut known = 1;
        loop {
            for event in b.events("t", known, 16).await.unwrap() {
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
    };
    let writing = async {
        for n in 0..200 {
            seen = a.append(&seen, said(n), None).await.unwrap();
        }
        a.append(&seen, to(State::Completed), None).await.unwrap()
    };
    let (known, ended) = timeout(PATIENCE, futures::future::join(reading, writing)).await.expect("the end is heard of");
    assert_eq!((known, ended.version), (202, 202));
    // A withdrawn task is heard of, too.
    let direct = a.create(task("direct"), None, None).await.unwrap();
    let mut follower = b.subscribe("direct").await.unwrap();
    a.withdraw(&direct, None, &Raw::parse("{}").unwrap()).await.unwrap();
    let gone = async { while follower.changed().await.is_ok() {} };
    timeout(PATIENCE, gone).await.expect("the sender goes");
}

#[tokio::test]
async fn connections_that_break_lose_and_double_nothing() {
    let Some(server) = Server::start().await else { return };
    let store = replica(server.place("broken", 0));
    store.renew().await.unwrap();
    let mut seen = store.create(task("t"), None, None).await.unwrap();
    let follower = store.subscribe("t").await.unwrap();
    let admin = server.connect().await;
    let cuts = Arc::new(AtomicUsize::new(0));
    let cutting = {
        let cuts = Arc::clone(&cuts);
        tokio::spawn(async move {
            while cuts.fetch_add(1, Ordering::Relaxed) < CUTS {
                sleep(Duration::from_millis(60)).await;
                Server::cut(&admin).await;
            }
        })
    };
    let mut n = 0;
    let deadline = Instant::now() + PATIENCE;
    while n < 150 || cuts.load(Ordering::Relaxed) <= CUTS {
        assert!(Instant::now() < deadline, "{n}");
        match store.append(&seen, said(n), None).await {
            Ok(next) => {
                assert_eq!(next.version, seen.version + 1);
                seen = next;
                n += 1;
            }
            // Nobody knows: what is there tells.
            Err(StoreError::Unavailable(_)) => {
                let Ok(now) = store.get("t").await else { continue };
                if now.version > seen.version {
                    n += 1;
                }
                seen = now;
            }
            Err(other) => panic!("{other}"),
        }
    }
    cutting.await.unwrap();
    let mut log = Vec::new();
    while log.len() < n {
        log.extend(store.events("t", log.len() as u64 + 1, 500).await.unwrap());
    }
    let said: Vec<_> = log.iter().map(|e| e.change.message.as_ref().unwrap().as_str().to_owned()).collect();
    assert_eq!(said, (0..n).map(|n| n.to_string()).collect::<Vec<_>>(), "each once, in order");
    until("the follower hears of it", || {
        let version = follower.borrow().version;
        std::future::ready(version == n as u64 + 1)
    })
    .await;
}

#[tokio::test]
async fn a_database_that_is_down_is_said_soon_and_found_again() {
    let Some(server) = Server::start().await else { return };
    let place = Place { url: "postgres://nobody@127.0.0.1:1/none".into(), ..server.place("down", 0) };
    let store = replica(place);
    let began = Instant::now();
    for _ in 0..20 {
        let error = store.create(task("t"), None, None).await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    }
    assert!(began.elapsed() < Duration::from_secs(5), "soon");
    let status = store.status();
    assert_eq!((status.ready, &*status.reason), (false, "TaskStoreUnavailable"));
    let store = replica(server.place("down", 0));
    // Nobody asks it for anything: the one who listens finds the database.
    until("it is ready", || std::future::ready(store.status().ready)).await;
}

#[tokio::test]
async fn a_later_schema_is_refused_and_left_alone() {
    let Some(server) = Server::start().await else { return };
    let store = replica(server.place("later", 0));
    store.renew().await.unwrap();
    let admin = server.connect().await;
    admin.batch_execute("INSERT INTO later.migrations (version) VALUES (99)").await.unwrap();
    let store = replica(server.place("later", 1));
    let error = store.create(task("t"), None, None).await.unwrap_err().to_string();
    assert!(error.contains("written by a later version (schema 99"), "{error}");
    until("the status says so", || std::future::ready(store.status().message.contains("schema 99"))).await;
    let (live, metrics) = process(Limits::default());
    let bad = Place { schema: "x;y".into(), ..server.place("later", 0) };
    assert!(matches!(Postgres::open(bad, live, metrics), Err(OpenError::Schema(_))));
}

#[tokio::test]
async fn a_dropped_creation_is_an_orphan_of_its_own_process() {
    let Some(server) = Server::start().await else { return };
    let store = replica(server.place("dropped", 0));
    store.renew().await.unwrap();
    let admin = server.connect().await;
    admin.batch_execute("BEGIN; LOCK TABLE dropped.tasks IN EXCLUSIVE MODE").await.unwrap();
    // It is on its way when its caller goes.
    {
        let mut creating = store.create(task("t"), None, None);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let done = timeout(Duration::from_millis(10), &mut creating).await;
            assert!(done.is_err() && Instant::now() < deadline, "the table is locked: {done:?}");
            let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'dropped.tasks'::regclass";
            if admin.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) > 0 {
                break;
            }
        }
    }
    admin.batch_execute("COMMIT").await.unwrap();
    until("it is written", || async { store.get("t").await.is_ok() }).await;
    let orphans = store.orphans(10).await.unwrap();
    assert_eq!(orphans.len(), 1);
    store.append(&orphans[0], to(State::Failed), None).await.unwrap();
    assert!(store.orphans(10).await.unwrap().is_empty());
}

#[tokio::test]
async fn the_tasks_of_a_process_that_released_its_lease_are_orphans_at_once() {
    let Some(server) = Server::start().await else { return };
    let (a, b) = (replica(server.place("release", 0)), replica(server.place("release", 1)));
    a.renew().await.unwrap();
    let made = a.create(task("t"), None, None).await.unwrap();
    assert!(b.orphans(10).await.unwrap().is_empty());
    a.release().await.unwrap();
    assert_eq!(b.orphans(10).await.unwrap(), [Arc::clone(&made)]);
    a.renew().await.unwrap();
    assert!(b.orphans(10).await.unwrap().is_empty());
    // The next process of the same pod need not wait for the lease to run out.
    let successor = replica(server.place("release", 0));
    assert_eq!(successor.orphans(10).await.unwrap(), [made]);
    assert!(LEASE > Duration::from_secs(1));
}

#[tokio::test]
async fn the_line_to_the_database_is_secret_and_its_other_end_proved() {
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tls");
    let Some((server, port)) = Server::start_tls(&fixtures).await else { return };
    let place = |host: &str, mode: &str, authority: bool| Place {
        url: format!("postgres://tester@{host}:{port}/postgres?sslmode={mode}"),
        schema: "tls".into(),
        ca_file: authority.then(|| fixtures.join("ca.pem")),
        pod: "pod".into(),
    };
    for (host, mode, authority, good) in [
        ("127.0.0.1", "verify-full", true, true),
        ("localhost", "verify-full", true, true),
        ("127.0.0.1", "require", true, true),
        // Nobody public vouches for it.
        ("127.0.0.1", "verify-full", false, false),
        // The server wants TLS.
        ("127.0.0.1", "disable", false, false),
    ] {
        let store = replica(place(host, mode, authority));
        let got = timeout(PATIENCE, store.renew()).await.expect("an answer");
        assert_eq!(got.is_ok(), good, "{host} {mode} {authority}: {got:?}");
        if good {
            let secret = "SELECT bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)
                WHERE a.application_name = 'outrigger'";
            let row = server.connect().await.query_one(secret, &[]).await.unwrap();
            assert_eq!(row.get::<_, Option<bool>>(0), Some(true), "{host} {mode}");
        }
        drop(store);
    }
}
