//! The check behind `helm test`: what the operator needs is there, and a replica of it is ready.

use std::fmt::Debug;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use kube::api::{Api, ListParams};
use kube::{Client, Resource};
use outrigger_crds::{Agent, MCPServer, Skill};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

/// How long faults may take to vanish: an operator that was just installed is on its way.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Longest time for one question.
const QUESTION: Duration = Duration::from_secs(5);
/// Between two rounds of questions.
const PAUSE: Duration = Duration::from_millis(500);

/// One line per fault that is left after [`PATIENCE`]; empty when all is well.
pub async fn check(client: &Client, namespaces: &[String], url: &str) -> Vec<String> {
    let end = Instant::now() + PATIENCE;
    loop {
        let faults = round(client, namespaces, url).await;
        if faults.is_empty() || Instant::now() > end {
            return faults;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn round(client: &Client, namespaces: &[String], url: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let scopes = if namespaces.is_empty() { vec![None] } else { namespaces.iter().map(Some).collect() };
    for namespace in scopes {
        let namespace = namespace.map(String::as_str);
        faults.extend(listed::<Agent>(client, namespace).await);
        faults.extend(listed::<MCPServer>(client, namespace).await);
        faults.extend(listed::<Skill>(client, namespace).await);
    }
    faults.extend(ready(url).await);
    faults
}

/// Whether a kind is served and may be listed.
async fn listed<K>(client: &Client, namespace: Option<&str>) -> Option<String>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let api: Api<K> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let place = namespace.map_or_else(|| "all namespaces".to_owned(), |n| format!("namespace {n}"));
    let problem = match tokio::time::timeout(QUESTION, api.list_metadata(&ListParams::default().limit(1))).await {
        Ok(Ok(_)) => return None,
        Ok(Err(kube::Error::Api(status))) => status.message.clone(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {QUESTION:?}"),
    };
    Some(format!("{} cannot be listed in {place}: {problem}", K::plural(&())))
}

/// Whether a replica of the operator answers that it is ready.
async fn ready(url: &str) -> Option<String> {
    let address = format!("{}/readyz", url.trim_end_matches('/'));
    let uri: http::Uri = match address.parse() {
        Ok(uri) => uri,
        Err(error) => return Some(format!("{address} is no address: {error}")),
    };
    let http: HttpClient<_, Empty<Bytes>> = HttpClient::builder(TokioExecutor::new()).build_http();
    match tokio::time::timeout(QUESTION, http.get(uri)).await {
        Ok(Ok(answer)) if answer.status().is_success() => None,
        Ok(Ok(answer)) => Some(format!("{address} answers {}: the operator is not ready", answer.status())),
        Ok(Err(error)) => Some(format!("{address} cannot be reached: {error}")),
        Err(_) => Some(format!("{address}: no answer within {QUESTION:?}")),
    }
}
