//! From an operation and its parameters to the service, for every binding alike.

use std::sync::Arc;

use outrigger_protocol::a2a::errors::{Error, Kind};
use outrigger_protocol::a2a::operation::Operation;
use outrigger_protocol::a2a::params::{CancelTask, GetTask};
use outrigger_protocol::a2a::send::SendMessage;
use serde_json::value::RawValue;

use super::call::{Answer, Body, Call, Reply};
use super::service::{Sent, Tasks};

impl Tasks {
    /// Carries out an operation. Parameters are those of 1.0 as JSON.
    pub async fn call(
        self: &Arc<Self>,
        operation: Operation,
        params: Option<&RawValue>,
        call: &Call,
    ) -> Result<Reply, Error> {
        let task = |task, history_length, wrapped| Answer::Task { task, history_length, wrapped };
        let answer = match operation {
            Operation::SendMessage => {
                let params = SendMessage::parse(params)?;
                let length = params.history_length;
                match self.send(params, call.trace.clone()).await? {
                    Sent::Task(sent) => task(sent, length, true),
                    Sent::Message(message) => Answer::Message(message),
                }
            }
            Operation::GetTask => {
                let params = GetTask::parse(params)?;
                task(self.get(&params.id).await?, params.history_length, false)
            }
            Operation::CancelTask => {
                let params = CancelTask::parse(params)?;
                task(self.cancel(&params.id).await?, None, false)
            }
            Operation::CreateTaskPushNotificationConfig
            | Operation::GetTaskPushNotificationConfig
            | Operation::ListTaskPushNotificationConfigs
            | Operation::DeleteTaskPushNotificationConfig => {
                let message = "this agent sends no push notifications";
                return Err(Error::new(Kind::PushNotificationNotSupported, message));
            }
            other => {
                return Err(Error::new(Kind::UnsupportedOperation, format!("{} is not offered", other.name())));
            }
        };
        Ok(Reply { body: Body::Unary(answer), extensions: Vec::new(), task: None })
    }
}
