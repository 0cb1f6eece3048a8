//! A strict JSON checker without recursion, which tells where the members of the outermost object stand.
//!
//! Nesting costs one bit per level, so a hostile document can't exhaust the stack. Strings may hold lone surrogate
//! escapes (`"\ud800"`), which real servers emit and typed parsers refuse.

use std::borrow::Cow;

use super::Slice;

/// Why a text is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Not JSON.
    #[error("is not JSON: {what} at byte {at}")]
    Syntax {
        /// Offset in bytes.
        at: usize,
        /// What stands there, or is missing.
        what: &'static str,
    },
    /// Nested too deeply.
    #[error("nests deeper than {0} levels")]
    TooDeep(usize),
    /// An array at the top.
    #[error("is a batch, which this protocol does not have: send one message at a time")]
    Batch,
    /// JSON, but no object at the top.
    #[error("must be a JSON object")]
    NotAnObject,
    /// JSON, but no array where one belongs.
    #[error("must be a JSON array")]
    NotAnArray,
    /// A member twice.
    #[error("has the member \"{0}\" twice")]
    Duplicate(String),
    /// Not a message of JSON-RPC 2.0.
    #[error("is no JSON-RPC 2.0 message: {0}")]
    Envelope(&'static str),
}

impl Malformed {
    /// The JSON-RPC error code that tells this to the author of the text.
    pub fn code(&self) -> i32 {
        match self {
            Self::Syntax { .. } => super::PARSE_ERROR,
            _ => super::INVALID_REQUEST,
        }
    }
}

/// Checks that a text is one JSON value that nests at most `max_depth` levels deep.
pub fn check(text: &str, max_depth: usize) -> Result<(), Malformed> {
    let mut s = Scanner { text: text.as_bytes(), at: 0, max_depth };
    s.value()?;
    s.end()
}

/// Checks that a text is one JSON object and calls `visit` with each member's key, unescaped, and value. The object
/// itself is one level of depth. Duplicate keys are the visitor's business.
pub fn object<'a>(
    text: &'a str,
    max_depth: usize,
    mut visit: impl FnMut(&str, Slice<'a>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    members(text, max_depth, |key, _, value| visit(&key, value))
}

/// Like [`object`], with the offset of each member's key, which is that of its opening quote.
pub fn members<'a>(
    text: &'a str,
    max_depth: usize,
    mut visit: impl FnMut(Cow<'a, str>, usize, Slice<'a>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let mut s = Scanner { text: text.as_bytes(), at: 0, max_depth: max_depth.saturating_sub(1) };
    s.space();
    match s.peek() {
        Some(b'{') => s.at += 1,
        other => {
            check(text, max_depth)?;
            return Err(if other == Some(b'[') { Malformed::Batch } else { Malformed::NotAnObject });
        }
    }
    s.space();
    if s.peek() == Some(b'}') {
        s.at += 1;
        return s.end();
    }
    loop {
        s.space();
        let from = s.at;
        s.string()?;
        let key = &text[from..s.at];
        s.space();
        s.expect(b':', "expected ':'")?;
        let value = s.slice(text, max_depth)?;
        // A key with a lone surrogate equals no key that anybody asks for.
        visit(super::string(key).unwrap_or(Cow::Borrowed(key)), from, value)?;
        s.space();
        match s.peek() {
            Some(b',') => s.at += 1,
            Some(b'}') => {
                s.at += 1;
                return s.end();
            }
            _ => return Err(s.error("expected ',' or '}'")),
        }
    }
}

/// Checks that a text is one JSON array and calls `visit` with each of its values. The array itself is one level of
/// depth.
pub fn elements<'a>(
    text: &'a str,
    max_depth: usize,
    mut visit: impl FnMut(Slice<'a>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let mut s = Scanner { text: text.as_bytes(), at: 0, max_depth: max_depth.saturating_sub(1) };
    s.space();
    if s.peek() != Some(b'[') {
        check(text, max_depth)?;
        return Err(Malformed::NotAnArray);
    }
    s.at += 1;
    s.space();
    if s.peek() == Some(b']') {
        s.at += 1;
        return s.end();
    }
    loop {
        let value = s.slice(text, max_depth)?;
        visit(value)?;
        s.space();
        match s.peek() {
            Some(b',') => s.at += 1,
            Some(b']') => {
                s.at += 1;
                return s.end();
            }
            _ => return Err(s.error("expected ',' or ']'")),
        }
    }
}

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    max_depth: usize,
}

