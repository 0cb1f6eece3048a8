use std::cell::Cell;

use proptest::prelude::*;

use super::*;

fn judge(status: u16, content_type: Option<&str>, body: &[u8]) -> String {
    let count = Cell::new(0);
    let new_id = || {
        count.set(count.get() + 1);
        format!("id{}", count.get())
    };
    let scope = Scope { task: "t", context: "c", new_id: &new_id };
    let mut repairs = Vec::new();
    let answer = head(status, content_type, &mut repairs).and_then(|form| read(&form, body, &scope, &mut repairs));
    let told = match answer {
        Err(fault) => format!("{}: {fault}", fault.shown_reason()),
        Ok(Answer { outcome, memo, .. }) => {
            let what = match outcome {
                Outcome::Error(fault) => format!("{}: {fault}", fault.shown_reason()),
                Outcome::Message(m) => format!("message {}", m.to_raw("c", None).as_str()),
                Outcome::Change(c) => format!(
                    "{} said {} artifacts {}",
                    c.state.map_or("-", State::short),
                    c.said.map_or("-".into(), |s| s.as_str().to_owned()),
                    c.artifacts.iter().map(|a| a.artifact.to_json().as_str().to_owned()).collect::<Vec<_>>().join(" ")
                ),
            };
            what + &memo.map(|m| format!(" memo {}", m.as_str())).unwrap_or_default()
        }
    };
    let rules: Vec<_> = repairs.iter().map(|r| r.label()).collect();
    format!("{told}{}{}", if rules.is_empty() { "" } else { "  repairs " }, rules.join(" "))
}

fn table(rows: &[&str]) -> String {
    let row = |body: &&str| format!("{body}\n    {}\n", judge(200, Some("application/json"), body.as_bytes()));
    rows.iter().map(row).collect::<Vec<_>>().concat()
}

#[test]
fn answers_of_the_contract() {
    insta::assert_snapshot!(table(&[
        r#"{"text":"hi"}"#,
        "{}",
        r#"{"text":""}"#,
        r#"{"parts":[ {"data":9007199254740993,"x":1.0} , {"text":"b"} ]}"#,
        r#"{"text":"a","parts":[{"text":"b"}]}"#,
        r#"{"state":"input-required","text":"Confirm?","memo":{"burgers":2.0}}"#,
        r#"{"state":"TASK_STATE_AUTH_REQUIRED"}"#,
        r#"{"artifacts":[{"artifactId":"r","name":"Receipt","parts":[{"data":1e400}],"z":1}],"text":"Thank you."}"#,
        r#"{"artifacts":[{"parts":[{"text":"x"}]}]}"#,
        r#"{"artifacts":[],"text":"x"}"#,
        r#"{"state":"rejected","text":"no"}"#,
        r#"{"state":"failed"}"#,
        r#"{"message":{"parts":[{"text":"hello"}],"metadata":{"n":1}}}"#,
        r#"{"error":"broken","memo":1}"#,
        r#"{"error":{"message":"broken","reason":"grill_broken"}}"#,
        r#"{"memo":null}"#,
    ]));
}

#[test]
fn answers_that_are_repaired() {
    insta::assert_snapshot!(table(&[
        "\u{feff}{\"text\":\"hi\"}",
        r#"{"text":"hi","output":1}"#,
        r#"{"state":"INPUT_REQUIRED","text":"?"}"#,
        r#"{"parts":["a",{"text":"b"}]}"#,
        r#"{"message":"hello"}"#,
        r#"{"message":{"role":"ROLE_USER","taskId":"x","parts":["a"]}}"#,
        r#"{"artifacts":[{"artifactId":"a","parts":[{"text":"1"}]},{"artifact_id":"a","parts":[{"text":"2"}]}]}"#,
    ]));
}

