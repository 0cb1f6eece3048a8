//! A2A over JSON-RPC and HTTP (A2A 1.0, section 9).

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt;
use outrigger_protocol::a2a::envelope::{self, BadFrame};
use outrigger_protocol::a2a::errors::{Error, Kind};
use outrigger_protocol::a2a::method;
use outrigger_protocol::a2a::operation::Operation;
use outrigger_protocol::a2a::params::{CancelTask, GetTask};
use outrigger_protocol::a2a::send::SendMessage;
use outrigger_protocol::a2a::task::Task;
use outrigger_protocol::a2a::version;
use tokio::time::Instant;

use crate::a2a::client::joined;
use crate::a2a::ids::Trace;
use crate::a2a::service::{Sent, Tasks};

/// So much of a body that is too large is read and thrown away, so that its sender gets to read the answer.
const DISCARD: u64 = 64 << 20;
/// For so long at most.
const DISCARD_LIMIT: Duration = Duration::from_secs(5);
/// A body must be whole this long after its head.
const BODY_LIMIT: Duration = Duration::from_mins(1);
/// The version that is served.
const SERVED: &str = "1.0";
const VERSION_HEADER: HeaderName = HeaderName::from_static("a2a-version");

/// Answers one request.
pub async fn handle(tasks: Arc<Tasks>, request: Request<Body>) -> Response<Body> {
    let began = Instant::now();
    let (head, body) = request.into_parts();
    let (method, text, error) = answer(&tasks, &head.uri, &head.headers, body).await;
    let label = method.map_or("other", Operation::name);
    tasks.metrics.request_seconds.with_label_values(&[label]).observe(began.elapsed().as_secs_f64());
    let outcome = error.as_ref().map_or("ok", |e| e.kind.label());
    tasks.metrics.requests.with_label_values(&[label, outcome]).inc();
    if let Some(error) = &error {
        tracing::debug!(target: "protocol", method = label, outcome, message = error.message, "A2A request refused");
    }
    let mut response = Response::new(Body::from(text));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(VERSION_HEADER, HeaderValue::from_static(SERVED));
    if let Some(error) = error {
        if let Some(seconds) = error.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        *response.status_mut() = StatusCode::from_u16(error.kind.jsonrpc_status()).unwrap_or(StatusCode::OK);
    }
    response
}

async fn answer(
    tasks: &Arc<Tasks>,
    uri: &Uri,
    headers: &HeaderMap,
    body: Body,
) -> (Option<Operation>, String, Option<Error>) {
    let refuse = |id, error: Error| (None, envelope::failure(id, &error), Some(error));
    if let Err(error) = check_content_type(headers) {
        return refuse(None, error);
    }
    let max = tasks.ctx.live.borrow().limits.max_request_bytes;
    let body = match read_body(headers, body, max).await {
        Ok(body) => body,
        Err(error) => return refuse(None, error),
    };
    let request = match envelope::Request::parse(&body) {
        Ok(request) => request,
        Err(BadFrame { id, error }) => return refuse(id, error),
    };
    let Some((operation, dialect)) = method::parse(&request.method) else {
        return refuse(Some(request.id), method::unknown(&request.method));
    };
    let result = match version::negotiate(named_version(uri, headers).as_deref(), dialect, &[SERVED]) {
        Ok(_) => call(tasks, operation, &request, headers).await,
        Err(error) => Err(error),
    };
    match result {
        Ok(text) => (Some(operation), text, None),
        Err(error) => (Some(operation), envelope::failure(Some(request.id), &error), Some(error)),
    }
}

