//! Windows of registers: given away and taken back among others, whenever blocks come.

use super::*;

/// Two look-ups, and as many registers of both kinds as are said.
fn with_registers(world: &World, gps: usize, cps: usize) -> Verified {
    let mut source = "procedure p\ntable plain\nparam k: i64\nparam a: i64\nresult r: i64\nload r1, [a]\n".to_string();
    source += &format!("search c0, plain, [k]\nsearch c{}, plain, [k]\n", cps - 1);
    source += &(2..gps).map(|r| format!("add r{r}, r{}, {r}\n", r - 1)).collect::<String>();
    // Aborts where there is no row.
    source += &format!("ret c0\nret c{}\nstore r{}, [r]\ncommit\n", cps - 1, gps - 1);
    assembled(&source, world)
}

#[test]
fn windows_of_all_sizes_lie_beside_each_other() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let world = World::new();
    let sizes = [(3, 2), (28, 120), (40, 3), (150, 2), (160, 50), (255, 256)];
    let verified = sizes.map(|(gps, cps)| with_registers(&world, gps, cps));
    let model = build(16, 64);
    let mut committed = 0;
    for seed in 1..=20 {
        let fill = |random: &mut Random, block: &mut [u8]| {
            put(block, 32, random.below(12) as i64 - 2);
            put(block, 40, random.below(1 << 40) as i64);
        };
        let codes = compare_verified(&model, &world, &verified, seed, 40, fill);
        committed += codes.iter().filter(|code| **code == 0).count();
    }
    assert!(committed > 500, "{committed}");
}

#[test]
fn whenever_a_block_comes_it_gets_its_windows() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let world = World::new();
    let sized = |gps: usize| {
        let source = "procedure p\ntable plain\nparam k: i64\nparam a: i64\nload r1, [a]\nsearch c0, plain, [k]\n"
            .to_string()
            + &format!("mov r{}, 0\ncheck r1, 100\nret r2, c0, none\nnone:\ncommit\n", gps - 1);
        assembled(&source, &world)
    };
    let verified = [28, 60, 120, 160].map(sized);
    let catalogue = catalogue(&verified);
    let model = build(16, 64);
    // Procedures, and from which on blocks come later. Those before it end by themselves, in any order, while the
    // others are taken; the last one fits only into what has come back.
    for (mode, procedures, later) in
        [(DYNAMIC, &[0, 3, 3][..], 2), (BATCH, &[0, 1, 0, 0, 2], 3), (BATCH, &[0, 1, 0, 2, 2], 3)]
    {
        for delay in 0..400 {
            let options = Options { spread: delay % 7, refuse: 0, ..Options::new(delay, mode) };
            let mut machine = Machine::new(model.again(delay), world.clone(), options, &catalogue);
            for (number, procedure) in procedures.iter().enumerate() {
                let block = BLOCKS + number * STRIDE;
                machine.world.bytes[block] = *procedure as u8;
                // The first ones abort in a batch, with their look-ups under way.
                let aborts = mode == BATCH && number < later;
                put(&mut machine.world.bytes[block + 32..block + STRIDE], 40, if aborts { 100 } else { 0 });
                if number == later {
                    (0..delay).for_each(|_| machine.step());
                }
                machine.submit(block);
            }
            machine.finish();
            assert_eq!(machine.done.len(), procedures.len());
        }
    }
}
