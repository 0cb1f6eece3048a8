//! States of a task and the moves between them (A2A 1.0, section 4.1.3).

/// State of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Accepted, not at work.
    Submitted,
    /// At work.
    Working,
    /// Waits for a message of the caller.
    InputRequired,
    /// Waits for credentials.
    AuthRequired,
    /// Ended with a result.
    Completed,
    /// Ended by a fault.
    Failed,
    /// Ended by the caller.
    Canceled,
    /// Not taken on.
    Rejected,
}

impl State {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 8] = [
        Self::Submitted,
        Self::Working,
        Self::InputRequired,
        Self::AuthRequired,
        Self::Completed,
        Self::Failed,
        Self::Canceled,
        Self::Rejected,
    ];

    /// The name on the wire.
    pub fn wire(self) -> &'static str {
        match self {
            Self::Submitted => "TASK_STATE_SUBMITTED",
            Self::Working => "TASK_STATE_WORKING",
            Self::InputRequired => "TASK_STATE_INPUT_REQUIRED",
            Self::AuthRequired => "TASK_STATE_AUTH_REQUIRED",
            Self::Completed => "TASK_STATE_COMPLETED",
            Self::Failed => "TASK_STATE_FAILED",
            Self::Canceled => "TASK_STATE_CANCELED",
            Self::Rejected => "TASK_STATE_REJECTED",
        }
    }

    /// The short name, as in the executor contract and in metrics.
    pub fn short(self) -> &'static str {
        match self {
            Self::Submitted => "submitted",
            Self::Working => "working",
            Self::InputRequired => "input-required",
            Self::AuthRequired => "auth-required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
            Self::Rejected => "rejected",
        }
    }

    /// Reads the number of the enum in the proto, the same in 1.0 and 0.3; `Some(None)` is the one of no meaning.
    pub fn numbered(number: u32) -> Option<Option<Self>> {
        Some(match number {
            0 => None,
            1 => Some(Self::Submitted),
            2 => Some(Self::Working),
            3 => Some(Self::Completed),
            4 => Some(Self::Failed),
            5 => Some(Self::Canceled),
            6 => Some(Self::InputRequired),
            7 => Some(Self::Rejected),
            8 => Some(Self::AuthRequired),
            _ => return None,
        })
    }

    /// Reads the wire name or the short name.
    pub fn exact(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.wire() == name || s.short() == name)
    }

    /// Reads what is meant by other spellings: upper case, underscores, spaces, two Ls in cancelled.
    pub fn lenient(name: &str) -> Option<Self> {
        let name = name.trim().to_ascii_lowercase().replace(['_', ' '], "-");
        let name = name.strip_prefix("task-state-").unwrap_or(&name);
        let name = if name == "cancelled" { "canceled" } else { name };
        Self::ALL.into_iter().find(|s| s.short() == name)
    }

    /// Whether nothing can follow.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Canceled | Self::Rejected)
    }

    /// Whether the caller is asked for something.
    pub fn is_interrupted(self) -> bool {
        matches!(self, Self::InputRequired | Self::AuthRequired)
    }

    /// Whether a task may go from this state to the other one. The same state again is a new message in it.
    pub fn may_become(self, to: Self) -> bool {
        match self {
            _ if self.is_terminal() => false,
            Self::Submitted => true,
            _ => to != Self::Submitted,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn the_whole_table() {
        let mut table = String::new();
        for from in State::ALL {
            let to: Vec<_> = State::ALL.into_iter().filter(|to| from.may_become(*to)).map(State::short).collect();
            let _ = writeln!(table, "{} -> {}", from.short(), to.join(" "));
        }
        insta::assert_snapshot!(table);
    }

    #[test]
    fn names_read_back() {
        for (i, s) in State::ALL.into_iter().enumerate() {
            assert_eq!(s as usize, i);
            assert_eq!(State::exact(s.wire()), Some(s));
            assert_eq!(State::exact(s.short()), Some(s));
            assert_eq!(State::lenient(s.wire()), Some(s));
        }
        assert_eq!(State::exact("CANCELLED"), None);
        assert_eq!(State::lenient(" TASK_STATE_CANCELLED"), Some(State::Canceled));
        assert_eq!(State::lenient("input required"), Some(State::InputRequired));
        assert_eq!(State::lenient("done"), None);
    }
}
