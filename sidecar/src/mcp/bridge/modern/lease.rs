//! Processes for one call at a time. One that is idle serves the next call of a client that declares the same, unless
//! each call is to have its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use outrigger_protocol::jsonrpc::{Envelope, METHOD_NOT_FOUND};
use outrigger_protocol::mcp::HANDSHAKE_REVISIONS;
use outrigger_protocol::mcp::input::{MAX_INPUTS, Question};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::mcp::child::{Child, Era};
use crate::mcp::client::{Behind, Client, Streams};
use crate::mcp::error::Error;
use crate::mcp::pool::hello::{self, Hello};
use crate::mcp::pool::{Owner, Server, Shared};

/// Idle processes that wait for another call.
const MAX_IDLE: usize = 4;

/// What a child says to the call that it serves.
pub enum Said {
    /// It asks something, under a raw id of its own.
    Asks(Question, Box<str>),
    /// It does not want to know any more.
    Retracts(Box<str>),
    /// URLs must be visited before the call can succeed.
    Urls(Vec<Question>),
}

/// Who is behind a leased child: whichever call it serves.
pub struct Stage {
    me: Weak<Self>,
    shared: Arc<Shared>,
    call: Mutex<Option<mpsc::Sender<Said>>>,
    /// Questions await the client's answers.
    waiting: AtomicBool,
    /// Questions that came when no call could take them, with the child's raw ids.
    held: Mutex<Vec<(Question, Box<str>)>>,
}

impl Stage {
    /// Notes whether questions await the client's answers.
    pub fn wait(&self, waiting: bool) {
        self.waiting.store(waiting, Ordering::Relaxed);
    }

    /// Keeps a question for the next call whose client may be asked; without one it is refused after a while.
    pub fn hold(self: &Arc<Self>, child: &Arc<Child>, question: Question, child_id: Box<str>) {
        {
            let mut held = self.held.lock();
            if held.len() >= MAX_INPUTS {
                drop(held);
                return child.refuse(&child_id, METHOD_NOT_FOUND, "too many questions await a call");
            }
            held.push((question, child_id.clone()));
        }
        let (stage, child) = (Arc::downgrade(self), Arc::downgrade(child));
        let limit = self.shared.timing.undelivered;
        tokio::spawn(async move {
            tokio::time::sleep(limit).await;
            let (Some(stage), Some(child)) = (stage.upgrade(), child.upgrade()) else { return };
            if stage.retracted(&child_id) {
                child.refuse(&child_id, METHOD_NOT_FOUND, "no call came whose client could be asked");
            }
        });
    }

    /// The questions that were kept.
    pub fn take_held(&self) -> Vec<(Question, Box<str>)> {
        std::mem::take(&mut self.held.lock())
    }

    fn retracted(&self, child_id: &str) -> bool {
        let mut held = self.held.lock();
        let before = held.len();
        held.retain(|(_, id)| **id != *child_id);
        held.len() != before
    }

    /// Tells the call that is served. `false` when there is none, or it can't take more.
    pub fn say(&self, said: Said) -> bool {
        self.call.lock().as_ref().is_some_and(|call| call.try_send(said).is_ok())
    }
}

impl Client for Stage {
    fn tell(&self, method: &str, line: Bytes, streams: Streams) -> Result<(), &'static str> {
        if method.ends_with("/list_changed") {
            for client in self.shared.listeners.everyone() {
                client.tell(method, line.clone(), Streams::default())?;
            }
            return Ok(());
        }
        match streams.current {
            Some(stream) if stream.message(&line) => Ok(()),
            Some(_) => Err("slow_reader"),
            None => Err("no_reader"),
        }
    }

    fn ask(&self, child: &Arc<Child>, question: &Envelope<'_>, _: Streams) {
        let child_id = question.id.map_or("null", |i| i.raw);
        if self.say(Said::Asks(Question::of_request(question), child_id.into())) {
            return;
        }
        if let Some(me) = self.me.upgrade() {
            me.hold(child, Question::of_request(question), child_id.into());
        }
    }

    fn retract(&self, _: &Arc<Child>, child_id: &str, _: &Envelope<'_>, _: Streams) {
        if !self.retracted(child_id) {
            self.say(Said::Retracts(child_id.into()));
        }
    }

    fn asking(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// An idle child.
struct Idle {
    capabilities: Box<str>,
    child: Arc<Child>,
    stage: Arc<Stage>,
    hello: Arc<Hello>,
}

/// All idle ones of a server.
#[derive(Default)]
pub struct Leases {
    idle: Mutex<Vec<Idle>>,
}

/// A child for one call.
pub struct Lease {
    server: Weak<Server>,
    /// The child.
    pub child: Arc<Child>,
    /// What it said of itself.
    pub hello: Arc<Hello>,
    stage: Arc<Stage>,
    capabilities: Box<str>,
    again: bool,
}

impl Lease {
    /// Who is behind the child.
    pub fn stage(&self) -> &Arc<Stage> {
        &self.stage
    }

    /// What was left undone in it: no other call may meet that.
    pub fn spoil(&mut self) {
        self.again = false;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        *self.stage.call.lock() = None;
        self.stage.wait(false);
        let server = self.server.upgrade().filter(|_| self.again && self.child.living());
        let Some(server) = server else {
            return self.child.stop("done", self.child.grace());
        };
        let idle = Idle {
            capabilities: std::mem::take(&mut self.capabilities),
            child: Arc::clone(&self.child),
            stage: Arc::clone(&self.stage),
            hello: Arc::clone(&self.hello),
        };
        let mut all = server.leases.idle.lock();
        all.retain(|i| i.child.living());
        all.push(idle);
        if all.len() > MAX_IDLE {
            let oldest = all.remove(0);
            oldest.child.stop("idle", oldest.child.grace());
        }
    }
}

/// A child that was told these capabilities, and what it says to the call.
pub async fn take(
    server: &Arc<Server>,
    capabilities: &str,
    client_info: Option<&str>,
) -> Result<(Lease, mpsc::Receiver<Said>), Error> {
    let (tx, rx) = mpsc::channel(MAX_INPUTS * 2);
    let again = server.shares();
    let found = {
        let mut all = server.leases.idle.lock();
        all.retain(|i| i.child.living());
        // The one used last is the most likely to be what a client expects: sequences of calls meet one process.
        let at = all.iter().rposition(|i| &*i.capabilities == capabilities);
        at.filter(|_| again).map(|at| all.remove(at))
    };
    let weak = Arc::downgrade(server);
    if let Some(Idle { capabilities, child, stage, hello }) = found {
        *stage.call.lock() = Some(tx);
        return Ok((Lease { server: weak, child, hello, stage, capabilities, again }, rx));
    }
    let stage = Arc::new_cyclic(|me| Stage {
        me: me.clone(),
        shared: Arc::clone(&server.shared),
        call: Mutex::new(Some(tx)),
        waiting: AtomicBool::new(false),
        held: Mutex::default(),
    });
    let behind = || {
        let client: Weak<dyn Client> = Arc::downgrade(&stage) as _;
        Behind::One(client)
    };
    let child = server.start(Era::Legacy, behind, Owner::Lease).await?;
    let mut lease = Lease {
        server: weak,
        child: Arc::clone(&child),
        hello: Arc::new(Hello::default()),
        stage: Arc::clone(&stage),
        capabilities: capabilities.into(),
        again: false,
    };
    let hello = hello::greet(&child, HANDSHAKE_REVISIONS[0], capabilities, client_info).await?;
    server.learned(&hello);
    (lease.hello, lease.again) = (Arc::new(hello), again);
    Ok((lease, rx))
}
