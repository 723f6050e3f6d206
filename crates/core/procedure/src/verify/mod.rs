//! The verifier: what a procedure must prove before an engine runs it.
//!
//! Engines execute procedures with raw addresses and check nothing again, so what this module accepts must be safe on
//! every path for every argument. It proves, in this order:
//!
//! 1. **Structure** (`structure.rs`): names, layout, tables, handlers, and the fields of every instruction, reachable
//!    or not. Control stays inside its section (logic, commit handler, abort handler); replicated tables are only read.
//! 2. **Loops** (`loops.rs`): every way back is a counting loop with one entry, so every execution ends.
//! 3. **Flow** (`flow.rs`): abstract execution to a fixed point. Every register is undefined, an integer in an
//!    interval, or the handle of a row of a known table, to read or to write; every CP register is free or in flight.
//!    From that follow bounds (every address, with its index register, stays inside), types, and that every DB
//!    instruction is awaited exactly once on every path.
//! 4. **Facts**: which instructions can abort, and which writes of rows must be able to be taken back.
//!
//! The trade-off is that of every such verifier: a sound procedure whose proof needs more than intervals is refused.
//! CHECK is the way out: it bounds a value at run time, and the verifier believes it from there on.

mod flow;
mod loops;
mod structure;
#[cfg(test)]
mod tests;
mod value;

use std::sync::Arc;

use crate::isa::Opcode;
use crate::key::KeyFormat;
use crate::program::Procedure;
use crate::schema::Catalog;
use crate::verified::{Facts, Loop, TableUse, Verified};

/// The most instructions that one execution may take.
pub const MAX_STEPS: u64 = 10_000_000;

/// Why a procedure was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyError {
    /// The procedure.
    pub procedure: String,
    /// The instruction, as its position in the code and its mnemonic; `None` when the declarations are wrong.
    pub at: Option<(u32, &'static str)>,
    /// What is wrong, and what would be right.
    pub problem: String,
}

impl std::fmt::Display for VerifyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "procedure '{}'", self.procedure)?;
        if let Some((at, mnemonic)) = self.at {
            write!(f, ", instruction {at} ({mnemonic})")?;
        }
        write!(f, ": {}", self.problem)
    }
}

impl std::error::Error for VerifyError {}

/// What the passes raise: a place and a problem. [`verify`] adds the name.
struct Refusal {
    at: Option<usize>,
    problem: String,
}

type Check<T> = Result<T, Refusal>;

fn refuse<T>(at: usize, problem: impl Into<String>) -> Check<T> {
    Err(Refusal { at: Some(at), problem: problem.into() })
}

fn refuse_whole<T>(problem: impl Into<String>) -> Check<T> {
    Err(Refusal { at: None, problem: problem.into() })
}

/// Verifies a procedure against the tables of a catalogue.
///
/// # Errors
/// The first thing that could not be proved, with its place. Nothing is kept of a procedure that is refused.
pub fn verify(procedure: Procedure, catalog: &(impl Catalog + ?Sized)) -> Result<Verified, VerifyError> {
    match prove(&procedure, catalog) {
        Ok(proof) => Ok(Verified {
            procedure,
            tables: proof.tables,
            gp_registers: proof.gp_registers,
            cp_registers: proof.cp_registers,
            facts: proof.facts,
            loops: proof.loops,
            step_bound: proof.step_bound,
        }),
        Err(Refusal { at, problem }) => {
            let at = at.map(|at| (at as u32, procedure.code[at].opcode.mnemonic()));
            Err(VerifyError { procedure: procedure.name, at, problem })
        }
    }
}

struct Proof {
    tables: Vec<TableUse>,
    gp_registers: usize,
    cp_registers: usize,
    facts: Vec<Facts>,
    loops: Vec<Loop>,
    step_bound: u64,
}

fn prove(procedure: &Procedure, catalog: &(impl Catalog + ?Sized)) -> Check<Proof> {
    structure::check_declarations(procedure)?;
    let tables = resolve_tables(procedure, catalog)?;
    let sections = structure::sections(procedure)?;
    structure::check_fields(procedure, &tables, &sections)?;
    let shapes = loops::find(&procedure.code, &sections)?;
    let mut facts = vec![Facts::default(); procedure.code.len()];
    let mut loops = Vec::new();
    for section in &sections {
        flow::Flow::new(procedure, &tables, &shapes, section.clone()).run(&mut facts, &mut loops)?;
    }
    loops.sort_unstable_by_key(|found: &Loop| found.head);
    keep_what_may_be_taken_back(procedure, &mut facts);
    let step_bound = loops::step_bound(procedure.code.len(), &loops);
    if step_bound > MAX_STEPS {
        return refuse_whole(format!("it could take {step_bound} steps; at most {MAX_STEPS} are allowed"));
    }
    let (gp_registers, cp_registers) = structure::windows(&procedure.code);
    Ok(Proof { tables, gp_registers, cp_registers, facts, loops, step_bound })
}

fn resolve_tables(procedure: &Procedure, catalog: &(impl Catalog + ?Sized)) -> Check<Vec<TableUse>> {
    let resolve = |name: &String| match catalog.table(name) {
        Some((id, schema)) => Ok(TableUse { id, schema: Arc::new(schema.clone()), key: KeyFormat::of(schema) }),
        None => {
            let known = catalog.table_names();
            let known =
                if known.is_empty() { "there are none".into() } else { format!("there are: {}", known.join(", ")) };
            refuse_whole(format!("no table is called '{name}'; {known}"))
        }
    };
    procedure.tables.iter().map(resolve).collect()
}

/// Marks every write of a row after which the transaction can still be aborted, by itself or (at a RET) by a conflict
/// with another one.
fn keep_what_may_be_taken_back(procedure: &Procedure, facts: &mut [Facts]) {
    let code = &procedure.code[..procedure.commit_handler as usize];
    let can_abort = |at: usize| {
        facts[at].reachable && (facts[at].may_abort || matches!(code[at].opcode, Opcode::Abort | Opcode::Ret))
    };
    // `after[at]`: an abort can happen at `at` or later. Loops make this a fixed point.
    let mut after = vec![false; code.len()];
    let mut changed = true;
    while changed {
        changed = false;
        for at in (0..code.len()).rev() {
            let later = structure::successors(code, at).into_iter().flatten().any(|next| after[next]);
            if !after[at] && (later || can_abort(at)) {
                after[at] = true;
                changed = true;
            }
        }
    }
    for at in 0..code.len() {
        let writes_row = matches!(code[at].opcode, Opcode::Storer | Opcode::CopyRb | Opcode::CopyRr);
        let later = structure::successors(code, at).into_iter().flatten().any(|next| after[next]);
        facts[at].needs_undo = writes_row && facts[at].reachable && later;
    }
}
