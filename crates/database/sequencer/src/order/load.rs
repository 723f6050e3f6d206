//! Rows that come outside of calls, with those of indexes: no call comes between a row and its row in an index, and no
//! crash, because both are in one record.

use lockwork_engine::EngineError;
use lockwork_procedure::schema::ROW_HEADER_BYTES;

use super::Order;
use super::change::ROWS_BYTES;
use crate::error::Error;
use crate::format::frame::{self, RecordKind};
use crate::format::items::Rows;

/// Bytes before the rows of each table in a record of several.
const PART_BYTES: usize = 4;

/// What is to be done when it is known how many rows were loaded.
pub(crate) type LoadReply = Box<dyn FnOnce(Result<usize, Error>) + Send>;

/// Images of rows of a table, one behind the other.
struct Images<'a> {
    table: &'a str,
    width: usize,
    bytes: &'a [u8],
}

impl Images<'_> {
    fn rows(&self, rows: std::ops::Range<usize>) -> &[u8] {
        &self.bytes[rows.start * self.width..rows.end * self.width]
    }

    /// Bytes of so many rows in a record.
    fn room(&self, rows: usize) -> usize {
        6 + self.table.len() + rows * self.width
    }

    fn put(&self, out: &mut Vec<u8>, rows: std::ops::Range<usize>) {
        Rows::put_head(out, self.table, self.width);
        out.extend_from_slice(self.rows(rows));
    }
}

impl Order {
    pub(super) fn load(&mut self, tables: &[(String, Vec<u8>)], reply: LoadReply) {
        let (images, count) = match self.images(tables) {
            Ok(images) => images,
            Err(error) => return reply(Err(error)),
        };
        self.copy_rest();
        let row_bytes: usize = images.iter().map(|images| images.width).sum();
        let head_bytes: usize = images.iter().map(|images| PART_BYTES + images.room(0)).sum();
        let most = self.space.as_ref().map_or(ROWS_BYTES, |space| space.record_bytes().min(ROWS_BYTES) - head_bytes);
        let at_once = (most / row_bytes.max(1)).max(1);
        let mut loaded = 0;
        loop {
            let rows = loaded..count.min(loaded + at_once);
            let room = images.iter().map(|images| PART_BYTES + images.room(rows.len())).sum();
            if let Err(error) = self.room_for_record(room) {
                return reply(Err(error));
            }
            let refused = match self.load_piece(&images, rows.clone(), &mut loaded) {
                Ok(refused) => refused,
                Err(error) => {
                    self.shared.stop(error.clone());
                    return reply(Err(error));
                }
            };
            let is_last = refused.is_some() || loaded == count;
            self.write(&images, room, rows.start..loaded);
            if is_last {
                let outcome = match refused {
                    None => Ok(loaded),
                    Some(error) => Err(Error::Load { loaded, error: error.into() }),
                };
                let answer = move |written: Result<(), Error>| reply(written.and(outcome));
                return self.send(Vec::new(), Vec::new(), true, Box::new(answer));
            }
        }
    }

    /// What is to be loaded, and how many rows: whole ones of tables that there are, as many of each.
    fn images<'a>(&mut self, tables: &'a [(String, Vec<u8>)]) -> Result<(Vec<Images<'a>>, usize), Error> {
        let mut images = Vec::new();
        for (table, bytes) in tables {
            let schema = self.catalogue.tables.iter().find(|schema| schema.name() == table);
            let width = schema.map_or(0, |schema| (schema.row_bytes() - ROW_HEADER_BYTES) as usize);
            if width == 0 || !bytes.len().is_multiple_of(width) {
                // The engine says what is wrong.
                self.drain();
                let cut = bytes.len().checked_rem(width).unwrap_or(0);
                self.engine.load(table, &bytes[bytes.len() - cut..])?;
            }
            images.push(Images { table, width: width.max(1), bytes });
        }
        let count = |images: &Images<'_>| images.bytes.len() / images.width;
        let first = images.first().map_or(0, count);
        match images.iter().find(|images| count(images) != first) {
            None => Ok((images, first)),
            Some(other) => Err(Error::Option {
                option: "rows",
                value: format!("{} of table '{}'", count(other), other.table),
                expected: format!("as many as of the first table are needed, {first}"),
            }),
        }
    }

    /// Gives rows to the engine, and counts them in `loaded`; why the next one was refused, if it was.
    fn load_piece(
        &mut self,
        images: &[Images<'_>],
        rows: std::ops::Range<usize>,
        loaded: &mut usize,
    ) -> Result<Option<EngineError>, Error> {
        let Some((first, others)) = images.split_first() else { return Ok(None) };
        for row in rows {
            if let Err(error) = self.engine.load(first.table, first.rows(row..row + 1)) {
                return Ok(Some(error));
            }
            for other in others {
                let taken = self.engine.load(other.table, other.rows(row..row + 1));
                taken.map_err(|error| Error::Stopped(error.to_string()))?;
            }
            *loaded += 1;
        }
        Ok(None)
    }

    /// Writes a record into the room that was taken.
    fn write(&mut self, images: &[Images<'_>], room: usize, rows: std::ops::Range<usize>) {
        match images {
            _ if rows.is_empty() => {
                if let Some(space) = &mut self.space {
                    space.settle(frame::whole(room) as u64, 0);
                }
            }
            [alone] => self.record(RecordKind::Rows, room, |out| alone.put(out, rows), |_| {}),
            several => {
                let payload = |out: &mut Vec<u8>| {
                    for images in several {
                        out.extend((images.room(rows.len()) as u32).to_le_bytes());
                        images.put(out, rows.clone());
                    }
                };
                self.record(RecordKind::Indexed, room, payload, |_| {});
            }
        }
    }
}
