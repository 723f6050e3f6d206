//! Which crates may depend on which: three products and the accelerators stand on one core, and know nothing of each
//! other.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The wings, with their crates and the wings that these may depend on. Dev-dependencies are free.
const WINGS: &[(&str, &[&str], &[&str])] = &[
    ("core", &["memory", "procedure", "storage", "locking", "engine"], &["core"]),
    ("database", &["sql", "sequencer", "nats", "netengine", "database", "server", "client"], &["core", "database"]),
    ("locks", &["lockservice", "locknet", "sharedlocks", "etcd"], &["core", "locks"]),
    ("accelerators", &["opencl", "fpga", "neardata", "verilated"], &["core", "accelerators"]),
    ("dev", &["workload", "skip"], &["core", "database", "locks", "accelerators", "dev"]),
    ("apps", &["lockwork", "python"], &["core", "database", "locks", "accelerators", "dev", "apps"]),
];

/// Dependencies that are there and should not be. The list may only become shorter.
const EXCEPTIONS: &[(&str, &str)] = &[
    // Test code behind a feature.
    ("etcd", "skip"),
    // The benchmark of the lock service.
    ("locknet", "skip"),
    ("locknet", "workload"),
    // Test code behind a feature.
    ("nats", "skip"),
    // Smart storage and the host share the lock table of shared memory.
    ("neardata", "sharedlocks"),
    // `network-two-phase` takes its locks from the lock service.
    ("netengine", "locknet"),
    // It says why a test was skipped.
    ("verilated", "skip"),
];

fn metadata() -> Value {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let arguments = ["metadata", "--format-version", "1", "--no-deps", "--offline"];
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(root).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The name of a package without what all have in common.
fn short(name: &str) -> &str {
    name.strip_prefix("lockwork-").unwrap_or(name)
}

fn wing(name: &str) -> &'static (&'static str, &'static [&'static str], &'static [&'static str]) {
    let found = WINGS.iter().find(|(_, crates, _)| crates.contains(&name));
    found.unwrap_or_else(|| panic!("crate '{name}' is in no wing; add it to WINGS"))
}

#[test]
fn no_wing_depends_on_one_that_it_should_not_know() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("packages");
    assert!(packages.len() > 20, "{}", packages.len());
    let mut found = Vec::new();
    for package in packages {
        let name = short(package["name"].as_str().expect("a name"));
        let (_, _, allowed) = wing(name);
        let dependencies = package["dependencies"].as_array().expect("dependencies").iter();
        let own = dependencies.filter(|dependency| dependency["kind"].is_null());
        for other in
            own.filter_map(|dependency| dependency["name"].as_str()).filter(|name| name.starts_with("lockwork"))
        {
            if !allowed.contains(&wing(short(other)).0) {
                found.push((name.to_string(), short(other).to_string()));
            }
        }
    }
    found.sort();
    found.dedup();
    let exceptions: Vec<_> = EXCEPTIONS.iter().map(|(from, to)| (from.to_string(), to.to_string())).collect();
    assert_eq!(found, exceptions, "left: dependencies between wings; right: EXCEPTIONS, which may only become fewer");
}
