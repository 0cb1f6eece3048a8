//! Which server a URI belongs to behind the endpoint of all servers. URIs stay as they are; only of two servers with
//! the same one, those that come later by name get others, from which server and URI can be told again.
//!
//! ```
//! use outrigger_protocol::mcp::uri::{Route, Uris};
//!
//! let mut uris = Uris::default();
//! assert_eq!(uris.add("a", "file:///x"), Ok("file:///x".into()));
//! assert_eq!(uris.add("b", "file:///x"), Ok("b+file:///x".into()));
//! assert_eq!(uris.add_template("b", "db://{table}"), Ok("db://{table}".into()));
//! assert_eq!(uris.route("b+file:///x"), Some(Route { server: "b", original: "file:///x".into() }));
//! assert_eq!(uris.route("db://users"), Some(Route { server: "b", original: "db://users".into() }));
//! ```

mod places;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

pub(crate) use places::app;
pub use places::{in_notification, in_request, in_result};

/// URIs and templates behind one endpoint.
pub const MAX_URIS: usize = 65_536;
/// Of skills: never changed, since names, digests and approvals hang on them.
const SKILL: &str = "skill:";
/// Of user interfaces (MCP Apps): hosts know them by their scheme, so that it stays.
const APP: &str = "ui://";

/// Why a resource is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
    /// Another server has it, and it can't be given another one.
    #[error("the server {server} has this URI, and it cannot be changed")]
    Taken {
        /// Whose it is.
        server: String,
    },
    /// More than [`MAX_URIS`].
    #[error("more than {MAX_URIS} URIs behind one endpoint")]
    TooMany,
}

/// Where a request for a URI goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route<'t> {
    /// Name of the server.
    pub server: &'t str,
    /// What it calls the resource.
    pub original: Cow<'t, str>,
}

/// The URIs and templates of all servers. Servers are to be added in the order of their names.
#[derive(Clone, Debug, Default)]
pub struct Uris {
    servers: BTreeSet<String>,
    /// As servers wrote them.
    exact: BTreeMap<String, String>,
    /// The part of each template in front of its first expression.
    prefixes: BTreeMap<String, String>,
    /// Those that were changed, by server and original.
    changed: BTreeMap<String, BTreeMap<String, String>>,
    /// Prefixes of templates that were changed, by server.
    changed_prefixes: BTreeMap<String, BTreeSet<String>>,
}

impl Uris {
    /// The URI to show for one of a server. Adding it again gives the same.
    pub fn add(&mut self, server: &str, uri: &str) -> Result<String, Unreachable> {
        self.room(server)?;
        match self.exact.get(uri) {
            None => {
                self.exact.insert(uri.to_owned(), server.to_owned());
                Ok(uri.to_owned())
            }
            Some(owner) if owner == server => Ok(uri.to_owned()),
            Some(owner) => {
                let new = changed(server, uri).ok_or_else(|| Unreachable::Taken { server: owner.clone() })?;
                self.changed.entry(server.to_owned()).or_default().insert(uri.to_owned(), new.clone());
                Ok(new)
            }
        }
    }

    /// The template to show for one of a server. Two templates collide when what stands in front of their first
    /// expression is the same.
    pub fn add_template(&mut self, server: &str, template: &str) -> Result<String, Unreachable> {
        self.room(server)?;
        let prefix = literal(template);
        match self.prefixes.get(prefix) {
            None => {
                self.prefixes.insert(prefix.to_owned(), server.to_owned());
                Ok(template.to_owned())
            }
            Some(owner) if owner == server => Ok(template.to_owned()),
            Some(owner) => {
                let taken = || Unreachable::Taken { server: owner.clone() };
                let new = changed(server, template).filter(|_| prefix.contains(':')).ok_or_else(taken)?;
                self.changed_prefixes.entry(server.to_owned()).or_default().insert(prefix.to_owned());
                Ok(new)
            }
        }
    }

    fn room(&mut self, server: &str) -> Result<(), Unreachable> {
        let changed = self.changed.values().map(BTreeMap::len).sum::<usize>();
        let prefixes = self.changed_prefixes.values().map(BTreeSet::len).sum::<usize>();
        if self.exact.len() + self.prefixes.len() + changed + prefixes >= MAX_URIS {
            return Err(Unreachable::TooMany);
        }
        if !self.servers.contains(server) {
            self.servers.insert(server.to_owned());
        }
        Ok(())
    }

