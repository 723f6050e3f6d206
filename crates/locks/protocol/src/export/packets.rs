//! Packets of every kind as datagrams, for who writes a client in another language: docs/lock-protocol-vectors.json.

use crate::control::{Service, name_to_body};
use crate::packet::{AGENT, BUSY, GRANTED, Key, Kind, Packet, Problem, TRY, Waiter, datagram, waiters_to_body};
use crate::word::{Machine, Profile, State};
use lockwork_locking::LockMode;
use std::fmt::Write;

/// The key of those that have one.
const KEY: Key = Key([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);

/// docs/lock-protocol-vectors.json: for each kind, a packet with different numbers in all fields, without a key and
/// with one.
#[must_use]
pub fn packets() -> String {
    let mut all: Vec<(String, Packet, Vec<u8>)> = Vec::new();
    for (at, kind) in (1_u16..).zip(Kind::ALL) {
        let number = u64::from(at);
        let packet = Packet {
            flags: LockMode::Exclusive as u8,
            state: State::Led,
            hops: 3,
            request: number << 32 | 0x0102_0304,
            requester: Machine(0x1100 + at),
            requester_session: 0x2200_0000 + u32::from(at),
            sender: Machine(0x3300 + at),
            session: 0x4400_0000 + u32::from(at),
            target: Machine(0x5500 + at),
            incarnation: 0x6600_0000 + u32::from(at),
            token: 0x7700_0000_0000_0000 + number,
            part: 7,
            parts: 9,
            ..Packet::new(kind, 0x8800_0000_0000 + number)
        };
        all.push((format!("{kind:?}, every field"), packet, Vec::new()));
    }
    let join = Packet { request: 0xdead_beef, ..Packet::new(Kind::Join, 0) };
    let service = Service {
        locks: 2000,
        lease_ms: 2000,
        profile: Profile::Wide,
        writers_first: false,
        names: 1000,
        beyond: false,
    };
    let me = Packet {
        request: 77 << 32 | 1,
        requester: Machine(5),
        requester_session: 901,
        sender: Machine(5),
        session: 901,
        ..Packet::new(Kind::Acquire, 17)
    };
    let free = Packet { request: u64::from(u32::MAX) << 32 | 1, target: Machine(5), incarnation: 7, ..me };
    let waiters = [(6, LockMode::Exclusive), (7, LockMode::Shared)].map(|(machine, mode)| Waiter {
        machine: Machine(machine),
        session: 900 + u32::from(machine),
        request: 88 << 32 | 2,
        mode,
    });
    let named = name_to_body("orders/17");
    let mode = LockMode::Exclusive as u8;
    let no_lock = Packet { part: Kind::Acquire as u8, token: Problem::NoSuchLock as u64, ..me };
    let told = Packet { sender: Machine(0), session: 0, target: Machine(5), ..me };
    all.extend(
        [
            ("a process joins", join, Vec::new()),
            ("it is welcome", Packet { kind: Kind::Welcome, ..told }, service.to_body()),
            ("it asks for lock 17", Packet { flags: mode, ..me }, Vec::new()),
            ("it asks, and does not wait", Packet { flags: mode | TRY, ..me }, Vec::new()),
            (
                "the decider grants it, with the agent",
                Packet { kind: Kind::Grant, flags: mode | AGENT, state: State::Exclusive, incarnation: 7, ..told },
                Vec::new(),
            ),
            ("another machine's agent says busy", Packet { kind: Kind::Ack, flags: mode | BUSY, ..told }, Vec::new()),
            ("it gives the lock back", Packet { kind: Kind::Free, flags: mode, ..free }, Vec::new()),
            (
                "it hands the lock to machine 6, with two who wait",
                Packet { kind: Kind::Move, flags: mode, parts: 1, target: Machine(6), incarnation: 7, ..me },
                waiters_to_body(&waiters),
            ),
            ("there is no such lock", Packet { kind: Kind::Error, ..no_lock }, Vec::new()),
            ("which lock does a name mean?", Packet { kind: Kind::Name, lock: 0, ..me }, named.clone()),
            ("it means lock 1017", Packet { kind: Kind::Name, flags: GRANTED, lock: 1017, ..told }, named.clone()),
            ("the name is not kept any more", Packet { kind: Kind::Unname, lock: 0, ..me }, named),
            ("the longest name", Packet { kind: Kind::Name, lock: 0, ..me }, name_to_body(&"x".repeat(255))),
        ]
        .map(|(about, packet, body)| (about.to_string(), packet, body)),
    );
    let mut text = String::from("{\"packets\": [\n");
    let both = all.iter().flat_map(|one| [(one, None), (one, Some(&KEY))]);
    let lines: Vec<String> = both.map(|((about, packet, body), key)| line(about, packet, body, key)).collect();
    text.push_str(&lines.join(",\n"));
    text.push_str("\n]}\n");
    text
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        _ = write!(text, "{byte:02x}");
        text
    })
}

