//! Where an agent is, by its card: the interfaces that can be called, and how their URLs are meant.

use outrigger_protocol::a2a::operation::{Binding, Dialect};
use serde_json::Value;

/// One way to reach an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The binding.
    pub binding: Binding,
    /// The version, as the binding writes it.
    pub dialect: Dialect,
    /// Its URL; `host:port` for gRPC.
    pub url: String,
    /// Its tenant.
    pub tenant: Option<String>,
}

impl Interface {
    /// The dialect of a version in a binding; `None` for a version that is not spoken here.
    pub fn dialect(binding: Binding, version: &str) -> Option<Dialect> {
        let mut numbers = version.trim().trim_start_matches('v').split('.');
        match (numbers.next()?.parse::<u32>().ok()?, numbers.next().and_then(|n| n.parse::<u32>().ok())) {
            (1, _) => Some(Dialect::V10),
            // 0.2.5 and later is 0.3 on the wire but for the card's path.
            (0, Some(2 | 3)) if binding == Binding::JsonRpc => Some(Dialect::V03),
            (0, Some(3)) => Some(Dialect::V03Proto),
            _ => None,
        }
    }

    /// The interfaces of a card of 1.0, in the order of the card; what cannot be called is left out.
    pub fn of_card(card: &Value) -> Vec<Self> {
        let list = card.get("supportedInterfaces").and_then(Value::as_array).into_iter().flatten();
        list.filter_map(|entry| {
            let text = |key: &str| entry.get(key).and_then(Value::as_str).filter(|t| !t.is_empty());
            let binding = match text("protocolBinding")?.to_ascii_uppercase().as_str() {
                "JSONRPC" => Binding::JsonRpc,
                "GRPC" => Binding::Grpc,
                // The second is no name of the specification, but cards have it.
                "HTTP+JSON" | "REST" => Binding::HttpJson,
                _ => return None,
            };
            let dialect = Self::dialect(binding, text("protocolVersion").unwrap_or("0.3"))?;
            let (url, tenant) = (text("url")?.to_owned(), text("tenant").map(str::to_owned));
            Some(Self { binding, dialect, url, tenant })
        })
        .collect()
    }

    /// The same interface in the other version: a card may say one and mean the other.
    #[must_use]
    pub fn in_other_version(&self) -> Self {
        let dialect = match (self.dialect, self.binding) {
            (Dialect::V10, Binding::JsonRpc) => Dialect::V03,
            (Dialect::V10, _) => Dialect::V03Proto,
            _ => Dialect::V10,
        };
        Self { dialect, ..self.clone() }
    }

    /// In words, for logs and conditions.
    pub fn describe(&self) -> String {
        format!("{} {}", self.binding.name(), self.dialect.version())
    }
}

/// Interfaces in the order in which they are tried: 1.0 before 0.3, which carries less, gRPC last, which loses large
/// integers; then as the card has them; then all of them in the other version.
pub fn candidates(card: &Value) -> Vec<Interface> {
    let mut all = Interface::of_card(card);
    all.sort_by_key(|i| (i.binding == Binding::Grpc, i.dialect != Dialect::V10));
    let others: Vec<_> = all.iter().map(Interface::in_other_version).collect();
    for other in others {
        if !all.contains(&other) {
            all.push(other);
        }
    }
    all
}

/// Host, port and path of an interface's URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Host, without brackets.
    pub host: String,
    /// Port; 80 without one, or 443.
    pub port: u16,
    /// Path without a query; may be empty.
    pub path: String,
    /// Whether it is to be called over TLS.
    pub tls: bool,
}

impl Target {
    /// Reads a URL of HTTP, or `host:port`.
    pub fn parse(url: &str) -> Option<Self> {
        let (tls, rest) = match url.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some(_) => return None,
            None => (false, url),
        };
        let (authority, path) = rest.find(['/', '?', '#']).map_or((rest, ""), |at| rest.split_at(at));
        let path = path.split(['?', '#']).next().unwrap_or_default().to_owned();
        let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let (host, port) = match authority.strip_prefix('[') {
            Some(v6) => {
                let (host, port) = v6.split_once(']')?;
                (host, port.strip_prefix(':'))
            }
            None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
        };
        let port = match port {
            None | Some("") => {
                if tls {
                    443
                } else {
                    80
                }
            }
            Some(port) => port.parse().ok()?,
        };
        (!host.is_empty()).then(|| Self { host: host.to_owned(), port, path, tls })
    }

    /// Whether the host means the machine itself, as agents write it that do not know their own address.
    pub fn is_local(&self) -> bool {
        let address = self.host.parse::<std::net::IpAddr>();
        self.host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|a| a.is_loopback() || a.is_unspecified())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn candidates_in_order() {
        let entry =
            |b: &str, v: &str| json!({"url": format!("http://h/{b}"), "protocolBinding": b, "protocolVersion": v});
        let card = json!({"supportedInterfaces": [entry("GRPC", "1.0"), entry("JSONRPC", "0.3.0"), entry("HTTP+JSON", "1.0.1"),
            entry("JSONRPC", "2.0"), entry("urn:mine", "1.0"), {"url": "", "protocolBinding": "JSONRPC"}, {"protocolBinding": "JSONRPC"}]});
        let got: Vec<_> = candidates(&card).iter().map(Interface::describe).collect();
        let want =
            ["HTTP+JSON 1.0", "JSONRPC 0.3", "GRPC 1.0", "HTTP+JSON 0.3", "JSONRPC 1.0", "GRPC 0.3"].map(str::to_owned);
        assert_eq!(got, want);
    }

    #[test]
    fn targets() {
        for (url, want) in [
            ("http://localhost:9999/a2a/", Some(("localhost", 9999, "/a2a/", true))),
            ("HTTP://0.0.0.0", Some(("0.0.0.0", 80, "", true))),
            ("http://[::1]:80?x", Some(("::1", 80, "", true))),
            ("http://agent.example:8000/x#y", Some(("agent.example", 8000, "/x", false))),
            ("127.0.0.1:50051", Some(("127.0.0.1", 50051, "", true))),
            ("https://agent.example/a", Some(("agent.example", 443, "/a", false))),
            ("grpc://agent.example", None),
            ("http://h:x/", None),
            ("http://", None),
            ("", None),
        ] {
            let got = Target::parse(url);
            let got = got.as_ref().map(|t| (t.host.as_str(), t.port, t.path.as_str(), t.is_local()));
            assert_eq!(got, want, "{url}");
        }
    }
}
