//! What goes to the client of a session: its stream, responses that became streams, and questions.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::ask::Asked;
use crate::mcp::child::Child;
use crate::mcp::client::Streams;
use crate::mcp::outlet::{Inlet, Outlet, Sent};

/// Questions that may await the client's answer.
pub const MAX_ASKED: usize = 64;
/// Responses that can be taken up again; the oldest that is over makes room.
const MAX_STREAMS: usize = 16;
/// Number of the session's own stream.
const OWN: u64 = 0;

/// See the module.
pub struct Mail {
    own: Outlet,
    streams: VecDeque<(u64, Outlet)>,
    last_stream: u64,
    asked: HashMap<u64, Asked>,
    last_ask: u64,
}

impl Default for Mail {
    fn default() -> Self {
        let own = Outlet::standing();
        own.keep();
        Self { own, streams: VecDeque::new(), last_stream: OWN, asked: HashMap::new(), last_ask: 0 }
    }
}

/// `7-31` as stream and place.
fn event(id: &str) -> Option<(u64, u64)> {
    let (stream, place) = id.split_once('-')?;
    Some((stream.parse().ok()?, place.parse().ok()?))
}

impl Mail {
    /// Whether somebody reads the session's stream, or a question awaits an answer.
    pub fn in_use(&self) -> bool {
        self.own.open() || self.asking() || self.streams.iter().any(|(_, s)| s.open())
    }

    /// Whether the client thinks about a question.
    pub fn asking(&self) -> bool {
        self.asked.values().any(|a| a.delivered)
    }

    /// See [`Session::listen`](super::Session::listen).
    pub fn listen(&mut self, after: Option<&str>, answer_limit: Duration) -> (u64, Inlet) {
        let after = after.and_then(event);
        if let Some((number, place)) = after
            && let Some((_, stream)) = self.streams.iter().find(|(n, _)| *n == number)
        {
            return (number, stream.attach(Some(place)));
        }
        for number in self.own.unread_questions() {
            if let Some(asked) = self.asked.get_mut(&number) {
                asked.deliver(answer_limit);
            }
        }
        let after = after.filter(|(number, _)| *number == OWN).map(|(_, place)| place);
        (OWN, self.own.attach(after))
    }

    /// See [`Session::keep`](super::Session::keep).
    pub fn keep(&mut self, outlet: &Outlet) -> u64 {
        if self.streams.len() >= MAX_STREAMS {
            let over = self.streams.iter().position(|(_, s)| s.over()).unwrap_or(0);
            self.streams.remove(over);
        }
        self.last_stream += 1;
        outlet.keep();
        self.streams.push_back((self.last_stream, outlet.clone()));
        self.last_stream
    }

