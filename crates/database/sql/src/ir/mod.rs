//! The intermediate form: blocks of instructions on values that are defined once, and a builder that folds, reuses and
//! hoists while it writes them.
//!
//! Values are numbers; [`ZERO`] is always zero. A *mutable* value is what several ways agree on where they meet: it
//! is written by a MOV at the end of each. Such a value is never read after it was written again, because everything
//! that was known inside of a loop or an arm is forgotten at its end.
//!
//! Invariant: a block is a straight run. What can abort in it leaves it sideways and needs no block of its own, so the
//! scheduler ([`schedule`]) sees runs that are long enough to overlap look-ups.

pub(crate) mod allocate;
pub(crate) mod builder;
pub(crate) mod emit;
pub(crate) mod live;
pub(crate) mod schedule;

use lockwork_procedure::schema::{ColumnType, TableSchema};

use crate::syntax::Comparison;
use crate::tree::Arithmetic;

/// A value.
pub(crate) type Val = u32;
/// A block.
pub(crate) type BlockId = usize;

/// The value that is always zero.
pub(crate) const ZERO: Val = 0;

/// A value or a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Operand {
    Const(i64),
    Val(Val),
}

/// A place in the block: a field, bytes from its start, and a value that holds the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct At {
    pub(crate) field: usize,
    pub(crate) offset: i32,
    pub(crate) index: Option<Val>,
}

/// A place in the block or in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Memory {
    Block(At),
    Row { row: Val, slot: u8, offset: u32, index: Option<Val> },
}

