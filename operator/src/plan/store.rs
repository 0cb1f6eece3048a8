//! Where an Agent's tasks are kept, and what that asks of its pods.

use outrigger_crds::{AgentSpec, PostgresStore, SqliteStore, TaskStore};
use outrigger_protocol::config::Store;
use serde_json::{Value, json};

use super::PlanError;
use super::files;
use super::identity::Identity;
use super::merge::{empty_dir, mount};
use crate::hash;

/// Volume of the database file.
const VOLUME: &str = "outrigger-store";
/// Its folder in the sidecar.
const DIR: &str = "/var/lib/outrigger";
/// Environment variable of the sidecar with the URL of the database.
const URL_ENV: &str = "OUTRIGGER_POSTGRES_URL";
/// Longest name of a schema.
const MAX_SCHEMA: usize = 63;

/// What tasks outlive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Nothing: they end with the sidecar's container.
    Container,
    /// The container; they end with the pod.
    Pod,
    /// The pod; they are on a volume that one pod has at a time.
    Volume,
    /// All pods, which share them.
    Database,
}

fn sqlite(spec: &AgentSpec) -> Option<SqliteStore> {
    match spec.tasks.as_ref().and_then(|t| t.store.as_ref()) {
        None => Some(SqliteStore::default()),
        Some(TaskStore { sqlite, .. }) => sqlite.clone(),
    }
}

fn postgres(spec: &AgentSpec) -> Option<&PostgresStore> {
    spec.tasks.as_ref()?.store.as_ref()?.postgres.as_ref()
}

/// What the tasks of an Agent outlive.
pub fn lifetime(spec: &AgentSpec) -> Lifetime {
    match (sqlite(spec), postgres(spec)) {
        (_, Some(_)) => Lifetime::Database,
        (Some(file), None) if file.is_durable() => Lifetime::Volume,
        (Some(_), None) => Lifetime::Pod,
        (None, None) => Lifetime::Container,
    }
}

/// Refuses more pods than the store can take.
pub(super) fn check(spec: &AgentSpec) -> Result<(), PlanError> {
    if lifetime(spec) == Lifetime::Volume && spec.replicas > 1 {
        return Err(PlanError::InvalidSpec {
            path: "spec.replicas".into(),
            message: "may be at most 1 with tasks.store.sqlite on a volume that outlives the pod: two pods may not write one file; use tasks.store.postgres for more".into(),
        });
    }
    Ok(())
}

/// The member of the boot document.
pub(super) fn boot(spec: &AgentSpec, identity: &Identity) -> Store {
    if let Some(postgres) = postgres(spec) {
        return Store::Postgres {
            url_env: URL_ENV.into(),
            schema: schema(identity),
            ca_file: postgres.ca_from.as_ref().map(|_| files::STORE_CA.file()),
        };
    }
    match sqlite(spec) {
        // Agents may share a volume, even those of several namespaces one folder of a node.
        Some(file) => Store::Sqlite {
            path: format!("{DIR}/{}.{}.db", identity.namespace, identity.name),
            durable: file.is_durable(),
        },
        None => Store::Memory,
    }
}

/// One schema per Agent: readable, and unique by its hash.
fn schema(identity: &Identity) -> String {
    let hash = hash::short(format!("{}/{}", identity.namespace, identity.name).as_bytes(), 8);
    let words: String = format!("{}_{}", identity.namespace, identity.name)
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' })
        .take(MAX_SCHEMA - "outrigger__".len() - hash.len())
        .collect();
    format!("outrigger_{words}_{hash}")
}

/// Adds the volume of the database file.
pub(super) fn volumes(spec: &AgentSpec, volumes: &mut Vec<Value>) {
    let Some(file) = sqlite(spec) else { return };
    let mut volume = file.volume.filter(Value::is_object).unwrap_or_else(|| empty_dir(VOLUME, &json!({})));
    volume["name"] = json!(VOLUME);
    volumes.push(volume);
}

/// Adds mount and environment of the sidecar.
pub(super) fn sidecar(spec: &AgentSpec, env: &mut Vec<Value>, mounts: &mut Vec<Value>) {
    if let Some(postgres) = postgres(spec) {
        let from = &postgres.url_from.secret_key_ref;
        env.push(json!({"name": URL_ENV, "valueFrom": {"secretKeyRef": {"name": from.name, "key": from.key}}}));
    }
    if sqlite(spec).is_some() {
        mounts.push(mount(VOLUME, DIR, false));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_are_names_that_differ() {
        let of = |namespace: &str, name: &str| schema(&Identity::for_tests(name, namespace));
        assert!(of("shop", "seller").starts_with("outrigger_shop_seller_"));
        let long = "x".repeat(60);
        for (a, b) in [(("a-b", "c"), ("a", "b-c")), ((long.as_str(), "one"), (long.as_str(), "two"))] {
            assert_ne!(of(a.0, a.1), of(b.0, b.1));
            for name in [of(a.0, a.1), of(b.0, b.1)] {
                assert!(name.len() <= MAX_SCHEMA, "{name}");
                assert!(name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_'), "{name}");
            }
        }
    }
}