fn line(about: &str, packet: &Packet, body: &[u8], key: Option<&Key>) -> String {
    let fields = [
        ("kind", packet.kind as u64),
        ("flags", packet.flags.into()),
        ("state", packet.state as u64),
        ("hops", packet.hops.into()),
        ("lock", packet.lock),
        ("request", packet.request),
        ("requester", packet.requester.0.into()),
        ("requester_session", packet.requester_session.into()),
        ("sender", packet.sender.0.into()),
        ("session", packet.session.into()),
        ("target", packet.target.0.into()),
        ("incarnation", packet.incarnation.into()),
        ("token", packet.token),
        ("part", packet.part.into()),
        ("parts", packet.parts.into()),
    ];
    let fields = fields.map(|(name, value)| format!("\"{name}\": {value}")).join(", ");
    let key_hex = key.map_or("null".to_string(), |key| format!("\"{}\"", hex(&key.0)));
    let (body_hex, all) = (hex(body), hex(&datagram(packet, body, key)));
    format!(
        "{{\"about\": \"{about}\", \"key\": {key_hex}, \"fields\": {{{fields}}}, \"body\": \"{body_hex}\", \
         \"datagram\": \"{all}\"}}"
    )
}

#[cfg(test)]
mod tests {
    use crate::packet::{Key, parse_whole};

    #[test]
    fn the_committed_vectors_are_what_would_be_written() {
        super::super::check("docs/lock-protocol-vectors.json", &super::packets());
    }

    /// Plays the text as a client in another language would.
    #[test]
    fn vectors_are_read_back_field_by_field() {
        let text = super::packets();
        let mut count = 0;
        for line in text.lines().filter(|line| line.starts_with("{\"about\"")) {
            let value = |name: &str| {
                let rest = line.split_once(&format!("\"{name}\": ")).expect("the field is there").1;
                rest.split([',', '}']).next().expect("a value").trim_matches('"').to_string()
            };
            let bytes = |text: String| -> Vec<u8> {
                (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
            };
            let key = Some(value("key")).filter(|key| key != "null").map(|key| Key(bytes(key).try_into().unwrap()));
            let datagram = bytes(value("datagram"));
            let (packet, body) = parse_whole(&datagram, key.as_ref()).expect("a packet");
            let number = |name: &str| value(name).parse::<u64>().unwrap();
            assert_eq!(body, bytes(value("body")));
            assert_eq!(
                (packet.kind as u64, packet.lock, packet.request),
                (number("kind"), number("lock"), number("request"))
            );
            assert_eq!((u64::from(packet.incarnation), packet.token), (number("incarnation"), number("token")));
            assert_eq!((u64::from(packet.hops), u64::from(packet.target.0)), (number("hops"), number("target")));
            count += 1;
        }
        assert!(count >= 70, "{count}");
    }
}
