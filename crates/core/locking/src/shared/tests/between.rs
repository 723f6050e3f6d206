//! At every access of one step, whole steps of others, and the others' at two different accesses. Afterwards everybody
//! must get its turn who only looks when it is woken. So each of these is hundreds of schedules, the same every time.

use super::*;

/// What was there before, the step, and what comes between.
type Scene = (&'static [Do], Do, &'static [Do]);

const SCENES: &[Scene] = &[
    // The lock is given back before the tail has moved over the claim.
    (&[Take(1, X)], Take(2, X), &[Leave(1)]),
    (&[Take(1, X)], Take(2, S), &[Leave(1), Take(3, X)]),
    // Somebody else moves the tail, and somebody hands over.
    (&[Take(1, X)], Take(2, X), &[Take(3, X), Leave(1)]),
    (&[Take(1, X)], Take(2, S), &[Take(3, S), Leave(1)]),
    (&[Take(1, X)], Take(2, X), &[Take(3, X), Take(4, S), Leave(1), Leave(3)]),
    // Two claim the same place.
    (&[Take(1, S)], Take(2, X), &[Take(3, X)]),
    (&[Take(1, X), Take(4, S)], Take(2, S), &[Take(3, X), Leave(1)]),
    // The last of a group leaves while somebody joins it.
    (&[Take(1, X), Take(2, S), Leave(1)], Leave(2), &[Take(3, S)]),
    (&[Take(1, X), Take(2, S), Leave(1)], Take(3, S), &[Leave(2), Take(4, X)]),
    (&[Take(1, X), Take(2, S), Take(3, S), Take(4, X), Leave(1)], Leave(2), &[Leave(3)]),
    // It leaves while others hand over to it, or past it.
    (&[Take(1, X), Take(2, X), Take(3, X)], Leave(2), &[Leave(1)]),
    (&[Take(1, X), Take(2, X), Take(3, X)], Leave(1), &[Leave(2)]),
    (&[Take(1, X), Take(2, X), Take(3, S), Take(4, X)], Leave(3), &[Leave(1), Leave(2)]),
    (&[Take(1, S), Take(2, IX), Take(3, S), Take(4, X)], Leave(2), &[Leave(1)]),
    (&[Take(1, X), Take(2, S), Take(3, IX), Take(4, S)], Leave(3), &[Leave(1), Take(5, X)]),
    (&[Take(1, X), Take(2, S), Take(3, X), Take(4, S), Leave(1)], Leave(3), &[Leave(2)]),
    // Upgrades.
    (&[Take(1, S)], Take(1, X), &[Take(2, S)]),
    (&[Take(1, X), Take(2, S), Take(3, S), Leave(1)], Take(2, X), &[Leave(3), Take(4, S)]),
    (&[Take(1, X), Take(2, S), Take(3, S), Leave(1)], Leave(3), &[Take(2, X)]),
    // Full lines.
    (FULL, Take(9, X), &[Leave(1)]),
    (FULL, Leave(1), &[Take(9, X), Take(10, S)]),
    (FULL, Leave(1), &[Leave(2), Take(9, X), Leave(3), Take(10, X)]),
    (FULL, Take(9, X), &[Leave(3), Leave(1), Take(10, X)]),
    (FULL_OF_GROUPS, Leave(2), &[Take(9, X), Take(10, X)]),
    (FULL_OF_GROUPS, Take(2, X), &[Take(9, X)]),
    (FULL_OF_GROUPS, Take(9, X), &[Take(2, X), Take(10, X)]),
];

/// An owner and seven who wait.
pub(super) const FULL: &[Do] =
    &[Take(1, X), Take(2, X), Take(3, X), Take(4, X), Take(5, X), Take(6, X), Take(7, X), Take(8, X)];
/// A group that holds the lock, and six who wait, of which the first has no time.
pub(super) const FULL_OF_GROUPS: &[Do] =
    &[Take(1, X), Take(2, S), Take(3, X), Take(4, X), Take(5, X), Take(6, X), Take(7, X), Take(8, X), Leave(1)];

/// Plays a scene with its interludes at these accesses; whether all of them came.
fn play(scene: &Scene, at: &[u64]) -> bool {
    let (before, step, between) = scene;
    let world = World::played(1, 10, before);
    let event = |(access, steps): (&u64, &'static [Do])| {
        let world = world.clone();
        let event = move || steps.iter().for_each(|step| _ = world.play(*step));
        (*access, Box::new(event) as Event)
    };
    let length = between.len().div_ceil(at.len());
    world.table.memory().begin(at.iter().zip(between.chunks(length)).map(event));
    world.play(*step);
    let over = world.table.memory().is_over();
    world.table.memory().begin([]);
    world.check();
    world.finish(&(scene, at));
    over
}

#[test]
fn whole_steps_of_others_may_come_at_every_access() {
    for scene in SCENES {
        let accesses = (0..).take_while(|at| play(scene, &[*at])).count();
        assert!(accesses > 2, "{scene:?}");
    }
}

#[test]
fn steps_of_others_may_come_at_every_two_accesses() {
    for scene in SCENES.iter().filter(|(_, _, between)| between.len() > 1) {
        for first in 0..40 {
            if (first..).take_while(|second| play(scene, &[first, *second])).count() == 0 {
                break;
            }
        }
    }
}

/// A reader that came into a group behind which somebody has queued up would be waited for by one who has not seen it,
/// so by a younger one too, and a circle could close.
#[test]
fn a_reader_does_not_slip_in_before_somebody_who_has_decided_to_wait() {
    let mut decided = 0;
    for at in 0.. {
        let world = World::new(1, 5, WaitPolicy::WaitDie);
        world.play(Take(5, X));
        assert_eq!(world.play(Take(4, S)), Some(Step::Waiting));
        let other = world.clone();
        let event = move || _ = other.play(Take(2, X));
        world.table.memory().begin([(at, Box::new(event) as Event)]);
        assert_eq!(world.play(Take(1, S)), Some(Step::Waiting));
        if !world.table.memory().is_over() {
            break;
        }
        if world.stand(2) == Some(Stand::Waits) {
            decided += 1;
            let for_younger = world.table.line(0).waits_for(number_of(2), |other| other.get() > 2);
            assert!(for_younger.unwrap(), "2 waits for 1, which is older");
        }
        world.finish(&at);
    }
    assert!(decided > 5);
}
