//! Calls of one procedure with a column of values for each parameter, and a column for each result.
//!
//! Numbers travel as they are stored, so a column of them is written into blocks and read out of them without a value
//! of its own for each.

use std::ops::Range;
use std::sync::Arc;

use lockwork_engine::EngineError;
use lockwork_procedure::block::{Batch, BlockMut, Status};
use lockwork_procedure::program;
use lockwork_sequencer::RequestId;
use lockwork_sql::{self as sql, Compiled, Field};

use crate::prepared::{block_of, results};
use crate::{Error, Lockwork, value};

/// Values of one parameter or result, one a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column {
    /// Numbers as they are stored: integers, a DECIMAL times ten to its scale, microseconds since 1970, 0 and 1 for
    /// a BOOLEAN.
    Numbers(Vec<i64>),
    /// Values of any type.
    Values(Vec<sql::Value>),
}

impl Column {
    /// How many values it has.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.len(),
            Self::Values(values) => values.len(),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What calls have answered: [`Procedure::outcomes`] adds to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// A column for each result. Those of a call that was taken back are zeros and empty.
    pub results: Vec<Column>,
    /// The calls that were taken back, counted from the first that was added: which, SQLSTATE and message.
    pub aborts: Vec<(usize, String, String)>,
    /// How many calls were added.
    pub calls: usize,
}

/// A procedure that is called with a value for each of its parameters. It goes on being the version that there was.
#[derive(Clone, Debug)]
pub struct Procedure {
    compiled: Arc<Compiled>,
    pub(crate) id: u32,
}

impl Lockwork {
    /// The procedure of this name.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn procedure(&self, name: &str) -> Result<Procedure, Error> {
        let (compiled, id) = self.compiled(name)?;
        Ok(Procedure::new(compiled, id))
    }
}

/// How values of a column lie in blocks: the range of stored numbers, if they are numbers.
fn numbers_of(field: &Field) -> Option<(i64, i64)> {
    field.sql_type.and_then(sql::SqlType::range)
}

/// A field has to be one value a call.
fn one_a_call(field: &Field) -> Result<sql::SqlType, Error> {
    field.sql_type.filter(|_| field.count.is_none()).ok_or_else(|| Error::Type {
        name: field.name.clone(),
        value: "an array or rows".into(),
        wanted: "a column here, and so has to be one value a call; call it one by one".into(),
    })
}

impl Procedure {
    pub(crate) fn new(compiled: Arc<Compiled>, id: u32) -> Self {
        Self { compiled, id }
    }

    /// Its parameters, in their order.
    #[must_use]
    pub fn parameters(&self) -> &[Field] {
        &self.compiled.parameters
    }

    /// Its results, in their order.
    #[must_use]
    pub fn results(&self) -> &[Field] {
        &self.compiled.results
    }

