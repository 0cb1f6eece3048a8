//! Health of a server without a shim: it is asked for its tools now and then, after a handshake if need be, as nothing
//! tells when such a server goes or comes.

use std::sync::Arc;

use outrigger_protocol::status::ServerPhase;
use tokio::time::Instant;

use super::Server;
use super::health::{handshake, jitter};
use crate::mcp::error::Error;

/// Between two looks while all is well, in pings.
const CHECK_PINGS: u32 = 3;

/// Runs for as long as the sidecar does.
pub async fn watch(server: Arc<Server>) {
    let timing = server.shared.timing.clone();
    let mut pause = timing.restart.0;
    loop {
        match handshake(&server).await {
            Ok(info) => {
                if server.health.borrow().phase != ServerPhase::Ready {
                    tracing::info!(
                        target: "business", server = server.name(), protocol = info.protocol_version,
                        info = info.server_info, tools = info.tools.len(), "server is ready"
                    );
                }
                pause = timing.restart.0;
                server.handshake_done(info);
                tokio::select! {
                    () = tokio::time::sleep(jitter(timing.ping_every * CHECK_PINGS)) => {}
                    // A client's connection failed: it may be more than that.
                    () = server.failing.notified() => {}
                }
            }
            Err(error) => {
                tracing::warn!(target: "business", server = server.name(), reason = error.reason(), %error, "handshake failed");
                lost(&server, &error);
                tokio::time::sleep(jitter(pause)).await;
                pause = (pause * 2).min(timing.restart.1);
            }
        }
    }
}

/// The server does not work. It stays ready for a while if it was: sidecars and their servers are rolled out too.
fn lost(server: &Server, error: &Error) {
    server.health.send_modify(|h| {
        if h.phase == ServerPhase::Ready {
            h.lost = Some(Instant::now());
        }
        h.phase = ServerPhase::Connect;
        h.reason = error.reason();
        h.message = error.to_string();
    });
}
