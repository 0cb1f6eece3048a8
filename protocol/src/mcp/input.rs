//! Input that a server asks of the user in the midst of a call (2026-07-28, "Multi round-trip requests"), written and
//! read on both sides: a legacy server sends requests, a modern one answers `input_required` and gets the call again.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::jsonrpc::{Envelope, Slice, string};

use super::capability::Need;
use super::meta;
use super::object::{Edits, Object, elements, quoted};

/// Questions in one `input_required`, and answers in one retry.
pub const MAX_INPUTS: usize = 64;

const REQUESTS: &str = "inputRequests";
const RESPONSES: &str = "inputResponses";

/// One question to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Names it in `inputRequests` and `inputResponses`.
    pub key: String,
    /// Its method.
    pub method: String,
    /// Its raw params, if there are any.
    pub params: Option<String>,
}

impl Question {
    /// From a request of a legacy server. The key is the request's id where that is a string, as names that a server
    /// chooses stay recognisable, else `r` and the number.
    ///
    /// ```
    /// use outrigger_protocol::jsonrpc::Envelope;
    /// use outrigger_protocol::mcp::input::Question;
    ///
    /// let asked = Envelope::parse(r#"{"jsonrpc":"2.0","id":4,"method":"roots/list"}"#, 9).unwrap();
    /// assert_eq!(Question::of_request(&asked).key, "r4");
    /// ```
    pub fn of_request(request: &Envelope<'_>) -> Self {
        let id = request.id.map_or("", |i| i.raw);
        let key = match string(id) {
            Some(text) => text.into_owned(),
            None if id.starts_with('"') => id.trim_matches('"').replace('\\', "-"),
            None => format!("r{id}"),
        };
        let params = request.params.map(|p| modern_params(&request.method, p));
        Self { key, method: request.method.to_string(), params }
    }

    /// From the URLs that a legacy server wants to be visited first (error -32042). `None` when the error lists none.
    pub fn of_urls(error: Slice<'_>) -> Option<Vec<Self>> {
        let data = Object::read(error)?.get("data").and_then(Object::read)?;
        let list = elements(data.get("elicitations")?)?;
        let questions = list.into_iter().take(MAX_INPUTS).enumerate().map(|(i, one)| {
            one.raw.starts_with('{').then(|| Self {
                key: format!("url{}", i + 1),
                method: "elicitation/create".into(),
                params: Some(modern_params("elicitation/create", one)),
            })
        });
        questions.collect::<Option<Vec<_>>>().filter(|q| !q.is_empty())
    }

    /// What a client must declare to be asked; `None` for a method that clients are not asked.
    pub fn need(&self) -> Option<Need> {
        Need::of(&self.method, self.params.as_deref().map(|raw| Slice { raw, at: 0 }))
    }

    /// As a request to a legacy client. One that shows a URL gets `elicitation_id`, which that revision demands.
    pub fn request(&self, id: &str, elicitation_id: &str) -> Vec<u8> {
        let mut out = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":{}"#, quoted(&self.method));
        if let Some(params) = &self.params {
            let object = Object::read(Slice { raw: params, at: 0 });
            let params = match object.filter(|o| self.need() == Some(Need::Url) && o.get("elicitationId").is_none()) {
                Some(object) => {
                    let mut edits = Edits::default();
                    edits.members(&object, |_| false, &format!("\"elicitationId\":{}", quoted(elicitation_id)));
                    Cow::Owned(String::from_utf8_lossy(&edits.apply(params)).into_owned())
                }
                None => Cow::Borrowed(params.as_str()),
            };
            let _ = write!(out, ",\"params\":{params}");
        }
        out.push('}');
        crate::jsonrpc::splice(&out, &[])
    }
}

/// Params of a legacy server's request as a modern one has them: no ids of elicitations, no tasks.
fn modern_params(method: &str, params: Slice<'_>) -> String {
    let Some(object) = Object::read(Slice { raw: params.raw, at: 0 }) else { return params.raw.to_owned() };
    let mut edits = Edits::default();
    edits.members(&object, |key| key == "task" || method == "elicitation/create" && key == "elicitationId", "");
    String::from_utf8_lossy(&edits.apply(params.raw)).into_owned()
}

