//! Bad names, foreign and damaged segments, a full file system, too many sessions, races to create: an error that says
//! what is wrong, and nothing left behind.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use lockwork_locking::shared::TableError;
use lockwork_locking::shared::memory::Memory;
use lockwork_sharedlocks::{Error, Layout, LockMode, Options, SessionNumber, SharedLocks, WaitPolicy, segment};
use lockwork_testkit::skip;

use crate::support::{Chance, Name, Player, options, table};

fn open(name: &Name) -> File {
    OpenOptions::new().read(true).write(true).open(segment::path_of(&name.0)).unwrap()
}

/// The error of an attempt, as its user reads it.
#[track_caller]
fn refused<T>(attempt: Result<T, Error>) -> String {
    match attempt {
        Ok(_) => panic!("it was let through"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_segment_that_is_no_table_of_this_version_is_refused() {
    let with = |change: &dyn Fn(&File)| {
        let (name, locks) = table(64, 4);
        drop(locks);
        change(&open(&name));
        let error = refused(SharedLocks::attach(&name.0));
        assert!(error.contains(&name.0), "{error}");
        error
    };
    let put = |word: u64, value: u64| move |file: &File| file.write_all_at(&value.to_ne_bytes(), word * 8).unwrap();
    assert!(with(&put(1, 7)).contains("format 7; this program knows format 1"));
    assert!(with(&put(0, 0x0123_4567_89AB_CDEF)).contains("no lock table: it begins with 0x0123456789abcdef"));
    for word in 2..8 {
        let error = with(&put(word, 1 << 20));
        assert!(
            error.contains("damaged") || error.contains("not possible") || error.contains("cannot hold"),
            "{error}"
        );
    }
    for length in [0, 63, 4096, 1 << 20] {
        let error = with(&|file| file.set_len(length).unwrap());
        assert!(error.contains(&format!("has {length} bytes")), "{error}");
    }
    assert!(with(&|file| file.write_all_at(&[0; 64], 0).unwrap()).contains("no lock table"));
    let error = refused(SharedLocks::attach("/proc/self/exe"));
    assert!(error.contains("cannot open") || error.contains("no lock table"), "{error}");
    assert!(refused(SharedLocks::attach("/dev/shm")).contains("directory"));
}

#[test]
fn a_damaged_line_is_told_of_and_the_others_stay_good() {
    const LINE: u64 = 3;
    let damages: [&[(u64, u64)]; 5] = [
        &[(0, 5 << 2)],
        &[(0, 3)],
        &[(0, ((1 << 23) - 1) << 18 | 5 << 2 | 3)],
        &[(0, 1 << 18 | 1 << 14), (1, 99 << 2 | 3)],
        &[(0, 2 << 18 | 1 << 14 | 3), (2, u64::MAX)],
    ];
    for damage in damages {
        let (name, locks) = table(64, 4);
        let mut session = locks.session().unwrap();
        session.lock(LINE, LockMode::Exclusive).unwrap();
        session.lock(4, LockMode::Exclusive).unwrap();
        let words = locks.table().layout().words() as u64 - (64 - LINE) * 8;
        for (word, value) in damage {
            open(&name).write_all_at(&value.to_ne_bytes(), (words + word) * 8).unwrap();
        }
        let is_damage = |error: &Error| matches!(error, Error::Table(TableError::Damage(damage)) if damage.line == 3);
        let mut other = locks.session().unwrap();
        let attempts = [
            other.lock(LINE, LockMode::Exclusive),
            locks.table().everybody(LINE as u32, |_| ()).map_err(Error::from),
            locks.table().standing(session.number(), LINE as u32).map(drop).map_err(Error::from),
            session.unlock(LINE),
            session.unlock_all(),
        ];
        for (at, attempt) in attempts.into_iter().enumerate() {
            let error = attempt.expect_err(&format!("attempt {at}"));
            assert!(is_damage(&error), "attempt {at}: {error}");
            assert!(error.to_string().contains("line 3 of the lock table is damaged"), "{error}");
        }
        // All the same the other line was given back.
        other.try_lock(4, LockMode::Exclusive).unwrap();
    }
}

#[test]
fn names_that_cannot_be_are_told_of() {
    let options = options(64, 4);
    assert!(refused(SharedLocks::create("/nowhere/at/all", &options)).contains("/nowhere/at/all"));
    assert!(refused(SharedLocks::attach("no-such-table")).contains("create it first (lockwork shared-locks create)"));
    assert!(refused(segment::remove("no-such-table").map(drop)).contains("there is no lock table"));
    let (name, _locks) = table(64, 4);
    assert!(refused(SharedLocks::create(&name.0, &options)).contains("there is a lock table"));
    for (layout, what) in [
        (Layout { lines: 63, ..options.layout }, "a power of two"),
        (Layout { sessions: 0, ..options.layout }, "1 to 4095"),
        (Layout { sessions: 4096, ..options.layout }, "1 to 4095"),
        (Layout { held: 65, ..options.layout }, "1 to 64 are possible"),
    ] {
        let name = Name::new();
        assert!(refused(SharedLocks::create(&name.0, &Options { layout, ..options })).contains(what));
        assert!(!segment::path_of(&name.0).exists());
    }
    // A link to nowhere is there and is not: asking for both must end.
    let name = Name::new();
    std::os::unix::fs::symlink("/nowhere/at/all", segment::path_of(&name.0)).unwrap();
    assert!(refused(SharedLocks::create_or_attach(&name.0, &options)).contains("cannot open"));
}

#[test]
fn names_that_lists_could_not_tell_apart_are_refused() {
    let long = "x".repeat(201);
    let plain = ["", ".", "..", ".hidden", "a b", " ", "a\nb", "a\tb", "nul\0", "\u{1b}[2J", "\u{430}", "a,b", &long];
    let paths = ["/", "/dev/shm/", "/dev/shm/.", "/dev/shm/..", "a/..", "/dev/shm/a\nb", "/dev/shm/a\u{7f}", "/a\0"];
    for name in plain.into_iter().chain(paths) {
        let attempts = [
            SharedLocks::create(name, &options(64, 4)).map(drop),
            SharedLocks::attach(name).map(drop),
            SharedLocks::create_or_attach(name, &options(64, 4)).map(drop),
            segment::remove(name),
        ];
        for attempt in attempts {
            let error = refused(attempt);
            assert!(error.starts_with(&format!("{name:?} cannot be the name of a lock table")), "{error}");
            assert!(error.contains("1 to 200 of the letters") && !error.contains(char::is_control), "{error}");
        }
    }
    // All that is allowed, as long as it may be; and paths, whose spaces are quoted wherever they are shown.
    let Name(test) = &Name::new();
    let longest = format!("{test}_.-AZaz09{}", "x".repeat(200 - test.len() - 10));
    for name in [longest, format!("/dev/shm/{test} of mine"), format!("/dev/shm/.{test}")] {
        SharedLocks::create(&name, &options(64, 4)).unwrap();
        SharedLocks::attach(&name).unwrap();
        segment::remove(&name).unwrap();
    }
}

#[test]
fn a_file_in_the_way_is_told_from_a_table() {
    let Name(name) = &Name::new();
    let place = segment::path_of(name);
    let other = |what: &str| {
        let error = refused(SharedLocks::create(name, &options(64, 4)));
        assert!(error.contains("is there already and is no lock table"), "{what}: {error}");
        assert!(error.contains(place.to_str().unwrap()), "{what}: {error}");
    };
    for content in [&b""[..], b"short", &[7; 4096]] {
        std::fs::write(&place, content).unwrap();
        other("a file");
        let error = refused(SharedLocks::create_or_attach(name, &options(64, 4)));
        assert!(error.contains("no lock table") || error.contains("bytes"), "{error}");
        std::fs::remove_file(&place).unwrap();
    }
    std::fs::create_dir(&place).unwrap();
    other("a folder");
    std::fs::remove_dir(&place).unwrap();
    std::os::unix::fs::symlink("/nowhere/at/all", &place).unwrap();
    other("a link to nowhere");
    std::fs::remove_file(&place).unwrap();
    let fifo = CString::new(place.to_str().unwrap()).unwrap();
    // SAFETY: a system call with a string that lives through it.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    other("a pipe, which nobody opens to read: that would wait for a writer");
    std::fs::remove_file(&place).unwrap();
    // However damaged or old, a table is one.
    drop(SharedLocks::create(name, &options(64, 4)).unwrap());
    std::fs::OpenOptions::new().write(true).open(&place).unwrap().set_len(8).unwrap();
    assert!(refused(SharedLocks::create(name, &options(64, 4))).contains("there is a lock table"));
    segment::remove(name).unwrap();
}

/// A session whose process has died, with these lines, exclusively.
fn dead(locks: &SharedLocks, lines: &[u32]) -> SessionNumber {
    let number = locks.session().unwrap().number();
    let mut dead = locks.table().open(number, 4_000_000, &mut |_| ()).unwrap();
    for line in lines {
        locks.table().request(&mut dead, *line, LockMode::Exclusive, WaitPolicy::Try, &mut |_| ()).unwrap();
    }
    number
}

/// Writes into a session's list that it holds another line than this one.
fn damage_list(locks: &SharedLocks, line: u32, other: u64) {
    let memory = locks.table().memory();
    let entry = |line: u64| line << 32 | (LockMode::Exclusive as u64) << 30 | 1;
    let at = (0..memory.words()).find(|word| memory.load(*word) == entry(line.into())).unwrap();
    memory.store(at, entry(other));
}

#[test]
fn a_session_that_the_dead_left_damaged_is_passed_over() {
    let (name, locks) = table(64, 3);
    let lost = dead(&locks, &[3, 4, 5]);
    damage_list(&locks, 4, 99);
    // Whoever waits for a line that the list still names gets it, and nothing is said of the others.
    let mut session = locks.session().unwrap();
    assert_ne!(session.number(), lost);
    session.try_lock(5, LockMode::Exclusive).unwrap();
    session.lock_within(3, LockMode::Exclusive, crate::support::LONG).unwrap();
    // So does a request for the line that the list has lost.
    session.try_lock(4, LockMode::Exclusive).unwrap();
    assert!(refused(locks.clean_up()).contains("line 99 of the lock table is damaged"));
    assert_eq!(locks.table().check(lost).unwrap_err().line, 99);
    assert_eq!(locks.table().check(session.number()), Ok(()));
    let again = SharedLocks::attach(&name.0).unwrap();
    let other = again.session().unwrap();
    assert_ne!(other.number(), lost);
    // None is left but that one.
    let error = again.session().expect_err("none is left");
    assert!(error.is_retryable(), "{error}");
    let text = error.to_string();
    assert!(text.contains("all 3 sessions") && text.contains("but for 1 that") && text.contains("line 99"), "{text}");
    drop(other);
    again.session().unwrap();
}

#[test]
fn a_table_of_damaged_sessions_alone_says_so() {
    let (_name, locks) = table(64, 2);
    for line in [1, 2] {
        dead(&locks, &[line]);
        let word = locks.table().line_word(line);
        locks.table().memory().store(word, 3);
    }
    let error = locks.session().expect_err("both are damaged");
    assert!(!error.is_retryable() && error.to_string().contains("but for 2 that"), "{error}");
}

#[test]
fn all_sessions_in_use_is_an_error_that_passes() {
    let (_name, locks) = table(64, 3);
    let mut all: Vec<_> = (0..3).map(|_| locks.session().unwrap()).collect();
    let error = locks.session().expect_err("three are in use");
    assert!(error.is_retryable() && error.to_string().contains("all 3 sessions"), "{error}");
    all.remove(1);
    assert_eq!(locks.session().unwrap().number().get(), 2);
}

#[test]
fn more_lines_than_a_session_can_hold_is_an_error_that_changes_nothing() {
    let name = Name::new();
    let few = Options { layout: Layout { held: 2, ..options(64, 4).layout }, ..options(64, 4) };
    let locks = SharedLocks::create(&name.0, &few).unwrap();
    let (mut session, mut other) = (locks.session().unwrap(), locks.session().unwrap());
    session.lock(1, LockMode::Exclusive).unwrap();
    session.lock(2, LockMode::Exclusive).unwrap();
    assert!(refused(session.lock(3, LockMode::Exclusive)).contains("holds 2 lines already"));
    other.try_lock(3, LockMode::Exclusive).unwrap();
    session.unlock(1).unwrap();
    session.lock(4, LockMode::Exclusive).unwrap();
}

#[test]
fn a_segment_of_somebody_else_is_refused() {
    let (name, locks) = table(64, 4);
    drop(locks);
    let place = segment::path_of(&name.0);
    assert_eq!(place.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o000)).unwrap();
    let error = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                // SAFETY: a system call without pointers; as root, this thread opens files as nobody from now on.
                unsafe { libc::setfsuid(65534) };
                (refused(SharedLocks::attach(&name.0)), refused(SharedLocks::create("/root-only", &options(64, 4))))
            })
            .join()
            .unwrap()
    });
    assert!(error.0.contains("Permission denied") && error.0.contains(&name.0), "{error:?}");
    assert!(error.1.contains("Permission denied") && error.1.contains("/root-only"), "{error:?}");
}

