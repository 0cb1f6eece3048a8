//! One accept loop for all listeners: HTTP/1.1 and HTTP/2 without TLS, a bound on connections, graceful end.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use futures::future::BoxFuture;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use rustix::net::{RecvFlags, recv};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower::{Service, ServiceExt};

use crate::metrics::Metrics;

/// A client has this long to send the head of a request.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(20);
/// Streams of one HTTP/2 connection: a caller may hold a thousand subscriptions over one.
pub const MAX_STREAMS: u32 = 1_024;
/// Bytes of one HTTP/2 stream that wait for its reader; then events are left where they are.
const MAX_SEND_BUFFER: usize = 64 << 10;
/// What every HTTP/2 client sends first, as far as it is needed to know one: no method of HTTP/1.1 begins so.
const PREFACE: &[u8; 4] = b"PRI ";
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

/// Lets the process have as many files open as it may: the soft limit of a container is a thousand at times.
pub fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(target: "transport", %error, limit = ?limit.current, "the limit of open files stays as it is");
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
pub async fn serve<S>(listener: Listener, served: S, metrics: Metrics, shutdown: CancellationToken)
where
    S: Service<Request<Incoming>, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let Listener { name, socket, max_connections } = listener;
    let places = Arc::new(Semaphore::new(max_connections));
    let protocols = Arc::new(Protocols::new());
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
        let service = served.clone().map_request(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer);
            request
        });
        let (protocols, watcher) = (Arc::clone(&protocols), graceful.watcher());
        let shutdown = shutdown.clone();
        tokio::spawn(async move {
            let served = tokio::select! {
                version = tokio::time::timeout(HEADER_TIMEOUT, is_http2(&stream)) => match version {
                    Ok(Ok(http2)) => Some(protocols.connection(stream, http2, service, watcher)),
                    Ok(Err(_)) | Err(_) => None,
                },
                () = shutdown.cancelled() => None,
            };
            if let Some(served) = served
                && let Err(e) = served.await
            {
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

/// Ways to serve a connection.
struct Protocols {
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
}

/// A connection that is served; in a box, so that the task of a connection is small.
type Served = BoxFuture<'static, Result<(), hyper::Error>>;

impl Protocols {
    fn new() -> Self {
        let mut http1 = http1::Builder::new();
        http1.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(MAX_HEADER_BYTES as usize * 4);
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEADER_BYTES)
            .max_send_buf_size(MAX_SEND_BUFFER)
            .keep_alive_interval(Some(Duration::from_secs(30)));
        Self { http1, http2 }
    }

    fn connection<S>(&self, stream: TcpStream, http2: bool, service: S, watcher: Watcher) -> Served
    where
        S: Service<Request<Incoming>, Response = Response, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
    {
        let (io, service) = (TokioIo::new(stream), TowerToHyperService::new(service));
        if http2 {
            Box::pin(watcher.watch(self.http2.serve_connection(io, service)))
        } else {
            Box::pin(watcher.watch(self.http1.serve_connection(io, service)))
        }
    }
}

/// Whether a client begins with the preface of HTTP/2. Nothing is taken from the stream: hyper's buffer for a
/// connection that had its first bytes handed over separately is twice as large, and ten thousand may be quiet.
async fn is_http2(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0; PREFACE.len()];
    let mut seen = 0;
    let peek = || {
        let (read, _) = recv(stream, first.as_mut_slice(), RecvFlags::PEEK)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if first[..read] != PREFACE[..read] || read == PREFACE.len() {
            return Ok(first == *PREFACE);
        }
        if read == seen {
            // Woken, and nothing more: the client closed its half.
            return Ok(false);
        }
        // Too few to tell.
        seen = read;
        Err(io::ErrorKind::WouldBlock.into())
    };
    stream.async_io(Interest::READABLE, peek).await
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (client, server) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), async {
            listener.accept().await.unwrap().0
        });
        (client.unwrap(), server)
    }

    #[tokio::test]
    async fn the_first_bytes_tell_the_protocol() {
        for (bytes, http2) in [
            ("PRI * HTTP/2.0\r\n", true),
            ("PRI ", true),
            ("POST / HTTP/1.1", false),
            ("P", false),
            ("\x16\x03", false),
        ] {
            let (mut client, server) = pair().await;
            // One byte at a time: what is too little to tell waits for more.
            let telling = tokio::spawn(async move { is_http2(&server).await });
            client.set_nodelay(true).unwrap();
            for byte in bytes.bytes() {
                let _ = client.write_all(&[byte]).await;
                tokio::task::yield_now().await;
            }
            if bytes == "P" {
                client.shutdown().await.unwrap();
                assert!(!matches!(telling.await.unwrap(), Ok(true)));
            } else {
                assert_eq!(telling.await.unwrap().unwrap(), http2, "{bytes}");
            }
        }
        let (client, server) = pair().await;
        drop(client);
        assert!(is_http2(&server).await.is_err());
    }
}
