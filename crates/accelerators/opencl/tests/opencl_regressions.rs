//! Bugs that were in the OpenCL engines once, each as the smallest program that showed it (docs/correctness.md).
//!
//! Needs an OpenCL device (`make verify` installs PoCL).

use lockwork_conformance::engines::{PROCEDURES, Random, accounts, fill};
use lockwork_engine::create;
use lockwork_engine::{Completed, Engine, EngineKind, Options};
use lockwork_opencl::create_failing;
use lockwork_procedure::assembly::assemble;
use lockwork_procedure::block::abort::DEVICE_LOST;
use lockwork_procedure::block::{Batch, Status};
use lockwork_procedure::isa::{Instruction, NO_LABEL, Opcode};
use lockwork_procedure::program::{Field, Procedure};
use lockwork_procedure::schema::{ColumnType, TableSchema};

const KINDS: [EngineKind; 2] = [lockwork_opencl::OPENCL_DETERMINISTIC, lockwork_opencl::OPENCL_TWO_PHASE];
const ALL: [EngineKind; 3] = [EngineKind::SERIAL, KINDS[0], KINDS[1]];

fn account(id: i64) -> Vec<u8> {
    [&id.to_le_bytes()[..], &[0; 32]].concat()
}

/// An engine with an empty table.
fn engine(kind: EngineKind, schema: &TableSchema) -> Box<dyn Engine> {
    let mut engine = create(kind, Options::default()).unwrap();
    engine.create_table(schema.clone(), 4).unwrap();
    engine
}

fn register(engine: &mut dyn Engine, schema: &TableSchema, source: &str) -> u32 {
    engine.register(assemble(source, std::slice::from_ref(schema)).unwrap().procedure).unwrap()
}

fn run(engine: &mut dyn Engine, batch: Batch) -> Completed {
    engine.submit(batch).unwrap_or_else(|refused| panic!("{refused}"));
    engine.complete().unwrap().unwrap()
}

/// Calls of procedure `id` whose first arguments are these integers.
fn calls(id: impl Fn(usize) -> u32, arguments: &[[i64; 2]]) -> Batch {
    let mut batch = Batch::new(128, arguments.len()).unwrap();
    for (number, pair) in arguments.iter().enumerate() {
        let mut block = batch.push(id(number)).unwrap();
        block.bytes()[32..40].copy_from_slice(&pair[0].to_le_bytes());
        block.bytes()[40..48].copy_from_slice(&pair[1].to_le_bytes());
    }
    batch
}

#[test]
fn a_row_is_read_with_one_width_after_it_was_written_with_another() {
    let schema = TableSchema::new("t", &[("id", ColumnType::I64), ("a", ColumnType::I64)], 1, false).unwrap();
    let at = schema.column("a").unwrap().1.offset;
    let field = |name: &str, offset| Field { name: name.into(), column_type: ColumnType::I64, count: 1, offset };
    let new = |opcode, a, b, w, x| Instruction { a, b, w, x, ..Instruction::new(opcode) };
    // Two handles of one row: through one the lower half is written, through the other the whole is read again.
    let code = vec![
        new(Opcode::Update, 0, 0, 0, 32),
        new(Opcode::Search, 1, 0, 0, 32),
        new(Opcode::Ret, 1, 0, 0, NO_LABEL),
        new(Opcode::Ret, 7, 1, 0, NO_LABEL),
        new(Opcode::Load, 2, 0, 4, 40),
        new(Opcode::Loadr, 3, 7, 8, at),
        new(Opcode::Storer, 2, 1, 4, at),
        new(Opcode::Loadr, 4, 7, 8, at),
        new(Opcode::Store, 3, 0, 8, 48),
        new(Opcode::Store, 4, 0, 8, 56),
        Instruction::new(Opcode::Commit),
        Instruction::new(Opcode::Commit),
        Instruction::new(Opcode::Commit),
    ];
    let procedure = Procedure {
        name: "halves".into(),
        tables: vec!["t".into()],
        parameters: vec![field("id", 32), field("value", 40)],
        results: vec![field("before", 48), field("after", 56)],
        scratch: Vec::new(),
        code,
        commit_handler: 11,
        abort_handler: 12,
    };
    for kind in ALL {
        let mut engine = engine(kind, &schema);
        let id = engine.register(procedure.clone()).unwrap();
        engine.load("t", &[1_i64.to_le_bytes(), (-1_i64).to_le_bytes()].concat()).unwrap();
        let done = run(&mut *engine, calls(|_| id, &[[1, 7]]));
        let bytes = done.batch.block(0).bytes();
        let result = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!([result(48), result(56)], [u64::MAX, 0xFFFF_FFFF_0000_0007], "{kind}");
    }
}