#[test]
fn answers_that_are_refused() {
    let memo = format!(r#"{{"memo":"{}"}}"#, "x".repeat(MAX_MEMO_BYTES));
    let rows = [
        "",
        "{\"text\":\"hal",
        "[]",
        "null",
        r#"{"Text":"hi"}"#,
        r#"{"text":7}"#,
        r#"{"text":"a","text":"b"}"#,
        r#"{"parts":[{"txt":"a"}]}"#,
        r#"{"parts":"a"}"#,
        r#"{"state":"working"}"#,
        r#"{"state":"done"}"#,
        r#"{"state":7}"#,
        r#"{"artifacts":{}}"#,
        r#"{"artifacts":[{"artifactId":"a"}]}"#,
        r#"{"artifacts":[{"artifactId":7,"parts":[{"text":"a"}]}]}"#,
        r#"{"message":{"parts":[]}}"#,
        r#"{"message":{"parts":[{"text":"a"}]},"text":"b"}"#,
        r#"{"error":"a","state":"failed"}"#,
        r#"{"error":{"reason":"x"}}"#,
        r#"{"error":{"message":"a","reason":"two words"}}"#,
    ];
    insta::assert_snapshot!(table(&rows));
    assert!(judge(200, Some("application/json"), memo.as_bytes()).starts_with("memo_too_large"));
    let deep = "{\"text\":".repeat(200);
    assert!(judge(200, Some("application/json"), deep.as_bytes()).starts_with("answer_too_deep"));
}

#[test]
fn heads() {
    let rows: [(u16, Option<&str>, &[u8]); 16] = [
        (200, Some("text/plain; charset=utf-8"), b"hi"),
        (200, Some("text/plain"), b"h\xffi"),
        (200, Some("text/plain"), b""),
        (200, Some("Application/JSON; charset=utf-8"), b"{\"text\":\"hi\"}"),
        (200, None, b"{\"text\":\"hi\"}"),
        (200, None, b"hi"),
        (200, None, b""),
        (200, Some("text/html"), b"{\"text\":\"hi\"}"),
        (200, Some("text/html"), b"<html></html>"),
        (201, Some("application/json"), b"{\"text\":\"hi\"}"),
        (202, None, b""),
        (204, None, b""),
        (302, None, b""),
        (404, None, b""),
        (500, Some("application/json"), b"{\"text\":\"hi\"}"),
        (200, Some("text/event-stream"), b""),
    ];
    let table = rows
        .iter()
        .map(|(s, t, b)| format!("{s} {t:?} {}\n    {}\n", String::from_utf8_lossy(b), judge(*s, *t, b)))
        .collect::<Vec<_>>()
        .concat();
    insta::assert_snapshot!(table);
}

proptest! {
    #[test]
    fn any_answer_is_survived(body in any::<String>(), kind in 0_usize..3) {
        judge(200, [Some("application/json"), Some("text/plain"), None][kind], body.as_bytes());
    }

    #[test]
    fn answers_with_any_members_give_json(
        text in prop::option::of(any::<String>()),
        parts in prop::collection::vec(any::<String>(), 0..4),
        state in 0_usize..8,
    ) {
        let mut object = serde_json::Map::new();
        if let Some(text) = text {
            object.insert("text".into(), text.into());
        }
        object.insert("parts".into(), parts.iter().map(|p| serde_json::json!({"text": p})).collect());
        object.insert("state".into(), State::ALL[state].short().into());
        let body = serde_json::Value::Object(object).to_string();
        let new_id = || "id".to_owned();
        let scope = Scope { task: "t", context: "c", new_id: &new_id };
        if let Ok(Answer { outcome: Outcome::Change(c), .. }) = read(&Form::Json, body.as_bytes(), &scope, &mut Vec::new()) {
            for json in c.said.iter().cloned().chain(c.artifacts.iter().map(|a| a.artifact.to_json())) {
                prop_assert!(serde_json::from_str::<serde_json::Value>(json.as_str()).is_ok());
            }
        }
    }
}

fn judge_events(texts: &[&str]) -> String {
    let count = Cell::new(0);
    let new_id = || {
        count.set(count.get() + 1);
        format!("id{}", count.get())
    };
    let scope = Scope { task: "t", context: "c", new_id: &new_id };
    let mut events = Events::new("turn".into(), &[]);
    let row = |text: &&str| {
        let mut repairs = Vec::new();
        let told = match events.read(text, &scope, &mut repairs) {
            Err(fault) => format!("{}: {fault}", fault.shown_reason()),
            Ok(event) => {
                let what = match &event.outcome {
                    Outcome::Error(fault) => format!("{}: {fault}", fault.shown_reason()),
                    Outcome::Message(m) => format!("message {}", m.to_raw("c", None).as_str()),
                    Outcome::Change(c) => {
                        let state = c.state.map_or("-", State::short);
                        let said = c.said.as_ref().map_or("-", Raw::as_str);
                        let updates = c.artifacts.iter().map(|u| {
                            let mut out = String::new();
                            u.write("t", "c", &mut out);
                            out
                        });
                        format!("{state} said {said} artifacts {}", updates.collect::<Vec<_>>().join(" "))
                    }
                };
                let memo = event.memo.as_ref().map(|m| format!(" memo {}", m.as_str())).unwrap_or_default();
                format!("{:?}{} {what}{memo}", event.seq, if event.ends() { " end" } else { "" })
            }
        };
        let rules: Vec<_> = repairs.iter().map(|r| r.label()).collect();
        format!("{text}\n    {told}{}{}\n", if rules.is_empty() { "" } else { "  repairs " }, rules.join(" "))
    };
    texts.iter().map(row).collect()
}

#[test]
fn events_of_the_contract() {
    insta::assert_snapshot!(judge_events(&[
        "{}",
        r#"{"seq":3}"#,
        r#"{"status":"looking"}"#,
        r#"{"status":""}"#,
        r#"{"state":"working","text":"still looking"}"#,
        r#"{"text":"One "}"#,
        r#"{"parts":[{"data":1.0}],"text":"burger"}"#,
        r#"{"artifact":{"artifactId":"r","parts":[{"text":"x"}]},"memo":{"n":1}}"#,
        r#"{"artifact":{"artifactId":"r","parts":[{"text":"y"}]},"append":true,"last":true}"#,
        r#"{"artifact":{"artifactId":"r","parts":["z"]},"append":true,"lastChunk":true,"taskId":"t","contextId":"x"}"#,
        r#"{"artifacts":[{"artifactId":"s","parts":[{"text":"x"}]}],"status":"made it"}"#,
        r#"{"state":"completed","text":"."}"#,
        r#"{"state":"completed"}"#,
        r#"{"state":"completed","artifacts":[{"artifactId":"s","parts":[{"text":"x"}]}],"text":"Thank you."}"#,
        r#"{"state":"INPUT_REQUIRED","text":"Confirm?"}"#,
        r#"{"message":{"parts":[{"text":"hello"}]},"seq":9}"#,
        r#"{"error":{"message":"broken","reason":"grill_broken"},"memo":null}"#,
    ]));
}

#[test]
fn events_that_are_none() {
    insta::assert_snapshot!(judge_events(&[
        "",
        "[]",
        "{",
        r#"{"delta":"x"}"#,
        r#"{"seq":0}"#,
        r#"{"seq":1.5}"#,
        r#"{"status":7}"#,
        r#"{"status":"a","text":"b"}"#,
        r#"{"state":"submitted"}"#,
        r#"{"state":"done"}"#,
        r#"{"append":true,"text":"x"}"#,
        r#"{"artifact":{"parts":[{"text":"x"}]},"append":1}"#,
        r#"{"artifact":{"artifactId":"r"}}"#,
        r#"{"message":"hi","text":"x"}"#,
        r#"{"error":"e","state":"failed"}"#,
    ]));
    assert_eq!(split_batch("[]").unwrap_err().reason(), "answer_invalid");
    assert_eq!(split_batch("{").unwrap_err().reason(), "answer_not_json");
    assert_eq!(split_batch(&"[".repeat(200)).unwrap_err().reason(), "answer_too_deep");
    assert_eq!(split_batch(&format!("[{}{{}}]", "{},".repeat(MAX_BATCH))).unwrap_err().reason(), "answer_invalid");
    let list: Vec<_> = split_batch(r#"[{"seq":1}, {"seq":2}]"#).unwrap().iter().map(|e| e.get()).collect();
    assert_eq!(list, [r#"{"seq":1}"#, r#"{"seq":2}"#]);
    assert_eq!(split_batch(r#"{"seq":1}"#).unwrap().len(), 1);
}

#[test]
fn extensions_that_were_used_are_named_beside_anything() {
    let new_id = || "id".to_owned();
    let scope = Scope { task: "t", context: "c", new_id: &new_id };
    let read = |body: &str| {
        let mut repairs = Vec::new();
        let got = read(&Form::Json, body.as_bytes(), &scope, &mut repairs).map(|a| a.extensions);
        assert_eq!(repairs, []);
        got
    };
    assert_eq!(read(r#"{"text":"x"}"#), Ok(None));
    assert_eq!(read(r#"{"text":"x","extensions":[]}"#), Ok(Some(vec![])));
    assert_eq!(
        read(r#"{"message":{"parts":[{"text":"x"}]},"extensions":["urn:a","urn:a","urn:b"]}"#),
        Ok(Some(vec!["urn:a".into(), "urn:b".into()]))
    );
    for bad in [r#"{"extensions":"urn:a"}"#, r#"{"extensions":[1]}"#] {
        assert!(matches!(read(bad), Err(Fault::Invalid { .. })), "{bad}");
    }
}
