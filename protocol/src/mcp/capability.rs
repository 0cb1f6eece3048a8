//! Capabilities of clients, as far as a proxy acts on them, and of servers.

use crate::jsonrpc::{Slice, error_response, member, string};

use super::MISSING_CAPABILITY;
use super::object::Object;

/// What a client lets a server ask of it. Everything else in its capabilities means nothing to a proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the members of the capabilities object")]
pub struct Client {
    /// Forms may be shown (`elicitation`, or `elicitation.form`).
    pub forms: bool,
    /// URLs may be shown (`elicitation.url`).
    pub urls: bool,
    /// A model may be asked (`sampling`).
    pub sampling: bool,
    /// A model may be asked with tools (`sampling.tools`).
    pub sampling_tools: bool,
    /// Roots may be asked for (`roots`).
    pub roots: bool,
}

impl Client {
    /// Reads a capabilities object of either era. What is no object declares nothing.
    ///
    /// ```
    /// use outrigger_protocol::mcp::capability::Client;
    ///
    /// let client = Client::read(r#"{"elicitation":{},"roots":{"listChanged":true}}"#);
    /// assert!(client.forms && client.roots && !client.urls && !client.sampling);
    /// ```
    pub fn read(raw: &str) -> Self {
        let Some(object) = Object::read(Slice { raw, at: 0 }) else { return Self::default() };
        let declared = |key| object.get(key).and_then(Object::read);
        let elicitation = declared("elicitation");
        let has = |key: &str| elicitation.as_ref().is_some_and(|e| e.get(key).is_some_and(|v| v.raw != "null"));
        let sampling = declared("sampling");
        Self {
            // Without a mode, forms are meant: the first revision with elicitation had no others.
            forms: elicitation.is_some() && (has("form") || !has("url")),
            urls: has("url"),
            sampling_tools: sampling.as_ref().is_some_and(|s| s.get("tools").is_some_and(|v| v.raw != "null")),
            sampling: sampling.is_some(),
            roots: declared("roots").is_some(),
        }
    }

    /// Whether a server may ask nothing, so that all clients of this kind can share a process.
    pub fn asks_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a server may send this request to the client.
    pub fn takes(&self, need: Need) -> bool {
        match need {
            Need::Form => self.forms,
            Need::Url => self.urls,
            Need::Sampling => self.sampling,
            Need::SamplingWithTools => self.sampling && self.sampling_tools,
            Need::Roots => self.roots,
        }
    }
}

/// What a request to a client needs it to declare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// `elicitation/create` with a form.
    Form,
    /// `elicitation/create` with a URL.
    Url,
    /// `sampling/createMessage`.
    Sampling,
    /// `sampling/createMessage` with tools.
    SamplingWithTools,
    /// `roots/list`.
    Roots,
}

impl Need {
    /// Of a request to a client; `None` for a method that clients are not asked.
    pub fn of(method: &str, params: Option<Slice<'_>>) -> Option<Self> {
        let param = |key| params.and_then(|p| member(p, key));
        Some(match method {
            "elicitation/create" => match param("mode").and_then(|m| string(m.raw)).as_deref() {
                Some("url") => Self::Url,
                _ => Self::Form,
            },
            "sampling/createMessage" if param("tools").is_some() || param("toolChoice").is_some() => {
                Self::SamplingWithTools
            }
            "sampling/createMessage" => Self::Sampling,
            "roots/list" => Self::Roots,
            _ => return None,
        })
    }

    /// The capabilities that declare it.
    pub fn capabilities(self) -> serde_json::Value {
        use serde_json::json;
        match self {
            Self::Form => json!({"elicitation": {"form": {}}}),
            Self::Url => json!({"elicitation": {"url": {}}}),
            Self::Sampling => json!({"sampling": {}}),
            Self::SamplingWithTools => json!({"sampling": {"tools": {}}}),
            Self::Roots => json!({"roots": {}}),
        }
    }

