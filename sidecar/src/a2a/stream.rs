//! The stream of one task for one reader: a place in the log that moves on as fast as the reader takes events. Nothing
//! is queued for it, so a slow reader costs nothing and misses nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use outrigger_protocol::a2a::errors::Error;
use outrigger_protocol::a2a::state::State;
use outrigger_protocol::a2a::task::Task;
use outrigger_protocol::a2a::update::{self, EventId};
use outrigger_protocol::config::CloseOn;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::call::StreamItem;
use super::service::{Tasks, store_error};
use super::store::{Head, StoreError};
use super::viewers::Viewer;

/// Changes that are read at once.
const READ: usize = 256;
/// How long a stream waits for a store that is away.
const STORE_LIMIT: Duration = Duration::from_mins(1);
/// Pause between two tries.
const STORE_PAUSE: Duration = Duration::from_millis(250);
/// Without a sign from the store a stream looks at the log this often.
const LOOK: Duration = Duration::from_secs(30);

/// What brought the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A message.
    Send,
    /// A subscription.
    Subscribe,
}

/// Where a stream begins, and how it goes on.
pub(super) struct Begin {
    pub tasks: Arc<Tasks>,
    /// Given first.
    pub task: Arc<Task>,
    pub history_length: Option<u32>,
    pub source: Source,
    pub viewer: Viewer,
}

struct Reader {
    tasks: Arc<Tasks>,
    /// Given next, as a whole.
    whole: Option<Arc<Task>>,
    history_length: Option<u32>,
    source: Source,
    viewer: Viewer,
    id: Arc<str>,
    context: Arc<str>,
    /// The version up to which events were read.
    version: u64,
    ready: VecDeque<StreamItem>,
    follow: Option<watch::Receiver<Head>>,
    over: bool,
}

/// The events of a task from a version on.
pub(super) fn of(begin: Begin) -> BoxStream<'static, Result<StreamItem, Error>> {
    let Begin { tasks, task, history_length, source, viewer } = begin;
    let reader = Box::new(Reader {
        id: Arc::clone(&task.id),
        context: Arc::clone(&task.context_id),
        version: task.version,
        tasks,
        whole: Some(task),
        history_length,
        source,
        viewer,
        ready: VecDeque::new(),
        follow: None,
        over: false,
    });
    items(reader).boxed()
}

fn items(reader: Box<Reader>) -> impl Stream<Item = Result<StreamItem, Error>> + Send {
    stream::unfold(reader, |mut reader| async move { reader.next().await.map(|item| (item, reader)) })
}

impl Reader {
    async fn next(&mut self) -> Option<Result<StreamItem, Error>> {
        if let Some(task) = self.whole.take() {
            let last = self.closes(task.state) && self.is_newest(&task).await;
            self.over |= last;
            return Some(Ok(self.whole_item(&task, last)));
        }
        loop {
            if let Some(item) = self.ready.pop_front() {
                if self.ready.is_empty() {
                    // Thousands of quiet streams should not each hold on to room for a burst.
                    self.ready = VecDeque::new();
                }
                return Some(Ok(item));
            }
            if self.over {
                self.viewer.done();
                return None;
            }
            match self.read().await {
                Ok(true) => {}
                Ok(false) => self.wait().await,
                Err(error) => {
                    self.over = true;
                    return Some(Err(error));
                }
            }
            if let Some(task) = self.whole.take() {
                let last = self.closes(task.state);
                self.over |= last;
                return Some(Ok(self.whole_item(&task, last)));
            }
        }
    }

    /// A stream may begin at an older version: then what rests there is not the end.
    async fn is_newest(&self, task: &Task) -> bool {
        self.tasks.store.get(&self.id).await.is_ok_and(|t| t.version == task.version)
    }

    fn whole_item(&self, task: &Task, last: bool) -> StreamItem {
        let mut json = String::with_capacity(task.size() + 256);
        update::write_task(task, self.history_length, &mut json);
        let id = EventId { task: &self.id, version: task.version, index: None }.to_string();
        StreamItem { id: Some(id), json, last }
    }

    /// Whether the stream ends with a state.
    fn closes(&self, state: State) -> bool {
        let on = self.tasks.ctx.live.borrow().turns.close_on_interrupted;
        match state {
            State::InputRequired => match self.source {
                Source::Send => matches!(on, CloseOn::Send | CloseOn::Both),
                Source::Subscribe => matches!(on, CloseOn::Subscribe | CloseOn::Both),
            },
            State::AuthRequired => on == CloseOn::Both,
            state => state.is_terminal(),
        }
    }

