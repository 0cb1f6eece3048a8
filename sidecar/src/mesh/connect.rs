//! Connections to one address: HTTP/1.1 ones that are used one request at a time, HTTP/2 ones that are shared.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response, Version};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use prometheus::IntGauge;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Most idle HTTP/1.1 connections to one address.
const MAX_IDLE: usize = 32;
/// Streams on one HTTP/2 connection before another one is opened; a peer takes 256.
const STREAMS_PER_CONNECTION: usize = 200;
/// HTTP/2 connections to one address; beyond, streams wait for each other.
const MAX_H2: usize = 8;
/// Most bytes of an answer's head.
const MAX_HEAD: usize = 64 << 10;
/// A connection with streams on it is asked for a sign of life this often, and has half as long to give it.
const PING_EVERY: Duration = Duration::from_secs(20);

/// One address.
pub struct Backend {
    /// The address.
    pub address: SocketAddr,
    outstanding: AtomicUsize,
    connections: Mutex<Connections>,
    /// One HTTP/2 connection is opened at a time.
    opening: tokio::sync::Mutex<()>,
    idle_for: Duration,
}

#[derive(Default)]
struct Connections {
    idle: Vec<(First, Instant)>,
    shared: Vec<Second>,
    failures: u32,
    ejected_until: Option<Instant>,
}

/// An HTTP/1.1 connection; closed when dropped, whatever it is doing.
struct First {
    sender: http1::SendRequest<Body>,
    fresh: bool,
    driver: AbortHandle,
}

impl Drop for First {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// An HTTP/2 connection; ends with its last stream when its last handle is dropped.
#[derive(Clone)]
struct Second {
    sender: http2::SendRequest<Body>,
    streams: Arc<AtomicUsize>,
}

/// Counts one up while it lives.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn on(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request's hold on a connection until its answer has ended.
pub struct Lease {
    backend: Arc<Backend>,
    hold: Option<Hold>,
    open: Option<IntGauge>,
}

enum Hold {
    First(First),
    Second(Second, #[expect(dead_code, reason = "counts while it lives")] Counted),
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.backend.outstanding.fetch_sub(1, Ordering::Relaxed);
        if let Some(open) = &self.open {
            open.dec();
        }
    }
}

/// Why a request got no head of an answer.
pub enum SendError {
    /// Nothing was sent.
    NotSent(Box<Request<Body>>),
    /// Something was sent.
    Broken(hyper::Error),
}

impl Backend {
    /// An address without connections. An idle HTTP/1.1 connection is not used again after `idle_for`, which must be
    /// less than the server waits for a request: else one is sent while it just closes.
    pub fn new(address: SocketAddr, idle_for: Duration) -> Arc<Self> {
        Arc::new(Self {
            address,
            outstanding: AtomicUsize::new(0),
            connections: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            idle_for,
        })
    }

