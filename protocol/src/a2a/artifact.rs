//! Artifacts, whole and in chunks (A2A 1.0, sections 4.1.7 and 4.2.2).

use std::sync::Arc;

use super::raw::{Kind, Members, Raw, elements, kind, push_key, push_list, push_text};

/// One artifact. Equal are those that read the same, however they came about.
#[derive(Clone, Debug)]
pub struct Artifact {
    /// Its `artifactId`.
    pub id: Arc<str>,
    /// Its `name`, if it has one.
    pub name: Option<Arc<str>>,
    body: Body,
}

impl PartialEq for Artifact {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id && self.name == other.name && self.to_json() == other.to_json()
    }
}

impl Eq for Artifact {}

#[derive(Clone, Debug)]
enum Body {
    /// As it came.
    Whole(Raw),
    /// Chunks were appended: the object without its parts, and the parts as texts of one or more, joined by commas.
    /// Neighbours are merged so that each is longer than all after it: appending n chunks copies each byte log n times,
    /// and a copy of the task copies log n pointers.
    Chunked { head: Raw, parts: Vec<Raw> },
}

/// An artifact or a chunk of one, as a turn sends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactUpdate {
    /// The artifact with the parts of this update.
    pub artifact: Artifact,
    /// Whether its parts follow those that are there; else it replaces its namesake.
    pub append: bool,
    /// Whether it is the last chunk.
    pub last: bool,
}

impl ArtifactUpdate {
    /// A whole artifact.
    pub fn whole(artifact: Artifact) -> Self {
        Self { artifact, append: false, last: false }
    }

    /// Bytes of JSON.
    pub fn size(&self) -> usize {
        self.artifact.size()
    }

    /// Takes an update that comes right after this one into this one, so that a reader of both and a reader of this one
    /// have the same artifact. False, and nothing is done, if they cannot be one: the next is no chunk of the same
    /// artifact, or this one was the last chunk.
    pub fn join(&mut self, next: &Self) -> bool {
        if !next.append || self.last || self.artifact.id != next.artifact.id {
            return false;
        }
        self.artifact.append(&next.artifact);
        self.last = next.last;
        true
    }

    /// Appends the update as the JSON object of `artifactUpdate` (A2A 1.0, section 4.2.2).
    pub fn write(&self, task: &str, context: &str, out: &mut String) {
        out.push('{');
        push_key(out, "taskId");
        push_text(out, task);
        push_key(out, "contextId");
        push_text(out, context);
        push_key(out, "artifact");
        self.artifact.write(out);
        if self.append {
            out.push_str(",\"append\":true");
        }
        if self.last {
            out.push_str(",\"lastChunk\":true");
        }
        out.push('}');
    }
}

impl Artifact {
    /// An artifact from a JSON object that has an `artifactId` and a list of `parts`.
    pub fn whole(id: Arc<str>, name: Option<Arc<str>>, json: Raw) -> Self {
        Self { id, name, body: Body::Whole(json) }
    }

    /// Bytes of JSON.
    pub fn size(&self) -> usize {
        match &self.body {
            Body::Whole(json) => json.size(),
            Body::Chunked { head, parts } => head.size() + parts.iter().map(|p| p.size() + 1).sum::<usize>() + 12,
        }
    }

    /// Appends the artifact as JSON.
    pub fn write(&self, out: &mut String) {
        match &self.body {
            Body::Whole(json) => out.push_str(json.as_str()),
            Body::Chunked { head, parts } => {
                let head = head.as_str();
                out.push_str(head.strip_suffix('}').unwrap_or(head));
                push_key(out, "parts");
                push_list(out, parts.iter().map(Raw::as_str));
                out.push('}');
            }
        }
    }

    /// The artifact as JSON.
    pub fn to_json(&self) -> Raw {
        match &self.body {
            Body::Whole(json) => json.clone(),
            Body::Chunked { .. } => {
                let mut out = String::with_capacity(self.size());
                self.write(&mut out);
                Raw::assembled(&out)
            }
        }
    }

