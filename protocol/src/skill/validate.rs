//! The rules of a whole skill.

use std::borrow::Cow;

use super::{Code, Defect, FileDigest, FrontMatter, MAX_DEFECTS, MAX_FILES, MAX_TOTAL_BYTES, SKILL_FILE, Severity};
use super::{frontmatter, paths, tree_digest};
use crate::digest::sha256;

/// A file as its author wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File<'a> {
    /// Path from the skill's folder.
    pub path: &'a str,
    /// Content.
    pub content: Cow<'a, [u8]>,
    /// Whether it may be run.
    pub executable: bool,
}

/// A file to deliver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedFile<'a> {
    /// Path from the skill's folder.
    pub path: &'a str,
    /// Content; that of a repaired `SKILL.md` differs from what its author wrote.
    pub content: Cow<'a, [u8]>,
    /// Whether it may be run.
    pub executable: bool,
    /// SHA-256 of the content, hex.
    pub sha256: String,
}

/// A skill that can be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked<'a> {
    /// Fields of its `SKILL.md`.
    pub front: FrontMatter,
    /// Its files, sorted by path.
    pub files: Vec<CheckedFile<'a>>,
    /// [`tree_digest`] of the files.
    pub digest: String,
    /// Their sizes together.
    pub bytes: u64,
    /// What a reader can live with.
    pub warnings: Vec<Defect>,
}

/// Checks the skill that will stand in a folder called `name`. The error has all defects found (at most
/// [`MAX_DEFECTS`]), errors first.
pub fn check<'a>(name: &str, files: &[File<'a>]) -> Result<Checked<'a>, Vec<Defect>> {
    let mut defects = paths::check(files.iter().map(|f| f.path));
    sizes(files, &mut defects);
    let mut front = None;
    let mut skill_file = None;
    if let Some(file) = files.iter().find(|f| f.path == SKILL_FILE) {
        if let Some((fields, content)) = skill_md(name, file, &mut defects) {
            front = Some(fields);
            skill_file = content;
        }
    } else {
        let hint = files.iter().find(|f| f.path.eq_ignore_ascii_case(SKILL_FILE));
        let message = match hint {
            Some(file) => format!("rename {} to {SKILL_FILE}: readers look for exactly that name", file.path),
            None => format!("add a file with the path {SKILL_FILE}: it is the skill"),
        };
        defects.push(Defect::error(Code::SkillFileMissing, SKILL_FILE, message));
    }
    let failed = defects.iter().any(|d| d.severity == Severity::Error);
    defects.sort_by_key(|d| d.severity == Severity::Warning);
    defects.truncate(MAX_DEFECTS);
    let Some(front) = front.filter(|_| !failed) else { return Err(defects) };

    let mut checked: Vec<CheckedFile<'a>> = files
        .iter()
        .map(|file| {
            let content = match (&skill_file, file.path == SKILL_FILE) {
                (Some(text), true) => Cow::Owned(text.clone().into_bytes()),
                _ => file.content.clone(),
            };
            let sha256 = sha256(&content);
            CheckedFile { path: file.path, content, executable: file.executable, sha256 }
        })
        .collect();
    checked.sort_by_key(|f| f.path);
    let digests: Vec<_> = checked
        .iter()
        .map(|f| FileDigest { path: f.path, executable: f.executable, size: f.content.len() as u64, sha256: &f.sha256 })
        .collect();
    let digest = tree_digest(&digests);
    let bytes = digests.iter().map(|f| f.size).sum();
    Ok(Checked { front, files: checked, digest, bytes, warnings: defects })
}

fn sizes(files: &[File<'_>], defects: &mut Vec<Defect>) {
    if files.len() > MAX_FILES {
        let message = format!("there are {} files, at most {MAX_FILES} are possible", files.len());
        defects.push(Defect::error(Code::TooLarge, "files", message));
    }
    let bytes: usize = files.iter().map(|f| f.content.len()).sum();
    if bytes > MAX_TOTAL_BYTES {
        let message = format!("the files have {bytes} bytes together, at most {MAX_TOTAL_BYTES} are possible");
        defects.push(Defect::error(Code::TooLarge, "files", message));
    }
}

/// Fields of `SKILL.md`, and its text where that was changed.
fn skill_md(name: &str, file: &File<'_>, defects: &mut Vec<Defect>) -> Option<(FrontMatter, Option<String>)> {
    let (bytes, had_mark) = match file.content.strip_prefix(b"\xef\xbb\xbf") {
        Some(rest) => (rest, true),
        None => (file.content.as_ref(), false),
    };
    let Ok(text) = std::str::from_utf8(bytes) else {
        defects.push(Defect::error(Code::NotText, SKILL_FILE, "the file is not UTF-8: save it as UTF-8"));
        return None;
    };
    if text.contains('\0') {
        defects.push(Defect::error(Code::NotText, SKILL_FILE, "the file has a NUL character: remove it"));
        return None;
    }
    if had_mark {
        let message = "the file began with a byte order mark, which was removed: save it without";
        defects.push(Defect::warning(Code::ByteOrderMark, SKILL_FILE, message));
    }
    let parsed = frontmatter::parse(text, name, defects)?;
    let changed = parsed.repaired.or_else(|| had_mark.then(|| text.to_owned()));
    Some((parsed.front, changed))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
