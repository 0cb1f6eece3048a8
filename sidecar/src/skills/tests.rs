use super::*;
use futures::future::BoxFuture;
use outrigger_protocol::config::Delivery;
use serde_json::json;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Bed {
    dir: tempfile::TempDir,
    generation: std::cell::Cell<u32>,
}

impl Bed {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("src/menu")).unwrap();
        fs::create_dir_all(dir.path().join("skills")).unwrap();
        Self { dir, generation: std::cell::Cell::new(0) }
    }

    /// Lays a state of the volume as the kubelet does: real files in a dated folder behind `..data`.
    fn lay(&self, files: &[(&str, &str, bool)], spoil: bool) -> String {
        let n = self.generation.get() + 1;
        self.generation.set(n);
        let volume = self.dir.path().join("src/menu");
        let dated = volume.join(format!("..{n}"));
        fs::create_dir(&dated).unwrap();
        let mut entries = Vec::new();
        for (i, (path, text, executable)) in files.iter().enumerate() {
            fs::write(dated.join(format!("f{i}")), if spoil { "spoiled" } else { text }).unwrap();
            entries.push(json!({"path": path, "key": format!("f{i}"), "executable": executable,
                "sha256": outrigger_protocol::digest::sha256(text.as_bytes()), "size": text.len()}));
        }
        let digest = digest_of(&of(files));
        let manifest = json!({"version": 1, "digest": digest, "files": entries});
        fs::write(dated.join("manifest.json"), manifest.to_string()).unwrap();
        let new = volume.join("..data_tmp");
        symlink(format!("..{n}"), &new).unwrap();
        fs::rename(new, volume.join("..data")).unwrap();
        if n == 1 {
            symlink("..data/manifest.json", volume.join("manifest.json")).unwrap();
        }
        digest
    }

    fn skills(&self) -> Arc<Skills> {
        self.with(Live::new(json!({})), None).0
    }

    fn with(&self, live: Live, source: Option<Arc<dyn Source>>) -> (Arc<Skills>, watch::Sender<Arc<Live>>) {
        let (tx, rx) = watch::channel(Arc::new(live));
        let mounts = vec![SkillMount { name: "menu".into(), required: true }];
        let metrics = Metrics::register(&prometheus::Registry::new()).unwrap();
        let (sources, target) = (self.dir.path().join("src"), self.dir.path().join("skills"));
        (Skills::start(&sources, &target, mounts, rx, source, metrics), tx)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }
}

fn of(files: &[(&str, &str, bool)]) -> Vec<File> {
    let file = |(path, text, executable): &(&str, &str, bool)| File {
        path: (*path).into(),
        executable: *executable,
        sha256: outrigger_protocol::digest::sha256(text.as_bytes()),
        content: text.as_bytes().to_vec(),
    };
    files.iter().map(file).collect()
}

/// Revisions by digest; counts what it is asked for.
#[derive(Default)]
struct Memory {
    revisions: BTreeMap<String, Vec<File>>,
    asked: AtomicUsize,
}

impl Source for Memory {
    fn files<'a>(&'a self, digest: &'a str) -> BoxFuture<'a, Result<Vec<File>, String>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let files = self.revisions.get(digest).cloned().ok_or_else(|| "no such revision".to_owned());
        Box::pin(async { files })
    }
}

fn live(skills: &[(&str, &str, Delivery)]) -> Live {
    let skill = |(name, digest, delivery): &(&str, &str, Delivery)| Skill {
        name: (*name).into(),
        digest: (*digest).into(),
        delivery: *delivery,
        required: true,
        ..Skill::default()
    };
    Live { skills: skills.iter().map(skill).collect(), ..Live::new(json!({})) }
}

#[tokio::test(start_paused = true)]
async fn files_are_real_read_only_and_replaced_in_one_step() {
    let bed = Bed::new();
    bed.lay(&[("SKILL.md", "one", false), ("scripts/run.sh", "#!", true)], false);
    let skills = bed.skills();
    assert!(skills.started());
    let menu = bed.dir.path().join("skills/menu");
    assert!(!fs::symlink_metadata(&menu).unwrap().file_type().is_symlink());
    let mode = |p: PathBuf| fs::symlink_metadata(p).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        (
            mode(menu.join("SKILL.md")),
            mode(menu.join("scripts/run.sh")),
            mode(menu.join("scripts")),
            mode(menu.clone())
        ),
        (0o444, 0o555, 0o555, 0o555)
    );
    let turn = skills.published().remove(0);
    let pinned = turn.path.clone();
    let second = bed.lay(&[("SKILL.md", "two", false)], false);
    skills.refresh();
    assert_eq!(fs::read_to_string(menu.join("SKILL.md")).unwrap(), "two");
    assert!(!menu.join("scripts").exists());
    assert_eq!(fs::read_to_string(pinned.join("SKILL.md")).unwrap(), "one", "a turn under way keeps its tree");
    skills.refresh();
    assert!(pinned.exists());
    drop(turn);
    skills.refresh();
    assert!(!pinned.exists(), "it goes with its last turn");
    assert_eq!(skills.status()[0].digest, second);
}

