//! Seals: what makes the pages of a unit count, all at once.
//!
//! A seal lists logical pages with their places, checksums and creation times. The pages are made durable first, then
//! the seal; the unit counts when the seal is durable. For each logical page the seal with the highest number that
//! lists it says where it is, so the seals together are the L2P map, and recovery needs nothing else.
//!
//! ```text
//! page of a seal: 32 number, 40 newest timestamp, 48 part, 52 parts, 56 entries, 64 entry after entry
//! entry: 0 logical page, 4 physical page (0: the logical page has no content), 8 checksum, 16 created
//! ```
//!
//! Invariant: a seal stays as long as a page that it lists is where it says. Each part is written twice, so one bad
//! page cannot undo a unit unseen: a data page that is bad is missed by the seal that lists it, a bad part has a twin.
//!
//! Seals of small flushes would fill the file, so a new seal takes over the entries of old ones as far as its last
//! page has room, and the old ones are given up.

use std::collections::{HashMap, VecDeque};

use super::core::Core;
use super::disk::Page;
use super::page::{HEADER_BYTES, Header, Kind, PAGE_BYTES, put, u32_at, u64_at};
use super::space::lock;
use super::state::{CheckedOut, Place};
use super::unit::{Target, write_pages};
use crate::device::{DeviceError, TableId};
use crate::record::Timestamp;

const ENTRIES_AT: usize = 64;
const ENTRY_BYTES: usize = 24;
const ENTRIES: usize = (PAGE_BYTES - ENTRIES_AT) / ENTRY_BYTES;
const COPIES: usize = 2;
/// How many old seals are looked at for taking over.
const LOOK_AT: usize = 16;

/// What a seal says of a logical page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) logical: u32,
    pub(super) physical: u32,
    pub(super) checksum: u64,
    pub(super) created: Timestamp,
}

/// A page of a seal.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) number: u64,
    pub(super) newest: Timestamp,
    pub(super) part: u32,
    pub(super) parts: u32,
    pub(super) entries: Vec<Entry>,
}

impl Part {
    fn write(&self, page: &mut Page) {
        let bytes = &mut page[..];
        put(bytes, HEADER_BYTES, &self.number.to_le_bytes());
        put(bytes, 40, &self.newest.to_le_bytes());
        put(bytes, 48, &self.part.to_le_bytes());
        put(bytes, 52, &self.parts.to_le_bytes());
        put(bytes, 56, &(self.entries.len() as u32).to_le_bytes());
        for (entry, at) in self.entries.iter().zip((ENTRIES_AT..).step_by(ENTRY_BYTES)) {
            put(bytes, at, &entry.logical.to_le_bytes());
            put(bytes, at + 4, &entry.physical.to_le_bytes());
            put(bytes, at + 8, &entry.checksum.to_le_bytes());
            put(bytes, at + 16, &entry.created.to_le_bytes());
        }
        Header::plain(Kind::Seal).write(page);
    }

    /// Reads a page with a right checksum.
    pub(super) fn read(page: &Page) -> Option<Self> {
        let bytes = &page[..];
        Header::read(page).filter(|header| header.kind == Kind::Seal)?;
        let (part, parts, count) = (u32_at(bytes, 48), u32_at(bytes, 52), u32_at(bytes, 56) as usize);
        let number = u64_at(bytes, HEADER_BYTES);
        (number != 0 && part < parts && count <= ENTRIES).then(|| {
            let entry = |at| Entry {
                logical: u32_at(bytes, at),
                physical: u32_at(bytes, at + 4),
                checksum: u64_at(bytes, at + 8),
                created: u64_at(bytes, at + 16),
            };
            let entries = (ENTRIES_AT..).step_by(ENTRY_BYTES).take(count).map(entry).collect();
            Self { number, newest: u64_at(bytes, 40), part, parts, entries }
        })
    }
}

/// A seal that counts.
#[derive(Debug, Default)]
pub(super) struct Seal {
    /// Its pages, both copies.
    pub(super) physical: Vec<u32>,
    /// What it lists, or listed: others may have it now.
    pub(super) logicals: Vec<u32>,
    /// How many of those it still has.
    pub(super) live: usize,
}

/// All seals. Who has them may change what is on the disk.
#[derive(Debug, Default)]
pub(super) struct Seals {
    next: u64,
    live: HashMap<u64, Seal>,
    /// Numbers of live seals and of some given up; taking over begins in front.
    old: VecDeque<u64>,
}

/// What a seal is to make count.
pub(super) struct Contents<'a> {
    pub(super) targets: &'a [Target],
    /// Logical pages that shall have no content.
    pub(super) dropped: &'a [CheckedOut],
    pub(super) table: TableId,
    /// When versions were created that do not say so themselves.
    pub(super) created: Timestamp,
    pub(super) newest: Timestamp,
}

impl Seals {
    pub(super) fn new(next: u64, live: HashMap<u64, Seal>) -> Self {
        let mut old: Vec<u64> = live.keys().copied().collect();
        old.sort_unstable();
        Self { next, live, old: old.into() }
    }

