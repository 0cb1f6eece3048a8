//! Parameters of the operations.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::node::{self, Bad, Form, MESSAGE, split};
use super::push;
use crate::a2a::operation::Operation;
use crate::a2a::raw::{self, Kind, Members, push_key, push_text, text_of};

const CONFIGURATION: [&str; 6] = [
    "acceptedOutputModes",
    "historyLength",
    "pushNotificationConfig",
    "pushNotification",
    "taskPushNotificationConfig",
    "returnImmediately",
];
const REFERENCE: [&str; 6] =
    ["historyLength", "pushNotificationConfigId", "taskId", "pageSize", "pageToken", "configId"];

/// Between the task and the configuration in a resource name.
const CONFIGS: &str = "/pushNotificationConfigs/";

/// Appends parameters of 0.3 as those of 1.0.
pub(super) fn read(operation: Operation, params: &RawValue, form: Form, out: &mut String) -> Result<(), Bad> {
    match operation {
        Operation::SendMessage | Operation::SendStreamingMessage => send(params, form, out, configuration_in),
        Operation::GetTask | Operation::CancelTask | Operation::SubscribeToTask => {
            let members = split(params, &REFERENCE)?;
            out.push('{');
            if form.proto {
                id_of_name(&members, "id", out)?;
            }
            rest_in(&members, if form.proto { &["name", "id"] } else { &[] }, out);
            out.push('}');
            Ok(())
        }
        Operation::CreateTaskPushNotificationConfig => push::create_in(params, form, out),
        Operation::GetTaskPushNotificationConfig | Operation::DeleteTaskPushNotificationConfig => {
            let members = split(params, &REFERENCE)?;
            out.push('{');
            if form.proto {
                let name = text(&members, "name")?;
                let (task, id) = config_name(&name)
                    .ok_or_else(|| Bad::new("must be tasks/{id}/pushNotificationConfigs/{id}").under("name"))?;
                push_key(out, "taskId");
                push_text(out, task);
                push_key(out, "id");
                push_text(out, id);
            } else {
                copy(&members, "id", "taskId", out);
                copy(&members, "pushNotificationConfigId", "id", out);
            }
            rest_in(&members, &["name", "id", "taskId", "pushNotificationConfigId"], out);
            out.push('}');
            Ok(())
        }
        Operation::ListTaskPushNotificationConfigs => {
            let members = split(params, &REFERENCE)?;
            out.push('{');
            if form.proto {
                push_key(out, "taskId");
                push_text(out, parent(&members)?.as_ref());
            } else {
                copy(&members, "id", "taskId", out);
            }
            rest_in(&members, &["parent", "id", "taskId"], out);
            out.push('}');
            Ok(())
        }
        Operation::ListTasks => Err(Bad::new("belong to ListTasks, which is not part of A2A 0.3")),
        Operation::GetExtendedAgentCard => {
            out.push_str(params.get());
            Ok(())
        }
    }
}

/// Appends parameters of 1.0 as those of 0.3.
pub(super) fn write(operation: Operation, params: &RawValue, form: Form, out: &mut String) -> Result<(), Bad> {
    match operation {
        Operation::SendMessage | Operation::SendStreamingMessage => send(params, form, out, configuration_out),
        Operation::GetTask | Operation::CancelTask | Operation::SubscribeToTask => {
            let members = split(params, &REFERENCE)?;
            out.push('{');
            if form.proto {
                push_key(out, "name");
                push_text(out, &format!("tasks/{}", text(&members, "id")?));
            }
            rest(&members, if form.proto { &["id", "name"] } else { &[] }, out);
            out.push('}');
            Ok(())
        }
        Operation::CreateTaskPushNotificationConfig => push::create_out(params, form, out),
        Operation::GetTaskPushNotificationConfig | Operation::DeleteTaskPushNotificationConfig => {
            let members = split(params, &REFERENCE)?;
            out.push('{');
            if form.proto {
                push_key(out, "name");
                let (task, id) = (text(&members, "taskId")?, text(&members, "id")?);
                push_text(out, &write_config_name(&task, &id));
            } else {
                copy(&members, "taskId", "id", out);
                copy(&members, "id", "pushNotificationConfigId", out);
            }
            rest(&members, &["taskId", "id", "name", "pushNotificationConfigId"], out);
            out.push('}');
            Ok(())
        }
        Operation::ListTaskPushNotificationConfigs => {
            let members = split(params, &REFERENCE)?;
            out.push('{');
            if form.proto {
                push_key(out, "parent");
                push_text(out, &format!("tasks/{}", text(&members, "taskId")?));
            } else {
                copy(&members, "taskId", "id", out);
            }
            rest(&members, &["taskId", "id", "parent"], out);
            out.push('}');
            Ok(())
        }
        Operation::ListTasks => Err(Bad::new("belong to ListTasks, which is not part of A2A 0.3")),
        Operation::GetExtendedAgentCard => {
            out.push_str(params.get());
            Ok(())
        }
    }
}

type Configure = fn(Option<&RawValue>, Form, &mut String) -> Result<(), Bad>;

