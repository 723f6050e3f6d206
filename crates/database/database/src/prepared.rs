//! Statements that were understood once and run often: values into a block, an answer out of it.

use std::sync::Arc;

use lockwork_engine::registry::Registered;
use lockwork_procedure::assembly::disassemble;
use lockwork_procedure::block::{Block, BlockMut, Status, abort};
use lockwork_procedure::program::Procedure as Code;
use lockwork_sequencer::Definition;
use lockwork_sql::{self as sql, Arguments, Compiled, Field, Inserted, Kind, Statement};

use crate::cache::{self, Place};
use crate::calls::set_request;
use crate::columns::{Column, Procedure};
use crate::statements::Known;
use crate::{Error, Lockwork, SqlAnswer, durable, unknown};

/// A CALL, SELECT, INSERT, UPDATE or DELETE that was understood ([`crate::Lockwork::prepare`]).
#[derive(Clone, Debug)]
pub struct Prepared {
    pub(crate) kind: Kind,
    pub(crate) compiled: Arc<Compiled>,
    pub(crate) id: u32,
    /// Which version of the procedure with this id it is; zero for one with a name ([`crate::cache`]).
    pub(crate) version: u64,
    pub(crate) arguments: Arguments,
    pub(crate) columns: Vec<String>,
    pub(crate) inserted: Option<Inserted>,
    /// The procedure, of what only reads and was prepared at a node that follows.
    pub(crate) reads: Option<Arc<Registered>>,
    /// The same statement for longer lists of keys (`id = ANY($1)`), in ascending order of their capacity.
    pub(crate) longer: Vec<Prepared>,
    /// The statement itself, of what can be compiled for other values ([`Self::scales`]); else empty.
    pub(crate) text: Arc<str>,
}

impl Prepared {
    /// What kind of statement it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether it may write rows.
    #[must_use]
    pub fn writes(&self) -> bool {
        !self.compiled.writes.is_empty()
    }

    /// Whether it was prepared to read beside the log ([`crate::Caller::read_then`]).
    #[must_use]
    pub fn is_beside_the_log(&self) -> bool {
        self.reads.is_some()
    }

    /// What `$1` and so on are, in this order.
    #[must_use]
    pub fn parameters(&self) -> &[Field] {
        self.longer.last().unwrap_or(self).arguments.parameters()
    }

    /// The ids and versions of its procedures.
    pub(crate) fn calls(&self) -> impl Iterator<Item = (u32, u64)> {
        std::iter::once(self).chain(&self.longer).filter(|one| one.reads.is_none()).map(|one| (one.id, one.version))
    }

    /// The procedure that a block is a call of: this one, or one for longer lists.
    pub(crate) fn of_block(&self, block: &[u8]) -> &Self {
        let id = Block::new(block).procedure();
        self.longer.iter().find(|longer| longer.id == id).unwrap_or(self)
    }

    /// How many decimals `$1` and so on need to have in expressions for these values, if one has more than the
    /// statement was compiled for: [`crate::Lockwork::prepare_for`] compiles it for them.
    #[must_use]
    pub fn scales(&self, values: &[sql::Value]) -> Option<Vec<u8>> {
        self.arguments.scales(values)
    }

    /// Whether there is room for the elements of the arrays among these values for `$1` and so on.
    #[must_use]
    pub fn has_room(&self, values: &[sql::Value]) -> bool {
        std::iter::once(self).chain(&self.longer).any(|prepared| prepared.arguments.has_room(values))
    }

    /// What it answers: the columns of a SELECT, the results of a CALL. Those of a SELECT are one value a row.
    #[must_use]
    pub fn columns(&self) -> Vec<Field> {
        let is_rows = self.kind == Kind::Select;
        let one = |(field, name): (&Field, &String)| {
            let count = field.count.filter(|_| !is_rows);
            Field { name: name.clone(), count, ..field.clone() }
        };
        let answers = self.compiled.results.iter().filter(|field| !(is_rows && field.name == ROWS));
        answers.zip(&self.columns).map(one).collect()
    }

