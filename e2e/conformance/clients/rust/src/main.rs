//! a2a-client-lf, the official Rust client, 1.0 alone.

use std::sync::Arc;

use a2a::{
    CancelTaskRequest, DeleteTaskPushNotificationConfigRequest, GetTaskPushNotificationConfigRequest, GetTaskRequest,
    ListTaskPushNotificationConfigsRequest, ListTasksRequest, Message, Part, Role, SendMessageConfiguration,
    SendMessageRequest, SendMessageResponse, StreamResponse, SubscribeToTaskRequest, Task, TaskPushNotificationConfig,
    TaskState,
};
use a2a_client::agent_card::AgentCardResolver;
use a2a_client::jsonrpc::JsonRpcTransportFactory;
use a2a_client::rest::RestTransportFactory;
use a2a_client::{A2AClient, A2AClientFactory, BoxStream, Transport, TransportFactory};
use a2a_grpc::GrpcTransportFactory;
use futures::StreamExt as _;
use serde_json::{Value, json};

type Outcome<T = ()> = Result<T, String>;

struct Driver {
    client: A2AClient<Box<dyn Transport>>,
    done: Task,
    hook: String,
}

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

fn want(holds: bool, seen: &impl std::fmt::Debug) -> Outcome {
    if holds { Ok(()) } else { Err(format!("got {seen:?}")) }
}

fn request(said: &str, at_once: bool) -> SendMessageRequest {
    let configuration = SendMessageConfiguration {
        accepted_output_modes: None,
        task_push_notification_config: None,
        history_length: None,
        return_immediately: Some(at_once),
    };
    let message = Message::new(Role::User, vec![Part::text(said)]);
    SendMessageRequest { message, configuration: Some(configuration), metadata: None, tenant: None }
}

async fn all(
    stream: BoxStream<'static, Result<StreamResponse, a2a::A2AError>>,
) -> Outcome<Vec<StreamResponse>> {
    stream.map(|event| event.map_err(text)).collect::<Vec<_>>().await.into_iter().collect()
}

fn ends_completed(seen: &[StreamResponse]) -> Outcome {
    let begins = matches!(seen.first(), Some(StreamResponse::Task(_)));
    let ends = matches!(seen.last(), Some(StreamResponse::StatusUpdate(u)) if u.status.state == TaskState::Completed);
    want(begins && ends, &(seen.first(), seen.last()))
}

async fn task(client: &A2AClient<Box<dyn Transport>>, said: &str, at_once: bool) -> Outcome<Task> {
    match client.send_message(&request(said, at_once)).await.map_err(text)? {
        SendMessageResponse::Task(task) => Ok(task),
        SendMessageResponse::Message(message) => Err(format!("got {message:?}")),
    }
}

impl Driver {
    async fn send(base: &str, binding: &str, hook: &str) -> Outcome<Self> {
        let card = AgentCardResolver::new(None).resolve(base).await.map_err(text)?;
        let factory: Arc<dyn TransportFactory> = match binding {
            "JSONRPC" => Arc::new(JsonRpcTransportFactory::new(None)),
            "HTTP+JSON" => Arc::new(RestTransportFactory::new(None)),
            _ => Arc::new(GrpcTransportFactory::new()),
        };
        let client =
            A2AClientFactory::builder().no_defaults().register(factory).build().create_from_card(&card).await.map_err(text)?;
        let done = task(&client, "tck-complete-task hello", false).await?;
        let said = done.artifacts.iter().flatten().flat_map(|a| &a.parts).find_map(Part::as_text);
        want(done.status.state == TaskState::Completed && said == Some("Hello from the agent"), &done)?;
        Ok(Self { client, done, hook: hook.to_owned() })
    }

    async fn stream(&self) -> Outcome {
        let seen = all(self.client.send_streaming_message(&request("tck-stream-basic go", false)).await.map_err(text)?).await?;
        want(seen.iter().any(|e| matches!(e, StreamResponse::ArtifactUpdate(_))), &seen)?;
        ends_completed(&seen)
    }

