//! Durations as Kubernetes users write them: `30s`, `2m`, `1h30m`, `500ms`.

use std::time::Duration;

use schemars::{Schema, SchemaGenerator, json_schema};

/// Schema of a duration.
pub(crate) fn schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 32, "pattern": "^([0-9]{1,9}(ms|s|m|h))+$"})
}

/// Reads a duration; `None` where it is not of the schema's form, or zero, or longer than a year.
pub fn parse(text: &str) -> Option<Duration> {
    let mut total: u64 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let value: u64 = rest.get(..digits)?.parse().ok()?;
        rest = rest.get(digits..)?;
        let (unit, length) = if rest.starts_with("ms") {
            (1, 2)
        } else {
            match rest.as_bytes().first()? {
                b's' => (1_000, 1),
                b'm' => (60_000, 1),
                b'h' => (3_600_000, 1),
                _ => return None,
            }
        };
        rest = rest.get(length..)?;
        total = total.checked_add(value.checked_mul(unit)?)?;
    }
    (total > 0 && total <= 366 * 24 * 3_600_000).then(|| Duration::from_millis(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_schema_allows() {
        for (text, ms) in [("30s", 30_000), ("500ms", 500), ("1h30m", 5_400_000), ("2m", 120_000), ("1m1ms", 60_001)] {
            assert_eq!(parse(text), Some(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "5", "s", "1d", "-1s", "1.5s", "0s", "1 s", "99999999h"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
