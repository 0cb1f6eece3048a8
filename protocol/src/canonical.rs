//! Canonical JSON (RFC 8785) of raw JSON, without recursion.
//!
//! Numbers are those of IEEE 754 doubles, as the RFC has it, so that integers beyond 2^53 may come out the same. What
//! the RFC has no form for keeps one of its own: a number beyond all doubles stays as it is written, and half a
//! surrogate pair is escaped in lower case, as ECMAScript does.

use std::cmp::Ordering;
use std::fmt::Write as _;
use std::ops::Range;

/// Deepest nesting that is brought into canonical form.
pub const MAX_DEPTH: usize = 128;

/// Why there is no canonical form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotCanonical {
    /// Nested too deeply.
    #[error("nests deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// Not JSON.
    #[error("is not JSON")]
    NotJson,
}

/// An open container and where it begins in the output.
struct Open {
    from: usize,
    /// Of an object: its finished members.
    members: Option<Vec<Member>>,
    /// The key that waits for its value, and where it begins in the output.
    key: Option<(Vec<u16>, usize)>,
}

/// A member's key and its place in the output, key included.
struct Member {
    key: Vec<u16>,
    at: Range<usize>,
}

/// The canonical form of a JSON value.
///
/// ```
/// use outrigger_protocol::canonical::canonical;
/// assert_eq!(canonical(r#"{"b": [1.0, 1e2], "a": "\u00e9"}"#).unwrap(), r#"{"a":"é","b":[1,100]}"#);
/// ```
pub fn canonical(raw: &str) -> Result<String, NotCanonical> {
    crate::jsonrpc::scan::check(raw, MAX_DEPTH).map_err(|why| match why {
        crate::jsonrpc::Malformed::TooDeep(_) => NotCanonical::TooDeep,
        _ => NotCanonical::NotJson,
    })?;
    let mut out = String::with_capacity(raw.len());
    let mut open: Vec<Open> = Vec::new();
    let mut at = 0;
    while let Some(byte) = raw.as_bytes().get(at) {
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' | b',' | b':' => {
                at += 1;
                continue;
            }
            b'{' | b'[' => {
                comma(&mut out, &open);
                let members = (*byte == b'{').then(Vec::new);
                open.push(Open { from: out.len(), members, key: None });
                out.push(char::from(*byte));
                at += 1;
                continue;
            }
            b'}' | b']' => {
                if let Some(done) = open.pop() {
                    sort(&mut out, done);
                }
                out.push(char::from(*byte));
                at += 1;
            }
            b'"' => {
                let length = string_length(&raw[at..]);
                let units = units(&raw[at + 1..at + length - 1]);
                at += length;
                if let Some(top) = open.last_mut().filter(|top| top.members.is_some() && top.key.is_none()) {
                    let from = out.len();
                    string(units.iter().copied(), &mut out);
                    out.push(':');
                    top.key = Some((units, from));
                    continue;
                }
                comma(&mut out, &open);
                string(units, &mut out);
            }
            _ => {
                let length = raw[at..].bytes().take_while(|b| b.is_ascii_alphanumeric() || b"+-.".contains(b)).count();
                comma(&mut out, &open);
                write_scalar(&raw[at..at + length.max(1)], &mut out);
                at += length.max(1);
            }
        }
        // A value has ended.
        if let Some(Open { members: Some(members), key, .. }) = open.last_mut()
            && let Some((key, from)) = key.take()
        {
            members.push(Member { key, at: from..out.len() });
        }
    }
    Ok(out)
}

/// In front of an element of an array that is not the first. Members get their commas when they are sorted.
fn comma(out: &mut String, open: &[Open]) {
    if open.last().is_some_and(|top| top.members.is_none() && out.len() > top.from + 1) {
        out.push(',');
    }
}

/// Writes the members of a finished object in their order: that of the UTF-16 code units of their keys. Of two with one
/// key, the last counts, as most readers have it.
fn sort(out: &mut String, object: Open) {
    let Some(mut members) = object.members else { return };
    // Stable: of equal keys the last stays last.
    members.sort_by(|a, b| a.key.cmp(&b.key));
    let mut text = String::with_capacity(out.len() - object.from);
    for (i, member) in members.iter().enumerate() {
        if members.get(i + 1).is_some_and(|next| next.key.cmp(&member.key) == Ordering::Equal) {
            continue;
        }
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(&out[member.at.clone()]);
    }
    out.truncate(object.from + 1);
    out.push_str(&text);
}

