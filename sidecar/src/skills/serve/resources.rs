//! Skills and their files as resources (SEP-2640).

use std::collections::BTreeMap;

use base64::Engine as _;
use outrigger_protocol::skill::SKILL_FILE;
use serde_json::{Value, json};

use super::PAGE;
use super::view::{Shown, View};
use crate::skills::Metrics;
use crate::skills::held::Item;

/// The entry of one skill.
pub fn entry(skill: &Shown) -> Value {
    let tree = &skill.held.tree;
    let resources: Vec<Value> = tree
        .items
        .iter()
        .map(|i| json!({"uri": skill.uri(&i.path), "digest": format!("sha256:{}", i.sha256), "size": i.size}))
        .collect();
    json!({"uri": skill.uri(SKILL_FILE), "frontmatter": tree.front, "resources": resources, "_meta": meta(skill)})
}

/// What else is known of a revision.
pub fn meta(skill: &Shown) -> Value {
    json!({"outrigger.dev/revision": skill.held.skill.revision,
           "outrigger.dev/digest": format!("sha256:{}", skill.held.tree.digest)})
}

/// A page of what comes after the cursor, which is the name of the last one before.
pub fn page<'a, T>(
    all: impl Iterator<Item = T>,
    cursor: Option<&str>,
    key: impl Fn(&T) -> String,
    size: usize,
) -> (Vec<T>, Option<String>)
where
    T: 'a,
{
    let mut page: Vec<T> = all.skip_while(|t| cursor.is_some_and(|c| key(t).as_str() <= c)).take(size + 1).collect();
    let next = (page.len() > size).then(|| {
        page.truncate(size);
        page.last().map(&key).unwrap_or_default()
    });
    (page, next)
}

/// `skills/list`.
pub fn skills(view: &View, cursor: Option<&str>) -> Value {
    let (page, next) = page(view.usable(), cursor, |s| s.name().to_owned(), PAGE);
    with_next(json!({"skills": page.into_iter().map(entry).collect::<Vec<_>>()}), next)
}

/// `resources/list`: each `SKILL.md`; the other files are listed by its entry.
pub fn list(view: &View, cursor: Option<&str>) -> Value {
    let (page, next) = page(view.usable(), cursor, |s| s.name().to_owned(), PAGE);
    let all: Vec<Value> = page.into_iter().filter_map(|s| Some(resource(s, s.held.tree.item(SKILL_FILE)?))).collect();
    with_next(json!({"resources": all}), next)
}

/// A result with the cursor of the next page.
pub fn with_next(mut result: Value, next: Option<String>) -> Value {
    if let Some(next) = next {
        result["nextCursor"] = next.into();
    }
    result
}

fn resource(skill: &Shown, item: &Item) -> Value {
    if item.path == SKILL_FILE {
        let tree = &skill.held.tree;
        return json!({"uri": skill.uri(SKILL_FILE), "name": tree.text("name"), "description": tree.text("description"),
                      "mimeType": "text/markdown", "size": item.size, "_meta": meta(skill)});
    }
    let name = item.path.rsplit('/').next().unwrap_or_default();
    json!({"uri": skill.uri(&item.path), "name": name, "mimeType": media_type(&item.path), "size": item.size})
}

/// `resources/read`; `None` when there is no such file, an error when it is not given out.
pub fn read(view: &View, uri: &str, metrics: &Metrics) -> Option<Result<Value, String>> {
    let (skill, item) = view.file(uri)?;
    let (content, level) = match skill.read(item, metrics) {
        Ok(read) => read,
        Err(why) => return Some(Err(format!("{uri}: {why}"))),
    };
    metrics.disclosed(skill.name(), level, "resources", content.len());
    let mut contents = json!({"uri": uri, "mimeType": media_type(&item.path), "_meta": meta(skill)});
    match String::from_utf8(content) {
        Ok(text) => contents["text"] = text.into(),
        Err(bytes) => {
            contents["blob"] = base64::engine::general_purpose::STANDARD.encode(bytes.as_bytes()).into();
        }
    }
    Some(Ok(json!({"contents": [contents]})))
}

/// `resources/directory/read`; `None` when there is no such folder.
pub fn directory(view: &View, uri: &str, cursor: Option<&str>) -> Option<Value> {
    let inside = |s: &&Shown| uri.strip_prefix(&s.root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let skill = view.skills.iter().find(inside)?;
    let mut children: BTreeMap<String, Value> = BTreeMap::new();
    for item in &skill.held.tree.items {
        let file = skill.uri(&item.path);
        let Some(below) = file.strip_prefix(uri).and_then(|rest| rest.strip_prefix('/')) else { continue };
        if let Some((folder, _)) = below.split_once('/') {
            let depth = uri[skill.root.len()..].matches('/').count();
            let name = item.path.split('/').nth(depth).unwrap_or_default();
            let folder = format!("{uri}/{folder}");
            let child = json!({"uri": folder, "name": name, "mimeType": "inode/directory"});
            children.insert(folder, child);
        } else {
            children.insert(file, resource(skill, item));
        }
    }
    if children.is_empty() {
        return None;
    }
    let (page, next) = page(children.into_iter(), cursor, |(uri, _)| uri.clone(), PAGE);
    Some(with_next(json!({"resources": page.into_iter().map(|(_, c)| c).collect::<Vec<_>>()}), next))
}

/// Media type by the ending of a path.
pub fn media_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase()).as_deref() {
        Some("md") => "text/markdown",
        Some("txt") => "text/plain",
        Some("json") => "application/json",
        Some("yaml" | "yml") => "application/yaml",
        Some("html" | "htm") => "text/html",
        Some("csv") => "text/csv",
        Some("xml") => "application/xml",
        Some("py") => "text/x-python",
        Some("sh") => "text/x-shellscript",
        Some("js" | "mjs") => "text/javascript",
        Some("png") => "image/png",
        Some("jpg" | "jpeg") => "image/jpeg",
        Some("gif") => "image/gif",
        Some("svg") => "image/svg+xml",
        Some("pdf") => "application/pdf",
        Some("zip") => "application/zip",
        _ => "application/octet-stream",
    }
}