    /// Requests whose answer has not ended.
    pub fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Relaxed)
    }

    /// Until when it is left alone.
    pub fn ejected_until(&self, now: Instant) -> Option<Instant> {
        self.connections.lock().ejected_until.filter(|until| *until > now)
    }

    /// Takes a connection that is there, or opens one within a time. An error means that nothing was sent. `open` counts
    /// leases while they last.
    pub async fn lease(
        self: &Arc<Self>,
        version: Version,
        limit: Duration,
        open: Option<&IntGauge>,
    ) -> Result<Lease, String> {
        // Counted from here on, so that others see that it has its hands full.
        self.outstanding.fetch_add(1, Ordering::Relaxed);
        if let Some(open) = open {
            open.inc();
        }
        let mut lease = Lease { backend: Arc::clone(self), hold: None, open: open.cloned() };
        let hold = async { if version == Version::HTTP_2 { self.second().await } else { self.first().await } };
        match tokio::time::timeout(limit, hold).await {
            Ok(hold) => lease.hold = Some(hold?),
            Err(_) => return Err(format!("no connection within {} s", limit.as_secs_f64())),
        }
        Ok(lease)
    }

    async fn first(&self) -> Result<Hold, String> {
        while let Some((mut connection, since)) = self.take_idle() {
            if since.elapsed() > self.idle_for {
                // Those below are older still.
                self.connections.lock().idle.clear();
                break;
            }
            if !connection.sender.is_closed() && connection.sender.ready().await.is_ok() {
                return Ok(Hold::First(connection));
            }
        }
        let stream = self.open().await?;
        let (sender, driver) = http1::Builder::new()
            .max_buf_size(MAX_HEAD)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|e| e.to_string())?;
        Ok(Hold::First(First { sender, fresh: true, driver: tokio::spawn(driver).abort_handle() }))
    }

    fn take_idle(&self) -> Option<(First, Instant)> {
        self.connections.lock().idle.pop()
    }

    async fn second(&self) -> Result<Hold, String> {
        if let Some(shared) = self.shared() {
            return Ok(shared);
        }
        let _one = self.opening.lock().await;
        // Somebody else has opened one meanwhile.
        if let Some(shared) = self.shared() {
            return Ok(shared);
        }
        let stream = self.open().await?;
        let (sender, driver) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .adaptive_window(true)
            .max_header_list_size(u32::try_from(MAX_HEAD).unwrap_or(u32::MAX))
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_EVERY / 2)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|e| e.to_string())?;
        tokio::spawn(driver);
        let connection = Second { sender, streams: Arc::default() };
        let counted = Counted::on(&connection.streams);
        self.connections.lock().shared.push(connection.clone());
        Ok(Hold::Second(connection, counted))
    }

    /// The HTTP/2 connection with the fewest streams, unless all are full and another one may be opened.
    fn shared(&self) -> Option<Hold> {
        let mut connections = self.connections.lock();
        connections.shared.retain(|c| !c.sender.is_closed());
        let streams = |c: &Second| c.streams.load(Ordering::Relaxed);
        let best = connections.shared.iter().min_by_key(|c| streams(c))?;
        if streams(best) >= STREAMS_PER_CONNECTION && connections.shared.len() < MAX_H2 {
            return None;
        }
        Some(Hold::Second(best.clone(), Counted::on(&best.streams)))
    }

    async fn open(&self) -> Result<TcpStream, String> {
        let stream = TcpStream::connect(self.address).await.map_err(|e| e.to_string())?;
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }

    /// Notes that it took a connection.
    pub fn good(&self) {
        let mut connections = self.connections.lock();
        connections.failures = 0;
        connections.ejected_until = None;
    }

    /// Notes that it took no connection; it is left alone for a while, longer each time.
    pub fn eject(&self, first: Duration, most: Duration) {
        let mut connections = self.connections.lock();
        let pause = first.saturating_mul(1 << connections.failures.min(16)).min(most);
        connections.failures = connections.failures.saturating_add(1);
        connections.ejected_until = Some(Instant::now() + pause);
    }
}

impl Lease {
    /// Sends a request and waits for the head of its answer.
    pub async fn send(&mut self, request: Request<Body>) -> Result<Response<Incoming>, SendError> {
        let sent = match &mut self.hold {
            Some(Hold::First(connection)) => connection.sender.try_send_request(request).await,
            Some(Hold::Second(connection, _)) => connection.sender.try_send_request(request).await,
            None => return Err(SendError::NotSent(Box::new(request))),
        };
        sent.map_err(|mut e| match e.take_message() {
            Some(request) => SendError::NotSent(Box::new(request)),
            None => SendError::Broken(e.into_error()),
        })
    }

    /// Whether the connection was opened for this request.
    pub fn is_fresh(&self) -> bool {
        match &self.hold {
            Some(Hold::First(connection)) => connection.fresh,
            Some(Hold::Second(connection, _)) => connection.streams.load(Ordering::Relaxed) <= 1,
            None => true,
        }
    }

    /// The answer was read to its end: an HTTP/1.1 connection may be used again.
    pub fn finish(mut self) {
        if let Some(Hold::First(mut connection)) = self.hold.take() {
            connection.fresh = false;
            let mut connections = self.backend.connections.lock();
            if !connection.sender.is_closed() && connections.idle.len() < MAX_IDLE {
                connections.idle.push((connection, Instant::now()));
            }
        }
    }
}