    /// Bytes of the block of a call.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.compiled.procedure.layout().block_bytes as usize
    }

    /// The block of a call. When `request` has been used before, the first answer comes back and nothing runs.
    ///
    /// # Errors
    /// Another number of values than of parameters, or values that do not fit.
    pub fn block(&self, values: &[sql::Value], request: Option<RequestId>) -> Result<Vec<u8>, Error> {
        let mut block = block_of(&self.compiled, self.id, values)?;
        BlockMut::new(&mut block).set_request(request);
        Ok(block)
    }

    /// The results of a block that has run.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub fn answer(&self, block: &[u8]) -> Result<Vec<sql::Value>, Error> {
        results(&self.compiled, block)
    }

    /// Refuses columns that are not for this procedure, and numbers that do not fit.
    ///
    /// # Errors
    /// Another number of columns, columns of different lengths, numbers outside of their type, or a parameter or result
    /// that is an array.
    pub fn check(&self, columns: &[Column]) -> Result<(), Error> {
        for field in self.parameters().iter().chain(self.results()) {
            one_a_call(field)?;
        }
        if columns.len() != self.parameters().len() {
            if let Some(field) = self.parameters().get(columns.len()) {
                return Err(Error::Missing { name: field.name.clone() });
            }
            let names: Vec<_> = self.parameters().iter().map(|field| field.name.clone()).collect();
            return Err(crate::unknown("column", &format!("number {}", names.len() + 1), &names));
        }
        let calls = columns.first().map_or(0, Column::len);
        if let Some(other) = columns.iter().find(|column| column.len() != calls) {
            return Err(Error::Uneven { calls, other: other.len() });
        }
        for (field, column) in self.parameters().iter().zip(columns) {
            let Column::Numbers(numbers) = column else { continue };
            let wanted = || field.sql_type.map(|sql| sql.to_string()).unwrap_or_default();
            let (lo, hi) = numbers_of(field).ok_or_else(|| Error::Type {
                name: field.name.clone(),
                value: "a column of numbers".into(),
                wanted: wanted(),
            })?;
            if let Some(at) = numbers.iter().position(|number| !(lo..=hi).contains(number)) {
                let value = format!("{} as value {at} of the column", numbers[at]);
                let wanted = format!("{}: {lo} to {hi} as it is stored", wanted());
                return Err(Error::Type { name: field.name.clone(), value, wanted });
            }
        }
        Ok(())
    }

    /// A batch of some calls of columns that were [checked](Self::check). `requests` has a request id for each call of
    /// the columns, or is empty.
    ///
    /// # Errors
    /// Values that do not fit, or no memory.
    ///
    /// # Panics
    /// When the columns were not checked, or there are no such calls.
    pub fn batch(&self, columns: &[Column], calls: Range<usize>, requests: &[RequestId]) -> Result<Batch, Error> {
        let mut batch = Batch::new(self.block_bytes() as u32, calls.len()).map_err(EngineError::from)?;
        let places = &self.compiled.procedure.parameters;
        let only_numbers = columns.iter().all(|column| matches!(column, Column::Numbers(_)));
        for call in calls {
            let mut block = batch.push(self.id).expect("room for all");
            if only_numbers {
                let bytes = block.bytes();
                for (place, column) in places.iter().zip(columns) {
                    let Column::Numbers(numbers) = column else { continue };
                    let width = place.column_type.width() as usize;
                    bytes[place.offset as usize..][..width].copy_from_slice(&numbers[call].to_le_bytes()[..width]);
                }
            } else {
                let row: Vec<_> = self.parameters().iter().zip(columns).map(|(f, c)| value_of(f, c, call)).collect();
                let image = block_of(&self.compiled, self.id, &row)?;
                block.bytes()[..image.len()].copy_from_slice(&image);
            }
            if let Some(request) = requests.get(call) {
                batch.set_request(batch.len() - 1, *request);
            }
        }
        Ok(batch)
    }

    /// Adds what a batch of this procedure's calls has answered.
    ///
    /// # Panics
    /// When it is a batch of something else.
    pub fn outcomes(&self, batch: &Batch, into: &mut Columns) {
        if into.results.is_empty() {
            let empty = |field: &Field| match numbers_of(field) {
                Some(_) => Column::Numbers(Vec::new()),
                None => Column::Values(Vec::new()),
            };
            into.results = self.results().iter().map(empty).collect();
        }
        let places = &self.compiled.procedure.results;
        for (at, block) in batch.blocks().enumerate() {
            let committed = block.status() == Some(Status::Committed);
            for ((field, place), column) in self.results().iter().zip(places).zip(&mut into.results) {
                add(field, place, committed.then(|| block.bytes()), column);
            }
            if !committed {
                let (sqlstate, message) = self.compiled.describe(block.abort_code());
                into.aborts.push((into.calls + at, sqlstate, message));
            }
        }
        into.calls += batch.len();
    }
}

/// Adds a result of a block to its column; nothing stands for a call that was taken back.
fn add(field: &Field, place: &program::Field, block: Option<&[u8]>, column: &mut Column) {
    let width = place.column_type.width() as usize;
    let bytes = block.map(|block| &block[place.offset as usize..][..width]);
    match column {
        Column::Numbers(numbers) => {
            let number = bytes.and_then(|bytes| value::Value::read_integer(place.column_type, bytes));
            numbers.push(number.unwrap_or(0));
        }
        Column::Values(values) => {
            let sql = field.sql_type.unwrap_or(sql::SqlType::of_storage(place.column_type));
            values.push(bytes.map_or_else(|| sql::Value::read(sql, &vec![0; width]), |b| sql::Value::read(sql, b)));
        }
    }
}

