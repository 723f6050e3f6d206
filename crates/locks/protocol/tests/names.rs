//! Names of locks: what is stored before it is told, who keeps what, tokens over all locks that a name has had, and
//! millions of names in memory that does not grow.

use lockwork_lock_protocol::decider::{Store, TOKEN_STEP, Wide, WideLock};
use lockwork_lock_protocol::names::{Asker, Effect, Names, Reply, RestoreError};
use lockwork_lock_protocol::word::{Machine, State, Word};
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts what is allocated.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is done by the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const LATER: u64 = 60_000_000_000;

type Locks = Wide<Vec<WideLock>>;

/// Names over a store that is durable at once, or when the test says so.
struct Service {
    names: Names,
    store: Locks,
    stored: HashMap<String, u64>,
    told: Vec<(Asker, String, u64)>,
    number: u64,
}

impl Service {
    fn new(locks: usize, first: u64) -> Self {
        let store = Locks::new(locks);
        let names = Names::new(first..locks as u64);
        Self { names, store, stored: HashMap::new(), told: Vec::new(), number: 0 }
    }

    fn asker(&mut self, session: u32) -> Asker {
        self.number += 1;
        Asker { machine: Machine(7), session, number: self.number }
    }

    /// Carries out what is to be done: how many changes of the store.
    fn store_all(&mut self) -> usize {
        let mut changes = 0;
        while let Some(effect) = self.names.poll_effect() {
            match effect {
                Effect::Put(name, lock) => {
                    assert!(self.stored.values().all(|other| *other != lock), "two names for lock {lock}");
                    self.stored.insert(name.to_string(), lock);
                    self.names.stored(&self.store, lock);
                }
                Effect::Delete(name, lock) => {
                    assert_eq!(self.stored.remove(&*name), Some(lock));
                    self.names.stored(&self.store, lock);
                }
                Effect::Tell(asker, name, lock) => {
                    assert_eq!(self.stored.get(&*name), Some(&lock), "told before it was stored");
                    self.told.push((asker, name.to_string(), lock));
                    continue;
                }
            }
            changes += 1;
        }
        changes
    }

    fn name(&mut self, name: &str, session: u32) -> u64 {
        let asker = self.asker(session);
        match self.names.ask(&self.store, name, asker) {
            Reply::Lock(lock) => lock,
            Reply::Later => {
                self.store_all();
                let told = self.told.pop().expect("it was told");
                assert_eq!((told.0, told.1.as_str()), (asker, name));
                told.2
            }
            Reply::Full => panic!("no lock is left for '{name}'"),
        }
    }

    fn forget(&mut self, now: u64, name: &str, session: u32) {
        let asker = self.asker(session);
        self.names.forget(now, name, asker);
    }

    /// Frees all that may be freed at `now`.
    fn tick(&mut self, now: u64) {
        for _ in 0..10_000 {
            self.names.tick(now, &self.store, 1000);
            if self.store_all() == 0 && self.names.next_tick().is_none_or(|due| due > now) {
                return;
            }
        }
    }

    fn set(&self, lock: u64, state: State) {
        let old = self.store.load(lock);
        let incarnation = old.incarnation + 1;
        assert!(self.store.swap(lock, old, Word { state, machine: Machine(1), incarnation }));
    }
}

#[test]
fn a_name_is_told_once_it_is_stored_and_means_one_lock_for_all() {
    let mut service = Service::new(100, 50);
    let asker = service.asker(1);
    assert_eq!(service.names.ask(&service.store, "orders/17", asker), Reply::Later);
    let other = service.asker(2);
    assert_eq!(service.names.ask(&service.store, "orders/17", other), Reply::Later);
    // A copy of the first question, and a repeated one.
    assert_eq!(service.names.ask(&service.store, "orders/17", asker), Reply::Later);
    assert!(service.told.is_empty());
    assert_eq!(service.store_all(), 1);
    let told: Vec<_> = service.told.drain(..).map(|(asker, _, lock)| (asker, lock)).collect();
    assert_eq!(told, [(asker, 50), (other, 50)]);
    assert_eq!((service.name("orders/17", 3), service.name("orders/18", 3)), (50, 51));
    assert_eq!((service.names.look_up("orders/18"), service.names.look_up("orders/19")), (Some(51), None));
    assert_eq!(service.names.name_of(51).map(|name| &**name), Some("orders/18"));
    assert!(service.names.name_of(3).is_none() && service.names.name_of(99).is_none());
}

#[test]
fn a_name_is_freed_when_all_have_forgotten_it_and_its_lock_is_free() {
    let mut service = Service::new(10, 0);
    assert_eq!((service.name("a", 1), service.name("a", 2), service.name("b", 1)), (0, 0, 1));
    service.forget(0, "a", 1);
    service.tick(LATER);
    assert_eq!(service.names.look_up("a"), Some(0), "session 2 keeps it");
    service.set(0, State::Exclusive);
    service.names.gone(2);
    service.tick(2 * LATER);
    assert_eq!(service.names.look_up("a"), Some(0), "its lock is held");
    service.set(0, State::Free);
    service.tick(2 * LATER + 1);
    assert_eq!(service.names.look_up("a"), Some(0), "it may be asked for again soon");
    service.tick(3 * LATER);
    assert_eq!(service.names.look_up("a"), None);
    assert!(!service.stored.contains_key("a") && service.stored.contains_key("b"));
    assert_eq!(service.name("c", 3), 0);
}