#[test]
fn a_block_is_read_with_one_width_after_it_was_written_with_another() {
    let schema = accounts(false);
    let source =
        "procedure pick\ntable accounts\nparam value: i64\nparam at: u8\nresult after: i64\nresult pair: i32[2]
         load r1, [at]\ncheck r1, 2\nmul r2, r1, 4\nload r3, [value]\ncopy [after], [pair], 8\nstore r3, [pair + r2]
         copy [after], [pair], 8\ncommit";
    for kind in ALL {
        let mut engine = engine(kind, &schema);
        let id = register(&mut *engine, &schema, source);
        let done = run(&mut *engine, calls(|_| id, &[[7, 1]]));
        assert_eq!(done.batch.block(0).bytes()[48..56], 0x7_0000_0000_u64.to_le_bytes(), "{kind}");
    }
}

#[test]
fn the_old_bytes_of_a_long_copy_are_kept_or_the_procedure_is_refused() {
    for bytes in [8_000, 32_776] {
        let columns = [("id", ColumnType::I64), ("bytes", ColumnType::Bytes(bytes))];
        let schema = TableSchema::new("wide", &columns, 1, false).unwrap();
        let source = format!(
            "procedure put\ntable wide\nparam id: i64\nparam other: i64\nparam bytes: bytes({bytes})
             update c0, wide, [id]\nret r1, c0\ncopy r1[wide.bytes], [bytes]\nsearch c1, wide, [other]\nret c1\ncommit"
        );
        for kind in KINDS {
            let mut engine = engine(kind, &schema);
            let procedure = assemble(&source, std::slice::from_ref(&schema)).unwrap().procedure;
            let Ok(id) = engine.register(procedure) else {
                assert!(bytes > 16_384, "{kind}: {bytes} bytes fit");
                continue;
            };
            let mut image = vec![7_u8; schema.row_bytes() as usize - 16];
            image[..8].copy_from_slice(&1_i64.to_le_bytes());
            engine.load("wide", &image).unwrap();
            let before = engine.digest().unwrap();
            let mut batch = Batch::new(40_000, 1).unwrap();
            let mut block = batch.push(id).unwrap();
            block.bytes()[32..40].copy_from_slice(&1_i64.to_le_bytes());
            block.bytes()[40..48].copy_from_slice(&99_i64.to_le_bytes());
            let done = run(&mut *engine, batch);
            assert_eq!(done.batch.block(0).status(), Some(Status::Aborted), "{kind}");
            assert_eq!(engine.digest().unwrap(), before, "{kind}");
        }
    }
}

#[test]
fn many_procedures_that_keep_much_fit_together_or_are_refused() {
    let schema = accounts(false);
    for kind in KINDS {
        let mut engine = engine(kind, &schema);
        let mut refused = None;
        for number in 0..200 {
            let source = format!(
                "procedure p{number}\ntable accounts\nparam id: i64\nparam other: i64\nmov r1, 0\nagain:
                 update c0, accounts, [id]\nret r2, c0\nstorer r1, r2[accounts.balance]\nadd r1, r1, 1\ncmp r1, 600
                 bl again\nsearch c1, accounts, [other]\nret c1\ncommit"
            );
            let procedure = assemble(&source, std::slice::from_ref(&schema)).unwrap().procedure;
            if let Err(error) = engine.register(procedure) {
                refused = Some((number as usize, error.to_string()));
                break;
            }
        }
        let (count, text) = refused.expect("there is an end to it");
        assert!(count > 20 && text.contains("all procedures together") && text.contains("1048576"), "{count}: {text}");
        engine.load("accounts", &account(1)).unwrap();
        let done = run(&mut *engine, calls(|number| (number % 30) as u32, &[[1, 5]; 200]));
        assert_eq!(done.report.tally.aborted.values().sum::<u64>(), 200, "{kind}");
    }
}

