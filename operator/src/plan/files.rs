//! Secrets and `ConfigMap`s of the user's that are files of the sidecar, and of it alone: each in a folder of its own. They
//! are mounted by name; nobody but the kubelet reads them.

use outrigger_crds::{AgentSpec, ConfigMapSource, SecretFolder};
use serde_json::{Value, json};

use super::AgentInput;
use super::merge::mount;
use crate::names;

/// Permissions of the files of a Secret: owner and group, which is the pod's.
const SECRET_MODE: i32 = 0o440;

/// A place for files in the sidecar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Name of the volume, without `outrigger-`, and of the folder.
    name: &'static str,
    /// Number in a list, or name of a server.
    of: Option<String>,
    /// Name of the file, for those that have one.
    file: &'static str,
}

impl Place {
    const fn new(name: &'static str, file: &'static str) -> Self {
        Self { name, of: None, file }
    }

    fn full_name(&self) -> String {
        match &self.of {
            Some(of) => format!("{}-{of}", self.name),
            None => self.name.into(),
        }
    }

    /// Path of the folder.
    pub(super) fn folder(&self) -> String {
        format!("/etc/outrigger/{}", self.full_name())
    }

    /// Path of the file.
    pub(super) fn file(&self) -> String {
        format!("{}/{}", self.folder(), self.file)
    }

    fn volume(&self) -> String {
        names::bounded(&format!("outrigger-{}", self.full_name()))
    }
}

/// API keys of callers.
pub(super) const API_KEYS: Place = Place::new("api-keys", "");
/// Keys that sign the card.
pub(super) const CARD_KEYS: Place = Place::new("card-keys", "");
/// Keys that sign push notifications.
pub(super) const PUSH_KEYS: Place = Place::new("push-keys", "");
/// Authorities of receivers of push notifications.
pub(super) const PUSH_CA: Place = Place::new("push-ca", "ca.pem");
/// Authorities of the task store.
pub(super) const STORE_CA: Place = Place::new("store-ca", "ca.pem");

/// Keys of an issuer.
pub(super) fn jwks(index: usize) -> Place {
    Place { of: Some(index.to_string()), ..Place::new("jwks", "jwks.json") }
}

/// Authorities of an issuer.
pub(super) fn jwt_ca(index: usize) -> Place {
    Place { of: Some(index.to_string()), ..Place::new("jwt-ca", "ca.pem") }
}

/// Headers for a remote server, a file each.
pub(super) fn server_headers(server: &str) -> Place {
    Place { of: Some(server.into()), ..Place::new("mcp-headers", "") }
}

/// Authorities of a remote server.
pub(super) fn server_ca(server: &str) -> Place {
    Place { of: Some(server.into()), ..Place::new("mcp-ca", "ca.pem") }
}

/// What is mounted, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// `Secret` or `ConfigMap`.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// The one key that is mounted; without it all are.
    key: Option<String>,
    place: Place,
}

/// All files that the specification names, in its order.
pub fn sources(spec: &AgentSpec) -> Vec<Source> {
    let secret = |folder: Option<&SecretFolder>, place| {
        folder.map(|f| Source { kind: "Secret", name: f.secret_name.clone(), key: None, place })
    };
    let config_map = |source: Option<&ConfigMapSource>, place| {
        source.map(|s| {
            let from = &s.config_map_key_ref;
            Source { kind: "ConfigMap", name: from.name.clone(), key: Some(from.key.clone()), place }
        })
    };
    let mut found = Vec::new();
    let postgres = spec.tasks.as_ref().and_then(|t| t.store.as_ref()?.postgres.as_ref());
    found.extend(config_map(postgres.and_then(|p| p.ca_from.as_ref()), STORE_CA));
    found.extend(secret(spec.card.as_ref().and_then(|c| c.signing_keys.as_ref()), CARD_KEYS));
    if let Some(access) = &spec.access {
        found.extend(access.api_keys.as_ref().map(|keys| Source {
            kind: "Secret",
            name: keys.secret_name.clone(),
            key: None,
            place: API_KEYS,
        }));
        for (i, issuer) in access.jwt.iter().enumerate() {
            found.extend(config_map(issuer.jwks_from.as_ref(), jwks(i)));
            found.extend(config_map(issuer.ca_from.as_ref(), jwt_ca(i)));
        }
    }
    if let Some(push) = &spec.push {
        found.extend(secret(push.signing_keys.as_ref(), PUSH_KEYS));
        found.extend(config_map(push.ca_from.as_ref(), PUSH_CA));
    }
    found
}

/// Those of the specification and of its remote servers.
pub(super) fn all_sources(input: &AgentInput<'_>) -> Vec<Source> {
    let mut found = sources(&input.agent.spec);
    for server in &input.servers {
        let Some(remote) = &server.spec.transport.remote else { continue };
        found.extend(remote.headers_from.as_ref().map(|f| Source {
            kind: "Secret",
            name: f.secret_name.clone(),
            key: None,
            place: server_headers(server.name),
        }));
        found.extend(remote.ca_from.as_ref().map(|s| Source {
            kind: "ConfigMap",
            name: s.config_map_key_ref.name.clone(),
            key: Some(s.config_map_key_ref.key.clone()),
            place: server_ca(server.name),
        }));
    }
    found
}

/// Adds the volumes.
pub(super) fn volumes(sources: &[Source], volumes: &mut Vec<Value>) {
    for source in sources {
        let name = source.place.volume();
        volumes.push(match &source.key {
            None => json!({"name": name, "secret": {"secretName": source.name, "defaultMode": SECRET_MODE}}),
            Some(key) => {
                let items = json!([{"key": key, "path": source.place.file}]);
                json!({"name": name, "configMap": {"name": source.name, "items": items}})
            }
        });
    }
}

/// Adds the mounts of the sidecar.
pub(super) fn mounts(sources: &[Source], mounts: &mut Vec<Value>) {
    mounts.extend(sources.iter().map(|s| mount(&s.place.volume(), &s.place.folder(), true)));
}
