//! Every register written in every state of the machine: what the register map allows is taken, everything else is
//! refused with an error, and changes nothing. And what the counters count.

use lockwork_conformance::engines::{Random, fill, prepared};
use lockwork_fpga::driver::Settings;
use lockwork_fpga::memory::Behaviour;
use lockwork_fpga::registers as at;

use super::machine::Shared;

const SUBMIT: u64 = 0x1_0000;
const COMPLETE: u64 = 0x1_1000;
const BLOCK: u64 = 0x2_0000;

/// Where writes are let, by the numbers of the states.
const STOPPED: u32 = 1 << at::STATE_STOPPED;
const RUNNING: u32 = 1 << at::STATE_RUNNING;
const ANY: u32 = 0x3F;
const NOT_RESETTING: u32 = ANY & !(1 << at::STATE_RESETTING);

/// Register, a value that means something and is not there, and the states in which it can be written.
const REGISTERS: [(u32, u32, u32); 19] = [
    (at::MODE, 1, STOPPED),
    (at::MAX_INFLIGHT, 7, STOPPED),
    (at::MAX_RETRIES, 9, STOPPED),
    (at::WATCHDOG, 0, STOPPED),
    (at::UNDO_BYTES, 32, STOPPED),
    (at::INTERRUPT, 2, ANY),
    (at::CONFIG_ADDR, 5, STOPPED),
    (at::CONFIG_LOW, 6, STOPPED),
    (at::CONFIG_HIGH, 7, STOPPED),
    (at::WORKER + at::SUBMIT_LOW, 0x3_0000, STOPPED),
    (at::WORKER + at::SUBMIT_HIGH, 1, STOPPED),
    (at::WORKER + at::SUBMIT_SIZE, 5, STOPPED),
    (at::WORKER + at::SUBMIT_HEAD, 2, STOPPED | RUNNING),
    (at::WORKER + at::COMPLETE_LOW, 0x3_0000, STOPPED),
    (at::WORKER + at::COMPLETE_HIGH, 1, STOPPED),
    (at::WORKER + at::COMPLETE_SIZE, 5, STOPPED),
    (at::WORKER + at::COMPLETE_TAIL, 0, NOT_RESETTING),
    (at::WORKER + at::UNDO_LOW, 0x40, STOPPED),
    (at::WORKER + at::UNDO_HIGH, 1, STOPPED),
];

/// Commands and the states in which they mean something.
const COMMANDS: [(u32, u32); 5] = [
    (at::CONTROL_RUN, STOPPED),
    (at::CONTROL_STOP, RUNNING | 1 << at::STATE_DRAINING),
    (at::CONTROL_DRAIN, RUNNING),
    (at::CONTROL_RESET, ANY),
    (at::CONTROL_CLEAR, STOPPED),
];

fn state(card: &Shared) -> u32 {
    card.read(at::STATUS) & at::STATUS_STATE
}

fn until_stopped(card: &Shared) {
    for _ in 0..2_000 {
        if state(card) == at::STATE_STOPPED {
            return;
        }
        card.wait();
    }
    panic!("it does not stop, state {}", state(card));
}

/// A machine that was reset and set up, in this state. All but a stopped one stay there because memory holds an answer
/// back: the transaction that runs asks for its block.
fn in_state(card: &Shared, wanted: u32) {
    card.behave(Behaviour::paper());
    card.write(at::CONTROL, at::CONTROL_RESET);
    until_stopped(card);
    card.write(at::ERROR, 0xFF);
    let registers = [
        (at::MODE, 0),
        (at::MAX_INFLIGHT, 0),
        (at::MAX_RETRIES, 3),
        (at::WATCHDOG, 1000),
        (at::UNDO_BYTES, 64),
        (at::INTERRUPT, 0),
        (at::CONFIG_ADDR, 0),
        (at::WORKER + at::SUBMIT_LOW, SUBMIT as u32),
        (at::WORKER + at::SUBMIT_HIGH, 0),
        (at::WORKER + at::SUBMIT_SIZE, 3),
        (at::WORKER + at::COMPLETE_LOW, COMPLETE as u32),
        (at::WORKER + at::COMPLETE_HIGH, 0),
        (at::WORKER + at::COMPLETE_SIZE, 3),
        (at::WORKER + at::UNDO_LOW, 0x8000),
        (at::WORKER + at::UNDO_HIGH, 0),
    ];
    registers.into_iter().for_each(|(offset, value)| card.write(offset, value));
    assert_eq!((card.read(at::ERROR), state(card)), (0, at::STATE_STOPPED));
    card.write_word(SUBMIT, BLOCK);
    // There is no such procedure.
    card.write_word(BLOCK, 60);
    if wanted == at::STATE_STOPPED {
        return;
    }
    if wanted == at::STATE_CLEARING {
        card.write(at::CONTROL, at::CONTROL_CLEAR);
        return;
    }
    card.behave(Behaviour { late_request: Some((2, 20_000)), ..Behaviour::paper() });
    card.write(at::WORKER + at::SUBMIT_HEAD, 1);
    card.write(at::CONTROL, at::CONTROL_RUN);
    (0..5).for_each(|_| card.wait());
    match wanted {
        at::STATE_STOPPING => card.write(at::CONTROL, at::CONTROL_STOP),
        at::STATE_DRAINING => card.write(at::CONTROL, at::CONTROL_DRAIN),
        at::STATE_RESETTING => card.write(at::CONTROL, at::CONTROL_RESET),
        _ => {}
    }
    assert_eq!(state(card), wanted);
}

