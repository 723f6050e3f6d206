//! The procedures that people write, and what their access sets are.

use super::build::*;
use super::model;
use crate::access::*;
use crate::isa::{Instruction, Opcode, SIGNED};

fn straight(logic: &[Instruction]) -> Straight {
    match access_set(&verified(logic)) {
        AccessSet::Straight(straight) => straight,
        other => panic!("not straight: {other:?}"),
    }
}

fn sliced(logic: &[Instruction]) -> Slice {
    match access_set(&verified(logic)) {
        AccessSet::Sliced(slice) => slice,
        other => panic!("not sliced: {other:?}"),
    }
}

fn dependence(logic: &[Instruction]) -> Dependence {
    match access_set(&verified(logic)) {
        AccessSet::Dependent(dependence) => dependence,
        other => panic!("not dependent: {other:?}"),
    }
}

/// The accesses of a call, with integers for keys.
fn collected(slice: &Slice, arguments: &[i64]) -> Vec<(Operation, u8, i64)> {
    let mut block = block(arguments);
    block[SCRATCH as usize - 1] = 77;
    let before = block.clone();
    let mut out = Vec::new();
    slice.collect(&block, &mut out);
    assert_eq!(block, before, "collecting leaves the block alone");
    out.iter().map(|access| (access.operation, access.slot, (access.key.0[0] ^ 1 << 63) as i64)).collect()
}

/// `count` accesses, then as many RETs, then as many copies: argument i is key i, and 16 + i the field.
fn ycsb(count: u8, indexed: bool) -> Vec<Instruction> {
    let operation = |i: u8| if i.is_multiple_of(2) { Opcode::Search } else { Opcode::Update };
    let mut code: Vec<_> = (0..count).map(|i| db(operation(i), i, 0, argument(i.into()))).collect();
    code.extend((0..count).map(|i| ret(1 + i, i)));
    for i in 0..count {
        let row = 1 + i;
        let mut index = 0;
        if indexed {
            index = 20;
            code.push(load(index, argument(16 + u32::from(i)), 0, 1));
            code.push(constant(Opcode::Check, 0, index, 2));
            code.push(constant(Opcode::Muli, index, index, 32));
        }
        let length = if indexed { 32 } else { 64 };
        code.push(match operation(i) {
            Opcode::Search => copy_out(result(u32::from(i)), row, DATA, index, 8),
            _ => copy_in(row, DATA, index, argument(8), length),
        });
    }
    code.push(commit());
    code
}

/// What the verifier proves of [`ycsb`]: multiplying the checked field does not overflow.
fn ycsb_sure(code: &[Instruction]) -> Vec<usize> {
    (0..code.len()).filter(|&pc| code[pc].opcode == Opcode::Muli).collect()
}

#[test]
fn a_single_read_is_a_constant_and_its_own_fragment() {
    let set = straight(&ycsb(1, false));
    assert_eq!(
        set.accesses,
        [Access {
            pc: 0,
            cp: 0,
            operation: Operation::Search,
            slot: 0,
            key_offset: argument(0),
            limit: 0,
            ret: Some(1),
            touches: vec![Touch { offset: DATA, index: None, length: 8, write: false }],
        }]
    );
    assert_eq!(set.fragments, Some(vec![Fragment { code: ycsb(1, false) }]));
    assert!(!set.branches_after && set.checks.is_empty());
}

#[test]
fn sixteen_accesses_with_computed_fields_are_separable_and_their_checks_are_planned() {
    let code = ycsb(16, true);
    let verified = verified_with(&code, &ycsb_sure(&code));
    let AccessSet::Straight(set) = access_set(&verified) else { panic!("not straight") };
    assert_eq!(set.accesses.len(), 16);
    let field = ArgumentIndex { offset: argument(19), width: 1, scale: 32 };
    let touch = Touch { offset: DATA, index: Some(field), length: 32, write: true };
    assert_eq!(set.accesses[3].touches, [touch]);
    let one = ArgumentIndex { scale: 1, ..field };
    assert_eq!(set.checks[3], ArgumentCheck { argument: one, base: 0, limit: 2, pc: 32 + 3 * 4 + 1 });
    let fragments = set.fragments.as_ref().expect("separable");
    assert_eq!(
        fragments[3].code,
        [
            db(Opcode::Update, 0, 0, argument(3)),
            ret(4, 0),
            load(20, argument(19), 0, 1),
            constant(Opcode::Muli, 20, 20, 32),
            copy_in(4, DATA, 20, argument(8), 32),
            commit(),
        ]
    );
    let moves = set.moves.as_ref().expect("it only copies");
    let row_offset = DATA;
    let piece = Move { row_offset, index: Some(field), block_offset: argument(8), length: 32, write: true };
    assert_eq!(moves[3], [piece]);
    let mut arguments = vec![0; 20];
    arguments[19] = 1;
    assert_eq!(touch.start(&block(&arguments)), 96);
    assert!(set.checks[3].passes(&block(&arguments)));
    arguments[19] = 2;
    assert!(!set.checks[3].passes(&block(&arguments)));
    let text = explain(&verified, &AccessSet::Straight(set));
    assert!(text.contains("straight, 16 accesses, separable"), "{text}");
    assert!(text.contains("update (exclusive)   alpha key argument[3]; writes 32 bytes at 64 + 32 * u8 argument[19]"));
    assert!(text.contains("check 0 <= u8 argument[19] < 2"), "{text}");
}

