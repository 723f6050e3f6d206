//! Calls that only read, of procedures that need not be registered: while an engine does nothing else, whoever looks at
//! its database may run one.
//!
//! A node that follows a log cannot register a procedure, because ids are those that the log gives. What it is asked
//! all the same is answered here.

use lockwork_procedure::access::Operation;
use lockwork_procedure::block::{Batch, Status, abort};
use lockwork_procedure::interpreter::{Answer, Context, Host, Request, Stop, run};
use lockwork_storage::Database;

use crate::contract::EngineError;
use crate::exclusive::{close, give_up, scan};
use crate::registry::Registered;
use crate::tally::Tally;

/// Runs the call in `block` and returns its block with the outcome. The procedure is one of `database`
/// ([`Registered::of`]), which nobody writes meanwhile: [`crate::Engine::with_database`] sees to that.
///
/// # Errors
/// [`EngineError::Writes`] for a procedure that may write, no memory, and tables of another database.
pub fn read(registered: &Registered, database: &Database, block: &[u8]) -> Result<Batch, EngineError> {
    if registered.traits.writes {
        return Err(EngineError::Writes(registered.verified.procedure().name.clone()));
    }
    let mut slots = registered.verified.tables().iter().zip(&registered.tables);
    let is_here = slots.all(|(known, table)| {
        usize::from(known.id) < database.len() && std::sync::Arc::ptr_eq(database.table(known.id), table)
    });
    assert!(is_here, "the procedure is one of another database");
    let bytes = registered.block_bytes.max(block.len());
    let mut batch = Batch::new(bytes as u32, 1)?;
    let mut room = batch.push(0).expect("room for one");
    room.bytes()[..block.len()].copy_from_slice(block);
    let program = &registered.program;
    let mut registers = vec![0; program.gp_registers().max(1)];
    let mut cps = vec![None; program.cp_registers().max(1)];
    let (mut host, mut context) = (Reading(registered), Context::at(0));
    let block = batch.block_ptr(0);
    // SAFETY: the windows are those of the program; the block is long enough and ours, and nobody writes a row.
    unsafe {
        match run(program, &mut context, &mut registers, &mut cps, block, &mut host) {
            Stop::Committed => {
                program.run_commit_handler(&mut registers, block);
                close(block, Status::Committed, 0, 0, 0);
            }
            Stop::Aborted(code) => {
                let outcome = (Status::Aborted, code);
                give_up(registered, &mut registers, block, outcome, (0, 0), &mut Tally::default());
            }
            Stop::Failed(code) => {
                let outcome = (Status::Failed, code);
                give_up(registered, &mut registers, block, outcome, (0, 0), &mut Tally::default());
            }
            Stop::Waiting | Stop::Conflict => unreachable!("nothing else runs, so there is nothing to wait for"),
        }
    }
    Ok(batch)
}

struct Reading<'a>(&'a Registered);

impl Host for Reading<'_> {
    type Cp = Option<Answer>;

    fn issue(&mut self, cp: &mut Option<Answer>, request: Request) {
        let table = &self.0.tables[usize::from(request.slot)];
        // SAFETY: the interpreter passes a key image inside the block.
        let image = unsafe { std::slice::from_raw_parts(request.key, table.key_format().image_bytes()) };
        let key = table.key_format().encode(image);
        *cp = Some(match request.operation {
            Operation::Scan => Answer::Ready(scan(table, &key, &request)),
            Operation::Search => match table.find(key.hash(), &key) {
                Some(row) => Answer::Ready(row.as_ptr() as u64),
                None => Answer::Missing(abort::NOT_FOUND),
            },
            operation => unreachable!("a procedure that only reads has no {operation:?}"),
        });
    }

    fn answer(&mut self, cps: &mut [Option<Answer>], cp: usize) -> Answer {
        cps[cp].expect("the verifier proved that a DB instruction precedes its RET")
    }

    unsafe fn keep(&mut self, _: *mut u8, _: u32, _: u32) {
        unreachable!("a procedure that only reads writes no row");
    }
}