    /// Follows it by the parts of a chunk. `metadata` is merged by key, the newer value wins; every other member stays.
    pub fn append(&mut self, chunk: &Self) {
        let (mut head, mut parts) = match &mut self.body {
            // What is there is moved and not copied: an append costs the same however much came before.
            Body::Chunked { head, parts } => (head.clone(), std::mem::take(parts)),
            Body::Whole(_) => self.split(),
        };
        let (more, new) = chunk.split();
        if let Some(merged) = merged_head(&head, &more) {
            head = merged;
        }
        for text in new {
            push_merged(&mut parts, text);
        }
        self.body = Body::Chunked { head, parts };
    }

    fn split(&self) -> (Raw, Vec<Raw>) {
        let json = match &self.body {
            Body::Chunked { head, parts } => return (head.clone(), parts.clone()),
            Body::Whole(json) => json,
        };
        let Ok(members) = Members::split(json.as_str()) else { return (json.clone(), Vec::new()) };
        let mut head = String::from("{");
        let mut parts = Vec::new();
        for (key, value) in members.iter() {
            if key == "parts" {
                let inner = value.get().trim();
                let inner = inner.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or_default().trim();
                if !inner.is_empty() {
                    parts.push(Raw::fragment(inner));
                }
            } else {
                push_key(&mut head, key);
                head.push_str(value.get());
            }
        }
        head.push('}');
        (Raw::assembled(&head), parts)
    }

    /// Whether it has text of its own that no update has: chunks were put together.
    pub fn is_chunked(&self) -> bool {
        matches!(self.body, Body::Chunked { .. })
    }

    /// Number of parts.
    pub fn parts(&self) -> usize {
        let json = self.to_json();
        let members = Members::split(json.as_str()).ok();
        members.and_then(|m| m.get("parts").and_then(|p| elements(p.get()).ok().map(|l| l.len()))).unwrap_or(0)
    }
}

fn push_merged(parts: &mut Vec<Raw>, text: Raw) {
    parts.push(text);
    while let [.., before, last] = parts.as_slice()
        && before.size() <= last.size()
    {
        let mut joined = String::with_capacity(before.size() + last.size() + 1);
        joined.push_str(before.as_str());
        joined.push(',');
        joined.push_str(last.as_str());
        parts.truncate(parts.len() - 2);
        parts.push(Raw::fragment(&joined));
    }
}

