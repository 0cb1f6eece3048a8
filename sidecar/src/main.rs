//! The sidecar's program: wiring only.
//!
//! `outrigger run [--root FOLDER]`, `outrigger install-shim FOLDER`, `outrigger version`.

use std::path::Path;
use std::process::ExitCode;

use outrigger_sidecar::run::{Paths, RunError};

/// The command line or the configuration is wrong (`EX_USAGE`).
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["run"] => run(&Paths::default()),
        ["run", "--root", folder] => run(&Paths::under(Path::new(folder))),
        ["install-shim", folder] => install(Path::new(folder)),
        ["version"] => {
            eprintln!("outrigger {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("usage: outrigger run [--root FOLDER] | install-shim FOLDER | version");
            ExitCode::from(USAGE)
        }
    }
}

fn run(paths: &Paths) -> ExitCode {
    outrigger_sidecar::logging::init();
    outrigger_sidecar::serve::raise_file_limit();
    let runtime = match runtime().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("cannot start the runtime: {e}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(outrigger_sidecar::run::run(paths)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // The last line of the log becomes the container's termination message.
            tracing::error!(target: "business", error = %e, "the sidecar cannot go on");
            if matches!(e, RunError::Configuration(_)) { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
        }
    }
}

/// Up to this many processors one thread serves all: two would spend more on waking each other than they gain, about a
/// third of the time of an A2A request (`make bench`).
const ONE_THREAD_UP_TO: usize = 2;

/// The runtime for the processors that the container may use.
fn runtime() -> tokio::runtime::Builder {
    match std::thread::available_parallelism() {
        Ok(processors) if processors.get() > ONE_THREAD_UP_TO => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    }
}

/// Copies the shim, which lies beside this program, into a folder that tool containers mount.
fn install(folder: &Path) -> ExitCode {
    let copy = || -> std::io::Result<()> {
        let own = std::env::current_exe()?;
        let from = own.with_file_name("outrigger-shim");
        let new = folder.join(".outrigger-shim.new");
        let _ = std::fs::remove_file(&new);
        std::fs::copy(from, &new)?;
        std::fs::set_permissions(&new, std::os::unix::fs::PermissionsExt::from_mode(0o555))?;
        std::fs::rename(new, folder.join("outrigger-shim"))
    };
    match copy() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("cannot copy the shim into {}: {e}", folder.display());
            ExitCode::FAILURE
        }
    }
}
