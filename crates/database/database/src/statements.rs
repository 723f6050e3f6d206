//! SQL on a database: definitions, calls, and single statements (`docs/sql.md`).
//!
//! A definition is kept with its text. When a folder is opened, the texts say again what the types and messages are;
//! the code that runs is the one that was compiled then.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use lockwork_engine::registry::Registered;
use lockwork_procedure::assembly::{Assembled, assemble, assemble_tables, disassemble};

use lockwork_procedure::isa::Opcode;
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::{Catalog, ROW_HEADER_BYTES, TableSchema};
use lockwork_sequencer::Definition;
use lockwork_sql::{
    self as sql, Catalogue, Compiled, Definition as Defined, Field, Index, Kind, STATEMENT, SqlType, Statement, Table,
    statements,
};

use crate::cache::Statements;
use crate::prepared::{Prepared, block_of, results};
use crate::{Caller, Error, Lockwork, durable};

/// The most bytes of rows, of a table and its index, that an index is filled from where nodes have parts of them.
const MAX_FILLED: u64 = 1 << 30;

/// What a statement answered.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum SqlAnswer {
    /// A table, an index or a procedure was made.
    Created(Kind),
    /// So many rows were written.
    Written(i64),
    /// The rows of a SELECT, with the names of their columns.
    Rows(Vec<String>, Vec<Vec<sql::Value>>),
    /// The results of a CALL, by name.
    Called(Vec<(String, sql::Value)>),
    /// What EXPLAIN says.
    Text(String),
}

/// A procedure, as it was defined.
#[derive(Clone, Debug)]
pub struct ProcedureDefinition {
    /// What it is called.
    pub name: String,
    /// Its number among all that were ever registered.
    pub id: u32,
    /// What it takes and gives.
    pub compiled: Arc<Compiled>,
    /// The SQL that made it; empty for one in assembly.
    pub text: Arc<str>,
}

/// What SQL knows of a database.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) catalogue: Catalogue,
    /// By the name that SQL calls them.
    procedures: HashMap<String, Known>,
    /// Indexes that may lack rows, because a disk was full; nothing goes on before they are whole.
    pub(crate) unfilled: Vec<Index>,
    /// Single statements that are registered as procedures.
    pub(crate) statements: Statements,
    /// Those that only read and were compiled beside the log, by their digests.
    pub(crate) reads: HashMap<u64, Arc<Registered>>,
}

#[derive(Clone)]
pub(crate) struct Known {
    /// The procedure as it is registered, with its metadata.
    pub(crate) compiled: Arc<Compiled>,
    pub(crate) id: u32,
    /// The statement that made it.
    text: Arc<str>,
}

/// The metadata of a procedure in assembly.
fn of_assembly(registered: &Registered) -> Compiled {
    let procedure = registered.verified.procedure();
    let field = |field: &lockwork_procedure::program::Field| Field {
        name: field.name.clone(),
        sql_type: Some(SqlType::of_storage(field.column_type)),
        count: (field.count > 1).then_some(field.count),
    };
    Compiled {
        parameters: procedure.parameters.iter().map(field).collect(),
        results: procedure.results.iter().map(field).collect(),
        procedure: procedure.clone(),
        aborts: Vec::new(),
        lines: Vec::new(),
        writes: Vec::new(),
    }
}

/// The only statement of a text that was kept, if it can still be read.
fn kept(text: &str) -> Option<Statement<'_>> {
    statements(text).next()?.ok()
}

/// Whether metadata goes with code: fields of the same names and sizes in the same order.
fn fits(compiled: &Compiled, procedure: &Procedure) -> bool {
    let same = |fields: &[Field], places: &[lockwork_procedure::program::Field]| {
        let same = |(field, place): (&Field, &lockwork_procedure::program::Field)| {
            field.name == place.name
                && field.count.unwrap_or(1) == place.count
                && field.sql_type.is_none_or(|sql| sql.storage() == place.column_type)
        };
        fields.len() == places.len() && fields.iter().zip(places).all(same)
    };
    same(&compiled.parameters, &procedure.parameters) && same(&compiled.results, &procedure.results)
}

