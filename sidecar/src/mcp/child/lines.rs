//! Lines of a child's stdout, bounded, from chunks of any size.

use memchr::memchr;

/// How much of each end of a line that is too long is kept to find its id.
const KEEP: usize = 1024;
/// An idle reader keeps no more than this for the next long line.
const SPARE: usize = 64 << 10;

/// One line, without its newline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// A whole line.
    Whole(&'a [u8]),
    /// A line beyond the limit, of which only the ends are left.
    TooLong {
        /// Its first bytes.
        head: &'a [u8],
        /// Its last bytes.
        tail: &'a [u8],
    },
}

/// Splits chunks into lines. Keeps at most one line, and of one beyond the limit only the ends.
#[derive(Debug)]
pub struct Lines {
    partial: Vec<u8>,
    max: usize,
    too_long: bool,
    tail: Vec<u8>,
}

impl Lines {
    /// Takes lines of at most `max` bytes.
    pub fn new(max: usize) -> Self {
        Self { partial: Vec::new(), max, too_long: false, tail: Vec::new() }
    }

    /// Takes a chunk and hands over the lines that end in it.
    pub fn feed(&mut self, mut chunk: &[u8], mut line: impl FnMut(Line<'_>)) {
        // A newline is never part of a longer character in UTF-8, so splitting on the byte is safe.
        while let Some(end) = memchr(b'\n', chunk) {
            if self.partial.is_empty() && !self.too_long && end <= self.max {
                line(Line::Whole(&chunk[..end]));
            } else {
                self.extend(&chunk[..end]);
                self.finish(&mut line);
            }
            chunk = &chunk[end + 1..];
        }
        self.extend(chunk);
    }

    /// Hands over what stands behind the last newline, at the end of the stream.
    pub fn finish(&mut self, mut line: impl FnMut(Line<'_>)) {
        if self.too_long {
            line(Line::TooLong { head: &self.partial, tail: &self.tail });
        } else if !self.partial.is_empty() {
            line(Line::Whole(&self.partial));
        }
        self.partial.clear();
        self.partial.shrink_to(SPARE);
        self.tail = Vec::new();
        self.too_long = false;
    }

    fn extend(&mut self, bytes: &[u8]) {
        if !self.too_long && self.partial.len() + bytes.len() > self.max {
            self.too_long = true;
            self.tail = self.partial[self.partial.len().saturating_sub(KEEP)..].to_vec();
            if self.partial.len() < KEEP {
                let more = bytes.len().min(KEEP - self.partial.len());
                self.partial.extend_from_slice(&bytes[..more]);
            }
            self.partial.truncate(KEEP);
            self.partial.shrink_to_fit();
        }
        if self.too_long {
            self.tail.extend_from_slice(&bytes[bytes.len().saturating_sub(KEEP)..]);
            let excess = self.tail.len().saturating_sub(KEEP);
            self.tail.drain(..excess);
        } else {
            self.partial.extend_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(max: usize, chunks: &[&[u8]]) -> Vec<String> {
        let mut lines = Lines::new(max);
        let mut out = Vec::new();
        let mut take = |l: Line<'_>| {
            out.push(match l {
                Line::Whole(b) => String::from_utf8_lossy(b).into_owned(),
                Line::TooLong { head, tail } => {
                    format!("!{}..{}", String::from_utf8_lossy(head), String::from_utf8_lossy(tail))
                }
            });
        };
        for c in chunks {
            lines.feed(c, &mut take);
        }
        lines.finish(&mut take);
        out
    }

    #[test]
    fn any_chunking_gives_the_same_lines() {
        let text = "{\"a\":\"ü\"}\r\n\nsecond\nunterminated".as_bytes();
        let want = vec!["{\"a\":\"ü\"}\r", "", "second", "unterminated"];
        assert_eq!(collect(100, &[text]), want);
        for at in 0..text.len() {
            // An empty line in pieces is not handed over; nobody needs it.
            let got = collect(100, &[&text[..at], &text[at..]]);
            assert_eq!(
                got.iter().filter(|l| !l.is_empty()).collect::<Vec<_>>(),
                ["{\"a\":\"ü\"}\r", "second", "unterminated"]
            );
        }
    }

    #[test]
    fn a_line_beyond_the_limit_leaves_its_ends_and_the_next_one_whole() {
        let long = [b"{\"id\":7,".as_slice(), &vec![b'x'; 5_000], b"end"].concat();
        let text = [long.as_slice(), b"\nnext\n"].concat();
        for size in [1, 7, 1000, 10_000] {
            let chunks: Vec<&[u8]> = text.chunks(size).collect();
            let got = collect(4_000, &chunks);
            assert_eq!(got.len(), 2);
            assert!(got[0].starts_with("!{\"id\":7,x") && got[0].ends_with("xend"), "{size}");
            assert_eq!(got[1], "next");
        }
    }

    #[test]
    fn memory_is_bounded_while_no_newline_comes() {
        let mut lines = Lines::new(10_000);
        for _ in 0..10_000 {
            lines.feed(&[b'y'; 4096], |_| {});
            assert!(lines.partial.capacity() + lines.tail.capacity() < 40_000);
        }
    }
}
