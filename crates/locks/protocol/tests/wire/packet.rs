//! Packets survive the wire, lie where the documentation says, and are refused when they should be.

use lockwork_lock_protocol::packet::{
    AGENT, BUSY, GRANTED, HEADER, Key, Kind, MAX_BYTES, Malformed, Packet, Problem, TRY, Waiter, body, datagram, parse,
    waiters_of_body, waiters_to_body,
};
use lockwork_lock_protocol::word::{Machine, State};
use lockwork_locking::LockMode;
use proptest::prelude::*;

const KEY: Key = Key([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);

/// SipHash as its paper has it: `after_word` rounds for each word and `last` at the end.
fn siphash(after_word: usize, last: usize, key: &Key, bytes: &[u8]) -> u64 {
    fn round([a, b, c, d]: &mut [u64; 4]) {
        *a = a.wrapping_add(*b);
        *b = b.rotate_left(13) ^ *a;
        *a = a.rotate_left(32);
        *c = c.wrapping_add(*d);
        *d = d.rotate_left(16) ^ *c;
        *a = a.wrapping_add(*d);
        *d = d.rotate_left(21) ^ *a;
        *c = c.wrapping_add(*b);
        *b = b.rotate_left(17) ^ *c;
        *c = c.rotate_left(32);
    }
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let (k0, k1) = (word(&key.0[..8]), word(&key.0[8..]));
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    // Zeros fill the last word, and its last byte is the length.
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len() / 8 * 8 + 7, 0);
    padded.push(bytes.len() as u8);
    for bytes in padded.chunks_exact(8) {
        let word = word(bytes);
        v[3] ^= word;
        (0..after_word).for_each(|_| round(&mut v));
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    (0..last).for_each(|_| round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

/// A packet in which every field has bytes of its own.
fn example() -> Packet {
    Packet {
        kind: Kind::Move,
        flags: 3 | AGENT | TRY,
        state: State::Led,
        hops: 0x2a,
        lock: 0x0807_0605_0403_0201,
        request: 0x1817_1615_1413_1211,
        requester: Machine(0x2221),
        requester_session: 0x3433_3231,
        sender: Machine(0x4241),
        session: 0x5453_5251,
        target: Machine(0x6261),
        incarnation: 0x7473_7271,
        token: 0x8887_8685_8483_8281,
        part: 0x91,
        parts: 0x92,
    }
}

fn packets() -> impl Strategy<Value = Packet> {
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<[u32; 3]>(), any::<[u16; 3]>(), any::<[u8; 2]>());
    let fields = (0..Kind::ALL.len(), prop_oneof![Just(1_u8), Just(3)], 0..16_u8, 0..4_u8, 0..64_u8);
    (numbers, fields).prop_map(|((lock, request, token, four, two, one), (kind, mode, flags, state, hops))| Packet {
        kind: Kind::ALL[kind],
        flags: mode | flags << 2,
        state: State::of_bits(state),
        hops,
        lock,
        request,
        requester: Machine(two[0]),
        requester_session: four[0],
        sender: Machine(two[1]),
        session: four[1],
        target: Machine(two[2]),
        incarnation: four[2],
        token,
        part: one[0],
        parts: one[1],
    })
}

fn bodies() -> impl Strategy<Value = Vec<u8>> {
    (0..=(MAX_BYTES - HEADER - 8) / 8).prop_flat_map(|words| prop::collection::vec(any::<u8>(), words * 8))
}

proptest! {
    #[test]
    fn packets_survive_the_wire(packet in packets(), sent in bodies(), keyed in any::<bool>()) {
        let key = keyed.then_some(&KEY);
        let bytes = datagram(&packet, &sent, key);
        let (read, payload) = parse(&bytes, key).expect("a good packet");
        prop_assert_eq!(read, packet);
        prop_assert_eq!(payload.len(), if sent.is_empty() { 0 } else { sent.len() + 8 });
        prop_assert_eq!(body(&bytes, key).expect("a good body"), &sent[..]);
    }

    /// With a key no single bit of a header can be changed, and none of a payload whose tag is looked at.
    #[test]
    fn tags_cover_every_bit(packet in packets(), words in 0_usize..3, bit in 0..8 * (HEADER + 16)) {
        let sent: Vec<u8> = vec![0x5a; words * 8];
        let mut bytes = datagram(&packet, &sent, Some(&KEY));
        prop_assume!(bit / 8 < bytes.len());
        bytes[bit / 8] ^= 1 << (bit % 8);
        let refused = parse(&bytes, Some(&KEY)).is_err() || body(&bytes, Some(&KEY)) == Err(Malformed::Tag);
        prop_assert!(refused, "bit {}", bit);
    }

    #[test]
    fn any_bytes_are_a_packet_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), like in any::<bool>()) {
        let mut bytes = bytes;
        if like && bytes.len() >= HEADER {
            bytes[..4].copy_from_slice(&[0x4c, 0x4b, 1, 0]);
            bytes[4..6].fill(0);
            let payload_bytes = (bytes.len() - HEADER) as u16;
            bytes[28..30].copy_from_slice(&payload_bytes.to_le_bytes());
            bytes[55..64].fill(0);
        }
        // What is read is written back byte by byte, so no bit is overlooked.
        if let Ok((packet, payload)) = parse(&bytes, None) {
            prop_assert_eq!(&packet.header(payload.len(), None)[..], &bytes[..HEADER]);
        }
        let _ = body(&bytes, None);
    }
}