fn send(params: &RawValue, form: Form, out: &mut String, configure: Configure) -> Result<(), Bad> {
    let members = split(params, &[])?;
    // The proto calls the message `request`, its JSON does not; readers take both.
    let message = members.set("message").or_else(|| members.set("request").filter(|_| form.proto));
    out.push('{');
    if let Some(message) = message {
        push_key(out, "message");
        node::object(message, &MESSAGE, form, out).map_err(|b| b.under("message"))?;
    }
    configure(members.set("configuration"), form, out).map_err(|b| b.under("configuration"))?;
    let without: &[&str] =
        if form.proto { &["message", "request", "configuration"] } else { &["message", "configuration"] };
    rest(&members, without, out);
    out.push('}');
    Ok(())
}

fn configuration_in(value: Option<&RawValue>, form: Form, out: &mut String) -> Result<(), Bad> {
    let Some(value) = value else { return Ok(()) };
    let members = split(value, &CONFIGURATION)?;
    push_key(out, "configuration");
    out.push('{');
    match members.set("blocking").map(RawValue::get) {
        Some("true") => {}
        Some("false") => out.push_str("\"returnImmediately\":true"),
        Some(_) => return Err(Bad::new("must be true or false").under("blocking")),
        // In ProtoJSON what is absent is false.
        None if form.proto => out.push_str("\"returnImmediately\":true"),
        None => {}
    }
    let push = if form.proto { "pushNotification" } else { "pushNotificationConfig" };
    if let Some(config) = members.set(push) {
        push_key(out, "taskPushNotificationConfig");
        push::config(config, form, out).map_err(|b| b.under(push))?;
    }
    rest_in(&members, &["blocking", push, "taskPushNotificationConfig", "returnImmediately"], out);
    out.push('}');
    Ok(())
}

fn configuration_out(value: Option<&RawValue>, form: Form, out: &mut String) -> Result<(), Bad> {
    let members = match value {
        Some(value) => split(value, &CONFIGURATION)?,
        // In ProtoJSON an absent `blocking` is false.
        None if form.proto => Members::default(),
        None => return Ok(()),
    };
    push_key(out, "configuration");
    out.push_str("{\"blocking\":");
    match members.set("returnImmediately").map(RawValue::get) {
        None | Some("false") => out.push_str("true"),
        Some("true") => out.push_str("false"),
        Some(_) => return Err(Bad::new("must be true or false").under("returnImmediately")),
    }
    if let Some(config) = members.set("taskPushNotificationConfig") {
        push_key(out, if form.proto { "pushNotification" } else { "pushNotificationConfig" });
        push::config(config, form, out).map_err(|b| b.under("taskPushNotificationConfig"))?;
    }
    let without =
        ["blocking", "returnImmediately", "taskPushNotificationConfig", "pushNotification", "pushNotificationConfig"];
    rest(&members, &without, out);
    out.push('}');
    Ok(())
}

/// Appends the members but some.
pub(super) fn rest(members: &Members<'_>, without: &[&str], out: &mut String) {
    for (key, value) in members.iter().filter(|(k, _)| !without.contains(k)) {
        push_key(out, key);
        out.push_str(value.get());
    }
}

/// The same, but a `historyLength` of 0, which is no bound in 0.3 and nothing at all in 1.0.
fn rest_in(members: &Members<'_>, without: &[&str], out: &mut String) {
    for (key, value) in members.iter().filter(|(k, _)| !without.contains(k)) {
        if key == "historyLength" && matches!(value.get(), "0" | "\"0\"" | "0.0") {
            continue;
        }
        push_key(out, key);
        out.push_str(value.get());
    }
}

fn copy(members: &Members<'_>, from: &str, to: &str, out: &mut String) {
    if let Some(value) = members.get(from) {
        push_key(out, to);
        out.push_str(value.get());
    }
}

/// The text of a member that has to be there.
pub(super) fn text<'a>(members: &Members<'a>, key: &str) -> Result<Cow<'a, str>, Bad> {
    let value = members.set(key).filter(|v| raw::kind(v.get()) == Kind::Text).and_then(text_of);
    value.filter(|v| !v.is_empty()).ok_or_else(|| Bad::new("must be a string that is not empty").under(key))
}

fn id_of_name(members: &Members<'_>, key: &str, out: &mut String) -> Result<(), Bad> {
    let name = text(members, "name")?;
    let id = task_name(&name).ok_or_else(|| Bad::new("must be tasks/{id}").under("name"))?;
    push_key(out, key);
    push_text(out, id);
    Ok(())
}

/// The task of a resource name `tasks/{id}` in `parent`.
pub(super) fn parent(members: &Members<'_>) -> Result<String, Bad> {
    let name = text(members, "parent")?;
    let task = task_name(&name).ok_or_else(|| Bad::new("must be tasks/{id}").under("parent"))?;
    Ok(task.to_owned())
}

fn task_name(name: &str) -> Option<&str> {
    name.strip_prefix("tasks/").filter(|id| !id.is_empty() && !id.contains(CONFIGS))
}

/// Task and configuration of a resource name.
pub(super) fn config_name(name: &str) -> Option<(&str, &str)> {
    let (task, id) = name.strip_prefix("tasks/")?.split_once(CONFIGS)?;
    (!task.is_empty() && !id.is_empty()).then_some((task, id))
}

/// Resource name of a configuration.
pub(super) fn write_config_name(task: &str, id: &str) -> String {
    format!("tasks/{task}{CONFIGS}{id}")
}
