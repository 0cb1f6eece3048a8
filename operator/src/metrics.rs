//! What Prometheus may scrape of the operator. Labels come from fixed sets.

use prometheus::{
    Encoder, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

use crate::control_api;

/// All metrics; cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    /// `outrigger_operator_reconciles_total{kind,outcome}`
    pub reconciles: IntCounterVec,
    /// `outrigger_operator_reconcile_duration_seconds{kind}`
    pub reconcile_seconds: HistogramVec,
    /// `outrigger_operator_queue_depth{kind}`
    pub queue: IntGaugeVec,
    /// `outrigger_operator_reconciles_running{kind}`
    pub running: IntGaugeVec,
    /// `outrigger_operator_api_requests_total{verb,code}`
    pub api_requests: IntCounterVec,
    /// `outrigger_operator_api_errors_total{verb,reason}`
    pub api_errors: IntCounterVec,
    /// `outrigger_operator_writes_total{kind,cause}`
    pub writes: IntCounterVec,
    /// `outrigger_operator_status_writes_total{kind}`
    pub status_writes: IntCounterVec,
    /// `outrigger_operator_events_total{reason}`
    pub events: IntCounterVec,
    /// `outrigger_operator_leader`
    pub leader: IntGauge,
    /// `outrigger_operator_watch_age_seconds{resource}`
    pub watch_age: IntGaugeVec,
    /// `outrigger_operator_watch_errors_total{resource}`
    pub watch_errors: IntCounterVec,
    /// `outrigger_operator_objects{kind}`
    pub objects: IntGaugeVec,
    /// `outrigger_operator_pod_reads_total{outcome}`
    pub pod_reads: IntCounterVec,
    /// `outrigger_operator_issuer_reads_total{outcome}`
    pub issuer_reads: IntCounterVec,
    /// Of the control API.
    pub control: control_api::metrics::Metrics,
}

impl Metrics {
    /// Registers all metrics.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let counter = |name: &str, help: &str, labels: &[&str]| -> Result<IntCounterVec, prometheus::Error> {
            let metric = IntCounterVec::new(Opts::new(format!("outrigger_operator_{name}"), help), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let gauge = |name: &str, help: &str, labels: &[&str]| -> Result<IntGaugeVec, prometheus::Error> {
            let metric = IntGaugeVec::new(Opts::new(format!("outrigger_operator_{name}"), help), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let leader = IntGauge::new("outrigger_operator_leader", "1 while this replica holds the Lease, else 0.")?;
        registry.register(Box::new(leader.clone()))?;
        let reconcile_seconds = HistogramVec::new(
            HistogramOpts::new(
                "outrigger_operator_reconcile_duration_seconds",
                "Duration of one reconciliation, by kind.",
            )
            .buckets(vec![0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0]),
            &["kind"],
        )?;
        registry.register(Box::new(reconcile_seconds.clone()))?;
        let metrics = Self {
            reconciles: counter(
                "reconciles_total",
                "Reconciliations by kind and outcome (unchanged, changed, waiting, refused, error, timeout).",
                &["kind", "outcome"],
            )?,
            reconcile_seconds,
            queue: gauge("queue_depth", "Objects waiting to be taken up, by kind.", &["kind"])?,
            running: gauge("reconciles_running", "Reconciliations at work, by kind.", &["kind"])?,
            api_requests: counter(
                "api_requests_total",
                "Requests to the API server by verb and class of the answer (2xx, 3xx, 4xx, 5xx, none).",
                &["verb", "code"],
            )?,
            api_errors: counter(
                "api_errors_total",
                "Requests to the API server that failed, by verb and reason.",
                &["verb", "reason"],
            )?,
            writes: counter(
                "writes_total",
                "Objects written, by kind and cause (created, changed, foreign_change, deleted, dry_run).",
                &["kind", "cause"],
            )?,
            status_writes: counter("status_writes_total", "Statuses written, by kind.", &["kind"])?,
            events: counter("events_total", "Events published, by type (Normal, Warning, failed).", &["type"])?,
            leader,
            watch_age: gauge(
                "watch_age_seconds",
                "Time since a watch was last opened, by resource; normally below 200.",
                &["resource"],
            )?,
            watch_errors: counter("watch_errors_total", "Errors of watches, by resource.", &["resource"])?,
            objects: gauge("objects", "Objects in the operator's caches, by kind.", &["kind"])?,
            pod_reads: counter("pod_reads_total", "Reads of pods' own status, by outcome (ok, error).", &["outcome"])?,
            issuer_reads: counter(
                "issuer_reads_total",
                "Reads of the cluster's token issuer and its keys, by outcome (ok, error).",
                &["outcome"],
            )?,
            control: control_api::metrics::Metrics::register(&registry)?,
            registry,
        };
        // A counter that does not exist yet cannot be alerted on.
        for kind in ["Agent", "MCPServer", "Skill"] {
            for outcome in ["unchanged", "changed", "waiting", "refused", "error", "timeout"] {
                metrics.reconciles.with_label_values(&[kind, outcome]);
            }
            metrics.reconcile_seconds.with_label_values(&[kind]);
            metrics.queue.with_label_values(&[kind]);
            metrics.running.with_label_values(&[kind]);
            metrics.status_writes.with_label_values(&[kind]);
        }
        for verb in ["get", "list", "patch", "patch_status", "delete"] {
            for reason in ["Connection", "ServerError", "Forbidden"] {
                metrics.api_errors.with_label_values(&[verb, reason]);
            }
        }
        for kind in ["ServiceAccount", "ConfigMap", "Service", "Deployment"] {
            for cause in ["created", "changed", "foreign_change", "deleted", "dry_run"] {
                metrics.writes.with_label_values(&[kind, cause]);
            }
        }
        for outcome in ["ok", "error"] {
            metrics.pod_reads.with_label_values(&[outcome]);
            metrics.issuer_reads.with_label_values(&[outcome]);
        }
        for kind in ["Normal", "Warning", "failed"] {
            metrics.events.with_label_values(&[kind]);
        }
        Ok(metrics)
    }

    /// The text to scrape.
    pub fn render(&self) -> Result<String, prometheus::Error> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        String::from_utf8(text).map_err(|e| prometheus::Error::Msg(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_help_and_our_prefix() {
        let text = Metrics::new().unwrap().render().unwrap();
        assert!(text.contains("outrigger_operator_reconciles_total{kind=\"Agent\",outcome=\"changed\"} 0"));
        for line in text.lines().filter(|l| l.starts_with("# HELP")) {
            let rest = line.strip_prefix("# HELP outrigger_operator_").unwrap();
            assert!(rest.split_once(' ').is_some_and(|(_, help)| help.ends_with('.')), "{line}");
        }
    }
}
