//! Events of a stream, made of the changes of a task (A2A 1.0, sections 3.2.3 and 4.2), and their ids.

use std::fmt;

use jiff::Timestamp;

use super::raw::{push_key, push_text};
use super::task::{Change, Task, write_status};

/// Events that a change makes: one for each artifact or chunk, then one for its state. None if there is nothing to see.
pub fn count(change: &Change) -> usize {
    change.artifacts.len() + usize::from(change.state.is_some())
}

/// Appends one event of a change, counted from 0, as a `StreamResponse`.
pub fn write(change: &Change, index: usize, at: Timestamp, task: &str, context: &str, out: &mut String) {
    if let Some(artifact) = change.artifacts.get(index) {
        out.push_str("{\"artifactUpdate\":");
        artifact.write(task, context, out);
        out.push('}');
    } else if let Some(state) = change.state {
        out.push_str("{\"statusUpdate\":{");
        push_key(out, "taskId");
        push_text(out, task);
        push_key(out, "contextId");
        push_text(out, context);
        push_key(out, "status");
        write_status(state, at, change.said.as_ref(), out);
        out.push_str("}}");
    }
}

/// Appends a task as a `StreamResponse`.
pub fn write_task(task: &Task, history_length: Option<u32>, out: &mut String) {
    out.push_str("{\"task\":");
    task.write(history_length, out);
    out.push('}');
}

/// Id of an event: for resuming a stream, and to know a notification that came twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventId<'a> {
    /// The task.
    pub task: &'a str,
    /// Its version after the change.
    pub version: u64,
    /// Which event of the change, from 0; none for the task itself at that version.
    pub index: Option<u32>,
}

impl<'a> EventId<'a> {
    /// Reads an id; `None` if it is none of ours.
    pub fn parse(text: &'a str) -> Option<Self> {
        let number = |t: &str| t.bytes().all(|b| b.is_ascii_digit()).then(|| t.parse::<u64>().ok()).flatten();
        let mut fields = text.rsplitn(3, '.');
        let (last, middle, first) = (fields.next()?, fields.next()?, fields.next());
        match first {
            Some(task) => {
                Some(Self { task, version: number(middle)?, index: Some(u32::try_from(number(last)?).ok()?) })
            }
            None => Some(Self { task: middle, version: number(last)?, index: None }),
        }
        .filter(|id| !id.task.is_empty())
    }
}

impl fmt::Display for EventId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.task, self.version)?;
        self.index.map_or(Ok(()), |i| write!(f, ".{i}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::a2a::raw::Raw;
    use crate::a2a::state::State;
    use crate::a2a::task::{Artifact, ArtifactUpdate};

    #[test]
    fn a_change_as_events() {
        let artifact = |json: &str| Artifact::whole("a".into(), None, Raw::assembled(json));
        let mut chunk = ArtifactUpdate::whole(artifact(r#"{"artifactId":"a","parts":[{"data":1.0}]}"#));
        (chunk.append, chunk.last) = (true, true);
        let change = Change {
            state: Some(State::Completed),
            said: Some(Raw::assembled("{\"m\":1}")),
            artifacts: vec![ArtifactUpdate::whole(artifact(r#"{"artifactId":"a","parts":[{"text":"x"}]}"#)), chunk],
            ..Change::default()
        };
        let at = "2026-11-29T10:00:00.123Z".parse().unwrap();
        let all: Vec<String> = (0..count(&change))
            .map(|i| {
                let mut out = String::new();
                write(&change, i, at, "t", "c", &mut out);
                out
            })
            .collect();
        insta::assert_snapshot!(all.join("\n"));
        assert_eq!(count(&Change { reveal: true, ..Change::default() }), 0);
    }

    #[test]
    fn ids_read_back() {
        for (text, id) in [
            ("t.3", EventId { task: "t", version: 3, index: None }),
            ("t.3.0", EventId { task: "t", version: 3, index: Some(0) }),
            ("0b9a6a52-6a0e.12.7", EventId { task: "0b9a6a52-6a0e", version: 12, index: Some(7) }),
        ] {
            assert_eq!(EventId::parse(text), Some(id));
            assert_eq!(id.to_string(), text);
        }
        for bad in ["", "t", "t.", ".1", "t.x", "t.1.x", "t.-1", "..", "t.+1", "t.99999999999999999999"] {
            assert_eq!(EventId::parse(bad), None, "{bad}");
        }
    }
}
