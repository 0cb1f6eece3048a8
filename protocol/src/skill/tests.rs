use super::*;

fn skill(text: &str) -> Vec<File<'_>> {
    vec![File { path: SKILL_FILE, content: Cow::Borrowed(text.as_bytes()), executable: false }]
}

fn codes(defects: &[Defect]) -> Vec<Code> {
    defects.iter().map(|d| d.code).collect()
}

fn accepted(text: &str) -> Checked<'_> {
    check("pdf", &skill(text)).unwrap_or_else(|d| panic!("{text:?}: {d:?}"))
}

fn refused(text: &str) -> Vec<Code> {
    match check("pdf", &skill(text)) {
        Ok(_) => panic!("{text:?} was accepted"),
        Err(defects) => codes(&defects),
    }
}

#[test]
fn accepts_what_readers_accept() {
    for (text, description) in [
        ("---\nname: pdf\ndescription: Fills forms\n---\nDo it.\n", "Fills forms"),
        ("---\r\nname: pdf\r\ndescription: Fills forms\r\n---\r\nDo it.\r\n", "Fills forms"),
        ("--- \nname: pdf\ndescription: >\n  Fills\n  forms\n---\nx", "Fills forms"),
        ("---\nname: pdf\ndescription: a --- b\n---\nx", "a --- b"),
        ("---\nname: pdf\ndescription: \"Use when: x\"\n---\nx", "Use when: x"),
        ("---\nname: pdf\ndescription: Füllt Formulare 表\n---\nx", "Füllt Formulare 表"),
    ] {
        let checked = accepted(text);
        assert_eq!(checked.front.description, description);
        assert_eq!(checked.warnings, [], "{text:?}");
        assert_eq!(checked.files[0].content.as_ref(), text.as_bytes(), "bytes stay");
    }
}

#[test]
fn reads_all_fields() {
    let c = accepted(
        "---\nname: pdf\ndescription: d\nlicense: MIT\ncompatibility: needs git\nmetadata: {author: me}\nallowed-tools: Bash(git add:*) Read\n---\nx",
    );
    assert_eq!(c.warnings, []);
    assert_eq!(c.front.license.as_deref(), Some("MIT"));
    assert_eq!(c.front.compatibility.as_deref(), Some("needs git"));
    assert_eq!(c.front.metadata["author"], "me");
    assert_eq!(c.front.allowed_tools, ["Bash(git add:*)", "Read"]);
    let c = accepted("---\nname: pdf\ndescription: d\nallowed-tools: [Read, Write]\n---\nx");
    assert_eq!(c.front.allowed_tools, ["Read", "Write"]);
}

#[test]
fn warns_of_what_can_be_lived_with() {
    for (text, code) in [
        ("---\nname: other\ndescription: d\n---\nx", Code::NameMismatch),
        ("---\nname: pdf\ndescription: d\n---", Code::BodyEmpty),
        ("---\nname: pdf\ndescription: d\nversion: 1.10\n---\nx", Code::FieldUnknown),
        ("---\nname: pdf\ndescription: d\nmetadata:\n  version: 1.10\n---\nx", Code::MetadataNotText),
        ("---\nname: pdf\ndescription: d # and more\n---\nx", Code::DescriptionCut),
        ("---\nname: pdf\ndescription: d\ncompatibility: ''\n---\nx", Code::CompatibilityInvalid),
    ] {
        assert_eq!(codes(&accepted(text).warnings), [code], "{text:?}");
    }
}

#[test]
fn repairs_prose_with_a_colon() {
    let c = accepted("---\nname: pdf\ndescription: Use when: a \"form\" comes\n---\nx");
    assert_eq!(codes(&c.warnings), [Code::FrontMatterRepaired]);
    assert_eq!(c.warnings[0].place, "SKILL.md:3");
    assert_eq!(c.front.description, "Use when: a \"form\" comes");
    let delivered = std::str::from_utf8(&c.files[0].content).unwrap();
    assert_eq!(delivered, "---\nname: pdf\ndescription: \"Use when: a \\\"form\\\" comes\"\n---\nx");
    assert_eq!(codes(&accepted(delivered).warnings), [], "the repaired text needs no repair");
    assert_eq!(c.digest, accepted(delivered).digest, "the digest is of what is delivered");
}

#[test]
fn does_not_repair_where_the_meaning_is_open() {
    for text in [
        "---\nname: pdf\ndescription: Use when: x # why\n---\nx",
        "---\nname: pdf\ndescription: '*a: b: c\n---\nx",
        "---\nname: pdf\ndescription: [a: b: c\n---\nx",
    ] {
        assert_eq!(refused(text), [Code::FrontMatterInvalid], "{text:?}");
    }
}

#[test]
fn strips_a_byte_order_mark() {
    let c = accepted("\u{feff}---\nname: pdf\ndescription: d\n---\nx");
    assert_eq!(codes(&c.warnings), [Code::ByteOrderMark]);
    assert!(c.files[0].content.starts_with(b"---"));
}