    /// Bytes of memory that it takes, about.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let procedure = &self.compiled.procedure;
        let fields =
            procedure.parameters.len() + procedure.results.len() + self.parameters().len() + self.columns.len();
        let code = size_of_val(&procedure.code[..]) + self.compiled.lines.len() * size_of::<u32>();
        size_of::<Self>()
            + size_of::<Compiled>()
            + code
            + fields * FIELD_BYTES
            + self.text.len()
            + self.longer.iter().map(Self::memory_bytes).sum::<usize>()
    }

    /// Bytes of the block of a call.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.compiled.procedure.layout().block_bytes as usize
    }

    /// The block of a call with these values for `$1` and so on; `None` if no row can be what the statement looks for,
    /// which answers [`Self::nothing`].
    ///
    /// # Errors
    /// Another number of them, or values that do not fit.
    pub fn block(&self, values: &[sql::Value]) -> Result<Option<Vec<u8>>, Error> {
        if !self.arguments.has_room(values)
            && let Some(longer) = self.longer.iter().find(|longer| longer.arguments.has_room(values))
        {
            return longer.block(values);
        }
        let Some(arguments) = self.arguments.values(values)? else { return Ok(None) };
        let mut block = block_of(&self.compiled, self.id, &arguments)?;
        set_request(&mut block, self.arguments.request(values)?);
        BlockMut::new(&mut block).set_version(self.version);
        Ok(Some(block))
    }

    /// What it answers when it finds no row.
    #[must_use]
    pub fn nothing(&self) -> SqlAnswer {
        match self.kind {
            Kind::Select => SqlAnswer::Rows(self.columns.clone(), Vec::new()),
            _ => SqlAnswer::Written(0),
        }
    }

    /// Whether it is a CALL with the id of a request: when that has been used before, the first answer comes back and
    /// nothing runs ([`crate::Caller::call_once`]).
    #[must_use]
    pub fn has_request(&self) -> bool {
        self.arguments.has_request()
    }

    /// The parameter, counted from 0, that is the id of the request and nothing else: a UUID or a text.
    #[must_use]
    pub fn request_parameter(&self) -> Option<usize> {
        self.arguments.request_parameter()
    }

    /// The procedure of a CALL, to make many calls at once.
    ///
    /// # Errors
    /// [`Error::NoCall`].
    pub fn procedure(&self) -> Result<Procedure, Error> {
        match self.kind {
            Kind::Call => Ok(Procedure::new(self.compiled.clone(), self.id)),
            _ => Err(Error::NoCall),
        }
    }

    /// A column for each parameter of the procedure, when `$1` and so on have these columns; what the text says itself
    /// is the same for each call.
    ///
    /// # Errors
    /// Another number of columns.
    pub fn columns_of(&self, given: &[Column]) -> Result<Vec<Column>, Error> {
        if given.len() != self.parameters().len() {
            let names: Vec<_> = self.parameters().iter().map(|field| field.name.clone()).collect();
            return Err(unknown("column", &format!("${}", given.len()), &names));
        }
        let calls = given.first().map_or(0, Column::len);
        let sources = self.arguments.each(|value| Err(value.clone()), Ok);
        let column = |(source, field): (Result<usize, sql::Value>, &Field)| match source {
            Ok(number) => given[number].clone(),
            Err(value) => match field.sql_type.and_then(|sql| value.stored(sql)) {
                Some(number) => Column::Numbers(vec![number; calls]),
                None => Column::Values(vec![value; calls]),
            },
        };
        Ok(sources.into_iter().zip(&self.compiled.parameters).map(column).collect())
    }

    /// What a block that has run says.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub fn answer(&self, block: &[u8]) -> Result<SqlAnswer, Error> {
        let compiled = &self.of_block(block).compiled;
        let values = results(compiled, block).map_err(|error| match (error, &self.inserted) {
            (Error::Aborted { code: code @ abort::DUPLICATE_KEY, sqlstate, message, .. }, Some(inserted)) => {
                let subject = Some(Box::new(inserted.duplicate(compiled, block)));
                Error::Aborted { code, sqlstate, message, subject }
            }
            (error, _) => error,
        })?;
        Ok(match self.kind {
            Kind::Call => SqlAnswer::Called(self.columns.iter().cloned().zip(values).collect()),
            Kind::Select => rows_of(compiled, self.columns.clone(), values),
            _ => written(&values),
        })
    }
}

impl Lockwork {
    /// Understands a CALL, SELECT, INSERT, UPDATE or DELETE, to run it often, also from other threads. It goes on
    /// calling the version of a procedure that there was.
    ///
    /// # Errors
    /// [`Error::Sql`] with the place in the text, and what keeps a single statement from being registered.
    pub fn prepare(&mut self, statement: &Statement<'_>) -> Result<Prepared, Error> {
        self.prepare_for(statement, &[])
    }

    /// As [`Self::prepare`], for values of `$1` and so on that have at most this many decimals in expressions
    /// ([`Prepared::scales`]).
    ///
    /// # Errors
    /// As there.
    pub fn prepare_for(&mut self, statement: &Statement<'_>, scales: &[u8]) -> Result<Prepared, Error> {
        self.prepare_as("", statement, scales)
    }

