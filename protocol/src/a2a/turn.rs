//! Writing a turn for the handler (`docs/executor-contract.md`).

use super::conversation::Conversation;
use super::raw::{Raw, push_key, push_list, push_text};
use super::state::State;
use super::task::Artifact;

/// Version of the contract.
pub const CONTRACT: &str = "outrigger/v1";
/// Most messages of a task in a turn.
pub const MAX_HISTORY: usize = 50;
/// Most bytes of messages of a task in a turn.
pub const MAX_HISTORY_BYTES: usize = 1 << 20;

/// Most bytes of [`caller_header`] with scopes.
pub const MAX_CALLER_HEADER: usize = 4 << 10;

/// What a turn is made of.
#[derive(Debug)]
pub struct Turn<'a> {
    /// Id of the turn.
    pub id: &'a str,
    /// How often the turn was handed over, this time included.
    pub attempt: u32,
    /// `seq` of the last event of an earlier attempt that was kept.
    pub last_seq: u64,
    /// The caller's message as JSON.
    pub message: &'a str,
    /// Its text.
    pub text: &'a str,
    /// The task.
    pub task: &'a str,
    /// The state in which the message met it.
    pub state: State,
    /// What was said before, oldest first.
    pub history: &'a [Raw],
    /// What the task's status said, after all of `history`.
    pub said: Option<&'a Raw>,
    /// Its artifacts.
    pub artifacts: &'a [Artifact],
    /// The context.
    pub context: &'a str,
    /// What the context remembers from before the message.
    pub conversation: &'a Conversation,
    /// Who asks, if it was proved.
    pub caller: Option<TurnCaller<'a>>,
    /// `metadata` of the request as JSON.
    pub metadata: Option<&'a str>,
    /// Media types that the caller can use.
    pub accepted_output_modes: &'a [String],
    /// Extensions that the caller asked for.
    pub extensions: &'a [String],
    /// Skills as JSON.
    pub skills: &'a str,
    /// Local URLs as JSON.
    pub urls: &'a str,
}

/// A caller whose identity was proved.
#[derive(Clone, Copy, Debug)]
pub struct TurnCaller<'a> {
    /// Its name at its issuer.
    pub subject: &'a str,
    /// Who vouches for it.
    pub issuer: &'a str,
    /// What it may do.
    pub scopes: &'a [String],
}

fn push_texts(out: &mut String, key: &str, texts: &[String]) {
    push_key(out, key);
    out.push('[');
    for (i, text) in texts.iter().enumerate() {
        out.push_str(if i > 0 { "," } else { "" });
        push_text(out, text);
    }
    out.push(']');
}

/// Appends who asks as the turn's `caller`.
fn write_caller(caller: Option<TurnCaller<'_>>, out: &mut String) {
    let Some(caller) = caller else {
        out.push_str("{\"anonymous\":true}");
        return;
    };
    out.push_str("{\"anonymous\":false");
    push_key(out, "subject");
    push_text(out, caller.subject);
    push_key(out, "issuer");
    push_text(out, caller.issuer);
    push_texts(out, "scopes", caller.scopes);
    out.push('}');
}

/// Who asks as the value of a header: the turn's `caller` in JSON of ASCII alone. Scopes are left out where it would be
/// longer than [`MAX_CALLER_HEADER`].
pub fn caller_header(caller: Option<TurnCaller<'_>>) -> String {
    let ascii = |caller| {
        let mut json = String::new();
        write_caller(caller, &mut json);
        let mut out = String::with_capacity(json.len());
        for c in json.chars() {
            if (' '..='~').contains(&c) {
                out.push(c);
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = std::fmt::Write::write_fmt(&mut out, format_args!("\\u{unit:04x}"));
            }
        }
        out
    };
    let whole = ascii(caller);
    if whole.len() <= MAX_CALLER_HEADER { whole } else { ascii(caller.map(|c| TurnCaller { scopes: &[], ..c })) }
}

