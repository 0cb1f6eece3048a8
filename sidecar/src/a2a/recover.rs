//! Tasks whose process is gone: found again and again, and each one handed over, gone on with, or ended, once.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use outrigger_protocol::a2a::fault::Fault;
use outrigger_protocol::a2a::task::{Change, Task, TurnMark};
use outrigger_protocol::config::Recovery;
use tokio::time::sleep;

use super::call::Used;
use super::drive;
use super::handover;
use super::ids::uuid;
use super::job::{Job, Kind, Teller};
use super::keys::Keys;
use super::service::Tasks;
use super::store::StoreError;
use super::write::failed;

/// Most tasks that are looked at in one go.
const BATCH: usize = 64;
/// Pause between two looks at a task whose write was unsure.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// Most such looks.
const LOOKS: usize = 300;

/// Looks for orphans until shutdown.
pub async fn watch(tasks: Arc<Tasks>) {
    loop {
        match tasks.store.orphans(BATCH).await {
            Ok(orphans) => {
                let all = orphans.len() < BATCH;
                for task in orphans {
                    adopt(&tasks, task).await;
                }
                if all {
                    tasks.turns.settle();
                }
            }
            Err(error) => {
                tracing::debug!(target: "business", %error, "tasks of processes that are gone were not looked for");
            }
        }
        tokio::select! {
            () = tasks.ctx.shutdown.cancelled() => return,
            () = sleep(tasks.timing.reap) => {}
        }
    }
}

/// The pod of an owner: what stands before the slash of its name.
fn pod(owner: &str) -> &str {
    owner.rsplit_once('/').map_or(owner, |(pod, _)| pod)
}

/// Takes one task over, if nobody else has.
async fn adopt(tasks: &Arc<Tasks>, task: Arc<Task>) {
    if task.state.is_terminal() || task.state.is_interrupted() || *tasks.lost.borrow() {
        return;
    }
    let same_pod = task.owner.as_ref().is_some_and(|o| pod(o) == pod(&tasks.store.owner()));
    let redeliver = tasks.ctx.live.borrow().turns.recovery == Recovery::Redeliver;
    let mark = task.turn.clone().unwrap_or_else(|| TurnMark {
        id: uuid().into(),
        began: jiff::Timestamp::now(),
        ..TurnMark::default()
    });
    // Handed over never: that is safe to do, whatever the handler promises.
    let fresh = mark.attempt == 0;
    let reattach = same_pod && !fresh && {
        let (_, own) = handover::read(task.attachment.as_ref());
        tasks.executor.can_reattach(mark.asynchronous, own.as_ref())
    };
    if !(fresh || reattach || redeliver) {
        let fault = if same_pod { Fault::Restarted } else { Fault::Stopped };
        return end(tasks, &task, &fault).await;
    }
    let Some(place) = tasks.gate.admit() else { return };
    let Some(lane) = tasks.lanes.enter(&task.id) else { return };
    // Whoever writes this first has the task.
    let change = Change { turn: Some(mark.clone()), ..Change::default() };
    let task = match tasks.store.append(&task, change, None).await {
        Ok(task) => task,
        Err(StoreError::Conflict { .. } | StoreError::NotFound) => return,
        Err(error) => {
            tracing::warn!(target: "business", task = &*task.id, %error, "a task of a process that is gone was not taken over");
            look_later(tasks, &task.id);
            return;
        }
    };
    let outcome = if reattach { "reattached" } else { "redelivered" };
    tasks.metrics.recovered.with_label_values(&[outcome]).inc();
    tracing::info!(target: "business", task = &*task.id, turn = &*mark.id, outcome, "a task of a process that is gone goes on here");
    let (request, _) = handover::read(task.attachment.as_ref());
    let job = Job {
        tasks: Arc::clone(tasks),
        lane,
        place,
        work: tasks.work(),
        turn: Arc::clone(&mark.id),
        trace: Tasks::own_trace(),
        request,
        used: Used::default(),
        keys: Keys::default(),
        kind: Kind::Again { mark, reattach },
        task: Arc::clone(&task),
    };
    tokio::spawn(drive::run(job, Teller::nobody(task)));
}

async fn end(tasks: &Tasks, task: &Task, fault: &Fault) {
    match tasks.store.append(task, failed(task, fault), None).await {
        Ok(task) => {
            tasks.metrics.recovered.with_label_values(&["failed"]).inc();
            tasks.metrics.failures.with_label_values(&[fault.reason()]).inc();
            tracing::warn!(target: "business", task = &*task.id, reason = fault.reason(), "a task ended as its process is gone");
        }
        // Somebody else was first.
        Err(StoreError::Conflict { .. } | StoreError::NotFound) => {}
        Err(error) => {
            tracing::warn!(target: "business", task = &*task.id, %error, "a task of a process that is gone was not ended");
        }
    }
}

/// Hands a turn over again that stopped because the store was away; unless it is another's by now.
pub(super) fn after_outage(tasks: Arc<Tasks>, task: Arc<Task>) -> BoxFuture<'static, ()> {
    Box::pin(again_after_outage(tasks, task))
}

async fn again_after_outage(tasks: Arc<Tasks>, task: Arc<Task>) {
    let mut lost = tasks.lost.subscribe();
    let again = async {
        if lost.wait_for(|l| !l).await.is_err() {
            return;
        }
        for _ in 0..LOOKS {
            if let Ok(current) = tasks.store.get(&task.id).await {
                let ours = current.owner.as_ref() == Some(&tasks.store.owner());
                if ours && current.turn.as_ref().map(|t| &t.id) == task.turn.as_ref().map(|t| &t.id) {
                    adopt(&tasks, current).await;
                }
                return;
            }
            sleep(LOOK_AGAIN).await;
        }
    };
    tokio::select! {
        () = tasks.ctx.shutdown.cancelled() => {}
        () = again => {}
    }
}

/// A write of this process may have been done or not: if the task is there, and nobody runs it, it is run.
pub(super) fn look_later(tasks: &Arc<Tasks>, id: &Arc<str>) {
    let (tasks, id) = (Arc::downgrade(tasks), Arc::clone(id));
    tokio::spawn(async move {
        for _ in 0..LOOKS {
            sleep(LOOK_AGAIN).await;
            let Some(tasks) = tasks.upgrade() else { return };
            if tasks.ctx.shutdown.is_cancelled() {
                return;
            }
            match tasks.store.get(&id).await {
                Ok(task) if task.owner.as_ref() == Some(&tasks.store.owner()) && task.version <= 1 => {
                    return adopt(&tasks, task).await;
                }
                Ok(_) | Err(StoreError::NotFound) => return,
                Err(_) => {}
            }
        }
    });
}
