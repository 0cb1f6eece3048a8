//! Methods of A2A over JSON-RPC (A2A 1.0, section 9.4).

/// What a method name asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// A message, answered when the work rests.
    SendMessage,
    /// A message, answered by a stream.
    SendStreamingMessage,
    /// One task.
    GetTask,
    /// Tasks by filter.
    ListTasks,
    /// The end of a task.
    CancelTask,
    /// The stream of a task.
    SubscribeToTask,
    /// One of the four push notification methods.
    PushNotificationConfig,
    /// The card for known callers.
    GetExtendedAgentCard,
    /// A method of A2A 0.3, such as `message/send`.
    V03,
    /// Nothing known.
    Unknown,
}

impl Method {
    /// Reads a method name.
    pub fn parse(name: &str) -> Self {
        match name {
            "SendMessage" => Self::SendMessage,
            "SendStreamingMessage" => Self::SendStreamingMessage,
            "GetTask" => Self::GetTask,
            "ListTasks" => Self::ListTasks,
            "CancelTask" => Self::CancelTask,
            "SubscribeToTask" => Self::SubscribeToTask,
            "CreateTaskPushNotificationConfig"
            | "GetTaskPushNotificationConfig"
            | "ListTaskPushNotificationConfigs"
            | "DeleteTaskPushNotificationConfig" => Self::PushNotificationConfig,
            "GetExtendedAgentCard" => Self::GetExtendedAgentCard,
            "message/send"
            | "message/stream"
            | "tasks/get"
            | "tasks/list"
            | "tasks/cancel"
            | "tasks/resubscribe"
            | "tasks/pushNotificationConfig/set"
            | "tasks/pushNotificationConfig/get"
            | "tasks/pushNotificationConfig/list"
            | "tasks/pushNotificationConfig/delete"
            | "agent/getAuthenticatedExtendedCard"
            | "agent/authenticatedExtendedCard" => Self::V03,
            _ => Self::Unknown,
        }
    }

    /// Label in metrics: a fixed set.
    pub fn label(self) -> &'static str {
        match self {
            Self::SendMessage => "SendMessage",
            Self::SendStreamingMessage => "SendStreamingMessage",
            Self::GetTask => "GetTask",
            Self::ListTasks => "ListTasks",
            Self::CancelTask => "CancelTask",
            Self::SubscribeToTask => "SubscribeToTask",
            Self::PushNotificationConfig => "PushNotificationConfig",
            Self::GetExtendedAgentCard => "GetExtendedAgentCard",
            Self::V03 | Self::Unknown => "other",
        }
    }
}
