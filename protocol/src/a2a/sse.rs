//! Server-sent events: a parser for pieces of a body as they come, and a writer (A2A 1.0, section 9.4.2).
//!
//! Lines end by LF, CR LF or CR. A comment, an unknown field and a byte order mark are passed over; bytes that are no
//! UTF-8 become U+FFFD. What a body holds of one event is bounded, so that a peer cannot fill the memory with a line.

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Its `id`, if it names one itself.
    pub id: Option<String>,
    /// Its `event`, if it is not the default one.
    pub event: Option<String>,
    /// Its `data` lines, joined by line feeds.
    pub data: String,
}

/// An event, or a line that belongs to none, is larger than this many bytes. The parser takes no more after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is larger than {0} bytes")]
pub struct TooLarge(pub usize);

/// Reads a stream piece by piece.
#[derive(Debug)]
pub struct Parser {
    max: usize,
    line: Vec<u8>,
    id: Option<String>,
    event: Option<String>,
    data: Option<String>,
    /// Bytes that the event holds beside the line that is being read.
    held: usize,
    last_id: Option<String>,
    retry: Option<u64>,
    after_cr: bool,
    begun: bool,
    dead: bool,
}

impl Parser {
    /// A parser at the beginning of a stream. `max_event_bytes` bounds what one event takes, its longest line included.
    pub fn new(max_event_bytes: usize) -> Self {
        Self {
            max: max_event_bytes,
            line: Vec::new(),
            id: None,
            event: None,
            data: None,
            held: 0,
            last_id: None,
            retry: None,
            after_cr: false,
            begun: false,
            dead: false,
        }
    }

    /// Takes the next bytes and appends the events that end in them.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<Event>) -> Result<(), TooLarge> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.dead {
                return Err(TooLarge(self.max));
            }
            if std::mem::take(&mut self.after_cr) && rest[0] == b'\n' {
                rest = &rest[1..];
                continue;
            }
            let end = rest.iter().position(|b| matches!(b, b'\n' | b'\r'));
            let piece = &rest[..end.unwrap_or(rest.len())];
            if self.held + self.line.len() + piece.len() > self.max {
                self.dead = true;
                self.line = Vec::new();
                self.data = None;
                return Err(TooLarge(self.max));
            }
            let Some(end) = end else {
                self.line.extend_from_slice(piece);
                return Ok(());
            };
            self.after_cr = rest[end] == b'\r';
            rest = &rest[end + 1..];
            if self.line.is_empty() {
                self.take_line(piece, out);
            } else {
                self.line.extend_from_slice(piece);
                let mut line = std::mem::take(&mut self.line);
                self.take_line(&line, out);
                line.clear();
                self.line = line;
            }
        }
        Ok(())
    }

    /// The event that the stream broke off in, if it has data: its last line and the empty one after it did not come.
    pub fn end(&mut self) -> Option<Event> {
        let mut out = Vec::new();
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() {
            self.take_line(&line, &mut out);
        }
        self.take_line(b"", &mut out);
        out.pop()
    }

    /// The newest `id` of the stream, for `Last-Event-ID`.
    pub fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// The newest `retry` of the stream, in milliseconds.
    pub fn retry(&self) -> Option<u64> {
        self.retry
    }

    fn take_line(&mut self, line: &[u8], out: &mut Vec<Event>) {
        let line = if std::mem::replace(&mut self.begun, true) {
            line
        } else {
            line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line)
        };
        if line.is_empty() {
            self.held = 0;
            let (id, event) = (self.id.take(), self.event.take());
            if let Some(data) = self.data.take() {
                out.push(Event { id, event, data });
            }
            return;
        }
        let (field, value) = match line.iter().position(|b| *b == b':') {
            Some(at) => (&line[..at], line[at + 1..].strip_prefix(b" ").unwrap_or(&line[at + 1..])),
            None => (line, &b""[..]),
        };
        let text = || String::from_utf8_lossy(value).into_owned();
        match field {
            b"data" => match &mut self.data {
                None => self.data = Some(text()),
                Some(data) => {
                    data.push('\n');
                    data.push_str(&String::from_utf8_lossy(value));
                }
            },
            b"event" => self.event = (!value.is_empty()).then(text),
            b"id" if !value.contains(&0) => {
                self.id = Some(text());
                self.last_id.clone_from(&self.id);
            }
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                self.retry = text().parse().ok().or(self.retry);
            }
            _ => {}
        }
        let texts = [&self.id, &self.event, &self.data];
        // One more for each, so that a million empty lines are not free.
        self.held = texts.into_iter().flatten().map(|t| t.len() + 1).sum();
    }
}

/// Appends an event. An `id` or `event` with a line break is left out, and an `id` with NUL: it would not be read as one.
pub fn write(out: &mut String, id: Option<&str>, event: Option<&str>, data: &str) {
    out.reserve(data.len() + 64);
    for (field, value) in [("id: ", id.filter(|id| !id.contains('\0'))), ("event: ", event)] {
        if let Some(value) = value.filter(|v| !v.contains(['\n', '\r'])) {
            out.push_str(field);
            out.push_str(value);
            out.push('\n');
        }
    }
    for line in data.split('\n').flat_map(|l| l.strip_suffix('\r').unwrap_or(l).split('\r')) {
        out.push_str("data: ");
        out.push_str(line);
        out.push('\n');
    }
    out.push('\n');
}

