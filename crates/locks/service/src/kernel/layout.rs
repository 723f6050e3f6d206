//! Values of the maps, byte by byte as in hardware/xdp/maps.h.
//!
//! Addresses and ports are in the order of the network, as they stand in frames; `of` and `reached` are where they
//! are turned.

use crate::kernel::Options;
use aya::Pod;
use std::net::SocketAddrV4;

/// SipHash's initial state, without the key: "somepseudorandomlygeneratedbytes".
const SIP: [u64; 4] = [0x736f_6d65_7073_6575, 0x646f_7261_6e64_6f6d, 0x6c79_6765_6e65_7261, 0x7465_6462_7974_6573];

/// Settings, as the verifier sees them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct SettingsEntry {
    sip: [u64; 4],
    locks: u64,
    address: u32,
    port: u16,
    keyed: u8,
    writers_first: u8,
    beyond: u8,
    zero: [u8; 7],
}

impl SettingsEntry {
    pub(super) fn of(options: &Options) -> Self {
        let half = |key: &[u8; 16], at: usize| u64::from_le_bytes(key[at..at + 8].try_into().expect("eight bytes"));
        let (low, high) = options.key.map_or((0, 0), |key| (half(&key.0, 0), half(&key.0, 8)));
        Self {
            sip: [SIP[0] ^ low, SIP[1] ^ high, SIP[2] ^ low, SIP[3] ^ high],
            locks: options.locks.into(),
            address: options.address.map_or(0, |address| u32::from_ne_bytes(address.octets())),
            port: options.port.to_be(),
            keyed: options.key.is_some().into(),
            writers_first: options.settings.writers_first.into(),
            beyond: options.beyond.into(),
            zero: [0; 7],
        }
    }
}

/// A machine that takes part, and how frames reach it. All zero: it is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MachineEntry {
    /// Its session.
    pub session: u32,
    /// The interface that leads to it; 0: none, so what is for it is left to user space.
    pub ifindex: u32,
    /// The decider's address towards it.
    pub local_address: [u8; 4],
    /// Its address.
    pub address: [u8; 4],
    /// MAC address of it or of the router before it.
    pub mac: [u8; 6],
    /// MAC address of the decider's interface.
    pub local_mac: [u8; 6],
    /// Its port, in the order of the network.
    pub port: [u8; 2],
    /// 1 if it is there.
    pub alive: u16,
}

impl MachineEntry {
    /// A machine that only user space reaches.
    #[must_use]
    pub fn there(session: u32) -> Self {
        Self { session, alive: 1, ..Self::default() }
    }

    /// A machine where a packet came from.
    #[must_use]
    pub fn reached(session: u32, address: SocketAddrV4, arrival: &Arrival) -> Self {
        Self {
            session,
            ifindex: arrival.ifindex,
            local_address: arrival.local_address,
            address: address.ip().octets(),
            mac: arrival.mac,
            local_mac: arrival.local_mac,
            port: address.port().to_be_bytes(),
            alive: 1,
        }
    }
}

/// Where a control packet came from: the key of its [`Arrival`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Source {
    address: [u8; 4],
    port: [u8; 2],
    zero: u16,
}

impl Source {
    pub(super) fn of(address: SocketAddrV4) -> Self {
        Self { address: address.ip().octets(), port: address.port().to_be_bytes(), zero: 0 }
    }
}

/// What a frame tells, and a socket does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Arrival {
    /// The interface that it came in by.
    pub ifindex: u32,
    /// The address that it was sent to.
    pub local_address: [u8; 4],
    /// The sender's MAC address.
    pub mac: [u8; 6],
    /// The MAC address that it was sent to.
    pub local_mac: [u8; 6],
}

// SAFETY: each has C layout, no padding (the sizes below are the sums of their fields), and is valid for all bits.
unsafe impl Pod for SettingsEntry {}
// SAFETY: as above.
unsafe impl Pod for MachineEntry {}
// SAFETY: as above.
unsafe impl Pod for Source {}
// SAFETY: as above.
unsafe impl Pod for Arrival {}

const _: () = assert!(size_of::<SettingsEntry>() == 56);
const _: () = assert!(size_of::<MachineEntry>() == 32);
const _: () = assert!(size_of::<Source>() == 8);
const _: () = assert!(size_of::<Arrival>() == 20);
