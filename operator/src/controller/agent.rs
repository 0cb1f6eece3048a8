//! Agent: dereference → validate → plan → apply → status.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use outrigger_crds::{Agent, AgentStatus, MCPServer, McpServerUse, Skill};

use super::prune::{Family, prune};
use super::{Context, Done, ReconcileError, WAITING, now, outcome, transition};
use crate::apply::{ApplyError, Cause, Owner};
use crate::caches::Guarded;
use crate::facts::Touch;
use crate::names::AGENT_LABEL;
use crate::plan::{self, AgentInput, AgentPlan, Checked, ChildKind, Place, Planned, ServerInput};
use crate::report::Note;
use crate::scopes::Presence;
use crate::status::agent::{Held, Missing, Seen, status};
use crate::status::find;
use crate::status::write::Written;

/// A pod that has not taken up a new configuration yet is asked again after this long.
const CONFIG_PENDING: Duration = Duration::from_secs(5);

/// Conditions that are worth an Event of their own when they become False.
const WARNED_OF: [&str; 6] =
    ["TaskStoreReady", "A2AConformant", "AccessEnforced", "PeersFound", "PushDelivered", "ControlConnected"];

/// One look at an Agent.
pub fn reconcile<'a>(
    agent: &'a Agent,
    context: &'a Context,
) -> Pin<Box<dyn Future<Output = Result<Done, ReconcileError>> + Send + 'a>> {
    Box::pin(look(agent, context))
}

async fn look(agent: &Agent, context: &Context) -> Result<Done, ReconcileError> {
    let meta = &agent.metadata;
    // A foreground deletion takes the objects away: making them again would keep it from ending.
    if meta.deletion_timestamp.is_some() {
        return Ok(Done::quiet());
    }
    let owner = Owner {
        kind: "Agent",
        name: meta.name.clone().unwrap_or_default(),
        namespace: meta.namespace.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
    };
    let mut done = Done::quiet();
    let mut seen = Seen::default();

    let found = dereference(agent, &owner, context, &mut seen);
    let control = context.control.get();
    let input = AgentInput {
        agent,
        servers: found.iter().filter_map(Found::input).collect(),
        settings: &context.settings,
        control: control.as_deref(),
    };
    let mut written = Vec::new();
    match plan::agent(&input) {
        Err(error) => {
            seen.held = Some(Held { reason: error.reason().into(), message: error.to_string(), refused: true });
        }
        Ok(plan) => written = apply(agent, &owner, &plan, context, &mut seen, &mut done).await?,
    }
    seen.deployment = context.caches.deployment(&owner.namespace, &owner.name, &owner.uid);
    seen.pods = context.caches.pods_of(&owner.namespace, &owner.name, &context.facts);
    tell(agent, &owner, context, &seen, &written, done).await
}

/// A server of the Agent that was found and accepted.
struct Found<'a> {
    used: &'a McpServerUse,
    namespace: &'a str,
    server: Arc<Guarded<MCPServer>>,
    checked: Checked,
}

impl Found<'_> {
    fn input(&self) -> Option<ServerInput<'_>> {
        let server = self.server.0.as_ref().ok()?;
        Some(ServerInput {
            name: &self.used.name,
            namespace: self.namespace,
            required: self.used.required,
            spec: &server.spec,
            here: self.checked.place == Place::InPod,
            checked: self.checked.clone(),
            tools: self.used.tools.as_ref(),
        })
    }
}

