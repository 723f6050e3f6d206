//! Soundness on random procedures: what an execution touches is in the access set, whatever is in the database.
//!
//! Programs are made of statements, so that they are valid by construction: integers live in r1 to r5 and are defined
//! from the start, loops count to 3 in r6 or r7, r8 holds a row only inside one statement, r9 an index.

use proptest::prelude::*;

use super::build::*;
use super::model::{self, Database};
use crate::access::{AccessSet, KeyAccess, Operation, access_set, overwrites, row_uses};
use crate::isa::{Instruction, Opcode};
use crate::verified::Verified;

/// Where a key image stands.
#[derive(Clone, Copy, Debug)]
enum KeyAt {
    Argument(u32),
    Scratch(u32),
    /// Scratch word 8 plus the innermost loop's counter.
    ScratchCounted,
}

#[derive(Clone, Debug)]
enum Statement {
    Argument(u8, u32),
    Constant(u8, i64),
    Move(u8, u8),
    Arithmetic(Opcode, u8, u8, u8),
    Check(u8, i64),
    ToScratch(u8, u32),
    FromScratch(u8, u32),
    ToScratchCounted(u8),
    FromScratchCounted(u8),
    CopyScratch(u32, u32),
    /// From scratch word 8 plus the innermost loop's counter.
    CopyScratchCounted(u32),
    /// A DB instruction, awaited at once: operation, slot, key, the integer that takes a column, a label or none.
    Access(Opcode, u8, KeyAt, Option<u8>, bool),
    /// Two at once.
    Pair(u8, KeyAt, KeyAt),
    RowToScratch(u8, KeyAt, u32),
    Scan(u8, KeyAt, u32),
    If(Opcode, u8, u8, Vec<Statement>, Vec<Statement>),
    Loop(Vec<Statement>),
    Abort,
}

/// Turns statements into code.
struct Emitter {
    code: Vec<Instruction>,
    depth: u8,
}

impl Emitter {
    fn counter(&self) -> u8 {
        [0, 6, 7][usize::from(self.depth)]
    }

    /// r9 = 8 × the innermost counter.
    fn index(&mut self) {
        self.code.push(constant(Opcode::Muli, 9, self.counter(), 8));
    }

    fn key(&mut self, opcode: Opcode, cp: u8, slot: u8, key: KeyAt) {
        let access = match key {
            KeyAt::Argument(index) => db(opcode, cp, slot, argument(index)),
            KeyAt::Scratch(index) => db(opcode, cp, slot, scratch(index)),
            KeyAt::ScratchCounted => {
                self.index();
                Instruction { c: 9, ..db(opcode, cp, slot, scratch(8)) }
            }
        };
        self.code.push(access);
    }

    fn all(&mut self, statements: &[Statement]) {
        statements.iter().for_each(|statement| self.one(statement));
    }

