//! Command line and environment.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// Environment variable with the path of the socket.
const SOCKET: &str = "OUTRIGGER_SOCKET";
/// Environment variable with the number of children that may live at once.
const MAX_PROCESSES: &str = "OUTRIGGER_MAX_PROCESSES";
/// Prefix of the variables that a child does not see.
pub const PRIVATE: &[u8] = b"OUTRIGGER_";
/// First argument of the second stage, which becomes the child.
pub const STAGE: &str = "stage";
/// Children at once when the environment does not say.
const DEFAULT_MAX_PROCESSES: usize = 16;
/// Most children at once that can be asked for.
const MOST_PROCESSES: usize = 1024;

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Mode {
    /// Serve the socket.
    Serve(Config),
    /// Become the child of the shim with this process id.
    Stage {
        /// Process id of the shim.
        parent: i32,
        /// Command and arguments.
        command: Vec<OsString>,
    },
    /// Print the version.
    Version,
}

/// How to serve.
#[derive(Debug, PartialEq, Eq)]
pub struct Config {
    /// Path of the socket.
    pub socket: PathBuf,
    /// Children alive at once.
    pub max_processes: usize,
    /// Command and arguments of each child.
    pub command: Vec<OsString>,
}

/// Reads the command line; the error is for the author of the pod.
pub fn parse(args: &[OsString], env: impl Fn(&str) -> Option<OsString>) -> Result<Mode, String> {
    const USAGE: &str = "usage: outrigger-shim -- COMMAND [ARGS...]";
    let rest = args.get(1..).unwrap_or_default();
    match rest.first().map(OsString::as_os_str) {
        Some(a) if a == "version" || a == "--version" => Ok(Mode::Version),
        Some(a) if a == OsStr::new(STAGE) => {
            let parent = rest.get(1).and_then(|p| p.to_str()).and_then(|p| p.parse().ok());
            match (parent, rest.get(2..)) {
                (Some(parent), Some(command)) if !command.is_empty() => {
                    Ok(Mode::Stage { parent, command: command.to_vec() })
                }
                _ => Err("the second stage is not for people".into()),
            }
        }
        Some(a) if a == "--" => {
            let command = rest.get(1..).unwrap_or_default().to_vec();
            if command.first().is_none_or(|c| c.is_empty()) {
                return Err(format!("no command to start: set `command` in the MCPServer; {USAGE}"));
            }
            let socket =
                env(SOCKET).filter(|s| !s.is_empty()).ok_or_else(|| format!("{SOCKET} is not set; {USAGE}"))?;
            Ok(Mode::Serve(Config {
                socket: socket.into(),
                max_processes: max_processes(env(MAX_PROCESSES))?,
                command,
            }))
        }
        Some(a) => Err(format!("unknown argument {}; {USAGE}", a.display())),
        None => Err(format!("no command to start: set `command` in the MCPServer; {USAGE}")),
    }
}

fn max_processes(value: Option<OsString>) -> Result<usize, String> {
    let Some(value) = value else { return Ok(DEFAULT_MAX_PROCESSES) };
    match value.to_str().and_then(|v| v.parse().ok()) {
        Some(n) if (1..=MOST_PROCESSES).contains(&n) => Ok(n),
        _ => Err(format!("{MAX_PROCESSES} must be a number from 1 to {MOST_PROCESSES}, not {}", value.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(args: &[&str], env: &[(&str, &str)]) -> Result<Mode, String> {
        let args: Vec<OsString> = std::iter::once("shim").chain(args.iter().copied()).map(Into::into).collect();
        parse(&args, |name| env.iter().find(|(k, _)| *k == name).map(|(_, v)| v.into()))
    }

    #[test]
    fn serves_what_follows_the_dashes() {
        assert_eq!(
            run(&["--", "python", "--", "x"], &[(SOCKET, "/s"), (MAX_PROCESSES, "3")]),
            Ok(Mode::Serve(Config {
                socket: "/s".into(),
                max_processes: 3,
                command: vec!["python".into(), "--".into(), "x".into()]
            }))
        );
        assert_eq!(run(&["version"], &[]), Ok(Mode::Version));
    }

    #[test]
    fn bad_use_says_what_to_do() {
        let socket = (SOCKET, "/s");
        for (args, env, want) in [
            (&[][..], vec![socket], "no command"),
            (&["--"], vec![socket], "no command"),
            (&["--", ""], vec![socket], "no command"),
            (&["python"], vec![socket], "unknown argument python"),
            (&["--", "x"], vec![], "OUTRIGGER_SOCKET is not set"),
            (&["--", "x"], vec![socket, (MAX_PROCESSES, "0")], "from 1 to 1024"),
            (&["--", "x"], vec![socket, (MAX_PROCESSES, "many")], "not many"),
            (&["stage", "x"], vec![], "second stage"),
        ] {
            let error = run(args, &env).unwrap_err();
            assert!(error.contains(want), "{args:?}: {error}");
        }
    }
}
