//! Writes the CRD manifests into a folder: `crdgen FOLDER`.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(folder) = std::env::args().nth(1) else {
        eprintln!("usage: crdgen FOLDER");
        return ExitCode::from(64);
    };
    for (name, definition) in outrigger_crds::definitions() {
        let path = Path::new(&folder).join(name);
        let written = outrigger_crds::manifest(&definition)
            .and_then(|text| std::fs::write(&path, text).map_err(|e| e.to_string()));
        if let Err(e) = written {
            eprintln!("{}: {e}", path.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