    fn one(&mut self, statement: &Statement) {
        match *statement {
            Statement::Argument(a, index) => self.code.push(load(a, argument(index), 0, 1)),
            Statement::Constant(a, value) => self.code.push(movi(a, value)),
            Statement::Move(a, b) => self.code.push(mov(a, b)),
            Statement::Arithmetic(opcode, a, b, c) => self.code.push(binary(opcode, a, b, c)),
            Statement::Check(b, limit) => self.code.push(constant(Opcode::Check, 0, b, limit)),
            Statement::ToScratch(a, index) => self.code.push(store(a, scratch(index), 0)),
            Statement::FromScratch(a, index) => self.code.push(load(a, scratch(index), 0, 8)),
            Statement::ToScratchCounted(a) => {
                self.index();
                self.code.push(store(a, scratch(8), 9));
            }
            Statement::FromScratchCounted(a) => {
                self.index();
                self.code.push(load(a, scratch(8), 9, 8));
            }
            Statement::CopyScratch(to, from) => self.code.push(Instruction {
                x: scratch(to),
                y: scratch(from),
                w: 16,
                ..Instruction::new(Opcode::CopyBb)
            }),
            Statement::CopyScratchCounted(to) => {
                self.index();
                let copy = Instruction { x: scratch(to), y: scratch(8), w: 8, ..Instruction::new(Opcode::CopyBb) };
                self.code.push(Instruction { e: 9, ..copy });
            }
            Statement::Access(opcode, slot, key, column, label) => self.access(opcode, slot, key, column, label),
            Statement::Pair(slot, first, second) => {
                self.key(Opcode::Update, 1, slot, first);
                self.key(Opcode::Search, 2, slot, second);
                self.code.extend([ret(8, 1), storer(3, 8, B), ret(8, 2), loadr(2, 8, B)]);
            }
            Statement::RowToScratch(slot, key, index) => {
                self.key(Opcode::Search, 0, slot, key);
                self.code.extend([ret(8, 0), copy_out(scratch(index), 8, A, 0, 8)]);
            }
            Statement::Scan(slot, key, index) => {
                self.key(Opcode::Scan, 0, slot, key);
                let scan = self.code.last_mut().unwrap();
                (scan.w, scan.e, scan.y) = (3, 2, scratch(index));
                self.code.push(ret(4, 0));
            }
            Statement::If(branch, b, c, ref then, ref other) => {
                self.code.push(cmp(b, c));
                let decision = self.code.len();
                self.code.push(to(branch, 0));
                self.all(then);
                let over = self.code.len();
                self.code.push(to(Opcode::Jmp, 0));
                self.code[decision].x = self.code.len() as u32;
                self.all(other);
                self.code[over].x = self.code.len() as u32;
            }
            Statement::Loop(ref body) => {
                if self.depth == 2 {
                    return self.all(body);
                }
                self.depth += 1;
                let counter = self.counter();
                self.code.push(movi(counter, 0));
                let head = self.code.len();
                self.all(body);
                self.code.push(constant(Opcode::Addi, counter, counter, 1));
                self.code.push(constant(Opcode::Cmpi, 0, counter, 3));
                self.code.push(to(Opcode::Bl, head));
                self.depth -= 1;
            }
            Statement::Abort => self.code.push(abort(7)),
        }
    }

    fn access(&mut self, opcode: Opcode, slot: u8, key: KeyAt, column: Option<u8>, label: bool) {
        self.key(opcode, 0, slot, key);
        let wait = self.code.len();
        self.code.push(ret(8, 0));
        if let (Some(column), true) = (column, opcode != Opcode::Remove) {
            self.code.push(loadr(column, 8, A));
        }
        if label {
            self.code[wait].x = self.code.len() as u32;
        }
    }
}

fn program(statements: &[Statement]) -> Verified {
    let mut emitter = Emitter { code: (1..=5).map(|register| movi(register, 1)).collect(), depth: 0 };
    emitter.code.extend([movi(6, 0), movi(7, 0)]);
    emitter.all(statements);
    emitter.code.push(commit());
    verified(&emitter.code)
}

fn integer() -> impl Strategy<Value = u8> {
    1..=5_u8
}

fn key_at() -> impl Strategy<Value = KeyAt> + Clone {
    prop_oneof![(0..6_u32).prop_map(KeyAt::Argument), (0..6_u32).prop_map(KeyAt::Scratch), Just(KeyAt::ScratchCounted)]
}

fn branch() -> impl Strategy<Value = Opcode> {
    let branches = [Opcode::Be, Opcode::Bne, Opcode::Bl, Opcode::Ble, Opcode::Bg, Opcode::Bge];
    proptest::sample::select(branches.to_vec())
}

