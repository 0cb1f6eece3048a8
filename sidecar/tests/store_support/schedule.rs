//! Random schedules: processes that work on the same tasks, lose each other's results, crash anywhere, and race.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join};
use jiff::Timestamp;
use outrigger_protocol::a2a::artifact::{Artifact, ArtifactUpdate};
use outrigger_protocol::a2a::operation::Dialect;
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::state::State;
use outrigger_protocol::a2a::task::{Change, Task, TurnMark};
use outrigger_protocol::config::Limits;
use outrigger_sidecar::a2a::store::{Key, LEASE, Memory, PushConfig, PushWork, Store};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::Limited;
use super::bed::{Bed, Death, process};
use super::check::{expected, shown, whole};
use super::model::{Got, Model, Op};

/// Steps of one schedule.
const STEPS: usize = 150;
/// Tasks are called by small numbers, so that schedules come back to them.
const TASKS: u32 = 12;

struct Process {
    store: Arc<dyn Store>,
    owner: Arc<str>,
    /// How far its own clock is off, which must not matter.
    skew: Duration,
    /// Tasks as it saw them last.
    believed: HashMap<Arc<str>, Task>,
}

struct Run<'a> {
    bed: &'a mut dyn Bed,
    model: Model,
    processes: Vec<Process>,
    random: StdRng,
    /// The real store's claims, beside the model's.
    claims: Vec<Option<u64>>,
    serial: u64,
    /// In place of a process that has ended.
    nobody: Arc<dyn Store>,
}

/// Runs one schedule.
pub async fn run(bed: &mut dyn Bed, seed: u64) {
    let now = Timestamp::from_second(1_700_000_000).unwrap();
    bed.set(now).await;
    let model = Model::new(bed.death(), now);
    let random = StdRng::seed_from_u64(seed);
    let (live, metrics) = process(Limits::default());
    let nobody = Arc::new(Memory::new(live, metrics));
    let mut run = Run { bed, model, processes: Vec::new(), random, claims: Vec::new(), serial: 0, nobody };
    let pods = if run.model.death == Death::Successor { 1 } else { 2 };
    for pod in 0..pods {
        run.start(pod).await;
    }
    for _ in 0..STEPS {
        run.step().await;
    }
    for process in &run.processes {
        whole(&*process.store, &run.model).await;
    }
}

/// Does an operation; claims come beside what was got.
fn call<'a>(store: &'a dyn Store, op: &'a Op, claim: Option<u64>) -> BoxFuture<'a, (Got, Vec<PushWork>)> {
    async move {
        let mut work = Vec::new();
        let got = match op {
            Op::Create(task, key, push) => {
                store.create(Task::clone(task), key.clone(), push.clone()).await.map(|t| Got::Task(Task::clone(&t)))
            }
            Op::Append(seen, change, key) => {
                store.append(seen, Change::clone(change), key.clone()).await.map(|t| Got::Task(Task::clone(&t)))
            }
            Op::Withdraw(seen, memo, message) => store.withdraw(seen, memo.clone(), message).await.map(|()| Got::Unit),
            Op::PutPush(config) => store.put_push(config.clone()).await.map(|()| Got::Unit),
            Op::DeletePush(task, id) => store.delete_push(task, id).await.map(Got::Was),
            Op::Claim(limit, hold) => store.push_due(*limit, *hold).await.map(|claimed| {
                work = claimed;
                Got::Claimed(work.iter().map(|w| w.config.clone()).collect())
            }),
            Op::Done(config, _) => {
                let work = PushWork { config: config.clone(), claim: claim.unwrap_or(u64::MAX >> 1), again: false };
                store.push_done(work).await.map(|()| Got::Unit)
            }
            Op::Renew => store.renew().await.map(|()| Got::Unit),
        };
        (got.unwrap_or_else(Got::of), work)
    }
    .boxed()
}

fn raw(text: &str) -> Raw {
    Raw::parse(text).unwrap()
}

