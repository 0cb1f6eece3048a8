//! URLs as targets of our own requests.

use std::fmt;
use std::net::IpAddr;

/// Longest URL, in bytes.
pub const MAX_URL: usize = 2048;

/// With TLS or without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Without.
    Http,
    /// With.
    Https,
}

impl Scheme {
    /// As in a URL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// An absolute http or https URL, taken apart.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    scheme: Scheme,
    /// In small letters, without a dot at its end; an IPv6 address without brackets.
    host: String,
    port: u16,
    /// With its query; begins with `/`.
    path: String,
}

/// Why a URL is no target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTarget {
    /// Too long.
    #[error("is longer than {MAX_URL} bytes")]
    TooLong,
    /// A character that does not stand in a URL.
    #[error("has a character that does not belong in a URL")]
    Character,
    /// Another scheme or none.
    #[error("must begin with https:// or http://")]
    Scheme,
    /// Name and password in front of the host.
    #[error("must not carry a user name or password")]
    UserInfo,
    /// No host, or none that a resolver should be asked for.
    #[error("has no valid host")]
    Host,
    /// No port.
    #[error("has no valid port")]
    Port,
}

impl Target {
    /// Takes a URL apart. Strict: what clients read in different ways is refused.
    pub fn parse(url: &str) -> Result<Self, BadTarget> {
        if url.len() > MAX_URL {
            return Err(BadTarget::TooLong);
        }
        if !url.bytes().all(|b| b.is_ascii_graphic() && !b"\\\"<>^`{|}".contains(&b)) {
            return Err(BadTarget::Character);
        }
        let (scheme, rest) = url.split_once("://").ok_or(BadTarget::Scheme)?;
        let (scheme, standard) = match scheme.to_ascii_lowercase().as_str() {
            "http" => (Scheme::Http, 80),
            "https" => (Scheme::Https, 443),
            _ => return Err(BadTarget::Scheme),
        };
        let rest = rest.split_once('#').map_or(rest, |(before, _)| before);
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if authority.contains('@') {
            return Err(BadTarget::UserInfo);
        }
        let (host, port) = if let Some(inner) = authority.strip_prefix('[') {
            let (inner, port) = inner.split_once(']').ok_or(BadTarget::Host)?;
            let address: std::net::Ipv6Addr = inner.parse().map_err(|_| BadTarget::Host)?;
            (address.to_string(), port)
        } else {
            let at = authority.find(':').unwrap_or(authority.len());
            (host_name(&authority[..at]).ok_or(BadTarget::Host)?, &authority[at..])
        };
        let port = match port.strip_prefix(':') {
            Some(text) if text.bytes().all(|b| b.is_ascii_digit()) => {
                text.parse().ok().filter(|p| *p > 0).ok_or(BadTarget::Port)?
            }
            Some(_) => return Err(BadTarget::Port),
            None if port.is_empty() => standard,
            None => return Err(BadTarget::Host),
        };
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { scheme, host, port, path })
    }

    /// With TLS or without.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// In small letters, without a dot at its end; an IPv6 address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The address, when the host is one.
    pub fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Path and query.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Value of the `Host` header: without the port where it is the scheme's own.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match (self.scheme, self.port) {
            (Scheme::Http, 80) | (Scheme::Https, 443) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }

    /// Scheme and authority: what one server is.
    pub fn origin(&self) -> String {
        format!("{}://{}", self.scheme.name(), self.authority())
    }
}

/// Without the path, which may hold a secret.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.origin())
    }
}

/// A name or an IPv4 address in its one plain spelling, in small letters, without a dot at its end.
///
/// Names that end in a number are refused unless they are four plain numbers: `2130706433`, `0x7f.1` and `127.1` are
/// addresses for some resolvers and names for others.
pub(super) fn host_name(text: &str) -> Option<String> {
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let label = |l: &str| {
        (1..=63).contains(&l.len())
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    if name.len() > 253 || !name.split('.').all(label) {
        return None;
    }
    let last = name.rsplit('.').next().unwrap_or_default();
    let hex = last.strip_prefix("0x").is_some_and(|h| h.bytes().all(|b| b.is_ascii_hexdigit()));
    if (hex || last.bytes().all(|b| b.is_ascii_digit())) && name.parse::<std::net::Ipv4Addr>().is_err() {
        return None;
    }
    Some(name)
}
