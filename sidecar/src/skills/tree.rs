//! One skill's tree on disk: read from the volume, verified, written beside, put in place by a rename.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

use outrigger_protocol::skill::{FileDigest, tree_digest};
use serde::Deserialize;

use super::held::Unreadable;

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
    /// The revision that the Agent is to have is neither in the volume nor fetched.
    #[error("the skill's current revision is not at hand yet: it comes with the volume or from the operator")]
    RevisionMissing,
    /// The files are not those of the revision.
    #[error("the skill's files are not those that its digest names")]
    DigestMismatch,
    /// There is no room in memory for a skill that has no files.
    #[error("the skills that are served over MCP alone have more than {0} bytes together")]
    MemoryFull(u64),
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
            Self::RevisionMissing => "RevisionMissing",
            Self::DigestMismatch => "DigestMismatch",
            Self::MemoryFull(_) => "MemoryFull",
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

/// One file of a skill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Path from the skill's folder.
    pub path: String,
    /// Whether it may be run.
    pub executable: bool,
    /// SHA-256 of the content, hex.
    pub sha256: String,
    /// Content.
    pub content: Vec<u8>,
}

/// Digest of the revision that the start-up copy has.
pub fn copy_digest(source: &Path) -> Result<String, SkillError> {
    manifest(&folder(source)).map(|m| m.digest)
}

/// The files of the start-up copy, which is to have this digest.
pub fn copy(source: &Path, digest: &str) -> Result<Vec<File>, SkillError> {
    let source = folder(source);
    let manifest = manifest(&source)?;
    if manifest.digest != digest {
        return Err(SkillError::RevisionMissing);
    }
    let files = manifest.files.iter().map(|f| read(&source, f)).collect::<Result<Vec<_>, _>>()?;
    verify(files, digest)
}

/// The link is followed once, so that all files are of one state of the volume.
fn folder(source: &Path) -> PathBuf {
    fs::canonicalize(source.join("..data")).unwrap_or_else(|_| source.into())
}

fn manifest(source: &Path) -> Result<Manifest, SkillError> {
    let text = fs::read(source.join("manifest.json")).map_err(|_| SkillError::SkillMissing)?;
    let manifest: Manifest = serde_json::from_slice(&text).map_err(|e| SkillError::ManifestInvalid(e.to_string()))?;
    check(&manifest)?;
    Ok(manifest)
}

