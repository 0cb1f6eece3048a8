//! Folders and files of mounted Secrets, read again when they change.
//!
//! A volume changes by a swap of a symlink, and nothing tells us; so what is there is looked at when it is asked for,
//! and not more often than [`LOOK_EVERY`].

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Time between two looks.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Most files of a folder.
pub const MAX_FILES: usize = 4096;
/// Largest file that is read.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// One file with its content.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name without the folder.
    pub name: String,
    /// What is in it.
    pub content: Vec<u8>,
}

/// What was made of a path's files, as new as they are.
pub struct Watched<T> {
    path: PathBuf,
    build: fn(Result<Vec<Entry>, String>) -> T,
    state: Mutex<State<T>>,
}

struct State<T> {
    looked: Instant,
    prints: Result<Vec<Print>, String>,
    made: Arc<T>,
}

/// What changes when a file does.
#[derive(Clone, PartialEq, Eq)]
struct Print {
    name: String,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl<T> Watched<T> {
    /// Reads a folder, or a single file, and makes something of it. Nothing there is for `build` to judge.
    pub fn new(path: impl Into<PathBuf>, build: fn(Result<Vec<Entry>, String>) -> T) -> Self {
        let path = path.into();
        let prints = prints(&path);
        let made = Arc::new(build(prints.clone().and_then(|p| entries(&path, &p))));
        Self { path, build, state: Mutex::new(State { looked: Instant::now(), prints, made }) }
    }

    /// What is made of it now.
    pub fn get(&self) -> Arc<T> {
        let mut state = self.state.lock();
        if state.looked.elapsed() >= LOOK_EVERY {
            state.looked = Instant::now();
            let prints = prints(&self.path);
            if prints != state.prints {
                state.made = Arc::new((self.build)(prints.clone().and_then(|p| entries(&self.path, &p))));
                state.prints = prints;
            }
        }
        Arc::clone(&state.made)
    }
}

fn prints(path: &Path) -> Result<Vec<Print>, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", path.display());
    let print = |name: String, m: &std::fs::Metadata| Print {
        name,
        inode: m.ino(),
        size: m.size(),
        modified: (m.mtime(), m.mtime_nsec()),
    };
    let meta = std::fs::metadata(path).map_err(failed)?;
    if meta.is_file() {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        return Ok(vec![print(name, &meta)]);
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        // The volume's own: `..data` and the like.
        if name.starts_with('.') {
            continue;
        }
        // Through the symlink; one that leads nowhere is in the middle of a swap.
        let Ok(meta) = std::fs::metadata(entry.path()) else { continue };
        if meta.is_file() {
            if found.len() == MAX_FILES {
                return Err(format!("{}: more than {MAX_FILES} files", path.display()));
            }
            found.push(print(name, &meta));
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn entries(path: &Path, prints: &[Print]) -> Result<Vec<Entry>, String> {
    let single = path.is_file();
    let read = |print: &Print| {
        let file = if single { path.to_owned() } else { path.join(&print.name) };
        if print.size > MAX_FILE_BYTES {
            return Err(format!("{}: larger than {MAX_FILE_BYTES} bytes", file.display()));
        }
        let content = std::fs::read(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        Ok(Entry { name: print.name.clone(), content })
    };
    prints.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(read: Result<Vec<Entry>, String>) -> Vec<String> {
        match read {
            Ok(entries) => {
                entries.into_iter().map(|e| format!("{}={}", e.name, String::from_utf8_lossy(&e.content))).collect()
            }
            Err(e) => vec![e],
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_swapped_volume_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let old = dir.path().join("..1");
        std::fs::create_dir(&old).unwrap();
        std::fs::write(old.join("b"), "2").unwrap();
        std::fs::write(old.join("a"), "1").unwrap();
        std::os::unix::fs::symlink("..1", dir.path().join("..data")).unwrap();
        for name in ["a", "b", "gone"] {
            std::os::unix::fs::symlink(format!("..data/{name}"), dir.path().join(name)).unwrap();
        }
        let watched = Watched::new(dir.path(), names);
        assert_eq!(*watched.get(), ["a=1", "b=2"]);
        let new = dir.path().join("..2");
        std::fs::create_dir(&new).unwrap();
        std::fs::write(new.join("a"), "3").unwrap();
        std::os::unix::fs::symlink("..2", dir.path().join("..new")).unwrap();
        std::fs::rename(dir.path().join("..new"), dir.path().join("..data")).unwrap();
        assert_eq!(*watched.get(), ["a=1", "b=2"], "not looked at again yet");
        tokio::time::advance(LOOK_EVERY).await;
        assert_eq!(*watched.get(), ["a=3"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_folder_is_told_and_heals() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("later");
        let watched = Watched::new(&path, names);
        assert!(watched.get()[0].contains("later"));
        std::fs::write(&path, "x").unwrap();
        tokio::time::advance(LOOK_EVERY).await;
        assert_eq!(*watched.get(), ["later=x"]);
    }
}
