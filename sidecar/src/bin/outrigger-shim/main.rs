//! The shim: entrypoint of a tool container.
fn main() {}
