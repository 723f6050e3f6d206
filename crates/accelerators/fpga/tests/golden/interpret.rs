//! The interpreter of the procedure crate on the same answers: what the stepper did must be what it does.

use std::collections::HashMap;

use lockwork_fpga::trace::Found;
use lockwork_procedure::interpreter::{Answer, Context, Host, Program, Request, Stop, run};
use lockwork_procedure::isa::scan_source;
use lockwork_procedure::verified::Verified;

use super::stepper::{Copy, Ending, Issue};

struct Answers<'a> {
    verified: &'a Verified,
    issues: &'a [Issue],
    issued: usize,
    copies: &'a mut HashMap<u64, Copy>,
}

impl Host for Answers<'_> {
    type Cp = Option<Answer>;

    fn issue(&mut self, cp: &mut Option<Answer>, request: Request) {
        let issue = &self.issues[self.issued];
        self.issued += 1;
        *cp = Some(match issue.found {
            Found::Ready(value) => match self.copies.get_mut(&value) {
                Some(copy) => Answer::Ready(copy.bytes.as_mut_ptr() as u64),
                None => Answer::Ready(value),
            },
            Found::Missing(code) => Answer::Missing(code),
            Found::Conflict => Answer::Conflict,
            Found::Failed(code) => Answer::Failed(code),
        });
        let schema = &self.verified.tables()[usize::from(request.slot)].schema;
        let (offset, length) = scan_source(schema, usize::from(request.column).checked_sub(1));
        let (offset, length) = (offset as usize, length as usize);
        for (number, (key, then)) in issue.rows.iter().enumerate() {
            let own = self.copies.values().find(|copy| copy.table == issue.table && copy.key == *key);
            let row = own.map_or(then, |copy| &copy.bytes);
            // SAFETY: the buffer has room for as many rows as the limit of the request, of so many bytes each.
            unsafe {
                let to = request.buffer.add(number * length.next_multiple_of(8));
                to.copy_from(row[offset..].as_ptr(), length);
            }
        }
    }

    fn try_issue(&mut self, cp: &mut Option<Answer>, request: Request) -> bool {
        if self.issued == self.issues.len() {
            return false;
        }
        self.issue(cp, request);
        true
    }

    fn answer(&mut self, cps: &mut [Option<Answer>], cp: usize) -> Answer {
        cps[cp].expect("a DB instruction precedes its RET")
    }

    unsafe fn keep(&mut self, _: *mut u8, _: u32, _: u32) {}
}

/// Runs the logic on `block` and `copies`. Returns how it ended, and the registers, rows by their hardware addresses.
pub(crate) fn interpret(
    verified: &Verified,
    block: &mut [u8],
    issues: &[Issue],
    copies: &mut HashMap<u64, Copy>,
) -> (Ending, Vec<i64>) {
    let program = Program::new(verified);
    let mut registers = vec![0_i64; program.gp_registers()];
    let mut cps = vec![None; program.cp_registers()];
    let mut host = Answers { verified, issues, issued: 0, copies };
    let mut context = Context::default();
    // SAFETY: the windows are as wide as the program says, the block is a whole one, and handles are addresses of
    // copies, which stay where they are.
    let stop = unsafe { run(&program, &mut context, &mut registers, &mut cps, block.as_mut_ptr(), &mut host) };
    let addresses: HashMap<u64, u64> = copies.iter().map(|(&at, copy)| (copy.bytes.as_ptr() as u64, at)).collect();
    for register in &mut registers {
        *register = addresses.get(&(*register as u64)).map_or(*register, |&address| address as i64);
    }
    let ending = match stop {
        Stop::Committed => Ending::Committed,
        Stop::Aborted(code) => Ending::Aborted(code),
        // What was not issued was not, because a conflict was known.
        Stop::Conflict | Stop::Waiting => Ending::Conflict,
        Stop::Failed(code) => Ending::Failed(code),
    };
    (ending, registers)
}
