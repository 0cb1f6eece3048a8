//! A2A over JSON-RPC and HTTP (A2A 1.0, section 9), and that of 0.3.

use axum::body::Body;
use bytes::Bytes;
use http::header::ALLOW;
use http::request::Parts;
use http::{HeaderValue, Method, Response};
use outrigger_protocol::a2a::envelope::{BadFrame, Request};
use outrigger_protocol::a2a::errors::{Error, Kind};
use outrigger_protocol::a2a::method;
use outrigger_protocol::a2a::operation::{Binding, Dialect};
use serde_json::value::RawValue;

use super::meter::Counted;
use super::sse::Frames;
use super::{Asked, Front, Operations, Payload, body, render, sse};
use crate::a2a::call::Caller;

/// Answers one request.
pub(super) async fn handle<S: Operations>(front: &Front<S>, head: Parts, body: Body) -> Response<Body> {
    let counted = front.meter.begin(Binding::JsonRpc);
    if head.method != Method::POST {
        let error = Error::new(Kind::MethodNotAllowed, "JSON-RPC takes POST requests");
        counted.end(Some(error.kind.label()));
        let mut response = render::response(405, "application/json", render::http_error(Dialect::V10, &error));
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
        return response;
    }
    match read(front, &head, body).await {
        Ok((caller, bytes)) => answer(front, &head, caller, &bytes, counted).await,
        Err(error) => refusal(None, Dialect::V10, &error, counted),
    }
}

async fn read<S: Operations>(front: &Front<S>, head: &Parts, body: Body) -> Result<(Caller, Bytes), Error> {
    let (caller, body) = front.admit(&head.headers, body).await?;
    body::check_json(&head.headers)?;
    let bytes = body::read(&head.headers, body, front.max_request_bytes()).await?;
    Ok((caller, bytes))
}

async fn answer<S: Operations>(
    front: &Front<S>,
    head: &Parts,
    caller: Caller,
    body: &[u8],
    mut counted: Counted,
) -> Response<Body> {
    let request = match Request::parse(body) {
        Ok(request) => request,
        Err(BadFrame { id, error }) => return refusal(id.map(RawValue::get), Dialect::V10, &error, counted),
    };
    let id = request.id.get();
    let Some((operation, dialect)) = method::parse(&request.method) else {
        return refusal(Some(id), Dialect::V10, &method::unknown(&request.method), counted);
    };
    (counted.operation, counted.dialect) = (Some(operation), Some(dialect));
    let asked = Asked { operation, dialect, binding: Binding::JsonRpc, head, caller };
    let made = match front.carry_out(asked, request.params).await {
        Ok(made) => made,
        Err(error) => return refusal(Some(id), dialect, &error, counted),
    };
    let mut response = match made.payload {
        Payload::Unary(answer) => {
            let mut out = String::with_capacity(answer.capacity() + id.len() + 48);
            out.push_str("{\"jsonrpc\":\"2.0\",\"id\":");
            out.push_str(id);
            out.push_str(",\"result\":");
            if let Err(error) = render::result(operation, dialect, &answer, &mut out) {
                return refusal(Some(id), dialect, &error, counted);
            }
            out.push('}');
            counted.end(None);
            render::response(200, "application/json", out)
        }
        Payload::Stream(opened) => {
            let events = opened.events(&front.shutdown, counted);
            sse::respond(events, Frames::JsonRpc(id.into()), dialect, front.heartbeat())
        }
    };
    render::about(&made.about, dialect, response.headers_mut());
    response
}

/// An answer with an error.
fn refusal(id: Option<&str>, dialect: Dialect, error: &Error, counted: Counted) -> Response<Body> {
    render::log(error, counted.operation);
    counted.end(Some(error.kind.label()));
    let text = render::jsonrpc_error(id, dialect, error);
    let mut response = render::response(error.kind.jsonrpc_status(), "application/json", text);
    let headers = response.headers_mut();
    render::error_headers(error, headers);
    render::speaks(dialect, headers);
    response
}
