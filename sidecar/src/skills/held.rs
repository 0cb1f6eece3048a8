//! One revision of a skill, as it is served.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use outrigger_protocol::config::Skill;
use outrigger_protocol::digest::sha256;
use outrigger_protocol::skill::{SKILL_FILE, split};
use serde_json::{Map, Value};

use super::tree::{self, File};

/// Keeps a tree where it is while somebody reads it.
pub type Pin = Arc<()>;

/// A skill of the Agent with the revision that is in place.
#[derive(Clone, Debug)]
pub struct Held {
    /// What the live document says of it; its digest is that of the tree.
    pub skill: Arc<Skill>,
    /// Its files.
    pub tree: Arc<Tree>,
}

/// The files of one revision.
#[derive(Debug)]
pub struct Tree {
    /// Its digest, 64 hex digits.
    pub digest: String,
    /// Its files, by path.
    pub items: Vec<Item>,
    /// Fields of its front matter; empty when there is none that parses.
    pub front: Map<String, Value>,
    /// Instructions: `SKILL.md` without its front matter.
    pub body: String,
    /// Whether its files stand in the folder of the skills.
    pub on_disk: bool,
    pin: Pin,
}

/// One file.
#[derive(Debug)]
pub struct Item {
    /// Path from the skill's folder.
    pub path: String,
    /// Length in bytes.
    pub size: u64,
    /// SHA-256 of the content, hex.
    pub sha256: String,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Memory(Vec<u8>),
    Disk(PathBuf),
}

/// Why a file is not given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It is not there any more.
    #[error("the file cannot be read")]
    Gone,
    /// It has another length than its revision says.
    #[error("the file has changed: its size is another")]
    Size,
    /// It has another content than its revision says.
    #[error("the file has changed: its digest is another")]
    Digest,
}

impl Unreadable {
    /// The word of it in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Size => "size",
            Self::Digest => "digest",
        }
    }
}

impl Tree {
    /// Of files that were verified. Those that stand at `place` are read from there when they are asked for.
    pub fn new(digest: &str, files: Vec<File>, place: Option<&Path>) -> Self {
        let text = files.iter().find(|f| f.path == SKILL_FILE).and_then(|f| std::str::from_utf8(&f.content).ok());
        let (front, body) = text.and_then(split).map(|(f, b)| (f, b.to_owned())).unwrap_or_default();
        let items = files
            .into_iter()
            .map(|f| Item {
                size: f.content.len() as u64,
                sha256: f.sha256,
                content: match place {
                    Some(place) => Content::Disk(place.join(&f.path)),
                    None => Content::Memory(f.content),
                },
                path: f.path,
            })
            .collect();
        Self { digest: digest.into(), items, front, body, on_disk: place.is_some(), pin: Pin::default() }
    }

    /// A file by its path.
    pub fn item(&self, path: &str) -> Option<&Item> {
        self.items.iter().find(|i| i.path == path)
    }

    /// Text of a field of its front matter.
    pub fn text(&self, field: &str) -> &str {
        self.front.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    /// What the skill does and when to use it, on one line.
    pub fn description(&self) -> String {
        self.text("description").split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Bytes that it keeps in memory beside its `SKILL.md`.
    pub fn memory(&self) -> u64 {
        if self.on_disk { 0 } else { self.items.iter().map(|i| i.size).sum() }
    }

    /// Keeps it in place while it is held.
    pub fn pin(&self) -> Pin {
        Arc::clone(&self.pin)
    }

    /// Whether somebody reads it.
    pub fn pinned(&self) -> bool {
        Arc::strong_count(&self.pin) > 1
    }
}

impl Item {
    /// Its content, if it still is that of its revision. Reads a file.
    pub fn read(&self) -> Result<Vec<u8>, Unreadable> {
        let content = match &self.content {
            Content::Memory(content) => return Ok(content.clone()),
            Content::Disk(path) => tree::read_exact(path, self.size)?,
        };
        if sha256(&content) == self.sha256 { Ok(content) } else { Err(Unreadable::Digest) }
    }
}
