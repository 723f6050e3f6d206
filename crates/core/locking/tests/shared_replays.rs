//! Orders of steps in which the shared lock table once went wrong, step by step: sessions stop before a chosen
//! compare-and-swap, others go past them, and then they go on or die.
#![cfg(not(loom))]

use std::cell::Cell;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Scope, ScopedJoinHandle};

use lockwork_locking::LockMode::{self, Exclusive, IntentExclusive, Shared};
use lockwork_locking::shared::memory::{Memory, Private};
use lockwork_locking::shared::{Layout, Placement, Session, SessionNumber, Step, Table, TableError, WaitPolicy, Wake};

/// Memory that stops before a swap.
struct Gated<'m> {
    memory: &'m Private,
    swaps_left: Cell<usize>,
    arrived: Sender<()>,
    go: Receiver<()>,
}

impl Memory for Gated<'_> {
    fn words(&self) -> usize {
        self.memory.words()
    }

    fn load(&self, word: usize) -> u64 {
        self.memory.load(word)
    }

    fn store(&self, word: usize, value: u64) {
        self.memory.store(word, value);
    }

    fn swap(&self, word: usize, old: u64, new: u64) -> Result<(), u64> {
        let left = self.swaps_left.get();
        self.swaps_left.set(left.saturating_sub(1));
        if left == 1 {
            self.arrived.send(()).unwrap();
            if self.go.recv().is_err() {
                resume_unwind(Box::new("died"));
            }
        }
        self.memory.swap(word, old, new)
    }

    fn fence(&self) {
        self.memory.fence();
    }
}

/// A session's step that stands before a swap.
struct Stopped<'s, T> {
    go: Sender<()>,
    thread: ScopedJoinHandle<'s, (T, Session)>,
}

impl<T> Stopped<'_, T> {
    fn go_on(self) -> (T, Session) {
        self.go.send(()).unwrap();
        self.thread.join().unwrap()
    }

    fn die(self) {
        drop(self.go);
        assert!(self.thread.join().is_err(), "it was past the place where it was to die");
    }
}

/// Begins a session's step, and stops it before its swap of this number, from 1.
fn stop_before<'s, 'm: 's, T: Send + 's>(
    scope: &'s Scope<'s, '_>,
    memory: &'m Private,
    swap: usize,
    mut session: Session,
    step: impl FnOnce(&Table<Gated<'m>>, &mut Session) -> T + Send + 's,
) -> Stopped<'s, T> {
    let ((arrived, there), (go, wait)) = (channel(), channel());
    let thread = scope.spawn(move || {
        let table = Table::attach(Gated { memory, swaps_left: Cell::new(swap), arrived, go: wait }).unwrap();
        (step(&table, &mut session), session)
    });
    there.recv().expect("the step has so many swaps");
    Stopped { go, thread }
}

const LINE: u32 = 3;

fn nobody(_: Wake) {}

fn memory() -> Private {
    let layout = Layout { lines: 16, sessions: 16, held: 16, placement: Placement::Direct };
    let table = Table::create(Private::new(layout.words()), layout).unwrap();
    table.into_memory()
}

/// A session of this number, whose age is its number.
fn session<M: Memory>(table: &Table<M>, number: u16) -> Session {
    let session = table.open(SessionNumber::new(number).unwrap(), 1, &mut nobody).unwrap();
    table.set_age(&session, number.into()).unwrap();
    session
}

fn withdraw<M: Memory>(table: &Table<M>, session: &mut Session) -> Result<(), TableError> {
    table.withdraw(session, LINE, &mut nobody)
}

fn ask<M: Memory>(table: &Table<M>, session: &mut Session, mode: LockMode) -> Step {
    table.request(session, LINE, mode, WaitPolicy::Queue, &mut nobody).unwrap()
}

