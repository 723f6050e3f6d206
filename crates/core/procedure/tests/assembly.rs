//! The assembler, its inverse and the binary form, seen from outside: golden programs, round trips over every
//! procedure that has a form, and bad input.

use lockwork_procedure::assembly::{assemble, decode, disassemble, encode, fuzz};
use lockwork_procedure::block::abort;
use lockwork_procedure::isa::{Instruction, MAX_INSTRUCTIONS, NO_LABEL, Opcode as O, SIGNED};
use lockwork_procedure::program::{Field, Procedure};
use lockwork_procedure::schema::{ColumnType, TableSchema};
use lockwork_procedure::verify::verify;
use proptest::prelude::*;

fn lines(declarations: &str, code: &str) -> String {
    format!("procedure p\ntable accounts\ntable orders\n{declarations}\n{code}\n")
}

fn procedure(source: &str) -> Procedure {
    let assembled = assemble(source, fuzz::catalog().as_slice());
    assembled.unwrap_or_else(|error| panic!("{error}\n{source}")).procedure
}

fn refused(source: &str) -> String {
    assemble(source, fuzz::catalog().as_slice()).expect_err(source).to_string()
}

/// The first instruction of a procedure with some fields.
fn first(line: &str) -> Instruction {
    procedure(&lines(
        "param a: i64\nparam b: i16\nparam note: char(20)\nresult rows: bytes(9)[5]\nscratch n: i64",
        line,
    ))
    .code[0]
}

fn i(opcode: O) -> Instruction {
    Instruction::new(opcode)
}

#[test]
fn every_form_of_operand_has_its_encoding() {
    // a at 32, b at 40, note at 42, rows at 64, n at 112; accounts: id 16, balance 24, note 32; orders: amount 28.
    let golden = [
        ("mov r1, r255", Instruction { a: 1, b: 255, ..i(O::Mov) }),
        ("mov r1, -9223372036854775808", Instruction { a: 1, ..i(O::Movi) }.with_immediate(i64::MIN)),
        ("mov r1, 0x7fFF", Instruction { a: 1, ..i(O::Movi) }.with_immediate(0x7FFF)),
        ("mul r1, r2, r3", Instruction { a: 1, b: 2, c: 3, ..i(O::Mul) }),
        ("div r1, r2, -3", Instruction { a: 1, b: 2, ..i(O::Divi) }.with_immediate(-3)),
        ("cmp r1, r2", Instruction { b: 1, c: 2, ..i(O::Cmp) }),
        ("cmp r1, 2", Instruction { b: 1, ..i(O::Cmpi) }.with_immediate(2)),
        ("check r5, 8", Instruction { b: 5, ..i(O::Check) }.with_immediate(8)),
        ("load r4, [a]", Instruction { a: 4, w: 8, x: 32, ..i(O::Load) }),
        ("load r4, [b]", Instruction { a: 4, w: 2 | SIGNED, x: 40, ..i(O::Load) }),
        ("load.u8 r4, [rows#3 + 2 + r6]", Instruction { a: 4, c: 6, w: 1, x: 64 + 27 + 2, ..i(O::Load) }),
        ("store.w3 r4, [40 + r2]", Instruction { a: 4, c: 2, w: 3, x: 40, ..i(O::Store) }),
        ("loadr r3, r1[orders.amount]", Instruction { a: 3, b: 1, w: 4 | SIGNED, x: 28, ..i(O::Loadr) }),
        ("loadr r3, r1[orders.r1 + r1]", Instruction { a: 3, b: 1, c: 1, w: 2, x: 32, ..i(O::Loadr) }),
        ("storer.i32 r3, r1[16]", Instruction { a: 3, b: 1, w: 4 | SIGNED, x: 16, ..i(O::Storer) }),
        ("copy [note], r1[accounts.note]", Instruction { c: 1, w: 20, x: 42, y: 32, ..i(O::CopyBr) }),
        (
            "copy r1[accounts.note + r2], [rows + r3], 9",
            Instruction { b: 1, d: 2, e: 3, w: 9, x: 32, y: 64, ..i(O::CopyRb) },
        ),
        ("copy [n], [a]", Instruction { w: 8, x: 112, y: 32, ..i(O::CopyBb) }),
        ("copy r1[24], r2[accounts.id]", Instruction { b: 1, c: 2, w: 8, x: 24, y: 16, ..i(O::CopyRr) }),
        ("remove c9, orders, [a + r3]", Instruction { a: 9, d: 1, c: 3, x: 32, ..i(O::Remove) }),
        ("insert c9, #7, [8]", Instruction { a: 9, d: 7, x: 8, ..i(O::Insert) }),
        (
            "scan c2, orders.amount, [a], [rows#1], 50, r5",
            Instruction { a: 2, b: 5, d: 1, e: 3, w: 50, x: 32, y: 73, ..i(O::Scan) },
        ),
        ("scan c2, orders, [a], [rows], 50", Instruction { a: 2, d: 1, w: 50, x: 32, y: 64, ..i(O::Scan) }),
        ("scan c2, orders#254, [a], [0], 0", Instruction { a: 2, d: 1, e: 255, x: 32, ..i(O::Scan) }),
        ("ret c2", Instruction { b: 2, x: NO_LABEL, ..i(O::Ret) }),
        ("ret r1, c2, @7", Instruction { a: 1, b: 2, x: 7, ..i(O::Ret) }),
        ("jmp c2\nc2:", Instruction { x: 1, ..i(O::Jmp) }),
        ("abort 65279", Instruction { w: 0xFEFF, ..i(O::Abort) }),
    ];
    for (line, expected) in golden {
        assert_eq!(first(line), expected, "{line}");
    }
}

