//! Runs every example: each asserts what it claims.

use std::path::PathBuf;
use std::process::Command;

/// Where cargo put the examples of this package: beside the folder of the test programs.
fn built() -> PathBuf {
    let test = std::env::current_exe().expect("a test program has a path");
    test.parent().and_then(|deps| deps.parent()).expect("it lies in target/PROFILE/deps").join("examples")
}

#[test]
fn every_example_runs_and_prints_something() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .expect("there are examples")
        .filter_map(|entry| {
            entry.expect("a readable folder").file_name().to_str()?.strip_suffix(".rs").map(String::from)
        })
        .collect();
    names.sort();
    assert!(names.len() >= 10, "{names:?}");
    for (number, name) in names.iter().enumerate() {
        assert!(name.starts_with(&format!("{:02}_", number + 1)), "{name}: examples are numbered without a gap");
        let output = Command::new(built().join(name)).output().unwrap_or_else(|error| {
            panic!("{name}: {error}; cargo builds examples with all tests: 'cargo test -p lockwork'")
        });
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{name}: {}\n{out}{err}", output.status);
        assert!(!out.trim().is_empty(), "{name} prints nothing");
    }
}
