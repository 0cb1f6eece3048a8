//! Calls that wait for their client to come back with answers.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::mcp::outlet::Outlet;
use crate::mcp::seal::{Key, Seal};

/// Calls of one server that may wait.
pub const MAX_PARKED: usize = 64;

/// A client that has come back.
#[derive(Debug)]
pub struct Resume {
    /// Where the response goes now.
    pub outlet: Outlet,
    /// The raw id of the retry.
    pub id: Box<str>,
    /// Its raw progress token.
    pub token: Option<Box<str>>,
    /// Answers by key, as raw results.
    pub answers: Vec<(String, Box<str>)>,
    /// Fires when the client has left.
    pub left: tokio_util::sync::CancellationToken,
}

struct Waiting {
    /// What makes a retry the same call.
    fingerprint: [u8; 32],
    resume: oneshot::Sender<Resume>,
}

/// All that wait in front of one server.
#[derive(Default)]
pub struct Parked {
    waiting: Mutex<HashMap<Key, Waiting>>,
}

/// Why a retry does not lead to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotParked {
    /// Not a state of ours, of another caller, or one that was used or has expired.
    #[error("requestState is not known here, was used already or has expired: send the call again without it")]
    Unknown,
    /// A state of ours for another call.
    #[error("requestState belongs to a call with other params")]
    OtherCall,
}

impl Parked {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.lock().len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Parks a call: its state for the client, its key here, and where the client comes back. `None` when too many wait.
    pub fn park(
        &self,
        seal: &Seal,
        owner: &[&str],
        fingerprint: [u8; 32],
    ) -> Option<(String, Key, oneshot::Receiver<Resume>)> {
        let (tx, rx) = oneshot::channel();
        let mut waiting = self.waiting.lock();
        if waiting.len() >= MAX_PARKED {
            return None;
        }
        let (key, state) = seal.mint(owner);
        waiting.insert(key, Waiting { fingerprint, resume: tx });
        Some((state, key, rx))
    }

    /// Nobody came in time.
    pub fn forget(&self, key: &Key) {
        self.waiting.lock().remove(key);
    }

    /// Finds the call that a client comes back to; it waits no more.
    pub fn take(
        &self,
        seal: &Seal,
        owner: &[&str],
        state: &str,
        fingerprint: [u8; 32],
    ) -> Result<oneshot::Sender<Resume>, NotParked> {
        let key = seal.open(state, owner).ok_or(NotParked::Unknown)?;
        let mut waiting = self.waiting.lock();
        if waiting.get(&key).ok_or(NotParked::Unknown)?.fingerprint != fingerprint {
            return Err(NotParked::OtherCall);
        }
        waiting.remove(&key).map(|w| w.resume).ok_or(NotParked::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_leads_to_its_call_once() {
        let (seal, parked) = (Seal::default(), Parked::default());
        let owner = ["call", "me", "server"];
        let (state, key, _rx) = parked.park(&seal, &owner, [1; 32]).unwrap();
        assert_eq!(parked.take(&seal, &["call", "you", "server"], &state, [1; 32]).unwrap_err(), NotParked::Unknown);
        assert_eq!(parked.take(&seal, &owner, "x", [1; 32]).unwrap_err(), NotParked::Unknown);
        assert_eq!(parked.take(&seal, &owner, &state, [2; 32]).unwrap_err(), NotParked::OtherCall);
        assert!(parked.take(&seal, &owner, &state, [1; 32]).is_ok());
        assert_eq!(parked.take(&seal, &owner, &state, [1; 32]).unwrap_err(), NotParked::Unknown);
        parked.forget(&key);
        let _all: Vec<_> = (0..MAX_PARKED).map(|_| parked.park(&seal, &owner, [0; 32]).unwrap()).collect();
        assert!(parked.park(&seal, &owner, [0; 32]).is_none() && parked.len() == MAX_PARKED);
    }
}
