//! The golden vectors, through the programs: what they leave undecided is decided on by the Rust decider over the same
//! words, as the daemon does.
//!
//! Packets come from a place where no machine is, so answers to the source are told from those to machines by where
//! they go. Machines lie where all copies of a frame can be read: for XDP behind the interface that frames come in by,
//! for TC behind another.

use crate::frames::{BEFORE, End, decider_end, frame, machine_end, run};
use crate::table::{TC_OK, TC_REDIRECT, TC_SHOT, Tap, XDP_DROP, XDP_PASS, XDP_REDIRECT, XDP_TX, network};
use crate::{TRIAL, load, options};
use aya::programs::{SchedClassifier, Xdp};
use lockwork_lock_protocol::decider::{Settings, Store, To, decide};
use lockwork_lock_protocol::packet::parse;
use lockwork_lock_protocol::vectors::{FOLDER, Scenario, Setup, VectorDecider, datagrams, play};
use lockwork_lock_protocol::word::{Machine, Profile, Word};
use lockwork_locks::kernel::layout::{Arrival, MachineEntry};
use lockwork_locks::kernel::{Hook, KernelDecider, Options};
use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicU64, Ordering};

/// Nobody's place.
const SOURCE: End = End { mac: [2, 0, 0, 0, 9, 9], address: [10, 0, 9, 9], port: 9 };
/// What the decider answers with.
const HERE: End = End { mac: [2, 0, 0, 0, 9, 1], address: [10, 0, 9, 1], port: crate::PORT };

/// The programs of one hook, with the daemon's half.
struct Programs {
    hook: Hook,
    setup: Setup,
    /// Where machines are.
    ifindex: u32,
    tap: Tap,
    machines: BTreeMap<u16, MachineEntry>,
    /// Programs by their settings; the verifier takes seconds.
    loaded: Vec<(Options, Loaded)>,
    /// Which of them is in use.
    now: usize,
    /// Packets that the programs decided on, and that they left.
    decided: u32,
    left: u32,
}

struct Loaded {
    kernel: KernelDecider,
    /// Has the egress program in a form that can be tested.
    copier: KernelDecider,
}

impl Programs {
    fn new(hook: Hook) -> Self {
        let other = network();
        let ifindex = if hook == Hook::Xdp { 1 } else { other };
        let (setup, tap) = (Setup::new(1), Tap::on(other));
        Self { hook, setup, ifindex, tap, machines: BTreeMap::new(), loaded: Vec::new(), now: 0, decided: 0, left: 0 }
    }

    /// Where a frame goes, and what it carries. Its other bytes must be right.
    fn sent(&self, bytes: &[u8]) -> (To, Vec<u8>) {
        let datagram = bytes[BEFORE..].to_vec();
        if bytes == frame(HERE, SOURCE, &datagram) {
            return (To::Source, datagram);
        }
        let goes =
            |(_, entry): &(&u16, &MachineEntry)| bytes == frame(decider_end(entry), machine_end(entry), &datagram);
        let (machine, _) = self.machines.iter().find(goes).expect("it goes to a machine");
        (To::Machine(Machine(*machine)), datagram)
    }

    /// What the programs send, or `None` if they leave the packet.
    fn decide(&self, came: &[u8]) -> Option<Vec<Vec<u8>>> {
        let Loaded { kernel, copier } = &self.loaded[self.now].1;
        let program = "the program is there";
        let (verdict, out) = match self.hook {
            Hook::Xdp => run(kernel.program::<Xdp>("lockwork_xdp").expect(program), came),
            Hook::Tc => run(kernel.program::<SchedClassifier>("lockwork_tc").expect(program), came),
        };
        match (self.hook, verdict) {
            (Hook::Xdp, XDP_DROP) | (Hook::Tc, TC_SHOT) => Some(Vec::new()),
            (Hook::Xdp, XDP_PASS) | (Hook::Tc, TC_OK) => {
                assert_eq!(out, came, "left as it came");
                None
            }
            (Hook::Xdp, XDP_TX) => Some(vec![out]),
            // A broadcast: the first copy becomes the requester's.
            (Hook::Xdp, XDP_REDIRECT) => {
                let copy = copier.program::<Xdp>("trial_copy").expect(program);
                let copies = [run(copy, &out), run(copy, &out)];
                Some(copies.into_iter().filter(|(verdict, _)| *verdict == XDP_PASS).map(|(_, frame)| frame).collect())
            }
            (Hook::Tc, TC_REDIRECT) => {
                // The kernel greets its neighbours over IPv6.
                let cloned = self.tap.frames().into_iter().filter(|frame| frame[12..14] == [8, 0]);
                Some(cloned.chain([out]).collect())
            }
            (_, verdict) => panic!("verdict {verdict}"),
        }
    }
}

