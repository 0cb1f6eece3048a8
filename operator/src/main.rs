//! The operator's program: wiring only.
fn main() {}
