//! Compiles the protos of A2A to descriptors: the gRPC binding reads and writes messages by them.
// Cargo reads what a build script prints.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::path::PathBuf;

const PROTOS: [&str; 2] = ["a2a_v1.proto", "a2a_v03.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    for proto in PROTOS {
        println!("cargo::rerun-if-changed=proto/{proto}");
    }
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(false).open_files(PROTOS)?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?).join("a2a.descriptors");
    std::fs::write(out, compiler.encode_file_descriptor_set())?;
    Ok(())
}