/// A session that has asked for the line.
fn asked<M: Memory>(table: &Table<M>, number: u16, mode: LockMode, expected: Step) -> Session {
    let mut session = session(table, number);
    assert_eq!(ask(table, &mut session, mode), expected, "session {number}");
    session
}

#[test]
fn a_reader_that_was_let_in_by_a_withdrawal_is_seen_by_an_upgrade() {
    let memory = memory();
    let table = Table::attach(&memory).unwrap();
    let reader = asked(&table, 1, Shared, Step::Granted);
    let writer = asked(&table, 2, Exclusive, Step::Waiting);
    let mut behind = asked(&table, 3, Shared, Step::Waiting);
    std::thread::scope(|scope| {
        // It has seen the writer in front of the second reader.
        let upgrade = stop_before(scope, &memory, 1, reader, |table, reader| ask(table, reader, Exclusive));
        let withdrawal = stop_before(scope, &memory, 2, writer, withdraw);
        let let_in = table.poll(&mut behind, LINE).unwrap();
        let (upgraded, _) = upgrade.go_on();
        assert!(let_in && upgraded == Step::Refused, "reader {let_in}, upgrade {upgraded:?}");
        withdrawal.go_on().0.unwrap();
    });
}

#[test]
fn nobody_joins_a_group_that_is_vacated() {
    let memory = memory();
    let table = Table::attach(&memory).unwrap();
    let mut reader = asked(&table, 1, Shared, Step::Granted);
    let intent = asked(&table, 2, IntentExclusive, Step::Waiting);
    let late = session(&table, 4);
    std::thread::scope(|scope| {
        let withdrawal = stop_before(scope, &memory, 2, intent, withdraw);
        let joining = stop_before(scope, &memory, 1, late, |table, late| ask(table, late, IntentExclusive));
        let mut behind = asked(&table, 3, Shared, Step::Granted);
        let (joined, mut late) = joining.go_on();
        assert_eq!(joined, Step::Waiting);
        withdrawal.go_on().0.unwrap();
        table.release(&mut reader, LINE, &mut nobody).unwrap();
        assert!(!table.poll(&mut late, LINE).unwrap(), "a reader holds the lock");
        table.release(&mut behind, LINE, &mut nobody).unwrap();
        assert!(table.poll(&mut late, LINE).unwrap());
    });
}

#[test]
fn the_place_that_a_dead_session_claimed_is_not_used_again() {
    let memory = memory();
    let table = Table::attach(&memory).unwrap();
    let mut reader = asked(&table, 1, Shared, Step::Granted);
    let (dead, cleaner, late, behind) = (2, 6, 5, 3);
    let [dead, cleaner, late, behind] = [dead, cleaner, late, behind].map(|number| session(&table, number));
    let number = dead.number();
    std::thread::scope(|scope| {
        stop_before(scope, &memory, 2, dead, |table, dead| ask(table, dead, Exclusive)).die();
        // It has seen the claim, and is about to move the tail over it.
        let queueing = stop_before(scope, &memory, 1, behind, |table, behind| ask(table, behind, Shared));
        let cleaning = stop_before(scope, &memory, 2, cleaner, move |table, _| table.clean_up(number, &mut nobody));
        // It has seen that the claim is vacated.
        let writing = stop_before(scope, &memory, 1, late, |table, late| ask(table, late, Exclusive));
        let (queued, mut behind) = queueing.go_on();
        let (written, mut late) = writing.go_on();
        assert_eq!((queued, written), (Step::Granted, Step::Waiting));
        cleaning.go_on().0.unwrap();
        table.release(&mut reader, LINE, &mut nobody).unwrap();
        assert!(!table.poll(&mut late, LINE).unwrap(), "a reader holds the lock");
        table.release(&mut behind, LINE, &mut nobody).unwrap();
        assert!(table.poll(&mut late, LINE).unwrap());
    });
}

