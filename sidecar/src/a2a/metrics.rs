//! Metrics of the A2A side.

use outrigger_protocol::a2a::state::State;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

/// Handles of all metrics; cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// By state, in the order of [`State::ALL`]: tasks in the store, and tasks that entered the state.
    states: [(IntGauge, IntCounter); State::ALL.len()],
    /// Time of the store's operations, by operation.
    pub store_seconds: HistogramVec,
    /// Errors of the store, by operation and outcome.
    pub store_errors: IntCounterVec,
    /// Tasks that left the store before their retention was over.
    pub evicted: IntCounter,
    /// Turns at work.
    pub turns_in_flight: IntGauge,
    /// Turns that wait.
    pub turns_queued: IntGauge,
    /// Time of a turn at work.
    pub turn_seconds: Histogram,
    /// Clear mistakes in answers that were put right.
    pub repairs: IntCounterVec,
    /// Turns without a usable answer.
    pub failures: IntCounterVec,
    /// Turns that were sent again.
    pub retries: IntCounterVec,
    /// Answers and events that came after their task or turn had ended.
    pub late: IntCounter,
    /// Results that could not be stored in the end.
    pub results_lost: IntCounter,
    /// Messages that had come before.
    pub replays: IntCounter,
    /// Tasks that were asked for and are not there for their caller.
    pub absent: IntCounterVec,
    /// Tasks of processes that are gone.
    pub recovered: IntCounterVec,
    /// Whether the handler answered its last probe.
    pub agent_up: IntGauge,
}

impl Metrics {
    /// Registers all of them.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let v = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(v.clone()))?;
            Ok::<_, prometheus::Error>(v)
        };
        let counter = |name: &str, help: &str| {
            let v = IntCounter::new(name, help)?;
            registry.register(Box::new(v.clone()))?;
            Ok::<_, prometheus::Error>(v)
        };
        let gauge = |name: &str, help: &str| {
            let v = IntGauge::new(name, help)?;
            registry.register(Box::new(v.clone()))?;
            Ok::<_, prometheus::Error>(v)
        };
        let buckets =
            vec![0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];
        let turn_seconds = Histogram::with_opts(
            HistogramOpts::new(
                "outrigger_a2a_turn_duration_seconds",
                "Time a turn was at work, from its place to its answer.",
            )
            .buckets(buckets),
        )?;
        registry.register(Box::new(turn_seconds.clone()))?;
        let tasks = IntGaugeVec::new(Opts::new("outrigger_a2a_tasks", "Tasks in the store by state."), &["state"])?;
        registry.register(Box::new(tasks.clone()))?;
        let transitions = counters("outrigger_a2a_task_transitions_total", "Tasks that entered a state.", &["state"])?;
        // A series that is there from the start can be alerted on; one that is found once costs no look-up later.
        let states =
            State::ALL.map(|s| (tasks.with_label_values(&[s.short()]), transitions.with_label_values(&[s.short()])));
        let store_seconds = HistogramVec::new(
            HistogramOpts::new(
                "outrigger_a2a_store_operation_duration_seconds",
                "Time of an operation of a task store in a file or a database.",
            )
            .buckets(vec![0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0]),
            &["operation"],
        )?;
        registry.register(Box::new(store_seconds.clone()))?;
        Ok(Self {
            states,
            store_seconds,
            store_errors: counters(
                "outrigger_a2a_store_errors_total",
                "Operations of a task store in a file or a database that were not done, by outcome.",
                &["operation", "outcome"],
            )?,
            evicted: counter(
                "outrigger_a2a_tasks_evicted_total",
                "Ended tasks that made room for new ones before their retention was over.",
            )?,
            turns_in_flight: gauge("outrigger_a2a_turns_in_flight", "Turns at work in the handler.")?,
            turns_queued: gauge("outrigger_a2a_turns_queued", "Turns that wait for a place.")?,
            turn_seconds,
            repairs: counters(
                "outrigger_a2a_answer_repairs_total",
                "Clear mistakes in the handler's answers that were put right, by rule of the executor contract.",
                &["rule"],
            )?,
            failures: counters(
                "outrigger_a2a_turn_failures_total",
                "Turns without a usable answer, by reason of the executor contract.",
                &["reason"],
            )?,
            retries: counters(
                "outrigger_a2a_turn_retries_total",
                "Turns that were offered again because the handler had not taken them: connection refused, or busy (429, 503).",
                &["reason"],
            )?,
            late: counter(
                "outrigger_a2a_late_answers_total",
                "Answers and events of the handler that were dropped because their task or turn had ended.",
            )?,
            results_lost: counter(
                "outrigger_a2a_results_lost_total",
                "Ends of turns that were not stored, as the task store was away for too long.",
            )?,
            replays: counter(
                "outrigger_a2a_replays_total",
                "Messages that had come before and were answered from what they led to then.",
            )?,
            absent: counters(
                "outrigger_a2a_tasks_absent_total",
                "Tasks that were asked for and are not there: forgotten (the id was one of ours), foreign, unknown.",
                &["kind"],
            )?,
            recovered: counters(
                "outrigger_a2a_tasks_recovered_total",
                "Tasks whose process was gone: reattached, redelivered or failed.",
                &["outcome"],
            )?,
            agent_up: gauge("outrigger_a2a_agent_up", "Whether the handler answered its last probe (1) or not (0).")?,
        })
    }

    /// A task in the store went from one state to another; `None` is outside of it.
    pub fn moved(&self, from: Option<State>, to: Option<State>) {
        if from == to {
            return;
        }
        if let Some(from) = from {
            self.states[from as usize].0.dec();
        }
        if let Some(to) = to {
            self.states[to as usize].0.inc();
            self.states[to as usize].1.inc();
        }
    }

    /// So many tasks are in a state: found in a store that outlived its process.
    pub fn present(&self, state: State, tasks: i64) {
        self.states[state as usize].0.set(tasks);
    }

    /// Tasks in the store in a state.
    pub fn tasks(&self, state: State) -> i64 {
        self.states[state as usize].0.get()
    }
}
