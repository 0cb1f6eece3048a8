//! Metrics of calls to peers. The label `peer` is `name.namespace` of a configured one, so its values are bounded.

use std::time::Duration;

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

/// Handles of all metrics; cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Requests by peer and outcome.
    pub requests: IntCounterVec,
    first_byte: HistogramVec,
    open: IntGaugeVec,
    retries: IntCounterVec,
    addresses: IntGaugeVec,
    ejections: IntCounterVec,
}

/// The metrics of one peer.
#[derive(Clone, Debug)]
pub struct PeerMetrics {
    requests: IntCounterVec,
    retries: IntCounterVec,
    peer: String,
    first_byte: Histogram,
    /// Requests whose answer has not ended.
    pub open: IntGauge,
    /// Addresses by the last resolution.
    pub addresses: IntGauge,
    /// Times that an address took no connection.
    pub ejections: IntCounter,
}

impl Metrics {
    /// Registers all of them.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let v = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(v.clone()))?;
            Ok::<_, prometheus::Error>(v)
        };
        let gauges = |name: &str, help: &str| {
            let v = IntGaugeVec::new(Opts::new(name, help), &["peer"])?;
            registry.register(Box::new(v.clone()))?;
            Ok::<_, prometheus::Error>(v)
        };
        let first_byte = HistogramVec::new(
            HistogramOpts::new("outrigger_peer_first_byte_seconds", "Time from a request to a peer to its first byte.")
                .buckets(vec![0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0]),
            &["peer"],
        )?;
        registry.register(Box::new(first_byte.clone()))?;
        Ok(Self {
            requests: counters(
                "outrigger_peer_requests_total",
                "Requests to peers, by outcome.",
                &["peer", "outcome"],
            )?,
            first_byte,
            open: gauges("outrigger_peer_requests_open", "Requests to peers whose answer has not ended.")?,
            retries: counters("outrigger_peer_retries_total", "Requests to peers sent again.", &["peer", "reason"])?,
            addresses: gauges("outrigger_peer_addresses", "Addresses of a peer by the last resolution of its name.")?,
            ejections: counters(
                "outrigger_peer_ejections_total",
                "Times that an address of a peer took no connection and was left alone for a while.",
                &["peer"],
            )?,
        })
    }

    /// Those of one peer.
    pub fn of(&self, peer: &str) -> PeerMetrics {
        PeerMetrics {
            requests: self.requests.clone(),
            retries: self.retries.clone(),
            peer: peer.to_owned(),
            first_byte: self.first_byte.with_label_values(&[peer]),
            open: self.open.with_label_values(&[peer]),
            addresses: self.addresses.with_label_values(&[peer]),
            ejections: self.ejections.with_label_values(&[peer]),
        }
    }
}

impl PeerMetrics {
    /// Counts an answer, or what stands in its place.
    pub fn outcome(&self, outcome: &str) {
        self.requests.with_label_values(&[&self.peer, outcome]).inc();
    }

    /// Counts a request that is sent again.
    pub fn retry(&self, reason: &str) {
        self.retries.with_label_values(&[&self.peer, reason]).inc();
    }

    /// Notes how long the first byte took.
    pub fn first_byte(&self, took: Duration) {
        self.first_byte.observe(took.as_secs_f64());
    }
}
