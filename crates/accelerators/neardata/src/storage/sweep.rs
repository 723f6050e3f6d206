//! Reads many pages of the file in ascending order, several reads under way at once, neighbours in one read.
//!
//! While one piece is looked at, the disk fills the next ones. Pieces are looked at in the order in which they arrive.

use super::disk::{Disk, Page, RUN_PAGES, ReadQueue};
use super::error::disk_error;
use crate::device::DeviceError;

/// Reads under way for one reader.
const DEPTH: usize = 8;

/// A reader of many pages, with its buffers.
pub(super) struct Sweeper<'d> {
    queue: Box<dyn ReadQueue + 'd>,
    /// For each slot: where in the list its run begins, and how long it is.
    runs: Vec<(usize, usize)>,
}

impl<'d> Sweeper<'d> {
    pub(super) fn new(disk: &'d dyn Disk) -> Self {
        let queue = disk.queue(DEPTH);
        Self { runs: vec![(0, 0); queue.depth()], queue }
    }

    /// Reads `pages`, which ascend, and hands each over with its position in the list. Ends early at the first error.
    pub(super) fn sweep(
        &mut self,
        pages: &[u32],
        mut each: impl FnMut(usize, &Page) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut next = 0;
        for slot in 0..self.queue.depth() {
            self.submit(slot, pages, &mut next);
        }
        let mut result = Ok(());
        while let Some((slot, outcome)) = self.queue.wait() {
            let (start, length) = self.runs[slot];
            if result.is_ok() {
                result = outcome.map_err(|error| disk_error("reading", pages[start], &error));
            }
            for (index, page) in self.queue.pages(slot)[..length].iter().enumerate() {
                if result.is_ok() {
                    result = each(start + index, page);
                }
            }
            if result.is_ok() {
                self.submit(slot, pages, &mut next);
            }
        }
        result
    }

    fn submit(&mut self, slot: usize, pages: &[u32], next: &mut usize) {
        let rest = &pages[*next..];
        let Some(&first) = rest.first() else { return };
        let length = rest.iter().zip(first..).take(RUN_PAGES).take_while(|&(&page, expected)| page == expected).count();
        self.runs[slot] = (*next, length);
        self.queue.submit(slot, first, length);
        *next += length;
    }
}
