//! What the schema cannot check of an `MCPServer`.

use outrigger_crds::MCPServerSpec;
use outrigger_protocol::config::Process;

use super::PlanError;
use super::config::millis;
use super::merge::{named, text};

/// Why a server cannot be used. The variant is the reason of the condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerError {
    /// No command, so there is nothing the shim could start.
    #[error(
        "add spec.command: the entrypoint of the image cannot be read, so say what to run, such as command: [\"python\", \"-m\", \"my_server\"]"
    )]
    CommandRequired,
    /// A value that the schema let through.
    #[error("{path}: {message}")]
    InvalidSpec {
        /// Path of the value.
        path: String,
        /// What to do.
        message: String,
    },
}

impl ServerError {
    /// Reason of the condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::CommandRequired => "CommandRequired",
            Self::InvalidSpec { .. } => "InvalidSpec",
        }
    }
}

fn invalid(path: impl Into<String>, message: impl Into<String>) -> ServerError {
    ServerError::InvalidSpec { path: path.into(), message: message.into() }
}

/// Checks a server and reads its bounds.
pub fn check_server(spec: &MCPServerSpec) -> Result<Process, ServerError> {
    if spec.transport.stdio.is_none() {
        return Err(invalid("spec.transport", "set transport.stdio: {}"));
    }
    if spec.command.first().is_none_or(|c| c.trim().is_empty()) {
        return Err(ServerError::CommandRequired);
    }
    for (i, mount) in spec.volume_mounts.iter().enumerate() {
        let name = text(mount, "name");
        if named(&spec.volumes, name).is_none() {
            return Err(invalid(
                format!("spec.volumeMounts[{i}].name"),
                format!("\"{name}\" is not among spec.volumes: add the volume there"),
            ));
        }
    }
    process(spec)
}

fn process(spec: &MCPServerSpec) -> Result<Process, ServerError> {
    let mut process = Process::default();
    let Some(given) = &spec.process else { return Ok(process) };
    let read = |name: &str, text: &Option<String>, slot: &mut u64| -> Result<(), ServerError> {
        if let Some(text) = text {
            *slot = millis(&format!("spec.process.{name}"), text).map_err(|e| match e {
                PlanError::InvalidSpec { path, message } => invalid(path, message),
                other => invalid(format!("spec.process.{name}"), other.to_string()),
            })?;
        }
        Ok(())
    };
    read("startTimeout", &given.start_timeout, &mut process.start_timeout_ms)?;
    read("requestTimeout", &given.request_timeout, &mut process.request_timeout_ms)?;
    read("idleTimeout", &given.idle_timeout, &mut process.idle_timeout_ms)?;
    if let Some(value) = given.max_processes.and_then(|v| u32::try_from(v).ok()) {
        process.max_processes = value.max(1);
    }
    if let Some(value) = given.max_line_bytes.and_then(|v| u64::try_from(v).ok()) {
        process.max_line_bytes = value;
    }
    Ok(process)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn spec(value: Value) -> MCPServerSpec {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn says_what_is_missing() {
        let no_command = spec(json!({"transport": {"stdio": {}}, "image": "x"}));
        let error = check_server(&no_command).unwrap_err();
        assert_eq!(error.reason(), "CommandRequired");
        assert!(error.to_string().contains("spec.command"));
        let no_volume = spec(
            json!({"transport": {"stdio": {}}, "image": "x", "command": ["x"], "volumeMounts": [{"name": "data", "mountPath": "/d"}]}),
        );
        assert!(check_server(&no_volume).unwrap_err().to_string().contains("\"data\" is not among spec.volumes"));
        let zero = spec(
            json!({"transport": {"stdio": {}}, "image": "x", "command": ["x"], "process": {"startTimeout": "0s"}}),
        );
        assert!(check_server(&zero).unwrap_err().to_string().starts_with("spec.process.startTimeout: \"0s\""));
    }

    #[test]
    fn reads_bounds() {
        let given = spec(
            json!({"transport": {"stdio": {}}, "image": "x", "command": ["x"], "process": {"maxProcesses": 2, "startTimeout": "5s", "maxLineBytes": 2048}}),
        );
        let process = check_server(&given).unwrap();
        assert_eq!((process.max_processes, process.start_timeout_ms, process.max_line_bytes), (2, 5000, 2048));
        assert_eq!(process.request_timeout_ms, Process::default().request_timeout_ms);
    }
}
