//! Whether the card tells the truth: each interface that it is to name is called first, over the pod's own port, and
//! only what answers as it should is named.
//!
//! A call asks for a task that does not exist, so that it changes nothing and needs no handler: what has to come back
//! is that there is no such task, in the words of that binding and version. That the task store is away is no fault of
//! the interface that says so.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use outrigger_protocol::a2a::extensions;
use outrigger_protocol::a2a::operation::Binding;
use outrigger_protocol::config::Live;
use outrigger_protocol::status::{InterfaceStatus, PartStatus};
use prometheus::{IntGaugeVec, Opts, Registry};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::build::asked;

/// Header with which the sidecar tells itself from everybody else; its value is new with each start.
pub const SELF_HEADER: HeaderName = HeaderName::from_static("outrigger-self");
/// Id of the task that does not exist.
const NO_TASK: &str = "00000000-0000-4000-8000-000000000000";
/// One call takes at most so long.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// Largest answer.
const MAX_ANSWER: usize = 64 << 10;
/// What failed is called again after this time.
const AGAIN: Duration = Duration::from_secs(10);
/// At the start, when the port is about to be served.
const SOON: Duration = Duration::from_millis(100);
/// So often soon.
const SOON_TRIES: u32 = 50;

/// One interface that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The binding.
    pub binding: Binding,
    /// The version, `1.0` or `0.3`.
    pub version: &'static str,
}

/// What is known of the interfaces.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    seen: Seen,
    /// Why streams are not served although they should be.
    streams: Option<String>,
}

#[derive(Clone, Debug, Default)]
enum Seen {
    /// Nobody calls: everything that is asked for is named.
    #[default]
    Assumed,
    /// The first calls are under way.
    Pending,
    /// By each call, why it failed if it did.
    Called(Vec<(Asked, Result<(), String>)>),
}

impl Facts {
    /// Before the first calls.
    fn pending() -> Self {
        Self { seen: Seen::Pending, streams: None }
    }

    /// Whether the first calls are over.
    pub fn known(&self) -> bool {
        !matches!(self.seen, Seen::Pending)
    }

    pub(super) fn passed(&self, one: Asked) -> bool {
        match &self.seen {
            Seen::Assumed => true,
            Seen::Pending => false,
            Seen::Called(all) => all.iter().any(|(a, result)| *a == one && result.is_ok()),
        }
    }

    pub(super) fn streams(&self) -> bool {
        self.known() && self.streams.is_none()
    }

    fn any(&self) -> bool {
        matches!(&self.seen, Seen::Called(all) if all.is_empty() || all.iter().any(|(_, r)| r.is_ok()))
    }

    fn settled(&self) -> bool {
        matches!(&self.seen, Seen::Called(all) if self.streams.is_none() && all.iter().all(|(_, r)| r.is_ok()))
    }

    /// For the pod's status; empty while nothing is known.
    pub fn status(&self) -> Vec<InterfaceStatus> {
        let Seen::Called(all) = &self.seen else { return Vec::new() };
        let part = |result: &Result<(), String>| match result {
            Ok(()) => PartStatus { ready: true, ..PartStatus::default() },
            Err(why) => PartStatus { ready: false, reason: "SelfCallFailed".into(), message: why.clone() },
        };
        all.iter()
            .map(|(asked, result)| InterfaceStatus {
                binding: asked.binding.name().into(),
                version: asked.version.into(),
                part: match (&self.streams, result) {
                    (Some(why), Ok(())) if asked.binding == Binding::JsonRpc => {
                        part(&Err(format!("calls work, streams do not: {why}")))
                    }
                    _ => part(result),
                },
            })
            .collect()
    }
}

/// Calls our own interfaces.
pub struct Checker {
    live: watch::Receiver<Arc<Live>>,
    facts: watch::Sender<Arc<Facts>>,
    secret: Arc<str>,
    up: IntGaugeVec,
}

