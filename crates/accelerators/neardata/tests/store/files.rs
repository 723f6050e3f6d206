//! Real files: direct I/O with io_uring and without, in memory file systems, and two openers.

use std::path::{Path, PathBuf};

use lockwork_neardata::storage::disk::{DirectDisk, Disk};

use super::*;

/// A file that goes away with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(folder: &Path, name: &str) -> Self {
        let path = folder.join(format!("lockwork-store-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn fill_update_and_reopen(open: &dyn Fn() -> Store) {
    let store = open();
    store.create_table(&schema()).unwrap();
    let versions: Vec<Version> = (0..3000).map(|vid| version(vid, 1, 1, i64::from(vid))).collect();
    store.flush(0, &versions, 0).unwrap();
    assert_eq!(raise(&store, 1, 1500, 7, 1), Ok(1500));
    store.commit(TransactionId(1), 2).unwrap();
    let sums = (total(&store, 1).unwrap(), total(&store, 2).unwrap());
    assert_eq!(sums, ((3000, Some(4_498_500)), (3000, Some(4_509_000))));
    drop(store);
    let store = open();
    assert_eq!((total(&store, 1).unwrap(), total(&store, 2).unwrap()), sums);
    assert_eq!(store.read(0, Vid(2999), 2).unwrap().unwrap(), version(2999, 2, 2, 3006).with_pad_of(2999));
}

trait PadOf {
    fn with_pad_of(self, balance: i64) -> Self;
}

impl PadOf for Version {
    /// The update changes the balance and leaves the rest of the row.
    fn with_pad_of(mut self, balance: i64) -> Self {
        let old = image(i64::from(self.vid.0), balance);
        let new = self.image.as_mut().unwrap();
        new[16..].copy_from_slice(&old[16..]);
        self
    }
}

/// Whether the kernel grants this process an io_uring, found without the code under test.
fn kernel_grants_io_uring() -> bool {
    // A zeroed `struct io_uring_params`, which has 120 bytes.
    let mut parameters = [0_u64; 15];
    // SAFETY: the kernel writes no more than a `struct io_uring_params`, and nothing else uses the descriptor.
    unsafe {
        let ring = libc::syscall(libc::SYS_io_uring_setup, 2, parameters.as_mut_ptr());
        ring >= 0 && libc::close(ring as i32) == 0
    }
}

/// Whether some system calls are denied to this process.
fn is_filtered() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    !status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "0"]))
}

#[test]
fn files_are_read_through_io_uring() {
    if !kernel_grants_io_uring() {
        let why = "the kernel grants this process no io_uring";
        // What a container's system call filter denies root cannot have; what kernel.io_uring_disabled denies it can.
        return if is_filtered() { lockwork_testkit::skip_optional(why) } else { lockwork_testkit::skip(why) };
    }
    let scratch = Scratch::new(&std::env::temp_dir(), "direct");
    fill_update_and_reopen(&|| {
        let disk = DirectDisk::open(&scratch.0).unwrap();
        assert!(disk.describe().ends_with(", io_uring"), "{}", disk.describe());
        assert!(disk.queue(8).uses_io_uring());
        Store::over(Arc::new(disk), &config(None)).unwrap()
    });
    let store = Store::open(&scratch.0, &config(None)).unwrap();
    assert!(store.describe().contains(", io_uring, "), "{}", store.describe());
}

#[test]
fn files_are_read_without_io_uring() {
    let scratch = Scratch::new(&std::env::temp_dir(), "pread");
    fill_update_and_reopen(&|| {
        let disk = DirectDisk::open(&scratch.0).unwrap().without_ring();
        assert!(disk.describe().ends_with(", pread (no io_uring)"), "{}", disk.describe());
        assert!(!disk.queue(8).uses_io_uring());
        Store::over(Arc::new(disk), &config(None)).unwrap()
    });
}

#[test]
fn a_file_system_in_memory_will_do() {
    let folder = Path::new("/dev/shm");
    let folder = if folder.is_dir() { folder.to_path_buf() } else { std::env::temp_dir() };
    let scratch = Scratch::new(&folder, "memory");
    fill_update_and_reopen(&|| Store::open(&scratch.0, &config(None)).unwrap());
}

#[test]
fn a_second_opener_is_refused_and_changes_nothing() {
    let scratch = Scratch::new(&std::env::temp_dir(), "locked");
    let store = Store::open(&scratch.0, &config(None)).unwrap();
    assert!(store.describe().contains("2 processing elements"), "{}", store.describe());
    let error = Store::open(&scratch.0, &config(None)).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("another process has it open") && error.contains("locked"), "{error}");
    store.create_table(&schema()).unwrap();
    drop(store);
    assert_eq!(Store::open(&scratch.0, &config(None)).unwrap().tables().unwrap(), [schema()]);
}

#[test]
fn foreign_files_are_left_alone() {
    let scratch = Scratch::new(&std::env::temp_dir(), "foreign");
    for content in [b"#!/bin/sh\necho important\n".repeat(1000), vec![0; 20_000], b"x".to_vec()] {
        std::fs::write(&scratch.0, &content).unwrap();
        let error = Store::open(&scratch.0, &config(None)).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("no Lockwork near-data file") && error.contains("foreign"), "{error}");
        assert_eq!(std::fs::read(&scratch.0).unwrap(), content);
    }
    let missing = std::env::temp_dir().join("lockwork-store-no-such-folder/file");
    assert!(matches!(Store::open(&missing, &config(None)), Err(DeviceError::Io(_))));
    let none = StoreConfig { elements: 0, ..config(None) };
    let error = Store::open(&Scratch::new(&std::env::temp_dir(), "none").0, &none).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("give 1 to 1024"), "{error}");
}
