//! From an operation and its parameters to the service, for every binding alike.

use std::sync::Arc;

use outrigger_protocol::a2a::errors::{Error, Kind};
use outrigger_protocol::a2a::extensions::{self, DELIVERY};
use outrigger_protocol::a2a::operation::Operation;
use outrigger_protocol::a2a::params::{self, CancelTask, GetTask, ListTasks, SubscribeToTask};
use outrigger_protocol::a2a::raw::{push_key, push_text};
use outrigger_protocol::a2a::send::SendMessage;
use outrigger_protocol::a2a::task::Task;
use serde_json::value::RawValue;

use super::call::{Answer, Body, Call, Reply};
use super::service::{Sent, Tasks, store_error};
use super::store::{Cursor, Query};
use super::stream::{self, Begin, Source};
use super::viewers::Viewer;

impl Tasks {
    /// Carries out an operation. Parameters are those of 1.0 as JSON.
    pub async fn call(
        self: &Arc<Self>,
        operation: Operation,
        params: Option<&RawValue>,
        call: &Call,
    ) -> Result<Reply, Error> {
        let mut reply = self.carry_out(operation, params, call).await?;
        let named = call.used.named();
        if call.extensions.is_empty() && named.is_none() {
            return Ok(reply);
        }
        let mut used = Vec::new();
        if matches!(operation, Operation::SendMessage | Operation::SendStreamingMessage) {
            // Those that the agent names; else it got all that were asked for. Of either, those that its card declares.
            let said = named.as_ref().unwrap_or(&call.extensions);
            let live = self.ctx.live.borrow();
            let declared: Vec<_> = extensions::of_card(&live.card).filter_map(|e| e.get("uri")?.as_str()).collect();
            used = said.iter().filter(|e| declared.contains(&e.as_str())).cloned().collect();
        }
        // Ours is no matter of the agent's.
        used.extend(call.extensions.iter().find(|e| *e == DELIVERY).cloned());
        reply.extensions = used;
        Ok(reply)
    }

    async fn carry_out(
        self: &Arc<Self>,
        operation: Operation,
        params: Option<&RawValue>,
        call: &Call,
    ) -> Result<Reply, Error> {
        match operation {
            Operation::SendMessage => self.send_message(params, call).await,
            Operation::SendStreamingMessage => {
                self.check_streaming()?;
                self.stream_message(params, call).await
            }
            Operation::GetTask => {
                let params = GetTask::parse(params)?;
                Ok(one(self.get(&params.id, call).await?, params.history_length, false))
            }
            Operation::ListTasks => self.list(&ListTasks::parse(params)?, call).await,
            Operation::CancelTask => {
                let params = CancelTask::parse(params)?;
                Ok(one(self.cancel(&params.id, call).await?, None, false))
            }
            Operation::SubscribeToTask => {
                self.check_streaming()?;
                self.subscribe(&SubscribeToTask::parse(params)?, call).await
            }
            Operation::CreateTaskPushNotificationConfig => Ok(unary(self.configs.create(call, params).await?, None)),
            Operation::GetTaskPushNotificationConfig => Ok(unary(self.configs.get(call, params).await?, None)),
            Operation::ListTaskPushNotificationConfigs => Ok(unary(self.configs.list(call, params).await?, None)),
            Operation::DeleteTaskPushNotificationConfig => Ok(unary(self.configs.delete(call, params).await?, None)),
            Operation::GetExtendedAgentCard => {
                params::check_extended_card(params)?;
                Ok(unary(self.card.extended(&call.caller, || self.edge.challenge())?, None))
            }
        }
    }

    async fn send_message(self: &Arc<Self>, params: Option<&RawValue>, call: &Call) -> Result<Reply, Error> {
        let text = params.map_or("", RawValue::get);
        let params = SendMessage::parse(params)?;
        let (length, at_once) = (params.history_length, params.return_immediately);
        let sent = match self.send(params, text, call, false).await?.0 {
            Sent::Again(record) => self.again(&record, at_once).await?,
            sent => sent,
        };
        match sent {
            Sent::Task(task) => Ok(one(task, length, true)),
            Sent::Message(message) => Ok(unary(Answer::Message(message), None)),
            Sent::Again(_) => Err(Error::new(Kind::Internal, "a message that came before led to nothing")),
        }
    }

