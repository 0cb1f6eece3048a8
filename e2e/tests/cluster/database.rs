//! One database server (Postgres) for all tests, as a pod; each Agent has a schema of its own in its database.

use std::sync::OnceLock;

use anyhow::Result;
use outrigger_e2e::{Namespace, apply, eventually, kubectl};

use crate::bed::s;

const NAMESPACE: &str = "e2e-postgres";
/// Secret that [`secret`] makes, and its key.
pub const SECRET: &str = "tasks";
/// Key of the URL in it.
pub const KEY: &str = "url";

const SERVER: &str = "
apiVersion: v1
kind: Service
metadata: {name: postgres}
spec: {selector: {app: postgres}, ports: [{port: 5432}]}
---
apiVersion: v1
kind: Pod
metadata: {name: postgres, labels: {app: postgres}}
spec:
  terminationGracePeriodSeconds: 5
  nodeSelector: {kubernetes.io/hostname: n1}   # faults go to n2
  securityContext: {fsGroup: 65532}
  volumes: [{name: data, emptyDir: {}}]
  containers:
  - name: postgres
    image: localhost/e2e-postgres:e2e
    env: [{name: POSTGRES_USER, value: tasks}, {name: POSTGRES_PASSWORD, value: not-a-secret}]
    volumeMounts: [{name: data, mountPath: /data}]
    readinessProbe: {tcpSocket: {port: 5432}, periodSeconds: 1}
";

/// Brings the server up, once.
pub fn started() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        if kubectl(&["get", "namespace", NAMESPACE]).is_err() {
            kubectl(&["create", "namespace", NAMESPACE]).expect("namespace of the database");
        }
        eventually("ServiceAccount", s(30), || kubectl(&["-n", NAMESPACE, "get", "serviceaccount", "default"]))
            .unwrap();
        apply(NAMESPACE, SERVER).expect("database");
        kubectl(&["-n", NAMESPACE, "wait", "--for=condition=Ready", "pod/postgres", "--timeout=90s"])
            .expect("the database is ready");
    });
}

/// The Secret with the database's URL in a test's namespace.
pub fn secret(namespace: &Namespace) -> Result<String> {
    let url = format!("{KEY}=postgres://tasks:not-a-secret@postgres.{NAMESPACE}.svc.cluster.local:5432/tasks");
    namespace.kubectl(&["create", "secret", "generic", SECRET, &format!("--from-literal={url}")])
}
