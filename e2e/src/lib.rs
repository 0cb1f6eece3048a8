//! Helpers of the end-to-end tests: `kubectl` and `helm` as a user types them, and waiting with a deadline.
//!
//! The tests use the programs on PATH and the cluster of KUBECONFIG, which `make e2e` sets.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// Runs a program with an input; its standard output, or an error with what it said.
pub fn run_with(program: &str, args: &[&str], input: &str) -> Result<String> {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {program}"))?;
    let mut stdin = child.stdin.take().context("no stdin")?;
    let bytes = input.as_bytes().to_vec();
    let feeder = std::thread::spawn(move || {
        let _ = stdin.write_all(&bytes);
    });
    let output = child.wait_with_output()?;
    let _ = feeder.join();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{program} {}: {}\n{stdout}{}", args.join(" "), output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(stdout)
}

/// Runs a program without input.
pub fn run(program: &str, args: &[&str]) -> Result<String> {
    run_with(program, args, "")
}

/// `kubectl ARGS`.
pub fn kubectl(args: &[&str]) -> Result<String> {
    run("kubectl", args)
}

/// `kubectl ARGS -o json`.
pub fn get(args: &[&str]) -> Result<Value> {
    let mut all = args.to_vec();
    all.extend(["-o", "json"]);
    Ok(serde_json::from_str(&kubectl(&all)?)?)
}

/// `kubectl apply` of a text with `---` between its documents, into a namespace.
pub fn apply(namespace: &str, manifests: &str) -> Result<String> {
    run_with("kubectl", &["-n", namespace, "apply", "-f", "-"], manifests)
}

/// Milliseconds since some fixed moment, for deadlines and for measuring outages.
pub fn now() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// Time since a moment of [`now`].
pub fn elapsed(since: Duration) -> Duration {
    now().saturating_sub(since)
}

/// Asks again until there is an answer, or says after the deadline what was asked for and what the last answer was.
pub fn eventually<T>(what: &str, within: Duration, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    let end = now() + within;
    loop {
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(e) if now() > end => return Err(e.context(format!("not within {within:?}: {what}"))),
            // The one place where a test sleeps: between two questions with a deadline.
            #[allow(clippy::disallowed_methods)]
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Fails with the message unless the condition holds; for use in [`eventually`].
pub fn ensure(condition: bool, message: impl FnOnce() -> String) -> Result<()> {
    if condition { Ok(()) } else { bail!(message()) }
}

/// The condition of a type in a resource's status; null where there is none.
pub fn condition<'a>(resource: &'a Value, kind: &str) -> &'a Value {
    resource["status"]["conditions"]
        .as_array()
        .and_then(|all| all.iter().find(|c| c["type"] == kind))
        .unwrap_or(&Value::Null)
}

/// Waits until a resource's condition has a status and, unless empty, a reason; the resource.
pub fn wait_condition(
    namespace: &str,
    resource: &str,
    kind: &str,
    status: &str,
    reason: &str,
    within: Duration,
) -> Result<Value> {
    eventually(&format!("{resource} {kind}={status} {reason}"), within, || {
        let value = get(&["-n", namespace, "get", resource])?;
        let c = condition(&value, kind);
        let current = c["observedGeneration"] == value["metadata"]["generation"];
        ensure(c["status"] == status && current && (reason.is_empty() || c["reason"] == reason), || {
            format!("{kind} is {c}")
        })?;
        Ok(value)
    })
}

/// A namespace of one test, deleted with it.
#[derive(Debug)]
pub struct Namespace {
    /// Its name.
    pub name: String,
}

impl Namespace {
    /// Makes the namespace; one left by a run before is replaced.
    pub fn new(name: &str) -> Result<Self> {
        let name = format!("t-{name}");
        kubectl(&["delete", "namespace", &name, "--ignore-not-found", "--wait=true", "--timeout=120s"])?;
        kubectl(&["create", "namespace", &name])?;
        // Before it exists, pods are refused.
        eventually("default ServiceAccount", Duration::from_secs(30), || {
            kubectl(&["-n", &name, "get", "serviceaccount", "default"])
        })?;
        Ok(Self { name })
    }

    /// `kubectl -n NAMESPACE ARGS`.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        let mut all = vec!["-n", self.name.as_str()];
        all.extend(args);
        kubectl(&all)
    }

    /// `kubectl -n NAMESPACE ARGS -o json`.
    pub fn get(&self, args: &[&str]) -> Result<Value> {
        let mut all = vec!["-n", self.name.as_str(), "get"];
        all.extend(args);
        get(&all)
    }

    /// Applies manifests into it.
    pub fn apply(&self, manifests: &str) -> Result<String> {
        apply(&self.name, manifests)
    }

    /// Waits for a condition; see [`wait_condition`].
    pub fn wait(&self, resource: &str, kind: &str, status: &str, reason: &str, within: Duration) -> Result<Value> {
        wait_condition(&self.name, resource, kind, status, reason, within)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = kubectl(&["delete", "namespace", &self.name, "--ignore-not-found", "--wait=false"]);
    }
}
