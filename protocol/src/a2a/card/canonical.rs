//! Canonical JSON (RFC 8785) of what gets signed: numbers that readers write in different ways are refused, where
//! [`crate::canonical`] writes them as the RFC says.

use serde_json::{Map, Number, Value};

use crate::canonical::string;

/// Largest integer that every reader of JSON keeps: 2^53 - 1.
const MAX_SAFE: u64 = (1 << 53) - 1;

/// Most significant digits of a decimal that every reader keeps.
const MAX_DIGITS: usize = 15;

/// A value that readers write in different ways.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path} is the number {number}, which is not written the same everywhere")]
pub struct NotCanonical {
    /// Where it stands.
    pub path: String,
    /// The number.
    pub number: String,
}

/// Writes a value in its canonical form. Numbers: integers up to 2^53, and decimals of at most 15
/// digits that need no exponent.
pub fn canonical(value: &Value) -> Result<String, NotCanonical> {
    let mut out = String::new();
    write(value, &mut String::new(), &mut out)?;
    Ok(out)
}

fn write(value: &Value, path: &mut String, out: &mut String) -> Result<(), NotCanonical> {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) => {
            let text = number(n).ok_or_else(|| NotCanonical { path: path.clone(), number: n.to_string() })?;
            out.push_str(&text);
        }
        Value::String(text) => string(text.encode_utf16(), out),
        Value::Array(list) => {
            out.push('[');
            for (i, value) in list.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                below(path, &format!("[{i}]"), |path| write(value, path, out))?;
            }
            out.push(']');
        }
        Value::Object(object) => {
            out.push('{');
            for (i, (key, value)) in sorted(object).into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                string(key.encode_utf16(), out);
                out.push(':');
                below(path, &format!(".{key}"), |path| write(value, path, out))?;
            }
            out.push('}');
        }
    }
    Ok(())
}

/// Runs with the path one step longer.
pub(super) fn below<T>(path: &mut String, step: &str, run: impl FnOnce(&mut String) -> T) -> T {
    let before = path.len();
    path.push_str(if before == 0 { step.strip_prefix('.').unwrap_or(step) } else { step });
    let got = run(path);
    path.truncate(before);
    got
}

/// Members by the UTF-16 code units of their names.
fn sorted(object: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut members: Vec<_> = object.iter().collect();
    members.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
    members
}

fn number(number: &Number) -> Option<String> {
    if let Some(n) = number.as_i64() {
        return (n.unsigned_abs() <= MAX_SAFE).then(|| n.to_string());
    }
    if number.is_u64() {
        return None;
    }
    let n = number.as_f64()?;
    if n == 0.0 {
        return Some("0".into());
    }
    // In this range ECMAScript writes the shortest digits without an exponent, as Rust does; with more digits the JSON
    // reader rounds.
    let text = n.to_string();
    let digits = text.trim_start_matches(['-', '0', '.']).bytes().filter(u8::is_ascii_digit).count();
    ((1e-6..1e21).contains(&n.abs()) && digits <= MAX_DIGITS).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn as_the_rfc_has_it() {
        let value = json!({
            "numbers": [4.5, 0.002, 0.000_001, 1.0, -0.0, 0, -7, 9_007_199_254_740_991_u64, 333_333.333_333_333],
            "string": "\u{20ac}$\u{f}\nA'B\"\\\\\"/\u{8}\u{c}\r\t\u{7f}",
            "literals": [null, true, false],
            "empty": [{}, []],
        });
        assert_eq!(
            canonical(&value).unwrap(),
            r#"{"empty":[{},[]],"literals":[null,true,false],"numbers":[4.5,0.002,0.000001,1,0,0,-7,9007199254740991,333333.333333333],"string":"€$\u000f\nA'B\"\\\\\"/\b\f\r\t"#.to_owned()
                + "\u{7f}\"}"
        );
    }

    #[test]
    fn members_are_ordered_by_utf_16() {
        let value =
            json!({"\u{20ac}": 1, "\r": 2, "\u{fb33}": 3, "1": 4, "\u{1f600}": 5, "\u{80}": 6, "\u{f6}": 7, "": 8});
        let order: Vec<_> = canonical(&value).unwrap().bytes().filter(u8::is_ascii_digit).map(|b| b - b'0').collect();
        // The digit that is a name stands before its value; \r is written without digits.
        assert_eq!(order, [8, 2, 1, 4, 6, 7, 1, 5, 3]);
    }

    #[test]
    fn numbers_that_differ_between_readers_are_named() {
        for (n, shown) in [
            (json!(9_007_199_254_740_992_u64), "9007199254740992"),
            (json!(u64::MAX), "18446744073709551615"),
            (json!(-9_007_199_254_740_992_i64), "-9007199254740992"),
            (json!(1e21), "1e+21"),
            (json!(1e-7), "1e-7"),
            (json!(948_228.676_757_812_5), "948228.6767578125"),
        ] {
            let e = canonical(&json!({"a": [{"b": n}]})).unwrap_err();
            assert_eq!((e.path.as_str(), e.number.as_str()), ("a[0].b", shown));
        }
    }

    proptest! {
        #[test]
        fn it_reads_back_and_stays(text in any::<String>(), n in -1_000_000_i32..1_000_000, key in any::<String>()) {
            let value = json!({"t": text, "n": n, "f": f64::from(n) / 64.0, key: [n]});
            let once = canonical(&value).unwrap();
            let again: Value = serde_json::from_str(&once).unwrap();
            prop_assert_eq!(canonical(&again).unwrap(), once);
        }
    }
}
