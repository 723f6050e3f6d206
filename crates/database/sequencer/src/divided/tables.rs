//! What is done with whole tables whose rows all parts have: reading them, and loading rows that come from outside.
//!
//! Both have records of their own, so every part does its share at one place of the order. What is read is what the
//! log makes up to there; whoever reads at the leader sees everything that was acknowledged before.

use std::ops::Range;
use std::path::Path;

use lockwork_engine::{EngineError, Gathered, Images, Place};
use lockwork_procedure::key::KeyFormat;
use lockwork_procedure::schema::{Catalog, ROW_HEADER_BYTES, TableSchema};
use lockwork_storage::StorageError;

use super::run::{HEAD, head};
use super::{Ordered, PLACE_BITS, PartitionedOrder};
use crate::error::Error;
use crate::format::Cursor;
use crate::format::frame::RecordKind;
use crate::format::items::Rows;
use crate::journal::message::OVERHEAD;
use crate::order::{LoadReply, ROWS_BYTES};

/// All rows of some tables, as the log makes them up to a record ([`Handle::gather_then`](crate::Handle::gather_then)).
#[derive(Clone, Debug)]
pub struct GatheredTables {
    /// The record.
    pub record: u64,
    /// Bytes of all rows, also of those that were too many.
    pub bytes: u64,
    /// Schemas, and images of the rows, one behind the other, in no particular order; nothing where they are too many.
    pub tables: Vec<(TableSchema, Vec<u8>)>,
}

/// What is to be done when rows were gathered.
pub(crate) type GatherReply = Box<dyn FnOnce(Result<GatheredTables, Error>) + Send>;

/// Rows of a table that are to be loaded.
struct Incoming {
    name: String,
    number: u16,
    /// Bytes of a row.
    width: usize,
    images: Vec<u8>,
}

/// Rows of several tables that are loaded, so many of them at a time, and who waits for that.
pub(super) struct Loading {
    tables: Vec<Incoming>,
    /// Rows of each.
    count: usize,
    loaded: usize,
    reply: LoadReply,
}

impl Loading {
    pub(super) fn refuse(self, error: Error) {
        (self.reply)(Err(error));
    }

    /// The next rows are not in the log. Those of records before are, so it is not true of all that nothing happened.
    pub(super) fn break_off(self, error: Error) {
        let error = match (error, self.loaded) {
            (error, 0) => error,
            (Error::Unknown(why), loaded) => Error::Unknown(format!("{loaded} rows were loaded, and then: {why}")),
            (error, loaded) => Error::Unknown(format!("{loaded} rows were loaded, and then: {error}")),
        };
        self.refuse(error);
    }

    fn images(&self, rows: &Range<usize>) -> Vec<Images<'_>> {
        let of = |table: &'_ Incoming| table.width * rows.start..table.width * rows.end;
        let images = self.tables.iter().map(|table| (table.number, &table.images[of(table)]));
        images.map(|(table, bytes)| Images { table, bytes }).collect()
    }
}

fn row_bytes(schema: &TableSchema) -> usize {
    (schema.row_bytes() - ROW_HEADER_BYTES) as usize
}

/// What a record of [`RecordKind::Gathered`] says: the most bytes, and tables.
fn put_gather(out: &mut Vec<u8>, most: u64, tables: &[u16]) {
    out.extend(most.to_le_bytes());
    tables.iter().for_each(|table| out.extend(table.to_le_bytes()));
}

fn gather_of(payload: &[u8]) -> Result<(u64, Vec<u16>), String> {
    let mut cursor = Cursor::new(payload);
    let most = cursor.u64("the most bytes")?;
    let mut tables = Vec::new();
    while cursor.left() > 0 {
        tables.push(cursor.u16("a table")?);
    }
    Ok((most, tables))
}

impl PartitionedOrder {
    /// The number of a table, and its schema.
    fn table(&self, name: &str) -> Result<(u16, &TableSchema), Error> {
        let tables = self.catalogue.tables.as_slice();
        tables.table(name).ok_or_else(|| {
            let names = tables.table_names();
            let known =
                if names.is_empty() { "there are none".into() } else { format!("there are: {}", names.join(", ")) };
            EngineError::from(StorageError::UnknownTable { table: name.into(), known }).into()
        })
    }

