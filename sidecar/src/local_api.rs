//! The local API on 127.0.0.1: every path begins with `/t/{token}/`.
//!
//! Tools share the loopback interface with the agent, so the token, which only the agent's container can read, keeps
//! them out. It stands in the path, so that stock clients need no header.

use std::convert::Infallible;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use futures::future::{Either, Ready, ready};
use http::{Request, StatusCode, Uri};
use outrigger_protocol::config::{LOCAL_PORT, LocalUrls, TOKEN_FILE, URLS_FILE};
use serde_json::json;
use tower::Service;

/// Characters of a token.
const TOKEN_LENGTH: usize = 64;

/// The pod's token: the one in the folder, if a sidecar before this one left it, else a new one. Writes both files.
pub fn prepare(folder: &Path, servers: impl Iterator<Item = String>) -> std::io::Result<(Arc<str>, LocalUrls)> {
    let file = folder.join(TOKEN_FILE);
    let token = match std::fs::read_to_string(&file) {
        Ok(text) if text.trim().len() == TOKEN_LENGTH => text.trim().to_owned(),
        _ => {
            let token = outrigger_protocol::digest::sha256(&rand::random::<[u8; 32]>());
            write(&file, token.as_bytes())?;
            token
        }
    };
    let base = format!("http://127.0.0.1:{LOCAL_PORT}/t/{token}");
    let urls = LocalUrls {
        mcp: servers.map(|name| (name.clone(), format!("{base}/mcp/{name}"))).collect(),
        tasks: format!("{base}/tasks"),
        turns: format!("{base}/turns"),
        agents: format!("{base}/agents"),
    };
    write(&folder.join(URLS_FILE), &serde_json::to_vec(&urls)?)?;
    Ok((token.into(), urls))
}

/// Writes a file that only its owner and group can read; a reader never meets half of it.
fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let new = path.with_extension("new");
    let _ = std::fs::remove_file(&new);
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o440).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(new, path)
}

/// Compares without telling by its time where two secrets differ.
pub fn same_secret(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |acc, (x, y)| acc | (x ^ y)) == 0
}

/// Lets in what begins with `/t/{token}` and passes on the rest of the path.
#[derive(Clone, Debug)]
pub struct TokenGate {
    token: Arc<str>,
    inner: Router,
}

impl TokenGate {
    /// Puts the gate before a router.
    pub fn router(token: Arc<str>, inner: Router) -> Router {
        Router::new().fallback_service(Self { token, inner })
    }

    /// The path behind the gate, query included; `None` without the right token.
    fn behind<'a>(&self, uri: &'a Uri) -> Option<&'a str> {
        let path = uri.path_and_query()?.as_str();
        let (token, _) = path.strip_prefix("/t/")?.split_at_checked(self.token.len())?;
        let rest = path.get(3 + self.token.len()..)?;
        (same_secret(token.as_bytes(), self.token.as_bytes()) && rest.starts_with('/')).then_some(rest)
    }
}

impl Service<Request<Body>> for TokenGate {
    type Response = Response;
    type Error = Infallible;
    type Future = Either<<Router as Service<Request<Body>>>::Future, Ready<Result<Response, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        <Router as Service<Request<Body>>>::poll_ready(&mut self.inner, cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        match self.behind(request.uri()).map(str::parse::<Uri>) {
            Some(Ok(uri)) => {
                *request.uri_mut() = uri;
                Either::Left(self.inner.call(request))
            }
            _ => Either::Right(ready(Ok(refused()))),
        }
    }
}

fn refused() -> Response {
    let body = json!({"error": {"reason": "InvalidToken",
        "message": "the local API begins with /t/{token}/; the token is in the file named by OUTRIGGER_TOKEN_FILE in the agent's container"}});
    (StatusCode::UNAUTHORIZED, axum::Json(body)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tower::ServiceExt as _;

    async fn status(gate: &Router, path: &str) -> (StatusCode, String) {
        let request = Request::builder().uri(path).body(Body::empty()).unwrap();
        let response = gate.clone().oneshot(request).await.unwrap();
        let code = response.status();
        let body = axum::body::to_bytes(response.into_body(), 4096).await.unwrap();
        (code, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn only_the_right_token_opens() {
        let inner = Router::new().route("/mcp/{server}", axum::routing::get(|uri: Uri| async move { uri.to_string() }));
        let gate = TokenGate::router("sesame".into(), inner);
        assert_eq!(status(&gate, "/t/sesame/mcp/time?x=1").await, (StatusCode::OK, "/mcp/time?x=1".into()));
        for path in ["/t/sesamo/mcp/time", "/mcp/time", "/t/", "/t/sesame", "/t/sesamex/mcp/time", "/t/s/mcp/time", "/"]
        {
            let (code, body) = status(&gate, path).await;
            assert_eq!(code, StatusCode::UNAUTHORIZED, "{path}");
            assert!(body.contains("InvalidToken") && !body.contains("sesame"));
        }
    }

    #[test]
    fn the_token_survives_a_restart_of_the_sidecar() {
        let dir = tempfile::tempdir().unwrap();
        let (first, urls) = prepare(dir.path(), ["time".to_owned()].into_iter()).unwrap();
        let (second, _) = prepare(dir.path(), std::iter::empty()).unwrap();
        assert_eq!((first.len(), &first), (TOKEN_LENGTH, &second));
        assert_eq!(urls.mcp["time"], format!("http://127.0.0.1:19900/t/{first}/mcp/time"));
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(dir.path().join(TOKEN_FILE)).unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o440);
    }
}
