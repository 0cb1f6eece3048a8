//! The load generator's HTTP/1.1 client: blocking, one keep-alive connection, one write per request.
//!
//! On two cores what the client costs is taken from what it measures, so it does only what is needed: a body by
//! `Content-Length` or in chunks, no redirects, no compression.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::time::Instant;

use crate::space::Place;

/// A response is whole this long after its request.
pub const PATIENCE: Duration = Duration::from_mins(1);
/// Most bytes of a head, or of a line between chunks.
const MOST_HEAD: usize = 64 << 10;
/// Most bytes of a body.
const MOST_BODY: usize = 64 << 20;
/// Bytes read at once.
const READ: usize = 256 << 10;

/// One connection to a server on loopback.
pub struct Connection {
    place: Place,
    stream: Option<TcpStream>,
    request: Vec<u8>,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    deadline: Instant,
}

/// What a response said besides its body.
#[derive(Debug)]
pub struct Head {
    /// Status code.
    pub status: u16,
    /// `Mcp-Session-Id`.
    pub session: Option<String>,
    length: Option<usize>,
    chunked: bool,
    close: bool,
}

impl Connection {
    /// A connection that is opened at the first request.
    pub fn new(place: impl Into<Place>) -> Self {
        Self {
            place: place.into(),
            stream: None,
            request: Vec::new(),
            buffer: vec![0; READ].into_boxed_slice(),
            start: 0,
            end: 0,
            deadline: Instant::now(),
        }
    }

