//! Whether the agent also listens on the pod's address: whoever reaches it there goes round access control.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outrigger_protocol::config::Runtime;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Environment variable with the pod's address.
pub const POD_IP: &str = "POD_IP";
/// Between two looks.
const EVERY: Duration = Duration::from_secs(30);
/// A connection inside the pod is there at once, or refused at once.
const CONNECT: Duration = Duration::from_secs(1);

/// What the last look found.
#[derive(Debug, Default)]
pub struct Exposed(AtomicBool);

impl Exposed {
    /// Whether the agent was reached at the pod's address.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Looks once.
    pub async fn look(&self, pod: IpAddr, port: u16) {
        let reached = timeout(CONNECT, TcpStream::connect(SocketAddr::new(pod, port))).await;
        let reached = matches!(reached, Ok(Ok(_)));
        if reached && !self.0.swap(reached, Ordering::Relaxed) {
            tracing::warn!(target: "business", %pod, port, "the agent also listens on the pod's address: let it listen on 127.0.0.1");
        } else {
            self.0.store(reached, Ordering::Relaxed);
        }
    }

    /// Looks again and again, until shutdown; never where the pod's address is not known.
    pub async fn watch(&self, runtime: &Runtime, shutdown: CancellationToken) {
        let Some(pod) = std::env::var(POD_IP).ok().and_then(|ip| ip.parse::<IpAddr>().ok()) else { return };
        let (Runtime::Http { port, .. } | Runtime::A2a { port, .. }) = *runtime else { return };
        loop {
            self.look(pod, port).await;
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = sleep(EVERY) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_listener_is_found_and_its_end_as_well() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let exposed = Exposed::default();
        exposed.look(at.ip(), at.port()).await;
        assert!(exposed.get());
        drop(listener);
        exposed.look(at.ip(), at.port()).await;
        assert!(!exposed.get());
    }
}
