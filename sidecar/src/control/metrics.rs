//! Metrics of the way to the operator.

use prometheus::{IntCounterVec, IntGauge, Opts, Registry};

use super::error::ControlError;

/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// `outrigger_control_connected`
    pub connected: IntGauge,
    /// `outrigger_control_stale_seconds`
    pub stale: IntGauge,
    /// `outrigger_control_connections_total{outcome}`
    pub connections: IntCounterVec,
    /// `outrigger_control_bundles_total{outcome}`
    pub bundles: IntCounterVec,
}

impl Metrics {
    /// Registers them.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str| -> Result<IntGauge, prometheus::Error> {
            let metric = IntGauge::new(name, help)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let counter = |name: &str, help: &str| -> Result<IntCounterVec, prometheus::Error> {
            let metric = IntCounterVec::new(Opts::new(name, help), &["outcome"])?;
            registry.register(Box::new(metric.clone()))?;
            for outcome in ["ok"].into_iter().chain(ControlError::LABELS) {
                metric.with_label_values(&[outcome]);
            }
            Ok(metric)
        };
        Ok(Self {
            connected: gauge(
                "outrigger_control_connected",
                "1 while the operator tells of changes of the live configuration.",
            )?,
            stale: gauge(
                "outrigger_control_stale_seconds",
                "Time since the operator was last connected: changes meanwhile come by the volume alone.",
            )?,
            connections: counter(
                "outrigger_control_connections_total",
                "Tries to follow the live configuration at the operator, by outcome.",
            )?,
            bundles: counter(
                "outrigger_control_bundles_total",
                "Bundles of skills asked of the operator, by outcome.",
            )?,
        })
    }
}