#[tokio::test]
async fn a_bad_state_never_replaces_a_good_one() {
    let bed = Bed::new();
    let skills = bed.skills();
    assert!(!skills.started());
    assert_eq!(skills.status()[0].part.reason, "SkillMissing");
    let first = bed.lay(&[("SKILL.md", "one", false)], false);
    skills.refresh();
    assert!(skills.started() && skills.status()[0].part.ready);
    bed.lay(&[("SKILL.md", "two", false)], true);
    skills.refresh();
    let status = &skills.status()[0];
    assert_eq!(
        (status.part.ready, status.part.reason.as_str(), status.digest.as_str()),
        (false, "FileInvalid", first.as_str())
    );
    assert_eq!(fs::read_to_string(bed.dir.path().join("skills/menu/SKILL.md")).unwrap(), "one");
    bed.lay(&[("../SKILL.md", "three", false)], false);
    skills.refresh();
    assert_eq!(skills.status()[0].part.reason, "ManifestInvalid");
    assert!(!bed.dir.path().join("skills/SKILL.md").exists());
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_never_ends_keeps_its_tree_for_so_long_only() {
    let bed = Bed::new();
    bed.lay(&[("SKILL.md", "one", false)], false);
    let skills = bed.skills();
    let turn = skills.published().remove(0);
    bed.lay(&[("SKILL.md", "two", false)], false);
    skills.refresh();
    assert!(turn.path.exists());
    tokio::time::advance(Duration::from_secs(7200)).await;
    skills.refresh();
    assert!(!turn.path.exists());
}

#[tokio::test]
async fn the_document_says_which_revision_there_is_and_the_source_has_it() {
    let bed = Bed::new();
    let first = bed.lay(&[("SKILL.md", "one", false)], false);
    let files = of(&[("SKILL.md", "---\nname: menu\ndescription: Knows the\n  menu\n---\ntwo", false)]);
    let second = digest_of(&files);
    let source = Arc::new(Memory { revisions: [(second.clone(), files)].into(), ..Memory::default() });
    let (skills, live_tx) = bed.with(live(&[("menu", &first, Delivery::Both)]), Some(Arc::clone(&source) as _));
    assert!(skills.started(), "the start-up copy is the revision");
    skills.fetch().await;
    assert_eq!(source.asked.load(Ordering::Relaxed), 0, "nothing is fetched that is there");
    live_tx.send_replace(Arc::new(live(&[("menu", &second, Delivery::Both)])));
    skills.fetch().await;
    assert_eq!((skills.status()[0].digest.as_str(), skills.status()[0].part.ready), (second.as_str(), true));
    assert_eq!(fs::read_to_string(bed.path("skills/.catalogue.md")).unwrap(), "- menu: Knows the menu\n");
    // What nobody has: the one before stays, and it is said.
    let lost = "0".repeat(64);
    live_tx.send_replace(Arc::new(live(&[("menu", &lost, Delivery::Both)])));
    skills.fetch().await;
    let status = skills.status().remove(0);
    assert_eq!((status.digest, status.part.reason.as_str()), (second.clone(), "RevisionMissing"));
    let asked = source.asked.load(Ordering::Relaxed);
    skills.fetch().await;
    assert_eq!(source.asked.load(Ordering::Relaxed), asked, "a failure is not tried again at once");
    // One that leaves.
    live_tx.send_replace(Arc::new(live(&[("other", &second, Delivery::Both)])));
    skills.refresh();
    assert!(!bed.path("skills/menu").exists() && !bed.path("skills/.rev").join(&second).exists());
}

#[tokio::test]
async fn a_source_cannot_pass_off_other_files() {
    let bed = Bed::new();
    let good = digest_of(&of(&[("SKILL.md", "good", false)]));
    let source = Memory { revisions: [(good.clone(), of(&[("SKILL.md", "evil", false)]))].into(), ..Memory::default() };
    let (skills, _live) = bed.with(live(&[("menu", &good, Delivery::Both)]), Some(Arc::new(source)));
    skills.fetch().await;
    assert_eq!(skills.status()[0].part.reason, "DigestMismatch");
    assert!(!skills.started() && !bed.path("skills/menu").exists());
}

#[tokio::test]
async fn what_is_served_over_mcp_alone_has_no_files() {
    let bed = Bed::new();
    let first = bed.lay(&[("SKILL.md", "one", false)], false);
    let (skills, live_tx) = bed.with(live(&[("menu", &first, Delivery::Both)]), None);
    assert!(bed.path("skills/menu").exists());
    live_tx.send_replace(Arc::new(live(&[("menu", &first, Delivery::Mcp)])));
    skills.refresh();
    assert!(!bed.path("skills/menu").exists() && !bed.path("skills/.rev").join(&first).exists());
    assert!(skills.started() && skills.published().is_empty());
    assert_eq!(skills.shelf.borrow()[0].tree.item("SKILL.md").unwrap().read().unwrap(), b"one");
    live_tx.send_replace(Arc::new(live(&[("menu", &first, Delivery::Both)])));
    skills.refresh();
    assert_eq!(fs::read_to_string(bed.path("skills/menu/SKILL.md")).unwrap(), "one");
}

#[tokio::test]
async fn a_sidecar_that_comes_back_takes_over_good_trees_alone() {
    let bed = Bed::new();
    let first = bed.lay(&[("SKILL.md", "one", false), ("scripts/run.sh", "#!", true)], false);
    drop(bed.skills());
    fs::remove_dir_all(bed.path("src/menu")).unwrap();
    let document = live(&[("menu", &first, Delivery::Both)]);
    assert!(bed.with(document.clone(), None).0.started(), "the tree that was left is the revision");
    let file = bed.path("skills/.rev").join(&first).join("menu/SKILL.md");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(&file, "two").unwrap();
    let skills = bed.with(document, None).0;
    assert!(!skills.started(), "a tree that was changed is not");
}