fn value_of(field: &Field, column: &Column, call: usize) -> sql::Value {
    match (column, field.sql_type) {
        (Column::Values(values), _) => values[call].clone(),
        (Column::Numbers(numbers), Some(sql)) => {
            sql::Value::read(sql, &numbers[call].to_le_bytes()[..sql.storage().width() as usize])
        }
        (Column::Numbers(numbers), None) => sql::Value::Integer(numbers[call]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OpenOptions, request_id};

    const BANK: &str = "CREATE TABLE t (id SMALLINT PRIMARY KEY, name VARCHAR(5) NOT NULL, n DECIMAL(6, 2) NOT NULL);
        CREATE PROCEDURE put(id SMALLINT, name VARCHAR(5), n DECIMAL(6, 2), OUT back DECIMAL(6, 2), OUT s VARCHAR(5)) AS
        BEGIN
            IF id = 3 THEN RAISE EXCEPTION 'not three' USING ERRCODE = 'NO003'; END IF;
            INSERT INTO t VALUES (id, name, n); back := n + 1; s := name;
        END;
        CREATE PROCEDURE add_to(id SMALLINT, more DECIMAL(6, 2), OUT n DECIMAL(6, 2)) AS
        BEGIN
            UPDATE t SET n = n + more WHERE id = :id;
            SELECT n INTO n FROM t WHERE id = :id;
        END;";

    fn open() -> Lockwork {
        let mut lockwork = Lockwork::open_in_memory_with(&OpenOptions::default()).unwrap();
        lockwork.sql(BANK).unwrap();
        lockwork
    }

    fn text(text: &str) -> sql::Value {
        sql::Value::Text(text.into())
    }

    #[test]
    fn columns_go_in_and_out_and_those_taken_back_say_why() {
        let lockwork = open();
        let caller = lockwork.caller();
        let put = lockwork.procedure("put").unwrap();
        let names = ["a", "b", "c", "d"].map(text).to_vec();
        let columns =
            [Column::Numbers(vec![1, 2, 3, -4]), Column::Values(names), Column::Numbers(vec![100, 250, 300, -999])];
        put.check(&columns).unwrap();
        let mut answer = Columns::default();
        for calls in [0..3, 3..4] {
            let batch = caller.submit(put.batch(&columns, calls, &[]).unwrap()).unwrap().wait().unwrap();
            put.outcomes(&batch, &mut answer);
        }
        let texts = ["a", "b", "", "d"].map(text).to_vec();
        assert_eq!(answer.results, [Column::Numbers(vec![200, 350, 0, -899]), Column::Values(texts)]);
        assert_eq!(answer.aborts, [(2, "NO003".to_string(), "not three".to_string())]);
        assert_eq!(answer.calls, 4);
        // Numbers only, and a request that is made twice runs once.
        let add = lockwork.procedure("add_to").unwrap();
        let columns = [Column::Numbers(vec![1, 1, -4]), Column::Numbers(vec![50, 50, 1])];
        add.check(&columns).unwrap();
        let mut answer = Columns::default();
        let [one, other, third] = [(); 3].map(|()| request_id().unwrap());
        let batch = add.batch(&columns, 0..3, &[one, one, other]).unwrap();
        add.outcomes(&caller.submit(batch).unwrap().wait().unwrap(), &mut answer);
        assert_eq!(answer.results, [Column::Numbers(vec![150, 150, -998])]);
        let block = add.block(&[sql::Value::Integer(2), sql::Value::Decimal(5, 1)], Some(third)).unwrap();
        for _ in 0..2 {
            let (sender, ran) = std::sync::mpsc::channel();
            caller.run_then(block.clone(), move |ran| sender.send(ran).unwrap()).unwrap();
            let block = ran.recv().unwrap().unwrap();
            assert_eq!(add.answer(&block).unwrap(), [sql::Value::Decimal(300, 2)]);
        }
    }

    #[test]
    fn columns_that_do_not_fit_are_refused_by_name() {
        let lockwork = open();
        let add = lockwork.procedure("add_to").unwrap();
        let refused = |columns: &[Column]| add.check(columns).unwrap_err().to_string();
        let one = || Column::Numbers(vec![1]);
        assert_eq!(refused(&[one()]), "'more' needs exactly one value");
        assert!(refused(&[one(), one(), one()]).contains("column 'number 3' does not exist; there are: id, more"));
        assert!(refused(&[one(), Column::Numbers(vec![1, 2])]).contains("a column of 2 values stands beside one of 1"));
        let message = refused(&[Column::Numbers(vec![40_000]), one()]);
        assert_eq!(
            message,
            "40000 as value 0 of the column does not fit 'id', which is SMALLINT: -32768 to 32767 as it is stored"
        );
        assert!(refused(&[one(), Column::Numbers(vec![1_000_000])]).contains("which is DECIMAL(6, 2)"));
        assert!(lockwork.procedure("none").unwrap_err().to_string().contains("there are: add_to, put"));
    }
}
