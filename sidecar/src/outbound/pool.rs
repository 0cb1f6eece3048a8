//! Connections that are kept for the next request to the same server.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::connect::Connection;

/// Most connections that are kept.
const MAX_IDLE: usize = 64;
/// For so long.
const IDLE_FOR: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Pool {
    /// Oldest first.
    idle: Mutex<VecDeque<(String, Connection, Instant)>>,
}

impl Pool {
    /// The newest connection to a server.
    pub(super) fn take(&self, origin: &str) -> Option<Connection> {
        let mut idle = self.idle.lock();
        while idle.front().is_some_and(|(_, connection, since)| since.elapsed() > IDLE_FOR || connection.closed()) {
            idle.pop_front();
        }
        let at = idle.iter().rposition(|(name, _, since)| name == origin && since.elapsed() <= IDLE_FOR)?;
        idle.remove(at).map(|(_, connection, _)| connection)
    }

    pub(super) fn keep(&self, origin: String, connection: Connection) {
        if connection.closed() {
            return;
        }
        let mut idle = self.idle.lock();
        if idle.len() == MAX_IDLE {
            idle.pop_front();
        }
        idle.push_back((origin, connection, Instant::now()));
    }
}
