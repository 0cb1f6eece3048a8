use super::*;
use serde_json::json;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

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
    fn lay(&self, digest: char, files: &[(&str, &str, bool)], spoil: bool) {
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
        let manifest = json!({"version": 1, "digest": digest.to_string().repeat(64), "files": entries});
        fs::write(dated.join("manifest.json"), manifest.to_string()).unwrap();
        let new = volume.join("..data_tmp");
        symlink(format!("..{n}"), &new).unwrap();
        fs::rename(new, volume.join("..data")).unwrap();
        if n == 1 {
            symlink("..data/manifest.json", volume.join("manifest.json")).unwrap();
        }
    }

    fn skills(&self) -> Arc<Skills> {
        let card = json!({});
        let live = Arc::new(Live::new(card));
        let (_, rx) = watch::channel(live);
        let mounts = vec![SkillMount { name: "menu".into(), required: true }];
        let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
        Skills::start(&self.dir.path().join("src"), &self.dir.path().join("skills"), mounts, rx, metrics)
    }
}

#[tokio::test(start_paused = true)]
async fn files_are_real_read_only_and_replaced_in_one_step() {
    let bed = Bed::new();
    bed.lay('a', &[("SKILL.md", "one", false), ("scripts/run.sh", "#!", true)], false);
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
    let pinned = skills.published()[0].path.clone();
    bed.lay('b', &[("SKILL.md", "two", false)], false);
    skills.refresh();
    assert_eq!(fs::read_to_string(menu.join("SKILL.md")).unwrap(), "two");
    assert!(!menu.join("scripts").exists());
    assert_eq!(fs::read_to_string(pinned.join("SKILL.md")).unwrap(), "one", "a turn under way keeps its tree");
    tokio::time::advance(Duration::from_secs(3600)).await;
    skills.refresh();
    assert!(!pinned.exists());
    assert_eq!(skills.status()[0].digest, "b".repeat(64));
}

#[tokio::test]
async fn a_bad_state_never_replaces_a_good_one() {
    let bed = Bed::new();
    let skills = bed.skills();
    assert!(!skills.started());
    assert_eq!(skills.status()[0].part.reason, "SkillMissing");
    bed.lay('a', &[("SKILL.md", "one", false)], false);
    skills.refresh();
    assert!(skills.started() && skills.status()[0].part.ready);
    bed.lay('b', &[("SKILL.md", "two", false)], true);
    skills.refresh();
    let status = &skills.status()[0];
    assert_eq!(
        (status.part.ready, status.part.reason.as_str(), status.digest.as_str()),
        (false, "FileInvalid", "a".repeat(64).as_str())
    );
    assert_eq!(fs::read_to_string(bed.dir.path().join("skills/menu/SKILL.md")).unwrap(), "one");
    bed.lay('c', &[("../SKILL.md", "three", false)], false);
    skills.refresh();
    assert_eq!(skills.status()[0].part.reason, "ManifestInvalid");
    assert!(!bed.dir.path().join("skills/SKILL.md").exists());
}
