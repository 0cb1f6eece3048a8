//! Names of tools and prompts behind the endpoint of all servers.
//!
//! ```
//! use outrigger_protocol::config::Prefix;
//! use outrigger_protocol::mcp::names::Names;
//!
//! let mut names = Names::new(Prefix::Always);
//! assert_eq!(names.add("time", "now"), Ok("time__now".into()));
//! assert_eq!(names.find("time__now"), Some(("time", "now")));
//! ```

use std::collections::BTreeMap;

use crate::config::Prefix;
use crate::digest::sha256;

/// Longest name that model providers take, in bytes.
pub const MAX_NAME: usize = 64;
/// Names behind one endpoint.
pub const MAX_NAMES: usize = 16_384;
/// Between the name of a server and that of a tool. Names of servers have none.
pub const SEPARATOR: &str = "__";
/// In `_meta` of a tool or prompt whose name was shortened: what its server calls it.
pub const ORIGINAL_NAME: &str = "outrigger.dev/originalName";
/// Hexadecimal digits that make a shortened name unlike others.
const DIGITS: usize = 8;

/// Why a tool has no name here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Nameless {
    /// Another one has it.
    #[error("the server {server} has one of this name")]
    Taken {
        /// Whose it is.
        server: String,
    },
    /// More than [`MAX_NAMES`].
    #[error("more than {MAX_NAMES} names behind one endpoint")]
    TooMany,
}

/// The names of one kind (tools, or prompts), both ways.
#[derive(Clone, Debug, Default)]
pub struct Names {
    prefix: Prefix,
    shown: BTreeMap<String, (String, String)>,
}

impl Names {
    /// Without any name.
    pub fn new(prefix: Prefix) -> Self {
        Self { prefix, shown: BTreeMap::new() }
    }

    /// The name to show for what a server calls `original`. Adding it again gives the same; servers are to be added in
    /// the order of their names, so that the first keeps a name that two have.
    pub fn add(&mut self, server: &str, original: &str) -> Result<String, Nameless> {
        let name = shown(self.prefix, server, original);
        match self.shown.get(&name) {
            Some((s, o)) if s == server && o == original => Ok(name),
            Some((s, _)) => Err(Nameless::Taken { server: s.clone() }),
            None if self.shown.len() >= MAX_NAMES => Err(Nameless::TooMany),
            None => {
                self.shown.insert(name.clone(), (server.to_owned(), original.to_owned()));
                Ok(name)
            }
        }
    }

    /// Server and original of a shown name.
    pub fn find(&self, name: &str) -> Option<(&str, &str)> {
        self.shown.get(name).map(|(server, original)| (&**server, &**original))
    }

    /// Forgets the names of one server, before they are added anew.
    pub fn forget(&mut self, server: &str) {
        self.shown.retain(|_, (s, _)| s != server);
    }
}

/// The name to show. It depends on nothing but its server and itself.
pub fn shown(prefix: Prefix, server: &str, original: &str) -> String {
    match prefix {
        Prefix::Never => original.to_owned(),
        Prefix::Always => {
            let whole = format!("{server}{SEPARATOR}{original}");
            if whole.len() <= MAX_NAME && whole.bytes().all(is_plain) {
                whole
            } else {
                shortened(&whole, server, original)
            }
        }
    }
}

/// Server and original, of a name that was not shortened. Only a guess: a server may have shortened names like it.
pub fn split(name: &str) -> Option<(&str, &str)> {
    name.split_once(SEPARATOR).filter(|(server, original)| !server.is_empty() && !original.is_empty())
}

/// Whether a shown name does not tell the original.
pub fn is_shortened(prefix: Prefix, shown: &str, server: &str, original: &str) -> bool {
    prefix == Prefix::Always && shown.strip_prefix(server).and_then(|s| s.strip_prefix(SEPARATOR)) != Some(original)
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

/// As much as there is room for, and a digest of the pair.
fn shortened(whole: &str, server: &str, original: &str) -> String {
    let digest = sha256(format!("{server}\0{original}").as_bytes());
    let plain = whole.chars().map(|c| if u8::try_from(c).is_ok_and(is_plain) { c } else { '_' });
    let head: String = plain.take(MAX_NAME - DIGITS - 1).collect();
    format!("{head}_{}", &digest[..DIGITS])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_to_show() {
        let long = "a".repeat(80);
        let table: Vec<String> = [
            (Prefix::Always, "time", "now"),
            (Prefix::Always, "time", "now.utc"),
            (Prefix::Always, "time", "now_utc"),
            (Prefix::Always, "time", "über zeit"),
            (Prefix::Always, "time", &long),
            (Prefix::Always, "time", &long[..58]),
            (Prefix::Always, "time", &long[..59]),
            (Prefix::Never, "time", "now.utc"),
        ]
        .iter()
        .map(|(prefix, server, original)| {
            let name = shown(*prefix, server, original);
            format!("{original} {name} {} {}", name.len(), is_shortened(*prefix, &name, server, original))
        })
        .collect();
        insta::assert_snapshot!(table.join("\n"));
        assert_eq!(split("time__now__utc"), Some(("time", "now__utc")));
        assert_eq!((split("now"), split("__now"), split("time__")), (None, None, None));
    }

    #[test]
    fn who_comes_first_keeps_a_name() {
        let mut names = Names::new(Prefix::Never);
        assert_eq!(names.add("a", "x"), Ok("x".into()));
        assert_eq!(names.add("a", "x"), Ok("x".into()));
        assert_eq!(names.add("b", "x"), Err(Nameless::Taken { server: "a".into() }));
        assert_eq!(names.find("x"), Some(("a", "x")));
        names.forget("a");
        assert_eq!(names.find("x"), None);
        assert_eq!(names.add("b", "x"), Ok("x".into()));
    }

    #[test]
    fn names_are_bounded() {
        let mut names = Names::new(Prefix::Always);
        for i in 0..MAX_NAMES {
            names.add("s", &i.to_string()).unwrap();
        }
        assert_eq!(names.add("s", "one more"), Err(Nameless::TooMany));
        assert!(names.add("s", "0").is_ok());
    }

    proptest! {
        #[test]
        fn every_shown_name_is_taken_by_providers_and_leads_back(server in "[a-z][a-z0-9-]{0,40}", originals in prop::collection::btree_set(".{1,90}", 1..12)) {
            let mut names = Names::new(Prefix::Always);
            for original in &originals {
                let name = names.add(&server, original).unwrap();
                prop_assert!(name.len() <= MAX_NAME && name.bytes().all(is_plain), "{}", name);
                prop_assert_eq!(names.find(&name), Some((&*server, &**original)));
                if !is_shortened(Prefix::Always, &name, &server, original) {
                    prop_assert_eq!(split(&name), Some((&*server, &**original)));
                }
            }
        }
    }
}
