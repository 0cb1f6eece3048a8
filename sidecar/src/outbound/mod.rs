//! HTTP to places outside of the pod: issuers of tokens, receivers of push notifications.
//!
//! The address is checked right before the connection, and the connection goes to that very address: a name that leads
//! elsewhere a moment later changes nothing. No redirect is followed, every wait and every answer has a bound.

mod connect;
mod pool;
pub mod resolve;
pub mod tls;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use outrigger_protocol::address::{Allow, Refusal, Target};

use pool::Pool;
use resolve::Resolver;

/// Name of the sidecar as a client.
const AGENT: &str = concat!("outrigger/", env!("CARGO_PKG_VERSION"));

/// How long a request may take.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    /// For the addresses of a name.
    pub resolve: Duration,
    /// For a connection to one address, TLS included.
    pub connect: Duration,
    /// For all of it, from the name to the end of the answer.
    pub total: Duration,
}

impl Default for Waits {
    fn default() -> Self {
        Self { resolve: Duration::from_secs(5), connect: Duration::from_secs(5), total: Duration::from_secs(30) }
    }
}

/// Which addresses are connected to.
#[derive(Clone, Debug)]
pub enum Guard {
    /// Any: the URL is the configuration's own.
    Open,
    /// Public ones over https, and what is allowed beside them: the URL is a caller's.
    Filtered(Arc<Allow>),
}

/// A request.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// Its method.
    pub method: Method,
    /// Where to.
    pub target: Target,
    /// Its headers, without `Host`.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
    /// Longest body of an answer that is read.
    pub max_answer: usize,
}

/// An answer, whatever its status.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body; `None` when it is longer than the request wants.
    pub body: Option<Bytes>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name has no address, or the resolver does not answer.
    #[error("the name {host} cannot be resolved: {why}")]
    Resolve {
        /// The name.
        host: String,
        /// What the resolver said.
        why: String,
    },
    /// An address that is not allowed; nothing was sent.
    #[error("the receiver is refused: {0}")]
    Refused(#[from] Refusal),
    /// No connection.
    #[error("no connection: {0}")]
    Connect(String),
    /// TLS failed.
    #[error("TLS failed: {0}")]
    Tls(String),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// It took too long.
    #[error("no answer within {} s", .0.as_secs_f64())]
    Timeout(Duration),
}

/// A client with one set of rules; connections are kept for a while.
pub struct Client {
    guard: Guard,
    tls: Arc<rustls::ClientConfig>,
    resolver: Arc<dyn Resolver>,
    waits: Waits,
    pool: Arc<Pool>,
}

/// An answer whose body is read piece by piece.
pub struct Opened {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    body: Incoming,
    /// Until the body has ended; then it is kept for another request.
    connection: Option<connect::Connection>,
    origin: String,
    pool: Arc<Pool>,
}

impl Opened {
    /// The next piece; `None` at the end of the body.
    pub async fn next(&mut self) -> Option<Result<Bytes, Error>> {
        loop {
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Some(Ok(data));
                    }
                }
                Some(Err(e)) => {
                    self.connection = None;
                    return Some(Err(Error::Broken(connect::cause(&e))));
                }
                None => {
                    if let Some(connection) = self.connection.take() {
                        self.pool.keep(std::mem::take(&mut self.origin), connection);
                    }
                    return None;
                }
            }
        }
    }

    /// The whole body; `None` when it is longer than `max`.
    pub async fn whole(&mut self, max: usize) -> Result<Option<Bytes>, Error> {
        if self.body.size_hint().lower() > max as u64 {
            return Ok(None);
        }
        let mut whole = Vec::new();
        while let Some(piece) = self.next().await {
            let piece = piece?;
            if whole.len() + piece.len() > max {
                return Ok(None);
            }
            whole.extend_from_slice(&piece);
        }
        Ok(Some(whole.into()))
    }
}

impl Client {
    /// A client.
    pub fn new(guard: Guard, tls: Arc<rustls::ClientConfig>, resolver: Arc<dyn Resolver>, waits: Waits) -> Self {
        Self { guard, tls, resolver, waits, pool: Arc::default() }
    }

    /// Sends a request once; a second time only over a new connection when a kept one turns out to be closed.
    pub async fn send(&self, request: Outgoing) -> Result<Answer, Error> {
        tokio::time::timeout(self.waits.total, self.attempt(request))
            .await
            .unwrap_or(Err(Error::Timeout(self.waits.total)))
    }

