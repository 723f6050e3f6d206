//! One procedure that is accepted and one that is refused for every rule, and soundness on random programs.

use proptest::prelude::*;

use super::*;
use crate::block::{Batch, abort};
use crate::interpreter::{Answer, Context, Host, Program, Request, Stop, run};
use crate::isa::{Instruction, NO_LABEL, Opcode as O, SIGNED};
use crate::program::Field;
use crate::schema::{ColumnType, TableSchema};

fn tables() -> Vec<TableSchema> {
    let columns = [("id", ColumnType::I64), ("small", ColumnType::U8), ("text", ColumnType::Bytes(16))];
    vec![TableSchema::new("plain", &columns, 1, false).unwrap(), TableSchema::new("sorted", &columns, 1, true).unwrap()]
}

fn i(opcode: O) -> Instruction {
    Instruction::new(opcode)
}

/// A procedure with a 16-byte argument at 32, a 16-byte result at 48 and 64 bytes of scratch at 64.
fn procedure(logic: &[Instruction]) -> Procedure {
    let field = |name: &str, width, offset| Field {
        name: name.into(),
        column_type: ColumnType::Bytes(width),
        count: 1,
        offset,
    };
    let mut code = logic.to_vec();
    code.extend([i(O::Commit), i(O::Commit)]);
    Procedure {
        name: "p".into(),
        tables: vec!["plain".into(), "sorted".into()],
        parameters: vec![field("argument", 16, 32)],
        results: vec![field("result", 16, 48)],
        scratch: vec![field("scratch", 64, 64)],
        commit_handler: logic.len() as u32,
        abort_handler: logic.len() as u32 + 1,
        code,
    }
}

fn check(logic: &[Instruction]) -> Result<Verified, VerifyError> {
    verify(procedure(logic), tables().as_slice())
}

fn refused(logic: &[Instruction], at: u32, words: &str) {
    let error = check(logic).expect_err(words);
    assert_eq!(error.at.map(|(at, _)| at), Some(at), "{error}");
    assert!(error.to_string().contains(words), "'{error}' does not say '{words}'");
}

const SEARCH: Instruction = Instruction { x: 32, ..Instruction::new(O::Search) };
const UPDATE: Instruction = Instruction { x: 32, ..Instruction::new(O::Update) };
const RET: Instruction = Instruction { a: 1, x: NO_LABEL, ..Instruction::new(O::Ret) };
const LOAD: Instruction = Instruction { a: 2, w: 8, x: 32, ..Instruction::new(O::Load) };

#[test]
fn a_row_is_read_in_its_bounds_and_written_only_if_held_for_it() {
    let store = Instruction { a: 0, b: 1, w: 1, x: 24, ..i(O::Storer) };
    check(&[UPDATE, RET, store, i(O::Commit)]).unwrap();
    refused(&[SEARCH, RET, store, i(O::Commit)], 2, "held for reading");
    refused(&[UPDATE, RET, Instruction { x: 23, ..store }, i(O::Commit)], 2, "all but its key");
    refused(&[UPDATE, RET, Instruction { x: 41, ..store }, i(O::Commit)], 2, "bytes 41 to 42");
    refused(&[UPDATE, RET, Instruction { b: 0, ..store }, i(O::Commit)], 2, "handle of a row is needed");
    let copy = Instruction { c: 1, w: 16, x: 48, y: 25, ..i(O::CopyBr) };
    check(&[SEARCH, RET, copy, i(O::Commit)]).unwrap();
    refused(&[SEARCH, RET, Instruction { y: 26, ..copy }, i(O::Commit)], 2, "bytes 26 to 42");
    refused(&[SEARCH, RET, Instruction { x: 47, ..copy }, i(O::Commit)], 2, "to write");
}

#[test]
fn an_index_register_must_be_bounded() {
    let by = |check: i64| {
        let bound = Instruction { b: 2, ..i(O::Check) }.with_immediate(check);
        let load = Instruction { a: 3, c: 2, w: 8, x: 32, ..i(O::Load) };
        [LOAD, bound, load, i(O::Commit)]
    };
    check(&by(89)).unwrap();
    refused(&by(90), 2, "bound the index");
    refused(&by(0), 1, "at least 1");
}

#[test]
fn a_comparison_bounds_as_well_as_a_check() {
    let compare = Instruction { b: 2, ..i(O::Cmpi) };
    let away = |opcode, to| Instruction { x: to, ..i(opcode) };
    let load = Instruction { a: 3, c: 2, w: 8, x: 32, ..i(O::Load) };
    let logic = |limit| {
        let (low, high) = (compare.with_immediate(0), compare.with_immediate(limit));
        [LOAD, low, away(O::Bl, 6), high, away(O::Bg, 6), load, i(O::Commit)]
    };
    check(&logic(88)).unwrap();
    refused(&logic(89), 5, "bound the index");
}

