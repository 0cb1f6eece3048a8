//! One call whose server may ask its client something: the response tells the questions, and the client comes back with
//! the answers (2026-07-28, "Multi round-trip requests"). The process waits meanwhile.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use outrigger_protocol::jsonrpc::{Envelope, string};
use outrigger_protocol::mcp::bridge::to_legacy::{self, Response, fingerprint};
use outrigger_protocol::mcp::capability::{Client, Need};
use outrigger_protocol::mcp::era::may_ask;
use outrigger_protocol::mcp::input::{self, Question};
use outrigger_protocol::mcp::{edit, meta};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::lease::{self, Lease, Said};
use super::parked::Resume;
use super::{Asked, bad_input, broken, edited, info, missing, not_declared};
use crate::drain::Work;
use crate::mcp::child::Request;
use crate::mcp::child::table::Log;
use crate::mcp::client::serial;
use crate::mcp::error::Error;
use crate::mcp::front::modern::Abandon;
use crate::mcp::outlet::{Answer, Event, Inlet, Outlet, outlet};
use crate::mcp::pool::Server;

/// After a question more may follow at once, and are to be asked together.
const QUIET: Duration = Duration::from_millis(20);

/// What names a state besides the caller.
const PURPOSE: &str = "call";

/// The client's side of a call, which another request may take over.
struct Front {
    outlet: Outlet,
    id: Box<str>,
    token: Option<Box<str>>,
    left: CancellationToken,
}

/// A call that is being served.
struct Call {
    server: Arc<Server>,
    lease: Lease,
    caller: Box<str>,
    declared: Client,
    fingerprint: [u8; 32],
    /// The call as the server gets it, under no id of this time.
    line: Box<str>,
    streams: bool,
    /// Whether the response may ask for input.
    may_ask: bool,
    log: Log,
    serial: u64,
    /// Answers that came before their questions.
    answers: HashMap<String, Box<str>>,
    _work: Option<Work>,
}

