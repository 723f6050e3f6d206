//! Whom a call concerns, by its arguments as they stand in the log.
//!
//! Every engine reads every call, and most are somebody else's. So what a call costs whom it does not concern decides
//! how many parts are worth having (docs/scaling.md). Of a procedure is found out once which argument says who has each
//! row that it touches; then a call costs a load and a remainder for each row, and no block is made. What computes its
//! keys is run, up to them, on a block that is filled for that alone.
//!
//! *Why every engine finds it out for itself*, and no leader writes it into the log: to compare a set with an engine's
//! own number would cost half as much, next to the hash of the call's bytes that everybody makes anyway. For that the
//! log would be longer, and a leader with a fault could leave out whom a call concerns, who would not notice.
//!
//! Invariant: who takes part is a function of procedure, arguments, stamp and number of parts. All engines have the
//! same for the same call, whether they see it in the log or in a block, and everybody who has a row of it is among
//! them.

use std::sync::Arc;

use lockwork_engine::Calls;
use lockwork_engine::registry::Registered;
use lockwork_procedure::access::{Access, AccessSet, KeyAccess, Operation};
use lockwork_procedure::block::HEADER_BYTES;
use lockwork_procedure::key::KeyFormat;
use lockwork_procedure::schema::ROW_HEADER_BYTES;

use crate::layout::Spread;
use crate::ordered::Participants;
use crate::transaction::known_accesses;

const HEADER: usize = HEADER_BYTES as usize;

/// How the part that has a row follows from arguments.
#[derive(Debug)]
enum Way {
    /// From an integer of so many bytes there; `sign` is its sign bit, which keys have flipped, or zero.
    Integer { at: usize, width: usize, sign: u64 },
    /// From the hash of the key that begins there.
    Hash { at: usize, format: KeyFormat },
}

/// A row that a call touches and not everybody has.
#[derive(Debug)]
struct Row {
    way: Way,
    writes: bool,
}

#[derive(Debug)]
enum Whom {
    /// Arguments do not tell.
    Everybody,
    /// Those who have these rows.
    Rows(Vec<Row>),
    /// Found out by computing keys; a range that is scanned may be everybody's.
    Computed,
}

/// Memory for what is computed.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    block: Vec<u8>,
    known: Vec<KeyAccess>,
}

/// What is known of whom a procedure concerns; see the module.
#[derive(Debug)]
pub(super) struct Reach {
    registered: Arc<Registered>,
    /// Of its tables, by slot.
    spreads: Vec<Spread>,
    parts: usize,
    whom: Whom,
}

/// The part whose turn it is where any would do.
pub(super) fn turn(stamp: u64, parts: usize) -> usize {
    (stamp % parts as u64) as usize
}

impl Row {
    /// `None`: everybody has it.
    fn of(registered: &Registered, spread: Spread, access: &Access) -> Option<Self> {
        let at = access.key_offset as usize - HEADER;
        let table = &registered.tables[usize::from(access.slot)];
        let way = match spread {
            Spread::Everywhere => return None,
            Spread::Hashed => Way::Hash { at, format: table.key_format().clone() },
            Spread::Leading(_) => {
                let column = &table.schema().key()[0];
                let (width, within) = (column.column_type.width() as usize, column.offset - ROW_HEADER_BYTES);
                let sign = if column.column_type.is_signed() { 1 << (8 * width - 1) } else { 0 };
                Way::Integer { at: at + within as usize, width, sign }
            }
        };
        Some(Self { way, writes: access.operation.writes() })
    }

    #[inline]
    fn owner(&self, arguments: &[u8], parts: usize) -> usize {
        match &self.way {
            Way::Integer { at, width, sign } => {
                let value = integer(&arguments[*at..], *width) ^ sign;
                let parts = parts as u64;
                (if parts.is_power_of_two() { value & (parts - 1) } else { value % parts }) as usize
            }
            Way::Hash { at, format } => {
                let owner = Spread::Hashed.owner(&format.encode(&arguments[*at..]), parts);
                owner.expect("a table that is divided by a hash is not everywhere")
            }
        }
    }
}

