//! The softcore against the interpreter: the same blocks, the same rows, the same registers.

mod common_softcore;
#[path = "softcore/windows.rs"]
mod windows;

use common_softcore::golden::{UNTOUCHED, execute};
use common_softcore::machine::{BATCH, DYNAMIC, Execution, Machine, Options, SERIAL, build};
use common_softcore::stepper::register_writes;
use common_softcore::world::{BLOCKS, World, catalogue};
use lockwork_conformance::engines::Random;
use lockwork_conformance::procedures::{calls, procedures};
use lockwork_procedure::verified::Verified;
use lockwork_procedure::verify::verify;
use lockwork_verilated::Model;

const STRIDE: usize = 2048;

fn random_procedures(world: &World, seed: u64, count: u64) -> Vec<Verified> {
    procedures(seed..seed + count).into_iter().map(|p| verify(p, world.schemas.as_slice()).unwrap()).collect()
}

/// What a run showed, to see that it was worth something.
#[derive(Debug, Default)]
struct Seen {
    committed: u64,
    aborted: u64,
    failed: u64,
    restarts: u64,
    registers: u64,
    writes: u64,
    cycles: u64,
}

/// Runs random blocks and compares everything with the interpreter, in order of time.
fn compare(model: &Model, options: Options, blocks: usize) -> Seen {
    let seed = options.seed;
    let world = World::new();
    let verified = random_procedures(&world, seed * 100, 12);
    let mut random = Random(seed);
    let batch = calls(verified.len(), blocks, STRIDE as u32, &mut random);
    assert_eq!(batch.stride(), STRIDE);
    let mut machine = Machine::new(model.again(seed), world, options, &catalogue(&verified));
    for (number, block) in batch.blocks().enumerate() {
        let at = BLOCKS + number * STRIDE;
        machine.world.bytes[at..at + STRIDE].copy_from_slice(block.bytes());
    }
    let mut golden = machine.world.clone();
    (0..blocks).for_each(|number| machine.submit(BLOCKS + number * STRIDE));
    machine.finish();
    assert_eq!(machine.done.len(), blocks, "seed {seed}");

    let mut seen = Seen { restarts: machine.restarts, cycles: machine.cycle, ..Seen::default() };
    let mut order = machine.done.clone();
    order.sort_by_key(|done| done.stamp);
    for done in &order {
        let number = (done.block - BLOCKS) / STRIDE;
        let procedure = &verified[batch.block(number).procedure() as usize];
        let what = format!("seed {seed}, block {number}, procedure {}, {done:?}", procedure.procedure().name);
        let bytes = &machine.world.bytes[done.block..done.block + STRIDE];
        assert_eq!((bytes[4], u16::from_le_bytes([bytes[6], bytes[7]])), (done.status, done.code), "{what}");
        assert_eq!(u64::from_le_bytes(bytes[24..32].try_into().unwrap()), done.stamp, "{what}");
        if done.status == 3 {
            seen.failed += 1;
            assert!([0xFF10, 0xFF11, 0xFF12].contains(&done.code), "{what}");
            continue;
        }
        // One transaction after the other: every write of a register, and every row address.
        let every = (machine.options.mode == SERIAL && machine.options.conflict == 0)
            .then(|| register_writes(&golden, procedure, done.block));
        if let Some(expected) = every {
            let found = Execution::histories(&machine.traced[&done.block].writes);
            assert_eq!(found, Execution::histories(&expected), "{what}");
            seen.writes += expected.len() as u64;
        }
        let (status, code, registers) = execute(&mut golden, procedure, done.block);
        assert_eq!((done.status, done.code), (status, code), "{what}");
        *(if status == 1 { &mut seen.committed } else { &mut seen.aborted }) += 1;
        let expected = &golden.bytes[done.block..done.block + STRIDE];
        if let Some(at) =
            (0..STRIDE).find(|&at| !(4..8).contains(&at) && !(24..32).contains(&at) && bytes[at] != expected[at])
        {
            panic!("{what}: byte {at} is {:#04x}, the interpreter says {:#04x}", bytes[at], expected[at]);
        }
        // Registers: all that were written, with their last values. Row addresses are the same only if all
        // transactions insert in the same order.
        let traced = &machine.traced[&done.block].registers;
        let base = golden.bytes.as_ptr() as u64;
        for (register, &value) in registers.iter().enumerate().skip(1) {
            let written = traced.get(&(register as u8)).copied();
            let same = match written {
                None => value == UNTOUCHED,
                Some(found) if found == value as u64 => true,
                Some(found) => {
                    let row = (value as u64).wrapping_sub(base);
                    found == row || (machine.options.mode != SERIAL && row < golden.bytes.len() as u64)
                }
            };
            assert!(same, "{what}: r{register} is {written:x?}, the interpreter says {value:#x}");
            seen.registers += u64::from(written.is_some());
        }
    }
    // Rows, by key.
    for (of, &row) in &golden.rows {
        let bytes = golden.schemas[of.0].row_bytes() as usize;
        let expected = &golden.bytes[row..row + bytes];
        let Some(&found) = machine.world.rows.get(of) else { panic!("seed {seed}: no row {of:?}") };
        let found = &machine.world.bytes[found..found + bytes];
        assert_eq!(found[7], expected[7], "seed {seed}: row {of:?} is there or not");
        assert!(found[7] == 0 || found == expected, "seed {seed}: row {of:?}\n{found:x?}\n{expected:x?}");
    }
    seen
}

