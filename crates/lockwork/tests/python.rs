//! The Python package: it is built as `pip install ./python` does it, and its own tests are run.

use std::path::Path;
use std::process::Command;

/// What `scripts/python-tests` ends with when Python or the packages cannot be had.
const ABSENT: i32 = 6;

#[test]
fn the_python_package_builds_and_passes_its_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder");
    let mut tests = Command::new(root.join("scripts/python-tests"));
    tests.env("LOCKWORK_BIN", env!("CARGO_BIN_EXE_lockwork")).env("CARGO_TARGET_DIR", target);
    // What the caller of cargo has set is not for the cargo that builds the package; nor is what cargo says of this
    // test's package, by which some packages are built again, and once more when it is not said any more.
    let of_this = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in names.filter(|name| name == "RUSTFLAGS" || of_this(name)) {
        tests.env_remove(name);
    }
    let output = tests.output().expect("bash is there");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    match output.status.code() {
        Some(0) => assert!(said.contains(" passed") && !said.contains("skipped"), "{said}"),
        Some(ABSENT) => lockwork_skip::skip(said.lines().last().unwrap_or("scripts/python-tests says why")),
        _ => panic!("{said}"),
    }
}
