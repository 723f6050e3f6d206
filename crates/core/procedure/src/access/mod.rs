//! Access sets: which rows a call will touch, from its arguments alone.
//!
//! A deterministic engine plans a batch before it runs it, so it has to know the keys of every transaction first. The
//! user never says them; they are a property of the procedure. There are three answers:
//!
//! | answer | when | what a call costs |
//! |---|---|---|
//! | [`AccessSet::Straight`] | every DB instruction runs unconditionally, its key stands in the arguments | a table of constants |
//! | [`AccessSet::Sliced`] | keys are computed, or control decides which are used, but no row is needed for it | a run of the slice |
//! | [`AccessSet::Dependent`] | a key needs a value read from the database | reconnaissance |
//!
//! HOBBES took single-key operations only, for which all of this is trivial; Calvin asks the user for the sets.
//!
//! **Invariant (soundness).** For every database state, the accesses of the execution (table, key, mode) are a subset
//! of the access set. It may name more: a transaction that aborts, or takes the other side of a branch on a row's
//! value, touches fewer rows than it might have. A SCAN stands for the whole table; its key is only the first one.
//!
//! **Separable procedures.** A straight procedure whose rows do not meet (no value of one row reaches another row, no
//! decision is made) is also cut into one [`Fragment`] an access, which an engine that partitions keys can run wherever
//! the row is, in any order: the common case of key-value workloads such as YCSB.
//!
//! The rooms: `flow` (what an instruction reads and writes, and where control goes), `ranges` (which block bytes it
//! can mean), `rows` (which bytes of their rows DB instructions are used for), `straight`, `fragments` and `moves`,
//! `taint` (what depends on rows), `slice` (what is left without that), `explain`.

mod explain;
mod flow;
mod fragments;
mod moves;
mod ranges;
mod rows;
mod slice;
mod straight;
mod taint;
#[cfg(test)]
mod tests;

pub use explain::explain;
pub use fragments::Fragment;
pub use moves::Move;
pub use rows::{RowUse, overwrites, row_uses};
pub use slice::{KeyAccess, Slice};
pub use straight::{Access, ArgumentCheck, ArgumentIndex, Straight, Touch};
use taint::Wanted;
pub use taint::{Dependence, Reason};

use crate::isa::Opcode;
use crate::verified::Verified;

/// What a DB instruction does to its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// Looks a row up to read it.
    Search,
    /// Looks a row up to write it.
    Update,
    /// Creates a row.
    Insert,
    /// Removes a row.
    Remove,
    /// Reads rows in key order, from a first key on.
    Scan,
}

impl Operation {
    /// The operation of a DB instruction.
    ///
    /// # Panics
    /// When `opcode` is no DB instruction.
    #[must_use]
    #[inline(always)]
    pub const fn of(opcode: Opcode) -> Self {
        match opcode {
            Opcode::Search => Self::Search,
            Opcode::Update => Self::Update,
            Opcode::Insert => Self::Insert,
            Opcode::Remove => Self::Remove,
            Opcode::Scan => Self::Scan,
            _ => panic!("not a DB instruction"),
        }
    }

    /// Whether it needs the row (or the key) for itself; the others read.
    #[must_use]
    #[inline(always)]
    pub const fn writes(self) -> bool {
        matches!(self, Self::Update | Self::Insert | Self::Remove)
    }
}

/// What is known of the accesses of a procedure; see the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessSet {
    /// A table of constants.
    Straight(Straight),
    /// A small program to run on the arguments.
    Sliced(Slice),
    /// Not known without the database.
    Dependent(Dependence),
}

/// The access set of a procedure. Takes time about linear in its length; meant for registration, not for calls.
#[must_use]
pub fn access_set(verified: &Verified) -> AccessSet {
    let ranges = ranges::block_uses(verified);
    if let Some(straight) = straight::straight(verified, &ranges) {
        return AccessSet::Straight(straight);
    }
    match taint::analyse(verified, &ranges, Wanted::Keys) {
        Ok(analysis) => AccessSet::Sliced(slice::build(verified, &ranges, &analysis)),
        Err(dependence) => AccessSet::Dependent(dependence),
    }
}

/// For every instruction, whether control can reach it and a DB instruction is there or may follow.
#[must_use]
pub fn live(verified: &Verified) -> Vec<bool> {
    flow::Graph::new(&verified.procedure.code).live
}

/// What the arguments alone say of a dependent procedure: a slice that names every access of every execution, but of
/// some keys only the leading columns ([`KeyAccess::known`]). An order's number, say, is read from the district, but
/// the district is an argument. `None` when that is not enough: of some key not even the first column is known,
/// whether an instruction runs depends on the database, or a range is scanned whose first key does.
#[must_use]
pub fn cover(verified: &Verified) -> Option<Slice> {
    let ranges = ranges::block_uses(verified);
    let analysis = taint::analyse(verified, &ranges, Wanted::Prefixes).ok()?;
    Some(slice::build(verified, &ranges, &analysis))
}
