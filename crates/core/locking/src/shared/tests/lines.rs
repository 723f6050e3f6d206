//! Words and lines one by one.

use proptest::prelude::*;

use super::between::FULL;
use super::*;

/// The table's only line with a ring that begins at this ticket, as if as many had come and gone.
fn begin_at(world: &World, tail: u32) {
    let (memory, base) = (&world.table.memory().words, world.table.line_word(0));
    let control = Control(u64::from(tail) << 18);
    assert!(control.is_sound(1));
    memory.store(base, control.0);
    for back in 1..=7 {
        // Six more and one back are as good as one back, for who cannot subtract.
        let ticket = Control(u64::from((tail + (7 << 20) - back) % (7 << 20)) << 18).tail();
        let gone = Slot::new(ticket, number_of(1), X).without(number_of(1));
        assert!(gone.is_entry(ticket) && gone.is_vacant_for(ticket.plus(7)) && !gone.is_live());
        memory.store(base + ticket.word(), gone.0);
    }
}

/// Three sessions hand the lock round; in which order they had it.
fn hand_round(world: &World, times: usize) {
    [1, 2, 3].iter().for_each(|session| _ = world.play(Take(*session, X)));
    for time in 0..times {
        let session = (time % 3 + 1) as u16;
        world.look();
        assert_eq!(world.stand(session), Some(Stand::Holds), "time {time}");
        world.play(Leave(session));
        assert_eq!(world.play(Take(session, X)), Some(Step::Waiting));
    }
    world.finish(&times);
}

#[test]
fn the_ring_goes_round_and_its_tickets_begin_again() {
    hand_round(&World::new(1, 3, WaitPolicy::Queue), 100);
    for before in 0..=8 {
        let world = World::new(1, 3, WaitPolicy::Queue);
        begin_at(&world, (7 << 20) - 1 - before);
        hand_round(&world, 50);
        let words = world.words(0);
        assert!(words[0] >> 18 & ((1 << 23) - 1) < 100, "the tickets have begun again: {words:x?}");
    }
}

#[test]
fn a_full_line_takes_nobody_and_tells_when_there_is_a_place() {
    let world = World::played(1, 10, FULL);
    assert_eq!(world.play(Take(9, S)), Some(Step::Full));
    assert!(!world.is_anywhere(9));
    assert!(world.table.crowd(0).unwrap());
    assert!(world.woken.borrow().is_empty());
    world.play(Leave(1));
    assert!(world.woken.borrow().contains(&9) && world.woken.borrow().contains(&2));
    assert!(!world.table.crowd(0).unwrap());
    world.look();
    assert_eq!((world.stand(9), world.stand(2)), (Some(Stand::Waits), Some(Stand::Holds)));
    // Full again. Who only tries is refused, whatever stands in the way.
    assert_eq!(world.play(Take(10, X)), Some(Step::Full));
    world.finish(&());
}

#[test]
fn who_only_tries_is_refused_by_a_ring_full_of_readers_too() {
    let world = World::new(1, 300, WaitPolicy::Try);
    for block in 0..8 {
        assert_eq!(
            world.play(Take(32 * block + 1, S)),
            Some(Step::Granted),
            "the owner, and a group of each other block"
        );
    }
    assert_eq!(world.play(Take(290, S)), Some(Step::Refused));
    assert_eq!(world.play(Take(32 * 7 + 2, S)), Some(Step::Granted), "it joins the last group");
    world.finish(&());
}

#[test]
fn a_crowd_of_readers_takes_one_place_a_block() {
    let world = World::new(1, 102, WaitPolicy::Queue);
    world.play(Take(101, X));
    (1..=100).for_each(|reader| assert_eq!(world.play(Take(reader, S)), Some(Step::Waiting)));
    assert_eq!(Control(world.words(0)[0]).length(), 4);
    world.play(Take(102, X));
    world.play(Leave(101));
    assert_eq!(world.woken.borrow().len(), 100, "all that hold it now and nobody else are told");
    world.look();
    assert!((1..=100).all(|reader| world.stand(reader) == Some(Stand::Holds)));
    for reader in 1..=100 {
        assert_eq!(world.stand(102), Some(Stand::Waits));
        world.play(Leave(reader));
        world.look();
    }
    assert_eq!(world.stand(102), Some(Stand::Holds));
    world.finish(&());
}

