//! YCSB: single rows read, written, inserted and scanned, alone or several a transaction.
//!
//! The generator draws, for every transaction, how many operations of each kind it has, then keys (distinct within the
//! transaction), fields and values. New keys go upward from the loaded ones; they are read from the next
//! [`Workload::fill`] on, when engines that run batch after batch have surely inserted them.
//!
//! The rooms: `config` (what is wanted), `shape` (the procedures), `keys` (which rows), `check` (what must hold).

mod check;
mod config;
mod keys;
mod shape;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use lockwork_procedure::block::{Batch, Status};
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::{ROW_HEADER_BYTES, TableSchema};

pub use config::{Kind, MAX_OPERATIONS, MAX_PARTITIONS, MAX_PROCEDURES, ReadScope, YcsbConfig};
use keys::Keys;
use shape::{Declaration, Shape};

use crate::random::{Random, mix};
use crate::value::write_value;
use crate::{Export, Lookup, Repeat, Workload, WorkloadError, fill, room};

/// Where the arguments and results of one operation lie, in bytes from the start of the block.
#[derive(Clone, Debug)]
struct Slot {
    kind: Kind,
    key: usize,
    field: Option<usize>,
    value: Option<usize>,
    length: Option<usize>,
    out: Option<usize>,
    count: Option<usize>,
    rows: Option<usize>,
}

/// A registered procedure.
#[derive(Clone, Debug)]
struct Bound {
    id: u32,
    slots: Vec<Slot>,
    inserts: u64,
}

/// A YCSB workload.
#[derive(Clone, Debug)]
pub struct Ycsb {
    config: YcsbConfig,
    schema: TableSchema,
    shapes: Vec<Shape>,
    /// As `shapes`; empty before `bind`.
    bound: Vec<Bound>,
    by_id: HashMap<u32, usize>,
    /// Transactions of several operations: counts of each kind, to the place in `shapes`.
    by_counts: HashMap<[u8; 5], usize>,
    /// Transactions of one operation: first place in `shapes`, and how many (one, or one a field), for each kind.
    by_kind: [(usize, u64); 5],
    /// A draw below the n-th of these (and not below the one before) is the n-th kind.
    thresholds: [f64; 5],
    block_bytes: u32,
    random: Random,
    keys: Keys,
    /// Rows that observed calls inserted.
    committed_inserts: u64,
}

impl Ycsb {
    /// Prepares a workload. Takes time linear in the records when keys are skewed.
    ///
    /// # Errors
    /// As [`YcsbConfig::validate`].
    pub fn new(config: YcsbConfig) -> Result<Self, WorkloadError> {
        config.validate()?;
        let shapes = shape::shapes(&config);
        let mut by_counts = HashMap::new();
        let mut by_kind = [(0, 0); 5];
        for (place, shape) in shapes.iter().enumerate() {
            let mut counts = [0; 5];
            shape.operations.iter().for_each(|operation| counts[operation.kind as usize] += 1);
            by_counts.insert(counts, place);
            let (first, count) = &mut by_kind[shape.operations[0].kind as usize];
            if *count == 0 {
                *first = place;
            }
            *count += 1;
        }
        let mut sum = 0.0;
        let thresholds = Kind::ALL.map(|kind| {
            sum += config.share(kind) / config.total();
            sum
        });
        Ok(Self {
            schema: config.schema()?,
            block_bytes: shapes.iter().map(Shape::block_bytes).max().unwrap_or(0) as u32,
            random: Random::stream(config.seed, 0),
            keys: Keys::new(&config)?,
            bound: Vec::new(),
            by_id: HashMap::new(),
            committed_inserts: 0,
            config,
            shapes,
            by_counts,
            by_kind,
            thresholds,
        })
    }

    /// What it was made from.
    #[must_use]
    pub fn config(&self) -> &YcsbConfig {
        &self.config
    }

