//! Which paths a skill's files may have: they become real files in a folder that other programs walk.

use std::collections::BTreeSet;

use super::{Code, Defect, MAX_PATH_BYTES, MAX_PATH_DEPTH};

/// Checks all paths of a skill.
pub(super) fn check<'a>(paths: impl Iterator<Item = &'a str> + Clone) -> Vec<Defect> {
    let mut defects = Vec::new();
    for path in paths.clone() {
        if let Err(message) = one(path) {
            defects.push(Defect::error(Code::PathInvalid, printable(path), message));
        }
    }
    let mut seen = BTreeSet::new();
    for path in paths {
        if !seen.insert(path) {
            defects.push(Defect::error(
                Code::PathClash,
                printable(path),
                "the path stands twice: remove one of the files",
            ));
        }
    }
    for path in &seen {
        for (end, _) in path.match_indices('/') {
            if let Some(folder) = path.get(..end)
                && seen.contains(folder)
            {
                let message = format!("{} needs a folder of that name: rename one of them", printable(path));
                defects.push(Defect::error(Code::PathClash, printable(folder), message));
            }
        }
    }
    defects
}

fn one(path: &str) -> Result<(), String> {
    if path.is_empty() {
        return Err("the path is empty: give it from the skill's folder".into());
    }
    if path.len() > MAX_PATH_BYTES {
        return Err(format!("the path has {} bytes, at most {MAX_PATH_BYTES} are possible", path.len()));
    }
    if path.starts_with('/') {
        return Err("the path begins with \"/\": give it from the skill's folder".into());
    }
    if path.contains('\\') {
        return Err("the path has a backslash: put \"/\" between its parts".into());
    }
    if path.chars().any(char::is_control) {
        return Err("the path has a control character: remove it".into());
    }
    if path.split('/').count() > MAX_PATH_DEPTH {
        return Err(format!("the path has more than {MAX_PATH_DEPTH} parts: use fewer folders"));
    }
    for part in path.split('/') {
        match part {
            "" => return Err("the path has an empty part: remove the extra \"/\"".into()),
            "." | ".." => return Err(format!("the path has the part \"{part}\": give it from the skill's folder")),
            _ if part.starts_with("..") => {
                return Err(format!("the part \"{part}\" begins with \"..\", which is the volumes' own: rename it"));
            }
            _ => {}
        }
    }
    Ok(())
}

fn printable(path: &str) -> String {
    path.chars().take(MAX_PATH_BYTES).flat_map(|c| if c.is_control() { vec!['\u{fffd}'] } else { vec![c] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_paths_are_refused() {
        let long = "a".repeat(257);
        let deep = "a/".repeat(16) + "a";
        for path in [
            "",
            "/etc/passwd",
            "../x",
            "a/../../x",
            "a/..",
            "./a",
            "a/./b",
            "a//b",
            "a/",
            "a\\b",
            "a\0b",
            "a\nb",
            "..data",
            &long,
            &deep,
        ] {
            let defects = check(std::iter::once(path));
            assert!(defects.iter().any(|d| d.code == Code::PathInvalid), "{path:?}");
        }
        for path in ["SKILL.md", "scripts/run.py", ".hidden", "a/b.c/d e", "ünï.md"] {
            assert_eq!(check(std::iter::once(path)), [], "{path:?}");
        }
    }

    #[test]
    fn twins_and_files_in_place_of_folders_are_refused() {
        let defects = check(["a", "a"].into_iter());
        assert_eq!(defects.len(), 1);
        assert_eq!(defects[0].code, Code::PathClash);
        let defects = check(["a/b/c", "a/b"].into_iter());
        assert_eq!(defects.len(), 1);
        assert_eq!((defects[0].code, defects[0].place.as_str()), (Code::PathClash, "a/b"));
    }
}
