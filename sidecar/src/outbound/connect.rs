//! Connections to checked addresses.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use outrigger_protocol::address::{Scheme, Target};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;

use super::Error;

/// Most bytes of an answer's head.
const MAX_HEAD: usize = 64 << 10;

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

impl Connection {
    pub(super) async fn ready(&mut self) -> bool {
        self.sender.ready().await.is_ok()
    }

    pub(super) fn closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// As [`Self::send`]; gives the request back if no byte of it was written, so that it may be sent elsewhere.
    pub(super) async fn offer(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, (Error, Option<Request<Full<Bytes>>>)> {
        self.sender.try_send_request(request).await.map_err(|mut e| {
            let unsent = e.take_message();
            (Error::Broken(cause(e.error())), unsent)
        })
    }

    pub(super) async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Error> {
        self.sender.send_request(request).await.map_err(|e| Error::Broken(cause(&e)))
    }
}

/// Connects to the first address that answers.
pub async fn open(
    target: &Target,
    addresses: &[IpAddr],
    tls: &Arc<rustls::ClientConfig>,
    limit: Duration,
) -> Result<Connection, Error> {
    let mut last = Error::Connect("there is no address".to_owned());
    for address in addresses {
        match tokio::time::timeout(limit, one(target, *address, tls)).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(e)) => last = e,
            Err(_) => last = Error::Connect(format!("not within {} s", limit.as_secs_f64())),
        }
    }
    Err(last)
}

async fn one(target: &Target, address: IpAddr, tls: &Arc<rustls::ClientConfig>) -> Result<Connection, Error> {
    let stream = TcpStream::connect(SocketAddr::from((address, target.port())))
        .await
        .map_err(|e| Error::Connect(e.to_string()))?;
    let _ = stream.set_nodelay(true);
    match target.scheme() {
        Scheme::Http => shake(stream).await,
        Scheme::Https => {
            let name = ServerName::try_from(target.host().to_owned()).map_err(|e| Error::Tls(e.to_string()))?;
            let stream = TlsConnector::from(Arc::clone(tls))
                .connect(name, stream)
                .await
                .map_err(|e| Error::Tls(e.to_string()))?;
            shake(stream).await
        }
    }
}

async fn shake<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(stream: S) -> Result<Connection, Error> {
    let (sender, driver) = http1::Builder::new()
        .max_buf_size(MAX_HEAD)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|e| Error::Broken(cause(&e)))?;
    Ok(Connection { sender, driver: tokio::spawn(driver).abort_handle() })
}

/// The innermost cause says most.
pub(super) fn cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
