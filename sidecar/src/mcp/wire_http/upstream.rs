//! A server over HTTP as all its connections share it: where it is, what it asks for, kept connections.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use outrigger_protocol::address::{Allow, Target};
use outrigger_protocol::config::{IDENTITY_FILE, Process, Reach};

use super::error::Error;
use crate::folder::{Entry, Watched};
use crate::outbound::resolve::Resolver;
use crate::outbound::{Client, Guard, Opened, Outgoing, Waits, tls};

/// Why there is no way to a server.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// It is not reached over HTTP.
    #[error("it does not speak over HTTP")]
    NotHttp,
    /// Its URL is none.
    #[error("its URL {0}")]
    Url(#[from] outrigger_protocol::address::BadTarget),
    /// A rule of `allow` is none.
    #[error("transport.remote.allow: {0}")]
    Allow(#[from] outrigger_protocol::address::BadRule),
    /// The authorities to trust cannot be read.
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
}

/// Waits of connections to a server.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Name and connection.
    pub connect: Duration,
    /// From a request to the end of its answer, whatever progress it makes.
    pub exchange: Duration,
    /// Between two tries to listen, at first; doubles with each.
    pub retry: Duration,
    /// Longest time between two tries.
    pub longest_retry: Duration,
    /// For the goodbye.
    pub close: Duration,
}

/// An exchange is cut after this many times the request's own limit, which progress restarts.
const LONGEST_EXCHANGE: u32 = 10;

impl Timing {
    /// As the server's bounds say.
    pub fn of(process: &Process) -> Self {
        Self {
            connect: Duration::from_secs(5),
            exchange: Duration::from_millis(process.request_timeout_ms.max(1)) * LONGEST_EXCHANGE,
            retry: Duration::from_secs(1),
            longest_retry: Duration::from_secs(30),
            close: Duration::from_secs(2),
        }
    }
}

/// Where its callers' credentials come from.
enum Credentials {
    None,
    /// The token that proves this sidecar to a Standalone server.
    Token(Watched<Option<HeaderValue>>),
    /// Headers that the user gave.
    Headers(Watched<HeaderMap>),
}

/// A server over HTTP.
pub struct Upstream {
    client: Client,
    target: Target,
    credentials: Credentials,
    /// Longest message.
    pub(super) max: usize,
    pub(super) timing: Timing,
}

impl Upstream {
    /// Makes a server ready to be called.
    pub fn new(reach: &Reach, process: &Process, resolver: Arc<dyn Resolver>) -> Result<Self, SetupError> {
        Self::with(reach, process, resolver, Path::new(IDENTITY_FILE), Timing::of(process))
    }

    /// With another file of the token and other waits.
    pub fn with(
        reach: &Reach,
        process: &Process,
        resolver: Arc<dyn Resolver>,
        identity: &Path,
        timing: Timing,
    ) -> Result<Self, SetupError> {
        let (url, guard, trust, credentials) = match reach {
            Reach::Stdio { .. } | Reach::BuiltIn => return Err(SetupError::NotHttp),
            Reach::Http { port, path, .. } => {
                (format!("http://127.0.0.1:{port}{path}"), Guard::Open, tls::public(), Credentials::None)
            }
            Reach::Service { url } => {
                let token = Credentials::Token(Watched::new(identity, token));
                (url.clone(), Guard::Open, tls::public(), token)
            }
            Reach::Remote { url, headers_dir, ca_file, allow } => {
                let guard = Guard::Filtered(Arc::new(Allow::parse(allow)?));
                let trust = ca_file.as_ref().map_or_else(tls::public, |file| tls::only(Path::new(file)));
                let headers = headers_dir.as_ref().map(|folder| Credentials::Headers(Watched::new(folder, headers)));
                (url.clone(), guard, trust, headers.unwrap_or(Credentials::None))
            }
        };
        // The total is the exchange's, which has a bound of its own.
        let waits = Waits { resolve: timing.connect, connect: timing.connect, total: timing.exchange };
        Ok(Self {
            client: Client::new(guard, trust?, resolver, waits),
            target: Target::parse(&url)?,
            credentials,
            max: usize::try_from(process.max_line_bytes).unwrap_or(usize::MAX),
            timing,
        })
    }

    /// Whether it proves itself by its ServiceAccount.
    pub(super) fn is_service(&self) -> bool {
        matches!(self.credentials, Credentials::Token(_))
    }

    /// Sends a request; the answer as soon as its head is there.
    pub(super) async fn request(
        &self,
        method: Method,
        mut headers: HeaderMap,
        body: bytes::Bytes,
    ) -> Result<Opened, Error> {
        match &self.credentials {
            Credentials::None => {}
            Credentials::Token(token) => {
                let token = token.get();
                let Some(token) = token.as_ref() else {
                    return Err(Error::Unreachable("the token of this pod's ServiceAccount cannot be read".into()));
                };
                headers.insert(AUTHORIZATION, token.clone());
            }
            Credentials::Headers(given) => headers.extend((*given.get()).clone()),
        }
        let json = HeaderValue::from_static("application/json");
        if method == Method::POST {
            headers.insert(CONTENT_TYPE, json);
            headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        } else if method == Method::GET {
            headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        }
        let outgoing = Outgoing { method, target: self.target.clone(), headers, body, max_answer: self.max };
        Ok(self.client.open(outgoing).await?)
    }
}

fn token(files: Result<Vec<Entry>, String>) -> Option<HeaderValue> {
    let file = files.and_then(|mut files| files.pop().ok_or_else(|| "it is not there".to_owned()));
    let text = file.and_then(|f| String::from_utf8(f.content).map_err(|e| e.to_string()));
    let value = text.and_then(|t| HeaderValue::from_str(&format!("Bearer {}", t.trim())).map_err(|e| e.to_string()));
    match value {
        Ok(mut value) => {
            value.set_sensitive(true);
            Some(value)
        }
        Err(error) => {
            tracing::warn!(target: "business", error, "the token of this pod's ServiceAccount cannot be used");
            None
        }
    }
}

/// Headers that the transport sets itself.
const OWN_HEADERS: [&str; 9] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "last-event-id",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];

fn headers(files: Result<Vec<Entry>, String>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let files = files.unwrap_or_else(|error| {
        tracing::warn!(target: "business", error, "the folder of a server's headers cannot be read");
        Vec::new()
    });
    for file in files {
        let name = file.name.parse::<HeaderName>();
        let own = |n: &HeaderName| OWN_HEADERS.contains(&n.as_str()) || n.as_str().starts_with("mcp-");
        let value = HeaderValue::from_bytes(file.content.trim_ascii());
        match (name, value) {
            (Ok(name), Ok(mut value)) if !own(&name) => {
                value.set_sensitive(true);
                headers.insert(name, value);
            }
            _ => tracing::warn!(target: "business", file = file.name, "a file is no header that may be set"),
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_headers_that_may_be_set_are() {
        let entry = |name: &str, content: &str| Entry { name: name.into(), content: content.as_bytes().to_vec() };
        let files = vec![
            entry("Authorization", "Bearer x\n"),
            entry("X-Key", "a"),
            entry("Host", "evil"),
            entry("Mcp-Session-Id", "s"),
            entry("not a header", "x"),
            entry("X-Broken", "a\nb"),
        ];
        let headers = headers(Ok(files));
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["authorization", "x-key"]);
        assert_eq!(headers["authorization"], "Bearer x");
        assert!(headers["authorization"].is_sensitive());
    }
}
