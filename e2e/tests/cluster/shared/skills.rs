//! Skills as files: read-only for the agent, replaced live, a bad new version never replaces a good old one.

use outrigger_e2e::{Namespace, ensure, eventually};

use crate::bed::{agent, installed, s, said, send, url};

fn skill(text: &str) -> String {
    format!(
        "apiVersion: outrigger.dev/v1alpha1\nkind: Skill\nmetadata: {{name: menu}}\nspec:\n  source:\n    inline:\n      files:\n      \
         - path: SKILL.md\n        content: |\n          {}\n      - {{path: scripts/run.sh, content: '#!/bin/sh', executable: true}}\n",
        text.replace('\n', "\n          ")
    )
}

#[test]
fn files_are_read_only_and_follow_the_resource() {
    installed();
    let ns = Namespace::new("skills").unwrap();
    ns.apply(&skill("---\nname: menu\ndescription: The menu\n---\none")).unwrap();
    ns.apply(&agent("reader", "  skills: [{name: menu}]")).unwrap();
    ns.wait("oagent/reader", "Ready", "True", "", s(60)).unwrap();
    let url = url(&ns, "reader");
    assert!(said(&send(&url, "read menu SKILL.md").unwrap()).contains("one"));
    for path in ["/skills/menu/SKILL.md", "/skills/menu/new", "/skills/new", "/new"] {
        let answer = said(&send(&url, &format!("write {path}")).unwrap());
        assert!(answer.starts_with("refused"), "{path}: {answer}");
    }
    let pods = crate::bed::pods(&ns, "reader").unwrap();
    ns.apply(&skill("---\nname: menu\ndescription: The menu\n---\ntwo")).unwrap();
    eventually("the new text is there", s(30), || {
        let answer = said(&send(&url, "read menu SKILL.md")?);
        ensure(answer.contains("two"), || answer.clone())
    })
    .unwrap();
    ns.apply(&skill("no front matter")).unwrap();
    let bad = ns.wait("oskill/menu", "Accepted", "False", "InvalidSkill", s(30)).unwrap();
    assert_eq!(bad["status"]["agents"], 1);
    assert!(said(&send(&url, "read menu SKILL.md").unwrap()).contains("two"));
    let after = crate::bed::pods(&ns, "reader").unwrap();
    assert_eq!(crate::bed::name(&pods[0]), crate::bed::name(&after[0]), "no restart for a skill");
}
