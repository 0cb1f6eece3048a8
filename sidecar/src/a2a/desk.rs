//! Operations that make no turn stand here, before the service: receivers of push notifications, the extended card.

use std::sync::Arc;

use outrigger_protocol::a2a::errors::Error;
use outrigger_protocol::a2a::operation::Operation;
use outrigger_protocol::a2a::params;
use serde_json::value::RawValue;

use super::binding::Operations;
use super::call::{Body, Call, Reply};
use super::card::Card;
use super::edge::Edge;
use super::push::Configs;
use super::service::Tasks;

/// The service and what stands beside it.
pub struct Desk {
    pub(super) tasks: Arc<Tasks>,
    pub(super) configs: Arc<Configs>,
    pub(super) card: Arc<Card>,
    pub(super) edge: Arc<Edge>,
}

impl Operations for Desk {
    async fn call(
        self: &Arc<Self>,
        operation: Operation,
        params: Option<&RawValue>,
        call: &Call,
    ) -> Result<Reply, Error> {
        let (caller, dialect) = (&call.caller, call.dialect);
        let answer = match operation {
            Operation::CreateTaskPushNotificationConfig => self.configs.create(caller, params, dialect).await?,
            Operation::GetTaskPushNotificationConfig => self.configs.get(caller, params, dialect).await?,
            Operation::ListTaskPushNotificationConfigs => self.configs.list(caller, params).await?,
            Operation::DeleteTaskPushNotificationConfig => self.configs.delete(caller, params).await?,
            Operation::GetExtendedAgentCard => {
                params::check_extended_card(params)?;
                self.card.extended(caller, || self.edge.challenge())?
            }
            _ => return self.tasks.call(operation, params, call).await,
        };
        Ok(Reply { body: Body::Unary(answer), extensions: Vec::new(), task: None })
    }
}