#[test]
fn every_db_instruction_is_awaited_exactly_once_on_every_way() {
    refused(&[SEARCH, i(O::Commit)], 1, "c0 is still in flight");
    refused(&[SEARCH, RET, RET, i(O::Commit)], 2, "nothing is in flight in c0");
    refused(&[SEARCH, SEARCH, RET, i(O::Commit)], 1, "await it");
    let compare = Instruction { b: 2, ..i(O::Cmpi) };
    let skip = Instruction { x: 4, ..i(O::Be) };
    refused(&[LOAD, compare, skip, SEARCH, RET, i(O::Commit)], 4, "c0 waits for different answers");
    check(&[SEARCH, Instruction { w: 3, ..i(O::Abort) }]).unwrap();
    let to_label = Instruction { x: 3, ..RET };
    let use_row = Instruction { a: 2, b: 1, w: 1, x: 24, ..i(O::Loadr) };
    check(&[SEARCH, to_label, use_row, i(O::Commit)]).unwrap();
    let jump = Instruction { x: 2, ..RET };
    refused(&[SEARCH, jump, use_row, i(O::Commit)], 2, "r1 has no value");
}

fn counting(limit: i64, step: i64, last: O) -> [Instruction; 6] {
    [
        Instruction { a: 1, ..i(O::Movi) },
        Instruction { a: 1, c: 1, w: 1, x: 64, ..i(O::Store) },
        Instruction { a: 1, b: 1, ..i(O::Addi) }.with_immediate(step),
        Instruction { b: 1, ..i(O::Cmpi) }.with_immediate(limit),
        Instruction { x: 1, ..i(last) },
        i(O::Commit),
    ]
}

#[test]
fn loops_count_and_their_bound_is_known() {
    let verified = check(&counting(64, 1, O::Bl)).unwrap();
    assert_eq!(verified.loops(), [Loop { head: 1, back: 4, bound: 64 }]);
    assert_eq!(verified.step_bound(), 4 * 64 + 4);
    assert_eq!(check(&counting(63, 7, O::Ble)).unwrap().loops()[0].bound, 10);
    refused(&counting(65, 1, O::Bl), 1, "bytes 64 to 129");
    refused(&counting(64, 0, O::Bl), 4, "counting loop");
    refused(&counting(64, 1, O::Bne), 4, "counting loop");
    let mut jump = counting(64, 1, O::Bl);
    jump[4] = Instruction { x: 1, ..i(O::Jmp) };
    refused(&jump, 4, "counting loop");
    let mut writes = counting(64, 1, O::Bl);
    writes[1] = Instruction { a: 1, ..i(O::Movi) };
    refused(&writes, 1, "counts the loop");
    let forever = [i(O::Movi), Instruction { x: 1, ..i(O::Jmp) }];
    refused(&[Instruction { a: 1, ..forever[0] }, forever[1]], 1, "counting loop");
    let mut long = counting(i64::MAX, 1, O::Bl);
    long[1] = Instruction { a: 2, ..i(O::Movi) };
    assert!(check(&long).unwrap_err().to_string().contains("steps"));
}

#[test]
fn structure_is_checked_reachable_or_not() {
    refused(&[Instruction { x: 9, ..i(O::Jmp) }], 0, "outside its section");
    refused(&[Instruction { a: 1, ..i(O::Movi) }], 0, "runs past the end");
    refused(&[i(O::Movi), i(O::Commit)], 0, "r0 always reads zero");
    refused(&[i(O::Commit), Instruction { a: 1, w: 3, x: 32, ..i(O::Load) }, i(O::Commit)], 1, "width");
    refused(&[i(O::Commit), Instruction { a: 1, w: 8 | SIGNED, x: 32, ..i(O::Load) }, i(O::Commit)], 1, "width");
    refused(&[Instruction { d: 2, ..SEARCH }, RET, i(O::Commit)], 0, "table slot 2");
    refused(&[Instruction { w: 0xFF00, ..i(O::Abort) }], 0, "belongs to the system");
    refused(&[Instruction { y: 5, ..i(O::Commit) }], 0, "does not use field y");
    let never = [i(O::Commit), Instruction { x: u32::MAX, ..SEARCH }, RET, i(O::Commit)];
    refused(&never, 1, "bytes 4294967295 to");
    refused(&[i(O::Commit), Instruction { x: u32::MAX, ..LOAD }, i(O::Commit)], 1, "of the block (to read)");
    let scan = Instruction { a: 0, d: 1, e: 2, w: 8, x: 32, y: 64, ..i(O::Scan) };
    check(&[scan, RET, i(O::Commit)]).unwrap();
    refused(&[Instruction { d: 0, ..scan }, RET, i(O::Commit)], 0, "not ordered");
    refused(&[Instruction { w: 0, ..scan }, RET, i(O::Commit)], 0, "at most 0 rows; the limit must be at least 1");
    refused(&[Instruction { w: 9, ..scan }, RET, i(O::Commit)], 0, "bytes 64 to 136");
    refused(&[Instruction { e: 4, ..scan }, RET, i(O::Commit)], 0, "column 4");
    refused(&[LOAD, Instruction { b: 2, ..scan }, RET, i(O::Commit)], 1, "more than the limit");
}

