//! Which tools, prompts and resources of a server are there for a caller.
//!
//! ```
//! use outrigger_protocol::config::Filter;
//! use outrigger_protocol::mcp::filter::passes;
//!
//! let filter = Filter { allow: vec!["get_*".into()], deny: vec!["*_secret?".into()] };
//! assert!(passes(&filter, "get_time") && !passes(&filter, "get_secrets") && !passes(&filter, "set_time"));
//! ```

use crate::config::Filter;

/// Whether a name passes all filters.
pub fn passes_all<'f>(filters: impl IntoIterator<Item = &'f Filter>, name: &str) -> bool {
    filters.into_iter().all(|filter| passes(filter, name))
}

/// Whether a name passes a filter.
pub fn passes(filter: &Filter, name: &str) -> bool {
    (filter.allow.is_empty() || filter.allow.iter().any(|p| matches(p, name)))
        && !filter.deny.iter().any(|p| matches(p, name))
}

/// Whether a whole name is as a pattern says: `*` stands for any number of characters, `?` for one, all else for
/// itself. Time is at most the product of both lengths.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (mut p, mut n) = (pattern.chars(), name.chars());
    // Behind the last star, and what it has not swallowed yet.
    let mut star: Option<(std::str::Chars<'_>, std::str::Chars<'_>)> = None;
    loop {
        let (here, at) = (p.clone(), n.clone());
        match (p.next(), n.next()) {
            (None, None) => return true,
            (Some('*'), _) => {
                n = at;
                star = Some((p.clone(), n.clone()));
            }
            (Some('?'), Some(_)) => {}
            (Some(a), Some(b)) if a == b => {}
            _ => {
                let Some((after, rest)) = &mut star else { return false };
                // The star takes one more.
                if rest.next().is_none() {
                    return here.as_str().chars().all(|c| c == '*') && at.as_str().is_empty();
                }
                p = after.clone();
                n = rest.clone();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn patterns() {
        for (pattern, name, want) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "anything", true),
            ("**", "a", true),
            ("a*", "a", true),
            ("a*b", "ab", true),
            ("a*b", "axxbxb", true),
            ("a*b", "axxbx", false),
            ("*a*b*c", "xaybzcc", true),
            ("?", "é", true),
            ("?", "", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a]", "a", false),
            ("A", "a", false),
            ("a.b", "axb", false),
            ("*?", "", false),
            ("?*", "a", true),
        ] {
            assert_eq!(matches(pattern, name), want, "{pattern} {name}");
        }
    }

    #[test]
    fn hostile_patterns_end() {
        let (pattern, name) = ("a*".repeat(200) + "b", "a".repeat(20_000));
        assert!(!matches(&pattern, &name));
    }

    #[test]
    fn denied_is_denied_whatever_is_allowed() {
        let f = |allow: &[&str], deny: &[&str]| Filter {
            allow: allow.iter().map(ToString::to_string).collect(),
            deny: deny.iter().map(ToString::to_string).collect(),
        };
        assert!(passes(&f(&[], &[]), "x") && passes(&f(&["x"], &["y"]), "x"));
        assert!(!passes(&f(&["*"], &["x"]), "x") && !passes(&f(&["y"], &[]), "x"));
        let both = [f(&["a*"], &[]), f(&[], &["*z"])];
        assert!(passes_all(&both, "ab") && !passes_all(&both, "az") && !passes_all(&both, "b"));
        assert!(passes_all([], "b"));
    }

    /// The plain definition.
    fn slow(pattern: &[char], name: &[char]) -> bool {
        match (pattern.first(), name.first()) {
            (None, None) => true,
            (Some('*'), _) => slow(&pattern[1..], name) || !name.is_empty() && slow(pattern, &name[1..]),
            (Some(p), Some(n)) => (*p == '?' || p == n) && slow(&pattern[1..], &name[1..]),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(pattern in "[ab*?é]{0,8}", name in "[abé]{0,9}") {
            let (p, n): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
            prop_assert_eq!(matches(&pattern, &name), slow(&p, &n));
        }
    }
}
