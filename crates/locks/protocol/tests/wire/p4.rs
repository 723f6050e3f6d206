//! What can be checked of the P4 program without a compiler: its numbers and its header are those of the protocol, and
//! its tests are written from the golden vectors. That its table is the decision table is checked in `export::p4`.

use crate::scenarios;
use lockwork_lock_protocol::decider::TOKEN_STEP;
use lockwork_lock_protocol::export::stf::stf;
use lockwork_lock_protocol::lean::Switch;
use lockwork_lock_protocol::packet::{self, Kind, Packet, Problem};
use lockwork_lock_protocol::table::{Place, Send};
use lockwork_lock_protocol::word::{Machine, State};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../hardware/p4")
}

fn program() -> String {
    let part = |name| std::fs::read_to_string(folder().join(name)).expect("a part of the program");
    part("decider.p4") + &part("packets.p4inc")
}

fn number(text: &str) -> u64 {
    let digits = text.strip_prefix("0x");
    digits.map_or_else(|| text.parse(), |digits| u64::from_str_radix(digits, 16)).expect("a number")
}

/// `const bit<8> NAME = value;` and `#define NAME value`.
fn constants(program: &str) -> BTreeMap<&str, u64> {
    let mut constants = BTreeMap::new();
    for line in program.lines() {
        let words: Vec<&str> = line.trim_end_matches(';').split_whitespace().collect();
        match words[..] {
            ["const", _, name, "=", value] => constants.insert(name, number(value)),
            ["#define", name, value] if !name.contains('(') => constants.insert(name, number(value)),
            _ => None,
        };
    }
    constants
}

#[test]
fn its_numbers_are_those_of_the_protocol() {
    let program = program();
    let constants = constants(&program);
    let is = |name: &str, value: u64| assert_eq!(constants.get(name), Some(&value), "{name}");
    for kind in Kind::ALL.into_iter().filter(|kind| !kind.is_control()) {
        is(&format!("{kind:?}").to_uppercase(), kind as u64);
    }
    is("FIRST_CONTROL", Kind::Join as u64);
    is("LAST_CONTROL", Kind::ALL.map(|kind| kind as u64).into_iter().max().expect("some kinds"));
    let control: Vec<u64> = Kind::ALL.iter().filter(|kind| kind.is_control()).map(|kind| *kind as u64).collect();
    // The registry checks kinds too, so a gap may only cost it a packet: that from STATUS to NAME is kept free.
    let gaps = control.windows(2).filter(|pair| pair[0] + 1 != pair[1]);
    assert!(gaps.into_iter().all(|pair| pair[1] <= Kind::Name as u64), "{control:?}");
    State::ALL.into_iter().for_each(|state| is(&format!("STATE_{state}").to_uppercase(), state as u64));
    for (name, send) in [
        ("SEND_GRANT", Send::Grant),
        ("SEND_JOIN", Send::Join),
        ("SEND_AGENT", Send::Agent),
        ("SEND_TARGET", Send::Target),
        ("SEND_DONE", Send::Done),
        ("SEND_REFUSED", Send::Refused),
        ("SEND_ACK", Send::Ack),
        ("SEND_GONE", Send::Gone),
    ] {
        is(name, send as u64);
    }
    for (name, place) in [
        ("PLACE_KEEP", Place::Keep),
        ("PLACE_REQUESTER", Place::Requester),
        ("PLACE_TARGET", Place::Target),
        ("PLACE_NOBODY", Place::Nobody),
    ] {
        is(name, place as u64);
    }
    is("NO_SUCH_LOCK", Problem::NoSuchLock as u64);
    is("NO_SUCH_SESSION", Problem::NoSuchSession as u64);
    is("NO_SUCH_MACHINE", Problem::NoSuchMachine as u64);
    is("NOT_HELD", Problem::NotHeld as u64);
    is("MAGIC", packet::MAGIC.swap_bytes().into());
    is("VERSION", packet::VERSION.into());
    is("HEADER", packet::HEADER as u64);
    is("MAX_BYTES", packet::MAX_BYTES as u64);
    is("TOKEN_OF_READERS", (TOKEN_STEP - 1).swap_bytes());
    is("LOCKS", Switch::TOFINO.capacity().locks);
    is("LOCKS_A_MAU", Switch::TOFINO.stage_bits / 8);
    assert_eq!(constants["LOCKS"], 3 * constants["LOCKS_A_MAU"], "three arrays are written out");
}

/// Where a field of the header starts and how wide it is, in bits.
fn fields(program: &str) -> BTreeMap<&str, (usize, usize)> {
    let (_, rest) = program.split_once("header lock_t {\n").expect("the header");
    let (lines, _) = rest.split_once("\n}").expect("its end");
    let mut at = 0;
    let mut fields = BTreeMap::new();
    for line in lines.lines() {
        let (width, name) = line.trim().strip_prefix("bit<").and_then(|line| line.split_once("> ")).expect("a field");
        let width = width.parse().expect("a width");
        fields.insert(name.trim_end_matches(';'), (at, width));
        at += width;
    }
    assert_eq!(at, packet::HEADER * 8);
    fields
}

