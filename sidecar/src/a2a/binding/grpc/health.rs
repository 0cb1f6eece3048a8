//! The standard health service of gRPC (`grpc.health.v1`): `Check`, for probes and load balancers. It needs no credentials
//! and looks at no task. `Watch` is not offered: who asks gets `UNIMPLEMENTED`, which clients of it take for what it is.

use axum::body::Body;
use bytes::{BufMut, Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Response};
use outrigger_protocol::a2a::errors::{Error, Kind};
use prost::Message;

use super::{GRPC, body, one_message, request_body, schema, status, trailers_only};

/// Path of the one method.
pub(super) const CHECK: &str = "/grpc.health.v1.Health/Check";
/// Largest request.
const MAX_REQUEST: u64 = 1 << 10;
/// Services that are known; the empty name is the server as a whole.
const SERVICES: [&str; 4] = ["", "lf.a2a.v1.A2AService", "a2a.v1.A2AService", "grpc.health.v1.Health"];
const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;
/// Number of the status of a service that nobody knows.
const NOT_FOUND: i32 = 5;

#[derive(Clone, PartialEq, Message)]
struct CheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, Message)]
struct CheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// Answers one check; `serving` says whether new work is taken.
pub(super) async fn check(headers: &HeaderMap, body: Body, serving: bool) -> Response<Body> {
    let service = match asked(headers, body).await {
        Ok(service) => service,
        Err(error) => return trailers_only(status::failed(&error), None),
    };
    if !SERVICES.contains(&service.as_str()) {
        return trailers_only(status::plain(NOT_FOUND, "no such service is known here"), None);
    }
    let answer = CheckResponse { status: if serving { SERVING } else { NOT_SERVING } };
    let mut response = Response::new(Body::new(body::Unary::new(framed(&answer), status::ok())));
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

async fn asked(headers: &HeaderMap, body: Body) -> Result<String, Error> {
    let bytes = request_body::read(headers, body, MAX_REQUEST).await?;
    let read = CheckRequest::decode(one_message(&bytes)?);
    let invalid = |e| Error::new(Kind::InvalidRequest, format!("the message is no HealthCheckRequest: {e}"));
    read.map(|r| r.service).map_err(invalid)
}

fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut out = BytesMut::with_capacity(schema::PREFIX + length);
    out.put_u8(0);
    out.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    out.extend_from_slice(&message.encode_to_vec());
    out.freeze()
}