impl Lockwork {
    /// Runs SQL statements, one after the other, each a transaction of its own. Those before an error have happened.
    ///
    /// # Errors
    /// [`Error::Sql`] with the place in the text, [`Error::Aborted`] when a statement was taken back, and what keeps
    /// calls from being durable.
    pub fn sql(&mut self, script: &str) -> Result<Vec<SqlAnswer>, Error> {
        let mut answers = Vec::new();
        self.sql_each(script, |_, answer| answers.push(answer))?;
        Ok(answers)
    }

    /// As [`Self::sql`]; `answer` gets each statement and its answer when it is done.
    ///
    /// # Errors
    /// As there.
    pub fn sql_each(&mut self, script: &str, mut answer: impl FnMut(&Statement<'_>, SqlAnswer)) -> Result<(), Error> {
        for statement in statements(script) {
            let statement = statement?;
            let answered = self.run_statement(&statement)?;
            answer(&statement, answered);
        }
        Ok(())
    }

    fn run_statement(&mut self, statement: &Statement<'_>) -> Result<SqlAnswer, Error> {
        self.fill_all()?;
        match statement.kind() {
            kind @ (Kind::CreateTable | Kind::CreateIndex | Kind::CreateProcedure) => {
                statement.check_new()?;
                self.define_sql(statement)?;
                Ok(SqlAnswer::Created(kind))
            }
            Kind::Explain => {
                let Known { compiled, text, .. } = self.known_of(statement)?;
                Ok(SqlAnswer::Text(sql::explain(&compiled, &self.sql.catalogue, &text)?))
            }
            _ => {
                let prepared = self.prepare(statement)?;
                self.run(&prepared, &[])
            }
        }
    }

    /// A statement prepared anew whose place another one has taken ([`crate::cache`]).
    fn fresh(&mut self, prepared: &Prepared) -> Result<Option<Prepared>, Error> {
        if prepared.calls().all(|call| self.sql.statements.versions.is_current(call)) {
            return Ok(None);
        }
        sql::statements(&prepared.text).next().map(|statement| self.prepare(&statement?)).transpose()
    }

    /// Runs a prepared statement with values for `$1` and so on. For values with more decimals than it was prepared for
    /// it is compiled once more, unless it was prepared for them ([`Self::prepare_for`]).
    ///
    /// # Errors
    /// Values that do not fit, [`Error::Aborted`], and what keeps calls from being durable.
    pub fn run(&mut self, prepared: &Prepared, values: &[sql::Value]) -> Result<SqlAnswer, Error> {
        let fresh = self.fresh(prepared)?;
        let prepared = fresh.as_ref().unwrap_or(prepared);
        let scaled = self.scaled(prepared, values)?;
        let prepared = scaled.as_ref().unwrap_or(prepared);
        let Some(mut block) = prepared.block(values)? else { return Ok(prepared.nothing()) };
        drop(self.sql.statements.versions.admit_block(&mut block)?);
        let block = self.run_block(block)?;
        prepared.answer(&block)
    }

    /// Calls a procedure by its name with values in the order of its parameters, and gives its results by name.
    ///
    /// # Errors
    /// As [`Self::sql`], and [`Error::Unknown`].
    pub fn sql_call(&mut self, name: &str, arguments: &[sql::Value]) -> Result<Vec<(String, sql::Value)>, Error> {
        self.fill_all()?;
        let Known { compiled, id, .. } = self.known(name)?;
        let block = self.run_block(block_of(&compiled, id, arguments)?)?;
        let values = results(&compiled, &block)?;
        Ok(compiled.results.iter().map(|field| field.name.clone()).zip(values).collect())
    }

    /// What SQL knows of the tables.
    #[must_use]
    pub fn sql_catalogue(&self) -> &Catalogue {
        &self.sql.catalogue
    }

    /// The procedures that there are, in the order in which they were made.
    #[must_use]
    pub fn procedure_definitions(&self) -> Vec<ProcedureDefinition> {
        let procedures = durable::read(&self.procedures);
        let names = procedures.names().into_iter().filter(|name| !name.starts_with(STATEMENT));
        let definition = |name: String| {
            let Known { compiled, id, text } = match self.sql.procedures.get(&name) {
                Some(known) => known.clone(),
                None => {
                    let (id, registered) = procedures.find(&name).ok()?;
                    Known { compiled: Arc::new(of_assembly(registered)), id, text: "".into() }
                }
            };
            Some(ProcedureDefinition { name, id, compiled, text })
        };
        let mut definitions: Vec<_> = names.filter_map(definition).collect();
        definitions.sort_by_key(|definition| definition.id);
        definitions
    }

    /// A procedure, made by SQL or by assembly.
    fn known(&self, name: &str) -> Result<Known, Error> {
        if let Some(known) = self.sql.procedures.get(name) {
            return Ok(known.clone());
        }
        let procedures = durable::read(&self.procedures);
        let (id, registered) = procedures.find(name)?;
        Ok(Known { compiled: Arc::new(of_assembly(registered)), id, text: "".into() })
    }

    /// The procedure that a CALL or EXPLAIN names.
    pub(crate) fn known_of(&self, statement: &Statement<'_>) -> Result<Known, Error> {
        self.known(statement.name().unwrap_or_default()).map_err(|error| match error {
            Error::Unknown { known, .. } => statement.undefined(&known).into(),
            other => other,
        })
    }

    /// The metadata and the id of a procedure.
    pub(crate) fn compiled(&self, name: &str) -> Result<(Arc<Compiled>, u32), Error> {
        self.known(name).map(|known| (known.compiled, known.id))
    }

    /// Runs a call by its block.
    fn run_block(&self, mut block: Vec<u8>) -> Result<Vec<u8>, Error> {
        self.sequencer.handle().call(&mut block)?;
        Ok(block)
    }

    /// Carries out a definition, and keeps its text.
    fn define_sql(&mut self, statement: &Statement<'_>) -> Result<(), Error> {
        let mut future = self.sql.catalogue.clone();
        match future.define(statement)? {
            Defined::Table(schema) => self.create_with(schema, statement.text())?,
            Defined::Index(index) => {
                self.no_writers(&index.table)?;
                self.create_with(index.schema.clone(), statement.text())?;
                self.retire_singles(&index.table);
                self.sql.unfilled.push(index);
                self.sql.catalogue = future;
                return self.fill_all();
            }
            Defined::Procedure(compiled) => {
                let name = compiled.procedure.name.clone();
                if name.starts_with(STATEMENT) {
                    return Err(Error::Reserved { name });
                }
                // Once more from its own text, so that lines are counted in what is kept.
                let again = kept(statement.text()).map(|kept| self.sql.catalogue.clone().define(&kept));
                let mut compiled = match again {
                    Some(Ok(Defined::Procedure(again))) => again,
                    _ => compiled,
                };
                // One that takes the place of another has another name for the engine, which forgets none.
                let is_taken = |name: &str| durable::read(&self.procedures).registered(name).is_some();
                let mut version = 1;
                while is_taken(&compiled.procedure.name) {
                    version += 1;
                    compiled.procedure.name = format!("{name}__{version}");
                }
                let id = self.register_compiled(&compiled.procedure, statement.text())?;
                durable::write(&self.procedures).rename(&name, id, &compiled.parameters);
                let known = Known { compiled: Arc::from(compiled), id, text: statement.text().into() };
                self.sql.procedures.insert(name, known);
            }
            _ => unreachable!("there are three definitions"),
        }
        self.sql.catalogue = future;
        Ok(())
    }

    pub(crate) fn create_with(&mut self, schema: TableSchema, source: &str) -> Result<(), Error> {
        self.sequencer.define(Definition::new(format!("table {schema}"), source))?;
        self.refresh()
    }

    /// Registers a procedure and gives its id. One that is a single statement is found by nobody else.
    pub(crate) fn register_compiled(&mut self, procedure: &Procedure, source: &str) -> Result<u32, Error> {
        let assembly = disassemble(procedure, &self.tables);
        self.sequencer.define(Definition::new(assembly, source))?;
        self.refresh()?;
        Ok(durable::read(&self.procedures).registered(&procedure.name).expect("it was registered"))
    }

    /// Refuses calls of the single statements that write this table until [`Self::prepare`] compiles them again: some
    /// come out with the same code, such as an UPDATE of columns that are in no index.
    fn retire_singles(&self, table: &str) {
        let procedures = durable::read(&self.procedures);
        let writes = |id: &u32| writes(procedures.all()[*id as usize].verified.procedure(), table);
        let statements = &self.sql.statements;
        statements.ids().filter(writes).for_each(|id| _ = statements.versions.renew(id));
    }

    /// Refuses an index of a table that some procedure writes, also one that was replaced: a batch may still call it.
    fn no_writers(&self, table: &str) -> Result<(), Error> {
        let procedures = durable::read(&self.procedures);
        let mut all = procedures.all().iter().map(|registered| registered.verified.procedure());
        match all.find(|procedure| !procedure.name.starts_with(STATEMENT) && writes(procedure, table)) {
            Some(procedure) => Err(Error::IndexTooLate { table: table.into(), procedure: procedure.name.clone() }),
            None => Ok(()),
        }
    }

    /// Fills the indexes that lack rows.
    pub(crate) fn fill_all(&mut self) -> Result<(), Error> {
        while let Some(index) = self.sql.unfilled.last().cloned() {
            self.fill(&index)?;
            self.sql.unfilled.pop();
        }
        Ok(())
    }

    /// Whether an index has all rows: a row of the table has one in the index, and the index has no others.
    pub(crate) fn is_full(&self, index: &Index) -> Result<bool, Error> {
        let names = [index.table.clone(), index.name.clone()];
        if let Some(caller) = self.caller_of_parts() {
            // Nothing writes either while an index is being filled, so it does not matter that these are two moments.
            let count = |name: &String| match caller.rows(&[name], 0) {
                Err(Error::TooLarge { bytes, .. }) => {
                    let width = self
                        .tables
                        .table(name)
                        .map_or(1, |(_, schema)| u64::from(schema.row_bytes() - ROW_HEADER_BYTES));
                    Ok(bytes / width)
                }
                none => none.map(|_| 0),
            };
            return Ok(count(&names[0])? == count(&names[1])?);
        }
        let counts = self.read(move |engine| {
            let mut counts = [0; 2];
            let read = engine.with_database(&mut |database| {
                counts = names.each_ref().map(|name| database.table_id(name).map_or(0, |id| database.table(id).len()));
            });
            read.map(|()| counts)
        })??;
        Ok(counts[0] == counts[1])
    }

    /// What asks for rows of whole tables where other nodes have the other parts of them.
    fn caller_of_parts(&self) -> Option<Caller> {
        Some(self.caller()).filter(Caller::is_divided)
    }

    /// Adds the rows that an index does not have yet: all of them when it is new, some when a process died while it was
    /// being filled. Nothing writes the table meanwhile: no procedure does before there is the index.
    fn fill(&mut self, index: &Index) -> Result<(), Error> {
        if self.is_full(index)? {
            return Ok(());
        }
        let (of, name) = (index.table.clone(), index.name.clone());
        if let Some(caller) = self.caller_of_parts() {
            let all = caller.rows(&[&of, &name], MAX_FILLED)?;
            let (rows, there) = (&all[0], &all[1]);
            let there: HashSet<&[u8]> = there.images.chunks_exact(there.row_bytes()).collect();
            let images = rows.images.chunks_exact(rows.row_bytes()).map(|row| index.row_image(row));
            let missing = images.filter(|image| !there.contains(&image[..])).collect();
            return self.load_index(index, missing);
        }
        let (rows, there) = self.read(move |engine| {
            let (mut rows, mut there) = (Vec::new(), HashSet::new());
            let read = engine.export(&mut |table, image| {
                if table == of {
                    rows.push(image.to_vec());
                } else if table == name {
                    there.insert(image.to_vec());
                }
            });
            read.map(|()| (rows, there))
        })??;
        let missing = rows.iter().map(|row| index.row_image(row)).filter(|image| !there.contains(image));
        self.load_index(index, missing.collect())
    }

    /// Learns what the definitions of a folder say, when all of them have been carried out.
    pub(crate) fn remember(&mut self, definitions: &[Definition]) -> Result<(), Error> {
        self.remember_all(definitions)?;
        self.fill_all()
    }

    /// The same, and what is to be filled stays so.
    pub(crate) fn remember_all(&mut self, definitions: &[Definition]) -> Result<(), Error> {
        let statement = format!("procedure {STATEMENT}");
        for Definition { assembly, source, .. } in definitions {
            // The engine has said what single statements there are.
            if assembly.starts_with(&statement) {
                continue;
            }
            match kept(source).and_then(|kept| self.sql.catalogue.define(&kept).ok()) {
                // A text that this version does not take leaves what the code says.
                None => self.remember_assembly(assembly)?,
                Some(Defined::Table(_)) => {}
                Some(Defined::Index(index)) => self.sql.unfilled.push(index),
                Some(Defined::Procedure(mut compiled)) => {
                    let procedure = assemble(assembly, &self.tables)?.procedure;
                    if !fits(&compiled, &procedure) {
                        self.remember_assembly(assembly)?;
                        continue;
                    }
                    let name = std::mem::replace(&mut compiled.procedure, procedure).name;
                    let id = durable::read(&self.procedures).registered(&compiled.procedure.name);
                    let id = id.expect("definitions have been carried out");
                    durable::write(&self.procedures).rename(&name, id, &compiled.parameters);
                    let known = Known { compiled: Arc::from(compiled), id, text: source.as_str().into() };
                    self.sql.procedures.insert(name, known);
                }
                Some(_) => unreachable!("there are three definitions"),
            }
        }
        Ok(())
    }

    /// Tells SQL of tables and a procedure in assembly.
    pub(crate) fn remember_assembly(&mut self, source: &str) -> Result<(), Error> {
        let (schemas, procedure) = match assemble_tables(source, &Vec::new()) {
            Ok(schemas) => (schemas, None),
            Err(_) => {
                let assembled = assemble(source, &self.tables)?;
                (assembled.schemas, Some(assembled.procedure))
            }
        };
        for schema in &schemas {
            if self.sql.catalogue.find(schema.name()).is_none() {
                self.sql.catalogue.add_table(Table::of_schema(schema))?;
            }
        }
        match procedure {
            Some(procedure) if procedure.name.starts_with(STATEMENT) => Ok(()),
            Some(procedure) => Ok(self.sql.catalogue.add_procedure(&procedure)?),
            None => Ok(()),
        }
    }

    /// Whether a procedure in assembly may be registered: it must not write a table that has an index.
    pub(crate) fn accepts_assembly(&self, assembled: &Assembled) -> Result<(), Error> {
        Ok(self.sql.catalogue.clone().add_procedure(&assembled.procedure)?)
    }
}

/// Whether a procedure writes a table.
fn writes(procedure: &Procedure, table: &str) -> bool {
    let changes = |opcode| matches!(opcode, Opcode::Insert | Opcode::Update | Opcode::Remove);
    procedure.code.iter().any(|i| changes(i.opcode) && procedure.tables[usize::from(i.d)] == table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_named_so_any_more_keeps_its_name() {
        let folder = std::env::temp_dir().join(format!("lockwork-names-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&folder));
        let mut database = Lockwork::open(&folder).unwrap();
        let old =
            "CREATE TABLE pg_old (id BIGINT PRIMARY KEY, d DECIMAL(9, 2) NOT NULL); CREATE INDEX pg_i ON pg_old (d)";
        // As it was before there was a check.
        for statement in statements(old) {
            database.define_sql(&statement.unwrap()).unwrap();
        }
        database.sql("INSERT INTO pg_old VALUES (1, 2.50)").unwrap();
        database.close().unwrap();
        let mut database = Lockwork::open(&folder).unwrap();
        let answered = database.sql("SELECT id, d FROM pg_old WHERE d = 2.5 LIMIT 2").unwrap().pop();
        let Some(SqlAnswer::Rows(_, rows)) = answered else { panic!("{answered:?}") };
        assert_eq!(rows, [[sql::Value::Integer(1), sql::Value::Decimal(2_50, 2)]]);
        for new in ["CREATE TABLE public.pg_new (id BIGINT PRIMARY KEY)", "CREATE INDEX pg_new ON pg_old (d)"] {
            let error = database.sql(new).unwrap_err();
            let Error::Sql(error) = error else { panic!("{error}") };
            assert_eq!((error.sqlstate, error.source_line.as_str()), ("42939", new));
        }
        database.close().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
