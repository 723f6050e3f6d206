//! Frames, written a second time: what the programs make is compared with what is made here from the packets of the
//! Rust decider.

use aya::programs::{TestRun, TestRunOptions};
use lockwork_lock_protocol::decider::{Outputs, Sessions, To};
use lockwork_lock_protocol::packet::{Key, Packet};
use lockwork_lock_protocol::word::Machine;
use lockwork_locks::kernel::layout::{Arrival, MachineEntry};
use std::collections::BTreeMap;
use std::net::SocketAddrV4;

/// Bytes of Ethernet, IPv4 and UDP headers.
pub(crate) const BEFORE: usize = 42;

/// One end of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) mac: [u8; 6],
    pub(crate) address: [u8; 4],
    pub(crate) port: u16,
}

/// A frame with `bytes` in UDP.
pub(crate) fn frame(from: End, to: End, bytes: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(BEFORE + bytes.len());
    frame.extend([to.mac, from.mac].concat());
    frame.extend([0x08, 0x00, 0x45, 0x00]);
    frame.extend((28 + bytes.len() as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend([from.address, to.address].concat());
    let words = frame[14..34].chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame.extend([from.port.to_be_bytes(), to.port.to_be_bytes()].concat());
    frame.extend((8 + bytes.len() as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(bytes);
    frame
}

/// The machines of a test.
#[derive(Debug, Default)]
pub(crate) struct Machines(pub(crate) BTreeMap<u16, MachineEntry>);

impl Sessions for Machines {
    fn session(&self, machine: Machine) -> Option<u32> {
        self.0.get(&machine.0).map(|entry| entry.session)
    }

    fn speaks(&self, machine: Machine, session: u32) -> bool {
        machine != Machine::REGISTRY && self.session(machine) == Some(session)
    }
}

/// The decider's end towards a machine.
pub(crate) fn decider_end(entry: &MachineEntry) -> End {
    End { mac: entry.local_mac, address: entry.local_address, port: super::PORT }
}

/// A machine's end.
pub(crate) fn machine_end(entry: &MachineEntry) -> End {
    End { mac: entry.mac, address: entry.address, port: u16::from_be_bytes(entry.port) }
}

impl Machines {
    /// The registry; machines 1 to 3 behind interface 1, 4 and 5 behind another, 6 only for user space.
    pub(crate) fn behind(other: u32) -> Self {
        let mut machines =
            BTreeMap::from([(0, MachineEntry::there(Machine::REGISTRY_SESSION)), (6, MachineEntry::there(600))]);
        for (machine, ifindex) in [(1, 1), (2, 1), (3, 1), (4, other), (5, other)] {
            let arrival = Arrival {
                ifindex,
                local_address: [10, 0, ifindex as u8, 1],
                mac: [2, 0, 0, 0, 0, machine],
                local_mac: [2, 0, 0, 0, 1, ifindex as u8],
            };
            let address = SocketAddrV4::new([10, 0, ifindex as u8, 10 + machine].into(), 9000 + u16::from(machine));
            let entry = MachineEntry::reached(100 * u32::from(machine), address, &arrival);
            machines.insert(u16::from(machine), entry);
        }
        Self(machines)
    }

    /// A frame from machine 1's place to the decider.
    pub(crate) fn arriving(&self, bytes: &[u8]) -> Vec<u8> {
        let entry = &self.0[&1];
        frame(machine_end(entry), decider_end(entry), bytes)
    }

    fn reached(&self, machine: Machine) -> Option<&MachineEntry> {
        self.0.get(&machine.0).filter(|entry| entry.ifindex != 0)
    }

    /// The frames that a decider sends, with the interfaces that they leave through, or `None` if it leaves the
    /// packet to user space.
    pub(crate) fn frames(
        &self,
        outputs: &Outputs,
        came: &[u8],
        payload: &[u8],
        key: Option<&Key>,
    ) -> Option<Vec<(u32, Vec<u8>)>> {
        let payload = if outputs.payload { payload } else { &[] };
        let bytes = |packet: &Packet| [&packet.header(payload.len(), key)[..], payload].concat();
        let sent = outputs.packets.iter().flatten().map(|(to, packet)| match to {
            To::Source => {
                let from = End {
                    mac: came[..6].try_into().expect("six bytes"),
                    address: came[30..34].try_into().expect("four bytes"),
                    port: super::PORT,
                };
                let to = End {
                    mac: came[6..12].try_into().expect("six bytes"),
                    address: came[26..30].try_into().expect("four bytes"),
                    port: u16::from_be_bytes([came[34], came[35]]),
                };
                Some((1, frame(from, to, &bytes(packet))))
            }
            To::Machine(machine) => {
                let entry = self.reached(*machine)?;
                Some((entry.ifindex, frame(decider_end(entry), machine_end(entry), &bytes(packet))))
            }
        });
        sent.collect()
    }
}

/// Lets a program see a frame, as if it came in by interface 1, and gives what it returns and leaves.
pub(crate) fn run<P>(program: &P, frame: &[u8]) -> (u32, Vec<u8>)
where
    P: for<'a> TestRun<Opts<'a> = TestRunOptions<'a>, Result = aya::TestRunResult>,
{
    let mut out = vec![0; 2048];
    let options = TestRunOptions { data_in: Some(frame), data_out: Some(&mut out), ..TestRunOptions::new() };
    let result = program.test_run(options).expect("the program test runs");
    out.truncate(result.data_size_out as usize);
    (result.return_value, out)
}
