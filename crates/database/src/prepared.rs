//! Statements that were understood once and run often: values into a block, an answer out of it.

use std::sync::Arc;

use lockwork_engine::EngineError;
use lockwork_procedure::block::{Batch, Block, Status};
use lockwork_sql::{self as sql, Arguments, Compiled, Field, Kind};

use crate::{Error, SqlAnswer};

/// A CALL, SELECT, INSERT, UPDATE or DELETE that was understood ([`crate::Lockwork::prepare`]).
#[derive(Clone, Debug)]
pub struct Prepared {
    pub(crate) kind: Kind,
    pub(crate) compiled: Arc<Compiled>,
    pub(crate) id: u32,
    pub(crate) arguments: Arguments,
    pub(crate) columns: Vec<String>,
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

    /// What `$1` and so on are, in this order.
    #[must_use]
    pub fn parameters(&self) -> &[Field] {
        self.arguments.parameters()
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

    /// Bytes of the block of a call.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.compiled.procedure.layout().block_bytes as usize
    }

    /// The block of a call with these values for `$1` and so on.
    ///
    /// # Errors
    /// Another number of them, or values that do not fit.
    pub fn block(&self, values: &[sql::Value]) -> Result<Vec<u8>, Error> {
        block_of(&self.compiled, self.id, &self.arguments.values(values)?)
    }

    /// A batch of calls: for each of `$1` and so on a column of values, one value a call.
    ///
    /// # Errors
    /// It is no CALL, another number of columns, columns of different lengths, values that do not fit, or no memory.
    pub fn batch(&self, columns: &[Vec<sql::Value>]) -> Result<Batch, Error> {
        if self.kind != Kind::Call {
            return Err(Error::NoCall);
        }
        let calls = columns.first().map_or(0, Vec::len);
        if let Some(other) = columns.iter().find(|column| column.len() != calls) {
            return Err(Error::Uneven { calls, other: other.len() });
        }
        let bytes = self.compiled.procedure.layout().block_bytes;
        let mut batch = Batch::new(bytes, calls).map_err(EngineError::from)?;
        let mut row = Vec::with_capacity(columns.len());
        for call in 0..calls {
            row.clear();
            row.extend(columns.iter().map(|column| column[call].clone()));
            let image = self.block(&row)?;
            let mut block = batch.push(self.id).expect("room for all");
            block.bytes()[..image.len()].copy_from_slice(&image);
        }
        Ok(batch)
    }

    /// What a batch of calls that has run says: for each result a column of values, and for each call why it was taken
    /// back, if it was. Its results are zeros then.
    ///
    /// # Errors
    /// The batch is of another procedure.
    pub fn batch_answer(&self, batch: &Batch) -> Result<Outcomes, Error> {
        let mut outcomes = Outcomes { results: vec![Vec::new(); self.columns.len()], aborts: Vec::new() };
        let zeros = vec![0; self.compiled.procedure.layout().block_bytes as usize];
        for block in batch.blocks() {
            let committed = block.status() == Some(Status::Committed);
            let values = self.compiled.read_results(if committed { block.bytes() } else { &zeros })?;
            outcomes.results.iter_mut().zip(values).for_each(|(column, value)| column.push(value));
            let why = || self.compiled.describe(block.abort_code());
            outcomes.aborts.push((!committed).then(why));
        }
        Ok(outcomes)
    }

    /// What a block that has run says.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub fn answer(&self, block: &[u8]) -> Result<SqlAnswer, Error> {
        let values = results(&self.compiled, block)?;
        Ok(match self.kind {
            Kind::Call => SqlAnswer::Called(self.columns.iter().cloned().zip(values).collect()),
            Kind::Select => rows_of(&self.compiled, self.columns.clone(), values),
            _ => written(&values),
        })
    }
}

/// What a batch of calls has answered ([`Prepared::batch_answer`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// The results, a column each, in the order of [`Prepared::columns`].
    pub results: Vec<Vec<sql::Value>>,
    /// For each call SQLSTATE and message, if it was taken back.
    pub aborts: Vec<Option<(String, String)>>,
}

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
    Err(Error::Aborted { code: outcome.abort_code(), sqlstate, message })
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
