//! Any bytes as packets of the lock service, with and without a key: what is no packet, or comes from nobody, or names
//! no lock, changes nothing; whatever else comes, at most one word changes, as the decision table says, and both
//! profiles do the same. Answers are packets again.
#![no_main]

use lockwork_lock_protocol::decider::TOKEN_STEP;
use lockwork_lock_protocol::packet::{GRANTED, HEADER, Key, Kind, Packet, body, datagram, parse, waiters_of_body};
use lockwork_lock_protocol::table::{Place, rule};
use lockwork_lock_protocol::vectors::{Model, Setup, VectorDecider};
use lockwork_lock_protocol::word::{Machine, Profile, Word};

const LOCKS: u64 = 3;
const MACHINES: u16 = 3;
/// Packets of one input.
const MAX_PACKETS: usize = 64;

/// Takes bytes off the front of the input; zeros when there are no more.
struct Source<'a>(&'a [u8]);

impl<'a> Source<'a> {
    fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or_default()
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

fn session(machine: u16) -> u32 {
    if machine == 0 { 1 } else { 100 + u32::from(machine) }
}

/// A packet that is likely to do something: near the words as they are.
fn packet(source: &mut Source<'_>, model: &mut Model) -> Packet {
    let kind = source.byte();
    let kind =
        if kind < 200 { Kind::ALL[usize::from(kind) % 8] } else { Kind::ALL[usize::from(kind) % Kind::ALL.len()] };
    let lock = u64::from(source.byte()) % (LOCKS + 1);
    let word = model.word(lock.min(LOCKS - 1)).expect("it shows its words").0;
    let mut packet = Packet::new(kind, lock);
    let bits = source.byte();
    packet.flags = if bits & 1 == 1 { 1 } else { 3 } | if bits & 0x30 == 0x30 { GRANTED } else { 0 };
    let who = source.byte();
    let someone = |number: u8| u16::from(number & 7) % (MACHINES + 2);
    packet.sender = if who & 0x80 == 0 { word.machine } else { Machine(someone(who)) };
    packet.requester = if who & 0x40 == 0 { packet.sender } else { Machine(someone(who >> 3)) };
    packet.target = Machine(someone(source.byte()));
    packet.session = session(packet.sender.0) ^ u32::from(bits > 250);
    packet.requester_session = session(packet.requester.0) ^ u32::from(bits == 250);
    packet.incarnation = word.incarnation.wrapping_sub(u32::from(bits >> 1 & 1) * u32::from(bits >> 2 & 3)) & 0xff;
    packet.request = who.into();
    packet.hops = source.byte() & 63;
    packet
}

fn words(model: &mut Model) -> Vec<(Word, u64)> {
    (0..LOCKS).map(|lock| model.word(lock).expect("it shows its words")).collect()
}

/// Sends one datagram and checks what it did. The incarnations of the wide words stay below 256 here, so that one
/// packet is right for both profiles.
fn send(models: &mut [Model; 2], key: Option<&Key>, bytes: &[u8]) {
    let answers = models.each_mut().map(|model| {
        let (row, before) = (model.row(bytes), words(model));
        let outputs = model.process(bytes);
        let after = words(model);
        assert!(outputs.len() <= 2);
        for (_, output) in &outputs {
            parse(output, key).expect("a decider sends packets");
        }
        let Ok((packet, _)) = parse(bytes, key) else {
            assert!(outputs.is_empty() && after == before, "what is no packet does nothing");
            return (Vec::new(), after);
        };
        let Some(case) = row else {
            assert!(after == before, "{packet:?} is not decided on");
            return (outputs, after);
        };
        let action = rule(case);
        let changed = (0..LOCKS as usize).filter(|lock| after[*lock] != before[*lock]).collect::<Vec<_>>();
        let at = packet.lock as usize;
        assert!(changed.is_empty() || changed == [at], "{packet:?} is about another lock");
        let ((old, old_token), (new, new_token)) = (before[at], after[at]);
        assert_eq!(new.state, action.state.unwrap_or(old.state));
        let place = match action.place {
            Place::Keep => old.machine,
            Place::Requester => packet.requester,
            Place::Target => packet.target,
            Place::Nobody => Machine(0),
        };
        assert_eq!(new.machine, place);
        assert_eq!(new.incarnation & 0xff, old.incarnation + u32::from(action.next) & 0xff);
        assert!(new_token == old_token || (action.token && new_token == old_token + TOKEN_STEP));
        assert!(!outputs.is_empty(), "whoever is decided on is answered");
        (outputs, after)
    });
    let [(wide, wide_words), (lean, lean_words)] = answers;
    let cut = |(word, _): &(Word, u64)| Word { incarnation: word.incarnation & 0xff, ..*word };
    assert!(wide_words.iter().map(cut).eq(lean_words.iter().map(cut)));
    let [wide, lean] = [&wide, &lean].map(|outputs| {
        let kind = |bytes: &[u8]| parse(bytes, key).expect("checked above").0.kind;
        outputs.iter().map(|(to, bytes)| (*to, kind(bytes), bytes.len())).collect::<Vec<_>>()
    });
    // An incarnation that the lean profile cannot have may look applied to it, which writes nothing.
    let fits = parse(bytes, key).is_ok_and(|(packet, _)| packet.incarnation < 256);
    assert!(wide == lean || !fits, "{wide:?} {lean:?}");
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut source = Source(bytes);
    let settings = source.byte();
    let key = (settings & 2 != 0).then_some(Key([7; 16]));
    let mut setup = Setup::new(LOCKS);
    setup.writers_first = settings & 1 == 1;
    setup.key = key;
    setup.sessions = (1..=MACHINES).map(|machine| (Machine(machine), session(machine))).collect();
    let lean = Setup { profile: Profile::Lean, ..setup.clone() };
    let mut models = [Model::new(&setup), Model::new(&lean)];
    let key = key.as_ref();
    for _ in 0..MAX_PACKETS {
        if source.0.is_empty() {
            break;
        }
        let how = source.byte();
        let mut bytes = if how & 3 == 3 {
            let length = usize::from(source.byte());
            source.bytes(length).to_vec()
        } else {
            let packet = packet(&mut source, &mut models[0]);
            let payload_words = usize::from(how >> 5);
            datagram(&packet, &vec![how; payload_words * 8], key)
        };
        if how & 3 == 2 {
            // A good packet, spoilt: one byte, or its end.
            let (at, value) = (usize::from(source.byte()) % (bytes.len() + 1), source.byte());
            match bytes.get_mut(at) {
                Some(byte) => *byte ^= value,
                None => bytes.truncate(usize::from(value) % (HEADER + 1)),
            }
        }
        let _ = body(&bytes, key).map(|body| waiters_of_body(body).map(|waiters| waiters.len()));
        send(&mut models, key, &bytes);
    }
});