/// Looks a server up; what is wrong with it, else.
fn find_server<'a>(
    used: &'a McpServerUse,
    owner: &'a Owner,
    context: &Context,
) -> Result<Found<'a>, (&'static str, String)> {
    let name = &used.name;
    let namespace = used.namespace.as_deref().unwrap_or(&owner.namespace);
    let is_ours = namespace == owner.namespace;
    let missing = || {
        let what =
            format!("MCPServer {name} is not in namespace {namespace}: create it, or remove it from spec.mcpServers");
        ("MCPServerNotFound", what)
    };
    let server = if is_ours {
        context.caches.server(namespace, name).ok_or_else(missing)?
    } else {
        context.scopes.server(namespace, name).map_err(|presence| match presence {
            Presence::There | Presence::Missing => missing(),
            Presence::NotKnownYet => {
                ("MCPServerPending", format!("MCPServer {name} of namespace {namespace} has not been looked up yet"))
            }
            Presence::NotWatched => (
                "MCPServerNotWatched",
                format!("the operator does not watch namespace {namespace} of MCPServer {name}: add it to the chart's watchNamespaces"),
            ),
        })?
    };
    let checked = match &server.0 {
        Err(invalid) => {
            return Err(("MCPServerNotAccepted", format!("MCPServer {name} cannot be read: {}", invalid.error)));
        }
        Ok(good) => {
            let checked = plan::check_server(&good.spec, &context.settings)
                .map_err(|e| ("MCPServerNotAccepted", format!("MCPServer {name}: {e}")))?;
            if !is_ours && checked.place != Place::Standalone {
                let why = format!(
                    "MCPServer {name} of namespace {namespace} cannot be used from namespace {}: only one with placement: Standalone can",
                    owner.namespace
                );
                return Err(("MCPServerNotShared", why));
            }
            if !plan::may_use(good, &owner.namespace, &owner.name) {
                let why = format!(
                    "MCPServer {name} of namespace {namespace} does not let this Agent in: add {{namespace: {}, agent: {}}} to its spec.access.from",
                    owner.namespace, owner.name
                );
                return Err(("MCPServerAccessDenied", why));
            }
            checked
        }
    };
    Ok(Found { used, namespace, server, checked })
}

fn dereference<'a>(agent: &'a Agent, owner: &'a Owner, context: &Context, seen: &mut Seen) -> Vec<Found<'a>> {
    let mut servers = Vec::new();
    for used in &agent.spec.mcp_servers {
        match find_server(used, owner, context) {
            Ok(found) => servers.push(found),
            Err((reason, message)) => {
                let (name, required) = (used.name.clone(), used.required);
                seen.missing_servers.push(Missing { name, required, reason, message });
            }
        }
    }
    for used in &agent.spec.skills {
        let found = context.caches.skill(&owner.namespace, &used.name);
        let problem = match found.as_deref().map(|s| s.0.as_ref()) {
            None => Some((
                "SkillNotFound",
                format!(
                    "Skill {} is not in namespace {}: create it, or remove it from spec.skills",
                    used.name, owner.namespace
                ),
                true,
            )),
            Some(Err(invalid)) => {
                Some(("InvalidSkill", format!("Skill {} cannot be read: {}", used.name, invalid.error), true))
            }
            Some(Ok(skill)) => skill_problem(skill, &used.name),
        };
        if let Some((reason, message, is_missing)) = problem {
            let missing = Missing { name: used.name.clone(), required: used.required, reason, message };
            if is_missing { seen.missing_skills.push(missing) } else { seen.stale_skills.push(missing) }
        }
    }
    for peer in &agent.spec.peers {
        let namespace = peer.namespace.as_deref().unwrap_or(&owner.namespace);
        let name = format!("{namespace}/{}", peer.name);
        match context.scopes.presence(namespace, &peer.name) {
            Presence::There => {}
            Presence::Missing => seen.missing_peers.push(name),
            Presence::NotKnownYet => seen.peers_not_known_yet = true,
            Presence::NotWatched => seen.unwatched_peers.push(name),
        }
    }
    servers
}

/// What is wrong with a skill that is there; whether nothing of it is published.
fn skill_problem(skill: &Skill, name: &str) -> Option<(&'static str, String, bool)> {
    let status = skill.status.as_ref();
    let published = status.is_some_and(|s| s.digest.is_some());
    let refused = status.and_then(|s| find(&s.conditions, "Accepted")).filter(|c| c.status == "False");
    match (refused, published) {
        (Some(c), false) => Some(("InvalidSkill", format!("Skill {name}: {}", c.message), true)),
        (Some(c), true) => {
            Some(("InvalidSkill", format!("Skill {name} serves its last valid content: {}", c.message), false))
        }
        (None, false) => Some(("SkillPending", format!("Skill {name} is about to be published"), true)),
        (None, true) => None,
    }
}

