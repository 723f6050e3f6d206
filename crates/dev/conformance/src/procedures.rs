//! Random procedures that the verifier accepts, on three tables with keys of every kind: they run on an engine with
//! random arguments, end as in its serial order, answer the same, and leave the same rows.
//!
//! They are valid by construction, or nearly: what the verifier refuses is left out. Most of what they do makes no
//! sense to a user, which is the point: they read what they are about to write, abort on overflow in the middle, scan
//! what they inserted, and look one row up several times.
//!
//! The engine crate runs them on the CPU engines, the crates of other back ends on theirs.

use std::ops::Range;

use lockwork_memory::Pages;
use lockwork_procedure::block::Batch;
use lockwork_procedure::isa::{Instruction, NO_LABEL, Opcode, SIGNED, scan_stride};
use lockwork_procedure::program::{Field, Procedure};
use lockwork_procedure::schema::{ColumnType, TableSchema};
use lockwork_procedure::verify::verify;

use crate::engines::{Make, Random};
use lockwork_engine::replay::{compare_digests, replay};
use lockwork_engine::{Engine, EngineKind, Options, Tally, create};

/// Parameters: eight integers; keys of the second and third table, two each; a line; text.
const P: u32 = 32;
const PAIRS: u32 = 96;
const NAMES: u32 = 112;
const ROWS_OF_SCAN: u32 = 5;

/// The tables of the random procedures, by slot.
#[must_use]
pub fn schemas() -> [TableSchema; 3] {
    use ColumnType::{Bytes, Char, I8, I16, I32, I64, U8, U16, U32};
    let values = [("a", I64), ("b", I32), ("c", U16), ("d", I8), ("e", U8), ("f", I16), ("g", U32)];
    let wide = [("line", Bytes(64)), ("text", Char(20))];
    let plain: Vec<_> = [("id", I64)].into_iter().chain(values).chain(wide).collect();
    let pairs = [("x", I32), ("y", Char(3)), ("z", U8), ("v", I64), ("w", Bytes(16))];
    let names = [("n", I16), ("name", Char(12)), ("m", I64), ("v", I64), ("s", I32)];
    [
        TableSchema::new("plain", &plain, 1, false).unwrap().partition_by_hash("id").unwrap(),
        TableSchema::new("pairs", &pairs, 3, true).unwrap().partition_by_hash("x").unwrap(),
        TableSchema::new("names", &names, 3, true).unwrap().partition_by_hash("name").unwrap(),
    ]
}

/// Writes code that is valid by construction: integers live in r1 to r5 and are defined from the start, loops count in
/// r6 and r7, r8 and r10 hold rows inside one statement, r9 an index.
struct Author {
    random: Random,
    code: Vec<Instruction>,
    schemas: [TableSchema; 3],
    depth: u8,
    results: u32,
    scratch: u32,
    buffer: u32,
}

impl Author {
    fn below(&mut self, n: u32) -> u32 {
        self.random.below(u64::from(n)) as u32
    }

    fn integer(&mut self) -> u8 {
        1 + self.below(5) as u8
    }

    fn push(&mut self, opcode: Opcode, set: impl FnOnce(&mut Instruction)) {
        let mut instruction = Instruction::new(opcode);
        set(&mut instruction);
        self.code.push(instruction);
    }

    fn value(&mut self) -> i64 {
        let extremes = [0, 1, -1, 7, i64::MAX, i64::MIN, 1 << 31, -(1 << 31), 255, 256, 1 << 40, -129];
        match self.below(3) {
            0 => extremes[self.below(extremes.len() as u32) as usize],
            _ => i64::from(self.below(9)) - 2,
        }
    }

    fn width(&mut self) -> u16 {
        [1, 2, 4, 8, 8, 8, 1 | SIGNED, 2 | SIGNED, 4 | SIGNED][self.below(9) as usize]
    }

