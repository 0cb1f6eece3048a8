//! Metrics of requests, whatever binding and dialect they come in. A request is counted once.

use std::sync::{Arc, OnceLock};

use outrigger_protocol::a2a::operation::{Binding, Dialect, Operation};
use outrigger_protocol::a2a::version;
use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry};
use tokio::time::Instant;

/// Upper bounds of the histograms, in seconds.
const BUCKETS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];
/// What a request may name.
const VERSIONS: [&str; 4] = ["1.0", "0.3", "absent", "other"];
/// Bindings and dialects as metrics tell them apart.
const WAYS: usize = 6;

/// Handles of all of them.
#[derive(Debug)]
pub struct Meter {
    requests: IntCounterVec,
    seconds: HistogramVec,
    first_event: HistogramVec,
    streams: IntGaugeVec,
    ended: IntCounterVec,
    /// By the version that is named, each found once.
    versions: [(&'static str, IntCounter); VERSIONS.len()],
    /// Series of requests that went well, found once: a look-up costs more than the count.
    well: [[OnceLock<(IntCounter, Histogram)>; WAYS]; Operation::ALL.len()],
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// After its last event.
    Done,
    /// With an error.
    Error,
    /// The caller went away.
    Gone,
    /// The pod goes away.
    Shutdown,
    /// The time that the caller allowed was over.
    Deadline,
}

impl Ended {
    fn label(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Error => "error",
            Self::Gone => "client_gone",
            Self::Shutdown => "shutdown",
            Self::Deadline => "deadline",
        }
    }
}

fn binding_label(binding: Binding) -> &'static str {
    match binding {
        Binding::JsonRpc => "jsonrpc",
        Binding::Grpc => "grpc",
        Binding::HttpJson => "http_json",
    }
}

fn way(binding: Binding, dialect: Dialect) -> usize {
    binding as usize * 2 + usize::from(dialect != Dialect::V10)
}

impl Meter {
    /// Registers all of them.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let v = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(v.clone()))?;
            Ok::<_, prometheus::Error>(v)
        };
        let histograms = |name: &str, help: &str, labels: &[&str]| {
            let v = HistogramVec::new(HistogramOpts::new(name, help).buckets(BUCKETS.into()), labels)?;
            registry.register(Box::new(v.clone()))?;
            Ok::<_, prometheus::Error>(v)
        };
        let streams =
            IntGaugeVec::new(Opts::new("outrigger_a2a_streams_open", "Streams that are open."), &["binding"])?;
        registry.register(Box::new(streams.clone()))?;
        let versions = counters(
            "outrigger_a2a_versions_total",
            "A2A requests by the version that they name: 0.3, 1.0, other, or absent.",
            &["version"],
        )?;
        Ok(Self {
            requests: counters(
                "outrigger_a2a_requests_total",
                "A2A requests by method, binding, version and outcome (ok or the error).",
                &["method", "binding", "version", "outcome"],
            )?,
            seconds: histograms(
                "outrigger_a2a_request_duration_seconds",
                "Time from the head of an A2A request to its answer, or to the first event of its stream.",
                &["method", "binding"],
            )?,
            first_event: histograms(
                "outrigger_a2a_first_event_seconds",
                "Time from the head of an A2A request to the first event of its stream.",
                &["binding"],
            )?,
            streams,
            ended: counters(
                "outrigger_a2a_streams_ended_total",
                "Streams that ended: done, error, client_gone, shutdown, deadline.",
                &["binding", "reason"],
            )?,
            versions: VERSIONS.map(|label| (label, versions.with_label_values(&[label]))),
            well: Default::default(),
        })
    }

    /// Begins to count a request.
    pub(super) fn begin(self: &Arc<Self>, binding: Binding) -> Counted {
        Counted { meter: Arc::clone(self), began: Instant::now(), binding, operation: None, dialect: None }
    }

    /// Counts the version that a request names.
    pub(super) fn version(&self, named: Option<&str>) {
        let label = version::label(named);
        if let Some((_, count)) = self.versions.iter().find(|(known, _)| *known == label) {
            count.inc();
        }
    }
}

/// A request under way.
#[derive(Debug)]
pub(super) struct Counted {
    meter: Arc<Meter>,
    began: Instant,
    binding: Binding,
    /// What it asks for, as soon as it is known.
    pub(super) operation: Option<Operation>,
    /// In which dialect.
    pub(super) dialect: Option<Dialect>,
}

impl Counted {
    /// Counts its outcome: the label of an error, or none.
    pub(super) fn end(self, error: Option<&'static str>) {
        let seconds = self.began.elapsed().as_secs_f64();
        let binding = binding_label(self.binding);
        if let (None, Some(operation), Some(dialect)) = (error, self.operation, self.dialect) {
            let (count, time) = self.meter.well[operation as usize][way(self.binding, dialect)].get_or_init(|| {
                let labels = [operation.name(), binding, dialect.version(), "ok"];
                let time = self.meter.seconds.with_label_values(&labels[..2]);
                (self.meter.requests.with_label_values(&labels), time)
            });
            count.inc();
            time.observe(seconds);
            return;
        }
        let method = self.operation.map_or("other", Operation::name);
        let version = self.dialect.map_or("none", Dialect::version);
        let outcome = error.unwrap_or("ok");
        self.meter.requests.with_label_values(&[method, binding, version, outcome]).inc();
        self.meter.seconds.with_label_values(&[method, binding]).observe(seconds);
    }

    /// Counts it as answered by a stream.
    pub(super) fn stream(self) -> CountedStream {
        let binding = binding_label(self.binding);
        self.meter.first_event.with_label_values(&[binding]).observe(self.began.elapsed().as_secs_f64());
        self.meter.streams.with_label_values(&[binding]).inc();
        let stream = CountedStream { meter: Arc::clone(&self.meter), binding, ended: Ended::Gone };
        self.end(None);
        stream
    }
}

/// An open stream; it is counted as ended when this is dropped.
#[derive(Debug)]
pub(super) struct CountedStream {
    meter: Arc<Meter>,
    binding: &'static str,
    /// How it ended: a stream that is dropped before its end lost its caller.
    pub(super) ended: Ended,
}

impl Drop for CountedStream {
    fn drop(&mut self) {
        self.meter.streams.with_label_values(&[self.binding]).dec();
        self.meter.ended.with_label_values(&[self.binding, self.ended.label()]).inc();
    }
}
