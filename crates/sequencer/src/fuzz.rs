//! What must hold of any bytes on disk: one function for each way in, so that a fuzz target is one line.
//!
//! They panic when a promise of this crate is broken, and do nothing when the input is refused.

use std::path::Path;
use std::sync::Arc;

use lockwork_engine::{EngineKind, Options as EngineOptions, create};

use crate::directory::Directory;
use crate::error::Error;
use crate::format::file::{FileHeader, FileKind};
use crate::format::frame;
use crate::io::simulated::SimulatedDisk;
use crate::options::Options;
use crate::sequencer::Sequencer;
use crate::{Definition, RecordKind, inspect};

const DATABASE: u64 = 7;

/// A directory with these files opens, or is refused with a place; what opens opens again with the same digest.
fn opens(disk: &SimulatedDisk) {
    let path = Path::new("/d");
    let open = || {
        let options = EngineOptions { threads: 1, ..EngineOptions::default() };
        let engine = create(EngineKind::Serial, options).expect("a serial engine");
        let options = Options { segment_bytes: 4096, checkpoint_bytes: 0, ..Options::default() };
        Sequencer::open(Arc::new(disk.clone()), path, options, engine, &mut |_| ())
    };
    match open() {
        Ok((sequencer, _)) => {
            let digest = sequencer.digest().expect("an open database has a digest");
            sequencer.close().expect("nothing fails");
            let (again, report) = open().expect("what opened opens again");
            assert_eq!((again.digest().ok(), report.torn), (Some(digest), None));
        }
        Err(Error::Damaged { problem, .. }) => assert!(!problem.is_empty(), "an error says what is wrong"),
        Err(_) => {}
    }
}

fn prepared(kind: FileKind, name: &Path, number: u64, bytes: &[u8]) -> SimulatedDisk {
    let disk = SimulatedDisk::new(1);
    let directory = Directory::new(Path::new("/d"));
    let file = |kind, number| FileHeader { kind, database: DATABASE, number };
    disk.put(&directory.format(), &file(FileKind::Format, 0).encode());
    let header = file(kind, number);
    let mut contents = header.encode().to_vec();
    contents.extend(frames(bytes, header.salt(), number));
    disk.put(name, &contents);
    disk
}

/// Takes the input for frames: kind, length, payload; with sound checksums, so that what is behind them is reached. A
/// kind beyond all stands for bytes as they are.
fn frames(mut bytes: &[u8], salt: u32, first: u64) -> Vec<u8> {
    let kinds = [
        RecordKind::Calls,
        RecordKind::Definition,
        RecordKind::Rows,
        RecordKind::Durable,
        RecordKind::Requests,
        RecordKind::End,
        RecordKind::Indexed,
        RecordKind::RequestIds,
    ];
    let (mut out, mut number) = (Vec::new(), first);
    while let [kind, length, rest @ ..] = bytes {
        let (payload, after) = rest.split_at(usize::from(*length).min(rest.len()));
        match kinds.get(usize::from(*kind % 9)) {
            Some(&kind) => {
                frame::put(&mut out, salt, kind, number, u32::from(*length & 1), |out| out.extend(payload));
                number += u64::from(kind != RecordKind::Durable);
            }
            None => out.extend(payload),
        }
        bytes = after;
    }
    out
}

/// Any bytes as a log.
///
/// # Panics
/// When it does not hold.
pub fn log(bytes: &[u8]) {
    let directory = Directory::new(Path::new("/d"));
    let disk = prepared(FileKind::Segment, &directory.segment(1), 1, bytes);
    drop(inspect::log(&disk, Path::new("/d"), &mut |_| ()));
    opens(&disk);
}

/// Any bytes as a checkpoint.
///
/// # Panics
/// When it does not hold.
pub fn checkpoint(bytes: &[u8]) {
    let directory = Directory::new(Path::new("/d"));
    let disk = prepared(FileKind::Checkpoint, &directory.checkpoint(0), 0, bytes);
    let segment = FileHeader { kind: FileKind::Segment, database: DATABASE, number: 1 };
    disk.put(&directory.segment(1), &segment.encode());
    drop(inspect::checkpoint(&disk, Path::new("/d"), &mut |_| ()));
    opens(&disk);
}

/// Any bytes where the log has a definition.
///
/// # Panics
/// When it does not hold.
pub fn definition(bytes: &[u8]) {
    if let Ok(definition) = Definition::decode(bytes) {
        let mut again = Vec::new();
        definition.encode(&mut again);
        assert_eq!(again, bytes, "a definition has one form");
    }
}

#[cfg(test)]
mod tests {
    use lockwork_procedure::request::RequestId;

    use super::*;
    use crate::format::items::End;

    const PROCEDURE: &str = "procedure count\ntable t (id: i64 key, n: i64)\nparam id: i64\n\
                             insert c0, t, [id]\nret r1, c0\ncommit\n";

    /// A folder whose checkpoint and log have request ids of eight bytes, as an earlier version wrote them.
    #[test]
    fn request_ids_of_an_earlier_version_are_passed_over() {
        let directory = Directory::new(Path::new("/d"));
        let disk = SimulatedDisk::new(1);
        let file = |kind, number| FileHeader { kind, database: DATABASE, number };
        disk.put(&directory.format(), &file(FileKind::Format, 0).encode());
        let header = file(FileKind::Checkpoint, 0);
        let mut checkpoint = header.encode().to_vec();
        let outcome = [&9_u64.to_le_bytes()[..], &[0; 4], &[1, 0, 0, 0], &[8, 0, 0, 0], &[5; 8]].concat();
        let end = End { requests: 1, logged: true, ..End::default() };
        frame::put(&mut checkpoint, header.salt(), RecordKind::Requests, 0, 0, |out| out.extend(outcome));
        frame::put(&mut checkpoint, header.salt(), RecordKind::End, 1, 0, |out| end.encode(out));
        disk.put(&directory.checkpoint(0), &checkpoint);
        let header = file(FileKind::Segment, 1);
        let mut log = header.encode().to_vec();
        let definition = Definition { assembly: PROCEDURE.into(), source: String::new() };
        frame::put(&mut log, header.salt(), RecordKind::Definition, 1, 0, |out| definition.encode(out));
        // Two calls of procedure 0 with ids 7 and 8.
        let ids = [7_u64, 8].map(u64::to_le_bytes).concat();
        let calls = [&[0, 2 << 1 | 1][..], &ids, &[1, 2].map(i64::to_le_bytes).concat()].concat();
        frame::put(&mut log, header.salt(), RecordKind::Calls, 2, 0, |out| out.extend(calls));
        disk.put(&directory.segment(1), &log);
        opens(&disk);
        let mut contents = Vec::new();
        inspect::checkpoint(&disk, Path::new("/d"), &mut |entry| contents.push(entry.contents)).unwrap();
        assert_eq!(contents[0], inspect::Contents::ShortRequests);
        let options = EngineOptions { threads: 1, ..EngineOptions::default() };
        let engine = create(EngineKind::Serial, options).unwrap();
        let opened = Sequencer::open(Arc::new(disk), Path::new("/d"), Options::default(), engine, &mut |_| ());
        let (sequencer, report) = opened.unwrap();
        assert_eq!((report.calls, report.requests), (2, 0));
        // A new id is remembered beside them.
        let mut batch = lockwork_procedure::block::Batch::new(64, 1).unwrap();
        batch.push(0).unwrap().bytes()[32] = 3;
        let random = [1; 10];
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
        batch.set_request(0, RequestId::new(now, random));
        sequencer.call_batch(batch).unwrap();
        sequencer.close().unwrap();
    }
}