/// Runs something with a file system of this many bytes at a folder, that nobody else sees; `None` where that may not
/// be.
fn with_small_file_system<T: Send>(bytes: u32, step: impl FnOnce(&Path) -> T + Send) -> Option<T> {
    let folder = std::env::temp_dir().join(Name::new().0.clone());
    std::fs::create_dir(&folder).unwrap();
    let mounted = std::thread::scope(|scope| {
        let inside = || {
            let text = |text: &str| CString::new(text).unwrap();
            let (none, tmpfs, root) = (text("none"), text("tmpfs"), text("/"));
            let (place, size) = (text(folder.to_str().unwrap()), text(&format!("size={bytes}")));
            let flags = libc::MS_REC | libc::MS_PRIVATE;
            // SAFETY: system calls with strings that live through them. They change what this thread sees, and no
            // other.
            let done = unsafe {
                libc::unshare(libc::CLONE_NEWNS) == 0
                    && libc::mount(none.as_ptr(), root.as_ptr(), std::ptr::null(), flags, std::ptr::null()) == 0
                    && libc::mount(none.as_ptr(), place.as_ptr(), tmpfs.as_ptr(), 0, size.as_ptr().cast()) == 0
            };
            done.then(|| step(&folder)).ok_or_else(std::io::Error::last_os_error)
        };
        scope.spawn(inside).join().unwrap()
    });
    std::fs::remove_dir(&folder).unwrap();
    match mounted {
        Ok(done) => Some(done),
        Err(error) => {
            skip(&format!("a file system cannot be mounted in a namespace of its own: {error}"));
            None
        }
    }
}

