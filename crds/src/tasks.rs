//! How tasks are kept, how turns are treated, and the bounds of both.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{ConfigMapSource, carried, duration};

/// How tasks are kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TasksSpec {
    /// Where. Default `sqlite: {}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<TaskStore>,
    /// Tasks kept in one store; the oldest ended one goes first. Default 10000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max: Option<i32>,
    /// How long an ended task is kept. Default 24h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration::schema")]
    pub retention: Option<String>,
}

/// Where tasks are kept: exactly one member.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(has(self.memory) ? 1 : 0) + (has(self.sqlite) ? 1 : 0) + (has(self.postgres) ? 1 : 0) == 1").message("set exactly one of tasks.store.memory, tasks.store.sqlite and tasks.store.postgres"))]
pub struct TaskStore {
    /// Memory of the sidecar: gone when its container restarts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStore>,
    /// A file of each pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sqlite: Option<SqliteStore>,
    /// A database (Postgres) that all pods share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub postgres: Option<PostgresStore>,
}

/// Memory; nothing to set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryStore {}

/// A file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SqliteStore {
    /// The volume that holds it, one source of `core/v1`: `persistentVolumeClaim`, `hostPath`, `ephemeral`, `emptyDir`.
    /// Default `emptyDir: {}`, which lives as long as the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "carried::store_volume")]
    pub volume: Option<Value>,
}

impl SqliteStore {
    /// Whether the file outlives the pod: then there is one pod at most, and it is gone before the next one starts.
    pub fn is_durable(&self) -> bool {
        self.volume.as_ref().is_some_and(|v| {
            let set = |source: &str| v.get(source).is_some_and(|s| !s.is_null());
            set("persistentVolumeClaim") || set("hostPath")
        })
    }
}

/// A database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PostgresStore {
    /// Where its URL is: `postgres://user:password@host:port/database`.
    pub url_from: SecretSource,
    /// PEM file of the authorities to trust, in place of the public ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_from: Option<ConfigMapSource>,
}

/// A value in a Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretSource {
    /// Which one.
    pub secret_key_ref: KeyRef,
}

/// A key of a Secret or ConfigMap in the Agent's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeyRef {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The key.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

/// How turns are treated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnsSpec {
    /// What becomes of a turn after a crash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
    /// What comes one at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serialize: Option<TurnOrder>,
    /// Which streams end when a task waits for its caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub close_on_interrupted: Option<CloseOnInterrupted>,
    /// What becomes of a turn whose caller is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_disconnect: Option<OnDisconnect>,
    /// Whether the same message again (same caller, task, messageId and parameters) within a minute is the same turn.
    #[serde(default)]
    pub dedupe_messages: bool,
}

// A schema has one description for the whole of such a word: it tells what each means.

/// What becomes of a turn that was handed over when agent or sidecar crashed. Fail (default): its task fails. Redeliver:
/// the same turn comes again, for a handler that is idempotent by turn id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Recovery {
    /// Its task fails.
    Fail,
    /// The same turn comes again.
    Redeliver,
}

/// What comes one at a time: the turns of one task (Task, default), or those of a whole context (Context).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TurnOrder {
    /// The turns of one task.
    Task,
    /// The turns of one context.
    Context,
}

/// Which streams end when the task waits for its caller's input: those of a message (Send, default), of a subscription
/// (Subscribe), all (Both, which ends them at AUTH_REQUIRED too), or none (None).
#[allow(clippy::doc_markdown)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CloseOnInterrupted {
    /// Those of a message.
    Send,
    /// Those of a subscription.
    Subscribe,
    /// All, at `AUTH_REQUIRED` too.
    Both,
    /// None.
    None,
}

/// What becomes of a turn when the last stream or waiting request of its caller is gone. Continue (default): it goes on.
/// Cancel: its task is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnDisconnect {
    /// It goes on.
    Continue,
    /// Its task is cancelled.
    Cancel,
}

/// Bounds of requests, turns and streams. All are per pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LimitsSpec {
    /// From the start of a turn to its whole answer, if that is no stream. Default 120s. The pods' grace period is 30 s
    /// longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration::schema")]
    pub turn_timeout: Option<String>,
    /// Between two events of a turn that answers by a stream. Default 60s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration::schema")]
    pub stream_idle_timeout: Option<String>,
    /// Between two events of a turn that was answered with 202. Default 5m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration::schema")]
    pub async_idle_timeout: Option<String>,
    /// Of a turn that was answered with 202, in all. Default 24h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration::schema")]
    pub async_timeout: Option<String>,
    /// How long a caller that asked for no stream waits for the end; then it gets the task as it is. Default 55s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration::schema")]
    pub wait_timeout: Option<String>,
    /// Between two signs of life on a quiet stream. Default 15s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration::schema")]
    pub heartbeat: Option<String>,
    /// Turns at work at once. Default 16; use 1 for a handler with a single thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub max_concurrent_turns: Option<i32>,
    /// Turns that may wait; more are refused with 429. Default 256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub max_queued_turns: Option<i32>,
    /// How long a turn may wait for its place, or for a handler that answers 429 or 503. Default 60s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration::schema")]
    pub queue_timeout: Option<String>,
    /// Largest request body in bytes. Default 8 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1024, max = 268_435_456))]
    pub max_request_bytes: Option<i64>,
    /// Largest answer of the handler, and largest event, in bytes. Default 16 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1024, max = 268_435_456))]
    pub max_answer_bytes: Option<i64>,
    /// Largest sum of a task's artifacts and history in bytes. Default 64 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1024, max = 1_073_741_824))]
    pub max_task_bytes: Option<i64>,
    /// Tasks of one caller that have not ended; 0 is no bound. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_open_tasks_per_caller: Option<i32>,
    /// Tasks of one caller that are kept, ended ones among them; a new one beyond them is refused. 0 is no bound. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_tasks_per_caller: Option<i32>,
    /// Streams of one caller; 0 is no bound. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_streams_per_caller: Option<i32>,
    /// Streams of one task. Default 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_streams_per_task: Option<i32>,
    /// Requests of one caller in a second, in the long run; 0 is no bound. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_requests_per_second: Option<i32>,
    /// Requests of one caller at once after a quiet time. Default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub request_burst: Option<i32>,
    /// Push notification configurations of one task. Default 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_push_configs: Option<i32>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_some_volumes_outlive_a_pod() {
        for (volume, durable) in [
            (json!(null), false),
            (json!({"emptyDir": {}}), false),
            (json!({"ephemeral": {"volumeClaimTemplate": {}}}), false),
            (json!({"persistentVolumeClaim": {"claimName": "c"}}), true),
            (json!({"persistentVolumeClaim": null, "emptyDir": {}}), false),
            (json!({"hostPath": {"path": "/x"}}), true),
        ] {
            let store: SqliteStore = serde_json::from_value(json!({"volume": volume})).unwrap();
            assert_eq!(store.is_durable(), durable, "{volume}");
        }
    }
}
