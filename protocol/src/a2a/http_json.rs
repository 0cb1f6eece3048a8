//! Paths, query parameters and bodies of A2A over HTTP and JSON (A2A 1.0, section 11; 0.3 under `/v1`).

mod params;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

pub use params::{params, parse_body};

use super::errors::{Error, Kind};
use super::operation::{Dialect, Operation};

/// Longest tenant in a path, in bytes.
pub const MAX_TENANT_BYTES: usize = 256;

/// First segments of paths that no tenant can be called.
const RESERVED: [&str; 6] = ["tasks", "message:send", "message:stream", "extendedAgentCard", "v1", ".well-known"];

const CANCEL: &str = "cancel";
const SUBSCRIBE: &str = "subscribe";
const CONFIGS: &str = "pushNotificationConfigs";

/// What a method and a path ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route<'a> {
    /// The operation.
    pub operation: Operation,
    /// The dialect that the path is part of.
    ///
    /// The extended card of 0.3 is [`Dialect::V03`]: the clients in the field read there what JSON-RPC gives.
    pub dialect: Dialect,
    /// The tenant in front of the path.
    pub tenant: Option<Cow<'a, str>>,
    /// The task in the path.
    pub task: Option<Cow<'a, str>>,
    /// The push notification configuration in the path.
    pub config: Option<Cow<'a, str>>,
    /// Whether parameters are in the body; else they are in the query.
    pub in_body: bool,
}

type Verbs = &'static [(&'static str, Operation)];

/// Reads a method and a path, the query apart. An unknown path is [`Kind::MethodNotFound`], a wrong method
/// [`Kind::MethodNotAllowed`] with the header `allow`.
pub fn route<'a>(method: &str, path: &'a str) -> Result<Route<'a>, Error> {
    let not_found = || {
        let path: String = path.chars().take(200).collect();
        Error::new(Kind::MethodNotFound, format!("there is no path {path:?} in A2A"))
    };
    let path = path.strip_prefix('/').unwrap_or(path);
    let mut segments: Vec<&'a str> = path.strip_suffix('/').unwrap_or(path).splitn(7, '/').collect();
    let mut dialect = Dialect::V10;
    let mut tenant = None;
    let first = segments.first().copied().unwrap_or_default();
    if first == "v1" {
        dialect = Dialect::V03Proto;
        segments.remove(0);
    } else if !RESERVED.contains(&&*decoded(first).ok_or_else(not_found)?) {
        tenant = Some(decoded(first).filter(|t| !t.is_empty() && t.len() <= MAX_TENANT_BYTES).ok_or_else(not_found)?);
        segments.remove(0);
    }
    let (verbs, task, config) = verbs(&segments, dialect).ok_or_else(not_found)?;
    let Some((_, operation)) = verbs.iter().find(|(verb, _)| *verb == method) else {
        let allow = verbs.iter().map(|(verb, _)| *verb).collect::<Vec<_>>().join(", ");
        let method: String = method.chars().take(16).collect();
        let message = format!("the method {method:?} is not taken here, {allow} is");
        return Err(Error::new(Kind::MethodNotAllowed, message).header("allow", allow));
    };
    if dialect != Dialect::V10 && *operation == Operation::GetExtendedAgentCard {
        dialect = Dialect::V03;
    }
    Ok(Route { operation: *operation, dialect, tenant, task, config, in_body: method == "POST" })
}

type Found<'a> = (Verbs, Option<Cow<'a, str>>, Option<Cow<'a, str>>);

fn verbs<'a>(segments: &[&'a str], dialect: Dialect) -> Option<Found<'a>> {
    let v10 = dialect == Dialect::V10;
    let id = |segment: &'a str| decoded(segment).filter(|id| !id.is_empty());
    let verbs: Verbs = match segments {
        [one] => match &*decoded(one)? {
            "message:send" => &[("POST", Operation::SendMessage)],
            "message:stream" => &[("POST", Operation::SendStreamingMessage)],
            "tasks" if v10 => &[("GET", Operation::ListTasks)],
            "extendedAgentCard" if v10 => &[("GET", Operation::GetExtendedAgentCard)],
            "card" if !v10 => &[("GET", Operation::GetExtendedAgentCard)],
            _ => return None,
        },
        ["tasks", task] => {
            let (task, verbs): (_, Verbs) = if let Some(task) = before(task, CANCEL) {
                (task, &[("POST", Operation::CancelTask)])
            } else if let Some(task) = before(task, SUBSCRIBE) {
                // The specification says POST in one place and GET in another; clients differ.
                (task, &[("GET", Operation::SubscribeToTask), ("POST", Operation::SubscribeToTask)])
            } else {
                (*task, &[("GET", Operation::GetTask)])
            };
            return Some((verbs, Some(id(task)?), None));
        }
        ["tasks", task, CONFIGS] => {
            let verbs: Verbs = &[
                ("GET", Operation::ListTaskPushNotificationConfigs),
                ("POST", Operation::CreateTaskPushNotificationConfig),
            ];
            return Some((verbs, Some(id(task)?), None));
        }
        ["tasks", task, CONFIGS, config] => {
            let verbs: Verbs = &[
                ("DELETE", Operation::DeleteTaskPushNotificationConfig),
                ("GET", Operation::GetTaskPushNotificationConfig),
            ];
            return Some((verbs, Some(id(task)?), Some(id(config)?)));
        }
        _ => return None,
    };
    Some((verbs, None, None))
}

/// What stands before `:action`; the colon may be encoded.
fn before<'a>(segment: &'a str, action: &str) -> Option<&'a str> {
    let rest = segment.strip_suffix(action)?;
    rest.strip_suffix(':').or_else(|| rest.strip_suffix("%3A")).or_else(|| rest.strip_suffix("%3a"))
}

/// Percent-decodes; what is no escape stays. `None` for what is no UTF-8 then.
fn decoded(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('%') {
        return Some(Cow::Borrowed(text));
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, more)) = rest.split_first() {
        rest = more;
        let escape = match (byte, more) {
            (b'%', [high, low, ..]) => hex(*high).zip(hex(*low)),
            _ => None,
        };
        if let Some((high, low)) = escape {
            out.push(high << 4 | low);
            rest = &rest[2..];
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok().map(Cow::Owned)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|d| u8::try_from(d).ok())
}

/// Value of the first query parameter of a name, in any case: such as `A2A-Version`.
pub fn query_value<'a>(query: &'a str, name: &str) -> Option<Cow<'a, str>> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).and_then(|(_, value)| form_decoded(value))
}

/// The same as [`decoded`], with `+` for a space.
fn form_decoded(text: &str) -> Option<Cow<'_, str>> {
    if text.contains('+') {
        decoded(&text.replace('+', " ")).map(|t| Cow::Owned(t.into_owned()))
    } else {
        decoded(text)
    }
}
