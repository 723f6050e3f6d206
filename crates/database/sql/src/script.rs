//! Scripts: statements one after the other, definitions, and single statements outside of procedures.

use lockwork_procedure::schema::TableSchema;

use crate::bind::{Binder, define};
use crate::catalogue::{Catalogue, Index};
use crate::compile::{self, Compiled};
use crate::error::{SqlError, state};
use crate::parse::{self, Cursor};
use crate::single::{self, Arguments, Inserted};
use crate::syntax::{Control, CreateIndex, CreateTable, From, Place, StmtKind, Top};

/// What kind of statement it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// CREATE TABLE.
    CreateTable,
    /// CREATE INDEX.
    CreateIndex,
    /// CREATE PROCEDURE.
    CreateProcedure,
    /// EXPLAIN PROCEDURE name.
    Explain,
    /// CALL.
    Call,
    /// SELECT.
    Select,
    /// INSERT.
    Insert,
    /// UPDATE.
    Update,
    /// DELETE.
    Delete,
    /// BEGIN, COMMIT, ROLLBACK, SAVEPOINT and RELEASE.
    Transaction,
}

impl Kind {
    /// Whether it is a SELECT, INSERT, UPDATE or DELETE outside of a procedure.
    #[must_use]
    pub const fn is_single(self) -> bool {
        matches!(self, Self::Select | Self::Insert | Self::Update | Self::Delete)
    }
}

/// A statement of a script that was read and not yet understood.
#[derive(Clone, Debug, PartialEq)]
pub struct Statement<'a> {
    source: &'a str,
    text: &'a str,
    start: Place,
    top: Top,
}

impl<'a> Statement<'a> {
    /// Its text, without the semicolon.
    #[must_use]
    pub fn text(&self) -> &'a str {
        self.text
    }

    /// Where it ends in its source, in bytes.
    fn end(&self) -> usize {
        self.text.as_ptr().addr() - self.source.as_ptr().addr() + self.text.len()
    }

    /// The whole text that it stands in: errors count lines and columns in it.
    #[must_use]
    pub fn source(&self) -> &'a str {
        self.source
    }

    /// Where it begins.
    #[must_use]
    pub fn place(&self) -> Place {
        self.start
    }

    /// What kind of statement it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match &self.top {
            Top::Table(_) => Kind::CreateTable,
            Top::Index(_) => Kind::CreateIndex,
            Top::Procedure(_) => Kind::CreateProcedure,
            Top::Explain(_) => Kind::Explain,
            Top::Call(..) => Kind::Call,
            Top::Single(stmt) => match &stmt.kind {
                StmtKind::Select(_) => Kind::Select,
                StmtKind::Insert { .. } => Kind::Insert,
                StmtKind::Update { .. } => Kind::Update,
                _ => Kind::Delete,
            },
            Top::Transaction(_) => Kind::Transaction,
        }
    }

    /// The name of what it creates, calls or explains.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match &self.top {
            Top::Table(create) => Some(&create.name.text),
            Top::Index(create) => Some(&create.name.text),
            Top::Procedure(create) => Some(&create.name.text),
            Top::Explain(name) | Top::Call(name, ..) => Some(&name.text),
            Top::Single(_) | Top::Transaction(_) => None,
        }
    }

    /// Refuses a name that nothing new can have: servers look for it in their catalog. In folders of earlier versions
    /// there may be tables and indexes of such names.
    ///
    /// # Errors
    /// The name of a table or index begins with `pg_`.
    pub fn check_new(&self) -> Result<(), SqlError> {
        let (Top::Table(CreateTable { name, .. }) | Top::Index(CreateIndex { name, .. })) = &self.top else {
            return Ok(());
        };
        if !name.text.starts_with("pg_") {
            return Ok(());
        }
        let message = format!("'{}' begins with 'pg_', as only names of the catalog do", name.text);
        let error = SqlError::new(state::RESERVED_NAME, name.place, message).hint("choose another name");
        Err(error.in_source(self.source))
    }

    /// The table that a SELECT reads; `None` for every other statement, and for a SELECT .. FOR UPDATE.
    #[must_use]
    pub fn reads(&self) -> Option<&str> {
        let Top::Single(stmt) = &self.top else { return None };
        let StmtKind::Select(select) = &stmt.kind else { return None };
        let mut select = select;
        loop {
            match &select.from {
                _ if select.for_update => return None,
                From::Table(table, _) => return Some(&table.text),
                From::Select(inner, _) => select = inner,
            }
        }
    }

    /// What a BEGIN, COMMIT, ROLLBACK, SAVEPOINT or RELEASE asks for.
    #[must_use]
    pub fn control(&self) -> Option<&Control> {
        match &self.top {
            Top::Transaction(control) => Some(control),
            _ => None,
        }
    }

    /// The error of a CALL or EXPLAIN whose procedure does not exist. `known` lists the procedures that exist.
    #[must_use]
    pub fn undefined(&self, known: &str) -> SqlError {
        let (Top::Call(name, ..) | Top::Explain(name)) = &self.top else {
            return SqlError::new(state::SYNTAX, self.start, "this statement names no procedure")
                .in_source(self.source);
        };
        let message = format!("procedure '{}' does not exist", name.text);
        SqlError::new(state::UNDEFINED_PROCEDURE, name.place, message).hint(known).in_source(self.source)
    }

    /// Procedure and arguments of a CALL: the procedure is `compiled`, whose parameters say what the types are.
    ///
    /// # Errors
    /// It is no CALL, the number of arguments is another, one is no constant of its type, or the id of its request is
    /// none.
    pub fn arguments(&self, compiled: &Compiled) -> Result<Arguments, SqlError> {
        let Top::Call(name, arguments, request) = &self.top else {
            return Err(SqlError::new(state::SYNTAX, self.start, "this is no CALL").in_source(self.source));
        };
        let arguments = single::arguments(name, arguments, request.as_ref(), compiled);
        arguments.map_err(|error| error.outside_procedure().in_source(self.source))
    }
}

