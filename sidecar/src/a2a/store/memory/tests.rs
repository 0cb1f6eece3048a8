use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::state::State;
use outrigger_protocol::config::Limits;
use prometheus::Registry;
use serde_json::value::RawValue;

use super::*;

fn raw(text: &str) -> Raw {
    let value: &RawValue = serde_json::from_str(text).unwrap();
    Raw::copy(value)
}

fn live(limits: Limits) -> watch::Receiver<Arc<Live>> {
    watch::channel(Arc::new(Live { limits, ..Live::new(serde_json::Value::Null) })).1
}

fn store(max_tasks: u32, max_bytes: usize) -> Memory {
    let limits = Limits { max_tasks, ..Limits::default() };
    Memory::bounded(live(limits), Metrics::register(&Registry::new()).unwrap(), max_bytes)
}

fn task(id: &str, context: &str) -> Task {
    Task::new(id.into(), context.into(), raw(&format!("{{\"messageId\":\"{id}\"}}")), true, Timestamp::now())
}

fn to(state: State) -> Change {
    Change { state: Some(state), ..Change::default() }
}

#[tokio::test]
async fn events_are_a_log_and_writers_compare_versions() {
    let s = store(10, MAX_BYTES);
    s.create(task("a", "c")).await.unwrap();
    s.append("a", 1, Change { step: 1, ..to(State::Working) }).await.unwrap();
    let Err(StoreError::Conflict { expected: 1, current }) = s.append("a", 1, to(State::Canceled)).await else {
        panic!("a writer that saw version 1 must not win");
    };
    assert_eq!((current.version, current.state), (2, State::Working));
    s.create(task("b", "c")).await.unwrap();
    s.append("a", 2, to(State::Completed)).await.unwrap();
    let refused = s.append("a", 3, to(State::Canceled)).await;
    assert!(matches!(refused, Err(StoreError::Refused(Refused::Ended(State::Completed)))));
    let log = s.events("a", 0).await.unwrap();
    let seen: Vec<_> = log.iter().map(|e| (e.version, e.change.state.unwrap())).collect();
    assert_eq!(seen, [(1, State::Submitted), (2, State::Working), (3, State::Completed)]);
    assert!(log.windows(2).all(|w| w[0].seq < w[1].seq));
    let between = s.events("b", 0).await.unwrap()[0].seq;
    assert!(log[1].seq < between && between < log[2].seq, "one order over all tasks");
    assert_eq!(s.events("a", 2).await.unwrap().len(), 1);
    assert!(matches!(s.get("x").await, Err(StoreError::NotFound)));
}

#[tokio::test]
async fn followers_see_what_is_written_and_nothing_else() {
    let s = store(10, MAX_BYTES);
    s.create(task("a", "c")).await.unwrap();
    let mut follow = s.subscribe("a").await.unwrap();
    assert_eq!(follow.borrow_and_update().version, 1);
    assert!(s.append("a", 7, to(State::Working)).await.is_err());
    assert!(!follow.has_changed().unwrap());
    s.append("a", 1, to(State::Working)).await.unwrap();
    let seen = Arc::clone(&follow.borrow_and_update());
    assert_eq!(s.get("a").await.unwrap(), seen);
    assert_eq!(s.events("a", 1).await.unwrap().last().unwrap().version, seen.version);
    drop(follow);
    s.append("a", 2, to(State::Completed)).await.unwrap();
    assert!(s.inner.lock().tasks["a"].followers.is_none(), "a task that nobody follows has no channel");
}

#[tokio::test]
async fn the_oldest_end_makes_room() {
    let s = store(3, MAX_BYTES);
    for id in ["a", "b", "c"] {
        s.create(task(id, id)).await.unwrap();
    }
    for id in ["c", "a"] {
        s.append(id, 1, to(State::Completed)).await.unwrap();
    }
    s.create(task("d", "d")).await.unwrap();
    assert!(matches!(s.get("c").await, Err(StoreError::NotFound)), "c ended first");
    s.create(task("e", "e")).await.unwrap();
    assert!(matches!(s.create(task("f", "f")).await, Err(StoreError::Full(_))), "b, d and e are alive");
    assert!(s.get("b").await.is_ok());
    assert_eq!(s.metrics.evicted.get(), 2);
    assert_eq!(s.metrics.tasks(State::Submitted), 3);
    assert_eq!(s.metrics.tasks(State::Completed), 0);
}

