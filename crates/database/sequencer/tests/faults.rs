//! Every I/O call fails, tears, is late, or is the last one before a crash, for every call there is: whatever was
//! acknowledged is there afterwards, nothing is there in half, and the digest is that of a serial replay.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::*;
use lockwork_engine::EngineKind;
use lockwork_sequencer::io::simulated::{Fault, SimulatedDisk};
use lockwork_sequencer::{Durability, Error, Options, Sequencer, inspect};
use lockwork_storage::Digest;

const KIND: EngineKind = EngineKind::SERIAL;

fn path() -> &'static Path {
    Path::new("/db")
}

fn open(disk: &SimulatedDisk, options: Options) -> Result<Sequencer, Error> {
    open_with(Arc::new(disk.clone()), path(), options, KIND).map(|(sequencer, _)| sequencer)
}

/// Steps of the scenario: what is asked, in order. The state after each is known beforehand.
const STEPS: usize = 20;

/// What the scenario asks at a step, and the digests after each step, by an engine without I/O.
struct Plan {
    calls: Vec<Vec<Call>>,
    /// `digests[n]` is what is there when the first `n` changes are: definitions, rows, batches.
    digests: Vec<Digest>,
}

impl Plan {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let calls: Vec<Vec<Call>> = (0..STEPS).map(|_| random.calls(15)).collect();
        let mut oracle = Oracle::new();
        // Six changes furnish: five definitions, all of the empty digest, and the rows.
        let mut digests = vec![Digest::default(); 6];
        digests.push(oracle.digest());
        for calls in &calls {
            oracle.run(batch(calls));
            digests.push(oracle.digest());
        }
        Self { calls, digests }
    }
}

/// Goes through the scenario until something is refused; `changes` counts what was acknowledged, also over lives.
/// Reopens, makes checkpoints, and closes on its way; every third step is one transaction.
fn scenario(disk: &SimulatedDisk, plan: &Plan, options: &Options, acknowledged: &mut usize) -> Result<(), Error> {
    let mut sequencer = open(disk, options.clone())?;
    furnish_counted(&sequencer, acknowledged)?;
    for (step, calls) in plan.calls.iter().enumerate() {
        if step == 6 || step == 13 {
            sequencer.checkpoint()?;
        }
        if step == 9 {
            sequencer.close()?;
            sequencer = open(disk, options.clone())?;
        }
        if step % 3 == 1 {
            together(&sequencer, calls)?;
        } else {
            sequencer.call_batch(batch(calls)).map_err(|refused| refused.error)?;
        }
        *acknowledged += 1;
    }
    sequencer.close()
}

fn furnish_counted(sequencer: &Sequencer, acknowledged: &mut usize) -> Result<(), Error> {
    for source in [TABLES, TRANSFER, AUDIT, OPEN, CLOSE] {
        sequencer.define(definition(source))?;
        *acknowledged += 1;
    }
    sequencer.load("accounts", (0..ACCOUNTS).flat_map(image).collect())?;
    *acknowledged += 1;
    Ok(())
}