    async fn stream_message(self: &Arc<Self>, params: Option<&RawValue>, call: &Call) -> Result<Reply, Error> {
        let text = params.map_or("", RawValue::get);
        let params = SendMessage::parse(params)?;
        let length = params.history_length;
        let (sent, viewer) = match self.send(params, text, call, true).await? {
            (Sent::Again(record), viewer) => (self.again(&record, true).await?, viewer),
            sent => sent,
        };
        match (sent, viewer) {
            (Sent::Task(task), Some(viewer)) => Ok(self.follow(task, length, Source::Send, viewer)),
            // It came before: what its reader has of it, it need not get again.
            (Sent::Task(task), None) => {
                let viewer = self.stream_viewer(&task.id, &call.caller.key, &self.limits())?;
                let from = match &call.last_event_id {
                    Some(last) => self.resume_at(&task, last).await?,
                    None => task,
                };
                Ok(self.follow(from, length, Source::Send, viewer))
            }
            (Sent::Message(message), _) => Ok(Reply {
                body: Body::Stream(stream::of_message(message.as_str())),
                extensions: Vec::new(),
                task: None,
            }),
            (Sent::Again(_), _) => Err(Error::new(Kind::Internal, "a message that came before led to nothing")),
        }
    }

    fn follow(self: &Arc<Self>, task: Arc<Task>, history_length: Option<u32>, source: Source, viewer: Viewer) -> Reply {
        let id = Arc::clone(&task.id);
        let begin = Begin { tasks: Arc::clone(self), task, history_length, source, viewer };
        Reply { body: Body::Stream(stream::of(begin)), extensions: Vec::new(), task: Some(id) }
    }

    async fn subscribe(self: &Arc<Self>, params: &SubscribeToTask<'_>, call: &Call) -> Result<Reply, Error> {
        let task = self.get(&params.id, call).await?;
        let from = match &call.last_event_id {
            Some(last) => self.resume_at(&task, last).await?,
            None if task.state.is_terminal() => {
                let text = format!("the task is {} and has no more events: use GetTask", task.state.wire());
                return Err(Error::new(Kind::UnsupportedOperation, text)
                    .with("taskId", &*task.id)
                    .with("state", task.state.wire()));
            }
            None => task,
        };
        let viewer = self.stream_viewer(&from.id, &call.caller.key, &self.limits())?;
        Ok(self.follow(from, None, Source::Subscribe, viewer))
    }

    fn check_streaming(&self) -> Result<(), Error> {
        if self.ctx.live.borrow().offer.streaming {
            return Ok(());
        }
        Err(Error::new(Kind::UnsupportedOperation, "this agent does not stream: use SendMessage and GetTask"))
    }

    async fn list(&self, params: &ListTasks<'_>, call: &Call) -> Result<Reply, Error> {
        let query = Query {
            caller: Arc::clone(&call.caller.key),
            context: params.context_id.as_deref().map(Into::into),
            state: params.status,
            since: params.since,
            after: params.after.as_ref().map(|c| Cursor { since: c.since, id: c.id.as_str().into() }),
            limit: params.page_size as usize,
        };
        let page = self.store.list(query).await.map_err(|e| store_error(&e, ""))?;
        let mut out = String::from("{\"tasks\":[");
        for (i, task) in page.tasks.iter().enumerate() {
            out.push_str(if i > 0 { "," } else { "" });
            task.write_part(params.history_length, params.include_artifacts, &mut out);
        }
        out.push(']');
        let next = page.tasks.last().filter(|_| page.more);
        let next = next.map(|t| params::Cursor { since: t.since, id: t.id.to_string() }.encode());
        push_key(&mut out, "nextPageToken");
        push_text(&mut out, next.as_deref().unwrap_or_default());
        for (key, number) in [("pageSize", u64::from(params.page_size)), ("totalSize", page.total)] {
            push_key(&mut out, key);
            out.push_str(&number.to_string());
        }
        out.push('}');
        Ok(unary(Answer::Json(out), None))
    }
}

fn one(task: Arc<Task>, history_length: Option<u32>, wrapped: bool) -> Reply {
    let id = Arc::clone(&task.id);
    unary(Answer::Task { task, history_length, wrapped }, Some(id))
}

fn unary(answer: Answer, task: Option<Arc<str>>) -> Reply {
    Reply { body: Body::Unary(answer), extensions: Vec::new(), task }
}
