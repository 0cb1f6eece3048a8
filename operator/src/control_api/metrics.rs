//! Metrics of the control API.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};

use super::keeper;
use super::refused::Refused;

/// Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    /// `outrigger_operator_control_requests_total{operation,outcome}`
    pub requests: IntCounterVec,
    /// `outrigger_operator_control_connections_total{outcome}`
    pub connections: IntCounterVec,
    /// `outrigger_operator_control_streams`
    pub streams: IntGauge,
    /// `outrigger_operator_control_events_total`
    pub events: IntCounter,
    /// `outrigger_operator_token_reviews_total{outcome}`
    pub token_reviews: IntCounterVec,
    /// `outrigger_operator_bundle_reads_total{outcome}`
    pub bundle_reads: IntCounterVec,
    /// `outrigger_operator_authority_reads_total{outcome}`
    pub authority_reads: IntCounterVec,
    /// `outrigger_operator_authority_steps_total{step}`
    pub authority_steps: IntCounterVec,
    /// `outrigger_operator_authority_not_after_timestamp_seconds`
    pub authority_not_after: IntGauge,
}

impl Metrics {
    /// Registers them.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str, labels: &[&str]| -> Result<IntCounterVec, prometheus::Error> {
            let metric = IntCounterVec::new(Opts::new(format!("outrigger_operator_{name}"), help), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let gauge = |name: &str, help: &str| -> Result<IntGauge, prometheus::Error> {
            let metric = IntGauge::new(format!("outrigger_operator_{name}"), help)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let events = IntCounter::new(
            "outrigger_operator_control_events_total",
            "Live documents written to the streams of sidecars.",
        )?;
        registry.register(Box::new(events.clone()))?;
        let metrics = Self {
            requests: counter(
                "control_requests_total",
                "Requests of sidecars, by operation (live, watch, bundle, proposal, other) and outcome (ok, not_modified, or why it was refused).",
                &["operation", "outcome"],
            )?,
            connections: counter(
                "control_connections_total",
                "Connections of sidecars, by outcome (ok, no_handshake, refused).",
                &["outcome"],
            )?,
            streams: gauge("control_streams", "Streams of live documents that are open at this replica.")?,
            events,
            token_reviews: counter(
                "token_reviews_total",
                "Questions to the API server whose token it is, by outcome (ok, refused, error).",
                &["outcome"],
            )?,
            bundle_reads: counter(
                "bundle_reads_total",
                "Bundles of skills for sidecars, by outcome (kept, read, error).",
                &["outcome"],
            )?,
            authority_reads: counter(
                "authority_reads_total",
                "Readings of the authority of the control API, by outcome (ok, forbidden, conflict, unavailable, damaged).",
                &["outcome"],
            )?,
            authority_steps: counter(
                "authority_steps_total",
                "Changes of the authority of the control API, by step (made, announced, switched, dropped).",
                &["step"],
            )?,
            authority_not_after: gauge(
                "authority_not_after_timestamp_seconds",
                "End of the authority that signs the certificates of the control API, in Unix time.",
            )?,
        };
        metrics.begin();
        Ok(metrics)
    }

    /// A counter that does not exist yet cannot be alerted on.
    fn begin(&self) {
        for operation in ["live", "watch", "bundle", "proposal"] {
            for outcome in ["ok"].into_iter().chain(Refused::LABELS) {
                self.requests.with_label_values(&[operation, outcome]);
            }
        }
        let (reads, steps) = keeper::labels();
        let reads: Vec<_> = reads.collect();
        for (metric, labels) in [
            (&self.connections, ["ok", "no_handshake", "refused"].as_slice()),
            (&self.token_reviews, &["ok", "refused", "error"]),
            (&self.bundle_reads, &["kept", "read", "error"]),
            (&self.authority_reads, &reads),
            (&self.authority_steps, &steps.collect::<Vec<_>>()),
        ] {
            for label in labels {
                metric.with_label_values(&[*label]);
            }
        }
    }
}
