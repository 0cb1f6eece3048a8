//! From path, query and body to parameters as JSON-RPC would carry them.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::{Route, form_decoded};
use crate::a2a::errors::{Error, Kind, Violation};
use crate::a2a::operation::{Dialect, Operation};
use crate::a2a::part::violation;
use crate::a2a::raw::{self, MAX_DEPTH, Members, Raw, depth_within, is_snake_of, push_key, push_text, text_of};

/// Most query parameters of one request.
const MAX_QUERY: usize = 64;

/// How a query parameter reads.
#[derive(Clone, Copy)]
enum Shape {
    Text,
    Integer,
    Bool,
}

type Known = &'static [(&'static str, Shape)];

/// Reads a body; nothing but white space is no body.
pub fn parse_body(body: &[u8]) -> Result<Option<&RawValue>, Error> {
    let text = std::str::from_utf8(body)
        .map_err(|e| Error::new(Kind::Parse, format!("the body is no UTF-8 after byte {}", e.valid_up_to())))?;
    if text.trim().is_empty() {
        return Ok(None);
    }
    if !depth_within(body, MAX_DEPTH) {
        let message = format!("the body is nested deeper than {MAX_DEPTH} levels");
        return Err(Error::new(Kind::InvalidRequest, message));
    }
    let value = serde_json::from_str(text).map_err(|e| Error::new(Kind::Parse, format!("the body is no JSON: {e}")))?;
    Ok(Some(value))
}

/// Parameters of a request, in its dialect: what the path names stands in them under its usual name.
///
/// A body that names another task or tenant than the path is an error. Query parameters that nobody knows are passed
/// over, as are all of them where there is a body.
pub fn params(route: &Route<'_>, query: Option<&str>, body: Option<&RawValue>) -> Result<Option<Raw>, Error> {
    let mut out = String::from("{");
    let mut found = Vec::new();
    let path = of_path(route, &mut out);
    if route.in_body {
        match body {
            Some(body) => merge(body, &path, route, &mut out, &mut found)?,
            None if matches!(route.operation, Operation::CancelTask | Operation::SubscribeToTask) => {}
            None => return Err(Error::new(Kind::Parse, "the body is empty, want a JSON object")),
        }
    } else if let Some(query) = query {
        of_query(route, query, &path, &mut out, &mut found);
    }
    if !found.is_empty() {
        return Err(Error::invalid(found));
    }
    out.push('}');
    if out == "{}" && route.operation == Operation::GetExtendedAgentCard {
        return Ok(None);
    }
    Ok(Some(Raw::assembled(&out)))
}

/// Writes what the path names, and gives the members with their values.
fn of_path<'a>(route: &'a Route<'_>, out: &mut String) -> Vec<(&'static str, Cow<'a, str>)> {
    let mut path = Vec::new();
    let task = || Cow::Borrowed(route.task.as_deref().unwrap_or_default());
    let config = || Cow::Borrowed(route.config.as_deref().unwrap_or_default());
    if let Some(tenant) = &route.tenant {
        path.push(("tenant", Cow::Borrowed(&**tenant)));
    }
    let v10 = route.dialect == Dialect::V10;
    match route.operation {
        Operation::GetTask | Operation::CancelTask | Operation::SubscribeToTask if v10 => path.push(("id", task())),
        Operation::GetTask | Operation::CancelTask | Operation::SubscribeToTask => {
            path.push(("name", format!("tasks/{}", task()).into()));
        }
        Operation::CreateTaskPushNotificationConfig | Operation::ListTaskPushNotificationConfigs => {
            path.push(if v10 { ("taskId", task()) } else { ("parent", format!("tasks/{}", task()).into()) });
        }
        Operation::GetTaskPushNotificationConfig | Operation::DeleteTaskPushNotificationConfig if v10 => {
            path.extend([("taskId", task()), ("id", config())]);
        }
        Operation::GetTaskPushNotificationConfig | Operation::DeleteTaskPushNotificationConfig => {
            path.push(("name", format!("tasks/{}/pushNotificationConfigs/{}", task(), config()).into()));
        }
        _ => {}
    }
    for (key, value) in &path {
        push_key(out, key);
        push_text(out, value);
    }
    path
}