async fn call(
    tasks: &Arc<Tasks>,
    operation: Operation,
    request: &envelope::Request<'_>,
    headers: &HeaderMap,
) -> Result<String, Error> {
    match operation {
        Operation::SendMessage => {
            let params = SendMessage::parse(request.params)?;
            let length = params.history_length;
            Ok(match tasks.send(params, Trace::of(headers)).await? {
                Sent::Task(task) => envelope::success(request.id, capacity(&task), |out| {
                    out.push_str("{\"task\":");
                    task.write(length, out);
                    out.push('}');
                }),
                Sent::Message(message) => envelope::success(request.id, message.size() + 16, |out| {
                    out.push_str("{\"message\":");
                    out.push_str(message.as_str());
                    out.push('}');
                }),
            })
        }
        Operation::GetTask => {
            let params = GetTask::parse(request.params)?;
            let task = tasks.get(&params.id).await?;
            Ok(envelope::success(request.id, capacity(&task), |out| task.write(params.history_length, out)))
        }
        Operation::CancelTask => {
            let params = CancelTask::parse(request.params)?;
            let task = tasks.cancel(&params.id).await?;
            Ok(envelope::success(request.id, capacity(&task), |out| task.write(None, out)))
        }
        Operation::CreateTaskPushNotificationConfig
        | Operation::GetTaskPushNotificationConfig
        | Operation::ListTaskPushNotificationConfigs
        | Operation::DeleteTaskPushNotificationConfig => {
            Err(Error::new(Kind::PushNotificationNotSupported, "this agent sends no push notifications"))
        }
        Operation::SendStreamingMessage | Operation::SubscribeToTask => {
            Err(Error::new(Kind::UnsupportedOperation, "this agent does not stream: use SendMessage and GetTask"))
        }
        Operation::ListTasks => Err(Error::new(Kind::UnsupportedOperation, "this agent does not list tasks")),
        Operation::GetExtendedAgentCard => {
            Err(Error::new(Kind::UnsupportedOperation, "this agent has no extended card"))
        }
    }
}

fn capacity(task: &Task) -> usize {
    task.size() + 256
}

/// JSON by any of its names; a request without a label is taken for it.
fn check_content_type(headers: &HeaderMap) -> Result<(), Error> {
    let Some(value) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let value = String::from_utf8_lossy(value.as_bytes());
    let essence = value.split(';').next().unwrap_or_default().trim();
    if ["application/json", "application/a2a+json"].iter().any(|t| essence.eq_ignore_ascii_case(t)) {
        return Ok(());
    }
    let shown: String = value.chars().take(100).collect();
    Err(Error::new(
        Kind::ContentTypeNotSupported,
        format!("content type {shown:?} is not taken, want application/json"),
    ))
}

/// The header wins over the query parameter.
fn named_version(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    if let Some(value) = headers.get(VERSION_HEADER) {
        return Some(String::from_utf8_lossy(value.as_bytes()).into_owned());
    }
    let pairs = uri.query()?.split('&');
    pairs
        .filter_map(|p| p.split_once('='))
        .find(|(k, _)| k.eq_ignore_ascii_case("a2a-version"))
        .map(|(_, v)| v.to_owned())
}

async fn read_body(headers: &HeaderMap, body: Body, max: u64) -> Result<Bytes, Error> {
    let too_large = || {
        Error::new(Kind::TooLarge, format!("the body is larger than {max} bytes"))
            .with("maxRequestBytes", max.to_string())
    };
    let length = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<u64>().ok());
    if let Some(length) = length.filter(|length| *length > max) {
        // One that asks first has sent nothing.
        if length <= DISCARD && !headers.contains_key(EXPECT) {
            discard(body).await;
        }
        return Err(too_large());
    }
    let broken = |e: &dyn std::fmt::Display| Error::new(Kind::Parse, format!("the body did not arrive: {e}"));
    let read = async {
        let mut body = body;
        let mut first = Bytes::new();
        let mut more = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|e| broken(&e))?.into_data() else { continue };
            if (first.len() + more.len() + data.len()) as u64 > max {
                drop((first, more, data));
                discard(body).await;
                return Err(too_large());
            }
            if first.is_empty() {
                first = data;
                if body.is_end_stream() {
                    break;
                }
                // One allocation for the rest when its length is known; never more than the limit.
                more.reserve(length.map_or(0, |l| usize::try_from(l).unwrap_or(0).saturating_sub(first.len())));
            } else {
                more.extend_from_slice(&data);
            }
        }
        Ok(joined(first, &more))
    };
    tokio::time::timeout(BODY_LIMIT, read)
        .await
        .unwrap_or_else(|_| Err(Error::new(Kind::Parse, "the body did not arrive in time")))
}

async fn discard(mut body: Body) {
    let rest = async {
        let mut bytes = 0;
        while let Some(Ok(frame)) = body.frame().await {
            bytes += frame.data_ref().map_or(0, |d| d.len() as u64);
            if bytes > DISCARD {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(DISCARD_LIMIT, rest).await;
}
