//! The Deployment around the pod template.

use outrigger_crds::AgentSpec;
use serde_json::{Value, json};

use super::identity::Identity;
use super::store::{Lifetime, lifetime};
use super::{ChildKind, Planned};

/// Old `ReplicaSet`s kept; their boot `ConfigMap`s are not, as a rollback is a change of the Agent.
const REVISION_HISTORY: i32 = 3;
/// After this long without progress a rollout counts as stuck. Longer than the default start limit of a tool.
const PROGRESS_DEADLINE_SECONDS: i32 = 600;

/// With a file on a volume that outlives pods the old one is gone before the next one opens it.
///
/// `spec.replicas` is always written: an Agent without a value has the schema's default, and the scale subresource of
/// the Agent is the one place where autoscalers write.
pub(super) fn deployment(identity: &Identity, spec: &AgentSpec, template: &Value) -> Planned {
    if lifetime(spec) == Lifetime::Volume {
        return with(identity, spec.replicas, template, &json!({"type": "Recreate"}));
    }
    rolling(identity, spec.replicas, template)
}

/// A Deployment that never has fewer pods than it should.
pub(super) fn rolling(identity: &Identity, replicas: i32, template: &Value) -> Planned {
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": "25%"}});
    with(identity, replicas, template, &strategy)
}

fn with(identity: &Identity, replicas: i32, template: &Value, strategy: &Value) -> Planned {
    let body = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": identity.metadata(&identity.name),
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": REVISION_HISTORY,
            "progressDeadlineSeconds": PROGRESS_DEADLINE_SECONDS,
            "selector": {"matchLabels": identity.selector()},
            "strategy": strategy,
            "template": template,
        },
    });
    Planned::new(ChildKind::Deployment, &identity.name, body)
}