/// One bit per open container: set for an object.
#[derive(Default)]
struct Nesting {
    bits: Vec<u64>,
    depth: usize,
}

impl Nesting {
    fn push(&mut self, object: bool) {
        let (word, bit) = (self.depth / 64, self.depth % 64);
        if word == self.bits.len() {
            self.bits.push(0);
        }
        self.bits[word] = self.bits[word] & !(1 << bit) | u64::from(object) << bit;
        self.depth += 1;
    }

    fn top(&self) -> Option<bool> {
        let i = self.depth.checked_sub(1)?;
        Some(self.bits[i / 64] >> (i % 64) & 1 == 1)
    }
}

impl Scanner<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn error(&self, what: &'static str) -> Malformed {
        Malformed::Syntax {
            at: self.at,
            what: if self.at >= self.text.len() { "the text ends too early" } else { what },
        }
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8, what: &'static str) -> Result<(), Malformed> {
        if self.peek() != Some(byte) {
            return Err(self.error(what));
        }
        self.at += 1;
        Ok(())
    }

    fn end(&mut self) -> Result<(), Malformed> {
        self.space();
        if self.at < self.text.len() { Err(self.error("text after the value")) } else { Ok(()) }
    }

    /// The value that follows white space, in a container that has taken one level of `max_depth` already.
    fn slice<'a>(&mut self, text: &'a str, max_depth: usize) -> Result<Slice<'a>, Malformed> {
        self.space();
        let at = self.at;
        self.value().map_err(|e| if let Malformed::TooDeep(_) = e { Malformed::TooDeep(max_depth) } else { e })?;
        Ok(Slice { raw: &text[at..self.at], at })
    }

    fn key(&mut self) -> Result<(), Malformed> {
        self.space();
        self.string()?;
        self.space();
        self.expect(b':', "expected ':'")
    }

    fn value(&mut self) -> Result<(), Malformed> {
        let mut open = Nesting::default();
        loop {
            self.space();
            match self.peek() {
                Some(b @ (b'{' | b'[')) => {
                    if open.depth >= self.max_depth {
                        return Err(Malformed::TooDeep(self.max_depth));
                    }
                    let object = b == b'{';
                    self.at += 1;
                    self.space();
                    if self.peek() == Some(if object { b'}' } else { b']' }) {
                        self.at += 1;
                    } else {
                        open.push(object);
                        if object {
                            self.key()?;
                        }
                        continue;
                    }
                }
                Some(b'"') => self.string()?,
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(b't') => self.word(b"true")?,
                Some(b'f') => self.word(b"false")?,
                Some(b'n') => self.word(b"null")?,
                _ => return Err(self.error("expected a value")),
            }
            // A value has ended: so may the containers around it.
            loop {
                let Some(object) = open.top() else { return Ok(()) };
                self.space();
                match (self.peek(), object) {
                    (Some(b','), true) => {
                        self.at += 1;
                        self.key()?;
                        break;
                    }
                    (Some(b','), false) => {
                        self.at += 1;
                        break;
                    }
                    (Some(b'}'), true) | (Some(b']'), false) => {
                        self.at += 1;
                        open.depth -= 1;
                    }
                    (_, true) => return Err(self.error("expected ',' or '}'")),
                    (_, false) => return Err(self.error("expected ',' or ']'")),
                }
            }
        }
    }

    fn word(&mut self, word: &'static [u8]) -> Result<(), Malformed> {
        if !self.text[self.at..].starts_with(word) {
            return Err(self.error("expected a value"));
        }
        self.at += word.len();
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Malformed> {
        if !self.peek().is_some_and(|b| b.is_ascii_digit()) {
            return Err(self.error("expected a digit"));
        }
        while self.peek().is_some_and(|b| b.is_ascii_digit()) {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), Malformed> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn string(&mut self) -> Result<(), Malformed> {
        self.expect(b'"', "expected '\"'")?;
        loop {
            self.at += plain_prefix(&self.text[self.at..]);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => {
                    self.at += 1;
                    match self.peek() {
                        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
                        Some(b'u') => {
                            self.at += 1;
                            for _ in 0..4 {
                                if !self.peek().is_some_and(|b| b.is_ascii_hexdigit()) {
                                    return Err(self.error("expected four hexadecimal digits"));
                                }
                                self.at += 1;
                            }
                        }
                        _ => return Err(self.error("unknown escape")),
                    }
                }
                _ => return Err(self.error("control character in a string")),
            }
        }
    }
}

