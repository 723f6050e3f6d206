//! Checkpoints and messages that somebody has altered, who can compute checksums as well as anybody: each is refused in
//! words, or read as what it says; nothing panics, and no memory is taken that its length does not justify.

mod common;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::nodes::{join, wait_for};
use common::*;
use lockwork_engine::{EngineKind, Options as EngineOptions, create};
use lockwork_memory::Pages;
use lockwork_sequencer::fuzz::{
    Message, Piece, joins_journal, put_messages_together, put_together, settle, take_apart, take_messages_apart,
};
use lockwork_sequencer::io::simulated::SimulatedDisk;
use lockwork_sequencer::io::{Io, Mode};
use lockwork_sequencer::journal::Journal;
use lockwork_sequencer::journal::simulated::SimulatedJournal;
use lockwork_sequencer::{Error, Options, RecordKind, Role, Sequencer, inspect};
use lockwork_storage::Digest;

/// What this process takes, in KiB.
fn taken(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap_or_else(|| panic!("no {field}: {status}"));
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Memory beyond what the process had, at its most. One test at a time, as it is that of all.
struct Memory {
    resident: u64,
    mapped: u64,
    _alone: MutexGuard<'static, ()>,
}

impl Memory {
    /// Far more than any of these files and journals should take, and far less than their numbers ask for.
    const MAX_RESIDENT: u64 = 256 << 10;
    /// Every thread may reserve 64 MiB for its heap.
    const MAX_MAPPED: u64 = 4 << 20;

    fn begin() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        // What a sound one takes is not counted.
        open(&folder(true).0).unwrap();
        Self { resident: taken("VmHWM:"), mapped: taken("VmPeak:"), _alone: alone }
    }

    fn check(&self, what: &dyn std::fmt::Display) {
        let (resident, mapped) = (taken("VmHWM:") - self.resident, taken("VmPeak:") - self.mapped);
        assert!(
            resident < Self::MAX_RESIDENT && mapped < Self::MAX_MAPPED,
            "{what}: {resident} KiB more are resident, and {mapped} KiB mapped"
        );
    }
}

/// A database with a checkpoint of everything that one can have, where that is, and the digest.
fn folder(calls_behind: bool) -> (SimulatedDisk, PathBuf, Digest) {
    let disk = SimulatedDisk::new(1);
    let (sequencer, _) = open_with(Arc::new(disk.clone()), Path::new("/d"), options(), EngineKind::SERIAL).unwrap();
    furnish(&sequencer).unwrap();
    let mut random = Random(7);
    let mut calls = random.calls(40);
    (1..).zip(&mut calls).step_by(3).for_each(|(number, call)| call.1 = number);
    sequencer.call_batch(batch(&calls)).unwrap();
    sequencer.checkpoint().unwrap();
    if calls_behind {
        sequencer.call_batch(batch(&random.calls(20))).unwrap();
    }
    let digest = sequencer.digest().unwrap();
    sequencer.close().unwrap();
    let files = disk.files();
    let checkpoint = files.into_iter().map(|(path, _)| path).find(|path| path.extension().is_some_and(|e| e == "ckpt"));
    (disk, checkpoint.expect("a checkpoint"), digest)
}

/// What a folder has; twice, as what opens has to open again with the same.
fn open(disk: &SimulatedDisk) -> Result<Digest, Error> {
    let open = || {
        let options = EngineOptions { threads: 1, pages: Pages::Plain, ..EngineOptions::default() };
        let engine = create(EngineKind::SERIAL, options).unwrap();
        let options = Options { segment_bytes: 4096, checkpoint_bytes: 0, ..Options::default() };
        Sequencer::open(Arc::new(disk.clone()), Path::new("/d"), options, engine, &mut |_| ())
    };
    let (sequencer, _) = open()?;
    let digest = sequencer.digest().unwrap();
    sequencer.close().unwrap();
    let (again, _) = open().expect("what opened opens again");
    assert_eq!(again.digest().unwrap(), digest);
    again.close().unwrap();
    Ok(digest)
}

/// The same with another checkpoint; `inspect` reads it too.
fn with_checkpoint(disk: &SimulatedDisk, path: &Path, bytes: &[u8]) -> Result<Digest, Error> {
    let disk = disk.copy(1);
    disk.put(path, bytes);
    let inspected = inspect::checkpoint(&disk, Path::new("/d"), &mut |_| ());
    let opened = open(&disk);
    assert!(inspected.is_ok() || opened.is_err(), "it opens, and 'inspect' refuses it");
    opened
}