fn sum(seen: impl Iterator<Item = Seen>) -> Seen {
    seen.fold(Seen::default(), |mut sum, seen| {
        sum.committed += seen.committed;
        sum.aborted += seen.aborted;
        sum.failed += seen.failed;
        sum.restarts += seen.restarts;
        sum.registers += seen.registers;
        sum.writes += seen.writes;
        sum.cycles += seen.cycles;
        sum
    })
}

#[test]
fn random_procedures_in_serial_mode_write_the_same_registers_blocks_and_rows() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let model = build(16, 64);
    let seen = sum((1..=12).map(|seed| compare(&model, Options::new(seed, SERIAL), 60)));
    println!("{seen:?}");
    assert!(seen.committed > 100 && seen.aborted > 50 && seen.registers > 1000 && seen.writes > 5_000, "{seen:?}");
}

#[test]
fn random_procedures_in_dynamic_mode_are_serial_in_order_of_time() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let model = build(16, 64);
    let seen = sum((101..=125).map(|seed| compare(&model, Options::new(seed, DYNAMIC), 80)));
    println!("{seen:?}");
    assert!(seen.committed > 300 && seen.restarts > 100, "{seen:?}");
}

#[test]
fn random_procedures_in_batch_mode_are_serial_in_order_of_time() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let model = build(16, 64);
    let seen = sum((201..=215).map(|seed| compare(&model, Options::new(seed, BATCH), 80)));
    println!("{seen:?}");
    assert!(seen.committed > 200 && seen.restarts > 10, "{seen:?}");
}

#[test]
fn injected_conflicts_and_failures_leave_nothing_behind() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let model = build(16, 64);
    let seen = sum((301..=315)
        .flat_map(|seed| [(seed, SERIAL), (seed + 100, BATCH), (seed + 200, DYNAMIC)])
        .map(|(seed, mode)| compare(&model, Options { conflict: 9, fail: 30, ..Options::new(seed, mode) }, 40)));
    println!("{seen:?}");
    assert!(seen.committed > 100 && seen.failed > 50 && seen.restarts > 300, "{seen:?}");
}

#[test]
fn few_contexts_small_logs_and_few_retries_end_with_their_codes() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let model = build(2, 2);
    let options = |seed, mode| Options { conflict: 5, undo_bytes: 32, retries: 1, ..Options::new(seed, mode) };
    let seen = sum((601..=612).map(|seed| compare(&model, options(seed, seed % 3), 40)));
    println!("{seen:?}");
    assert!(seen.committed > 50 && seen.failed > 50, "{seen:?}");
}

/// Blocks of one procedure, whose arguments `fill` writes.
fn submit(machine: &mut Machine, blocks: usize, fill: impl Fn(usize, &mut [u8])) {
    for number in 0..blocks {
        let at = BLOCKS + number * STRIDE;
        fill(number, &mut machine.world.bytes[at..at + STRIDE]);
        machine.submit(at);
    }
}

fn assembled(source: &str, world: &World) -> Verified {
    let assembled = lockwork_procedure::assembly::assemble(source, world.schemas.as_slice()).unwrap();
    verify(assembled.procedure, world.schemas.as_slice()).unwrap()
}