#[test]
fn a_replicated_table_is_read_and_not_written() {
    let tables: Vec<_> = tables().into_iter().map(TableSchema::replicate).collect();
    let check = |first: Instruction| verify(procedure(&[first, RET, i(O::Commit)]), tables.as_slice());
    check(SEARCH).unwrap();
    check(Instruction { d: 1, w: 1, x: 32, y: 64, ..i(O::Scan) }).unwrap();
    for opcode in [O::Update, O::Insert, O::Remove] {
        let error = check(Instruction { opcode, ..SEARCH }).unwrap_err().to_string();
        assert!(error.contains("table 'plain' is replicated, so it is not written; use 'search'"), "{error}");
    }
}

#[test]
fn declarations_are_checked() {
    let changed = |change: &dyn Fn(&mut Procedure)| {
        let mut changed = procedure(&[i(O::Commit)]);
        change(&mut changed);
        verify(changed, tables().as_slice()).unwrap_err().to_string()
    };
    assert!(
        changed(&|p| p.tables[0] = "plane".into()).contains("no table is called 'plane'; there are: plain, sorted")
    );
    assert!(changed(&|p| p.results[0].offset = 40).contains("its place is 48"));
    assert!(changed(&|p| p.scratch[0].count = 1 << 20).contains("at most"));
    assert!(changed(&|p| p.results[0].name = "argument".into()).contains("declared twice"));
    assert!(changed(&|p| p.abort_handler = 1).contains("handlers"));
    assert!(changed(&|p| p.code[1] = RET).contains("a handler"));
    assert!(changed(&|p| p.name = "no name".into()).contains("name"));
}

#[test]
fn facts_tell_what_can_abort_and_what_must_be_kept() {
    let store = Instruction { a: 0, b: 1, w: 1, x: 24, ..i(O::Storer) };
    let verified = check(&[UPDATE, RET, store, i(O::Commit)]).unwrap();
    assert!(!verified.facts()[2].needs_undo && verified.facts()[1].may_abort);
    let second = Instruction { a: 1, ..SEARCH };
    let second_ret = Instruction { a: 2, b: 1, ..RET };
    let verified = check(&[UPDATE, RET, store, second, second_ret, i(O::Commit)]).unwrap();
    assert!(verified.facts()[2].needs_undo, "the second look-up can find nothing");
    let wide = Instruction { a: 2, b: 1, w: 1, x: 24, ..i(O::Storer) };
    assert!(check(&[UPDATE, RET, LOAD, wide, i(O::Commit)]).unwrap().facts()[3].may_abort);
    assert_eq!((verified.gp_registers(), verified.cp_registers()), (3, 2));
}

/// A database of one row for each slot that exists or not as a coin falls, and that checks what it is asked.
struct Coins {
    rows: [[u8; 64]; 2],
    coins: u64,
}

impl Host for Coins {
    type Cp = Option<(O, u8)>;

    fn issue(&mut self, cp: &mut Option<(O, u8)>, request: Request) {
        assert!(cp.is_none(), "a CP register in flight is used again");
        use crate::access::Operation as P;
        let opcode = match request.operation {
            P::Search => O::Search,
            P::Update => O::Update,
            P::Insert => O::Insert,
            P::Remove => O::Remove,
            P::Scan => O::Scan,
        };
        *cp = Some((opcode, request.slot));
    }

    fn answer(&mut self, cps: &mut [Option<(O, u8)>], cp: usize) -> Answer {
        let (opcode, slot) = cps[cp].take().expect("nothing is in flight");
        self.coins = self.coins.rotate_left(7).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        match opcode {
            O::Scan => Answer::Ready(0),
            _ if self.coins & 1 == 0 => Answer::Missing(abort::NOT_FOUND),
            O::Remove => Answer::Ready(0),
            _ => Answer::Ready(self.rows[usize::from(slot)].as_mut_ptr() as u64),
        }
    }

    unsafe fn keep(&mut self, row: *mut u8, offset: u32, length: u32) {
        assert!(!row.is_null() && offset + length <= 64);
    }
}

