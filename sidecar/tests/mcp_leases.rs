//! Clients of the stateless revision that can be asked something, in front of a server with a handshake: a process for
//! the time of a call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// `json!({..})` reads best where it is passed.
#![allow(clippy::needless_pass_by_value)]

mod mcp_support;

use std::time::Duration;

use mcp_support::{Rig, Setup, eventually};
use outrigger_protocol::config::{Process, Sharing};
use outrigger_sidecar::mcp::timing::Timing;
use serde_json::{Value, json};

async fn rig(args: &[&str], sharing: Sharing, parked: Duration) -> Rig {
    let ms = Duration::from_millis;
    let timing = Timing { grace: ms(200), probe_grace: ms(200), parked, ..Timing::default() };
    let setup = Setup { process: Process { sharing, ..Process::default() }, timing, ..Setup::default() };
    let rig = Rig::with(args, setup).await;
    rig.until_ready().await;
    rig
}

/// Params of a call of a client that can be asked for a model's words and for roots.
fn params(tool: &str, more: &Value) -> Value {
    let mut params = json!({"name": tool, "arguments": {}, "_meta": {
        "io.modelcontextprotocol/clientCapabilities": {"sampling": {}, "roots": {}}}});
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    params
}

async fn call(rig: &Rig, tool: &str, more: Value) -> Value {
    rig.modern("tools/call", params(tool, &more)).await.last().await
}

async fn pid(rig: &Rig) -> String {
    let answer = call(rig, "pid", json!({})).await;
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[tokio::test]
async fn calls_one_after_the_other_meet_one_process_and_those_at_once_do_not() {
    let rig = rig(&[], Sharing::Auto, Duration::from_secs(60)).await;
    let one = pid(&rig).await;
    assert_eq!(pid(&rig).await, one);
    // A client that declares nothing uses the one that is shared.
    let shared = rig.modern("tools/call", json!({"name": "pid", "arguments": {}})).await.last().await;
    assert_ne!(shared["result"]["content"][0]["text"], one);
    // While a call waits for its client, others have other processes.
    let asked = call(&rig, "ask", json!({})).await;
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    let other = pid(&rig).await;
    assert_ne!(other, one);
    assert_eq!(rig.metric("outrigger_mcp_parked_calls", &[]).to_string(), "1");
    let more =
        json!({"requestState": asked["result"]["requestState"], "inputResponses": {"q1": {"role": "assistant"}}});
    let answer = call(&rig, "ask", more).await;
    assert_eq!(answer["result"]["content"][0]["text"], r#"{"role": "assistant"}"#, "{answer}");
    assert_eq!(rig.metric("outrigger_mcp_parked_calls", &[]).to_string(), "0");
    // Both are there for the next calls.
    let (a, b) = tokio::join!(pid(&rig), pid(&rig));
    assert!([&one, &other].contains(&&a) && [&one, &other].contains(&&b));
}

#[tokio::test]
async fn each_call_its_own_process_if_that_is_wanted() {
    let rig = rig(&[], Sharing::PerSession, Duration::from_secs(60)).await;
    assert_ne!(pid(&rig).await, pid(&rig).await);
    eventually("none is left", || rig.status().processes == 0).await;
}

#[tokio::test]
async fn who_does_not_come_back_has_cancelled() {
    let rig = rig(&[], Sharing::Auto, Duration::from_millis(50)).await;
    let asked = call(&rig, "ask", json!({})).await;
    eventually("it is given up", || rig.metric("outrigger_mcp_parked_calls", &[]) < 0.5).await;
    let more = json!({"requestState": asked["result"]["requestState"], "inputResponses": {"q1": {}}});
    let answer = call(&rig, "ask", more).await;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("expired"), "{answer}");
    eventually("its process is not used again", || rig.status().processes == 1).await;
}

#[tokio::test]
async fn what_is_asked_at_the_start_waits_for_a_call_that_can_carry_it() {
    let rig = rig(&["--roots-at-start"], Sharing::Auto, Duration::from_secs(60)).await;
    let capabilities = params("x", &json!({}))["_meta"].clone();
    let list = rig.modern("tools/list", json!({"_meta": capabilities})).await.last().await;
    assert_eq!(list["result"]["resultType"], "complete", "{list}");
    let deadline = tokio::time::Instant::now() + mcp_support::PATIENCE;
    let asked = loop {
        let answer = call(&rig, "hang", json!({})).await;
        if answer["result"]["resultType"] == "input_required" {
            break answer;
        }
        assert!(tokio::time::Instant::now() < deadline, "{answer}");
    };
    assert_eq!(asked["result"]["inputRequests"], json!({"start": {"method": "roots/list"}}));
}
