//! The language, its errors, and round trips.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::isa::{Instruction, NO_LABEL, Opcode as O, SIGNED};
use crate::program::Field;
use crate::schema::ColumnType;
use crate::verify::verify;

const TRANSFER: &str = "
procedure transfer            ; moves money
table accounts (id: i64 key, balance: i64)
param from: i64
param to: i64
param amount: i64
result balances: i64[2]
    update  c0, accounts, [from]
    update  c1, accounts, [to]
    ret     r1, c0
    ret     r2, c1, missing
    loadr   r3, r1[accounts.balance]
    load    r4, [amount]
    cmp     r3, r4
    bl      poor
    sub     r3, r3, r4
    storer  r3, r1[accounts.balance]
    loadr   r5, r2[accounts.balance]
    add     r5, r5, r4
    storer  r5, r2[accounts.balance]
    store   r3, [balances]
    store   r5, [balances#1]
    commit
poor:
    abort   1
missing:
    abort   2
on abort:
    mov     r1, -1
    store   r1, [balances#1]
    commit
";

fn none() -> Vec<TableSchema> {
    Vec::new()
}

fn error(source: &str) -> String {
    assemble(source, none().as_slice()).unwrap_err().to_string()
}

#[test]
fn a_transfer_assembles_verifies_and_comes_back() {
    let Assembled { procedure, schemas } = assemble(TRANSFER, none().as_slice()).unwrap();
    assert_eq!(procedure.code[0], Instruction { x: 32, ..Instruction::new(O::Update) });
    assert_eq!(procedure.code[3], Instruction { a: 2, b: 1, x: 17, ..Instruction::new(O::Ret) });
    assert_eq!(procedure.code[4], Instruction { a: 3, b: 1, w: 8, x: 24, ..Instruction::new(O::Loadr) });
    assert_eq!(procedure.code[14], Instruction { a: 5, w: 8, x: 64, ..Instruction::new(O::Store) });
    assert_eq!((procedure.commit_handler, procedure.abort_handler), (18, 19));
    verify(procedure.clone(), schemas.as_slice()).unwrap();
    let text = disassemble(&procedure, schemas.as_slice());
    assert_eq!(assemble(&text, schemas.as_slice()).unwrap().procedure, procedure, "{text}");
    assert_eq!(decode(&encode(&procedure)).unwrap(), procedure);
}

#[test]
fn errors_name_the_place_and_what_is_right() {
    let with = |line: &str| format!("procedure p\ntable t (k: i64 key, v: u8) ordered\nparam amount: i64\n{line}");
    assert_eq!(
        error(&with("load r1, [amout]")),
        "line 4, column 11: no parameter, result or scratch is called 'amout'; did you mean 'amount'?"
    );
    assert!(error(&with("lod r1, [amount]")).contains("line 4, column 1: there is no instruction 'lod'"));
    assert!(error(&with("loadr r1, r2[t.w]")).contains("line 4, column 16: table 't' has no column 'w'"));
    assert!(error(&with("search c0, u, [amount]")).contains("declares no table 'u'"));
    assert!(error(&with("load r256, [amount]")).contains("r0 to r255"));
    assert!(error(&with("jmp nowhere")).contains("no label is called 'nowhere'"));
    assert!(error(&with("abort 65280")).contains("use 0 to 65279"));
    assert!(error(&with("mov r1, 99999999999999999999")).contains("line 4, column 9"));
    assert!(error(&with("mov r1, 9223372036854775808")).contains("does not fit"));
    assert!(error(&with("load r1, [40]")).contains("how wide?"));
    assert!(error(&with("load r1, r2[t.v]")).contains("use 'loadr'"));
    assert!(error(&with("commit commit")).contains("the end of the line is wanted"));
    assert!(error(&with("a:\na:\ncommit")).contains("line 5, column 1: the label 'a' stands twice"));
    assert!(error(&with("commit\nparam late: i64")).contains("before the first instruction"));
    assert!(error(&with("param amount: i64")).contains("declared twice"));
    assert!(error(&with("scratch huge: i64[4000000000]")).contains("at most 1048576"));
    assert!(error("commit").contains("begins with 'procedure NAME'"));
    assert!(error("").contains("begins with 'procedure NAME'"));
    assert!(error("procedure p\ntable accounts").contains("no table is called 'accounts'"));
    assert!(error("procedure p\ntable t (v: i65 key)").contains("'i65' is no type"));
}

#[test]
fn bytes_that_are_no_procedure_are_refused_with_their_place() {
    let bytes = encode(&assemble(TRANSFER, none().as_slice()).unwrap().procedure);
    for length in 0..bytes.len() {
        let error = decode(&bytes[..length]).unwrap_err();
        assert!(error.offset <= length, "cut at {length}: {error}");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert_eq!(decode(&longer).unwrap_err().offset, bytes.len());
    assert_eq!(decode(b"LWP2").unwrap_err().offset, 0);
}

fn catalog() -> Vec<TableSchema> {
    let columns = [("id", ColumnType::I64), ("v", ColumnType::I32), ("w", ColumnType::Bytes(70))];
    vec![TableSchema::new("t", &columns, 1, true).unwrap(), TableSchema::new("u", &columns, 1, true).unwrap()]
}

fn field() -> impl Strategy<Value = (ColumnType, u32)> {
    use ColumnType as T;
    let types = prop_oneof![
        prop::sample::select(vec![T::I8, T::I16, T::I32, T::I64, T::U8, T::U16, T::U32]),
        (1_u32..200).prop_map(T::Bytes),
        (1_u32..200).prop_map(T::Char)
    ];
    (types, 1_u32..5)
}

fn instruction(length: u32) -> impl Strategy<Value = Instruction> {
    let widths = prop::sample::select(vec![1, 2, 4, 8, 1 | SIGNED, 2 | SIGNED, 4 | SIGNED]);
    let fields = (any::<[u8; 4]>(), 0_u8..4, any::<u16>(), widths, any::<u32>(), any::<u32>(), 0..length);
    (prop::sample::select(O::ALL.to_vec()), fields).prop_map(|(opcode, ([a, b, c, d], e, any, width, x, y, to))| {
        let used = opcode.fields();
        let keep = |number: usize, value: u32| if used[number] { value } else { 0 };
        let w = match opcode {
            O::Load | O::Store | O::Loadr | O::Storer => width,
            O::Abort => any % 0xFF00,
            _ => any,
        };
        let x = match opcode {
            O::Ret if x % 2 == 0 => NO_LABEL,
            O::Ret | O::Jmp => to,
            opcode if opcode.is_branch() => to,
            _ => x,
        };
        let (d, e) = match opcode {
            O::Scan => (d % 2, e),
            opcode if opcode.is_db() => (d % 2, 0),
            _ => (d, e),
        };
        Instruction {
            opcode,
            a: keep(0, a.into()) as u8,
            b: keep(1, b.into()) as u8,
            c: keep(2, c.into()) as u8,
            d: keep(3, d.into()) as u8,
            e: keep(4, e.into()) as u8,
            w: keep(5, w.into()) as u16,
            x: keep(6, x),
            y: keep(7, y),
        }
    })
}

fn procedure() -> impl Strategy<Value = Procedure> {
    let groups = [(); 3].map(|()| prop::collection::vec(field(), 0..4));
    (groups, prop::collection::vec(instruction(20), 20), 1_u32..18, 1_u32..10).prop_map(
        |(groups, code, commit_handler, distance)| {
            let (_, offsets) = Procedure::lay_out([&groups[0], &groups[1], &groups[2]]);
            let mut offsets = offsets.into_iter().enumerate();
            let [parameters, results, scratch] = groups.map(|group| {
                let place = |(column_type, count)| {
                    let (number, offset) = offsets.next().unwrap();
                    Field { name: format!("f{number}"), column_type, count, offset: offset as u32 }
                };
                group.into_iter().map(place).collect()
            });
            let abort_handler = (commit_handler + distance).min(19);
            let tables = vec!["t".to_string(), "u".to_string()];
            let name = "p".to_string();
            Procedure { name, tables, parameters, results, scratch, code, commit_handler, abort_handler }
        },
    )
}

proptest! {
    #[test]
    fn what_is_disassembled_assembles_to_the_same(procedure in procedure()) {
        let text = disassemble(&procedure, catalog().as_slice());
        let again = assemble(&text, catalog().as_slice());
        prop_assert_eq!(again.map(|assembled| assembled.procedure), Ok(procedure.clone()), "{}", text);
        prop_assert_eq!(decode(&encode(&procedure)), Ok(procedure));
    }

    #[test]
    fn no_text_makes_the_assembler_panic(text in "[a-z0-9 ,:.+#@\\[\\]()\\n;-]{0,200}", at in 0..TRANSFER.len(), cut in 0_usize..40) {
        let _ = assemble(&text, catalog().as_slice());
        let mut mutated = TRANSFER.to_string();
        mutated.replace_range(at..(at + cut).min(TRANSFER.len()), &text[..text.len().min(cut)]);
        let _ = assemble(&mutated, catalog().as_slice());
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in vec(any::<u8>(), 0..200), at in 0_usize..500, byte: u8) {
        let _ = decode(&[b"LWP1".as_slice(), &bytes].concat());
        let mut mutated = encode(&assemble(TRANSFER, none().as_slice()).unwrap().procedure);
        let place = at % mutated.len();
        mutated[place] = byte;
        let _ = decode(&mutated);
    }
}

#[test]
fn tables_alone_assemble_to_schemas() {
    let text = "table a (id: i64 key, v: i32) partition by hash(id)\n\ntable b (k: u16 key) ordered ; and more\n";
    let tables = super::assemble_tables(text, [].as_slice()).unwrap();
    let shown: Vec<String> = tables.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["a (id: i64 key, v: i32) partition by hash(id)", "b (k: u16 key) ordered"]);
    let refused = |text| super::assemble_tables(text, tables.as_slice()).unwrap_err().to_string();
    assert_eq!(refused("table a"), "line 1, column 1: a table is declared with its columns here");
    assert!(refused("table c (k: u8 key)\nprocedure p").contains("line 2, column 1: 'table' is wanted"));
    assert!(refused("table a (id: i64 key)").contains("exists with other columns"));
}
