//! Rows that come outside of calls. Each has its rows in the indexes of its table before anybody sees it.

use std::sync::mpsc;

use lockwork_procedure::schema::{Catalog, ROW_HEADER_BYTES};
use lockwork_sequencer as sequencer;
use lockwork_sql as sql;

use crate::calls::{one, only_known};
use crate::value::Value;
use crate::{Error, Lockwork, unknown};

/// Bytes of index rows that are loaded at once.
const LOADED: usize = 8 << 20;

impl Lockwork {
    /// Inserts a row outside any procedure, for loading.
    ///
    /// # Errors
    /// No such table or column, a column without a value, a value that does not fit, a key that exists.
    pub fn insert(&mut self, table: &str, values: &[(&str, Value)]) -> Result<(), Error> {
        self.insert_all(table, &[values])
    }

    /// Inserts rows outside any procedure, for loading: in a folder they share a write of the log.
    ///
    /// # Errors
    /// As [`Self::insert`], and then none is there for values that do not fit, and those before it for a key that
    /// exists.
    pub fn insert_all(&mut self, table: &str, rows: &[&[(&str, Value)]]) -> Result<(), Error> {
        let Some((_, schema)) = self.tables.table(table) else {
            return Err(unknown("table", table, &self.tables.table_names()));
        };
        let row_bytes = (schema.row_bytes() - ROW_HEADER_BYTES) as usize;
        let mut images = vec![0; row_bytes * rows.len()];
        let types = self.sql_catalogue().find(table).map(sql::Table::types).unwrap_or_default();
        for (values, image) in rows.iter().zip(images.chunks_exact_mut(row_bytes)) {
            only_known("column", values, schema.columns().iter().map(|column| column.name.as_str()))?;
            for column in schema.columns() {
                let at = (column.offset - ROW_HEADER_BYTES) as usize;
                one(values, &column.name)?.write(&column.name, column.column_type, &mut image[at..])?;
            }
            for (column, sql) in schema.columns().iter().zip(types) {
                one(values, &column.name)?.check(&column.name, *sql)?;
            }
        }
        let (sender, loaded) = mpsc::sync_channel(1);
        self.load_then(table, images, move |outcome| drop(sender.send(outcome)))?;
        loaded.recv().map_err(|_| sequencer::Error::Closed)?.map(drop)
    }

    /// Inserts rows by their images, one behind the other, as [`crate::Rows::images`] has them: what they hold is not
    /// checked. `then` gets how many there are, all durable, or [`sequencer::Error::Load`] with how many stand before
    /// the one that was refused. In a folder it returns before that, and `then` runs on a thread of the database, must
    /// neither wait nor panic, and is dropped when the database is closed before it knows.
    ///
    /// # Errors
    /// No such table, and when the database is closed.
    pub fn load_then(
        &mut self,
        table: &str,
        images: Vec<u8>,
        then: impl FnOnce(Result<usize, Error>) + Send + 'static,
    ) -> Result<(), Error> {
        let Some((_, schema)) = self.tables.table(table) else {
            return Err(unknown("table", table, &self.tables.table_names()));
        };
        let row_bytes = (schema.row_bytes() - ROW_HEADER_BYTES) as usize;
        self.fill_all()?;
        let indexes = self.sql_catalogue().find(table).map(|table| table.indexes().to_vec()).unwrap_or_default();
        let of = |index: &sql::Index| {
            let rows = images.chunks_exact(row_bytes).flat_map(|image| index.row_image(image)).collect();
            (index.name.clone(), rows)
        };
        let indexed: Vec<(String, Vec<u8>)> = indexes.iter().map(of).collect();
        let tables = std::iter::once((table.to_string(), images)).chain(indexed).collect();
        Ok(self.sequencer.handle().load_then(tables, move |loaded| then(loaded.map_err(Error::from)))?)
    }

    /// Gives an index rows that it lacks.
    pub(crate) fn load_index(&mut self, index: &sql::Index, rows: Vec<Vec<u8>>) -> Result<(), Error> {
        let Some(first) = rows.first() else { return Ok(()) };
        for images in rows.chunks((LOADED / first.len().max(1)).max(1)) {
            self.sequencer.load(&index.name, images.concat())?;
        }
        Ok(())
    }
}
