//! A stream of server-sent events over HTTP/1.1: one socket, read as bytes come, with small buffers, as there are many.

use std::fmt::Write as _;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::http::PATIENCE;
use crate::space::Place;

/// Most bytes of a head.
const MOST_HEAD: usize = 16 << 10;
/// Most bytes of a line of an event, or of a chunk's size.
const MOST_LINE: usize = 4 << 20;
/// Bytes read at once.
const READ: usize = 16 << 10;

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// `id`.
    pub id: String,
    /// `data`.
    pub data: String,
}

/// How a stream stands after a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// More may come.
    Open,
    /// The server ended it.
    Ended,
    /// It broke off.
    Cut,
}

/// A stream.
pub struct Stream {
    socket: TcpStream,
    parser: Parser,
}

impl Stream {
    /// Asks for a stream. `headers` are lines, each with its line end.
    pub fn open(place: &Place, method: &str, path: &str, headers: &str, content: &str) -> Result<Self> {
        let mut socket = place.space.connect(place.address, PATIENCE)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut request = String::new();
        write!(
            request,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\n{headers}Content-Length: {}\r\n\r\n{content}",
            place.address,
            content.len()
        )?;
        socket.write_all(request.as_bytes()).context("writing the request")?;
        Ok(Self { socket, parser: Parser::default() })
    }

    /// The socket.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// How long a read waits.
    pub fn patience(&self, limit: Duration) -> Result<()> {
        Ok(self.socket.set_read_timeout(Some(limit))?)
    }

    /// Comments so far: signs of life.
    pub fn comments(&self) -> usize {
        self.parser.comments
    }

    /// Waits for bytes, reads them once, and gives the events that are whole by then.
    pub fn read(&mut self, mut each: impl FnMut(Event) -> Result<()>) -> Result<State> {
        let mut buffer = [0; READ];
        let count = loop {
            match self.socket.read(&mut buffer) {
                Ok(count) => break count,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    bail!("nothing came on a stream in time")
                }
                Err(e) if e.kind() == ErrorKind::ConnectionReset => break 0,
                Err(e) => return Err(e).context("reading a stream"),
            }
        };
        if count == 0 {
            return Ok(State::Cut);
        }
        self.parser.feed(&buffer[..count], &mut each)?;
        Ok(if self.parser.phase == Phase::End { State::Ended } else { State::Open })
    }

    /// Reads until an event comes.
    pub fn next(&mut self, waiting: &mut std::collections::VecDeque<Event>) -> Result<Option<Event>> {
        loop {
            if let Some(event) = waiting.pop_front() {
                return Ok(Some(event));
            }
            if self.parser.phase == Phase::End {
                return Ok(None);
            }
            let state = self.read(|event| {
                waiting.push_back(event);
                Ok(())
            })?;
            if state == State::Cut {
                return Ok(None);
            }
        }
    }
}

/// What comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Head,
    Size,
    Data(usize),
    /// The line end after a chunk.
    After,
    /// The empty line after the last chunk: there are no trailers here.
    Last,
    End,
}

#[derive(Default)]
struct Parser {
    phase: Phase,
    /// Of the head or of a chunk's size, as far as it came.
    line: Vec<u8>,
    /// Of the body, as far as it came.
    text: Vec<u8>,
    event: Event,
    comments: usize,
}

