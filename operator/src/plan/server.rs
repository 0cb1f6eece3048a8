//! What the schema cannot check of an `MCPServer`, and what its container runs.

use outrigger_crds::{self as crds, MCPServerSpec, PackageSpec, Placement};
use outrigger_protocol::address::Target;
use outrigger_protocol::config::{Era, Process, Sharing};

use super::PlanError;
use super::check;
use super::config::millis;
use super::merge::{named, text};
use crate::settings::Settings;

/// Why a server cannot be used. The variant is the reason of the condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerError {
    /// No command, so there is nothing the shim could start.
    #[error(
        "add spec.command: the entrypoint of the image cannot be read, so say what to run, such as command: [\"python\", \"-m\", \"my_server\"]"
    )]
    CommandRequired,
    /// The chart has no image for packages of this kind.
    #[error(
        "packages of this kind have no image to run in: set the chart's value mcpServers.runners.{0}, or spec.image in place of spec.package"
    )]
    RunnerMissing(&'static str),
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
            Self::RunnerMissing(_) => "RunnerMissing",
            Self::InvalidSpec { .. } => "InvalidSpec",
        }
    }
}

fn invalid(path: impl Into<String>, message: impl Into<String>) -> ServerError {
    ServerError::InvalidSpec { path: path.into(), message: message.into() }
}

/// Where a server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the pods of the Agents that use it.
    InPod,
    /// In pods of its own.
    Standalone,
    /// Somewhere else.
    Remote,
}

/// Where a server runs, by its specification.
pub fn place(spec: &MCPServerSpec) -> Place {
    match (&spec.transport.remote, spec.placement) {
        (Some(_), _) => Place::Remote,
        (None, Some(Placement::Standalone)) => Place::Standalone,
        (None, Some(Placement::InPod) | None) => Place::InPod,
    }
}

/// What a container of a server runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Its image.
    pub image: String,
    /// Program and arguments; empty for the image's own.
    pub command: Vec<String>,
    /// Arguments for the image's own entrypoint.
    pub args: Vec<String>,
    /// Environment that the specification may override.
    pub env: &'static [(&'static str, &'static str)],
    /// Whether it is a runner image, which says nothing of its user.
    pub is_runner: bool,
}

/// A server that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Where it runs.
    pub place: Place,
    /// Its bounds.
    pub process: Process,
    /// Which way of the protocol it speaks.
    pub era: Era,
    /// What its container runs, unless it is remote.
    pub launch: Option<Launch>,
}

