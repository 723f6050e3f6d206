//! COPY FROM STDIN: lines become rows, and those go into the table in pieces, so that memory is bounded and the calls
//! of others come between. Nothing is held while the client is waited for.

use std::sync::Arc;
use std::time::Instant;

use lockwork::sql::{Subject, Value};
use lockwork::{Error, sequencer};
use tokio::sync::oneshot;

use super::reader::{Fields, Reader};
use super::{Column, Table};
use crate::cancel::Cancel;
use crate::error::{Refusal, refuse};
use crate::shared::{Shared, closed, unanswered};
use crate::values;

/// Bytes of rows that go into the table at once.
const PIECE: usize = 1 << 20;
/// Bytes of a message that are looked at at once.
const CHUNK: usize = 64 << 10;
/// Characters of a field or line that an error shows.
const SHOWN: usize = 100;

/// A COPY FROM that is under way.
#[derive(Debug)]
pub(super) struct Loading {
    table: Arc<Table>,
    reader: Reader,
    fields: Fields,
    /// Rows that are not in the table yet, and the line of each.
    images: Vec<u8>,
    lines: Vec<u64>,
    /// Rows that are.
    loaded: u64,
    has_header: bool,
    pub(super) begun: Instant,
}

impl Loading {
    pub(super) fn new(table: Arc<Table>) -> Self {
        Self {
            reader: Reader::new(&table.form),
            fields: Fields::default(),
            images: Vec::new(),
            lines: Vec::new(),
            loaded: 0,
            has_header: table.form.header,
            begun: Instant::now(),
            table,
        }
    }

    /// Takes a message of the client.
    pub(super) async fn take_in(&mut self, database: &Shared, bytes: &[u8], cancel: &Cancel) -> Result<(), Refusal> {
        for chunk in bytes.chunks(CHUNK) {
            cancel.check().map_err(|refusal| self.stayed(refusal))?;
            self.reader.push(chunk);
            self.read(database, false, cancel).await?;
        }
        Ok(())
    }

    /// Takes what is left, and gives the number of rows.
    pub(super) async fn finish(&mut self, database: &Shared, cancel: &Cancel) -> Result<u64, Refusal> {
        self.read(database, true, cancel).await?;
        self.flush(database, cancel).await?;
        Ok(self.loaded)
    }

    /// Says that rows stay.
    pub(super) fn stayed(&self, refusal: Refusal) -> Refusal {
        refusal.detail(match self.loaded {
            0 => "No row has been loaded.".into(),
            1 => "1 row before it has been loaded, and stays.".into(),
            rows => format!("{rows} rows before it have been loaded, and stay."),
        })
    }

    async fn read(&mut self, database: &Shared, is_last: bool, cancel: &Cancel) -> Result<(), Refusal> {
        loop {
            match self.row(is_last) {
                Ok(true) if self.images.len() >= PIECE => self.flush(database, cancel).await?,
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(refusal) => {
                    // Rows before it are right.
                    self.flush(database, cancel).await?;
                    return Err(self.stayed(refusal));
                }
            }
        }
    }

    /// Reads a row; `false` when there is no whole one.
    fn row(&mut self, is_last: bool) -> Result<bool, Refusal> {
        let table = &self.table;
        let at = |line: u64| format!("COPY {}, line {line}", table.name);
        match self.reader.next(is_last) {
            Ok(None) => return Ok(false),
            Ok(Some(_)) if std::mem::take(&mut self.has_header) => return Ok(true),
            Ok(Some(record)) => self.fields.split(record, &table.form),
            Err(refusal) => return Err(refusal.context(at(self.reader.line()))),
        }
        let (line, count) = (self.reader.line(), self.fields.iter().len());
        if count != table.columns.len() {
            let refusal = match table.columns.get(count) {
                Some(missing) => refuse("22P04", format!("missing data for column \"{}\"", missing.name)),
                None => refuse("22P04", "extra data after last expected column"),
            };
            return Err(refusal.context(at(line)));
        }
        let begin = self.images.len();
        self.images.extend_from_slice(&table.blank);
        for (field, column) in self.fields.iter().zip(&table.columns) {
            let image = &mut self.images[begin + column.at..begin + column.at + column.width];
            if let Err(refusal) = put(field, &table.name, column, image) {
                self.images.truncate(begin);
                let shown = field.map_or("null input".into(), |field| format!("\"{}\"", shown(field)));
                return Err(refusal.context(format!("{}, column {}: {shown}", at(line), column.name)));
            }
        }
        self.lines.push(line);
        Ok(true)
    }

