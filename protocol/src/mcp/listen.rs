//! `subscriptions/listen` (2026-07-28, "Subscriptions"): what a client wants to hear of, and the messages of its stream.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::jsonrpc::{Envelope, Slice, member, splice, string};

use super::capability::Server;
use super::meta::{self, Stamp};
use super::object::{Edits, Object, elements, quoted};

/// Resources that one subscription may name.
pub const MAX_URIS: usize = 1024;

const URIS: &str = "resourceSubscriptions";

/// Kinds of changes that somebody wants to hear of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listen {
    /// `toolsListChanged`.
    pub tools: bool,
    /// `promptsListChanged`.
    pub prompts: bool,
    /// `resourcesListChanged`.
    pub resources: bool,
    /// `resourceSubscriptions`: URIs.
    pub uris: Vec<String>,
}

/// Why a `subscriptions/listen` can't be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadListen {
    /// Nothing says what to listen to.
    #[error("params.notifications must be an object")]
    NoFilter,
    /// A member is of the wrong kind.
    #[error("{0} in params.notifications must be {1}")]
    Kind(&'static str, &'static str),
    /// More than [`MAX_URIS`].
    #[error("resourceSubscriptions names more than {MAX_URIS} resources")]
    TooMany,
}

impl Listen {
    /// Reads the params of a `subscriptions/listen`. Members that this revision does not name are passed over.
    pub fn read(params: Option<Slice<'_>>) -> Result<Self, BadListen> {
        let filter = params.and_then(|p| member(p, "notifications")).ok_or(BadListen::NoFilter)?;
        Self::read_filter(filter)
    }

    /// Reads the `notifications` member of `subscriptions/listen` or of its acknowledgement.
    pub fn read_filter(filter: Slice<'_>) -> Result<Self, BadListen> {
        let object = Object::read(filter).ok_or(BadListen::NoFilter)?;
        let flag = |key| match object.get(key).map(|v| v.raw) {
            Some("true") => Ok(true),
            None | Some("false" | "null") => Ok(false),
            Some(_) => Err(BadListen::Kind(key, "true or false")),
        };
        let mut uris = Vec::new();
        if let Some(list) = object.get(URIS).filter(|v| v.raw != "null") {
            let wrong = BadListen::Kind(URIS, "a list of URIs");
            let list = elements(list).ok_or_else(|| wrong.clone())?;
            if list.len() > MAX_URIS {
                return Err(BadListen::TooMany);
            }
            for uri in list {
                let uri = string(uri.raw).ok_or_else(|| wrong.clone())?.into_owned();
                if !uris.contains(&uri) {
                    uris.push(uri);
                }
            }
        }
        Ok(Self {
            tools: flag("toolsListChanged")?,
            prompts: flag("promptsListChanged")?,
            resources: flag("resourcesListChanged")?,
            uris,
        })
    }

    /// What of it a server with these capabilities can tell.
    #[must_use]
    pub fn granted(self, server: Server) -> Self {
        Self {
            tools: self.tools && server.tools_changed,
            prompts: self.prompts && server.prompts_changed,
            resources: self.resources && server.resources_changed,
            uris: if server.subscribe { self.uris } else { Vec::new() },
        }
    }

    /// Whether there is nothing to hear.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a change is among it. A server may tell of a part of a resource that was subscribed to.
    pub fn wants(&self, change: &Change<'_>) -> bool {
        match change {
            Change::Tools => self.tools,
            Change::Prompts => self.prompts,
            Change::Resources => self.resources,
            Change::Resource(uri) => self.uris.iter().any(|u| covers(u, uri)),
        }
    }

    /// The object that stands under `notifications`.
    fn filter(&self) -> String {
        let mut members = Vec::new();
        for (name, set) in [
            ("toolsListChanged", self.tools),
            ("promptsListChanged", self.prompts),
            ("resourcesListChanged", self.resources),
        ] {
            if set {
                members.push(format!("\"{name}\":true"));
            }
        }
        if !self.uris.is_empty() {
            let uris: Vec<_> = self.uris.iter().map(|u| quoted(u)).collect();
            members.push(format!("\"resourceSubscriptions\":[{}]", uris.join(",")));
        }
        format!("{{{}}}", members.join(","))
    }

    /// The first message of the stream: what was granted. `id` is the raw id of the listen request.
    pub fn acknowledged(&self, id: &str) -> Vec<u8> {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"notifications":{},"_meta":{{"{}":{id}}}}}}}"#,
            self.filter(),
            meta::SUBSCRIPTION_ID
        )
        .into_bytes()
    }

    /// A `subscriptions/listen` of our own.
    pub fn request(&self, id: u64, stamp: &Stamp) -> Vec<u8> {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"subscriptions/listen","params":{{"notifications":{},"_meta":{{{}}}}}}}"#,
            self.filter(),
            stamp.members()
        )
        .into_bytes()
    }
}

