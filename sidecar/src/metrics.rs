//! Metrics of the sidecar itself; A2A, MCP and skills register their own.

use prometheus::{Encoder, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};

/// Metrics of configuration and connections.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Live documents by outcome: `accepted`, `refused`.
    pub config_loads: IntCounterVec,
    /// 1 while a newer live document is refused.
    pub config_refused: IntGauge,
    /// Open connections by listener: `a2a`, `local`, `admin`.
    pub connections: IntGaugeVec,
    /// Connections refused as too many are open, by listener.
    pub connections_refused: IntCounterVec,
    /// 1 while the pod is ready.
    pub ready: IntGauge,
    /// 1 while the pod drains.
    pub draining: IntGauge,
}

impl Metrics {
    /// Registers them.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Self {
            config_loads: IntCounterVec::new(
                Opts::new("outrigger_config_loads_total", "Live configuration documents read, by outcome."),
                &["outcome"],
            )?,
            config_refused: IntGauge::new(
                "outrigger_config_refused",
                "1 while a newer live configuration is refused and an older one is in force.",
            )?,
            connections: IntGaugeVec::new(
                Opts::new("outrigger_connections", "Open connections, by listener."),
                &["listener"],
            )?,
            connections_refused: IntCounterVec::new(
                Opts::new("outrigger_connections_refused_total", "Connections closed at once as too many are open."),
                &["listener"],
            )?,
            ready: IntGauge::new("outrigger_ready", "1 while the pod is ready for work.")?,
            draining: IntGauge::new("outrigger_draining", "1 while the pod drains.")?,
        };
        registry.register(Box::new(metrics.config_loads.clone()))?;
        registry.register(Box::new(metrics.config_refused.clone()))?;
        registry.register(Box::new(metrics.connections.clone()))?;
        registry.register(Box::new(metrics.connections_refused.clone()))?;
        registry.register(Box::new(metrics.ready.clone()))?;
        registry.register(Box::new(metrics.draining.clone()))?;
        let build = IntGaugeVec::new(
            Opts::new("outrigger_build_info", "Always 1; the label is the version of the sidecar."),
            &["version"],
        )?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        registry.register(Box::new(build))?;
        Ok(metrics)
    }
}

/// The text that Prometheus scrapes (exposition format 0.0.4), and its media type.
pub fn encode(registry: &Registry) -> Result<(Vec<u8>, &'static str), prometheus::Error> {
    let mut text = Vec::with_capacity(16 << 10);
    TextEncoder::new().encode(&registry.gather(), &mut text)?;
    Ok((text, prometheus::TEXT_FORMAT))
}
