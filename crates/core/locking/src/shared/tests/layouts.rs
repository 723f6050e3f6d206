//! Headers that are refused, and what a damaged line or list may do: be told of, and nothing else.

use proptest::prelude::*;

use super::*;

fn words(layout: Layout) -> Rc<Private> {
    Rc::new(Private::new(layout.words()))
}

#[test]
fn dimensions_that_cannot_be_are_named() {
    let layout = Layout::new(8, 3);
    let refused = |layout: Layout| Table::create(Private::new(600), layout).map(drop).unwrap_err();
    for lines in [0, 3, 12, u32::MAX] {
        assert_eq!(refused(Layout { lines, ..layout }), LayoutError::Lines { lines });
    }
    for sessions in [0, 4096, u16::MAX] {
        assert_eq!(refused(Layout { sessions, ..layout }), LayoutError::Sessions { sessions });
    }
    for held in [0, 9] {
        assert_eq!(refused(Layout { held, ..layout }), LayoutError::Held { held, lines: 8 });
    }
    let (found, expected) = (600 * 8, (512 + 8 * 8) * 8);
    assert_eq!(refused(layout), LayoutError::Size { found, expected });
    assert_eq!(
        LayoutError::Size { found, expected }.to_string(),
        "the segment has 4800 bytes; a table of these dimensions has 4608"
    );
}

#[test]
fn what_is_no_table_is_refused() {
    let layout = Layout { placement: Placement::Direct, ..Layout::new(8, 3) };
    let memory = words(layout);
    let refused = || Table::attach(memory.clone()).map(drop).unwrap_err();
    assert_eq!(refused(), LayoutError::Foreign { found: 0 });
    let created = Table::create(memory.clone(), layout).unwrap();
    assert_eq!(Table::attach(memory.clone()).unwrap().layout(), &layout);
    let header: [u64; 8] = std::array::from_fn(|word| memory.load(word));
    for (word, value) in header.into_iter().enumerate() {
        for bit in 0..64 {
            memory.store(word, value ^ 1 << bit);
            match (word, refused()) {
                (0, LayoutError::Foreign { .. }) | (1, LayoutError::Format { .. }) | (2.., _) => {}
                (_, other) => panic!("word {word}, bit {bit}: {other}"),
            }
        }
        memory.store(word, value);
    }
    // A table that was not finished has no check word.
    memory.store(7, 0);
    assert_eq!(refused(), LayoutError::Header);
    memory.store(7, header[7]);
    for size in [0, 63, 64, layout.words() - 1, layout.words() + 1] {
        let other = Private::new(size);
        (0..size.min(8)).for_each(|word| other.store(word, header[word]));
        assert!(matches!(Table::attach(other).unwrap_err(), LayoutError::Size { .. }), "{size} words");
    }
    assert_eq!(created.epoch(number_of(1)), 0);
}

