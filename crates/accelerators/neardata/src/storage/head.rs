//! The head of the file: what it is, and how long it must be.
//!
//! ```text
//! page 0 and page 1, in turn: header (page.rs), then
//!     32      4  format version, 1
//!     36      4  bytes of a page
//!     40      8  sequence number: the higher one counts
//!     48      4  pages of the file; it is never shorter
//! ```
//!
//! Invariant: of the two copies one is always whole: the other is not touched before the last one written is durable.
//! A file that begins otherwise is somebody else's and is left alone, unless it is empty or was about to become one.

use super::disk::{Disk, Page};
use super::error::{disk_error, sync_error};
use super::page::{HEADER_BYTES, Header, Kind, PAGE_BYTES, checksum, put, u32_at, u64_at};
use crate::device::DeviceError;

const FORMAT: u32 = 1;
/// Pages that the head takes.
pub(super) const HEAD_PAGES: u32 = 2;

/// The head as it is on disk.
#[derive(Debug)]
pub(super) struct Head {
    sequence: u64,
    /// Pages of the file that are in use or free.
    pub(super) pages: u32,
}

impl Head {
    /// Reads the head, writing one first if the file is empty.
    pub(super) fn open(disk: &dyn Disk) -> Result<Self, DeviceError> {
        let bytes = disk.bytes().map_err(|error| disk_error("finding the length before", 0, &error))?;
        let head_bytes = u64::from(HEAD_PAGES) * PAGE_BYTES as u64;
        let foreign = |why: &str| {
            let text = format!("this is no Lockwork near-data file: {why}; give the path of one, or of a new file");
            DeviceError::Corrupt(text)
        };
        if bytes == 0 {
            return Self::create(disk);
        }
        if bytes < head_bytes {
            return Err(foreign(&format!("it has {bytes} bytes, at least {head_bytes} are wanted")));
        }
        let mut copies = Page::zeros(HEAD_PAGES as usize);
        disk.read(0, &mut copies).map_err(|error| disk_error("reading", 0, &error))?;
        let found = copies.iter().filter_map(Self::decode).max_by_key(|(_, head)| head.sequence);
        let Some((format, mut head)) = found else {
            // Whoever was creating it got no further.
            let begun = |page: &Page| Header::claims(page, Kind::Head) || page.iter().all(|&byte| byte == 0);
            if bytes == head_bytes && copies.iter().all(begun) {
                return Self::create(disk);
            }
            return Err(foreign("neither of its first two pages is a whole head"));
        };
        if format != (FORMAT, PAGE_BYTES as u32) {
            let (version, page) = format;
            return Err(DeviceError::Corrupt(format!(
                "the file has format {version} with pages of {page} bytes; this program reads format {FORMAT} with \
                 pages of {PAGE_BYTES} bytes"
            )));
        }
        let pages = u32::try_from(bytes / PAGE_BYTES as u64).unwrap_or(u32::MAX);
        if pages < head.pages {
            return Err(DeviceError::Corrupt(format!(
                "the file was truncated: it has {bytes} bytes instead of {} bytes; restore it from a copy",
                u64::from(head.pages) * PAGE_BYTES as u64
            )));
        }
        // Should the newer copy be the one that is not whole, the older one says too little.
        head.pages = pages;
        Ok(head)
    }

    fn create(disk: &dyn Disk) -> Result<Self, DeviceError> {
        let mut head = Self { sequence: 0, pages: HEAD_PAGES };
        disk.grow(HEAD_PAGES).map_err(|error| disk_error("allocating", 0, &error))?;
        for _ in 0..HEAD_PAGES {
            head.write(disk, HEAD_PAGES, || disk.sync().map_err(|error| sync_error(&error)))?;
        }
        Ok(head)
    }

    /// Writes the copy that is due, and makes it durable by `sync`.
    pub(super) fn write(
        &mut self,
        disk: &dyn Disk,
        pages: u32,
        sync: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let sequence = self.sequence + 1;
        let mut page = [Page::ZERO];
        put(&mut page[0][..], HEADER_BYTES, &FORMAT.to_le_bytes());
        put(&mut page[0][..], HEADER_BYTES + 4, &(PAGE_BYTES as u32).to_le_bytes());
        put(&mut page[0][..], HEADER_BYTES + 8, &sequence.to_le_bytes());
        put(&mut page[0][..], HEADER_BYTES + 16, &pages.to_le_bytes());
        Header::plain(Kind::Head).write(&mut page[0]);
        let copy = (sequence % u64::from(HEAD_PAGES)) as u32;
        disk.write(copy, &page).map_err(|error| disk_error("writing", copy, &error))?;
        sync()?;
        *self = Self { sequence, pages };
        Ok(())
    }

    fn decode(page: &Page) -> Option<((u32, u32), Self)> {
        checksum(page)?;
        Header::read(page).filter(|header| header.kind == Kind::Head)?;
        let format = (u32_at(&page[..], HEADER_BYTES), u32_at(&page[..], HEADER_BYTES + 4));
        let sequence = u64_at(&page[..], HEADER_BYTES + 8);
        Some((format, Self { sequence, pages: u32_at(&page[..], HEADER_BYTES + 16) }))
    }
}