#[test]
fn tokens_grow_for_a_name_whatever_lock_it_has_and_for_a_lock_whatever_name_it_has() {
    let mut service = Service::new(10, 0);
    let lock = service.name("a", 1);
    let mut newest = 0;
    for _ in 0..5 {
        newest = service.store.next_token(lock);
    }
    service.forget(0, "a", 1);
    service.tick(LATER);
    // The lock goes to another name, and the name gets another lock.
    assert_eq!(service.name("b", 1), lock);
    let other = service.name("a", 1);
    assert_ne!(other, lock);
    // What an agent has handed out among its tasks lies below the next step.
    assert!(service.store.next_token(other) > newest | (TOKEN_STEP - 1));
    assert!(service.store.next_token(lock) > newest | (TOKEN_STEP - 1));
    assert!(service.store.token(9) < newest, "locks that were never handed out are left alone");
}

#[test]
fn copies_that_come_late_do_not_take_away_what_is_kept() {
    let mut service = Service::new(10, 0);
    service.name("a", 1);
    let late = service.asker(1);
    service.names.forget(0, "a", late);
    service.name("a", 1);
    service.names.forget(0, "a", late);
    service.names.forget(0, "nothing", late);
    service.tick(LATER);
    assert_eq!(service.names.look_up("a"), Some(0));
    service.forget(LATER, "a", 1);
    service.tick(3 * LATER);
    assert!(service.names.is_empty());
    // While it is being removed nobody is told of it; afterwards it begins anew.
    service.name("a", 1);
    service.forget(0, "a", 1);
    service.names.tick(LATER, &service.store, 10);
    let asker = service.asker(1);
    assert_eq!(service.names.ask(&service.store, "a", asker), Reply::Later);
    assert_eq!(service.store_all(), 1);
    assert!(service.told.is_empty());
    service.name("a", 1);
}

#[test]
fn when_all_locks_are_taken_idle_names_go_sooner_and_then_it_says_so() {
    let mut service = Service::new(4, 2);
    service.name("a", 1);
    service.name("b", 1);
    let asker = service.asker(1);
    assert_eq!(service.names.ask(&service.store, "c", asker), Reply::Full);
    service.forget(0, "a", 1);
    assert_eq!(service.names.ask(&service.store, "c", asker), Reply::Later);
    service.tick(2_000_000);
    assert_eq!(service.name("c", 1), 2);
}

#[test]
fn names_of_before_are_restored_and_stay_until_all_who_survived_have_told_theirs() {
    let stored = || [("a".to_string(), 5), ("b".to_string(), 7), ("c".to_string(), 8)];
    let mut service = Service::new(10, 5);
    service.names = Names::restore(5..10, stored()).unwrap();
    service.stored = stored().into();
    service.names.survived([1, 2]);
    service.tick(LATER);
    assert_eq!(service.names.len(), 3);
    assert_eq!((service.name("b", 1), service.name("new", 1)), (7, 6));
    service.names.told_all(1);
    service.tick(LATER);
    assert_eq!(service.names.len(), 4, "session 2 may know the others");
    service.names.gone(2);
    service.tick(LATER);
    assert_eq!((service.names.len(), service.names.look_up("a"), service.names.look_up("b")), (2, None, Some(7)));
    assert!([5, 8, 9].contains(&service.name("d", 1)));
    let outside = Names::restore(0..5, stored()).unwrap_err();
    assert!(matches!(outside, RestoreError::Range { lock: 5, .. }) && outside.to_string().contains("--names"));
    let twice = Names::restore(5..10, [("x".to_string(), 5), ("y".to_string(), 5)]).unwrap_err();
    assert_eq!(twice, RestoreError::Twice("x".to_string(), "y".to_string(), 5));
}

/// A million names, again and again other ones: memory is that of the most there were at a time.
#[test]
fn a_million_names_are_made_and_freed_again_without_leaks() {
    const NAMES: usize = 1_000_000;
    let store = Locks::new(NAMES);
    let mut names = Names::new(0..NAMES as u64);
    let before = BYTES.load(Ordering::Relaxed);
    let mut used = Vec::new();
    for round in 0..3_u32 {
        for at in 0..NAMES {
            let asker = Asker { machine: Machine(7), session: 1 + round, number: at as u64 };
            assert_eq!(names.ask(&store, &format!("orders/{round}/{at}"), asker), Reply::Later);
            while let Some(effect) = names.poll_effect() {
                if let Effect::Put(_, lock) = effect {
                    names.stored(&store, lock);
                }
            }
        }
        assert_eq!(names.len(), NAMES);
        used.push(BYTES.load(Ordering::Relaxed) - before);
        names.gone(1 + round);
        let mut now = 0;
        while !names.is_empty() {
            now += 1_000_000_000;
            assert!(now < 10_000 * 1_000_000_000, "{} names are left", names.len());
            names.tick(now, &store, 1000);
            while let Some(effect) = names.poll_effect() {
                if let Effect::Delete(_, lock) = effect {
                    names.stored(&store, lock);
                }
            }
        }
        assert_eq!(names.under_way(), 0);
    }
    let a_name = used[0] / NAMES;
    println!("{a_name} bytes a name, text included");
    assert!(a_name < 250, "{a_name} bytes a name");
    assert!(used[2] <= used[0] + used[0] / 5, "it grows: {used:?}");
}
