//! `lw_windows`: windows never overlap, whatever order they come back in, and one that fits somewhere is found.

mod support;

use lockwork_verilated::Port;

use support::{Random, module, port, seed};

const GRANULES: u64 = 32;
/// Until what has just come back is free, and two laps, in which each granule is taken into the run and let go.
const POLICIES: u64 = GRANULES + 2 * 3 * GRANULES;

/// The longest run of free granules, around the end.
fn longest(taken: &[bool]) -> u64 {
    let (mut longest, mut run) = (0, 0);
    for at in 0..2 * taken.len() {
        run = if taken[at % taken.len()] { 0 } else { run + 1 };
        longest = longest.max(run);
    }
    longest.min(GRANULES)
}

#[test]
fn windows_do_not_overlap_and_what_fits_is_found() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let mut chance = Random(seed(1));
    let mut model = module("lw_windows", &[]);
    let [init, init_at, want, take, take_count, give, give_base, give_count] =
        ["init_i", "init_at_i", "want_i", "take_i", "take_count_i", "give_valid_i", "give_base_i", "give_count_i"]
            .map(|name| port(&model, name));
    let [base, free, ready]: [Port; 3] = ["base_o", "free_o", "give_ready_o"].map(|name| port(&model, name));
    model.set(init, 1);
    for granule in 0..GRANULES {
        model.set(init_at, granule);
        model.tick();
    }
    model.set(init, 0);
    let mut windows: Vec<(u64, u64)> = Vec::new();
    let mut taken = vec![false; GRANULES as usize];
    let (mut most, mut waited) = (0, 0);
    for round in 0..20_000 {
        let largest = [2, 6, 12, GRANULES][chance.below(4) as usize];
        let need = chance.below(largest + 1);
        let (mut waits, mut searched) = (false, 0);
        loop {
            model.eval();
            let long = model.get(free);
            if long >= need && chance.percent(60) {
                break;
            }
            // Asked for when it turns out to be wanted, as the softcore does.
            waits |= long < need;
            let fits = longest(&taken) >= need;
            searched = if waits && fits && long < need { searched + 1 } else { 0 };
            assert!(searched <= POLICIES, "round {round}: {need} granules are not found");
            let gives = !windows.is_empty() && (chance.percent(2) || !fits);
            let window = gives.then(|| chance.below(windows.len() as u64) as usize);
            let (at, count) = window.map_or((0, 0), |window| windows[window]);
            for (port, value) in [(want, if waits { need } else { 0 }), (give, gives.into())] {
                model.set(port, value);
            }
            model.set(give_base, at);
            model.set(give_count, count);
            model.eval();
            let accepted = gives && model.get(ready) == 1;
            model.tick();
            model.set(give, 0);
            model.eval();
            assert!(!waits || long < need || model.get(free) >= need, "round {round}: the run was let go");
            if accepted {
                windows.swap_remove(window.expect("one is given"));
                (at..at + count).for_each(|granule| taken[(granule % GRANULES) as usize] = false);
                searched = 0;
            }
            waited += u64::from(waits);
        }
        let from = model.get(base);
        for granule in from..from + need {
            let taken = &mut taken[(granule % GRANULES) as usize];
            assert!(!*taken, "round {round}: granule {granule} of {need} from {from} is another's");
            *taken = true;
        }
        windows.push((from, need));
        most = most.max(taken.iter().filter(|taken| **taken).count());
        model.set(want, 0);
        model.set(take, 1);
        model.set(take_count, need);
        model.tick();
        model.set(take, 0);
    }
    assert!(most == GRANULES as usize && waited > 10_000, "{most} granules at most, {waited} cycles of waiting");
}
