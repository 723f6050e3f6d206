//! One element at a time: places of keys, bad input, and cycles.

use lockwork_locking::LockMode::{Exclusive, Shared};
use lockwork_locking::shared::{Layout, Placement, SessionNumber, Table, WaitPolicy};
use lockwork_verilated::Model;

use crate::card::{Answer, Both, Op, Pace, Random, build, hand_over, world};

const QUEUE: WaitPolicy = WaitPolicy::Queue;

/// A module with sessions 1 and 2 in elements 0 and 1.
fn two(model: &Model, layout: Layout, port: Pace) -> Table<Both> {
    let table = world(layout, port, 0, model, 3);
    for element in 0..2 {
        let number = SessionNumber::new(element + 1).unwrap();
        table.open(number, 0, &mut |_| ()).unwrap();
        hand_over(&table, element.into(), number);
    }
    table
}

/// A request, its answer, and the cycles that it took.
fn ask(table: &Table<Both>, element: usize, op: Op, key: u64) -> (Answer, u32, u64) {
    let mut card = table.memory().card.borrow_mut();
    card.over.clear();
    let before = card.cycles();
    card.send(element, op, key);
    for _ in 0..10_000 {
        card.tick();
        while let Some((of, activity)) = card.over.pop_front() {
            if let Some((answer, line)) = activity.answer.filter(|_| of == element) {
                return (answer, line, card.cycles() - before);
            }
        }
    }
    panic!("no answer to {op:?}");
}

fn direct(lines: u32) -> Layout {
    Layout { placement: Placement::Direct, held: 4, ..Layout::new(lines, 8) }
}

#[test]
fn keys_are_placed_as_software_places_them() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let model = build();
    for bits in [2, 6, 7, 9, 13] {
        let layout = Layout { held: 4, ..Layout::new(1 << bits, 8) };
        let table = two(&model, layout, Pace::QUICK);
        let mut random = Random(bits);
        for round in 0..150 {
            let key = random.next_u64() >> (round % 64);
            let (answer, line, _) = ask(&table, 0, Op::Acquire(Exclusive, QUEUE), key);
            assert_eq!((answer, line), (Answer::Granted, layout.place(key)), "key {key:#x} of 2^{bits} lines");
            assert_eq!(ask(&table, 0, Op::Release, key).0, Answer::Done);
        }
    }
}

#[test]
fn a_full_list_and_an_age_in_use_are_refused_and_all_is_given_back_at_once() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let table = two(&build(), direct(16), Pace::QUICK);
    for key in 0..4 {
        assert_eq!(ask(&table, 0, Op::Acquire(Shared, QUEUE), key).0, Answer::Granted);
    }
    assert_eq!(ask(&table, 0, Op::Acquire(Shared, QUEUE), 4).0, Answer::TooMany);
    assert_eq!(ask(&table, 0, Op::Age, 7).0, Answer::InUse);
    assert_eq!(table.touched(SessionNumber::new(1).unwrap()), 4);
    assert_eq!(ask(&table, 0, Op::ReleaseAll, 0).0, Answer::Done);
    assert_eq!(table.touched(SessionNumber::new(1).unwrap()), 0);
    assert_eq!(ask(&table, 0, Op::Age, 7).0, Answer::Done);
    assert_eq!(table.age(SessionNumber::new(1).unwrap()), 7);
    assert_eq!(ask(&table, 1, Op::Acquire(Exclusive, WaitPolicy::Try), 3).0, Answer::Granted);
}

#[test]
fn a_damaged_line_is_told_of_and_the_others_go_on() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let table = two(&build(), direct(16), Pace::QUICK);
    let words = &table.memory().words;
    // An owner that there is not; a tail that is no ticket; an entry with the wrong ticket; a mode without owner.
    let damages = [(1 << 2 | 3) + (4000 << 2), (7 << 20) << 18 | 1 << 14, 1 << 14 | 1 << 18, 3];
    for (line, damage) in damages.into_iter().enumerate() {
        words[table.line_word(line as u32)].set(damage);
        assert_eq!(ask(&table, 0, Op::Acquire(Exclusive, QUEUE), line as u64).0, Answer::Damage, "{damage:#x}");
        // It stands in the list for whoever mends the line.
        assert_eq!(table.touched(SessionNumber::new(1).unwrap()), 1);
        assert_eq!(ask(&table, 1, Op::Acquire(Shared, QUEUE), 15).0, Answer::Granted);
        assert_eq!(ask(&table, 1, Op::Release, 15).0, Answer::Done);
        words[table.line_word(line as u32)].set(0);
        assert_eq!(ask(&table, 0, Op::Withdraw, line as u64).0, Answer::Done);
        assert_eq!(ask(&table, 0, Op::Acquire(Exclusive, QUEUE), line as u64).0, Answer::Granted);
        assert_eq!(ask(&table, 0, Op::ReleaseAll, 0).0, Answer::Done);
    }
}