    /// The kind of the next operation.
    #[inline]
    fn draw_kind(&mut self) -> usize {
        let draw = self.random.unit();
        let found = self.thresholds.iter().position(|&threshold| draw < threshold);
        // Rounding may leave the last threshold a little below 1: then it is the last kind that happens.
        found.unwrap_or_else(|| (0..5).rev().find(|&kind| self.config.share(Kind::ALL[kind]) > 0.0).unwrap_or(0))
    }

    /// The place in `shapes` of the next transaction's procedure.
    #[inline]
    fn draw_shape(&mut self) -> usize {
        if self.config.operations == 1 {
            let kind = self.draw_kind();
            let (first, count) = self.by_kind[kind];
            return first + if count == 1 { 0 } else { self.random.below(count) as usize };
        }
        let mut counts = [0_u8; 5];
        (0..self.config.operations).for_each(|_| counts[self.draw_kind()] += 1);
        self.by_counts[&counts]
    }

    /// Writes the arguments of one call.
    fn write_call(&mut self, place: usize, home: u64, block: &mut [u8]) {
        let mut keys = [0_u64; MAX_OPERATIONS as usize];
        let value_bytes = self.config.field_bytes as usize;
        for (i, slot) in self.bound[place].slots.iter().enumerate() {
            let key = if slot.kind == Kind::Insert {
                self.keys.insert(&mut self.random, home, i)
            } else {
                self.keys.draw(&mut self.random, home, &keys[..i])
            };
            keys[i] = key;
            block[slot.key..slot.key + 8].copy_from_slice(&key.to_le_bytes());
            if let Some(at) = slot.field {
                block[at] = self.random.below(u64::from(self.config.fields)) as u8;
            }
            if let Some(at) = slot.length {
                let (min, max) = (u64::from(self.config.min_scan), u64::from(self.config.max_scan));
                let length = min + self.random.below(max - min + 1);
                block[at..at + 8].copy_from_slice(&length.to_le_bytes());
            }
            if let Some(at) = slot.value {
                write_value(self.random.next_u64(), &mut block[at..at + value_bytes]);
            }
        }
    }

    /// Bytes of rows that one operation of a kind touches, on average.
    fn touched_bytes(&self, kind: Kind) -> f64 {
        let config = &self.config;
        let (field, row) = (f64::from(config.field_bytes), f64::from(config.field_bytes) * f64::from(config.fields));
        let read = if config.read_scope == ReadScope::Row { row } else { field };
        let write = if config.write_all_fields { row } else { field };
        match kind {
            Kind::Read => read,
            Kind::ReadModifyWrite => read + write,
            Kind::Update => write,
            Kind::Insert => row,
            Kind::Scan => read * (f64::from(config.min_scan) + f64::from(config.max_scan)) / 2.0,
        }
    }
}

/// Where the declared fields of a registered procedure lie, if it declares them alike.
fn bind_shape(shape: &Shape, id: u32, procedure: &Procedure) -> Result<Bound, WorkloadError> {
    let foreign = |name: &str| WorkloadError::Foreign { procedure: shape.name.clone(), field: name.to_string() };
    let declared = |list: &[Declaration], name: &str| list.iter().any(|(declared, ..)| declared == name);
    for (name, column_type, count) in shape.parameters.iter().chain(&shape.results) {
        let field = procedure.parameter(name).or(procedure.result(name)).ok_or_else(|| foreign(name))?;
        if (field.column_type, field.count) != (*column_type, *count) {
            return Err(foreign(name));
        }
    }
    let at = |name: String| {
        let field = procedure.parameter(&name).or(procedure.result(&name));
        let ours = declared(&shape.parameters, &name) || declared(&shape.results, &name);
        field.filter(|_| ours).map(|field| field.offset as usize)
    };
    let mut slots = Vec::with_capacity(shape.operations.len());
    for (i, operation) in shape.operations.iter().enumerate() {
        slots.push(Slot {
            kind: operation.kind,
            key: at(format!("key{i}")).ok_or_else(|| foreign(&format!("key{i}")))?,
            field: at(format!("f{i}")),
            value: at(format!("value{i}")),
            length: at(format!("len{i}")),
            out: at(format!("out{i}")),
            count: at(format!("count{i}")),
            rows: at(format!("rows{i}")),
        });
    }
    let inserts = slots.iter().filter(|slot| slot.kind == Kind::Insert).count() as u64;
    Ok(Bound { id, slots, inserts })
}