/// It is refused in words, and for what is in it.
fn is_clean(error: &Error, what: &str) {
    let clean = matches!(error, Error::Damaged { .. } | Error::Version { .. } | Error::Replay { .. })
        || matches!(error, Error::Differs { .. } | Error::Engine(_) | Error::Option { .. });
    assert!(clean && error.to_string().len() > 20, "{what}: {error:?}");
}

/// Everything that is done to one piece.
fn altered(piece: &Piece, random: &mut Random) -> Vec<(String, Piece)> {
    let mut all = Vec::new();
    let mut put = |what: String, change: &dyn Fn(&mut Piece)| {
        let mut piece = piece.clone();
        change(&mut piece);
        all.push((what, piece));
    };
    let length = piece.payload.len();
    for at in 0..length {
        let bit = random.below(8);
        put(format!("bit {bit} of byte {at}"), &|piece| piece.payload[at] ^= 1 << bit);
        let values = [0, 1, 0x7F, u64::MAX, u64::MAX >> 1, 1 << 31, length as u64 + 1, length as u64 - at as u64];
        let (value, width) = (values[random.below(8) as usize], [1, 2, 4, 8][random.below(4) as usize]);
        put(format!("{value:#x} in {width} bytes at {at}"), &|piece| {
            let end = length.min(at + width);
            piece.payload[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
        });
        if random.below(4) == 0 {
            put(format!("cut to {at} bytes"), &|piece| piece.payload.truncate(at));
        }
    }
    for more in [1, 8, 60] {
        put(format!("{more} bytes more"), &|piece| piece.payload.resize(length + more, 0));
    }
    for kind in (0..=22).chain([255]) {
        put(format!("kind {kind}"), &|piece| piece.kind = kind);
    }
    for number in [0, piece.number + 1, u64::MAX] {
        put(format!("number {number}"), &|piece| piece.number = number);
    }
    for other in [0, length as u32 + 1, (length as u32).wrapping_sub(1), length as u32 + 64, 1 << 30, u32::MAX] {
        put(format!("a length of {other}"), &|piece| piece.length = Some(other));
    }
    put("never durable".into(), &|piece| piece.behind = u32::MAX);
    all
}

/// What is done to the order of pieces.
fn reordered<T: Clone>(all: &[T]) -> Vec<(String, Vec<T>)> {
    let mut changed = Vec::new();
    for at in 0..all.len() {
        let mut put = |what: &str, change: &dyn Fn(&mut Vec<T>)| {
            let mut all = all.to_vec();
            change(&mut all);
            changed.push((format!("piece {at} {what}"), all));
        };
        put("is missing", &|all| drop(all.remove(at)));
        put("is there twice", &|all| all.insert(at, all[at].clone()));
        put("is the last", &|all| all[at..].rotate_left(1));
        put("ends it", &|all| all.truncate(at));
        if at > 0 {
            put("is before the one before", &|all| all.swap(at - 1, at));
        }
    }
    changed
}

#[test]
fn a_checkpoint_that_a_disk_has_altered_is_refused() {
    let memory = Memory::begin();
    let (disk, path, digest) = folder(true);
    assert_eq!(open(&disk).unwrap(), digest);
    let sound = disk.contents(&path).unwrap();
    let mut random = Random(1);
    for at in 0..sound.len() {
        let mut bytes = sound.clone();
        bytes[at] ^= 1 << random.below(8);
        let error = with_checkpoint(&disk, &path, &bytes).expect_err("a flipped bit");
        assert!(matches!(error, Error::Damaged { .. } | Error::Version { .. }), "byte {at}: {error}");
        if at % 3 == 0 {
            let error = with_checkpoint(&disk, &path, &sound[..at]).expect_err("a file that is cut");
            assert!(matches!(error, Error::Damaged { .. }), "cut at {at}: {error}");
        }
    }
    memory.check(&"altered by a disk");
}

#[test]
fn a_checkpoint_with_right_checksums_is_refused_or_is_what_it_says() {
    let memory = Memory::begin();
    let (disk, path, digest) = folder(true);
    let sound = disk.contents(&path).unwrap();
    let (header, pieces) = take_apart(&sound);
    assert_eq!(put_together(header, &pieces), sound, "what was taken apart is put together");
    let (mut opened, mut refused) = (0, 0);
    let mut look = |what: &str, bytes: &[u8]| {
        match with_checkpoint(&disk, &path, bytes) {
            Ok(_) => opened += 1,
            Err(error) => {
                is_clean(&error, what);
                refused += 1;
            }
        }
        memory.check(&what);
    };
    let mut random = Random(2);
    for (at, piece) in pieces.iter().enumerate() {
        for (what, piece) in altered(piece, &mut random) {
            let mut pieces = pieces.clone();
            pieces[at] = piece;
            let what = format!("{what} of piece {at}");
            look(&what, &put_together(header, &pieces));
            // With the end that it should have then.
            let (number, changed) = (pieces[at].number, pieces[at].clone());
            settle(&mut pieces);
            pieces[at].number = number;
            if pieces[at].kind != Piece::kind(RecordKind::End) || changed == pieces[at] {
                look(&format!("{what}, settled"), &put_together(header, &pieces));
            }
        }
    }
    for (what, mut pieces) in reordered(&pieces) {
        look(&what, &put_together(header, &pieces));
        settle(&mut pieces);
        look(&format!("{what}, settled"), &put_together(header, &pieces));
    }
    for at in 0..60 {
        for value in [1, 0x80, 0xFF] {
            let mut header = header;
            header[at] ^= value;
            look(&format!("byte {at} of the header"), &put_together(header, &pieces));
        }
    }
    assert!(opened > 100 && refused > 1000, "{opened} opened and {refused} were refused");
    assert_eq!(open(&disk).unwrap(), digest);
}

#[test]
fn sizes_of_many_tables_take_no_more_memory_than_the_file_justifies() {
    let memory = Memory::begin();
    let (disk, path, _) = folder(false);
    let (header, mut pieces) = take_apart(&disk.contents(&path).unwrap());
    let names: Vec<String> = (0..1500).map(|number| format!("t{number}")).collect();
    let mut sizes = Vec::new();
    for name in &names {
        sizes.extend((name.len() as u16).to_le_bytes());
        sizes.extend(name.as_bytes());
        sizes.extend(u64::MAX.to_le_bytes());
    }
    pieces.retain(|piece| piece.kind == Piece::kind(RecordKind::End));
    for names in names.chunks(200) {
        let assembly: String = names.iter().map(|name| format!("table {name} (k: u8 key)\n")).collect();
        let text = [&(assembly.len() as u32).to_le_bytes()[..], assembly.as_bytes(), &[0; 4]].concat();
        pieces.insert(0, Piece::new(RecordKind::Definition, 0, text));
    }
    pieces.insert(0, Piece::new(RecordKind::Sizes, 0, sizes));
    settle(&mut pieces);
    with_checkpoint(&disk, &path, &put_together(header, &pieces)).expect("it says that there are empty tables");
    memory.check(&"1,500 tables of so many rows");
}

#[test]
fn a_checkpoint_of_a_record_that_no_log_has_is_refused() {
    let memory = Memory::begin();
    let (disk, path, _) = folder(false);
    let (header, mut pieces) = take_apart(&disk.contents(&path).unwrap());
    // As a node's: it says what the record behind it has to follow.
    let chain = [&header[16..24], &1_u64.to_le_bytes(), &[7; 32]].concat();
    pieces.insert(pieces.len() - 1, Piece::new(RecordKind::Chain, 0, chain));
    settle(&mut pieces);
    for number in [u64::MAX, u64::MAX - 1, 1 << 44] {
        let journal = SimulatedJournal::new(1);
        let mut header = header;
        header[24..32].copy_from_slice(&number.to_le_bytes());
        let file = disk.open(Path::new("/other"), Mode::Create).unwrap();
        file.write_at(0, &put_together(header, &pieces)).unwrap();
        journal.keep_checkpoint(number, &*file).unwrap();
        let error = joins_journal(&journal).expect_err("no log has so many records");
        assert!(matches!(error, Error::Damaged { .. }) && error.to_string().contains("no log has"), "{error}");
    }
    memory.check(&"records that there are not");
}

/// A journal that a leader has written, message by message.
fn journal() -> Vec<Vec<u8>> {
    let journal = SimulatedJournal::new(1);
    let leader = join(&journal, "a:1");
    wait_for(&leader, Role::Leading);
    furnish(&leader).unwrap();
    let mut random = Random(3);
    let mut calls = random.calls(20);
    (1..).zip(&mut calls).step_by(3).for_each(|(number, call)| call.1 = number);
    leader.call_batch(batch(&calls)).unwrap();
    together(&leader, &random.calls(5)).unwrap();
    leader.handle().append_digest().unwrap();
    leader.call_batch(batch(&random.calls(10))).unwrap();
    leader.close().unwrap();
    journal.read(1, usize::MAX, Duration::ZERO).unwrap().messages
}

fn reads(messages: &[Vec<u8>]) -> Result<Digest, Error> {
    let journal = SimulatedJournal::new(1);
    journal.append(1, messages).1.unwrap();
    joins_journal(&journal)
}

#[test]
fn messages_that_a_server_has_altered_are_refused() {
    let memory = Memory::begin();
    let sound = journal();
    reads(&sound).unwrap();
    let mut random = Random(4);
    for at in 0..sound.len() {
        for byte in 0..sound[at].len() {
            let mut messages = sound.clone();
            messages[at][byte] ^= 1 << random.below(8);
            let error = reads(&messages).expect_err("a flipped bit");
            assert!(matches!(error, Error::Damaged { .. } | Error::Version { .. }), "{at}, byte {byte}: {error}");
            if byte % 5 == 0 {
                let mut messages = sound.clone();
                messages[at].truncate(byte);
                let error = reads(&messages).expect_err("a message that is cut");
                assert!(matches!(error, Error::Damaged { .. }), "{at}, cut at {byte}: {error}");
            }
        }
    }
    memory.check(&"altered by a server");
}

#[test]
fn messages_with_right_checksums_and_hashes_are_refused_or_are_what_they_say() {
    let memory = Memory::begin();
    let sound = journal();
    let messages = take_messages_apart(&sound);
    assert_eq!(put_messages_together(&messages), sound, "what was taken apart is put together");
    let mut cases = Vec::new();
    let mut random = Random(5);
    for (at, message) in messages.iter().enumerate() {
        for (what, piece) in altered(&message.piece, &mut random) {
            let mut messages = messages.clone();
            messages[at].piece = piece;
            cases.push((format!("{what} of message {at}"), messages));
        }
        for number in [0, 1, 2, u64::MAX] {
            let mut changed = messages.clone();
            changed[at].epoch = number;
            cases.push((format!("epoch {number} in message {at}"), changed));
            let mut changed = messages.clone();
            changed[at].database = number;
            cases.push((format!("database {number} in message {at}"), changed));
        }
    }
    for (what, messages) in reordered(&messages) {
        let mut numbered = messages.clone();
        cases.push((what.clone(), messages));
        (1..).zip(&mut numbered).for_each(|(number, message)| message.piece.number = number);
        cases.push((format!("{what}, numbered"), numbered));
    }
    // A node that has begun waits for messages when it is to end, so several begin at a time.
    let (next, read, refused) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        while let Some((what, messages)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            match reads(&put_messages_together(messages)) {
                Ok(_) => read.fetch_add(1, Ordering::Relaxed),
                Err(error) => {
                    is_clean(&error, what);
                    refused.fetch_add(1, Ordering::Relaxed)
                }
            };
            memory.check(what);
        }
    };
    std::thread::scope(|scope| (0..16).for_each(|_| drop(scope.spawn(work))));
    let (read, refused) = (read.into_inner(), refused.into_inner());
    assert!(read > 20 && refused > 1000, "{read} were read and {refused} were refused");
}