async fn apply(
    agent: &Agent,
    owner: &Owner,
    plan: &AgentPlan,
    context: &Context,
    seen: &mut Seen,
    done: &mut Done,
) -> Result<Vec<(ChildKind, String, Cause)>, ReconcileError> {
    seen.card_digest = Some(plan.card_digest.clone());
    seen.live_digest = Some(plan.live_digest.clone());
    seen.url = Some(plan.url.clone());
    seen.sources.clone_from(&plan.sources);
    let incomplete = seen.missing_servers.iter().chain(&seen.missing_skills).any(|m| m.required);
    // With a required part missing, what was rendered last stays: no first Deployment, no changed one.
    let belongs = |o: &&Planned| !incomplete || (o.kind != ChildKind::Deployment && o.name != plan.boot_config_map);
    let objects: Vec<Planned> = plan.objects.iter().filter(belongs).cloned().collect();
    let hash = objects.iter().find(|o| o.kind == ChildKind::Deployment).map(|o| o.hash.clone());
    let outcome = match context.applier.apply(owner, &objects, &context.caches).await {
        Ok(outcome) => outcome,
        Err(error @ (ApplyError::NameConflict { .. } | ApplyError::Refused { .. })) => {
            seen.held = Some(Held { reason: error.reason().into(), message: error.to_string(), refused: true });
            done.again_within(WAITING);
            return Ok(Vec::new());
        }
        Err(error @ ApplyError::OperatorForbidden { .. }) => {
            seen.held = Some(Held { reason: error.reason().into(), message: error.to_string(), refused: false });
            done.again_within(WAITING);
            return Ok(Vec::new());
        }
        Err(error) => return Err(error.into()),
    };
    seen.plan_hash = hash;
    if let Some(wait) = outcome.retry_after {
        done.again_within(wait);
    }
    if incomplete {
        scale(agent, owner, context).await?;
    }
    let family = Family {
        owner,
        objects: &owner.name,
        label: (AGENT_LABEL, &owner.name),
        reference: plan::owner_reference(&owner.name, &owner.uid),
    };
    prune(&family, &plan.objects, context).await?;
    Ok(outcome.written)
}

/// An Agent that is held back can still be scaled.
async fn scale(agent: &Agent, owner: &Owner, context: &Context) -> Result<(), ReconcileError> {
    let deployment = context.caches.deployment(&owner.namespace, &owner.name, &owner.uid);
    let Some(deployment) = deployment else { return Ok(()) };
    if deployment.spec.as_ref().and_then(|s| s.replicas) != Some(agent.spec.replicas) {
        context.applier.scale(owner, &owner.name, agent.spec.replicas).await?;
    }
    Ok(())
}

/// Writes the status and says what changed.
async fn tell(
    agent: &Agent,
    owner: &Owner,
    context: &Context,
    seen: &Seen,
    written: &[(ChildKind, String, Cause)],
    mut done: Done,
) -> Result<Done, ReconcileError> {
    let version = agent.metadata.resource_version.as_deref().unwrap_or_default();
    let newest: Option<AgentStatus> = context.statuses.newest(&owner.uid, version, agent.status.clone());
    let base = Agent { status: newest.clone(), ..agent.clone() };
    let new = status(&base, seen, &now());
    let result =
        context.statuses.write::<Agent, _>(&owner.name, &owner.namespace, &owner.uid, newest.as_ref(), &new).await?;
    let before = newest.map(|s| s.conditions).unwrap_or_default();
    match result {
        Written::Yes => {
            done.notes.extend(transition(&before, &new.conditions, "Ready"));
            let accepted = transition(&before, &new.conditions, "Accepted").filter(|n| n.warning);
            done.notes.extend(accepted.filter(|n| !done.notes.iter().any(|o| o.reason == n.reason)));
            let warnings = WARNED_OF.iter().filter_map(|kind| transition(&before, &new.conditions, kind));
            let warnings: Vec<_> =
                warnings.filter(|n| n.warning && !done.notes.iter().any(|o| o.reason == n.reason)).collect();
            done.notes.extend(warnings);
        }
        Written::Later(wait) => done.again_within(wait),
        Written::Unchanged | Written::Gone => {}
    }
    let what = written.iter().map(|(kind, name, _)| format!("{} {name}", kind.as_str())).collect::<Vec<_>>().join(", ");
    if !written.is_empty() {
        done.notes.push(Note { warning: false, reason: "Applied".into(), text: format!("wrote {what}") });
    }
    let foreign: Vec<_> = written.iter().filter(|(.., cause)| *cause == Cause::ForeignChange).collect();
    for (kind, name, _) in foreign {
        let text = format!("{} {name} had been changed by somebody else and was put back", kind.as_str());
        done.notes.push(Note { warning: true, reason: "ForeignChange".into(), text });
    }
    if find(&new.conditions, "CardServed").is_some_and(|c| c.reason == "ConfigPending") {
        done.again_within(CONFIG_PENDING);
        for pod in &seen.pods {
            // A full queue is no harm: the pod is read again anyway.
            let _ = context.touches.try_send(Touch::Read(pod.pod.clone()));
        }
    }
    done.outcome = outcome(&new.conditions, &what);
    Ok(done)
}
