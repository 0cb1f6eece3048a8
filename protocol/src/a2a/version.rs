//! Which version of A2A a request speaks (A2A 1.0, section 3.6).

use super::errors::{Error, Kind};
use super::method::Method;

/// The version that is served.
pub const SERVED: &str = "1.0";

/// Checks the version that a request names: by the header `A2A-Version`, else by the query parameter of that name.
///
/// A request that names none is read by its method, as clients in the field forget the header. A method of 0.3 gets
/// an error that says what is spoken here.
pub fn negotiate(named: Option<&str>, method: Method, name: &str) -> Result<(), Error> {
    if let Some(named) = named.map(str::trim).filter(|v| !v.is_empty())
        && major_minor(named) != Some((1, 0))
    {
        let named: String = named.chars().take(32).collect();
        return Err(Error::new(Kind::VersionNotSupported, format!("A2A version {named:?} is not served, {SERVED} is"))
            .with("supportedVersions", SERVED));
    }
    match method {
        Method::V03 => Err(Error::new(
            Kind::MethodNotFound,
            format!("{name} is a method of A2A 0.3; this agent speaks A2A {SERVED}, see its card"),
        )
        .with("supportedVersions", SERVED)),
        Method::Unknown => {
            let name: String = name.chars().take(64).collect();
            Err(Error::new(Kind::MethodNotFound, format!("there is no method {name:?}")))
        }
        _ => Ok(()),
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

    #[test]
    fn versions() {
        let mut table = String::new();
        for named in ["", "1.0", " 1.0 ", "1", "1.0.1", "1.1", "0.3", "0.3.0", "2.0", "1.x", "latest", "1.0.x", "-1.0"]
        {
            let got = negotiate(Some(named), Method::SendMessage, "SendMessage").map_err(|e| e.kind);
            let _ = writeln!(table, "{named:?} {got:?}");
        }
        insta::assert_snapshot!(table);
        assert!(negotiate(None, Method::GetTask, "GetTask").is_ok());
    }

    #[test]
    fn methods_of_another_version_get_a_hint() {
        let e = negotiate(None, Method::parse("message/send"), "message/send").unwrap_err();
        assert!(e.kind == Kind::MethodNotFound && e.message.contains("0.3") && e.message.contains("1.0"));
        assert_eq!(negotiate(Some("0.3"), Method::V03, "message/send").unwrap_err().kind, Kind::VersionNotSupported);
        assert_eq!(negotiate(None, Method::Unknown, "Nope").unwrap_err().kind, Kind::MethodNotFound);
    }
}
