//! Turns under way by id: where events that are posted after 202 find their turn (`docs/executor-contract.md`).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use outrigger_protocol::a2a::fault::Fault;
use outrigger_protocol::a2a::raw::{push_key, push_text};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};

use super::service::Tasks;

/// Most requests with events of one turn that wait; there is no use in sending them side by side.
const MAX_POSTS: usize = 16;
/// How long such a request waits to be written.
const POST_LIMIT: Duration = Duration::from_secs(30);
/// Seconds that a handler is told to wait.
const RETRY: u32 = 1;

/// All turns of this process.
pub struct Turns {
    map: Mutex<HashMap<Arc<str>, Arc<Inbox>>>,
    /// Whether turns of a sidecar before this one were looked for: only then is an unknown turn one that has ended.
    settled: watch::Sender<bool>,
}

/// What reaches a turn from outside of its stream.
#[derive(Default)]
pub struct Inbox {
    posts: Mutex<Posts>,
    posted: Notify,
    shown: Notify,
}

#[derive(Default)]
struct Posts {
    waiting: VecDeque<Post>,
    closed: bool,
}

/// The body of one request, and where its outcome goes.
pub struct Post {
    /// One event or a list of them.
    pub body: Bytes,
    /// Without an answer the turn has ended.
    pub reply: oneshot::Sender<Posted>,
}

/// What became of a request.
#[derive(Debug)]
pub enum Posted {
    /// Everything up to this `seq` is kept.
    Kept(u64),
    /// This `seq` must come next.
    Gap(u64),
    /// Malformed.
    Bad(Fault),
}

/// A turn in the list, until it is dropped.
pub struct Registered {
    turns: Arc<Turns>,
    id: Arc<str>,
    inbox: Arc<Inbox>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { map: Mutex::default(), settled: watch::Sender::new(false) }
    }
}

impl Turns {
    /// Lists a turn.
    pub fn register(self: &Arc<Self>, id: &Arc<str>) -> Registered {
        let inbox = Arc::new(Inbox::default());
        self.map.lock().insert(Arc::clone(id), Arc::clone(&inbox));
        Registered { turns: Arc::clone(self), id: Arc::clone(id), inbox }
    }

    /// From now on an unknown turn is one that has ended.
    pub fn settle(&self) {
        self.settled.send_if_modified(|s| !std::mem::replace(s, true));
    }

    /// Asks a turn to show its task to callers now; `false` if it is none of this process.
    pub fn show(&self, turn: &str) -> bool {
        let inbox = self.map.lock().get(turn).cloned();
        inbox.inspect(|i| i.shown.notify_one()).is_some()
    }

    fn find(&self, turn: &str) -> Option<Arc<Inbox>> {
        self.map.lock().get(turn).cloned()
    }
}

impl Registered {
    /// The next request with events.
    pub async fn next(&self) -> Post {
        loop {
            if let Some(post) = self.inbox.posts.lock().waiting.pop_front() {
                return post;
            }
            self.inbox.posted.notified().await;
        }
    }

    /// Returns when the task is to be shown.
    pub async fn shown(&self) {
        self.inbox.shown.notified().await;
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.turns.map.lock().remove(&self.id);
        let waiting = {
            let mut posts = self.inbox.posts.lock();
            posts.closed = true;
            std::mem::take(&mut posts.waiting)
        };
        drop(waiting);
    }
}

/// `POST /turns/{turn}/events` of the local API.
pub async fn post_events(
    State(tasks): State<Arc<Tasks>>,
    Path(turn): Path<String>,
    request: Request,
) -> Response<Body> {
    let max = tasks.ctx.live.borrow().limits.max_answer_bytes;
    let Some(inbox) = tasks.turns.find(&turn) else {
        let settled = *tasks.turns.settled.borrow();
        return if settled { gone() } else { later("the sidecar has just started and looks for its turns") };
    };
    let limit = usize::try_from(max).unwrap_or(usize::MAX);
    let Ok(body) = axum::body::to_bytes(request.into_body(), limit).await else {
        let text = format!("the body is larger than {max} bytes or did not arrive");
        return refuse(StatusCode::PAYLOAD_TOO_LARGE, "too_large", &text, None);
    };
    let (reply, outcome) = oneshot::channel();
    {
        let mut posts = inbox.posts.lock();
        if posts.closed {
            return gone();
        }
        if posts.waiting.len() >= MAX_POSTS {
            return later("as many requests wait for this turn as may");
        }
        posts.waiting.push_back(Post { body, reply });
    }
    inbox.posted.notify_one();
    match tokio::time::timeout(POST_LIMIT, outcome).await {
        Ok(Ok(Posted::Kept(seq))) => answer(StatusCode::OK, format!("{{\"seq\":{seq}}}")),
        Ok(Ok(Posted::Gap(expected))) => {
            let text = format!("there is a gap: the next seq is {expected}");
            refuse(StatusCode::CONFLICT, "seq_gap", &text, Some(expected))
        }
        Ok(Ok(Posted::Bad(fault))) => refuse(StatusCode::BAD_REQUEST, fault.reason(), &fault.to_string(), None),
        Ok(Err(_)) => gone(),
        Err(_) => later("the events could not be written yet"),
    }
}

fn gone() -> Response<Body> {
    refuse(StatusCode::GONE, "turn_ended", "the turn has ended: stop working on it", None)
}

fn later(why: &str) -> Response<Body> {
    let mut response = refuse(StatusCode::SERVICE_UNAVAILABLE, "unavailable", why, None);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RETRY));
    response
}

fn refuse(status: StatusCode, reason: &str, message: &str, expected: Option<u64>) -> Response<Body> {
    let mut text = String::from("{\"error\":{");
    push_key(&mut text, "reason");
    push_text(&mut text, reason);
    push_key(&mut text, "message");
    push_text(&mut text, message);
    if let Some(expected) = expected {
        push_key(&mut text, "expected");
        text.push_str(&expected.to_string());
    }
    text.push_str("}}");
    answer(status, text)
}

fn answer(status: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    *response.status_mut() = status;
    response
}