#[test]
fn fields_lie_where_the_documentation_says() {
    let bytes = datagram(&example(), &[0xee; 8], None);
    let wanted = [
        "4c 4b 01 00 00 00 21 22",
        "01 02 03 04 05 06 07 08",
        "11 12 13 14 15 16 17 18",
        "31 32 33 34 10 00 91 92",
        "81 82 83 84 85 86 87 88",
        "41 42 61 62 71 72 73 74",
        "51 52 53 54 03 17 aa 00",
        "00 00 00 00 00 00 00 00",
        "ee ee ee ee ee ee ee ee",
        "00 00 00 00 00 00 00 00",
    ];
    let shown: Vec<String> = bytes
        .chunks(8)
        .map(|bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(shown, wanted);
}

#[test]
fn tags_are_siphash_1_3() {
    // Appendix A of the paper: SipHash-2-4 of 15 bytes. So the function above is right, and only rounds are left.
    let input: Vec<u8> = (0..15).collect();
    assert_eq!(siphash(2, 4, &KEY, &input), 0xa129_ca61_49be_45e5);
    let bytes = datagram(&example(), &[0xee; 8], Some(&KEY));
    let tag = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    assert_eq!(tag(56), siphash(1, 3, &KEY, &bytes[..55]));
    assert_eq!(tag(72), siphash(1, 3, &KEY, &[&bytes[..32], &[0xee; 8][..]].concat()));
    // The same as numbers, for whoever writes it in another language.
    assert_eq!((tag(56), tag(72)), (0xb204_e441_4b73_7cf5, 0x133b_2e6c_ffea_1915));
}

#[test]
fn every_cause_is_found_in_its_order() {
    let good = datagram(&Packet { flags: 1, ..Packet::new(Kind::Acquire, 7) }, &[], Some(&KEY));
    assert!(parse(&good, Some(&KEY)).is_ok());
    let refused = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        parse(&bytes, Some(&KEY)).expect_err("not a good packet")
    };
    for length in (0..HEADER).chain([HEADER + 1, HEADER + 8]) {
        assert_eq!(refused(&|bytes| bytes.resize(length, 0)), Malformed::Length, "{length} bytes");
    }
    assert_eq!(refused(&|bytes| bytes[28] = 8), Malformed::Length);
    let odd = |bytes: &mut Vec<u8>| {
        bytes[28] = 4;
        bytes.extend([0; 4]);
    };
    assert_eq!(refused(&odd), Malformed::Length);
    assert_eq!(refused(&|bytes| bytes[0] = 0), Malformed::Magic);
    assert_eq!(refused(&|bytes| bytes[2] = 9), Malformed::Version(9));
    assert_eq!(refused(&|bytes| bytes[8] = 9), Malformed::Tag);
    assert_eq!(refused(&|bytes| bytes[55] = 9), Malformed::Field);
    assert_eq!(parse(&good, None), Err(Malformed::Tag), "a tag where there is no key");
    assert_eq!(parse(&good, Some(&Key([9; 16]))), Err(Malformed::Tag));
    // The first cause is named.
    assert_eq!(refused(&|bytes| bytes.fill(9)), Malformed::Length);
    assert_eq!(refused(&|bytes| bytes[..3].fill(9)), Malformed::Magic);
    assert_eq!(refused(&|bytes| bytes[2..28].fill(9)), Malformed::Version(9));
    assert_eq!(refused(&|bytes| bytes[30..55].fill(9)), Malformed::Tag);
    assert_eq!(Malformed::Version(9).to_string(), "another version of the protocol: 9 instead of 1");
}