/// Checks a server and reads its bounds.
pub fn check_server(spec: &MCPServerSpec, settings: &Settings) -> Result<Checked, ServerError> {
    let transport = &spec.transport;
    let kinds = [transport.stdio.is_some(), transport.http.is_some(), transport.remote.is_some()];
    if kinds.into_iter().filter(|set| *set).count() != 1 {
        return Err(invalid(
            "spec.transport",
            "set exactly one of transport.stdio, transport.http and transport.remote",
        ));
    }
    if let Some(remote) = &transport.remote {
        Target::parse(&remote.url)
            .map_err(|e| invalid("spec.transport.remote.url", format!("\"{}\" {e}", remote.url)))?;
        for (i, rule) in remote.allow.iter().enumerate() {
            check::receiver(rule).map_err(|message| invalid(format!("spec.transport.remote.allow[{i}]"), message))?;
        }
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
    let era = spec.protocol.as_ref().and_then(|p| p.era).map_or(Era::Auto, |era| match era {
        crds::Era::Auto => Era::Auto,
        crds::Era::Legacy => Era::Legacy,
        crds::Era::Modern => Era::Modern,
    });
    let launch = if transport.remote.is_some() { None } else { Some(launch(spec, settings)?) };
    Ok(Checked { place: place(spec), process: process(spec)?, era, launch })
}

/// Caches of a package runner are where it may write; nothing asks a person.
const NPM_ENV: &[(&str, &str)] = &[
    ("CI", "true"),
    ("NO_UPDATE_NOTIFIER", "1"),
    ("npm_config_audit", "false"),
    ("npm_config_cache", "/tmp/.npm"),
    ("npm_config_fund", "false"),
    ("npm_config_update_notifier", "false"),
];
const PYPI_ENV: &[(&str, &str)] = &[
    ("CI", "true"),
    ("PYTHONUNBUFFERED", "1"),
    ("UV_CACHE_DIR", "/tmp/.cache/uv"),
    ("UV_NO_PROGRESS", "1"),
    ("UV_PYTHON_DOWNLOADS", "never"),
];

fn launch(spec: &MCPServerSpec, settings: &Settings) -> Result<Launch, ServerError> {
    match (&spec.image, &spec.package) {
        (Some(image), None) => {
            let is_stdio = spec.transport.stdio.is_some();
            let has_command = spec.command.first().is_some_and(|c| !c.trim().is_empty());
            if !has_command && (is_stdio || !spec.command.is_empty()) {
                return Err(ServerError::CommandRequired);
            }
            let (command, args) = (spec.command.clone(), spec.args.clone());
            Ok(Launch { image: image.clone(), command, args, env: &[], is_runner: false })
        }
        (None, Some(package)) => {
            let (image, command, env) = package_command(package, &spec.command, settings)?;
            Ok(Launch { image, command, args: spec.args.clone(), env, is_runner: true })
        }
        _ => Err(invalid("spec", "set image or package, and not both: what runs the server")),
    }
}

type PackageCommand = (String, Vec<String>, &'static [(&'static str, &'static str)]);

/// Image, command and environment for a package. `program` is what to run of it, where it does not have its name.
fn package_command(
    package: &PackageSpec,
    program: &[String],
    settings: &Settings,
) -> Result<PackageCommand, ServerError> {
    let text = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
    let (image, kind, mut command, env) = match (&package.npm, &package.pypi) {
        (Some(npm), None) => {
            let exact = format!("{}@{}", npm.name, npm.version);
            let command = if program.is_empty() {
                text(&["npx", "--yes", "--", &exact])
            } else {
                text(&["npx", "--yes", &format!("--package={exact}"), "--"])
            };
            (&settings.npm_runner, "npm", command, NPM_ENV)
        }
        (None, Some(pypi)) => {
            let command = if program.is_empty() {
                text(&["uvx", &format!("{}@{}", pypi.name, pypi.version)])
            } else {
                text(&["uvx", "--from", &format!("{}=={}", pypi.name, pypi.version)])
            };
            (&settings.pypi_runner, "pypi", command, PYPI_ENV)
        }
        _ => return Err(invalid("spec.package", "set package.npm or package.pypi, and not both")),
    };
    if image.is_empty() {
        return Err(ServerError::RunnerMissing(kind));
    }
    command.extend(program.iter().cloned());
    Ok((image.clone(), command, env))
}

fn process(spec: &MCPServerSpec) -> Result<Process, ServerError> {
    let mut process = Process::default();
    let Some(given) = &spec.process else { return Ok(process) };
    if let Some(sharing) = given.sharing {
        process.sharing = match sharing {
            crds::Sharing::Auto => Sharing::Auto,
            crds::Sharing::Shared => Sharing::Shared,
            crds::Sharing::PerSession => Sharing::PerSession,
        };
    }
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
        let settings = Settings::new("x");
        let check_server = |spec: &MCPServerSpec| check_server(spec, &settings);
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
        let process = check_server(&given, &Settings::new("x")).unwrap().process;
        assert_eq!((process.max_processes, process.start_timeout_ms, process.max_line_bytes), (2, 5000, 2048));
        assert_eq!(process.request_timeout_ms, Process::default().request_timeout_ms);
    }

    #[test]
    fn packages_run_in_the_runner_image() {
        let of = |package: Value, command: Value| {
            spec(json!({"transport": {"stdio": {}}, "package": package, "command": command, "args": ["--fast"]}))
        };
        let npm = json!({"npm": {"name": "@scope/server", "version": "1.2.3"}});
        let error = check_server(&of(npm.clone(), json!([])), &Settings::new("x")).unwrap_err();
        assert_eq!((error.reason(), error.to_string().contains("mcpServers.runners.npm")), ("RunnerMissing", true));
        let settings = Settings { npm_runner: "n".into(), pypi_runner: "p".into(), ..Settings::new("x") };
        let launch = |package: Value, command: Value| {
            let launch = check_server(&of(package, command), &settings).unwrap().launch.unwrap();
            assert_eq!(launch.args, ["--fast"]);
            format!("{} {}", launch.image, launch.command.join(" "))
        };
        assert_eq!(launch(npm.clone(), json!([])), "n npx --yes -- @scope/server@1.2.3");
        assert_eq!(launch(npm, json!(["serve"])), "n npx --yes --package=@scope/server@1.2.3 -- serve");
        let pypi = json!({"pypi": {"name": "mcp-server-time", "version": "1.0"}});
        assert_eq!(launch(pypi.clone(), json!([])), "p uvx mcp-server-time@1.0");
        assert_eq!(launch(pypi, json!(["serve"])), "p uvx --from mcp-server-time==1.0 serve");
    }

    #[test]
    fn a_remote_server_has_no_container() {
        let settings = Settings::new("x");
        let remote = |remote: Value| spec(json!({"transport": {"remote": remote}}));
        let good = check_server(&remote(json!({"url": "https://mcp.example.com/mcp"})), &settings).unwrap();
        assert_eq!((good.place, good.launch), (Place::Remote, None));
        for (bad, path) in [
            (json!({"url": "https://mcp.example.com:0x/"}), "spec.transport.remote.url"),
            (json!({"url": "https://a/", "allow": ["a", "b c"]}), "spec.transport.remote.allow[1]"),
        ] {
            let error = check_server(&remote(bad), &settings).unwrap_err().to_string();
            assert!(error.starts_with(path), "{error}");
        }
    }

    #[test]
    fn http_needs_no_command() {
        let http = spec(json!({"transport": {"http": {"port": 8000}}, "image": "x", "placement": "Standalone"}));
        let checked = check_server(&http, &Settings::new("x")).unwrap();
        assert_eq!(checked.place, Place::Standalone);
        assert_eq!(checked.launch.unwrap().command, Vec::<String>::new());
    }
}