impl Checker {
    /// One that does not call yet. `secret` is what [`SELF_HEADER`] carries.
    pub fn new(
        live: watch::Receiver<Arc<Live>>,
        secret: Arc<str>,
        registry: &Registry,
    ) -> Result<Arc<Self>, prometheus::Error> {
        let up = IntGaugeVec::new(
            Opts::new(
                "outrigger_a2a_interface_up",
                "1 if an interface of the card passed a call of the sidecar's own, 0 if not and it is left out.",
            ),
            &["binding", "version"],
        )?;
        registry.register(Box::new(up.clone()))?;
        Ok(Arc::new(Self { live, facts: watch::Sender::new(Arc::default()), secret, up }))
    }

    /// Follows what is known.
    pub fn facts(&self) -> watch::Receiver<Arc<Facts>> {
        self.facts.subscribe()
    }

    /// From now on only what passes is named. To be called before the port is served, and [`Self::run`] after.
    pub fn begin(&self) {
        self.facts.send_replace(Arc::new(Facts::pending()));
    }

    /// Calls at the start, when the live configuration changes, and after a failure, until shutdown.
    pub async fn run(self: Arc<Self>, port: u16, shutdown: CancellationToken) {
        let mut live = self.live.clone();
        let mut tries = 0;
        loop {
            let now = Arc::clone(&live.borrow_and_update());
            let facts = self.call_all(&now, port).await;
            let settled = facts.settled();
            tries += 1;
            // A port that is not served yet is no lie of the configuration.
            let early = !facts.any() && tries < SOON_TRIES && !self.facts.borrow().known();
            if !early {
                self.publish(facts);
            }
            let wait = if early { SOON } else { AGAIN };
            tokio::select! {
                () = shutdown.cancelled() => return,
                changed = live.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(wait), if !settled => {}
            }
        }
    }

    fn publish(&self, facts: Facts) {
        if let Seen::Called(all) = &facts.seen {
            self.up.reset();
            for (asked, result) in all {
                let labels = [asked.binding.name(), asked.version];
                self.up.with_label_values(&labels).set(i64::from(result.is_ok()));
                if let Err(why) = result {
                    tracing::warn!(target: "business", binding = labels[0], version = labels[1], why, "an interface failed a call of our own and is not in the card");
                }
            }
        }
        self.facts.send_replace(Arc::new(facts));
    }

    async fn call_all(&self, live: &Live, port: u16) -> Facts {
        let mut all = Vec::new();
        for one in asked(&live.offer) {
            all.push((one, self.bounded(one, live, port, false).await));
        }
        // The stream of a task that does not exist is refused in the same words, and not by a stream.
        let mut streams = None;
        if live.offer.streaming
            && let Some((one, _)) = all.iter().find(|(_, result)| result.is_ok())
        {
            streams = self.bounded(*one, live, port, true).await.err();
        }
        Facts { seen: Seen::Called(all), streams }
    }

    async fn bounded(&self, one: Asked, live: &Live, port: u16, stream: bool) -> Result<(), String> {
        tokio::time::timeout(CALL_LIMIT, self.call(one, live, port, stream))
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {} s", CALL_LIMIT.as_secs())))
    }

    async fn call(&self, one: Asked, live: &Live, port: u16, stream: bool) -> Result<(), String> {
        let text = |e: &dyn std::fmt::Display| e.to_string();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let socket = TcpStream::connect(address).await.map_err(|e| text(&e))?;
        let (path, media, body) = question(one, stream);
        // What is required of every caller is required of us.
        let required = extensions::required(&live.card).join(",");
        let header = if one.version == "1.0" { extensions::HEADER } else { extensions::HEADER_V03 };
        let mut request = Request::post(path);
        if !required.is_empty() {
            request = request.header(header, required);
        }
        let request = request
            .header("host", address.to_string())
            .header("content-type", media)
            .header("te", "trailers")
            .header("a2a-version", one.version)
            .header(SELF_HEADER, &*self.secret)
            .body(Full::new(body));
        let mut request = request.map_err(|e| text(&e))?;
        let (response, driver) = if one.binding == Binding::Grpc {
            *request.uri_mut() = format!("http://{address}{}", request.uri()).parse().map_err(|e| text(&e))?;
            let (mut sender, driver) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket))
                    .await
                    .map_err(|e| text(&e))?;
            let driver = tokio::spawn(async move { drop(driver.await) });
            (sender.send_request(request).await, driver)
        } else {
            if one.binding == Binding::HttpJson {
                *request.method_mut() = http::Method::GET;
                *request.body_mut() = Full::default();
            }
            let (mut sender, driver) =
                hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.map_err(|e| text(&e))?;
            let driver = tokio::spawn(async move { drop(driver.await) });
            (sender.send_request(request).await, driver)
        };
        let verdict = match response {
            Ok(response) => judge(one, response).await,
            Err(e) => Err(e.to_string()),
        };
        driver.abort();
        verdict
    }
}

