//! Packet by packet: the programs answer as the Rust decider does, and leave the same words and tokens.

use crate::frames::{BEFORE, Machines, run};
use crate::{KEY, TRIAL, ip, load, options};
use aya::programs::{SchedClassifier, Xdp};
use lockwork_lock_protocol::decider::{Outputs, Settings, Store, TOKEN_STEP, Wide, decide};
use lockwork_lock_protocol::packet::{AGENT, GRANTED, Key, Kind, Packet, datagram, parse};
use lockwork_lock_protocol::table::{Case, ROWS};
use lockwork_lock_protocol::word::{Machine, Profile, State, Word};
use lockwork_locks::kernel::KernelDecider;
use lockwork_locks::kernel::words::Words;
use lockwork_random::Random;
use std::cell::RefCell;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const LOCKS: u32 = 5;
pub(crate) const XDP_DROP: u32 = 1;
pub(crate) const XDP_PASS: u32 = 2;
pub(crate) const XDP_TX: u32 = 3;
pub(crate) const XDP_REDIRECT: u32 = 4;
pub(crate) const TC_OK: u32 = 0;
pub(crate) const TC_SHOT: u32 = 2;
pub(crate) const TC_REDIRECT: u32 = 7;

/// The model's locks, which can be put back.
struct Locks(RefCell<Vec<(Word, u64)>>);

impl Store for Locks {
    fn locks(&self) -> u64 {
        LOCKS.into()
    }
    fn profile(&self) -> Profile {
        Profile::Wide
    }
    fn load(&self, lock: u64) -> Word {
        self.0.borrow()[lock as usize].0
    }
    fn swap(&self, lock: u64, old: Word, new: Word) -> bool {
        assert_eq!(self.load(lock), old);
        self.0.borrow_mut()[lock as usize].0 = new;
        true
    }
    fn token(&self, lock: u64) -> u64 {
        self.0.borrow()[lock as usize].1
    }
    fn next_token(&self, lock: u64) -> u64 {
        let token = &mut self.0.borrow_mut()[lock as usize].1;
        *token = token.wrapping_add(TOKEN_STEP);
        *token
    }
}

/// Frames that leave through an interface, as a packet socket sees them.
pub(crate) struct Tap(OwnedFd);

impl Tap {
    pub(crate) fn on(ifindex: u32) -> Self {
        let all = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: a new socket, and an address of its own length.
        unsafe {
            let socket = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK, i32::from(all));
            assert!(socket >= 0, "{}", std::io::Error::last_os_error());
            let tap = Self(OwnedFd::from_raw_fd(socket));
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = all;
            address.sll_ifindex = ifindex as i32;
            let bytes = size_of_val(&address) as u32;
            assert_eq!(libc::bind(socket, (&raw const address).cast(), bytes), 0);
            tap
        }
    }

    /// All frames since the last call.
    pub(crate) fn frames(&self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        loop {
            let mut frame = vec![0; 2048];
            // SAFETY: as many bytes as there are.
            let bytes = unsafe { libc::recv(self.0.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), 0) };
            if bytes < 0 {
                return frames;
            }
            frame.truncate(bytes as usize);
            frames.push(frame);
        }
    }
}

/// A model beside the programs. Both have the same machines, settings and locks.
struct Pair {
    model: Locks,
    machines: Machines,
    key: Option<Key>,
    settings: Settings,
    kernel: KernelDecider,
    words: Wide<Words>,
    /// Has the egress program in a form that can be tested.
    copier: KernelDecider,
    other: u32,
    taps: [(u32, Tap); 2],
}

/// A network of this thread's own, gone when the thread is: `lo`, which is interface 1, and another, whose index is
/// given.
pub(crate) fn network() -> u32 {
    // SAFETY: only this thread leaves its network.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "{}", std::io::Error::last_os_error());
    ip("link set lo up");
    ip("link add other type veth peer name away");
    ip("link set away up");
    ip("link set other up");
    // SAFETY: a string that ends in zero.
    unsafe { libc::if_nametoindex(c"other".as_ptr()) }
}

impl Pair {
    fn new(key: Option<Key>, writers_first: bool) -> Option<Self> {
        let options = options(LOCKS, key, writers_first);
        let mut kernel = load(&options, None, &["lockwork_xdp", "lockwork_tc"])?;
        let mut copier = load(&options, Some(TRIAL), &["trial_copy"])?;
        let other = network();
        let machines = Machines::behind(other);
        for (machine, entry) in &machines.0 {
            for decider in [&mut kernel, &mut copier] {
                decider.set_machine(Machine(*machine), *entry).expect("the map is written");
            }
        }
        for ifindex in [1, other] {
            kernel.open_port(ifindex).expect("the interface is there");
        }
        let words = kernel.words();
        let model = Locks(RefCell::new(vec![(Word::NEW, 0); LOCKS as usize]));
        let taps = [(1, Tap::on(1)), (other, Tap::on(other))];
        Some(Self { model, machines, key, settings: options.settings, kernel, words, copier, other, taps })
    }

