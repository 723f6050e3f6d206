//! The load, against services of the test's own.

use lockwork_lock_protocol::packet::Packet;
use lockwork_workload::random::Random;

use super::*;

/// Nobody is there.
struct NullLink;

impl Link for NullLink {
    fn send(&mut self, _: &[u8]) -> std::io::Result<()> {
        Ok(())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }

    fn receive(&mut self, _: &mut dyn FnMut(&[u8])) -> std::io::Result<usize> {
        Ok(0)
    }
}

/// Grants whatever is asked for by itself, and loses every request from a certain number on.
struct Generous {
    requests: u64,
    loses_from: u64,
    granted: VecDeque<Granted>,
}

impl ClientMachine for Generous {
    fn acquire(&mut self, _: u64, _: u64, _: LockMode, task: u32) -> Result<u64, String> {
        self.requests += 1;
        let request = u64::from(task) << 32 | self.requests;
        if self.requests < self.loses_from {
            self.granted.push_back(Granted { request, token: self.requests });
        }
        Ok(request)
    }

    fn release(&mut self, _: u64, _: u64) -> Result<(), String> {
        Ok(())
    }

    fn receive(&mut self, _: u64, _: &Packet, _: &[u8]) {}

    fn tick(&mut self, _: u64) {}

    fn poll_packet(&mut self) -> Option<(Packet, Vec<u8>)> {
        None
    }

    fn poll_event(&mut self) -> Result<Option<Granted>, String> {
        Ok(self.granted.pop_front())
    }

    fn is_idle(&self) -> bool {
        true
    }
}

const BRIEF: Duration = Duration::from_millis(20);
/// How long machines may take to end: what is waited for where something is lost, and enough on a busy machine.
const LIMIT: Duration = Duration::from_secs(2);

fn measure(tasks: u32, writes: f64, loses_from: u64, measured: Duration) -> Result<Measured, BenchError> {
    let machine = Box::new(Generous { requests: 0, loses_from, granted: VecDeque::new() });
    let script = Four { writes, random: Random::new(1) };
    let load = Load { tasks, ..load(measured) };
    drive(vec![Site { machine, link: Box::new(NullLink) }], vec![script], &load)
}

fn load(measured: Duration) -> Load {
    Load {
        locks: 4,
        tasks: 1,
        most: 1,
        types: 0,
        inside: 0,
        one_by_one: false,
        warmup: Duration::from_millis(5),
        measured,
        drain: LIMIT,
        first_only: false,
        slices: None,
    }
}

/// One of four locks.
struct Four {
    writes: f64,
    random: Random,
}

impl Script for Four {
    fn next(&mut self, _: u32, locks: &mut Vec<(u64, LockMode)>) -> usize {
        let writes = self.random.unit() < self.writes;
        locks.push((self.random.below(4), if writes { LockMode::Exclusive } else { LockMode::Shared }));
        0
    }
}

/// Three locks to write; and every second time, if so, one to read.
struct Turns {
    both: bool,
    at: usize,
}

impl Script for Turns {
    fn next(&mut self, _: u32, locks: &mut Vec<(u64, LockMode)>) -> usize {
        self.at = usize::from(self.both) - self.at;
        match self.at {
            0 => locks.extend((0..3).map(|lock| (lock, LockMode::Exclusive))),
            _ => locks.push((3, LockMode::Shared)),
        }
        self.at
    }
}

#[test]
fn transactions_take_all_of_their_locks_and_stay_for_a_while() {
    let machine = || Box::new(Generous { requests: 0, loses_from: u64::MAX, granted: VecDeque::new() });
    let load = Load { most: 3, types: 2, inside: 50_000, ..load(10 * BRIEF) };
    let site = Site { machine: machine(), link: Box::new(NullLink) };
    let measured = drive(vec![site], vec![Turns { both: true, at: 0 }], &load).expect("one task is in nobody's way");
    let [many, one] = [0, 1].map(|number| &measured.transactions[number]);
    assert!(many.count().abs_diff(one.count()) <= 1 && one.count() > 0);
    assert!(measured.grants.abs_diff(3 * many.count() + one.count()) <= 3);
    assert!(one.quantile(0.0) >= 50_000 && many.quantile(0.0) >= 50_000);
    assert!(measured.seconds * 1e9 >= ((one.count() + many.count()) * 50_000) as f64 * 0.9);
    // The second task meets the first one, as this machine grants everything.
    let load = Load { tasks: 2, ..load };
    let site = Site { machine: machine(), link: Box::new(NullLink) };
    let error = drive(vec![site], vec![Turns { both: false, at: 0 }], &load).expect_err("two write").to_string();
    assert!(error.contains("was granted Exclusive while 1 writers"), "{error}");
}

#[test]
fn readers_and_a_single_writer_may_do_what_they_like() {
    for (tasks, writes) in [(8, 0.0), (1, 1.0)] {
        let measured = measure(tasks, writes, u64::MAX, BRIEF).expect("nobody is in anybody's way");
        assert!(measured.grants > 0 && measured.grants == measured.latency.count() && measured.seconds > 0.0);
    }
}

#[test]
fn grants_are_counted_by_slices_of_the_time_from_the_first_to_the_last() {
    let slices = Some(Slices { length: 5_000_000, align: 10_000_000 });
    let load = Load { slices, ..load(4 * BRIEF) };
    let has_margins = || {
        let machine = Box::new(Generous { requests: 0, loses_from: u64::MAX, granted: VecDeque::new() });
        let script = Four { writes: 0.0, random: Random::new(1) };
        let measured = drive(vec![Site { machine, link: Box::new(NullLink) }], vec![script], &load).expect("it runs");
        assert_eq!(measured.slices.len(), 16);
        let counted: u64 = measured.slices.iter().sum();
        assert!(counted <= measured.grants);
        counted > 0 && counted < measured.grants
    };
    // A thread that others keep from running may grant nothing in them, or in the margins.
    assert!((0..50).any(|_| has_margins()), "the margins are in none");
}

#[test]
fn the_first_grant_is_waited_for() {
    let measured = measure(1, 1.0, u64::MAX, Duration::ZERO).expect("it is granted later");
    assert!(measured.grants > 0 && measured.seconds > 0.0);
    let error = measure(0, 1.0, u64::MAX, BRIEF).expect_err("nobody asks").to_string();
    assert_eq!(error, "nothing was granted in 2.02s");
}

#[test]
fn a_service_that_lets_two_writers_in_or_loses_a_request_fails() {
    let error = measure(8, 1.0, u64::MAX, BRIEF).expect_err("eight writers share four locks").to_string();
    assert!(error.contains("was granted Exclusive while 1 writers"), "{error}");
    let error = measure(1, 1.0, 2, 8 * BRIEF).expect_err("the second request is not granted").to_string();
    assert!(error.contains("still wait"), "{error}");
}
