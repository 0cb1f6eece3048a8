//! Content digests: the same files give the same digest, whatever their order.

use sha2::{Digest, Sha256};

use crate::digest::hex;

/// Digest of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDigest<'a> {
    /// Path from the skill's folder.
    pub path: &'a str,
    /// Whether the file may be run.
    pub executable: bool,
    /// Length in bytes.
    pub size: u64,
    /// SHA-256 of the content, 64 hex digits.
    pub sha256: &'a str,
}

/// SHA-256, hex, over the files sorted by path (bytewise). Each adds one line: path, NUL, `x` or `-`, NUL, size in
/// decimal, NUL, SHA-256 of the content in hex, LF.
pub fn tree_digest(files: &[FileDigest<'_>]) -> String {
    let mut sorted: Vec<_> = files.iter().collect();
    sorted.sort_by_key(|f| f.path);
    let mut hasher = Sha256::new();
    for file in sorted {
        let mode = if file.executable { "x" } else { "-" };
        hasher.update(format!("{}\0{mode}\0{}\0{}\n", file.path, file.size, file.sha256));
    }
    hex(&hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::sha256;

    fn file(path: &'static str, executable: bool, sha256: &'static str) -> FileDigest<'static> {
        FileDigest { path, executable, size: 1, sha256 }
    }

    #[test]
    fn order_does_not_matter_and_everything_else_does() {
        let a = tree_digest(&[file("a", false, "00"), file("b", true, "01")]);
        assert_eq!(a, tree_digest(&[file("b", true, "01"), file("a", false, "00")]));
        assert_eq!(a.len(), 64);
        for other in [
            vec![file("a", true, "00"), file("b", true, "01")],
            vec![file("a", false, "02"), file("b", true, "01")],
            vec![file("c", false, "00"), file("b", true, "01")],
            vec![file("a", false, "00")],
        ] {
            assert_ne!(a, tree_digest(&other));
        }
    }

    #[test]
    fn the_form_is_fixed() {
        assert_eq!(tree_digest(&[file("a", false, "00")]), sha256(b"a\0-\x001\x0000\n"));
    }
}
