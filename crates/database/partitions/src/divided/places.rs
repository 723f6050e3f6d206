//! What is done at a place that is no call's: rows of whole tables for the home, and rows that come from outside.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use lockwork_engine::{EngineError, Gathered, Images, Loaded, Place};
use lockwork_procedure::block::Batch;
use lockwork_procedure::schema::ROW_HEADER_BYTES;
use lockwork_storage::{Database, Table};

use super::Core;
use super::outcomes::Outcomes;
use crate::coordinator::malformed;
use crate::exchange::Share;
use crate::layout::Spread;
use crate::member::lock;
use crate::message::{GOT, SHARE};
use crate::wire::{Malformed, Put, Reader};

fn row_bytes(table: &Table) -> u64 {
    u64::from(table.schema().row_bytes() - ROW_HEADER_BYTES)
}

/// Rows of this part: bytes of all, and images of each table, if that is no more than `most`.
fn copied<'a>(tables: impl Iterator<Item = &'a Table> + Clone, most: u64) -> (u64, Vec<Vec<u8>>) {
    let bytes = tables.clone().map(|table| table.len() * row_bytes(table)).sum();
    let copy = |table: &Table| {
        let mut images = Vec::with_capacity((table.len() * row_bytes(table)) as usize);
        // SAFETY: no call runs, so nobody writes the row.
        table.for_each(|row| images.extend_from_slice(unsafe { table.row_image(row) }));
        images
    };
    (bytes, if bytes > most { Vec::new() } else { tables.map(copy).collect() })
}

impl Core {
    /// Bits of all other members.
    fn others(&self) -> u64 {
        u64::MAX >> (64 - self.parts) & !(1 << self.me)
    }

    /// Calls `read` with the rows of this part.
    fn with_rows<T>(&self, mut read: impl FnMut(&Database) -> T) -> Result<T, EngineError> {
        let mut result = None;
        lock(&self.rows).with_database(&mut |database| result = Some(read(database)))?;
        Ok(result.expect("it was called"))
    }

    /// Tells others something that is of a place.
    fn share(&mut self, share: Share) {
        if share.whom != 0 {
            self.exchange.tell(share);
            self.member.send(|frame| frame.u8(SHARE));
        }
    }

    /// What these members tell of a place, each with its number; what is to be sent is sent.
    fn shared(&mut self, place: Place, from: u64) -> Result<Vec<(usize, Vec<u8>)>, EngineError> {
        // No call stands there.
        Outcomes::new(self, &[], place).shared(&mut Batch::new(64, 1)?, from)
    }

    /// Nothing of a place is of interest any more.
    fn is_over(&mut self, place: Place) {
        self.wanted.fetch_max(place.stamp + 1, Ordering::AcqRel);
        self.exchange.drop_before(place.stamp + 1);
    }

    /// See [`Divided::gather`](lockwork_engine::Divided::gather).
    pub(super) fn gather(
        &mut self,
        place: Place,
        tables: &[u16],
        most: u64,
        wants: bool,
    ) -> Result<Gathered, EngineError> {
        self.wanted.fetch_max(place.stamp, Ordering::AcqRel);
        let is_home = usize::from(place.home) == self.me;
        let mut gathered = Gathered::default();
        if !is_home {
            let divided = self.divided(tables);
            let (bytes, images) = self.with_rows(|rows| copied(divided.iter().map(|&id| &**rows.table(id)), most))?;
            let mut told = Vec::with_capacity(images.iter().map(|images| 8 + images.len()).sum::<usize>() + 8);
            told.u64(bytes);
            for images in images {
                told.u64(images.len() as u64);
                told.bytes(&images);
            }
            self.share(Share { stamp: place.stamp, whom: 1 << place.home, stays: false, bytes: told });
            self.shared(place, 0)?;
        } else if wants {
            gathered = self.gathered(place, tables, most)?;
        }
        self.is_over(place);
        if is_home {
            // What comes from now on is refused; this is of what has come.
            self.member.send(|frame| {
                frame.u8(GOT);
                frame.u64(place.stamp);
            });
            self.shared(place, 0)?;
        }
        Ok(gathered)
    }

    /// Of these tables those of which every part has rows of its own.
    fn divided(&self, tables: &[u16]) -> Vec<u16> {
        tables.iter().copied().filter(|&id| self.spreads[usize::from(id)] != Spread::Everywhere).collect()
    }

    fn gathered(&mut self, place: Place, tables: &[u16], most: u64) -> Result<Gathered, EngineError> {
        let (mut bytes, mut images) =
            self.with_rows(|rows| copied(tables.iter().map(|&id| &**rows.table(id)), most))?;
        for (_, told) in self.shared(place, self.others())? {
            let mut reader = Reader::new(&told);
            bytes += reader.u64().map_err(malformed)?;
            if bytes > most {
                images.clear();
                continue;
            }
            for (&id, images) in tables.iter().zip(&mut images) {
                if self.spreads[usize::from(id)] != Spread::Everywhere {
                    let length = reader.u64().map_err(malformed)?;
                    images.extend_from_slice(reader.take(length as usize).map_err(malformed)?);
                }
            }
        }
        Ok(Gathered { bytes, tables: images })
    }

    /// See [`Divided::load_at`](lockwork_engine::Divided::load_at). Each part finds the first row that it refuses and
    /// tells the others, so all know the first of all before anything is there.
    pub(super) fn load_at(&mut self, place: Place, tables: &[Images<'_>]) -> Result<Loaded, EngineError> {
        let Some(first) = tables.first() else { return Ok(Loaded { rows: 0, is_refused: false }) };
        self.wanted.fetch_max(place.stamp, Ordering::AcqRel);
        let (spread, me, parts) = (self.spreads[usize::from(first.table)], self.me, self.parts);
        let (count, mine) = self.with_rows(|rows| {
            let table = rows.table(first.table);
            let images = first.bytes.chunks_exact(row_bytes(table) as usize);
            let (count, mut seen) = (images.len(), HashSet::new());
            let is_refused = |image: &[u8]| {
                let key = table.key_format().encode(image);
                let is_mine = spread.owner(&key, parts).is_none_or(|owner| owner == me);
                is_mine && (table.find(key.hash(), &key).is_some() || !seen.insert(key))
            };
            (count, images.map(is_refused).position(|refused| refused).unwrap_or(count))
        })?;
        let bytes = (mine as u64).to_le_bytes().to_vec();
        let others = self.others();
        self.share(Share { stamp: place.stamp, whom: others, stays: true, bytes });
        let mut loaded = mine;
        for (_, told) in self.shared(place, others)? {
            let theirs = Reader::new(&told).u64().map_err(malformed)?;
            loaded = loaded.min(theirs as usize);
        }
        for &Images { table: id, bytes } in tables {
            let spread = self.spreads[usize::from(id)];
            self.with_rows(|rows| {
                let table = rows.table(id);
                let images = bytes.chunks_exact(row_bytes(table) as usize);
                if images.len() != count {
                    let wrong = format_args!("{} rows of table '{}', not {count}", images.len(), table.schema().name());
                    return Err(malformed(Malformed::new(wrong)));
                }
                let mut mine = images.take(loaded).filter(|image| {
                    spread.owner(&table.key_format().encode(image), parts).is_none_or(|owner| owner == me)
                });
                Ok(mine.try_for_each(|image| table.load(image).map(drop))?)
            })??;
        }
        self.is_over(place);
        Ok(Loaded { rows: loaded, is_refused: loaded < count })
    }
}
