//! The command as its users meet it: results in the promised form, mistakes named and refused with exit code 2.

#[path = "common/command.rs"]
mod command;

use std::io::Write;
use std::path::PathBuf;

use command::{lockwork, run};

/// A folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

#[test]
fn mistakes_are_named_and_refused() {
    let file = folder("mistakes").join("some.bin");
    std::fs::write(&file, [0xff, 0xfe, 0, 1]).unwrap();
    let file = file.to_str().unwrap();
    let cases = [
        ("procedure check /nowhere/at/all".to_string(), "/nowhere/at/all"),
        ("procedure disassemble /".to_string(), "/"),
        ("nothing".to_string(), "nothing"),
        (format!("procedure check {file}"), "some.bin"),
        (format!("procedure disassemble {file}"), "some.bin"),
    ];
    for (line, named) in cases {
        let output = run(&line);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {error}");
        assert!(error.contains(named), "{line}: {error}");
        assert!(output.stdout.is_empty() && !error.contains("panicked"), "{line}: {error}");
    }
}

#[test]
fn a_procedure_goes_to_bytes_and_back() {
    let folder = folder("round");
    let path = |name: &str| folder.join(name).to_str().unwrap().to_string();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/transfer.lw");
    let (first, text, second) = (path("first.bin"), path("text.lw"), path("second.bin"));
    assert!(lockwork(&[], &["procedure", "assemble", "-o", &first, source]).status.success());
    let disassembled = lockwork(&[], &["procedure", "disassemble", &first]);
    assert!(disassembled.status.success(), "{}", String::from_utf8_lossy(&disassembled.stderr));
    std::fs::write(&text, &disassembled.stdout).unwrap();
    let again = lockwork(&[], &["procedure", "assemble", "-o", &second, &text]);
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    assert_eq!(std::fs::read(&first).unwrap(), std::fs::read(&second).unwrap());
    assert!(String::from_utf8_lossy(&again.stderr).contains("not verified, because the columns of table 'accounts'"));
    let checked = lockwork(&[], &["procedure", "check", source]);
    assert!(String::from_utf8_lossy(&checked.stdout).contains("straight"), "{checked:?}");
}

#[test]
fn output_that_cannot_be_written_is_named() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("it is there");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_lockwork"));
    let output = command.args(["locks", "capacity"]).stdout(full).output().expect("the command starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{error}");
    assert!(error.contains("standard output: No space left"), "{error}");
}

#[test]
fn doctor_tells_about_the_machine() {
    let output = run("doctor");
    let text = String::from_utf8_lossy(&output.stdout).to_string();
    assert!(output.status.success() && text.contains("huge pages") && text.contains("cores"), "{text}");
    for what in ["lock service, UDP      ok: ", "shared locks           ok: ", "smart storage          ok: a file in "]
    {
        assert!(text.contains(&format!("  {what}")), "{text}");
    }
    // Without rights it says which are needed.
    for what in ["lock service, XDP", "lock service, TC", "network namespaces"] {
        let line = text.lines().find(|line| line.trim_start().starts_with(what)).unwrap_or_else(|| panic!("{text}"));
        assert!(["ok: ", "CAP_NET_ADMIN", "iproute2"].iter().any(|known| line.contains(known)), "{line}");
    }
    std::io::stdout().flush().expect("a place for the test's own output");
}
