//! The Python package: it is built as `pip install ./python` does it, and its own tests are run.

use std::path::Path;
use std::process::Command;

/// What `scripts/python-tests` ends with when Python or the packages cannot be had.
const ABSENT: i32 = 6;

#[test]
fn the_python_package_builds_and_passes_its_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder");
    let output = Command::new(root.join("scripts/python-tests"))
        .env("LOCKWORK_BIN", env!("CARGO_BIN_EXE_lockwork"))
        .env("CARGO_TARGET_DIR", target)
        // What the caller of cargo has set is not for the cargo that builds the package.
        .env_remove("RUSTFLAGS")
        .output()
        .expect("bash is there");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    match output.status.code() {
        Some(0) => assert!(said.contains(" passed") && !said.contains("skipped"), "{said}"),
        Some(ABSENT) => lockwork_skip::skip(said.lines().last().unwrap_or("scripts/python-tests says why")),
        _ => panic!("{said}"),
    }
}
