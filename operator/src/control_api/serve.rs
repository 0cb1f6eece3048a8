//! Connections of sidecars: TLS, HTTP/2 and HTTP/1.1, bounds, a graceful end.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::metrics::Metrics;

/// Connections at once; one more is closed at once.
pub const MAX_CONNECTIONS: usize = 12_288;
/// Longest time for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A client has this long to send the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(20);
/// Largest head of a request: a token has a few kilobytes.
const MAX_HEADER_BYTES: u32 = 32 << 10;
/// Streams of one HTTP/2 connection.
const MAX_STREAMS: u32 = 32;
/// Bytes of one HTTP/2 stream that wait for its reader.
const MAX_SEND_BUFFER: usize = 64 << 10;
/// Between two signs that are asked of a quiet HTTP/2 client.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Requests under way have this long after shutdown.
const GRACEFUL: Duration = Duration::from_secs(2);

/// Serves until `shutdown`.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    router: Router,
    metrics: Metrics,
    shutdown: CancellationToken,
) {
    let acceptor = TlsAcceptor::from(tls);
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let graceful = GracefulShutdown::new();
    let (mut h1, mut h2) = (http1::Builder::new(), http2::Builder::new(TokioExecutor::new()));
    h1.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(MAX_HEADER_BYTES as usize);
    h2.timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES)
        .max_send_buf_size(MAX_SEND_BUFFER)
        .keep_alive_interval(Some(KEEP_ALIVE));
    let (h1, h2) = (Arc::new(h1), Arc::new(h2));
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let stream: TcpStream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file descriptors, or a client that went away: neither ends the listener.
                warn!(%error, "the control API cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            metrics.control.connections.with_label_values(&["refused"]).inc();
            continue;
        };
        let _ = stream.set_nodelay(true);
        let (acceptor, service) = (acceptor.clone(), TowerToHyperService::new(router.clone()));
        let (h1, h2, watcher) = (Arc::clone(&h1), Arc::clone(&h2), graceful.watcher());
        let (metrics, shutdown) = (metrics.clone(), shutdown.clone());
        tokio::spawn(async move {
            let _place = place;
            let count = |outcome: &str| metrics.control.connections.with_label_values(&[outcome]).inc();
            let shaken = tokio::select! {
                shaken = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)) => shaken,
                () = shutdown.cancelled() => return,
            };
            let Ok(Ok(tls)) = shaken else { return count("no_handshake") };
            count("ok");
            let is_h2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
            let io = TokioIo::new(tls);
            // In a box, so that the task of a connection is small.
            let ended = if is_h2 {
                Box::pin(watcher.watch(h2.serve_connection(io, service))).await
            } else {
                Box::pin(watcher.watch(h1.serve_connection(io, service))).await
            };
            if let Err(error) = ended {
                debug!(%error, "a connection of a sidecar ended");
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(GRACEFUL, graceful.shutdown()).await.is_err() {
        info!("connections of sidecars are cut at shutdown");
    }
}
