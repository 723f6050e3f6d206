//! The first part of a source: tables, and the fields of the block.
//!
//! Where fields lie is known when the last one is declared, so they are laid out once, before the first instruction.

use super::AssemblyError;
use super::lexer::{Kind, Place};
use super::nearest::suggestion;
use super::parser::{MAX_TABLES, Parse, Parser, Table};
use crate::block::MAX_BLOCK_BYTES;
use crate::program::{Field, Procedure};
use crate::schema::{Catalog, ColumnType, TableSchema};

/// The most parameters, results or scratch fields, each: the binary form counts them in two bytes.
pub(super) const MAX_FIELDS: usize = u16::MAX as usize;

/// The groups of fields, in the order of the block.
const GROUPS: [&str; 3] = ["param", "result", "scratch"];

/// Where a field is declared.
#[derive(Clone, Copy)]
pub(super) struct Declared {
    group: usize,
    index: usize,
    place: Place,
}

/// How a table is to be partitioned, before its columns are laid out.
enum Division<'a> {
    /// By this column, named here.
    Hash(&'a str, Place),
    Replicated,
}

impl<'a, C: Catalog + ?Sized> Parser<'a, C> {
    fn before_code(&self, place: Place, what: &str) -> Parse<()> {
        if self.procedure.code.is_empty() {
            return Ok(());
        }
        Err(place.error(format!("{what} is declared before the first instruction")))
    }

    pub(super) fn table(&mut self) -> Parse<()> {
        let (name, place) = self.name("the table's name")?;
        self.before_code(place, "a table")?;
        if self.tables.len() == MAX_TABLES {
            return Err(place.error(format!("a procedure uses at most {MAX_TABLES} tables")));
        }
        if self.tables.iter().any(|table| table.name == name) {
            return Err(place.error(format!("the table '{name}' is declared twice")));
        }
        let schema = if self.at_mark('(') {
            let declared = self.columns(name, place)?;
            if let Some((_, known)) = self.catalog.table(name)
                && *known != declared
            {
                let same = known.columns() == declared.columns() && known.key().len() == declared.key().len();
                let other = if same { "another order or partitioning" } else { "other columns" };
                return Err(place.error(format!("the table '{name}' exists with {other}; name it without columns")));
            }
            self.schemas.push(declared.clone());
            Some(declared)
        } else if self.token.kind == Kind::Word("opaque") {
            self.next()?;
            None
        } else {
            Some(self.known_table(name, place)?)
        };
        self.procedure.tables.push(name.to_string());
        self.tables.push(Table { name, schema });
        Ok(())
    }

    fn known_table(&self, name: &str, place: Place) -> Parse<TableSchema> {
        if let Some((_, schema)) = self.catalog.table(name) {
            return Ok(schema.clone());
        }
        let names = self.catalog.table_names();
        let hint = suggestion(name, names.iter().map(String::as_str));
        Err(place.error(format!("no table is called '{name}'{hint}; or declare its columns here")))
    }

    /// The columns of a table. The list may go over several lines.
    fn columns(&mut self, name: &str, place: Place) -> Parse<TableSchema> {
        self.mark('(')?;
        let mut columns = Vec::new();
        let mut key = 0;
        loop {
            self.skip_newlines()?;
            let (column, column_place) = self.name("a column's name")?;
            self.mark(':')?;
            let column_type = self.column_type()?;
            if self.token.kind == Kind::Word("key") {
                self.next()?;
                if key < columns.len() {
                    return Err(column_place.error("key columns come first"));
                }
                key += 1;
            }
            columns.push((column, column_type));
            self.skip_newlines()?;
            if !self.take_mark(',')? {
                break;
            }
        }
        if !self.take_mark(')')? {
            return self.expected("',' or ')'");
        }
        let mut ordered = false;
        let mut division = None;
        while let Kind::Word(word) = self.token.kind {
            match word {
                "ordered" if ordered => return self.fail("'ordered' stands twice"),
                "ordered" => {
                    self.next()?;
                    ordered = true;
                }
                "partition" | "replicated" if division.is_some() => {
                    return self
                        .fail("a table is partitioned once: either 'partition by hash(COLUMN)' or 'replicated'");
                }
                "partition" | "replicated" => division = Some(self.division()?),
                _ => {
                    return self
                        .expected("'ordered', 'partition by hash(COLUMN)', 'replicated' or the end of the line");
                }
            }
        }
        let schema = TableSchema::new(name, &columns, key, ordered).map_err(|error| place.error(error.to_string()))?;
        match division {
            None => Ok(schema),
            Some(Division::Replicated) => Ok(schema.replicate()),
            Some(Division::Hash(column, place)) => {
                schema.partition_by_hash(column).map_err(|error| place.error(error.to_string()))
            }
        }
    }

