//! Statuses: pure functions of what was seen. Each compares with the last status, so that nothing is written where
//! nothing changed.

mod a2a;
pub mod agent;
mod control;
pub mod mcp_server;
pub mod pods;
pub mod skill;
pub mod write;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Longest message of a condition, in characters.
const MAX_MESSAGE: usize = 2000;

/// What a condition says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// One word in `CamelCase`.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
}

impl Said {
    /// It holds.
    pub fn yes(reason: &str, message: impl Into<String>) -> Self {
        Self { status: "True", reason: reason.into(), message: message.into() }
    }

    /// It does not.
    pub fn no(reason: &str, message: impl Into<String>) -> Self {
        Self { status: "False", reason: reason.into(), message: message.into() }
    }

    /// Nobody can tell.
    pub fn unknown(reason: &str, message: impl Into<String>) -> Self {
        Self { status: "Unknown", reason: reason.into(), message: message.into() }
    }
}

impl From<&Condition> for Said {
    fn from(before: &Condition) -> Self {
        let (reason, message) = (before.reason.clone(), before.message.clone());
        let status = match before.status.as_str() {
            "True" => "True",
            "False" => "False",
            _ => "Unknown",
        };
        Self { status, reason, message }
    }
}

/// The conditions in the given order. Each keeps its transition time while its status stays.
pub fn conditions(
    previous: &[Condition],
    generation: Option<i64>,
    now: &Time,
    said: Vec<(&'static str, Said)>,
) -> Vec<Condition> {
    said.into_iter()
        .map(|(kind, said)| {
            let before = previous.iter().find(|c| c.type_ == kind);
            let since = before.filter(|c| c.status == said.status).map(|c| c.last_transition_time.clone());
            Condition {
                type_: kind.into(),
                status: said.status.into(),
                reason: said.reason,
                message: cut(&said.message),
                observed_generation: generation,
                last_transition_time: since.unwrap_or_else(|| now.clone()),
            }
        })
        .collect()
}

/// One condition of a list.
pub fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == kind)
}

fn cut(text: &str) -> String {
    if text.chars().count() <= MAX_MESSAGE {
        return text.into();
    }
    text.chars().take(MAX_MESSAGE - 1).chain(std::iter::once('…')).collect()
}

/// "1 pod", "2 pods".
pub(crate) fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_stay_while_the_status_stays() {
        let (early, late) =
            (Time("2026-01-01T00:00:00Z".parse().unwrap()), Time("2026-01-02T00:00:00Z".parse().unwrap()));
        let first = conditions(&[], Some(1), &early, vec![("Ready", Said::no("A", "a"))]);
        let same = conditions(&first, Some(1), &late, vec![("Ready", Said::no("A", "a"))]);
        assert_eq!(first, same, "nothing to write");
        let other_reason = conditions(&first, Some(2), &late, vec![("Ready", Said::no("B", "b"))]);
        assert_eq!(other_reason[0].last_transition_time, early);
        let other = conditions(&first, Some(2), &late, vec![("Ready", Said::yes("B", "b"))]);
        assert_eq!(other[0].last_transition_time, late);
    }

    #[test]
    fn long_messages_are_cut() {
        let c = conditions(
            &[],
            None,
            &Time("2026-01-01T00:00:00Z".parse().unwrap()),
            vec![("X", Said::no("A", "ä".repeat(5000)))],
        );
        assert_eq!(c[0].message.chars().count(), MAX_MESSAGE);
    }
}