/// Statements that read nothing from the database.
fn computing() -> BoxedStrategy<Statement> {
    let arithmetic = proptest::sample::select(vec![Opcode::Add, Opcode::Sub, Opcode::Mul, Opcode::Div]);
    prop_oneof![
        2 => (integer(), 0..6_u32).prop_map(|(a, index)| Statement::Argument(a, index)),
        1 => (integer(), 0..6_i64).prop_map(|(a, value)| Statement::Constant(a, value)),
        1 => (integer(), integer()).prop_map(|(a, b)| Statement::Move(a, b)),
        2 => (arithmetic, integer(), integer(), integer())
            .prop_map(|(opcode, a, b, c)| Statement::Arithmetic(opcode, a, b, c)),
        1 => (integer(), 3..9_i64).prop_map(|(b, limit)| Statement::Check(b, limit)),
        2 => (integer(), 0..6_u32).prop_map(|(a, index)| Statement::ToScratch(a, index)),
        1 => (integer(), 0..6_u32).prop_map(|(a, index)| Statement::FromScratch(a, index)),
        1 => integer().prop_map(Statement::ToScratchCounted),
        1 => integer().prop_map(Statement::FromScratchCounted),
        1 => (0..6_u32).prop_map(Statement::CopyScratchCounted),
        1 => (0..9_u32, 0..9_u32).prop_map(|(to, from)| Statement::CopyScratch(to, from)),
    ]
    .boxed()
}

/// DB instructions; with `reading`, also what brings row values into registers and the block, and labels.
fn accessing(reading: bool) -> BoxedStrategy<Statement> {
    let single = vec![Opcode::Search, Opcode::Update, Opcode::Insert, Opcode::Remove];
    let access = (proptest::sample::select(single), 0..2_u8, key_at());
    let blind = access.clone().prop_map(|(opcode, slot, key)| Statement::Access(opcode, slot, key, None, false));
    if !reading {
        return blind.boxed();
    }
    prop_oneof![
        3 => blind,
        4 => (access, proptest::option::of(integer()), any::<bool>())
            .prop_map(|((opcode, slot, key), column, label)| Statement::Access(opcode, slot, key, column, label)),
        1 => (0..2_u8, key_at(), key_at()).prop_map(|(slot, a, b)| Statement::Pair(slot, a, b)),
        1 => (0..2_u8, key_at(), 0..12_u32).prop_map(|(slot, key, index)| Statement::RowToScratch(slot, key, index)),
        1 => (0..2_u8, key_at(), 0..12_u32).prop_map(|(slot, key, index)| Statement::Scan(slot, key, index)),
    ]
    .boxed()
}

fn statements(reading: bool) -> BoxedStrategy<Vec<Statement>> {
    let leaf = prop_oneof![
        5 => computing(),
        4 => accessing(reading),
        1 => Just(Statement::Abort),
    ];
    let nested = leaf.prop_recursive(3, 24, 5, |inner| {
        let body = proptest::collection::vec(inner.clone(), 0..4);
        prop_oneof![
            3 => inner,
            2 => (branch(), integer(), integer(), body.clone(), body.clone())
                .prop_map(|(branch, b, c, then, other)| Statement::If(branch, b, c, then, other)),
            1 => body.prop_map(Statement::Loop),
        ]
    });
    proptest::collection::vec(nested, 1..12).boxed()
}

/// Half of the keys 0 to 7 of either table, with small columns.
fn rows() -> impl Strategy<Value = Vec<Option<(i64, i64)>>> {
    proptest::collection::vec(proptest::option::of((0..6_i64, 0..6_i64)), 16)
}

fn database(verified: &Verified, rows: &[Option<(i64, i64)>]) -> Database {
    let mut database = Database::new();
    for (index, row) in rows.iter().enumerate() {
        let (slot, value) = ((index / 8) as u8, (index % 8) as i64);
        if let &Some((a, b)) = row {
            database.insert((slot, model::key(verified, slot, value)), model::row(verified, slot, a, b));
        }
    }
    database
}

