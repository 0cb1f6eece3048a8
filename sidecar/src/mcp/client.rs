//! Who is behind a child, as far as what the child says by itself is concerned.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use outrigger_protocol::jsonrpc::Envelope;
use outrigger_protocol::mcp::meta::LOG_LEVELS;
use parking_lot::Mutex;

use super::child::Child;
use super::outlet::Outlet;

/// Resources that one client may watch at once.
pub const MAX_WATCHED: usize = 1024;

/// The number of the proxy's own requests.
pub const OURSELVES: u64 = 0;

/// A number for a client that no other one has or had.
pub fn serial() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(OURSELVES);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Responses of a client that somebody reads, at the time of a message.
#[derive(Debug, Default)]
pub struct Streams {
    /// That of the only request in flight.
    pub current: Option<Outlet>,
    /// That of the newest request in flight.
    pub newest: Option<Outlet>,
}

/// Somebody behind a child.
pub trait Client: Send + Sync {
    /// Takes a notification, one line. `Err` says why it is lost.
    fn tell(&self, method: &str, line: Bytes, streams: Streams) -> Result<(), &'static str>;

    /// Takes a question of a child that has no other client. The answer goes to [`Child::reply`].
    fn ask(&self, child: &Arc<Child>, question: &Envelope<'_>, streams: Streams);

    /// The child does not want the answer to a question any more.
    fn retract(&self, child: &Arc<Child>, child_id: &str, notice: &Envelope<'_>, streams: Streams);

    /// Whether a question waits for somebody, so that the request that it belongs to is not overdue.
    fn asking(&self) -> bool;
}

/// Who is behind a child.
pub enum Behind {
    /// Only the proxy.
    Nobody,
    /// One client: all that the child says is for it.
    One(Weak<dyn Client>),
    /// Any number: only what belongs to a request, or to what somebody watches, finds its way.
    Many(Arc<Audience>),
}

/// The clients of a shared child. They stay when the child is another one.
#[derive(Default)]
pub struct Audience {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    clients: HashMap<u64, Weak<dyn Client>>,
    watched: HashMap<Box<str>, Watched>,
    /// The least severe log messages that a client wants, as a place in the list of levels.
    levels: HashMap<u64, usize>,
}

/// A resource that somebody watches.
#[derive(Default)]
struct Watched {
    who: BTreeSet<u64>,
    /// The server has agreed to tell.
    agreed: bool,
}

impl Audience {
    /// Adds a client.
    pub fn join(&self, serial: u64, client: Weak<dyn Client>) {
        self.state.lock().clients.insert(serial, client);
    }

    /// Removes a client. The resources that nobody watches any more.
    pub fn leave(&self, serial: u64) -> Vec<Box<str>> {
        let mut s = self.state.lock();
        s.clients.remove(&serial);
        s.levels.remove(&serial);
        let mut alone = Vec::new();
        s.watched.retain(|uri, watched| {
            if watched.who.remove(&serial) && watched.who.is_empty() {
                alone.push(uri.clone());
            }
            !watched.who.is_empty()
        });
        alone
    }

    /// Clients.
    pub fn len(&self) -> usize {
        self.state.lock().clients.len()
    }

    /// Whether there is no client.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Watches a resource. `None` when the client watches too many; else whether the server has to be asked.
    pub fn watch(&self, serial: u64, uri: &str) -> Option<bool> {
        let mut s = self.state.lock();
        if s.watched.values().filter(|w| w.who.contains(&serial)).count() >= MAX_WATCHED {
            return None;
        }
        let watched = s.watched.entry(uri.into()).or_default();
        watched.who.insert(serial);
        Some(!watched.agreed)
    }

    /// The server has agreed to tell of a resource.
    pub fn agreed(&self, uri: &str) {
        if let Some(watched) = self.state.lock().watched.get_mut(uri) {
            watched.agreed = true;
        }
    }

    /// Watches a resource no more. Whether nobody does now.
    pub fn unwatch(&self, serial: u64, uri: &str) -> bool {
        let mut s = self.state.lock();
        let Some(watched) = s.watched.get_mut(uri) else { return true };
        watched.who.remove(&serial);
        let alone = watched.who.is_empty();
        if alone {
            s.watched.remove(uri);
        }
        alone
    }

    /// All resources that somebody watches.
    pub fn watched(&self) -> Vec<Box<str>> {
        self.state.lock().watched.keys().cloned().collect()
    }

    /// Sets the level of a client. The most verbose of all.
    pub fn set_level(&self, serial: u64, level: usize) -> usize {
        let mut s = self.state.lock();
        s.levels.insert(serial, level);
        s.levels.values().copied().min().unwrap_or(level)
    }

    /// The most verbose level of all, if anybody has set one.
    pub fn level(&self) -> Option<usize> {
        self.state.lock().levels.values().copied().min()
    }

    /// What a server has to be told for its clients, as methods and raw params.
    pub fn told(&self) -> Vec<(&'static str, String)> {
        let level = self.level().map(|level| {
            let level = LOG_LEVELS[level.min(LOG_LEVELS.len() - 1)];
            ("logging/setLevel", format!(r#"{{"level":"{level}"}}"#))
        });
        let watched = self.watched().into_iter();
        let watched = watched.map(|uri| ("resources/subscribe", serde_json::json!({ "uri": uri }).to_string()));
        level.into_iter().chain(watched).collect()
    }

    /// Whether a client wants a log message of a level. One that has set none gets what the server chooses to send.
    pub fn wants(&self, serial: u64, level: Option<usize>) -> bool {
        let wanted = self.state.lock().levels.get(&serial).copied();
        match (wanted, level) {
            (Some(wanted), Some(level)) => level >= wanted,
            _ => true,
        }
    }

    /// One client.
    pub fn client(&self, serial: u64) -> Option<Arc<dyn Client>> {
        self.state.lock().clients.get(&serial).and_then(Weak::upgrade)
    }

    /// All clients.
    pub fn everyone(&self) -> Vec<Arc<dyn Client>> {
        self.state.lock().clients.values().filter_map(Weak::upgrade).collect()
    }

    /// Clients that watch a resource, or one that it is a part of.
    pub fn watchers(&self, uri: &str) -> Vec<Arc<dyn Client>> {
        let s = self.state.lock();
        let within = |whole: &str| {
            uri.strip_prefix(whole)
                .is_some_and(|rest| rest.is_empty() || whole.ends_with('/') || rest.starts_with(['/', '?', '#']))
        };
        let who: BTreeSet<u64> =
            s.watched.iter().filter(|(whole, _)| within(whole)).flat_map(|(_, w)| w.who.iter().copied()).collect();
        who.iter().filter_map(|serial| s.clients.get(serial)?.upgrade()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Ear(Mutex<Vec<String>>);

    impl Client for Ear {
        fn tell(&self, method: &str, _: Bytes, _: Streams) -> Result<(), &'static str> {
            self.0.lock().push(method.to_owned());
            Ok(())
        }
        fn ask(&self, _: &Arc<Child>, _: &Envelope<'_>, _: Streams) {}
        fn retract(&self, _: &Arc<Child>, _: &str, _: &Envelope<'_>, _: Streams) {}
        fn asking(&self) -> bool {
            false
        }
    }

    fn join(audience: &Audience) -> (u64, Arc<Ear>) {
        let (serial, ear) = (serial(), Arc::new(Ear::default()));
        let weak: Weak<Ear> = Arc::downgrade(&ear);
        audience.join(serial, weak);
        (serial, ear)
    }

    #[test]
    fn a_resource_is_told_to_those_who_watch_it_or_what_it_is_part_of() {
        let audience = Audience::default();
        let ((a, ear_a), (b, ear_b)) = (join(&audience), join(&audience));
        assert_eq!(audience.watch(a, "file:///x"), Some(true));
        assert_eq!(audience.watch(b, "file:///x"), Some(true));
        audience.agreed("file:///x");
        assert_eq!(audience.watch(b, "file:///x"), Some(false));
        assert_eq!(audience.watch(b, "file:///y/"), Some(true));
        let tell = |uri: &str| {
            for client in audience.watchers(uri) {
                client.tell(uri, Bytes::new(), Streams::default()).unwrap();
            }
        };
        for uri in ["file:///x", "file:///xy", "file:///x/part", "file:///y/1", "file:///"] {
            tell(uri);
        }
        assert_eq!(*ear_a.0.lock(), ["file:///x", "file:///x/part"]);
        assert_eq!(*ear_b.0.lock(), ["file:///x", "file:///x/part", "file:///y/1"]);
        assert!(!audience.unwatch(b, "file:///x"));
        assert_eq!(audience.leave(b), ["file:///y/".into()]);
        assert!(audience.unwatch(a, "file:///x") && audience.watched().is_empty());
        drop(ear_a);
        assert!(audience.client(a).is_none() && audience.everyone().is_empty());
        for i in 0..MAX_WATCHED {
            assert!(audience.watch(a, &i.to_string()).is_some());
        }
        assert_eq!(audience.watch(a, "one more"), None);
    }

    #[test]
    fn the_most_verbose_level_is_set_and_each_gets_its_own() {
        let audience = Audience::default();
        assert_eq!((audience.level(), audience.wants(1, Some(0))), (None, true));
        assert_eq!(audience.set_level(1, 4), 4);
        assert_eq!(audience.set_level(2, 1), 1);
        assert_eq!(audience.set_level(2, 6), 4);
        assert!(audience.wants(1, Some(5)) && !audience.wants(2, Some(5)) && audience.wants(2, None));
        audience.leave(1);
        assert_eq!(audience.level(), Some(6));
    }
}