/// Words that are nearly right, so that they get far.
fn line() -> impl Strategy<Value = [u64; LINE_WORDS]> {
    let control = (0..4_u64, 0..12_u64, 0..8_u64, any::<bool>(), 0..16_u64, any::<u64>(), 0..20_u8);
    let slots = prop::array::uniform7((0..4_u64, 0..9_u64, any::<u64>(), 0..12_u8));
    let nearly = (control, slots).prop_map(|((mode, owner, length, crowded, tail, rest, any), slots)| {
        let mut words = [0; LINE_WORDS];
        words[0] = mode | owner << 2 | length << 14 | u64::from(crowded) << 17 | tail << 18 | rest << 41;
        if any == 0 {
            words[0] = rest;
        }
        for (at, (mode, who, rest, kind)) in slots.into_iter().enumerate() {
            // The ticket that belongs there: the last one of this place before the tail.
            let ticket =
                (0..7).map(|back| (tail + (7 << 20) - 1 - back) % (7 << 20)).find(|ticket| *ticket % 7 == at as u64);
            let ticket = ticket.unwrap() + if kind == 1 { 7 } else { 0 };
            let who = if mode == 3 { who << 25 } else { (rest >> 56) << 33 };
            words[at + 1] = if kind == 0 { rest } else { mode | ticket << 2 | who };
        }
        words
    });
    prop_oneof![nearly, prop::array::uniform8(any::<u64>())]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_damaged_line_is_told_of_and_holds_up_nobody(
        words in line(),
        steps in prop::collection::vec((1..=8_u16, 0..7_u8, 0..3_usize, 0..4_usize), 1..20),
    ) {
        let world = World::new(1, 8, WaitPolicy::Queue);
        let base = world.table.line_word(0);
        (0..LINE_WORDS).for_each(|at| world.table.memory().store(base + at, words[at]));
        let too_long: Event = Box::new(|| panic!("a step without end"));
        world.table.memory().begin([(100_000, too_long)]);
        let mut told = |wake: Wake| {
            if let Wake::Session(number) = wake {
                assert!(number.get() <= 8, "nobody has this number");
            }
        };
        for (number, what, mode, timeout) in steps {
            let mode = [S, IX, X][mode];
            let timeout = [WaitPolicy::Try, WaitPolicy::WaitDie, WaitPolicy::Safe, WaitPolicy::Queue][timeout];
            let (table, session) = (&world.table, &mut *world.session(number));
            // Whatever they answer: they answer.
            match what {
                0 | 1 => drop(table.request(session, 0, mode, timeout, &mut told)),
                2 => drop(table.poll(session, 0)),
                3 => drop(table.release(session, 0, &mut told)),
                4 => drop(table.withdraw(session, 0, &mut told)),
                5 => drop(table.clean_up(number_of(number), &mut told)),
                _ => {
                    drop((table.crowd(0), table.standing(number_of(number), 0)));
                    drop(table.release_all(session, &mut told));
                }
            }
        }
    }
}

#[test]
fn whoever_asks_again_after_damage_does_not_hold_the_line() {
    let world = World::new(1, 2, WaitPolicy::Queue);
    let (table, control) = (&world.table, world.table.line_word(0));
    let sound = table.memory().load(control);
    table.memory().store(control, u64::MAX);
    for _ in 0..3 {
        let session = &mut *world.session(1);
        assert!(matches!(table.request(session, 0, X, WaitPolicy::Queue, &mut |_| ()), Err(TableError::Damage(_))));
        assert_eq!(table.holds(session, 0), 0);
    }
    // Somebody has put it right.
    table.memory().store(control, sound);
    let session = &mut *world.session(1);
    assert_eq!(table.request(session, 0, X, WaitPolicy::Queue, &mut |_| ()), Err(TableError::WaitsAlready(0)));
    table.withdraw(session, 0, &mut |_| ()).unwrap();
    assert_eq!(table.request(session, 0, X, WaitPolicy::Queue, &mut |_| ()), Ok(Step::Granted));
}

#[test]
fn a_damaged_list_is_told_of_and_the_other_lines_are_left() {
    let world = World::played(2, 2, &[TakeLine(1, 0, X), TakeLine(1, 1, X), TakeLine(2, 1, X)]);
    let list = world.table.layout().words() - 2 * LINE_WORDS - 512 + 64 + 2 * 16;
    let memory = world.table.memory();
    assert_eq!(memory.load(list) >> 32, 0, "the first line of the first session");
    memory.store(list, 9 << 32 | 1);
    let damage = world.table.clean_up(number_of(1), &mut |wake| world.wake(wake)).unwrap_err();
    assert_eq!(damage.line, 9);
    assert!(world.table.poll(&mut world.session(2), 1).unwrap());
    let damage = world.table.release_all(&mut world.session(1), &mut |_| {}).unwrap_err();
    assert!(matches!(&damage, TableError::Damage(damage) if damage.line == 9), "{damage}");
}