/// Messages that define a procedure without arguments, and call it so often.
fn many_calls(messages: u64, calls: u64) -> Vec<Vec<u8>> {
    let assembly = "procedure nothing\n    commit\n";
    let text = [&(assembly.len() as u32).to_le_bytes()[..], assembly.as_bytes(), &[0; 4]].concat();
    let mut run = vec![0];
    let mut head = calls << 1;
    while head >= 0x80 {
        run.push(head as u8 | 0x80);
        head >>= 7;
    }
    run.push(head as u8);
    let mut pieces = vec![Piece::new(RecordKind::Epoch, 1, b"a".to_vec()), Piece::new(RecordKind::Definition, 2, text)];
    pieces.extend((3..3 + messages).map(|number| Piece::new(RecordKind::Calls, number, run.clone())));
    let all: Vec<Message> = pieces.into_iter().map(|piece| Message { database: 7, epoch: 1, piece }).collect();
    put_messages_together(&all)
}

#[test]
fn calls_that_take_no_bytes_are_counted() {
    let memory = Memory::begin();
    for calls in [1 << 22, 1 << 28, 1 << 40] {
        let error = reads(&many_calls(1, calls)).expect_err("no record has so many");
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
        memory.check(&calls);
    }
    reads(&many_calls(100, 100_000)).expect("that many are possible");
    memory.check(&"a hundred records of 100,000 calls");
}