/// Path, media type and body of a call that asks for a task, or for its stream.
fn question(one: Asked, stream: bool) -> (String, &'static str, Bytes) {
    let old = one.version != "1.0";
    match one.binding {
        Binding::JsonRpc => {
            let method = match (old, stream) {
                (false, false) => "GetTask",
                (false, true) => "SubscribeToTask",
                (true, false) => "tasks/get",
                (true, true) => "tasks/resubscribe",
            };
            let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"id":"{NO_TASK}"}}}}"#);
            ("/".into(), "application/json", body.into())
        }
        Binding::HttpJson => {
            let prefix = if old { "/v1" } else { "" };
            let suffix = if stream { ":subscribe" } else { "" };
            (format!("{prefix}/tasks/{NO_TASK}{suffix}"), "application/json", Bytes::new())
        }
        Binding::Grpc => {
            let (service, method, field, id) = match (old, stream) {
                (false, false) => ("lf.a2a.v1.A2AService", "GetTask", 2, NO_TASK.to_owned()),
                (false, true) => ("lf.a2a.v1.A2AService", "SubscribeToTask", 2, NO_TASK.to_owned()),
                (true, false) => ("a2a.v1.A2AService", "GetTask", 1, format!("tasks/{NO_TASK}")),
                (true, true) => ("a2a.v1.A2AService", "TaskSubscription", 1, format!("tasks/{NO_TASK}")),
            };
            // A message with one text: tag, length, bytes; in front of it flags and length of the frame.
            let mut message = vec![field << 3 | 2, u8::try_from(id.len()).unwrap_or(u8::MAX)];
            message.extend_from_slice(id.as_bytes());
            let mut frame = vec![0];
            frame.extend_from_slice(&u32::try_from(message.len()).unwrap_or(0).to_be_bytes());
            frame.extend_from_slice(&message);
            (format!("/{service}/{method}"), "application/grpc", frame.into())
        }
    }
}

/// Whether an answer says that there is no such task, as its binding and version say it.
async fn judge(one: Asked, response: Response<Incoming>) -> Result<(), String> {
    let (head, body) = response.into_parts();
    let collected = Limited::new(body, MAX_ANSWER).collect().await.map_err(|e| e.to_string())?;
    let trailers = collected.trailers().cloned().unwrap_or_default();
    let bytes = collected.to_bytes();
    let odd = |what: String| Err(format!("asked for a task that does not exist, it answers {what}"));
    if one.binding == Binding::Grpc {
        let status = trailers.get("grpc-status").or_else(|| head.headers.get("grpc-status"));
        return match status.map(http::HeaderValue::as_bytes) {
            // There is no such task; the store is away.
            Some(b"5" | b"14") => Ok(()),
            Some(other) => odd(format!("grpc-status {}", String::from_utf8_lossy(other))),
            None => odd(format!("HTTP {} without grpc-status", head.status.as_u16())),
        };
    }
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).chars().take(200).collect::<String>();
    let Ok(json) = serde_json::from_slice::<Value>(&bytes) else {
        return odd(format!("HTTP {}: {}", head.status.as_u16(), shown(&bytes)));
    };
    let away = head.status == StatusCode::SERVICE_UNAVAILABLE && json["error"].is_object();
    let good = match one.binding {
        _ if away => true,
        Binding::JsonRpc => json["error"]["code"] == -32001 && json["id"] == 1,
        _ if one.version == "1.0" => {
            head.status == StatusCode::NOT_FOUND && json["error"]["details"][0]["reason"] == "TASK_NOT_FOUND"
        }
        _ => head.status == StatusCode::NOT_FOUND,
    };
    if good { Ok(()) } else { odd(format!("HTTP {}: {}", head.status.as_u16(), shown(&bytes))) }
}
