//! Where a reader of the card reaches the agent, when a proxy in front tells (RFC 7239 and its predecessors).
//!
//! Only proxies that the configuration names are believed: anybody can send such headers, and a card that leads
//! elsewhere hands the callers over. Of several values the last one counts: it is the one that the proxy we know added.

use std::net::IpAddr;

use http::HeaderMap;
use outrigger_protocol::address::{Network, Target};

/// Longest path in front of the agent's own.
const MAX_PREFIX: usize = 256;

/// Headers that change the card, for `Vary`.
pub(super) const VARY: &str = "Forwarded, X-Forwarded-Proto, X-Forwarded-Host, X-Forwarded-Prefix";

/// The base URL that a trusted proxy tells, without a slash at its end.
pub(super) fn forwarded(trusted: &[String], peer: Option<IpAddr>, headers: &HeaderMap) -> Option<String> {
    let peer = peer?;
    let known = |network: &String| Network::parse(network).is_ok_and(|n| n.contains(peer));
    if !trusted.iter().any(known) {
        return None;
    }
    let last = |name: &str| {
        let value = headers.get_all(name).iter().next_back()?.to_str().ok()?;
        let value = value.rsplit(',').next().unwrap_or_default().trim();
        (!value.is_empty()).then(|| value.to_owned())
    };
    let element = last("forwarded");
    let field = |name: &str| {
        let pairs = element.as_deref()?.split(';').filter_map(|p| p.split_once('='));
        let (_, value) = pairs.into_iter().find(|(key, _)| key.trim().eq_ignore_ascii_case(name))?;
        Some(value.trim().trim_matches('"').to_owned())
    };
    let host = field("host").or_else(|| last("x-forwarded-host"))?;
    let proto = field("proto").or_else(|| last("x-forwarded-proto"))?;
    let prefix = last("x-forwarded-prefix").unwrap_or_default();
    let prefix = prefix.trim_end_matches('/');
    if prefix.len() > MAX_PREFIX
        || !(prefix.is_empty() || prefix.starts_with('/'))
        || prefix.contains(['?', '#', '%'])
        || prefix.split('/').skip(1).any(|segment| ["", ".", ".."].contains(&segment))
        || host.contains(['/', '?', '#'])
    {
        return None;
    }
    let target = Target::parse(&format!("{proto}://{host}{prefix}")).ok()?;
    Some(format!("{}{}", target.origin(), target.path().trim_end_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(peer: &str, headers: &[(&'static str, &str)]) -> Option<String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        forwarded(&["10.0.0.0/8".into(), "fd00::1".into()], peer.parse().ok(), &map)
    }

    #[test]
    fn only_known_proxies_are_believed() {
        let headers = [("x-forwarded-host", "agents.example"), ("x-forwarded-proto", "https")];
        assert_eq!(of("10.1.2.3", &headers).as_deref(), Some("https://agents.example"));
        assert_eq!(of("::ffff:10.1.2.3", &headers).as_deref(), Some("https://agents.example"));
        assert_eq!(of("fd00::1", &headers).as_deref(), Some("https://agents.example"));
        for other in ["11.1.2.3", "fd00::2", "127.0.0.1", "nobody"] {
            assert_eq!(of(other, &headers), None, "{other}");
        }
    }

    #[test]
    fn what_they_say() {
        let https = ("x-forwarded-proto", "https");
        for (headers, want) in [
            (vec![("forwarded", "for=1.2.3.4;host=a.example;proto=https")], Some("https://a.example")),
            (
                vec![("forwarded", "for=\"[::1]\"; Proto=https; Host=\"a.example:8443\"")],
                Some("https://a.example:8443"),
            ),
            (
                vec![("forwarded", "host=evil.example;proto=http, host=a.example;proto=https")],
                Some("https://a.example"),
            ),
            (vec![("x-forwarded-host", "evil.example, a.example"), https], Some("https://a.example")),
            (
                vec![("x-forwarded-host", "evil.example"), ("x-forwarded-host", "a.example"), https],
                Some("https://a.example"),
            ),
            (vec![("x-forwarded-host", "A.Example:443"), https], Some("https://a.example")),
            (
                vec![("x-forwarded-host", "a.example"), https, ("x-forwarded-prefix", "/burger/")],
                Some("https://a.example/burger"),
            ),
            (vec![("x-forwarded-host", "a.example"), https, ("x-forwarded-prefix", "/")], Some("https://a.example")),
            // Half an answer is none.
            (vec![("x-forwarded-host", "a.example")], None),
            (vec![https], None),
            (vec![("forwarded", "for=1.2.3.4")], None),
            (vec![("x-forwarded-host", "a.example"), ("x-forwarded-proto", "gopher")], None),
            (vec![("x-forwarded-host", "u@a.example"), https], None),
            (vec![("x-forwarded-host", "a.example/x"), https], None),
            (vec![("x-forwarded-host", "a b"), https], None),
            (vec![("x-forwarded-host", "a.example"), https, ("x-forwarded-prefix", "burger")], None),
            (vec![("x-forwarded-host", "a.example"), https, ("x-forwarded-prefix", "//evil.example")], None),
            (vec![("x-forwarded-host", "a.example"), https, ("x-forwarded-prefix", "/a/../b")], None),
            (vec![("x-forwarded-host", "a.example"), https, ("x-forwarded-prefix", "/a?b")], None),
        ] {
            assert_eq!(of("10.0.0.1", &headers).as_deref(), want, "{headers:?}");
        }
    }
}
