//! Any instructions as a procedure: the verifier does not panic, and what it lets through runs on arbitrary arguments
//! without a panic and with the same outcome on every engine, and on the engine `serial` with pages that nobody may
//! touch around each block and each row.
//!
//! Half of the procedures are random instructions. The others are valid ones with a loop, in which some instructions
//! are changed: what is nearly valid, and loops that the verifier can bound, are found by chance too seldom.
#![no_main]

use lockwork_conformance::engines::Random;
use lockwork_conformance::procedures as valid;
use lockwork_engine::replay::{compare_digests, replay};
use lockwork_engine::{ConflictPlan, Engine, EngineKind, Options, create};
use lockwork_procedure::assembly::fuzz::catalog;
use lockwork_procedure::block::Batch;
use lockwork_procedure::isa::{Instruction, Opcode, SIGNED};
use lockwork_procedure::program::{Field, Procedure};
use lockwork_procedure::schema::ColumnType;

/// Procedures that could run for longer are verified only.
const MAX_STEPS: u64 = 20_000;
const CALLS: usize = 6;

/// Takes bytes off the front of the input; zeros when there are no more.
struct Source<'a>(&'a [u8]);

impl Source<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn register(&mut self) -> u8 {
        self.byte() % 8
    }

    /// Mostly places in the block, the row or the code.
    fn offset(&mut self) -> u32 {
        match self.byte() {
            byte @ 0..=199 => u32::from(byte),
            200..=230 => 8 * u32::from(self.byte()),
            231..=239 => u32::MAX,
            _ => u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()]),
        }
    }

    fn width(&mut self) -> u16 {
        match self.byte() % 8 {
            0 => 1,
            1 => 2,
            2 => 4,
            3 | 4 => 8,
            5 => 4 | SIGNED,
            6 => u16::from(self.byte()),
            _ => u16::from_le_bytes([self.byte(), self.byte()]),
        }
    }

    fn instruction(&mut self) -> Instruction {
        let opcode = Opcode::ALL[usize::from(self.byte()) % Opcode::ALL.len()];
        let [a, b, c, d, e, w, x, y] = opcode.fields();
        let mut i = Instruction::new(opcode);
        let mut register = |used| if used { self.register() } else { 0 };
        (i.a, i.b, i.c, i.d, i.e) = (register(a), register(b), register(c), register(d), register(e));
        i.w = if w { self.width() } else { 0 };
        i.x = if x { self.offset() } else { 0 };
        i.y = if y && !opcode.has_immediate() { self.offset() } else { 0 };
        i
    }
}

fn procedure(source: &mut Source<'_>) -> Procedure {
    let declared: [&[(&str, ColumnType, u32)]; 3] = [
        &[
            ("p0", ColumnType::I64, 1),
            ("p1", ColumnType::I64, 1),
            ("p2", ColumnType::U8, 1),
            ("p3", ColumnType::I32, 1),
        ],
        &[("q0", ColumnType::I64, 1), ("q1", ColumnType::Char(20), 1), ("q2", ColumnType::I64, 4)],
        &[("s0", ColumnType::I64, 2)],
    ];
    let types = declared.map(|group| group.iter().map(|&(_, of, count)| (of, count)).collect::<Vec<_>>());
    let (_, offsets) = Procedure::lay_out([&types[0], &types[1], &types[2]]);
    let mut offsets = offsets.into_iter();
    let [parameters, results, scratch] = declared.map(|group| {
        let field = |&(name, column_type, count): &(&str, ColumnType, u32)| {
            let offset = offsets.next().expect("one for each field") as u32;
            Field { name: name.into(), column_type, count, offset }
        };
        group.iter().map(field).collect::<Vec<_>>()
    });
    let length = usize::from(source.byte()) % 40;
    let mut code: Vec<Instruction> = (0..length).map(|_| source.instruction()).collect();
    code.push(Instruction::new(Opcode::Commit));
    let commit_handler = code.len() as u32;
    code.push(Instruction::new(Opcode::Commit));
    let abort_handler = code.len() as u32;
    code.push(Instruction::new(Opcode::Commit));
    let tables = vec!["accounts".into(), "orders".into()];
    Procedure { name: "p".into(), tables, parameters, results, scratch, code, commit_handler, abort_handler }
}

