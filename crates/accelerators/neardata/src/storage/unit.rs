//! Pages on their way: records are put into them, they are written, and then they wait for a seal.
//!
//! A *unit* is what one seal makes count: the pages of one flush, or of one bulk transaction (those of all its
//! processing elements). Until then they are in places that no seal names, so forgetting a unit takes no write.
//!
//! New records go into free slots of pages with many of them, which are rewritten elsewhere, and else into new pages.

use super::core::Core;
use super::disk::Page;
use super::error::disk_error;
use super::page::{Header, Kind, RecordHeader, Shape, Slots, record_at, settle};
use super::space::lock;
use super::state::CheckedOut;
use crate::device::{DeviceError, TableId};
use crate::record::RecordId;

/// Pages that are written together.
const WRITE_PAGES: usize = 64;

/// A page of a unit.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) logical: u32,
    /// Where it was written; zero: nowhere yet.
    pub(super) physical: u32,
    pub(super) checksum: u64,
    /// [`Core::failed_syncs`] before it was written.
    pub(super) failed_syncs: u64,
    /// Slots that are still free.
    pub(super) left: Slots,
    /// What it was before; `None`: a logical page without content.
    before: Option<CheckedOut>,
}

/// Gives back all that a unit has taken.
pub(super) fn forget(core: &Core, targets: Vec<Target>) {
    for target in targets {
        if let Some(before) = &target.before {
            core.state_mut().give_back(before);
        }
        let mut space = lock(&core.space);
        if target.before.is_none() {
            space.give_logical(target.logical);
        }
        if target.physical != 0 {
            space.give(target.physical);
        }
    }
}

/// Puts records of one table into pages. Dropped before [`Self::finish`], it forgets them.
pub(super) struct UnitWriter<'c> {
    core: &'c Core,
    table: TableId,
    shape: Shape,
    /// Pages that have not been written: the last ones of `targets`.
    pages: Vec<Page>,
    filled: usize,
    targets: Vec<Target>,
}

impl<'c> UnitWriter<'c> {
    pub(super) fn new(core: &'c Core, table: TableId, shape: Shape) -> Self {
        Self { core, table, shape, pages: Vec::new(), filled: 0, targets: Vec::new() }
    }

    /// Puts a record somewhere and says where.
    pub(super) fn push(&mut self, record: &RecordHeader, image: Option<&[u8]>) -> Result<RecordId, DeviceError> {
        if self.targets.last().is_none_or(|target| target.left.is_empty()) {
            self.next_page()?;
        }
        let target = self.targets.last_mut().expect("there is a page");
        let slot = target.left.pop().expect("it has a free slot");
        let page = &mut self.pages[self.filled - 1];
        record.write(page, record_at(self.shape.stride, slot), &self.shape, image);
        Ok(RecordId::new(target.logical, slot as u8))
    }

    fn next_page(&mut self) -> Result<(), DeviceError> {
        if self.filled == WRITE_PAGES {
            self.write_out()?;
        }
        if self.pages.len() == self.filled {
            self.pages.push(Page::ZERO);
        }
        let reused = self.core.state_mut().check_out(self.table);
        let target = match reused {
            Some(before) => {
                if let Err(error) = self.load(&before) {
                    self.core.state_mut().give_back(&before);
                    return Err(error);
                }
                let (logical, left) = (before.logical, before.free);
                Target { logical, physical: 0, checksum: 0, failed_syncs: 0, left, before: Some(before) }
            }
            None => {
                self.pages[self.filled].fill(0);
                let logical = lock(&self.core.space).take_logical();
                let logical = logical.ok_or_else(|| DeviceError::Full("all logical pages are in use".into()))?;
                let left = Slots::first(self.shape.slots);
                Target { logical, physical: 0, checksum: 0, failed_syncs: 0, left, before: None }
            }
        };
        self.targets.push(target);
        self.filled += 1;
        Ok(())
    }

    /// Brings what counts of a page into memory.
    fn load(&mut self, before: &CheckedOut) -> Result<(), DeviceError> {
        let page = &mut self.pages[self.filled];
        if before.free.len() == self.shape.slots {
            page.fill(0);
            return Ok(());
        }
        let mut old = [Page::ZERO];
        self.core.read(before.logical, &before.place, &mut old)?;
        settle(&mut old[0], &self.shape, before.place.created, &before.free);
        page.copy_from_slice(&old[0][..]);
        Ok(())
    }

    fn write_out(&mut self) -> Result<(), DeviceError> {
        let count = std::mem::take(&mut self.filled);
        let first = self.targets.len() - count;
        let targets = &mut self.targets[first..];
        let places = self.core.allocate(count)?;
        let (Shape { stride, slots, .. }, failed_syncs) = (self.shape, self.core.failed_syncs());
        for ((target, page), &physical) in targets.iter_mut().zip(&mut self.pages).zip(&places) {
            let header = Header { kind: Kind::Rows, table: self.table, logical: target.logical, stride, slots };
            target.checksum = header.write(page);
            target.physical = physical;
            target.failed_syncs = failed_syncs;
        }
        write_pages(self.core, &places, &self.pages[..count])
    }

    /// Writes what has not been written and answers with the unit's pages.
    pub(super) fn finish(mut self) -> Result<Vec<Target>, DeviceError> {
        self.write_out()?;
        Ok(std::mem::take(&mut self.targets))
    }
}

impl Drop for UnitWriter<'_> {
    fn drop(&mut self) {
        forget(self.core, std::mem::take(&mut self.targets));
    }
}

/// Writes pages to their places, neighbours together.
pub(super) fn write_pages(core: &Core, places: &[u32], pages: &[Page]) -> Result<(), DeviceError> {
    let mut at = 0;
    while let Some(&first) = places.get(at) {
        let length = places[at..].iter().zip(first..).take_while(|&(&place, expected)| place == expected).count();
        let result = core.disk.write(first, &pages[at..at + length]);
        result.map_err(|error| disk_error("writing", first, &error))?;
        at += length;
    }
    Ok(())
}

/// Writes a page that is no page of rows.
pub(super) fn write_plain(core: &Core, mut header: Header, mut page: Page) -> Result<Target, DeviceError> {
    let logical = lock(&core.space).take_logical();
    header.logical = logical.ok_or_else(|| DeviceError::Full("all logical pages are in use".into()))?;
    let checksum = header.write(&mut page);
    let place = core.allocate(1).inspect_err(|_| lock(&core.space).give_logical(header.logical))?;
    let (logical, physical, failed_syncs) = (header.logical, place[0], core.failed_syncs());
    let target = Target { logical, physical, checksum, failed_syncs, left: Slots::default(), before: None };
    match write_pages(core, &place, &[page]) {
        Ok(()) => Ok(target),
        Err(error) => {
            forget(core, vec![target]);
            Err(error)
        }
    }
}