/// Whether an update of `uri` concerns who subscribed to `subscribed`: the resource itself or a part of it.
///
/// ```
/// use outrigger_protocol::mcp::listen::covers;
/// assert!(covers("file:///a", "file:///a") && covers("file:///a", "file:///a/b"));
/// assert!(!covers("file:///a", "file:///ab") && !covers("", "x"));
/// ```
pub fn covers(subscribed: &str, uri: &str) -> bool {
    match uri.strip_prefix(subscribed) {
        Some("") => true,
        Some(rest) => !subscribed.is_empty() && (subscribed.ends_with('/') || rest.starts_with(['/', '?', '#'])),
        None => false,
    }
}

/// A change that a server tells of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Of its tools.
    Tools,
    /// Of its prompts.
    Prompts,
    /// Of its list of resources.
    Resources,
    /// Of one resource.
    Resource(Cow<'a, str>),
}

impl<'a> Change<'a> {
    /// What a notification tells; `None` when it tells of no change.
    pub fn of(message: &Envelope<'a>) -> Option<Self> {
        Some(match &*message.method {
            "notifications/tools/list_changed" => Self::Tools,
            "notifications/prompts/list_changed" => Self::Prompts,
            "notifications/resources/list_changed" => Self::Resources,
            "notifications/resources/updated" => Self::Resource(string(member(message.params?, "uri")?.raw)?),
            _ => return None,
        })
    }
}

/// The raw id of the subscription that a notification, or the result that ends it, belongs to.
pub fn subscription_id<'a>(message: &Envelope<'a>) -> Option<&'a str> {
    let body = message.params.or(message.result)?;
    Some(member(member(body, "_meta")?, meta::SUBSCRIPTION_ID)?.raw)
}

/// A notification as part of the subscription with this raw id, in place of another it may belong to.
pub fn stamped(message: &Envelope<'_>, id: &str) -> Vec<u8> {
    let member = format!("\"{}\":{id}", meta::SUBSCRIPTION_ID);
    with_meta(message, &member, |key| key == meta::SUBSCRIPTION_ID)
}

/// A notification as part of no subscription.
pub fn unstamped(message: &Envelope<'_>) -> Vec<u8> {
    let mut edits = Edits::default();
    if let Some(object) = message.params.and_then(|p| member(p, "_meta")).and_then(Object::read) {
        edits.members(&object, |key| key == meta::SUBSCRIPTION_ID, "");
    }
    edits.apply(message.text)
}

/// A message with members put into `params._meta`, which is made where it is missing, and others taken out of it.
fn with_meta(message: &Envelope<'_>, members: &str, remove: impl Fn(&str) -> bool) -> Vec<u8> {
    let mut edits = Edits::default();
    put_meta(message, members, remove, "", |_| false, &mut edits);
    edits.apply(message.text)
}

/// Puts members into `params._meta` and into `params`, and takes others out. Both are made where they are missing;
/// params that are no object stay as they are.
pub(super) fn put_meta(
    message: &Envelope<'_>,
    meta: &str,
    remove_meta: impl Fn(&str) -> bool,
    insert: &str,
    remove: impl Fn(&str) -> bool,
    edits: &mut Edits<'_>,
) {
    let comma = if insert.is_empty() { "" } else { "," };
    let Some(params) = message.params else {
        let end = message.text.trim_end().len() - 1;
        return edits.replace(end..end, format!(",\"params\":{{\"_meta\":{{{meta}}}{comma}{insert}}}"));
    };
    let Some(params) = Object::read(params) else { return };
    match params.get("_meta") {
        None => edits.members(&params, remove, &format!("\"_meta\":{{{meta}}}{comma}{insert}")),
        Some(old) => {
            edits.members(&params, remove, insert);
            match Object::read(old) {
                Some(object) => edits.members(&object, remove_meta, meta),
                None => edits.replace(old.range(), format!("{{{meta}}}")),
            }
        }
    }
}

