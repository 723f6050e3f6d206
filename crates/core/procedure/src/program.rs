//! A procedure as written: code, tables by name, parameters and results, not yet verified.
//!
//! The layout of its block follows from the declarations alone: arguments from [`HEADER_BYTES`] on in order, then
//! results, then scratch, each item aligned as its type asks ([`ColumnType::align`]) and each region
//! at least to 8.

use crate::block::HEADER_BYTES;
use crate::isa::Instruction;
use crate::schema::ColumnType;

/// Names of procedures that nobody has named begin so: each is a single statement, and another statement may take its
/// place.
pub const STATEMENT: &str = "_statement_";

/// A named piece of the block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Unique among parameters, results and scratch of its procedure.
    pub name: String,
    /// Type of each element.
    pub column_type: ColumnType,
    /// How many elements lie there, one [`Field::element_stride`] apart; 1 for a plain field.
    pub count: u32,
    /// Bytes from the start of the block.
    pub offset: u32,
}

impl Field {
    /// Bytes from one element to the next: the width rounded up to the alignment.
    #[must_use]
    pub fn element_stride(&self) -> u32 {
        self.column_type.width().checked_next_multiple_of(self.column_type.align()).unwrap_or(u32::MAX)
    }

    /// Where the field ends, in bytes from the start of the block.
    #[must_use]
    pub fn end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.element_stride()) * u64::from(self.count)
    }
}

/// Where the regions of a block lie, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Layout {
    /// End of the arguments, which begin at [`HEADER_BYTES`].
    pub arguments_end: u32,
    /// Start of the results: the procedure may write from here on.
    pub results_start: u32,
    /// End of the results.
    pub results_end: u32,
    /// End of the block.
    pub block_bytes: u32,
}

/// A procedure that has not been verified.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Procedure {
    /// Its name.
    pub name: String,
    /// The tables it uses; a DB instruction names one by its position here.
    pub tables: Vec<String>,
    /// What the client writes.
    pub parameters: Vec<Field>,
    /// What the procedure answers.
    pub results: Vec<Field>,
    /// What is the procedure's own.
    pub scratch: Vec<Field>,
    /// Logic, then commit handler, then abort handler.
    pub code: Vec<Instruction>,
    /// First instruction of the commit handler.
    pub commit_handler: u32,
    /// First instruction of the abort handler.
    pub abort_handler: u32,
}

impl Procedure {
    /// The layout that the declarations give, as `u64` so that absurd declarations are seen instead of wrapping;
    /// also the offset of every field, in the order parameters, results, scratch.
    #[must_use]
    pub fn lay_out(groups: [&[(ColumnType, u32)]; 3]) -> ([u64; 4], Vec<u64>) {
        /// Beyond every block, and rounding it up stays in range.
        const FAR: u64 = 1 << 62;
        let mut at = u64::from(HEADER_BYTES);
        let mut offsets = Vec::new();
        let mut ends = [0_u64; 3];
        for (group, end) in groups.into_iter().zip(&mut ends) {
            at = at.next_multiple_of(8);
            for &(column_type, count) in group {
                at = at.next_multiple_of(u64::from(column_type.align()));
                offsets.push(at);
                let stride = u64::from(column_type.width()).next_multiple_of(u64::from(column_type.align()));
                at = at.saturating_add(stride.saturating_mul(u64::from(count))).min(FAR);
            }
            *end = at;
        }
        ([ends[0], ends[0].next_multiple_of(8), ends[1], ends[2]], offsets)
    }

    /// The layout of its block. Meaningful once the fields lie where [`Self::lay_out`] puts them, which the verifier
    /// checks.
    #[must_use]
    pub fn layout(&self) -> Layout {
        let end = |fields: &[Field], start: u32| {
            fields.last().map_or(start, |field| u32::try_from(field.end()).unwrap_or(u32::MAX))
        };
        let arguments_end = end(&self.parameters, HEADER_BYTES);
        let results_start = arguments_end.saturating_add(7) & !7;
        let results_end = end(&self.results, results_start);
        let block_bytes = end(&self.scratch, results_end);
        Layout { arguments_end, results_start, results_end, block_bytes }
    }

    /// The parameter of this name.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&Field> {
        self.parameters.iter().find(|field| field.name == name)
    }

    /// The result of this name.
    #[must_use]
    pub fn result(&self, name: &str) -> Option<&Field> {
        self.results.iter().find(|field| field.name == name)
    }
}