    /// The server of a URI that was shown, or made from a template that was. `None` when it can't be told: servers may
    /// have resources that they don't list.
    pub fn route<'t>(&'t self, uri: &'t str) -> Option<Route<'t>> {
        if let Some(server) = self.exact.get(uri) {
            return Some(Route { server, original: Cow::Borrowed(uri) });
        }
        // A changed one is told by the name of a server in it, and more surely so than by a template without scheme.
        if let Some(route) = self.unchanged(uri) {
            return Some(route);
        }
        self.longest_prefix(uri).map(|server| Route { server, original: Cow::Borrowed(uri) })
    }

    /// The URI to show for what a server wrote in a result: itself, but where it was changed.
    pub fn shown<'u>(&self, server: &str, uri: &'u str) -> Cow<'u, str> {
        let listed = self.changed.get(server).and_then(|m| m.get(uri));
        if let Some(new) = listed {
            return Cow::Owned(new.clone());
        }
        if self.exact.get(uri).is_some_and(|owner| owner == server) {
            return Cow::Borrowed(uri);
        }
        let prefixes = self.changed_prefixes.get(server);
        let made = prefixes.is_some_and(|p| p.iter().any(|prefix| uri.starts_with(prefix.as_str())));
        match changed(server, uri).filter(|_| made) {
            Some(new) => Cow::Owned(new),
            None => Cow::Borrowed(uri),
        }
    }

    /// Whether anything of a server was changed, so that its results must be looked through.
    pub fn is_changed(&self, server: &str) -> bool {
        self.changed.contains_key(server) || self.changed_prefixes.contains_key(server)
    }

    fn longest_prefix(&self, uri: &str) -> Option<&str> {
        let mut end = uri;
        // Prefixes of a text are in order of length among all texts, so each step leaves out what can't be one.
        loop {
            let (prefix, server) =
                self.prefixes.range::<str, _>((Bound::Unbounded, Bound::Included(end))).next_back()?;
            if uri.starts_with(prefix.as_str()) {
                return Some(server);
            }
            let common = uri.char_indices().zip(prefix.chars()).find(|((_, a), b)| a != b);
            end = &uri[..common.map_or(0, |((at, _), _)| at)];
        }
    }

    /// Undoes [`changed`].
    fn unchanged<'t>(&'t self, uri: &'t str) -> Option<Route<'t>> {
        let (mark, app) = match uri.strip_prefix(APP) {
            Some(rest) => (rest, true),
            None => (uri, false),
        };
        let (name, rest) = mark.split_once('+')?;
        let name = if app { name } else { name.strip_prefix("x.").unwrap_or(name) };
        let server = self.servers.get(name)?;
        let original = if app { Cow::Owned(format!("{APP}{rest}")) } else { Cow::Borrowed(rest) };
        rest.contains(':').then_some(()).or(app.then_some(()))?;
        Some(Route { server, original })
    }
}

/// Another URI or template for one of a server: the server's name and a plus sign in front of the scheme, or of the
/// authority where the scheme must stay. `None` for skills, and for what has no scheme.
fn changed(server: &str, uri: &str) -> Option<String> {
    let (scheme, _) = uri.split_once(':')?;
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    if !is_scheme || uri.starts_with(SKILL) {
        return None;
    }
    if let Some(rest) = uri.strip_prefix(APP) {
        return Some(format!("{APP}{server}+{rest}"));
    }
    // A scheme begins with a letter; names of servers may begin with a digit.
    let letter = if server.starts_with(|c: char| c.is_ascii_digit()) { "x." } else { "" };
    Some(format!("{letter}{server}+{uri}"))
}