fn random_instruction() -> impl Strategy<Value = Instruction> {
    let opcode = prop::sample::select(O::ALL.to_vec());
    let register = || prop_oneof![8 => 0_u8..5, 1 => any::<u8>()];
    let width = prop_oneof![Just(1_u16), Just(8), Just(4), Just(2 | SIGNED), Just(16), any::<u16>()];
    let offset = || prop_oneof![8 => 16_u32..128, 4 => 0_u32..24, 1 => Just(NO_LABEL), 1 => any::<u32>()];
    let registers = (register(), register(), register(), 0_u8..3, 0_u8..5);
    (opcode, registers, width, offset(), offset(), 0_i64..70).prop_map(|(opcode, (a, b, c, d, e), w, x, y, small)| {
        let used = opcode.fields();
        let mut made = Instruction { opcode, a, b, c, d, e, w, x, y };
        if opcode.has_immediate() {
            made = made.with_immediate(small);
        }
        if opcode == O::Ret && x > 24 {
            made.x = NO_LABEL;
        }
        Instruction {
            a: if used[0] { made.a } else { 0 },
            b: if used[1] { made.b } else { 0 },
            c: if used[2] { made.c } else { 0 },
            d: if used[3] { made.d } else { 0 },
            e: if used[4] { made.e } else { 0 },
            w: if used[5] { made.w } else { 0 },
            x: if used[6] { made.x } else { 0 },
            y: if used[7] { made.y } else { 0 },
            opcode,
        }
    })
}

/// Programs that are mostly sound: a preamble that defines registers, then random instructions, then the end.
fn random_logic() -> impl Strategy<Value = Vec<Instruction>> {
    let preamble = vec![
        LOAD,
        Instruction { b: 2, ..i(O::Check) }.with_immediate(40),
        UPDATE,
        RET,
        Instruction { a: 3, ..i(O::Movi) }.with_immediate(8),
        Instruction { b: 2, ..i(O::Cmpi) }.with_immediate(5),
    ];
    prop::collection::vec(random_instruction(), 1..7).prop_map(move |body| {
        let mut logic = preamble.clone();
        logic.extend(body);
        logic.push(i(O::Commit));
        logic
    })
}

fn run_checked(verified: &Verified, argument: [u8; 16], coins: u64) {
    let program = Program::new(verified);
    // A guard area after block and rows shows any write outside.
    let mut batch = Batch::new(256, 1).unwrap();
    let mut block = batch.push(0).unwrap();
    block.bytes()[32..48].copy_from_slice(&argument);
    block.bytes()[128..].fill(0xA5);
    let before = block.bytes()[..48].to_vec();
    let mut registers = vec![0_i64; program.gp_registers()];
    let mut cps = vec![None; program.cp_registers()];
    let mut host = Coins { rows: [[0x11; 64]; 2], coins };
    let mut context = Context::at(0);
    let address = block.bytes().as_mut_ptr();
    // SAFETY: windows are wide enough, the block is longer than the procedure's, the rows live in the host.
    let stop = unsafe { run(&program, &mut context, &mut registers, &mut cps, address, &mut host) };
    let at = context.pc as usize;
    if let Stop::Aborted(_) = stop {
        let code = &verified.procedure().code[at];
        assert!(verified.facts()[at].may_abort || code.opcode == O::Abort, "{at}: {code:?} aborted unforeseen");
    } else {
        assert_eq!(stop, Stop::Committed);
        assert!(cps.iter().all(Option::is_none), "a DB instruction was not awaited");
    }
    let bytes = block.bytes();
    assert_eq!(bytes[..48], before, "header or arguments were written");
    assert!(bytes[128..].iter().all(|&byte| byte == 0xA5), "the block was written past its end");
    for row in host.rows {
        assert!(row[..24].iter().chain(&row[41..]).all(|&byte| byte == 0x11), "a row was written outside its values");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn what_is_accepted_runs_in_its_bounds(logic in random_logic(), argument: [u8; 16], small in 0_u8..80, coins: u64) {
        if let Ok(verified) = check(&logic) {
            run_checked(&verified, argument, coins);
            let mut bounded = [0; 16];
            bounded[0] = small;
            run_checked(&verified, bounded, coins);
        }
    }

    #[test]
    fn arbitrary_code_never_panics(code in prop::collection::vec(random_instruction(), 0..12), handlers: [u8; 2]) {
        let mut wild = procedure(&[i(O::Commit)]);
        wild.code = code;
        wild.commit_handler = u32::from(handlers[0] % 12);
        wild.abort_handler = u32::from(handlers[1] % 12);
        let _ = verify(wild, tables().as_slice());
    }
}

#[test]
fn a_useful_share_of_the_random_programs_is_accepted() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let accepted =
        (0..2_000).filter(|_| check(&random_logic().new_tree(&mut runner).unwrap().current()).is_ok()).count();
    assert!(accepted >= 100, "only {accepted} of 2000 random programs were accepted: the soundness test shows little");
}