    /// `partition by hash(COLUMN)` or `replicated`.
    fn division(&mut self) -> Parse<Division<'a>> {
        if self.next()?.kind == Kind::Word("replicated") {
            return Ok(Division::Replicated);
        }
        for word in ["by", "hash"] {
            if self.token.kind != Kind::Word(word) {
                return self.expected(&format!("'{word}', as in 'partition by hash(COLUMN)',"));
            }
            self.next()?;
        }
        self.mark('(')?;
        let (column, place) = self.name("a key column's name")?;
        self.mark(')')?;
        Ok(Division::Hash(column, place))
    }

    fn skip_newlines(&mut self) -> Parse<()> {
        while self.token.kind == Kind::Newline {
            self.next()?;
        }
        Ok(())
    }

    fn column_type(&mut self) -> Parse<ColumnType> {
        const TYPES: &str = "a type is i8, i16, i32, i64, u8, u16, u32, char(n) or bytes(n)";
        let (word, place) = self.word("a type")?;
        let mut text = super::lexer::shorten(word);
        if self.take_mark('(')? {
            let width = self.number("a width")?;
            self.mark(')')?;
            text = format!("{text}({width})");
        }
        ColumnType::parse(&text).ok_or_else(|| place.error(format!("'{text}' is no type; {TYPES}")))
    }

    pub(super) fn field(&mut self, group: &str) -> Parse<()> {
        let (name, place) = self.name("a name")?;
        self.before_code(place, "a parameter, result or scratch")?;
        if self.declared.contains_key(name) {
            return Err(place.error(format!("'{name}' is declared twice; give each a name of its own")));
        }
        self.mark(':')?;
        let column_type = self.column_type()?;
        let mut count = 1;
        if self.take_mark('[')? {
            let count_place = self.token.place;
            count = self.number("a number of elements")?;
            if count == 0 {
                return Err(count_place.error("an array has at least one element"));
            }
            self.mark(']')?;
        }
        // Padding is left out here; the layout sees the rest.
        self.field_bytes = self.field_bytes.saturating_add(u64::from(column_type.width()) * u64::from(count));
        if self.field_bytes > u64::from(MAX_BLOCK_BYTES) {
            return Err(too_long(place, self.field_bytes));
        }
        let number = GROUPS.iter().position(|known| *known == group).expect("the statement is one of the groups");
        let fields = self.groups_mut().into_iter().nth(number).expect("three groups");
        if fields.len() == MAX_FIELDS {
            return Err(place.error(format!("a procedure has at most {MAX_FIELDS} of '{group}'")));
        }
        fields.push(Field { name: name.to_string(), column_type, count, offset: 0 });
        let index = fields.len() - 1;
        self.declared.insert(name, Declared { group: number, index, place });
        Ok(())
    }

    fn groups_mut(&mut self) -> [&mut Vec<Field>; 3] {
        let Procedure { parameters, results, scratch, .. } = &mut self.procedure;
        [parameters, results, scratch]
    }

    fn groups(&self) -> [&Vec<Field>; 3] {
        [&self.procedure.parameters, &self.procedure.results, &self.procedure.scratch]
    }

    /// Puts all fields where they belong.
    pub(super) fn lay_out(&mut self) -> Parse<()> {
        let shapes = self.groups().map(|fields| fields.iter().map(|f| (f.column_type, f.count)).collect::<Vec<_>>());
        let (_, offsets) = Procedure::lay_out([&shapes[0], &shapes[1], &shapes[2]]);
        for (field, offset) in self.groups_mut().into_iter().flatten().zip(&offsets) {
            field.offset = u32::try_from(*offset).unwrap_or(u32::MAX);
        }
        let mut fields = self.groups().into_iter().flatten();
        match fields.find(|field| field.end() > u64::from(MAX_BLOCK_BYTES)) {
            Some(field) => Err(too_long(self.declared[field.name.as_str()].place, field.end())),
            None => Ok(()),
        }
    }

    pub(super) fn find_field(&self, name: &str) -> Option<&Field> {
        let Declared { group, index, .. } = *self.declared.get(name)?;
        self.groups()[group].get(index)
    }

    pub(super) fn fields(&self) -> impl Iterator<Item = &Field> {
        self.groups().into_iter().flatten()
    }
}

fn too_long(place: Place, bytes: u64) -> AssemblyError {
    place.error(format!("the block would have {bytes} bytes; at most {MAX_BLOCK_BYTES} are possible"))
}