#[test]
fn arithmetic_that_may_overflow_is_not_separable() {
    let code = ycsb(4, true);
    assert!(straight(&code).fragments.is_none());
}

/// Takes argument 2 from one account and gives it to another, or aborts.
fn transfer() -> Vec<Instruction> {
    vec![
        db(Opcode::Update, 0, 0, argument(0)),
        db(Opcode::Update, 1, 0, argument(1)),
        ret(1, 0),
        ret(2, 1),
        load(3, argument(2), 0, 8),
        loadr(4, 1, A),
        cmp(4, 3),
        to(Opcode::Bl, 14),
        binary(Opcode::Sub, 4, 4, 3),
        storer(4, 1, A),
        loadr(5, 2, A),
        binary(Opcode::Add, 5, 5, 3),
        storer(5, 2, A),
        commit(),
        abort(1),
    ]
}

#[test]
fn a_transfer_is_straight_with_branches_after_and_knows_its_touches() {
    let set = straight(&transfer());
    assert!(set.branches_after && set.fragments.is_none());
    let piece = |write| Touch { offset: A, index: None, length: 8, write };
    assert_eq!(set.accesses[0].touches, [piece(false), piece(true)]);
    assert_eq!(set.accesses[1].touches, [piece(false), piece(true)]);
}

#[test]
fn a_row_awaited_behind_a_branch_is_still_touched_where_it_is() {
    let set = straight(&[
        db(Opcode::Search, 0, 0, argument(0)),
        load(3, argument(1), 0, 8),
        constant(Opcode::Cmpi, 0, 3, 5),
        to(Opcode::Be, 4),
        ret(1, 0),
        copy_out(result(0), 1, DATA, 0, 16),
        commit(),
    ]);
    assert_eq!(set.accesses[0].touches, [Touch { offset: DATA, index: None, length: 16, write: false }]);
    assert_eq!(set.accesses[0].ret, None);
}

#[test]
fn an_index_that_is_no_argument_touches_the_whole_row() {
    let set = straight(&[
        db(Opcode::Search, 0, 0, argument(0)),
        ret(1, 0),
        loadr(2, 1, A),
        constant(Opcode::Check, 0, 2, 8),
        copy_out(result(0), 1, DATA, 2, 8),
        commit(),
    ]);
    assert_eq!(set.accesses[0].touches[1], Touch { offset: 0, index: None, length: 128, write: false });
    assert!(set.checks.is_empty() && set.fragments.is_none(), "the check is about the row");
}

#[test]
fn signs_and_sums_of_an_argument_are_followed() {
    let set = straight(&[
        db(Opcode::Search, 0, 0, argument(0)),
        ret(1, 0),
        load(2, argument(1), 0, 2 | SIGNED),
        constant(Opcode::Muli, 3, 2, 3),
        binary(Opcode::Add, 3, 3, 2),
        constant(Opcode::Subi, 3, 3, -8),
        constant(Opcode::Check, 0, 3, 57),
        copy_out(result(0), 1, DATA, 3, 8),
        commit(),
    ]);
    let argument_index = ArgumentIndex { offset: argument(1), width: 2 | SIGNED, scale: 4 };
    assert_eq!(
        set.accesses[0].touches,
        [Touch { offset: DATA + 8, index: Some(argument_index), length: 8, write: false }]
    );
    let check = &set.checks[0];
    assert_eq!((check.argument, check.base), (argument_index, 8));
    assert!(check.passes(&block(&[0, -2])) && !check.passes(&block(&[0, -3])) && !check.passes(&block(&[0, 13])));
}