/// The answer to a modern call that needs input first. `id` is the call's raw id, `state` comes back in the retry as it
/// is, `server` is the raw name and version of the server.
pub fn input_required(id: &str, questions: &[Question], state: Option<&str>, server: Option<&str>) -> Vec<u8> {
    let mut out = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"input_required""#);
    if !questions.is_empty() {
        out.push_str(",\"inputRequests\":{");
        for (i, question) in questions.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let _ = write!(out, "{comma}{}:{{\"method\":{}", quoted(&question.key), quoted(&question.method));
            if let Some(params) = &question.params {
                let _ = write!(out, ",\"params\":{params}");
            }
            out.push('}');
        }
        out.push('}');
    }
    if let Some(state) = state {
        let _ = write!(out, ",\"requestState\":{}", quoted(state));
    }
    if let Some(server) = server {
        let _ = write!(out, ",\"_meta\":{{\"{}\":{server}}}", meta::SERVER_INFO);
    }
    out.push_str("}}");
    crate::jsonrpc::splice(&out, &[])
}

/// Why input can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadInput {
    /// A member is of the wrong kind.
    #[error("{0} must be {1}")]
    Kind(&'static str, &'static str),
    /// A key twice.
    #[error("{0} has the key {1:?} twice")]
    Twice(&'static str, String),
    /// More than [`MAX_INPUTS`].
    #[error("{0} has more than {MAX_INPUTS} members")]
    TooMany(&'static str),
    /// A question that clients are not asked.
    #[error("inputRequests asks for {0:?}, which clients are not asked")]
    Method(String),
    /// Neither questions nor state.
    #[error("input_required has neither inputRequests nor requestState")]
    Empty,
}

/// What a modern server asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputRequired<'a> {
    /// Its questions; none when it only wants the call again.
    pub questions: Vec<Question>,
    /// The raw state that the retry must carry.
    pub state: Option<&'a str>,
}

impl<'a> InputRequired<'a> {
    /// Reads a result; `None` when it is of another type.
    pub fn read(result: Slice<'a>) -> Result<Option<Self>, BadInput> {
        // Most results are whole: what they begin with tells, without a scan.
        if !result.raw.contains("input_required") {
            return Ok(None);
        }
        let Some(object) = Object::read(result) else { return Ok(None) };
        if object.text("resultType").as_deref() != Some("input_required") {
            return Ok(None);
        }
        let mut questions = Vec::new();
        if let Some(requests) = object.get(REQUESTS) {
            for (key, value) in entries(requests, REQUESTS)? {
                let one = Object::read(value).ok_or(BadInput::Kind("a member of inputRequests", "an object"))?;
                let method = one.text("method").ok_or(BadInput::Kind("a method in inputRequests", "a string"))?;
                if Need::of(&method, None).is_none() {
                    return Err(BadInput::Method(method.into_owned()));
                }
                let params = one.get("params").filter(|p| p.raw != "null").map(|p| p.raw.to_owned());
                questions.push(Question { key: key.into_owned(), method: method.into_owned(), params });
            }
        }
        let state = object.get("requestState").map(|s| s.raw);
        if questions.is_empty() && state.is_none() {
            return Err(BadInput::Empty);
        }
        Ok(Some(Self { questions, state }))
    }
}

/// The answers of a retry by key, as raw results. `responses` is `params.inputResponses`.
pub fn answers(responses: Slice<'_>) -> Result<Vec<(Cow<'_, str>, &str)>, BadInput> {
    let mut out = Vec::new();
    for (key, value) in entries(responses, RESPONSES)? {
        if !value.raw.starts_with('{') {
            return Err(BadInput::Kind("a member of inputResponses", "an object"));
        }
        out.push((key, value.raw));
    }
    Ok(out)
}

