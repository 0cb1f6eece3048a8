//! One skill's tree on disk: read from the volume, verified, written beside, put in place by a rename.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

/// Folder of the immutable trees; hidden, so that scanners do not take it for skills.
pub const REVISIONS: &str = ".rev";
/// Files of one skill.
const MAX_FILES: usize = 512;
/// Bytes of one skill.
const MAX_BYTES: u64 = 16 << 20;

/// Why a skill is not in place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SkillError {
    /// The volume has no manifest: the Skill does not exist, or is not published yet.
    #[error("the skill's files are not there yet: is there a Skill of this name, and is it Ready?")]
    SkillMissing,
    /// The manifest is not of the known form.
    #[error("the skill's manifest is not understood: {0}")]
    ManifestInvalid(String),
    /// A file is not what the manifest says.
    #[error("file {path}: {problem}")]
    FileInvalid {
        /// Path in the skill.
        path: String,
        /// What is wrong.
        problem: String,
    },
    /// The files could not be written.
    #[error("cannot write the skill's files: {0}")]
    WriteFailed(String),
}

impl SkillError {
    /// The variant's name, as it stands in conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::SkillMissing => "SkillMissing",
            Self::ManifestInvalid(_) => "ManifestInvalid",
            Self::FileInvalid { .. } => "FileInvalid",
            Self::WriteFailed(_) => "WriteFailed",
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    version: u32,
    digest: String,
    files: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    path: String,
    key: String,
    #[serde(default)]
    executable: bool,
    sha256: String,
    size: u64,
}

/// What changes when the volume does: the target of its `..data` link, or the manifest's own time.
pub type Stamp = (PathBuf, Option<std::time::SystemTime>);

/// The stamp of a source; `None` where there is none.
pub fn stamp(source: &Path) -> Option<Stamp> {
    let data = fs::read_link(source.join("..data")).unwrap_or_default();
    let time = fs::metadata(source.join("manifest.json")).ok()?.modified().ok();
    Some((data, time))
}

/// Puts the newest tree in place, if it differs from `current`; its digest.
pub fn publish(source: &Path, target: &Path, name: &str, current: Option<&str>) -> Result<String, SkillError> {
    // The link is followed once, so that all files are of one state of the volume.
    let source = fs::canonicalize(source.join("..data")).unwrap_or_else(|_| source.into());
    let text = fs::read(source.join("manifest.json")).map_err(|_| SkillError::SkillMissing)?;
    let manifest: Manifest = serde_json::from_slice(&text).map_err(|e| SkillError::ManifestInvalid(e.to_string()))?;
    check(&manifest)?;
    if current == Some(manifest.digest.as_str()) {
        return Ok(manifest.digest);
    }
    let revision = target.join(REVISIONS).join(&manifest.digest);
    let tree = revision.join(name);
    let failed = |e: std::io::Error| SkillError::WriteFailed(e.to_string());
    if !tree.is_dir() {
        let stage = target.join(REVISIONS).join(format!(".new-{name}"));
        remove(&stage);
        fs::create_dir_all(stage.join(name)).map_err(failed)?;
        for file in &manifest.files {
            write(&source, &stage.join(name), file)?;
        }
        seal(&stage.join(name)).map_err(failed)?;
        remove(&revision);
        fs::rename(&stage, &revision).map_err(failed)?;
    }
    put(&tree, &target.join(name), &target.join(format!(".new-{name}"))).map_err(failed)?;
    Ok(manifest.digest)
}

fn check(manifest: &Manifest) -> Result<(), SkillError> {
    let invalid = |text: String| Err(SkillError::ManifestInvalid(text));
    if manifest.version != 1 {
        return invalid(format!("version {} is not supported, want 1", manifest.version));
    }
    if manifest.digest.len() != 64 || !manifest.digest.bytes().all(|b| b.is_ascii_hexdigit()) {
        return invalid("digest is not 64 hex digits".into());
    }
    if manifest.files.len() > MAX_FILES || manifest.files.iter().map(|f| f.size).sum::<u64>() > MAX_BYTES {
        return invalid(format!("more than {MAX_FILES} files or {MAX_BYTES} bytes"));
    }
    for file in &manifest.files {
        let plain =
            |text: &str| !text.is_empty() && Path::new(text).components().all(|c| matches!(c, Component::Normal(_)));
        if !plain(&file.path) || !plain(&file.key) || file.key.contains('/') {
            return invalid(format!("path {:?} leaves the skill's folder", file.path));
        }
    }
    Ok(())
}

fn write(source: &Path, tree: &Path, file: &Entry) -> Result<(), SkillError> {
    let invalid = |problem: String| SkillError::FileInvalid { path: file.path.clone(), problem };
    let from = source.join(&file.key);
    let bytes = fs::read(from).map_err(|e| invalid(e.to_string()))?;
    if bytes.len() as u64 != file.size {
        return Err(invalid(format!("has {} bytes, not {}", bytes.len(), file.size)));
    }
    if outrigger_protocol::digest::sha256(&bytes) != file.sha256 {
        return Err(invalid("its SHA-256 differs from the manifest's".into()));
    }
    let to = tree.join(&file.path);
    let write = || -> std::io::Result<()> {
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut out = fs::File::create_new(&to)?;
        out.write_all(&bytes)?;
        out.set_permissions(fs::Permissions::from_mode(if file.executable { 0o555 } else { 0o444 }))
    };
    write().map_err(|e| SkillError::WriteFailed(format!("{}: {e}", file.path)))
}

/// Puts a tree of hard links in place of the old one in one step: real folders, no links for readers to skip.
fn put(tree: &Path, place: &Path, stage: &Path) -> std::io::Result<()> {
    remove(stage);
    link(tree, stage)?;
    seal(stage)?;
    if place.exists() {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        renameat_with(CWD, stage, CWD, place, RenameFlags::EXCHANGE)?;
        remove(stage);
        Ok(())
    } else {
        fs::rename(stage, place)
    }
}

fn link(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            link(&entry.path(), &target)?;
        } else {
            fs::hard_link(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Takes the write permission from every folder, deepest first.
fn seal(folder: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            seal(&entry.path())?;
        }
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(0o555))
}

/// Removes a sealed tree; what cannot be removed is logged and stays.
pub fn remove(folder: &Path) {
    fn unseal(folder: &Path) {
        let _ = fs::set_permissions(folder, fs::Permissions::from_mode(0o755));
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                unseal(&entry.path());
            }
        }
    }
    if !folder.exists() {
        return;
    }
    unseal(folder);
    if let Err(e) = fs::remove_dir_all(folder) {
        tracing::warn!(target: "business", folder = %folder.display(), error = %e, "cannot remove an old skill tree");
    }
}
