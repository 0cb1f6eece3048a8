//! A2A over HTTP and JSON (A2A 1.0, section 11), and that of 0.3.

use axum::body::Body;
use bytes::Bytes;
use http::header::ACCEPT;
use http::request::Parts;
use http::{HeaderMap, Response};
use outrigger_protocol::a2a::errors::Error;
use outrigger_protocol::a2a::http_json::{self, Route};
use outrigger_protocol::a2a::operation::{Binding, Dialect};

use super::meter::Counted;
use super::sse::Frames;
use super::{Asked, Front, Made, Operations, Payload, below_base, body, render, reread, sse};
use crate::a2a::call::Answer;

const JSON: &str = "application/json";
const A2A_JSON: &str = "application/a2a+json";

/// Answers one request.
pub(super) async fn handle<S: Operations>(front: &Front<S>, head: Parts, body: Body) -> Response<Body> {
    let mut counted = front.meter.begin(Binding::HttpJson);
    let path = below_base(head.uri.path(), &front.live.borrow().offer);
    let route = match http_json::route(head.method.as_str(), path) {
        Ok(route) => route,
        Err(error) => {
            let old = path.starts_with("/v1/");
            return refusal(&head.headers, if old { Dialect::V03Proto } else { Dialect::V10 }, &error, counted);
        }
    };
    let (operation, dialect) = (route.operation, route.dialect);
    (counted.operation, counted.dialect) = (Some(operation), Some(dialect));
    let made = match answer(front, &head, &route, body).await {
        Ok(made) => made,
        Err(error) => return refusal(&head.headers, dialect, &error, counted),
    };
    let mut response = match made.payload {
        Payload::Unary(answer) => {
            let mut out = String::with_capacity(answer.capacity());
            if matches!(answer, Answer::Nothing) {
                out.push_str("{}");
            } else if let Err(error) = render::result(operation, dialect, &answer, &mut out) {
                return refusal(&head.headers, dialect, &error, counted);
            }
            counted.end(None);
            render::response(200, media_type(&head.headers, dialect, route.in_body), out)
        }
        Payload::Stream(opened) => {
            let events = opened.events(&front.shutdown, counted);
            sse::respond(events, Frames::HttpJson, dialect, front.heartbeat())
        }
    };
    render::about(&made.about, dialect, response.headers_mut());
    response
}

async fn answer<S: Operations>(front: &Front<S>, head: &Parts, route: &Route<'_>, body: Body) -> Result<Made, Error> {
    let (caller, body) = front.admit(&head.headers, body).await?;
    let bytes = if route.in_body {
        body::check_json(&head.headers)?;
        body::read(&head.headers, body, front.max_request_bytes()).await?
    } else {
        Bytes::new()
    };
    let params = http_json::params(route, head.uri.query(), http_json::parse_body(&bytes)?)?;
    drop(bytes);
    let params = params.as_ref().map(reread).transpose()?;
    let Route { operation, dialect, .. } = *route;
    front.carry_out(Asked { operation, dialect, binding: Binding::HttpJson, head, caller }, params).await
}

/// Whether `Accept` names a media type, with or without parameters.
fn accepts(headers: &HeaderMap, media_type: &str) -> bool {
    let values = headers.get_all(ACCEPT).into_iter().filter_map(|v| v.to_str().ok());
    values
        .flat_map(|v| v.split(','))
        .any(|one| one.split(';').next().is_some_and(|one| one.trim().eq_ignore_ascii_case(media_type)))
}

/// Media type of a result: the newer name, unless the caller uses the older one.
fn media_type(headers: &HeaderMap, dialect: Dialect, in_body: bool) -> &'static str {
    if dialect != Dialect::V10 {
        return JSON;
    }
    let older =
        !accepts(headers, A2A_JSON) && (accepts(headers, JSON) || (in_body && body::is_labelled(headers, JSON)));
    if older { JSON } else { A2A_JSON }
}

/// An answer with an error: plain JSON, which every client in the field reads, unless it says that it does not.
fn refusal(headers: &HeaderMap, dialect: Dialect, error: &Error, counted: Counted) -> Response<Body> {
    render::log(error, counted.operation);
    counted.end(Some(error.kind.label()));
    let newer_alone = dialect == Dialect::V10
        && accepts(headers, A2A_JSON)
        && !["*/*", "application/*", JSON].iter().any(|t| accepts(headers, t));
    let media_type = if newer_alone { A2A_JSON } else { JSON };
    let mut response = render::response(error.kind.http_status(), media_type, render::http_error(dialect, error));
    let headers = response.headers_mut();
    render::error_headers(error, headers);
    render::speaks(dialect, headers);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_follow_the_caller() {
        for (accept, content, want) in [
            ("", "", A2A_JSON),
            ("*/*", "", A2A_JSON),
            ("*/*", "application/json; charset=utf-8", JSON),
            ("application/json", "", JSON),
            ("text/event-stream, application/json;q=0.5", "application/a2a+json", JSON),
            ("application/json, application/a2a+json", "application/json", A2A_JSON),
            ("", "application/a2a+json", A2A_JSON),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in [("accept", accept), ("content-type", content)] {
                if !value.is_empty() {
                    headers.insert(name, value.parse().unwrap());
                }
            }
            assert_eq!(media_type(&headers, Dialect::V10, true), want, "{accept:?} {content:?}");
            assert_eq!(media_type(&headers, Dialect::V03Proto, true), JSON);
        }
    }
}
