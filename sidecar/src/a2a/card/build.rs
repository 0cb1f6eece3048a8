//! The card's parts that the configuration and the truth decide (A2A 1.0, sections 4.4.1 and 4.5).

use outrigger_protocol::a2a::card::{Capabilities, Interface, Security};
use outrigger_protocol::a2a::operation::Binding;
use outrigger_protocol::config::{Access, Live, Offer};
use serde_json::{Map, Value, json};

use super::truth::{Asked, Facts};

/// Bindings in the order in which the card lists them.
pub(super) const BINDINGS: [Binding; 3] = [Binding::JsonRpc, Binding::HttpJson, Binding::Grpc];
/// Versions, best first.
pub(super) const VERSIONS: [&str; 2] = ["1.0", "0.3"];

/// Every interface that the configuration asks for, wherever it is reached.
pub(super) fn asked(offer: &Offer) -> Vec<Asked> {
    let wanted = |list: &[String], name: &str| list.is_empty() || list.iter().any(|l| l == name);
    let grpc = !offer.grpc.is_empty() || offer.public_grpc.is_some();
    let mut all = Vec::with_capacity(BINDINGS.len() * VERSIONS.len());
    for version in VERSIONS.into_iter().filter(|v| wanted(&offer.versions, v)) {
        for binding in BINDINGS.into_iter().filter(|b| wanted(&offer.bindings, b.name())) {
            if binding != Binding::Grpc || grpc {
                all.push(Asked { binding, version });
            }
        }
    }
    all
}

/// The interfaces of the card: those that are asked for and passed, first where the reader is, then inside the cluster.
pub(super) fn interfaces(live: &Live, facts: &Facts, forwarded: Option<&str>) -> Vec<Interface> {
    let offer = &live.offer;
    let inside = if offer.url.is_empty() { first_url(&live.card) } else { Some(offer.url.as_str()) };
    let outside = offer.public_url.as_deref().or(forwarded);
    let trim = |url: &str| url.trim_end_matches('/').to_owned();
    let mut bases: Vec<(String, Option<&str>)> = Vec::new();
    if let Some(url) = outside {
        bases.push((trim(url), offer.public_grpc.as_deref()));
    }
    if let Some(url) = inside.filter(|i| outside.is_none_or(|o| trim(o) != trim(i))) {
        bases.push((trim(url), Some(offer.grpc.as_str()).filter(|g| !g.is_empty())));
    }
    let mut all = Vec::new();
    for one in asked(offer).into_iter().filter(|one| facts.passed(*one)) {
        for (base, grpc) in &bases {
            let url = if one.binding == Binding::Grpc { grpc.map(str::to_owned) } else { Some(base.clone()) };
            if let Some(url) = url {
                all.push(Interface { url, binding: one.binding, version: one.version, tenant: None });
            }
        }
    }
    all
}

/// The base URL of readers by default, without a slash at its end.
pub(super) fn base(live: &Live, forwarded: Option<&str>) -> String {
    let url = live.offer.public_url.as_deref().or(forwarded);
    let url = url.or(Some(live.offer.url.as_str()).filter(|u| !u.is_empty())).or_else(|| first_url(&live.card));
    url.unwrap_or_default().trim_end_matches('/').to_owned()
}

/// A card that already says where it is reached, where nothing else does.
fn first_url(card: &Value) -> Option<&str> {
    card.pointer("/supportedInterfaces/0/url").and_then(Value::as_str)
}

/// What the agent can do.
pub(super) fn capabilities(live: &Live, facts: &Facts) -> Capabilities {
    Capabilities {
        streaming: live.offer.streaming && facts.streams(),
        push: live.push.enabled,
        // Nobody gets it who cannot prove to be somebody.
        extended_card: live.extended_card.is_some() && proves(&live.access),
    }
}

/// Whether callers can prove who they are.
pub(super) fn proves(access: &Access) -> bool {
    access.api_key.is_some() || !access.jwt.is_empty()
}

/// How callers prove who they are: any one scheme is enough, and none where callers without any are let in.
pub(super) fn security(access: &Access) -> Security {
    let mut schemes = Map::new();
    let mut requirements = Vec::new();
    for (i, issuer) in access.jwt.iter().enumerate() {
        let name = if i == 0 { "token".to_owned() } else { format!("token{}", i + 1) };
        let found = issuer.jwks_url.is_none() && issuer.jwks_file.is_none();
        let scheme = if found {
            let url = format!("{}/.well-known/openid-configuration", issuer.issuer.trim_end_matches('/'));
            json!({"openIdConnectSecurityScheme": {"openIdConnectUrl": url}})
        } else {
            json!({"httpAuthSecurityScheme": {"scheme": "Bearer", "bearerFormat": "JWT"}})
        };
        requirements.push(json!({"schemes": {&name: {"list": issuer.scopes}}}));
        schemes.insert(name, scheme);
    }
    if let Some(keys) = &access.api_key {
        schemes.insert("apiKey".into(), json!({"apiKeySecurityScheme": {"location": "header", "name": keys.header}}));
        requirements.push(json!({"schemes": {"apiKey": {"list": []}}}));
    }
    if access.anonymous {
        requirements.clear();
    }
    Security { schemes, requirements }
}
