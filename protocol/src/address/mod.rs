//! Where a request may go that somebody else asked for, such as a push notification (A2A 1.0, section 13.2).
//!
//! A URL says nothing about the machine that it leads to: names resolve to whatever their owner likes, and to something
//! else a moment later. So the rules here are for the address that is connected to, and [`Allow::check`] is to be asked
//! with every address of a name, right before the connection, with that very address.

mod network;
mod target;

use std::fmt;
use std::net::IpAddr;

pub use network::{BadNetwork, Network, Reach, reach};
pub use target::{BadTarget, MAX_URL, Scheme, Target};

/// What may be reached beside public addresses over https.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allow(Vec<Rule>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    whom: Whom,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Whom {
    /// This name.
    Name(String),
    /// Every name that ends so, with a dot before it.
    Suffix(String),
    /// Every address in it.
    Network(Network),
}

/// A rule that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{rule:?} is no host, *.suffix or network (CIDR) with an optional :port")]
pub struct BadRule {
    /// As it stands in the configuration.
    pub rule: String,
}

/// Why an address is not connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is no address of the public internet.
    #[error("its address is {0}, which is not allowed")]
    NotPublic(Reach),
    /// Without TLS only what is allowed by name or network is reached.
    #[error("http is allowed for declared receivers only: use https")]
    Plain,
}

impl Allow {
    /// Reads rules as the configuration has them: `seller.shops.svc`, `*.shops.svc:8080`, `10.0.0.0/8`, `10.1.2.3:80`,
    /// `fd00::/8`, `[fd00::1]:8080`.
    pub fn parse<S: AsRef<str>>(rules: &[S]) -> Result<Self, BadRule> {
        rules.iter().map(|rule| Rule::parse(rule.as_ref())).collect::<Result<_, _>>().map(Self)
    }

    /// Whether a target may be connected to at an address.
    ///
    /// A network that is named allows all of it. A name allows private addresses too, but neither this machine, nor
    /// its link, nor a platform's metadata service: no name of the cluster leads there with good intent.
    pub fn check(&self, target: &Target, address: IpAddr) -> Result<(), Refusal> {
        let port = target.port();
        let hits = |rule: &&Rule| rule.port.is_none_or(|p| p == port);
        let reach = reach(address);
        let mut named = false;
        for rule in self.0.iter().filter(hits) {
            match &rule.whom {
                Whom::Network(network) if network.contains(address) => return Ok(()),
                Whom::Name(_) | Whom::Suffix(_) => named |= rule.names(target.host()),
                Whom::Network(_) => {}
            }
        }
        match reach {
            Reach::Public | Reach::Private if named => Ok(()),
            Reach::Public if target.scheme() == Scheme::Https => Ok(()),
            Reach::Public => Err(Refusal::Plain),
            other => Err(Refusal::NotPublic(other)),
        }
    }
}

impl Rule {
    fn parse(rule: &str) -> Result<Self, BadRule> {
        let bad = || BadRule { rule: rule.chars().take(128).collect() };
        let port = |text: &str| text.parse::<u16>().ok().filter(|p| *p > 0).ok_or_else(bad);
        if let Some(rest) = rule.strip_prefix('[') {
            let (inner, rest) = rest.split_once(']').ok_or_else(bad)?;
            let port = match rest.strip_prefix(':') {
                Some(text) => Some(port(text)?),
                None if rest.is_empty() => None,
                None => return Err(bad()),
            };
            return Ok(Self { whom: Whom::Network(Network::parse(inner).map_err(|_| bad())?), port });
        }
        if let Ok(network) = Network::parse(rule) {
            return Ok(Self { whom: Whom::Network(network), port: None });
        }
        let (host, port) = match rule.rsplit_once(':') {
            Some((host, text)) => (host, Some(port(text)?)),
            None => (rule, None),
        };
        if let Ok(network) = Network::parse(host) {
            return Ok(Self { whom: Whom::Network(network), port });
        }
        let (name, suffix) = host.strip_prefix("*.").map_or((host, false), |rest| (rest, true));
        let name = target::host_name(name).ok_or_else(bad)?;
        Ok(Self { whom: if suffix { Whom::Suffix(name) } else { Whom::Name(name) }, port })
    }

    fn names(&self, host: &str) -> bool {
        match &self.whom {
            Whom::Name(name) => name == host,
            Whom::Suffix(suffix) => host.strip_suffix(suffix.as_str()).is_some_and(|h| h.len() > 1 && h.ends_with('.')),
            Whom::Network(_) => false,
        }
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests;
