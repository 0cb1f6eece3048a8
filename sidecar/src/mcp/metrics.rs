//! Metrics of the MCP side.

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry};

/// All of them; cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    /// By server, method and outcome (`ok`, `error`, `timeout`, `child_exited`, `cancelled`, `bad_response`, `refused`).
    pub requests: IntCounterVec,
    /// By server and method.
    pub duration: HistogramVec,
    /// By reason.
    pub http_refusals: IntCounterVec,
    /// By server.
    pub children: IntGaugeVec,
    /// By server.
    pub child_starts: IntCounterVec,
    /// By server and reason.
    pub child_start_failures: IntCounterVec,
    /// By server and reason (`stopped`, `exit_code`, `signal`, `stdout_closed`, `shim_lost`).
    pub child_exits: IntCounterVec,
    /// By server.
    pub shim_restarts: IntCounterVec,
    /// By server.
    pub sessions: IntGaugeVec,
    /// By server and reason (`deleted`, `idle`, `evicted`, `stalled`, `refused`, `abandoned`, `child_ended`, `shutdown`).
    pub sessions_ended: IntCounterVec,
    /// By server and kind (`garbage`, `decorated`, `invalid_utf8`, `too_long`, `malformed`).
    pub odd_lines: IntCounterVec,
    /// By server and reason (`late_response`, `late_progress`, `slow_reader`, `unread_response`, `no_reader`, `unknown_answer`,
    /// `unattributed`, `question`).
    pub dropped: IntCounterVec,
    /// By server.
    pub ping_failures: IntCounterVec,
    /// By server and verdict (`legacy`, `modern`).
    pub probes: IntCounterVec,
    /// By server.
    pub resumed: IntCounterVec,
    /// By server and era of the client (`legacy`, `modern`).
    pub bridged: IntCounterVec,
    /// By server.
    pub parked: IntGaugeVec,
    /// By server and use (`shared`, `session`, `call`, `probe`).
    pub uses: IntGaugeVec,
    /// By server, tool (`other` for what is not among its first 128) and outcome (as of requests, `abandoned`, or why it was refused).
    pub tool_calls: IntCounterVec,
    /// By server and reason (`not_allowed`, `drifted`, `ambiguous`, `arguments_too_large`, `rate_limited`, `too_many_calls`,
    /// `header_mismatch`).
    pub refused: IntCounterVec,
    /// By server and kind (`changed`, `new`).
    pub drift: IntCounterVec,
}

/// From a tool that answers at once to one that takes minutes, in seconds.
const BUCKETS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0];

impl Metrics {
    /// Registers all metrics; a name that is already taken is logged and the metric not exposed.
    ///
    /// # Panics
    /// Never: a test covers every name.
    #[expect(clippy::expect_used, reason = "names and labels are constants, which a test checks")]
    pub fn register(registry: &Registry) -> Self {
        let metrics = Self::new().expect("metric names are valid");
        let all: [Box<dyn prometheus::core::Collector>; 21] = [
            Box::new(metrics.requests.clone()),
            Box::new(metrics.duration.clone()),
            Box::new(metrics.http_refusals.clone()),
            Box::new(metrics.children.clone()),
            Box::new(metrics.child_starts.clone()),
            Box::new(metrics.child_start_failures.clone()),
            Box::new(metrics.child_exits.clone()),
            Box::new(metrics.shim_restarts.clone()),
            Box::new(metrics.sessions.clone()),
            Box::new(metrics.sessions_ended.clone()),
            Box::new(metrics.odd_lines.clone()),
            Box::new(metrics.dropped.clone()),
            Box::new(metrics.ping_failures.clone()),
            Box::new(metrics.probes.clone()),
            Box::new(metrics.resumed.clone()),
            Box::new(metrics.bridged.clone()),
            Box::new(metrics.parked.clone()),
            Box::new(metrics.uses.clone()),
            Box::new(metrics.tool_calls.clone()),
            Box::new(metrics.refused.clone()),
            Box::new(metrics.drift.clone()),
        ];
        for collector in all {
            if let Err(error) = registry.register(collector) {
                tracing::error!(target: "business", %error, "metric is not exposed");
            }
        }
        metrics
    }