    /// r9 = 0, 8, 16 or 24, from an argument that may be too large.
    fn index(&mut self) {
        let x = P + 8 * self.below(8);
        self.push(Opcode::Load, |i| (i.a, i.x, i.w) = (9, x, 1));
        self.push(Opcode::Check, |i| (i.b, i.x) = (9, 4));
        self.push(Opcode::Muli, |i| (i.a, i.b, i.x) = (9, 9, 8));
    }

    /// A place for `length` bytes among results and scratch integers, and an index register or none.
    fn place(&mut self, length: u32) -> (u32, u8) {
        let base = if self.below(2) == 0 { self.results } else { self.scratch };
        if self.below(4) == 0 {
            self.index();
            return (base + self.below(64 - 24 - length.min(40) + 1), 9);
        }
        let step = if self.below(3) == 0 { 1 } else { 8 };
        (base + self.below((64 - length) / step + 1) * step, 0)
    }

    /// A place for `length` bytes among the arguments.
    fn argument(&mut self, length: u32) -> u32 {
        let (base, bytes) = [(P, 64), (192, 64), (256, 20)][self.below(3) as usize];
        let bytes = if bytes < length { return P } else { bytes };
        let step = if self.below(3) == 0 { 1 } else { 4 };
        base + self.below((bytes - length) / step + 1) * step
    }

    fn block(&mut self, statements: u32) {
        for _ in 0..self.below(statements) + 1 {
            self.statement();
        }
    }

    fn statement(&mut self) {
        match self.below(24) {
            0 | 1 => {
                let (w, a) = (self.width(), self.integer());
                let x = self.argument(u32::from(w & !SIGNED));
                self.push(Opcode::Load, |i| (i.a, i.x, i.w) = (a, x, w));
            }
            2 => {
                let (a, value) = (self.integer(), self.value());
                self.push(Opcode::Movi, |i| (i.a, *i) = (a, Instruction { a, ..i.with_immediate(value) }));
            }
            3 => {
                let (a, b) = (self.integer(), self.integer());
                self.push(Opcode::Mov, |i| (i.a, i.b) = (a, b));
            }
            4 | 5 => {
                let opcode = [Opcode::Add, Opcode::Sub, Opcode::Mul, Opcode::Div][self.below(4) as usize];
                let (a, b, c) = (self.integer(), self.integer(), self.integer());
                self.push(opcode, |i| (i.a, i.b, i.c) = (a, b, c));
            }
            6 | 7 => {
                let opcode = [Opcode::Addi, Opcode::Subi, Opcode::Muli, Opcode::Divi][self.below(4) as usize];
                let (a, b, value) = (self.integer(), self.integer(), self.value());
                self.push(opcode, |i| *i = Instruction { a, b, ..i.with_immediate(value) });
            }
            8 => {
                let (b, value) = (self.integer(), self.value().max(3));
                self.push(Opcode::Check, |i| *i = Instruction { b, ..i.with_immediate(value) });
            }
            9 | 10 => {
                let (w, a) = (self.width(), self.integer());
                let (x, c) = self.place(u32::from(w & !SIGNED));
                self.push(Opcode::Store, |i| (i.a, i.x, i.c, i.w) = (a, x, c, w));
            }
            11 => {
                let (w, a) = (self.width(), self.integer());
                let (x, c) = self.place(u32::from(w & !SIGNED));
                self.push(Opcode::Load, |i| (i.a, i.x, i.c, i.w) = (a, x, c, w));
            }
            12 => {
                let w = 1 + self.below(30);
                let ((x, d), y) = (self.place(w), self.argument(w));
                let (y, e) = if self.below(2) == 0 { (y, 0) } else { self.place(w) };
                let w = w as u16;
                self.push(Opcode::CopyBb, |i| (i.x, i.d, i.y, i.e, i.w) = (x, d, y, e, w));
            }
            13..=17 => self.access(),
            18 => self.scan(),
            19 | 20 => self.decide(),
            21 => self.repeat(),
            22 => {
                let code = self.below(100) as u16;
                let (b, value) = (self.integer(), self.value());
                self.push(Opcode::Cmpi, |i| *i = Instruction { b, ..i.with_immediate(value) });
                let over = self.code.len() as u32 + 2;
                self.push(Opcode::Bne, |i| i.x = over);
                self.push(Opcode::Abort, |i| i.w = code);
            }
            _ => self.two_rows(),
        }
    }

