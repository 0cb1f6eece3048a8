//! The operations of A2A 1.0 (section 3.1), whatever binding and dialect they come in.

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
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
    /// A new push notification configuration.
    CreateTaskPushNotificationConfig,
    /// One push notification configuration.
    GetTaskPushNotificationConfig,
    /// The push notification configurations of a task.
    ListTaskPushNotificationConfigs,
    /// The end of a push notification configuration.
    DeleteTaskPushNotificationConfig,
    /// The card for known callers.
    GetExtendedAgentCard,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::SendMessage,
        Self::SendStreamingMessage,
        Self::GetTask,
        Self::ListTasks,
        Self::CancelTask,
        Self::SubscribeToTask,
        Self::CreateTaskPushNotificationConfig,
        Self::GetTaskPushNotificationConfig,
        Self::ListTaskPushNotificationConfigs,
        Self::DeleteTaskPushNotificationConfig,
        Self::GetExtendedAgentCard,
    ];

    /// Name in JSON-RPC, gRPC and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::SendMessage => "SendMessage",
            Self::SendStreamingMessage => "SendStreamingMessage",
            Self::GetTask => "GetTask",
            Self::ListTasks => "ListTasks",
            Self::CancelTask => "CancelTask",
            Self::SubscribeToTask => "SubscribeToTask",
            Self::CreateTaskPushNotificationConfig => "CreateTaskPushNotificationConfig",
            Self::GetTaskPushNotificationConfig => "GetTaskPushNotificationConfig",
            Self::ListTaskPushNotificationConfigs => "ListTaskPushNotificationConfigs",
            Self::DeleteTaskPushNotificationConfig => "DeleteTaskPushNotificationConfig",
            Self::GetExtendedAgentCard => "GetExtendedAgentCard",
        }
    }

    /// Whether it is answered by a stream.
    pub fn streams(self) -> bool {
        matches!(self, Self::SendStreamingMessage | Self::SubscribeToTask)
    }

    /// Reads a name of 1.0.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|o| o.name() == name)
    }
}

/// How a request and its answer are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// 1.0, in every binding.
    V10,
    /// 0.3 as JSON-RPC has it: objects with a `kind`.
    V03,
    /// 0.3 as HTTP+JSON and gRPC have it: `ProtoJSON` of its own proto.
    V03Proto,
}

impl Dialect {
    /// The version, as in cards and headers.
    pub fn version(self) -> &'static str {
        match self {
            Self::V10 => "1.0",
            Self::V03 | Self::V03Proto => "0.3",
        }
    }
}

/// How a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binding {
    /// JSON-RPC (A2A 1.0, section 9).
    JsonRpc,
    /// gRPC (section 10).
    Grpc,
    /// HTTP and JSON (section 11).
    HttpJson,
}

impl Binding {
    /// Name in cards.
    pub fn name(self) -> &'static str {
        match self {
            Self::JsonRpc => "JSONRPC",
            Self::Grpc => "GRPC",
            Self::HttpJson => "HTTP+JSON",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for operation in Operation::ALL {
            assert_eq!(Operation::by_name(operation.name()), Some(operation));
        }
        assert_eq!(Operation::by_name("message/send"), None);
    }
}
