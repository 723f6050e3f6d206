//! The thread that writes the log and tells those who wait.
//!
//! Units come in order, each the records of one batch. What has gathered while the disk was busy is written and synced
//! in one go (group commit). Into every frame goes, last of all, which records are durable by now.
//!
//! Invariant: with `fsync`, the write of a unit begins only after the sync of the one before it has succeeded; with
//! `async` the same holds for the first unit of a segment and the segment before. A failure is final: the unit's
//! callers, and all later ones, get it, and nothing is written any more.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::space::Segment;
use crate::error::{Error, Failure};
use crate::format::file;
use crate::format::frame::{self, RecordKind};
use crate::options::Durability;
use crate::shared::Shared;

/// Units are gathered up to so many bytes.
pub(crate) const MAX_BYTES: usize = 4 << 20;

/// What is told to those who wait for a unit.
pub(crate) type Done = Box<dyn FnOnce(Result<(), Error>) + Send>;

/// See the module.
pub(crate) struct Unit {
    /// Where to; `None` when there is nothing to write.
    pub(crate) segment: Option<Arc<Segment>>,
    /// Frames, one after the other.
    pub(crate) bytes: Vec<u8>,
    /// Where in `bytes` they begin.
    pub(crate) frames: Vec<usize>,
    /// The number of the first record behind the unit.
    pub(crate) next: u64,
    /// Whether the callers receive an error if the write of this, or of what came before, fails; else they only read.
    pub(crate) requires_durability: bool,
    /// Called when it is.
    pub(crate) done: Done,
}

/// The writer's side.
pub(crate) struct Writer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) durability: Durability,
    pub(crate) async_interval: Duration,
    pub(crate) idle_mark: Duration,
    /// The segment that was written last, and where its records end.
    current: Option<(Arc<Segment>, u64)>,
    /// The number of the first record that was not written.
    next: u64,
    /// Since when something written has not been synced.
    dirty: Option<Instant>,
    /// The last frame in the segment says that everything before it is durable, or there is none.
    marked: bool,
}

impl Writer {
    pub(crate) fn new(
        shared: Arc<Shared>,
        durability: Durability,
        async_interval: Duration,
        idle_mark: Duration,
        next: u64,
    ) -> Self {
        Self { shared, durability, async_interval, idle_mark, current: None, next, dirty: None, marked: true }
    }

