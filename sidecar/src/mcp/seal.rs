//! Names that this sidecar gives out and recognises: ids of sessions, and handles of calls that wait for their client.
//!
//! A name is random and carries a mark (HMAC-SHA-256, cut) over itself and its scope: what it is for, the caller, the
//! server. The key lives as long as the process, so no other caller and no other replica can use a name, and a changed
//! one is told from a real one without a look at any table.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand::RngCore as _;
use sha2::{Digest as _, Sha256};

/// Random bytes of a name.
const RANDOM: usize = 18;
/// Bytes of its mark. Both fill whole Base64 characters, so that each character counts.
const MARK: usize = 18;
/// Bytes that SHA-256 takes in at once (RFC 2104, section 2).
const BLOCK: usize = 64;

/// What a name stands for.
pub type Key = [u8; RANDOM];

/// Makes names and checks them.
pub struct Seal {
    inner: [u8; BLOCK],
    outer: [u8; BLOCK],
}

impl Default for Seal {
    fn default() -> Self {
        let mut key = [0; BLOCK];
        rand::rng().fill_bytes(&mut key);
        Self { inner: key.map(|b| b ^ 0x36), outer: key.map(|b| b ^ 0x5c) }
    }
}

impl Seal {
    /// A new name within a scope: what it stands for, and 48 characters of `A-Za-z0-9_-`.
    pub fn mint(&self, scope: &[&str]) -> (Key, String) {
        let mut key = Key::default();
        rand::rng().fill_bytes(&mut key);
        let mut name = [0; RANDOM + MARK];
        name[..RANDOM].copy_from_slice(&key);
        name[RANDOM..].copy_from_slice(&self.mark(&key, scope));
        (key, URL_SAFE_NO_PAD.encode(name))
    }

    /// What a name stands for, if it was given out here and within this scope.
    pub fn open(&self, name: &str, scope: &[&str]) -> Option<Key> {
        // As a shorter buffer would be refused for its size, one that is too long for a name is not decoded at all.
        if name.len() != (RANDOM + MARK) / 3 * 4 {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(name).ok()?;
        let (key, mark) = bytes.split_at_checked(RANDOM)?;
        let key = Key::try_from(key).ok()?;
        // All bytes are looked at, so that the time says nothing about the first wrong one.
        let wrong = self.mark(&key, scope).iter().zip(mark).fold(mark.len() ^ MARK, |n, (a, b)| n | usize::from(a ^ b));
        (wrong == 0).then_some(key)
    }

    fn mark(&self, key: &Key, scope: &[&str]) -> [u8; MARK] {
        let mut inner = Sha256::new();
        inner.update(self.inner);
        inner.update(key);
        for part in scope {
            // With its length, so that the border between two parts can't be shifted.
            inner.update((part.len() as u64).to_be_bytes());
            inner.update(part.as_bytes());
        }
        let mut outer = Sha256::new();
        outer.update(self.outer);
        outer.update(inner.finalize());
        let mut mark = [0; MARK];
        mark.copy_from_slice(&outer.finalize()[..MARK]);
        mark
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changed_byte_and_any_other_scope_is_unknown() {
        let seal = Seal::default();
        let (key, name) = seal.mint(&["session", "a", "time"]);
        assert_eq!(name.len(), 48);
        assert_eq!(seal.open(&name, &["session", "a", "time"]), Some(key));
        for scope in
            [&["session", "b", "time"][..], &["session", "at", "ime"], &["session", "a"], &["call", "a", "time"]]
        {
            assert_eq!(seal.open(&name, scope), None, "{scope:?}");
        }
        assert_eq!(Seal::default().open(&name, &["session", "a", "time"]), None);
        for at in 0..name.len() {
            let mut changed = name.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(seal.open(std::str::from_utf8(&changed).unwrap(), &["session", "a", "time"]), None, "{at}");
        }
        for bad in ["", "x", "constructor", &name[1..], &format!("{name}A"), &"é".repeat(24)] {
            assert_eq!(seal.open(bad, &["session", "a", "time"]), None, "{bad}");
        }
    }
}
