//! `MCPServer`: it has no objects of its own, only a status made from the pods of the Agents that use it.

use std::pin::Pin;

use outrigger_crds::{MCPServer, MCPServerStatus};

use super::{Context, Done, ReconcileError, now, outcome, transition};
use crate::plan;
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
    if meta.deletion_timestamp.is_some() {
        return Ok(Done::quiet());
    }
    let name = meta.name.clone().unwrap_or_default();
    let namespace = meta.namespace.clone().unwrap_or_default();
    let uid = meta.uid.clone().unwrap_or_default();
    let users = context.caches.agents_where(&namespace, |a| a.spec.mcp_servers.iter().any(|used| used.name == name));
    let mut seen = Seen { error: plan::check_server(&server.spec).err(), agents: users.len(), ..Seen::default() };
    for agent in users.iter().filter_map(|a| a.0.as_ref().ok()) {
        seen.wanted = seen.wanted.saturating_add(agent.spec.replicas);
        let agent = agent.metadata.name.as_deref().unwrap_or_default();
        seen.pods.extend(context.caches.pods_of(&namespace, agent, &context.facts));
    }
    let version = meta.resource_version.as_deref().unwrap_or_default();
    let newest: Option<MCPServerStatus> = context.statuses.newest(&uid, version, server.status.clone());
    let base = MCPServer { status: newest.clone(), ..server.clone() };
    let new = status(&base, &seen, &now());
    let result = context.statuses.write::<MCPServer, _>(&name, &namespace, &uid, newest.as_ref(), &new).await?;
    let mut done = Done::quiet();
    let before = newest.map(|s| s.conditions).unwrap_or_default();
    match result {
        Written::Yes => done.notes.extend(transition(&before, &new.conditions, "Ready")),
        Written::Later(wait) => done.again_within(wait),
        Written::Unchanged | Written::Gone => {}
    }
    done.outcome = outcome(&new.conditions, "");
    Ok(done)
}
