//! Which crates may depend on which: three products and the accelerators stand on one core, and know nothing of each
//! other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The wings, which are the folders of `crates/`, and the wings that their crates may depend on. Dev-dependencies are
/// free.
const WINGS: &[(&str, &[&str])] = &[
    ("core", &["core"]),
    ("database", &["core", "database"]),
    ("locks", &["core", "locks"]),
    ("accelerators", &["core", "accelerators"]),
    ("dev", &["core", "database", "locks", "accelerators", "dev"]),
    ("apps", &["core", "database", "locks", "accelerators", "dev", "apps"]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().expect("the repository")
}

/// Every package of the workspace, as `cargo metadata` describes it.
fn packages() -> Vec<Value> {
    let arguments = ["metadata", "--format-version", "1", "--no-deps", "--offline"];
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(root()).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

/// The wing of a package: its folder of `crates/`. The Python package is an application.
fn wing(package: &Value) -> String {
    let manifest = Path::new(package["manifest_path"].as_str().expect("a path"));
    let path = manifest.strip_prefix(root()).expect("a path in the repository");
    match path.strip_prefix("crates") {
        Ok(inside) => inside.iter().next().expect("a wing").to_string_lossy().into_owned(),
        Err(_) => "apps".to_string(),
    }
}

#[test]
fn no_wing_depends_on_a_forbidden_one() {
    let packages = packages();
    assert!(packages.len() > 20, "{}", packages.len());
    let wings: BTreeMap<_, _> =
        packages.iter().map(|package| (package["name"].as_str().expect("a name"), wing(package))).collect();
    let mut found = Vec::new();
    for package in &packages {
        let name = package["name"].as_str().expect("a name");
        let wing = &wings[name];
        let (_, allowed) = WINGS.iter().find(|(known, _)| known == wing).unwrap_or_else(|| panic!("no wing '{wing}'"));
        let dependencies = package["dependencies"].as_array().expect("dependencies").iter();
        let own = dependencies.filter(|dependency| dependency["kind"].is_null());
        for other in own.filter_map(|dependency| dependency["name"].as_str()) {
            if wings.get(other).is_some_and(|wing| !allowed.contains(&wing.as_str())) {
                found.push(format!("{name} -> {other}: crates of {wing} may depend on {}", allowed.join(", ")));
            }
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn the_library_depends_on_few_crates() {
    let arguments = ["tree", "-p", "lockwork", "-e", "normal,build", "--prefix", "none", "--offline"];
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(root()).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let crates: BTreeSet<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!((20..=60).contains(&crates.len()), "{} crates: {crates:?}", crates.len());
    for heavy in ["tokio", "clap", "prost-build", "rusqlite", "lockwork-locks", "lockwork-opencl", "lockwork-workload"]
    {
        assert!(!crates.contains(heavy), "the library depends on {heavy}");
    }
}