#[test]
fn sixteen_searches_take_at_most_a_hundred_cycles_a_transaction() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let model = build(16, 64);
    let world = World::new();
    let numbers = || 0..16;
    let source = "procedure sixteen\ntable plain\nparam k: i64[16]\nresult r: i64\n".to_string()
        + &numbers().map(|n| format!("search c{n}, plain, [k + {}]\n", 8 * n)).collect::<String>()
        + &numbers().map(|n| format!("ret r{}, c{n}\n", n % 15 + 1)).collect::<String>()
        + "commit\n";
    let source = source.replace("[k + 0]", "[k]");
    let verified = assembled(&source, &world);
    for (mode, blocks) in [(DYNAMIC, 400), (BATCH, 100), (SERIAL, 40)] {
        let options = Options { latency: 80, spread: 0, index: 250, refuse: 0, ..Options::new(1, mode) };
        let mut machine =
            Machine::new(model.again(1), world.clone(), options, &catalogue(std::slice::from_ref(&verified)));
        machine.pace = 1;
        submit(&mut machine, blocks, |number, block| {
            for n in 0..16 {
                block[32 + 8 * n..40 + 8 * n].copy_from_slice(&((number + n) as i64 % 5 - 2).to_le_bytes());
            }
        });
        machine.finish();
        assert!(machine.done.iter().all(|done| done.status == 1));
        let (first, last) = (machine.done[blocks / 4].cycle, machine.done[blocks - 1].cycle);
        let each = (last - first) as f64 / (blocks - 1 - blocks / 4) as f64;
        println!("mode {mode}: {each:.1} cycles a transaction");
        assert!(mode != DYNAMIC || each <= 100.0, "{each} cycles a transaction");
    }
}

#[test]
fn memory_errors_fail_their_transactions_and_the_machine_goes_on() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let model = build(16, 64);
    for seed in 701..=706 {
        let world = World::new();
        let verified = random_procedures(&world, seed * 100, 12);
        let mut random = Random(seed);
        let batch = calls(verified.len(), 60, STRIDE as u32, &mut random);
        let options = Options { broken: 60, ..Options::new(seed, seed % 3) };
        let mut machine = Machine::new(model.again(seed), world, options, &catalogue(&verified));
        submit(&mut machine, 60, |number, block| block.copy_from_slice(batch.block(number).bytes()));
        machine.finish();
        assert_eq!(machine.done.len(), 60);
        let broken = machine.done.iter().filter(|done| (done.status, done.code) == (3, 0xFF13)).count();
        assert!(broken > 5, "seed {seed}: {broken}");
        // Memory is sound again: everything ends as it should.
        machine.options.broken = 0;
        machine.done.clear();
        submit(&mut machine, 60, |number, block| block.copy_from_slice(batch.block(number).bytes()));
        machine.finish();
        assert!(
            machine.done.len() == 60 && machine.done.iter().all(|done| matches!(done.status, 1 | 2)),
            "seed {seed}"
        );
    }
}

#[test]
fn unknown_procedures_are_refused_among_others() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let model = build(4, 4);
    let world = World::new();
    let verified =
        assembled("procedure one\nparam a: i64\nresult b: i64\nload r1, [a]\nstore r1, [b]\ncommit\n", &world);
    for mode in [SERIAL, BATCH, DYNAMIC] {
        let options = Options::new(8, mode);
        let mut machine =
            Machine::new(model.again(8), world.clone(), options, &catalogue(std::slice::from_ref(&verified)));
        let id = |number: usize| [0, 1, 127, 0, 128, 1024, 0x0100_0000][number % 7_usize] as u32;
        submit(&mut machine, 40, |number, block| {
            block[..4].copy_from_slice(&id(number).to_le_bytes());
            block[32..40].copy_from_slice(&(number as u64).to_le_bytes());
        });
        machine.finish();
        assert_eq!(machine.done.len(), 40);
        for done in &machine.done {
            let number = (done.block - BLOCKS) / STRIDE;
            let known = id(number) == 0;
            assert_eq!((done.status, done.code), if known { (1, 0) } else { (3, 0xFF20) }, "block {number}");
            let result = &machine.world.bytes[done.block + 40..done.block + 48];
            assert_eq!(result, (if known { number as u64 } else { 0 }).to_le_bytes());
        }
    }
}

/// Blocks of one procedure in all modes, compared with the interpreter.
fn compare_one(source: &str, seed: u64, blocks: usize, fill: impl Fn(&mut Random, &mut [u8])) -> Vec<u16> {
    let world = World::new();
    compare_verified(&build(16, 64), &world, &[assembled(source, &world)], seed, blocks, fill)
}

