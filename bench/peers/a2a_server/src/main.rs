//! The Rust A2A peer: an agent on the server crate of the A2A project, in memory. `a2a-server-peer PORT`
//!
//! It answers what bench-agent answers behind the sidecar: a completed task with one text artifact, or a bare message.

use std::net::Ipv4Addr;
use std::sync::Arc;

use a2a::{
    A2AError, Artifact, Message, Part, Role, StreamResponse, Task, TaskArtifactUpdateEvent, TaskState, TaskStatus,
    TaskStatusUpdateEvent,
};
use a2a_server::jsonrpc::jsonrpc_router;
use a2a_server::{AgentExecutor, DefaultRequestHandler, ExecutorContext, InMemoryTaskStore};
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};

const TEXT: &str = "One burger, ready at 12:30.";

struct Agent;

impl AgentExecutor for Agent {
    fn execute(&self, turn: ExecutorContext) -> BoxStream<'static, Result<StreamResponse, A2AError>> {
        let (task_id, context_id) = turn.task_info();
        if turn.message.as_ref().and_then(Message::text) == Some("message") {
            let message = Message { context_id: Some(context_id), ..Message::new(Role::Agent, vec![Part::text(TEXT)]) };
            return stream::iter([Ok(StreamResponse::Message(message))]).boxed();
        }
        let status = |state| TaskStatus { state, message: None, timestamp: None };
        let artifact = Artifact {
            artifact_id: a2a::new_artifact_id(),
            name: None,
            description: None,
            parts: vec![Part::text(TEXT)],
            metadata: None,
            extensions: None,
        };
        let events = [
            StreamResponse::Task(Task {
                id: task_id.clone(),
                context_id: context_id.clone(),
                status: status(TaskState::Submitted),
                artifacts: None,
                history: turn.message.map(|m| vec![m]),
                metadata: None,
            }),
            StreamResponse::ArtifactUpdate(TaskArtifactUpdateEvent {
                task_id: task_id.clone(),
                context_id: context_id.clone(),
                artifact,
                append: None,
                last_chunk: None,
                metadata: None,
            }),
            StreamResponse::StatusUpdate(TaskStatusUpdateEvent {
                task_id,
                context_id,
                status: status(TaskState::Completed),
                metadata: None,
            }),
        ];
        stream::iter(events.map(Ok)).boxed()
    }

    fn cancel(&self, _turn: ExecutorContext) -> BoxStream<'static, Result<StreamResponse, A2AError>> {
        stream::empty().boxed()
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port: u16 = std::env::args().nth(1).ok_or("usage: a2a-server-peer PORT")?.parse()?;
    let handler = DefaultRequestHandler::new(Agent, InMemoryTaskStore::new());
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    axum::serve(listener, jsonrpc_router(Arc::new(handler))).await?;
    Ok(())
}