#[test]
fn a_holder_that_is_alone_becomes_the_writer() {
    for before in [&[Take(1, S)][..], &[Take(2, X), Take(1, S), Leave(2)], &[Take(1, S), Take(3, X)]] {
        let world = World::played(1, 4, before);
        assert_eq!(world.play(Take(1, X)), Some(Step::Granted), "{before:?}");
        assert_eq!(world.table.standing(number_of(1), 0).unwrap(), Some(Some(X)));
        assert_eq!(world.play(Take(4, S)), Some(Step::Waiting));
        world.finish(&before);
    }
    for before in [&[Take(1, S), Take(2, S)][..], &[Take(3, X), Take(1, S), Take(2, S), Leave(3)]] {
        let world = World::played(1, 4, before);
        let words = world.words(0);
        assert_eq!(world.play(Take(1, X)), Some(Step::Refused), "{before:?}");
        assert_eq!(world.play(Take(1, IX)), Some(Step::Refused), "shared and intent are exclusive together");
        assert_eq!(world.words(0), words);
        world.finish(&before);
    }
}

#[test]
fn each_grant_of_a_line_is_given_back_by_itself() {
    let world = World::new(1, 2, WaitPolicy::Queue);
    let layout = *world.table.layout();
    assert_eq!(layout.place(5), layout.place(77), "two keys of one line");
    for held in 1..=3 {
        assert_eq!(world.play(Take(1, X)), Some(Step::Granted));
        assert_eq!(world.table.holds(&world.session(1), 0), held);
    }
    assert_eq!(world.play(Take(2, X)), Some(Step::Waiting));
    let twice = world.table.request(&mut world.session(2), 0, X, WaitPolicy::Queue, &mut |_| {});
    assert_eq!(twice, Err(TableError::WaitsAlready(0)));
    for _ in 0..3 {
        assert!(!world.table.poll(&mut world.session(2), 0).unwrap());
        world.table.release(&mut world.session(1), 0, &mut |wake| world.wake(wake)).unwrap();
    }
    world.stands.borrow_mut().remove(&(1, 0));
    let once_more = world.table.release(&mut world.session(1), 0, &mut |_| {});
    assert_eq!(once_more, Err(TableError::NotHeld(0)));
    assert_eq!(world.table.withdraw(&mut world.session(1), 0, &mut |_| {}), Err(TableError::NotHeld(0)));
    assert_eq!(world.table.poll(&mut world.session(1), 0), Err(TableError::NotHeld(0)));
    world.finish(&());
}

#[test]
fn a_session_has_as_many_lines_as_the_table_was_made_for_and_finds_each() {
    let layout = Layout { held: 40, ..Layout::new(64, 1) };
    let table = Table::create(Private::new(layout.words()), layout).unwrap();
    let mut session = table.open(number_of(1), 0, &mut |_| {}).unwrap();
    for line in 0..40 {
        assert_eq!(table.request(&mut session, line, X, WaitPolicy::Try, &mut |_| {}), Ok(Step::Granted));
    }
    assert_eq!(table.request(&mut session, 40, X, WaitPolicy::Try, &mut |_| {}), Err(TableError::TooMany(40)));
    // Out of the middle, so that the last ones move.
    for line in (0..40).map(|at| at * 7 % 40) {
        assert_eq!(table.holds(&session, line), 1);
        table.release(&mut session, line, &mut |_| {}).unwrap();
        assert_eq!(table.holds(&session, line), 0);
    }
    assert_eq!(table.touched(number_of(1)), 0);
}

