//! The live document: what may change under running pods.

use outrigger_crds::{self as crds, AccessSpec, AgentSpec, CardSpec, PushSpec, TurnsSpec};
use outrigger_protocol::config::{
    A2A_PORT, Access, ApiKeys, CloseOn, JwtIssuer, Limits, Live, Mcp, Offer, OnDisconnect, Order, Peer, Push, Recovery,
    Turns,
};
use serde_json::json;

use super::identity::Identity;
use super::{AgentInput, PlanError, card, check, files};
use crate::hash;
use crate::names::{self, GRPC_PORT, SERVICE_PORT};

/// The document.
pub(super) struct Document {
    /// As text.
    pub text: String,
    /// SHA-256 of what it says of the card, hex.
    pub card_digest: String,
}

/// The live document of an Agent.
pub(super) fn live(
    identity: &Identity,
    input: &AgentInput<'_>,
    limits: Limits,
    mcp: Mcp,
) -> Result<Document, PlanError> {
    let (spec, domain) = (&input.agent.spec, input.settings.cluster_domain.as_str());
    let given = spec.card.clone().unwrap_or_default();
    let public_card = card::card(identity, spec, &given);
    let document = Live {
        extended_card: given.extended.as_ref().map(|extended| card::extended(&public_card, extended)),
        offer: offer(identity, &given, domain)?,
        limits,
        turns: spec.turns.as_ref().map(turns).unwrap_or_default(),
        access: spec.access.as_ref().map(access).unwrap_or_default(),
        push: spec.push.as_ref().map(push).transpose()?.unwrap_or_default(),
        peers: peers(identity, spec, domain),
        mcp,
        control: input.control.cloned(),
        ..Live::new(public_card)
    };
    let of_card = json!([document.card, document.extended_card, document.offer]);
    Ok(Document { card_digest: hash::hex(of_card.to_string().as_bytes()), text: json!(document).to_string() })
}

pub(super) fn host(name: &str, namespace: &str, domain: &str) -> String {
    format!("{name}.{namespace}.svc.{domain}")
}

/// A2A endpoint inside the cluster, without a slash at its end.
pub(super) fn url(identity: &Identity, domain: &str) -> String {
    format!("http://{}:{SERVICE_PORT}", host(&identity.name, &identity.namespace, domain))
}

fn offer(identity: &Identity, given: &CardSpec, domain: &str) -> Result<Offer, PlanError> {
    for (i, network) in given.trusted_proxies.iter().enumerate() {
        check::network(network)
            .map_err(|message| PlanError::InvalidSpec { path: format!("spec.card.trustedProxies[{i}]"), message })?;
    }
    let public = given.public.clone().unwrap_or_default();
    Ok(Offer {
        url: url(identity, domain),
        grpc: format!("{}:{GRPC_PORT}", host(&identity.name, &identity.namespace, domain)),
        public_url: public.url.map(|url| url.trim_end_matches('/').to_owned()),
        public_grpc: public.grpc,
        trusted_proxies: given.trusted_proxies.clone(),
        bindings: given.bindings.clone(),
        versions: given.versions.clone(),
        streaming: given.streaming,
        check_input_modes: given.check_input_modes,
        signing_keys: given.signing_keys.as_ref().map(|_| files::CARD_KEYS.folder()),
        legacy_python_file_bytes: given.legacy_python_file_bytes,
    })
}

fn turns(given: &TurnsSpec) -> Turns {
    let usual = Turns::default();
    Turns {
        recovery: given.recovery.map_or(usual.recovery, |r| match r {
            crds::Recovery::Fail => Recovery::Fail,
            crds::Recovery::Redeliver => Recovery::Redeliver,
        }),
        serialize: given.serialize.map_or(usual.serialize, |s| match s {
            crds::TurnOrder::Task => Order::Task,
            crds::TurnOrder::Context => Order::Context,
        }),
        close_on_interrupted: given.close_on_interrupted.map_or(usual.close_on_interrupted, |c| match c {
            crds::CloseOnInterrupted::Send => CloseOn::Send,
            crds::CloseOnInterrupted::Subscribe => CloseOn::Subscribe,
            crds::CloseOnInterrupted::Both => CloseOn::Both,
            crds::CloseOnInterrupted::None => CloseOn::None,
        }),
        on_disconnect: given.on_disconnect.map_or(usual.on_disconnect, |d| match d {
            crds::OnDisconnect::Continue => OnDisconnect::Continue,
            crds::OnDisconnect::Cancel => OnDisconnect::Cancel,
        }),
        dedupe_messages: given.dedupe_messages,
    }
}

fn access(given: &AccessSpec) -> Access {
    let issuer = |(i, jwt): (usize, &crds::JwtSpec)| JwtIssuer {
        issuer: jwt.issuer.clone(),
        audiences: jwt.audiences.clone(),
        jwks_url: jwt.jwks_url.clone(),
        jwks_file: jwt.jwks_from.as_ref().map(|_| files::jwks(i).file()),
        ca_file: jwt.ca_from.as_ref().map(|_| files::jwt_ca(i).file()),
        scopes: jwt.scopes.clone(),
    };
    Access {
        anonymous: given.anonymous,
        api_key: given
            .api_keys
            .as_ref()
            .map(|keys| ApiKeys { header: keys.header.clone(), folder: files::API_KEYS.folder() }),
        jwt: given.jwt.iter().enumerate().map(issuer).collect(),
    }
}

fn push(given: &PushSpec) -> Result<Push, PlanError> {
    for (i, receiver) in given.allow.iter().enumerate() {
        check::receiver(receiver)
            .map_err(|message| PlanError::InvalidSpec { path: format!("spec.push.allow[{i}]"), message })?;
    }
    Ok(Push {
        enabled: given.enabled,
        allow: given.allow.clone(),
        signing_keys: given.signing_keys.as_ref().map(|_| files::PUSH_KEYS.folder()),
        ca_file: given.ca_from.as_ref().map(|_| files::PUSH_CA.file()),
    })
}

/// Each peer once, in the order of the specification. One that does not exist is there too: its name is found as soon
/// as it does.
fn peers(identity: &Identity, spec: &AgentSpec, domain: &str) -> Vec<Peer> {
    let mut peers: Vec<Peer> = Vec::with_capacity(spec.peers.len());
    for peer in &spec.peers {
        let namespace = peer.namespace.as_deref().unwrap_or(&identity.namespace);
        if peers.iter().any(|p| p.name == peer.name && p.namespace == namespace) {
            continue;
        }
        // A headless Service forwards nothing: its addresses are the pods', and so is the port.
        let host = host(&names::peers_service(&peer.name), namespace, domain);
        peers.push(Peer {
            name: peer.name.clone(),
            namespace: namespace.into(),
            authority: format!("{host}:{A2A_PORT}"),
        });
    }
    peers
}