/// Length of the string that a text begins with, quotes included.
fn string_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// The UTF-16 code units of the inner part of a raw string.
fn units(raw: &str) -> Vec<u16> {
    let mut out = Vec::with_capacity(raw.len());
    let mut chars = raw.char_indices();
    while let Some((at, c)) = chars.next() {
        if c != '\\' {
            out.extend_from_slice(c.encode_utf16(&mut [0; 2]));
            continue;
        }
        let unit = match chars.next().map_or('"', |(_, c)| c) {
            'b' => 8,
            't' => 9,
            'n' => 10,
            'f' => 12,
            'r' => 13,
            'u' => {
                chars.nth(3);
                raw.get(at + 2..at + 6).and_then(|hex| u16::from_str_radix(hex, 16).ok()).unwrap_or(0xfffd)
            }
            other => u16::try_from(u32::from(other)).unwrap_or(0xfffd),
        };
        out.push(unit);
    }
    out
}

/// Writes a string of UTF-16 code units: only what has to be escaped is, in its short form where there is one.
pub(crate) fn string(units: impl IntoIterator<Item = u16>, out: &mut String) {
    out.push('"');
    for unit in char::decode_utf16(units) {
        match unit {
            Ok('"') => out.push_str("\\\""),
            Ok('\\') => out.push_str("\\\\"),
            Ok('\u{8}') => out.push_str("\\b"),
            Ok('\t') => out.push_str("\\t"),
            Ok('\n') => out.push_str("\\n"),
            Ok('\u{c}') => out.push_str("\\f"),
            Ok('\r') => out.push_str("\\r"),
            Ok(c) if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            Ok(c) => out.push(c),
            Err(half) => {
                let _ = write!(out, "\\u{:04x}", half.unpaired_surrogate());
            }
        }
    }
    out.push('"');
}

/// A number in the form of ECMAScript, or a word as it is.
fn write_scalar(raw: &str, out: &mut String) {
    let number = raw.parse::<f64>().ok().filter(|n| n.is_finite() && !raw.starts_with(|c: char| c.is_alphabetic()));
    let Some(number) = number else { return out.push_str(raw) };
    if number == 0.0 {
        return out.push('0');
    }
    let shortest = format!("{:e}", number.abs());
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let digits = even(mantissa.replace('.', ""), number);
    let exponent: i32 = exponent.parse().unwrap_or(0);
    // Where the decimal point stands, counted from the first digit.
    let (count, point) = (i32::try_from(digits.len()).unwrap_or(i32::MAX), exponent + 1);
    let zeros = |n: i32| "0".repeat(usize::try_from(n).unwrap_or(0));
    if number < 0.0 {
        out.push('-');
    }
    let _ = if (count..=21).contains(&point) {
        write!(out, "{digits}{}", zeros(point - count))
    } else if (1..=21).contains(&point) {
        let (whole, rest) = digits.split_at(usize::try_from(point).unwrap_or(0));
        write!(out, "{whole}.{rest}")
    } else if (-5..=0).contains(&point) {
        write!(out, "0.{}{digits}", zeros(-point))
    } else {
        let (first, rest) = digits.split_at(1);
        let dot = if rest.is_empty() { "" } else { "." };
        write!(out, "{first}{dot}{rest}e{exponent:+}")
    };
}

