//! Scans over partitions.
//!
//! The ordered index of a table is one for all partitions, and every worker may walk it. What it may not do is judge
//! rows of others. So a scan walks its range and asks the owners of rows that are not its worker's to pin them
//! ([`Job`]), and to leave its time on the range: everybody does who could insert a key there. When all have answered
//! it walks once more. If it meets a row then that is not pinned, it came in between, and its owner is asked too.
//! Else it copies the rows in that same step, and lets the pins go.
//!
//! Where all of the range is here, the first walk is the last, and nothing is pinned.
//!
//! The range ends with the last row that counts, or with the table. A table that is partitioned by the first column of
//! its key has ranges of one partition, as long as a scan does not run on into the next value of that column.

use std::sync::Arc;

use lockwork_procedure::interpreter::{Answer, Request};
use lockwork_procedure::key::Key;
use lockwork_procedure::schema::ROW_HEADER_BYTES;
use lockwork_storage::{RowPtr, Table};

use super::header::{Header, Verdict};
use super::message::{Job, Mail, Message, Return};
use super::partition::Partition;
use super::placement::Placement;
use super::transaction::Place;
use crate::exclusive::ScanWriter;

/// Behind every key.
const LAST: Key = Key([u64::MAX; 4]);

/// What became of a step of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It has copied so many rows into the block.
    Done(u64),
    /// So many jobs were sent; go on when they are answered.
    Sent(u32),
    /// An older transaction holds a row; go on later.
    Wait,
    /// The transaction comes too late.
    Conflict(u64),
}

/// The scan that a transaction has under way, if any.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// The CP register that waits for it.
    cp: u8,
    /// Jobs that are not answered, with their workers. Boxes stay where they are.
    jobs: Vec<(usize, Box<Job>)>,
    /// Rows that others have pinned for it, by address, with their workers.
    pinned: Vec<(RowPtr, usize)>,
    /// The last key of the range that others have its time on.
    covered: Option<Key>,
}

/// What a step works on.
pub(super) struct Step<'a> {
    pub(super) table: &'a Arc<Table>,
    pub(super) number: u16,
    pub(super) time: u64,
    pub(super) from: Key,
    pub(super) image: *const u8,
    pub(super) request: &'a Request,
    pub(super) to: Return,
    pub(super) me: usize,
    pub(super) placement: &'a Placement,
    pub(super) partition: &'a mut Partition,
    pub(super) mail: &'a mut Mail,
}

/// What a walk found.
struct Walk {
    rows: u64,
    /// The last row of the range; `None` if the table ended first.
    last: Option<RowPtr>,
    /// Rows of others that are not pinned.
    missing: Vec<(RowPtr, usize)>,
}

impl Scan {
    /// Goes on, when everything that was sent is answered.
    pub(super) fn step(&mut self, step: &mut Step<'_>) -> Progress {
        if step.request.limit == 0 {
            return Progress::Done(0);
        }
        let walk = match self.walk(step) {
            Ok(walk) => walk,
            Err(progress) => return progress,
        };
        let format = step.table.key_format();
        // SAFETY: keys of rows are never written.
        let image_of = |row: RowPtr| unsafe { key_image(row, format.image_bytes()) };
        // SAFETY: whoever issued the scan keeps its key image.
        let from_image = unsafe { std::slice::from_raw_parts(step.image, format.image_bytes()) };
        let to = walk.last.map_or(LAST, |row| format.encode(image_of(row)));
        let is_one =
            walk.last.is_some_and(|row| step.placement.is_one_partition(step.number, from_image, image_of(row)));
        let only = is_one.then(|| step.placement.place(step.number, from_image, step.me));
        let everywhere = step.placement.workers() == 1
            || only == Some(Place::Here)
            || only == Some(Place::Everywhere)
            || self.covered.is_some_and(|covered| covered >= to);
        if walk.missing.is_empty() && everywhere {
            if only != Some(Place::Everywhere) {
                step.partition.cover(step.number, step.from, to, step.time);
            }
            self.let_go(step.mail);
            return Progress::Done(walk.rows);
        }
        let mut sent = 0;
        for owner in (0..step.placement.workers()).filter(|&owner| owner != step.me) {
            if only.is_some_and(|only| only != Place::There(owner)) {
                continue;
            }
            let rows = walk.missing.iter().filter(|missing| missing.1 == owner).map(|missing| missing.0).collect();
            let job = Box::new(Job { table: step.number, from: step.from, to, rows });
            step.mail.send(owner, Message::Scan { to: step.to, time: step.time, job: &raw const *job });
            self.jobs.push((owner, job));
            sent += 1;
        }
        self.cp = step.to.cp;
        self.covered = self.covered.max(Some(to));
        Progress::Sent(sent)
    }

