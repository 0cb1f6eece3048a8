//! Which version of A2A a request speaks (A2A 1.0, section 3.6), in every binding.

use super::errors::{Error, Kind};
use super::operation::Dialect;

/// Header, and query parameter, that names the version; gRPC metadata has it too.
pub const HEADER: &str = "a2a-version";

/// Finds out how to read a request and write its answer.
///
/// `named` is what it names: by the header `A2A-Version`, else by the query parameter of that name. `seen` is what its
/// method, path or service is part of. `served` are versions as `Major.Minor`. A request that names no version is taken
/// for what it looks like: clients in the field forget the header, and 0.3 has none. One that names another version
/// than its method is part of gets an error; it is best written as `seen` has it.
pub fn negotiate(named: Option<&str>, seen: Dialect, served: &[&str]) -> Result<Dialect, Error> {
    let named = named.map(str::trim).filter(|v| !v.is_empty());
    let version = match named {
        None => seen.version(),
        Some(text) => match served.iter().find(|s| major_minor(s) == major_minor(text) && major_minor(s).is_some()) {
            Some(version) => version,
            None => return Err(not_supported(text, served)),
        },
    };
    if version == seen.version() && served.contains(&version) {
        return Ok(seen);
    }
    let served = served.join(", ");
    let message = match named {
        Some(named) => format!(
            "the request names version {} and what it asks for is part of A2A {}: see the card for how to ask",
            shown(named),
            seen.version()
        ),
        None => format!("this is part of A2A {}; this agent speaks A2A {served}, see its card", seen.version()),
    };
    Err(Error::new(Kind::MethodNotFound, message).with("supportedVersions", served))
}

fn not_supported(named: &str, served: &[&str]) -> Error {
    let served = served.join(", ");
    Error::new(Kind::VersionNotSupported, format!("A2A version {} is not served, {served} is", shown(named)))
        .with("supportedVersions", served)
}

fn shown(named: &str) -> String {
    format!("{:?}", named.chars().take(32).collect::<String>())
}

/// Label in metrics for the version that a request names.
pub fn label(named: Option<&str>) -> &'static str {
    match named.map(str::trim).filter(|v| !v.is_empty()).map(major_minor) {
        None => "absent",
        Some(Some((1, 0))) => "1.0",
        Some(Some((0, 3))) => "0.3",
        Some(_) => "other",
    }
}

/// A patch number does not matter.
fn major_minor(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.').map(|n| {
        let digits = !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| n.parse().ok()).flatten()
    });
    let version = (numbers.next()??, numbers.next().unwrap_or(Some(0))?);
    numbers.all(|n: Option<u32>| n.is_some()).then_some(version)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;
    use Dialect::{V03, V03Proto, V10};

    #[test]
    fn the_table() {
        let mut table = String::new();
        let values = [
            None,
            Some(""),
            Some("1.0"),
            Some(" 1.0 "),
            Some("1"),
            Some("1.0.1"),
            Some("1.1"),
            Some("0.3"),
            Some("0.3.0"),
            Some("0.2.6"),
            Some("2.0"),
            Some("1.x"),
            Some("latest"),
            Some("1.0.x"),
            Some("-1.0"),
            Some("1,0"),
            Some("99999999999.0"),
            Some("1.0, 0.3"),
        ];
        for served in [&["1.0", "0.3"][..], &["1.0"], &["0.3"]] {
            for named in values {
                let got = [V10, V03, V03Proto].map(|seen| negotiate(named, seen, served).map_err(|e| e.kind));
                let _ = writeln!(table, "{served:?} {named:?} {} {got:?}", label(named));
            }
        }
        insta::assert_snapshot!(table);
    }

    #[test]
    fn errors_say_what_is_spoken() {
        let e = negotiate(None, V03, &["1.0"]).unwrap_err();
        assert!(e.message.contains("part of A2A 0.3") && e.message.contains("speaks A2A 1.0"), "{e}");
        let e = negotiate(Some("7"), V10, &["1.0", "0.3"]).unwrap_err();
        assert_eq!(e.metadata, [("supportedVersions", "1.0, 0.3".to_owned())]);
        let e = negotiate(Some("1.0"), V03, &["1.0", "0.3"]).unwrap_err();
        assert!(e.message.contains("\"1.0\"") && e.message.contains("0.3"), "{e}");
    }
}
