//! Cards of other agents as seen through a proxy: every URL at which the agent serves is replaced.
//!
//! Works on the JSON text, so that members nobody knows here, numbers and the order of members stay.

use super::raw::{self, Members, SplitError, elements, push_key, push_list, push_text, text_of};

/// Largest card that is rewritten, in bytes.
pub const MAX_CARD: usize = 1 << 20;

/// Binding that a proxy behind a path cannot offer: a gRPC target has no path.
const GRPC: &str = "GRPC";

/// Where the agent of a card is, and where it is found instead.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// URL that takes the place of the agent's own, without a slash at its end.
    pub base: &'a str,
    /// Name of the agent.
    pub name: &'a str,
    /// Its namespace.
    pub namespace: &'a str,
}

impl Place<'_> {
    /// The URL that takes the place of one in a card; `None` when it is none of HTTP.
    ///
    /// Behind the agent's own Service a path is a path of the agent and stays. Behind any other host it is that
    /// gateway's, which the agent does not know, and goes; a slash at its end stays.
    fn instead(self, url: &str) -> Option<String> {
        let rest = strip_scheme(url, "http://").or_else(|| strip_scheme(url, "https://"))?;
        let (authority, path) = rest.find(['/', '?', '#']).map_or((rest, ""), |at| rest.split_at(at));
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let path = if self.is_own(authority) || path.is_empty() {
            path
        } else if path.ends_with('/') {
            "/"
        } else {
            ""
        };
        Some(format!("{}{path}", self.base))
    }

    fn is_own(self, authority: &str) -> bool {
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let host = host.split(':').next().unwrap_or_default().to_ascii_lowercase();
        host.strip_prefix(self.name)
            .and_then(|rest| rest.strip_prefix('.'))
            .and_then(|rest| rest.strip_prefix(self.namespace))
            .is_some_and(|rest| rest.is_empty() || rest == ".svc" || rest.starts_with(".svc."))
    }
}

fn strip_scheme<'a>(url: &'a str, scheme: &str) -> Option<&'a str> {
    let (head, rest) = url.split_at_checked(scheme.len())?;
    head.eq_ignore_ascii_case(scheme).then_some(rest)
}

/// Rewrites a card of 1.0, of 0.3, or one that is both: `url`, `supportedInterfaces`, `additionalInterfaces`.
///
/// Interfaces that cannot be reached behind a path (gRPC, and bindings over something else than HTTP) are left out,
/// twins are listed once, and signatures go, as they would not verify any more.
pub fn card(text: &str, place: Place<'_>) -> Result<String, SplitError> {
    let members = Members::split(text)?;
    let additional = match members.set("additionalInterfaces") {
        Some(list) => Some(interfaces(list.get(), "transport", place)?),
        None => None,
    };
    // A 0.3 card whose first transport cannot be reached here leads with the first that can.
    let transport = members.set("preferredTransport").and_then(text_of);
    let main = members.set("url").and_then(text_of).map(|url| {
        let own = if transport.as_deref() == Some(GRPC) { None } else { place.instead(&url) };
        match own {
            Some(url) => Some((url, None)),
            None => additional.iter().flatten().next().map(|i| (i.url.clone(), Some(i.binding.clone()))),
        }
    });
    let mut out = String::with_capacity(text.len() + 256);
    out.push('{');
    for (key, value) in members.iter() {
        match key {
            "signatures" => {}
            "url" => {
                if let Some(Some((url, _))) = &main {
                    push_key(&mut out, key);
                    push_text(&mut out, url);
                }
            }
            "preferredTransport" => match &main {
                Some(None) => {}
                Some(Some((_, Some(other)))) => {
                    push_key(&mut out, key);
                    push_text(&mut out, other);
                }
                _ => {
                    push_key(&mut out, key);
                    out.push_str(value.get());
                }
            },
            "additionalInterfaces" if additional.is_some() => {
                push_key(&mut out, key);
                push_list(&mut out, additional.iter().flatten().map(|i| i.json.as_str()));
            }
            "supportedInterfaces" if raw::kind(value.get()) != raw::Kind::Null => {
                let list = interfaces(value.get(), "protocolBinding", place)?;
                push_key(&mut out, key);
                push_list(&mut out, list.iter().map(|i| i.json.as_str()));
            }
            _ => {
                push_key(&mut out, key);
                out.push_str(value.get());
            }
        }
    }
    out.push('}');
    Ok(out)
}

/// Rewrites the card that is the result of a JSON-RPC answer; `None` when there is none, as in an error.
pub fn envelope(text: &str, place: Place<'_>) -> Result<Option<String>, SplitError> {
    let members = Members::split(text)?;
    let Some(result) = members.set("result") else { return Ok(None) };
    let new = card(result.get(), place)?;
    let mut out = String::with_capacity(text.len() + 256);
    out.push('{');
    for (key, value) in members.iter() {
        push_key(&mut out, key);
        out.push_str(if key == "result" { &new } else { value.get() });
    }
    out.push('}');
    Ok(Some(out))
}

struct Interface {
    url: String,
    binding: String,
    json: String,
}

