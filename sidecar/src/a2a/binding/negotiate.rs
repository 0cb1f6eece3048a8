//! What a request says about itself beside its parameters: version, extensions, tenant.

use std::borrow::Cow;

use http::{HeaderMap, Uri};
use outrigger_protocol::a2a::errors::Error;
use outrigger_protocol::a2a::extensions as rules;
use outrigger_protocol::a2a::http_json::{MAX_TENANT_BYTES, query_value};
use outrigger_protocol::a2a::operation::Dialect;
use outrigger_protocol::a2a::raw::{self, Members};
use outrigger_protocol::a2a::version;
use serde_json::Value;
use serde_json::value::RawValue;

/// What is served where nothing else is configured.
const VERSIONS: [&str; 2] = ["1.0", "0.3"];

/// The version that a request names. The header wins over the query parameter.
pub(super) fn named<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<Cow<'a, str>> {
    if let Some(value) = headers.get(version::HEADER) {
        return Some(String::from_utf8_lossy(value.as_bytes()));
    }
    query_value(uri.query()?, version::HEADER)
}

/// Checks the version that a request names against the one that it is written in.
pub(super) fn version(named: Option<&str>, seen: Dialect, served: &[String]) -> Result<(), Error> {
    if served.is_empty() {
        return version::negotiate(named, seen, &VERSIONS).map(|_| ());
    }
    let served: Vec<&str> = served.iter().map(String::as_str).collect();
    version::negotiate(named, seen, &served).map(|_| ())
}

/// Extensions that a request asks for, all that the card requires among them.
pub(super) fn extensions(headers: &HeaderMap, card: &Value) -> Result<Vec<String>, Error> {
    let values = [rules::HEADER, rules::HEADER_V03].into_iter().flat_map(|name| headers.get_all(name));
    let asked = rules::parse(values.filter_map(|v| v.to_str().ok()))?;
    rules::check(&rules::required(card), &asked)?;
    Ok(asked)
}

/// The tenant that parameters of 1.0 name; an empty one is none.
pub(super) fn tenant(params: Option<&RawValue>) -> Result<Option<Cow<'_, str>>, Error> {
    let Some(params) = params else { return Ok(None) };
    // Nearly always there is none; then the parameters are not taken apart a second time.
    let text = params.get().as_bytes();
    if memchr::memmem::find(text, b"tenant").is_none() && memchr::memmem::find(text, b"\\u").is_none() {
        return Ok(None);
    }
    // Parameters of another shape are refused by their reader, with better words.
    let Ok(members) = Members::split(params.get()) else { return Ok(None) };
    match members.set("tenant") {
        None => Ok(None),
        Some(value) => match raw::text_of(value) {
            Some(tenant) if tenant.is_empty() => Ok(None),
            Some(tenant) if tenant.contains('\0') => Err(Error::invalid_field("tenant", "must have no NUL in it")),
            Some(tenant) if tenant.len() <= MAX_TENANT_BYTES => Ok(Some(tenant)),
            _ => Err(Error::invalid_field("tenant", format!("must be a string of at most {MAX_TENANT_BYTES} bytes"))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_are_found_however_they_are_written() {
        let of = |text: &str| {
            let raw: &RawValue = serde_json::from_str(text).unwrap();
            tenant(Some(raw)).map(|t| t.map(Cow::into_owned)).map_err(|e| e.message)
        };
        assert_eq!(of(r#"{"id":"t"}"#), Ok(None));
        assert_eq!(of(r#"{"id":"t","tenant":""}"#), Ok(None));
        assert_eq!(of(r#"{"id":"t","tenant":null}"#), Ok(None));
        assert_eq!(of(r#"{"message":{"tenant":"x"}}"#), Ok(None));
        assert_eq!(of(r#"{"id":"t","tenant":"acme"}"#), Ok(Some("acme".into())));
        assert_eq!(of(r#"{"id":"t","ten\u0061nt":"acme"}"#), Ok(Some("acme".into())));
        assert_eq!(of("[\"tenant\"]"), Ok(None));
        assert!(of(r#"{"tenant":7}"#).unwrap_err().contains("tenant"));
        assert!(of(&format!(r#"{{"tenant":"{}"}}"#, "x".repeat(257))).is_err());
    }

    #[test]
    fn the_header_wins_over_the_query() {
        let uri: Uri = "/?a=b&A2A-Version=0.3".parse().unwrap();
        let mut headers = HeaderMap::new();
        assert_eq!(named(&uri, &headers).as_deref(), Some("0.3"));
        headers.insert(version::HEADER, "1.0".parse().unwrap());
        assert_eq!(named(&uri, &headers).as_deref(), Some("1.0"));
    }
}
