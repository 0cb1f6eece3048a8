//! Whether a request passes, and what is done with its answer.

use std::sync::Arc;

use outrigger_protocol::config::{Drift, ToolPolicy};
use outrigger_protocol::jsonrpc::{Envelope, INVALID_PARAMS, Slice, member, string};
use outrigger_protocol::mcp::annotation::{Mismatch, check};
use outrigger_protocol::mcp::filter::passes_all;
use outrigger_protocol::mcp::header::Header;
use outrigger_protocol::mcp::object::Object;
use outrigger_protocol::mcp::trace::PARENT;
use outrigger_protocol::mcp::{HEADER_MISMATCH, PARAM_HEADER_PREFIX};
use serde_json::json;
use tokio::time::Instant;

use super::View;
use super::audit::Ticket;
use super::definitions::{Definition, Known};
use crate::mcp::front::{Inbound, modern_headers};
use crate::mcp::outlet::{Answer, Edit, Outlet};
use crate::mcp::pool::{Server, health};

/// `_meta` key of why a call was not made, in its result.
const REASON: &str = "outrigger.dev/reason";
/// `_meta` key of when it may be made again, in milliseconds from now.
const RETRY_AFTER: &str = "outrigger.dev/retryAfterMs";
/// Longest `traceparent` (W3C Trace Context, version 00).
const TRACEPARENT: usize = 55;

/// Why a call is not made.
#[derive(Debug)]
enum Refused {
    NotAllowed,
    Drifted,
    Ambiguous,
    TooLarge(u64),
    Rate(u32),
    Concurrent(u32),
    Header(Mismatch),
}

impl Refused {
    fn label(&self) -> &'static str {
        match self {
            Self::NotAllowed => "not_allowed",
            Self::Drifted => "drifted",
            Self::Ambiguous => "ambiguous",
            Self::TooLarge(_) => "arguments_too_large",
            Self::Rate(_) => "rate_limited",
            Self::Concurrent(_) => "too_many_calls",
            Self::Header(_) => "header_mismatch",
        }
    }

    fn answer(self, id: Option<&str>, tool: &str) -> Answer {
        let (reason, text, wait) = match self {
            // Not to be told from a tool that there isn't.
            Self::NotAllowed | Self::Drifted => {
                return Answer::error(id, INVALID_PARAMS, &format!("Unknown tool: {tool}"));
            }
            Self::Ambiguous => {
                return Answer::error(id, INVALID_PARAMS, "params must have name and arguments once each");
            }
            Self::Header(mismatch) => {
                let body = mismatch.response(id.unwrap_or("null")).into();
                return Answer { body, failure: None, code: Some(HEADER_MISMATCH.into()) };
            }
            Self::TooLarge(most) => ("ArgumentsTooLarge", format!("The arguments have more than {most} bytes."), None),
            Self::Rate(seconds) => {
                let text = format!("This tool was called too often. Call it again in {seconds} s.");
                ("RateLimited", text, Some(u64::from(seconds) * 1000))
            }
            Self::Concurrent(most) => {
                let text = format!(
                    "{most} calls of this tool are in progress, which is the limit. Call it again when one has ended."
                );
                ("TooManyCalls", text, Some(1000))
            }
        };
        let mut meta = json!({ REASON: reason });
        if let Some(wait) = wait {
            meta[RETRY_AFTER] = wait.into();
        }
        let content = [json!({"type": "text", "text": text})];
        let result = json!({"content": content, "isError": true, "resultType": "complete", "_meta": meta});
        Answer::to(id.unwrap_or("null"), &result.to_string())
    }
}

/// Judges a request of a client: only `tools/list` and `tools/call` are bounded by rules. One that is let through has its
/// answer edited on its way; `false`: it was answered.
pub async fn admitted(inbound: &Inbound<'_>, envelope: &Envelope<'_>, outlet: &Outlet) -> bool {
    match &*envelope.method {
        "tools/list" => list(inbound, outlet),
        "tools/call" => {
            let started = Instant::now();
            match call(inbound, envelope).await {
                Ok(edit) => outlet.edit(edit),
                Err(answer) => {
                    inbound.server.shared.count("tools/call", "refused", started);
                    outlet.finish(answer);
                    return false;
                }
            }
        }
        _ => {}
    }
    true
}

fn list(inbound: &Inbound<'_>, outlet: &Outlet) {
    let shared = Arc::clone(&inbound.server.shared);
    let view = shared.policy.view(inbound.caller.filter());
    if !view.is_open(&shared.conf.name) {
        outlet.edit(Edit::new(move |answer| shared.policy.shown(&view, answer)));
    }
}

async fn call(inbound: &Inbound<'_>, envelope: &Envelope<'_>) -> Result<Edit, Answer> {
    let params = envelope.params.unwrap_or(Slice { raw: "{}", at: 0 });
    let asked = Object::read(params);
    let tool = asked.as_ref().and_then(|p| p.text("name")).unwrap_or_default();
    let arguments = asked.as_ref().and_then(|p| p.get("arguments"));
    let trace = trace(inbound, params);
    let raw = arguments.map_or("", |a| a.raw);
    let mut ticket = Ticket::new(inbound.server, &tool, inbound.caller.name(), raw, &trace);
    match judged(inbound, asked.as_ref(), &tool, arguments).await {
        Ok(place) => Ok(Edit::new(move |answer| {
            ticket.answered(&answer);
            drop((ticket, place));
            answer
        })),
        Err(refused) => {
            inbound.server.shared.policy.refused(refused.label());
            ticket.refused(refused.label());
            Err(refused.answer(envelope.id.map(|i| i.raw), &tool))
        }
    }
}