/// The result that ends a subscription; `id` is the raw id of the listen request.
pub fn closed(id: &str, server: Option<&str>) -> Vec<u8> {
    let mut meta = format!("\"{}\":{id}", meta::SUBSCRIPTION_ID);
    if let Some(server) = server {
        let _ = write!(meta, ",\"{}\":{server}", meta::SERVER_INFO);
    }
    splice(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"complete","_meta":{{{meta}}}}}}}"#), &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Envelope<'_> {
        Envelope::parse(text, 64).unwrap()
    }

    fn listen(filter: &str) -> Result<Listen, BadListen> {
        let params = format!(r#"{{"notifications":{filter}}}"#);
        Listen::read(Some(Slice { raw: &params, at: 0 }))
    }

    #[test]
    fn what_is_asked_and_granted() {
        let all = listen(r#"{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":["a://b","a://b","c\n"],"taskIds":["t"]}"#).unwrap();
        let server = Server::read(r#"{"tools":{"listChanged":true},"resources":{"subscribe":true}}"#);
        let granted = all.clone().granted(server);
        assert!(granted.tools && !granted.prompts && !granted.resources && granted.uris.len() == 2);
        let stamp = Stamp::new("2026-07-28", "{}", None, None);
        let lines = [
            all.acknowledged("\"l\\u0031\""),
            granted.acknowledged("1.0"),
            Listen::default().acknowledged("2"),
            granted.request(7, &stamp),
            closed("3", Some(r#"{"name":"s"}"#)),
        ];
        let lines: Vec<_> = lines.iter().map(|l| std::str::from_utf8(l).unwrap()).collect();
        assert_eq!(subscription_id(&parse(lines[1])), Some("1.0"));
        assert_eq!(subscription_id(&parse(lines[4])), Some("3"));
        assert_eq!(Listen::read(parse(lines[3]).params), Ok(granted));
        insta::assert_snapshot!(lines.join("\n"));
        assert!(all.granted(Server::default()).is_empty());
    }

    #[test]
    fn filters_that_are_none() {
        assert_eq!(Listen::read(None), Err(BadListen::NoFilter));
        for bad in [
            "[]",
            "null",
            r#"{"toolsListChanged":1}"#,
            r#"{"resourceSubscriptions":"a"}"#,
            r#"{"resourceSubscriptions":[1]}"#,
        ] {
            assert!(listen(bad).is_err(), "{bad}");
        }
        let many = format!(r#"{{"resourceSubscriptions":[{}"x"]}}"#, "\"x\",".repeat(MAX_URIS));
        assert_eq!(listen(&many), Err(BadListen::TooMany));
        assert_eq!(listen("{}"), Ok(Listen::default()));
    }

    #[test]
    fn changes_reach_who_wants_them() {
        let wants = listen(r#"{"promptsListChanged":true,"resourceSubscriptions":["file:///a"]}"#).unwrap();
        let told = |method: &str, params: &str| {
            let text = format!(r#"{{"jsonrpc":"2.0","method":"notifications/{method}","params":{params}}}"#);
            Change::of(&parse(&text)).map(|c| wants.wants(&c))
        };
        assert_eq!(told("prompts/list_changed", "{}"), Some(true));
        assert_eq!(told("tools/list_changed", "{}"), Some(false));
        assert_eq!(told("resources/list_changed", "{}"), Some(false));
        assert_eq!(told("resources/updated", r#"{"uri":"file:\/\/\/a"}"#), Some(true));
        assert_eq!(told("resources/updated", r#"{"uri":"file:///a/b"}"#), Some(true));
        assert_eq!(told("resources/updated", r#"{"uri":"file:///b"}"#), Some(false));
        assert_eq!(told("resources/updated", "{}"), None);
        assert_eq!(told("message", "{}"), None);
    }

    #[test]
    fn stamps_replace_stamps() {
        let stamp = |text: &str| String::from_utf8(stamped(&parse(text), "\"l\"")).unwrap();
        let key = meta::SUBSCRIPTION_ID;
        assert_eq!(
            stamp(r#"{"jsonrpc":"2.0","method":"n"}"#),
            format!(r#"{{"jsonrpc":"2.0","method":"n","params":{{"_meta":{{"{key}":"l"}}}}}}"#)
        );
        assert_eq!(
            stamp(r#" {"jsonrpc":"2.0","method":"n","params":{"uri":"u"}} "#),
            format!(r#" {{"jsonrpc":"2.0","method":"n","params":{{"_meta":{{"{key}":"l"}},"uri":"u"}}}} "#)
        );
        let own = format!(r#"{{"jsonrpc":"2.0","method":"n","params":{{"_meta":{{"a":1,"{key}":7}},"uri":"u"}}}}"#);
        assert_eq!(stamp(&own), own.replace(&format!(r#""a":1,"{key}":7"#), &format!(r#""{key}":"l","a":1"#)));
        assert_eq!(
            String::from_utf8(unstamped(&parse(&own))).unwrap(),
            r#"{"jsonrpc":"2.0","method":"n","params":{"_meta":{"a":1},"uri":"u"}}"#
        );
        let odd = r#"{"jsonrpc":"2.0","method":"n","params":[1]}"#;
        assert_eq!(stamp(odd), odd);
        assert_eq!(stamp(r#"{"jsonrpc":"2.0","method":"n","params":{"_meta":null}}"#).matches(key).count(), 1);
    }
}
