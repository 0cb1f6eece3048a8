//! Hearing of what other processes write: by notices that name a task and a version, and by a look each second in case
//! one was lost.

use std::sync::Weak;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::poll_fn;
use rand::Rng;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_postgres::AsyncMessage;
use tokio_util::sync::CancellationToken;

use super::super::StoreError;
use super::{Core, rows};

/// How often followed tasks are looked at, notice or not.
const LOOK: Duration = Duration::from_secs(1);
/// First and last wait before the next try to listen.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));
/// Most events that are fetched at once for followers; those who need more read the log.
const MAX_EVENTS: usize = 64;
/// Most tasks of one look.
const MAX_LOOK: usize = 1_000;

/// Listens until the store is gone.
pub(super) async fn listen(core: Weak<Core>, stop: CancellationToken) {
    let mut wait = BACK_OFF.0;
    loop {
        let heard = tokio::select! {
            () = stop.cancelled() => return,
            heard = hear(&core) => heard,
        };
        match heard {
            // It listened for a while.
            Ok(()) => wait = BACK_OFF.0,
            Err(error) => {
                tracing::warn!(target: "transport", %error, "no notices from the task database");
                wait = (wait * 2).min(BACK_OFF.1);
            }
        }
        let jitter = rand::rng().random_range(0.5..1.0);
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(wait.mul_f64(jitter)) => {}
        }
    }
}

/// One connection's notices.
async fn hear(core: &Weak<Core>) -> Result<(), StoreError> {
    let (client, mut connection) = {
        let Some(core) = core.upgrade() else { return Ok(()) };
        // Tables, and the knowledge that the database is there.
        drop(core.client().await?);
        core.link.listener().await.map_err(|e| StoreError::Unavailable(e.to_string()))?
    };
    let mut messages = poll_fn(move |cx| connection.poll_message(cx));
    let channel = core.upgrade().map(|c| c.link.channel().to_owned()).unwrap_or_default();
    let listen = format!("LISTEN \"{channel}\"");
    // The connection works only while its messages are taken.
    let (tell, mut told) = tokio::sync::oneshot::channel();
    let asking = async {
        let _ = tell.send(client.batch_execute(&listen).await);
        std::future::pending::<()>().await;
    };
    let mut asking = std::pin::pin!(asking);
    let mut listens = false;
    loop {
        let message = tokio::select! {
            () = &mut asking => return Ok(()),
            answer = &mut told, if !listens => {
                if let Ok(Err(e)) = answer {
                    return Err(StoreError::Unavailable(e.to_string()));
                }
                listens = true;
                continue;
            }
            message = messages.next() => message,
        };
        match message {
            Some(Ok(AsyncMessage::Notification(notice))) => {
                let Some(core) = core.upgrade() else { return Ok(()) };
                if let Some((task, version)) = notice.payload().split_once(' ')
                    && let Ok(version) = version.parse()
                {
                    hear_of(&core, task, version).await;
                }
            }
            Some(Ok(_)) => {}
            Some(Err(e)) => return Err(StoreError::Unavailable(e.to_string())),
            None => return if listens { Ok(()) } else { Err(StoreError::Unavailable("it hung up".into())) },
        }
    }
}

/// A task was written; version 0: it was forgotten.
async fn hear_of(core: &Core, task: &str, version: u64) {
    match core.hub.known(task) {
        Some(_) if version == 0 => core.hub.forget(task),
        Some(known) if known < version => {
            if let Err(error) = refresh(core, task, known).await {
                // The next look finds it.
                tracing::debug!(target: "transport", task, %error, "a followed task was not read");
            }
        }
        _ => {}
    }
}

/// Fetches what followers do not know yet.
async fn refresh(core: &Core, task: &str, known: u64) -> Result<(), StoreError> {
    let client = core.client().await?;
    let known = known.max(1);
    match rows::events(&client, task, known, MAX_EVENTS).await.map_err(StoreError::from) {
        Ok((head, events)) => core.hub.extend(task, head, events),
        Err(StoreError::NotFound) => core.hub.forget(task),
        Err(StoreError::Trimmed(_)) => {
            let newest = rows::load(&client, task, None).await?;
            core.hub.read(task, super::head_of(&newest));
        }
        Err(e) => return Err(e),
    }
    Ok(())
}

/// Looks at followed tasks until the store is gone.
pub(super) async fn look(core: Weak<Core>, stop: CancellationToken) {
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let Some(core) = core.upgrade() else { return };
        if let Err(error) = look_once(&core).await {
            tracing::debug!(target: "transport", %error, "followed tasks were not looked at");
        }
    }
}

async fn look_once(core: &Core) -> Result<(), StoreError> {
    let followed = core.hub.followed();
    for some in followed.chunks(MAX_LOOK) {
        let ids: Vec<&str> = some.iter().map(|(id, _)| &**id).collect();
        let client = core.client().await?;
        let versions: std::collections::HashMap<_, _> = rows::versions(&client, &ids).await?.into_iter().collect();
        drop(client);
        for (id, known) in some {
            match versions.get(&**id) {
                // One that begins to be followed is read by who follows it.
                Some(_) if *known == 0 => {}
                Some(version) if version > known => refresh(core, id, *known).await?,
                Some(_) => {}
                None => core.hub.forget(id),
            }
        }
    }
    Ok(())
}