impl Parser {
    fn feed(&mut self, mut bytes: &[u8], each: &mut impl FnMut(Event) -> Result<()>) -> Result<()> {
        while !bytes.is_empty() {
            match self.phase {
                Phase::Data(left) => {
                    let (now, rest) = bytes.split_at(left.min(bytes.len()));
                    self.body(now, each)?;
                    bytes = rest;
                    self.phase = if now.len() == left { Phase::After } else { Phase::Data(left - now.len()) };
                }
                Phase::End => bail!("bytes after the end of a stream"),
                Phase::Head | Phase::Size | Phase::After | Phase::Last => {
                    let at = bytes.iter().position(|b| *b == b'\n');
                    let (now, rest) = bytes.split_at(at.map_or(bytes.len(), |at| at + 1));
                    self.line.extend_from_slice(now);
                    bytes = rest;
                    ensure!(self.line.len() <= MOST_HEAD, "a head of more than {MOST_HEAD} bytes");
                    if at.is_some() {
                        self.line()?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Looks at a line outside of the body.
    fn line(&mut self) -> Result<()> {
        let text = std::str::from_utf8(&self.line).context("the head is not UTF-8")?;
        match self.phase {
            Phase::Head if !text.ends_with("\r\n\r\n") => return Ok(()),
            Phase::Head => {
                let head = text.to_ascii_lowercase();
                let good = head.starts_with("http/1.1 200")
                    && head.contains("transfer-encoding: chunked")
                    && head.contains("text/event-stream");
                ensure!(good, "no stream: {text}");
                self.phase = Phase::Size;
            }
            Phase::After | Phase::Last => {
                ensure!(text == "\r\n", "a chunk is longer than its size");
                self.phase = if self.phase == Phase::Last { Phase::End } else { Phase::Size };
            }
            _ => {
                let text = text.trim();
                let size = usize::from_str_radix(text, 16).with_context(|| format!("a chunk's size is {text:?}"))?;
                self.phase = if size == 0 { Phase::Last } else { Phase::Data(size) };
            }
        }
        self.line.clear();
        Ok(())
    }

    fn body(&mut self, mut bytes: &[u8], each: &mut impl FnMut(Event) -> Result<()>) -> Result<()> {
        while let Some(at) = bytes.iter().position(|b| *b == b'\n') {
            self.text.extend_from_slice(&bytes[..at]);
            bytes = &bytes[at + 1..];
            let line = std::mem::take(&mut self.text);
            let line = std::str::from_utf8(&line).context("a stream is not UTF-8")?;
            match line.split_once(':') {
                None if line.is_empty() => {
                    let event = std::mem::take(&mut self.event);
                    if !event.data.is_empty() {
                        each(event)?;
                    }
                }
                Some(("", _)) => self.comments += 1,
                Some(("id", value)) => value.trim_start().clone_into(&mut self.event.id),
                Some(("data", value)) => self.event.data.push_str(value.trim_start()),
                Some(("event", value)) => bail!("an event of kind {value}"),
                _ => {}
            }
        }
        self.text.extend_from_slice(bytes);
        ensure!(self.text.len() <= MOST_LINE, "a line of more than {MOST_LINE} bytes");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

    fn parsed(text: &str, piece: usize) -> Result<(Vec<Event>, Parser)> {
        let (mut events, mut parser) = (Vec::new(), Parser::default());
        for bytes in text.as_bytes().chunks(piece) {
            parser.feed(bytes, &mut |event| {
                events.push(event);
                Ok(())
            })?;
        }
        Ok((events, parser))
    }

    #[test]
    fn events_come_whole_in_whatever_pieces() {
        let body = "retry: 2\nid: a.1\ndata: {\"x\":1}\n\n: hb\n\nid: a.2\ndata: two\n\n";
        let (one, two) = body.split_at(17);
        let text = format!("{HEAD}{:x}\r\n{one}\r\n{:x}\r\n{two}\r\n0\r\n\r\n", one.len(), two.len());
        for piece in [1, 3, text.len()] {
            let (events, parser) = parsed(&text[..text.len() - 7], piece).unwrap();
            let event = |id: &str, data: &str| Event { id: id.into(), data: data.into() };
            assert_eq!(events, [event("a.1", "{\"x\":1}"), event("a.2", "two")]);
            assert_eq!((parser.comments, parser.phase), (1, Phase::After));
            assert_eq!(parsed(&text, piece).unwrap().1.phase, Phase::End);
        }
    }

    #[test]
    fn what_is_no_stream_is_an_error() {
        for (text, want) in [
            ("HTTP/1.1 404 Not Found\r\n\r\n".to_owned(), "no stream"),
            (format!("{HEAD}zz\r\n"), "chunk's size"),
            (format!("{HEAD}1\r\nab\r\n"), "longer than its size"),
            (format!("{HEAD}14\r\nevent: error\ndata: x\n"), "event of kind"),
        ] {
            let error = parsed(&text, 1000).err().unwrap();
            assert!(format!("{error:#}").contains(want), "{error:#}");
        }
    }
}