    /// Puts what has been read into the table.
    async fn flush(&mut self, database: &Shared, cancel: &Cancel) -> Result<(), Refusal> {
        if self.lines.is_empty() {
            return Ok(());
        }
        let (width, key) = (self.table.blank.len(), self.table.key.iter().map(|column| column.at + column.width).max());
        let key = key.unwrap_or(0);
        let keys: Vec<u8> = self.images.chunks_exact(width).flat_map(|image| &image[..key]).copied().collect();
        let images = std::mem::take(&mut self.images);
        let room = images.len();
        let permit = cancel.unless(database.queue.acquire()).await.map_err(|refusal| self.stayed(refusal))?;
        let permit = permit.map_err(|_| closed())?;
        let (sender, loaded) = oneshot::channel();
        tokio::task::block_in_place(|| {
            let then = |outcome| drop(sender.send(outcome));
            let mut guard = database.database();
            let refused = |error| Refusal::of(error, "");
            guard.as_mut().ok_or_else(closed)?.load_then(&self.table.name, images, then).map_err(refused)
        })?;
        let loaded = loaded.await.map_err(|_| unanswered())?;
        drop(permit);
        let rows = match &loaded {
            Ok(rows) => *rows,
            Err(error) => error.refused_row().map_or(0, |(rows, _)| rows),
        };
        self.loaded += rows as u64;
        let line = self.lines.get(rows).copied().unwrap_or_default();
        self.lines.clear();
        self.images.reserve(room);
        let key = keys.get(rows * key..(rows + 1) * key).unwrap_or_default();
        loaded.map(drop).map_err(|error| self.stayed(self.refusal(error, line, key)))
    }

    /// What is wrong with a line whose row begins with this key.
    fn refusal(&self, error: Error, line: u64, key: &[u8]) -> Refusal {
        let (Some((_, exists)), Error::Durability(sequencer::Error::Load { error: why, .. })) =
            (error.refused_row(), &error)
        else {
            return Refusal::of(error, "");
        };
        let value = |column: &Column| {
            let bytes = key.get(column.at..column.at + column.width)?;
            Some((column.name.clone(), Value::read(column.sql, bytes)))
        };
        let key: Vec<_> = self.table.key.iter().filter_map(value).collect();
        let subject = exists.then(|| Box::new(Subject::duplicate(&self.table.name, &key)));
        let refusal = refuse(if exists { "23505" } else { "58030" }, why.to_string()).about(subject);
        refusal.context(format!("COPY {}, line {line}", self.table.name))
    }
}

/// Writes a field into its place in a row.
fn put(field: Option<&[u8]>, table: &str, column: &Column, image: &mut [u8]) -> Result<(), Refusal> {
    let subject = || Some(Box::new(Subject { table: table.into(), column: column.name.clone(), ..Subject::default() }));
    let Some(field) = field else {
        let message = format!("null value in column \"{}\"", column.name);
        return Err(refuse("23502", message)
            .about(subject())
            .hint("there are no NULLs; the option NULL says what stands for one"));
    };
    let text = std::str::from_utf8(field).map_err(|_| refuse("22021", "this is no UTF-8"))?;
    let value = values::parse(text, column.sql, None).map_err(|refusal| match &*refusal.sqlstate {
        "22001" | "22003" => refusal.about(subject()),
        _ => refusal,
    })?;
    value.write(column.sql, image).ok_or_else(|| refuse("22P02", format!("this is no {}", column.sql)))
}

/// The beginning of a field, as errors show it.
fn shown(field: &[u8]) -> String {
    String::from_utf8_lossy(field).chars().take(SHOWN).collect()
}
