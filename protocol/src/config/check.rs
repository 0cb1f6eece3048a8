//! Values of a live document that its types cannot check.

use super::{ApiKeys, ConfigError, JwtIssuer, Live, Offer, Reach, invalid};
use crate::address::{Allow, Network, Scheme, Target};

/// Most issuers of tokens: each is asked for its keys.
const MAX_ISSUERS: usize = 16;

pub(super) fn live(live: &Live) -> Result<(), ConfigError> {
    offer(&live.offer)?;
    if let Some(keys) = &live.access.api_key {
        api_keys(keys)?;
    }
    if live.access.jwt.len() > MAX_ISSUERS {
        return Err(invalid("access.jwt", format!("has more than {MAX_ISSUERS} issuers")));
    }
    for (i, jwt) in live.access.jwt.iter().enumerate() {
        issuer(jwt, &format!("access.jwt[{i}]"))?;
    }
    for (i, rule) in live.push.allow.iter().enumerate() {
        Allow::parse(&[rule]).map_err(|e| invalid(&format!("push.allow[{i}]"), e.to_string()))?;
    }
    Ok(())
}

/// Where a tool server is.
pub(super) fn reach(reach: &Reach, path: &str) -> Result<(), ConfigError> {
    let target = |member: &str, url: &str| {
        Target::parse(url).map(drop).map_err(|e| invalid(&format!("{path}.{member}.url"), e.to_string()))
    };
    match reach {
        Reach::Http { port: 0, .. } => Err(invalid(&format!("{path}.http.port"), "must be at least 1")),
        Reach::Http { path: p, .. } if !p.starts_with('/') => {
            Err(invalid(&format!("{path}.http.path"), format!("{p:?} does not begin with /")))
        }
        Reach::Stdio { .. } | Reach::Http { .. } | Reach::BuiltIn => Ok(()),
        Reach::Service { url } => target("service", url),
        Reach::Remote { url, allow, .. } => {
            target("remote", url)?;
            for (i, rule) in allow.iter().enumerate() {
                Allow::parse(&[rule]).map_err(|e| invalid(&format!("{path}.remote.allow[{i}]"), e.to_string()))?;
            }
            Ok(())
        }
    }
}

fn offer(offer: &Offer) -> Result<(), ConfigError> {
    for (i, network) in offer.trusted_proxies.iter().enumerate() {
        let path = || format!("offer.trustedProxies[{i}]");
        Network::parse(network).map_err(|e| invalid(&path(), format!("{network:?} is {e}")))?;
    }
    let known = [
        ("offer.bindings", &offer.bindings, &["JSONRPC", "HTTP+JSON", "GRPC"][..]),
        ("offer.versions", &offer.versions, &["1.0", "0.3"][..]),
    ];
    for (path, given, known) in known {
        if let Some((i, odd)) = given.iter().enumerate().find(|(_, g)| !known.contains(&g.as_str())) {
            return Err(invalid(&format!("{path}[{i}]"), format!("{odd:?} is none of {}", known.join(", "))));
        }
    }
    Ok(())
}

/// A header that clients can send and that means nothing else on the way.
fn api_keys(keys: &ApiKeys) -> Result<(), ConfigError> {
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if keys.header.is_empty() || keys.header.len() > 64 || !keys.header.bytes().all(token) {
        return Err(invalid("access.apiKey.header", format!("{:?} is no name of a header", keys.header)));
    }
    Ok(())
}

fn issuer(jwt: &JwtIssuer, path: &str) -> Result<(), ConfigError> {
    if jwt.issuer.is_empty() {
        return Err(invalid(&format!("{path}.issuer"), "is empty"));
    }
    // A token for somebody else would open this agent too.
    if jwt.audiences.is_empty() || jwt.audiences.iter().any(String::is_empty) {
        return Err(invalid(&format!("{path}.audiences"), "needs at least one, and none that is empty"));
    }
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic() && b != b'"' && b != b'\\');
    if let Some(odd) = jwt.scopes.iter().find(|s| !plain(s)) {
        return Err(invalid(&format!("{path}.scopes"), format!("{odd:?} is no scope")));
    }
    let (member, url) = match (&jwt.jwks_file, &jwt.jwks_url) {
        (Some(_), Some(_)) => return Err(invalid(&format!("{path}.jwksFile"), "stands beside jwksUrl: one is enough")),
        (Some(_), None) => return Ok(()),
        (None, Some(url)) => ("jwksUrl", url),
        (None, None) => ("issuer", &jwt.issuer),
    };
    let target = Target::parse(url).map_err(|e| invalid(&format!("{path}.{member}"), format!("{url:?} {e}")))?;
    // A public issuer without TLS is whoever answers first.
    if target.scheme() == Scheme::Http && jwt.ca_file.is_some() {
        return Err(invalid(&format!("{path}.caFile"), format!("is of no use: {url} has no TLS")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn with(member: &str, value: Value) -> Result<Live, ConfigError> {
        let card = json!({"name": "a", "description": "d", "version": "1", "skills": []});
        let mut document = json!({"version": 1, "card": card});
        document[member] = value;
        Live::parse(document.to_string().as_bytes())
    }

    #[test]
    fn bad_values_are_named() {
        let jwt = |more: Value| {
            let mut jwt = json!({"issuer": "https://i.example", "audiences": ["a"]});
            jwt.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({"jwt": [jwt]})
        };
        for (member, value, at) in [
            ("offer", json!({"trustedProxies": ["10.0.0.0/8", "proxy"]}), "offer.trustedProxies[1]"),
            ("offer", json!({"bindings": ["JSONRPC", "SOAP"]}), "offer.bindings[1]"),
            ("offer", json!({"versions": ["1.1"]}), "offer.versions[0]"),
            ("push", json!({"allow": ["*.svc", "http://x"]}), "push.allow[1]"),
            ("access", json!({"apiKey": {"header": "x key", "folder": "/k"}}), "access.apiKey.header"),
            ("access", jwt(json!({"audiences": []})), "access.jwt[0].audiences"),
            ("access", jwt(json!({"audiences": [""]})), "access.jwt[0].audiences"),
            ("access", jwt(json!({"issuer": "i.example"})), "access.jwt[0].issuer"),
            ("access", jwt(json!({"jwksUrl": "ftp://x"})), "access.jwt[0].jwksUrl"),
            ("access", jwt(json!({"jwksUrl": "http://x", "caFile": "/ca"})), "access.jwt[0].caFile"),
            ("access", jwt(json!({"jwksUrl": "https://x", "jwksFile": "/f"})), "access.jwt[0].jwksFile"),
            ("access", jwt(json!({"scopes": ["a b"]})), "access.jwt[0].scopes"),
        ] {
            match with(member, value) {
                Err(ConfigError::Invalid { path, .. }) => assert_eq!(path, at),
                other => panic!("{at}: {other:?}"),
            }
        }
        with("access", jwt(json!({"issuer": "kubernetes/serviceaccount", "jwksFile": "/f"}))).unwrap();
        with("offer", json!({"trustedProxies": ["10.0.0.0/8", "fd00::/8", "10.1.2.3"], "versions": ["0.3"]})).unwrap();
    }
}
