//! The interface for C: the header, the example, and what the functions answer.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null;

use lockwork_sharedlocks::c;

use crate::support::Name;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The folder with the library for C, which cargo builds for the tests.
fn library() -> PathBuf {
    let binary = std::env::current_exe().unwrap();
    let folders = binary.ancestors().skip(1).take(2);
    let has_both =
        |folder: &&Path| ["a", "so"].iter().all(|ending| folder.join(format!("{LIBRARY}.{ending}")).is_file());
    let found = folders.into_iter().find(has_both).map(Path::to_path_buf);
    found.unwrap_or_else(|| {
        panic!(
            "neither {LIBRARY}.a nor {LIBRARY}.so near {}; build them: cargo build -p lockwork-sharedlocks, with the \
             profile and the target directory of the tests",
            binary.display()
        )
    })
}

const LIBRARY: &str = "liblockwork_sharedlocks";
const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn the_header_is_good_c_and_cpp() {
    let header = root().join("include/lockwork_shared_locks.h");
    for (language, standard) in [("c", "c99"), ("c", "c17"), ("c++", "c++11"), ("c++", "c++20")] {
        let mut command = Command::new("cc");
        command.args(STRICT).args(["-fsyntax-only", "-x", language, &format!("-std={standard}")]).arg(&header);
        run(&mut command);
    }
}

#[test]
fn the_example_keeps_the_sum_with_either_library() {
    let (folder, name) = (library(), Name::new());
    let program = std::env::temp_dir().join(&name.0);
    let archive =
        [folder.join(format!("{LIBRARY}.a")).into_os_string(), "-lpthread".into(), "-ldl".into(), "-lm".into()];
    let shared = ["-L".into(), folder.clone().into_os_string(), "-llockwork_sharedlocks".into()];
    for libraries in [&archive[..], &shared[..]] {
        let mut compile = Command::new("cc");
        compile.args(STRICT).args(["-std=gnu11", "-O2", "-I"]).arg(root().join("include"));
        run(compile.arg(root().join("examples/ledger.c")).arg("-o").arg(&program).args(libraries));
        let said = run(Command::new(&program).args(["4", "5000"]).env("LD_LIBRARY_PATH", &folder));
        assert_eq!(said, "4 processes, 5000 transfers each, sum 16000 of 16000\n");
    }
    std::fs::remove_file(program).unwrap();
}

#[test]
fn the_header_declares_what_the_library_exports() {
    let header = std::fs::read_to_string(root().join("include/lockwork_shared_locks.h")).unwrap();
    let declared: BTreeSet<&str> = header
        .match_indices("lockwork_")
        .filter_map(|(at, _)| {
            let end = header[at..].find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
            header[at + end..].starts_with('(').then_some(&header[at..at + end])
        })
        .collect();
    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library().join(format!("{LIBRARY}.so"))));
    let exported = symbols.lines().filter_map(|line| line.split_whitespace().last());
    let exported: BTreeSet<&str> = exported.filter(|symbol| symbol.starts_with("lockwork_")).collect();
    assert_eq!(declared, exported);
    assert_eq!(declared.len(), 10);
}

fn error() -> String {
    // SAFETY: the string is good until this thread's next call.
    unsafe { CStr::from_ptr(c::lockwork_locks_error()) }.to_str().unwrap().to_string()
}

