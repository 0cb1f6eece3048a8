//! A2A clients over JSON-RPC, each with a connection of its own, and streams of tasks.

use std::fmt::Write as _;
use std::os::fd::BorrowedFd;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::http::Connection;
use crate::load::Client;
use crate::space::Place;
use crate::sse::Stream;

const HEADERS: &str = "Content-Type: application/json\r\nA2A-Version: 1.0\r\n";
/// Bytes of an answer that an error shows.
const SHOWN: usize = 300;

/// What the answer to `SendMessage` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A completed task with one artifact.
    Task,
    /// A bare message.
    Message,
}

/// Sends messages, each the first of a new task.
pub struct Sender {
    connection: Connection,
    client: usize,
    number: u64,
    text: String,
    want: &'static [u8],
    request: String,
    answer: Vec<u8>,
}

impl Sender {
    /// A sender with a number that no other one has at this time.
    pub fn new(place: impl Into<Place>, client: usize, answer: Answer) -> Self {
        let (text, want): (_, &[u8]) = match answer {
            Answer::Task => ("task", b"\"TASK_STATE_COMPLETED\""),
            Answer::Message => ("message", b"\"ROLE_AGENT\""),
        };
        Self {
            connection: Connection::new(place),
            client,
            number: 0,
            text: text.into(),
            want,
            request: String::new(),
            answer: Vec::new(),
        }
    }

    /// Has the agent answer a task with this many bytes of text, and gives its id.
    pub fn task_of(&mut self, bytes: usize) -> Result<String> {
        self.text = format!("bytes {bytes}");
        self.call()?;
        ensure!(self.answer.len() >= bytes, "a task of {} bytes", self.answer.len());
        let answer: Value = serde_json::from_slice(&self.answer)?;
        let id = answer.pointer("/result/task/id").and_then(Value::as_str);
        Ok(id.context("a task without an id")?.to_owned())
    }

    /// Bytes of the answer to `GetTask`.
    pub fn size_of(&mut self, task: &str) -> Result<usize> {
        self.request.clear();
        write!(self.request, r#"{{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{{"id":"{task}"}}}}"#)?;
        let head = self.connection.request("POST", "/", HEADERS, self.request.as_bytes(), &mut self.answer)?;
        ensure!(head.status == 200, "status {}: {}", head.status, shown(&self.answer));
        ensure!(find(&self.answer, self.want), "GetTask: {}", shown(&self.answer));
        Ok(self.answer.len())
    }
}

/// Makes calls one after the other, where the time that the client takes does not matter.
pub struct Caller {
    connection: Connection,
    number: u64,
}

impl Caller {
    /// A client of an agent.
    pub fn new(place: impl Into<Place>) -> Self {
        Self { connection: Connection::new(place), number: 0 }
    }

    /// Calls a method; an error of the agent's is one.
    pub fn call(&mut self, method: &str, params: &Value) -> Result<Value> {
        self.number += 1;
        let request = json!({"jsonrpc": "2.0", "id": self.number, "method": method, "params": params}).to_string();
        let mut answer = Vec::new();
        let head = self.connection.request("POST", "/", HEADERS, request.as_bytes(), &mut answer)?;
        ensure!(head.status == 200, "{method}: status {}: {}", head.status, shown(&answer));
        let mut whole: Value =
            serde_json::from_slice(&answer).with_context(|| format!("{method}: {}", shown(&answer)))?;
        let result = whole.get_mut("result").map(Value::take);
        result.with_context(|| format!("{method} {params}: {}", shown(&answer)))
    }

    /// Begins a task without waiting for its end, and gives its id.
    pub fn begin(&mut self, text: &str) -> Result<String> {
        let message =
            json!({"messageId": format!("b-{}", self.number), "role": "ROLE_USER", "parts": [{"text": text}]});
        let params = json!({"message": message, "configuration": {"returnImmediately": true}});
        let answer = self.call("SendMessage", &params)?;
        let id = answer.pointer("/task/id").and_then(Value::as_str);
        Ok(id.with_context(|| format!("no task: {answer}"))?.to_owned())
    }
}

/// A message whose task is followed from its first event.
pub fn stream(place: &Place, text: &str) -> Result<Stream> {
    let message = json!({"messageId": "s", "role": "ROLE_USER", "parts": [{"text": text}]});
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": {"message": message}});
    Stream::open(place, "POST", "/", HEADERS, &request.to_string())
}

/// Follows a task, after an event if there is one.
pub fn subscribe(place: &Place, task: &str, after: Option<&str>) -> Result<Stream> {
    let after = after.map(|id| format!("Last-Event-ID: {id}\r\n")).unwrap_or_default();
    Stream::open(place, "GET", &format!("/tasks/{task}:subscribe"), &format!("A2A-Version: 1.0\r\n{after}"), "")
}

/// Numbers and times of the lines of a `stream` of bench-agent's, in an event or in a whole task.
pub fn lines(data: &str) -> impl Iterator<Item = (u64, u64)> + '_ {
    data.split("\"text\":\"").skip(1).flat_map(|text| {
        let text = text.split('"').next().unwrap_or_default();
        text.split(';').filter_map(|line| {
            let (number, time) = line.split_once(' ')?;
            Some((number.parse().ok()?, time.parse().ok()?))
        })
    })
}

fn find(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|w| w == part)
}

fn shown(answer: &[u8]) -> String {
    String::from_utf8_lossy(&answer[..answer.len().min(SHOWN)]).into_owned()
}

impl Client for Sender {
    fn send(&mut self) -> Result<()> {
        self.number += 1;
        self.request.clear();
        write!(
            self.request,
            r#"{{"jsonrpc":"2.0","id":{0},"method":"SendMessage","params":{{"message":{{"messageId":"m-{1}-{0}","role":"ROLE_USER","parts":[{{"text":"{2}"}}]}}}}}}"#,
            self.number, self.client, self.text
        )?;
        self.connection.send("POST", "/", HEADERS, self.request.as_bytes())
    }

    fn receive(&mut self) -> Result<()> {
        let head = self.connection.receive(&mut self.answer)?;
        ensure!(head.status == 200, "status {}: {}", head.status, shown(&self.answer));
        ensure!(find(&self.answer, self.want), "not the answer to {}: {}", self.request, shown(&self.answer));
        Ok(())
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        self.connection.socket()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_in_one_part_or_in_several() {
        let data = r#"{"parts":[{"text":"1 100;2 200;"},{"text":"3 300;"}],"history":[{"text":"stream 50 60"}]}"#;
        assert_eq!(lines(data).collect::<Vec<_>>(), [(1, 100), (2, 200), (3, 300)]);
        assert_eq!(lines("{}").count(), 0);
    }
}