    /// Walks over the range and copies its rows, as long as all that it met are here or pinned.
    fn walk(&mut self, step: &mut Step<'_>) -> Result<Walk, Progress> {
        let mut writer = ScanWriter::new(step.table, step.request);
        let mut walk = Walk { rows: 0, last: None, missing: Vec::new() };
        let key_bytes = step.table.key_format().image_bytes();
        let (mut left, mut stopped) = (step.request.limit, None);
        let (time, number, me, placement) = (step.time, step.number, step.me, step.placement);
        step.table.scan_all(&step.from, left as usize, writer.touched(), |row| {
            // SAFETY: keys of rows are never written.
            let image = unsafe { key_image(row, key_bytes) };
            let mut header = Header::load(row);
            let good = match placement.place(number, image, me) {
                Place::Everywhere => true,
                Place::Here => match header.may_read(time) {
                    Verdict::Granted => {
                        header.saw(time);
                        header.store(row);
                        true
                    }
                    Verdict::Wait => {
                        stopped = Some(Progress::Wait);
                        return false;
                    }
                    Verdict::Conflict(above) => {
                        stopped = Some(Progress::Conflict(above));
                        return false;
                    }
                },
                Place::There(owner) => {
                    let good = self.has(row);
                    if !good {
                        walk.missing.push((row, owner));
                    }
                    good
                }
            };
            if header.is_live() {
                if good && walk.missing.is_empty() {
                    // SAFETY: the row stays as it is in this step, because it is here, or as long as it is pinned.
                    unsafe { writer.write(row) }
                }
                left -= 1;
            }
            if left == 0 {
                walk.last = Some(row);
            }
            left > 0
        });
        walk.rows = writer.rows;
        stopped.map_or(Ok(walk), Err)
    }

    fn has(&self, row: RowPtr) -> bool {
        self.pinned.binary_search_by_key(&row.as_ptr(), |pinned| pinned.0.as_ptr()).is_ok()
    }

    /// Takes in what a worker answers a job. Returns whether the answer was one to a job.
    pub(super) fn answered(&mut self, from: usize, cp: u8, answer: Answer) -> bool {
        if cp != self.cp {
            return false;
        }
        let Some(at) = self.jobs.iter().position(|job| job.0 == from) else { return false };
        let (owner, job) = self.jobs.swap_remove(at);
        if matches!(answer, Answer::Ready(_)) {
            self.pinned.extend(job.rows.iter().map(|&row| (row, owner)));
            self.pinned.sort_unstable_by_key(|pinned| pinned.0.as_ptr());
        }
        true
    }

    /// Lets all pins go: the scan is made, or never will be. Nothing is outstanding.
    pub(super) fn let_go(&mut self, mail: &mut Mail) {
        debug_assert!(self.jobs.is_empty());
        self.pinned.drain(..).for_each(|(row, owner)| mail.unpin(owner, row));
        self.covered = None;
    }
}

/// The key image of a row.
///
/// # Safety
/// It is that many bytes long, and the row's table lives.
unsafe fn key_image<'a>(row: RowPtr, bytes: usize) -> &'a [u8] {
    // SAFETY: as the caller's; the key follows the header.
    unsafe { std::slice::from_raw_parts(row.as_ptr().add(ROW_HEADER_BYTES as usize), bytes) }
}
