//! What a task's attachment holds: what the executor wants to know later, and what came with the request of the turn,
//! so that another process can hand the same turn over again.

use std::sync::Arc;

use outrigger_protocol::a2a::raw::{Members, Raw, elements, push_key, push_text, text_of};
use serde_json::value::RawValue;

use super::call::{Caller, Identity};

/// What came with a message beside the message itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Who sent it, if that was proved.
    pub identity: Option<Arc<Identity>>,
    /// `metadata` of the request.
    pub metadata: Option<Raw>,
    /// Media types that the caller can use.
    pub accepted_output_modes: Vec<String>,
    /// Extensions that the caller asked for.
    pub extensions: Vec<String>,
}

impl Request {
    /// The caller with the key of a task.
    pub fn caller(&self, key: &Arc<str>) -> Caller {
        Caller { key: Arc::clone(key), identity: self.identity.clone() }
    }
}

/// Writes an attachment; `None` when there is nothing in it and was nothing before.
pub fn write(request: &Request, own: Option<&Raw>, before: Option<&Raw>) -> Option<Raw> {
    if *request == Request::default() && own.is_none() && before.is_none() {
        return None;
    }
    let mut out = String::from("{");
    if let Some(identity) = &request.identity {
        push_key(&mut out, "subject");
        push_text(&mut out, &identity.subject);
        push_key(&mut out, "issuer");
        push_text(&mut out, &identity.issuer);
        push_texts(&mut out, "scopes", &identity.scopes);
    }
    for (key, raw) in [("metadata", request.metadata.as_ref()), ("own", own)] {
        if let Some(raw) = raw {
            push_key(&mut out, key);
            out.push_str(raw.as_str());
        }
    }
    push_texts(&mut out, "modes", &request.accepted_output_modes);
    push_texts(&mut out, "extensions", &request.extensions);
    out.push('}');
    Raw::parse(&out).ok()
}

fn push_texts(out: &mut String, key: &str, texts: &[String]) {
    if texts.is_empty() {
        return;
    }
    push_key(out, key);
    out.push('[');
    for (i, text) in texts.iter().enumerate() {
        out.push_str(if i > 0 { "," } else { "" });
        push_text(out, text);
    }
    out.push(']');
}

/// Reads an attachment: the request, and what is the executor's own.
pub fn read(attachment: Option<&Raw>) -> (Request, Option<Raw>) {
    let Some(members) = attachment.and_then(|a| Members::split(a.as_str()).ok()) else {
        return (Request::default(), None);
    };
    let text = |key: &str| members.set(key).and_then(text_of).map(std::borrow::Cow::into_owned);
    let identity = text("subject").map(|subject| {
        let issuer = text("issuer").unwrap_or_default();
        Arc::new(Identity { subject, issuer, scopes: texts(members.set("scopes")) })
    });
    let request = Request {
        identity,
        metadata: members.set("metadata").map(Raw::copy),
        accepted_output_modes: texts(members.set("modes")),
        extensions: texts(members.set("extensions")),
    };
    (request, members.get("own").map(Raw::copy))
}

fn texts(list: Option<&RawValue>) -> Vec<String> {
    let list = list.and_then(|l| elements(l.get()).ok()).unwrap_or_default();
    list.into_iter().filter_map(text_of).map(std::borrow::Cow::into_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_reads_back() {
        let raw = |t: &str| Raw::parse(t).unwrap();
        let identity = Identity { subject: "al\"ice".into(), issuer: "https://e".into(), scopes: vec!["a".into()] };
        let full = Request {
            identity: Some(Arc::new(identity)),
            metadata: Some(raw(r#"{"n":9007199254740993}"#)),
            accepted_output_modes: vec!["text/*".into()],
            extensions: vec!["https://e/x".into(), "y".into()],
        };
        let own = raw(r#"{"task":"up-1"}"#);
        for (request, own) in [(full.clone(), Some(own)), (full, None), (Request::default(), Some(raw("7")))] {
            let written = write(&request, own.as_ref(), None).unwrap();
            assert_eq!(read(Some(&written)), (request, own));
        }
        assert_eq!(write(&Request::default(), None, None), None);
        assert_eq!(write(&Request::default(), None, Some(&raw("1"))).unwrap().as_str(), "{}");
        assert_eq!(read(None), (Request::default(), None));
    }
}