    fn decide(&mut self) {
        let branches = [Opcode::Be, Opcode::Bne, Opcode::Bl, Opcode::Ble, Opcode::Bg, Opcode::Bge];
        let branch = branches[self.below(6) as usize];
        let (b, c, value) = (self.integer(), self.integer(), self.value());
        if self.below(2) == 0 {
            self.push(Opcode::Cmp, |i| (i.b, i.c) = (b, c));
        } else {
            self.push(Opcode::Cmpi, |i| *i = Instruction { b, ..i.with_immediate(value) });
        }
        let decision = self.code.len();
        self.push(branch, |_| ());
        self.block(2);
        let over = self.code.len();
        self.push(Opcode::Jmp, |_| ());
        self.code[decision].x = self.code.len() as u32;
        self.block(2);
        self.code[over].x = self.code.len() as u32;
        self.push(Opcode::Mov, |i| (i.a, i.b) = (1, 1));
    }

    fn repeat(&mut self) {
        if self.depth == 2 {
            return;
        }
        let counter = 6 + self.depth;
        self.depth += 1;
        self.push(Opcode::Movi, |i| i.a = counter);
        let head = self.code.len() as u32;
        self.block(3);
        self.push(Opcode::Addi, |i| (i.a, i.b, i.x) = (counter, counter, 1));
        self.push(Opcode::Cmpi, |i| (i.b, i.x) = (counter, 3));
        self.push(Opcode::Bl, |i| i.x = head);
        self.depth -= 1;
    }

    /// A DB instruction on a random table, with a key from the arguments or, for the first table, from scratch.
    fn db(&mut self, opcode: Opcode, cp: u8, slot: u8) {
        let (x, c) = match slot {
            0 if self.below(3) == 0 => {
                let x = self.scratch;
                self.index();
                (x, 9)
            }
            0 => (P + 8 * self.below(8), 0),
            1 => (PAIRS + 8 * self.below(2), 0),
            _ => (NAMES + 24 * self.below(2), 0),
        };
        self.push(opcode, |i| (i.a, i.d, i.x, i.c) = (cp, slot, x, c));
    }

    fn access(&mut self) {
        let opcode =
            [Opcode::Search, Opcode::Update, Opcode::Update, Opcode::Insert, Opcode::Remove][self.below(5) as usize];
        let slot = self.below(3) as u8;
        self.db(opcode, 0, slot);
        let wait = self.code.len();
        self.push(Opcode::Ret, |i| (i.a, i.b, i.x) = (8, 0, NO_LABEL));
        if opcode != Opcode::Remove {
            for _ in 0..self.below(4) {
                self.row(slot, matches!(opcode, Opcode::Update | Opcode::Insert));
            }
        }
        if self.below(3) > 0 {
            self.code[wait].x = self.code.len() as u32;
        }
        self.push(Opcode::Mov, |i| (i.a, i.b) = (2, 2));
    }

    /// Reads or writes a column of the row in r8.
    fn row(&mut self, slot: u8, writable: bool) {
        let schema = self.schemas[usize::from(slot)].clone();
        let columns = schema.columns();
        let column = &columns[self.below(columns.len() as u32) as usize];
        let writable = writable && column.offset >= schema.values_start();
        let (x, width, a) = (column.offset, column.column_type.width(), self.integer());
        if column.column_type.is_integer() && self.below(2) == 0 {
            let w = width as u16 | if column.column_type.is_signed() && width < 8 { SIGNED } else { 0 };
            match writable && self.below(2) == 0 {
                true => self.push(Opcode::Storer, |i| (i.a, i.b, i.x, i.w) = (a, 8, x, w)),
                false => self.push(Opcode::Loadr, |i| (i.a, i.b, i.x, i.w) = (a, 8, x, w)),
            }
        } else if writable && self.below(2) == 0 {
            let y = if width == 64 { 192 } else { self.argument(width) };
            self.push(Opcode::CopyRb, |i| (i.x, i.b, i.y, i.w) = (x, 8, y, width as u16));
        } else if width == 64 {
            let to = self.buffer;
            self.push(Opcode::CopyBr, |i| (i.x, i.c, i.y, i.w) = (to, 8, x, 64));
        } else {
            let (to, d) = self.place(width);
            self.push(Opcode::CopyBr, |i| (i.x, i.d, i.c, i.y, i.w) = (to, d, 8, x, width as u16));
        }
    }

