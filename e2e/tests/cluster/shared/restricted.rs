//! A namespace that enforces the restricted Pod Security Standard and has a quota.

use outrigger_e2e::{Namespace, condition, ensure, eventually};

use crate::bed::{agent, installed, root, s, tool};

#[test]
fn restricted_with_a_quota_is_ready_and_a_full_quota_is_a_condition() {
    installed();
    let ns = Namespace::new("restricted").unwrap();
    outrigger_e2e::kubectl(&["label", "namespace", &ns.name, "pod-security.kubernetes.io/enforce=restricted"]).unwrap();
    let quota = |pods: u32| {
        format!(
            "apiVersion: v1\nkind: ResourceQuota\nmetadata: {{name: q}}\nspec: {{hard: {{pods: \"{pods}\", requests.cpu: \"2\", \
             limits.cpu: \"8\", requests.memory: 2Gi, limits.memory: 4Gi}}}}\n"
        )
    };
    ns.apply(&quota(2)).unwrap();
    ns.kubectl(&["apply", "-f", &format!("{}/examples/burger-seller/", root())]).unwrap();
    ns.wait("oagent/burger-seller", "Ready", "True", "", s(90)).unwrap();
    ns.apply(&tool("t", "", "")).unwrap();
    ns.apply(&agent("second", "  mcpServers: [{name: t}]")).unwrap();
    ns.wait("oagent/second", "Ready", "True", "", s(90)).unwrap();
    ns.apply(&agent("third", "")).unwrap();
    eventually("the quota's own words", s(60), || {
        let third = ns.get(&["oagent/third"])?;
        let ready = condition(&third, "Ready");
        ensure(
            ready["status"] == "False" && ready["message"].as_str().unwrap_or_default().contains("exceeded quota"),
            || ready.to_string(),
        )
    })
    .unwrap();
    ns.apply(&quota(5)).unwrap();
    ns.wait("oagent/third", "Ready", "True", "", s(90)).unwrap();
}
