//! Two real processes, and what becomes of one when the other dies, at any time and in any way. This program starts
//! itself again as the other side: `storage_child` and `host_child` are no tests then.

mod memory;

use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockwork_neardata::device::{Device, DeviceError, Piece, Purpose, Ran, TransactionId, Version};
use lockwork_neardata::link::Link;
use lockwork_neardata::process::{ProcessConfig, SpawnError, StorageProcess};
use lockwork_neardata::program::storage_main;
use lockwork_neardata::record::Vid;
use memory::{Memory, operation, schema};

/// Says to a program that was started again what it is to do.
const ROLE: &str = "LOCKWORK_TEST_ROLE";
/// Longer than anything here takes, however busy the machine is.
const LONG: Duration = Duration::from_secs(30);

fn again(test: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args([test, "--exact", "--nocapture", "--test-threads", "1"]).env(ROLE, role);
    command
}

fn config(data: &Path) -> ProcessConfig {
    ProcessConfig { start: LONG, stop: LONG, ..ProcessConfig::new(data) }
}

fn storage(data: &Path) -> StorageProcess {
    StorageProcess::spawn(again("storage_child", "serves"), config(data)).expect("it starts")
}

/// A file for one test, not there yet.
fn file(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("lockwork-{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

#[test]
fn storage_child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let code = storage_main(|arguments| match role.as_str() {
        "refuses" => Err(format!("{}: no such file", arguments.data.display())),
        "panics" => panic!("page 7 is upside down"),
        "is slow" => {
            std::thread::sleep(LONG);
            Err("nobody waits so long".into())
        }
        "has files" => {
            let file = arguments.file("locks").ok_or("no lock table")?;
            let text = std::fs::read_to_string(format!("/proc/self/fd/{}", file.as_raw_fd()));
            Err(format!("{text:?} {} {}", arguments.elements, arguments.link))
        }
        _ => Ok(Arc::new(Memory::with_journal(arguments.data.clone()))),
    });
    std::process::exit(i32::from(code != ExitCode::SUCCESS));
}

#[test]
fn two_processes_work_together_and_end_in_good_order() {
    for link in Link::ALL {
        let config = ProcessConfig { link, ..config(&file("order")) };
        let storage = StorageProcess::spawn(again("storage_child", "serves"), config).expect("it starts");
        assert_eq!(storage.create_table(&schema("t")), Ok(0));
        assert_eq!(storage.tables(), Ok(vec![schema("t")]));
        let image = Some(vec![7; 100].into());
        let versions = (0..20_000).map(|vid| Version { vid: Vid(vid), number: 1, created: 1, image: image.clone() });
        let versions = versions.collect::<Vec<_>>();
        assert_eq!(storage.flush(0, &versions, 0).map(|records| records.len()), Ok(20_000));
        assert_eq!(storage.read(0, Vid(9), 1), Ok(Some(versions[9].clone())));
        let mut bytes = 0;
        let bulk = operation(Purpose::Filter, 100_000, 50_000, Duration::ZERO);
        let ran = storage.run(&bulk, &mut |piece| match piece {
            Piece::Rows { images, .. } => bytes += images.len(),
            other => panic!("{other:?}"),
        });
        assert_eq!((ran, bytes), (Ok(Ran { rows: 200_000, taken: 100_000 }), 100_000 * memory::IMAGE_BYTES));
        let (device, id) = (storage.device(), storage.id());
        drop(storage);
        assert!(!Path::new(&format!("/proc/{id}")).exists(), "it has ended and was waited for");
        assert_eq!(device.status(), Err(DeviceError::Gone("exit status: 0".into())));
    }
}

#[test]
fn what_does_not_start_says_why() {
    let spawn = |role: &str| {
        let config = ProcessConfig { start: Duration::from_millis(300), ..config(Path::new("/there/is/none")) };
        StorageProcess::spawn(again("storage_child", role), config).expect_err(role)
    };
    let text = StorageProcess::spawn(Command::new("/there/is/no/program"), config(Path::new("x")))
        .expect_err("no program")
        .to_string();
    assert!(text.starts_with("the storage process '/there/is/no/program' cannot be started: No such file"), "{text}");
    assert!(matches!(spawn("is slow"), SpawnError::Slow(_)));
    let config = |data| ProcessConfig { link: Link::Cxl, elements: 3, ..config(Path::new(data)) };
    let ends = |role: &str, config: ProcessConfig| {
        StorageProcess::spawn(again("storage_child", role), config).expect_err(role).to_string()
    };
    let text = ends("refuses", config("/there/is/none"));
    let words = "exit status: 1; its last words: smart storage: /there/is/none: no such file";
    assert_eq!(text, format!("the storage process did not start: {words}"));
    assert!(ends("panics", config("x")).contains("page 7 is upside down"));
    // A program that is something else, and ends well.
    let text = StorageProcess::spawn(Command::new("true"), config("x")).expect_err("it is no storage").to_string();
    assert_eq!(text, "the storage process did not start: exit status: 0");
    let path = file("locks");
    std::fs::write(&path, "all locked").expect("a test's own file");
    let locks = OwnedFd::from(std::fs::File::open(&path).expect("it was written"));
    let text = ends("has files", ProcessConfig { files: vec![("locks".into(), locks)], ..config("x") });
    assert!(text.ends_with("smart storage: Ok(\"all locked\") 3 cxl"), "{text}");
    std::fs::remove_file(path).expect("it was written");
}

#[test]
fn storage_that_dies_in_a_call_says_how() {
    for (vid, how) in [
        (0xffff_fff0, "exit status: 1; its last words: "),
        (0xffff_fff0, "smart storage: the storage panicked: asked for the tuple that panics"),
        (0xffff_fff1, "exit status: 7"),
    ] {
        let storage = storage(&file("dies"));
        let Err(DeviceError::Gone(text)) = storage.read(0, Vid(vid), 1) else { panic!("it has died") };
        assert!(text.contains(how), "{text}");
        assert_eq!(storage.status(), Err(DeviceError::Gone(text.clone())));
        assert_eq!(storage.abort(TransactionId(1)), Err(DeviceError::Gone(text)));
    }
}

#[test]
fn storage_that_is_killed_at_any_time_ends_all_calls() {
    let answered = AtomicU64::new(0);
    for round in 0..120_u64 {
        let storage = storage(&file("killed"));
        let image = Some(vec![7; 500].into());
        let versions = (0..3_000).map(|vid| Version { vid: Vid(vid), number: 1, created: 1, image: image.clone() });
        let versions = versions.collect::<Vec<_>>();
        let until_gone = |call: &dyn Fn() -> Result<(), DeviceError>| {
            let error = loop {
                match call() {
                    Ok(()) => answered.fetch_add(1, Ordering::Relaxed),
                    Err(error) => break error,
                };
            };
            assert_eq!(error, DeviceError::Gone("signal: 9 (SIGKILL)".into()));
            assert_eq!(storage.status(), Err(error));
        };
        let start = Instant::now();
        let bulk = operation(Purpose::Filter, 20_000, 3_000, Duration::ZERO);
        std::thread::scope(|scope| {
            scope.spawn(|| until_gone(&|| storage.run(&bulk, &mut |_| ()).map(drop)));
            scope.spawn(|| until_gone(&|| storage.flush(1, &versions, 1).map(drop)));
            scope.spawn(|| until_gone(&|| storage.read(1, Vid(3), 1).map(drop)));
            scope.spawn(|| until_gone(&|| storage.tuples(1, &mut |_| ())));
            std::thread::sleep(Duration::from_micros(round * 47 % 5_000));
            // SAFETY: a plain system call; nobody but the watcher waits for the process, once it has ended.
            assert_eq!(unsafe { libc::kill(storage.id() as i32, libc::SIGKILL) }, 0);
        });
        assert!(start.elapsed() < LONG);
    }
    assert!(answered.into_inner() > 100);
}

#[test]
fn host_child() {
    if std::env::var(ROLE).as_deref() != Ok("host") {
        return;
    }
    let data = std::env::var("LOCKWORK_TEST_DATA").expect("the test gives it");
    // Started by a thread that ends: that must not end the storage.
    let storage = std::thread::spawn(move || storage(Path::new(&data))).join().expect("no panic");
    println!("storage {}", storage.id());
    storage
        .run(&operation(Purpose::Update(TransactionId(1)), 10, 1, Duration::ZERO), &mut |_| ())
        .expect("it is served");
    storage.commit(TransactionId(1), 1).expect("it is served");
    // One that is done and not committed, and one that is killed.
    storage
        .run(&operation(Purpose::Update(TransactionId(2)), 10, 1, Duration::ZERO), &mut |_| ())
        .expect("it is served");
    println!("begins");
    let bulk = operation(Purpose::Update(TransactionId(3)), 1 << 40, 1000, Duration::from_micros(50));
    let _ = storage.run(&bulk, &mut |_| ());
}

#[test]
fn storage_ends_with_its_host_and_commits_nothing() {
    for round in 0..10 {
        let data = file("host");
        let mut host = again("host_child", "host");
        let mut host = host
            .env("LOCKWORK_TEST_DATA", &data)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("this program");
        let mut lines =
            BufReader::new(host.stdout.take().expect("it is piped")).lines().map(|line| line.expect("text"));
        let id = lines.find_map(|line| line.split("storage ").nth(1).map(str::to_string)).expect("it says so");
        // SAFETY: a plain system call, about a process that runs; the result is checked.
        let file = unsafe { libc::syscall(libc::SYS_pidfd_open, id.parse::<i32>().expect("a number"), 0) } as i32;
        assert!(file >= 0);
        // SAFETY: nobody else knows of the file.
        let storage = unsafe { OwnedFd::from_raw_fd(file) };
        lines.find(|line| line == "begins").expect("it says so");
        std::thread::sleep(Duration::from_millis(round));
        host.kill().expect("it runs");
        host.wait().expect("it was killed");
        let mut poll = libc::pollfd { fd: storage.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd that lives during the call.
        assert_eq!(unsafe { libc::poll(&raw mut poll, 1, LONG.as_millis() as i32) }, 1, "storage {id} goes on");
        let journal = std::fs::read_to_string(&data).expect("it was written");
        let journal = journal.trim_end_matches("begun 3\n");
        assert_eq!(journal, "begun 1\ncommitted 1 at 1\nbegun 2\n");
        std::fs::remove_file(data).expect("it was written");
    }
}
