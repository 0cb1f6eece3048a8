//! The admin port: health, metrics, status, drain. Plain HTTP, for the kubelet, Prometheus and the operator.

use axum::Router;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{HeaderMap, StatusCode, header};
use outrigger_protocol::config::DRAIN_HEADER;
use outrigger_protocol::status::PodPhase;

use crate::context::Context;
use crate::health::{Health, obstacles};
use crate::local_api::same_secret;
use crate::metrics;

#[derive(Clone)]
struct Admin {
    context: Context,
    health: Health,
}

/// Routes of the admin port.
pub fn router(context: Context, health: Health) -> Router {
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/startz", get(startz))
        .route("/readyz", get(readyz))
        .route("/status", get(async |State(admin): State<Admin>| axum::Json(admin.health.status())))
        .route("/metrics", get(scrape))
        .route("/drain/{container}", get(drain))
        .with_state(Admin { context, health })
}

async fn startz(State(admin): State<Admin>) -> Response {
    if admin.health.started() {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, obstacles(&admin.health.status()).join("\n") + "\n").into_response()
}

async fn readyz(State(admin): State<Admin>) -> Response {
    let status = admin.health.status();
    if status.phase == PodPhase::Ready {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, obstacles(&status).join("\n") + "\n").into_response()
}

async fn scrape(State(admin): State<Admin>) -> Response {
    // Gauges of readiness are set by the document.
    let _ = admin.health.status();
    match metrics::encode(&admin.context.registry) {
        Ok((text, media_type)) => ([(header::CONTENT_TYPE, media_type)], text).into_response(),
        Err(e) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{e}\n")).into_response(),
    }
}

/// The drain hook of a container, called by the kubelet before it stops that container.
async fn drain(State(admin): State<Admin>, Path(container): Path<String>, headers: HeaderMap) -> Response {
    let given = headers.get(DRAIN_HEADER).map(http::HeaderValue::as_bytes).unwrap_or_default();
    if !same_secret(given, admin.context.boot.drain.token.as_bytes()) {
        return (StatusCode::FORBIDDEN, format!("the header {DRAIN_HEADER} is missing or wrong\n")).into_response();
    }
    tracing::info!(target: "business", container, "drain hook");
    if admin.context.drain.hook(&container).await {
        "drained\n".into_response()
    } else {
        (StatusCode::NOT_FOUND, format!("no container {container} in this pod\n")).into_response()
    }
}
