//! Packs the Python package from the extension module that this test depends on, installs it, and runs its tests.

use std::path::Path;
use std::process::Command;

/// What `scripts/python-tests` ends with when Python or the packages cannot be had.
const ABSENT: i32 = 6;

#[test]
fn the_python_package_installs_and_passes_its_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder");
    // Cargo builds the module as a dependency of this test, beside its executable.
    let module = std::env::current_exe().expect("this program").with_file_name("lib_lockwork.so");
    let output = Command::new(root.join("scripts/python-tests"))
        .env("LOCKWORK_BIN", env!("CARGO_BIN_EXE_lockwork"))
        .env("LOCKWORK_MODULE", module)
        .env("CARGO_TARGET_DIR", target)
        .output()
        .expect("bash is there");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    match output.status.code() {
        Some(0) => assert!(said.contains(" passed") && !said.contains("skipped"), "{said}"),
        Some(ABSENT) => lockwork_testkit::skip(said.lines().last().unwrap_or("scripts/python-tests says why")),
        _ => panic!("{said}"),
    }
}