#[test]
fn the_examples_of_the_manual_assemble_verify_and_come_back() {
    let manual = include_str!("../../../../docs/assembly.md");
    let examples: Vec<&str> =
        manual.split("```procedure\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(examples.len(), 2);
    for example in examples {
        let assembled = assemble(example, [].as_slice()).unwrap_or_else(|error| panic!("{error}\n{example}"));
        let schemas = assembled.schemas.as_slice();
        verify(assembled.procedure.clone(), schemas).unwrap_or_else(|error| panic!("{error}\n{example}"));
        fuzz::source(example.as_bytes());
    }
}

#[test]
fn handlers_are_generated_where_they_are_missing() {
    let sections = |code: &str| {
        let p = procedure(&lines("", code));
        (p.code.len(), p.commit_handler, p.abort_handler)
    };
    assert_eq!(sections("commit"), (3, 1, 2));
    assert_eq!(sections("commit\non commit:\nmov r1, 1\ncommit"), (4, 1, 3));
    assert_eq!(sections("commit\non abort:\nmov r1, 1\ncommit"), (4, 1, 2));
    assert_eq!(sections("commit\non commit:\ncommit\non abort:\ncommit"), (3, 1, 2));
    for (code, place) in [
        ("on abort:\ncommit", "line 5, column 1: the logic comes before"),
        ("commit\non commit:\non abort:\ncommit", "line 7, column 1: a handler has at least one instruction"),
        ("commit\non commit:", "line 7, column 1: a handler has at least one instruction"),
        ("commit\non abort:\n", "a handler has at least one instruction"),
        ("commit\non abort:\ncommit\non commit:\ncommit", "line 8, column 1: 'on commit' and 'on abort' stand once"),
        ("commit\non failure:\ncommit", "line 6, column 4: there is no handler 'failure'"),
    ] {
        let error = refused(&lines("", code));
        assert!(error.contains(place), "{code}: {error}");
    }
}

#[test]
fn errors_name_their_place_and_what_would_be_right() {
    let fields = "param amount: i64\nparam note: char(20)\nparam c: bytes(4)";
    for (code, expected) in [
        (
            "    load r1, [amout]",
            "line 7, column 15: no parameter, result or scratch is called 'amout'; did you mean 'amount'?",
        ),
        ("\tload r1, [amout]", "line 7, column 12: no parameter"),
        ("; ü\n load r1, [note]", "line 8, column 11: how wide? Write 'load.i64'"),
        ("copybr [note], r1[40], 4", "line 7, column 1: there is no instruction 'copybr'"),
        ("movi r1, 4", "column 1: there is no instruction 'movi'; did you mean 'mov'?"),
        ("copy [note], [amount]", "column 1: how many bytes? The target has 20 and the source 8"),
        ("copy [40], [48]", "column 1: how many bytes? Name a field"),
        ("copy [40], [48], 65536", "column 18: 65536 is too large for the length of a copy; at most 65535"),
        ("add.u8 r1, r2, r3", "column 1: 'add' takes no width"),
        ("load.u64 r1, [amount]", "column 6: 'u64' is no width; use i8"),
        (
            "search c0, acounts, [amount]",
            "column 12: the procedure declares no table 'acounts'; did you mean 'accounts'?",
        ),
        ("loadr r1, r2[orders.amont]", "column 21: table 'orders' has no column 'amont'; did you mean 'amount'?"),
        ("scan c0, #9.amount, [amount], [40], 1", "column 13: the procedure declares no table number 9"),
        (
            "scan c0, orders, [amount], [40]",
            "column 32: ',' and the most rows of the scan, as in 'scan c0, t, [first], [rows], 50', is wanted here",
        ),
        ("scan c0, orders, [amount], [40], r1", "column 34: the most rows of a scan is wanted here, not 'r1'"),
        ("scan c0, orders, [amount], [40 + r1], 1", "column 28: a scan's buffer has a constant address"),
        ("jmp don\ndone:\ncommit", "column 5: no label is called 'don'; did you mean 'done'?"),
        ("x:\n x:\ncommit", "line 8, column 2: the label 'x' stands twice, first in line 7"),
        ("load r1, [amount#1]", "column 18: 'amount' has elements 0 to 0, and 1 is asked for"),
        ("load r1, [amount + note]", "column 20: an address names one field or column"),
        ("load.u8 r1, [r2 + r3]", "column 19: an address has at most one index register"),
        ("load.u8 r1, [4294967295 + 1]", "column 14: offset 4294967296 is too large"),
        ("ret r1, r2", "column 9: a CP register (c0 to c255) is wanted here, not 'r2'"),
    ] {
        let error = refused(&lines(fields, code));
        assert!(error.contains(expected), "{code}: {error}");
    }
    let column = refused("procedure p\ntable t (id: i64 key,\n  sum: i46)\ncommit");
    assert!(column.starts_with("line 3, column 8: 'i46' is no type"), "{column}");
    let differs = refused("procedure p\ntable accounts (id: i64 key)\ncommit");
    assert!(differs.starts_with("line 2, column 7: the table 'accounts' exists with other columns"), "{differs}");
    let columns = "(id: i64 key, balance: i64, note: char(20))";
    for other in ["ordered", "replicated", "partition by hash(id)"] {
        let differs = refused(&format!("procedure p\ntable accounts {columns} {other}\ncommit"));
        assert!(
            differs.contains("7: the table 'accounts' exists with another order or partitioning; name"),
            "{differs}"
        );
    }
    assert!(refused("a:\nprocedure p\ncommit").starts_with("line 1, column 1: a source begins with"));
}

#[test]
fn columns_may_stand_on_lines_of_their_own() {
    let source = "procedure p\ntable t (\n  id: i64 key, ; the number\n  sum: i32\n) ordered\ncommit";
    let columns = [("id", ColumnType::I64), ("sum", ColumnType::I32)];
    let expected = TableSchema::new("t", &columns, 1, true).unwrap();
    assert_eq!(assemble(source, [].as_slice()).unwrap().schemas, [expected]);
}

#[test]
fn a_table_is_declared_as_it_is_displayed() {
    let columns = [("w", ColumnType::U16), ("name", ColumnType::Char(20)), ("sum", ColumnType::I32)];
    for ordered in [false, true] {
        let plain = TableSchema::new("t", &columns, 2, ordered).unwrap();
        let by = |column| plain.clone().partition_by_hash(column).unwrap();
        for table in [plain.clone(), plain.clone().replicate(), by("w"), by("name")] {
            let source = format!("procedure p\ntable {table}\ncommit");
            assert_eq!(assemble(&source, [].as_slice()).unwrap().schemas, std::slice::from_ref(&table));
            // It exists already: the same declaration is no contradiction, and the text names it.
            let known = [table];
            let p = assemble(&source, known.as_slice()).unwrap().procedure;
            assert_eq!(assemble(&disassemble(&p, known.as_slice()), known.as_slice()).unwrap().procedure, p);
        }
    }
    let either_way =
        |words: &str| assemble(&format!("procedure p\ntable t (w: u16 key) {words}\ncommit"), [].as_slice());
    let expected = TableSchema::new("t", &columns[..1], 1, true).unwrap().partition_by_hash("w").unwrap();
    for words in ["ordered partition by hash(w)", "partition by hash(w) ordered"] {
        assert_eq!(either_way(words).unwrap().schemas, std::slice::from_ref(&expected), "{words}");
    }
}

#[test]
fn a_wrong_partitioning_is_refused_with_its_place() {
    for (words, expected) in [
        (
            "partition by hash(sum)",
            "line 2, column 61: table 't' cannot be partitioned by 'sum', which is no key column; possible: 'w', 'd'",
        ),
        ("partition by hash(v)", "line 2, column 61: table 't' cannot be partitioned by 'v', which is no"),
        ("partition by hash()", "column 61: a key column's name is wanted here, not ')'"),
        ("partition by hash(w, d)", "column 62: ')' is wanted here, not ','"),
        ("partition by hash w", "column 61: '(' is wanted here, not 'w'"),
        ("partition by range(w)", "column 56: 'hash', as in 'partition by hash(COLUMN)', is wanted here, not 'range'"),
        ("partition hash(w)", "column 53: 'by', as in 'partition by hash(COLUMN)', is wanted here, not 'hash'"),
        (
            "partition by",
            "column 55: 'hash', as in 'partition by hash(COLUMN)', is wanted here, not the end of the line",
        ),
        ("replicated partition by hash(w)", "column 54: a table is partitioned once"),
        ("partition by hash(w) partition by hash(d)", "column 64: a table is partitioned once"),
        ("replicated ordered replicated", "column 62: a table is partitioned once: either"),
        ("ordered ordered", "column 51: 'ordered' stands twice"),
        (
            "replicate",
            "column 43: 'ordered', 'partition by hash(COLUMN)', 'replicated' or the end of the line is wanted",
        ),
        ("replicated,", "column 53: the end of the line is wanted here, not ','"),
    ] {
        let error = refused(&format!("procedure p\ntable t (w: u16 key, d: u8 key, sum: i32) {words}\ncommit"));
        assert!(error.contains(expected), "{words}: {error}");
    }
}

#[test]
fn a_table_that_nobody_knows_is_opaque_and_still_comes_back() {
    let source =
        lines("param a: i64\nresult rows: i32[3]", "scan c0, orders.amount, [a], [rows], 3\nret r1, c0\ncommit");
    let p = procedure(&source);
    let text = disassemble(&p, [].as_slice());
    assert!(text.contains("table orders opaque\n") && text.contains("scan    c0, orders#2, [a], [rows], 3"), "{text}");
    assert_eq!(assemble(&text, [].as_slice()).unwrap().procedure, p);
    let named = refused("procedure p\ntable zebra opaque\nloadr r1, r2[zebra.id]");
    assert!(named.contains("line 3, column 20: table 'zebra' is opaque"), "{named}");
}

#[test]
fn columns_are_named_where_their_table_is_plain() {
    let code = "    update  c0, accounts, [a]
    ret     r1, c0
    search  c0, orders, [a]
    ret     r2, c0
    mov     r3, r2
    loadr   r4, r1[accounts.balance]
    loadr   r4, r3[orders.amount + r5]
    loadr.u8 r4, r3[orders.amount]
    copy    r1[accounts.note], [note]
    copy    r1[accounts.note], [note], 7
    commit
";
    let text = format!("procedure p\ntable accounts\ntable orders\nparam a: i64\nparam note: char(20)\n{code}");
    assert_eq!(disassemble(&procedure(&text), fuzz::catalog().as_slice()), text);
}

#[test]
fn a_register_that_holds_rows_of_two_tables_names_no_column_after_a_label() {
    let code = "search c0, accounts, [a]\nret r1, c0\nbe other\nsearch c1, orders, [a]\nret r1, c1\nother:\nloadr r2, r1[orders.amount]\ncommit";
    let text = disassemble(&procedure(&lines("param a: i64", code)), fuzz::catalog().as_slice());
    assert!(text.contains("loadr.i32 r2, r1[28]"), "{text}");
}

#[test]
fn a_field_called_like_a_register_is_meant_where_it_stands_first() {
    let with = |operand: &str| procedure(&lines("param r1: i64", &format!("load.i64 r2, [{operand}]\ncommit"))).code[0];
    assert_eq!((with("r1").x, with("r1").c), (32, 0));
    assert_eq!((with("r1 + r1").x, with("r1 + r1").c), (32, 1));
    assert_eq!((with("0 + r1").x, with("0 + r1").c), (0, 1));
    assert_eq!((with("r2").x, with("r2").c), (0, 2));
}

#[test]
fn limits_hold_at_their_edge() {
    let code = |n: usize| format!("procedure p\n{}", "commit\n".repeat(n));
    let longest = procedure(&code(MAX_INSTRUCTIONS - 2));
    assert_eq!(longest.code.len(), MAX_INSTRUCTIONS);
    assert_eq!(decode(&encode(&longest)), Ok(longest));
    assert!(refused(&code(MAX_INSTRUCTIONS - 1)).contains("at most 65536 instructions"));
    let tables = |n: usize| {
        let tables: String = (0..n).map(|i| format!("table t{i} opaque\n")).collect();
        format!("procedure p\n{tables}search c0, t0, [32]\ncommit")
    };
    assert_eq!(procedure(&tables(256)).tables.len(), 256);
    assert!(refused(&tables(257)).starts_with("line 258, column 7: a procedure uses at most 256 tables"));
    let fields = |n: usize| {
        let fields: String = (0..n).map(|i| format!("param a{i}: i8\n")).collect();
        format!("procedure p\n{fields}commit")
    };
    let many = procedure(&fields(65_535));
    assert_eq!(decode(&encode(&many)), Ok(many));
    assert!(refused(&fields(65_536)).starts_with("line 65537, column 7: a procedure has at most 65535"));
}

#[test]
fn absurd_sizes_are_refused_at_the_field_that_has_them() {
    for (declaration, line) in [
        ("param a: bytes(4294967295)", 4),
        ("param a: bytes(4294967232)[4294967295]\nparam b: bytes(4294967232)[4294967295]", 4),
        ("param a: bytes(1048544)\nscratch b: i8", 4),
        ("param z: bytes(65)\nscratch a: bytes(1048400)", 5),
        ("param a: char(99999999999)", 4),
    ] {
        let error = refused(&lines(declaration, "commit"));
        assert!(error.starts_with(&format!("line {line}, column ")), "{declaration}: {error}");
    }
    // The padding to a line of its own is what makes the second one too long.
    assert!(refused(&lines("param z: bytes(65)\nscratch a: bytes(1048400)", "commit")).contains("at most 1048576"));
    assert_eq!(procedure(&lines("param a: bytes(1048512)", "commit")).layout().block_bytes, 1 << 20);
}

/// A small sound procedure to break in one place.
fn sound() -> Procedure {
    procedure(&lines("param a: i64\nresult b: char(3)[2]", "load r1, [a]\ncommit"))
}

#[test]
fn the_decoder_refuses_what_no_source_can_say() {
    type Change = fn(&mut Procedure);
    let break_it: [(&str, Change); 16] = [
        ("a name has", |p| p.name = "a\nb".into()),
        ("a name has", |p| p.name = String::new()),
        ("a name has", |p| p.tables[1] = "x".repeat(64)),
        ("stands twice", |p| p.tables[1] = "accounts".into()),
        ("257 tables are too many", |p| p.tables = (0..257).map(|i| format!("t{i}")).collect()),
        ("declared twice", |p| p.results[0].name = "a".into()),
        ("has no element", |p| p.results[0].count = 0),
        ("type 7 with width 0 is none", |p| p.results[0].column_type = ColumnType::Char(0)),
        ("the block would have", |p| p.results[0].column_type = ColumnType::Bytes(u32::MAX)),
        ("the block would have", |p| p.results[0].count = u32::MAX),
        ("handlers at 0 and 3", |p| p.commit_handler = 0),
        ("handlers at 3 and 3", |p| p.commit_handler = 3),
        ("handlers at 2 and 4", |p| p.abort_handler = 4),
        ("handlers at 4294967295 and 4294967295", |p| (p.commit_handler, p.abort_handler) = (u32::MAX, u32::MAX)),
        ("abort code 65281", |p| p.code[1] = Instruction { w: abort::NOT_FOUND, ..Instruction::new(O::Abort) }),
        ("does not use field y", |p| p.code[1].y = 1),
    ];
    for (expected, change) in break_it {
        let mut p = sound();
        change(&mut p);
        let error = decode(&encode(&p)).expect_err(expected);
        assert!(error.to_string().contains(expected), "{expected}: {error}");
        // A procedure that has no form is still shown, without a panic.
        assert!(disassemble(&p, fuzz::catalog().as_slice()).starts_with("procedure "));
    }
}

#[test]
fn the_binary_form_is_the_documented_one() {
    let expected: Vec<u8> = [
        b"LWP1\x01\x00p".as_slice(),
        b"\x01\x00\x01\x00t",
        b"\x01\x00\x01\x00a\x01\x00\x00\x00\x00\x03\x00\x00\x00",
        b"\x01\x00\x01\x00b\x08\x05\x00\x00\x00\x01\x00\x00\x00",
        b"\x00\x00",
        b"\x01\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00",
        &[0x52, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0x51, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0x51, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ]
    .concat();
    let p = procedure("procedure p\ntable t opaque\nparam a: i16[3]\nresult b: bytes(5)\nabort 7");
    assert_eq!(encode(&p), expected);
}

fn any_type() -> impl Strategy<Value = ColumnType> {
    use ColumnType as T;
    prop_oneof![
        prop::sample::select(vec![T::I8, T::I16, T::I32, T::I64, T::U8, T::U16, T::U32]),
        (1_u32..200).prop_map(T::Bytes),
        (1_u32..200).prop_map(T::Char)
    ]
}

/// Any instruction that decodes, biased to offsets, tables and targets that mean something.
fn any_instruction() -> impl Strategy<Value = Instruction> {
    let register = || prop_oneof![0_u8..6, any::<u8>()];
    let small = || prop_oneof![3 => 0_u32..300, 1 => any::<u32>(), 1 => Just(NO_LABEL)];
    let usual = vec![1, 2, 4, 8, 1 | SIGNED, 2 | SIGNED, 4 | SIGNED, 20];
    let width = prop_oneof![3 => prop::sample::select(usual), 1 => any::<u16>()];
    let registers = [register(), register(), register(), register(), register()];
    (prop::sample::select(O::ALL.to_vec()), registers, width, small(), small()).prop_map(|(opcode, r, w, x, y)| {
        let used = opcode.fields();
        let keep = |number: usize| if used[number] { r[number] } else { 0 };
        let w = if opcode == O::Abort { w.min(abort::FIRST_RESERVED - 1) } else { w };
        Instruction {
            opcode,
            a: keep(0),
            b: keep(1),
            c: keep(2),
            d: keep(3),
            e: keep(4),
            w: if used[5] { w } else { 0 },
            x: if used[6] { x } else { 0 },
            y: if used[7] { y } else { 0 },
        }
    })
}

/// Any procedure that has a form: some tables known and some not, fields called like registers and labels.
fn any_procedure() -> impl Strategy<Value = Procedure> {
    let names = ["r0", "r1", "r3", "c2", "L4", "commit", "on", "opaque", "amount", "ordered", "key", "w3"];
    let group = || prop::collection::vec((any_type(), 1_u32..5), 0..4);
    let tables = prop::sample::subsequence(vec!["accounts", "orders", "unknown", "r1", "opaque"], 0..=5).prop_shuffle();
    (
        tables,
        [group(), group(), group()],
        prop::collection::vec(any_instruction(), 3..40),
        any::<[prop::sample::Index; 2]>(),
    )
        .prop_map(move |(tables, groups, code, places)| {
            let (_, offsets) = Procedure::lay_out([&groups[0], &groups[1], &groups[2]]);
            let mut places_of_fields = offsets.into_iter().zip(names);
            let [parameters, results, scratch] = groups.map(|group| {
                let field = |(column_type, count)| {
                    let (offset, name) = places_of_fields.next().expect("a name for each");
                    Field { name: name.into(), column_type, count, offset: offset as u32 }
                };
                group.into_iter().map(field).collect::<Vec<_>>()
            });
            let commit_handler = 1 + places[0].index(code.len() - 2) as u32;
            let abort_handler = commit_handler + 1 + places[1].index(code.len() - 1 - commit_handler as usize) as u32;
            let tables = tables.into_iter().map(str::to_string).collect();
            Procedure { name: "p".into(), tables, parameters, results, scratch, code, commit_handler, abort_handler }
        })
}

const VALID: &str = "procedure transfer ; moves
table accounts
table audit (id: i64 key, what: char(8)) ordered
param from: i64
param amount: i32
result rows: bytes(8)[5]
    update c0, accounts, [from]
    ret r1, c0, poor
    loadr r2, r1[accounts.balance + 0 + r0]
    load r3, [amount]
    sub r2, r2, r3
    check r2, 0x7fff
    storer r2, r1[accounts.balance]
    scan c1, audit.what, [from], [rows#1], 4, r3
    ret c1
    copy [rows], r1[accounts.note], 8
    commit
poor: abort 7
on abort:
    store.u8 r0, [rows + 3]
    commit
";

#[test]
fn the_source_that_mutations_start_from_is_valid() {
    procedure(VALID);
}

proptest! {
    #[test]
    fn every_procedure_comes_back_from_text_and_from_bytes(procedure in any_procedure()) {
        for catalog in [fuzz::catalog(), Vec::new()] {
            let text = disassemble(&procedure, catalog.as_slice());
            let again = assemble(&text, catalog.as_slice()).map(|assembled| assembled.procedure);
            prop_assert_eq!(again.as_ref(), Ok(&procedure), "{}", text);
        }
        prop_assert_eq!(decode(&encode(&procedure)), Ok(procedure));
    }

    #[test]
    fn any_text_and_any_bytes_are_survived(text: String, bytes: Vec<u8>) {
        fuzz::source(text.as_bytes());
        fuzz::source(&bytes);
        fuzz::binary(&bytes);
        fuzz::binary(&[b"LWP1".as_slice(), &bytes].concat());
    }

    #[test]
    fn mutated_sources_are_survived(
        at in any::<prop::sample::Index>(), cut in 0_usize..12,
        put in prop_oneof![
            "[a-z0-9 ,:.+#@\\[\\]()\\n;-]{0,12}",
            prop::sample::select(vec!["4294967295", "18446744073709551615", "bytes(4294967295)", "[4294967295]", "r1", "@9", "#3", "on commit:\n", "ü"])
                .prop_map(str::to_string)
        ],
    ) {
        let at = at.index(VALID.len());
        let mut text = VALID.to_string();
        text.replace_range(at..(at + cut).min(VALID.len()), &put);
        fuzz::source(text.as_bytes());
    }

    #[test]
    fn words_of_the_language_in_any_order_are_survived(words in prop::collection::vec(
        prop::sample::select(VALID.split_inclusive([' ', '\n', ',', '[']).collect::<Vec<_>>()), 0..60,
    )) {
        fuzz::source(format!("procedure p\n{}", words.concat()).as_bytes());
    }

    #[test]
    fn mutated_bytes_are_survived(
        procedure in any_procedure(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = encode(&procedure);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        fuzz::binary(&bytes);
    }
}
