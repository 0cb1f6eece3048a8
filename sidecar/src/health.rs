//! What the pod says of itself: started, ready, and why not.
//!
//! Started means "running, configuration valid, required skills on disk" and never "tools answer": the other containers
//! of the pod start only after it. Tools and agent count in readiness.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outrigger_protocol::status::{PartStatus, PodPhase, PodStatus};

use crate::config::LiveConfig;
use crate::context::Context;
use crate::control::Control;
use crate::skills::Skills;
use crate::{a2a, mcp};

/// All parts that have a say.
#[derive(Clone)]
pub struct Health {
    context: Context,
    config: Arc<LiveConfig>,
    skills: Arc<Skills>,
    servers: Arc<mcp::Servers>,
    /// None in a pod without an agent.
    service: Option<Arc<a2a::Service>>,
    was_ready: Arc<AtomicBool>,
    control: Arc<Control>,
    metrics: crate::metrics::Metrics,
}

impl Health {
    /// Joins the parts.
    pub fn new(
        context: Context,
        config: Arc<LiveConfig>,
        skills: Arc<Skills>,
        servers: Arc<mcp::Servers>,
        service: Option<Arc<a2a::Service>>,
        control: Arc<Control>,
        metrics: crate::metrics::Metrics,
    ) -> Self {
        Self { context, config, skills, servers, service, was_ready: Arc::default(), control, metrics }
    }

    /// Whether the other containers may start.
    pub fn started(&self) -> bool {
        self.skills.started()
    }

    /// The whole document for `/status`.
    pub fn status(&self) -> PodStatus {
        let service = self.service.as_deref();
        // Where there is no agent none is waited for.
        let agent =
            service.map_or_else(|| PartStatus { ready: true, ..PartStatus::default() }, a2a::Service::agent_status);
        let servers = self.servers.status();
        let skills = self.skills.status();
        let interfaces = service.map(a2a::Service::interfaces).unwrap_or_default();
        // A card that names no way to call the agent is none.
        let reachable = interfaces.is_empty() || interfaces.iter().any(|i| i.part.ready);
        let ready = self.started() && agent.ready && reachable && servers.iter().all(|s| !s.required || s.part.ready);
        let draining = self.context.drain.draining();
        if ready && !draining {
            self.was_ready.store(true, Ordering::Relaxed);
        }
        let phase = match (draining, ready, self.was_ready.load(Ordering::Relaxed)) {
            (true, _, _) => PodPhase::Draining,
            (false, true, _) => PodPhase::Ready,
            (false, false, true) => PodPhase::NotReady,
            (false, false, false) => PodPhase::Starting,
        };
        self.metrics.ready.set(i64::from(phase == PodPhase::Ready));
        self.metrics.draining.set(i64::from(draining));
        PodStatus {
            version: env!("CARGO_PKG_VERSION").into(),
            phase,
            config: self.config.status(),
            card: service.map(a2a::Service::card_status).unwrap_or_default(),
            agent,
            servers,
            skills,
            store: service.map(a2a::Service::store_status).unwrap_or_default(),
            interfaces,
            push_dead_letters: service.map(a2a::Service::push_dead_letters).unwrap_or_default(),
            agent_exposed: service.is_some_and(a2a::Service::agent_exposed),
            control: self.control.status(),
        }
    }
}

/// One line per part that keeps the pod from being ready.
pub fn obstacles(status: &PodStatus) -> Vec<String> {
    let mut lines = Vec::new();
    if status.phase == PodPhase::Draining {
        lines.push("the pod drains".to_owned());
    }
    if !status.agent.ready {
        lines.push(format!("agent: {}: {}", status.agent.reason, status.agent.message));
    }
    if !status.interfaces.is_empty() && !status.interfaces.iter().any(|i| i.part.ready) {
        for i in &status.interfaces {
            lines.push(format!("interface {} {}: {}: {}", i.binding, i.version, i.part.reason, i.part.message));
        }
    }
    for server in status.servers.iter().filter(|s| s.required && !s.part.ready) {
        lines.push(format!(
            "server {} in phase {}: {}: {}",
            server.name,
            server.phase.as_str(),
            server.part.reason,
            server.part.message
        ));
    }
    for skill in status.skills.iter().filter(|s| s.required && s.digest.is_empty()) {
        lines.push(format!("skill {}: {}: {}", skill.name, skill.part.reason, skill.part.message));
    }
    lines
}