#[test]
fn values_that_meet_are_not_separable() {
    let two = |tail: &[Instruction]| {
        let mut code =
            vec![db(Opcode::Update, 0, 0, argument(0)), db(Opcode::Update, 1, 1, argument(1)), ret(1, 0), ret(2, 1)];
        code.extend_from_slice(tail);
        code.push(commit());
        straight(&code).fragments
    };
    assert!(two(&[loadr(3, 1, A), storer(3, 1, B), loadr(3, 2, A), storer(3, 2, B)]).is_some());
    assert!(two(&[loadr(3, 1, A), storer(3, 2, B)]).is_none(), "through a register");
    let through_block = [copy_out(scratch(0), 1, DATA, 0, 64), copy_in(2, DATA, 0, scratch(7), 8)];
    assert!(two(&through_block).is_none(), "through scratch");
    assert!(two(&[copy_out(result(0), 1, A, 0, 8), copy_out(result(0), 2, A, 0, 8)]).is_none(), "both write it");
    assert!(two(&[copy_in(2, A, 0, scratch(0), 8), copy_out(scratch(0), 1, A, 0, 8)]).is_none(), "read, then written");
    assert!(two(&[copy_out(scratch(0), 1, A, 0, 8), copy_in(1, B, 0, scratch(0), 8)]).is_some(), "its own");
}

#[test]
fn rows_that_may_be_the_same_must_be_touched_in_access_order() {
    let pair = |tail: [Instruction; 2], second: Opcode| {
        let code = [
            db(Opcode::Search, 0, 0, argument(0)),
            db(second, 1, 0, argument(1)),
            ret(1, 0),
            ret(2, 1),
            tail[0],
            tail[1],
            commit(),
        ];
        straight(&code).fragments.is_some()
    };
    let (out, into) = (copy_out(result(0), 1, A, 0, 8), copy_in(2, A, 0, argument(2), 8));
    assert!(pair([out, into], Opcode::Update));
    assert!(!pair([into, out], Opcode::Update), "the later access writes first");
    let other = copy_out(result(1), 2, A, 0, 8);
    assert!(pair([other, out], Opcode::Search), "two readers never mind");
}

#[test]
fn a_loop_computes_its_keys_in_scratch_beside_its_results() {
    let code = [
        movi(1, 0),
        // 1: key = argument 0 + 10 * i
        load(2, argument(0), 0, 8),
        constant(Opcode::Muli, 3, 1, 10),
        binary(Opcode::Add, 2, 2, 3),
        store(2, scratch(0), 0),
        db(Opcode::Search, 0, 1, scratch(0)),
        ret(4, 0),
        constant(Opcode::Muli, 5, 1, 8),
        Instruction { d: 5, ..copy_out(result(0), 4, A, 0, 8) },
        constant(Opcode::Addi, 1, 1, 1),
        constant(Opcode::Cmpi, 0, 1, 4),
        to(Opcode::Bl, 1),
        commit(),
    ];
    let slice = sliced(&code);
    let expected: Vec<_> = (0..4).map(|i| (Operation::Search, 1, 7 + 10 * i)).collect();
    assert_eq!(collected(&slice, &[7]), expected);
    assert_eq!(slice.instructions(), 10, "what fills the results is left out: {slice:?}");
    let text = explain(&verified(&code), &AccessSet::Sliced(slice));
    assert!(text.contains("search (shared)      beta key computed"), "{text}");
}

#[test]
fn an_argument_says_how_often_a_loop_runs_and_a_failed_check_ends_collection() {
    let code = [
        load(1, argument(0), 0, 8),
        constant(Opcode::Check, 0, 1, 4),
        movi(2, 0),
        // 3:
        constant(Opcode::Muli, 3, 2, 8),
        Instruction { c: 3, ..db(Opcode::Update, 0, 0, argument(1)) },
        ret(4, 0),
        constant(Opcode::Addi, 2, 2, 1),
        cmp(2, 1),
        to(Opcode::Ble, 3),
        commit(),
    ];
    let slice = sliced(&code);
    let update = |key| (Operation::Update, 0, key);
    assert_eq!(collected(&slice, &[1, 5, 6, 7]), [update(5), update(6)]);
    assert_eq!(collected(&slice, &[9, 5, 6, 7]), []);
}

