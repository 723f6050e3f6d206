//! Fragments on random straight procedures: run apart, row by row in any order, they do what the whole does.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::build::*;
use super::model::{self, Database};
use crate::access::{AccessSet, Straight, access_set};
use crate::isa::{Instruction, Opcode};
use crate::verified::Verified;

/// What is done with the row of an access.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// To result word n.
    CopyOut(u32),
    /// From argument 8 or so, where a checked argument says.
    CopyIn(u32),
    /// Within the row.
    Exchange,
    /// Out to scratch word n, and back into the row.
    Through(u32),
    /// From another access's row.
    From(usize),
    /// A constant to result word n.
    Note(u32),
}

#[derive(Clone, Debug)]
struct Plan {
    /// Slot, and whether it writes.
    accesses: Vec<(u8, bool)>,
    /// In the order of the code: of which access, and what.
    work: Vec<(usize, Work)>,
}

fn work() -> impl Strategy<Value = Work> {
    prop_oneof![
        4 => (0..24_u32).prop_map(Work::CopyOut),
        4 => (8..11_u32).prop_map(Work::CopyIn),
        2 => Just(Work::Exchange),
        2 => (0..24_u32).prop_map(Work::Through),
        1 => (0..6_usize).prop_map(Work::From),
        1 => (0..24_u32).prop_map(Work::Note),
    ]
}

fn plan() -> impl Strategy<Value = Plan> {
    let accesses = proptest::collection::vec((0..2_u8, any::<bool>()), 1..6);
    let work = proptest::collection::vec((0..6_usize, work()), 0..8);
    (accesses, work, any::<bool>()).prop_map(|(accesses, mut work, sorted)| {
        work.iter_mut().for_each(|(access, _)| *access %= accesses.len());
        if sorted {
            work.sort_by_key(|&(access, _)| access);
        }
        Plan { accesses, work }
    })
}

/// All accesses, all RETs, all work; register 1 + i is the row of access i.
fn program(plan: &Plan) -> Verified {
    let count = plan.accesses.len();
    let mut code = Vec::new();
    let mut sure = Vec::new();
    for (i, &(slot, writes)) in plan.accesses.iter().enumerate() {
        let opcode = if writes { Opcode::Update } else { Opcode::Search };
        code.push(db(opcode, i as u8, slot, argument(i as u32)));
    }
    code.extend((0..count as u8).rev().map(|i| ret(1 + i, i)));
    for &(access, work) in &plan.work {
        let (row, writes) = (1 + access as u8, plan.accesses[access].1);
        match work {
            Work::CopyOut(word) => code.push(copy_out(result(word), row, DATA, 0, 64)),
            Work::CopyIn(word) if writes => {
                code.extend([load(20, argument(7), 0, 1), constant(Opcode::Check, 0, 20, 4)]);
                sure.push(code.len());
                code.extend([constant(Opcode::Muli, 20, 20, 8), copy_in(row, DATA, 20, argument(word), 40)]);
            }
            Work::Exchange if writes => {
                code.extend([loadr(21, row, A), loadr(22, row, B), storer(21, row, B), storer(22, row, A)]);
            }
            Work::Through(word) if writes => {
                code.extend([copy_out(scratch(word), row, A, 0, 16), copy_in(row, DATA + 8, 0, scratch(word), 8)]);
            }
            Work::From(other) if writes => {
                let other = 1 + (other % count) as u8;
                let whole =
                    Instruction { b: row, c: other, x: DATA, y: DATA, w: 64, ..Instruction::new(Opcode::CopyRr) };
                code.push(whole);
            }
            Work::Note(word) => code.extend([movi(23, 42), store(23, result(word), 0)]),
            _ => code.push(copy_out(result(0), row, A, 0, 8)),
        }
    }
    code.push(commit());
    verified_with(&code, &sure)
}

fn straight(verified: &Verified) -> Straight {
    match access_set(verified) {
        AccessSet::Straight(straight) => straight,
        other => panic!("not straight: {other:?}"),
    }
}

fn database(verified: &Verified) -> Database {
    let rows = (0..2_u8).flat_map(|slot| (0..3_i64).map(move |value| (slot, value)));
    rows.map(|(slot, value)| {
        let row = model::row(verified, slot, 10 * value + i64::from(slot), 5 - value);
        ((slot, model::key(verified, slot, value)), row)
    })
    .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn fragments_run_row_by_row_do_what_the_whole_does(
        plan in plan(),
        keys in proptest::collection::vec(0..3_i64, 7),
        field in 0..4_i64,
        seed: u64,
    ) {
        let verified = program(&plan);
        let set = straight(&verified);
        let mut arguments = keys;
        arguments.extend([field, 111, 222, 333, 444, 555, 666, 777, 888]);
        let mut whole = (database(&verified), block(&arguments));
        let run = model::execute(&verified, &verified.procedure.code, &mut whole.0, &mut whole.1);
        prop_assert!(run.committed && set.checks.iter().all(|check| check.passes(&whole.1)));

        for &(access, offset, length, write) in &run.touches {
            let covers = |touch: &crate::access::Touch| {
                let start = touch.start(&whole.1);
                let end = start + i64::from(touch.length);
                touch.write == write && start <= offset.into() && end >= i64::from(offset + length)
            };
            prop_assert!(set.accesses[access].touches.iter().any(covers));
        }

        let Some(fragments) = &set.fragments else { return Ok(()) };
        let mut by_row: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (index, access) in run.accesses.iter().enumerate() {
            by_row.entry((crate::key::mix(access.key.hash() ^ u64::from(access.slot) ^ seed), access.slot, access.key))
                .or_default().push(index);
        }
        let order: Vec<usize> = by_row.into_values().flatten().collect();
        let mut apart = (database(&verified), block(&arguments));
        for &index in &order {
            let part = model::execute(&verified, &fragments[index].code, &mut apart.0, &mut apart.1);
            prop_assert!(part.committed);
            prop_assert_eq!(&part.accesses, &[run.accesses[index]]);
        }
        prop_assert_eq!(&apart, &whole);

        let Some(moves) = &set.moves else { return Ok(()) };
        let mut moved = (database(&verified), block(&arguments));
        for index in order {
            let access = run.accesses[index];
            let row = moved.0.get_mut(&(access.slot, access.key)).expect("it was found before");
            for piece in &moves[index] {
                let start = i64::from(piece.row_offset) + piece.index.map_or(0, |index| index.value(&moved.1));
                let in_row = &mut row[start as usize..][..piece.length as usize];
                let in_block = &mut moved.1[piece.block_offset as usize..][..piece.length as usize];
                if piece.write { in_row.copy_from_slice(in_block) } else { in_block.copy_from_slice(in_row) }
            }
        }
        prop_assert_eq!(moved, whole);
    }

    /// Work in access order, none of it across rows, each result by one access: always separable.
    #[test]
    fn work_in_access_order_on_places_of_its_own_is_separable(plan in plan()) {
        let mut plan = plan;
        plan.work.sort_by_key(|&(access, _)| access);
        plan.work.retain(|&(access, ref work)| match work {
            Work::CopyIn(_) | Work::Exchange => plan.accesses[access].1,
            _ => false,
        });
        let copies = plan.work.iter().all(|(_, work)| matches!(work, Work::CopyIn(_)));
        let set = straight(&program(&plan));
        prop_assert!(set.fragments.is_some());
        prop_assert!(set.moves.is_some() || !copies);
    }
}