/// The part of a template in front of its first expression.
fn literal(template: &str) -> &str {
    template.split('{').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn routed(uris: &Uris, uri: &str) -> Option<(String, String)> {
        uris.route(uri).map(|r| (r.server.to_owned(), r.original.into_owned()))
    }

    fn pair(server: &str, original: &str) -> (String, String) {
        (server.into(), original.into())
    }

    #[test]
    fn only_what_collides_is_changed() {
        let mut uris = Uris::default();
        for (server, uri, want) in [
            ("a", "file:///x", Ok("file:///x")),
            ("a", "ui://widget/1", Ok("ui://widget/1")),
            ("a", "skill://s/SKILL.md", Ok("skill://s/SKILL.md")),
            ("a", "relative", Ok("relative")),
            ("1b", "file:///x", Ok("x.1b+file:///x")),
            ("1b", "file:///y", Ok("file:///y")),
            ("1b", "ui://widget/1", Ok("ui://1b+widget/1")),
            ("1b", "skill://s/SKILL.md", Err(Unreachable::Taken { server: "a".into() })),
            ("1b", "relative", Err(Unreachable::Taken { server: "a".into() })),
        ] {
            assert_eq!(uris.add(server, uri), want.map(str::to_owned), "{server} {uri}");
        }
        assert!(uris.is_changed("1b") && !uris.is_changed("a"));
        assert_eq!(routed(&uris, "file:///x"), Some(pair("a", "file:///x")));
        assert_eq!(routed(&uris, "x.1b+file:///x"), Some(pair("1b", "file:///x")));
        assert_eq!(routed(&uris, "ui://1b+widget/1"), Some(pair("1b", "ui://widget/1")));
        assert_eq!(routed(&uris, "unknown+file:///x"), None);
        assert_eq!(routed(&uris, "file:///z"), None);
        assert_eq!(uris.shown("1b", "file:///x"), "x.1b+file:///x");
        assert_eq!(
            (uris.shown("1b", "file:///y"), uris.shown("a", "file:///x")),
            ("file:///y".into(), "file:///x".into())
        );
    }

    #[test]
    fn templates_lead_by_what_is_fixed_in_them() {
        let mut uris = Uris::default();
        for (server, template, want) in [
            ("a", "db://{table}", Ok("db://{table}")),
            ("a", "db://users/{id}", Ok("db://users/{id}")),
            ("b", "db://us{rest}", Ok("db://us{rest}")),
            ("b", "db://{other}/x", Ok("b+db://{other}/x")),
            ("b", "{+any}", Ok("{+any}")),
            ("c", "{+any}", Err(Unreachable::Taken { server: "b".into() })),
        ] {
            assert_eq!(uris.add_template(server, template), want.map(str::to_owned), "{server} {template}");
        }
        for (uri, want) in [
            ("db://users/7", Some(pair("a", "db://users/7"))),
            ("db://usage", Some(pair("b", "db://usage"))),
            ("db://zones", Some(pair("a", "db://zones"))),
            ("db://a", Some(pair("a", "db://a"))),
            ("b+db://q/x", Some(pair("b", "db://q/x"))),
            ("zz:y", Some(pair("b", "zz:y"))),
        ] {
            assert_eq!(routed(&uris, uri), want, "{uri}");
        }
        assert_eq!(uris.shown("b", "db://q/x"), "b+db://q/x");
        uris.add("a", "b+db://q/x").unwrap();
        assert_eq!(routed(&uris, "b+db://q/x"), Some(pair("a", "b+db://q/x")));
    }

    proptest! {
        #[test]
        fn every_shown_uri_leads_back(entries in prop::collection::vec(("[abc1]", "(file|ui|db)://[ab]{1,2}(/[ab])?"), 1..24)) {
            let mut entries = entries;
            entries.sort();
            let mut uris = Uris::default();
            for (server, uri) in &entries {
                let shown = uris.add(server, uri).unwrap();
                prop_assert_eq!(uris.shown(server, uri).into_owned(), shown);
            }
            for (server, uri) in &entries {
                let shown = uris.shown(server, uri).into_owned();
                prop_assert_eq!(routed(&uris, &shown), Some(pair(server, uri)));
                // RFC 3986: a scheme, a colon, and the rest.
                let (scheme, _) = shown.split_once(':').unwrap();
                prop_assert!(scheme.starts_with(|c: char| c.is_ascii_alphabetic()));
                prop_assert!(!uri.starts_with("ui:") || scheme == "ui");
            }
        }

        #[test]
        fn the_longest_prefix_wins(prefixes in prop::collection::btree_set("[ab]{0,5}", 0..8), uri in "[abc]{0,8}") {
            let mut uris = Uris::default();
            for prefix in &prefixes {
                uris.add_template(&format!("s{}", prefix.len()), &format!("{prefix}{{x}}")).unwrap();
            }
            let want = prefixes.iter().filter(|p| uri.starts_with(p.as_str())).map(String::len).max();
            prop_assert_eq!(uris.route(&uri).map(|r| r.server.to_owned()), want.map(|l| format!("s{l}")));
        }
    }
}