#[test]
fn the_functions_answer_as_the_header_says() {
    let name = Name::new();
    let text = CString::new(name.0.clone()).unwrap();
    // SAFETY: pointers come from the interface, live until they are closed, and are used by this thread only.
    unsafe {
        assert!(c::lockwork_locks_attach(text.as_ptr()).is_null());
        assert!(error().contains("there is no lock table"), "{}", error());
        assert!(c::lockwork_locks_create(text.as_ptr(), 63, 4).is_null());
        assert!(error().contains("a power of two"), "{}", error());
        let locks = c::lockwork_locks_create(text.as_ptr(), 64, 2);
        let [one, two] = [c::lockwork_session_open(locks), c::lockwork_session_open(locks)];
        assert!(!one.is_null() && !two.is_null());
        assert!(c::lockwork_session_open(locks).is_null());
        assert!(error().contains("all 2 sessions"), "{}", error());
        c::lockwork_locks_close(locks);

        assert_eq!(c::lockwork_session_set_age(one, 5), c::OK);
        assert_eq!(c::lockwork_lock(one, 7, 3, -1), c::OK);
        assert_eq!(c::lockwork_session_set_age(one, 6), c::IN_USE);
        assert!(error().contains("holds or waits for 1 lines"), "{}", error());
        assert_eq!(c::lockwork_lock(two, 7, 3, 0), c::BUSY);
        assert_eq!(c::lockwork_lock(two, 7, 1, 1_000_000), c::TIMED_OUT);
        assert_eq!(c::lockwork_lock(two, 8, 1, -1), c::OK);
        assert_eq!(c::lockwork_lock(two, 7, 3, -1), c::WOULD_DEADLOCK);
        assert_eq!(c::lockwork_unlock(two, 7), c::NOT_HELD);
        assert_eq!(c::lockwork_unlock_all(two), c::OK);
        assert_eq!(c::lockwork_session_set_age(two, 1), c::OK);
        for mode in [0, 4, -1] {
            assert_eq!(c::lockwork_lock(two, 7, mode, -1), c::FAILED);
            assert!(error().contains("1 is shared, 2 intent, 3 exclusive"), "{}", error());
        }
        assert_eq!(c::lockwork_unlock(one, 7), c::OK);
        assert_eq!(c::lockwork_lock(two, 7, 2, 0), c::OK);
        c::lockwork_session_close(one);
        c::lockwork_session_close(two);

        assert!(c::lockwork_locks_create(null(), 64, 4).is_null() && error().contains("null"));
        assert!(c::lockwork_locks_attach(c"\xff".as_ptr()).is_null() && error().contains("UTF-8"));
        for name in [c"", c"..", c"a b", c"a\nb", c"/"] {
            assert!(c::lockwork_locks_create(name.as_ptr(), 64, 4).is_null(), "{name:?}");
            assert!(error().contains("cannot be the name of a lock table"), "{}", error());
            assert!(c::lockwork_locks_attach(name.as_ptr()).is_null(), "{name:?}");
        }
        assert!(c::lockwork_session_open(null()).is_null() && error().contains("null"));
        assert_eq!(c::lockwork_lock(std::ptr::null_mut(), 7, 3, 0), c::FAILED);
        assert_eq!(c::lockwork_unlock_all(std::ptr::null_mut()), c::FAILED);
        c::lockwork_session_close(std::ptr::null_mut());
        c::lockwork_locks_close(std::ptr::null_mut());
    }
}

#[test]
fn a_child_that_uses_its_parents_session_ends_and_the_lock_stays() {
    let name = Name::new();
    let text = CString::new(name.0.clone()).unwrap();
    // SAFETY: as above; the child of the fork does nothing but one of the calls, and ends.
    unsafe {
        let locks = c::lockwork_locks_create(text.as_ptr(), 64, 4);
        let [session, other] = [c::lockwork_session_open(locks), c::lockwork_session_open(locks)];
        assert_eq!(c::lockwork_lock(session, 7, 3, -1), c::OK);
        let uses: [&dyn Fn(); 4] = [
            &|| _ = c::lockwork_lock(session, 8, 3, 0),
            &|| _ = c::lockwork_unlock(session, 7),
            &|| c::lockwork_session_close(session),
            &|| _ = c::lockwork_session_open(locks),
        ];
        for (at, step) in uses.into_iter().enumerate() {
            let child = libc::fork();
            if child == 0 {
                step();
                libc::_exit(0);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "use {at}: {status:x}");
            assert_eq!(c::lockwork_lock(other, 7, 3, 0), c::BUSY, "use {at}");
        }
        c::lockwork_session_close(session);
        assert_eq!(c::lockwork_lock(other, 7, 3, 0), c::OK);
        c::lockwork_session_close(other);
        c::lockwork_locks_close(locks);
    }
}