/// Blocks of some procedures, at any times, in all modes, compared with the interpreter.
fn compare_verified(
    model: &Model,
    world: &World,
    verified: &[Verified],
    seed: u64,
    blocks: usize,
    fill: impl Fn(&mut Random, &mut [u8]),
) -> Vec<u16> {
    let mut codes = Vec::new();
    for mode in [SERIAL, BATCH, DYNAMIC] {
        let mut random = Random(seed);
        // Conflicts without a reason undo what was written in the middle.
        let conflict = if mode == DYNAMIC && seed % 2 == 1 { 12 } else { 0 };
        let options = Options { conflict, ..Options::new(seed + mode, mode) };
        let mut machine = Machine::new(model.again(seed), world.clone(), options, &catalogue(verified));
        let of: Vec<usize> = (0..blocks).map(|_| random.below(verified.len() as u64) as usize).collect();
        for (number, of) in of.iter().enumerate() {
            let at = BLOCKS + number * STRIDE;
            machine.world.bytes[at] = *of as u8;
            fill(&mut random, &mut machine.world.bytes[at + 32..at + STRIDE]);
        }
        let mut golden = machine.world.clone();
        let together = random.below(2) == 0;
        for number in 0..blocks {
            machine.submit(BLOCKS + number * STRIDE);
            let later = if together { 0 } else { random.below(600) };
            (0..later).for_each(|_| machine.step());
        }
        machine.finish();
        let mut order = machine.done.clone();
        order.sort_by_key(|done| done.stamp);
        for done in &order {
            let verified = &verified[of[(done.block - BLOCKS) / STRIDE]];
            if mode == SERIAL {
                let expected = register_writes(&golden, verified, done.block);
                let found = Execution::histories(&machine.traced[&done.block].writes);
                assert_eq!(found, Execution::histories(&expected), "seed {seed}, {done:?}");
            }
            let (status, code, _) = execute(&mut golden, verified, done.block);
            assert_eq!((done.status, done.code), (status, code), "seed {seed}, mode {mode}, {done:?}");
            for at in done.block + 32..done.block + STRIDE {
                let (found, expected) = (machine.world.bytes[at], golden.bytes[at]);
                assert_eq!(found, expected, "seed {seed}, mode {mode}, {done:?}, byte {}", at - done.block);
            }
            codes.push(code);
        }
        for of in golden.rows.keys() {
            let (found, expected) = (machine.world.rows[of], golden.rows[of]);
            let bytes = golden.schemas[of.0].row_bytes() as usize;
            assert_eq!(
                machine.world.bytes[found..found + bytes],
                golden.bytes[expected..expected + bytes],
                "mode {mode}, row {of:?}"
            );
        }
    }
    codes
}

fn put(block: &mut [u8], at: usize, value: i64) {
    block[at - 32..at - 24].copy_from_slice(&value.to_le_bytes());
}

fn extreme(random: &mut Random) -> i64 {
    let values = [0, 1, -1, 2, -2, i64::MAX, i64::MIN, i64::MIN + 1, 1 << 31, 1 << 32, -(1 << 32), 3_037_000_500, -7];
    match random.below(3) {
        0 => random.below(u64::MAX) as i64,
        1 => (random.below(u64::MAX) as i64) >> random.below(63),
        _ => values[random.below(values.len() as u64) as usize],
    }
}

#[test]
fn arithmetic_at_its_limits_is_the_interpreters() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    for (seed, op) in (1..).zip(["add", "sub", "mul", "div"]) {
        let source = format!(
            "procedure p\nparam a: i64\nparam b: i64\nresult r: i64\nresult s: i64\nload r1, [a]\nload r2, [b]\n\
             {op} r3, r1, r2\nstore r3, [r]\n{op} r4, r3, -3\ncmp r3, r4\nbl less\nstore r1, [s]\ncommit\n\
             less:\nstore r4, [s]\ncommit\n"
        );
        let codes = compare_one(&source, seed, 300, |random, block| {
            put(block, 32, extreme(random));
            put(block, 40, extreme(random));
        });
        let count = |code| codes.iter().filter(|&&found| found == code).count();
        assert!(count(0) > 200, "{op}");
        assert!(count(if op == "div" { 0xFF04 } else { 0xFF03 }) > 20, "{op}");
    }
}

