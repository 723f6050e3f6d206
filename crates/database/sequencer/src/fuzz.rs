//! What must hold of any bytes on disk: one function for each way in, so that a fuzz target is one line.
//!
//! They panic when a promise of this crate is broken, and do nothing when the input is refused.

use std::path::Path;
use std::sync::Arc;

use lockwork_engine::{EngineKind, Options as EngineOptions, create};
use lockwork_memory::Pages;
use lockwork_storage::Digest;

use crate::directory::Directory;
use crate::error::Error;
use crate::format::file::{self, FileHeader, FileKind};
use crate::format::frame::{self, Frame};
use crate::format::items::{End, Rows, outcomes, short_outcomes};
use crate::io::simulated::SimulatedDisk;
use crate::journal::Journal;
use crate::journal::message::{self, Chain};
use crate::journal::simulated::SimulatedJournal;
use crate::options::Options;
use crate::sequencer::Sequencer;
use crate::{Definition, NodeOptions, RecordKind, inspect};

const DATABASE: u64 = 7;

/// A directory with these files opens, or is refused with a place; what opens opens again with the same digest.
fn opens(disk: &SimulatedDisk) {
    let path = Path::new("/d");
    let open = || {
        let options = EngineOptions { threads: 1, ..EngineOptions::default() };
        let engine = create(EngineKind::SERIAL, options).expect("a serial engine");
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
        RecordKind::Sizes,
        RecordKind::Chain,
        RecordKind::Streams,
        RecordKind::Answered,
        RecordKind::Digest,
        RecordKind::Epoch,
        RecordKind::Ordered,
    ];
    let (mut out, mut number) = (Vec::new(), first);
    while let [kind, length, rest @ ..] = bytes {
        let (payload, after) = rest.split_at(usize::from(*length).min(rest.len()));
        match kinds.get(usize::from(*kind) % (kinds.len() + 1)) {
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

/// Any bytes as the messages of a journal: a node has what they say, or stops with a place.
///
/// # Panics
/// When it does not hold.
pub fn journal(bytes: &[u8]) {
    let framed = frames(bytes, 0, 2);
    let mut all =
        vec![Message { database: DATABASE, epoch: 1, piece: Piece::new(RecordKind::Epoch, 1, b"a".to_vec()) }];
    let pieces = Piece::all_of(&framed);
    let mut epoch = 1;
    all.extend(pieces.into_iter().map(|piece| {
        epoch += u64::from(piece.kind == Piece::kind(RecordKind::Epoch));
        Message { database: DATABASE, epoch, piece }
    }));
    let journal = SimulatedJournal::new(1);
    journal.append(1, &put_messages_together(&all)).1.expect("it has no faults");
    drop(joins_journal(&journal));
}

/// What a node has that begins with this journal.
///
/// # Errors
/// As [`Sequencer::join`].
///
/// # Panics
/// When another node that reads them has something else.
pub fn joins_journal(journal: &SimulatedJournal) -> Result<Digest, Error> {
    let join = || {
        let options = EngineOptions { threads: 1, pages: Pages::Plain, ..EngineOptions::default() };
        let engine = create(EngineKind::SERIAL, options).expect("a serial engine");
        let node = NodeOptions { may_lead: false, ..NodeOptions::new("fuzz") };
        let disk = Arc::new(SimulatedDisk::new(1));
        let journal = Arc::new(journal.another());
        Sequencer::join(journal, disk, Path::new("/n"), Options::default(), node, engine, &mut |_| ())
    };
    journal.hurry();
    match join() {
        Ok((node, _)) => {
            let digest = node.digest().expect("a node that has begun has a digest");
            node.close().expect("nothing fails");
            let (again, _) = join().expect("what one node has read another reads");
            assert_eq!(again.digest().ok(), Some(digest));
            Ok(digest)
        }
        Err(error) => {
            assert!(!error.to_string().is_empty(), "an error says what is wrong");
            Err(error)
        }
    }
}

/// A frame that was taken apart, and whose every field can be anything when it is put together again with the right
/// checksums: what is behind them is to be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The byte of its kind.
    pub kind: u8,
    /// Its number.
    pub number: u64,
    /// How far durability was behind.
    pub behind: u32,
    /// The length in its header, if that is not the one of its payload.
    pub length: Option<u32>,
    /// What it says.
    pub payload: Vec<u8>,
}

impl Piece {
    /// A sound one.
    #[must_use]
    pub fn new(kind: RecordKind, number: u64, payload: Vec<u8>) -> Self {
        Self { kind: Self::kind(kind), number, behind: 0, length: None, payload }
    }

    /// The byte of a kind.
    #[must_use]
    pub fn kind(kind: RecordKind) -> u8 {
        let mut bytes = Vec::new();
        frame::put(&mut bytes, 0, kind, 0, 0, |_| ());
        bytes[13]
    }

    /// All sound ones at the beginning of `bytes`, whatever their salt.
    fn all_of(mut bytes: &[u8]) -> Vec<Self> {
        let mut all = Vec::new();
        while let Some(salt) = bytes.get(8..12) {
            let salt = u32::from_le_bytes(salt.try_into().expect("four bytes"));
            let Some(frame) = Frame::decode(bytes, salt) else { break };
            let Some(payload) = bytes.get(frame::BYTES..frame::BYTES + frame.length as usize) else { break };
            let kind = bytes[13];
            let (number, behind) = (frame.number, frame.behind);
            all.push(Self { kind, number, behind, length: None, payload: payload.to_vec() });
            bytes = bytes.get(frame.bytes()..).unwrap_or_default();
        }
        all
    }

    fn put(&self, out: &mut Vec<u8>, salt: u32) {
        let start = out.len();
        let length = self.length.unwrap_or(self.payload.len() as u32);
        out.extend([0; 4]);
        out.extend(crc32c::crc32c(&self.payload).to_le_bytes());
        out.extend(salt.to_le_bytes());
        out.extend([crate::VERSION as u8, self.kind, 0, 0]);
        out.extend(self.number.to_le_bytes());
        out.extend(self.behind.to_le_bytes());
        out.extend(length.to_le_bytes());
        let crc = crc32c::crc32c(&out[start + 4..]);
        out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
        out.extend(&self.payload);
        out.resize(start + frame::whole(self.payload.len()), 0);
    }
}

/// The header of a file of frames, and these.
///
/// # Panics
/// When it has no header.
#[must_use]
pub fn take_apart(file: &[u8]) -> ([u8; file::BYTES], Vec<Piece>) {
    let (header, rest) = file.split_first_chunk().expect("a header");
    (*header, Piece::all_of(rest))
}

/// A file of frames with the right checksums.
#[must_use]
pub fn put_together(mut header: [u8; file::BYTES], pieces: &[Piece]) -> Vec<u8> {
    let crc = crc32c::crc32c(&header[..60]).to_le_bytes();
    header[60..].copy_from_slice(&crc);
    let mut bytes = header.to_vec();
    pieces.iter().for_each(|piece| piece.put(&mut bytes, u32::from_le_bytes(crc)));
    bytes
}

/// Makes the end of a checkpoint true, as far as what is before it can be read, and numbers its frames.
pub fn settle(pieces: &mut [Piece]) {
    let mut end = End::default();
    for (number, piece) in pieces.iter_mut().enumerate() {
        piece.number = number as u64;
        let is = |kind| piece.kind == Piece::kind(kind);
        if is(RecordKind::Definition) {
            end.definitions += 1;
        } else if is(RecordKind::Rows)
            && let Ok(rows) = Rows::decode(&piece.payload)
        {
            end.rows += rows.count() as u64;
            end.digest = end.digest.combine(Digest::of_rows(rows.table, rows.image_bytes, rows.images));
        } else if is(RecordKind::RequestIds) {
            let mut count = 0;
            if outcomes(&piece.payload, |_| (), |_, _| count += 1).is_ok() {
                end.requests += count;
            }
        } else if is(RecordKind::Requests) {
            end.requests += short_outcomes(&piece.payload).unwrap_or(0);
        } else if is(RecordKind::End)
            && let Ok(End { logged, .. }) = End::decode(&piece.payload)
        {
            piece.payload.clear();
            End { logged, ..end }.encode(&mut piece.payload);
        }
    }
}

/// A message that was taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The database in its header.
    pub database: u64,
    /// The epoch in its header.
    pub epoch: u64,
    /// Its frame.
    pub piece: Piece,
}

/// Messages of a journal, taken apart.
///
/// # Panics
/// When one is not sound.
#[must_use]
pub fn take_messages_apart(messages: &[Vec<u8>]) -> Vec<Message> {
    let apart = |message: &Vec<u8>| {
        let long = |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().expect("eight bytes"));
        let piece = Piece::all_of(&message[message::BYTES..]).pop().expect("a sound frame");
        Message { database: long(16), epoch: long(24), piece }
    };
    messages.iter().map(apart).collect()
}

/// Messages with the right checksums and hashes.
#[must_use]
pub fn put_messages_together(messages: &[Message]) -> Vec<Vec<u8>> {
    let mut hash = [0; 32];
    let mut together = |message: &Message| {
        let Message { database, epoch, piece } = message;
        let mut chain = Chain { database: *database, epoch: *epoch, hash };
        let mut bytes = Vec::new();
        piece.put(&mut bytes, message::salt(*database));
        let message = chain.seal(&bytes);
        hash = chain.hash;
        message
    };
    messages.iter().map(&mut together).collect()
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
        let definition = Definition::new(PROCEDURE, "");
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
        let engine = create(EngineKind::SERIAL, options).unwrap();
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
