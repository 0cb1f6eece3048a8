//! HTTP to the handler on loopback: few connections, kept only while they are in use.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use outrigger_protocol::a2a::fault::Fault;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Most idle connections.
const MAX_IDLE: usize = 64;
/// An idle connection is not used again after this long: shorter than the keep-alive of any server in the field, so
/// that no turn is written into a connection that the handler is just closing.
const IDLE_FOR: Duration = Duration::from_secs(1);
/// Most bytes of an answer's head.
const MAX_HEAD: usize = 64 << 10;

/// Connections to one address.
pub struct Client {
    address: SocketAddr,
    connect_limit: Duration,
    idle: Mutex<Vec<(Connection, Instant)>>,
}

/// One connection; closed when dropped, whatever it is doing.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Why a request got no head of an answer.
#[derive(Debug)]
pub enum SendError {
    /// Nothing was sent: it may be tried again.
    NotSent(String),
    /// Something was sent.
    Broken(String),
}

impl Client {
    /// A client of 127.0.0.1 and a port.
    pub fn new(port: u16, connect_limit: Duration) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Self { address, connect_limit, idle: Mutex::default() }
    }

    /// Where it connects to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends a request over a new connection.
    pub async fn send_alone(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<(Response<Incoming>, Connection), SendError> {
        let mut connection = self.connect().await.map_err(SendError::NotSent)?;
        match connection.sender.send_request(request).await {
            Ok(response) => Ok((response, connection)),
            Err(e) => Err(SendError::Broken(cause(&e))),
        }
    }

    /// Sends a request over an idle connection or a new one.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Result<(Response<Incoming>, Connection), SendError> {
        let mut request = request;
        loop {
            let (mut connection, fresh) = match self.reuse().await {
                Some(connection) => (connection, false),
                None => (self.connect().await.map_err(SendError::NotSent)?, true),
            };
            match connection.sender.try_send_request(request).await {
                Ok(response) => return Ok((response, connection)),
                Err(mut e) => match e.take_message() {
                    // An idle connection that the handler had closed already.
                    Some(unsent) if !fresh => request = unsent,
                    Some(_) => return Err(SendError::NotSent(e.error().to_string())),
                    None => return Err(SendError::Broken(cause(e.error()))),
                },
            }
        }
    }

    async fn reuse(&self) -> Option<Connection> {
        loop {
            let (mut connection, since) = self.idle.lock().pop()?;
            if since.elapsed() > IDLE_FOR {
                // Those below are older still.
                self.idle.lock().clear();
                return None;
            }
            if !connection.sender.is_closed() && connection.sender.ready().await.is_ok() {
                return Some(connection);
            }
        }
    }

    /// Opens a connection.
    pub async fn connect(&self) -> Result<Connection, String> {
        let open = async {
            let stream = TcpStream::connect(self.address).await.map_err(|e| e.to_string())?;
            let _ = stream.set_nodelay(true);
            let (sender, driver) = http1::Builder::new()
                .max_buf_size(MAX_HEAD)
                .handshake(TokioIo::new(stream))
                .await
                .map_err(|e| e.to_string())?;
            Ok::<_, String>(Connection { sender, driver: tokio::spawn(driver).abort_handle() })
        };
        match tokio::time::timeout(self.connect_limit, open).await {
            Ok(opened) => opened.map_err(|e| format!("{}: {e}", self.address)),
            Err(_) => Err(format!("{}: no connection within {} s", self.address, self.connect_limit.as_secs_f64())),
        }
    }

    /// Keeps a connection whose answer was read to its end.
    pub fn keep(&self, connection: Connection) {
        let mut idle = self.idle.lock();
        if !connection.sender.is_closed() && idle.len() < MAX_IDLE {
            idle.push((connection, Instant::now()));
        }
    }
}

/// Reads a body of at most `max` bytes; holds no more than that at any time.
pub async fn read_all(mut body: Incoming, max: u64) -> Result<Bytes, Fault> {
    if body.size_hint().lower() > max {
        return Err(Fault::TooLarge(max));
    }
    let mut first: Option<Bytes> = None;
    let mut more = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| Fault::Incomplete(cause(&e)))?;
        let Ok(data) = frame.into_data() else { continue };
        let have = first.as_ref().map_or(0, Bytes::len) + more.len();
        if (have + data.len()) as u64 > max {
            return Err(Fault::TooLarge(max));
        }
        match &first {
            None => first = Some(data),
            Some(_) => more.extend_from_slice(&data),
        }
    }
    Ok(joined(first.unwrap_or_default(), &more))
}

/// A body from its first piece and the rest; nothing is copied when there is no rest.
pub fn joined(first: Bytes, more: &[u8]) -> Bytes {
    if more.is_empty() {
        return first;
    }
    let mut whole = BytesMut::with_capacity(first.len() + more.len());
    whole.extend_from_slice(&first);
    whole.extend_from_slice(more);
    whole.freeze()
}

/// The innermost cause says most.
pub fn cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