    /// Copies from one row to another, or within one.
    fn two_rows(&mut self) {
        self.db(Opcode::Update, 1, 0);
        self.db(Opcode::Search, 2, 0);
        self.push(Opcode::Ret, |i| (i.a, i.b, i.x) = (8, 1, NO_LABEL));
        self.push(Opcode::Ret, |i| (i.a, i.b, i.x) = (10, 2, NO_LABEL));
        let line = self.schemas[0].column("line").unwrap().1.offset;
        let (x, y, w) = (line + self.below(20), line + self.below(20), 1 + self.below(40) as u16);
        self.push(Opcode::CopyRr, |i| (i.b, i.x, i.c, i.y, i.w) = (8, x, 10, y, w));
    }

    fn scan(&mut self) {
        let slot = 1 + self.below(2) as u8;
        self.db(Opcode::Scan, 3, slot);
        let e = self.below(4) as u8;
        let (y, limit) = (self.buffer, self.below(ROWS_OF_SCAN) as u16 + 1);
        let instruction = self.code.last_mut().unwrap();
        (instruction.w, instruction.e, instruction.y) = (limit, e, y);
        let a = self.integer();
        self.push(Opcode::Ret, |i| (i.a, i.b, i.x) = (a, 3, NO_LABEL));
    }
}

fn fields(declared: &[(&str, ColumnType, u32)], offsets: &mut impl Iterator<Item = u64>) -> Vec<Field> {
    let field = |&(name, column_type, count): &(&str, ColumnType, u32)| {
        let offset = offsets.next().unwrap() as u32;
        Field { name: name.into(), column_type, count, offset }
    };
    declared.iter().map(field).collect()
}

/// A random procedure, which the verifier probably accepts.
///
/// # Panics
/// Never.
#[must_use]
pub fn procedure(seed: u64) -> Procedure {
    use ColumnType::{Bytes, Char, I64};
    let schemas = schemas();
    let most = schemas.iter().map(|schema| scan_stride(schema, None)).max().unwrap() * ROWS_OF_SCAN;
    let parameters =
        [("p", I64, 8), ("pair", Bytes(8), 2), ("name", Bytes(24), 2), ("line", Bytes(64), 1), ("text", Char(20), 1)];
    let results = [("r", I64, 8), ("buffer", Bytes(64), most.div_ceil(64))];
    let scratch = [("s", I64, 8)];
    let types = |group: &[(&str, ColumnType, u32)]| group.iter().map(|&(_, of, n)| (of, n)).collect::<Vec<_>>();
    let (_, offsets) = Procedure::lay_out([&types(&parameters), &types(&results), &types(&scratch)]);
    let mut offsets = offsets.into_iter();
    let parameters = fields(&parameters, &mut offsets);
    let results = fields(&results, &mut offsets);
    let scratch = fields(&scratch, &mut offsets);
    assert_eq!([P, PAIRS, NAMES, 192, 256], std::array::from_fn(|at| parameters[at].offset));
    let mut author = Author {
        random: Random(seed),
        code: Vec::new(),
        schemas: schemas.clone(),
        depth: 0,
        results: results[0].offset,
        scratch: scratch[0].offset,
        buffer: results[1].offset,
    };
    for register in 1..=5 {
        let value = author.value();
        author.push(Opcode::Movi, |i| *i = Instruction { a: register, ..i.with_immediate(value) });
    }
    author.block(10);
    for register in 1..=5 {
        let x = author.results + 8 * u32::from(register);
        author.push(Opcode::Store, |i| (i.a, i.x, i.w) = (register, x, 8));
    }
    author.push(Opcode::Commit, |_| ());
    let mut handlers = [0; 2];
    for handler in &mut handlers {
        *handler = author.code.len() as u32;
        if author.below(2) == 0 {
            let (value, x) = (author.value(), author.results);
            author.push(Opcode::Movi, |i| *i = Instruction { a: 1, ..i.with_immediate(value) });
            author.push(Opcode::Store, |i| (i.a, i.x, i.w) = (1, x, 8));
        }
        author.push(Opcode::Commit, |_| ());
    }
    Procedure {
        name: format!("p{seed}"),
        tables: schemas.iter().map(|schema| schema.name().to_string()).collect(),
        parameters,
        results,
        scratch,
        code: author.code,
        commit_handler: handlers[0],
        abort_handler: handlers[1],
    }
}