#[test]
fn a_session_whose_epoch_has_ended_touches_nothing_any_more() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let table = two(&build(), direct(16), Pace::QUICK);
    assert_eq!(ask(&table, 0, Op::Acquire(Exclusive, QUEUE), 3).0, Answer::Granted);
    table.clean_up(SessionNumber::new(1).unwrap(), &mut |_| ()).unwrap();
    let before: Vec<_> = table.memory().words.iter().map(|word| word.get()).collect();
    for op in [Op::Acquire(Shared, QUEUE), Op::Release, Op::Withdraw, Op::ReleaseAll, Op::Age] {
        assert_eq!(ask(&table, 0, op, 3).0, Answer::Stale);
    }
    assert!(before.iter().eq(table.memory().words.iter().map(|word| word.get()).collect::<Vec<_>>().iter()));
    // An element that was given no session.
    assert_eq!(ask(&table, 5, Op::Release, 3).0, Answer::Stale);
    assert_eq!(ask(&table, 1, Op::Acquire(Exclusive, QUEUE), 3).0, Answer::Granted);
}

/// Cycles are the same on every machine. Memory takes 80 to answer.
#[test]
fn a_lock_takes_three_accesses_in_turn_and_elements_overlap() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let port = Pace { latency: (80, 80), ready: 100, errors: false };
    let table = two(&build(), direct(64), port);
    let (answer, _, lock) = ask(&table, 0, Op::Acquire(Exclusive, QUEUE), 9);
    assert_eq!(answer, Answer::Granted);
    assert_eq!(ask(&table, 1, Op::Acquire(Exclusive, QUEUE), 9).0, Answer::Waiting);
    let (answer, _, contended) = ask(&table, 0, Op::Release, 9);
    assert_eq!(answer, Answer::Done);
    let mut handed = None;
    let before = table.memory().card.borrow().cycles();
    while handed.is_none() {
        let mut card = table.memory().card.borrow_mut();
        card.tick();
        let cycles = card.cycles() - before;
        handed = card.over.pop_front().filter(|(_, activity)| !activity.notes.is_empty()).map(|_| cycles);
    }
    assert_eq!(ask(&table, 1, Op::Release, 9).0, Answer::Done);
    assert_eq!(ask(&table, 0, Op::Acquire(Exclusive, QUEUE), 9).0, Answer::Granted);
    let (answer, _, release) = ask(&table, 0, Op::Release, 9);
    assert_eq!(answer, Answer::Done);
    println!("lock {lock}, release {release}, release to a waiter {contended}, told behind it {handed:?} cycles");
    assert!(lock <= 3 * 82 + 20, "{lock}");
    assert!(release <= 3 * 82 + 20, "{release}");
    for element in 2..8 {
        let number = SessionNumber::new(element + 1).unwrap();
        table.open(number, 0, &mut |_| ()).unwrap();
        hand_over(&table, element.into(), number);
    }
    let mut card = table.memory().card.borrow_mut();
    card.over.clear();
    let (before, mut done, mut held) = (card.cycles(), 0, [false; 8]);
    (0..8).for_each(|element| card.send(element, Op::Acquire(Exclusive, QUEUE), element as u64));
    while done < 800 {
        card.tick();
        while let Some((element, activity)) = card.over.pop_front() {
            assert!(matches!(activity.answer, Some((Answer::Granted | Answer::Done, _))), "{activity:?}");
            done += u64::from(held[element]);
            held[element] = !held[element];
            let op = if held[element] { Op::Release } else { Op::Acquire(Exclusive, QUEUE) };
            card.send(element, op, element as u64);
        }
    }
    let cycles = (card.cycles() - before) as f64 / done as f64;
    println!("eight elements: a lock and its release every {cycles:.1} cycles");
    assert!(cycles < 75.0, "{cycles}");
}