async fn judged(
    inbound: &Inbound<'_>,
    asked: Option<&Object<'_>>,
    tool: &str,
    arguments: Option<Slice<'_>>,
) -> Result<Option<Place>, Refused> {
    let server = inbound.server;
    let view = server.shared.policy.view(inbound.caller.filter());
    let place = if view.is_open(server.name()) {
        None
    } else {
        once(asked)?;
        admit(server, &view, tool, arguments.map_or(0, |a| a.raw.len())).await?
    };
    repeats(inbound, tool, arguments).await.map_err(Refused::Header)?;
    Ok(place)
}

/// Of two members with one key readers take the first or the last: nobody may be shown one and given the other.
fn once(params: Option<&Object<'_>>) -> Result<(), Refused> {
    let Some(params) = params else { return Ok(()) };
    let twice = |key: &str| params.members().iter().filter(|m| m.key == key).count() > 1;
    if twice("name") || twice("arguments") { Err(Refused::Ambiguous) } else { Ok(()) }
}

/// Whether a call may be made, with its place among those in flight where these are bounded. Each round of a call counts:
/// whether it goes on with one that was let through is the client's word alone.
async fn admit(server: &Arc<Server>, view: &View, tool: &str, bytes: usize) -> Result<Option<Place>, Refused> {
    let policy = &server.shared.policy;
    if !passes_all(view.filters(server.name()), tool) {
        return Err(Refused::NotAllowed);
    }
    let Some(rules) = view.rules(server.name()) else { return Ok(None) };
    if rules.drift == Drift::Block && !rules.pins.is_empty() && !as_pinned(server, rules, tool).await {
        return Err(Refused::Drifted);
    }
    if let Some(most) = rules.max_argument_bytes.filter(|most| bytes as u64 > *most) {
        return Err(Refused::TooLarge(most));
    }
    let tool: Arc<str> = tool.into();
    let place = match rules.max_concurrent {
        Some(most) => Some(Place::take(server, &tool, most).ok_or(Refused::Concurrent(most))?),
        None => None,
    };
    if let Some(most) = rules.max_per_minute {
        policy.rates.take(&tool, f64::from(most) / 60.0, most).map_err(Refused::Rate)?;
    }
    Ok(place)
}

/// A place among the calls of a tool that are in flight.
struct Place {
    server: Arc<Server>,
    tool: Arc<str>,
}

impl Place {
    /// `None` when that many are taken.
    fn take(server: &Arc<Server>, tool: &Arc<str>, most: u32) -> Option<Self> {
        let mut running = server.shared.policy.running.lock();
        if running.get(tool).copied().unwrap_or(0) >= most {
            return None;
        }
        *running.entry(Arc::clone(tool)).or_default() += 1;
        Some(Self { server: Arc::clone(server), tool: Arc::clone(tool) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut running = self.server.shared.policy.running.lock();
        if let Some(n) = running.get_mut(&self.tool) {
            *n -= 1;
            if *n == 0 {
                running.remove(&self.tool);
            }
        }
    }
}

/// Whether a tool is what was pinned, as far as its server says.
async fn as_pinned(server: &Arc<Server>, rules: &ToolPolicy, tool: &str) -> bool {
    definition(server, tool).await.is_some_and(|d| !d.standing(&rules.pins).drifted())
}

/// What the server says of a tool; it is asked when that is not known. `None` when there is none or it does not say.
async fn definition(server: &Arc<Server>, tool: &str) -> Option<Definition> {
    let definitions = &server.shared.policy.definitions;
    let mut known = definitions.get(tool);
    if matches!(known, Known::Unknown) {
        let _one = definitions.asking.lock().await;
        known = definitions.get(tool);
        if matches!(known, Known::Unknown) {
            if let Err(error) = health::ask_tools(server).await {
                tracing::warn!(target: "business", server = server.name(), %error, "the server was asked for its tools in vain");
            }
            known = definitions.get(tool);
        }
    }
    match known {
        Known::As(definition) => Some(definition),
        Known::Absent | Known::Unknown => None,
    }
}

/// Holds the headers of a stateless client that repeat arguments against them (2026-07-28, transports, "Custom
/// headers"): the server has no HTTP to do it. For a call without such headers the server is not asked anew.
async fn repeats(inbound: &Inbound<'_>, tool: &str, arguments: Option<Slice<'_>>) -> Result<(), Mismatch> {
    if !modern_headers(inbound.headers) {
        return Ok(());
    }
    let any = inbound.headers.keys().any(|name| name.as_str().starts_with(PARAM_HEADER_PREFIX));
    let known = match inbound.server.shared.policy.definitions.get(tool) {
        Known::As(definition) => Some(definition),
        Known::Unknown if any => definition(inbound.server, tool).await,
        Known::Absent | Known::Unknown => None,
    };
    let Some(known) = known else { return Ok(()) };
    let headers = inbound.headers;
    check(&known.params, arguments, |name| Header::of(headers.get_all(name).iter().map(http::HeaderValue::as_bytes)))
}

/// The trace that a request belongs to, as its server is told it.
fn trace(inbound: &Inbound<'_>, params: Slice<'_>) -> String {
    let in_meta = member(params, "_meta").and_then(|meta| member(meta, PARENT));
    let in_meta = in_meta.and_then(|t| string(t.raw)).map(std::borrow::Cow::into_owned);
    let header = || inbound.headers.get(PARENT).and_then(|t| t.to_str().ok()).map(str::to_owned);
    in_meta.or_else(header).filter(|t| t.len() <= TRACEPARENT).unwrap_or_default()
}