/// Begins a call.
pub async fn begin(asked: &Asked<'_>, work: Option<Work>) -> Result<Abandon, Error> {
    let meta = &asked.modern.meta;
    let Some(fingerprint) = fingerprint(asked.envelope) else {
        return Ok(bad_input(asked, &"params must be an object"));
    };
    let answers = match asked.modern.input_responses.map(input::answers).transpose() {
        Ok(answers) => answers.unwrap_or_default(),
        Err(why) => return Ok(bad_input(asked, &why)),
    };
    let capabilities = meta.capabilities();
    let (lease, said) = lease::take(asked.server, capabilities, meta.client.map(|c| c.raw)).await?;
    if let Log::From(level) = asked.log()
        && lease.hello.can("logging")
    {
        let level = meta::LOG_LEVELS[level];
        lease.child.demand("logging/setLevel", &format!(r#"{{"level":"{level}"}}"#))?;
    }
    let outbound = to_legacy::request(asked.envelope, asked.modern, 0);
    let left = CancellationToken::new();
    let front = Front {
        outlet: asked.outlet.clone(),
        id: asked.id().into(),
        token: outbound.token.map(Into::into),
        left: left.clone(),
    };
    let call = Call {
        server: Arc::clone(asked.server),
        caller: asked.caller.into(),
        declared: Client::read(capabilities),
        fingerprint,
        line: String::from_utf8(outbound.line).unwrap_or_default().into(),
        streams: asked.streams,
        may_ask: may_ask(&asked.envelope.method),
        log: asked.log(),
        serial: serial(),
        answers: answers.into_iter().map(|(k, v)| (k.into_owned(), v.into())).collect(),
        lease,
        _work: work,
    };
    let (id, inlet) = call.send(&front, true)?;
    tokio::spawn(call.run(front, said, id, inlet));
    Ok(Abandon::Task(left.drop_guard()))
}

/// Takes up a call that waits for this request.
pub fn resume(asked: &Asked<'_>) -> Abandon {
    let shared = &asked.server.shared;
    let owner = [PURPOSE, asked.caller, &shared.conf.name];
    let state = asked.modern.request_state.and_then(|s| string(s.raw)).unwrap_or_default();
    let answers = match asked.modern.input_responses.map(input::answers).transpose() {
        Ok(answers) => answers.unwrap_or_default(),
        Err(why) => return bad_input(asked, &why),
    };
    let Some(fingerprint) = fingerprint(asked.envelope) else {
        return bad_input(asked, &"params must be an object");
    };
    let waiting = match asked.server.parked.take(&shared.seal, &owner, &state, fingerprint) {
        Ok(waiting) => waiting,
        Err(why) => return bad_input(asked, &why),
    };
    let left = CancellationToken::new();
    let resume = Resume {
        outlet: asked.outlet.clone(),
        id: asked.id().into(),
        token: asked.modern.meta.progress_token.map(|t| t.raw.into()),
        answers: answers.into_iter().map(|(k, v)| (k.into_owned(), v.into())).collect(),
        left: left.clone(),
    };
    match waiting.send(resume) {
        Ok(()) => Abandon::Task(left.drop_guard()),
        Err(_) => bad_input(asked, &super::parked::NotParked::Unknown),
    }
}

/// Where a call stands after something happened.
enum Step {
    /// It waits for its server.
    Goes(Inlet, u64),
    /// It is over.
    Over,
}

impl Call {
    /// Sends the call to the server: its id there, and where its response comes.
    fn send(&self, front: &Front, counted: bool) -> Result<(u64, Inlet), Error> {
        let envelope = Envelope::parse(&self.line, usize::MAX).map_err(|e| Error::InitializeFailed(e.to_string()))?;
        let (tx, rx) = outlet();
        let (stage, hello, declared) = (Arc::clone(self.lease.stage()), Arc::clone(&self.lease.hello), self.declared);
        let id = self.lease.child.request(Request {
            envelope: &envelope,
            outlet: tx,
            client: self.serial,
            streams: self.streams,
            log: self.log,
            limit: Some(self.server.shared.request_limit()),
            work: None,
            counted,
            translate: Some(Box::new(move |response, pending| {
                match to_legacy::response(response, pending.method, &pending.client_id, info(&hello)) {
                    Response::Message(line) => Some(edited(response, line)),
                    Response::Urls(_) if !declared.takes(Need::Url) => Some(missing(Need::Url, pending)),
                    Response::Urls(questions) => {
                        stage.say(Said::Urls(questions));
                        None
                    }
                }
            })),
        })?;
        self.lease.child.readdress(id, &front.id, front.token.as_deref());
        Ok((id, rx))
    }

    /// Serves the call to its end.
    async fn run(mut self, mut front: Front, mut said: mpsc::Receiver<Said>, mut id: u64, mut inlet: Inlet) {
        let mut asked: Vec<(Question, Box<str>)> = Vec::new();
        if self.may_ask {
            for (question, child_id) in self.lease.stage().take_held() {
                self.asks(&mut asked, question, child_id);
            }
        }
        let mut quiet = Instant::now() + QUIET;
        loop {
            let step = tokio::select! {
                // What was said before the end of the response counts.
                biased;
                said = said.recv() => match said {
                    Some(Said::Asks(question, child_id)) => {
                        self.asks(&mut asked, question, child_id);
                        quiet = Instant::now() + QUIET;
                        continue;
                    }
                    Some(Said::Retracts(child_id)) => {
                        asked.retain(|(_, id)| *id != child_id);
                        self.lease.stage().wait(!asked.is_empty());
                        continue;
                    }
                    Some(Said::Urls(questions)) => self.urls(&mut front, questions).await,
                    None => Step::Over,
                },
                event = inlet.next() => match event {
                    Some(Event::Message(body, _)) => {
                        if !front.outlet.message(&body) {
                            self.server.shared.dropped("slow_reader");
                        }
                        continue;
                    }
                    Some(Event::Final(answer, _)) => {
                        front.outlet.finish(readdressed(answer, &front.id));
                        Step::Over
                    }
                    // Its translator has said what comes next.
                    None => {
                        let mut rest = std::iter::from_fn(|| said.try_recv().ok());
                        let urls = rest.find_map(|said| if let Said::Urls(urls) = said { Some(urls) } else { None });
                        if let Some(questions) = urls {
                            self.urls(&mut front, questions).await
                        } else {
                            front.outlet.finish(broken(&front.id, "the server's process ended"));
                            Step::Over
                        }
                    }
                },
                () = tokio::time::sleep_until(quiet), if !asked.is_empty() => {
                    self.park(&mut front, &mut asked, id).await.map_or(Step::Over, |()| Step::Goes(inlet, id))
                }
                () = front.left.cancelled() => {
                    self.lease.child.cancel(id, "the client closed the stream");
                    self.lease.spoil();
                    Step::Over
                }
            };
            match step {
                Step::Goes(next, next_id) => (inlet, id) = (next, next_id),
                Step::Over => break,
            }
        }
        // The call did not need their answers; perhaps the next one does.
        for (question, child_id) in asked {
            self.lease.stage().hold(&self.lease.child, question, child_id);
        }
    }

    /// A question, unless its answer is here already or the client can't be asked this.
    fn asks(&mut self, asked: &mut Vec<(Question, Box<str>)>, question: Question, child_id: Box<str>) {
        let child = &self.lease.child;
        if !question.need().is_some_and(|need| self.declared.takes(need)) {
            return not_declared(child, &child_id);
        }
        match self.answers.remove(&question.key) {
            Some(answer) => drop(child.write(input::answer(&child_id, &answer))),
            None if !self.may_ask => self.lease.stage().hold(child, question, child_id),
            None => asked.push((question, child_id)),
        }
        self.lease.stage().wait(!asked.is_empty());
    }

    /// Gives the questions to the client and waits until it comes back. `None`: it did not.
    async fn park(&mut self, front: &mut Front, asked: &mut Vec<(Question, Box<str>)>, id: u64) -> Option<()> {
        let questions: Vec<Question> = asked.iter().map(|(q, _)| q.clone()).collect();
        let Some(resume) = self.ask(front, &questions).await else {
            self.lease.child.cancel(id, "the client did not come back");
            self.lease.spoil();
            for (_, child_id) in asked.drain(..) {
                not_answered(&self.lease, &child_id);
            }
            return None;
        };
        for (key, answer) in resume.answers {
            match asked.iter().position(|(q, _)| q.key == key) {
                Some(at) => {
                    let (_, child_id) = asked.swap_remove(at);
                    let _ = self.lease.child.write(input::answer(&child_id, &answer));
                }
                // Perhaps the server asks that later; others are of no use, and harm nobody.
                None if self.answers.len() < input::MAX_INPUTS => drop(self.answers.insert(key, answer)),
                None => {}
            }
        }
        *front = Front { outlet: resume.outlet, id: resume.id, token: resume.token, left: resume.left };
        self.lease.stage().wait(!asked.is_empty());
        self.lease.child.readdress(id, &front.id, front.token.as_deref());
        Some(())
    }

    /// Has the client visit URLs, and sends the call again when it comes back.
    async fn urls(&mut self, front: &mut Front, questions: Vec<Question>) -> Step {
        let Some(resume) = self.ask(front, &questions).await else { return Step::Over };
        *front = Front { outlet: resume.outlet, id: resume.id, token: resume.token, left: resume.left };
        match self.send(front, false) {
            Ok((id, inlet)) => Step::Goes(inlet, id),
            Err(error) => {
                front.outlet.finish(Answer::failure(&error, self.server.name(), Some(&front.id)));
                Step::Over
            }
        }
    }

    async fn ask(&self, front: &Front, questions: &[Question]) -> Option<Resume> {
        let shared = &self.server.shared;
        let owner = [PURPOSE, &*self.caller, &shared.conf.name];
        let parked = &self.server.parked;
        let Some((state, key, resume)) = parked.park(&shared.seal, &owner, self.fingerprint) else {
            front.outlet.finish(broken(&front.id, "too many calls wait for answers of their clients"));
            return None;
        };
        let gauge = shared.metrics.parked.with_label_values(&[&shared.conf.name]);
        gauge.inc();
        let line = input::input_required(&front.id, questions, Some(&state), info(&self.lease.hello));
        front.outlet.finish(Answer::result(line));
        let resume = tokio::time::timeout(shared.timing.parked, resume).await;
        gauge.dec();
        if resume.is_err() {
            parked.forget(&key);
        }
        resume.ok().and_then(Result::ok)
    }
}

fn not_answered(lease: &Lease, child_id: &str) {
    lease.child.refuse(child_id, outrigger_protocol::jsonrpc::INTERNAL_ERROR, "the client did not answer");
}

/// An answer that was made for another id of the same call.
fn readdressed(answer: Answer, id: &str) -> Answer {
    let text = std::str::from_utf8(&answer.body).unwrap_or_default();
    match Envelope::parse(text, usize::MAX) {
        Ok(envelope) if envelope.id.is_some_and(|i| i.raw != id) => {
            Answer { body: edit::with_id(&envelope, id).into(), ..answer }
        }
        _ => answer,
    }
}
