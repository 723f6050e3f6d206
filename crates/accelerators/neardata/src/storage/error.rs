//! What the disk says, as the host shall read it.

use std::io;

use super::page::PAGE_BYTES;
use crate::device::DeviceError;

/// A disk's error at a page.
pub(super) fn disk_error(what: &str, page: u32, error: &io::Error) -> DeviceError {
    let place = format!("{what} page {page} (byte {})", u64::from(page) * PAGE_BYTES as u64);
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            DeviceError::Full(format!("{place}: {error}; make room and try again"))
        }
        _ => DeviceError::Io(format!("{place}: {error}")),
    }
}

/// A failed sync.
pub(super) fn sync_error(error: &io::Error) -> DeviceError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            DeviceError::Full(format!("making pages durable: {error}; make room and try again"))
        }
        _ => DeviceError::Io(format!("making pages durable: {error}")),
    }
}

/// A page that is not what was written there.
pub(super) fn corrupt(physical: u32, what: impl std::fmt::Display) -> DeviceError {
    DeviceError::Corrupt(format!("page {physical} of the file: {what}"))
}