fn interfaces(list: &str, binding_key: &str, place: Place<'_>) -> Result<Vec<Interface>, SplitError> {
    let mut found: Vec<Interface> = Vec::new();
    for element in elements(list)? {
        let members = Members::split(element.get())?;
        let binding = members.set(binding_key).and_then(text_of).unwrap_or_default().into_owned();
        let Some(url) = members.set("url").and_then(text_of).and_then(|url| place.instead(&url)) else { continue };
        if binding == GRPC {
            continue;
        }
        let mut json = String::with_capacity(element.get().len() + 64);
        json.push('{');
        for (key, value) in members.iter() {
            push_key(&mut json, key);
            if key == "url" { push_text(&mut json, &url) } else { json.push_str(value.get()) }
        }
        json.push('}');
        // The same interface inside and outside of the cluster is one interface here.
        if !found.iter().any(|other| other.json == json) {
            found.push(Interface { url, binding, json });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLACE: Place<'_> =
        Place { base: "http://127.0.0.1:19900/t/x/agents/seller", name: "seller", namespace: "shop" };

    #[test]
    fn urls() {
        let table = [
            "http://seller.shop:8080",
            "http://seller.shop:8080/",
            "HTTP://Seller.shop.svc:8080/v1?x=1",
            "http://seller.shop.svc.cluster.local:8080/a/b/",
            "https://agents.example.com/burger",
            "https://agents.example.com/burger/",
            "https://seller.shopping/x",
            "https://user@seller.shop/x",
            "seller.shop:8081",
            "grpc://seller.shop:8081",
            "http://",
            "",
        ]
        .map(|url| format!("{url} -> {}", PLACE.instead(url).as_deref().unwrap_or("nothing")))
        .join("\n");
        insta::assert_snapshot!(table);
    }

    #[test]
    fn a_hybrid_card() {
        let text = r#"{"name":"Seller","x-big":12345678901234567890,"protocolVersion":"0.3.0",
            "url":"https://agents.example.com/burger/","preferredTransport":"JSONRPC",
            "additionalInterfaces":[{"url":"https://agents.example.com/burger","transport":"HTTP+JSON"},
              {"url":"agents.example.com:443","transport":"GRPC"}],
            "supportedInterfaces":[
              {"url":"https://agents.example.com/burger/","protocolBinding":"JSONRPC","protocolVersion":"1.0"},
              {"url":"http://seller.shop.svc.cluster.local:8080/","protocolBinding":"JSONRPC","protocolVersion":"1.0"},
              {"url":"http://seller.shop.svc.cluster.local:8080/","protocolBinding":"JSONRPC","protocolVersion":"0.3"},
              {"url":"seller.shop.svc.cluster.local:8081","protocolBinding":"GRPC","protocolVersion":"1.0"},
              {"url":"http://seller.shop:8080","protocolBinding":"HTTP+JSON","protocolVersion":"1.0","tenant":"t","n":1.0}],
            "provider":{"url":"https://example.com","organization":"E"},"documentationUrl":"https://example.com/d",
            "signatures":[{"protected":"a","signature":"b"}]}"#;
        insta::assert_snapshot!(card(text, PLACE).unwrap().replace("\"supported", "\n\"supported"));
        let answer = format!("{{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{text}}}");
        let answer = envelope(&answer, PLACE).unwrap().unwrap();
        assert_eq!(answer, format!("{{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}}", card(text, PLACE).unwrap()));
        assert_eq!(envelope(r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32007}}"#, PLACE).unwrap(), None);
    }

    #[test]
    fn a_0_3_card_that_prefers_grpc_leads_with_what_can_be_reached() {
        let text = r#"{"url":"h:1","preferredTransport":"GRPC","additionalInterfaces":[{"url":"h:1","transport":"GRPC"},
            {"url":"http://h/v1","transport":"HTTP+JSON"}]}"#;
        let base = PLACE.base;
        assert_eq!(
            card(text, PLACE).unwrap(),
            format!(
                r#"{{"url":"{base}","preferredTransport":"HTTP+JSON","additionalInterfaces":[{{"url":"{base}","transport":"HTTP+JSON"}}]}}"#
            )
        );
        assert_eq!(card(r#"{"url":"h:1","preferredTransport":"GRPC","name":"a"}"#, PLACE).unwrap(), r#"{"name":"a"}"#);
    }

    #[test]
    fn what_is_no_card_is_said() {
        assert_eq!(card("[]", PLACE).unwrap_err(), SplitError::Kind("an object"));
        assert!(card(r#"{"supportedInterfaces":{}}"#, PLACE).is_err());
        assert!(card(r#"{"supportedInterfaces":[1]}"#, PLACE).is_err());
    }

    proptest! {
        #[test]
        fn no_foreign_host_survives_in_an_interface(host in "[a-z]{1,12}", path in "[a-z/?#@:]{0,20}", scheme in "https?") {
            let url = format!("{scheme}://{host}.example/{path}");
            let text = format!(r#"{{"url":"{url}","supportedInterfaces":[{{"url":"{url}","protocolBinding":"JSONRPC"}}]}}"#);
            let new = card(&text, PLACE).unwrap();
            let value: serde_json::Value = serde_json::from_str(&new).unwrap();
            for url in [&value["url"], &value["supportedInterfaces"][0]["url"]] {
                prop_assert!(url.as_str().unwrap().starts_with(PLACE.base), "{}", new);
            }
        }

        #[test]
        fn any_text_is_survived(text in "\\PC{0,200}") {
            if let Ok(new) = card(&text, PLACE) {
                prop_assert!(serde_json::from_str::<serde_json::Value>(&new).is_ok());
            }
        }
    }
}
