//! URL MODE PLAN: the crate `rmcp`. What a driver is, the README of the clients says.

use rmcp::model::ProtocolVersion;
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::{ClientLifecycleMode, ClientServiceExt as _};
use serde_json::{Value, from_value, json, to_value};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [url, mode, plan] = words.as_slice() else { return Err("usage: URL MODE PLAN".into()) };
    let plan: Value = serde_json::from_str(plan)?;
    let mode = match mode.as_str() {
        "initialize" => ClientLifecycleMode::Initialize,
        "auto" => ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
            legacy_version: Some(ProtocolVersion::V_2025_11_25),
        },
        other => return Err(format!("no mode {other}").into()),
    };
    let client = ().serve_with_lifecycle(StreamableHttpClientTransport::from_uri(url.as_str()), mode).await?;
    let revision = client.peer_info().ok_or("no revision was agreed on")?.protocol_version.clone();
    let tools: Vec<_> = client.list_all_tools().await?.into_iter().map(|tool| tool.name).collect();
    let (mut calls, mut resources, mut prompts) = (Vec::new(), Vec::new(), Vec::new());
    for call in entries(&plan, "calls")? {
        calls.push(to_value(client.call_tool(from_value(call)?).await?)?);
    }
    for uri in entries(&plan, "resources")? {
        resources.push(to_value(client.read_resource(from_value(json!({ "uri": uri }))?).await?)?);
    }
    for prompt in entries(&plan, "prompts")? {
        prompts.push(to_value(client.get_prompt(from_value(prompt)?).await?)?);
    }
    println!(
        "{}",
        json!({"revision": revision, "tools": tools, "calls": calls, "resources": resources, "prompts": prompts})
    );
    client.cancel().await?;
    Ok(())
}

fn entries(plan: &Value, member: &str) -> Result<Vec<Value>> {
    plan[member].as_array().cloned().ok_or_else(|| format!("the plan has no {member}").into())
}
