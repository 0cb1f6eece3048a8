//! Logs: JSON lines on stderr; stdout stays empty.

use tracing_subscriber::EnvFilter;

/// Starts logging at the level of `OUTRIGGER_LOG` (default `info`); a filter that does not parse is said and ignored.
pub fn init() {
    let text = std::env::var("OUTRIGGER_LOG").unwrap_or_else(|_| "info".into());
    let (filter, bad) = match EnvFilter::try_new(&text) {
        Ok(filter) => (filter, None),
        Err(e) => (EnvFilter::new("info"), Some(e)),
    };
    let started = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(true)
        .with_span_list(false)
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .try_init();
    if let (Ok(()), Some(e)) = (started, bad) {
        tracing::warn!(target: "transport", filter = text, error = %e, "OUTRIGGER_LOG does not parse, using info");
    }
}