    fn home(&self, record: u64) -> Place {
        Place { stamp: record << PLACE_BITS, home: self.engine.part().0 }
    }

    /// Gives the journal a record at which all parts tell this one the rows of some tables.
    pub(super) fn give_gather(&mut self, names: &[String], most: u64, reply: GatherReply) {
        let tables = match names.iter().map(|name| Ok(self.table(name)?.0)).collect::<Result<Vec<u16>, Error>>() {
            Ok(tables) => tables,
            Err(error) => return reply(Err(error)),
        };
        let (part, parts) = self.engine.part();
        let given = tables.clone();
        self.give(RecordKind::Gathered, Ordered::Gather { tables, most, reply }, |out| {
            out.extend(head(part, parts));
            put_gather(out, most, &given);
        });
    }

    /// Gets the rows at a record that was just appended, and answers.
    pub(super) fn gather(&mut self, tables: &[u16], most: u64, record: u64, reply: GatherReply) -> Result<(), Error> {
        let gathered = self.engine.gather(self.home(record), tables, most, true).map_err(Error::from);
        let ended = gathered.as_ref().err().cloned();
        reply(gathered.map(|Gathered { bytes, tables: images }| {
            let schemas = tables.iter().map(|&id| self.catalogue.tables[usize::from(id)].clone());
            GatheredTables { record, bytes, tables: schemas.zip(images).collect() }
        }));
        ended.map_or(Ok(()), Err)
    }

    /// Does this part's share of a record at which rows are read, or loaded; nobody here waits for it.
    pub(super) fn whole_tables(&mut self, kind: RecordKind, payload: &[u8], record: u64) -> Result<(), Error> {
        let (home, payload) = self.home_of(&self.node.path, payload, record)?;
        let place = Place { stamp: record << PLACE_BITS, home };
        let damaged = |problem: String| Error::damaged(&self.node.path, record, problem);
        if kind == RecordKind::Gathered {
            let (most, tables) = gather_of(payload).map_err(damaged)?;
            let count = self.catalogue.tables.len();
            if let Some(unknown) = tables.iter().find(|&&table| usize::from(table) >= count) {
                return Err(damaged(format!("there is no table {unknown}")));
            }
            self.engine.gather(place, &tables, most, false)?;
            return Ok(());
        }
        let rows = Rows::decode_all(payload).map_err(damaged)?;
        let mut images = Vec::new();
        for Rows { table, image_bytes, images: bytes } in rows {
            let (number, schema) = self.table(table)?;
            let width = row_bytes(schema);
            if width != image_bytes {
                let problem = format!("rows of table '{table}' have {image_bytes} bytes, and it has {width}");
                return Err(Error::Replay { record, problem });
            }
            images.push(Images { table: number, bytes });
        }
        self.engine.load_at(place, &images)?;
        Ok(())
    }

