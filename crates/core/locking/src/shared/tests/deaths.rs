//! Death at every access: for each situation and each N, the session dies before its Nth access, and another cleans up
//! after it; and dies before its Mth access, for each M; and a third one cleans up. Then nobody dead is in any line,
//! and all the others get their turn, who look only when they are woken. A few hundred deaths a situation.

use super::between::{FULL, FULL_OF_GROUPS};
use super::*;

/// What was there before, and what the session does that dies.
type Situation = (&'static [Do], u16, &'static [Do]);

const SITUATIONS: &[Situation] = &[
    (&[], 1, &[Take(1, X), Leave(1)]),
    (&[], 1, &[Take(1, S), Take(1, S), Take(1, X), Leave(1)]),
    // Waits, and takes it back.
    (&[Take(2, X)], 1, &[Take(1, X), Leave(1)]),
    (&[Take(2, X), Take(3, S)], 1, &[Take(1, S), Leave(1)]),
    (&[Take(2, X), Take(3, S), Take(4, X)], 1, &[Take(1, S), Leave(1)]),
    (&[Take(2, X), Take(3, IX), Take(4, S)], 3, &[Leave(3)]),
    (&[Take(2, S), Take(3, IX), Take(4, S)], 3, &[Leave(3)]),
    (&[Take(2, X), Take(3, S), Take(4, IX), Take(5, S), Leave(2)], 4, &[Leave(4)]),
    // Hands over, to a writer and to groups.
    (&[Take(1, X), Take(2, X), Take(3, S)], 1, &[Leave(1)]),
    (&[Take(1, X), Take(2, S), Take(3, S), Take(4, X)], 1, &[Leave(1)]),
    (&[Take(1, S), Take(2, S), Take(3, X)], 1, &[Leave(1)]),
    // Leaves a group as the last one.
    (&[Take(2, X), Take(1, S), Leave(2), Take(3, X)], 1, &[Leave(1)]),
    (&[Take(2, X), Take(1, S), Take(4, S), Leave(2), Leave(4), Take(3, X), Take(4, S)], 1, &[Leave(1)]),
    // Upgrades, as owner and out of a group.
    (&[Take(1, S), Take(2, X)], 1, &[Take(1, X), Leave(1)]),
    (&[Take(2, X), Take(1, S), Leave(2), Take(3, X)], 1, &[Take(1, X), Leave(1)]),
    // Full lines: with room made for somebody outside, and by somebody outside.
    (FULL, 1, &[Leave(1)]),
    (FULL, 5, &[Leave(5)]),
    (FULL, 9, &[Take(9, X)]),
    (FULL_OF_GROUPS, 2, &[Take(2, X), Leave(2)]),
    (FULL_OF_GROUPS, 2, &[Leave(2)]),
    // Many lines.
    (
        &[TakeLine(2, 1, X), TakeLine(3, 2, S), TakeLine(4, 3, X)],
        1,
        &[TakeLine(1, 0, X), TakeLine(1, 1, X), TakeLine(1, 2, S), TakeLine(1, 3, S), LeaveAll(1)],
    ),
    (
        &[
            TakeLine(1, 0, X),
            TakeLine(1, 1, S),
            TakeLine(1, 2, X),
            TakeLine(2, 0, X),
            TakeLine(3, 1, X),
            TakeLine(4, 2, S),
        ],
        1,
        &[Leave(1), LeaveAll(1)],
    ),
];

/// The situation, with somebody outside each full line, and others that ask and leave in front of the death.
fn situation((before, _, _): &Situation) -> Rc<World> {
    let world = World::played(4, 11, before);
    if before.len() > 7 {
        world.play(Take(10, X));
        world.play(Take(11, S));
    }
    world
}

/// Cleans up after `dead`, and dies before its Nth access if one is given. Whether it survived.
fn clean_up(world: &Rc<World>, dead: u16, at: Option<u64>) -> bool {
    world.table.memory().begin(at.map(|at| (at, death())));
    let survived = survives(|| world.table.clean_up(number_of(dead), &mut |wake| world.wake(wake)).unwrap());
    world.table.memory().begin([]);
    survived
}

