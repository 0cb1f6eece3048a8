use std::sync::atomic::{AtomicI64, Ordering};

use jiff::Timestamp;
use outrigger_protocol::a2a::artifact::{Artifact, ArtifactUpdate};
use outrigger_protocol::a2a::operation::Dialect;
use outrigger_protocol::a2a::state::State;
use outrigger_protocol::a2a::task::TurnMark;
use outrigger_protocol::config::Limits;
use prometheus::Registry;

use super::super::{Cursor, KEY_RETENTION};
use super::*;

const HOUR: Duration = Duration::from_hours(1);

fn raw(text: &str) -> Raw {
    Raw::parse(text).unwrap()
}

/// A store over a clock that the test sets.
struct Bed {
    store: Memory,
    now: Arc<AtomicI64>,
}

impl std::ops::Deref for Bed {
    type Target = Memory;
    fn deref(&self) -> &Memory {
        &self.store
    }
}

impl Bed {
    fn new(limits: Limits, max_bytes: usize) -> Self {
        let now = Arc::new(AtomicI64::new(1_000_000_000));
        let clock = Arc::clone(&now);
        let clock = Clock::new(move || Timestamp::from_microsecond(clock.load(Ordering::Relaxed)).unwrap());
        let live = watch::channel(Arc::new(Live { limits, ..Live::new(serde_json::Value::Null) })).1;
        let metrics = Metrics::register(&Registry::new()).unwrap();
        Self { store: Memory::bounded(live, metrics, max_bytes, clock), now }
    }

    fn tasks(max_tasks: u32) -> Self {
        Self::new(Limits { max_tasks, ..Limits::default() }, MAX_BYTES)
    }

    fn pass(&self, time: Duration) {
        self.now.fetch_add(i64::try_from(time.as_micros()).unwrap(), Ordering::Relaxed);
    }

    fn bytes(&self) -> usize {
        self.core.inner.lock().bytes
    }

    async fn create(&self, id: &str, context: &str) -> Arc<Task> {
        Store::create(&self.store, task(id, context), None, None).await.unwrap()
    }

    async fn to(&self, seen: &Task, state: State) -> Result<Arc<Task>, StoreError> {
        self.append(seen, to(state), None).await
    }

    /// Forgets all tasks, contexts and keys.
    async fn empty(&self) {
        let ids: Vec<_> = self.core.inner.lock().tasks.keys().cloned().collect();
        for id in ids {
            let t = self.get(&id).await.unwrap();
            if !t.state.is_terminal() {
                self.to(&t, State::Canceled).await.unwrap();
            }
        }
        self.pass(HOUR * 24 * 365);
        self.sweep().await.unwrap();
        assert!(self.core.inner.lock().is_empty());
        assert_eq!(self.bytes(), 0, "everything that was counted in is counted out");
    }
}

fn task(id: &str, context: &str) -> Task {
    let message = raw(&format!("{{\"messageId\":\"{id}\"}}"));
    Task::new(id.into(), context.into(), "".into(), message, true, Timestamp::UNIX_EPOCH)
}

fn to(state: State) -> Change {
    Change { state: Some(state), ..Change::default() }
}

fn turn() -> TurnMark {
    TurnMark { id: "turn".into(), attempt: 1, ..TurnMark::default() }
}

