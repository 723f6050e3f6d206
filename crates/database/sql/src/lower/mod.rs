//! From typed statements to the intermediate form.
//!
//! Numbers of variables live in values; where ways meet on which a variable differs, it gets a mutable value. Texts and
//! arrays live in the block. Every row that was looked up is remembered by the values of its key, so a row that is read
//! and then written is looked up once, for writing.

mod digits;
mod expression;
mod keys;
mod loops;
mod rows;
mod state;
mod statement;
mod strings;
mod writes;

use std::collections::BTreeSet;

use lockwork_procedure::schema::{ColumnType, TableSchema};

use crate::catalogue::{Catalogue, Table};
use crate::ir::builder::Builder;
use crate::ir::{At, BlockId, End, Field, FieldKind, Op, Operand, Program, Val, width_of};
use crate::tree::{Role, Routine, SourceId, VarId};
use state::{Row, State};

/// Where a FOR loop is left to, and gone on with.
struct Loop {
    exits: Vec<(BlockId, State)>,
    again: Vec<(BlockId, State)>,
    /// How many variables there were when it began: loops inside of it have some of their own, which end with them.
    variables: usize,
}

impl Loop {
    fn new(variables: usize) -> Self {
        Self { exits: Vec::new(), again: Vec::new(), variables }
    }

    /// A way out of the loop, or to its next round.
    fn add(&mut self, (block, mut state): (BlockId, State), again: bool) {
        state.variables.truncate(self.variables);
        if again { self.again.push((block, state)) } else { self.exits.push((block, state)) }
    }
}

/// The loops of the machine that a loop of the source is made of: by position, the one that EXIT leaves and the one
/// that CONTINUE goes on with.
#[derive(Clone, Copy)]
struct Named {
    exit: usize,
    again: usize,
}

pub(crate) struct Lower<'a> {
    b: Builder,
    catalogue: &'a Catalogue,
    routine: &'a Routine,
    state: State,
    /// The field of each variable that lives in the block; for a number its parameter or result.
    fields: Vec<Option<usize>>,
    /// The rows that sources stand at.
    sources: Vec<Option<Row>>,
    loops: Vec<Loop>,
    named: Vec<Named>,
    /// Buffers of scans whose rows are being gone through.
    open_buffers: BTreeSet<usize>,
    /// The way on which the row of the last statement was not found.
    missed: Option<(BlockId, State)>,
    found: VarId,
    /// Whether indexes that types bound are believed to be in bounds; without that every one is checked.
    trusting: bool,
}

/// The intermediate form of a procedure.
pub(crate) fn lower(routine: &Routine, catalogue: &Catalogue, trusting: bool) -> Program {
    let mut lower = Lower {
        b: Builder::new(),
        catalogue,
        routine,
        state: State::default(),
        fields: Vec::new(),
        sources: vec![None; routine.sources.len()],
        loops: Vec::new(),
        named: Vec::new(),
        open_buffers: BTreeSet::new(),
        missed: None,
        found: routine.variables.len(),
        trusting,
    };
    lower.declare();
    lower.statements(&routine.body);
    lower.finish();
    lower.b.program
}

impl<'a> Lower<'a> {
    fn table(&self, number: usize) -> &'a Table {
        &self.catalogue.tables()[number]
    }

    /// The number in the catalogue of an index.
    fn index_table(&self, name: &str) -> usize {
        let tables = self.catalogue.tables();
        tables.iter().position(|table| table.schema().name() == name).unwrap_or(0)
    }

    fn schema(&self, number: usize) -> &'a TableSchema {
        self.table(number).schema()
    }

    fn slot(&mut self, table: usize) -> u8 {
        let schema = self.schema(table);
        self.b.slot(table, schema)
    }

    fn declare(&mut self) {
        let variables = &self.routine.variables;
        for variable in variables {
            let (column_type, count) = variable.field();
            let mut add = |name: String, kind| Some(self.b.field(Field { name, column_type, count, kind }));
            let field = match variable.role {
                Role::In => add(variable.name.clone(), FieldKind::Parameter),
                Role::Out => add(variable.name.clone(), FieldKind::Result),
                Role::InOut => add(format!("{}_out", variable.name), FieldKind::Result),
                Role::Local if variable.in_register() => None,
                Role::Local => add(String::new(), FieldKind::Scratch),
            };
            self.fields.push(field);
        }
        self.state.variables = vec![Operand::Const(0); variables.len() + 1];
        for (var, variable) in variables.iter().enumerate() {
            let (column_type, count) = variable.field();
            let from = match variable.role {
                Role::In => self.fields[var],
                Role::InOut => {
                    let name = variable.name.clone();
                    Some(self.b.field(Field { name, column_type, count, kind: FieldKind::Parameter }))
                }
                Role::Out | Role::Local => None,
            };
            let Some(from) = from else { continue };
            if variable.in_register() {
                let at = At { field: from, offset: 0, index: None };
                self.state.variables[var] = self.b.load(at, width_of(column_type), 0, true);
            } else if let (Role::InOut, Some(to)) = (variable.role, self.fields[var]) {
                let bytes = field_bytes(column_type, count);
                self.copy_block(to, from, bytes);
            }
        }
        // Names of scratch fields are told apart by their numbers.
        for (number, field) in self.b.program.fields.iter_mut().enumerate() {
            if field.name.is_empty() {
                field.name = format!("_{number}");
            }
        }
    }

    fn scratch(&mut self, column_type: ColumnType, count: u32) -> usize {
        let name = format!("_{}", self.b.program.fields.len());
        self.b.field(Field { name, column_type, count, kind: FieldKind::Scratch })
    }

    fn copy_block(&mut self, to: usize, from: usize, bytes: u32) {
        let place = |field| crate::ir::Memory::Block(At { field, offset: 0, index: None });
        self.b.copy(place(to), place(from), bytes);
    }

    /// Ends the procedure here: results go into the block.
    fn finish(&mut self) {
        if !self.b.is_open() {
            return;
        }
        for (var, variable) in self.routine.variables.iter().enumerate() {
            let result = matches!(variable.role, Role::Out | Role::InOut) && variable.in_register();
            let (true, Some(field)) = (result, self.fields[var]) else { continue };
            let value = self.state.variables[var];
            // Results are zero when a call begins.
            if value != Operand::Const(0) {
                let at = At { field, offset: 0, index: None };
                self.b.store(at, width_of(variable.field().0), value);
            }
        }
        self.b.end(End::Commit);
    }

    /// The row of a source, looked up in the table itself: if the loop stands at a row of an index or of a buffer that
    /// lacks the column, the table is asked.
    fn row(&self, source: SourceId) -> Row {
        self.sources[source].clone().unwrap_or(Row::Nowhere)
    }

    fn await_row(&mut self, cp: u32, raise: Option<u16>) -> Val {
        let handle = self.b.value(i64::MIN, i64::MAX);
        self.b.push(Op::Await { cp, raise }, Some(handle));
        handle
    }
}

fn field_bytes(column_type: ColumnType, count: u32) -> u32 {
    column_type.width().next_multiple_of(column_type.align()).saturating_mul(count)
}
