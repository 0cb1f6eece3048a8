//! What is said first to a child of the proxy's own, and what it answers.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use outrigger_protocol::jsonrpc::{Envelope, Slice, member, string};
use outrigger_protocol::mcp::listing::{List, Page};
use outrigger_protocol::mcp::meta::{self, Stamp};
use outrigger_protocol::mcp::{MODERN_REVISIONS, is_modern_revision};
use serde::Deserialize;

use super::Info;
use crate::mcp::child::{Child, Era};
use crate::mcp::error::Error;
use crate::mcp::policy::{Definition, MAX_DEFINITIONS};

/// Revisions of a server that are remembered.
pub const MAX_VERSIONS: usize = 16;
/// Names of tools that are kept.
pub const MAX_TOOLS: usize = 128;
/// Pages of tools that are read.
const MAX_PAGES: usize = 64;
/// The proxy as a client.
const OURSELVES: &str = concat!(r#"{"name":"outrigger","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);

/// What a server said of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// How it was asked.
    pub era: Era,
    /// The raw result of `initialize` or `server/discover`.
    pub result: Box<str>,
    /// The revision that it speaks, the best one of several.
    pub revision: String,
    /// All revisions that it named.
    pub versions: Vec<String>,
    /// Its raw `serverInfo`; empty if it has none.
    pub server_info: Box<str>,
}

impl Hello {
    /// Whether it declared a capability.
    pub fn can(&self, capability: &str) -> bool {
        let result = Slice { raw: &self.result, at: 0 };
        member(result, "capabilities").and_then(|c| member(c, capability)).is_some_and(|c| c.raw != "null")
    }

    /// `name version` of the server.
    pub fn name(&self) -> String {
        let info = Slice { raw: &self.server_info, at: 0 };
        let text = |key| member(info, key).and_then(|v| string(v.raw)).unwrap_or_default();
        format!("{} {}", text("name"), text("version")).trim().to_owned()
    }
}

/// The `_meta` of the proxy's own requests to a stateless server.
pub fn our_meta(capabilities: &str) -> String {
    format!(r#""_meta":{{{}}}"#, Stamp::new(MODERN_REVISIONS[0], capabilities, Some(OURSELVES), None).members())
}

/// Says hello to a child: with a handshake, or by asking what it is.
pub async fn greet(
    child: &Arc<Child>,
    revision: &str,
    capabilities: &str,
    client_info: Option<&str>,
) -> Result<Hello, Error> {
    let limit = child.shared.start_limit();
    let hello = match child.era {
        Era::Legacy => {
            let client_info = client_info.unwrap_or(OURSELVES);
            let params = format!(
                r#"{{"protocolVersion":"{revision}","capabilities":{capabilities},"clientInfo":{client_info}}}"#
            );
            let answer = child.call("initialize", &params, limit).await?;
            let hello = initialized(&answer.body)?;
            child.say("notifications/initialized")?;
            hello
        }
        Era::Modern => discover(child, limit).await?,
    };
    child.greet();
    Ok(hello)
}

/// Asks a child what it is, in the way of the stateless revision.
pub async fn discover(child: &Arc<Child>, limit: Duration) -> Result<Hello, Error> {
    let params = format!("{{{}}}", our_meta("{}"));
    let answer = child.call("server/discover", &params, limit).await.map_err(|e| match e {
        Error::InitializeTimeout(ms) | Error::RequestTimeout(ms) => Error::InitializeTimeout(ms),
        other => other,
    })?;
    discovered(&answer.body)
}

fn result(body: &[u8]) -> Result<&str, Error> {
    let nonsense = |why: String| Error::InitializeFailed(format!("its answer makes no sense: {why}"));
    let text = std::str::from_utf8(body).map_err(|e| nonsense(e.to_string()))?;
    let envelope = Envelope::parse(text, usize::MAX).map_err(|e| nonsense(e.to_string()))?;
    match (envelope.result, envelope.error) {
        (Some(result), _) => Ok(result.raw),
        (None, Some(error)) => {
            let message = member(error, "message").and_then(|m| string(m.raw)).unwrap_or_default();
            Err(Error::InitializeFailed(message.into_owned()))
        }
        (None, None) => Err(nonsense("neither result nor error".into())),
    }
}

fn initialized(body: &[u8]) -> Result<Hello, Error> {
    let raw = result(body)?;
    let slice = Slice { raw, at: 0 };
    let revision = member(slice, "protocolVersion").and_then(|r| string(r.raw));
    let Some(revision) = revision else {
        return Err(Error::InitializeFailed("its answer makes no sense: no protocolVersion".into()));
    };
    let server_info = member(slice, "serverInfo").map_or("", |i| i.raw);
    Ok(Hello {
        era: Era::Legacy,
        revision: revision.clone().into_owned(),
        versions: vec![revision.into_owned()],
        server_info: server_info.into(),
        result: raw.into(),
    })
}

fn discovered(body: &[u8]) -> Result<Hello, Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Discovered {
        supported_versions: Vec<String>,
    }
    let raw = result(body)?;
    let told: Discovered = serde_json::from_str(raw)
        .map_err(|e| Error::InitializeFailed(format!("its answer to server/discover makes no sense: {e}")))?;
    let mut versions = told.supported_versions;
    versions.truncate(MAX_VERSIONS);
    let Some(revision) = versions.iter().find(|v| is_modern_revision(v)).cloned() else {
        let named = versions.join(", ");
        return Err(Error::InitializeFailed(format!("it speaks none of the known revisions, but {named}")));
    };
    let info = member(Slice { raw, at: 0 }, "_meta").and_then(|m| member(m, meta::SERVER_INFO));
    Ok(Hello {
        era: Era::Modern,
        revision,
        versions,
        server_info: info.map_or("", |i| i.raw).into(),
        result: raw.into(),
    })
}

