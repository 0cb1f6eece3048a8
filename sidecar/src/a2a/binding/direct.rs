//! The way of JSON-RPC past the router: most requests go to the root path, and looking for their route costs a twentieth
//! of all that they cost.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;
use tower::Service;

use super::{Front, Operations};

/// All bindings and what is served beside them.
pub struct Direct<S> {
    front: Arc<Front<S>>,
    /// For every path but the root.
    router: axum::Router,
}

impl<S> Direct<S> {
    /// Requests to the root go to `front`, all others to `router`, which has the bindings too.
    pub fn new(front: Arc<Front<S>>, router: axum::Router) -> Self {
        Self { front, router }
    }
}

impl<S> Clone for Direct<S> {
    fn clone(&self) -> Self {
        Self { front: Arc::clone(&self.front), router: self.router.clone() }
    }
}

impl<S: Operations> Service<Request<Incoming>> for Direct<S> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // So is the router, always.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        if request.uri().path() == "/" {
            return Arc::clone(&self.front).serve(request.map(Body::new)).map(Ok).boxed();
        }
        self.router.call(request).boxed()
    }
}
