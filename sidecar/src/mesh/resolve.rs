//! Names to addresses: one address of a headless Service is one pod.

use std::net::SocketAddr;

use futures::future::BoxFuture;

/// Most addresses of one name that are used.
pub const MAX_ADDRESSES: usize = 256;

/// Resolves `host:port`.
pub trait Resolve: Send + Sync {
    /// All addresses there are now; an empty list is no error.
    fn resolve(&self, authority: &str) -> BoxFuture<'static, std::io::Result<Vec<SocketAddr>>>;
}

/// The system's resolver.
#[derive(Clone, Copy, Debug)]
pub struct System;

impl Resolve for System {
    fn resolve(&self, authority: &str) -> BoxFuture<'static, std::io::Result<Vec<SocketAddr>>> {
        let authority = authority.to_owned();
        Box::pin(async move {
            let found = tokio::net::lookup_host(authority).await?;
            Ok(found.take(MAX_ADDRESSES).collect())
        })
    }
}