#[test]
fn age_decides_who_may_wait() {
    for (timeout, first, second) in [
        (WaitPolicy::Try, Step::Refused, Step::Refused),
        (WaitPolicy::WaitDie, Step::Waiting, Step::Refused),
        (WaitPolicy::Safe, Step::Waiting, Step::Waiting),
        (WaitPolicy::Queue, Step::Waiting, Step::Waiting),
    ] {
        let world = World::new(4, 4, timeout);
        world.play(Take(2, X));
        assert_eq!((world.play(Take(1, S)), world.play(Take(3, S))), (Some(first), Some(second)), "{timeout:?}");
        world.play(TakeLine(4, 1, X));
        let holding = if timeout == WaitPolicy::Queue { Step::Waiting } else { Step::Refused };
        assert_eq!(world.play(Take(4, S)), Some(holding), "{timeout:?}: it holds something, and is the youngest");
        world.finish(&timeout);
    }
}

/// A session that waits, as one that held nothing, for an older one would come to hold what that one waits for.
#[test]
fn who_waits_for_an_older_one_gets_nothing_else_meanwhile() {
    let world = World::new(4, 3, WaitPolicy::Safe);
    world.play(Take(1, X));
    assert_eq!(world.play(Take(2, X)), Some(Step::Waiting));
    assert_eq!(world.play(TakeLine(2, 1, X)), Some(Step::Refused));
    // Who waits for younger ones only may go on.
    world.play(TakeLine(3, 2, X));
    assert_eq!(world.play(TakeLine(1, 2, X)), Some(Step::Waiting));
    assert_eq!(world.play(TakeLine(1, 3, X)), Some(Step::Granted));
    world.play(Leave(1));
    world.look();
    assert_eq!(world.play(TakeLine(2, 1, X)), Some(Step::Granted), "it has what it waited for");
    world.finish(&());
}

/// Whoever leaves in the middle may have stood between a group that holds the lock and one that fits it.
#[test]
fn a_group_that_comes_to_fit_is_told() {
    let world = World::played(1, 4, &[Take(4, X), Take(1, S), Take(2, IX), Take(3, S), Leave(4)]);
    assert_eq!(world.stand(3), Some(Stand::Waits));
    world.play(Leave(2));
    assert!(world.woken.borrow().contains(&3));
    world.finish(&());
}

proptest! {
    #[test]
    fn a_slot_says_who_is_in_it(
        first in 1..=4095_u16,
        second in 1..=4095_u16,
        tail in 0..7_u32 << 20,
        mode in 1..4_u8,
    ) {
        let mode = [S, IX, X][usize::from(mode) - 1];
        let (first, second) = (number_of(first), number_of(second));
        let ticket = Control(u64::from(tail) << 18).tail();
        let slot = Slot::new(ticket, first, mode);
        prop_assert!(slot.is_entry(ticket) && slot.is_live() && slot.has_only(first) && slot.is_sound(first.get()));
        prop_assert!(!slot.is_sound(first.get() - 1));
        prop_assert!(slot.is_vacant_for(ticket.plus(7)) && !slot.is_vacant_for(ticket));
        prop_assert_eq!((slot.ticket(), slot.mode()), (ticket, Some(mode)));
        prop_assert_eq!(slot.sessions().collect::<Vec<_>>(), vec![first]);
        let joined = slot.joined(second, mode);
        prop_assert_eq!(joined.is_some(), mode != X && first.get() / 32 == second.get() / 32);
        if let Some(joined) = joined.filter(|_| first != second) {
            prop_assert!(joined.has(first) && joined.has(second) && !joined.has_only(first));
            prop_assert_eq!(joined.without(second), slot);
        }
        let gone = slot.without(first);
        prop_assert!(gone.is_entry(ticket) && !gone.is_live() && !gone.has(first) && gone.0 != 0);
        prop_assert!(gone.joined(first, mode).is_none(), "what is dead is dead for ever");
    }
}
