//! The shim: entrypoint of a tool container. It starts and stops the children of a stdio MCP server and hands their
//! pipes to the sidecar; no byte of the protocol passes through it.
//!
//! ```text
//! OUTRIGGER_SOCKET=/run/outrigger/shim.sock OUTRIGGER_MAX_PROCESSES=16 outrigger-shim -- COMMAND ARGS...
//! outrigger-shim version
//! ```
//!
//! One thread polls the socket, the connections, the children's stderr and the signals, and starts every child, as
//! `PR_SET_PDEATHSIG` follows the thread that forks. A second thread copies stderr to the container's log, so that a
//! slow log never holds up a child. Exit codes: 0 after SIGTERM, 64 for bad use, 71 when the system refuses.

mod args;
mod child;
mod conn;
mod listen;
mod log;
mod procfs;
mod stage;
mod supervisor;

use std::io::Write as _;
use std::process::ExitCode;

use args::Mode;

/// Bad use of the command line or environment (`EX_USAGE`).
const EXIT_USAGE: u8 = 64;
/// The system refused something that the shim can't do without (`EX_OSERR`).
const EXIT_OS: u8 = 71;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    match args::parse(&args, |name| std::env::var_os(name)) {
        Ok(Mode::Version) => {
            let line = concat!("outrigger-shim ", env!("CARGO_PKG_VERSION"), "\n");
            let _ = std::io::stdout().write_all(line.as_bytes());
            ExitCode::SUCCESS
        }
        Ok(Mode::Stage { parent, command }) => stage::run(parent, &command),
        Ok(Mode::Serve(config)) => match supervisor::Supervisor::new(config).and_then(supervisor::Supervisor::run) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("outrigger-shim: {error}");
                ExitCode::from(EXIT_OS)
            }
        },
        Err(message) => {
            eprintln!("outrigger-shim: {message}");
            ExitCode::from(EXIT_USAGE)
        }
    }
}
