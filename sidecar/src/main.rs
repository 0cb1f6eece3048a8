//! The sidecar's program: wiring only.
fn main() {}