/// Length of the longest prefix without a quote, a backslash or a control character, eight bytes at a time.
fn plain_prefix(text: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let mut at = 0;
    let (words, _) = text.as_chunks::<8>();
    for word in words {
        let w = u64::from_le_bytes(*word);
        // A byte is zero where it equals the byte looked for; below 0x20 where subtracting borrows.
        let quote = w ^ (ONES * 0x22);
        let slash = w ^ (ONES * 0x5c);
        let hit =
            (quote.wrapping_sub(ONES) & !quote | slash.wrapping_sub(ONES) & !slash | w.wrapping_sub(ONES * 0x20) & !w)
                & HIGH;
        if hit != 0 {
            break;
        }
        at += 8;
    }
    at + text[at..].iter().take_while(|b| **b >= 0x20 && **b != b'"' && **b != b'\\').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_nesting_is_bounded_and_never_recursive() {
        let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert_eq!(check(&deep(512), 512), Ok(()));
        assert_eq!(check(&deep(10_000), 512), Err(Malformed::TooDeep(512)));
        assert_eq!(check(&deep(1_000_000), usize::MAX), Ok(()));
        assert_eq!(check(&"{\"a\":".repeat(1_000_000), usize::MAX).unwrap_err().code(), super::super::PARSE_ERROR);
    }

    #[test]
    fn elements_of_an_array() {
        let of = |text: &'static str| {
            let mut out = Vec::new();
            elements(text, 3, |e| {
                assert_eq!(&text[e.range()], e.raw);
                out.push(e.raw);
                Ok(())
            })
            .map(|()| out)
        };
        assert_eq!(of(" [ 1 ,{\"a\":[]}, \"x\" ] "), Ok(vec!["1", "{\"a\":[]}", "\"x\""]));
        assert_eq!(of("[]"), Ok(vec![]));
        assert_eq!(of("{}"), Err(Malformed::NotAnArray));
        assert_eq!(of("[[[[]]]]"), Err(Malformed::TooDeep(3)));
        for bad in ["[1,]", "[1", "[1]x", "[,1]", "[1 2]"] {
            assert!(matches!(of(bad), Err(Malformed::Syntax { .. })), "{bad}");
        }
    }

    #[test]
    fn strict_where_json_is() {
        for ok in [
            "0",
            "-0.5e+3",
            " {} ",
            "[]",
            "\"\\ud800\"",
            "[1,{\"a\":[true,false,null]}]",
            "\"0123456789abcde\\u00e9ü\"",
        ] {
            assert_eq!(check(ok, 9), Ok(()), "{ok}");
        }
        for bad in [
            "",
            "01",
            "1.",
            "-",
            "+1",
            "[1,]",
            "{\"a\":1,}",
            "{a:1}",
            "\"\t\"",
            "\"01234567\t9\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"",
            "nul",
            "1 2",
            "[1}",
            "{\"a\" 1}",
            "NaN",
        ] {
            assert!(matches!(check(bad, 9), Err(Malformed::Syntax { .. })), "{bad}");
        }
    }
}
