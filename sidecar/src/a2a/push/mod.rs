//! Push notifications (A2A 1.0, section 4.3 and 13.2): a task's events, sent to receivers that its caller names.
//!
//! The queue of a receiver is the task's event log, and what it has is a number of the store; so nothing is lost by a
//! restart, nothing is copied, and no receiver holds up a turn or another receiver. Events of a task come in order,
//! each at least once, with an id that stays the same (`Idempotency-Key`).

mod configs;
mod metrics;
mod notify;
mod outlet;
mod sender;

pub use configs::Configs;
pub use metrics::Metrics;
pub use outlet::Outlet;
pub use sender::{Sender, Timing};
