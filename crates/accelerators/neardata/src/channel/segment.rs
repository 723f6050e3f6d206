//! The memory that host and storage share: a header, two rings of entries, and slots for what does not fit an entry.
//!
//! ```text
//! byte 0      magic, layout version, calls, slots, entries of a ring, bytes of a slot, bytes of the segment
//!      64     tail of the submission ring
//!      128    its head
//!      192    its doorbells
//!      256    tail, head and doorbells of the completion ring, a line each
//!      4096   submission ring: n entries of 64 bytes
//!      ...    completion ring: n entries of 64 bytes
//!      ...    slots of 128 KiB, from the next multiple of 4096 on
//! ```
//!
//! The sizes follow from two numbers ([`ChannelSize`]): calls in flight, and slots. The rings have room for every entry
//! that can be outstanding, so that a full ring is a broken promise and nobody ever waits for room.
//!
//! Invariant: the file is sealed against shrinking before it is handed over, so no access faults; after the header has
//! been checked, sizes are taken from private memory. All is read and written as atomic words, so that the other
//! process may do to it what it likes: the values may be wrong, never the program.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lockwork_memory::shared::anonymous_file;
use memmap2::{MmapOptions, MmapRaw};

/// Bytes of a slot: a row of the widest kind fits, with its head.
pub const SLOT_BYTES: usize = 128 << 10;
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 64;
/// Words of an entry.
pub(crate) const ENTRY_WORDS: usize = ENTRY_BYTES / 8;
/// "LWSTORE1".
const MAGIC: u64 = u64::from_le_bytes(*b"LWSTORE1");
/// Changes with the layout of the segment and with that of entries and messages.
pub const LAYOUT_VERSION: u64 = 1;
const HEADER_BYTES: usize = 4096;

/// How many calls can be in flight, and how much memory there is for what they carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelSize {
    /// Calls in flight, 1 to 256; further ones wait for one to end.
    pub calls: u16,
    /// Slots of [`SLOT_BYTES`], 1 to 4096; a call takes one to four.
    pub slots: u16,
}

impl Default for ChannelSize {
    /// 64 calls, and 8 MiB for what they carry.
    fn default() -> Self {
        Self { calls: 64, slots: 64 }
    }
}

impl ChannelSize {
    /// Whether the numbers are within their limits.
    ///
    /// # Errors
    /// Which is not, and what is possible.
    pub fn check(self) -> Result<Self, ChannelError> {
        let Self { calls, slots } = self;
        if (1..=256).contains(&calls) && (1..=4096).contains(&slots) {
            Ok(self)
        } else {
            Err(ChannelError::Segment(format!("{calls} calls and {slots} slots; 1 to 256 and 1 to 4096 are possible")))
        }
    }

    /// Entries of each ring: one for each call, one for each slot, and some for what belongs to neither.
    pub(crate) fn entries(self) -> usize {
        (usize::from(self.calls) + usize::from(self.slots) + 8).next_power_of_two()
    }

    fn slots_at(self) -> usize {
        (HEADER_BYTES + 2 * self.entries() * ENTRY_BYTES).next_multiple_of(4096)
    }

    /// Bytes of the whole segment.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.slots_at() + usize::from(self.slots) * SLOT_BYTES
    }
}

/// Why there is no channel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The segment is none, or not of this layout.
    #[error("the channel's segment: {0}")]
    Segment(String),
    /// The system refused something.
    #[error("the channel: {what}: {source}")]
    System {
        /// What was asked of it.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
}

pub(crate) fn system(what: &'static str) -> impl Fn(io::Error) -> ChannelError {
    move |source| ChannelError::System { what, source }
}

/// Which ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Host to storage.
    Submission,
    /// Storage to host.
    Completion,
}

/// The mapped segment.
#[derive(Debug)]
pub(crate) struct Segment {
    map: MmapRaw,
    size: ChannelSize,
}