    /// As [`Self::prepare_for`], for a user: of the statements that are kept compiled, no more than
    /// [`crate::MAX_STATEMENTS_OF_USER`] are his, unless his name is empty.
    ///
    /// # Errors
    /// As there.
    pub fn prepare_as(&mut self, user: &str, statement: &Statement<'_>, scales: &[u8]) -> Result<Prepared, Error> {
        self.fill_all()?;
        if statement.kind() == Kind::Call {
            let Known { compiled, id, .. } = self.known_of(statement)?;
            let arguments = statement.arguments(&compiled)?;
            let columns = compiled.results.iter().map(|field| field.name.clone()).collect();
            let kind = Kind::Call;
            let (longer, text) = (Vec::new(), "".into());
            let (version, inserted, reads) = (0, None, None);
            return Ok(Prepared { kind, compiled, id, version, arguments, columns, inserted, reads, longer, text });
        }
        let single = self.sql.catalogue.single_for(statement, scales)?;
        let mut prepared = self.register_single(user, statement.kind(), single)?;
        for single in self.longer(statement, &prepared.arguments, scales)? {
            let longer = self.register_single(user, statement.kind(), single)?;
            prepared.longer.push(longer);
        }
        prepared.text = statement.text().into();
        Ok(prepared)
    }

    /// The statement compiled for these values, if it has to be another one than this ([`Prepared::scales`]).
    pub(crate) fn scaled(&mut self, prepared: &Prepared, values: &[sql::Value]) -> Result<Option<Prepared>, Error> {
        let Some(scales) = prepared.scales(values) else { return Ok(None) };
        match sql::statements(&prepared.text).next() {
            Some(statement) => self.prepare_for(&statement?, &scales).map(Some),
            None => Ok(None),
        }
    }

    /// Compiles a single statement whose parameters list keys for longer lists than the first, and for values with so
    /// many decimals ([`Self::prepare_for`]).
    pub(crate) fn longer(
        &self,
        statement: &Statement<'_>,
        arguments: &sql::Arguments,
        scales: &[u8],
    ) -> Result<Vec<sql::Single>, Error> {
        let mut longer = Vec::new();
        for &elements in sql::LIST_SIZES[1..].iter().filter(|_| arguments.takes_lists()) {
            longer.extend(self.sql.catalogue.single_of(statement, elements, scales)?);
        }
        Ok(longer)
    }

    /// Registers a single statement as a procedure, unless one of its shape is: as a new one, or in the place of one
    /// that was not called for a while ([`crate::cache`]).
    fn register_single(&mut self, user: &str, kind: Kind, single: sql::Single) -> Result<Prepared, Error> {
        let sql::Single { mut compiled, arguments, columns, inserted } = single;
        let digest = cache::digest(&compiled.procedure);
        // Compiled with all indexes that there are, it is the same code: it keeps them right.
        let (id, version) = match self.sql.statements.find(digest) {
            Some(known) => known,
            None => {
                let place = self.sql.statements.place(user);
                // A call in a stream may meet its procedure later than whoever sequenced it has seen it.
                if place != Place::New && self.has_streams() {
                    return Err(Error::TooManyStatements);
                }
                let id = match place {
                    Place::New => durable::read(&self.procedures).len() as u32,
                    Place::Of(id) => id,
                };
                compiled.procedure.name = cache::name(id);
                match place {
                    Place::New => drop(self.register_compiled(&compiled.procedure, "")?),
                    Place::Of(id) => self.replace_statement(id, &compiled.procedure)?,
                }
                (id, self.sql.statements.brought_in(id, user))
            }
        };
        compiled.procedure.name = cache::name(id);
        let (compiled, longer, text, reads) = (Arc::new(compiled), Vec::new(), "".into(), None);
        Ok(Prepared { kind, compiled, id, version, arguments, columns, inserted, reads, longer, text })
    }

    fn has_streams(&self) -> bool {
        self.sequencer.handle().has_streams()
    }

    /// Puts the procedure of a statement in the place of another one's. Calls of that are refused from here on.
    fn replace_statement(&mut self, id: u32, procedure: &Code) -> Result<(), Error> {
        self.sql.statements.versions.renew(id);
        let assembly = disassemble(procedure, &self.tables);
        self.sequencer.define(Definition { assembly, source: String::new(), replaces: Some(id) })?;
        self.relearn(std::iter::once(id))
    }