/// The head with the chunk's metadata merged in; `None` when it has none.
fn merged_head(head: &Raw, chunk: &Raw) -> Option<Raw> {
    let chunk = Members::split(chunk.as_str()).ok()?;
    let new = chunk.set("metadata").filter(|m| kind(m.get()) == Kind::Object)?;
    let new = Members::split(new.get()).ok().filter(|m| !m.is_empty())?;
    let old_head = Members::split(head.as_str()).ok()?;
    let old = old_head.set("metadata").and_then(|m| Members::split(m.get()).ok()).unwrap_or_default();
    let mut merged = String::from("{");
    for (key, value) in old.iter().filter(|(k, _)| new.get(k).is_none()).chain(new.iter()) {
        push_key(&mut merged, key);
        merged.push_str(value.get());
    }
    merged.push('}');
    let mut out = String::from("{");
    for (key, value) in old_head.iter().filter(|(k, _)| *k != "metadata") {
        push_key(&mut out, key);
        out.push_str(value.get());
    }
    push_key(&mut out, "metadata");
    out.push_str(&merged);
    out.push('}');
    Some(Raw::assembled(&out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn artifact(json: &str) -> Artifact {
        Artifact::whole("a".into(), None, Raw::assembled(json))
    }

    #[test]
    fn chunks_extend_parts_and_merge_metadata() {
        let mut a =
            artifact(r#"{"artifactId":"a","name":"N","parts":[ {"text":"x","n":1.0} ],"metadata":{"k":1,"l":2}}"#);
        a.append(&artifact(r#"{"artifactId":"a","name":"other","parts":[{"text":"y"},{"data":null}],"metadata":{"k":12345678901234567890}}"#));
        a.append(&artifact(r#"{"artifactId":"a","parts":[]}"#));
        assert_eq!(
            a.to_json().as_str(),
            r#"{"artifactId":"a","name":"N","metadata":{"l":2,"k":12345678901234567890},"parts":[{"text":"x","n":1.0},{"text":"y"},{"data":null}]}"#
        );
        assert_eq!((a.parts(), a.size() >= a.to_json().size()), (3, true));
    }

    #[test]
    fn ten_thousand_chunks_leave_a_few_texts() {
        let mut a = artifact(r#"{"artifactId":"a","parts":[]}"#);
        for i in 0..10_000 {
            a.append(&artifact(&format!(r#"{{"artifactId":"a","parts":[{{"text":"{i}"}}]}}"#)));
        }
        let Body::Chunked { parts, .. } = &a.body else { panic!("it was appended to") };
        assert!(parts.len() < 32 && a.parts() == 10_000);
    }

    proptest! {
        /// A reader of chunks that were joined has what a reader of each chunk has.
        #[test]
        fn joined_chunks_mean_the_same(
            chunks in prop::collection::vec((any::<bool>(), 0_u8..3, 0_u8..10), 1..12),
            first_appends in any::<bool>(),
        ) {
            let update = |i: usize, (meta, parts, last): (bool, u8, u8)| {
                let parts: Vec<_> = (0..parts).map(|p| format!(r#"{{"text":"{i}.{p}","n":1.0}}"#)).collect();
                let metadata = if meta { format!(r#","metadata":{{"k{}":{i}}}"#, i % 2) } else { String::new() };
                let json = format!(r#"{{"artifactId":"a","name":"n{i}","parts":[{}]{metadata}}}"#, parts.join(","));
                ArtifactUpdate { artifact: artifact(&json), append: i > 0 || first_appends, last: last == 0 }
            };
            let all: Vec<_> = chunks.into_iter().enumerate().map(|(i, c)| update(i, c)).collect();
            let mut joined: Vec<ArtifactUpdate> = Vec::new();
            for next in &all {
                if !joined.last_mut().is_some_and(|before| before.join(next)) {
                    joined.push(next.clone());
                }
            }
            let read = |updates: &[ArtifactUpdate]| {
                let mut there = artifact(r#"{"artifactId":"a","name":"N","parts":[{"text":"before"}],"metadata":{"k0":"x"}}"#);
                for update in updates {
                    if update.append { there.append(&update.artifact) } else { there = update.artifact.clone() }
                }
                there.to_json()
            };
            let value = |raw: Raw| serde_json::from_str::<serde_json::Value>(raw.as_str()).unwrap();
            prop_assert_eq!(value(read(&joined)), value(read(&all)));
            let lasts = |l: &[ArtifactUpdate]| l.iter().filter(|u| u.last).count();
            prop_assert_eq!(lasts(&joined), lasts(&all));
        }

        /// Any split of a list of parts into chunks gives the same artifact.
        #[test]
        fn chunks_are_the_whole(texts in prop::collection::vec("[a-z\"]{0,6}", 0..40), cuts in prop::collection::vec(0_usize..5, 0..40)) {
            let part = |t: &String| serde_json::json!({"text": t}).to_string();
            let mut a = artifact(r#"{"artifactId":"a","parts":[]}"#);
            let mut rest = texts.as_slice();
            for cut in cuts.into_iter().chain([texts.len()]) {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                let parts: Vec<_> = now.iter().map(part).collect();
                a.append(&artifact(&format!(r#"{{"artifactId":"a","parts":[{}]}}"#, parts.join(","))));
                rest = later;
            }
            let parts: Vec<_> = texts.iter().map(part).collect();
            let json = a.to_json();
            prop_assert_eq!(json.as_str(), format!(r#"{{"artifactId":"a","parts":[{}]}}"#, parts.join(",")));
        }
    }
}