/// An engine with a few rows in each table and these procedures.
///
/// # Panics
/// When it refuses one of them.
#[must_use]
pub fn prepared(mut engine: Box<dyn Engine>, procedures: &[Procedure]) -> Box<dyn Engine> {
    for (number, schema) in schemas().into_iter().enumerate() {
        let (name, bytes) = (schema.name().to_string(), (schema.row_bytes() - 16) as usize);
        engine.create_table(schema, 4).unwrap();
        for row in 0..5_u8 {
            let mut image = vec![row.wrapping_mul(37); bytes];
            let key = key(number, row);
            image[..key.len()].copy_from_slice(&key);
            engine.load(&name, &image).unwrap();
        }
    }
    for procedure in procedures {
        engine.register(procedure.clone()).unwrap();
    }
    engine
}

/// Key number `row` of a table, as it lies in a block: small, negative and equal in some columns.
#[must_use]
pub fn key(table: usize, row: u8) -> Vec<u8> {
    let number = i64::from(row) - 2;
    match table {
        0 => number.to_le_bytes().to_vec(),
        1 => [&(number as i32 / 2).to_le_bytes()[..], &[b'a' + row % 2, b'b', b'c'], &[row]].concat(),
        _ => {
            let mut image = vec![0; 24];
            image[..2].copy_from_slice(&(number as i16 / 3).to_le_bytes());
            image[2..14].copy_from_slice(&[b'n' + row % 3; 12]);
            image[16..].copy_from_slice(&number.to_le_bytes());
            image
        }
    }
}

/// A batch of `count` calls of the first `procedures` random procedures, with random arguments, in blocks of `stride`.
///
/// # Panics
/// When there is no memory for it.
#[must_use]
pub fn calls(procedures: usize, count: usize, stride: u32, random: &mut Random) -> Batch {
    let mut batch = Batch::new(stride, count).unwrap();
    for _ in 0..count {
        let mut block = batch.push(random.below(procedures as u64) as u32).unwrap();
        let bytes = block.bytes();
        for at in 0..8 {
            let value = match random.below(8) {
                0 => i64::MAX - 3,
                1 => i64::MIN,
                _ => random.below(8) as i64 - 2,
            };
            bytes[32 + at * 8..40 + at * 8].copy_from_slice(&value.to_le_bytes());
        }
        for (at, table, length) in [(PAIRS, 1, 8), (PAIRS + 8, 1, 8), (NAMES, 2, 24), (NAMES + 24, 2, 24)] {
            let key = key(table, random.below(7) as u8);
            bytes[at as usize..][..length].copy_from_slice(&key);
        }
        bytes[192..276].iter_mut().for_each(|byte| *byte = random.below(256) as u8);
    }
    batch
}

