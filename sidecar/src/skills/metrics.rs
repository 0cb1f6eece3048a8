//! Metrics of skills: their files, and what of them is disclosed.

use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

/// Upper bounds of [`Metrics::apply`], in seconds.
const BUCKETS: [f64; 8] = [0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 120.0];

/// See the module. Surfaces are `tools`, `resources` and `prompts`; levels are `catalogue`, `body` and `file`.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// 1 while a revision of the skill is in place.
    pub ready: IntGaugeVec,
    /// Revisions by skill and outcome: `published`, `refused`.
    pub updates: IntCounterVec,
    /// From the document that named a revision to its being in place.
    pub apply: HistogramVec,
    /// Bytes given to the agent, by skill, level and surface.
    pub disclosed_bytes: IntCounterVec,
    /// The same in tokens, at four bytes each.
    pub disclosed_tokens: IntCounterVec,
    /// `skill_load` and prompts by skill and result: `loaded`, `already`, `refused`.
    pub loads: IntCounterVec,
    /// Files that were not given out, by reason: `size`, `digest`, `gone`.
    pub verify_failures: IntCounterVec,
    /// Tokens of the catalogue in the instructions.
    pub catalogue_tokens: IntGauge,
    /// Skills of the catalogue by how much of them stands there: `full`, `short`, `name`, `omitted`.
    pub catalogue_entries: IntGaugeVec,
}

impl Metrics {
    /// Registers them.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str, labels: &[&str]| {
            IntCounterVec::new(Opts::new(format!("outrigger_skill_{name}"), help), labels).and_then(|c| {
                registry.register(Box::new(c.clone()))?;
                Ok(c)
            })
        };
        let gauge = |name: &str, help: &str, labels: &[&str]| {
            IntGaugeVec::new(Opts::new(format!("outrigger_skill_{name}"), help), labels).and_then(|g| {
                registry.register(Box::new(g.clone()))?;
                Ok(g)
            })
        };
        let apply = HistogramVec::new(
            HistogramOpts::new(
                "outrigger_skill_apply_seconds",
                "From the document that named a revision to its being in place.",
            )
            .buckets(BUCKETS.to_vec()),
            &["skill"],
        )?;
        registry.register(Box::new(apply.clone()))?;
        let catalogue_tokens = IntGauge::new(
            "outrigger_skill_catalogue_tokens",
            "Tokens of the catalogue of skills, at four bytes each.",
        )?;
        registry.register(Box::new(catalogue_tokens.clone()))?;
        Ok(Self {
            ready: gauge("ready", "1 when the files of the skill are in place.", &["skill"])?,
            updates: counter("updates_total", "Skill trees put in place or refused.", &["skill", "outcome"])?,
            apply,
            disclosed_bytes: counter(
                "disclosed_bytes_total",
                "Bytes of skills given to the agent over MCP.",
                &["skill", "level", "surface"],
            )?,
            disclosed_tokens: counter(
                "disclosed_tokens_total",
                "Tokens of skills given to the agent over MCP, at four bytes each.",
                &["skill", "level", "surface"],
            )?,
            loads: counter("loads_total", "Skills that the agent asked to load, by result.", &["skill", "result"])?,
            verify_failures: counter(
                "verify_failures_total",
                "Files of skills that were not given out as they have changed, by reason.",
                &["skill", "reason"],
            )?,
            catalogue_tokens,
            catalogue_entries: gauge(
                "catalogue_entries",
                "Skills of the catalogue, by how much of them stands there.",
                &["state"],
            )?,
        })
    }

    /// A revision is in place, so long after it was named.
    pub fn applied(&self, skill: &str, after: Duration) {
        self.updates.with_label_values(&[skill, "published"]).inc();
        self.apply.with_label_values(&[skill]).observe(after.as_secs_f64());
    }

    /// Counts what was given to the agent.
    pub fn disclosed(&self, skill: &str, level: &str, surface: &str, bytes: usize) {
        let bytes = bytes as u64;
        self.disclosed_bytes.with_label_values(&[skill, level, surface]).inc_by(bytes);
        self.disclosed_tokens.with_label_values(&[skill, level, surface]).inc_by(bytes.div_ceil(4));
    }

    /// A skill has left.
    pub fn forget(&self, skill: &str) {
        let _ = self.ready.remove_label_values(&[skill]);
    }
}