#[test]
fn fields_have_only_values_that_they_can_have() {
    let read = |change: &dyn Fn(&mut [u8])| {
        let mut bytes = Packet { flags: 1, ..Packet::new(Kind::Acquire, 7) }.header(0, None);
        change(&mut bytes);
        parse(&bytes, None).map(|(packet, _)| packet)
    };
    for at in [3, 4, 5, 55] {
        assert_eq!(read(&|bytes| bytes[at] = 1), Err(Malformed::Field), "byte {at}");
    }
    for kind in 0..=u8::MAX {
        let read = read(&|bytes| bytes[52] = kind).map(|packet| packet.kind);
        let known = Kind::ALL.into_iter().find(|known| *known as u8 == kind);
        assert_eq!(read, known.ok_or(Malformed::Field));
    }
    for kind in Kind::ALL {
        let needs_mode = matches!(kind, Kind::Acquire | Kind::Move | Kind::Enrol);
        for flags in 0..=u8::MAX {
            let good = flags < 0x40 && flags & 3 != 2 && (flags & 3 != 0 || !needs_mode);
            let read = read(&|bytes| (bytes[52], bytes[53]) = (kind as u8, flags));
            assert_eq!(
                read.map(|packet| packet.flags),
                if good { Ok(flags) } else { Err(Malformed::Field) },
                "{kind:?}"
            );
        }
    }
    assert_eq!(read(&|bytes| bytes[53] = 1 | GRANTED | BUSY).map(|packet| packet.mode()), Ok(Some(LockMode::Shared)));
}

#[test]
fn packets_are_at_most_so_large() {
    let most = MAX_BYTES - HEADER;
    let bytes = datagram(&example(), &vec![1; most - 8], Some(&KEY));
    assert_eq!(bytes.len(), MAX_BYTES);
    assert!(parse(&bytes, Some(&KEY)).is_ok());
    for body in [vec![1; most], vec![1; 7]] {
        let refused = std::panic::catch_unwind(|| datagram(&example(), &body, None));
        let message = refused.expect_err("it is too long, or no words");
        let message = message.downcast_ref::<String>().expect("a message");
        assert_eq!(*message, format!("a body of {} bytes", body.len()));
    }
    let mut bytes = example().header(0, None).to_vec();
    bytes.resize(MAX_BYTES + 8, 0);
    bytes[28..30].copy_from_slice(&(most as u16 + 8).to_le_bytes());
    assert_eq!(parse(&bytes, None), Err(Malformed::Length));
}

#[test]
fn waiters_survive_the_wire() {
    let waiter = |number: u16| Waiter {
        machine: Machine(number + 1),
        session: u32::from(number) << 16 | 5,
        request: u64::from(number) << 32 | 7,
        mode: if number.is_multiple_of(2) { LockMode::Shared } else { LockMode::Exclusive },
    };
    let waiters: Vec<Waiter> = (0..Waiter::A_PACKET as u16).map(waiter).collect();
    let sent = waiters_to_body(&waiters);
    assert_eq!(&sent[16..32], &[2, 0, 3, 0, 5, 0, 1, 0, 7, 0, 0, 0, 1, 0, 0, 0]);
    let bytes = datagram(&example(), &sent, Some(&KEY));
    assert!(bytes.len() <= MAX_BYTES && bytes.len() + Waiter::BYTES > MAX_BYTES);
    let read = body(&bytes, Some(&KEY)).expect("a good body");
    assert_eq!(waiters_of_body(read), Ok(waiters));
    assert_eq!(waiters_of_body(&[]), Ok(Vec::new()));
    assert_eq!(waiters_of_body(&sent[..24]), Err(Malformed::Length));
    for (at, value) in [(2, 0), (2, 2), (2, 4), (3, 1)] {
        let mut wrong = sent.clone();
        wrong[16 + at] = value;
        assert_eq!(waiters_of_body(&wrong), Err(Malformed::Field), "byte {at} is {value}");
    }
}

#[test]
fn bodies_without_room_for_a_tag_are_refused() {
    let header = example().header(0, None);
    assert_eq!(body(&header, None), Ok(&[][..]));
    assert_eq!(body(&[], None), Ok(&[][..]), "shorter than a header: parse has refused it");
    assert_eq!(body(&[&header[..], &[0; 4]].concat(), None), Err(Malformed::Length));
    assert_eq!(body(&[&header[..], &[1; 8]].concat(), None), Err(Malformed::Tag));
}

#[test]
fn problems_have_numbers() {
    for number in 0..10 {
        assert_eq!(
            Problem::of_number(number).map(|problem| problem as u64),
            (1..=8).contains(&number).then_some(number)
        );
    }
}
