//! Addresses of names.

use std::net::IpAddr;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;

use super::Error;

/// Most addresses of a name that are looked at.
const MAX_ADDRESSES: usize = 16;

/// Finds the addresses of names.
pub trait Resolver: Send + Sync + 'static {
    /// The addresses of a name, best first.
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, std::io::Result<Vec<IpAddr>>>;
}

/// The system's own.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

impl Resolver for System {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, std::io::Result<Vec<IpAddr>>> {
        async move { Ok(tokio::net::lookup_host((host, 0)).await?.map(|a| a.ip()).collect()) }.boxed()
    }
}

pub(super) async fn bounded(resolver: &dyn Resolver, host: &str, limit: Duration) -> Result<Vec<IpAddr>, Error> {
    let failed = |why: String| Error::Resolve { host: host.to_owned(), why };
    let mut addresses = tokio::time::timeout(limit, resolver.resolve(host))
        .await
        .map_err(|_| failed(format!("no answer within {} s", limit.as_secs_f64())))?
        .map_err(|e| failed(e.to_string()))?;
    addresses.truncate(MAX_ADDRESSES);
    if addresses.is_empty() {
        return Err(failed("it has no address".to_owned()));
    }
    Ok(addresses)
}
