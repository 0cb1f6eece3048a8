//! The client of the API server, with a layer that counts requests and sees when watches were opened.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use kube::client::ClientBuilder;
use kube::{Client, Config};
use parking_lot::Mutex;
use tokio::time::Instant;
use tower::{Layer, Service};

use crate::metrics::Metrics;

/// A watch that was not even tried for this long hangs: it is opened anew every 200 s, and retried within seconds.
const WATCH_HANGS: Duration = Duration::from_mins(7);

/// When each watch was last tried.
#[derive(Clone, Default)]
pub struct Watches {
    tried: Arc<Mutex<BTreeMap<String, Instant>>>,
}

impl Watches {
    fn note(&self, resource: &str) {
        self.tried.lock().insert(resource.to_owned(), Instant::now());
    }

    /// The watches that hang.
    pub fn hanging(&self) -> Vec<String> {
        let tried = self.tried.lock();
        tried.iter().filter(|(_, at)| at.elapsed() > WATCH_HANGS).map(|(name, _)| name.clone()).collect()
    }

    /// Forgets all, as when the controllers end.
    pub fn clear(&self) {
        self.tried.lock().clear();
    }

    /// Brings the gauge up to date.
    pub fn measure(&self, metrics: &Metrics) {
        for (resource, at) in self.tried.lock().iter() {
            let age = i64::try_from(at.elapsed().as_secs()).unwrap_or(i64::MAX);
            metrics.watch_age.with_label_values(&[resource]).set(age);
        }
    }
}

/// A client that counts.
pub fn connect(config: Config, metrics: &Metrics, watches: &Watches) -> Result<Client, kube::Error> {
    let layer = Observe { metrics: metrics.clone(), watches: watches.clone() };
    Ok(ClientBuilder::try_from(config)?.with_layer(&layer).build())
}

/// Counts requests.
#[derive(Clone)]
pub struct Observe {
    metrics: Metrics,
    watches: Watches,
}

impl<S> Layer<S> for Observe {
    type Service = Observed<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Observed { inner, observe: self.clone() }
    }
}

/// A client's service that is counted.
#[derive(Clone)]
pub struct Observed<S> {
    inner: S,
    observe: Observe,
}

fn verb<B>(request: &http::Request<B>) -> &'static str {
    let query = request.uri().query().unwrap_or_default();
    let has = |part: &str| query.split('&').any(|p| p == part);
    match *request.method() {
        http::Method::GET if has("watch=true") => "watch",
        http::Method::GET => "get",
        // It asks and changes nothing.
        http::Method::POST if resource(request.uri().path()) == "tokenreviews" => "review",
        http::Method::POST => "create",
        http::Method::PUT => "update",
        http::Method::PATCH if query.contains("dryRun=") => "dry_run",
        http::Method::PATCH => "patch",
        http::Method::DELETE => "delete",
        _ => "other",
    }
}

/// Last segment of the path: the resource that is watched.
fn resource(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

impl<S, B, R> Service<http::Request<B>> for Observed<S>
where
    S: Service<http::Request<B>, Response = http::Response<R>>,
    S::Future: Send + 'static,
    S::Error: 'static,
    R: 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let verb = verb(&request);
        if verb == "watch" {
            self.observe.watches.note(resource(request.uri().path()));
        }
        let metrics = self.observe.metrics.clone();
        let response = self.inner.call(request);
        Box::pin(async move {
            let result = response.await;
            let code = match &result {
                Ok(response) => match response.status().as_u16() {
                    200..=299 => "2xx",
                    300..=399 => "3xx",
                    400..=499 => "4xx",
                    _ => "5xx",
                },
                Err(_) => "none",
            };
            metrics.api_requests.with_label_values(&[verb, code]).inc();
            result
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_and_resources() {
        for (method, uri, want) in [
            ("GET", "/api/v1/pods?watch=true&timeoutSeconds=200", "watch"),
            ("GET", "/api/v1/pods?limit=500", "get"),
            ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", "review"),
            ("POST", "/api/v1/namespaces/n/pods", "create"),
            ("PATCH", "/apis/apps/v1/namespaces/n/deployments/x?dryRun=All&fieldManager=o", "dry_run"),
            ("PATCH", "/apis/apps/v1/namespaces/n/deployments/x?fieldManager=o", "patch"),
        ] {
            let request = http::Request::builder().method(method).uri(uri).body(()).unwrap();
            assert_eq!(verb(&request), want, "{uri}");
        }
        assert_eq!(resource("/apis/outrigger.dev/v1alpha1/namespaces/n/agents"), "agents");
    }
}