impl Run<'_> {
    async fn start(&mut self, pod: usize) {
        if let Some(process) = self.processes.get_mut(pod) {
            // Whatever it held is free before its successor starts.
            process.store = Arc::clone(&self.nobody);
        }
        let store = self.bed.start(pod).await;
        let owner = store.owner();
        self.model.start(Arc::clone(&owner), pod);
        let skew = Duration::from_secs(self.random.random_range(0..7_200));
        let process = Process { store, owner, skew, believed: HashMap::new() };
        if pod < self.processes.len() {
            // Its memory is gone with it.
            self.processes[pod] = process;
        } else {
            self.processes.push(process);
        }
    }

    async fn step(&mut self) {
        let p = self.random.random_range(0..self.processes.len());
        match self.random.random_range(0..100) {
            0..3 => self.start(p).await,
            3..9 => {
                let by = [Duration::from_micros(1), Duration::from_secs(1), Duration::from_secs(6), LEASE];
                self.model.now += *by.choose(&mut self.random).unwrap();
                self.bed.set(self.model.now).await;
            }
            9..12 => whole(&*self.processes[p].store, &self.model).await,
            12..22 => self.race(p).await,
            22..47 => {
                let op = self.op(p);
                let polls = self.random.random_range(1..5);
                self.crash(p, &op, polls).await;
            }
            _ => {
                let op = self.op(p);
                self.perform(p, &op).await;
            }
        }
    }

    /// The real store's claim of an operation.
    fn claim(&self, op: &Op) -> Option<u64> {
        let Op::Done(_, claim) = op else { return None };
        let at = self.model.claims.iter().position(|(_, c)| c == claim)?;
        self.claims[at]
    }

    async fn perform(&mut self, p: usize, op: &Op) {
        let claim = self.claim(op);
        let process = &self.processes[p];
        let (got, work) = call(&*process.store, op, claim).await;
        let should = self.model.run(&process.owner, op);
        assert_eq!(got, should, "{op:?} by {p}");
        self.learn(p, op, &got, work).await;
    }

    async fn learn(&mut self, p: usize, op: &Op, got: &Got, work: Vec<PushWork>) {
        self.claims.extend(work.iter().map(|w| Some(w.claim)));
        assert_eq!(self.claims.len(), self.model.claims.len());
        let process = &mut self.processes[p];
        self.model.known(&process.owner, op);
        if let Got::Task(task) | Got::Conflict(_, task) = got {
            process.believed.insert(Arc::clone(&task.id), task.clone());
        }
        assert_eq!(shown(&*process.store, &self.model, op).await, expected(&self.model, op), "{op:?}");
    }

    /// An operation that is dropped after some polls shows all or nothing of it.
    async fn crash(&mut self, p: usize, op: &Op, polls: usize) {
        let claim = self.claim(op);
        let (store, owner) = (Arc::clone(&self.processes[p].store), Arc::clone(&self.processes[p].owner));
        let done = Limited::new(call(&*store, op, claim), polls).await;
        let mut after = self.model.clone();
        let should = after.run(&owner, op);
        if let Some((got, work)) = done {
            assert_eq!(got, should, "{op:?} by {p}");
            self.model = after;
            self.learn(p, op, &got, work).await;
            return;
        }
        self.bed.settle(&*store).await;
        after.dropped(&owner, op);
        self.model.dropped(&owner, op);
        drop(store);
        if self.random.random_bool(0.3) {
            self.start(p).await;
            let pod_of = &self.processes[p].owner;
            after.start(Arc::clone(pod_of), p);
        }
        if matches!(op, Op::Renew) {
            // Whether it was done shows only later: make sure of it.
            let op = Op::Renew;
            self.perform(p, &op).await;
            return;
        }
        let view = shown(&*self.processes[p].store, &after, op).await;
        if view == expected(&after, op) {
            self.model = after;
            // Claims that nobody knows of.
            self.claims.resize(self.model.claims.len(), None);
        } else {
            assert_eq!(view, expected(&self.model, op), "neither all nor nothing of {op:?}");
        }
    }

    /// Two processes write to one task as both saw it: one wins.
    async fn race(&mut self, p: usize) {
        let q = (p + 1) % self.processes.len();
        let Some(seen) = self.some_task().filter(|t| !t.state.is_terminal()) else { return };
        let mut ops = [State::Completed, State::Canceled].map(|state| {
            let change = Change { state: Some(state), said: Some(raw("{\"s\":1}")), ..Change::default() };
            Op::Append(Box::new(seen.clone()), Box::new(change), None)
        });
        if self.random.random_bool(0.5) {
            let change = self.turn(p);
            ops[0] = Op::Append(Box::new(seen.clone()), Box::new(change), None);
        }
        let (a, b) = (Arc::clone(&self.processes[p].store), Arc::clone(&self.processes[q].store));
        let (first, second) = join(call(&*a, &ops[0], None), call(&*b, &ops[1], None)).await;
        let order = if matches!(first.0, Got::Task(_)) { [(p, 0), (q, 1)] } else { [(q, 1), (p, 0)] };
        let got = [first.0, second.0];
        for (process, i) in order {
            let owner = Arc::clone(&self.processes[process].owner);
            assert_eq!(got[i], self.model.run(&owner, &ops[i]), "{:?} in a race", ops[i]);
            self.processes[process].believed.remove(&seen.id);
        }
        assert_eq!(shown(&*a, &self.model, &ops[0]).await, expected(&self.model, &ops[0]));
    }

    fn some_task(&mut self) -> Option<Task> {
        let tasks: Vec<_> = self.model.tasks.values().collect();
        tasks.choose(&mut self.random).map(|l| l.newest().clone())
    }

    fn turn(&mut self, p: usize) -> Change {
        self.serial += 1;
        let began = self.model.now + self.processes[p].skew;
        let id = format!("turn{}", self.serial).into();
        let turn = TurnMark { id, attempt: 1, seq: self.serial, asynchronous: self.random.random_bool(0.3), began };
        Change { turn: Some(turn), state: Some(State::Working), ..Change::default() }
    }

    fn key(&mut self) -> Option<Key> {
        let id = format!("k{}", self.random.random_range(0..20)).into();
        let key = Key { id, hash: "hash".into(), turn: "turn".into() };
        self.random.random_bool(0.3).then_some(key)
    }

    fn receiver(&mut self, task: Arc<str>) -> PushConfig {
        PushConfig {
            task,
            id: format!("r{}", self.random.random_range(0..3)).into(),
            json: raw("{\"url\":\"https://example.com/\",\"n\": 1.0}"),
            dialect: *[Dialect::V10, Dialect::V03, Dialect::V03Proto].choose(&mut self.random).unwrap(),
            delivered: 0,
            attempts: 0,
            next: self.model.now - Duration::from_secs(1),
            dead: None,
        }
    }

    fn op(&mut self, p: usize) -> Op {
        match self.random.random_range(0..100) {
            0..18 => self.create(p),
            18..24 => {
                self.serial += 1;
                let message = raw(&format!("{{\"direct\":{}}}", self.serial));
                let memo = self.random.random_bool(0.5).then(|| raw("{\"memo\":2.50}"));
                match self.some_task() {
                    Some(seen) => Op::Withdraw(Box::new(seen), memo, message),
                    None => self.create(p),
                }
            }
            24..30 => match self.some_task() {
                Some(task) => Op::PutPush(self.receiver(task.id)),
                None => Op::Renew,
            },
            30..33 => {
                let task = format!("t{}", self.random.random_range(0..TASKS)).into();
                Op::DeletePush(task, format!("r{}", self.random.random_range(0..3)).into())
            }
            33..40 => Op::Claim(self.random.random_range(1..4), Duration::from_secs(5)),
            40..47 => {
                let known = self.model.claims.iter().zip(&self.claims).filter(|(_, real)| real.is_some());
                let newest: Vec<_> = known.rev().map(|(claim, _)| claim.clone()).take(4).collect();
                match newest.choose(&mut self.random) {
                    Some((config, claim)) => Op::Done(self.outcome(config.clone()), *claim),
                    None => Op::Renew,
                }
            }
            47..53 => Op::Renew,
            53..60 => {
                let orphan = self.model.orphans(&self.processes[p].owner).first().map(|t| Task::clone(t));
                match orphan {
                    Some(orphan) => Op::Append(Box::new(orphan), Box::new(self.turn(p)), None),
                    None => self.append(p),
                }
            }
            _ => self.append(p),
        }
    }

    fn outcome(&mut self, config: PushConfig) -> PushConfig {
        let next = self.model.now + Duration::from_secs(self.random.random_range(0..4));
        match self.random.random_range(0..3) {
            0 => PushConfig { attempts: config.attempts + 1, next, ..config },
            1 => PushConfig { dead: Some("gone".into()), ..config },
            _ => PushConfig { delivered: config.delivered + 1, attempts: 0, next, ..config },
        }
    }

    fn create(&mut self, p: usize) -> Op {
        let id: Arc<str> = format!("t{}", self.random.random_range(0..TASKS)).into();
        let context = format!("c{}", self.random.random_range(0..2)).into();
        let caller = if self.random.random_bool(0.5) { "me" } else { "" }.into();
        let since = self.model.now + self.processes[p].skew;
        let message = raw(&format!("{{\"messageId\":\"{id}\", \"n\":12345678901234567890}}"));
        let mut task = Task::new(Arc::clone(&id), context, caller, message, self.random.random_bool(0.5), since);
        if self.random.random_bool(0.3) {
            task.turn = self.turn(p).turn;
            task.attachment = Some(raw("[1.0]"));
        }
        let push = self.random.random_bool(0.3).then(|| self.receiver(id));
        Op::Create(Box::new(task), self.key(), push)
    }

    fn append(&mut self, p: usize) -> Op {
        let Some(newest) = self.some_task() else { return self.create(p) };
        // Now and then a process has not heard of what others did.
        let believed = self.processes[p].believed.get(&newest.id).cloned();
        let seen = believed.filter(|_| self.random.random_bool(0.3)).unwrap_or(newest);
        self.serial += 1;
        let n = self.serial;
        let mut change = match self.random.random_range(0..10) {
            0..3 => self.turn(p),
            3..6 => {
                let id: Arc<str> = format!("a{}", self.random.random_range(0..2)).into();
                let text = "x".repeat(self.random.random_range(0..200) * self.random.random_range(1..200));
                let json = format!(
                    r#"{{"artifactId":"{id}","parts":[{{"text":"{text}","n":{n}}}],"metadata":{{"{}":{n}.0}}}}"#,
                    n % 3
                );
                let artifact = Artifact::whole(id, Some("A".into()), raw(&json));
                let (append, last) = (self.random.random_bool(0.8), self.random.random_bool(0.1));
                Change { artifacts: vec![ArtifactUpdate { artifact, append, last }], ..Change::default() }
            }
            6 => Change { message: Some(raw(&format!("{{\"messageId\":\"{n}\"}}"))), ..Change::default() },
            7 => Change { state: Some(State::InputRequired), ..Change::default() },
            8 => Change { state: Some(State::ALL[self.random.random_range(0..8)]), ..Change::default() },
            _ => Change { state: Some(State::Completed), reveal: true, ..Change::default() },
        };
        if change.state.is_some() && self.random.random_bool(0.5) {
            change.said = Some(raw(&format!("{{\"said\": {n}}}")));
        }
        if self.random.random_bool(0.2) {
            change.memo = Some(raw(if n.is_multiple_of(3) { "null" } else { "{\"memo\":1.0}" }));
        }
        change.reveal |= self.random.random_bool(0.2);
        if self.random.random_bool(0.1) {
            change.attachment = Some(raw(&n.to_string()));
        }
        Op::Append(Box::new(seen), Box::new(change), self.key())
    }
}