    /// Makes pages count, durably, and changes the page map. Afterwards the caller changes the VID maps.
    /// After an error nothing has changed.
    pub(super) fn seal(&mut self, core: &Core, contents: &Contents<'_>) -> Result<(), DeviceError> {
        core.sync()?;
        if contents.targets.iter().any(|target| target.failed_syncs != core.failed_syncs()) {
            return Err(forgotten());
        }
        let entry = |target: &Target| Entry {
            logical: target.logical,
            physical: target.physical,
            checksum: target.checksum,
            created: contents.created,
        };
        let mut entries: Vec<Entry> = contents.targets.iter().map(entry).collect();
        let nothing = |page: &CheckedOut| Entry { logical: page.logical, physical: 0, checksum: 0, created: 0 };
        entries.extend(contents.dropped.iter().map(nothing));
        let own = entries.len();
        let taken_over = self.take_over(core, &mut entries);
        let (number, parts) = (self.next, entries.len().div_ceil(ENTRIES));
        self.next += 1;
        let physical = core.allocate(parts * COPIES)?;
        let newest = contents.newest.max(core.state().newest);
        let mut pages = Page::zeros(parts * COPIES);
        for (part, entries) in entries.chunks(ENTRIES).enumerate() {
            let (parts, entries) = (parts as u32, entries.to_vec());
            let content = Part { number, newest, part: part as u32, parts, entries };
            (0..COPIES).for_each(|copy| content.write(&mut pages[copy * parts as usize + part]));
        }
        if let Err(error) = write_durably(core, &physical, &pages) {
            wipe(core, physical);
            return Err(error);
        }

        let mut given_up = Vec::new();
        let mut state = core.state_mut();
        let places = contents.targets.iter().map(|target| (target.left, contents.table));
        let places = places.chain(contents.dropped.iter().map(|page| (Default::default(), page.place.table)));
        for (entry, (free, table)) in entries[..own].iter().zip(places) {
            let Entry { logical, physical, checksum, created } = *entry;
            let place = Place { physical, checksum, created, seal: number, table, ..Place::default() };
            let (old, seal) = state.install(logical, place, free);
            given_up.extend((old != 0).then_some(old));
            self.leave(seal, &mut given_up);
        }
        for entry in &entries[own..] {
            state.place(entry.logical).seal = number;
        }
        state.newest = newest;
        drop(state);
        for old in taken_over {
            given_up.extend(self.live.remove(&old).map(|seal| seal.physical).unwrap_or_default());
        }
        let logicals: Vec<u32> = entries.iter().map(|entry| entry.logical).collect();
        self.live.insert(number, Seal { physical, live: logicals.len(), logicals });
        self.old.push_back(number);
        let mut space = lock(&core.space);
        space.retire(given_up);
        contents.dropped.iter().for_each(|page| space.give_logical(page.logical));
        Ok(())
    }

    /// A page is no longer where this seal says.
    fn leave(&mut self, number: u64, given_up: &mut Vec<u32>) {
        if let Some(seal) = self.live.get_mut(&number) {
            seal.live -= 1;
            if seal.live == 0 {
                given_up.append(&mut self.live.remove(&number).expect("it is there").physical);
            }
        }
    }

    /// Adds entries of old seals that fit into the last page, and answers whose. Pages that are being sealed anew do
    /// not count as theirs.
    fn take_over(&mut self, core: &Core, entries: &mut Vec<Entry>) -> Vec<u64> {
        let state = core.state();
        let mut taken = Vec::new();
        let fresh: std::collections::HashSet<u32> = entries.iter().map(|entry| entry.logical).collect();
        for _ in 0..LOOK_AT.min(self.old.len()) {
            let number = self.old.pop_front().expect("there is one");
            let Some(seal) = self.live.get(&number) else { continue };
            let room = entries.len().next_multiple_of(ENTRIES) - entries.len();
            if seal.live <= room {
                let place = |logical: u32| (logical, &state.places[logical as usize]);
                let own = |(logical, place): &(u32, &Place)| place.seal == number && !fresh.contains(logical);
                entries.extend(seal.logicals.iter().map(|&logical| place(logical)).filter(own).map(
                    |(logical, place)| Entry {
                        logical,
                        physical: place.physical,
                        checksum: place.checksum,
                        created: place.created,
                    },
                ));
                taken.push(number);
            }
            // It stays in line until it has been given up for good.
            self.old.push_back(number);
        }
        taken
    }
}

/// Writes pages and syncs them, and makes sure that no sync in between has failed and forgotten them.
fn write_durably(core: &Core, places: &[u32], pages: &[Page]) -> Result<(), DeviceError> {
    let failed_syncs = core.failed_syncs();
    write_pages(core, places, pages)?;
    core.sync()?;
    if core.failed_syncs() == failed_syncs { Ok(()) } else { Err(forgotten()) }
}

fn forgotten() -> DeviceError {
    let text = "the disk may have lost pages of it when a sync failed; nothing of it counts, make it again";
    DeviceError::Io(text.into())
}

/// Takes a seal back that may or may not have become durable. If that fails too, nobody can know what the file will
/// say, and nothing more is written to it.
fn wipe(core: &Core, physical: Vec<u32>) {
    let zeros = Page::zeros(physical.len());
    match write_durably(core, &physical, &zeros) {
        Ok(()) => physical.into_iter().for_each(|page| lock(&core.space).give(page)),
        Err(error) => core.close_for_writing(&error),
    }
}
