//! What the store keeps in memory: where pages are, where tuples are, which slots are free.
//!
//! All of it follows from the file and is rebuilt when the store opens. A *logical page* is in exactly one physical
//! page, or has no content at all. A tuple's VID map entry names its newest sealed version.
//!
//! Invariant: whoever rewrites a logical page has checked it out first, and nobody else rewrites it until it
//! was installed or given back. Slots may become free in the meantime; they add up.
//!
//! Which versions are superseded is noted when their successors are sealed, with the successors' timestamps. Once that
//! timestamp is at or below the watermark, every snapshot in use sees the successor or something newer, so the slot is
//! free. What one flush supersedes is noted together, with the last of its timestamps. Trade-off: a page is rewritten
//! only if a quarter of its slots are free, so up to a quarter of the space can be lost, and a small flush costs at
//! most four times the pages that it would fill.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use lockwork_procedure::schema::TableSchema;

use super::page::{Shape, Slots};
use crate::device::{DeviceError, TableId};
use crate::record::{RecordId, Timestamp, VidEntry};

/// Where a logical page is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    /// Physical page, or zero: no content.
    pub(super) physical: u32,
    pub(super) checksum: u64,
    /// When versions were created that do not say so themselves.
    pub(super) created: Timestamp,
    /// The seal that names it; zero: none does.
    pub(super) seal: u64,
    pub(super) table: TableId,
    /// How many of its slots are free.
    pub(super) free: u16,
    /// Checked out.
    pub(super) out: bool,
}

/// A logical page that one writer has for itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckedOut {
    pub(super) logical: u32,
    pub(super) place: Place,
    pub(super) free: Slots,
}

/// One table.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) schema: TableSchema,
    pub(super) shape: Shape,
    /// By VID: [`VidEntry`] of the newest sealed version.
    pub(super) vids: Vec<VidEntry>,
    free: HashMap<u32, Slots>,
    reusable: BTreeSet<u32>,
    /// By a timestamp from which on none of them is seen.
    superseded: BTreeMap<Timestamp, Vec<RecordId>>,
}

impl Table {
    pub(super) fn new(schema: TableSchema, shape: Shape) -> Self {
        let (free, reusable, superseded) = Default::default();
        Self { schema, shape, vids: Vec::new(), free, reusable, superseded }
    }

    /// Notes that these records have successors that were created at `last` or before.
    pub(super) fn supersede(&mut self, last: Timestamp, records: impl IntoIterator<Item = RecordId>) {
        let mut records = records.into_iter().peekable();
        if records.peek().is_some() {
            self.superseded.entry(last).or_default().extend(records);
        }
    }
}

/// All of it.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) tables: Vec<Table>,
    /// By logical page.
    pub(super) places: Vec<Place>,
    pub(super) versions: u64,
    pub(super) newest: Timestamp,
}

impl State {
    pub(super) fn table(&self, table: TableId) -> Result<&Table, DeviceError> {
        self.tables.get(usize::from(table)).ok_or_else(|| no_table(table, self.tables.len()))
    }

    pub(super) fn place(&mut self, logical: u32) -> &mut Place {
        let index = logical as usize;
        if index >= self.places.len() {
            self.places.resize(index + 1, Place::default());
        }
        &mut self.places[index]
    }

    /// Notes free slots of a page.
    pub(super) fn add_free(&mut self, table: TableId, logical: u32, slots: Slots) {
        let Table { shape, free, reusable, .. } = &mut self.tables[usize::from(table)];
        let place = &mut self.places[logical as usize];
        let sum = free.get(&logical).copied().unwrap_or_default().union(slots);
        if !sum.is_empty() {
            free.insert(logical, sum);
        }
        place.free = sum.len() as u16;
        if !place.out && sum.len() * 4 >= shape.slots {
            reusable.insert(logical);
        }
    }

    /// Frees the slots of versions that no snapshot from `watermark` on sees, and answers how many.
    pub(super) fn free_superseded(&mut self, table: TableId, watermark: Timestamp) -> u64 {
        let superseded = &mut self.tables[usize::from(table)].superseded;
        let newer = superseded.split_off(&watermark.saturating_add(1));
        let old = std::mem::replace(superseded, newer);
        let mut freed = 0;
        for record in old.into_values().flatten() {
            let mut slots = Slots::default();
            slots.insert(usize::from(record.slot()));
            self.add_free(table, record.page(), slots);
            freed += 1;
        }
        self.versions -= freed;
        freed
    }

    /// Gives out a page of the table that has many free slots, if there is one.
    pub(super) fn check_out(&mut self, table: TableId) -> Option<CheckedOut> {
        let Table { free, reusable, .. } = &mut self.tables[usize::from(table)];
        let logical = reusable.pop_first()?;
        let free = free.remove(&logical).expect("a reusable page has free slots");
        let place = &mut self.places[logical as usize];
        (place.out, place.free) = (true, 0);
        Some(CheckedOut { logical, place: *place, free })
    }

    /// Takes back what was not rewritten after all.
    pub(super) fn give_back(&mut self, page: &CheckedOut) {
        self.places[page.logical as usize].out = false;
        self.add_free(page.place.table, page.logical, page.free);
    }

    /// A sealed page is where it is now; answers where it was (zero: nowhere), and which seal named it.
    pub(super) fn install(&mut self, logical: u32, place: Place, free: Slots) -> (u32, u64) {
        let old = *self.place(logical);
        self.places[logical as usize] = Place { out: false, free: 0, ..place };
        self.add_free(place.table, logical, free);
        (old.physical, old.seal)
    }

    /// Gives out all pages of which every slot is free, to be dropped.
    pub(super) fn check_out_empty(&mut self) -> Vec<CheckedOut> {
        let mut empty = Vec::new();
        for Table { shape, free, reusable, .. } in &mut self.tables {
            let places = &mut self.places;
            let is_empty = |logical: &u32| usize::from(places[*logical as usize].free) == shape.slots;
            let found: Vec<u32> = reusable.iter().copied().filter(is_empty).collect();
            for logical in found {
                reusable.remove(&logical);
                let free = free.remove(&logical).expect("a reusable page has free slots");
                let place = &mut places[logical as usize];
                (place.out, place.free) = (true, 0);
                empty.push(CheckedOut { logical, place: *place, free });
            }
        }
        empty
    }
}

pub(super) fn no_table(table: TableId, count: usize) -> DeviceError {
    DeviceError::Refused(format!("there is no table {table}; the storage has {count}, numbered from 0"))
}
