//! One accept loop for all listeners: HTTP/1.1 and HTTP/2 without TLS, a bound on connections, graceful end.

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use http::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::metrics::Metrics;

/// A client has this long to send the head of a request.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(20);
/// Streams of one HTTP/2 connection: a caller may hold a thousand subscriptions over one.
pub const MAX_STREAMS: u32 = 1_024;
/// Bytes of one HTTP/2 stream that wait for its reader; then events are left where they are.
const MAX_SEND_BUFFER: usize = 64 << 10;
/// Head of a request at most.
pub const MAX_HEADER_BYTES: u32 = 64 << 10;
/// Requests under way have this long after shutdown.
pub const GRACEFUL: Duration = Duration::from_secs(2);

/// Binds a port on every address of the pod, IPv6 and IPv4 if the node has both.
pub async fn bind_any(port: u16) -> std::io::Result<TcpListener> {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Ok(listener) => Ok(listener),
        Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => Err(e),
        Err(_) => TcpListener::bind(("0.0.0.0", port)).await,
    }
}

/// A listener with its name in the metrics and its bound.
#[derive(Debug)]
pub struct Listener {
    /// Name: `a2a`, `local`, `admin`.
    pub name: &'static str,
    /// The socket.
    pub socket: TcpListener,
    /// Connections at once; one more is closed at once.
    pub max_connections: usize,
}

/// Serves until shutdown, then lets requests under way end for [`GRACEFUL`].
pub async fn serve(listener: Listener, router: Router, metrics: Metrics, shutdown: CancellationToken) {
    let Listener { name, socket, max_connections } = listener;
    let places = Arc::new(Semaphore::new(max_connections));
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEADER_BYTES as usize * 4);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES)
        .max_send_buf_size(MAX_SEND_BUFFER)
        .keep_alive_interval(Some(Duration::from_secs(30)));
    let builder = Arc::new(builder);
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = socket.accept() => accepted,
        };
        let (stream, peer): (TcpStream, SocketAddr) = match accepted {
            Ok(accepted) => accepted,
            Err(e) => {
                // Out of file descriptors, or a client that went away: neither ends the listener.
                tracing::warn!(target: "transport", listener = name, error = %e, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            metrics.connections_refused.with_label_values(&[name]).inc();
            continue;
        };
        let _ = stream.set_nodelay(true);
        let open = metrics.connections.with_label_values(&[name]);
        open.inc();
        let peer = crate::a2a::card::peer(peer.ip());
        let service = router.clone().map_request(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer);
            request
        });
        let service = TowerToHyperService::new(service);
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(e) = connection.await {
                tracing::debug!(target: "transport", listener = name, error = %e, "connection ended");
            }
            open.dec();
            drop(place);
        });
    }
    drop(socket);
    if tokio::time::timeout(GRACEFUL, graceful.shutdown()).await.is_err() {
        tracing::info!(target: "transport", listener = name, "connections cut at shutdown");
    }
}
