//! Procedures on the host, and the database as a running one sees it.
//!
//! A DB instruction takes effect when it is issued; RET asks for what came of it. Handles are addresses of private
//! copies, so an abort has nothing to take back. Once an instruction has met a conflict or a failure, all that follow
//! are answered with it: the transaction cannot commit any more.

use lockwork_locking::LockMode;
use lockwork_procedure::access::Operation;
use lockwork_procedure::block::abort;
use lockwork_procedure::interpreter::{self, Answer, Program, Request};
use lockwork_procedure::isa::scan_source;
use lockwork_procedure::schema::ROW_HEADER_BYTES;
use lockwork_procedure::verified::Verified;

use super::error::HostError;
use super::session::Session;

/// A procedure that a host runs.
#[derive(Debug)]
pub(super) struct Registered {
    pub(super) name: String,
    pub(super) program: Program,
    /// Its tables, by slot: number, and how the table is locked as a whole at the first touch if serializable.
    tables: Vec<(u16, Option<LockMode>)>,
    /// Bytes of its block.
    pub(super) block_bytes: usize,
    /// Where its results begin and end; scratch follows.
    pub(super) results: (usize, usize),
}

impl Registered {
    pub(super) fn new(verified: &Verified) -> Self {
        let layout = verified.procedure().layout();
        Self {
            name: verified.procedure().name.clone(),
            program: Program::new(verified),
            tables: gates(verified),
            block_bytes: layout.block_bytes as usize,
            results: (layout.results_start as usize, layout.results_end as usize),
        }
    }
}

/// One mode for each table, so that nobody has to wait for a stronger one in the middle.
fn gates(verified: &Verified) -> Vec<(u16, Option<LockMode>)> {
    let mut gates: Vec<_> = verified.tables().iter().map(|table| (table.id, None)).collect();
    for instruction in verified.procedure().code.iter().filter(|instruction| instruction.opcode.is_db()) {
        let table = verified.tables()[usize::from(instruction.d)].id;
        let mode = match Operation::of(instruction.opcode) {
            Operation::Search => continue,
            Operation::Scan => LockMode::Shared,
            Operation::Update | Operation::Insert | Operation::Remove => LockMode::IntentExclusive,
        };
        // The same table can stand in two slots.
        for gate in gates.iter_mut().filter(|gate| gate.0 == table) {
            gate.1 = Some(gate.1.map_or(mode, |known: LockMode| known.join(mode)));
        }
    }
    gates
}

/// The host of one run.
pub(super) struct Run<'a, 'h> {
    pub(super) session: &'a mut Session<'h>,
    pub(super) registered: &'a Registered,
    /// Why the transaction cannot commit.
    pub(super) failure: Option<HostError>,
}

impl interpreter::Host for Run<'_, '_> {
    type Cp = Option<Answer>;

    #[inline]
    fn issue(&mut self, cp: &mut Option<Answer>, request: Request) {
        *cp = None;
        if self.failure.is_none() {
            match self.execute(request) {
                Ok(answer) => *cp = Some(answer),
                Err(failure) => self.failure = Some(failure),
            }
        }
    }

    #[inline]
    fn answer(&mut self, cps: &mut [Option<Answer>], cp: usize) -> Answer {
        match &self.failure {
            None => cps[cp].take().expect("the verifier proved that a DB instruction precedes its RET"),
            Some(HostError::Conflict(_)) => Answer::Conflict,
            Some(HostError::Full(_) | HostError::Memory(_)) => Answer::Failed(abort::OUT_OF_MEMORY),
            Some(_) => Answer::Failed(abort::DEVICE_LOST),
        }
    }

    unsafe fn keep(&mut self, _: *mut u8, _: u32, _: u32) {}
}

impl Run<'_, '_> {
    fn execute(&mut self, request: Request) -> Result<Answer, HostError> {
        let (table, gate) = self.registered.tables[usize::from(request.slot)];
        let table = self.session.host.table(table)?;
        if let Some(mode) = gate {
            self.session.gate(table.id, mode)?;
        }
        // SAFETY: the interpreter passes a key image inside the block.
        let key = unsafe { std::slice::from_raw_parts(request.key, table.schema.key_bytes() as usize) };
        let found = |row: *mut u8| match row as u64 {
            0 => Answer::Missing(abort::NOT_FOUND),
            row => Answer::Ready(row),
        };
        Ok(match request.operation {
            Operation::Search => found(self.session.search(table, key)?),
            Operation::Update => found(self.session.update(table, key)?),
            Operation::Remove if self.session.remove(table, key)? => Answer::Ready(0),
            Operation::Remove => Answer::Missing(abort::NOT_FOUND),
            Operation::Insert => match self.session.insert(table, key)? as u64 {
                0 => Answer::Missing(abort::DUPLICATE_KEY),
                row => Answer::Ready(row),
            },
            Operation::Scan => {
                let (offset, length) = scan_source(&table.schema, usize::from(request.column).checked_sub(1));
                let (offset, length) = ((offset - ROW_HEADER_BYTES) as usize, length as usize);
                let mut target = request.buffer;
                // The key may lie where the rows go.
                let key = key.to_vec();
                let rows = self.session.scan(table, &key, request.limit as usize, |image| {
                    let source = &image[offset..offset + length];
                    // SAFETY: the verifier proved that the buffer holds as many rows as the limit says.
                    unsafe {
                        target.copy_from_nonoverlapping(source.as_ptr(), length);
                        target = target.add(length.next_multiple_of(8));
                    }
                })?;
                Answer::Ready(rows)
            }
        })
    }
}
