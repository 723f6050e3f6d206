//! From tuples to the versions that a snapshot sees (neoDBMS, section 2.3).
//!
//! A window of the VID map gives the newest records; these are sorted by physical page, so that each page is read once,
//! in order. Where the newest version is too new for the snapshot, its predecessor goes on a list, and the list is
//! the next round. Chains are short, so there are few rounds.
//!
//! Invariant: a chain is left where a record belongs to another tuple or is not older than its successor: its slot has
//! been used again, which happens only to versions that no snapshot in use sees. In the first round nothing of
//! the kind can be, because entries and places are taken together and the pages are pinned; there it is corruption.

use std::ops::Range;

use super::core::{Core, check};
use super::disk::Page;
use super::error::corrupt;
use super::page::{Header, Kind, RECORD_BYTES, RecordHeader, Shape, record_at};
use super::state::{Place, State};
use super::sweep::Sweeper;
use crate::device::{DeviceError, TableId};
use crate::record::{RecordId, Timestamp, Vid, VidEntry};

/// VIDs of a window, at most: their positions take 24 bits.
pub(super) const WINDOW: u32 = 1 << 17;

/// The version that a snapshot sees.
pub(super) struct Found<'p> {
    pub(super) vid: Vid,
    pub(super) number: u32,
    pub(super) created: Timestamp,
    pub(super) record: RecordId,
    /// Whether it is the newest that is stored.
    pub(super) newest: bool,
    pub(super) removed: bool,
    /// The bytes of its record; the row image begins at [`RECORD_BYTES`].
    pub(super) bytes: &'p [u8],
}

impl<'p> Found<'p> {
    /// The row image.
    #[inline(always)]
    pub(super) fn image(&self, shape: &Shape) -> &'p [u8] {
        &self.bytes[RECORD_BYTES..RECORD_BYTES + shape.image]
    }
}

/// A record to look at.
#[derive(Clone, Copy)]
struct Wanted {
    vid: Vid,
    record: RecordId,
    /// Its version is older than this one; `None`: it is the newest, with this entry.
    below: Option<u32>,
    entry: VidEntry,
}

/// What a record turned out to be.
enum Seen<'p> {
    Visible(Found<'p>),
    Older(Wanted),
    Nothing,
}

/// Looks at a wanted record in a page that is what its seal says.
#[inline(always)]
fn look_at<'p>(
    page: &'p Page,
    header: &Header,
    (table, shape): (TableId, &Shape),
    place: &Place,
    wanted: &Wanted,
    snapshot: Timestamp,
) -> Result<Seen<'p>, DeviceError> {
    let slot = usize::from(wanted.record.slot());
    let ours = header.kind == Kind::Rows && header.table == table && header.stride == shape.stride;
    let at = record_at(shape.stride, slot);
    let record = if ours && slot < header.slots { RecordHeader::read(page, at) } else { None };
    let is_it = |record: &RecordHeader| {
        let right = wanted.below.map_or(wanted.entry.is_version(record.number), |below| record.number < below);
        record.vid == wanted.vid && right
    };
    let Some(record) = record.filter(is_it) else {
        return match wanted.below {
            Some(_) => Ok(Seen::Nothing),
            None => Err(corrupt(place.physical, format_args!("slot {slot} does not hold tuple {}", wanted.vid.0))),
        };
    };
    let created = if record.created == 0 { place.created } else { record.created };
    let RecordHeader { vid, number, previous, removed, .. } = record;
    Ok(if created <= snapshot {
        let bytes = &page[at..at + shape.stride];
        Seen::Visible(Found {
            vid,
            number,
            created,
            record: wanted.record,
            newest: wanted.below.is_none(),
            removed,
            bytes,
        })
    } else if previous == RecordId::NONE || previous == RecordId::HOST {
        Seen::Nothing
    } else {
        Seen::Older(Wanted { vid, record: previous, below: Some(number), entry: VidEntry::default() })
    })
}