/// The procedures of these seeds that the verifier accepts.
///
/// # Panics
/// When it refuses more than one in ten.
#[must_use]
pub fn procedures(seeds: Range<u64>) -> Vec<Procedure> {
    let schemas = schemas();
    let written = seeds.end - seeds.start;
    let accepted: Vec<Procedure> =
        seeds.map(procedure).filter(|procedure| verify(procedure.clone(), schemas.as_slice()).is_ok()).collect();
    assert!(accepted.len() as u64 * 10 > written * 9, "only {} of {written} are accepted", accepted.len());
    accepted
}

/// Runs batches of calls of the procedures of these seeds and compares them with serial replay. Returns what became of
/// them.
///
/// # Panics
/// At the first difference; `what` is in the text.
pub fn check(what: &str, make: Make<'_>, seeds: Range<u64>) -> Tally {
    let procedures = procedures(seeds.clone());
    let mut engine = prepared(make().unwrap(), &procedures);
    let mut oracle = prepared(create(EngineKind::SERIAL, Options::default()).unwrap(), &procedures);
    let stride = (0..procedures.len() as u32).map(|id| engine.procedure(id).unwrap().block_bytes).max().unwrap();
    let mut random = Random(seeds.start);
    let mut total = Tally::default();
    for number in 0..6 {
        let batch = calls(procedures.len(), 400, stride as u32, &mut random);
        engine.submit(batch).unwrap_or_else(|refused| panic!("{refused}"));
        let completed = engine.complete().unwrap().unwrap();
        let tally = &completed.report.tally;
        assert!(tally.committed > 20 && tally.failed.is_empty(), "{what}, seeds {seeds:?}: {tally:?}");
        let same = replay(&mut *oracle, &completed.batch, number, engine.serial_order());
        same.unwrap_or_else(|error| panic!("{what}, seeds {seeds:?}: {error}"));
        compare_digests(&*engine, &*oracle).unwrap_or_else(|error| panic!("{what}, seeds {seeds:?}: {error}"));
        total.add(tally);
    }
    total
}

/// Makes calls one by one on a serial engine whose blocks and rows lie each between pages that nobody may touch, and on
/// one without; `prepare` gives both what they need. An access that leaves a block or a row ends the process.
///
/// # Panics
/// When the two answer differently.
pub fn check_bounds(prepare: &dyn Fn(Box<dyn Engine>) -> Box<dyn Engine>, calls: &Batch) {
    let engine = |pages| {
        let options = Options { threads: 1, pages, ..Options::default() };
        prepare(create(EngineKind::SERIAL, options).unwrap())
    };
    let (mut guarded, mut plain) = (engine(Pages::Guarded), engine(Pages::Plain));
    for (number, block) in calls.blocks().enumerate() {
        let bytes = guarded.procedure(block.procedure()).unwrap().block_bytes;
        let run = |engine: &mut dyn Engine, mut one: Batch| {
            one.push(block.procedure()).unwrap().bytes()[32..bytes].copy_from_slice(&block.bytes()[32..bytes]);
            engine.submit(one).unwrap_or_else(|refused| panic!("{refused}"));
            engine.complete().unwrap().unwrap().batch.block(0).bytes().to_vec()
        };
        let here = run(&mut *guarded, Batch::guarded(bytes as u32).unwrap());
        let there = run(&mut *plain, Batch::new(bytes as u32, 1).unwrap());
        assert_eq!(here, there, "call {number}");
    }
    compare_digests(&*guarded, &*plain).unwrap_or_else(|error| panic!("{error}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn random_procedures_stay_inside_their_blocks_and_rows() {
        for seeds in [0..30, 30..60] {
            let procedures = procedures(seeds.clone());
            let stride = procedures.iter().map(|one| one.layout().block_bytes).max().unwrap();
            let calls = calls(procedures.len(), 300, stride, &mut Random(seeds.start));
            check_bounds(&|engine| prepared(engine, &procedures), &calls);
        }
    }

    #[test]
    fn the_random_procedures_use_every_instruction() {
        let used: BTreeSet<Opcode> = procedures(0..50).iter().flat_map(|p| p.code.iter().map(|i| i.opcode)).collect();
        let missing: Vec<&Opcode> = Opcode::ALL.iter().filter(|opcode| !used.contains(opcode)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
