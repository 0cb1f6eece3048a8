//! `MCPServer`: a Standalone one has objects of its own; the status of others is made from the pods of the Agents that
//! use it.

use std::pin::Pin;

use outrigger_crds::{MCPServer, MCPServerStatus};

use super::prune::{Family, prune};
use super::{Context, Done, ReconcileError, WAITING, now, outcome, transition};
use crate::apply::{ApplyError, Owner};
use crate::names::{SERVER_LABEL, server_objects};
use crate::plan::{self, Caller, Checked, Place, StandaloneInput};
use crate::report::Note;
use crate::scopes::namespace_of;
use crate::status::agent::Held;
use crate::status::mcp_server::{Seen, status};
use crate::status::write::Written;

/// One look at an `MCPServer`.
pub fn reconcile<'a>(
    server: &'a MCPServer,
    context: &'a Context,
) -> Pin<Box<dyn Future<Output = Result<Done, ReconcileError>> + Send + 'a>> {
    Box::pin(look(server, context))
}

async fn look(server: &MCPServer, context: &Context) -> Result<Done, ReconcileError> {
    let meta = &server.metadata;
    // A foreground deletion takes the objects away: making them again would keep it from ending.
    if meta.deletion_timestamp.is_some() {
        return Ok(Done::quiet());
    }
    let owner = Owner {
        kind: "MCPServer",
        name: meta.name.clone().unwrap_or_default(),
        namespace: meta.namespace.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
    };
    let mut done = Done::quiet();
    let mut seen = Seen::default();
    let checked = plan::check_server(&server.spec, &context.settings);
    let callers = users(server, &owner, context, &mut seen);
    match checked {
        Err(error) => seen.error = Some(error),
        Ok(checked) if checked.place == Place::Standalone => {
            let written = apply(server, &owner, checked, callers, context, &mut seen, &mut done).await?;
            if !written.is_empty() {
                done.notes.push(Note { warning: false, reason: "Applied".into(), text: format!("wrote {written}") });
            }
        }
        Ok(_) => {}
    }
    if plan::place(&server.spec) == Place::Standalone {
        let objects = server_objects(&owner.name);
        seen.deployment = context.caches.deployment(&owner.namespace, &objects, &owner.uid);
        seen.pods = context.caches.pods_with(&owner.namespace, (SERVER_LABEL, &owner.name), &context.facts);
    }
    tell(server, &owner, &seen, context, done).await
}

/// Counts the Agents that use it, and collects their pods where it has none of its own; those of them that may call it.
fn users(server: &MCPServer, owner: &Owner, context: &Context, seen: &mut Seen) -> Vec<Caller> {
    let standalone = plan::place(&server.spec) == Place::Standalone;
    let mut callers = Vec::new();
    for agent in context.scopes.users(&owner.namespace, &owner.name) {
        let Ok(agent) = &agent.0 else { continue };
        let namespace = agent.metadata.namespace.clone().unwrap_or_default();
        let name = agent.metadata.name.clone().unwrap_or_default();
        if !plan::may_use(server, &namespace, &name) || (!standalone && namespace != owner.namespace) {
            continue;
        }
        seen.agents += 1;
        if standalone {
            let is = |used: &&outrigger_crds::McpServerUse| {
                used.name == owner.name && namespace_of(used, &namespace) == owner.namespace
            };
            let tools = agent.spec.mcp_servers.iter().find(is).and_then(|used| used.tools.clone());
            callers.push(Caller { namespace, agent: name, tools });
        } else {
            seen.wanted = seen.wanted.saturating_add(agent.spec.replicas);
            seen.pods.extend(context.caches.pods_of(&namespace, &name, &context.facts));
        }
    }
    callers
}

/// Brings a Standalone server's objects to the cluster; the names of those written.
async fn apply(
    server: &MCPServer,
    owner: &Owner,
    checked: Checked,
    callers: Vec<Caller>,
    context: &Context,
    seen: &mut Seen,
    done: &mut Done,
) -> Result<String, ReconcileError> {
    let mut held = |reason: &str, message: String, refused: bool| {
        seen.held = Some(Held { reason: reason.into(), message, refused });
    };
    let issuer = match context.issuers.get() {
        Ok(issuer) => issuer,
        Err(why) => {
            let why = if why.is_empty() { "it has not been read yet".into() } else { why };
            held("IssuerUnknown", format!("who signs the tokens of callers is not known: {why}"), false);
            done.again_within(WAITING);
            return Ok(String::new());
        }
    };
    let control = context.control.get();
    let input = StandaloneInput {
        server,
        checked,
        settings: &context.settings,
        issuer: &issuer,
        control: control.as_deref(),
        callers,
    };
    let plan = match plan::standalone(&input) {
        Ok(plan) => plan,
        Err(error) => {
            held(error.reason(), error.to_string(), true);
            return Ok(String::new());
        }
    };
    let outcome = match context.applier.apply(owner, &plan.objects, &context.caches).await {
        Ok(outcome) => outcome,
        Err(error @ (ApplyError::NameConflict { .. } | ApplyError::Refused { .. })) => {
            held(error.reason(), error.to_string(), true);
            done.again_within(WAITING);
            return Ok(String::new());
        }
        Err(error @ ApplyError::OperatorForbidden { .. }) => {
            held(error.reason(), error.to_string(), false);
            done.again_within(WAITING);
            return Ok(String::new());
        }
        Err(error) => return Err(error.into()),
    };
    seen.live_digest = Some(plan.live_digest);
    if let Some(wait) = outcome.retry_after {
        done.again_within(wait);
    }
    let objects = server_objects(&owner.name);
    let family = Family {
        owner,
        objects: &objects,
        label: (SERVER_LABEL, &owner.name),
        reference: plan::server_reference(&owner.name, &owner.uid),
    };
    prune(&family, &plan.objects, context).await?;
    let written = outcome.written.iter().map(|(kind, name, _)| format!("{} {name}", kind.as_str()));
    Ok(written.collect::<Vec<_>>().join(", "))
}

async fn tell(
    server: &MCPServer,
    owner: &Owner,
    seen: &Seen,
    context: &Context,
    mut done: Done,
) -> Result<Done, ReconcileError> {
    let version = server.metadata.resource_version.as_deref().unwrap_or_default();
    let newest: Option<MCPServerStatus> = context.statuses.newest(&owner.uid, version, server.status.clone());
    let base = MCPServer { status: newest.clone(), ..server.clone() };
    let new = status(&base, seen, &now());
    let result = context
        .statuses
        .write::<MCPServer, _>(&owner.name, &owner.namespace, &owner.uid, newest.as_ref(), &new)
        .await?;
    let before = newest.map(|s| s.conditions).unwrap_or_default();
    match result {
        Written::Yes => done.notes.extend(transition(&before, &new.conditions, "Ready")),
        Written::Later(wait) => done.again_within(wait),
        Written::Unchanged | Written::Gone => {}
    }
    let applied = done.notes.iter().find(|n| n.reason == "Applied").map(|n| n.text.clone()).unwrap_or_default();
    done.outcome = outcome(&new.conditions, &applied);
    Ok(done)
}
