//! Push notifications from a caller's request to its receiver, through the whole A2A side.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod a2a_support;
mod outbound_support;

use std::sync::Arc;

use a2a_support::{Front, Handler, answer, message, until};
use outbound_support::{Got, Server, status};
use outrigger_protocol::config::Live;
use serde_json::{Value, json};

async fn front() -> (Handler, Front, Server) {
    let handler = Handler::start(|got| async move { answer(json!({"text": got.json()["text"]})) }).await;
    let front = Front::to(&handler);
    let mut live = Live::clone(&front.live.borrow());
    live.push.enabled = true;
    live.push.allow = vec!["127.0.0.1".into()];
    front.live.send_replace(Arc::new(live));
    (handler, front, Server::http(|_| async { status(200) }).await)
}

fn with_receiver(text: &str, port: u16) -> Value {
    let mut params = message(text);
    params["configuration"] = json!({"taskPushNotificationConfig":
        {"url": format!("http://127.0.0.1:{port}/hook"), "token": "tok", "authentication": {"scheme": "Bearer", "credentials": "c"}}});
    params
}

fn state(got: &Got) -> String {
    let body = got.json();
    let status = body.pointer("/task/status").or(body.pointer("/statusUpdate/status"));
    status.map_or_else(|| "artifact".into(), |s| s["state"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn a_message_brings_its_receiver() {
    let (_handler, front, server) = front().await;
    let mut all = Vec::new();
    for text in ["one", "two"] {
        let sent = front.call("SendMessage", with_receiver(text, server.port)).await;
        all.push(sent["result"]["task"]["id"].as_str().unwrap_or_else(|| panic!("{sent}")).to_owned());
    }
    for id in &all {
        let of_task = || {
            let of = |g: &Got| g.header("idempotency-key").starts_with(id.as_str());
            server.got().into_iter().filter(of).collect::<Vec<_>>()
        };
        until("the end", || of_task().last().is_some_and(|g| state(g) == "TASK_STATE_COMPLETED")).await;
        let states: Vec<_> = of_task().iter().map(state).collect();
        assert_eq!(states.first().map(String::as_str), Some("TASK_STATE_SUBMITTED"));
        assert_eq!(states.iter().filter(|s| *s == "artifact").count(), 1, "{states:?}");
        assert!(of_task().iter().all(|g| g.header("authorization") == "Bearer c"));
    }
    // When all is delivered the secrets are gone.
    let deadline = tokio::time::Instant::now() + outbound_support::PATIENCE;
    loop {
        let list = front.call("ListTaskPushNotificationConfigs", json!({"taskId": all[0]})).await;
        let configs = list["result"]["configs"].as_array().unwrap();
        assert_eq!(configs.len(), 1);
        assert!(!list.to_string().contains("\"c\""), "{list}");
        if configs[0].get("token").is_none() {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{list}");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(front.service.push_dead_letters(), 0);
}

#[tokio::test]
async fn a_receiver_inside_the_pod_is_refused_with_its_message() {
    let (handler, front, _server) = front().await;
    let mut params = message("x");
    params["configuration"] = json!({"taskPushNotificationConfig": {"url": "https://169.254.169.254/latest"}});
    let refused = front.call("SendMessage", params).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    assert!(refused.to_string().contains("configuration.taskPushNotificationConfig.url"), "{refused}");
    assert!(handler.turns().is_empty(), "nothing was begun");
}

#[tokio::test]
async fn configurations_over_json_rpc_in_both_versions() {
    let (_handler, front, server) = front().await;
    let sent = front.send("hello").await;
    let id = sent["result"]["task"]["id"].as_str().unwrap();
    let url = format!("http://127.0.0.1:{}/", server.port);
    let made = front.call("CreateTaskPushNotificationConfig", json!({"taskId": id, "id": "new", "url": url})).await;
    assert_eq!(made["result"], json!({"taskId": id, "id": "new", "url": url}));
    let call_v03 = |method: &str, params: Value| {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let front = &front;
        async move { serde_json::from_str::<Value>(&front.post(body, &[]).await.2).unwrap() }
    };
    let made = call_v03(
        "tasks/pushNotificationConfig/set",
        json!({"taskId": id, "pushNotificationConfig": {"id": "old", "url": url}}),
    )
    .await;
    assert_eq!(made["result"]["pushNotificationConfig"]["id"], "old", "{made}");
    let list = call_v03("tasks/pushNotificationConfig/list", json!({"id": id})).await;
    assert_eq!(list["result"].as_array().map(Vec::len), Some(2), "{list}");
    let gone = front.call("DeleteTaskPushNotificationConfig", json!({"taskId": id, "id": "old"})).await;
    assert!(gone["result"].is_null() && gone.get("error").is_none(), "{gone}");
    let unknown = front.call("GetTaskPushNotificationConfig", json!({"taskId": id, "id": "old"})).await;
    assert_eq!(unknown["error"]["code"], -32001);
}