/// The statements of a text, in order. After an error there is no further one.
pub struct Statements<'a> {
    source: &'a str,
    cursor: Option<Result<Cursor, SqlError>>,
    /// Where each line begins.
    lines: Vec<usize>,
    /// The place that was looked for last, and its byte: what comes behind it on its line is found from there.
    last: (Place, usize),
}

/// Reads a script statement by statement. A byte order mark at its beginning is no part of it.
#[must_use]
pub fn statements(source: &str) -> Statements<'_> {
    let source = source.strip_prefix('\u{feff}').unwrap_or(source);
    let lines = std::iter::once(0).chain(source.match_indices('\n').map(|(at, _)| at + 1)).collect();
    Statements { source, cursor: Some(Cursor::new(source)), lines, last: (Place::START, 0) }
}

/// Whether a text in which no statement is wrong needs nothing more: its last statement, if it has one, ends with a
/// semicolon. What stands in comments does not count.
#[must_use]
pub fn is_ended(source: &str) -> bool {
    // What stands behind the text of a statement that has ended is its semicolon.
    let has_ended = |last: Statement<'_>| last.source[last.end()..].trim_start().starts_with(';');
    statements(source).map_while(Result::ok).last().is_none_or(has_ended)
}

impl Statements<'_> {
    /// The byte at a place.
    fn byte(&mut self, place: Place) -> usize {
        let (last, byte) = self.last;
        let (from, column) = if last.line == place.line && last.column <= place.column {
            (byte, last.column)
        } else {
            (self.lines.get(place.line as usize - 1).copied().unwrap_or(self.source.len()), 1)
        };
        let rest = &self.source[from..];
        let ahead = rest.char_indices().nth((place.column - column) as usize).map_or(rest.len(), |(at, _)| at);
        self.last = (place, from + ahead);
        from + ahead
    }
}

impl<'a> Iterator for Statements<'a> {
    type Item = Result<Statement<'a>, SqlError>;

    fn next(&mut self) -> Option<Self::Item> {
        let source = self.source;
        let mut cursor = match self.cursor.take()? {
            Ok(cursor) => cursor,
            Err(error) => return Some(Err(error.in_source(source))),
        };
        match parse::next(&mut cursor) {
            Ok(None) => None,
            Ok(Some((top, start, end))) => {
                self.cursor = Some(Ok(cursor));
                let (first, last) = (self.byte(start), self.byte(end));
                let text = source.get(first..last.max(first)).unwrap_or("").trim_end();
                Some(Ok(Statement { source, text, start, top }))
            }
            Err(error) => Some(Err(error.in_source(source))),
        }
    }
}

/// What a statement defined.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Definition {
    /// A table to create.
    Table(TableSchema),
    /// An index: a table to create, and to fill with [`Index::row_image`] of every row that there is.
    Index(Index),
    /// A procedure to register.
    Procedure(Box<Compiled>),
}

/// For how many elements of a parameter that lists keys a single statement is compiled: of several procedures the one
/// runs that has just enough room, because every call keeps all of it in the log.
pub const LIST_SIZES: [u32; 3] = [16, 256, 4096];

