//! Kubernetes quantities in the one form that the API server stores, so that what we write is what we read back.

use serde_json::{Map, Value};

const NANO: i128 = 1_000_000_000;
/// Suffixes with powers of ten, as exponents of ten relative to one.
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
/// Suffixes with powers of two.
const BINARY: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];

/// A quantity in billionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Quantity {
    nanos: i128,
    binary: bool,
}

/// Reads a quantity; `None` where it is none, or too large to be sure of it.
pub(super) fn parse(text: &str) -> Option<Quantity> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-'))).unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(end)?;
    let (negative, number) = match number.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.len() > 9 || whole.len() > 20 {
        return None;
    }
    if !whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit()) {
        return None;
    }
    let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction: i128 = format!("{fraction:0<9}").parse().ok()?;
    let nanos = whole.checked_mul(NANO)?.checked_add(fraction)?;
    let (nanos, binary) = scale(nanos, suffix)?;
    Some(Quantity { nanos: if negative { -nanos } else { nanos }, binary })
}

fn scale(nanos: i128, suffix: &str) -> Option<(i128, bool)> {
    if let Some((_, shift)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        return Some((nanos.checked_mul(1_i128 << shift)?, true));
    }
    let exponent = match DECIMAL.iter().find(|(name, _)| *name == suffix) {
        Some((_, exponent)) => *exponent,
        None => suffix.strip_prefix(['e', 'E'])?.parse().ok().filter(|e: &i32| (-9..=18).contains(e))?,
    };
    let factor = 10_i128.checked_pow(exponent.unsigned_abs())?;
    if exponent >= 0 {
        Some((nanos.checked_mul(factor)?, false))
    } else {
        // Finer than a billionth is rounded up, as the API server does.
        Some((nanos.checked_add(factor - 1)?.checked_div(factor)?, false))
    }
}

impl Quantity {
    fn canonical(self) -> String {
        let Self { nanos, binary } = self;
        if nanos == 0 {
            return "0".into();
        }
        if binary && nanos % NANO == 0 && nanos.abs() >= 1024 * NANO {
            let whole = nanos / NANO;
            for (suffix, shift) in BINARY.iter().rev() {
                if whole % (1_i128 << shift) == 0 {
                    return format!("{}{suffix}", whole >> shift);
                }
            }
            return whole.to_string();
        }
        for (suffix, exponent) in DECIMAL.iter().rev() {
            let unit = 10_i128.pow(u32::try_from(exponent + 9).unwrap_or(0));
            if nanos % unit == 0 {
                return format!("{}{suffix}", nanos / unit);
            }
        }
        format!("{nanos}n")
    }
}

/// The canonical form of a quantity; what cannot be read stays, for the API server to refuse in its own words.
pub(super) fn canonical(value: &Value) -> Value {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        other => return other.clone(),
    };
    parse(&text).map_or_else(|| Value::String(text.clone()), |q| Value::String(q.canonical()))
}

fn canonical_map(map: &mut Map<String, Value>) {
    for value in map.values_mut() {
        *value = canonical(value);
    }
}

/// Brings `requests` and `limits` of a container's resources into canonical form.
pub(super) fn canonical_resources(resources: &mut Value) {
    for list in ["requests", "limits"] {
        if let Some(map) = resources.get_mut(list).and_then(Value::as_object_mut) {
            canonical_map(map);
        }
    }
}

/// `user` over `defaults`, per resource. A default gives way where it would contradict what the user said: a default
/// limit rises to a larger request, a default request falls to a smaller limit.
pub(super) fn merge_resources(defaults: &Value, user: Option<&Value>) -> Value {
    let mut merged = user.cloned().filter(Value::is_object).unwrap_or_else(|| Value::Object(Map::new()));
    let empty = Map::new();
    let list = |of: &Value, name: &str| of.get(name).and_then(Value::as_object).unwrap_or(&empty).clone();
    let (mut requests, mut limits) = (list(&merged, "requests"), list(&merged, "limits"));
    let (user_requests, user_limits) = (requests.clone(), limits.clone());
    for (name, value) in list(defaults, "requests") {
        requests.entry(name).or_insert(value);
    }
    for (name, value) in list(defaults, "limits") {
        limits.entry(name).or_insert(value);
    }
    for (name, request) in &mut requests {
        let Some(limit) = limits.get_mut(name) else { continue };
        let read = |v: &Value| v.as_str().and_then(parse).map(|q| q.nanos);
        if let (Some(r), Some(l)) = (read(&canonical(request)), read(&canonical(limit)))
            && r > l
        {
            match (user_requests.contains_key(name), user_limits.contains_key(name)) {
                (true, false) => *limit = request.clone(),
                (false, true) => *request = limit.clone(),
                _ => {}
            }
        }
    }
    for (name, mut map) in [("requests", requests), ("limits", limits)] {
        canonical_map(&mut map);
        if !map.is_empty() {
            merged[name] = Value::Object(map);
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn canonical_forms_are_the_api_servers() {
        for (text, want) in [
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("0.1", "100m"),
            ("1.5", "1500m"),
            ("1000", "1k"),
            ("1", "1"),
            ("0", "0"),
            ("0Mi", "0"),
            ("1024Mi", "1Gi"),
            ("0.5Gi", "512Mi"),
            ("1.5Gi", "1536Mi"),
            ("128Mi", "128Mi"),
            ("1000M", "1G"),
            ("1e3", "1k"),
            ("1023", "1023"),
            ("1Ki", "1Ki"),
            ("0.5Ki", "512"),
            ("100u", "100u"),
            ("1n", "1n"),
            ("nonsense", "nonsense"),
            ("1.2.3", "1.2.3"),
        ] {
            assert_eq!(canonical(&json!(text)), json!(want), "{text}");
        }
        assert_eq!(canonical(&json!(2)), json!("2"));
    }

    #[test]
    fn users_win_and_defaults_give_way() {
        let defaults = json!({"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}});
        assert_eq!(merge_resources(&defaults, None), defaults);
        let user = json!({"requests": {"memory": "512Mi"}});
        let merged = merge_resources(&defaults, Some(&user));
        assert_eq!(merged["requests"], json!({"cpu": "10m", "memory": "512Mi"}));
        assert_eq!(merged["limits"], json!({"cpu": "1", "memory": "512Mi"}));
        let user = json!({"limits": {"memory": "16Mi", "example.com/gpu": 1}});
        let merged = merge_resources(&defaults, Some(&user));
        assert_eq!(merged["requests"]["memory"], "16Mi");
        assert_eq!(merged["limits"], json!({"cpu": "1", "memory": "16Mi", "example.com/gpu": "1"}));
    }
}