#[test]
fn its_header_is_the_packets() {
    let program = program();
    let fields = fields(&program);
    // A header in which one field is set shows where that field is; bits count from the left, as P4 does.
    let set = |change: &dyn Fn(&mut Packet)| {
        let mut packet = Packet::new(Kind::Acquire, 0);
        change(&mut packet);
        let (zero, bytes) = (Packet::new(Kind::Acquire, 0).header(0, None), packet.header(0, None));
        let bits = (0..packet::HEADER * 8).filter(|bit| (zero[bit / 8] ^ bytes[bit / 8]) << (bit % 8) & 0x80 != 0);
        bits.collect::<BTreeSet<usize>>()
    };
    let spans =
        |names: &[&str]| names.iter().flat_map(|name| fields[name].0..fields[name].0 + fields[name].1).collect();
    let is = |names: &[&str], change: &dyn Fn(&mut Packet)| {
        let wanted: BTreeSet<usize> = spans(names);
        assert_eq!(set(change), wanted, "{names:?}");
    };
    is(&["requester"], &|packet| packet.requester = Machine(u16::MAX));
    is(&["lock_0", "lock_1", "lock_2", "lock_3", "lock_high"], &|packet| packet.lock = u64::MAX);
    for (byte, name) in ["lock_0", "lock_1", "lock_2", "lock_3"].into_iter().enumerate() {
        is(&[name], &|packet| packet.lock = 0xff << (8 * byte));
    }
    is(&["request"], &|packet| packet.request = u64::MAX);
    is(&["requester_session"], &|packet| packet.requester_session = u32::MAX);
    is(&["part"], &|packet| packet.part = u8::MAX);
    is(&["parts"], &|packet| packet.parts = u8::MAX);
    is(&["token"], &|packet| packet.token = u64::MAX);
    is(&["sender"], &|packet| packet.sender = Machine(u16::MAX));
    is(&["target"], &|packet| packet.target = Machine(u16::MAX));
    is(&["incarnation"], &|packet| packet.incarnation = 0xff);
    is(&["incarnation_high"], &|packet| packet.incarnation = !0xff);
    is(&["session"], &|packet| packet.session = u32::MAX);
    is(&["mode"], &|packet| packet.flags = 3);
    is(&["with_agent"], &|packet| packet.flags = packet::AGENT);
    is(&["granted"], &|packet| packet.flags = packet::GRANTED);
    is(&["try_only"], &|packet| packet.flags = packet::TRY);
    is(&["busy"], &|packet| packet.flags = packet::BUSY);
    is(&["word_state"], &|packet| packet.state = State::Exclusive);
    is(&["hops"], &|packet| packet.hops = 63);
    let bytes = |name: &str, from: usize, to: usize| assert_eq!(fields[name], (8 * from, 8 * (to - from)), "{name}");
    bytes("magic", 0, 2);
    bytes("version", 2, 3);
    bytes("zero_3", 3, 4);
    bytes("rack", 4, 6);
    bytes("payload_bytes", 28, 30);
    bytes("kind", 52, 53);
    bytes("zero_55", 55, 56);
    bytes("tag", 56, 64);
}

#[test]
fn its_tests_are_written_from_the_vectors() {
    let again = "run: cargo run -p lockwork-lock-protocol --example vectors";
    let entries = std::fs::read_dir(folder().join("stf")).expect("the folder of tests");
    let written: BTreeSet<String> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a plain name")).collect();
    let stories = scenarios::for_switches();
    let names: BTreeSet<String> = stories.iter().map(|story| format!("{}.stf", story.name)).collect();
    assert_eq!(names, written, "{again}");
    for story in stories {
        let path = folder().join("stf").join(format!("{}.stf", story.name));
        let text = stf(&story.record()).expect("made for switches");
        assert!(std::fs::read_to_string(&path).expect("text") == text, "{} differs; {again}", path.display());
    }
    // What a switch cannot play is not written.
    let others = scenarios::all().into_iter().map(scenarios::Story::record);
    assert!(others.into_iter().all(|scenario| stf(&scenario).is_none()), "vectors are wide");
}

#[test]
fn its_tests_call_what_the_program_has() {
    let program = program();
    let mut calls = 0;
    for story in scenarios::for_switches() {
        let text = stf(&story.record()).expect("made for switches");
        for line in text.lines().filter(|line| line.starts_with("add ") || line.starts_with("setdefault ")) {
            for word in line.split_whitespace().skip(1) {
                let name = word.split(['(', ':']).next().expect("a first part");
                let name = name.rsplit('.').next().expect("a last part");
                let there = [format!("table {name} "), format!("action {name}("), format!(".{name}: exact;")];
                assert!(there.iter().any(|form| program.contains(form)), "the program has no '{name}': {line}");
                calls += 1;
            }
        }
    }
    assert!(calls > 0, "no test calls anything");
}
