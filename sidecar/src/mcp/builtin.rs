//! A server that is part of the sidecar: it is spoken to as any other is, so it has sessions, eras and streams as well.

use tokio::sync::watch;

/// See the module.
pub trait BuiltIn: Send + Sync {
    /// Whether there is anything to serve; without, the endpoint is not there.
    fn offered(&self) -> bool;

    /// Counts up when what is served is another.
    fn changes(&self) -> watch::Receiver<u64>;

    /// Begins a conversation with one client.
    fn open(&self) -> Box<dyn Conversation>;
}

/// What is said to one client.
pub trait Conversation: Send {
    /// Takes one message; what there is to say to it. May read files.
    fn hear(&mut self, line: &[u8]) -> Vec<String>;

    /// What there is to say after a change.
    fn news(&mut self) -> Vec<String>;
}
