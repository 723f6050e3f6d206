//! Walks the log and tells a torn tail from damage. `docs/durability.md` has the argument; in short:
//!
//! - Records have consecutive numbers, over all segments. A number that is missing is damage.
//! - A bad record is *torn* if it may be part of what was being written when the machine stopped. It was not, and so is
//!   damage, if a sound frame behind it says that everything up to it was durable, or if a later segment begins behind
//!   it: a segment gets its name, which is the number of its first record, only when every record before that number
//!   is durable. Whether there are records in the segment makes no difference.
//! - What is torn is at the end, and nobody was told that it is durable.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::directory::Directory;
use crate::error::Error;
use crate::format::file::{self, FileHeader, FileKind};
use crate::format::frame::{self, Found, Frame, RecordKind};
use crate::io::{File, Io, Mode};

/// A record of the log.
pub(crate) struct Record<'a> {
    pub(crate) path: &'a Path,
    pub(crate) offset: u64,
    pub(crate) frame: Frame,
    pub(crate) payload: &'a [u8],
}

/// The end of a log, cut off where it was torn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// The file.
    pub path: PathBuf,
    /// Where the first torn byte is.
    pub offset: u64,
    /// Bytes from there to the last one that is not zero.
    pub bytes: u64,
    /// What stands there, in words.
    pub problem: String,
}

/// Where a log ends.
#[derive(Debug, Default)]
pub(crate) struct LogEnd {
    /// The number of the next record.
    pub(crate) next: u64,
    /// The number behind the last record that was found, in a log that may end before a checkpoint does.
    pub(crate) next_found: u64,
    /// The last segment that has records, if any was read: its first record and where its records end.
    pub(crate) last: Option<(u64, u64)>,
    /// The bytes at its end that no sound frame proves to be durable.
    pub(crate) unproven: Vec<u8>,
    pub(crate) torn: Option<Torn>,
    /// Segments without a record.
    pub(crate) empty: Vec<u64>,
    /// Bytes of segments read, zero tails not counted.
    pub(crate) bytes: u64,
}

/// Which part of the log is wanted.
pub(crate) struct Wanted<'a> {
    pub(crate) segments: &'a [u64],
    /// The database that the segments should belong to, if that is known.
    pub(crate) database: Option<u64>,
    /// Records up to this one are not needed.
    pub(crate) covered: u64,
    /// Whether segments are read that hold no record which is needed.
    pub(crate) all: bool,
}

/// How many bytes are read at a time: so few that they are still in the caches when they are decoded.
const PIECE: usize = 1 << 20;

/// A segment, read as far as its records were asked for, so that the first ones are run while others are read.
struct Segment<'a> {
    path: &'a Path,
    file: Arc<dyn File>,
    /// What was read; memory of the segment before.
    bytes: &'a mut Vec<u8>,
    /// Bytes of the file.
    length: usize,
    header: FileHeader,
}

impl<'a> Segment<'a> {
    /// Reads the header: it was whole before the file got its name.
    fn open(
        io: &dyn Io,
        path: &'a Path,
        bytes: &'a mut Vec<u8>,
        wanted: &Wanted<'_>,
        number: u64,
    ) -> Result<Self, Error> {
        let failed = |error| Error::io("read", path, error);
        let file = io.open(path, Mode::Read).map_err(failed)?;
        let length = file.length().and_then(|length| usize::try_from(length).map_err(std::io::Error::other));
        let length = length.map_err(failed)?;
        bytes.clear();
        bytes.try_reserve_exact(length).map_err(|_| failed(std::io::ErrorKind::OutOfMemory.into()))?;
        let header = FileHeader { kind: FileKind::Segment, database: 0, number };
        let mut segment = Self { path, file, bytes, length, header };
        segment.read(PIECE)?;
        segment.header = FileHeader::decode(path, segment.bytes, FileKind::Segment)?;
        if wanted.database.is_some_and(|database| database != segment.header.database) {
            return Err(Error::damaged(path, 16, "the segment belongs to another database"));
        }
        if segment.header.number != number {
            let problem = format!("its name says record {number}, it says {}", segment.header.number);
            return Err(Error::damaged(path, 24, problem));
        }
        Ok(segment)
    }

    fn is_whole(&self) -> bool {
        self.bytes.len() >= self.length
    }

    /// Reads on until there are `wanted` bytes, or all that the file has.
    fn read(&mut self, wanted: usize) -> Result<(), Error> {
        while self.bytes.len() < wanted && !self.is_whole() {
            let at = self.bytes.len();
            self.bytes.resize((at + PIECE).min(self.length), 0);
            let read = self.file.read_at(at as u64, &mut self.bytes[at..]);
            let read = read.map_err(|error| Error::io("read", self.path, error))?;
            self.bytes.truncate(at + read);
            if read == 0 {
                self.length = at;
            }
        }
        Ok(())
    }

    /// Whether nothing but zeros is behind the header.
    fn is_empty(&mut self) -> Result<bool, Error> {
        let zeros = |bytes: &[u8]| bytes[file::BYTES..].iter().all(|&byte| byte == 0);
        if !zeros(self.bytes) {
            return Ok(false);
        }
        self.read(self.length)?;
        Ok(zeros(self.bytes))
    }

    /// What stands at `at`.
    fn look(&mut self, at: usize) -> Result<Found<'_>, Error> {
        let salt = self.header.salt();
        self.read(at + frame::BYTES)?;
        match self.bytes.get(at..).and_then(|bytes| Frame::decode(bytes, salt)) {
            Some(frame) => self.read(at + frame.bytes())?,
            None => self.read(self.length)?,
        }
        Ok(frame::look(&self.bytes[at.min(self.bytes.len())..], salt))
    }
}

