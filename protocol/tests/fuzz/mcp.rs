//! What MCP servers and clients send: read, classified and edited for the other era.

use outrigger_protocol::canonical;
use outrigger_protocol::jsonrpc::{Envelope, Kind, member};
use outrigger_protocol::mcp::bridge::{to_legacy, to_modern};
use outrigger_protocol::mcp::era::{Class, Headers, classify, status};
use outrigger_protocol::mcp::handshake::{Discovered, Initialized, probe};
use outrigger_protocol::mcp::header::Header;
use outrigger_protocol::mcp::input::{InputRequired, Question, answers, input_required};
use outrigger_protocol::mcp::listen::{Change, Listen, stamped, subscription_id, unstamped};
use outrigger_protocol::mcp::meta::{self, Meta, Stamp};
use outrigger_protocol::mcp::object::Object;
use outrigger_protocol::mcp::{edit, salvage};

use crate::mutate::{self, mutated};
use crate::{MAX_LEN, time};

/// A line that was made must be one message.
fn message(line: &[u8]) -> Envelope<'_> {
    let text = std::str::from_utf8(line).unwrap();
    assert!(!text.contains(['\n', '\r']), "two lines: {text}");
    Envelope::parse(text, usize::MAX).unwrap_or_else(|why| panic!("{why}: {text}"))
}

/// Edits of a message that keep its kind.
fn keeps(before: &Envelope<'_>, line: &[u8]) {
    let after = message(line);
    assert_eq!((after.kind, &after.method), (before.kind, &before.method));
}

fn response(answer: &Envelope<'_>) {
    let _ = probe(answer);
    let new = message(&to_modern::response(answer, "\"c\"")).id.map(|i| i.raw.to_owned());
    assert!(new.as_deref() == Some("\"c\"") || answer.id.is_none());
    for method in ["tools/call", "tools/list", "resources/read"] {
        match to_legacy::response(answer, method, "1.0", Some("{}")) {
            to_legacy::Response::Message(line) => {
                let made = message(&line);
                if let Some(result) = made.result.filter(|r| r.raw.starts_with('{')) {
                    assert!(member(result, "resultType").is_some());
                    assert!(method == "tools/call" || member(result, "ttlMs").is_some());
                }
            }
            to_legacy::Response::Urls(questions) => drop(message(&input_required("1", &questions, Some("s"), None))),
        }
    }
    let Some(result) = answer.result else { return };
    if let Ok(found) = Discovered::read(result.raw) {
        let made = to_modern::initialize_result("1", "2025-11-25", &found, "n");
        assert!(Initialized::read(message(&made).result.unwrap().raw).is_ok());
    }
    if let Ok(found) = Initialized::read(result.raw) {
        let made = to_legacy::discover("1", &found, &["2026-07-28"], 1);
        assert!(Discovered::read(message(&made).result.unwrap().raw).unwrap().revision().is_some());
    }
    if let Ok(Some(asked)) = InputRequired::read(result) {
        for question in &asked.questions {
            assert!(question.need().is_some());
            message(&question.request("1", "e"));
        }
    }
}

#[test]
fn mcp_lines() {
    bolero::check!().with_test_time(time()).with_max_len(MAX_LEN).for_each(|bytes: &[u8]| {
        let input = mutated(&mutate::MCP_LINES, bytes);
        let _ = salvage::broken_id(&input, &input);
        let Ok(text) = std::str::from_utf8(&input) else { return };
        let Some(seen) = Envelope::parse(text, usize::MAX).ok().or_else(|| salvage::after_prefix(text)) else { return };
        assert!(text.contains(seen.text));
        let made = edit::with_id(&seen, "7");
        assert_eq!(message(&made).id.map(|i| i.raw), seen.id.map(|_| "7"));
        keeps(&seen, &stamped(&seen, "\"l\""));
        keeps(&seen, &unstamped(&seen));
        let _ = (Change::of(&seen), subscription_id(&seen), to_legacy::fingerprint(&seen));
        match seen.kind {
            Kind::Response => response(&seen),
            Kind::Request => {
                let question = Question::of_request(&seen);
                let made = input_required("1", std::slice::from_ref(&question), None, None);
                let read = InputRequired::read(message(&made).result.unwrap());
                assert!(question.need().is_none() || read.is_ok_and(|r| r.is_some_and(|r| r.questions.len() == 1)));
            }
            Kind::Notification => {}
        }
        if let Ok(form) = canonical::canonical(seen.text) {
            assert_eq!(canonical::canonical(&form), Ok(form));
        }
    });
}

#[test]
fn mcp_requests() {
    bolero::check!().with_test_time(time()).with_max_len(MAX_LEN).for_each(|bytes: &[u8]| {
        let input = mutated(&mutate::MCP_REQUESTS, bytes);
        let mut parts = input.splitn(4, |b| *b == b'\n');
        let mut header = || Header::of(parts.next().filter(|v| !v.is_empty()).into_iter());
        let (revision, method, name) = (header(), header(), header());
        let Ok(body) = std::str::from_utf8(parts.next().unwrap_or_default()) else { return };
        let Ok(call) = Envelope::parse(body, 512) else { return };
        let stamp = Stamp::new("2026-07-28", "{}", None, Some("info"));
        for session in [false, true] {
            match classify(&Headers { revision, method, name, session }, &call) {
                Ok(Class::Modern(modern)) => {
                    assert!(call.kind != Kind::Response && revision.is_present());
                    let line = to_legacy::request(&call, &modern, 9).line;
                    keeps(&call, &line);
                    let left =
                        message(&line).params.and_then(|p| member(p, "_meta")).map(Meta::read).unwrap_or_default();
                    assert!(
                        [left.revision, left.capabilities, left.client, left.log_level].iter().all(Option::is_none)
                    );
                    modern.input_responses.map(answers);
                    if let Ok(listen) = Listen::read(call.params) {
                        let ack = listen.acknowledged("1");
                        let ack = message(&ack).params.and_then(|p| member(p, "notifications"));
                        assert_eq!(Listen::read_filter(ack.unwrap()), Ok(listen));
                    }
                }
                Ok(Class::Legacy) => {
                    keeps(&call, &edit::request(&call, 9).line);
                    let line = to_modern::retry(&call, 9, &stamp, &[("k", "{}")], Some("\"s\"")).line;
                    keeps(&call, &line);
                    let params = message(&line).params.and_then(Object::read);
                    let Some(params) = params else { return };
                    assert_eq!(params.get("requestState").map(|s| s.raw), Some("\"s\""));
                    let meta = params.get("_meta").map(Meta::read).unwrap_or_default();
                    assert_eq!(meta.revision.map(|r| r.raw), Some("\"2026-07-28\""), "{}", meta::PROTOCOL_VERSION);
                    assert_eq!((meta.capabilities(), meta.log_level()), ("{}", Some(1)));
                }
                Err(fault) => {
                    let line = fault.response(call.id.map(|i| i.raw));
                    assert_eq!(message(&line).id.map(|i| i.raw), call.id.map_or(Some("null"), |i| Some(i.raw)));
                    assert!(fault.status() == 400 && matches!(status(fault.code()), 200 | 400));
                }
            }
        }
    });
}