/// The accesses that the set gives for these arguments; `None` if dependent.
fn named(verified: &Verified, block: &[u8]) -> Option<Vec<KeyAccess>> {
    let mut out = Vec::new();
    match access_set(verified) {
        AccessSet::Straight(straight) => straight.collect(verified, block, &mut out),
        AccessSet::Sliced(slice) => slice.collect(block, &mut out),
        AccessSet::Dependent(_) => return None,
    }
    Some(out)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn an_execution_touches_only_what_the_access_set_names(
        statements in statements(true),
        arguments in proptest::collection::vec(0..6_i64, 6),
        databases in proptest::collection::vec(rows(), 4),
    ) {
        let verified = program(&statements);
        let block = block(&arguments);
        if let Some(named) = named(&verified, &block) {
            for rows in &databases {
                let mut database = database(&verified, rows);
                let run = model::execute(&verified, &verified.procedure.code, &mut database, &mut block.clone());
                for access in run.accesses {
                    prop_assert!(named.contains(&access), "{access:?} is not in {named:?}");
                }
            }
        }
    }

    #[test]
    fn a_row_is_used_only_where_its_instruction_is_said_to_use_it(
        statements in statements(true),
        arguments in proptest::collection::vec(0..6_i64, 6),
        rows in rows(),
    ) {
        let verified = program(&statements);
        let uses = row_uses(&verified);
        let mut database = database(&verified, &rows);
        let run = model::execute(&verified, &verified.procedure.code, &mut database, &mut block(&arguments));
        for (access, start, length, write) in run.touches {
            let pc = run.pcs[access];
            let row = uses.iter().find(|row| row.pc == pc);
            let spans = row.map_or(&[][..], |row| if write { &row.write } else { &row.read });
            let inside = spans.iter().any(|span| span.start <= start && start + length <= span.end);
            prop_assert!(inside, "bytes {start} and {length} more, write {write}, of {pc}: {uses:?}");
        }
        let kept = overwrites(&verified);
        for (pc, access) in run.writers {
            let inserted = run.accesses[access].operation == Operation::Insert;
            let needs_undo = verified.facts()[pc as usize].needs_undo;
            prop_assert!(inserted || kept[pc as usize] == needs_undo, "{pc} writes to a row that was there");
        }
    }

    /// Where nothing is read, nothing can be dependent, and the set is exact: all that a run does that finds
    /// every row, and no more.
    #[test]
    fn a_procedure_that_reads_nothing_has_an_exact_access_set(
        statements in statements(false),
        arguments in proptest::collection::vec(0..6_i64, 6),
    ) {
        let verified = program(&statements);
        let block = block(&arguments);
        let named = named(&verified, &block);
        prop_assert!(named.is_some(), "{:?}", access_set(&verified));
        let named = named.unwrap_or_default();
        // Rows for every key named, but none where it is to be inserted; give up where one call wants both.
        let mut database = Database::new();
        for access in &named {
            if access.operation != Operation::Insert {
                database.insert((access.slot, access.key), model::row(&verified, access.slot, 1, 1));
            }
        }
        let run = model::execute(&verified, &verified.procedure.code, &mut database, &mut block.clone());
        prop_assert!(named.starts_with(&run.accesses), "{:?} does not begin {named:?}", run.accesses);
        if run.committed {
            prop_assert_eq!(run.accesses, named);
        }
    }
}

/// The first property would hold of an analysis that called everything dependent.
#[test]
fn most_random_procedures_are_not_dependent() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut counts = [0; 3];
    for _ in 0..500 {
        let verified = program(&statements(true).new_tree(&mut runner).unwrap().current());
        counts[match access_set(&verified) {
            AccessSet::Straight(_) => 0,
            AccessSet::Sliced(_) => 1,
            AccessSet::Dependent(_) => 2,
        }] += 1;
    }
    assert!(counts[0] > 20 && counts[1] > 100 && counts[2] > 50, "straight, sliced, dependent: {counts:?}");
}