    /// Writes units until there will be no more, then leaves the log as a closed one.
    pub(crate) fn run(mut self, units: &Receiver<Unit>) {
        loop {
            let wait = match self.dirty {
                Some(since) => Some((since + self.async_interval).saturating_duration_since(Instant::now())),
                None if !self.marked => Some(self.idle_mark),
                None => None,
            };
            let first = match wait {
                None => units.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(wait) => units.recv_timeout(wait),
            };
            let first = match first {
                Ok(unit) => unit,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    let idle = if self.dirty.is_some() { self.sync() } else { self.mark() };
                    if let Err(failure) = idle {
                        self.fail(failure);
                    }
                    continue;
                }
            };
            let mut gathered = first.bytes.len();
            let mut group = vec![first];
            while gathered < MAX_BYTES
                && let Ok(unit) = units.try_recv()
            {
                gathered += unit.bytes.len();
                group.push(unit);
            }
            self.write_group(group);
            if self.dirty.is_some_and(|since| since.elapsed() >= self.async_interval)
                && let Err(failure) = self.sync()
            {
                self.fail(failure);
            }
        }
        if self.shared.trouble().is_none()
            && let Err(failure) = self.close()
        {
            self.fail(failure);
        }
    }

    fn fail(&mut self, failure: Failure) {
        self.shared.poison(failure);
        (self.dirty, self.marked, self.current) = (None, true, None);
    }

    /// Writes units in pieces that go into one segment each.
    fn write_group(&mut self, group: Vec<Unit>) {
        let mut piece: Vec<Unit> = Vec::new();
        for unit in group {
            let other = |last: &Unit| match (&last.segment, &unit.segment) {
                (Some(last), Some(unit)) => !Arc::ptr_eq(last, unit),
                _ => false,
            };
            if piece.iter().rev().find(|unit| unit.segment.is_some()).is_some_and(other) {
                self.write_piece(std::mem::take(&mut piece));
            }
            piece.push(unit);
        }
        self.write_piece(piece);
    }

    fn write_piece(&mut self, mut piece: Vec<Unit>) {
        let outcome = match self.shared.trouble() {
            Some(error) => Err(error),
            None => self.write(&mut piece).map_err(|failure| {
                let error = Error::Poisoned(failure.clone());
                self.fail(failure);
                error
            }),
        };
        for mut unit in piece {
            (unit.done)(if unit.requires_durability { outcome.clone() } else { Ok(()) });
            self.shared.give_back(std::mem::take(&mut unit.bytes));
        }
    }

    fn write(&mut self, piece: &mut [Unit]) -> Result<(), Failure> {
        let Some(segment) = piece.iter().find_map(|unit| unit.segment.clone()) else { return Ok(()) };
        let start = Instant::now();
        let mut offset = match &self.current {
            Some((current, end)) if Arc::ptr_eq(current, &segment) => *end,
            _ => {
                if self.dirty.is_some() {
                    self.sync()?;
                }
                file::BYTES as u64
            }
        };
        let durable = self.shared.durable();
        let mut joined = self.shared.buffer();
        let mut units: Vec<&mut Unit> = piece.iter_mut().filter(|unit| unit.segment.is_some()).collect();
        for unit in &mut units {
            let Unit { bytes, frames, next, .. } = &mut **unit;
            frames.iter().for_each(|&at| frame::set_durable(&mut bytes[at..], segment.salt, durable));
            self.next = *next;
        }
        let bytes: &[u8] = match &units[..] {
            [alone] => &alone.bytes,
            _ => {
                units.iter().for_each(|unit| joined.extend_from_slice(&unit.bytes));
                &joined
            }
        };
        let failed = |action, error| Failure::new(action, &segment.path, Some(offset), error);
        if self.durability == Durability::Fsync {
            segment.file.write_and_sync(offset, bytes).map_err(|error| failed("write and sync", error))?;
        } else {
            segment.file.write_at(offset, bytes).map_err(|error| failed("write", error))?;
        }
        offset += bytes.len() as u64;
        self.marked = false;
        if self.durability == Durability::Fsync {
            self.shared.set_durable(self.next);
        } else {
            self.dirty.get_or_insert_with(Instant::now);
        }
        self.current = Some((segment, offset));
        self.shared.count_sync(bytes.len(), self.durability == Durability::Fsync, start.elapsed());
        self.shared.give_back(joined);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Failure> {
        let (Some((segment, _)), Some(_)) = (&self.current, self.dirty) else { return Ok(()) };
        let start = Instant::now();
        segment.file.sync().map_err(|error| Failure::new("sync", &segment.path, None, error))?;
        self.dirty = None;
        self.shared.set_durable(self.next);
        self.shared.count_sync(0, true, start.elapsed());
        Ok(())
    }

    /// Notes behind the last record that everything before is durable. The note itself need not be.
    fn mark(&mut self) -> Result<(), Failure> {
        if let Some((segment, end)) = &mut self.current {
            let mut mark = Vec::new();
            frame::put(&mut mark, segment.salt, RecordKind::Durable, self.next, 0, |_| ());
            let written = segment.file.write_at(*end, &mark);
            written.map_err(|error| Failure::new("write", &segment.path, Some(*end), error))?;
            *end += mark.len() as u64;
        }
        self.marked = true;
        Ok(())
    }

    /// Syncs, marks, and cuts off the room that is not used.
    fn close(&mut self) -> Result<(), Failure> {
        if self.dirty.is_some() {
            self.sync()?;
        }
        if !self.marked {
            self.mark()?;
        }
        if let Some((segment, end)) = &self.current {
            let failed = |action| move |error| Failure::new(action, &segment.path, Some(*end), error);
            segment.file.truncate(*end).map_err(failed("cut"))?;
            segment.file.sync().map_err(failed("sync"))?;
        }
        Ok(())
    }
}
