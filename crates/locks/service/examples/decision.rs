//! What a decision of the eBPF program costs: `cargo run --release -p lockwork-locks --example decision`, as root.
//!
//! The kernel's program test repeats one packet and gives the mean of a round. A decision changes its packet and its
//! lock, so each repetition first makes both what they were (hardware/xdp/trial.bpf.c). That alone is measured too,
//! and taken off. Told is the smallest of nine rounds, each of which has both. `whole` has the preparing, and the
//! program test's own few nanoseconds, which the difference has not.
//!
//! - `hot, granted`: ACQUIRE of one free lock, in the processor's nearest cache; the answer is GRANT.
//! - `hot, joined`: ACQUIRE of a reader whose machine is the agent's.
//! - `hot, sent on`: ACQUIRE of a lock that is held: no compare-and-swap.
//! - `random, granted`: ACQUIRE of a free lock out of 1,048,576 (16 MiB), each once in an order without a pattern.
//! - `random, memory`: only the word of such a lock read and swapped for itself: what memory takes of the line above.

use aya::maps::{Array, MapData};
use aya::programs::Xdp;
use aya::{Pod, TestRun, TestRunOptions};
use lockwork_lock_protocol::decider::{Settings, Store};
use lockwork_lock_protocol::packet::{Key, Kind, Packet};
use lockwork_lock_protocol::word::{Machine, State, Word};
use lockwork_locks::kernel::layout::{Arrival, MachineEntry};
use lockwork_locks::kernel::{KernelDecider, Options};
use std::net::SocketAddrV4;

const TRIAL: &[u8] = aya::include_bytes_aligned!("../../../../hardware/xdp/trial.bpf.o");
const LOCKS: u32 = 1 << 20;
const ROUNDS: usize = 9;
const REPEAT: u32 = LOCKS;

/// `struct bench` of trial.bpf.c.
#[derive(Clone, Copy)]
#[repr(C)]
struct Bench {
    frame: [u8; 112],
    turn: u64,
    random: u8,
    free: u8,
    swap: u8,
    zero: [u8; 5],
}

// SAFETY: C layout, no padding, valid for all bits.
unsafe impl Pod for Bench {}

struct Way {
    name: &'static str,
    random: bool,
    free: bool,
    /// Nothing is decided on.
    memory: bool,
    shared: bool,
    word: Word,
}

fn nanoseconds(
    decider: &KernelDecider,
    program: &'static str,
    frame: &[u8],
) -> Result<f64, Box<dyn std::error::Error>> {
    let program: &Xdp = decider.program(program)?;
    let options = TestRunOptions { data_in: Some(frame), repeat: REPEAT, ..TestRunOptions::new() };
    // The kernel gives whole nanoseconds.
    Ok(program.test_run(options)?.duration.as_nanos() as f64)
}

fn measure(key: Option<Key>, way: &Way) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let settings = Settings { writers_first: false };
    let options = Options { locks: LOCKS, port: 7400, address: None, beyond: false, settings, key };
    let mut decider = KernelDecider::load_object(&options, TRIAL)?;
    decider.load_program("trial_prepare")?;
    decider.load_program("trial_decide")?;
    let arrival =
        Arrival { ifindex: 1, local_address: [10, 0, 0, 1], mac: [2, 0, 0, 0, 0, 2], local_mac: [2, 0, 0, 0, 0, 1] };
    let machine = MachineEntry::reached(7, SocketAddrV4::new([10, 0, 0, 2].into(), 9000), &arrival);
    decider.set_machine(Machine(1), machine)?;

    let mut packet = Packet::new(Kind::Acquire, 0);
    packet.flags = if way.shared { 1 } else { 3 };
    (packet.sender, packet.session) = (Machine(1), 7);
    (packet.requester, packet.requester_session) = (Machine(1), 7);
    let mut frame = [0; 112];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    frame[12..42].copy_from_slice(&[
        8, 0, 0x45, 0, 0, 92, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1, 0x23, 0x28, 0x1c, 0xe8, 0, 72, 0,
        0,
    ]);
    frame[42..106].copy_from_slice(&packet.header(0, key.as_ref()));
    let bench = Bench { frame, turn: 0, random: way.random.into(), free: way.free.into(), swap: 0, zero: [0; 5] };
    let mut map: Array<MapData, Bench> = decider.take_map("bench")?;
    map.set(0, bench, 0)?;

    let words = decider.words();
    let mut best = (f64::MAX, f64::MAX);
    for _ in 0..ROUNDS {
        let prepare = nanoseconds(&decider, "trial_prepare", &frame[..106])?;
        if way.memory {
            map.set(0, Bench { swap: 1, ..bench }, 0)?;
            let whole = nanoseconds(&decider, "trial_prepare", &frame[..106])?;
            map.set(0, bench, 0)?;
            best = (best.0.min(whole - prepare), best.1.min(whole));
            continue;
        }
        for lock in 0..u64::from(LOCKS) {
            assert!(words.swap(lock, words.load(lock), way.word));
        }
        let before = decider.counters()?;
        let whole = nanoseconds(&decider, "trial_decide", &frame[..106])?;
        let after = decider.counters()?;
        assert_eq!(after.decided() - before.decided(), u64::from(REPEAT), "every packet was decided on");
        best = (best.0.min(whole - prepare), best.1.min(whole));
    }
    Ok(best)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let led = Word { state: State::Led, machine: Machine(1), incarnation: 5 };
    let read = Word { state: State::Shared, ..led };
    let ways = [
        Way { name: "hot, granted", random: false, free: true, memory: false, shared: false, word: Word::NEW },
        Way { name: "hot, joined", random: false, free: false, memory: false, shared: true, word: read },
        Way { name: "hot, sent on", random: false, free: false, memory: false, shared: false, word: led },
        Way { name: "random, granted", random: true, free: false, memory: false, shared: false, word: Word::NEW },
        Way { name: "random, memory", random: true, free: false, memory: true, shared: false, word: Word::NEW },
    ];
    println!("nanoseconds a decision (XDP, kernel's program test, minimum of {ROUNDS} rounds of {REPEAT})");
    println!("{:<18} {:>10} {:>10} {:>10} {:>10}", "", "no key", "whole", "key", "whole");
    for way in &ways {
        let (plain, plain_whole) = measure(None, way)?;
        let (keyed, keyed_whole) = measure(Some(Key(*b"a benchmark key.")), way)?;
        println!("{:<18} {plain:>10} {plain_whole:>10} {keyed:>10} {keyed_whole:>10}", way.name);
    }
    Ok(())
}