/// A single statement as a procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Single {
    /// The procedure. Statements that differ in constants only have equal ones. A SELECT answers in arrays, one a
    /// column, and in `rows`, their number; INSERT, UPDATE and DELETE answer in `rows` how many they wrote.
    pub compiled: Compiled,
    /// The arguments.
    pub arguments: Arguments,
    /// The names of the columns of a SELECT, as results of the procedure.
    pub columns: Vec<String>,
    /// The table of an INSERT.
    pub inserted: Option<Inserted>,
}

impl Catalogue {
    /// Carries out a CREATE TABLE, CREATE INDEX or CREATE PROCEDURE on the catalogue, and says what is to be done.
    ///
    /// # Errors
    /// What is wrong with the statement, with its place; the catalogue is as it was.
    pub fn define(&mut self, statement: &Statement<'_>) -> Result<Definition, SqlError> {
        let defined = match &statement.top {
            Top::Table(create) => define::table(self, create).map_err(SqlError::outside_procedure).map(|table| {
                let schema = table.schema().clone();
                self.push(table);
                Definition::Table(schema)
            }),
            Top::Index(create) => define::index(self, create).map(|index| {
                self.push_index(index.clone());
                Definition::Index(index)
            }),
            Top::Procedure(create) if self.has_procedure(&create.name.text) && !create.replace => {
                let message = format!("a procedure called '{}' exists", create.name.text);
                let error = SqlError::new("42723", create.name.place, message);
                Err(error.hint("write CREATE OR REPLACE PROCEDURE to make it anew"))
            }
            Top::Procedure(create) => compile::procedure(self, create).map(|compiled| {
                self.note(create.name.text.clone(), compiled.writes.clone());
                Definition::Procedure(Box::new(compiled))
            }),
            _ => Err(SqlError::new(state::SYNTAX, statement.start, "this statement defines nothing")),
        };
        defined.map_err(|error| error.in_source(statement.source))
    }

    /// Compiles a single SELECT, INSERT, UPDATE or DELETE, with room for the first of [`LIST_SIZES`] elements in a
    /// parameter that lists keys.
    ///
    /// # Errors
    /// What is wrong with the statement, with its place.
    pub fn single(&self, statement: &Statement<'_>) -> Result<Single, SqlError> {
        self.single_for(statement, &[])
    }

    /// As [`Self::single`], for values of `$1` and so on that have at most this many decimals in expressions
    /// ([`Arguments::scales`]).
    ///
    /// # Errors
    /// As there.
    pub fn single_for(&self, statement: &Statement<'_>, scales: &[u8]) -> Result<Single, SqlError> {
        self.single_of_lists(statement, LIST_SIZES[0], scales)
    }

    /// As [`Self::single_for`], with room for `elements` in a parameter that lists keys (`id = ANY($1)`); `None` if the
    /// machine has none for so many.
    ///
    /// # Errors
    /// As there.
    pub fn single_of(
        &self,
        statement: &Statement<'_>,
        elements: u32,
        scales: &[u8],
    ) -> Result<Option<Single>, SqlError> {
        match self.single_of_lists(statement, elements, scales) {
            Err(error) if error.sqlstate == state::TOO_COMPLEX => Ok(None),
            compiled => compiled.map(Some),
        }
    }

    fn single_of_lists(&self, statement: &Statement<'_>, elements: u32, scales: &[u8]) -> Result<Single, SqlError> {
        let Top::Single(stmt) = &statement.top else {
            let error = match &statement.top {
                Top::Transaction(_) => {
                    let message = "transactions of several statements are for clients of a server";
                    SqlError::new(state::NOT_SUPPORTED, statement.start, message)
                        .hint("a procedure is one transaction; a program has Caller::begin")
                }
                _ => SqlError::new(state::SYNTAX, statement.start, "this is no SELECT, INSERT, UPDATE or DELETE"),
            };
            return Err(error.in_source(statement.source));
        };
        let compile = |shares| {
            let bound = Binder::new(self, "statement").single(stmt, shares, elements, scales);
            let (routine, lifted, columns, inserted) = bound?;
            let compiled = compile::routine_of(self, &routine, stmt.place)?;
            Ok((compiled, lifted, columns, inserted))
        };
        let compiled = compile(true).or_else(|error: SqlError| match error.sqlstate {
            // There may be room for no more rows than it says.
            state::TOO_COMPLEX => compile(false),
            _ => Err(error),
        });
        let of_statement = |error: SqlError| error.outside_procedure().in_source(statement.source);
        let (compiled, lifted, columns, inserted) = compiled.map_err(of_statement)?;
        let arguments = Arguments::of_lifted(lifted, &compiled, stmt.place);
        let arguments = arguments.map_err(|error| error.in_source(statement.source))?;
        Ok(Single { compiled, arguments, columns, inserted })
    }
}