/// The death before access `at`, and the cleaner's before access `then`; which of the two came.
fn play(of: &Situation, at: u64, then: u64) -> (bool, bool) {
    let (_, dead, steps) = of;
    let world = situation(of);
    world.table.memory().begin([(at, death())]);
    let died = !survives(|| steps.iter().for_each(|step| _ = world.play(*step)));
    world.table.memory().begin([]);
    world.stands.borrow_mut().retain(|(number, _), _| number != dead);
    let epoch = world.table.epoch(number_of(*dead));
    let cleaner_died = !clean_up(&world, *dead, Some(then));
    assert!(!cleaner_died || clean_up(&world, *dead, None));
    assert!(world.table.epoch(number_of(*dead)) > epoch);
    let context = (of, at, then);
    assert!(!world.is_anywhere(*dead), "{context:?}");
    world.check();
    world.finish(&context);
    (died, cleaner_died)
}

#[test]
fn nothing_is_left_of_who_dies_at_any_access_nor_of_who_dies_cleaning_up() {
    let mut deaths = 0;
    for of in SITUATIONS {
        let mut at = 0;
        loop {
            let mut died = false;
            let cleaners_died = (0..).take_while(|then| {
                let (session, cleaner) = play(of, at, *then);
                died = session;
                cleaner
            });
            deaths += cleaners_died.count();
            if !died {
                break;
            }
            at += 1;
        }
        assert!(at > 5, "{of:?}");
    }
    println!("{deaths} pairs of deaths");
    assert!(deaths > 5_000, "{deaths}");
}

/// A session that died in the middle of a step and one that goes on in the same line at that very moment.
#[test]
fn others_go_on_while_somebody_cleans_up() {
    const OTHERS: &[&[Do]] =
        &[&[Take(6, X)], &[Take(6, S), Take(7, S)], &[Leave(2)], &[Leave(2), Take(6, X), Leave(3)]];
    for of in SITUATIONS.iter().filter(|(before, _, _)| before.len() < 6) {
        let (_, dead, steps) = of;
        for others in OTHERS {
            for at in 0.. {
                let mut died = false;
                for then in 0.. {
                    let world = situation(of);
                    world.table.memory().begin([(at, death())]);
                    died = !survives(|| steps.iter().for_each(|step| _ = world.play(*step)));
                    world.stands.borrow_mut().retain(|(number, _), _| number != dead);
                    let them = world.clone();
                    let dead = *dead;
                    let event =
                        move || others.iter().filter(|step| !step.is_of(dead)).for_each(|step| _ = them.play(*step));
                    world.table.memory().begin([(then, Box::new(event) as Event)]);
                    world.table.clean_up(number_of(dead), &mut |wake| world.wake(wake)).unwrap();
                    let over = world.table.memory().is_over();
                    world.table.memory().begin([]);
                    assert!(!world.is_anywhere(dead), "{of:?} {others:?} {at} {then}");
                    world.check();
                    world.finish(&(of, others, at, then));
                    if !over {
                        break;
                    }
                }
                if !died {
                    break;
                }
            }
        }
    }
}

/// Who dies while it takes its request back makes those behind it holders before the control word tells. A holder that
/// becomes the writer must not decide from what it saw before that.
#[test]
fn nobody_gets_in_past_who_dies_beside_somebody_who_decides_from_an_old_look() {
    for before in
        [&[Take(1, S), Take(2, X), Take(3, S)][..], &[Take(4, X), Take(1, S), Take(2, IX), Take(3, S), Leave(4)]]
    {
        let mut beside = 0;
        for (at, then) in (0..30).flat_map(|at| (0..20).map(move |then| (at, then))) {
            let world = World::played(1, 4, before);
            let other = world.clone();
            let event = move || {
                other.table.memory().busy.set(false);
                other.table.memory().begin([(then, death())]);
                survives(|| other.leave(2, 0));
                other.table.memory().begin([]);
                other.woken.borrow_mut().insert(3);
                other.look();
            };
            world.table.memory().begin([(at, Box::new(event) as Event)]);
            let upgraded = world.play(Take(1, X)) == Some(Step::Granted);
            world.table.memory().begin([]);
            let shares = world.stand(3) == Some(Stand::Holds);
            beside += u32::from(shares);
            assert!(!(shares && upgraded), "{before:?} {at} {then}");
            world.stands.borrow_mut().remove(&(2, 0));
            clean_up(&world, 2, None);
            world.finish(&(before, at, then));
        }
        assert!(beside > 10);
    }
}