impl Segment {
    /// A new one, and the file to hand over.
    pub(crate) fn create(size: ChannelSize) -> Result<(Self, OwnedFd), ChannelError> {
        let size = size.check()?;
        let file = anonymous_file(c"lockwork-channel").map_err(system("memfd_create"))?;
        // All of it now: memory that is missing later would be a fault.
        // SAFETY: a plain system call on an open file.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, size.bytes() as libc::off_t) } < 0 {
            return Err(system("memory for the segment")(io::Error::last_os_error()));
        }
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: a plain system call on an open file.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
            return Err(system("sealing the segment")(io::Error::last_os_error()));
        }
        let segment = Self { map: map(&file, size.bytes())?, size };
        for (word, value) in segment.layout().into_iter().enumerate() {
            segment.word(word).store(value, Ordering::Relaxed);
        }
        Ok((segment, file.into()))
    }

    /// Maps one that the host has made.
    pub(crate) fn attach(file: OwnedFd) -> Result<Self, ChannelError> {
        let file = File::from(file);
        let bytes = file.metadata().map_err(system("the segment's size"))?.len();
        let wrong = |problem: String| Err(ChannelError::Segment(problem));
        if bytes < HEADER_BYTES as u64 {
            return wrong(format!("{bytes} bytes; one has at least {HEADER_BYTES}"));
        }
        // SAFETY: a plain system call on an open file.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return wrong("it could be truncated while it is used; hand over a memfd with F_SEAL_SHRINK".into());
        }
        let header = Self { map: map(&file, HEADER_BYTES)?, size: ChannelSize { calls: 1, slots: 1 } };
        let read = |word: usize| header.word(word).load(Ordering::Relaxed);
        if read(0) != MAGIC {
            return wrong(format!("it begins with {:#018x}, and one of Lockwork with {MAGIC:#018x}", read(0)));
        }
        if read(1) != LAYOUT_VERSION {
            return wrong(format!("layout {}; this program has layout {LAYOUT_VERSION}", read(1)));
        }
        let number = |word: usize| u16::try_from(read(word)).unwrap_or(u16::MAX);
        let size = ChannelSize { calls: number(2), slots: number(3) }.check()?;
        let segment = Self { map: map(&file, HEADER_BYTES)?, size };
        for (word, right) in segment.layout().into_iter().enumerate() {
            if read(word) != right {
                return wrong(format!("word {word} of its header is {}; it should be {right}", read(word)));
            }
        }
        if bytes != size.bytes() as u64 {
            return wrong(format!("{bytes} bytes; with {size:?} it should have {}", size.bytes()));
        }
        Ok(Self { map: map(&file, size.bytes())?, size })
    }

    /// What the first words of the header are.
    fn layout(&self) -> [u64; 7] {
        let ChannelSize { calls, slots } = self.size;
        let entries = self.size.entries() as u64;
        [MAGIC, LAYOUT_VERSION, calls.into(), slots.into(), entries, SLOT_BYTES as u64, self.size.bytes() as u64]
    }

    pub(crate) fn size(&self) -> ChannelSize {
        self.size
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.map.len() / 8);
        // SAFETY: inside the mapping, which is aligned to a page and lives as long as the segment; every access of this
        // process is atomic, and other processes are outside what the compiler may assume.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().cast::<u64>().add(index)) }
    }

    fn words(&self, start: usize, count: usize) -> &[AtomicU64] {
        assert!(start + count <= self.map.len() / 8);
        // SAFETY: as in `word`; atomic words have the size and the alignment of plain ones.
        unsafe { std::slice::from_raw_parts(self.map.as_mut_ptr().cast::<AtomicU64>().add(start), count) }
    }

    fn line(direction: Direction, line: usize) -> usize {
        let first = if direction == Direction::Submission { 1 } else { 4 };
        (first + line) * 8
    }

    /// How many entries have been written.
    pub(crate) fn tail(&self, direction: Direction) -> &AtomicU64 {
        self.word(Self::line(direction, 0))
    }

    /// How many entries have been read.
    pub(crate) fn head(&self, direction: Direction) -> &AtomicU64 {
        self.word(Self::line(direction, 1))
    }

    /// The doorbells: whether to ring, and which; how often the reader's and the stand-in's have been rung.
    pub(crate) fn bell(&self, direction: Direction) -> [&AtomicU32; 3] {
        let first = Self::line(direction, 2);
        [first, first + 1, first + 2].map(|word| {
            // SAFETY: half of a word as in `word`, which nobody uses as a whole.
            unsafe { AtomicU32::from_ptr(self.word(word).as_ptr().cast()) }
        })
    }

    /// The words of the entry at `position`.
    pub(crate) fn entry(&self, direction: Direction, position: u64) -> &[AtomicU64] {
        let entries = self.size.entries();
        let ring = if direction == Direction::Submission { 0 } else { entries };
        let index = ring + (position as usize & (entries - 1));
        self.words(HEADER_BYTES / 8 + index * ENTRY_WORDS, ENTRY_WORDS)
    }

    fn slot(&self, slot: u16) -> &[AtomicU64] {
        assert!(slot < self.size.slots, "slot {slot} of {}", self.size.slots);
        self.words((self.size.slots_at() + usize::from(slot) * SLOT_BYTES) / 8, SLOT_BYTES / 8)
    }

    /// Copies the parts into a slot, one after the other.
    ///
    /// # Panics
    /// If they are longer than a slot, or there is no such slot.
    pub(crate) fn write(&self, slot: u16, parts: &[&[u8]]) {
        let mut words = self.slot(slot).iter();
        let mut next = |bytes: [u8; 8]| {
            words.next().expect("a message fits its slot").store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        };
        // The word that one part has begun and the next one goes on with.
        let (mut word, mut filled) = ([0; 8], 0);
        for mut part in parts.iter().copied() {
            if filled > 0 {
                let (now, later) = part.split_at(part.len().min(8 - filled));
                word[filled..filled + now.len()].copy_from_slice(now);
                (filled, part) = (filled + now.len(), later);
                if filled < 8 {
                    continue;
                }
                next(word);
            }
            let (whole, rest) = part.as_chunks::<8>();
            whole.iter().for_each(|bytes| next(*bytes));
            word[..rest.len()].copy_from_slice(rest);
            filled = rest.len();
        }
        if filled > 0 {
            next(word);
        }
    }

    /// Copies the first `length` bytes of a slot to `buffer`, in place of what it contains.
    ///
    /// # Panics
    /// If a slot is shorter, or there is no such slot.
    pub(crate) fn read(&self, slot: u16, length: usize, buffer: &mut Vec<u8>) {
        let words = &self.slot(slot)[..length.div_ceil(8)];
        buffer.clear();
        buffer.resize(words.len() * 8, 0);
        let (bytes, _) = buffer.as_chunks_mut::<8>();
        for (bytes, word) in bytes.iter_mut().zip(words) {
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
        }
        buffer.truncate(length);
    }
}

