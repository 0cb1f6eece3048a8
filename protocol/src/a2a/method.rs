//! Methods of A2A over JSON-RPC (A2A 1.0, section 9.4; 0.3, section 7).

use super::errors::{Error, Kind};
use super::operation::{Dialect, Operation};

/// Methods of 0.3. It has no `tasks/list` in JSON-RPC; the last name is one that it had before 0.3.0.
const V03: [(&str, Operation); 11] = [
    ("message/send", Operation::SendMessage),
    ("message/stream", Operation::SendStreamingMessage),
    ("tasks/get", Operation::GetTask),
    ("tasks/cancel", Operation::CancelTask),
    ("tasks/resubscribe", Operation::SubscribeToTask),
    ("tasks/pushNotificationConfig/set", Operation::CreateTaskPushNotificationConfig),
    ("tasks/pushNotificationConfig/get", Operation::GetTaskPushNotificationConfig),
    ("tasks/pushNotificationConfig/list", Operation::ListTaskPushNotificationConfigs),
    ("tasks/pushNotificationConfig/delete", Operation::DeleteTaskPushNotificationConfig),
    ("agent/getAuthenticatedExtendedCard", Operation::GetExtendedAgentCard),
    ("agent/authenticatedExtendedCard", Operation::GetExtendedAgentCard),
];

/// What a method name asks for, and in which version it is one.
pub fn parse(name: &str) -> Option<(Operation, Dialect)> {
    if let Some(operation) = Operation::by_name(name) {
        return Some((operation, Dialect::V10));
    }
    V03.iter().find(|(known, _)| *known == name).map(|(_, operation)| (*operation, Dialect::V03))
}

/// Name of an operation's method; `None` where the version has none.
pub fn name(operation: Operation, dialect: Dialect) -> Option<&'static str> {
    match dialect {
        Dialect::V10 => Some(operation.name()),
        Dialect::V03 | Dialect::V03Proto => V03.iter().find(|(_, o)| *o == operation).map(|(name, _)| *name),
    }
}

/// The error for a name that is no method.
pub fn unknown(name: &str) -> Error {
    let name: String = name.chars().take(64).collect();
    Error::new(Kind::MethodNotFound, format!("there is no method {name:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for operation in Operation::ALL {
            assert_eq!(parse(operation.name()), Some((operation, Dialect::V10)));
            match name(operation, Dialect::V03) {
                Some(old) => assert_eq!(parse(old), Some((operation, Dialect::V03))),
                None => assert_eq!(operation, Operation::ListTasks),
            }
        }
        for name in ["tasks/list", "message/Send", "", "sendMessage"] {
            assert_eq!(parse(name), None);
            assert_eq!(unknown(name).kind, Kind::MethodNotFound);
        }
    }
}