#[test]
fn copies_of_any_alignment_and_overlap_are_moves() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    use lockwork_procedure::isa::{Instruction, NO_LABEL, Opcode as O};
    let world = World::new();
    let model = build(16, 64);
    let line = world.schemas[0].column("line").unwrap().1.offset;
    for seed in 1..=6 {
        let mut random = Random(seed);
        let mut below = |n: u64| random.below(n) as u32;
        let mut code = vec![
            Instruction { a: 0, d: 0, x: 32, ..Instruction::new(O::Update) },
            Instruction { a: 1, d: 0, x: 40, ..Instruction::new(O::Search) },
            Instruction { a: 1, b: 0, x: NO_LABEL, ..Instruction::new(O::Ret) },
            Instruction { a: 2, b: 1, x: NO_LABEL, ..Instruction::new(O::Ret) },
        ];
        for _ in 0..40 {
            let w = 1 + below(60) as u16;
            let (x, y) = (below(65 - u64::from(w)), below(65 - u64::from(w)));
            let new = |opcode| Instruction { w, ..Instruction::new(opcode) };
            code.push(match below(4) {
                0 => Instruction { x: 192 + below(130), y: 192 + below(130), ..new(O::CopyBb) },
                1 => Instruction { x: 192 + below(130), c: 1 + below(2) as u8, y: line + y, ..new(O::CopyBr) },
                2 => Instruction { b: 1, x: line + x, y: 64 + below(60), ..new(O::CopyRb) },
                _ => Instruction { b: 1, x: line + x, c: 1 + below(2) as u8, y: line + y, ..new(O::CopyRr) },
            });
        }
        code.extend([
            Instruction { a: 3, x: 64, w: 1, ..Instruction::new(O::Load) },
            Instruction { b: 3, ..Instruction::new(O::Check).with_immediate(128) },
        ]);
        code.extend([Instruction::new(O::Commit); 3]);
        let end = code.len() as u32;
        let source = "procedure p\ntable plain\nparam k: i64\nparam other: i64\nparam text: bytes(128)\n\
                      result out: bytes(200)\ncommit\n";
        let mut procedure = lockwork_procedure::assembly::assemble(source, world.schemas.as_slice()).unwrap().procedure;
        (procedure.code, procedure.commit_handler, procedure.abort_handler) = (code, end - 2, end - 1);
        let verified = verify(procedure, world.schemas.as_slice()).unwrap();
        let fill = |random: &mut Random, block: &mut [u8]| {
            put(block, 32, random.below(6) as i64 - 2);
            put(block, 40, random.below(6) as i64 - 2);
            block[32..160].iter_mut().for_each(|byte| *byte = random.below(256) as u8);
        };
        let codes = compare_verified(&model, &world, &[verified], seed, 25, fill);
        assert!(codes.contains(&0) && codes.contains(&0xFF05), "{codes:?}");
    }
}

