//! MCP clients: over HTTP as a session of its own, and over the bare pipe of the echo server.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::http::Connection;
use crate::load::Client;

/// Revision the clients ask for: the newest one that all peers know.
const REVISION: &str = "2025-11-25";
/// Bytes of an answer that an error shows.
const SHOWN: usize = 300;

/// Where a server is.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Address on loopback.
    pub address: SocketAddr,
    /// Path of the endpoint.
    pub path: String,
}

/// An initialised session over streamable HTTP with a connection of its own.
pub struct Session {
    connection: Connection,
    path: String,
    headers: String,
    calls: Calls,
    answer: Vec<u8>,
}

/// Makes calls that cannot be mistaken for each other, and judges answers.
struct Calls {
    number: u64,
    text: String,
    request: String,
}

impl Calls {
    fn new() -> Self {
        Self { number: 0, text: String::new(), request: String::new() }
    }

    /// A call of the tool `echo` with a text of 32 bytes that is used once.
    fn echo(&mut self) -> Result<&str> {
        self.number += 1;
        self.text.clear();
        write!(self.text, "\"echo {:027}\"", self.number)?;
        let arguments = format!("{{\"text\":{}}}", self.text);
        self.write("echo", &arguments)
    }

    fn big(&mut self, bytes: usize) -> Result<&str> {
        self.number += 1;
        self.write("big", &format!("{{\"bytes\":{bytes}}}"))
    }

    fn write(&mut self, tool: &str, arguments: &str) -> Result<&str> {
        self.request.clear();
        write!(
            self.request,
            "{{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"tools/call\",\"params\":{{\"name\":\"{tool}\",\"arguments\":{arguments}}}}}",
            self.number
        )?;
        Ok(&self.request)
    }

    fn judge_echo(&self, answer: &[u8]) -> Result<()> {
        let found = contains(answer, self.text.as_bytes()) && contains(answer, b"\"result\"");
        ensure!(found, "not the answer to {}: {}", self.request, shown(answer));
        Ok(())
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|w| w == part)
}

fn shown(answer: &[u8]) -> String {
    String::from_utf8_lossy(&answer[..answer.len().min(SHOWN)]).into_owned()
}

impl Session {
    /// Connects and initialises.
    pub fn open(endpoint: &Endpoint) -> Result<Self> {
        let headers = "Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n".to_owned();
        let mut session = Self {
            connection: Connection::new(endpoint.address),
            path: endpoint.path.clone(),
            headers,
            calls: Calls::new(),
            answer: Vec::new(),
        };
        let initialize = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"initialize\",\"params\":{{\"protocolVersion\":\"{REVISION}\",\
             \"capabilities\":{{}},\"clientInfo\":{{\"name\":\"outrigger-bench\",\"version\":\"1\"}}}}}}"
        );
        let id = session.post(&initialize, 200).context("initialize")?;
        ensure!(contains(&session.answer, b"\"protocolVersion\""), "initialize: {}", shown(&session.answer));
        let id = id.context("the server gave no session id")?;
        write!(session.headers, "MCP-Protocol-Version: {REVISION}\r\nMcp-Session-Id: {id}\r\n")?;
        session
            .post("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}", 202)
            .context("notifications/initialized")?;
        Ok(session)
    }

    fn post(&mut self, message: &str, want: u16) -> Result<Option<String>> {
        let head = self.connection.request("POST", &self.path, &self.headers, message.as_bytes(), &mut self.answer)?;
        ensure!(head.status == want, "status {}: {}", head.status, shown(&self.answer));
        Ok(head.session)
    }

    /// Calls the tool `big` and gives the bytes of the answer.
    pub fn big(&mut self, bytes: usize) -> Result<usize> {
        let request = self.calls.big(bytes)?.to_owned();
        self.post(&request, 200)?;
        ensure!(self.answer.len() >= bytes, "an answer of {} bytes: {}", self.answer.len(), shown(&self.answer));
        Ok(self.answer.len())
    }

    /// Ends the session.
    pub fn close(mut self) -> Result<()> {
        let head = self.connection.request("DELETE", &self.path, &self.headers, b"", &mut self.answer)?;
        ensure!(matches!(head.status, 200 | 202 | 204), "DELETE: status {}", head.status);
        Ok(())
    }
}

impl Client for Session {
    fn send(&mut self) -> Result<()> {
        let request = self.calls.echo()?;
        self.connection.send("POST", &self.path, &self.headers, request.as_bytes())
    }

    fn receive(&mut self) -> Result<()> {
        let head = self.connection.receive(&mut self.answer)?;
        ensure!(head.status == 200, "status {}: {}", head.status, shown(&self.answer));
        self.calls.judge_echo(&self.answer)
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        self.connection.socket()
    }
}

/// The echo server and its pipes, with nothing in between.
pub struct Pipe {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    calls: Calls,
    answer: Vec<u8>,
}

impl Pipe {
    /// Starts an echo server.
    pub fn open(program: &Path) -> Result<Self> {
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let input = child.stdin.take().context("no stdin")?;
        let output = BufReader::with_capacity(256 << 10, child.stdout.take().context("no stdout")?);
        Ok(Self { child, input, output, calls: Calls::new(), answer: Vec::new() })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Calls the tool `big` and gives the bytes of the answer.
    pub fn big(&mut self, bytes: usize) -> Result<usize> {
        self.calls.big(bytes)?;
        self.put()?;
        self.take()?;
        ensure!(self.answer.len() >= bytes, "an answer of {} bytes", self.answer.len());
        Ok(self.answer.len())
    }

    fn put(&mut self) -> Result<()> {
        self.calls.request.push('\n');
        Ok(self.input.write_all(self.calls.request.as_bytes())?)
    }

    fn take(&mut self) -> Result<()> {
        self.answer.clear();
        self.output.read_until(b'\n', &mut self.answer)?;
        ensure!(self.answer.ends_with(b"\n"), "the echo server ended");
        Ok(())
    }
}

impl Client for Pipe {
    fn send(&mut self) -> Result<()> {
        self.calls.echo()?;
        self.put()
    }

    fn receive(&mut self) -> Result<()> {
        self.take()?;
        self.calls.judge_echo(&self.answer)
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        Some(self.output.get_ref().as_fd())
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
