//! The end of the log: what a later segment says about the one before it, and what is torn there.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::*;
use lockwork_engine::EngineKind;
use lockwork_sequencer::io::simulated::{Fault, SimulatedDisk};
use lockwork_sequencer::io::{Disk, Io};
use lockwork_sequencer::{Durability, Error, Options, RecoveryReport, Sequencer, inspect};

fn path() -> &'static Path {
    Path::new("/db")
}

fn open(disk: &SimulatedDisk, options: Options) -> Result<(Sequencer, RecoveryReport), Error> {
    open_with(Arc::new(disk.clone()), path(), options, EngineKind::SERIAL)
}

/// Segments and their bytes.
fn segments(disk: &SimulatedDisk) -> Vec<(PathBuf, Vec<u8>)> {
    let logs =
        disk.files().into_iter().map(|(file, _)| file).filter(|file| file.extension().is_some_and(|e| e == "log"));
    logs.map(|file| (file.clone(), disk.contents(&file).unwrap())).collect()
}

/// A header of a segment as that of `like` is, for another first record.
fn header(like: &[u8], number: u64) -> Vec<u8> {
    let mut header = like[..64].to_vec();
    header[24..32].copy_from_slice(&number.to_le_bytes());
    let crc = crc32c::crc32c(&header[..60]);
    header[60..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// A closed directory with one segment, and the header of one behind it that has no record yet: what a process leaves
/// that dies before it writes into a new segment.
fn followed() -> (SimulatedDisk, PathBuf, PathBuf) {
    let disk = SimulatedDisk::new(60);
    let (sequencer, _) = open(&disk, Options { segment_bytes: 1 << 20, ..options() }).unwrap();
    furnish(&sequencer).unwrap();
    let mut random = Random(60);
    (0..20).for_each(|_| drop(sequencer.call_batch(batch(&random.calls(5))).unwrap()));
    sequencer.close().unwrap();
    let next = inspect::log(&disk, path(), &mut |_| ()).unwrap().number;
    let (log, bytes) = segments(&disk).into_iter().find(|(_, bytes)| bytes.len() > 64).unwrap();
    let later = log.with_file_name(format!("{next:020}.log"));
    let mut contents = header(&bytes, next);
    contents.resize(4096, 0);
    disk.put(&later, &contents);
    (disk, log, later)
}

fn refused(disk: &SimulatedDisk) -> (PathBuf, u64, String) {
    let inspected = inspect::log(disk, path(), &mut |_| ()).unwrap_err();
    match open(disk, options()).map(drop).unwrap_err() {
        Error::Damaged { path, offset, problem } => {
            assert_eq!(
                inspected.to_string(),
                Error::Damaged { path: path.clone(), offset, problem: problem.clone() }.to_string()
            );
            (path, offset, problem)
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_later_segment_without_a_record_shows_that_all_before_it_was_durable() {
    let (disk, log, later) = followed();
    let mut records = Vec::new();
    inspect::log(&disk, path(), &mut |entry| records.push((entry.offset, entry.bytes))).unwrap();
    let bytes = disk.contents(&log).unwrap();
    // The mark is not a record, so losing part of it loses nothing.
    let (mark, _) = records.pop().unwrap();
    for cut in (64..bytes.len()).step_by(3).chain(records.iter().map(|&(offset, _)| offset as usize)) {
        for zeros in [false, true] {
            let copy = disk.copy(1);
            let mut shorter = bytes[..cut].to_vec();
            shorter.resize(if zeros { bytes.len() } else { cut }, 0);
            copy.put(&log, &shorter);
            // The first byte that is missed; a record may end with zeros of its own.
            let differ = shorter.iter().zip(&bytes).position(|(a, b)| a != b).unwrap_or(shorter.len()) as u64;
            if differ >= mark {
                let (sequencer, _) = open(&copy, options()).unwrap();
                let calls = batch(&[(0, 0, vec![1, 2, 3])]);
                sequencer.call_batch(calls).unwrap();
                let digest = sequencer.digest().unwrap();
                drop(sequencer);
                assert_eq!(open(&copy, options()).unwrap().0.digest().unwrap(), digest);
                continue;
            }
            let &(record, _) = records.iter().rfind(|(offset, _)| *offset <= differ.max(64)).unwrap();
            let (path, offset, problem) = refused(&copy);
            assert_eq!((path, offset), (log.clone(), record), "cut at {cut}, zeros {zeros}: {problem}");
            assert!(problem.contains(&later.display().to_string()), "{problem}");
        }
    }
}

#[test]
fn a_segment_with_its_name_and_without_a_sound_header_is_damage() {
    let (disk, _, later) = followed();
    let bytes = disk.contents(&later).unwrap();
    let mut flipped = bytes.clone();
    flipped[20] ^= 1;
    for contents in [&[][..], &bytes[..63], &vec![0; 4096], &flipped] {
        disk.put(&later, contents);
        let (path, offset, problem) = refused(&disk);
        assert_eq!((path, offset), (later.clone(), 0), "{problem}");
    }
}

#[test]
fn a_torn_mark_before_a_later_segment_is_not_damage() {
    let (disk, log, later) = followed();
    let (bytes, first) = (disk.contents(&log).unwrap(), disk.contents(&later).unwrap());
    let expected = open(&disk.copy(1), options()).unwrap().0.digest().unwrap();
    let mut torn = bytes.clone();
    let end = torn.len();
    torn[end - 16..].fill(0);
    disk.put(&log, &torn);
    let copy = disk.copy(1);
    let (sequencer, report) = open(&copy, options()).unwrap();
    assert_eq!(report.torn.map(|torn| (torn.path, torn.offset)), Some((log.clone(), end as u64 - 32)));
    assert_eq!(sequencer.digest().unwrap(), expected);
    drop(sequencer);
    // With a record in the later segment.
    let (sequencer, _) = open(&copy, options()).unwrap();
    sequencer.call_batch(batch(&[(0, 0, vec![1, 2, 3])])).unwrap();
    let expected = sequencer.digest().unwrap();
    sequencer.close().unwrap();
    assert_ne!(copy.contents(&later).unwrap(), first);
    copy.put(&log, &torn);
    let (sequencer, report) = open(&copy, options()).unwrap();
    assert_eq!((report.torn, sequencer.digest().unwrap()), (None, expected));
}

/// Small segments and batches that are submitted ahead, so that segments are begun while units are on the way; then the
/// power is lost at every call there is. Opening never takes for damage what such a crash leaves.
#[test]
fn a_crash_while_a_segment_is_begun_is_never_taken_for_damage() {
    for durability in [Durability::Fsync, Durability::Async] {
        let lazy = std::time::Duration::from_millis(1);
        let options = || Options { durability, async_interval: lazy, idle_mark: lazy, ..options() };
        let mut crashes = 0;
        for call in 0.. {
            let disk = SimulatedDisk::new(call);
            disk.inject(call, Fault::Crash);
            let mut acknowledged = 0;
            if let Ok((sequencer, _)) = open(&disk, options())
                && furnish(&sequencer).is_ok()
            {
                let calls: Vec<Call> = (0..20).map(|n| (0, 0, vec![n, n + 1, 1])).collect();
                let tickets: Vec<_> = (0..30).map_while(|_| sequencer.submit(batch(&calls)).ok()).collect();
                acknowledged = tickets.into_iter().map_while(|ticket| ticket.wait().ok()).count();
            }
            let Some(fired) = disk.fired() else { break };
            crashes += 1;
            disk.crash();
            let (sequencer, report) = open(&disk, options()).unwrap_or_else(|error| panic!("{fired}: {error}"));
            if durability == Durability::Fsync && acknowledged > 0 {
                assert!(report.next > 6 + acknowledged as u64, "{fired}: {acknowledged} acknowledged, {report:?}");
                assert_eq!(total(&sequencer), ACCOUNTS as i64 * BALANCE, "{fired}");
            }
        }
        assert!(crashes > 50, "{crashes}");
    }
}

#[test]
fn a_missing_format_is_what_is_named_and_not_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let io: Arc<dyn Io> = Arc::new(Disk::plain());
    let root = folder.path().join("db");
    let open = || open_with(io.clone(), &root, options(), EngineKind::SERIAL).map(drop);
    let inspect = || {
        let log = inspect::log(&*io, &root, &mut |_| ()).map(drop).unwrap_err();
        let checkpoint = inspect::checkpoint(&*io, &root, &mut |_| ()).map(drop).unwrap_err();
        assert_eq!(log.to_string(), checkpoint.to_string());
        log
    };
    let place = |error: Error| match error {
        Error::Damaged { path, problem, .. } => (path, problem),
        other => panic!("{other}"),
    };
    // A folder of something else is no damaged database.
    std::fs::create_dir(&root).unwrap();
    assert!(matches!(inspect(), Error::Io(_)));
    let (sequencer, _) = open_with(io.clone(), &root, options(), EngineKind::SERIAL).unwrap();
    furnish(&sequencer).unwrap();
    sequencer.checkpoint().unwrap();
    // The log behind the checkpoint does not begin with record 1.
    (0..200).for_each(|_| drop(sequencer.call_batch(batch(&[(0, 0, vec![1, 2, 1])])).unwrap()));
    sequencer.checkpoint().unwrap();
    sequencer.close().unwrap();
    let format = std::fs::read(root.join("FORMAT")).unwrap();
    std::fs::remove_file(root.join("FORMAT")).unwrap();
    for error in [open().unwrap_err(), inspect()] {
        let (path, problem) = place(error);
        assert_eq!(path, root.join("FORMAT"), "{problem}");
        assert!(problem.starts_with("the file is missing"), "{problem}");
    }
    // Without the log's folder, and then with FORMAT only.
    std::fs::remove_dir_all(root.join("log")).unwrap();
    assert_eq!(place(inspect()).0, root.join("FORMAT"));
    std::fs::write(root.join("FORMAT"), &format).unwrap();
    assert_eq!(place(inspect()).0, root.join("log"));
    std::fs::remove_dir_all(root.join("checkpoint")).unwrap();
    assert_eq!(place(inspect()).0, root.join("log"));
    assert_eq!(place(open().unwrap_err()).0, root.join("log"));
}

/// A segment is read in pieces: records lie across their borders, and a bad one may be many pieces before its proof.
#[test]
fn a_long_segment_is_read_to_its_end_and_damage_in_it_is_found() {
    let disk = SimulatedDisk::new(70);
    let long = || Options { segment_bytes: 16 << 20, ..options() };
    let (sequencer, _) = open(&disk, long()).unwrap();
    furnish(&sequencer).unwrap();
    let mut random = Random(70);
    (0..24).for_each(|_| drop(sequencer.call_batch(batch(&random.calls(20_000))).unwrap()));
    let digest = sequencer.digest().unwrap();
    sequencer.close().unwrap();
    let (log, bytes) = segments(&disk).into_iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();
    assert!(bytes.len() > 3 << 20, "{}", bytes.len());
    let mut records = Vec::new();
    let mut all = 0;
    inspect::log(&disk, path(), &mut |entry| {
        if !matches!(entry.contents, inspect::Contents::Durable) {
            all += 1;
            records.extend((entry.path == log).then_some((entry.offset, entry.bytes)));
        }
    })
    .unwrap();
    assert!(records.iter().any(|&(at, length)| at >> 20 != (at + length - 1) >> 20), "{records:?}");
    let copy = disk.copy(1);
    let (sequencer, report) = open(&copy, long()).unwrap();
    assert_eq!((sequencer.digest().unwrap(), report.torn.clone(), report.records), (digest, None, all));
    assert!(report.engine_took.as_nanos() > 0 && report.engine_took <= report.log_took, "{report:?}");
    drop(sequencer);
    let end = bytes.len() as u64;
    for (offset, length) in records {
        // In the header, in the payload, and nothing but zeros from here on.
        for (from, to) in [(offset + 4, offset + 5), (offset + length / 2, offset + length / 2 + 1), (offset, end)] {
            let mut damaged = bytes.clone();
            damaged[from as usize..to as usize].iter_mut().for_each(|byte| *byte = if to == end { 0 } else { !*byte });
            let copy = disk.copy(1);
            copy.put(&log, &damaged);
            let (path, place, problem) = refused(&copy);
            assert_eq!((path, place), (log.clone(), offset), "{problem}");
            assert!(problem.contains("shows that it was durable"), "{problem}");
        }
    }
}

/// What is only read takes next to no room, and opening needs none; calls say what they need.
#[test]
fn opening_takes_no_room_and_the_first_record_little() {
    let disk = SimulatedDisk::new(80);
    let large = || Options { durability: Durability::Fsync, ..Options::default() };
    let (sequencer, _) = open(&disk, large()).unwrap();
    assert!(disk.used() < 4096, "{}", disk.used());
    furnish(&sequencer).unwrap();
    assert!((1 << 20..2 << 20).contains(&disk.used()), "{}", disk.used());
    let digest = sequencer.digest().unwrap();
    sequencer.close().unwrap();
    let closed = disk.used();
    // A disk with room for a header and not for a segment.
    disk.set_capacity(closed + 4096);
    let (sequencer, _) = open(&disk, large()).unwrap();
    assert_eq!(sequencer.digest().unwrap(), digest);
    let calls = || batch(&[(0, 0, vec![1, 2, 3])]);
    let refused = sequencer.call_batch(calls()).unwrap_err();
    assert!(matches!(refused.error, Error::Full(_)), "{}", refused.error);
    assert_eq!(sequencer.digest().unwrap(), digest);
    assert!(disk.used() < closed + 4096, "{}", disk.used());
    disk.set_capacity(u64::MAX);
    sequencer.call_batch(calls()).unwrap();
    let digest = sequencer.digest().unwrap();
    // Segments grow up to what is asked for.
    let transfers: Vec<Call> = (0..20_000).map(|n| (0, 0, vec![n % 8, 9, 0])).collect();
    (0..60).for_each(|_| drop(sequencer.call_batch(batch(&transfers)).unwrap()));
    let lengths: Vec<usize> = segments(&disk).iter().map(|(_, bytes)| bytes.len() >> 20).collect();
    assert!(lengths.ends_with(&[1, 4, 16, 64]), "{lengths:?}");
    drop(sequencer);
    disk.crash();
    assert_eq!(open(&disk, large()).unwrap().0.digest().unwrap(), digest, "transfers of nothing change nothing");
}

/// A log that was closed has an end: cut anywhere but in its closing mark, it is damaged, and not torn.
#[test]
fn a_closed_log_that_was_cut_short_is_damage() {
    for durability in [Durability::Fsync, Durability::Async] {
        let disk = SimulatedDisk::new(90);
        let options = || Options { durability, segment_bytes: 1 << 20, ..options() };
        let (sequencer, _) = open(&disk, options()).unwrap();
        furnish(&sequencer).unwrap();
        let mut random = Random(90);
        (0..10).for_each(|_| drop(sequencer.call_batch(batch(&random.calls(5))).unwrap()));
        let digest = sequencer.digest().unwrap();
        sequencer.close().unwrap();
        // Opened and closed again, with nothing done, it still has one.
        for _ in 0..2 {
            let (log, bytes) = segments(&disk).into_iter().find(|(_, bytes)| bytes.len() > 64).unwrap();
            let mut records = Vec::new();
            let entry = |entry: &inspect::Entry| matches!(entry.contents, inspect::Contents::Durable);
            inspect::log(&disk, path(), &mut |each| records.extend((!entry(&each)).then_some(each.offset))).unwrap();
            let end = bytes.len();
            let cuts = (64..end).step_by(7).chain(records.iter().map(|&offset| offset as usize));
            let mut found = 0;
            for cut in cuts {
                let copy = disk.copy(1);
                copy.put(&log, &bytes[..cut]);
                match open(&copy, options()) {
                    Err(Error::Damaged { path, offset, problem }) => {
                        let record = records.iter().rfind(|&&offset| offset <= cut as u64).unwrap();
                        assert_eq!((&path, offset), (&log, *record), "cut at {cut}: {problem}");
                        found += 1;
                    }
                    Err(other) => panic!("cut at {cut}: {other}"),
                    // Only marks were lost.
                    Ok((sequencer, _)) => {
                        assert!(cut > *records.last().unwrap() as usize, "cut at {cut} is not missed");
                        assert_eq!(sequencer.digest().unwrap(), digest, "cut at {cut}");
                    }
                }
            }
            assert!(found > 100, "{found}");
            open(&disk, options()).unwrap().0.close().unwrap();
        }
    }
}