fn furnish(mut engine: Box<dyn Engine>) -> Box<dyn Engine> {
    for schema in catalog() {
        let schema = schema.partition_by_hash("id").expect("a column of the key");
        let (name, bytes) = (schema.name().to_string(), (schema.row_bytes() - 16) as usize);
        engine.create_table(schema, 16).expect("a new table");
        for id in 0..4_i64 {
            let mut image = vec![0; bytes];
            image[..8].copy_from_slice(&id.to_le_bytes());
            image[8] = id as u8;
            engine.load(&name, &image).expect("a new row");
        }
    }
    engine
}

/// A valid procedure with a loop, and up to three changes.
fn nearly_valid(source: &mut Source<'_>) -> Procedure {
    let seed = u64::from(source.byte()) | u64::from(source.byte()) << 8 | u64::from(source.byte()) << 16;
    let loops = |procedure: &Procedure| {
        let mut code = procedure.code.iter().zip(0..);
        code.any(|(instruction, at)| instruction.opcode == Opcode::Bl && instruction.x < at)
    };
    // One in a few has one.
    let with_loop = (64 * seed..64 * (seed + 1)).map(valid::procedure).find(loops);
    let mut procedure = with_loop.unwrap_or_else(|| valid::procedure(seed));
    for _ in 0..source.byte() % 4 {
        let at = (usize::from(source.byte()) | usize::from(source.byte()) << 8) % procedure.code.len();
        let changed = source.instruction();
        let instruction = &mut procedure.code[at];
        match source.byte() % 8 {
            0 => *instruction = changed,
            1 => instruction.x = source.offset(),
            2 => instruction.y = source.offset(),
            3 => instruction.w = source.width(),
            4 => instruction.a = source.byte() % 12,
            5 => instruction.b = source.byte() % 12,
            6 => instruction.c = source.byte() % 12,
            _ => instruction.d = source.byte() % 12,
        }
    }
    procedure
}

/// What the verifier lets through stays in its bounds, and is the same on all engines.
fn check(procedure: &Procedure, batch: &Batch, prepare: &dyn Fn(Box<dyn Engine>) -> Box<dyn Engine>) {
    valid::check_bounds(prepare, batch);
    let graph = Options { threads: 1, plan: ConflictPlan::Graph, ..Options::default() };
    for &kind in EngineKind::CPU.iter().filter(|&&kind| kind != EngineKind::SERIAL) {
        let make = |kind| prepare(create(kind, graph.clone()).expect("possible options"));
        let (mut oracle, mut engine) = (make(EngineKind::SERIAL), make(kind));
        let mut calls = Batch::new(batch.stride() as u32, CALLS).expect("a few blocks");
        for block in batch.blocks() {
            calls.push(0).expect("there is room").bytes()[32..].copy_from_slice(&block.bytes()[32..]);
        }
        engine.submit(calls).expect("an idle engine");
        let completed = engine.complete().expect("a running engine").expect("a batch is in flight");
        let same = replay(&mut *oracle, &completed.batch, 0, engine.serial_order());
        same.unwrap_or_else(|error| panic!("{}, {kind:?}: {error}", procedure.name));
        compare_digests(&*engine, &*oracle).expect("equal contents");
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut source = Source(bytes);
    if source.byte() % 2 == 1 {
        let procedure = nearly_valid(&mut source);
        let verified = lockwork_procedure::verify::verify(procedure.clone(), valid::schemas().as_slice());
        let Ok(verified) = verified else { return };
        if verified.step_bound() <= MAX_STEPS {
            let mut random = Random(u64::from(source.byte()));
            let batch = valid::calls(1, CALLS, verified.block_stride(), &mut random);
            let procedures = [procedure];
            check(&procedures[0], &batch, &|engine| valid::prepared(engine, &procedures));
        }
        return;
    }
    let procedure = procedure(&mut source);
    let verified = lockwork_procedure::verify::verify(procedure.clone(), catalog().as_slice());
    let Ok(verified) = verified else { return };
    if verified.step_bound() > MAX_STEPS {
        return;
    }
    let mut batch = Batch::new(verified.block_stride(), CALLS).expect("a few blocks");
    for _ in 0..CALLS {
        let mut block = batch.push(0).expect("there is room");
        for parameter in &verified.procedure().parameters {
            let at = parameter.offset as usize;
            block.bytes()[at] = source.byte() % 6;
            block.bytes()[at + parameter.column_type.width() as usize - 1] |= source.byte() & 0x80;
        }
    }
    check(&procedure, &batch, &|engine| {
        let mut engine = furnish(engine);
        engine.register(procedure.clone()).expect("it verifies");
        engine
    });
});