#[tokio::test]
async fn bytes_are_bounded_and_accounted_for() {
    let s = store(1_000, 40_000);
    let fat = |id: &str| {
        let message = raw(&format!("{{\"m\":\"{}\"}}", "x".repeat(4_000)));
        Task::new(id.into(), id.into(), message, true, Timestamp::now())
    };
    let mut made = 0;
    for i in 0..50 {
        let id = i.to_string();
        if s.create(fat(&id)).await.is_ok() {
            made += 1;
            s.append(&id, 1, to(State::Completed)).await.unwrap();
        }
        assert!(s.inner.lock().bytes <= 40_000);
    }
    assert_eq!(made, 50, "ended tasks make room");
    let alive: usize = {
        let mut n = 0;
        for i in 0..50 {
            n += usize::from(s.create(fat(&format!("alive{i}"))).await.is_ok());
        }
        n
    };
    assert!((3..10).contains(&alive), "{alive}");
    let Err(StoreError::Full(why)) = s.create(fat("more")).await else { panic!("the bytes are taken") };
    assert!(why.contains("40000 bytes"), "{why}");
    // A task that grows beyond the bytes is refused and stays as it was.
    let id = (0..50).map(|i| format!("alive{i}")).find(|id| s.inner.lock().tasks.contains_key(id.as_str())).unwrap();
    let said = raw(&format!("\"{}\"", "x".repeat(60_000)));
    let grow = Change { said: Some(said), ..to(State::Completed) };
    assert!(matches!(s.append(&id, 1, grow).await, Err(StoreError::Full(_))));
    assert_eq!(s.get(&id).await.unwrap().version, 1);
    // Everything that was counted in is counted out.
    let mut inner = s.inner.lock();
    let ids: Vec<_> = inner.tasks.keys().cloned().collect();
    for id in ids {
        inner.remove(&id, &s.metrics);
    }
    while inner.remove_oldest_context() {}
    assert_eq!((inner.bytes, inner.contexts.len()), (0, 0));
}

#[tokio::test]
async fn a_thousand_tasks_of_two_kilobytes_take_little() {
    let s = store(10_000, MAX_BYTES);
    for i in 0..1_000 {
        let id: Arc<str> = uuid::Uuid::new_v4().to_string().into();
        let message = raw(&format!("{{\"m\":\"{}\"}}", "x".repeat(2_000)));
        let context: Arc<str> = format!("context-{i}").into();
        s.create(Task::new(Arc::clone(&id), context, message, true, Timestamp::now())).await.unwrap();
        s.append(&id, 1, to(State::Working)).await.unwrap();
        s.append(&id, 2, to(State::Completed)).await.unwrap();
    }
    // Message text is counted twice, for the task and for its context, and held once.
    let bytes = s.inner.lock().bytes;
    assert!(bytes < 6 << 20, "{bytes}");
}

#[tokio::test]
async fn retention_ends_tasks_and_contexts() {
    let limits = Limits { task_retention_ms: 3_600_000, ..Limits::default() };
    let s = Memory::new(live(limits), Metrics::register(&Registry::new()).unwrap());
    let hour = Duration::from_hours(1);
    s.create(task("a", "c")).await.unwrap();
    s.append("a", 1, Change { memo: Some(raw("1")), ..to(State::Completed) }).await.unwrap();
    s.create(task("b", "c")).await.unwrap();
    let now = Timestamp::now();
    s.inner.lock().expire(now, hour, &s.metrics);
    assert!(s.get("a").await.is_ok());
    s.inner.lock().expire(now + hour * 2, hour, &s.metrics);
    assert!(matches!(s.get("a").await, Err(StoreError::NotFound)));
    assert!(s.get("b").await.is_ok(), "what lives stays");
    assert_eq!(s.conversation("c").await.unwrap().memo, Some(raw("1")), "its context is in use");
    s.append("b", 1, to(State::Canceled)).await.unwrap();
    s.inner.lock().expire(now + hour * 4, hour, &s.metrics);
    assert!(s.inner.lock().contexts.is_empty());
    assert_eq!(s.inner.lock().bytes, 0);
    assert_eq!(s.metrics.evicted.get(), 0, "nothing went early");
}

#[tokio::test]
async fn a_withdrawn_task_leaves_its_memo() {
    let s = store(10, MAX_BYTES);
    s.create(task("a", "c")).await.unwrap();
    assert!(matches!(s.withdraw("a", 9, None).await, Err(StoreError::Conflict { .. })));
    s.withdraw("a", 1, Some(raw("{\"k\":1}"))).await.unwrap();
    assert!(matches!(s.get("a").await, Err(StoreError::NotFound)));
    let c = s.conversation("c").await.unwrap();
    assert_eq!((c.memo, c.messages.len()), (Some(raw("{\"k\":1}")), 1));
    assert_eq!(s.conversation("unknown").await.unwrap(), Conversation::default());
}