    async fn get(&self) -> Outcome {
        let query = GetTaskRequest { id: self.done.id.clone(), history_length: None, tenant: None };
        let task = self.client.get_task(&query).await.map_err(text)?;
        want(task.id == self.done.id && task.status.state == TaskState::Completed, &task)
    }

    async fn list(&self) -> Outcome {
        let query = ListTasksRequest {
            context_id: Some(self.done.context_id.clone()),
            status: None,
            page_size: None,
            page_token: None,
            history_length: None,
            status_timestamp_after: None,
            include_artifacts: None,
            tenant: None,
        };
        let found = self.client.list_tasks(&query).await.map_err(text)?;
        want(found.tasks.len() == 1 && found.tasks[0].id == self.done.id && found.total_size == 1, &found)
    }

    async fn cancel(&self) -> Outcome {
        let task = task(&self.client, "tck-cancel wait", true).await?;
        let query = CancelTaskRequest { id: task.id, metadata: None, tenant: None };
        let task = self.client.cancel_task(&query).await.map_err(text)?;
        want(task.status.state == TaskState::Canceled, &task)
    }

    async fn subscribe(&self) -> Outcome {
        let task = task(&self.client, "tck-long-running work", true).await?;
        let query = SubscribeToTaskRequest { id: task.id, tenant: None };
        ends_completed(&all(self.client.subscribe_to_task(&query).await.map_err(text)?).await?)
    }

    async fn push(&self) -> Outcome {
        let task_id = task(&self.client, "tck-input-required ask", false).await?.id;
        let config = TaskPushNotificationConfig {
            url: self.hook.clone(),
            id: None,
            task_id: task_id.clone(),
            token: Some("t0k3n".to_owned()),
            authentication: None,
            tenant: None,
        };
        let made = self.client.create_push_config(&config).await.map_err(text)?;
        let id = made.id.clone().ok_or("no id")?;
        want(made.url == self.hook, &made)?;
        let one = GetTaskPushNotificationConfigRequest { task_id: task_id.clone(), id: id.clone(), tenant: None };
        let got = self.client.get_push_config(&one).await.map_err(text)?;
        want(got.url == self.hook, &got)?;
        let every =
            ListTaskPushNotificationConfigsRequest { task_id: task_id.clone(), page_size: None, page_token: None, tenant: None };
        let listed = self.client.list_push_configs(&every).await.map_err(text)?;
        want(listed.configs.len() == 1 && listed.configs[0].id.as_ref() == Some(&id), &listed)?;
        let gone = DeleteTaskPushNotificationConfigRequest { task_id, id, tenant: None };
        self.client.delete_push_config(&gone).await.map_err(text)?;
        let listed = self.client.list_push_configs(&every).await.map_err(text)?;
        want(listed.configs.is_empty(), &listed)
    }

    async fn error(&self) -> Outcome {
        let query = GetTaskRequest { id: "00000000-0000-4000-8000-000000000000".to_owned(), history_length: None, tenant: None };
        match self.client.get_task(&query).await {
            Err(e) if e.code == a2a::error_code::TASK_NOT_FOUND => Ok(()),
            other => Err(format!("got {other:?}")),
        }
    }
}

fn print(op: &str, outcome: &Outcome) {
    let line: Value = json!({"op": op, "ok": outcome.is_ok(), "detail": outcome.as_ref().err()});
    println!("{line}");
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let driver = Driver::send(&args[0], &args[1], &args[2]).await;
    print("send", &driver.as_ref().map(|_| ()).map_err(Clone::clone));
    let Ok(driver) = driver else { return };
    print("stream", &driver.stream().await);
    print("get", &driver.get().await);
    print("list", &driver.list().await);
    print("cancel", &driver.cancel().await);
    print("subscribe", &driver.subscribe().await);
    print("push", &driver.push().await);
    print("error", &driver.error().await);
}