    fn new() -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str, labels: &[&str]| {
            IntCounterVec::new(Opts::new(format!("outrigger_mcp_{name}"), help), labels)
        };
        let gauge =
            |name: &str, help: &str| IntGaugeVec::new(Opts::new(format!("outrigger_mcp_{name}"), help), &["server"]);
        Ok(Self {
            requests: counter(
                "requests_total",
                "MCP requests of clients by server, method and outcome.",
                &["server", "method", "outcome"],
            )?,
            duration: HistogramVec::new(
                HistogramOpts::new(
                    "outrigger_mcp_request_duration_seconds",
                    "Time from a client's MCP request to its response, by server and method.",
                )
                .buckets(BUCKETS.to_vec()),
                &["server", "method"],
            )?,
            http_refusals: counter(
                "http_refusals_total",
                "HTTP requests to the MCP endpoint that reached no server, by reason.",
                &["reason"],
            )?,
            children: gauge("children", "Server processes alive.")?,
            child_starts: counter("child_starts_total", "Server processes started.", &["server"])?,
            child_start_failures: counter(
                "child_start_failures_total",
                "Server processes that could not be started or did not complete the handshake, by reason.",
                &["server", "reason"],
            )?,
            child_exits: counter(
                "child_exits_total",
                "Server processes that ended, by reason.",
                &["server", "reason"],
            )?,
            shim_restarts: counter(
                "shim_restarts_total",
                "Times a tool container came back with another shim.",
                &["server"],
            )?,
            sessions: gauge("sessions", "MCP sessions open.")?,
            sessions_ended: counter("sessions_ended_total", "MCP sessions ended, by reason.", &["server", "reason"])?,
            odd_lines: counter(
                "odd_lines_total",
                "Lines on a server's stdout that were not a plain message, by kind.",
                &["server", "kind"],
            )?,
            dropped: counter(
                "dropped_messages_total",
                "Messages that could not be delivered, by reason.",
                &["server", "reason"],
            )?,
            ping_failures: counter(
                "ping_failures_total",
                "Pings that a server process did not answer in time.",
                &["server"],
            )?,
            probes: counter(
                "era_probes_total",
                "Times a server was asked whether it knows the stateless revision, by what came out.",
                &["server", "era"],
            )?,
            resumed: counter(
                "streams_resumed_total",
                "Responses that were cut and taken up again by their client.",
                &["server"],
            )?,
            bridged: counter(
                "bridged_requests_total",
                "Requests of clients of one era for a server of the other, by era of the client.",
                &["server", "client"],
            )?,
            parked: gauge("parked_calls", "Calls that wait for answers of their client.")?,
            uses: IntGaugeVec::new(
                Opts::new("outrigger_mcp_child_uses", "Server processes alive, by what they are for."),
                &["server", "use"],
            )?,
            tool_calls: counter(
                "tool_calls_total",
                "Calls of tools by server, tool and outcome; the tool is \"other\" when it is not among the first of its server.",
                &["server", "tool", "outcome"],
            )?,
            refused: counter(
                "tool_calls_refused_total",
                "Calls of tools that the rules for them did not let through, by reason.",
                &["server", "reason"],
            )?,
            drift: counter(
                "tool_drift_total",
                "Definitions of tools that are not the pinned ones, each counted once, by kind.",
                &["server", "kind"],
            )?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_names_are_valid_and_new() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry);
        metrics.children.with_label_values(&["a"]).set(3);
        metrics.requests.with_label_values(&["a", "ping", "ok"]).inc();
        let names: Vec<String> = registry.gather().iter().map(|f| f.name().to_owned()).collect();
        assert_eq!(names, ["outrigger_mcp_children", "outrigger_mcp_requests_total"]);
    }
}