#[test]
fn a_key_from_a_column_is_dependent_and_named() {
    let code = [
        db(Opcode::Search, 0, 0, argument(0)),
        ret(1, 0),
        loadr(2, 1, A),
        store(2, scratch(0), 0),
        db(Opcode::Search, 0, 1, scratch(0)),
        ret(1, 0),
        commit(),
    ];
    assert_eq!(dependence(&code), Dependence { pc: 4, reason: Reason::Key });
    let text = explain(&verified(&code), &access_set(&verified(&code)));
    assert!(text.contains("dependent, because of 'search' at instruction 4: its key is computed"), "{text}");
    let copied = Instruction { y: A, c: 1, x: scratch(0), w: 8, ..Instruction::new(Opcode::CopyBr) };
    let code = [code[0], code[1], copied, code[4], code[5], commit()];
    assert_eq!(dependence(&code), Dependence { pc: 3, reason: Reason::Key });
}

/// Search, compare a column with 3, do `between` only if it is less, then search again with key argument 1.
fn around(between: &[Instruction]) -> Vec<Instruction> {
    let mut code = vec![
        db(Opcode::Search, 0, 0, argument(0)),
        ret(1, 0),
        load(6, argument(1), 0, 8),
        loadr(2, 1, A),
        constant(Opcode::Cmpi, 0, 2, 3),
        to(Opcode::Bge, 6 + between.len()),
    ];
    code.extend_from_slice(between);
    code.extend([store(6, scratch(0), 0), db(Opcode::Search, 1, 0, scratch(0)), ret(3, 1), commit()]);
    code
}

#[test]
fn a_decision_on_a_row_around_no_access_is_skipped() {
    let code = around(&[store(2, result(0), 0), movi(2, 9)]);
    assert_eq!(collected(&sliced(&code), &[4, 5]), [(Operation::Search, 0, 4), (Operation::Search, 0, 5)]);
}

#[test]
fn what_a_skipped_part_assigns_is_not_known_afterwards() {
    let code = around(&[movi(6, 9)]);
    assert_eq!(dependence(&code), Dependence { pc: 8, reason: Reason::Key });
    let code = around(&[movi(7, 9), store(7, scratch(0), 0)]);
    assert_eq!(dependence(&code), Dependence { pc: 9, reason: Reason::Key }, "through memory, conservatively");
}

#[test]
fn a_decision_on_a_row_around_an_access_is_dependent() {
    let code = around(&[db(Opcode::Update, 2, 0, argument(2)), ret(4, 2)]);
    assert_eq!(dependence(&code), Dependence { pc: 6, reason: Reason::Control { branch: 5 } });
}

#[test]
fn a_decision_that_ends_the_transaction_is_forced() {
    let mut code = around(&[commit()]);
    assert_eq!(collected(&sliced(&code), &[4, 5]).len(), 2);
    code[1] = ret_else(1, 0, 10);
    code[7] = load(6, argument(1), 0, 8);
    code[8] = db(Opcode::Search, 1, 0, argument(1));
    assert_eq!(collected(&sliced(&code), &[4, 5]).len(), 2, "so is a RET with a label");
}

#[test]
fn a_loop_that_only_a_row_ends_is_dependent() {
    let code = [
        movi(1, 0),
        db(Opcode::Search, 0, 0, argument(0)),
        ret(2, 0),
        constant(Opcode::Addi, 1, 1, 1),
        load(4, argument(1), 0, 8),
        loadr(3, 2, A),
        cmp(1, 3),
        to(Opcode::Bl, 1),
        commit(),
    ];
    assert_eq!(dependence(&code), Dependence { pc: 1, reason: Reason::Loop { branch: 7 } });
}

#[test]
fn a_loop_left_early_for_a_row_collects_all_its_rounds() {
    let code = [
        movi(1, 0),
        constant(Opcode::Muli, 5, 1, 8),
        Instruction { c: 5, ..db(Opcode::Search, 0, 0, argument(0)) },
        ret(2, 0),
        loadr(3, 2, A),
        constant(Opcode::Cmpi, 0, 3, 0),
        to(Opcode::Be, 10),
        constant(Opcode::Addi, 1, 1, 1),
        constant(Opcode::Cmpi, 0, 1, 3),
        to(Opcode::Bl, 1),
        commit(),
    ];
    assert_eq!(collected(&sliced(&code), &[1, 2, 3]).len(), 3);
}

#[test]
fn a_loop_that_a_row_continues_is_dependent_even_if_an_argument_can_end_it() {
    let code = [
        db(Opcode::Search, 0, 0, argument(0)),
        ret(2, 0),
        load(4, argument(1), 0, 8),
        constant(Opcode::Cmpi, 0, 4, 3),
        to(Opcode::Be, 8),
        loadr(3, 2, A),
        constant(Opcode::Cmpi, 0, 3, 0),
        to(Opcode::Be, 0),
        commit(),
    ];
    assert_eq!(dependence(&code), Dependence { pc: 0, reason: Reason::Loop { branch: 7 } });
}