/// Opens what is left, sees that it is a state that there was, not before what was acknowledged, and that it goes on.
fn verify(disk: &SimulatedDisk, plan: &Plan, least: usize, what: &str) {
    let (sequencer, report) =
        open_with(Arc::new(disk.clone()), path(), options(), KIND).unwrap_or_else(|error| panic!("{what}: {error}"));
    let digest = sequencer.digest().unwrap();
    let defined = report.definitions.len();
    // The state is the last one that has this digest; without rows, the definitions tell.
    let there = if digest == Digest::default() {
        defined
    } else {
        let found = plan.digests.iter().rposition(|known| *known == digest);
        found.unwrap_or_else(|| panic!("{what}: a state that never was, after {least} acknowledged; {report:?}"))
    };
    assert!(there >= least, "{what}: {least} were acknowledged, and {there} are there; {report:?}");
    if there >= 6 {
        assert_eq!(total(&sequencer), ACCOUNTS as i64 * BALANCE, "{what}");
        sequencer.call_batch(batch(&[(0, 0, vec![1, 2, 1])])).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    let digest = sequencer.digest().unwrap();
    sequencer.close().unwrap_or_else(|error| panic!("{what}: {error}"));
    let again = open(disk, options()).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(again.digest().unwrap(), digest, "{what}");
    again.close().unwrap();
}

fn every_call(fault: Fault, options: &Options, seed: u64) {
    let plan = Plan::new(seed);
    let strict = options.durability == Durability::Fsync;
    let mut failures = 0;
    for call in 0.. {
        let disk = SimulatedDisk::new(seed << 32 | call);
        disk.inject(call, fault);
        let mut acknowledged = 0;
        let outcome = scenario(&disk, &plan, options, &mut acknowledged);
        let Some(fired) = disk.fired() else {
            outcome.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert!(failures > 50 || fault == Fault::Delay, "{failures} of {call} calls failed something");
            return;
        };
        let what = format!("seed {seed}, {fired}, then {outcome:?}");
        failures += u32::from(outcome.is_err());
        assert!(fault != Fault::Delay || outcome.is_ok(), "{what}");
        // Power loss and the death of the process alone.
        let killed = disk.copy(1);
        disk.crash();
        verify(&disk, &plan, if strict { acknowledged } else { 0 }, &what);
        verify(&killed, &plan, acknowledged, &format!("killed only, {what}"));
    }
}

#[test]
fn every_call_fails() {
    every_call(Fault::Fail, &options(), 1);
}

#[test]
fn every_call_tears() {
    every_call(Fault::Tear, &options(), 2);
}

#[test]
fn every_call_is_late() {
    every_call(Fault::Delay, &options(), 3);
}

#[test]
fn every_call_is_the_last_before_a_crash() {
    for seed in 4..10 {
        every_call(Fault::Crash, &options(), seed);
    }
}

#[test]
fn with_async_every_state_is_one_that_there_was() {
    let lazy =
        Options { durability: Durability::Async, async_interval: std::time::Duration::from_millis(1), ..options() };
    every_call(Fault::Crash, &lazy, 10);
    every_call(Fault::Fail, &lazy, 11);
}

#[test]
fn a_full_disk_refuses_calls_and_not_reads_and_goes_on_when_there_is_space() {
    let disk = SimulatedDisk::new(1);
    let (sequencer, _) = open_with(Arc::new(disk.clone()), path(), options(), KIND).unwrap();
    furnish(&sequencer).unwrap();
    let mut oracle = Oracle::new();
    let mut random = Random(8);
    for round in 0..3 {
        disk.set_capacity(disk.used());
        let mut refused = None;
        for _ in 0..1000 {
            let calls = random.calls(10);
            match sequencer.call_batch(batch(&calls)) {
                Ok(ran) => assert_eq!(answers(&ran), answers(&oracle.run(batch(&calls)))),
                Err(why) => {
                    refused = Some((*why, calls));
                    break;
                }
            }
        }
        let (why, calls) = refused.expect("a full disk is found");
        let text = why.error.to_string();
        assert!(text.starts_with("the disk is full: cannot allocate room for '/db/log/") && why.error.is_retryable());
        let digest = sequencer.digest().unwrap();
        assert_eq!(digest, oracle.digest(), "nothing of the call has happened");
        // Reads, alone and beside calls of other threads.
        let read = batch(&[(1, 0, vec![1]), (1, 0, vec![2])]);
        assert!(sequencer.call_batch(read).unwrap().blocks().all(|b| b.status() == oracle_status()));
        let mut single = batch(&[(1, 0, vec![3])]).block(0).bytes().to_vec();
        sequencer.handle().call(&mut single).unwrap();
        // A single call may find room where the batch did not.
        let refused = (0..100).find_map(|_| {
            let calls = [(0, 0, vec![3, 4, 0])];
            let mut single = batch(&calls).block(0).bytes().to_vec();
            let refused = sequencer.handle().call(&mut single).err();
            if refused.is_none() {
                oracle.run(batch(&calls));
            }
            refused
        });
        assert!(matches!(refused, Some(Error::Full(_))), "{refused:?}");
        assert!(matches!(
            sequencer.define(definition(&TRANSFER.replace("procedure transfer", "procedure x"))),
            Err(Error::Full(_))
        ));
        // Space again: the very batch that was given back goes through.
        disk.set_capacity(u64::MAX);
        let ran = sequencer.call_batch(why.batch.unwrap()).unwrap();
        assert_eq!(answers(&ran), answers(&oracle.run(batch(&calls))));
        assert_eq!(sequencer.digest().unwrap(), oracle.digest(), "round {round}");
    }
    drop(sequencer);
    disk.crash();
    assert_eq!(open(&disk, options()).unwrap().digest().unwrap(), oracle.digest());
}

fn oracle_status() -> Option<lockwork_procedure::block::Status> {
    Some(lockwork_procedure::block::Status::Committed)
}

#[test]
fn a_failed_sync_is_never_tried_again_as_if_it_had_worked() {
    for seed in 0..40 {
        let disk = SimulatedDisk::new(seed);
        let sequencer = open(&disk, options()).unwrap();
        furnish(&sequencer).unwrap();
        // A write, then its sync; there is no mark between, because the log is not idle for long enough.
        disk.inject(1, Fault::Fail);
        let mut errors = Vec::new();
        while errors.len() < 3 {
            match sequencer.call_batch(batch(&[(0, 0, vec![1, 2, 3])])) {
                Ok(_) => assert!(errors.is_empty(), "nothing is accepted after a failure"),
                Err(refused) => errors.push(refused.error),
            }
        }
        for error in &errors {
            let text = error.to_string();
            assert!(matches!(error, Error::Poisoned(_)), "{text}");
            assert!(text.contains("/db/log/") && text.contains("os error 5"), "{text}");
            assert!(text.contains("is not known") && text.contains("open the directory again"), "{text}");
        }
        let synced = disk.calls();
        let defined = sequencer.define(definition("procedure p\n    commit")).map(drop);
        for refused in [defined, sequencer.checkpoint().map(drop)] {
            assert!(matches!(refused, Err(Error::Poisoned(_))), "{refused:?}");
        }
        // Reads go on.
        let read = sequencer.call_batch(batch(&[(1, 0, vec![1])])).unwrap();
        assert_eq!(read.block(0).status(), oracle_status());
        assert!(sequencer.digest().is_ok());
        assert_eq!(disk.calls(), synced, "nothing more is written or synced");
        assert!(matches!(sequencer.close(), Err(Error::Poisoned(_))));
        // Without a crash the call is in the cache: reopening makes it durable, or does not, but for good.
        disk.kill();
        let sequencer = open(&disk, options()).unwrap();
        let after = sequencer.digest().unwrap();
        drop(sequencer);
        disk.crash();
        assert_eq!(open(&disk, options()).unwrap().digest().unwrap(), after, "seed {seed}");
    }
}

/// A directory with a checkpoint and a log behind it, closed.
fn closed(seed: u64) -> (SimulatedDisk, Digest) {
    let disk = SimulatedDisk::new(seed);
    let plan = Plan::new(seed);
    scenario(&disk, &plan, &options(), &mut 0).unwrap();
    let sequencer = open(&disk, options()).unwrap();
    assert_eq!(sequencer.digest().unwrap(), *plan.digests.last().unwrap());
    let mut random = Random(seed);
    (0..40).for_each(|_| drop(sequencer.call_batch(batch(&random.calls(15))).unwrap()));
    let digest = sequencer.digest().unwrap();
    sequencer.close().unwrap();
    (disk, digest)
}

fn named(files: &[(PathBuf, u64)], ending: &str) -> Vec<(PathBuf, u64)> {
    files.iter().filter(|(path, _)| path.to_string_lossy().ends_with(ending)).cloned().collect()
}

#[test]
fn every_flipped_bit_of_a_closed_directory_is_found_and_named() {
    let (disk, digest) = closed(20);
    let files = disk.files();
    assert!(named(&files, ".log").len() >= 2 && named(&files, ".ckpt").len() == 1, "{files:?}");
    let mut random = Random(20);
    let (mut found, mut harmless) = (0, 0);
    for (file, length) in files.iter().filter(|(file, _)| !file.ends_with("LOCK")) {
        let before = disk.contents(file).unwrap();
        let all = *length < 4000;
        for at in (0..*length as usize).filter(|_| all || random.below(6) == 0).collect::<Vec<_>>() {
            let disk = disk.copy(1);
            let mut bytes = before.clone();
            bytes[at] ^= 1 << random.below(8);
            disk.put(file, &bytes);
            let outcome = open(&disk, options()).map(|sequencer| sequencer.digest().unwrap());
            let what = format!("byte {at} of {}", file.display());
            match outcome {
                Err(Error::Damaged { path, offset, .. }) => {
                    assert_eq!(&path, file, "{what}");
                    assert!(offset <= at as u64, "{what}: {offset}");
                    found += 1;
                    let path = std::path::Path::new("/db");
                    let log = inspect::log(&disk, path, &mut |_| ()).err();
                    let checkpoint = inspect::checkpoint(&disk, path, &mut |_| ()).err();
                    assert!(log.or(checkpoint).is_some_and(|error| error.is_corruption()), "{what}");
                }
                Err(Error::Version { .. }) => found += 1,
                Err(other) => panic!("{what}: {other}"),
                // Flips in what the checkpoint covers, or in the mark that the log was closed with.
                Ok(there) => {
                    assert_eq!(there, digest, "{what}: something is missing, in silence");
                    harmless += 1;
                }
            }
        }
    }
    assert!(found > 1000 && harmless * 10 < found, "{found} found, {harmless} harmless");
}

#[test]
fn damage_before_the_last_unit_of_a_killed_process_is_told_from_a_torn_tail() {
    let disk = SimulatedDisk::new(25);
    let unmarked = Options { idle_mark: std::time::Duration::from_secs(60), ..options() };
    let sequencer = open(&disk, unmarked).unwrap();
    furnish(&sequencer).unwrap();
    let mut random = Random(25);
    let mut digests = Vec::new();
    for _ in 0..12 {
        digests.push(sequencer.digest().unwrap());
        sequencer.call_batch(batch(&random.calls(10))).unwrap();
    }
    digests.push(sequencer.digest().unwrap());
    // As the process is: nobody has closed the log.
    let killed = disk.copy(1);
    drop(sequencer);
    let mut offsets = Vec::new();
    let summary = inspect::log(&killed, path(), &mut |entry| offsets.push(entry.offset)).unwrap();
    assert_eq!(summary.records, 6 + 12);
    let (log, _) = named(&killed.files(), ".log").pop().unwrap();
    let bytes = killed.contents(&log).unwrap();
    let last = *offsets.last().unwrap() as usize;
    let end = bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    for at in (64..end).step_by(3) {
        let disk = killed.copy(1);
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << random.below(8);
        disk.put(&log, &flipped);
        match open_with(Arc::new(disk), path(), options(), KIND) {
            Err(Error::Damaged { path, offset, problem }) => {
                assert!(at < last, "byte {at} of the last unit, from {last} on: {problem}");
                let record = offsets.iter().rfind(|&&offset| offset <= at as u64).unwrap();
                assert_eq!((&path, offset), (&log, *record), "byte {at}");
            }
            Err(other) => panic!("byte {at}: {other}"),
            Ok((sequencer, report)) => {
                assert!(at >= last, "byte {at} is before the last unit, from {last} on, and was dropped: {report:?}");
                assert_eq!(report.torn.unwrap().offset, last as u64);
                assert_eq!(sequencer.digest().unwrap(), digests[11]);
            }
        }
    }
}

#[test]
fn every_torn_tail_is_cut_and_reported() {
    let disk = SimulatedDisk::new(30);
    let unmarked = Options { idle_mark: std::time::Duration::from_secs(60), ..options() };
    let sequencer = open(&disk, unmarked).unwrap();
    furnish(&sequencer).unwrap();
    sequencer.call_batch(batch(&[(0, 0, vec![1, 2, 3])])).unwrap();
    let digest = sequencer.digest().unwrap();
    let log = named(&disk.files(), ".log").pop().unwrap().0;
    let before = disk.contents(&log).unwrap();
    let transfers: Vec<Call> = (0..9).map(|n| (0, 0, vec![n, n + 1, 5])).collect();
    sequencer.call_batch(batch(&transfers)).unwrap();
    let later = sequencer.digest().unwrap();
    let after = disk.contents(&log).unwrap();
    let differ = |(a, b): (&u8, &u8)| a != b;
    let start = before.iter().zip(&after).position(differ).unwrap() / 8 * 8;
    let end = before.iter().zip(&after).rposition(differ).unwrap() + 1;
    assert!(end - start >= 200, "{start} to {end}");
    for cut in start..=end {
        let disk = disk.copy(1);
        // The first bytes of the last record are there, the others as they were.
        disk.put(&log, &[&after[..cut], &before[cut..]].concat());
        let (sequencer, report) = open_with(Arc::new(disk.clone()), path(), options(), KIND).unwrap();
        let whole = after[cut..end].iter().zip(&before[cut..end]).all(|(a, b)| a == b);
        assert_eq!(sequencer.digest().unwrap(), if whole { later } else { digest }, "{cut}");
        let torn = report.torn.as_ref().map(|torn| (torn.path.clone(), torn.offset));
        let changed = after[start..cut].iter().any(|&byte| byte != 0);
        assert_eq!(torn, (changed && !whole).then(|| (log.clone(), start as u64)), "{cut}");
        sequencer.close().unwrap();
        assert_eq!(open_with(Arc::new(disk.clone()), path(), options(), KIND).unwrap().1.torn, None);
    }
}

#[test]
fn other_format_versions_are_refused_as_such_only_when_nothing_else_is_wrong() {
    let (disk, ..) = closed(40);
    let files = disk.files();
    let [log, checkpoint] = [".log", ".ckpt"].map(|ending| named(&files, ending)[0].0.clone());
    for file in [&log, &checkpoint, &PathBuf::from("/db/FORMAT")] {
        for sound in [true, false] {
            let disk = disk.copy(1);
            let mut bytes = disk.contents(file).unwrap();
            bytes[8] = 2;
            if sound {
                let crc = crc32c::crc32c(&bytes[..60]);
                bytes[60..64].copy_from_slice(&crc.to_le_bytes());
            }
            disk.put(file, &bytes);
            let error = open(&disk, options()).map(drop).unwrap_err();
            let text = error.to_string();
            if sound {
                assert!(matches!(&error, Error::Version { path, found: 2, wanted: 1 } if path == file), "{text}");
                assert!(text.contains("has format version 2, and this program reads and writes version 1"), "{text}");
            } else {
                assert!(matches!(&error, Error::Damaged { path, offset: 0, .. } if path == file), "{text}");
            }
        }
    }
}

#[test]
fn what_is_missing_is_missed() {
    let (disk, ..) = closed(50);
    let files = disk.files();
    for (file, _) in files.iter().filter(|(file, _)| !file.ends_with("LOCK")) {
        let copy = SimulatedDisk::new(1);
        for (other, _) in files.iter().filter(|(other, _)| other != file) {
            copy.put(other, &disk.contents(other).unwrap());
        }
        let last = named(&files, ".log").last().map(|(file, _)| file) == Some(file);
        match open(&copy, options()) {
            Err(error) => assert!(error.is_corruption(), "without {}: {error}", file.display()),
            // Nothing says that there was a segment after the last one that there is.
            Ok(_) => assert!(last, "without {} it opens", file.display()),
        }
    }
    // Files of others stay where they are, and are reported.
    let strange = PathBuf::from("/db/log/notes.txt");
    disk.put(&strange, b"mine");
    let (sequencer, report) = open_with(Arc::new(disk.clone()), path(), options(), KIND).unwrap();
    assert_eq!(report.unknown, std::slice::from_ref(&strange));
    sequencer.checkpoint().unwrap();
    drop(sequencer);
    assert_eq!(disk.contents(&strange).unwrap(), b"mine");
}