impl VectorDecider for Programs {
    fn reset(&mut self, setup: &Setup) {
        assert_eq!(setup.profile, Profile::Wide, "the kernel's words are wide");
        let options = options(u32::try_from(setup.locks).expect("few"), setup.key, setup.writers_first);
        let machines = std::mem::take(&mut self.machines);
        if let Some((_, Loaded { kernel, copier })) = self.loaded.get_mut(self.now) {
            for machine in machines.into_keys() {
                for decider in [&mut *kernel, &mut *copier] {
                    decider.dismiss(Machine(machine)).expect("the map is written");
                }
            }
        }
        let same = |of: &Options| (of.locks, of.key, of.settings) == (options.locks, options.key, options.settings);
        self.now = self.loaded.iter().position(|(of, _)| same(of)).unwrap_or(self.loaded.len());
        if self.now == self.loaded.len() {
            let program = if self.hook == Hook::Xdp { "lockwork_xdp" } else { "lockwork_tc" };
            let mut kernel = load(&options, None, &[program]).expect("it was loaded before");
            kernel.open_port(self.ifindex).expect("the interface is there");
            let copier = load(&options, Some(TRIAL), &["trial_copy"]).expect("it was loaded before");
            self.loaded.push((options, Loaded { kernel, copier }));
        }
        let Loaded { kernel, copier } = &mut self.loaded[self.now].1;
        for &(machine, session) in &setup.sessions {
            let [high, low] = machine.0.to_be_bytes();
            let arrival = Arrival {
                ifindex: self.ifindex,
                local_address: [10, 0, 8, 1],
                mac: [2, 0, 0, 0, high, low],
                local_mac: [2, 0, 0, 0, 8, 1],
            };
            let address = SocketAddrV4::new([10, 1, high, low].into(), 9000);
            let entry = MachineEntry::reached(session, address, &arrival);
            for decider in [&mut *kernel, &mut *copier] {
                decider.set_machine(machine, entry).expect("the map is written");
            }
            self.machines.insert(machine.0, entry);
        }
        let words = kernel.words();
        for (number, lock) in (0..).zip(words.0.as_ref()) {
            let (word, token) = setup.word(number);
            // SAFETY: a lock is two atomics, word and token, in this order.
            let parts = unsafe { &*std::ptr::from_ref(lock).cast::<[AtomicU64; 2]>() };
            parts[0].store(word.bits(), Ordering::Release);
            parts[1].store(token, Ordering::Release);
        }
        self.setup = setup.clone();
    }

    fn process(&mut self, datagram: &[u8]) -> Vec<(To, Vec<u8>)> {
        let came = frame(SOURCE, HERE, datagram);
        if let Some(frames) = self.decide(&came) {
            self.decided += 1;
            return frames.iter().map(|frame| self.sent(frame)).collect();
        }
        self.left += 1;
        let key = self.setup.key.as_ref();
        let Ok((packet, _)) = parse(datagram, key) else { return Vec::new() };
        let words = self.loaded[self.now].1.kernel.words();
        let settings = Settings { writers_first: self.setup.writers_first };
        datagrams(&decide(&words, &self.setup, settings, &packet), datagram, key)
    }

    fn word(&mut self, lock: u64) -> Option<(Word, u64)> {
        let words = self.loaded[self.now].1.kernel.words();
        Some((words.load(lock), words.token(lock)))
    }
}

fn plays(hook: Hook) {
    if load(&options(1, None, false), None, &[]).is_none() {
        return;
    }
    let mut programs = Programs::new(hook);
    let mut files = 0;
    for entry in std::fs::read_dir(FOLDER).expect("the folder of vectors") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("text");
        let scenario = Scenario::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        play(&scenario, &mut programs).unwrap_or_else(|problem| panic!("{}: {problem}", path.display()));
        files += 1;
    }
    let Programs { decided, left, .. } = programs;
    assert!(files >= 40 && decided > 9 * left && left > 0, "{files} files, {decided} decided, {left} left");
}

#[test]
fn privileged_golden_vectors_are_played_by_the_xdp_program() {
    plays(Hook::Xdp);
}

#[test]
fn privileged_golden_vectors_are_played_by_the_tc_program() {
    plays(Hook::Tc);
}
