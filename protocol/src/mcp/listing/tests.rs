use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::*;
use crate::config::{Drift, Filter, ToolPolicy};
use crate::jsonrpc::Envelope;
use crate::mcp::pin::{Pinned, digest};
use proptest::prelude::*;

fn message(result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#)
}

fn page(list: List, text: &str) -> Option<Page<'_>> {
    Page::read(list, Envelope::parse(text, usize::MAX).unwrap().result.unwrap())
}

fn item(list: List, raw: &str) -> Item<'_> {
    Item::read(list, Slice { raw, at: 0 })
}

#[test]
fn lists_and_their_words() {
    for list in List::ALL {
        assert_eq!(List::of(list.method()), Some(list));
        let text = message(&format!(
            "{{\"{}\":[{{\"{}\":\"\\u0061\"}},7],\"ttlMs\":5,\"cacheScope\":\"public\",\"nextCursor\":\"\"}}",
            list.key(),
            list.id_key()
        ));
        let page = page(list, &text).unwrap();
        assert_eq!(page.items.iter().map(|i| &*i.id).collect::<Vec<_>>(), ["a", ""]);
        assert_eq!((page.next, page.ttl_ms, page.public), (Some("\"\""), Some(5), true));
    }
    assert_eq!(List::of("tools/call"), None);
    for no_list in ["{}", "7", "{\"tools\":{}}"] {
        assert!(page(List::Tools, &message(no_list)).is_none());
    }
    let bare = message("{\"tools\":[],\"ttlMs\":-1,\"nextCursor\":null}");
    let bare = page(List::Tools, &bare).unwrap();
    assert_eq!((bare.next, bare.ttl_ms, bare.public), (None, None, false));
}

#[test]
fn a_page_is_only_touched_where_something_changes() {
    let text = message(
        "{\"x\":12345678901234567890, \"tools\": [ {\"name\":\"c\"} , {\"name\":\"a\",\"y\":\"\\ud800\"}, {} ]}",
    );
    let page = page(List::Tools, &text).unwrap();
    let keep = |i: &Item<'_>| (!i.id.is_empty()).then(|| i.raw().to_owned().into());
    assert_eq!(page.rewritten(&text, false, |i| Some(i.raw().into())), None);
    let sorted = String::from_utf8(page.rewritten(&text, true, keep).unwrap()).unwrap();
    assert_eq!(
        sorted,
        message("{\"x\":12345678901234567890, \"tools\": [{\"name\":\"a\",\"y\":\"\\ud800\"},{\"name\":\"c\"}]}")
    );
    let none = String::from_utf8(page.rewritten(&text, false, |_| None).unwrap()).unwrap();
    assert_eq!(none, message("{\"x\":12345678901234567890, \"tools\": []}"));
}

