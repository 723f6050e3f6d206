//! Calls by name: procedures as callers know them, arguments into blocks, and answers out of them.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use lockwork_engine::EngineError;
use lockwork_engine::registry::Registered;
use lockwork_procedure::block::{Batch, Block, BlockMut, HEADER_BYTES, Status};
use lockwork_procedure::program::Field;
use lockwork_sequencer::RequestId;
use lockwork_sql::{STATEMENT, SqlType};

use crate::value::{self, Value};
use crate::{Error, unknown};

/// The procedures of a database, by the id that blocks call them by.
#[derive(Clone, Debug, Default)]
pub(crate) struct Procedures {
    all: Vec<Arc<Registered>>,
    /// By the names under which they are found.
    ids: HashMap<String, u32>,
    /// By the names under which they were registered.
    registered: HashMap<String, u32>,
    /// The parameters of which SQL says more than how they are stored.
    narrow: HashMap<u32, Vec<(String, SqlType)>>,
}

impl Procedures {
    /// Adds the procedure that was registered next. Nobody finds that of a single statement.
    pub(crate) fn add(&mut self, registered: Arc<Registered>) {
        let (name, id) = (registered.verified.procedure().name.clone(), self.all.len() as u32);
        if !name.starts_with(STATEMENT) {
            self.ids.insert(name.clone(), id);
        }
        self.registered.insert(name, id);
        self.all.push(registered);
    }

    /// Puts the procedure of a single statement in the place of another one.
    pub(crate) fn replace(&mut self, id: u32, registered: Arc<Registered>) {
        let name = registered.verified.procedure().name.clone();
        let old = std::mem::replace(&mut self.all[id as usize], registered);
        self.registered.remove(&old.verified.procedure().name);
        self.registered.insert(name, id);
    }

    /// Has `name` stand for the procedure of this id, whatever it is called itself; it was made by SQL.
    pub(crate) fn rename(&mut self, name: &str, id: u32, parameters: &[lockwork_sql::Field]) {
        let is_narrow = |sql: &SqlType| matches!(sql, SqlType::Decimal(..) | SqlType::Boolean);
        let narrow =
            parameters.iter().filter_map(|field| Some((field.name.clone(), field.sql_type.filter(is_narrow)?)));
        self.narrow.insert(id, narrow.collect());
        self.ids.remove(&self.all[id as usize].verified.procedure().name);
        self.ids.insert(name.to_string(), id);
    }

    /// The id of the procedure that was registered under this name, found or hidden.
    pub(crate) fn registered(&self, name: &str) -> Option<u32> {
        self.registered.get(name).copied()
    }

    /// All of them, found or hidden.
    pub(crate) fn all(&self) -> &[Arc<Registered>] {
        &self.all
    }

    /// The names under which they are found.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.ids.keys().cloned().collect();
        names.sort_unstable();
        names
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The procedure of this name, with its id.
    ///
    /// # Errors
    /// [`Error::Unknown`] names those there are.
    pub(crate) fn find(&self, name: &str) -> Result<(u32, &Arc<Registered>), Error> {
        match self.ids.get(name) {
            Some(&id) => Ok((id, &self.all[id as usize])),
            None => Err(unknown("procedure", name, &self.names())),
        }
    }

    /// See [`crate::Lockwork::batch`].
    pub(crate) fn batch(&self, calls: usize) -> Result<Batch, Error> {
        let bytes = self.all.iter().map(|registered| registered.block_bytes).max().unwrap_or(0);
        Ok(Batch::new(bytes as u32, calls).map_err(EngineError::from)?)
    }

    /// See [`crate::Lockwork::push`].
    pub(crate) fn push(&self, batch: &mut Batch, procedure: &str, values: &[(&str, Value)]) -> Result<bool, Error> {
        let (id, registered) = self.find(procedure)?;
        if batch.stride() < registered.block_bytes {
            let (have, needed) = (batch.stride(), registered.block_bytes);
            return Err(Error::ShortBatch { procedure: procedure.to_string(), have, needed });
        }
        let image = self.arguments(id, registered, values)?;
        let Some(mut block) = batch.push(id) else { return Ok(false) };
        block.bytes()[HEADER_BYTES as usize..image.len()].copy_from_slice(&image[HEADER_BYTES as usize..]);
        Ok(true)
    }

    /// A block with one call.
    pub(crate) fn block(
        &self,
        procedure: &str,
        values: &[(&str, Value)],
    ) -> Result<(Vec<u8>, &Arc<Registered>), Error> {
        let (id, registered) = self.find(procedure)?;
        let image = self.arguments(id, registered, values)?;
        let mut block = vec![0; registered.block_bytes];
        block[..image.len()].copy_from_slice(&image);
        block[..4].copy_from_slice(&id.to_le_bytes());
        Ok((block, registered))
    }

    /// See [`crate::Lockwork::answer`].
    pub(crate) fn answer(&self, batch: &Batch, index: usize) -> Answer {
        let block = batch.block(index);
        let registered = self.all.get(block.procedure() as usize).expect("a call of a registered procedure");
        Answer { bytes: block.bytes().to_vec(), registered: registered.clone() }
    }

