//! Wire bindings of A2A.

pub mod jsonrpc;