    /// Sends a request and reads the whole of its response into `body`. `headers` are lines, each with its line end.
    pub fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &str,
        content: &[u8],
        body: &mut Vec<u8>,
    ) -> Result<Head> {
        self.send(method, path, headers, content)?;
        self.receive(body)
    }

    /// Sends a request; [`Self::receive`] must follow.
    pub fn send(&mut self, method: &str, path: &str, headers: &str, content: &[u8]) -> Result<()> {
        self.deadline = Instant::now() + PATIENCE;
        self.request.clear();
        write!(
            self.request,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\n{headers}Content-Length: {}\r\n\r\n",
            self.place.address,
            content.len()
        )?;
        self.request.extend_from_slice(content);
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.open()?,
        };
        stream.write_all(&self.request).context("writing the request")?;
        self.stream = Some(stream);
        Ok(())
    }

    /// The socket, while a response is awaited.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.stream.as_ref().map(AsFd::as_fd)
    }

    /// Reads the whole of a response into `body`.
    pub fn receive(&mut self, body: &mut Vec<u8>) -> Result<Head> {
        let mut stream = self.stream.take().context("no request was sent")?;
        let head = loop {
            let head = self.head(&mut stream)?;
            // 100 and 103 announce the response proper.
            if head.status >= 200 {
                break head;
            }
        };
        body.clear();
        self.body(&mut stream, &head, body)?;
        if !head.close {
            self.stream = Some(stream);
        }
        Ok(head)
    }

    fn open(&mut self) -> Result<TcpStream> {
        let stream = self.place.space.connect(self.place.address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        (self.start, self.end) = (0, 0);
        Ok(stream)
    }

    fn fill(&mut self, stream: &mut TcpStream) -> Result<()> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        ensure!(self.end < self.buffer.len(), "a line of the response is too long");
        loop {
            match stream.read(&mut self.buffer[self.end..]) {
                Ok(0) => bail!("the server closed the connection in a response"),
                Ok(n) => {
                    self.end += n;
                    // The socket's own timeout only bounds each read.
                    ensure!(Instant::now() < self.deadline, "no whole response within {} s", PATIENCE.as_secs());
                    return Ok(());
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    bail!("no response within {} s", PATIENCE.as_secs())
                }
                Err(e) => return Err(e).context("reading the response"),
            }
        }
    }

    /// Reads up to `mark` and gives what stands before it.
    fn until(&mut self, stream: &mut TcpStream, mark: &[u8]) -> Result<std::ops::Range<usize>> {
        let mut seen = 0;
        loop {
            let data = &self.buffer[self.start..self.end];
            if let Some(at) = data[seen..].windows(mark.len()).position(|w| w == mark) {
                let range = self.start..self.start + seen + at;
                self.start = range.end + mark.len();
                return Ok(range);
            }
            ensure!(data.len() <= MOST_HEAD, "a head of more than {MOST_HEAD} bytes");
            seen = data.len().saturating_sub(mark.len() - 1);
            self.fill(stream)?;
        }
    }

    fn head(&mut self, stream: &mut TcpStream) -> Result<Head> {
        let range = self.until(stream, b"\r\n\r\n")?;
        let text = std::str::from_utf8(&self.buffer[range]).context("the head is not UTF-8")?;
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let status = first.get(9..12).and_then(|s| s.parse().ok());
        let status = status.filter(|_| first.starts_with("HTTP/1.")).with_context(|| format!("no HTTP: {first:?}"))?;
        let mut head =
            Head { status, session: None, length: None, chunked: false, close: first.starts_with("HTTP/1.0") };
        for line in lines {
            let (name, value) = line.split_once(':').with_context(|| format!("no header: {line:?}"))?;
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                head.length = Some(value.parse().context("Content-Length")?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                head.chunked = value.eq_ignore_ascii_case("chunked");
            } else if name.eq_ignore_ascii_case("connection") {
                head.close = value.eq_ignore_ascii_case("close");
            } else if name.eq_ignore_ascii_case("mcp-session-id") {
                head.session = Some(value.to_owned());
            }
        }
        Ok(head)
    }

    fn body(&mut self, stream: &mut TcpStream, head: &Head, body: &mut Vec<u8>) -> Result<()> {
        if matches!(head.status, 204 | 304) {
            return Ok(());
        }
        if !head.chunked {
            let length = head.length.with_context(|| format!("a response with no length: {head:?}"))?;
            return self.take(stream, length, body);
        }
        loop {
            let line = self.until(stream, b"\r\n")?;
            let line = std::str::from_utf8(&self.buffer[line]).context("a chunk's size is not UTF-8")?;
            let size = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16).with_context(|| format!("a chunk's size is {size:?}"))?;
            if size == 0 {
                // Trailers, up to an empty line.
                while !self.until(stream, b"\r\n")?.is_empty() {}
                return Ok(());
            }
            self.take(stream, size, body)?;
            ensure!(self.until(stream, b"\r\n")?.is_empty(), "a chunk is longer than its size");
        }
    }

    fn take(&mut self, stream: &mut TcpStream, mut length: usize, body: &mut Vec<u8>) -> Result<()> {
        ensure!(body.len() + length <= MOST_BODY, "a body of more than {MOST_BODY} bytes");
        body.reserve(length);
        loop {
            let n = length.min(self.end - self.start);
            body.extend_from_slice(&self.buffer[self.start..self.start + n]);
            self.start += n;
            length -= n;
            if length == 0 {
                return Ok(());
            }
            self.fill(stream)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{SocketAddr, TcpListener};

    /// Answers each of the given byte strings to one request of a few bytes, in pieces of `piece` bytes.
    fn server(answers: Vec<Vec<u8>>, piece: usize) -> (SocketAddr, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for answer in answers {
                let mut request = [0; 1024];
                assert!(stream.read(&mut request).unwrap() > 0);
                for bytes in answer.chunks(piece) {
                    stream.write_all(bytes).unwrap();
                }
            }
        });
        (address, thread)
    }

    #[test]
    fn bodies_by_length_and_in_chunks_on_one_connection() {
        let big = "x".repeat(3 * READ);
        for piece in [1, 7, 100_000] {
            let body = if piece == 1 { "y" } else { &big };
            let (address, thread) = server(
                vec![
                    b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nMcp-Session-Id: s1\r\n\r\nhello".to_vec(),
                    format!(
                        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x};a=b\r\n{body}\r\n3\r\nend\r\n0\r\n\r\n",
                        body.len()
                    )
                    .into_bytes(),
                    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n".to_vec(),
                ],
                piece,
            );
            let mut connection = Connection::new(address);
            let mut got = Vec::new();
            let head = connection.request("POST", "/", "", b"a", &mut got).unwrap();
            assert_eq!((head.status, head.session.as_deref(), &*got), (200, Some("s1"), &b"hello"[..]));
            connection.request("POST", "/", "", b"b", &mut got).unwrap();
            assert_eq!(got, format!("{body}end").as_bytes());
            let head = connection.request("POST", "/", "", b"c", &mut got).unwrap();
            assert_eq!((head.status, got.len()), (202, 0));
            thread.join().unwrap();
        }
    }

    #[test]
    fn what_is_no_response_is_an_error() {
        for (answer, want) in [
            (&b"SSH-2.0-x\r\n\r\n"[..], "no HTTP"),
            (b"HTTP/1.1 200 OK\r\n\r\n", "no length"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "closed the connection"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "chunk's size"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", "longer than its size"),
        ] {
            let (address, thread) = server(vec![answer.to_vec()], 1024);
            let error = Connection::new(address).request("POST", "/", "", b"a", &mut Vec::new()).unwrap_err();
            assert!(format!("{error:#}").contains(want), "{error:#}");
            thread.join().unwrap();
        }
    }
}