#[test]
fn conflicts_after_an_insert_use_up_no_rows() {
    let schema = accounts(false);
    let mut engine = engine(KINDS[1], &schema);
    // The hot row is held so long that others run out of attempts and are left for a later kernel.
    let source = "procedure both\ntable accounts\nparam id: i64\nparam hot: i64
         insert c0, accounts, [id]\nret r1, c0\nupdate c1, accounts, [hot]\nret r2, c1
         loadr r3, r2[accounts.balance]\nadd r3, r3, 1\nstorer r3, r2[accounts.balance]\nmov r4, 0\nagain:
         mul r3, r3, 3\ndiv r3, r3, 4\nadd r3, r3, 1000\nadd r4, r4, 1\ncmp r4, 1000\nbl again
         storer r3, r1[accounts.balance]\ncommit";
    let id = register(&mut *engine, &schema, source);
    engine.load("accounts", &account(-1)).unwrap();
    for round in 0..5 {
        let arguments: Vec<[i64; 2]> = (0..2_000).map(|key| [round * 2_000 + key, -1]).collect();
        let tally = run(&mut *engine, calls(|_| id, &arguments)).report.tally;
        assert_eq!((tally.committed, tally.failed.len()), (2_000, 0), "{tally:?}");
    }
}

#[test]
fn a_bound_that_does_not_fit_is_no_lost_device() {
    let schema = accounts(false);
    let source = "procedure many\ntable accounts\nparam id: i64\nparam count: i64\nscratch key: i64
         load r1, [id]\nload r3, [count]\nmov r2, 0\nagain:\ncmp r2, r3\nbge skip\nadd r4, r1, r2\nstore r4, [key]
         insert c0, accounts, [key]\nret r5, c0\nskip:\nadd r2, r2, 1\ncmp r2, 500\nbl again\ncommit";
    for kind in KINDS {
        let mut engine = engine(kind, &schema);
        let id = register(&mut *engine, &schema, source);
        let arguments: Vec<[i64; 2]> = (0..100_000).map(|key| [key, i64::from(key < 500)]).collect();
        let tally = run(&mut *engine, calls(|_| id, &arguments)).report.tally;
        assert_eq!(tally.committed, 100_000, "{kind}: {tally:?}");
        engine.digest().unwrap();
    }
}

#[test]
fn nothing_behind_a_lost_batch_is_acknowledged() {
    for kind in KINDS {
        let mut seen = 0;
        for call in 1..80 {
            let Ok(mut engine) = create_failing(kind, Options::default(), call) else { continue };
            if engine.create_table(accounts(false), 1000).is_err() {
                continue;
            }
            register(&mut *engine, &accounts(false), PROCEDURES[6]);
            let batches: Vec<_> = (0..3).map(|seed| fill(&*engine, &mut Random(seed), &["open"], 40)).collect();
            let taken = batches.into_iter().map_while(|batch| engine.submit(batch).ok()).count();
            let mut lost = Vec::new();
            for _ in 0..taken {
                let done = engine.complete().unwrap().unwrap();
                lost.push(done.batch.blocks().filter(|block| block.abort_code() == DEVICE_LOST).count());
            }
            assert!(lost.iter().all(|&count| count == 0 || count == 40), "{kind}, call {call}: {lost:?}");
            assert!(lost.windows(2).all(|pair| pair[0] <= pair[1]), "{kind}, call {call}: {lost:?}");
            seen += usize::from(lost.contains(&40));
        }
        assert!(seen > 3, "{kind}: {seen} runs lost a batch");
    }
}
