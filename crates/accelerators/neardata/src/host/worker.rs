//! A worker: runs transactions on the host, one after the other, for one thread.
//!
//! A call runs a registered procedure until it commits, aborts, or has met more conflicts than it may. A retry keeps
//! its age, so that it is refused ever less often, and waits longer each time, so that whoever was first gets done.

use std::time::Duration;

use lockwork_procedure::block::{BlockMut, HEADER_BYTES, Status, abort};
use lockwork_procedure::interpreter::{Answer, Context, Stop, run};

use super::Host;
use super::error::{Conflict, HostError};
use super::interactive::Transaction;
use super::procedure::{Registered, Run};
use super::session::Session;
use super::sessions::Event;
use std::sync::Arc;

/// Retries before a worker sleeps, and the most that it sleeps.
const YIELDS: u32 = 4;
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// See the module. [`Host::worker`] gives one.
pub struct Worker<'h> {
    pub(super) session: Session<'h>,
    procedures: Vec<Arc<Registered>>,
    registers: Vec<i64>,
    cps: Vec<Option<Answer>>,
    retries: u64,
    /// The age of a bulk update that met a conflict: its next try has it too, and is refused less often.
    pub(super) bulk_age: Option<u64>,
}

impl<'h> Worker<'h> {
    pub(super) fn new(host: &'h Host) -> Result<Self, HostError> {
        let (procedures, registers, cps) = Default::default();
        Ok(Self { session: Session::new(host)?, procedures, registers, cps, retries: 0, bulk_age: None })
    }

    /// Runs the call in a block, as the engines do ([`lockwork_procedure::block`]): afterwards the block has status,
    /// abort code, serial stamp and results. Results are zero, but for what an abort handler writes, unless it
    /// committed.
    ///
    /// A commit is visible to every snapshot that begins after this returns. It is durable with the next flush of its
    /// tables.
    ///
    /// # Errors
    /// The storage or the lock table failed; the block is closed as failed, and nothing was changed.
    ///
    /// # Panics
    /// When the block is shorter than a block's header.
    pub fn call(&mut self, block: &mut [u8]) -> Result<Status, HostError> {
        let id = BlockMut::new(block).as_block().procedure() as usize;
        if id >= self.procedures.len() {
            self.procedures = self.session.host.procedures();
        }
        let Some(registered) = self.procedures.get(id).cloned() else {
            return Ok(self.close(block, (Status::Failed, abort::UNKNOWN_PROCEDURE), 0));
        };
        if block.len() < registered.block_bytes {
            return Ok(self.close(block, (Status::Failed, abort::BLOCK_TOO_SHORT), 0));
        }
        let (gp, cp) = (registered.program.gp_registers(), registered.program.cp_registers());
        self.registers.resize(gp.max(self.registers.len()), 0);
        self.cps.resize(cp.max(self.cps.len()), None);
        let age = self.session.host.next_age();
        let mut tries = 0;
        loop {
            self.session.begin(age);
            match self.attempt(&registered, block) {
                Ok(Ok(stamp)) => {
                    // SAFETY: the windows are wide enough, and the block is this worker's.
                    unsafe { registered.program.run_commit_handler(&mut self.registers, block.as_mut_ptr()) };
                    let status = self.close(block, (Status::Committed, 0), stamp);
                    self.session.host.flush_if_due();
                    return Ok(status);
                }
                Ok(Err(code)) => {
                    let stamp = self.session.forgo();
                    return Ok(self.give_up(&registered, block, (Status::Aborted, code), stamp));
                }
                Err(HostError::Conflict(conflict)) => {
                    self.session.end();
                    self.count(conflict);
                    block[registered.results.0..registered.block_bytes].fill(0);
                    if tries == self.session.host.config.max_retries {
                        return Ok(self.give_up(&registered, block, (Status::Failed, abort::TOO_MANY_RETRIES), 0));
                    }
                    tries += 1;
                    self.retries += 1;
                    pause(tries, self.retries);
                }
                Err(HostError::Full(_) | HostError::Memory(_)) => {
                    self.session.end();
                    return Ok(self.give_up(&registered, block, (Status::Failed, abort::OUT_OF_MEMORY), 0));
                }
                Err(failure) => {
                    self.session.end();
                    self.give_up(&registered, block, (Status::Failed, abort::DEVICE_LOST), 0);
                    return Err(failure);
                }
            }
        }
    }

    /// Runs the procedure once: to its commit, with the stamp, or to its abort, with the code.
    fn attempt(&mut self, registered: &Registered, block: &mut [u8]) -> Result<Result<u64, u16>, HostError> {
        let mut host = Run { session: &mut self.session, registered, failure: None };
        let (registers, cps, mut context) = (&mut self.registers, &mut self.cps, Context::default());
        // SAFETY: the windows are wide enough, the block is as long as its procedure's, and the host answers with
        // private copies, which stay until the transaction ends.
        let stop = unsafe { run(&registered.program, &mut context, registers, cps, block.as_mut_ptr(), &mut host) };
        match (host.failure, stop) {
            (Some(failure), _) => Err(failure),
            (None, Stop::Committed) => self.session.commit().map(Ok),
            (None, Stop::Aborted(code)) => Ok(Err(code)),
            (None, stop) => unreachable!("a run without a failure does not end with {stop:?}"),
        }
    }

    fn count(&self, conflict: Conflict) {
        let event = match conflict {
            Conflict::Superseded => Event::Superseded,
            Conflict::Busy => Event::Busy,
            Conflict::TimedOut => Event::TimedOut,
        };
        self.session.line.count(event, 1);
    }

    /// Ends a call that did not commit.
    fn give_up(&mut self, registered: &Registered, block: &mut [u8], outcome: (Status, u16), stamp: u64) -> Status {
        block[registered.results.0..registered.results.1].fill(0);
        // SAFETY: the windows are wide enough, and the block is this worker's.
        unsafe { registered.program.run_abort_handler(&mut self.registers, block.as_mut_ptr()) };
        self.close(block, outcome, stamp)
    }

    fn close(&mut self, block: &mut [u8], (status, code): (Status, u16), stamp: u64) -> Status {
        let mut header = BlockMut::new(&mut block[..HEADER_BYTES as usize]);
        header.set_outcome(status, code);
        header.set_serial(stamp);
        let event = match status {
            Status::Committed => Event::Committed,
            Status::Aborted => Event::Aborted,
            Status::Failed | Status::Pending => Event::Failed,
        };
        self.session.line.count(event, 1);
        status
    }

    /// Begins a transaction to be driven step by step.
    pub fn begin(&mut self) -> Transaction<'_, 'h> {
        let age = self.session.host.next_age();
        self.session.begin(age);
        Transaction::new(&mut self.session)
    }
}

/// Waits before try number `tries` + 1; `salt` keeps two workers from waiting in step.
fn pause(tries: u32, salt: u64) {
    if tries <= YIELDS {
        return std::thread::yield_now();
    }
    let longest = LONGEST_SLEEP.min(Duration::from_micros(1 << tries.min(10)));
    std::thread::sleep(longest.mul_f64(0.5 + (salt % 8) as f64 / 16.0));
}