#[test]
fn privileged_a_full_file_system_is_an_error_and_leaves_nothing() {
    with_small_file_system(64 << 10, |folder| {
        let name = folder.join("locks");
        let error = refused(SharedLocks::create(name.to_str().unwrap(), &options(4096, 4)));
        assert!(
            error.contains("cannot reserve") && error.contains("No space left") && error.contains("locks"),
            "{error}"
        );
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0);
        let locks = SharedLocks::create(name.to_str().unwrap(), &options(64, 4)).unwrap();
        locks.session().unwrap().lock(1, LockMode::Exclusive).unwrap();
    });
}

#[test]
fn many_who_create_or_attach_at_once_get_one_table() {
    for _ in 0..10 {
        let name = Name::new();
        let mut processes: Vec<_> = (0..6).map(|_| Player::silent(&format!("create {}", name.0))).collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let locks = SharedLocks::create_or_attach(&name.0, &options(64, 64)).unwrap();
                    let mut session = locks.session().unwrap();
                    session.lock_within(1, LockMode::Exclusive, crate::support::LONG).unwrap();
                });
            }
        });
        assert!(processes.iter_mut().all(|process| process.wait().success()));
        SharedLocks::attach(&name.0).unwrap().session().unwrap().try_lock(1, LockMode::Exclusive).unwrap();
    }
}

