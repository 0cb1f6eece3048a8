//! One call of a session, and its rounds: what the server needs to know first is asked of the client, and the call is
//! sent again with the answers.

use std::sync::Arc;

use bytes::Bytes;
use outrigger_protocol::jsonrpc::{Envelope, INTERNAL_ERROR, member, string};
use outrigger_protocol::mcp::bridge::to_modern;
use outrigger_protocol::mcp::input::{InputRequired, Question};
use tokio_util::sync::CancellationToken;

use super::Bridged;
use crate::drain::Work;
use crate::mcp::child::table::{Pending, Translate};
use crate::mcp::child::{Child, Request, dispatch};
use crate::mcp::client::Streams;
use crate::mcp::error::Error;
use crate::mcp::outlet::{Answer, Outlet};
use crate::mcp::session::Session;

/// Times that a server may ask for one call.
const MAX_ROUNDS: u32 = 16;

/// What all rounds of a call have in common.
#[derive(Clone)]
struct Call {
    bridged: Arc<Bridged>,
    session: Arc<Session>,
    /// The client's message.
    text: Bytes,
    outlet: Outlet,
    streams: bool,
    round: u32,
}

/// Sends a call for the first time.
pub fn first(
    bridged: &Arc<Bridged>,
    session: &Arc<Session>,
    child: &Arc<Child>,
    envelope: &Envelope<'_>,
    outlet: &Outlet,
    streams: bool,
    work: Work,
) -> Result<(), Error> {
    let call = Call {
        bridged: Arc::clone(bridged),
        session: Arc::clone(session),
        text: Bytes::copy_from_slice(envelope.text.as_bytes()),
        outlet: outlet.clone(),
        streams,
        round: 0,
    };
    let stamp = bridged.stamp();
    child.send(call.request(envelope, Some(work)), |id| to_modern::request(envelope, id, &stamp)).map(|_| ())
}

impl Call {
    fn request<'a>(&self, envelope: &'a Envelope<'a>, work: Option<Work>) -> Request<'a> {
        let call = self.clone();
        let translate: Translate = Box::new(move |response, pending| call.translate(response, pending));
        Request {
            envelope,
            outlet: self.outlet.clone(),
            client: self.session.serial,
            streams: self.streams,
            log: self.bridged.log(),
            limit: Some(self.session.shared.request_limit()),
            work,
            counted: self.round == 0,
            translate: Some(translate),
        }
    }

    /// The response for the client; none when the server needs to know something first.
    fn translate(self, response: &Envelope<'_>, pending: &Pending) -> Option<Answer> {
        let asked = response.result.map(InputRequired::read).transpose().map(Option::flatten);
        match asked {
            Ok(None) => {
                let code = dispatch::code(response);
                Some(Answer { code, ..Answer::result(to_modern::response(response, &pending.client_id)) })
            }
            Ok(Some(_)) if self.round >= MAX_ROUNDS => Some(Answer::error(
                Some(&pending.client_id),
                INTERNAL_ERROR,
                &format!("the server asked for more than {MAX_ROUNDS} rounds of input"),
            )),
            Ok(Some(input)) => {
                let shared = &self.session.shared;
                let work = shared.drain.work(shared.container());
                let state = input.state.map(str::to_owned);
                let id: Box<str> = pending.client_id.clone();
                let left = CancellationToken::new();
                self.bridged.rounds.lock().insert(id.clone(), left.clone());
                tokio::spawn(self.ask(id, input.questions, state, left, work));
                None
            }
            Err(why) => {
                let why = format!("the server asked for input that makes no sense: {why}");
                Some(Answer::error(Some(&pending.client_id), INTERNAL_ERROR, &why))
            }
        }
    }

    /// Asks the client, and sends the call again with its answers.
    async fn ask(
        mut self,
        id: Box<str>,
        questions: Vec<Question>,
        state: Option<String>,
        left: CancellationToken,
        work: Work,
    ) {
        let answered = left.run_until_cancelled(self.answers(&questions)).await;
        self.bridged.rounds.lock().remove(&id);
        let answers = match answered {
            Some(Ok(answers)) => answers,
            Some(Err(answer)) => return self.over(answer(&id)),
            None => return self.over(Answer::failure(&Error::Cancelled, &self.session.shared.conf.name, Some(&id))),
        };
        self.round += 1;
        if let Err(error) = self.again(&answers, state.as_deref(), work).await {
            self.over(Answer::failure(&error, &self.session.shared.conf.name, Some(&id)));
        }
    }

    fn over(&self, answer: Answer) {
        if !self.outlet.finish(answer) {
            self.session.shared.dropped("unread_response");
        }
    }

    /// The answers of the client by key, as raw results.
    async fn answers(
        &self,
        questions: &[Question],
    ) -> Result<Vec<(String, String)>, Box<dyn FnOnce(&str) -> Answer + Send>> {
        // Each question on its own: the reader may leave between them.
        let streams = || {
            let stream = Some(&self.outlet).filter(|o| self.streams && o.open());
            Streams { current: stream.cloned(), newest: stream.cloned() }
        };
        for question in questions {
            if !question.need().is_some_and(|need| self.bridged.declared.takes(need)) {
                let why = format!("the server asks for {}, which this client has not declared", question.method);
                return Err(Box::new(move |id| Answer::error(Some(id), INTERNAL_ERROR, &why)));
            }
        }
        let all = questions.iter().map(async |question| {
            let answer = self.session.question(question, &streams()).await;
            (question, answer)
        });
        let mut answers = Vec::with_capacity(questions.len());
        for (question, answer) in futures::future::join_all(all).await {
            let name = self.session.shared.conf.name.clone();
            let body = answer.map_err(|error| -> Box<dyn FnOnce(&str) -> Answer + Send> {
                Box::new(move |id| Answer::failure(&error, &name, Some(id)))
            })?;
            let text = String::from_utf8_lossy(&body).into_owned();
            let envelope = Envelope::parse(&text, usize::MAX).ok();
            if let Some(result) = envelope.as_ref().and_then(|e| e.result) {
                answers.push((question.key.clone(), result.raw.to_owned()));
                continue;
            }
            // What the client did not decide, nobody decides for it.
            let error = envelope.as_ref().and_then(|e| e.error).and_then(|e| member(e, "message"));
            let error = error.and_then(|m| string(m.raw)).unwrap_or_default().into_owned();
            let why = format!("the client refused {}: {error}", question.method);
            return Err(Box::new(move |id| Answer::error(Some(id), INTERNAL_ERROR, &why)));
        }
        Ok(answers)
    }

    async fn again(&self, answers: &[(String, String)], state: Option<&str>, work: Work) -> Result<(), Error> {
        let child = self.bridged.slot.child().await?;
        let text = std::str::from_utf8(&self.text).unwrap_or_default();
        let envelope = Envelope::parse(text, usize::MAX).map_err(|e| Error::InitializeFailed(e.to_string()))?;
        let answers: Vec<(&str, &str)> = answers.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let stamp = self.bridged.stamp();
        let request = self.request(&envelope, Some(work));
        child.send(request, |id| to_modern::retry(&envelope, id, &stamp, &answers, state)).map(|_| ())
    }
}