#[test]
fn who_joins_a_group_late_does_not_come_before_those_who_queued_up_behind_it() {
    let memory = memory();
    let table = Table::attach(&memory).unwrap();
    let mut owner = asked(&table, 8, Exclusive, Step::Granted);
    let mut reader = asked(&table, 9, Shared, Step::Waiting);
    let (oldest, mut older) = (session(&table, 1), session(&table, 2));
    let mut oldest = std::thread::scope(|scope| {
        let joining = stop_before(scope, &memory, 1, oldest, |table, oldest| ask(table, oldest, Shared));
        // It may wait for those whom it sees, as they are younger. For the oldest it might not.
        let step = table.request(&mut older, LINE, Exclusive, WaitPolicy::WaitDie, &mut nobody).unwrap();
        let (joined, oldest) = joining.go_on();
        assert_eq!((step, joined), (Step::Waiting, Step::Waiting));
        oldest
    });
    table.release(&mut owner, LINE, &mut nobody).unwrap();
    assert!(table.poll(&mut reader, LINE).unwrap());
    table.release(&mut reader, LINE, &mut nobody).unwrap();
    assert!(table.poll(&mut older, LINE).unwrap() && !table.poll(&mut oldest, LINE).unwrap());
}

#[test]
fn a_death_after_the_entry_is_vacated_holds_nobody_up() {
    let memory = memory();
    let table = Table::attach(&memory).unwrap();
    let mut owner = asked(&table, 1, Exclusive, Step::Granted);
    let mut reader = asked(&table, 2, Shared, Step::Waiting);
    let mut behind = asked(&table, 3, Exclusive, Step::Waiting);
    table.release(&mut owner, LINE, &mut nobody).unwrap();
    assert!(table.poll(&mut reader, LINE).unwrap());
    std::thread::scope(|scope| {
        stop_before(scope, &memory, 2, reader, |table, reader| table.release(reader, LINE, &mut nobody)).die();
    });
    assert!(table.poll(&mut behind, LINE).unwrap(), "nobody is in the line whom it could find dead");
}

#[test]
fn who_is_made_owner_before_it_has_seen_its_entry_count_enters_once() {
    let memory = memory();
    let table = Table::attach(&memory).unwrap();
    let mut owner = asked(&table, 1, Exclusive, Step::Granted);
    let claimer = session(&table, 2);
    std::thread::scope(|scope| {
        let claiming = stop_before(scope, &memory, 2, claimer, |table, session| ask(table, session, Exclusive));
        let mut behind = asked(&table, 3, Exclusive, Step::Waiting);
        table.release(&mut owner, LINE, &mut nobody).unwrap();
        let (claimed, mut claimer) = claiming.go_on();
        assert_eq!(claimed, Step::Granted);
        for session in [&mut claimer, &mut behind] {
            assert!(table.poll(session, LINE).unwrap());
            table.release(session, LINE, &mut nobody).unwrap();
        }
        table.everybody(LINE, |who| panic!("{who:?} is in the line")).unwrap();
    });
}

#[test]
fn a_withdrawal_between_readers_wakes_those_whom_it_lets_in() {
    let memory = memory();
    let table = Table::attach(&memory).unwrap();
    let _owner = asked(&table, 1, Shared, Step::Granted);
    let _reader = asked(&table, 2, Shared, Step::Granted);
    let mut intent = asked(&table, 3, IntentExclusive, Step::Waiting);
    let behind = asked(&table, 4, Shared, Step::Waiting);
    let mut woken = Vec::new();
    table.withdraw(&mut intent, LINE, &mut |wake| woken.push(wake)).unwrap();
    assert!(woken.contains(&Wake::Session(behind.number())), "{woken:?}");
}

