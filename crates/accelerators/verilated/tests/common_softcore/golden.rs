//! The interpreter over a copy of the world: what the hardware must have done.

use lockwork_procedure::access::Operation;
use lockwork_procedure::block::abort;
use lockwork_procedure::interpreter::{Answer, Context, Host, Program, Request, Stop, run};
use lockwork_procedure::verified::Verified;

use super::world::{Found, World};

/// No register has this value unless nobody wrote it.
pub(crate) const UNTOUCHED: i64 = 0x5EED_5EED_0BAD_F00D;

struct Exclusive<'a> {
    world: &'a mut World,
    undo: Vec<(usize, Vec<u8>)>,
    inserted: Vec<usize>,
    removed: Vec<usize>,
}

impl Host for Exclusive<'_> {
    type Cp = Option<Answer>;

    fn issue(&mut self, cp: &mut Option<Answer>, request: Request) {
        let base = self.world.bytes.as_ptr() as usize;
        let (table, at) = (usize::from(request.slot), request.key as usize - base);
        let image = self.world.image(table, at);
        let (found, code) = match request.operation {
            Operation::Search | Operation::Update => (self.world.find(table, &image), abort::NOT_FOUND),
            Operation::Insert => (self.world.insert(table, &image), abort::DUPLICATE_KEY),
            Operation::Remove => (self.world.find(table, &image), abort::NOT_FOUND),
            Operation::Scan => {
                let buffer = request.buffer as usize - base;
                let column = usize::from(request.column);
                *cp = Some(Answer::Ready(self.world.scan(table, &image, request.limit as usize, column, buffer)));
                return;
            }
        };
        *cp = Some(match found {
            Found::Missing => Answer::Missing(code),
            Found::Ready(row) => match request.operation {
                Operation::Remove => {
                    self.removed.push(row as usize);
                    Answer::Ready(0)
                }
                operation => {
                    if operation == Operation::Insert {
                        self.inserted.push(row as usize);
                    }
                    Answer::Ready(base as u64 + row)
                }
            },
        });
    }

    fn answer(&mut self, cps: &mut [Option<Answer>], cp: usize) -> Answer {
        cps[cp].unwrap()
    }

    unsafe fn keep(&mut self, row: *mut u8, offset: u32, length: u32) {
        let at = row as usize - self.world.bytes.as_ptr() as usize + offset as usize;
        self.undo.push((at, self.world.bytes[at..at + length as usize].to_vec()));
    }
}

/// Executes a block to its end. Returns status and code, and its registers.
pub(crate) fn execute(world: &mut World, verified: &Verified, block: usize) -> (u8, u16, Vec<i64>) {
    let program = Program::new(verified);
    let mut registers = vec![UNTOUCHED; 256];
    registers[0] = 0;
    let mut cps = vec![None; 256];
    let layout = verified.procedure().layout();
    let base = world.bytes.as_mut_ptr();
    let at = base.wrapping_add(block);
    let mut host = Exclusive { world, undo: Vec::new(), inserted: Vec::new(), removed: Vec::new() };
    // SAFETY: the block lies in the world's bytes, as the rows do whose addresses the host gives out.
    let stop = unsafe { run(&program, &mut Context::at(0), &mut registers, &mut cps, at, &mut host) };
    let Exclusive { undo, inserted, removed, .. } = host;
    match stop {
        Stop::Committed => {
            removed.into_iter().for_each(|row| world.bytes[row + 7] = 0);
            // SAFETY: as above.
            unsafe { program.run_commit_handler(&mut registers, at) };
            (1, 0, registers)
        }
        Stop::Aborted(code) => {
            for (at, bytes) in undo.into_iter().rev() {
                world.bytes[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            inserted.into_iter().for_each(|row| world.bytes[row + 7] = 0);
            let end = layout.block_bytes.next_multiple_of(8) as usize;
            world.bytes[block + layout.results_start as usize..block + end].fill(0);
            // SAFETY: as above.
            unsafe { program.run_abort_handler(&mut registers, at) };
            (2, code, registers)
        }
        stop => panic!("{stop:?}"),
    }
}