/// Asks for the tools of a child that has said hello.
pub async fn interview(child: &Child, hello: &Hello) -> Result<Info, Error> {
    let mut tools: Vec<Definition> = Vec::new();
    let mut all = false;
    let mut cursor: Option<String> = None;
    for _ in 0..MAX_PAGES {
        if !hello.can("tools") {
            all = true;
            break;
        }
        if tools.len() >= MAX_DEFINITIONS {
            break;
        }
        let cursor_member = cursor.take().map(|c| format!(r#""cursor":{}"#, serde_json::Value::from(c)));
        let meta = (child.era == Era::Modern).then(|| our_meta("{}"));
        let members: Vec<String> = cursor_member.into_iter().chain(meta).collect();
        let params = format!("{{{}}}", members.join(","));
        let answer = child.call("tools/list", &params, child.shared.request_limit()).await?;
        match page(&answer.body) {
            Ok(page) => {
                tools.extend(page.0);
                cursor = page.1;
            }
            // It talks, so it can work; what it says of its tools is between it and its clients.
            Err(why) => {
                tracing::warn!(target: "business", server = child.shared.conf.name, why, "tools/list makes no sense");
                break;
            }
        }
        if cursor.is_none() {
            all = true;
            break;
        }
    }
    child.shared.policy.learn(&tools, all);
    tools.truncate(MAX_TOOLS);
    let tool_digests = tools.iter().filter_map(|t| t.digest.clone().map(|d| (t.name.clone(), d))).collect();
    let tools = tools.into_iter().map(|t| t.name).collect();
    Ok(Info { protocol_version: hello.revision.clone(), server_info: hello.name(), tools, tool_digests })
}

/// The definitions of one page, and where the next one begins.
fn page(body: &[u8]) -> Result<(Vec<Definition>, Option<String>), String> {
    let raw = result(body).map_err(|e| e.to_string())?;
    let page = Page::read(List::Tools, Slice { raw, at: 0 }).ok_or("it has no list of tools")?;
    if page.items.iter().any(|tool| tool.id.is_empty()) {
        return Err("a tool has no name".into());
    }
    let tools = page.items.iter().map(|tool| Definition::of(&tool.id, tool.raw())).collect();
    Ok((tools, page.next.and_then(string).map(Cow::into_owned)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_of_itself() {
        let body = br#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{},"x":null},"serverInfo":{"name":"a","version":"1"}}}"#;
        let hello = initialized(body).unwrap();
        assert_eq!((hello.revision.as_str(), hello.name().as_str()), ("2025-06-18", "a 1"));
        assert!(hello.can("tools") && !hello.can("x") && !hello.can("tasks"));
        let body = br#"{"jsonrpc":"2.0","id":1,"result":{"supportedVersions":["2025-11-25","2026-07-28"],"capabilities":{},"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"b"}}}}"#;
        let hello = discovered(body).unwrap();
        assert_eq!((hello.revision.as_str(), hello.name().as_str(), hello.versions.len()), ("2026-07-28", "b", 2));
        for (body, why) in [
            (&br#"{"jsonrpc":"2.0","id":1,"result":{"supportedVersions":["2025-11-25"]}}"#[..], "2025-11-25"),
            (br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"what?"}}"#, "what?"),
            (br#"{"jsonrpc":"2.0","id":1,"result":{}}"#, "no sense"),
            (b"nonsense", "no sense"),
        ] {
            let error = discovered(body).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert!(initialized(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#).is_err());
    }
}