#[test]
fn a_creator_that_is_killed_leaves_a_whole_table_or_none() {
    let mut chance = Chance::new(1);
    let (mut whole, name) = (0, Name::new());
    for _ in 0..100 {
        let mut creator = Player::silent(&format!("create {}", name.0));
        std::thread::sleep(Duration::from_micros(chance.below(4000)));
        creator.kill();
        match SharedLocks::attach(&name.0) {
            Ok(locks) => {
                locks.session().unwrap().lock_within(1, LockMode::Exclusive, Duration::from_secs(2)).unwrap();
                segment::remove(&name.0).unwrap();
                whole += 1;
            }
            Err(error) => assert!(matches!(error, Error::Missing(_)), "{error}"),
        }
        let left = std::fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> = left.filter(|left| left.to_string_lossy().contains(&format!("{}.", name.0))).collect();
        assert!(left.is_empty(), "{left:?}");
    }
    println!("{whole} of 100 got as far as the name");
}

#[test]
fn a_removed_table_lives_as_long_as_somebody_uses_it() {
    let (name, locks) = table(64, 4);
    let other = SharedLocks::attach(&name.0).unwrap();
    let mut session = locks.session().unwrap();
    session.lock(1, LockMode::Exclusive).unwrap();
    segment::remove(&name.0).unwrap();
    assert!(matches!(SharedLocks::attach(&name.0), Err(Error::Missing(_))));
    assert!(matches!(other.session().unwrap().try_lock(1, LockMode::Exclusive), Err(Error::Busy)));
    let anew = SharedLocks::create(&name.0, &options(64, 4)).unwrap();
    anew.session().unwrap().try_lock(1, LockMode::Exclusive).unwrap();
    session.unlock(1).unwrap();
    other.session().unwrap().try_lock(1, LockMode::Exclusive).unwrap();
}

#[test]
fn an_attachment_is_to_one_table_while_its_name_changes_hands() {
    let name = Name::new();
    std::thread::scope(|scope| {
        let attaching = scope.spawn(|| {
            let mut attached = 0;
            while attached < 1000 {
                match SharedLocks::attach(&name.0) {
                    Ok(locks) => {
                        let session = locks.session().unwrap();
                        assert!(locks.is_alive(session.number()).unwrap(), "it asks about sessions of another table");
                        attached += 1;
                    }
                    Err(error) => assert!(matches!(error, Error::Missing(_)), "{error}"),
                }
            }
        });
        while !attaching.is_finished() {
            drop(SharedLocks::create(&name.0, &options(64, 4)));
            drop(segment::remove(&name.0));
        }
    });
}