/// Files that may be a skill's, and whose digest is that of their revision; in the order of their paths.
pub fn verify(mut files: Vec<File>, digest: &str) -> Result<Vec<File>, SkillError> {
    if files.len() > MAX_FILES || files.iter().map(|f| f.content.len() as u64).sum::<u64>() > MAX_BYTES {
        return Err(SkillError::ManifestInvalid(format!("more than {MAX_FILES} files or {MAX_BYTES} bytes")));
    }
    for file in &files {
        if !plain(&file.path) {
            return Err(SkillError::ManifestInvalid(format!("path {:?} leaves the skill's folder", file.path)));
        }
        if outrigger_protocol::digest::sha256(&file.content) != file.sha256 {
            return Err(SkillError::FileInvalid { path: file.path.clone(), problem: "its SHA-256 is another".into() });
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    if digest_of(&files) != digest {
        return Err(SkillError::DigestMismatch);
    }
    Ok(files)
}

/// [`tree_digest`] of files.
pub fn digest_of(files: &[File]) -> String {
    let digests: Vec<_> = files
        .iter()
        .map(|f| FileDigest {
            path: &f.path,
            executable: f.executable,
            size: f.content.len() as u64,
            sha256: &f.sha256,
        })
        .collect();
    tree_digest(&digests)
}

/// The files of a tree that a sidecar before this one has put there, if they are as they should be.
pub fn left(target: &Path, name: &str, digest: &str) -> Option<Vec<File>> {
    fn walk(folder: &Path, prefix: &str, files: &mut Vec<File>, bytes: &mut u64) -> Option<()> {
        for entry in fs::read_dir(folder).ok()? {
            let entry = entry.ok()?;
            let path = format!("{prefix}{}", entry.file_name().to_str()?);
            let kind = entry.file_type().ok()?;
            if kind.is_dir() {
                walk(&entry.path(), &format!("{path}/"), files, bytes)?;
                continue;
            }
            let meta = entry.metadata().ok()?;
            *bytes += meta.len();
            if !kind.is_file() || files.len() >= MAX_FILES || *bytes > MAX_BYTES {
                return None;
            }
            let content = fs::read(entry.path()).ok()?;
            let sha256 = outrigger_protocol::digest::sha256(&content);
            files.push(File { path, executable: meta.permissions().mode() & 0o100 != 0, sha256, content });
        }
        Some(())
    }
    let mut files = Vec::new();
    walk(&place(target, name, digest), "", &mut files, &mut 0)?;
    verify(files, digest).ok()
}

/// Where the immutable tree of a revision stands.
pub fn place(target: &Path, name: &str, digest: &str) -> PathBuf {
    target.join(REVISIONS).join(digest).join(name)
}

/// Writes the tree of a revision, unless it is there, and puts it in place as the skill's newest.
pub fn publish(files: &[File], target: &Path, name: &str, digest: &str, written: bool) -> Result<(), SkillError> {
    let failed = |e: std::io::Error| SkillError::WriteFailed(e.to_string());
    let tree = place(target, name, digest);
    if !written {
        let stage = target.join(REVISIONS).join(format!(".new-{name}"));
        remove(&stage);
        fs::create_dir_all(stage.join(name)).map_err(failed)?;
        for file in files {
            write(&stage.join(name), file)?;
        }
        let revision = target.join(REVISIONS).join(digest);
        // Two skills may have the same files, and so the same digest.
        remove(&tree);
        fs::create_dir_all(&revision).map_err(failed)?;
        // Sealed after the rename: a folder that changes its parent must be writable.
        fs::rename(stage.join(name), &tree).map_err(failed)?;
        seal(&tree).map_err(failed)?;
        remove(&stage);
    }
    put(&tree, &target.join(name), &target.join(format!(".new-{name}"))).map_err(failed)
}

/// Removes the tree of a revision.
pub fn retire(target: &Path, name: &str, digest: &str) {
    remove(&place(target, name, digest));
    // Fails while another skill's tree stands in it.
    let _ = fs::remove_dir(target.join(REVISIONS).join(digest));
}

/// Whether a path stays in its folder.
fn plain(path: &str) -> bool {
    !path.is_empty() && Path::new(path).components().all(|c| matches!(c, Component::Normal(_)))
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
        if !plain(&file.path) || !plain(&file.key) || file.key.contains('/') {
            return invalid(format!("path {:?} leaves the skill's folder", file.path));
        }
    }
    Ok(())
}

fn read(source: &Path, file: &Entry) -> Result<File, SkillError> {
    let invalid = |problem: String| SkillError::FileInvalid { path: file.path.clone(), problem };
    let content = fs::read(source.join(&file.key)).map_err(|e| invalid(e.to_string()))?;
    if content.len() as u64 != file.size {
        return Err(invalid(format!("has {} bytes, not {}", content.len(), file.size)));
    }
    Ok(File { path: file.path.clone(), executable: file.executable, sha256: file.sha256.clone(), content })
}

fn write(tree: &Path, file: &File) -> Result<(), SkillError> {
    let to = tree.join(&file.path);
    let write = || -> std::io::Result<()> {
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut out = fs::File::create_new(&to)?;
        out.write_all(&file.content)?;
        out.set_permissions(fs::Permissions::from_mode(if file.executable { 0o555 } else { 0o444 }))
    };
    write().map_err(|e| SkillError::WriteFailed(format!("{}: {e}", file.path)))
}

/// Writes the list of the skills beside them; a reader never meets half of it.
pub fn note(target: &Path, name: &str, text: &str) -> std::io::Result<()> {
    let new = target.join(format!("{name}.new"));
    let _ = fs::remove_file(&new);
    let mut file = fs::File::create_new(&new)?;
    file.write_all(text.as_bytes())?;
    file.set_permissions(fs::Permissions::from_mode(0o444))?;
    fs::rename(new, target.join(name))
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

/// Reads a file that is to have so many bytes, and no more of it than that.
pub fn read_exact(path: &Path, size: u64) -> Result<Vec<u8>, Unreadable> {
    let file = fs::File::open(path).map_err(|_| Unreadable::Gone)?;
    let mut content = Vec::new();
    file.take(size + 1).read_to_end(&mut content).map_err(|_| Unreadable::Gone)?;
    if content.len() as u64 == size { Ok(content) } else { Err(Unreadable::Size) }
}
