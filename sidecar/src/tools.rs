//! The front of a pod without an agent: its tool server, for the sidecars of the Agents that may use it.
//!
//! A sidecar proves itself with the token of its ServiceAccount, which the cluster signs for the audience that the live
//! document names. Who has no good token is answered 401, who is not among the callers 403.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http::header::{AUTHORIZATION, HOST, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};
use outrigger_protocol::config::{Filter, Live};
use outrigger_protocol::jsonrpc::INVALID_REQUEST;
use parking_lot::Mutex;
use prometheus::{IntCounterVec, Opts, Registry};
use serde_json::json;
use tokio::sync::watch;

use crate::a2a::edge::{self, Denied, Verifier, bearer};
use crate::context::Context;

/// Who calls; in the extensions of each request that was let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Subject of its token, such as `system:serviceaccount:shops:seller`.
    pub subject: Arc<str>,
    /// Which tools it may use, among those that the server's policy leaves.
    pub filter: Arc<Filter>,
}

/// Puts the check of callers in front of the servers of this pod.
pub fn router(context: &Context, servers: Router) -> Result<Router, prometheus::Error> {
    let door = Door::new(context.live.clone(), &context.registry)?;
    Ok(servers.fallback(nowhere).layer(from_fn_with_state(door, check)))
}

async fn nowhere() -> Response {
    refusal(StatusCode::NOT_FOUND, "NotFound", "this pod serves /mcp/{server} and nothing else")
}

/// What callers are checked with.
struct Door {
    live: watch::Receiver<Arc<Live>>,
    rules: ArcSwap<Rules>,
    rebuild: Mutex<()>,
    keys_metrics: edge::Metrics,
    admissions: IntCounterVec,
}

/// What the live document says, made ready.
struct Rules {
    of: Arc<Live>,
    verifier: Option<Verifier>,
    callers: HashMap<Arc<str>, Arc<Filter>>,
}

/// Why a caller is not let in.
enum Refused {
    Unauthenticated(String),
    Forbidden(String),
    Unavailable,
}

impl Refused {
    fn label(&self) -> &'static str {
        match self {
            Self::Unauthenticated(_) => "unauthenticated",
            Self::Forbidden(_) => "forbidden",
            Self::Unavailable => "unavailable",
        }
    }

    fn response(&self) -> Response {
        match self {
            Self::Unauthenticated(why) => {
                let mut response = refusal(StatusCode::UNAUTHORIZED, "Unauthenticated", why);
                response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
                response
            }
            Self::Forbidden(why) => refusal(StatusCode::FORBIDDEN, "Forbidden", why),
            Self::Unavailable => {
                let why = "the keys of the cluster are not known to this pod";
                let mut response = refusal(StatusCode::SERVICE_UNAVAILABLE, "KeysUnknown", why);
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("10"));
                response
            }
        }
    }
}

/// An error as MCP clients read one (JSON-RPC 2.0, section 5.1).
fn refusal(status: StatusCode, reason: &str, message: &str) -> Response {
    let error = json!({"code": INVALID_REQUEST, "message": message, "data": {"reason": reason}});
    (status, axum::Json(json!({"jsonrpc": "2.0", "id": null, "error": error}))).into_response()
}

async fn check(State(door): State<Arc<Door>>, mut request: Request, next: Next) -> Response {
    match door.admit(request.headers()).await {
        Ok(caller) => {
            door.admissions.with_label_values(&["ok"]).inc();
            request.extensions_mut().insert(caller);
            let headers = request.headers_mut();
            // The token is for this door alone. The Host is that of a Service; the check behind is for browsers, which
            // have no token.
            headers.remove(AUTHORIZATION);
            headers.insert(HOST, HeaderValue::from_static("localhost"));
            next.run(request).await
        }
        Err(refused) => {
            door.admissions.with_label_values(&[refused.label()]).inc();
            refused.response()
        }
    }
}

impl Door {
    fn new(live: watch::Receiver<Arc<Live>>, registry: &Registry) -> Result<Arc<Self>, prometheus::Error> {
        let keys_metrics = edge::Metrics::register(registry)?;
        let admissions = IntCounterVec::new(
            Opts::new(
                "outrigger_mcp_admissions_total",
                "Requests to a Standalone server by outcome: ok, unauthenticated, forbidden, unavailable.",
            ),
            &["outcome"],
        )?;
        registry.register(Box::new(admissions.clone()))?;
        for outcome in ["ok", "unauthenticated", "forbidden", "unavailable"] {
            admissions.with_label_values(&[outcome]);
        }
        let rules = Rules::new(Arc::clone(&live.borrow()), &keys_metrics);
        let rules = ArcSwap::from_pointee(rules);
        Ok(Arc::new(Self { live, rules, rebuild: Mutex::default(), keys_metrics, admissions }))
    }

    /// The rules of the document in force.
    fn rules(&self) -> Arc<Rules> {
        let rules = self.rules.load_full();
        if Arc::ptr_eq(&rules.of, &self.live.borrow()) {
            return rules;
        }
        let _one = self.rebuild.lock();
        let live = Arc::clone(&self.live.borrow());
        let rules = self.rules.load_full();
        if Arc::ptr_eq(&rules.of, &live) {
            return rules;
        }
        let fresh = Arc::new(Rules::new(live, &self.keys_metrics));
        self.rules.store(Arc::clone(&fresh));
        fresh
    }

    async fn admit(&self, headers: &HeaderMap) -> Result<Caller, Refused> {
        let rules = self.rules();
        let Some(verifier) = &rules.verifier else { return Err(Refused::Unavailable) };
        let token = bearer(headers).ok_or_else(|| {
            Refused::Unauthenticated(
                "this server is called by the sidecars of Agents, with a token of their own".into(),
            )
        })?;
        let identity = verifier.verify(&token).await.map_err(|denied| match denied {
            Denied::Invalid(why) => Refused::Unauthenticated(format!("the token is not accepted: {why}")),
            Denied::Scope(_) => Refused::Unauthenticated("the token lacks a scope".into()),
            Denied::Unavailable => Refused::Unavailable,
        })?;
        match rules.callers.get_key_value(identity.subject.as_str()) {
            Some((subject, filter)) => Ok(Caller { subject: Arc::clone(subject), filter: Arc::clone(filter) }),
            None => Err(Refused::Forbidden(format!(
                "{} may not use this server: an Agent names it in spec.mcpServers, and the MCPServer lists other namespaces in spec.access.from",
                identity.subject
            ))),
        }
    }
}

impl Rules {
    fn new(live: Arc<Live>, metrics: &edge::Metrics) -> Self {
        let access = live.mcp.access.as_ref();
        let verifier = access.map(|a| Verifier::fixed(&a.issuer, &a.audience, &a.jwks, metrics));
        let callers = access.map(|a| a.callers.as_slice()).unwrap_or_default();
        let callers = callers.iter().map(|c| (Arc::from(c.subject.as_str()), Arc::new(c.filter.clone()))).collect();
        Self { of: live, verifier, callers }
    }
}