#[test]
fn the_counters_tell_what_was_done() {
    let Some(card) = Shared::new(Behaviour::paper()) else { return };
    let mut engine = prepared(&|| Ok(card.engine(Settings::default())), false);
    let counters = [at::TRANSACTIONS, at::DB_INSTRUCTIONS, at::MEMORY_WORDS, at::CONFLICTS, at::PARKS];
    // Deposits to one account, and what the counters have counted of them.
    let mut deposits = |calls: usize| {
        engine.start().unwrap();
        let before = counters.map(|counter| card.read(at::WORKER + counter));
        let mut batch = fill(&*engine, &mut Random(1), &["deposit"], calls);
        (0..calls).for_each(|call| batch.block_mut(call).bytes()[32..40].copy_from_slice(&12_i64.to_le_bytes()));
        engine.submit(batch).unwrap();
        engine.complete().unwrap().unwrap();
        let after = counters.map(|counter| card.read(at::WORKER + counter));
        std::array::from_fn(|counter| after[counter].wrapping_sub(before[counter]))
    };
    let [transactions, db, memory, conflicts, parks] = deposits(1);
    assert_eq!((transactions, db, conflicts, parks), (1, 1, 0, 0));
    // Of the block its header, a parameter and a result; of the index a head; of the row key and balance.
    assert!(memory > 6, "{memory}");
    let [transactions, db, _, conflicts, parks] = deposits(12);
    assert_eq!((transactions, db), (12, 12 + conflicts));
    // The first has the row while the others come.
    assert!(parks > 0 && parks <= db, "{parks} of {db}");
}

#[test]
fn every_write_of_the_host_in_every_state_is_taken_or_refused_as_the_map_says() {
    let Some(card) = Shared::new(Behaviour::paper()) else { return };
    let mut refused = 0;
    for wanted in 0..6 {
        for (offset, value, states) in REGISTERS {
            in_state(&card, wanted);
            let before = card.read(offset);
            card.write(offset, value);
            let what = format!("state {wanted}, register {offset:#x}");
            if states >> wanted & 1 == 1 {
                assert_eq!(card.read(at::ERROR), 0, "{what}");
                if offset != at::CONFIG_HIGH {
                    assert_eq!(card.read(offset), value, "{what}");
                }
            } else {
                assert_eq!((card.read(at::ERROR), card.read(at::REFUSED)), (at::ERROR_STATE, offset), "{what}");
                assert_eq!(card.read(offset), before, "{what}: it has changed");
                refused += 1;
            }
        }
        for (command, states) in COMMANDS {
            in_state(&card, wanted);
            card.write(at::CONTROL, command);
            let what = format!("state {wanted}, command {command:#x}");
            let error = if states >> wanted & 1 == 1 { 0 } else { at::ERROR_STATE };
            assert_eq!(card.read(at::ERROR), error, "{what}");
            refused += u32::from(error != 0);
        }
    }
    assert!(refused > 90, "{refused}");
    // And after all of it: the block is completed, as one of no procedure.
    in_state(&card, at::STATE_STOPPED);
    card.write(at::WORKER + at::SUBMIT_HEAD, 1);
    card.write(at::CONTROL, at::CONTROL_RUN);
    card.write(at::CONTROL, at::CONTROL_DRAIN);
    until_stopped(&card);
    let expected =
        at::COMPLETION_PHASE | 3 << at::COMPLETION_STATUS_SHIFT | 0xFF20 << at::COMPLETION_CODE_SHIFT | BLOCK;
    assert_eq!(card.read_word(COMPLETE), expected);
    assert_eq!(card.read(at::ERROR), 0);
}