    /// Brings a message to the client: one that belongs to no request goes to the session's stream, another one to the
    /// only request in flight if there is one. For a question any stream is better than none.
    pub fn deliver(
        &mut self,
        line: &Bytes,
        streams: &Streams,
        to_session: bool,
        question: u64,
        answer_limit: Duration,
    ) -> Result<(), &'static str> {
        let own = self.own.open().then_some(&self.own);
        let way = if to_session { own } else { streams.current.as_ref().or(own) };
        let way = way.or(streams.newest.as_ref().filter(|_| question != 0));
        if let Some(way) = way {
            if way.question(line, question) {
                if let Some(asked) = self.asked.get_mut(&question) {
                    asked.deliver(answer_limit);
                }
                return Ok(());
            }
            if question == 0 {
                return Err("slow_reader");
            }
        }
        match self.own.park(line, question) {
            Sent::Taken => Ok(()),
            Sent::InPlaceOfAnother | Sent::Refused => Err("no_reader"),
        }
    }

    /// See [`Session::offer`](super::Session::offer).
    pub fn offer(&mut self, to: &Outlet, answer_limit: Duration) {
        if self.asked.is_empty() || self.own.open() {
            return;
        }
        for (number, line) in self.own.take_questions() {
            // One that was answered or timed out meanwhile is of no use.
            let Some(asked) = self.asked.get_mut(&number) else { continue };
            if to.question(&line, number) {
                asked.deliver(answer_limit);
            } else {
                self.own.park(&line, number);
            }
        }
    }

    /// Notes a question: its number. Given back when there are too many.
    pub fn ask(&mut self, mut asked: Asked, limit: Duration) -> Result<u64, Asked> {
        if self.asked.len() >= MAX_ASKED {
            return Err(asked);
        }
        self.last_ask += 1;
        asked.deadline = Instant::now() + limit;
        self.asked.insert(self.last_ask, asked);
        Ok(self.last_ask)
    }

    /// Takes a question out that was answered. The first answer wins.
    pub fn answered(&mut self, number: u64) -> Option<Asked> {
        self.asked.remove(&number)
    }

    /// Takes a question out that a child does not want to be answered: its number, if the client has seen it.
    pub fn retract(&mut self, child: &Arc<Child>, child_id: &str) -> Option<u64> {
        let number = self.asked.iter().find(|(_, a)| a.is(child, child_id)).map(|(number, _)| *number)?;
        let asked = self.asked.remove(&number)?;
        self.own.retract(number);
        asked.delivered.then_some(number)
    }

    /// Takes a question out whose time is over, or tells when it will be. `None` when it is not there.
    pub fn overdue(&mut self, number: u64) -> Option<Result<Asked, Instant>> {
        let deadline = self.asked.get(&number)?.deadline;
        if deadline > Instant::now() {
            return Some(Err(deadline));
        }
        self.own.retract(number);
        self.asked.remove(&number).map(Ok)
    }

    /// Ends all streams. The questions that are left.
    pub fn end(&mut self) -> HashMap<u64, Asked> {
        self.own.end();
        for (_, stream) in self.streams.drain(..) {
            // A response that is still to come is its child's business.
            if stream.over() {
                stream.end();
            }
        }
        std::mem::take(&mut self.asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::outlet::{Answer, Event, outlet};

    const LIMIT: Duration = Duration::from_secs(9);

    fn streams(outlet: &Outlet, current: bool) -> Streams {
        Streams { current: current.then(|| outlet.clone()), newest: Some(outlet.clone()) }
    }

    async fn got(inlet: &mut Inlet) -> (Bytes, u64) {
        match inlet.next().await {
            Some(Event::Message(body, place)) => (body, place),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn one_request_in_flight_gets_the_log_two_do_not() {
        let mut mail = Mail::default();
        let (a, mut a_in) = outlet();
        let (_, mut own) = mail.listen(None, LIMIT);
        mail.deliver(&"log".into(), &streams(&a, true), false, 0, LIMIT).unwrap();
        assert_eq!(got(&mut a_in).await.0, "log");
        mail.deliver(&"log2".into(), &streams(&a, false), false, 0, LIMIT).unwrap();
        mail.deliver(&"changed".into(), &streams(&a, true), true, 0, LIMIT).unwrap();
        assert_eq!(got(&mut own).await.0, "log2");
        assert_eq!(got(&mut own).await.0, "changed");
    }

    #[tokio::test]
    async fn without_a_stream_messages_wait_and_questions_take_any_response() {
        let mut mail = Mail::default();
        let (asked, _answer) = Asked::waiting();
        let number = mail.ask(asked, LIMIT).ok().unwrap();
        mail.deliver(&"n".into(), &Streams::default(), true, 0, LIMIT).unwrap();
        mail.deliver(&"q".into(), &Streams::default(), false, number, LIMIT).unwrap();
        assert!(!mail.asking());
        let (a, mut a_in) = outlet();
        mail.offer(&a, LIMIT);
        assert_eq!(got(&mut a_in).await.0, "q");
        assert!(mail.asking());
        let (stream, mut own) = mail.listen(None, LIMIT);
        assert_eq!((stream, got(&mut own).await), (OWN, ("n".into(), 1)));
        assert!(mail.answered(number).is_some() && mail.answered(number).is_none());
        for _ in 0..MAX_ASKED {
            assert!(mail.ask(Asked::waiting().0, LIMIT).is_ok());
        }
        assert!(mail.ask(Asked::waiting().0, LIMIT).is_err());
    }

    #[tokio::test]
    async fn a_cut_stream_is_found_by_the_id_of_its_event() {
        let mut mail = Mail::default();
        let (a, a_in) = outlet();
        let number = mail.keep(&a);
        drop(a_in);
        assert!(a.message(&"1".into()) && a.message(&"2".into()) && a.finish(Answer::result("r")));
        let (stream, mut again) = mail.listen(Some(&format!("{number}-1")), LIMIT);
        assert_eq!((stream, got(&mut again).await), (number, ("2".into(), 2)));
        assert!(matches!(again.next().await, Some(Event::Final(answer, 3)) if answer.body == "r"));
        // An id that nobody gave leads to the session's stream.
        for odd in ["99-1", "x", "-", "1", "18446744073709551616-1"] {
            assert_eq!(mail.listen(Some(odd), LIMIT).0, OWN, "{odd}");
        }
        let mut live = Vec::new();
        for _ in 0..MAX_STREAMS {
            let (s, s_in) = outlet();
            mail.keep(&s);
            live.push((s, s_in));
        }
        assert_eq!(mail.listen(Some(&format!("{number}-1")), LIMIT).0, OWN);
        assert_eq!(mail.listen(Some(&format!("{}-0", number + 1)), LIMIT).0, number + 1);
    }
}
