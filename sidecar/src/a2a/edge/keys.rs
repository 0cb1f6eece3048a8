//! API keys from a mounted folder.

use std::sync::Arc;

use http::{HeaderMap, HeaderName};
use outrigger_protocol::config::ApiKeys;
use sha2::{Digest, Sha256};

use super::{API_KEY_ISSUER, Identity};
use crate::folder::{Entry, Watched};

/// Shortest key, in bytes: less can be guessed.
pub const MIN_KEY: usize = 16;

/// The keys of a folder.
#[derive(Clone)]
pub(super) struct ApiKeyring {
    header: HeaderName,
    ring: Arc<Watched<Ring>>,
}

/// SHA-256 of each key, and whose it is.
type Ring = Vec<([u8; 32], Arc<Identity>)>;

/// What a request has to say.
pub(super) enum Found {
    /// No key.
    Nothing,
    /// A key of the folder.
    Known(Arc<Identity>),
    /// Another one.
    Unknown,
}

impl ApiKeyring {
    pub(super) fn new(config: &ApiKeys) -> Self {
        // The configuration was checked; an odd header is one that no request has.
        let header = HeaderName::from_bytes(config.header.as_bytes()).unwrap_or(HeaderName::from_static("x-api-key"));
        Self { header, ring: Arc::new(Watched::new(&config.folder, read)) }
    }

    pub(super) fn find(&self, headers: &HeaderMap) -> Found {
        let mut values = headers.get_all(&self.header).iter();
        let Some(value) = values.next() else { return Found::Nothing };
        if values.next().is_some() {
            return Found::Unknown;
        }
        let given: [u8; 32] = Sha256::digest(value.as_bytes()).into();
        let mut found = Found::Unknown;
        // All of them, and without a branch on a byte: the time says nothing about any key.
        for (known, identity) in self.ring.get().iter() {
            if same(known, &given) {
                found = Found::Known(Arc::clone(identity));
            }
        }
        found
    }
}

fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    std::hint::black_box(a.iter().zip(b).fold(0, |sum, (x, y)| sum | (x ^ y))) == 0
}

/// Compares secrets of any length, in a time that says nothing about them.
pub(super) fn same_text(a: &[u8], b: &[u8]) -> bool {
    same(&Sha256::digest(a).into(), &Sha256::digest(b).into())
}

fn read(files: Result<Vec<Entry>, String>) -> Ring {
    let files = files.unwrap_or_else(|error| {
        tracing::warn!(target: "business", error, "API keys cannot be read: none is accepted");
        Vec::new()
    });
    let mut ring = Ring::with_capacity(files.len());
    for file in files {
        let key = file.content.trim_ascii();
        if key.len() < MIN_KEY {
            tracing::warn!(target: "business", caller = file.name, "API key is shorter than {MIN_KEY} bytes: not accepted");
            continue;
        }
        let identity = Identity { subject: file.name, issuer: API_KEY_ISSUER.into(), scopes: Vec::new() };
        ring.push((Sha256::digest(key).into(), Arc::new(identity)));
    }
    ring
}
