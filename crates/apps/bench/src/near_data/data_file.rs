//! The storage's file of experiment (d), and how it is filled.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockwork_neardata::device::{Device, LockRefusal, LockSource, RowLocks, TransactionId, Version};
use lockwork_neardata::record::Vid;
use lockwork_neardata::storage::{Store, StoreConfig};
use lockwork_procedure::schema::TableSchema;

use super::super::Failure;
use super::super::chart::grouped;
use super::bulk::{BEGINNING, FILLER, REGIONS, failed};

/// The storage's file. It has no name, so that nothing is left behind however this ends.
pub(super) struct DataFile(File);

impl DataFile {
    /// Makes it in a folder.
    pub(super) fn new(folder: &Path) -> std::io::Result<Self> {
        let name = folder.join(format!("lockwork-near-data-{}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&name)?;
        std::fs::remove_file(&name)?;
        Ok(Self(file))
    }

    /// By which path this and other processes of this user can open it, as long as this is there.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()))
    }
}

/// Nobody locks while the file is filled.
struct NoLocks;

impl LockSource for NoLocks {
    fn open(&self, _: TransactionId, _: usize) -> Result<Box<dyn RowLocks>, LockRefusal> {
        Err(LockRefusal::Failed("no bulk updates while the table is filled".into()))
    }
}

/// Fills a new file.
pub(super) fn fill(path: &Path, schema: &TableSchema, rows: u64, show: &mut dyn FnMut(&str)) -> Result<(), Failure> {
    let store = Store::open(path, &StoreConfig::new(1, Arc::new(NoLocks))).map_err(failed)?;
    let table = store.create_table(schema).map_err(failed)?;
    const CHUNK: u64 = 100_000;
    for first in (0..rows).step_by(CHUNK as usize) {
        show(&format!("filling: {} of {} rows", grouped(first as f64), grouped(rows as f64)));
        let versions: Vec<Version> = (first..(first + CHUNK).min(rows))
            .map(|id| {
                let id = id as i64;
                let mut image = vec![0u8; 24 + FILLER as usize];
                image[..8].copy_from_slice(&id.to_le_bytes());
                image[8..16].copy_from_slice(&(id % REGIONS).to_le_bytes());
                image[16..24].copy_from_slice(&BEGINNING.to_le_bytes());
                Version { vid: Vid(id as u32), number: 1, created: 1, image: Some(image.into()) }
            })
            .collect();
        store.flush(table, &versions, 0).map_err(failed)?;
    }
    Ok(())
}