impl Turn<'_> {
    /// The turn as JSON.
    pub fn to_json(&self) -> String {
        let mut bytes = 0;
        let said: Vec<&str> = self.history.iter().chain(self.said).map(Raw::as_str).collect();
        let keep = said
            .iter()
            .rev()
            .take(MAX_HISTORY)
            .take_while(|m| {
                bytes += m.len();
                bytes <= MAX_HISTORY_BYTES
            })
            .count();
        let history = &said[said.len() - keep..];
        let capacity = self.message.len() + self.text.len() + self.conversation.size() + self.urls.len();
        let mut out = String::with_capacity(capacity + bytes.min(MAX_HISTORY_BYTES) + self.skills.len() + 512);
        out.push_str("{\"contract\":\"");
        out.push_str(CONTRACT);
        out.push('"');
        push_key(&mut out, "turn");
        push_text(&mut out, self.id);
        let _ = std::fmt::Write::write_fmt(
            &mut out,
            format_args!(",\"attempt\":{},\"lastSeq\":{}", self.attempt, self.last_seq),
        );
        push_key(&mut out, "message");
        out.push_str(self.message);
        push_key(&mut out, "text");
        push_text(&mut out, self.text);
        out.push_str(",\"task\":{");
        push_key(&mut out, "id");
        push_text(&mut out, self.task);
        push_key(&mut out, "contextId");
        push_text(&mut out, self.context);
        push_key(&mut out, "state");
        push_text(&mut out, self.state.wire());
        push_key(&mut out, "history");
        push_list(&mut out, history.iter().copied());
        out.push_str(",\"artifacts\":[");
        for (i, artifact) in self.artifacts.iter().enumerate() {
            out.push_str(if i > 0 { ",{" } else { "{" });
            push_key(&mut out, "artifactId");
            push_text(&mut out, &artifact.id);
            if let Some(name) = &artifact.name {
                push_key(&mut out, "name");
                push_text(&mut out, name);
            }
            let _ = std::fmt::Write::write_fmt(&mut out, format_args!(",\"bytes\":{}}}", artifact.size()));
        }
        out.push_str("]},\"context\":{");
        push_key(&mut out, "id");
        push_text(&mut out, self.context);
        if let Some(memo) = &self.conversation.memo {
            push_key(&mut out, "memo");
            out.push_str(memo.as_str());
        }
        push_key(&mut out, "messages");
        push_list(&mut out, self.conversation.messages.iter().map(Raw::as_str));
        out.push('}');
        self.write_caller(&mut out);
        if let Some(metadata) = self.metadata {
            push_key(&mut out, "metadata");
            out.push_str(metadata);
        }
        if !self.accepted_output_modes.is_empty() {
            push_texts(&mut out, "acceptedOutputModes", self.accepted_output_modes);
        }
        if !self.extensions.is_empty() {
            push_texts(&mut out, "extensions", self.extensions);
        }
        push_key(&mut out, "skills");
        out.push_str(self.skills);
        out.push_str(",\"urls\":");
        out.push_str(self.urls);
        out.push('}');
        out
    }

    fn write_caller(&self, out: &mut String) {
        push_key(out, "caller");
        write_caller(self.caller, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_as_a_header() {
        assert_eq!(caller_header(None), r#"{"anonymous":true}"#);
        let scopes = ["order".to_owned()];
        let who = TurnCaller { subject: "zoë \u{1f354}\r\nX: y", issuer: "https://e", scopes: &scopes };
        let header = caller_header(Some(who));
        assert!(header.bytes().all(|b| (b' '..=b'~').contains(&b)), "{header}");
        let read: serde_json::Value = serde_json::from_str(&header).unwrap();
        assert_eq!((read["subject"].as_str(), read["scopes"][0].as_str()), (Some(who.subject), Some("order")));
        let many = vec!["x".repeat(100); 100];
        let header = caller_header(Some(TurnCaller { scopes: &many, ..who }));
        assert!(header.len() < MAX_CALLER_HEADER && header.contains(r#""scopes":[]"#) && header.contains("https://e"));
    }

    #[test]
    fn a_turn_as_json() {
        let raw = Raw::assembled;
        let artifacts = [
            Artifact::whole("a".into(), Some("A".into()), raw("{\"artifactId\":\"a\"}")),
            Artifact::whole("b".into(), None, raw("{}")),
        ];
        let mut conversation = Conversation::default();
        conversation.push(&raw("{\"m\":0}"));
        conversation.set_memo(&raw("{\"n\":9007199254740993}"));
        let history: Vec<_> = (0..60).map(|i| raw(&i.to_string())).collect();
        let question = raw("{\"q\":1}");
        let turn = Turn {
            id: "turn",
            attempt: 2,
            last_seq: 7,
            message: r#"{"messageId":"m","parts":[ {"text":"say \"hi\""} ],"z":1.0}"#,
            text: "say \"hi\"",
            task: "t",
            state: State::InputRequired,
            history: &history,
            said: Some(&question),
            artifacts: &artifacts,
            context: "c",
            conversation: &conversation,
            caller: Some(TurnCaller { subject: "alice", issuer: "https://e.example", scopes: &["order".to_owned()] }),
            metadata: Some(r#"{"table":4.0}"#),
            accepted_output_modes: &["text/plain".to_owned()],
            extensions: &["https://e.example/x".to_owned()],
            skills: r#"[{"name":"menu","path":"/skills/menu"}]"#,
            urls: r#"{"mcp":{},"tasks":"http://127.0.0.1:19900/t/x/tasks"}"#,
        };
        let json = turn.to_json();
        assert!(json.contains(turn.message) && !json.contains("\"history\":[10,"));
        insta::assert_snapshot!(json);
        let fat: Vec<_> = (0..3).map(|_| raw(&format!("\"{}\"", "x".repeat(MAX_HISTORY_BYTES / 2 - 1)))).collect();
        let json = Turn { history: &fat, said: None, ..turn }.to_json();
        assert!(json.len() < MAX_HISTORY_BYTES, "only one of three halves and a bit fits");
    }
}