#[test]
fn refuses_what_readers_drop() {
    for (text, code) in [
        ("", Code::FrontMatterMissing),
        ("# Title\n", Code::FrontMatterMissing),
        ("\n---\nname: pdf\ndescription: d\n---\n", Code::FrontMatterMissing),
        ("----\nname: pdf\ndescription: d\n----\n", Code::FrontMatterMissing),
        ("---\rname: pdf\rdescription: d\r---\r", Code::FrontMatterMissing),
        ("---\nname: pdf\ndescription: d\n", Code::FrontMatterUnclosed),
        ("---\nname: pdf\ndescription: d\n...\n", Code::FrontMatterUnclosed),
        ("---\nname: pdf\n---\nx", Code::DescriptionMissing),
        ("---\nname: pdf\ndescription: '  '\n---\nx", Code::DescriptionMissing),
        ("---\nname: pdf\ndescription:\n---\nx", Code::FieldNotText),
        ("---\nname: yes\ndescription: d\n---\nx", Code::FieldNotText),
        ("---\nname: 123\ndescription: d\n---\nx", Code::FieldNotText),
        ("---\ndescription: d\n---\nx", Code::NameMissing),
        ("---\nname: Pdf\ndescription: d\n---\nx", Code::NameInvalid),
        ("---\nname: a--b\ndescription: d\n---\nx", Code::NameInvalid),
        ("---\nname: 表\ndescription: d\n---\nx", Code::NameInvalid),
        ("---\nname: pdf\nname: pdf\ndescription: d\n---\nx", Code::FrontMatterInvalid),
        ("---\n- a\n---\nx", Code::FrontMatterInvalid),
        ("---\nname: pdf\ndescription: &a d\n---\nx", Code::FrontMatterUnsafe),
        ("---\nname: pdf\ndescription: !x d\n---\nx", Code::FrontMatterUnsafe),
        ("---\nname: pdf\ndescription: d\nmetadata:\n  a: &x y\n---\nx", Code::FrontMatterUnsafe),
        ("---\nname: pdf\ndescription: d\n---\n\0", Code::NotText),
    ] {
        assert_eq!(refused(text), [code], "{text:?}");
    }
    let long = format!("---\nname: pdf\ndescription: {}\n---\nx", "d".repeat(1025));
    assert_eq!(refused(&long), [Code::DescriptionTooLong]);
    let long = format!("---\nname: pdf\ndescription: d\nx: {}\n---\nx", "d".repeat(65 << 10));
    assert_eq!(refused(&long), [Code::FrontMatterTooLong]);
    let latin = vec![File { path: SKILL_FILE, content: Cow::Borrowed(b"---\nname: \xe9\n---"), executable: false }];
    assert_eq!(codes(&check("pdf", &latin).unwrap_err()), [Code::NotText]);
}

#[test]
fn names_the_line_of_a_mistake() {
    let defects = check("pdf", &skill("---\nname: pdf\ndescription: 'open\n---\nx")).unwrap_err();
    assert_eq!(defects[0].code, Code::FrontMatterInvalid);
    assert!(defects[0].place.starts_with("SKILL.md:"), "{defects:?}");
    assert!(!defects[0].message.contains('\n'), "{defects:?}");
}

#[test]
fn a_lower_case_file_gets_a_hint() {
    let files = vec![File { path: "skill.md", content: Cow::Borrowed(b"x"), executable: false }];
    let defects = check("pdf", &files).unwrap_err();
    assert_eq!(codes(&defects), [Code::SkillFileMissing]);
    assert!(defects[0].message.contains("rename skill.md"));
}

#[test]
fn sizes_are_bounded_and_errors_come_first() {
    let big = vec![b'x'; MAX_TOTAL_BYTES];
    let mut files = skill("---\nname: other\ndescription: d\n---\nx");
    files.push(File { path: "big", content: Cow::Borrowed(&big), executable: false });
    let defects = check("pdf", &files).unwrap_err();
    assert_eq!(codes(&defects), [Code::TooLarge, Code::NameMismatch]);
}

#[test]
fn the_digest_covers_path_mode_and_content() {
    let text = "---\nname: pdf\ndescription: d\n---\nx";
    let with = |path: &'static str, content: &'static [u8], executable| {
        let mut files = skill(text);
        files.push(File { path, content: Cow::Borrowed(content), executable });
        check("pdf", &files).unwrap().digest
    };
    let base = with("run.py", b"1", false);
    assert_eq!(base, with("run.py", b"1", false));
    assert_ne!(base, with("run.py", b"1", true));
    assert_ne!(base, with("run.py", b"2", false));
    assert_ne!(base, with("ran.py", b"1", false));
}

proptest::proptest! {
    #[test]
    fn never_panics(text in "(---\n)?[ -~\n\u{e9}]{0,200}(---\n)?.{0,50}") {
        let _ = check("pdf", &skill(&text));
    }

    #[test]
    fn accepted_content_is_accepted_again_as_delivered(value in "[a-z: \"#]{1,40}") {
        let text = format!("---\nname: pdf\ndescription: {value}\n---\nx");
        if let Ok(checked) = check("pdf", &skill(&text)) {
            let delivered = String::from_utf8(checked.files[0].content.to_vec()).unwrap();
            let again = check("pdf", &skill(&delivered)).map_err(|d| format!("{d:?}")).unwrap();
            assert_eq!(again.front, checked.front);
            assert_eq!(again.digest, checked.digest);
        }
    }
}
