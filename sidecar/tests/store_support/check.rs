//! Whether a store shows what the model says.

use std::cmp::Reverse;
use std::sync::Arc;

use outrigger_protocol::a2a::conversation::Conversation;
use outrigger_protocol::a2a::state::State;
use outrigger_protocol::a2a::task::Task;
use outrigger_sidecar::a2a::store::{Cursor, KeyRecord, PushConfig, Query, Store, StoreError};

use super::model::{Model, Op};

/// What an operation can change, as it can be seen.
#[derive(Debug, Default, PartialEq)]
pub struct View {
    task: Option<Task>,
    events: usize,
    conversation: Option<Conversation>,
    key: Option<KeyRecord>,
    push: Vec<PushConfig>,
}

/// Tasks, context and key that an operation is about.
type About<'a> = (Vec<Arc<str>>, Option<(&'a str, &'a str)>, Option<&'a str>);

fn about<'a>(model: &'a Model, op: &'a Op) -> About<'a> {
    match op {
        Op::Create(task, key, _) | Op::Append(task, _, key) => {
            (vec![Arc::clone(&task.id)], Some((&*task.caller, &*task.context_id)), key.as_ref().map(|k| &*k.id))
        }
        Op::Withdraw(task, ..) => (vec![Arc::clone(&task.id)], Some((&*task.caller, &*task.context_id)), None),
        Op::PutPush(config) | Op::Done(config, _) => (vec![Arc::clone(&config.task)], None, None),
        Op::DeletePush(task, _) => (vec![Arc::clone(task)], None, None),
        Op::Claim(..) => (model.tasks.keys().cloned().collect(), None, None),
        Op::Renew => (Vec::new(), None, None),
    }
}

/// What a store shows of an operation.
pub async fn shown(store: &dyn Store, model: &Model, op: &Op) -> Vec<View> {
    let (tasks, context, key) = about(model, op);
    let mut views = Vec::new();
    for id in tasks {
        let mut view = View::default();
        match store.get(&id).await {
            Ok(task) => view.task = Some(Task::clone(&task)),
            Err(StoreError::NotFound) => {}
            Err(other) => panic!("{other}"),
        }
        if view.task.is_some() {
            view.events = store.events(&id, 0, usize::MAX).await.expect("events of a task that is there").len();
            view.push = store.push_configs(&id).await.expect("receivers of a task that is there");
        }
        if let Some((caller, context)) = context {
            view.conversation = Some(store.conversation(caller, context).await.expect("a conversation"));
        }
        if let Some(key) = key {
            view.key = store.key(key).await.expect("a key");
        }
        views.push(view);
    }
    views
}

/// What the model shows of it.
pub fn expected(model: &Model, op: &Op) -> Vec<View> {
    let (tasks, context, key) = about(model, op);
    let view = |id: Arc<str>| {
        let life = model.tasks.get(&id);
        let push = model.push.values().map(|r| &r.config).filter(|c| c.task == id).cloned().collect();
        View {
            task: life.map(|l| l.newest().clone()),
            events: life.map_or(0, |l| l.events.len()),
            conversation: context.map(|(c, x)| model.contexts.get(&(c.into(), x.into())).cloned().unwrap_or_default()),
            key: key.and_then(|k| model.keys.get(k).cloned()),
            push: if life.is_some() { push } else { Vec::new() },
        }
    };
    tasks.into_iter().map(view).collect()
}

/// Everything: each task at each version, its log, lists, keys, contexts, receivers, orphans.
pub async fn whole(store: &dyn Store, model: &Model) {
    for (id, life) in &model.tasks {
        let newest = store.get(id).await.expect("a task");
        assert_eq!(*newest, *life.newest());
        let mut log = Vec::new();
        loop {
            let more = store.events(id, log.len() as u64, 3).await.expect("a whole log");
            if more.is_empty() {
                break;
            }
            log.extend(more);
        }
        let events: Vec<_> = log.iter().map(|e| (e.at, (*e.change).clone())).collect();
        assert_eq!(events, life.events, "{id}");
        assert!(log.iter().map(|e| e.version).eq(1..=newest.version), "versions without gaps");
        let ends = log.iter().filter(|e| e.change.state.is_some_and(State::is_terminal)).count();
        assert_eq!(ends, usize::from(newest.state.is_terminal()), "one end");
        for then in &life.versions {
            let at = store.at(id, then.version).await.expect("a task as it was");
            assert_eq!(*at, *then);
            // What a follower makes of it: it knows nothing of owners.
            let mut copy = Task::clone(&at);
            for event in &log[usize::try_from(then.version).unwrap()..] {
                copy.change(&event.change, &"".into(), event.at).expect("an event that was allowed");
            }
            let Task { owner, epoch, turn, .. } = Task::clone(&newest);
            assert_eq!(Task { owner, epoch, turn, ..copy }, *newest);
        }
        let head = *store.subscribe(id).await.expect("a head").borrow();
        assert_eq!((head.version, head.epoch, head.state), (newest.version, newest.epoch, newest.state));
        let push: Vec<_> = model.push.values().map(|r| &r.config).filter(|c| c.task == *id).cloned().collect();
        assert_eq!(store.push_configs(id).await.expect("receivers"), push);
    }
    for ((caller, context), conversation) in &model.contexts {
        assert_eq!(store.conversation(caller, context).await.expect("a conversation"), *conversation);
    }
    for (id, record) in &model.keys {
        assert_eq!(store.key(id).await.expect("a key").as_ref(), Some(record));
    }
    for caller in ["", "me"] {
        lists(store, model, caller).await;
        let mine = model.tasks.values().filter(|l| *l.newest().caller == *caller);
        let open = mine.filter(|l| !l.newest().state.is_terminal()).count();
        assert_eq!(store.open_tasks(caller).await.expect("a number"), open as u64);
    }
    let mut orphans = store.orphans(usize::MAX).await.expect("orphans");
    orphans.sort_by_key(|t| Arc::clone(&t.id));
    let orphans: Vec<_> = orphans.iter().map(|t| &**t).collect();
    assert_eq!(orphans, model.orphans(&store.owner()), "orphans at {}", model.now);
}

async fn lists(store: &dyn Store, model: &Model, caller: &str) {
    let mut all: Vec<_> = model.tasks.values().map(super::model::Life::newest).collect();
    all.retain(|t| t.revealed && *t.caller == *caller);
    all.sort_by_key(|t| (Reverse(t.since), Arc::clone(&t.id)));
    let middle = all.get(all.len() / 2).map(|t| t.since);
    for context in [None, Some("c0"), Some("c1")] {
        for state in [None, Some(State::Working), Some(State::Completed)] {
            for since in [None, middle] {
                let fits = |t: &&&Task| {
                    context.is_none_or(|c| *c == *t.context_id)
                        && state.is_none_or(|s| s == t.state)
                        && since.is_none_or(|s| t.since >= s)
                };
                let expected: Vec<Task> = all.iter().filter(fits).map(|t| (*t).clone()).collect();
                let (mut got, mut after) = (Vec::new(), None);
                loop {
                    let context = context.map(Arc::from);
                    let query = Query { caller: caller.into(), context, state, since, after, limit: 4 };
                    let page = store.list(query).await.expect("a page");
                    assert_eq!(page.total, expected.len() as u64);
                    got.extend(page.tasks.iter().map(|t| Task::clone(t)));
                    if !page.more {
                        break;
                    }
                    after = got.last().map(|t| Cursor { since: t.since, id: Arc::clone(&t.id) });
                }
                assert_eq!(got, expected, "{context:?} {state:?} {since:?}");
            }
        }
    }
}
