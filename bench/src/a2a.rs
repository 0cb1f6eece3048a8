//! An A2A client over JSON-RPC with a connection of its own.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use anyhow::{Context as _, Result, ensure};

use crate::http::Connection;
use crate::load::Client;

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
    pub fn new(address: SocketAddr, client: usize, answer: Answer) -> Self {
        let (text, want): (_, &[u8]) = match answer {
            Answer::Task => ("task", b"\"TASK_STATE_COMPLETED\""),
            Answer::Message => ("message", b"\"ROLE_AGENT\""),
        };
        Self {
            connection: Connection::new(address),
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
        let answer: serde_json::Value = serde_json::from_slice(&self.answer)?;
        let id = answer.pointer("/result/task/id").and_then(serde_json::Value::as_str);
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