/// Many loads, stores and copies, all of few words of a block and of two rows, and little else.
fn overlapping(world: &World, seed: u64) -> Verified {
    use lockwork_procedure::isa::{Instruction, NO_LABEL, Opcode as O, SIGNED};
    let mut random = Random(seed);
    let mut below = |n: u64| random.below(n) as u32;
    let (line, columns) = (world.schemas[0].column("line").unwrap().1.offset, &world.schemas[0].columns()[1..8]);
    let mut code = vec![
        Instruction { a: 0, d: 0, x: 32, ..Instruction::new(O::Update) },
        Instruction { a: 1, d: 0, x: 40, ..Instruction::new(O::Search) },
        Instruction { a: 1, b: 0, x: NO_LABEL, ..Instruction::new(O::Ret) },
        Instruction { a: 2, b: 1, x: NO_LABEL, ..Instruction::new(O::Ret) },
    ];
    let constants = || (3..11).map(|a| Instruction { a, ..Instruction::new(O::Movi) }.with_immediate(i64::from(a)));
    code.extend(constants());
    let logic = 40 + below(80);
    let mut handler_at = 0;
    for number in 0..logic + 12 {
        // The last ones are the commit handler's, which has no rows.
        let handler = number >= logic;
        if number == logic {
            // Abort, sometimes while much is under way.
            code.push(Instruction { a: 3, x: 48, w: 1, ..Instruction::new(O::Load) });
            code.push(Instruction { b: 3, ..Instruction::new(O::Check).with_immediate(200) });
            code.push(Instruction::new(O::Commit));
            handler_at = code.len() as u32;
            code.extend(constants());
        }
        let (a, b, c) = (3 + below(8) as u8, 3 + below(8) as u8, 3 + below(8) as u8);
        let (w, sign) = ([1, 2, 4, 8, 8, 8][below(6) as usize], [0, SIGNED][below(2) as usize]);
        let extend = if w < 8 { sign } else { 0 };
        let column = &columns[below(columns.len() as u64) as usize];
        let (offset, width) = (column.offset, column.column_type.width() as u16);
        let signed = width | if column.column_type.is_signed() && width < 8 { SIGNED } else { 0 };
        let (x, y) = (192 + below(40), 192 + below(40));
        let row = 1 + below(2) as u8;
        let long = if below(8) == 0 { 1 + below(63) as u16 } else { 1 + below(20) as u16 };
        let (to, from) = (line + below(65 - u64::from(long)), line + below(65 - u64::from(long)));
        let new = Instruction::new;
        let next = match (below(14), handler) {
            (0..=2, _) => Instruction { a, x: 48 + below(100), w: w | extend, ..new(O::Load) },
            (3, _) => Instruction { a, x, w: w | extend, ..new(O::Load) },
            (4..=5, false) => Instruction { a, b: row, x: offset, w: signed, ..new(O::Loadr) },
            (6, _) => Instruction { a, x, w: 8, ..new(O::Store) },
            (7, false) if width == 8 => Instruction { a, b: 1, x: offset, w: signed, ..new(O::Storer) },
            (7, false) => {
                // The row's narrow columns take what fits.
                code.push(Instruction { a, b: row, x: offset, w: signed, ..new(O::Loadr) });
                Instruction { a, b: 1, x: offset, w: signed, ..new(O::Storer) }
            }
            (8, _) => Instruction { a, ..new(O::Movi).with_immediate(i64::from(below(100))) },
            (9, _) => Instruction { a, b, ..new(O::Mov) },
            (10, false) if below(6) == 0 => Instruction { a, b, c, ..new([O::Add, O::Mul][below(2) as usize]) },
            (11, false) => Instruction { x, c: row, y: from, w: long, ..new(O::CopyBr) },
            (12, false) => Instruction { b: 1, x: to, y: 64 + below(60), w: long, ..new(O::CopyRb) },
            (13, false) => Instruction { b: 1, x: to, c: row, y: from, w: long, ..new(O::CopyRr) },
            _ => Instruction { x, y, w: long, ..new(O::CopyBb) },
        };
        code.push(next);
    }
    code.extend([Instruction::new(O::Commit); 2]);
    let end = code.len() as u32;
    let source = "procedure p\ntable plain\nparam k: i64\nparam other: i64\nparam text: bytes(128)\n\
                  result out: bytes(200)\ncommit\n";
    let mut procedure = lockwork_procedure::assembly::assemble(source, world.schemas.as_slice()).unwrap().procedure;
    (procedure.code, procedure.commit_handler, procedure.abort_handler) = (code, handler_at, end - 1);
    verify(procedure, world.schemas.as_slice()).unwrap()
}

#[test]
fn accesses_under_way_at_the_same_time_happen_in_order() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let world = World::new();
    let model = build(16, 64);
    let mut counts = [0; 3];
    for seed in 1..=24 {
        let fill = |random: &mut Random, block: &mut [u8]| {
            put(block, 32, random.below(6) as i64 - 2);
            put(block, 40, random.below(6) as i64 - 2);
            block[16..144].iter_mut().for_each(|byte| *byte = random.below(256) as u8);
        };
        for code in compare_verified(&model, &world, &[overlapping(&world, seed)], seed, 16, fill) {
            counts[match code {
                0 => 0,
                0xFF05 => 1,
                _ => 2,
            }] += 1;
        }
    }
    println!("{counts:?}");
    assert!(counts[0] > 200 && counts[1] > 50 && counts[2] > 50, "{counts:?}");
}

#[test]
fn a_procedure_with_all_registers_runs_among_others() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let mut source = "procedure p\nparam a: i64\nresult r: i64[255]\nload r1, [a]\n".to_string();
    for n in 2..256 {
        source += &format!("add r{n}, r{}, {n}\n", n - 1);
    }
    for n in 1..256 {
        source += &format!("store r{n}, [r + {}]\n", 8 * (n - 1));
    }
    source = source.replace("[r + 0]", "[r]") + "commit\n";
    let codes = compare_one(&source, 5, 12, |random, block| put(block, 32, extreme(random)));
    assert!(codes.contains(&0));
}