fn map(file: &File, bytes: usize) -> Result<MmapRaw, ChannelError> {
    MmapOptions::new().len(bytes).map_raw(file).map_err(system("mapping the segment"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_any_length_come_back_in_one_piece() {
        let (segment, _file) = Segment::create(ChannelSize { calls: 1, slots: 2 }).expect("there is memory");
        let bytes = (0..255).collect::<Vec<u8>>();
        let mut back = Vec::new();
        for first in 0..20 {
            for second in 0..20 {
                let parts = [&bytes[..first], &[], &bytes[first..first + second], &bytes[first + second..]];
                segment.write(1, &parts);
                segment.read(1, bytes.len(), &mut back);
                assert_eq!(back, bytes, "{first} {second}");
            }
        }
        let all = vec![7; SLOT_BYTES];
        segment.write(0, &[&all[..3], &all[3..]]);
        segment.read(0, SLOT_BYTES, &mut back);
        assert!(back == all);
        segment.read(1, bytes.len(), &mut back);
        assert_eq!(back, bytes, "the next slot is another one");
    }

    #[test]
    fn what_is_no_segment_is_refused() {
        let refused = |file: OwnedFd| Segment::attach(file).expect_err("it is none").to_string();
        let memfd = |bytes: u64, seals: libc::c_int| {
            let file = anonymous_file(c"foreign").expect("there is memory");
            file.set_len(bytes).expect("there is memory");
            // SAFETY: a plain system call on an open file.
            assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }, 0);
            file
        };
        let shrink = libc::F_SEAL_SHRINK;
        assert!(refused(memfd(100, shrink).into()).contains("100 bytes; one has at least 4096"));
        assert!(refused(memfd(1 << 20, 0).into()).contains("F_SEAL_SHRINK"));
        assert!(refused(File::open("/proc/self/exe").expect("this test").into()).contains("F_SEAL_SHRINK"));
        assert!(refused(memfd(1 << 20, shrink).into()).contains("it begins with 0x0000000000000000"));

        let size = ChannelSize { calls: 4, slots: 4 };
        let spoilt = |word: usize, value: u64| {
            let (segment, file) = Segment::create(size).expect("there is memory");
            segment.word(word).store(value, Ordering::Relaxed);
            refused(file)
        };
        assert!(spoilt(1, 2).ends_with("layout 2; this program has layout 1"));
        assert!(spoilt(2, 0).ends_with("0 calls and 4 slots; 1 to 256 and 1 to 4096 are possible"));
        assert!(spoilt(2, 1 << 40).contains("65535 calls"));
        assert!(spoilt(3, 9999).contains("9999 slots"));
        assert!(spoilt(4, 64).ends_with("word 4 of its header is 64; it should be 16"));
        assert!(spoilt(5, 4096).contains("word 5"));
        assert!(spoilt(6, 4096).contains("word 6"));
        // The header of a larger one than there is.
        let (whole, _file) = Segment::create(size).expect("there is memory");
        let short = memfd(size.bytes() as u64 - 1, shrink);
        let segment = Segment { map: map(&short, HEADER_BYTES).expect("it is longer"), size };
        for (word, value) in whole.layout().into_iter().enumerate() {
            segment.word(word).store(value, Ordering::Relaxed);
        }
        assert!(refused(short.into()).contains(&format!("it should have {}", size.bytes())));
    }
}