    /// An empty header, and the arguments behind it.
    fn arguments(&self, id: u32, registered: &Registered, values: &[(&str, Value)]) -> Result<Vec<u8>, Error> {
        let procedure = registered.verified.procedure();
        only_known("parameter", values, procedure.parameters.iter().map(|field| field.name.as_str()))?;
        let mut image = vec![0; procedure.layout().arguments_end as usize];
        for field in &procedure.parameters {
            one(values, &field.name)?.write_field(field, &mut image)?;
        }
        for (name, sql) in self.narrow.get(&id).into_iter().flatten() {
            one(values, name)?.check(name, *sql)?;
        }
        Ok(image)
    }
}

/// Refuses a value for something that there is not.
pub(crate) fn only_known<'a>(
    what: &'static str,
    values: &[(&str, Value)],
    known: impl Iterator<Item = &'a str> + Clone,
) -> Result<(), Error> {
    match values.iter().find(|(name, _)| !known.clone().any(|known| known == *name)) {
        Some((name, _)) => Err(unknown(what, name, &known.map(str::to_string).collect::<Vec<_>>())),
        None => Ok(()),
    }
}

/// The only value of this name.
pub(crate) fn one<'a>(values: &'a [(&str, Value)], name: &str) -> Result<&'a Value, Error> {
    let mut found = values.iter().filter(|(given, _)| *given == name);
    match (found.next(), found.next()) {
        (Some((_, value)), None) => Ok(value),
        _ => Err(Error::Missing { name: name.to_string() }),
    }
}

/// What a call answered.
#[derive(Clone, Debug)]
pub struct Answer {
    pub(crate) bytes: Vec<u8>,
    pub(crate) registered: Arc<Registered>,
}

impl Answer {
    /// What became of the call.
    #[must_use]
    pub fn status(&self) -> Status {
        Block::new(&self.bytes).status().expect("an engine wrote it")
    }

    /// The abort code; zero if it committed.
    #[must_use]
    pub fn abort_code(&self) -> u16 {
        Block::new(&self.bytes).abort_code()
    }

    /// An integer result.
    ///
    /// # Errors
    /// There is no such result, or it is no integer, or an array.
    pub fn integer(&self, name: &str) -> Result<i64, Error> {
        let field = self.field(name)?;
        let value = Value::read_integer(field.column_type, &self.bytes[field.offset as usize..]);
        value.filter(|_| field.count == 1).ok_or_else(|| mistaken(field, "an integer"))
    }

    /// All elements of a result that is an array of integers; one for a plain integer.
    ///
    /// # Errors
    /// There is no such result, or it is not of integers.
    pub fn integers(&self, name: &str) -> Result<Vec<i64>, Error> {
        let field = self.field(name)?;
        let elements = self.bytes[field.offset as usize..field.end() as usize].chunks(field.element_stride() as usize);
        let values: Option<_> = elements.map(|element| Value::read_integer(field.column_type, element)).collect();
        values.ok_or_else(|| mistaken(field, "an array of integers"))
    }

    /// The bytes of a result. Those of an array are all its elements, with what lies between them: texts and bytes from
    /// 64 bytes on each begin at a multiple of 64.
    ///
    /// # Errors
    /// There is no such result.
    pub fn bytes(&self, name: &str) -> Result<&[u8], Error> {
        let field = self.field(name)?;
        let start = field.offset as usize;
        let end = if field.count == 1 { start + field.column_type.width() as usize } else { field.end() as usize };
        Ok(&self.bytes[start..end])
    }

    fn field(&self, name: &str) -> Result<&Field, Error> {
        let procedure = self.registered.verified.procedure();
        let known = || procedure.results.iter().map(|field| field.name.clone()).collect::<Vec<_>>();
        procedure.result(name).ok_or_else(|| unknown("result", name, &known()))
    }
}

fn mistaken(field: &Field, read_as: &str) -> Error {
    let wanted = value::type_name(field.column_type, field.count);
    Error::Type { name: field.name.clone(), value: read_as.into(), wanted }
}

/// Marks a block as the call of this request.
pub(crate) fn set_request(block: &mut [u8], request: Option<RequestId>) {
    BlockMut::new(block).set_request(request);
}

/// Puts the id of a user into a block in place of its request id, if it has one, so that users never meet each other's
/// ids ([`RequestId::of_user`]). Returns the id that there was.
pub fn own_request(block: &mut [u8], user: &str) -> Option<RequestId> {
    static KEY: LazyLock<[u8; 32]> = LazyLock::new(|| blake3::derive_key("lockwork request ids of users 1", b""));
    let given = Block::new(block).request()?;
    let hash = |bytes: &[u8]| *blake3::keyed_hash(&KEY, bytes).as_bytes();
    let [low, high, ..] = hash(user.as_bytes());
    let of_both = hash(&[&given.to_bytes(), user.as_bytes()].concat());
    let of_both = u64::from_le_bytes(of_both[..8].try_into().expect("8 bytes"));
    BlockMut::new(block).set_request(Some(given.of_user(u16::from_le_bytes([low, high]), of_both)));
    Some(given)
}