/// Appends a comment: a sign of life that clients do not see.
pub fn write_comment(out: &mut String, text: &str) {
    for line in text.split(['\n', '\r']) {
        out.push_str(": ");
        out.push_str(line);
        out.push('\n');
    }
    out.push('\n');
}

/// Appends how long a client waits before it connects again, in milliseconds.
pub fn write_retry(out: &mut String, milliseconds: u64) {
    let _ = std::fmt::Write::write_fmt(out, format_args!("retry: {milliseconds}\n\n"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &[u8]) -> Vec<Event> {
        let mut out = Vec::new();
        Parser::new(1 << 16).push(text, &mut out).unwrap();
        out
    }

    fn data(text: &str) -> Event {
        Event { data: text.into(), ..Event::default() }
    }

    #[test]
    fn fields_as_the_standard_has_them() {
        assert_eq!(parse(b"data: a\n\n"), [data("a")]);
        assert_eq!(parse(b"data:a\r\ndata:  b\rdata\n\r\n"), [data("a\n b\n")]);
        assert_eq!(parse(b": hb\n\nid: 7\n\nevent: x\n\ndata: y\n\n"), [data("y")]);
        assert_eq!(parse(b"data\n\n"), [data("")]);
        assert_eq!(parse("\u{feff}data: a\n\n".as_bytes()), [data("a")]);
        assert_eq!(parse(b"data: \xff\n\n"), [data("\u{fffd}")]);
        assert_eq!(parse(b"nope: 1\ndatax: 2\n\ndata: a\n"), []);
        let full = Event { id: Some("t.3".into()), event: Some("error".into()), data: "{}".into() };
        assert_eq!(parse(b"id: t.3\nevent: error\ndata: {}\n\n"), [full]);
    }

    #[test]
    fn the_last_id_and_retry_stay() {
        let mut p = Parser::new(100);
        let mut out = Vec::new();
        p.push(b"retry: 2000\nid: 1\ndata: a\n\nid: 2\n\nid: a\0b\nretry: 1x\nretry:\ndata: c\n\n", &mut out).unwrap();
        assert_eq!((p.last_id(), p.retry()), (Some("2"), Some(2000)));
        assert_eq!((out[0].id.as_deref(), out[1].id.as_deref()), (Some("1"), None));
    }

    #[test]
    fn a_stream_that_breaks_off_gives_what_it_has() {
        let mut p = Parser::new(100);
        let mut out = Vec::new();
        p.push(b"data: a\n\ndata: b\ndata: c", &mut out).unwrap();
        assert_eq!((out.len(), p.end(), p.end()), (1, Some(data("b\nc")), None));
    }

    #[test]
    fn what_an_event_holds_is_bounded() {
        for text in ["data: 0123456789", ": 0123456789abcdef", "data: 01234\ndata: 01234\n", "event: 01234567\nid: 012"]
        {
            let mut p = Parser::new(15);
            let mut out = Vec::new();
            assert_eq!(p.push(text.as_bytes(), &mut out), Err(TooLarge(15)), "{text:?}");
            assert_eq!(p.push(b"\n\n", &mut out), Err(TooLarge(15)));
            assert!(out.is_empty() && p.end().is_none());
        }
        let mut p = Parser::new(15);
        let mut out = Vec::new();
        for _ in 0..1_000 {
            p.push(b": 0123456789\n: 0123456789\ndata: 012345678\n\n", &mut out).unwrap();
        }
        assert_eq!(out.len(), 1_000);
        let mut p = Parser::new(15);
        assert!(p.push("data\n".repeat(100).as_bytes(), &mut out).is_err());
    }

    #[test]
    fn written_lines() {
        let mut out = String::new();
        write_retry(&mut out, 2000);
        write_comment(&mut out, "hb\ndata: no");
        write(&mut out, Some("t.1"), Some("a\nb"), "x\r\ny\rz\n");
        assert_eq!(out, "retry: 2000\n\n: hb\n: data: no\n\nid: t.1\ndata: x\ndata: y\ndata: z\ndata: \n\n");
    }

    proptest! {
        /// What is written reads back, however the bytes are cut and the lines end.
        #[test]
        fn written_events_read_back(
            events in prop::collection::vec((prop::option::of("[a-z0-9.]{0,8}"), prop::option::of("[a-z]{1,8}"), "[ -~é\n:]{0,40}"), 0..8),
            cuts in prop::collection::vec(1_usize..20, 1..40),
            ending in 0_usize..3,
        ) {
            let mut text = String::new();
            let mut want = Vec::new();
            for (id, event, data) in events {
                write(&mut text, id.as_deref(), event.as_deref(), &data);
                write_comment(&mut text, "hb");
                want.push(Event { id, event, data });
            }
            let text = text.replace('\n', ["\n", "\r\n", "\r"][ending]);
            let (mut p, mut got, mut rest) = (Parser::new(4096), Vec::new(), text.as_bytes());
            for cut in cuts.iter().cycle() {
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                p.push(now, &mut got).unwrap();
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(got, want);
        }
    }
}