/// Looks up one tuple, page by page.
pub(super) fn find<R>(
    core: &Core,
    table: TableId,
    vid: Vid,
    snapshot: Timestamp,
    then: impl FnOnce(&Found<'_>, &Shape) -> R,
) -> Result<Option<R>, DeviceError> {
    let _watch = core.watch(snapshot);
    let _pin = core.pin();
    let place_of = |state: &State, wanted: &Wanted| state.places.get(wanted.record.page() as usize).copied();
    let (shape, mut wanted, mut place) = {
        let state = core.state();
        let table = state.table(table)?;
        let entry = table.vids.get(vid.0 as usize).copied().unwrap_or_default();
        if entry == VidEntry::default() {
            return Ok(None);
        }
        let wanted = Wanted { vid, record: entry.record(), below: None, entry };
        (table.shape, wanted, place_of(&state, &wanted))
    };
    let mut page = [Page::ZERO];
    while let Some(there) = place.filter(|place| place.physical != 0) {
        let header = core.read(wanted.record.page(), &there, &mut page)?;
        match look_at(&page[0], &header, (table, &shape), &there, &wanted, snapshot)? {
            Seen::Visible(found) => return Ok(Some(then(&found, &shape))),
            Seen::Nothing => break,
            Seen::Older(older) => {
                wanted = older;
                place = place_of(&core.state(), &wanted);
            }
        }
    }
    Ok(None)
}

/// Goes through windows of a VID map, with its buffers.
pub(super) struct Walker<'c> {
    core: &'c Core,
    sweeper: Sweeper<'c>,
    wanted: Vec<Wanted>,
    later: Vec<Wanted>,
    /// Physical page, slot, position in `wanted`: 32, 8, 24 bits.
    keys: Vec<u64>,
    /// For each wanted record: which of `places` has it.
    place_of: Vec<u32>,
    places: Vec<(u32, Place)>,
    /// Distinct pages, and where in `keys` each begins.
    pages: Vec<u32>,
    starts: Vec<usize>,
}

impl<'c> Walker<'c> {
    pub(super) fn new(core: &'c Core) -> Self {
        let (wanted, later, keys, place_of, places, pages, starts) = Default::default();
        let sweeper = Sweeper::new(&*core.disk);
        Self { core, sweeper, wanted, later, keys, place_of, places, pages, starts }
    }

    /// Hands over every version that `snapshot` sees of the tuples in `vids`, in no particular order. The caller
    /// watches the snapshot.
    pub(super) fn window(
        &mut self,
        table: TableId,
        vids: Range<u32>,
        snapshot: Timestamp,
        mut each: impl FnMut(&Found<'_>, &Shape) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        assert!(vids.len() <= 1 << 24, "the positions in a window have 24 bits");
        let core = self.core;
        let _pin = core.pin();
        self.wanted.clear();
        let shape = {
            let state = core.state();
            let table = state.table(table)?;
            let end = table.vids.len().min(vids.end as usize);
            let entries = table.vids.get(vids.start as usize..end).unwrap_or_default();
            let tuples = (vids.start..).zip(entries).filter(|(_, entry)| **entry != VidEntry::default());
            self.wanted.extend(tuples.map(|(vid, &entry)| Wanted {
                vid: Vid(vid),
                record: entry.record(),
                below: None,
                entry,
            }));
            let shape = table.shape;
            self.locate(&state)?;
            shape
        };
        loop {
            self.arrange();
            let Self { sweeper, wanted, later, keys, place_of, places, pages, starts, .. } = self;
            later.clear();
            sweeper.sweep(pages, |index, page| {
                let keys = &keys[starts[index]..starts[index + 1]];
                let position = |key: u64| (key & 0xFF_FFFF) as usize;
                let (logical, place) = &places[place_of[position(keys[0])] as usize];
                let header = check(page, *logical, place)?;
                for &key in keys {
                    match look_at(page, &header, (table, &shape), place, &wanted[position(key)], snapshot)? {
                        Seen::Visible(found) => each(&found, &shape)?,
                        Seen::Older(older) => later.push(older),
                        Seen::Nothing => {}
                    }
                }
                Ok(())
            })?;
            if self.later.is_empty() {
                return Ok(());
            }
            std::mem::swap(&mut self.wanted, &mut self.later);
            let state = core.state();
            self.locate(&state)?;
        }
    }

    /// Finds out where the wanted records are.
    fn locate(&mut self, state: &State) -> Result<(), DeviceError> {
        self.keys.clear();
        self.places.clear();
        self.place_of.clear();
        let mut last = (0, Place::default());
        for (position, wanted) in self.wanted.iter().enumerate() {
            let logical = wanted.record.page();
            if logical != last.0 {
                let place = state.places.get(logical as usize).copied().unwrap_or_default();
                last = (logical, place);
                self.places.push(last);
            }
            self.place_of.push(self.places.len().saturating_sub(1) as u32);
            let physical = last.1.physical;
            if physical != 0 {
                let slot = u64::from(wanted.record.slot());
                self.keys.push(u64::from(physical) << 32 | slot << 24 | position as u64);
            } else if wanted.below.is_none() {
                let (vid, record) = (wanted.vid.0, wanted.record.bits());
                return Err(DeviceError::Corrupt(format!("tuple {vid}: its record {record:#x} is in no page")));
            }
        }
        Ok(())
    }

    /// Sorts the records by place and lists the pages.
    fn arrange(&mut self) {
        self.keys.sort_unstable();
        self.pages.clear();
        self.starts.clear();
        for (at, key) in self.keys.iter().enumerate() {
            let physical = (key >> 32) as u32;
            if self.pages.last() != Some(&physical) {
                self.pages.push(physical);
                self.starts.push(at);
            }
        }
        self.starts.push(self.keys.len());
    }
}