/// The integer of so many bytes, without a sign.
#[inline]
fn integer(bytes: &[u8], width: usize) -> u64 {
    match width {
        8 => u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")),
        4 => u32::from_le_bytes(bytes[..4].try_into().expect("four bytes")).into(),
        2 => u16::from_le_bytes(bytes[..2].try_into().expect("two bytes")).into(),
        _ => bytes[0].into(),
    }
}

impl Reach {
    /// `spreads` of all tables, by number.
    pub(super) fn new(registered: Arc<Registered>, spreads: &[Spread], parts: usize) -> Self {
        let slots = 0..registered.tables.len() as u8;
        let spreads: Vec<Spread> = slots.map(|slot| spreads[usize::from(registered.table_id(slot))]).collect();
        let whom = match &registered.access {
            AccessSet::Straight(straight) if straight.accesses.iter().any(|a| a.operation == Operation::Scan) => {
                Whom::Everybody
            }
            AccessSet::Straight(straight) => {
                let row = |access: &Access| Row::of(&registered, spreads[usize::from(access.slot)], access);
                Whom::Rows(straight.accesses.iter().filter_map(row).collect())
            }
            AccessSet::Sliced(_) => Whom::Computed,
            AccessSet::Dependent(_) => Whom::Everybody,
        };
        Self { registered, spreads, parts, whom }
    }

    /// Who takes part in the call in a block; `None`: it has to be looked at.
    pub(super) fn of_block(&self, block: &[u8], stamp: u64, scratch: &mut Scratch) -> Option<Participants> {
        match &self.whom {
            Whom::Everybody => None,
            Whom::Rows(rows) => Some(self.of_rows(rows, &block[HEADER..], stamp)),
            Whom::Computed => self.of_keys(block, stamp, &mut scratch.known),
        }
    }

    /// Appends which of the calls a part has to be given.
    pub(super) fn choose(&self, calls: &Calls<'_>, part: usize, scratch: &mut Scratch, chosen: &mut Vec<u32>) {
        let all = 0..calls.count as u32;
        match &self.whom {
            Whom::Everybody => chosen.extend(all),
            Whom::Rows(rows) if rows.is_empty() => {
                chosen.extend(all.filter(|&at| turn(calls.stamp + u64::from(at), self.parts) == part));
            }
            Whom::Rows(rows) => chosen.extend(all.filter(|&at| {
                let arguments = calls.arguments_of(at as usize);
                rows.iter().any(|row| row.owner(arguments, self.parts) == part)
            })),
            Whom::Computed => chosen.extend(all.filter(|&at| {
                let Scratch { block, known } = &mut *scratch;
                block.clear();
                block.extend([0; HEADER]);
                block.extend_from_slice(calls.arguments_of(at as usize));
                block.resize(self.registered.block_bytes.max(block.len()), 0);
                let participants = self.of_keys(block, calls.stamp + u64::from(at), known);
                participants.is_none_or(|participants| participants.all & 1 << part != 0)
            })),
        }
    }

    fn of_rows(&self, rows: &[Row], arguments: &[u8], stamp: u64) -> Participants {
        let mut participants = Participants::default();
        rows.iter().for_each(|row| participants.add(Some(row.owner(arguments, self.parts)), row.writes));
        participants.settle(turn(stamp, self.parts));
        participants
    }

    fn of_keys(&self, block: &[u8], stamp: u64, known: &mut Vec<KeyAccess>) -> Option<Participants> {
        known.clear();
        if !known_accesses(&self.registered, block, known) {
            return None;
        }
        let mut participants = Participants::default();
        for access in known {
            let owner = self.spreads[usize::from(access.slot)].owner(&access.key, self.parts);
            participants.add(owner, access.operation.writes());
        }
        participants.settle(turn(stamp, self.parts));
        Some(participants)
    }
}

#[cfg(test)]
mod tests;