    /// Sends a request and gives the answer as soon as its head is there, which may take as long as the caller waits:
    /// only name and connection have bounds here. Never sends twice what a server may have seen. `max_answer` is not
    /// looked at.
    pub async fn open(&self, outgoing: Outgoing) -> Result<Opened, Error> {
        let (mut request, target) = request(outgoing)?;
        let origin = target.origin();
        while let Some(mut kept) = self.pool.take(&origin) {
            if !kept.ready().await {
                continue;
            }
            match kept.offer(request).await {
                Ok(response) => return Ok(self.opened(response, kept, origin)),
                Err((_, Some(unsent))) => request = unsent,
                Err((error, None)) => return Err(error),
            }
        }
        let addresses = self.addresses(&target).await?;
        let mut fresh = connect::open(&target, &addresses, &self.tls, self.waits.connect).await?;
        let response = fresh.send(request).await?;
        Ok(self.opened(response, fresh, origin))
    }

    fn opened(&self, response: http::Response<Incoming>, connection: connect::Connection, origin: String) -> Opened {
        let (head, body) = response.into_parts();
        let pool = Arc::clone(&self.pool);
        Opened { status: head.status, headers: head.headers, body, connection: Some(connection), origin, pool }
    }

    /// Whether the addresses of a target are allowed as they are now. A name that cannot be resolved is no refusal.
    pub async fn allowed(&self, target: &Target) -> Result<(), Refusal> {
        match self.addresses(target).await {
            Err(Error::Refused(refusal)) => Err(refusal),
            _ => Ok(()),
        }
    }

    async fn attempt(&self, outgoing: Outgoing) -> Result<Answer, Error> {
        let max_answer = outgoing.max_answer;
        let (request, target) = request(outgoing)?;
        let origin = target.origin();
        while let Some(mut kept) = self.pool.take(&origin) {
            // A kept connection may be closed at any moment; receivers know repetitions by their id.
            if kept.ready().await
                && let Ok(response) = kept.send(request.clone()).await
            {
                return self.finish(response, kept, origin, max_answer).await;
            }
        }
        let addresses = self.addresses(&target).await?;
        let mut fresh = connect::open(&target, &addresses, &self.tls, self.waits.connect).await?;
        let response = fresh.send(request).await?;
        self.finish(response, fresh, origin, max_answer).await
    }

    async fn finish(
        &self,
        response: http::Response<Incoming>,
        connection: connect::Connection,
        origin: String,
        max: usize,
    ) -> Result<Answer, Error> {
        let (head, body) = response.into_parts();
        let body = read(body, max).await?;
        if body.is_some() {
            self.pool.keep(origin, connection);
        }
        Ok(Answer { status: head.status, headers: head.headers, body })
    }

    /// The addresses of a target, each of them allowed: one bad one among good ones is a sign of nothing good.
    async fn addresses(&self, target: &Target) -> Result<Vec<IpAddr>, Error> {
        let addresses = match target.address() {
            Some(address) => vec![address],
            None => resolve::bounded(&*self.resolver, target.host(), self.waits.resolve).await?,
        };
        if let Guard::Filtered(allow) = &self.guard {
            for address in &addresses {
                allow.check(target, *address)?;
            }
        }
        Ok(addresses)
    }
}

/// The request as it is sent, and where to.
fn request(outgoing: Outgoing) -> Result<(Request<Full<Bytes>>, Target), Error> {
    let Outgoing { method, target, headers, body, .. } = outgoing;
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = method;
    *request.uri_mut() = target.path().parse::<Uri>().map_err(|e| Error::Broken(e.to_string()))?;
    *request.headers_mut() = headers;
    let host = HeaderValue::from_str(&target.authority()).map_err(|e| Error::Broken(e.to_string()))?;
    request.headers_mut().insert(HOST, host);
    request.headers_mut().entry(USER_AGENT).or_insert(HeaderValue::from_static(AGENT));
    Ok((request, target))
}

async fn read(mut body: Incoming, max: usize) -> Result<Option<Bytes>, Error> {
    if body.size_hint().lower() > max as u64 {
        return Ok(None);
    }
    let mut whole = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|e| Error::Broken(connect::cause(&e)))?.into_data() else { continue };
        if whole.len() + data.len() > max {
            return Ok(None);
        }
        whole.extend_from_slice(&data);
    }
    Ok(Some(whole.into()))
}
