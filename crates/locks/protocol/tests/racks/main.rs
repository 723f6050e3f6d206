//! Racks under faults, by seed: parts of the locks go from decider to decider while tasks use them, packets are lost,
//! doubled and late, deciders crash and come back, and machines die. What is seen: a lock is held by one writer or by
//! readers, whichever rack has granted it; tokens grow from rack to rack; and when nothing goes wrong any more,
//! everybody is served and every part has arrived.

mod rack;
mod world;

use rack::MS;
use world::{Faults, World};

/// Seeds of each test; `RACK_SEEDS` gives another number.
fn seeds() -> u64 {
    std::env::var("RACK_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60)
}

fn run(faults: Faults) {
    let (mut moves, mut grants, mut told) = (0, 0, 0);
    for seed in 0..seeds() {
        let report = World::new(seed, faults).run();
        let report = report.unwrap_or_else(|wrong| panic!("seed {seed}, {faults:?}: {wrong}"));
        assert!(report.moves > 0, "seed {seed}: no part has moved");
        (moves, grants, told) = (moves + report.moves, grants + report.grants, told + report.told);
    }
    assert!(grants > 300 * seeds() && told > seeds(), "{moves} moves, {grants} grants, {told} told where to ask");
}

#[test]
fn parts_move_while_their_locks_are_used() {
    run(Faults::default());
}

#[test]
fn parts_move_over_a_bad_network() {
    run(Faults { lost: 20_000, doubled: 20_000, late: 10_000, ..Faults::default() });
}

#[test]
fn parts_move_while_deciders_crash() {
    run(Faults { lost: 5_000, doubled: 5_000, late: 5_000, crashes: 40_000, ..Faults::default() });
}

#[test]
fn parts_move_while_machines_die_and_deciders_crash() {
    run(Faults { lost: 5_000, doubled: 5_000, late: 5_000, crashes: 20_000, deaths: 20_000, ..Faults::default() });
}

#[test]
fn parts_move_from_machines_whose_agents_stay() {
    let stay = 20 * MS;
    run(Faults { stay, ..Faults::default() });
    run(Faults { lost: 5_000, doubled: 5_000, late: 5_000, crashes: 20_000, deaths: 20_000, stay });
}
