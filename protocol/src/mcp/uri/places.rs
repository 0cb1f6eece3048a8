//! Where URIs stand in messages. Never inside text.

use std::borrow::Cow;

use crate::jsonrpc::{Envelope, Slice, member, string};
use crate::mcp::object::{Edits, elements, quoted};

/// A request with the URI that it is about, or completes, changed for its server; `None` when nothing changes. `change`
/// gives the server's own for what a client sent.
pub fn in_request(request: &Envelope<'_>, change: impl Fn(&str) -> Option<String>) -> Option<Vec<u8>> {
    let params = request.params?;
    let place = match &*request.method {
        "completion/complete" => member(member(params, "ref")?, "uri"),
        _ => member(params, "uri"),
    };
    edited(request.text, place.into_iter(), change)
}

/// A notification of a server with the URI it is about changed for clients; `None` when nothing changes.
pub fn in_notification(message: &Envelope<'_>, change: impl Fn(&str) -> Option<String>) -> Option<Vec<u8>> {
    edited(message.text, message.params.and_then(|p| member(p, "uri")).into_iter(), change)
}

/// A server's response with the URIs in its result changed for clients; `None` when nothing changes. Lists are put
/// together elsewhere and not looked at here.
pub fn in_result(response: &Envelope<'_>, method: &str, change: impl Fn(&str) -> Option<String>) -> Option<Vec<u8>> {
    let result = response.result?;
    let list = |key| member(result, key).and_then(elements).unwrap_or_default().into_iter();
    let places: Vec<Slice<'_>> = match method {
        "resources/read" => list("contents").filter_map(|c| member(c, "uri")).collect(),
        "resources/directory/read" => list("resources").filter_map(|c| member(c, "uri")).collect(),
        "tools/call" => list("content").flat_map(block).chain(app(result)).collect(),
        "prompts/get" => list("messages").filter_map(|m| member(m, "content")).flat_map(block).collect(),
        _ => return None,
    };
    edited(response.text, places.into_iter(), change)
}

/// The URIs of a content block: of a link, or of an embedded resource.
fn block(block: Slice<'_>) -> Vec<Slice<'_>> {
    let kind = member(block, "type").and_then(|t| string(t.raw));
    let place = match kind.as_deref() {
        Some("resource_link") => member(block, "uri"),
        Some("resource") => member(block, "resource").and_then(|r| member(r, "uri")),
        _ => None,
    };
    place.into_iter().collect()
}

/// The user interface that belongs to a tool or result (MCP Apps): `_meta.ui.resourceUri`.
pub(crate) fn app(object: Slice<'_>) -> Option<Slice<'_>> {
    member(member(member(object, "_meta")?, "ui")?, "resourceUri")
}

fn edited<'t>(
    text: &str,
    places: impl Iterator<Item = Slice<'t>>,
    change: impl Fn(&str) -> Option<String>,
) -> Option<Vec<u8>> {
    let mut edits = Edits::default();
    let mut any = false;
    for place in places {
        let Some(uri) = string(place.raw) else { continue };
        if let Some(new) = change(&uri).filter(|new| *new != *uri) {
            edits.replace(place.range(), Cow::Owned(quoted(&new)));
            any = true;
        }
    }
    any.then(|| edits.apply(text))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    fn parse(text: &str) -> Envelope<'_> {
        Envelope::parse(text, 512).unwrap()
    }

    #[test]
    fn uris_in_results_and_nothing_else() {
        let change = |uri: &str| (uri == "a:b").then(|| "s+a:b".to_owned());
        let mut table = String::new();
        for (method, result) in [
            (
                "resources/read",
                r#"{"contents":[{"uri":"a:b","text":"a:b","x":1.0},{"uri":"a:\u0062"},{"uri":"c:d"}],"uri":"a:b"}"#,
            ),
            (
                "tools/call",
                r#"{"content":[{"type":"text","text":"a:b","uri":"a:b"},{"type":"resource_link","uri":"a:b"},{"type":"resource","resource":{"uri":"a:b"}},7],"_meta":{"ui":{"resourceUri":"a:b"}},"structuredContent":{"uri":"a:b"}}"#,
            ),
            (
                "prompts/get",
                r#"{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"a:b","text":"\ud800"}}}]}"#,
            ),
            ("resources/directory/read", r#"{"resources":[{"uri":"a:b"}]}"#),
            ("completion/complete", r#"{"uri":"a:b"}"#),
            ("tools/call", r#"{"content":"a:b"}"#),
        ] {
            let message = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
            let got = in_result(&parse(&message), method, change).map(|line| String::from_utf8(line).unwrap());
            let _ = writeln!(table, "{method} {}", got.as_deref().unwrap_or("as it was"));
        }
        insta::assert_snapshot!(table);
    }

    #[test]
    fn uris_in_requests_and_notifications() {
        let change = |uri: &str| uri.strip_prefix("s+").map(str::to_owned);
        let of = |method: &str, params: &str| {
            let text = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
            let message = parse(&text);
            let got = if method.starts_with("notifications/") {
                in_notification(&message, change)
            } else {
                in_request(&message, change)
            };
            got.map(|line| String::from_utf8(line).unwrap().split_once("\"params\":").unwrap().1.to_owned())
        };
        assert_eq!(of("resources/read", r#"{"uri":"s+a:b","n":1.0}"#).unwrap(), r#"{"uri":"a:b","n":1.0}}"#);
        assert_eq!(of("resources/read", r#"{"uri":"a:b"}"#), None);
        assert_eq!(
            of("completion/complete", r#"{"ref":{"uri":"s+a:{x}"},"uri":"s+a:b"}"#).unwrap(),
            r#"{"ref":{"uri":"a:{x}"},"uri":"s+a:b"}}"#
        );
        assert_eq!(of("notifications/resources/updated", r#"{"uri":"s+a:b"}"#).unwrap(), r#"{"uri":"a:b"}}"#);
    }
}