    /// The part that gave a record, and what follows.
    ///
    /// # Errors
    /// The record is of another number of parts, or has no such head.
    pub(super) fn home_of<'a>(&self, path: &Path, payload: &'a [u8], record: u64) -> Result<(u16, &'a [u8]), Error> {
        let Some((&[a, b, c, d], rest)) = payload.split_first_chunk::<HEAD>() else {
            return Err(Error::damaged(path, record, "the record has no head"));
        };
        let (parts, mine) = (u16::from_le_bytes([c, d]), self.engine.part().1);
        if parts != mine {
            return Err(Error::Option {
                option: "parts",
                value: mine.to_string(),
                expected: format!("the tables of this journal have {parts}"),
            });
        }
        match u16::from_le_bytes([a, b]) {
            home if home < parts => Ok((home, rest)),
            home => {
                Err(Error::damaged(path, record, format!("the record is of part {}, of {parts}", u32::from(home) + 1)))
            }
        }
    }

    /// Begins to load rows: as many of each table.
    pub(super) fn begin_load(&mut self, tables: Vec<(String, Vec<u8>)>, reply: LoadReply) {
        match self.incoming(tables) {
            Ok((_, 0)) => reply(Ok(0)),
            Ok((tables, count)) => self.give_rows(Loading { tables, count, loaded: 0, reply }),
            Err(error) => reply(Err(error)),
        }
    }

    /// What is to be loaded, and how many rows there are of each table.
    fn incoming(&self, tables: Vec<(String, Vec<u8>)>) -> Result<(Vec<Incoming>, usize), Error> {
        let (mut all, mut first) = (Vec::new(), None);
        for (name, images) in tables {
            let (number, schema) = self.table(&name)?;
            let wanted = row_bytes(schema);
            let found = images.len() % wanted;
            if found > 0 {
                return Err(EngineError::from(StorageError::RowLength { table: name, found, wanted }).into());
            }
            let count = images.len() / wanted;
            let expected = *first.get_or_insert(count);
            if count != expected {
                return Err(Error::Option {
                    option: "rows",
                    value: format!("{count} of table '{name}'"),
                    expected: format!("as many as of the first table are needed, {expected}"),
                });
            }
            all.push(Incoming { name, number, width: wanted, images });
        }
        Ok((all, first.unwrap_or(0)))
    }

    /// Gives the journal the next rows that are to be loaded.
    fn give_rows(&mut self, loading: Loading) {
        let heads: usize = loading.tables.iter().map(|table| 10 + table.name.len()).sum();
        let most = (self.node.journal.most_bytes() - OVERHEAD).min(ROWS_BYTES).saturating_sub(HEAD + heads);
        let row_bytes: usize = loading.tables.iter().map(|table| table.width).sum();
        let rows = loading.loaded..loading.count.min(loading.loaded + (most / row_bytes).max(1));
        let mut payload = Vec::new();
        for (Incoming { name, width, .. }, images) in loading.tables.iter().zip(loading.images(&rows)) {
            payload.extend((6 + name.len() as u32 + images.bytes.len() as u32).to_le_bytes());
            Rows::put_head(&mut payload, name, *width);
            payload.extend_from_slice(images.bytes);
        }
        let (part, parts) = self.engine.part();
        self.give(RecordKind::Loaded, Ordered::Rows(loading, rows), |out| {
            out.extend(head(part, parts));
            out.extend(payload);
        });
    }

    /// Loads rows whose record was just appended, and goes on with the next, or answers.
    pub(super) fn load(&mut self, mut loading: Loading, rows: &Range<usize>, record: u64) -> Result<(), Error> {
        let loaded = match self.engine.load_at(self.home(record), &loading.images(rows)) {
            Ok(loaded) => loaded,
            Err(error) => {
                loading.refuse(Error::Unknown(error.to_string()));
                return Err(error.into());
            }
        };
        loading.loaded += loaded.rows;
        if loaded.is_refused {
            let Loading { tables, loaded, reply, .. } = loading;
            let Incoming { name, number, width, images } = &tables[0];
            let format = KeyFormat::of(&self.catalogue.tables[usize::from(*number)]);
            let key = format.text(&format.encode(&images[loaded * width..]));
            let error = EngineError::from(StorageError::Duplicate { table: name.clone(), key });
            reply(Err(Error::Load { loaded, error: error.into() }));
        } else if loading.loaded == loading.count {
            (loading.reply)(Ok(loading.loaded));
        } else {
            self.give_rows(loading);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gathered_can_be_read_again_and_half_of_it_is_refused() {
        let mut payload = Vec::new();
        put_gather(&mut payload, 1 << 28, &[3, 1]);
        assert_eq!(gather_of(&payload), Ok((1 << 28, vec![3, 1])));
        for (bytes, lacks) in [(11, "a table"), (3, "the most bytes")] {
            let refused = gather_of(&payload[..bytes]).unwrap_err();
            assert!(refused.contains(lacks), "{refused}");
        }
    }
}
