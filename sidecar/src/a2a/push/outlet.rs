//! The way out to receivers, with the rules of the live configuration.

use std::path::Path;
use std::sync::Arc;

use outrigger_protocol::address::{Allow, Target};
use outrigger_protocol::config::{Live, Push};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::a2a::signer::Keys;
use crate::folder::Watched;
use crate::outbound::resolve::Resolver;
use crate::outbound::{Client, Guard, Waits, tls};

/// A client that obeys `push` of the live configuration.
pub struct Outlet {
    live: watch::Receiver<Arc<Live>>,
    resolver: Arc<dyn Resolver>,
    waits: Waits,
    made: Mutex<Option<Made>>,
}

#[derive(Clone)]
struct Made {
    of: Push,
    client: Result<Arc<Client>, String>,
    keys: Option<Arc<Watched<Keys>>>,
}

impl Outlet {
    /// Follows the live configuration.
    pub fn new(live: watch::Receiver<Arc<Live>>, resolver: Arc<dyn Resolver>, waits: Waits) -> Self {
        Self { live, resolver, waits, made: Mutex::default() }
    }

    /// The live configuration in force.
    pub fn live(&self) -> Arc<Live> {
        Arc::clone(&self.live.borrow())
    }

    /// The client; an error says what keeps it from being made.
    pub fn client(&self) -> Result<Arc<Client>, String> {
        self.made().client
    }

    /// The keys that sign, if there are to be any.
    pub fn keys(&self) -> Option<Arc<Keys>> {
        self.made().keys.map(|k| k.get())
    }

    /// Whether a receiver is allowed as it is now; the error is for the one who named it.
    pub async fn admits(&self, url: &str) -> Result<(), String> {
        let target = Target::parse(url).map_err(|e| e.to_string())?;
        let client = self.client().map_err(|_| "cannot be checked now".to_owned())?;
        client.allowed(&target).await.map_err(|refusal| format!("is refused: {refusal}"))
    }

    fn made(&self) -> Made {
        let live = self.live();
        let mut made = self.made.lock();
        if let Some(made) = made.as_ref().filter(|m| m.of == live.push) {
            return made.clone();
        }
        let keys = match made.as_ref().filter(|m| m.of.signing_keys == live.push.signing_keys) {
            Some(before) => before.keys.clone(),
            None => live.push.signing_keys.as_ref().map(|folder| Arc::new(Watched::new(folder, Keys::read))),
        };
        let client = self.make(&live.push).inspect_err(|error| {
            tracing::warn!(target: "business", error, "push notifications cannot be sent");
        });
        let fresh = Made { of: live.push.clone(), client, keys };
        // A file that is missing may come: the next one who asks tries again.
        *made = fresh.client.is_ok().then(|| fresh.clone());
        fresh
    }

    fn make(&self, push: &Push) -> Result<Arc<Client>, String> {
        let allow = Allow::parse(&push.allow).map_err(|e| e.to_string())?;
        let trust = match &push.ca_file {
            Some(file) => tls::public_and(Path::new(file)),
            None => tls::public(),
        };
        let guard = Guard::Filtered(Arc::new(allow));
        let trust = trust.map_err(|e| e.to_string())?;
        Ok(Arc::new(Client::new(guard, trust, Arc::clone(&self.resolver), self.waits)))
    }
}