    /// The error for a modern request that would have needed it.
    pub fn missing(self, id: &str) -> Vec<u8> {
        let capabilities = self.capabilities();
        let message = format!("the server needs capabilities that this request does not declare: {capabilities}");
        let data = serde_json::json!({"requiredCapabilities": capabilities});
        error_response(Some(id), MISSING_CAPABILITY, &message, Some(&data))
    }
}

/// What a server offers, as far as a proxy acts on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the members of the capabilities object")]
pub struct Server {
    /// It tells when its tools change.
    pub tools_changed: bool,
    /// It tells when its prompts change.
    pub prompts_changed: bool,
    /// It tells when its resources change.
    pub resources_changed: bool,
    /// Single resources can be subscribed to.
    pub subscribe: bool,
    /// It takes a log level.
    pub logging: bool,
}

impl Server {
    /// Reads a capabilities object of either era. What is no object offers nothing.
    pub fn read(raw: &str) -> Self {
        let Some(object) = Object::read(Slice { raw, at: 0 }) else { return Self::default() };
        let says = |key, flag| object.get(key).and_then(|o| member(o, flag)).is_some_and(|v| v.raw == "true");
        Self {
            tools_changed: says("tools", "listChanged"),
            prompts_changed: says("prompts", "listChanged"),
            resources_changed: says("resources", "listChanged"),
            subscribe: says("resources", "subscribe"),
            logging: object.get("logging").is_some_and(|v| v.raw.starts_with('{')),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients() {
        let of = |raw| {
            let c = Client::read(raw);
            [c.forms, c.urls, c.sampling, c.sampling_tools, c.roots].map(u8::from)
        };
        assert_eq!(of("{}"), [0; 5]);
        assert_eq!(of("null"), [0; 5]);
        assert_eq!(of(r#"{"elicitation":{}}"#), [1, 0, 0, 0, 0]);
        assert_eq!(of(r#"{"elicitation":{"url":{}}}"#), [0, 1, 0, 0, 0]);
        assert_eq!(of(r#"{"elicitation":{"url":{},"form":{}},"sampling":{}}"#), [1, 1, 1, 0, 0]);
        assert_eq!(of(r#"{"elicitation":null,"sampling":{"tools":{}},"roots":{"listChanged":true}}"#), [0, 0, 1, 1, 1]);
        assert!(Client::read(r#"{"extensions":{"a":{}},"experimental":{}}"#).asks_nothing());
        assert!(!Client::read(r#"{"roots":{}}"#).asks_nothing());
    }

    #[test]
    fn needs() {
        let need = |method, raw| Need::of(method, Some(Slice { raw, at: 0 }));
        assert_eq!(need("elicitation/create", r#"{"mode":"url"}"#), Some(Need::Url));
        assert_eq!(need("elicitation/create", r#"{"message":"m"}"#), Some(Need::Form));
        assert_eq!(need("sampling/createMessage", r#"{"tools":[]}"#), Some(Need::SamplingWithTools));
        assert_eq!(need("sampling/createMessage", "{}"), Some(Need::Sampling));
        assert_eq!((Need::of("roots/list", None), Need::of("ping", None)), (Some(Need::Roots), None));
        for need in [Need::Form, Need::Url, Need::Sampling, Need::SamplingWithTools, Need::Roots] {
            assert!(!Client::default().takes(need));
            assert!(Client::read(&need.capabilities().to_string()).takes(need), "{need:?}");
        }
        assert_eq!(
            String::from_utf8(Need::Url.missing("7")).unwrap(),
            r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32021,"message":"the server needs capabilities that this request does not declare: {\"elicitation\":{\"url\":{}}}","data":{"requiredCapabilities":{"elicitation":{"url":{}}}}}}"#
        );
    }

    #[test]
    fn servers() {
        let s = Server::read(
            r#"{"tools":{"listChanged":true},"resources":{"subscribe":true},"logging":{},"prompts":null}"#,
        );
        assert!(s.tools_changed && s.subscribe && s.logging && !s.prompts_changed && !s.resources_changed);
        assert_eq!(Server::read("[]"), Server::default());
    }
}
