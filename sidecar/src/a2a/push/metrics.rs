//! Metrics of push notifications.

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// Handles; cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Attempts by outcome.
    pub deliveries: IntCounterVec,
    /// Receivers that were given up.
    pub dead: IntCounter,
    /// Time from an event to its delivery.
    pub delay: Histogram,
    /// Receivers that are served now.
    pub in_flight: IntGauge,
}

impl Metrics {
    /// Registers them.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Self {
            deliveries: IntCounterVec::new(
                Opts::new(
                    "outrigger_a2a_push_deliveries_total",
                    "Attempts to deliver a push notification, by outcome: delivered, rejected, unreachable, refused.",
                ),
                &["outcome"],
            )?,
            dead: IntCounter::new(
                "outrigger_a2a_push_dead_letters_total",
                "Receivers of push notifications that were given up with events undelivered.",
            )?,
            delay: Histogram::with_opts(
                HistogramOpts::new(
                    "outrigger_a2a_push_delay_seconds",
                    "Time from an event to the delivery of its push notification.",
                )
                .buckets(vec![0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 1800.0, 3600.0, 21600.0, 86400.0]),
            )?,
            in_flight: IntGauge::new(
                "outrigger_a2a_push_receivers_in_flight",
                "Receivers of push notifications that are served now.",
            )?,
        };
        registry.register(Box::new(metrics.deliveries.clone()))?;
        registry.register(Box::new(metrics.dead.clone()))?;
        registry.register(Box::new(metrics.delay.clone()))?;
        registry.register(Box::new(metrics.in_flight.clone()))?;
        Ok(metrics)
    }
}