fn chunk(text: &str, append: bool) -> Change {
    let json = format!(r#"{{"artifactId":"a","parts":[{{"text":"{text}"}}]}}"#);
    let artifact = Artifact::whole("a".into(), None, raw(&json));
    Change { artifacts: vec![ArtifactUpdate { artifact, append, last: false }], ..Change::default() }
}

fn key(id: &str) -> Key {
    Key { id: id.into(), hash: "h".into(), turn: "turn".into() }
}

fn receiver(task: &str, id: &str) -> PushConfig {
    let json = raw("{\"url\":\"https://example.com\"}");
    let (dialect, next) = (Dialect::V10, Timestamp::UNIX_EPOCH);
    PushConfig { task: task.into(), id: id.into(), json, dialect, delivered: 0, attempts: 0, next, dead: None }
}

#[tokio::test]
async fn events_are_a_log_and_writers_compare_versions() {
    let s = Bed::tasks(10);
    let made = s.create("a", "c").await;
    let working = s.append(&made, Change { turn: Some(turn()), ..to(State::Working) }, None).await.unwrap();
    let Err(StoreError::Conflict { expected: 1, current }) = s.to(&made, State::Canceled).await else {
        panic!("a writer that saw version 1 must not win");
    };
    assert_eq!((current.version, current.state), (2, State::Working));
    let done = s.to(&working, State::Completed).await.unwrap();
    let refused = s.to(&done, State::Canceled).await;
    assert!(matches!(refused, Err(StoreError::Refused(Refused::Ended(State::Completed)))));
    let log = s.events("a", 0, 10).await.unwrap();
    let seen: Vec<_> = log.iter().map(|e| (e.version, e.change.state.unwrap())).collect();
    assert_eq!(seen, [(1, State::Submitted), (2, State::Working), (3, State::Completed)]);
    assert_eq!(s.events("a", 1, 1).await.unwrap()[0].version, 2);
    assert_eq!(s.at("a", 1).await.unwrap(), made);
    assert_eq!(s.at("a", 2).await.unwrap(), working);
    assert!(matches!(s.get("x").await, Err(StoreError::NotFound)));
    assert_eq!(s.create("b", "c").await.since, s.core.clock.now(), "the store's time, not the writer's");
}

#[tokio::test]
async fn a_create_may_be_repeated_by_its_writer() {
    let s = Bed::tasks(10);
    let made = Store::create(&s.store, task("a", "c"), Some(key("k")), None).await.unwrap();
    assert_eq!(Store::create(&s.store, task("a", "c"), Some(key("k")), None).await.unwrap(), made);
    assert_eq!(s.conversation("", "c").await.unwrap().messages.len(), 1);
    let other = s.share();
    assert!(matches!(other.create(task("a", "c"), None, None).await, Err(StoreError::Conflict { .. })));
    assert!(matches!(other.create(task("b", "c"), Some(key("k")), None).await, Err(StoreError::Duplicate(_))));
}

#[tokio::test]
async fn followers_see_what_is_written_and_nothing_else() {
    let s = Bed::tasks(10);
    let made = s.create("a", "c").await;
    let mut follow = s.subscribe("a").await.unwrap();
    assert_eq!(follow.borrow_and_update().version, 1);
    let working = s.to(&made, State::Working).await.unwrap();
    assert!(s.to(&made, State::Canceled).await.is_err());
    assert_eq!(*follow.borrow_and_update(), Head { version: 2, epoch: 1, state: State::Working });
    assert!(!follow.has_changed().unwrap());
    s.to(&working, State::Completed).await.unwrap();
    assert!(follow.changed().await.is_ok() && follow.borrow_and_update().state == State::Completed);
    assert!(follow.changed().await.is_err(), "nothing more will come");
    let late = s.subscribe("a").await.unwrap();
    assert_eq!(late.borrow().version, 3);
    assert!(s.core.inner.lock().tasks["a"].followers.is_none(), "a task that nobody follows has no channel");
}

#[tokio::test]
async fn the_oldest_end_makes_room() {
    let s = Bed::tasks(3);
    let mut made = Vec::new();
    for id in ["a", "b", "c"] {
        made.push(s.create(id, id).await);
    }
    s.to(&made[2], State::Completed).await.unwrap();
    s.to(&made[0], State::Completed).await.unwrap();
    s.create("d", "d").await;
    assert!(matches!(s.get("c").await, Err(StoreError::NotFound)), "c ended first");
    s.create("e", "e").await;
    let full = Store::create(&s.store, task("f", "f"), None, None).await;
    assert!(matches!(full, Err(StoreError::Full(_))), "b, d and e are alive");
    assert!(s.get("b").await.is_ok());
    assert_eq!(s.core.metrics.evicted.get(), 2);
    assert_eq!((s.core.metrics.tasks(State::Submitted), s.core.metrics.tasks(State::Completed)), (3, 0));
    s.empty().await;
}

#[tokio::test]
async fn bytes_are_bounded_and_accounted_for() {
    let s = Bed::new(Limits::default(), 40_000);
    let fat = |id: &str| {
        let message = raw(&format!("{{\"m\":\"{}\"}}", "x".repeat(4_000)));
        Task::new(id.into(), id.into(), "".into(), message, true, Timestamp::UNIX_EPOCH)
    };
    for i in 0..50 {
        let made = Store::create(&s.store, fat(&i.to_string()), None, None).await.unwrap();
        s.to(&made, State::Completed).await.unwrap();
        assert!(s.bytes() <= 45_000, "{}", s.bytes());
    }
    let mut alive = Vec::new();
    for i in 0..50 {
        alive.extend(Store::create(&s.store, fat(&format!("alive{i}")), None, None).await.ok());
    }
    assert!((2..10).contains(&alive.len()), "{}", alive.len());
    let Err(StoreError::Full(why)) = Store::create(&s.store, fat("more"), None, None).await else {
        panic!("the bytes are taken")
    };
    assert!(why.contains("40000 bytes"), "{why}");
    // A task that grows beyond the bytes is refused and stays as it was.
    let said = Some(raw(&format!("\"{}\"", "x".repeat(60_000))));
    let grow = Change { said, ..to(State::Completed) };
    assert!(matches!(s.append(&alive[0], grow, None).await, Err(StoreError::Full(_))));
    assert_eq!(s.get(&alive[0].id).await.unwrap().version, 1);
    s.empty().await;
}

#[tokio::test]
async fn ten_thousand_tiny_chunks_are_all_replayed() {
    let s = Bed::tasks(10);
    let mut t = s.create("a", "c").await;
    for i in 0..10_000 {
        t = s.append(&t, chunk(&i.to_string(), i > 0), None).await.unwrap();
    }
    let mut seen = 0;
    while seen < t.version {
        let events = s.events("a", seen, 1_000).await.unwrap();
        assert!(events.iter().map(|e| e.version).eq(seen + 1..=seen + events.len() as u64));
        seen += events.len() as u64;
    }
    let half = s.at("a", 5_001).await.unwrap();
    assert_eq!((half.version, half.artifacts[0].parts()), (5_001, 5_000));
    assert!(s.bytes() < 8 << 20, "{}", s.bytes());
    s.empty().await;
}

#[tokio::test]
async fn what_was_dropped_from_a_log_is_said_and_the_rest_still_adds_up() {
    let s = Bed::tasks(10);
    let mut t = s.create("a", "c").await;
    let fat = "x".repeat(100_000);
    for i in 0..400 {
        t = s.append(&t, chunk(&fat, i > 0), None).await.unwrap_or_else(|e| panic!("{i}: {e}"));
        if i % 50 == 0 {
            // Replaced, so that the task itself stays small.
            t = s.append(&t, chunk("new", false), None).await.unwrap();
        }
    }
    let Err(StoreError::Trimmed(first)) = s.events("a", 0, 10).await else { panic!("40 MB were written") };
    assert!((2..t.version).contains(&first));
    let base = s.at("a", first - 1).await.unwrap();
    let mut copy = Task::clone(&base);
    for event in s.events("a", first - 1, 1_000).await.unwrap() {
        copy.change(&event.change, &s.owner, event.at).unwrap();
    }
    assert_eq!(copy.artifacts, t.artifacts);
    assert_eq!(*s.at("a", first + 3).await.unwrap().id, *"a");
    assert!(matches!(s.at("a", first - 2).await, Err(StoreError::Trimmed(v)) if v == first - 1));
    s.empty().await;
}

#[tokio::test]
async fn a_thousand_tasks_of_two_kilobytes_take_little() {
    let s = Bed::tasks(10_000);
    for i in 0..1_000 {
        let message = raw(&format!("{{\"m\":\"{}\"}}", "x".repeat(2_000)));
        let id: Arc<str> = format!("{i:036}").into();
        let made = Task::new(Arc::clone(&id), id, "".into(), message, true, Timestamp::UNIX_EPOCH);
        let made = Store::create(&s.store, made, None, None).await.unwrap();
        let working = s.to(&made, State::Working).await.unwrap();
        s.to(&working, State::Completed).await.unwrap();
    }
    // Message text is counted twice, for the task and for its context, and held once.
    assert!(s.bytes() < 7 << 20, "{}", s.bytes());
}

#[tokio::test]
async fn retention_ends_tasks_contexts_and_keys() {
    let s = Bed::new(Limits { task_retention_ms: 3_600_000, ..Limits::default() }, MAX_BYTES);
    let a = Store::create(&s.store, task("a", "c"), Some(key("k")), None).await.unwrap();
    s.append(&a, Change { memo: Some(raw("1")), ..to(State::Completed) }, None).await.unwrap();
    let b = s.create("b", "c").await;
    s.sweep().await.unwrap();
    assert!(s.get("a").await.is_ok());
    s.pass(HOUR * 2);
    s.sweep().await.unwrap();
    assert!(matches!(s.get("a").await, Err(StoreError::NotFound)));
    assert!(s.get("b").await.is_ok(), "what lives stays");
    assert_eq!(s.conversation("", "c").await.unwrap().memo, Some(raw("1")), "its context is in use");
    assert_eq!(&*s.key("k").await.unwrap().unwrap().task, "a");
    s.to(&b, State::Canceled).await.unwrap();
    s.pass(HOUR * 2);
    s.sweep().await.unwrap();
    assert!(s.core.inner.lock().contexts.is_empty());
    s.pass(KEY_RETENTION);
    assert_eq!(s.key("k").await.unwrap(), None, "too old, swept or not");
    Store::create(&s.store, task("d", "d"), Some(key("k")), None).await.unwrap();
    s.sweep().await.unwrap();
    assert_eq!(&*s.key("k").await.unwrap().unwrap().task, "d");
    assert_eq!(s.core.metrics.evicted.get(), 0, "nothing went early");
    s.empty().await;
}

#[tokio::test]
async fn a_withdrawn_task_leaves_its_memo_and_its_answer() {
    let s = Bed::tasks(10);
    let a = Store::create(&s.store, task("a", "c"), Some(key("k")), Some(receiver("a", "r"))).await.unwrap();
    let stale = Task { version: 9, ..Task::clone(&a) };
    let message = raw("{\"messageId\":\"direct\"}");
    assert!(matches!(s.withdraw(&stale, None, &message).await, Err(StoreError::Conflict { .. })));
    s.withdraw(&a, Some(raw("{\"k\":1}")), &message).await.unwrap();
    assert!(matches!(s.get("a").await, Err(StoreError::NotFound)));
    assert!(matches!(s.push_configs("a").await, Err(StoreError::NotFound)));
    let c = s.conversation("", "c").await.unwrap();
    assert_eq!((c.memo, c.messages.len()), (Some(raw("{\"k\":1}")), 1));
    assert_eq!(s.key("k").await.unwrap().unwrap().message, Some(message));
    assert_eq!(s.conversation("", "unknown").await.unwrap(), Conversation::default());
    assert_eq!(s.conversation("else", "c").await.unwrap(), Conversation::default());
    s.empty().await;
}

#[tokio::test]
async fn keys_are_bounded() {
    let s = Bed::tasks(10);
    let mut t = s.create("a", "c").await;
    for i in 0..=MAX_KEYS {
        t = s.append(&t, Change::default(), Some(key(&i.to_string()))).await.unwrap();
    }
    assert_eq!(s.key("0").await.unwrap(), None);
    assert!(s.key("1").await.unwrap().is_some());
    s.empty().await;
}

#[tokio::test]
async fn lists_have_an_order_filters_and_pages() {
    let s = Bed::tasks(100);
    for i in 0..20 {
        let mut t = task(&format!("{i:02}"), if i % 2 == 0 { "even" } else { "odd" });
        t.caller = if i < 18 { "me".into() } else { "other".into() };
        t.revealed = i != 3;
        let made = Store::create(&s.store, t, None, None).await.unwrap();
        if i % 3 == 0 {
            s.to(&made, State::Working).await.unwrap();
        }
        if i % 4 == 3 {
            s.pass(Duration::from_secs(1));
        }
    }
    let all = Query { caller: "me".into(), limit: 100, ..Query::default() };
    let whole = s.list(all.clone()).await.unwrap();
    let ids: Vec<_> = whole.tasks.iter().map(|t| t.id.to_string()).collect();
    let expected =
        ["16", "17", "12", "13", "14", "15", "08", "09", "10", "11", "04", "05", "06", "07", "00", "01", "02"];
    assert_eq!((ids.as_slice(), whole.total, whole.more), (expected.map(String::from).as_slice(), 17, false));
    for context in [None, Some(Arc::from("even"))] {
        for state in [None, Some(State::Working)] {
            for since in [None, Some(whole.tasks[8].since)] {
                let fits = |t: &&Arc<Task>| {
                    context.as_ref().is_none_or(|c| *c == t.context_id)
                        && state.is_none_or(|s| s == t.state)
                        && since.is_none_or(|s| t.since >= s)
                };
                let expected: Vec<_> = whole.tasks.iter().filter(fits).cloned().collect();
                let (mut got, mut after) = (Vec::new(), None);
                loop {
                    let query = Query { context: context.clone(), state, since, after, limit: 3, ..all.clone() };
                    let page = s.list(query).await.unwrap();
                    assert_eq!(page.total, expected.len() as u64);
                    got.extend(page.tasks);
                    if !page.more {
                        break;
                    }
                    after = got.last().map(|t| Cursor { since: t.since, id: Arc::clone(&t.id) });
                }
                assert_eq!(got, expected);
            }
        }
    }
    assert_eq!(s.list(Query { caller: "nobody".into(), limit: 5, ..Query::default() }).await.unwrap().total, 0);
    assert_eq!((s.open_tasks("me").await.unwrap(), s.open_tasks("other").await.unwrap()), (18, 2));
}

#[tokio::test]
async fn receivers_are_claimed_one_at_a_time() {
    let s = Bed::tasks(10);
    let hint = s.push_hint();
    let quiet = s.create("quiet", "c").await;
    s.to(&quiet, State::Working).await.unwrap();
    assert_eq!(*hint.borrow(), 0, "no receiver, no hint");
    let a = Store::create(&s.store, task("a", "c"), None, Some(receiver("a", "r"))).await.unwrap();
    assert_eq!(*hint.borrow(), 1);
    let hold = Duration::from_secs(30);
    let work = s.push_due(10, hold).await.unwrap().remove(0);
    assert_eq!(work.config, receiver("a", "r"));
    assert!(s.push_due(10, hold).await.unwrap().is_empty());
    let delivered = |work: &PushWork, delivered| PushWork {
        config: PushConfig { delivered, ..work.config.clone() },
        claim: work.claim,
        again: work.again,
    };
    s.push_done(delivered(&work, 1)).await.unwrap();
    assert!(s.push_due(10, hold).await.unwrap().is_empty(), "nothing to deliver");
    let a = s.to(&a, State::Working).await.unwrap();
    assert_eq!(*hint.borrow(), 2);
    let work = s.push_due(10, hold).await.unwrap().remove(0);
    assert_eq!(work.config.delivered, 1);
    // A claim that ran out is another one's, and the late one is not heard any more.
    s.pass(hold);
    let again = s.push_due(10, hold).await.unwrap().remove(0);
    s.push_done(delivered(&work, 2)).await.unwrap();
    assert_eq!(s.push_configs("a").await.unwrap()[0].delivered, 1);
    let dead = PushConfig { dead: Some("gone".into()), attempts: 7, ..again.config.clone() };
    s.push_done(PushWork { config: dead, claim: again.claim, again: false }).await.unwrap();
    s.pass(HOUR);
    assert!(s.push_due(10, hold).await.unwrap().is_empty(), "given up");
    s.put_push(receiver("a", "r")).await.unwrap();
    assert_eq!(s.push_due(10, hold).await.unwrap().len(), 1, "a new one in its place");
    assert!(s.delete_push("a", "r").await.unwrap() && !s.delete_push("a", "r").await.unwrap());
    assert!(matches!(s.put_push(receiver("x", "r")).await, Err(StoreError::NotFound)));
    let later = PushConfig { next: s.core.clock.now() + HOUR, ..receiver("a", "later") };
    s.put_push(later).await.unwrap();
    assert!(s.push_due(10, hold).await.unwrap().is_empty());
    s.to(&a, State::Completed).await.unwrap();
    s.empty().await;
}

#[tokio::test]
async fn a_lease_that_ran_out_leaves_orphans() {
    let s = Bed::tasks(10);
    let other = s.share();
    let a = s.create("a", "c").await;
    let parked = s.create("parked", "c").await;
    s.to(&parked, State::InputRequired).await.unwrap();
    assert!(other.orphans(10).await.unwrap().is_empty());
    s.pass(LEASE);
    other.renew().await.unwrap();
    assert!(s.orphans(10).await.unwrap().is_empty());
    assert_eq!(other.orphans(10).await.unwrap(), std::slice::from_ref(&a));
    s.renew().await.unwrap();
    assert!(other.orphans(10).await.unwrap().is_empty());
    s.release().await.unwrap();
    let orphan = other.orphans(10).await.unwrap().remove(0);
    let taken = other.append(&orphan, Change { turn: Some(turn()), ..to(State::Working) }, None).await.unwrap();
    assert_eq!((taken.owner.clone(), taken.epoch), (Some(other.owner()), 2));
    assert!(matches!(s.to(&a, State::Completed).await, Err(StoreError::Conflict { .. })));
    assert!(other.orphans(10).await.unwrap().is_empty());
    other.append(&taken, to(State::Completed), None).await.unwrap();
}