#[test]
fn those_who_wait_for_a_place_are_woken_although_somebody_came_before_them() {
    let memory = memory();
    let table = Table::attach(&memory).unwrap();
    let mut owner = asked(&table, 1, Exclusive, Step::Granted);
    let waiters: Vec<_> = (2..9).map(|number| asked(&table, number, Exclusive, Step::Waiting)).collect();
    asked(&table, 9, Exclusive, Step::Full);
    assert!(table.crowd(LINE).unwrap());
    for waiter in waiters.into_iter().take(2) {
        std::thread::scope(|scope| stop_before(scope, &memory, 2, waiter, withdraw).die());
    }
    let (mut woken, mut tenth) = (Vec::new(), session(&table, 10));
    let mut wake = |wake| woken.push(wake);
    let step = table.request(&mut tenth, LINE, Exclusive, WaitPolicy::Queue, &mut wake).unwrap();
    assert_eq!(step, Step::Waiting);
    table.release(&mut owner, LINE, &mut wake).unwrap();
    assert!(woken.contains(&Wake::Crowd), "{woken:?}");
}

#[test]
fn a_list_that_somebody_has_written_into_is_damage() {
    let memory = memory();
    let table = Table::attach(&memory).unwrap();
    let mut owner = asked(&table, 1, Exclusive, Step::Granted);
    let entry = u64::from(LINE) << 32 | (Exclusive as u64) << 30 | 1;
    let at = (0..memory.words()).find(|word| memory.load(*word) == entry).unwrap();
    memory.store(at, 99 << 32 | 1);
    let error = table.release_all(&mut owner, &mut nobody).unwrap_err();
    assert!(matches!(&error, TableError::Damage(damage) if damage.line == 99), "{error}");
}

#[test]
fn releasing_for_a_session_ends_with_its_life() {
    let memory = memory();
    let table = Table::attach(&memory).unwrap();
    let take = |session: &mut Session, lines: &[u32]| {
        for line in lines {
            let step = table.request(session, *line, Exclusive, WaitPolicy::Try, &mut nobody).unwrap();
            assert_eq!(step, Step::Granted, "line {line}");
        }
    };
    // It stops in front of each line that it is to give back, of three.
    for swap in 1..=3 {
        let mut dying = session(&table, 1);
        let (number, epoch) = (dying.number(), table.epoch(dying.number()));
        take(&mut dying, &[5, 6, 7]);
        let releaser = session(&table, 2);
        std::thread::scope(|scope| {
            let releasing = stop_before(scope, &memory, swap, releaser, move |table, _| {
                table.release_all_of(number, epoch, &mut nobody)
            });
            table.clean_up(number, &mut nobody).unwrap();
            let mut successor = session(&table, 1);
            take(&mut successor, &[8, 9, 10, 11]);
            releasing.go_on().0.unwrap();
            assert_eq!(table.touched(number), 4, "stopped before swap {swap}");
            for line in [8, 9, 10, 11] {
                assert_eq!(table.standing(number, line).unwrap(), Some(Some(Exclusive)), "line {line}, swap {swap}");
            }
            // Nor does anything come of it if it begins when the life is over.
            table.release_all_of(number, epoch, &mut nobody).unwrap();
            table.release_all(&mut successor, &mut nobody).unwrap();
        });
        for line in 0..16 {
            table.everybody(line, |who| panic!("{who:?} is in line {line}")).unwrap();
        }
    }
}

#[test]
fn a_session_in_use_keeps_its_age() {
    let memory = memory();
    let table = Table::attach(&memory).unwrap();
    let mut holder = asked(&table, 1, Exclusive, Step::Granted);
    let mut waiter = asked(&table, 2, Exclusive, Step::Waiting);
    for session in [&holder, &waiter] {
        let before = table.age(session.number());
        assert_eq!(table.set_age(session, 9), Err(TableError::InUse(1)));
        assert_eq!(table.age(session.number()), before);
    }
    table.release(&mut holder, LINE, &mut nobody).unwrap();
    assert!(table.poll(&mut waiter, LINE).unwrap());
    table.set_age(&holder, 9).unwrap();
    assert_eq!(table.age(holder.number()), 9);
}
