//! Writes the CRD manifests.
fn main() {}
