//! Push notification configurations: 1.0 has one flat object, 0.3 one in another.

use serde_json::value::RawValue;

use super::node::{self, Bad, Form, Way, split};
use super::params::{config_name, parent, rest, write_config_name};
use crate::a2a::raw::{Members, elements, push_key, push_text, text_of};

const NAMES: [&str; 4] = ["taskId", "pushNotificationConfig", "configId", "nextPageToken"];

/// Appends the inner object: `id`, `url`, `token`, `authentication`.
pub(super) fn config(value: &RawValue, form: Form, out: &mut String) -> Result<(), Bad> {
    let members = split(value, &NAMES)?;
    out.push('{');
    inner(&members, form, &[], out)?;
    out.push('}');
    Ok(())
}

fn inner(members: &Members<'_>, form: Form, without: &[&str], out: &mut String) -> Result<(), Bad> {
    for (key, value) in members.iter().filter(|(k, _)| !without.contains(k)) {
        push_key(out, key);
        if key == "authentication" && value.get() != "null" {
            authentication(value, form, out).map_err(|b| b.under(key))?;
        } else {
            out.push_str(value.get());
        }
    }
    Ok(())
}

/// 0.3 has a list of schemes, 1.0 the first of them.
fn authentication(value: &RawValue, form: Form, out: &mut String) -> Result<(), Bad> {
    let members = split(value, &[])?;
    out.push('{');
    match form.way {
        Way::In => {
            let schemes = members.set("schemes").map(|s| elements(s.get())).transpose();
            let schemes = schemes.map_err(|e| Bad::new(e.to_string()).under("schemes"))?;
            if let Some(first) = schemes.unwrap_or_default().first() {
                push_key(out, "scheme");
                out.push_str(first.get());
            }
        }
        Way::Out => {
            push_key(out, "schemes");
            out.push('[');
            out.push_str(members.set("scheme").map_or("", RawValue::get));
            out.push(']');
        }
    }
    rest(&members, &["scheme", "schemes"], out);
    out.push('}');
    Ok(())
}

/// Appends a configuration of 0.3 as the flat one of 1.0.
pub(super) fn flat(value: &RawValue, form: Form, out: &mut String) -> Result<(), Bad> {
    let members = split(value, &NAMES)?;
    let named = members.set("name").filter(|_| form.proto).and_then(text_of);
    let named = named.as_deref().and_then(config_name);
    let task = match named {
        Some((task, _)) => Task::Text(task),
        None => members.get("taskId").map_or(Task::Absent, Task::Json),
    };
    write_flat(task, named.map(|(_, id)| id), &members, form, out)
}

#[derive(Clone, Copy)]
enum Task<'a> {
    Absent,
    Text(&'a str),
    Json(&'a RawValue),
}

fn write_flat(task: Task<'_>, id: Option<&str>, outer: &Members<'_>, form: Form, out: &mut String) -> Result<(), Bad> {
    let config = outer.set("pushNotificationConfig");
    let config = config.map(|c| split(c, &NAMES).map_err(|b| b.under("pushNotificationConfig"))).transpose()?;
    // A flat one is understood too.
    let config = config.as_ref().unwrap_or(outer);
    out.push('{');
    match task {
        Task::Absent => {}
        Task::Text(task) => {
            push_key(out, "taskId");
            push_text(out, task);
        }
        Task::Json(task) => {
            push_key(out, "taskId");
            out.push_str(task.get());
        }
    }
    let own = config.set("id").is_some_and(|id| id.get() != "\"\"");
    if let Some(id) = id.filter(|_| !own) {
        push_key(out, "id");
        push_text(out, id);
    } else if let Some(id) = config.get("id") {
        push_key(out, "id");
        out.push_str(id.get());
    }
    inner(config, form, &["id", "taskId", "name", "parent", "config", "configId", "pushNotificationConfig"], out)
        .map_err(|b| b.under("pushNotificationConfig"))?;
    out.push('}');
    Ok(())
}

/// Appends the parameters that make a configuration, as those of 1.0.
///
/// In `ProtoJSON` they are `{parent, configId, config}`; one client in the field sends `config` itself as the body.
pub(super) fn create_in(value: &RawValue, form: Form, out: &mut String) -> Result<(), Bad> {
    if !form.proto {
        return flat(value, form, out);
    }
    let members = split(value, &NAMES)?;
    let task = parent(&members)?;
    let config = members.set("config").map(|c| split(c, &NAMES).map_err(|b| b.under("config"))).transpose()?;
    let outer = config.as_ref().unwrap_or(&members);
    let name = outer.set("name").and_then(text_of);
    let named = name.as_deref().and_then(config_name).map(|(_, id)| id.to_owned());
    let id = members.set("configId").and_then(text_of).map(std::borrow::Cow::into_owned);
    let id = id.filter(|id| !id.is_empty()).or(named);
    write_flat(Task::Text(&task), id.as_deref(), outer, form, out)
}

/// Appends the parameters that make a configuration, as those of 0.3.
pub(super) fn create_out(value: &RawValue, form: Form, out: &mut String) -> Result<(), Bad> {
    if !form.proto {
        return named(value, form, out);
    }
    let members = split(value, &NAMES)?;
    let (task, id) = ids(&members);
    out.push('{');
    push_key(out, "parent");
    push_text(out, &format!("tasks/{task}"));
    push_key(out, "configId");
    push_text(out, &id);
    push_key(out, "config");
    named(value, form, out)?;
    out.push('}');
    Ok(())
}

fn ids(members: &Members<'_>) -> (String, String) {
    let text = |key| members.set(key).and_then(text_of).map(std::borrow::Cow::into_owned).unwrap_or_default();
    (text("taskId"), text("id"))
}

/// Appends a flat configuration of 1.0 as one of 0.3.
pub(super) fn named(value: &RawValue, form: Form, out: &mut String) -> Result<(), Bad> {
    let members = split(value, &NAMES)?;
    out.push('{');
    if form.proto {
        let (task, id) = ids(&members);
        push_key(out, "name");
        push_text(out, &write_config_name(&task, &id));
    } else if let Some(task) = members.get("taskId") {
        push_key(out, "taskId");
        out.push_str(task.get());
    }
    push_key(out, "pushNotificationConfig");
    out.push('{');
    inner(&members, form, &["taskId", "tenant"], out)?;
    out.push_str("}}");
    Ok(())
}

/// Appends a list of configurations: an object with `configs`, but a bare list in the JSON-RPC of 0.3.
pub(super) fn list(value: &RawValue, form: Form, out: &mut String) -> Result<(), Bad> {
    let each = match form.way {
        Way::In => flat,
        Way::Out => named,
    };
    if form.way == Way::In && !form.proto {
        out.push_str("{\"configs\":");
        node::list(value, form, out, each)?;
        out.push('}');
        return Ok(());
    }
    let members = split(value, &NAMES)?;
    let configs = members.set("configs");
    let write = |out: &mut String| {
        if let Some(configs) = configs {
            return node::list(configs, form, out, each).map_err(|b| b.under("configs"));
        }
        out.push_str("[]");
        Ok(())
    };
    if form.way == Way::Out && !form.proto {
        return write(out);
    }
    out.push_str("{\"configs\":");
    write(out)?;
    rest(&members, &["configs"], out);
    out.push('}');
    Ok(())
}