#[test]
fn items_with_changes() {
    let mut table = String::new();
    let all = Change { id: Some("s__a"), original: Some("a"), max_description: Some(8), app: Some("ui://s+w") };
    for (list, raw) in [
        (List::Tools, r#"{"name":"a","description":"A long one","inputSchema":{"description":"A long one"}}"#),
        (List::Tools, r#"{"description":"short","_meta":{"ui":{"resourceUri":"ui://w"},"x":1.0}, "name" : "\u0061" }"#),
        (List::Prompts, r#"{"name":"a","_meta":null}"#),
        (List::Resources, r#"{"uri":"a","name":"n"}"#),
        (List::Templates, r#"{"uriTemplate":"a{x}","description":7}"#),
        (List::Tools, "[]"),
    ] {
        let _ = writeln!(table, "{}", item(list, raw).changed(&all));
        assert!(matches!(item(list, raw).changed(&Change::default()), Cow::Borrowed(same) if same == raw));
    }
    insta::assert_snapshot!(table);
    let same = Change { id: Some("a"), max_description: Some(100), ..Change::default() };
    assert!(matches!(
        item(List::Tools, "{\"name\":\"\\u0061\",\"description\":\"d\"}").changed(&same),
        Cow::Borrowed(_)
    ));
}

#[test]
fn which_tools_are_there() {
    let modern = Audience { modern: true, ..Audience::default() };
    let plain = r#"{"name":"get_a","inputSchema":{"type":"object"}}"#;
    let policy = |drift, pin: Option<&str>| ToolPolicy {
        filters: vec![Filter { allow: vec!["get_*".into()], deny: vec!["*_secret".into()] }],
        drift,
        pins: pin.map(|raw| ("get_a".to_owned(), digest(raw).unwrap())).into_iter().collect::<BTreeMap<_, _>>(),
        ..ToolPolicy::default()
    };
    let told = |raw: &str, policy: Option<&ToolPolicy>, audience: Audience<'_>| {
        judge(&item(List::Tools, raw), policy, audience).map_err(|d| d.label())
    };
    let open = policy(Drift::Allow, None);
    let caller = Filter { allow: vec![], deny: vec!["get_a".into()] };
    assert_eq!(told(plain, None, Audience::default()), Ok(Pinned::Free));
    assert_eq!(told(plain, Some(&open), modern), Ok(Pinned::Free));
    assert_eq!(told(r#"{"name":"get_secret"}"#, Some(&open), modern), Err("filter"));
    assert_eq!(told(r#"{"name":"set_a"}"#, Some(&open), modern), Err("filter"));
    assert_eq!(told(plain, Some(&open), Audience { caller: Some(&caller), ..modern }), Err("filter"));
    assert_eq!(told("{}", None, modern), Err("name"));
    let headers = r#"{"name":"get_a","inputSchema":{"properties":{"a":{"type":"number","x-mcp-header":"A"}}}}"#;
    assert_eq!(told(headers, None, modern), Err("annotation"));
    assert_eq!(told(headers, None, Audience::default()), Ok(Pinned::Free));
    let task = r#"{"name":"get_a","execution":{"taskSupport":"required"}}"#;
    assert_eq!(told(task, None, modern), Err("task"));
    assert_eq!(told(task, None, Audience { tasks: true, ..Audience::default() }), Ok(Pinned::Free));
    assert_eq!(told(plain, Some(&policy(Drift::Block, Some(plain))), modern), Ok(Pinned::Same));
    let other = policy(Drift::Block, Some("{}"));
    assert_eq!(told(plain, Some(&other), modern), Err("drift"));
    assert_eq!(told(r#"{"name":"get_b"}"#, Some(&other), modern), Err("drift"));
    assert!(told(plain, Some(&policy(Drift::Warn, Some("{}"))), modern).unwrap().drifted());
    assert_eq!(told(plain, Some(&policy(Drift::Allow, Some("{}"))), modern), Ok(Pinned::Free));
}

#[test]
fn one_list_of_several() {
    let texts = [
        message(r#"{"tools":[{"name":"z"}],"ttlMs":500,"cacheScope":"public"}"#),
        message(r#"{"tools":[{"name":"a", "x":1.0}],"ttlMs":90,"cacheScope":"public"}"#),
    ];
    let mut merged = Merged::new(List::Tools);
    for text in &texts {
        let page = page(List::Tools, text).unwrap();
        merged.part(&page);
        for item in &page.items {
            merged.push(&*item.id, item.raw()).unwrap();
        }
    }
    merged.sort();
    let say = |m: &Merged, next, modern| String::from_utf8(m.response("\"i\"", next, modern)).unwrap();
    let mut table = format!("{}\n", say(&merged, None, None));
    let _ = writeln!(table, "{}", say(&merged, Some("c"), Some("{\"name\":\"o\"}")));
    merged.missing();
    let _ = writeln!(table, "{}", say(&merged, None, Some("{\"name\":\"o\"}")));
    let _ = writeln!(table, "{}", say(&Merged::new(List::Resources), None, Some("{}")));
    insta::assert_snapshot!(table);
    assert_eq!((merged.len(), merged.is_empty()), (2, false));
}

#[test]
fn a_list_has_bounds() {
    let mut merged = Merged::new(List::Tools);
    assert_eq!(merged.push("a", "x".repeat(MAX_BYTES + 1)), Err(Full));
    for _ in 0..MAX_ITEMS {
        merged.push("a", "{}").unwrap();
    }
    assert_eq!(merged.push("a", "{}"), Err(Full));
}

proptest! {
    /// What stays in a list keeps its bytes, in whatever order.
    #[test]
    fn kept_items_keep_their_bytes(
        names in prop::collection::vec("[a-d]", 0..8),
        keep in "[a-d]",
        extra in "[0-9]{1,25}",
        sorted in any::<bool>(),
    ) {
        let raw: Vec<String> = names.iter().map(|n| format!("{{\"n\": 1{extra},\"name\":\"{n}\"}}")).collect();
        let text = message(&format!("{{\"tools\":[{}]}}", raw.join(" , ")));
        let page = page(List::Tools, &text).unwrap();
        let line = page.rewritten(&text, sorted, |i| (*i.id >= *keep).then(|| i.raw().into()));
        let line = line.unwrap_or_else(|| text.clone().into_bytes());
        let line = String::from_utf8(line).unwrap();
        let got: Vec<String> =
            super::super::listing::Page::read(List::Tools, Envelope::parse(&line, 64).unwrap().result.unwrap())
                .unwrap().items.iter().map(|i| i.raw().to_owned()).collect();
        let mut want: Vec<(String, String)> =
            names.into_iter().zip(raw).filter(|(n, _)| *n >= keep).collect();
        if sorted {
            want.sort_by(|a, b| a.0.cmp(&b.0));
        }
        prop_assert_eq!(got, want.into_iter().map(|(_, raw)| raw).collect::<Vec<_>>());
    }
}
