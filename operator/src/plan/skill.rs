//! The `ConfigMap` of a Skill: its files as bytes and a manifest that the sidecar checks them against.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::ResourceExt;
use outrigger_crds::Skill;
use outrigger_protocol::skill::{Code, Defect, File, check};
use serde_json::{Map, Value, json};

use super::identity::owner;
use super::{ChildKind, Planned};
use crate::names;

/// Version of the manifest.
const MANIFEST_VERSION: u32 = 1;

/// A Skill as it is published.
#[derive(Clone, Debug, PartialEq)]
pub struct SkillPlan {
    /// Its `ConfigMap`.
    pub config_map: Planned,
    /// Digest of its files.
    pub digest: String,
    /// Number of files.
    pub files: usize,
    /// Their sizes together.
    pub bytes: u64,
    /// Description in the front matter.
    pub description: String,
    /// What a reader can live with.
    pub warnings: Vec<Defect>,
}

/// Plans the `ConfigMap` of a Skill, or says what is wrong with it.
pub fn skill(skill: &Skill) -> Result<SkillPlan, Vec<Defect>> {
    let name = skill.name_any();
    let given = skill.spec.source.inline.as_ref().map(|i| i.files.as_slice()).unwrap_or_default();
    let mut files = Vec::with_capacity(given.len());
    let mut defects = Vec::new();
    for file in given {
        let content: Cow<'_, [u8]> = match (&file.content, &file.content_base64) {
            (Some(text), _) => Cow::Borrowed(text.as_bytes()),
            (None, Some(text)) => match STANDARD.decode(text) {
                Ok(bytes) => Cow::Owned(bytes),
                Err(error) => {
                    let message = format!("contentBase64 does not decode: {error}");
                    defects.push(Defect::error(Code::ContentInvalid, &file.path, message));
                    continue;
                }
            },
            (None, None) => Cow::Borrowed(&[]),
        };
        files.push(File { path: &file.path, content, executable: file.executable });
    }
    let checked = match check(&name, &files) {
        Ok(checked) if defects.is_empty() => checked,
        Ok(_) => return Err(defects),
        Err(more) => {
            defects.extend(more);
            return Err(defects);
        }
    };
    let mut data = Map::new();
    let mut manifest = Vec::with_capacity(checked.files.len());
    for (i, file) in checked.files.iter().enumerate() {
        let key = format!("f{i}");
        data.insert(key.clone(), Value::String(STANDARD.encode(&file.content)));
        manifest.push(json!({
            "path": file.path,
            "key": key,
            "executable": file.executable,
            "sha256": file.sha256,
            "size": file.content.len(),
        }));
    }
    let manifest = json!({"version": MANIFEST_VERSION, "digest": checked.digest, "files": manifest});
    let config_map = names::skill_config_map(&name);
    let body = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": config_map,
            "namespace": skill.namespace(),
            "labels": names::skill_labels(&name),
            "ownerReferences": [owner::<Skill>(&name, &skill.uid().unwrap_or_default())],
        },
        "binaryData": data,
        "data": {"manifest.json": manifest.to_string()},
    });
    Ok(SkillPlan {
        config_map: Planned::new(ChildKind::ConfigMap, config_map, body),
        digest: checked.digest,
        files: checked.files.len(),
        bytes: checked.bytes,
        description: checked.front.description,
        warnings: checked.warnings,
    })
}