/// Appends the members of the body; those that the path has too must say the same, or nothing.
fn merge(
    body: &RawValue,
    path: &[(&'static str, Cow<'_, str>)],
    route: &Route<'_>,
    out: &mut String,
    found: &mut Vec<Violation>,
) -> Result<(), Error> {
    let mut members =
        Members::split(body.get()).map_err(|e| Error::new(Kind::InvalidRequest, format!("the body {e}")))?;
    members.camel(&["taskId"]).map_err(|e| Error::new(Kind::InvalidRequest, format!("the body {e}")))?;
    for (key, value) in members.iter() {
        let Some((_, in_path)) = path.iter().find(|(k, _)| *k == key) else {
            push_key(out, key);
            out.push_str(value.get());
            continue;
        };
        let same = raw::kind(value.get()) == raw::Kind::Null
            || text_of(value).is_some_and(|text| text.is_empty() || text == *in_path);
        if !same && route.dialect == Dialect::V10 {
            violation(found, key, format!("is {in_path:?} in the path and another one in the body"));
        }
    }
    Ok(())
}

fn known(operation: Operation) -> Known {
    match operation {
        Operation::GetTask => &[("tenant", Shape::Text), ("historyLength", Shape::Integer)],
        Operation::ListTasks => &[
            ("tenant", Shape::Text),
            ("contextId", Shape::Text),
            ("status", Shape::Text),
            ("pageSize", Shape::Integer),
            ("pageToken", Shape::Text),
            ("historyLength", Shape::Integer),
            ("statusTimestampAfter", Shape::Text),
            ("includeArtifacts", Shape::Bool),
        ],
        Operation::ListTaskPushNotificationConfigs => {
            &[("tenant", Shape::Text), ("pageSize", Shape::Integer), ("pageToken", Shape::Text)]
        }
        _ => &[("tenant", Shape::Text)],
    }
}

fn of_query(
    route: &Route<'_>,
    query: &str,
    path: &[(&'static str, Cow<'_, str>)],
    out: &mut String,
    found: &mut Vec<Violation>,
) {
    let mut seen: Vec<&str> = Vec::new();
    let pairs = query.split('&').filter(|p| !p.is_empty());
    for pair in pairs.take(MAX_QUERY) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let Some(key) = form_decoded(key) else { continue };
        let Some((name, shape)) = known(route.operation).iter().find(|(n, _)| *n == key || is_snake_of(&key, n)) else {
            continue;
        };
        let Some(value) = form_decoded(value) else {
            violation(found, *name, "is no UTF-8");
            continue;
        };
        if let Some((_, in_path)) = path.iter().find(|(k, _)| k == name) {
            if value != *in_path && !value.is_empty() {
                violation(found, *name, format!("is {in_path:?} in the path and another one in the query"));
            }
            continue;
        }
        if seen.contains(name) {
            violation(found, *name, "stands twice");
            continue;
        }
        seen.push(name);
        match shape {
            // What is empty is unset.
            _ if value.is_empty() => {}
            Shape::Integer if value.parse::<i64>().is_err() => violation(found, *name, "must be an integer"),
            Shape::Bool if !matches!(&*value, "true" | "false") => violation(found, *name, "must be true or false"),
            Shape::Text => {
                push_key(out, name);
                push_text(out, &value);
            }
            Shape::Integer => {
                push_key(out, name);
                out.push_str(&value.parse::<i64>().unwrap_or_default().to_string());
            }
            Shape::Bool => {
                push_key(out, name);
                out.push_str(&value);
            }
        }
    }
}