/// The answer to a legacy server's request with this raw id.
pub fn answer(id: &str, result: &str) -> Vec<u8> {
    crate::jsonrpc::splice(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#), &[])
}

fn entries<'a>(value: Slice<'a>, name: &'static str) -> Result<Vec<(Cow<'a, str>, Slice<'a>)>, BadInput> {
    let object = Object::read(value).ok_or(BadInput::Kind(name, "an object"))?;
    let members = object.members();
    if members.len() > MAX_INPUTS {
        return Err(BadInput::TooMany(name));
    }
    for (i, member) in members.iter().enumerate() {
        if members[..i].iter().any(|m| m.key == member.key) {
            return Err(BadInput::Twice(name, member.key.to_string()));
        }
    }
    Ok(members.iter().map(|m| (m.key.clone(), m.value)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(raw: &str) -> Slice<'_> {
        Slice { raw, at: 0 }
    }

    fn text(line: Vec<u8>) -> String {
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn questions_of_a_legacy_server() {
        let mut lines = Vec::new();
        for request in [
            r#"{"jsonrpc":"2.0","id":"user_name","method":"elicitation/create","params":{"message":"\ud800?","requestedSchema":{"type":"object"}}}"#,
            r#"{"jsonrpc":"2.0","id":2,"method":"elicitation/create","params":{"mode":"url","elicitationId":"e1","url":"https://a.example/?x=1","message":"m"}}"#,
            r#"{"jsonrpc":"2.0","id":3,"method":"sampling/createMessage","params":{"messages":[],"maxTokens":12345678901234567890,"task":{"ttl":1}}}"#,
            r#"{"jsonrpc":"2.0","id":4.0,"method":"roots/list"}"#,
        ] {
            let question = Question::of_request(&Envelope::parse(request, 64).unwrap());
            assert!(question.need().is_some());
            lines.push(question);
        }
        let made = text(input_required("\"c\"", &lines, Some("st\"ate"), Some(r#"{"name":"s"}"#)));
        let read = InputRequired::read(Envelope::parse(&made, 64).unwrap().result.unwrap()).unwrap().unwrap();
        assert_eq!((read.questions, read.state), (lines, Some("\"st\\\"ate\"")));
        insta::assert_snapshot!(made);
        insta::assert_snapshot!("no_questions", text(input_required("1", &[], Some("s"), None)));
    }

    #[test]
    fn urls_to_visit_first() {
        let error = r#"{"code":-32042,"message":"m","data":{"elicitations":[{"mode":"url","elicitationId":"e","url":"https://a.example","message":"m"},{"elicitationId":"f","mode":"url","url":"u","message":"n"}]}}"#;
        let questions = Question::of_urls(slice(error)).unwrap();
        assert!(questions.iter().all(|q| q.need() == Some(Need::Url)));
        insta::assert_snapshot!(text(input_required("1", &questions, Some("s"), None)));
        for bad in [
            r#"{"code":1}"#,
            r#"{"data":{"elicitations":[]}}"#,
            r#"{"data":{"elicitations":[7]}}"#,
            r#"{"data":{"elicitations":{}}}"#,
        ] {
            assert_eq!(Question::of_urls(slice(bad)), None, "{bad}");
        }
    }

    #[test]
    fn questions_of_a_modern_server_become_requests() {
        let result = r#"{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":{
            "mode":"url","url":"u","message":"m"}},"b":{"method":"elicitation/create","params":{"message":"m"}},"c":{"method":"roots/list","params":null}},"requestState":"s"}"#;
        let read = InputRequired::read(slice(result)).unwrap().unwrap();
        let lines: Vec<_> = read.questions.iter().map(|q| text(q.request("\"9\"", "id1"))).collect();
        assert!(lines.iter().all(|l| Envelope::parse(l, 64).is_ok()));
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn results_that_ask_for_nothing_usable() {
        let read = |raw| InputRequired::read(slice(raw));
        assert_eq!(read(r#"{"content":[{"text":"input_required"}]}"#), Ok(None));
        assert_eq!(read(r#"{"resultType":"complete"}"#), Ok(None));
        assert_eq!(read(r#""input_required""#), Ok(None));
        assert_eq!(read(r#"{"resultType":"input_required"}"#), Err(BadInput::Empty));
        assert_eq!(
            read(r#"{"resultType":"input_required","inputRequests":{"a":{"method":"tools/call"}}}"#),
            Err(BadInput::Method("tools/call".into()))
        );
        assert!(read(r#"{"resultType":"input_required","inputRequests":[]}"#).is_err());
        assert!(read(r#"{"resultType":"input_required","inputRequests":{"a":7}}"#).is_err());
        let many: Vec<_> = (0..=MAX_INPUTS).map(|i| format!("\"{i}\":{{}}")).collect();
        let many = format!("{{{}}}", many.join(","));
        assert_eq!(answers(slice(&many)), Err(BadInput::TooMany("inputResponses")));
    }

    #[test]
    fn answers_of_a_retry() {
        let raw = r#"{"a":{"action":"accept","content":{"n":12345678901234567890}},"\u0062":{"roots":[]}}"#;
        let got = answers(slice(raw)).unwrap();
        assert_eq!(got[1], ("b".into(), r#"{"roots":[]}"#));
        assert_eq!(
            text(answer("\"x\"", got[0].1)),
            r#"{"jsonrpc":"2.0","id":"x","result":{"action":"accept","content":{"n":12345678901234567890}}}"#
        );
        for bad in ["null", "[]", r#"{"a":null}"#, r#"{"a":{},"a":{}}"#] {
            assert!(answers(slice(bad)).is_err(), "{bad}");
        }
    }
}