    fn set(&self, lock: u64, word: Word) {
        assert!(self.words.swap(lock, self.words.load(lock), word));
        self.model.0.borrow_mut()[lock as usize].0 = word;
    }

    /// What leaves, and through which interfaces; `None` if the packet is left to user space, with nothing changed.
    fn expected(&self, came: &[u8]) -> Option<Vec<(u32, Vec<u8>)>> {
        let Ok((packet, payload)) = parse(&came[BEFORE..], self.key.as_ref()) else { return Some(Vec::new()) };
        let before = self.model.0.borrow().clone();
        let outputs: Outputs = decide(&self.model, &self.machines, self.settings, &packet);
        let frames = self.machines.frames(&outputs, came, payload, self.key.as_ref());
        if frames.is_none() {
            *self.model.0.borrow_mut() = before;
        }
        frames
    }

    fn same_locks(&self, context: &str) {
        for lock in 0..u64::from(LOCKS) {
            assert_eq!(self.words.load(lock), self.model.load(lock), "lock {lock} {context}");
            assert_eq!(self.words.token(lock), self.model.token(lock), "token of lock {lock} {context}");
        }
    }

    /// One packet through the XDP program.
    fn xdp(&self, came: &[u8]) {
        let expected = self.expected(came);
        let (verdict, out) = run::<Xdp>(self.kernel.program("lockwork_xdp").expect("it is there"), came);
        let context = format!("after {:?}", parse(&came[BEFORE..], self.key.as_ref()));
        self.same_locks(&context);
        match expected.as_deref() {
            None => assert_eq!((verdict, &out[..]), (XDP_PASS, came), "{context}"),
            Some([]) => assert_eq!(verdict, XDP_DROP, "{context}"),
            Some([(ifindex, frame)]) => {
                let verb = if *ifindex == 1 { XDP_TX } else { XDP_REDIRECT };
                assert_eq!((verdict, hex(&out)), (verb, hex(frame)), "{context}");
            }
            Some(two) => {
                assert_eq!(verdict, XDP_REDIRECT, "{context}");
                // The first of two copies becomes the requester's; each stays only where its machine is.
                for (ifindex, frame) in two {
                    let copy = self.copier.program::<Xdp>("trial_copy").expect("it is there");
                    let (verdict, out) = run(copy, &out);
                    match ifindex {
                        1 => assert_eq!((verdict, hex(&out)), (XDP_PASS, hex(frame)), "{context}"),
                        _ => assert_eq!(verdict, XDP_DROP, "{context}"),
                    }
                }
            }
        }
    }

    /// One packet through the TC program.
    fn tc(&self, came: &[u8]) {
        let expected = self.expected(came);
        let (verdict, out) = run::<SchedClassifier>(self.kernel.program("lockwork_tc").expect("it is there"), came);
        let context = format!("after {:?}", parse(&came[BEFORE..], self.key.as_ref()));
        self.same_locks(&context);
        match expected.as_deref() {
            None => assert_eq!((verdict, &out[..]), (TC_OK, came), "{context}"),
            Some([]) => assert_eq!(verdict, TC_SHOT, "{context}"),
            Some([(_, frame)]) => assert_eq!((verdict, hex(&out)), (TC_REDIRECT, hex(frame)), "{context}"),
            Some([(_, grant), (ifindex, enrolment)]) => {
                assert_eq!((verdict, hex(&out)), (TC_REDIRECT, hex(grant)), "{context}");
                for (tapped, tap) in &self.taps {
                    let cloned: Vec<String> = tap.frames().iter().map(|frame| hex(frame)).collect();
                    assert_eq!(cloned.contains(&hex(enrolment)), tapped == ifindex, "{context}: {cloned:?}");
                }
            }
            Some(more) => panic!("{} frames", more.len()),
        }
    }