impl Workload for Ycsb {
    fn name(&self) -> String {
        self.config.name.clone()
    }

    fn describe(&self) -> String {
        self.config.describe()
    }

    fn schemas(&self) -> Vec<TableSchema> {
        vec![self.schema.clone()]
    }

    fn row_count(&self, table: usize) -> u64 {
        if table == 0 { self.config.records } else { 0 }
    }

    fn row_image(&self, table: usize, row: u64, image: &mut Vec<u8>) {
        assert!(row < self.row_count(table), "row {row} of table {table}");
        image.clear();
        image.resize((self.schema.row_bytes() - ROW_HEADER_BYTES) as usize, 0);
        let tag = mix(mix(self.config.seed) ^ row);
        for (i, column) in (0_u64..).zip(self.schema.columns()) {
            let start = (column.offset - ROW_HEADER_BYTES) as usize;
            let bytes = &mut image[start..start + column.column_type.width() as usize];
            if i == 0 { bytes.copy_from_slice(&row.to_le_bytes()) } else { write_value(tag ^ i, bytes) }
        }
    }

    fn sources(&self) -> Vec<(String, String)> {
        self.shapes.iter().map(|shape| (shape.name.clone(), shape.text(&self.config))).collect()
    }

    fn bind(&mut self, lookup: &mut Lookup<'_>) -> Result<(), WorkloadError> {
        let mut bound = Vec::with_capacity(self.shapes.len());
        for shape in &self.shapes {
            let (id, procedure) = lookup(&shape.name).ok_or_else(|| WorkloadError::Unbound(shape.name.clone()))?;
            bound.push(bind_shape(shape, id, &procedure)?);
        }
        self.by_id = bound.iter().enumerate().map(|(place, bound)| (bound.id, place)).collect();
        self.bound = bound;
        Ok(())
    }

    fn fill(&mut self, batch: &mut Batch, transactions: usize) -> Result<usize, WorkloadError> {
        if self.bound.is_empty() {
            return Err(WorkloadError::Unbound(self.shapes[0].name.clone()));
        }
        let room = room(batch, transactions, self.block_bytes)?;
        self.keys.grow();
        let draw = |this: &mut Self, at| {
            let place = this.draw_shape();
            ((place, this.keys.home(at)), this.bound[place].id)
        };
        let write = |this: &mut Self, (place, home), block: &mut [u8]| this.write_call(place, home, block);
        Ok(fill(self, batch, room, draw, write))
    }

    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    fn payload_bytes(&self) -> u32 {
        let share = |kind: Kind| self.config.share(kind) / self.config.total();
        let mean: f64 = Kind::ALL.into_iter().map(|kind| share(kind) * self.touched_bytes(kind)).sum();
        (mean * f64::from(self.config.operations)).round() as u32
    }

    fn accesses(&self) -> u32 {
        self.config.operations
    }

    fn growth(&self, _: usize) -> f64 {
        // Shares need not sum to one, so this counts too many inserts rather than too few.
        self.config.share(Kind::Insert) * f64::from(self.config.operations)
    }

    fn repeat(&self) -> Repeat {
        if self.config.share(Kind::Insert) > 0.0 { Repeat::Never } else { Repeat::Freely }
    }

    fn observe(&mut self, batch: &Batch) {
        let inserts = |id: u32| self.by_id.get(&id).map_or(0, |&place| self.bound[place].inserts);
        let committed = batch.blocks().filter(|block| block.status() == Some(Status::Committed));
        self.committed_inserts += committed.map(|block| inserts(block.procedure())).sum::<u64>();
    }

    fn check_results(&self, batch: &Batch) -> Result<u64, WorkloadError> {
        check::results(self, batch)
    }

    fn check(&mut self, export: &mut Export<'_>) -> Result<String, WorkloadError> {
        check::contents(self, export, self.committed_inserts)
    }
}
