//! What SQL knows of the tables: types, declared order, defaults, indexes; and which procedures write them.
//!
//! Invariant: an index is a table like every other ([`Index`]). It is right as long as every procedure that writes the
//! table was compiled here after the index was made; [`Catalogue::define`] and [`Catalogue::add_procedure`] refuse
//! everything else.

use lockwork_procedure::isa::Opcode;
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::{Catalog, ROW_HEADER_BYTES, TableSchema};

use crate::error::{SqlError, state};
use crate::syntax::Place;
use crate::types::SqlType;
use crate::value::Value;

/// A constant of SQL as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Constant {
    Number(i64),
    String(Vec<u8>),
}

/// A table and its SQL metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub(crate) schema: TableSchema,
    /// By column of the schema.
    pub(crate) types: Vec<SqlType>,
    /// The columns in the order in which they were declared, as positions in the schema.
    pub(crate) declared: Vec<usize>,
    pub(crate) defaults: Vec<Option<Constant>>,
    pub(crate) indexes: Vec<Index>,
    /// The table that this one is an index of.
    pub(crate) index_of: Option<String>,
}

impl Table {
    /// A table of which only the layout is known.
    #[must_use]
    pub fn of_schema(schema: &TableSchema) -> Self {
        let types: Vec<_> = schema.columns().iter().map(|column| SqlType::of_storage(column.column_type)).collect();
        let (declared, defaults) = ((0..types.len()).collect(), vec![None; types.len()]);
        Self { schema: schema.clone(), types, declared, defaults, indexes: Vec::new(), index_of: None }
    }

    /// Its layout.
    #[must_use]
    pub fn schema(&self) -> &TableSchema {
        &self.schema
    }

    /// The type of each column, in the order of the schema.
    #[must_use]
    pub fn types(&self) -> &[SqlType] {
        &self.types
    }

    /// The positions in the schema of the columns as they were declared: the order of `SELECT *` and of VALUES.
    #[must_use]
    pub fn declared(&self) -> &[usize] {
        &self.declared
    }

    /// What a column is when INSERT names no value for it; `column` is its position in the schema.
    #[must_use]
    pub fn default_of(&self, column: usize) -> Option<Value> {
        let constant = self.defaults.get(column)?.clone()?;
        Some(Value::of_constant(constant, self.types.get(column).copied()))
    }

    /// The table that this one is an index of.
    #[must_use]
    pub fn index_of(&self) -> Option<&str> {
        self.index_of.as_deref()
    }

    /// Its indexes.
    #[must_use]
    pub fn indexes(&self) -> &[Index] {
        &self.indexes
    }
}

/// An index: an ordered table whose key is the indexed columns and the rest of the primary key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    /// Its name, which is the name of its table.
    pub name: String,
    /// The table that it is an index of.
    pub table: String,
    /// Its layout: all columns are key.
    pub schema: TableSchema,
    /// For each of its columns, the column of the table that it holds, as a position in the table's schema.
    pub columns: Vec<usize>,
    /// How many of the columns were named when it was made; the rest of the primary key is behind them.
    pub named: usize,
    /// Where each column comes from and goes to in row images, and its bytes.
    pub(crate) moves: Vec<(usize, usize, usize)>,
}

impl Index {
    /// The row image of the index for a row image of the table: to fill an index that is made when there are rows.
    ///
    /// # Panics
    /// When `image` is shorter than a row of the table.
    #[must_use]
    pub fn row_image(&self, image: &[u8]) -> Vec<u8> {
        let mut row = vec![0; (self.schema.row_bytes() - ROW_HEADER_BYTES) as usize];
        for &(from, to, width) in &self.moves {
            row[to..to + width].copy_from_slice(&image[from..from + width]);
        }
        row
    }
}

/// A procedure that is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    name: String,
    writes: Vec<String>,
}

/// The tables, indexes and procedures that there are. A table's number is its position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalogue {
    tables: Vec<Table>,
    procedures: Vec<Known>,
}

impl Catalog for Catalogue {
    fn table(&self, name: &str) -> Option<(u16, &TableSchema)> {
        let position = self.tables.iter().position(|table| table.schema.name() == name)?;
        Some((u16::try_from(position).ok()?, &self.tables[position].schema))
    }

    fn table_names(&self) -> Vec<String> {
        self.tables.iter().map(|table| table.schema.name().to_string()).collect()
    }
}

