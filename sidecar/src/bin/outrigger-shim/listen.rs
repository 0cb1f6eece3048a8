//! The socket: bound under a temporary name and renamed into place, so that a peer finds a working one or none.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Owner and group only; the group comes from the set-group-id folder.
const MODE: u32 = 0o660;

/// Binds the socket, replacing a stale one.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    let temporary = temporary(path);
    match std::fs::remove_file(&temporary) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let listener = UnixListener::bind(&temporary)?;
    std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(MODE))?;
    listener.set_nonblocking(true)?;
    std::fs::rename(&temporary, path)?;
    Ok(listener)
}

fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}