    /// Reads on in the log; says whether there was anything.
    async fn read(&mut self) -> Result<bool, Error> {
        let began = Instant::now();
        let events = loop {
            match self.tasks.store.events(&self.id, self.version, READ).await {
                Ok(events) => break events,
                Err(StoreError::Trimmed(_)) => match self.tasks.store.get(&self.id).await {
                    Ok(task) => {
                        // A fresh start: what is missing stands in the task.
                        self.version = task.version;
                        self.whole = Some(task);
                        return Ok(true);
                    }
                    Err(StoreError::NotFound) => {
                        self.over = true;
                        return Ok(true);
                    }
                    Err(_) => {}
                },
                Err(StoreError::NotFound) => {
                    self.over = true;
                    return Ok(true);
                }
                Err(error) if began.elapsed() >= STORE_LIMIT => {
                    tracing::warn!(target: "business", task = &*self.id, %error, "a stream ends as the task store is away");
                    return Err(Tasks::away());
                }
                Err(_) => {}
            }
            sleep(STORE_PAUSE).await;
        };
        let any = !events.is_empty();
        for event in events {
            self.version = event.version;
            let count = update::count(&event.change);
            for index in 0..count {
                let mut json = String::with_capacity(event.change.size() + 256);
                update::write(&event.change, index, event.at, &self.id, &self.context, &mut json);
                let index = u32::try_from(index).ok();
                let id = EventId { task: &self.id, version: event.version, index }.to_string();
                self.ready.push_back(StreamItem { id: Some(id), json, last: false });
            }
            if event.change.state.is_some_and(|s| self.closes(s)) {
                if let Some(item) = self.ready.back_mut() {
                    item.last = true;
                }
                self.over = true;
                break;
            }
        }
        Ok(any)
    }

    /// Waits for a newer version. When the process ends, whoever reads the stream closes it.
    async fn wait(&mut self) {
        if self.follow.is_none() {
            self.follow = self.tasks.store.subscribe(&self.id).await.ok();
        }
        let version = self.version;
        let Some(follow) = &mut self.follow else { return sleep(STORE_PAUSE).await };
        let news = async { follow.wait_for(|h| h.version > version).await.is_ok() };
        if timeout(LOOK, news).await == Ok(false) {
            // The task has ended or is forgotten: the log says which.
            let newest = follow.borrow().version;
            self.follow = None;
            if newest <= version {
                sleep(STORE_PAUSE).await;
            }
        }
    }
}

/// A stream of nothing but a direct message.
pub(super) fn of_message(message: &str) -> BoxStream<'static, Result<StreamItem, Error>> {
    let json = format!("{{\"message\":{message}}}");
    stream::once(std::future::ready(Ok(StreamItem { id: None, json, last: true }))).boxed()
}

impl Tasks {
    /// Where a stream goes on for a reader that has everything up to an event.
    pub(super) async fn resume_at(&self, task: &Arc<Task>, last: &str) -> Result<Arc<Task>, Error> {
        let id = EventId::parse(last).filter(|id| id.task == &*task.id && id.version <= task.version && id.version > 0);
        let Some(id) = id else {
            return Err(Error::invalid_field("Last-Event-ID", "is no event of this task"));
        };
        // With a part of a change the whole change comes again, after the task as it was before.
        let mut version = id.version;
        if let (Some(index), Some(before)) = (id.index, id.version.checked_sub(1)) {
            match self.store.events(&task.id, before, 1).await {
                Ok(events) => {
                    let count = events.first().map_or(0, |e| update::count(&e.change));
                    if (index as usize) + 1 < count {
                        version = before.max(1);
                    }
                }
                Err(StoreError::Trimmed(_)) => return Ok(Arc::clone(task)),
                Err(e) => return Err(store_error(&e, &task.id)),
            }
        }
        match self.store.at(&task.id, version).await {
            Ok(at) => Ok(at),
            // Too long ago: the newest task is a fresh start.
            Err(StoreError::Trimmed(_)) => Ok(Arc::clone(task)),
            Err(e) => Err(store_error(&e, &task.id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_result<A, S>(_: impl FnOnce(A) -> S) -> usize {
        std::mem::size_of::<S>()
    }

    #[test]
    fn an_idle_stream_is_small() {
        // Ten thousand of them wait at a time; what they hold beside this is their connection.
        let size = size_of_result(items) + std::mem::size_of::<Reader>();
        assert!(size <= 2_048, "{size} bytes");
    }
}
