//! Descendants of a process, as `/proc` tells them. Process groups don't hold what starts a session of its own.

use rustix::process::Pid;

/// Processes looked at in one scan; a container's limit on processes is lower.
const MAX_PROCESSES: usize = 32_768;

/// All living descendants of the process, nearest first. Empty when `/proc` can't be read.
pub fn descendants(root: Pid) -> Vec<Pid> {
    let parents = parents();
    let mut found = vec![root.as_raw_pid()];
    let mut next = 0;
    while next < found.len() {
        let parent = found[next];
        next += 1;
        found.extend(parents.iter().filter(|(_, p)| *p == parent).map(|(pid, _)| *pid));
    }
    found.into_iter().skip(1).filter_map(Pid::from_raw).collect()
}

/// Direct children of this process.
pub fn children() -> Vec<Pid> {
    let me = rustix::process::getpid().as_raw_pid();
    parents().into_iter().filter(|(_, p)| *p == me).filter_map(|(pid, _)| Pid::from_raw(pid)).collect()
}

/// Process and parent of every process in sight that is no zombie.
fn parents() -> Vec<(i32, i32)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok())
        .take(MAX_PROCESSES)
        .filter_map(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // The name in parentheses may hold spaces and parentheses itself.
            let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
            let state = fields.next()?;
            let parent = fields.next()?.parse().ok()?;
            (state != "Z").then_some((pid, parent))
        })
        .collect()
}