    /// Looks again at procedures whose place others may have taken.
    pub(crate) fn relearn(&mut self, ids: impl Iterator<Item = u32>) -> Result<(), Error> {
        let ids: Vec<u32> = ids.collect();
        let there = self.read(move |engine| {
            let one = |id| engine.procedure(id).map(|registered| (id, registered));
            ids.into_iter().filter_map(one).collect::<Vec<_>>()
        })?;
        for (id, registered) in there {
            let mut procedures = durable::write(&self.procedures);
            if !Arc::ptr_eq(&procedures.all()[id as usize], &registered) {
                self.sql.statements.add(id, registered.verified.procedure());
                procedures.replace(id, registered);
            }
        }
        Ok(())
    }
}

/// What the description of a parameter or result takes, with its name, in [`Prepared::memory_bytes`].
const FIELD_BYTES: usize = 192;
/// The result of a single statement that counts its rows.
const ROWS: &str = "rows";

/// The block of a call with these arguments.
pub(crate) fn block_of(compiled: &Compiled, id: u32, arguments: &[sql::Value]) -> Result<Vec<u8>, Error> {
    let mut block = vec![0; compiled.procedure.layout().block_bytes as usize];
    compiled.write_arguments(arguments, &mut block)?;
    block[..4].copy_from_slice(&id.to_le_bytes());
    Ok(block)
}

/// The results of a block that has run.
pub(crate) fn results(compiled: &Compiled, block: &[u8]) -> Result<Vec<sql::Value>, Error> {
    let outcome = Block::new(block);
    if outcome.status() == Some(Status::Committed) {
        return Ok(compiled.read_results(block)?);
    }
    let (sqlstate, message) = compiled.describe(outcome.abort_code());
    Err(Error::Aborted { code: outcome.abort_code(), sqlstate, message, subject: None })
}

/// The results of a SELECT, row by row.
fn rows_of(compiled: &Compiled, columns: Vec<String>, values: Vec<sql::Value>) -> SqlAnswer {
    let mut count = 1;
    let mut by_column = Vec::new();
    for (field, value) in compiled.results.iter().zip(values) {
        match value {
            sql::Value::Integer(rows) if field.name == ROWS => count = usize::try_from(rows).unwrap_or(0),
            sql::Value::Array(values) => by_column.push(values),
            value => by_column.push(vec![value]),
        }
    }
    let row = |at: usize| by_column.iter().filter_map(|column| column.get(at).cloned()).collect();
    SqlAnswer::Rows(columns, (0..count).map(row).collect())
}

/// How many rows a statement wrote.
fn written(values: &[sql::Value]) -> SqlAnswer {
    match values {
        [sql::Value::Integer(rows), ..] => SqlAnswer::Written(*rows),
        _ => SqlAnswer::Written(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpenOptions;

    fn decimals(all: &[(i64, u8)]) -> Vec<sql::Value> {
        all.iter().map(|(number, scale)| sql::Value::Decimal(*number, *scale)).collect()
    }

    #[test]
    fn values_of_any_decimals_are_computed_with_by_few_procedures() {
        let mut lockwork = Lockwork::open_in_memory_with(&OpenOptions::default()).unwrap();
        let table = "CREATE TABLE t (id INTEGER PRIMARY KEY, a DECIMAL(12, 2) NOT NULL, b DECIMAL(12, 2) NOT NULL);
            INSERT INTO t VALUES (1, 100.00, 0.00);";
        lockwork.sql(table).unwrap();
        let mut prepare = |text| lockwork.prepare(&sql::statements(text).next().unwrap().unwrap()).unwrap();
        let multiply = prepare("UPDATE t SET a = a * $1 WHERE id = 1");
        let add = prepare("UPDATE t SET a = a + $1, b = b + $2 WHERE id = 1");
        assert_eq!(lockwork.run(&multiply, &decimals(&[(10825, 4)])).unwrap(), SqlAnswer::Written(1));
        let a = lockwork.sql("SELECT a FROM t WHERE id = 1").unwrap();
        let expected = SqlAnswer::Rows(vec!["a".into()], vec![decimals(&[(10825, 2)])]);
        assert_eq!(a, [expected]);
        let before = lockwork.sql.statements.len();
        for (one, other) in (0..=14).flat_map(|one| (0..=14).map(move |other| (one, other))) {
            lockwork.run(&add, &decimals(&[(1, one), (-1, other)])).unwrap();
        }
        let more = lockwork.sql.statements.len() - before;
        assert!(more <= 3 * 14, "{more} procedures for one statement");
    }
}