#[test]
fn rows_written_by_a_loop_that_counts_down_taint_what_they_can_reach_and_no_more() {
    let code = |key| {
        [
            db(Opcode::Search, 0, 0, argument(0)),
            ret(2, 0),
            movi(1, 40),
            Instruction { d: 1, ..copy_out(scratch(0), 2, A, 0, 8) },
            constant(Opcode::Subi, 1, 1, 8),
            constant(Opcode::Cmpi, 0, 1, 0),
            to(Opcode::Bge, 3),
            db(Opcode::Search, 0, 0, key),
            ret(2, 0),
            commit(),
        ]
    };
    for word in 0..6 {
        assert_eq!(dependence(&code(scratch(word))), Dependence { pc: 7, reason: Reason::Key }, "word {word}");
    }
    assert_eq!(collected(&sliced(&code(scratch(6))), &[4]).len(), 2);
    assert_eq!(
        collected(&sliced(&code(result(31))), &[4]),
        [(Operation::Search, 0, 4), (Operation::Search, 0, 77 << 56)]
    );
}

#[test]
fn a_copy_that_is_partly_of_what_the_slice_wrote_sees_it() {
    let code = [
        load(1, argument(0), 0, 8),
        store(1, scratch(1), 0),
        Instruction { x: scratch(10), y: scratch(0), w: 16, ..Instruction::new(Opcode::CopyBb) },
        db(Opcode::Search, 0, 0, scratch(11)),
        ret(2, 0),
        commit(),
    ];
    assert_eq!(collected(&sliced(&code), &[4]), [(Operation::Search, 0, 4)]);
}

#[test]
fn a_key_copied_from_a_computed_place_depends_on_what_computed_it() {
    let copy = Instruction { x: scratch(0), y: argument(1), e: 3, w: 8, ..Instruction::new(Opcode::CopyBb) };
    let search = [db(Opcode::Search, 1, 0, scratch(0)), ret(1, 1), commit()];
    let mut code = vec![load(2, argument(0), 0, 1), constant(Opcode::Muli, 3, 2, 8), copy];
    code.extend(search);
    assert_eq!(collected(&sliced(&code), &[2, 10, 20, 30]), [(Operation::Search, 0, 30)]);
    let mut code = vec![db(Opcode::Search, 0, 0, argument(0)), ret(1, 0), loadr(3, 1, A), copy];
    code.extend(search);
    assert_eq!(dependence(&code), Dependence { pc: 4, reason: Reason::Key });
}

#[test]
fn the_header_is_no_argument() {
    let code = [db(Opcode::Search, 0, 0, 8), ret(1, 0), commit()];
    assert_eq!(dependence(&code), Dependence { pc: 0, reason: Reason::Key });
}

#[test]
fn a_scan_is_an_access_and_what_it_delivers_is_a_row_value() {
    let scan = Instruction { w: 3, e: 2, y: scratch(0), ..db(Opcode::Scan, 0, 0, argument(0)) };
    let set = straight(&[scan, ret(1, 0), commit()]);
    assert_eq!((set.accesses[0].operation, set.accesses[0].limit), (Operation::Scan, 3));
    assert!(set.fragments.is_none() && set.accesses[0].touches.is_empty());
    let search = |key| db(Opcode::Search, 0, 0, key);
    let code = [scan, ret(1, 0), search(scratch(2)), ret(1, 0), commit()];
    assert_eq!(dependence(&code), Dependence { pc: 2, reason: Reason::Key });
    let code = [scan, ret(1, 0), store(0, scratch(3), 0), search(scratch(3)), ret(1, 0), commit()];
    assert_eq!(collected(&sliced(&code), &[4]), [(Operation::Scan, 0, 4), (Operation::Search, 0, 0)]);
}

#[test]
fn the_model_agrees_with_the_transfer() {
    let code = transfer();
    let verified = verified(&code);
    let mut database = model::Database::new();
    for (value, balance) in [(1, 10), (2, 20)] {
        database.insert((0, model::key(&verified, 0, value)), model::row(&verified, 0, balance, 0));
    }
    let run = model::execute(&verified, &code, &mut database, &mut block(&[1, 2, 3]));
    assert!(run.committed);
    let balance = |value| database[&(0, model::key(&verified, 0, value))][24];
    assert_eq!((balance(1), balance(2)), (7, 23));
}