    fn both(&self, came: &[u8], word: Option<(u64, Word)>) {
        self.xdp(came);
        if let Some((lock, word)) = word {
            self.set(lock, word);
        }
        self.tc(came);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Packets and words that make a case, with agents and targets of all sorts.
fn examples(case: Case) -> Vec<(Packet, Word)> {
    let mut examples = Vec::new();
    if case.matches && case.applied {
        return examples;
    }
    // Of the sender, the requester, the agent and the target: behind either interface, only for user space, gone, the
    // registry.
    let places = [1_u16, 2, 4, 6, 7, 0];
    for sender in [1_u16, 4] {
        for requester in [sender, 2, 5] {
            for agent in places {
                for target in places {
                    if (sender == agent) != case.from_agent || (case.applied && target != agent) {
                        continue;
                    }
                    let word = Word { state: case.state, machine: Machine(agent), incarnation: u32::MAX };
                    let mut packet = Packet::new(case.kind, 3);
                    packet.flags = if case.shared { 1 } else { 3 };
                    packet.request = 0x0102_0304_0506_0708;
                    packet.hops = 9;
                    packet.token = 77;
                    (packet.sender, packet.session) = (Machine(sender), 100 * u32::from(sender));
                    (packet.requester, packet.requester_session) = (Machine(requester), 100 * u32::from(requester));
                    packet.target = Machine(target);
                    packet.incarnation = match (case.matches, case.applied) {
                        (true, _) => word.incarnation,
                        (_, true) => word.incarnation - 1,
                        _ => 17,
                    };
                    if case.kind == Kind::Enrol && sender == 1 {
                        packet.kind = Kind::Acquire;
                        packet.flags |= GRANTED;
                    }
                    examples.push((packet, word));
                }
            }
        }
    }
    examples
}

fn every_case(key: Option<Key>, writers_first: bool) {
    let Some(pair) = Pair::new(key, writers_first) else { return };
    let mut seen = vec![false; ROWS];
    for index in 0..ROWS {
        let case = Case::of_index(index);
        if case.writers_first != writers_first {
            continue;
        }
        for (packet, word) in examples(case) {
            let found = Case::of(&packet, word, Profile::Wide, writers_first);
            // A target that is the agent makes `applied` of what should not be; such a packet is another case's.
            seen[found.index()] = true;
            let body = vec![0x5a; if packet.request % 2 == u64::from(index as u8 % 2) { 32 } else { 0 }];
            let came = pair.machines.arriving(&datagram(&packet, &body, key.as_ref()));
            pair.set(3, word);
            pair.both(&came, Some((3, word)));
        }
    }
    let possible = (0..ROWS).map(Case::of_index);
    let possible = possible.filter(|case| case.writers_first == writers_first && !(case.matches && case.applied));
    let missed: Vec<_> = possible.filter(|case| !seen[case.index()]).collect();
    assert!(missed.is_empty(), "cases without an example: {missed:?}");
}

#[test]
fn privileged_every_case_of_the_table_is_as_in_rust() {
    every_case(None, false);
}

#[test]
fn privileged_every_case_of_the_table_is_as_in_rust_with_writers_first_and_a_key() {
    every_case(Some(KEY), true);
}

/// A packet that may mean something to its lock, and sometimes none.
fn random_packet(dice: &mut Random, pair: &Pair) -> (Packet, Vec<u8>) {
    let kind = if dice.one_in(8) { dice.pick(&Kind::ALL) } else { dice.pick(&Kind::ALL[..8]) };
    let lock = if dice.one_in(50) { dice.next_u64() >> dice.below(64) } else { dice.below(LOCKS.into()) };
    let word = if lock < LOCKS.into() { pair.model.load(lock) } else { Word::NEW };
    let machine = |dice: &mut Random| match dice.below(20) {
        0 => Machine(dice.next_u64() as u16),
        1 => Machine(0),
        2..9 => word.machine,
        _ => Machine(1 + dice.below(6) as u16),
    };
    let session = |dice: &mut Random, machine: Machine| match dice.below(40) {
        0 => dice.next_u64() as u32,
        _ => pair.machines.0.get(&machine.0).map_or(0, |entry| entry.session),
    };
    let mut packet = Packet::new(kind, lock);
    packet.flags = dice.pick(&[1, 3, 1, 3, 0, 2])
        | dice.pick(&[0, 0, 0, AGENT, GRANTED, GRANTED, 16, 32, 60])
        | if dice.one_in(100) { 0x80 } else { 0 };
    packet.state = dice.pick(&State::ALL);
    packet.hops = dice.below(64) as u8;
    packet.request = dice.next_u64();
    packet.sender = machine(dice);
    packet.session = session(dice, packet.sender);
    packet.requester = if dice.one_in(2) { packet.sender } else { machine(dice) };
    packet.requester_session = session(dice, packet.requester);
    packet.target = machine(dice);
    packet.incarnation = match dice.below(4) {
        0 => dice.next_u64() as u32,
        1 => word.incarnation.wrapping_sub(1),
        _ => word.incarnation,
    };
    packet.token = dice.next_u64();
    packet.part = dice.next_u64() as u8;
    packet.parts = dice.next_u64() as u8;
    let longest = (lockwork_lock_protocol::packet::MAX_BYTES - 72) / 8;
    let words = if dice.one_in(4) { dice.below(longest as u64 + 1) as usize } else { 0 };
    (packet, (0..words * 8).map(|_| dice.next_u64() as u8).collect())
}

fn random_stream(seed: u64, key: Option<Key>, writers_first: bool, packets: u32) {
    let Some(pair) = Pair::new(key, writers_first) else { return };
    let mut dice = Random(seed);
    let other_key = Key(*b"another clusters");
    for number in 0..packets {
        let (packet, body) = random_packet(&mut dice, &pair);
        let used = if dice.one_in(50) { Some(other_key) } else { key };
        let mut bytes = datagram(&packet, &body, used.as_ref());
        match dice.below(60) {
            0 => bytes.truncate(dice.below(bytes.len() as u64 + 1) as usize),
            1 => bytes.extend_from_slice(&dice.next_u64().to_le_bytes()),
            2 => bytes.iter_mut().for_each(|byte| *byte = dice.next_u64() as u8),
            3 => bytes[2] = dice.next_u64() as u8,
            // One bit, with a key never unseen.
            4..9 => {
                let bit = dice.below(8 * 64) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            _ => {}
        }
        let came = pair.machines.arriving(&bytes);
        if dice.one_in(2) {
            pair.xdp(&came);
        } else {
            pair.tc(&came);
        }
        if number % 64 == 0 {
            let machine = Machine(dice.below(8) as u16);
            let word = Word { state: dice.pick(&State::ALL), machine, incarnation: dice.next_u64() as u32 };
            pair.set(dice.below(LOCKS.into()), word);
        }
    }
    let counters = pair.kernel.counters().expect("counters are read");
    for (name, count) in counters.iter() {
        let rare = ["left_contended", "dropped_failed", "dropped_copy"].contains(&name);
        let keyless = name == "dropped_tag" && key.is_none();
        assert!(count > 0 || rare || keyless, "nothing was counted as {name} with seed {seed}: {counters:?}");
    }
    let counted: u64 = counters.0.iter().sum();
    assert_eq!(counted, u64::from(packets), "each packet is counted once");
    assert!(pair.other > 1);
}

#[test]
fn privileged_random_packets_are_decided_as_in_rust() {
    random_stream(1, None, false, 150_000);
}

#[test]
fn privileged_random_packets_with_a_key_are_decided_as_in_rust() {
    random_stream(2, Some(KEY), true, 150_000);
}

#[test]
fn privileged_what_is_not_the_deciders_is_left_as_it_came() {
    let Some(pair) = Pair::new(None, false) else { return };
    let mut packet = Packet::new(Kind::Acquire, 0);
    packet.flags = 3;
    (packet.sender, packet.session) = (Machine(1), 100);
    (packet.requester, packet.requester_session) = (Machine(1), 100);
    let ours = pair.machines.arriving(&datagram(&packet, &[], None));
    let changes: [(&str, usize, &[u8]); 6] = [
        ("another port", 36, &[0, 80]),
        ("IPv6", 12, &[0x86, 0xdd]),
        ("a VLAN", 12, &[0x81, 0x00]),
        ("TCP", 23, &[6]),
        ("a fragment", 20, &[0x20, 0]),
        ("IP options", 14, &[0x46]),
    ];
    let xdp: &Xdp = pair.kernel.program("lockwork_xdp").expect("it is there");
    let tc: &SchedClassifier = pair.kernel.program("lockwork_tc").expect("it is there");
    for (what, at, bytes) in changes {
        let mut frame = ours.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        assert_eq!(run(xdp, &frame), (XDP_PASS, frame.clone()), "{what} at XDP");
        assert_eq!(run(tc, &frame), (TC_OK, frame.clone()), "{what} at TC");
    }
    for bytes in 14..ours.len() {
        // A frame that ends before its packet does: the network stack drops it.
        assert_eq!(run(xdp, &ours[..bytes]).0, XDP_PASS, "{bytes} bytes");
    }
    pair.same_locks("after packets that are not ours");
    assert_eq!(pair.kernel.counters().expect("counters are read").0.iter().sum::<u64>(), 0);
    pair.both(&ours, Some((0, Word::NEW)));
}
