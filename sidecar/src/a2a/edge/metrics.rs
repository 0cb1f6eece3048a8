//! Metrics of the edge.

use prometheus::{IntCounterVec, Opts, Registry};

/// Handles; cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Callers that were asked who they are, by outcome.
    pub admissions: IntCounterVec,
    /// Readings of issuers' keys, by outcome.
    pub jwks: IntCounterVec,
}

impl Metrics {
    /// Registers them.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counters = |name: &str, help: &str| {
            let v = IntCounterVec::new(Opts::new(name, help), &["outcome"])?;
            registry.register(Box::new(v.clone()))?;
            Ok::<_, prometheus::Error>(v)
        };
        Ok(Self {
            admissions: counters(
                "outrigger_a2a_admissions_total",
                "Requests whose caller was asked for, by outcome: token, api_key, anonymous, or the error.",
            )?,
            jwks: counters(
                "outrigger_a2a_jwks_refreshes_total",
                "Readings of token issuers' keys, by outcome: read, failed.",
            )?,
        })
    }
}
