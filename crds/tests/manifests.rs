//! The committed manifests are those that the types give, and small enough for `kubectl apply`.

use std::path::Path;

/// Bytes of all annotations of an object together: the API server's bound. Client-side `kubectl apply` keeps the whole
/// object in one of them, as JSON without spaces.
const MAX_ANNOTATIONS: usize = 262_144;
/// Left for the annotations of others, such as Helm and Argo CD, and for what is to come.
const MARGIN: usize = 100_000;

#[test]
fn manifests_are_fresh_and_small() {
    for (name, definition) in outrigger_crds::definitions() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests").join(name);
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        let fresh = outrigger_crds::manifest(&definition).unwrap();
        assert!(committed == fresh, "{name} is stale: run `make generate`");
        let bytes = serde_json::to_vec(&definition).unwrap().len();
        assert!(bytes < MAX_ANNOTATIONS - MARGIN, "{name} has {bytes} bytes");
    }
}

#[test]
fn names_do_not_collide_with_other_projects() {
    let mut names = Vec::new();
    for (_, d) in outrigger_crds::definitions() {
        assert_eq!(d.spec.names.categories.as_deref(), Some(["outrigger".to_owned()].as_slice()));
        names.extend(d.spec.names.short_names.clone().unwrap_or_default());
    }
    assert_eq!(names, ["oagent", "omcp", "oskill"]);
}