/// A place so many bytes behind another.
pub(crate) fn moved(memory: Memory, by: u32) -> Memory {
    match memory {
        Memory::Block(at) => Memory::Block(At { offset: at.offset + by as i32, ..at }),
        Memory::Row { row, slot, offset, index } => Memory::Row { row, slot, offset: offset + by, index },
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Database {
    Search,
    Update,
    Insert,
    Remove,
    Scan,
}

/// Where a scan puts its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Into {
    pub(crate) field: usize,
    pub(crate) max: u16,
    pub(crate) limit: Option<Val>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Const(i64),
    Move(Operand),
    Arithmetic(Arithmetic, Val, Operand),
    /// The value, which is at least zero and below the constant.
    Check(Val, i64),
    Load(At, u16),
    Store(At, u16, Val),
    LoadRow {
        row: Val,
        slot: u8,
        offset: u32,
        w: u16,
    },
    StoreRow {
        row: Val,
        slot: u8,
        offset: u32,
        w: u16,
        value: Val,
    },
    Copy {
        to: Memory,
        from: Memory,
        length: u16,
    },
    Issue {
        operation: Database,
        slot: u8,
        key: At,
        cp: u32,
        into: Option<Into>,
    },
    /// The answer; without a row it aborts, with the code if there is one.
    Await {
        cp: u32,
        raise: Option<u16>,
    },
    /// Aborts if the comparison holds.
    Trap {
        op: Comparison,
        left: Val,
        right: Operand,
        code: u16,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Ins {
    pub(crate) op: Op,
    pub(crate) to: Option<Val>,
    /// The line of the source.
    pub(crate) line: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum End {
    Open,
    Jump(BlockId),
    Branch {
        op: Comparison,
        left: Val,
        right: Operand,
        yes: BlockId,
        no: BlockId,
    },
    AwaitOr {
        cp: u32,
        to: Option<Val>,
        hit: BlockId,
        miss: BlockId,
    },
    /// Adds to the counter and goes to the head while it is below the limit.
    Back {
        counter: Val,
        step: i64,
        limit: i64,
        head: BlockId,
        exit: BlockId,
    },
    Commit,
    Abort(u16),
}

#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) code: Vec<Ins>,
    pub(crate) end: End,
    pub(crate) end_line: u32,
}

/// What is known of a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Info {
    pub(crate) lo: i64,
    pub(crate) hi: i64,
    /// How many loops were around where it was defined.
    pub(crate) depth: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldKind {
    Parameter,
    Result,
    Scratch,
}

#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) column_type: ColumnType,
    pub(crate) count: u32,
    pub(crate) kind: FieldKind,
}

/// A procedure in this form.
#[derive(Debug, Default)]
pub(crate) struct Program {
    pub(crate) blocks: Vec<Block>,
    /// The blocks in the order in which they are written.
    pub(crate) layout: Vec<BlockId>,
    pub(crate) values: Vec<Info>,
    pub(crate) fields: Vec<Field>,
    /// The tables by slot: number in the catalogue, and layout.
    pub(crate) tables: Vec<(usize, TableSchema)>,
}

/// Whether values of this range fit a field of width and sign `w`.
pub(crate) fn fits((lo, hi): (i64, i64), w: u16) -> bool {
    let (first, last) = range_of(w);
    lo >= first && hi <= last
}

/// The values of a field of width and sign `w`.
pub(crate) fn range_of(w: u16) -> (i64, i64) {
    let bits = u32::from(w & !lockwork_procedure::isa::SIGNED) * 8;
    match (bits, w & lockwork_procedure::isa::SIGNED != 0) {
        (64, _) => (i64::MIN, i64::MAX),
        (_, true) => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        (_, false) => (0, (1 << bits) - 1),
    }
}

/// The width and sign of an integer type.
pub(crate) fn width_of(column_type: ColumnType) -> u16 {
    let width = column_type.width() as u16;
    if column_type.is_signed() && width < 8 { width | lockwork_procedure::isa::SIGNED } else { width }
}

impl Op {
    /// Calls `each` with every value that is read.
    pub(crate) fn reads(&self, mut each: impl FnMut(Val)) {
        let operand = |operand: &Operand, each: &mut dyn FnMut(Val)| {
            if let Operand::Val(value) = operand {
                each(*value);
            }
        };
        let memory = |memory: &Memory, each: &mut dyn FnMut(Val)| match memory {
            Memory::Block(at) => at.index.into_iter().for_each(each),
            Memory::Row { row, index, .. } => {
                each(*row);
                index.iter().copied().for_each(each);
            }
        };
        match self {
            Self::Const(_) | Self::Await { .. } => {}
            Self::Move(from) => operand(from, &mut each),
            Self::Arithmetic(_, left, right) | Self::Trap { left, right, .. } => {
                each(*left);
                operand(right, &mut each);
            }
            Self::Check(value, _) => each(*value),
            Self::Load(at, _) => at.index.into_iter().for_each(each),
            Self::Store(at, _, value) => {
                at.index.into_iter().for_each(&mut each);
                each(*value);
            }
            Self::LoadRow { row, .. } => each(*row),
            Self::StoreRow { row, value, .. } => {
                each(*row);
                each(*value);
            }
            Self::Copy { to, from, .. } => {
                memory(to, &mut each);
                memory(from, &mut each);
            }
            Self::Issue { key, into, .. } => {
                key.index.into_iter().for_each(&mut each);
                into.iter().filter_map(|into| into.limit).for_each(each);
            }
        }
    }
}

impl End {
    /// Calls `each` with every value that is read.
    pub(crate) fn reads(&self, mut each: impl FnMut(Val)) {
        match self {
            Self::Branch { left, right, .. } => {
                each(*left);
                if let Operand::Val(value) = right {
                    each(*value);
                }
            }
            Self::Back { counter, .. } => each(*counter),
            _ => {}
        }
    }

    /// The value that is written.
    pub(crate) fn writes(&self) -> Option<Val> {
        match self {
            Self::AwaitOr { to, .. } => *to,
            Self::Back { counter, .. } => Some(*counter),
            _ => None,
        }
    }

    pub(crate) fn successors(&self) -> impl Iterator<Item = BlockId> + use<> {
        let all = match *self {
            Self::Open | Self::Commit | Self::Abort(_) => [None, None],
            Self::Jump(to) => [Some(to), None],
            Self::Branch { yes, no, .. } => [Some(yes), Some(no)],
            Self::AwaitOr { hit, miss, .. } => [Some(hit), Some(miss)],
            Self::Back { head, exit, .. } => [Some(head), Some(exit)],
        };
        all.into_iter().flatten()
    }
}