/// Gives every record to `each`, in order.
///
/// # Errors
/// [`Error::Damaged`], [`Error::Version`], [`Error::Io`], and those of `each`.
pub(crate) fn walk(
    io: &dyn Io,
    directory: &Directory,
    wanted: &Wanted<'_>,
    each: &mut dyn FnMut(Record<'_>) -> Result<(), Error>,
) -> Result<LogEnd, Error> {
    let mut end = LogEnd { next: wanted.covered + 1, ..LogEnd::default() };
    let requires_durability =
        |index: usize| wanted.segments.get(index + 1).is_none_or(|&next| next > wanted.covered + 1);
    let first = if wanted.all { 0 } else { (0..wanted.segments.len()).find(|&i| requires_durability(i)).unwrap_or(0) };
    let mut expected = None;
    let mut torn: Option<Torn> = None;
    let mut buffer = Vec::new();
    for &number in wanted.segments.iter().skip(first) {
        let path = directory.segment(number);
        let mut read = Segment::open(io, &path, &mut buffer, wanted, number)?;
        let due = expected.unwrap_or(wanted.covered + 1);
        let gap = number > due && (torn.is_some() || number > wanted.covered + 1);
        if gap || expected.is_some_and(|expected| number < expected) {
            return Err(missing(directory, &end, torn.as_ref(), due, &path, number));
        }
        if read.is_empty()? {
            expected = Some(number);
            end.empty.push(number);
            continue;
        }
        // What was torn before is no record, since this segment begins with the one that is due there: it is a mark.
        let found = segment(&mut read, &mut end, each)?;
        end.last = Some((number, found.end));
        expected = Some(found.next);
        torn = found.torn;
    }
    end.next_found = expected.unwrap_or(1);
    end.next = end.next_found.max(wanted.covered + 1);
    end.torn = torn;
    Ok(end)
}

/// The segment at `proof` begins with record `number`, and `due` is the one that should follow upon what was walked.
fn missing(directory: &Directory, end: &LogEnd, torn: Option<&Torn>, due: u64, proof: &Path, number: u64) -> Error {
    let shown = format!("'{}', which begins with record {number},", proof.display());
    if number < due {
        return Error::damaged(proof, 24, format!("it begins with record {number}, and record {due} is due"));
    }
    if let Some(torn) = torn {
        let problem = format!("{}, and {shown} shows that it was durable", torn.problem);
        return Error::damaged(&torn.path, torn.offset, problem);
    }
    let place = match (end.empty.last(), end.last) {
        (Some(&empty), _) if empty == due => (empty, file::BYTES as u64),
        (_, Some(place)) => place,
        _ => return Error::damaged(proof, 24, format!("it begins with record {number}, and record {due} is due")),
    };
    let problem = format!("record {due} is missing, and {shown} shows that it was durable");
    Error::damaged(&directory.segment(place.0), place.1, problem)
}

struct Walked {
    next: u64,
    end: u64,
    torn: Option<Torn>,
}

/// Walks one segment.
fn segment(
    segment: &mut Segment<'_>,
    end: &mut LogEnd,
    each: &mut dyn FnMut(Record<'_>) -> Result<(), Error>,
) -> Result<Walked, Error> {
    let (path, salt) = (segment.path, segment.header.salt());
    let (mut at, mut next) = (file::BYTES, segment.header.number);
    // Where the records begin that no frame has proved to be durable, by number.
    let mut unproven: std::collections::VecDeque<(u64, usize)> = std::collections::VecDeque::new();
    let torn = loop {
        match segment.look(at)? {
            Found::Nothing => break None,
            Found::Version(found) => {
                return Err(Error::Version { path: path.into(), found, wanted: crate::format::VERSION });
            }
            Found::Frame(frame, payload) => {
                if frame.number != next {
                    let problem = format!("record {} stands where record {next} is due", frame.number);
                    return Err(Error::damaged(path, at as u64, problem));
                }
                if !matches!(
                    frame.kind,
                    RecordKind::Calls
                        | RecordKind::Definition
                        | RecordKind::Rows
                        | RecordKind::Indexed
                        | RecordKind::Durable
                ) {
                    let problem = format!("a record of kind {} has no place in a log", frame.kind.name());
                    return Err(Error::damaged(path, at as u64, problem));
                }
                let durable = frame.durable();
                while unproven.front().is_some_and(|(number, _)| *number < durable) {
                    unproven.pop_front();
                }
                each(Record { path, offset: at as u64, frame, payload })?;
                if frame.kind != RecordKind::Durable {
                    unproven.push_back((next, at));
                    next += 1;
                }
                at += frame.bytes();
            }
            Found::Bad(problem) => {
                segment.read(segment.length)?;
                let bytes = segment.bytes.as_slice();
                if let Some(place) = frame::proof(bytes, at + 1, salt, next) {
                    let problem = format!("{problem}, and the frame at offset {place} shows that it was durable");
                    return Err(Error::damaged(path, at as u64, problem));
                }
                let last = bytes.iter().rposition(|&byte| byte != 0).unwrap_or(at);
                let count = (last + 1).saturating_sub(at) as u64;
                break Some(Torn { path: path.into(), offset: at as u64, bytes: count, problem });
            }
        }
    };
    end.bytes += at as u64;
    end.unproven = unproven.front().map_or(Vec::new(), |&(_, from)| segment.bytes[from..at].to_vec());
    Ok(Walked { next, end: at as u64, torn })
}