impl Catalogue {
    /// A catalogue without tables.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A catalogue of tables of which only the layout is known, such as those of assembly.
    #[must_use]
    pub fn of_schemas<'a>(schemas: impl IntoIterator<Item = &'a TableSchema>) -> Self {
        Self { tables: schemas.into_iter().map(Table::of_schema).collect(), procedures: Vec::new() }
    }

    /// All tables, indexes included, in the order in which they were made.
    #[must_use]
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// The table or index of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.schema.name() == name)
    }

    /// Adds a table that was made elsewhere.
    ///
    /// # Errors
    /// A table of this name exists.
    pub fn add_table(&mut self, table: Table) -> Result<(), SqlError> {
        self.check_free(table.schema.name(), Place::START)?;
        self.tables.push(table);
        Ok(())
    }

    /// Takes note of a procedure that was not compiled here. One compiled here is noted by itself.
    ///
    /// # Errors
    /// The procedure writes a table that has an index, which it cannot know of.
    pub fn add_procedure(&mut self, procedure: &Procedure) -> Result<(), SqlError> {
        let writes = writes(procedure);
        let indexed =
            |name: &&String| self.find(name).is_some_and(|table| !table.indexes.is_empty() || table.index_of.is_some());
        if let Some(table) = writes.iter().find(indexed) {
            let message =
                format!("procedure '{}' writes table '{table}', whose indexes it does not keep", procedure.name);
            return Err(SqlError::new(state::IN_USE, Place::START, message).hint("write the procedure in SQL"));
        }
        self.note(procedure.name.clone(), writes);
        Ok(())
    }

    /// Takes note of a procedure compiled here.
    pub(crate) fn note(&mut self, name: String, writes: Vec<String>) {
        self.procedures.retain(|known| known.name != name);
        self.procedures.push(Known { name, writes });
    }

    /// Whether a procedure of this name is noted.
    #[must_use]
    pub fn has_procedure(&self, name: &str) -> bool {
        self.procedures.iter().any(|known| known.name == name)
    }

    /// Forgets a procedure that is not registered any more.
    pub fn remove_procedure(&mut self, name: &str) {
        self.procedures.retain(|known| known.name != name);
    }

    /// The procedures that write a table.
    pub(crate) fn writers(&self, table: &str) -> Vec<&str> {
        let writes = |known: &&Known| known.writes.iter().any(|name| name == table);
        self.procedures.iter().filter(writes).map(|known| known.name.as_str()).collect()
    }

    pub(crate) fn check_free(&self, name: &str, place: Place) -> Result<(), SqlError> {
        match self.find(name) {
            None => Ok(()),
            Some(_) => {
                let message = format!("a table or index called '{name}' exists");
                Err(SqlError::new(state::DUPLICATE_TABLE, place, message))
            }
        }
    }

    pub(crate) fn push(&mut self, table: Table) {
        self.tables.push(table);
    }

    pub(crate) fn push_index(&mut self, index: Index) {
        let mut table = Table::of_schema(&index.schema);
        table.index_of = Some(index.table.clone());
        let base = self.tables.iter_mut().find(|table| table.schema.name() == index.table);
        if let Some(base) = base {
            table.types = index.columns.iter().map(|&column| base.types[column]).collect();
            base.indexes.push(index);
        }
        self.tables.push(table);
    }

    /// The table of this name that a statement means.
    pub(crate) fn resolve(&self, name: &str, place: Place) -> Result<usize, SqlError> {
        self.tables.iter().position(|table| table.schema.name() == name).ok_or_else(|| {
            let names = self.table_names().join(", ");
            let hint = if names.is_empty() { "there are none yet".to_string() } else { format!("there are: {names}") };
            SqlError::new(state::UNDEFINED_TABLE, place, format!("no table is called '{name}'")).hint(hint)
        })
    }
}

/// The tables that a procedure writes.
pub(crate) fn writes(procedure: &Procedure) -> Vec<String> {
    let writes = |slot: usize| {
        procedure
            .code
            .iter()
            .any(|i| matches!(i.opcode, Opcode::Update | Opcode::Insert | Opcode::Remove) && usize::from(i.d) == slot)
    };
    let names = procedure.tables.iter().enumerate();
    names.filter(|(slot, _)| writes(*slot)).map(|(_, name)| name.clone()).collect()
}