/// The shortest digits of a number. Where two of them are equally near, ECMAScript takes the even one, and Rust the
/// greater.
fn even(mut digits: String, number: f64) -> String {
    // Fewer digits are exact, or nearer on one side.
    const FROM: usize = 15;
    let Some(last @ (b'1' | b'3' | b'5' | b'7' | b'9')) = digits.bytes().last() else { return digits };
    if digits.len() < FROM {
        return digits;
    }
    // No double has more digits than that.
    let exact = format!("{:.800e}", number.abs()).replace('.', "");
    let rest = exact.split_once('e').map_or("", |(d, _)| d).get(digits.len()..).unwrap_or_default();
    let lower = char::from(last - 1);
    if rest.trim_end_matches('0') == "5" && exact.as_bytes().get(digits.len() - 1) == Some(&(last - 1)) {
        digits.pop();
        digits.push(lower);
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_example_of_the_rfc() {
        let raw = r#"{
            "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
            "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
            "literals": [null, true, false]
        }"#;
        assert_eq!(
            canonical(raw).unwrap(),
            r#"{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}"#
        );
    }

    #[test]
    fn numbers_of_the_rfc() {
        for (bits, want) in [
            (0x0000_0000_0000_0000, "0"),
            (0x8000_0000_0000_0000, "0"),
            (0x0000_0000_0000_0001, "5e-324"),
            (0x8000_0000_0000_0001, "-5e-324"),
            (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
            (0x4340_0000_0000_0000, "9007199254740992"),
            (0xc340_0000_0000_0000, "-9007199254740992"),
            (0x4430_0000_0000_0000, "295147905179352830000"),
            (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
            (0x44b5_2d02_c7e1_4af6, "1e+23"),
            (0x444b_1ae4_d6e2_ef4f, "999999999999999900000"),
            (0x444b_1ae4_d6e2_ef50, "1e+21"),
            (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
            (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
            (0x41b3_de43_5555_5553, "333333333.3333332"),
            (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
            (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
        ] {
            let number = f64::from_bits(bits);
            let mut out = String::new();
            write_scalar(&format!("{number:e}"), &mut out);
            assert_eq!(out, want);
        }
        assert_eq!(canonical("[12345678901234567890,1e999,-1e999]").unwrap(), "[12345678901234567000,1e999,-1e999]");
    }

    #[test]
    fn keys_are_in_the_order_of_utf_16() {
        let raw = r#"{"\u20ac":1,"\r":2,"\ufb33":3,"1":4,"\ud83d\ude00":5,"\u0080":6,"\u00f6":7,"":8}"#;
        let text = canonical(raw).unwrap();
        let order: Vec<&str> = text.split(',').map(|m| &m[m.len() - 2..]).collect();
        assert_eq!(order, [":8", ":2", ":4", ":6", ":7", ":1", ":5", "3}"]);
        assert_eq!(canonical(r#"{"a":1,"b":{},"a":[ ]}"#).unwrap(), r#"{"a":[],"b":{}}"#);
        assert_eq!(canonical(r#"["\ud800","\uDC00x"]"#).unwrap(), r#"["\ud800","\udc00x"]"#);
    }

    #[test]
    fn what_has_no_form() {
        let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert_eq!(canonical(&deep(MAX_DEPTH)).unwrap(), deep(MAX_DEPTH));
        assert_eq!(canonical(&deep(100_000)), Err(NotCanonical::TooDeep));
        assert_eq!(canonical("{"), Err(NotCanonical::NotJson));
    }

    fn value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i32>().prop_map(Into::into),
            ".{0,9}".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 48, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
                prop::collection::btree_map(".{0,4}", inner, 0..6).prop_map(|m| m.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn one_value_has_one_form(value in value()) {
            let compact = canonical(&value.to_string()).unwrap();
            prop_assert_eq!(&canonical(&serde_json::to_string_pretty(&value).unwrap()).unwrap(), &compact);
            prop_assert_eq!(&canonical(&compact).unwrap(), &compact);
            prop_assert_eq!(&serde_json::from_str::<serde_json::Value>(&compact).unwrap(), &value);
            // The typed writer for cards agrees.
            prop_assert_eq!(crate::a2a::card::canonical(&value).unwrap(), compact);
        }

        #[test]
        fn any_double_reads_back(bits in any::<u64>()) {
            let number = f64::from_bits(bits);
            prop_assume!(number.is_finite());
            let mut out = String::new();
            write_scalar(&format!("{number:e}"), &mut out);
            prop_assert!(number == 0.0 || out.parse::<f64>().unwrap().to_bits() == number.to_bits(), "{out}");
        }
    }
}
