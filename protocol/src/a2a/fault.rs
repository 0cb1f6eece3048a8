//! What can go wrong with a turn: the reasons of the executor contract.

/// Why a turn gave no answer. Its text is what the caller reads; [`Fault::reason`] stands in the contract.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Nothing listens, or nothing takes the connection.
    #[error("the agent cannot be reached: {0}")]
    Unreachable(String),
    /// The connection broke before the answer was whole.
    #[error("the agent closed the connection before its answer was whole: {0}")]
    Incomplete(String),
    /// No answer in time; milliseconds.
    #[error("the agent did not answer within {0} ms")]
    Timeout(u64),
    /// A status that is no success.
    #[error("the agent answered with HTTP status {0}")]
    Status(u16),
    /// A redirect.
    #[error("the agent answered with a redirect (HTTP status {0}), which is not followed")]
    Redirect(u16),
    /// A quiet stream; milliseconds.
    #[error("the agent sent nothing on its stream for {0} ms")]
    StreamIdle(u64),
    /// No event after 202; milliseconds.
    #[error("the agent answered 202 and then sent no event for {0} ms")]
    AsyncIdle(u64),
    /// No end after 202; milliseconds.
    #[error("the agent answered 202 and did not end the turn within {0} ms")]
    AsyncTimeout(u64),
    /// Another media type.
    #[error("the agent answered with content type {0:?}, want application/json, text/event-stream or text/plain")]
    ContentType(String),
    /// More bytes than allowed.
    #[error("the agent's answer is larger than {0} bytes")]
    TooLarge(u64),
    /// Nested too deep.
    #[error("the agent's answer is nested deeper than 128 levels")]
    TooDeep,
    /// No JSON.
    #[error("the agent's answer is no JSON: {0}")]
    NotJson(String),
    /// JSON of another shape.
    #[error("the agent's answer is invalid: {path} {what}")]
    Invalid {
        /// Dotted path in the answer.
        path: String,
        /// What is wrong with it.
        what: String,
    },
    /// An object with nothing in it that an answer has.
    #[error("the agent's answer has no member that the contract knows, only {0}")]
    Empty(String),
    /// A memo over the limit; its bytes.
    #[error("the agent's memo has {0} bytes, at most 65536 are kept")]
    MemoTooLarge(usize),
    /// The handler said `error`.
    #[error("{text}")]
    Agent {
        /// What it said.
        text: String,
        /// Its own reason.
        reason: Option<String>,
    },
    /// The sidecar came back and cannot know what became of the turn.
    #[error("the agent's sidecar was restarted before the turn ended")]
    Restarted,
    /// The store was away for longer than the lease of this process.
    #[error("the task store was away for too long, so the turn was stopped")]
    StoreLost,
    /// The pod stops.
    #[error("the agent was stopped before it answered")]
    Stopped,
    /// No place in time.
    #[error("the agent had no place for this message in time")]
    QueueTimeout,
    /// The handler kept saying 429 or 503.
    #[error("the agent was busy for too long (HTTP status {0})")]
    Busy(u16),
    /// The result cannot be kept.
    #[error("the agent's answer cannot be stored: {0}")]
    Store(String),
}

impl Fault {
    /// The reason as the contract lists it, also the label in metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "agent_unreachable",
            Self::Incomplete(_) => "answer_incomplete",
            Self::Timeout(_) => "turn_timeout",
            Self::Status(_) => "answer_status",
            Self::Redirect(_) => "answer_redirect",
            Self::StreamIdle(_) => "stream_idle",
            Self::AsyncIdle(_) => "async_idle",
            Self::AsyncTimeout(_) => "async_timeout",
            Self::ContentType(_) => "answer_content_type",
            Self::TooLarge(_) => "answer_too_large",
            Self::TooDeep => "answer_too_deep",
            Self::NotJson(_) => "answer_not_json",
            Self::Invalid { .. } => "answer_invalid",
            Self::Empty(_) => "answer_empty",
            Self::MemoTooLarge(_) => "memo_too_large",
            Self::Agent { .. } => "agent_error",
            Self::Restarted => "agent_restarted",
            Self::StoreLost => "store_lost",
            Self::Stopped => "agent_stopped",
            Self::QueueTimeout => "queue_timeout",
            Self::Busy(_) => "agent_busy",
            Self::Store(_) => "store_refused",
        }
    }

    /// The reason that the caller sees: the handler's own one where it gave one.
    pub fn shown_reason(&self) -> &str {
        match self {
            Self::Agent { reason: Some(reason), .. } => reason,
            _ => self.reason(),
        }
    }

    /// Whether the handler may still be at work and should be told that nobody waits.
    pub fn is_late(&self) -> bool {
        matches!(
            self,
            Self::Timeout(_) | Self::StreamIdle(_) | Self::AsyncIdle(_) | Self::AsyncTimeout(_) | Self::TooLarge(_)
        )
    }

    /// Whether the message was not taken on at all: the task is rejected, not failed.
    pub fn rejects(&self) -> bool {
        matches!(self, Self::QueueTimeout | Self::Busy(_))
    }

    /// An answer of the wrong shape.
    pub fn invalid(path: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Invalid { path: path.into(), what: what.into() }
    }
}
