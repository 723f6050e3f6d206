//! Golden vectors as tests of the P4 program: STF, the format of the P4 compiler's own tests for the v1model switch.
//!
//! Frames are Ethernet, IPv4 and UDP around the packets of a scenario. A switch's registers cannot be set from STF, so
//! only scenarios that begin with new locks can be written. All packets come in at one port, because the runner keeps
//! no order among ports; machines' answers leave by a port each.

use crate::decider::To;
use crate::vectors::{Scenario, Setup};
use crate::word::{Machine, Profile};
use std::fmt::Write;

/// Where everything comes in, and where answers to the source leave.
const UPLINK: u16 = 9;
/// The decider's last byte in addresses.
const DECIDER: u8 = 254;
/// That of senders without a session.
const STRANGER: u8 = 253;
/// That of the registry, whose number 0 would make no address.
const REGISTRY: u8 = 252;
/// UDP ports are this and the machine's number.
const PORTS: u16 = 7000;

/// Addresses of Ethernet, IPv4 and UDP.
#[derive(Clone, Copy)]
struct Address([u8; 6], [u8; 4], u16);

const fn host(last: u8) -> Address {
    Address([2, 0, 0, 0, 0, last], [10, 0, 0, last], PORTS + last as u16)
}

fn address(machine: Machine) -> Address {
    host(if machine == Machine::REGISTRY { REGISTRY } else { machine.0 as u8 })
}

fn frame(from: Address, to: Address, datagram: &[u8]) -> Vec<u8> {
    let udp_bytes = 8 + datagram.len() as u16;
    let mut ip = [0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    ip[2..4].copy_from_slice(&(20 + udp_bytes).to_be_bytes());
    ip[12..16].copy_from_slice(&from.1);
    ip[16..20].copy_from_slice(&to.1);
    let sum: u32 = ip.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut bytes = [&to.0[..], &from.0, &[8, 0], &ip].concat();
    for field in [from.2, to.2, udp_bytes, 0] {
        bytes.extend_from_slice(&field.to_be_bytes());
    }
    bytes.extend_from_slice(datagram);
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02X}").expect("a string takes any text");
        text
    })
}

/// Table entries for who takes part. Keys are in the order of the wire, which is the little end first.
fn tables(setup: &Setup) -> String {
    let mut text = String::new();
    let first = u8::from(setup.writers_first);
    let mut line = |line: String| text.push_str(&(line + "\n"));
    line(format!("setdefault Decide.settings Decide.configure(locks:{},writers_first:{first})", setup.locks));
    for (machine, session) in [(Machine::REGISTRY, 0)].iter().chain(&setup.sessions) {
        let Address(ethernet, ipv4, udp) = address(*machine);
        let session = format!("0x{:08X}", session.swap_bytes());
        let port = machine.0;
        let machine = format!("0x{:04X}", machine.0.swap_bytes());
        line(format!("add Decide.senders lock.sender:{machine} lock.session:{session} Decide.sender_is_there()"));
        line(format!(
            "add Decide.requesters lock.requester:{machine} lock.requester_session:{session} Decide.requester_is_there()"
        ));
        line(format!("add Decide.targets lock.target:{machine} Decide.target_is_there()"));
        line(format!("add Decide.agents agent:{machine} Decide.agent_is_there()"));
        line(format!("add Decide.ports destination:{machine} Decide.leave_by(port:{port})"));
        let to = format!("ethernet:0x{},ipv4:0x{},udp:{udp}", hex(&ethernet), hex(&ipv4));
        line(format!("add Address.addresses destination:{machine} Address.to({to})"));
    }
    text
}

/// A multicast group for every pair of requester and agent that a reader's join is sent to.
fn groups(scenario: &Scenario) -> String {
    let pair = |step: &crate::vectors::Step| match step.outputs[..] {
        [(To::Machine(requester), _), (To::Machine(agent), _)] => Some((requester.0, agent.0)),
        _ => None,
    };
    let pairs: std::collections::BTreeSet<(u16, u16)> = scenario.steps.iter().filter_map(pair).collect();
    let mut text = String::new();
    for (node, (requester, agent)) in (0..).step_by(2).zip(pairs) {
        let group = requester << 8 | agent;
        // The numbers 1 and 2 are the program's TO_REQUESTER and TO_AGENT.
        write!(
            text,
            "mc_mgrp_create {group}\n\
             mc_node_create 1 {requester}\nmc_node_associate {group} {node}\n\
             mc_node_create 2 {agent}\nmc_node_associate {group} {}\n",
            node + 1
        )
        .expect("a string takes any text");
    }
    text
}

/// The scenario as an STF file; `None` if it is not for a switch: wide, with a key, or with words to begin with.
#[must_use]
pub fn stf(scenario: &Scenario) -> Option<String> {
    let Scenario { title, setup, steps } = scenario;
    let numbers_fit = setup.sessions.iter().all(|(machine, _)| machine.0 < u16::from(REGISTRY));
    if setup.profile != Profile::Lean || setup.key.is_some() || !setup.words.is_empty() || !numbers_fit {
        return None;
    }
    let mut text =
        format!("# Written from the golden vectors by export/stf.rs; a test compares. Do not edit.\n# {title}\n");
    text.push_str(&tables(setup));
    text.push_str(&groups(scenario));
    for step in steps {
        let sender = step.input.get(40..42).map(|bytes| Machine(u16::from_le_bytes([bytes[0], bytes[1]])));
        let known = |machine: &Machine| setup.sessions.iter().any(|(there, _)| there == machine);
        let source = sender.filter(known).map_or(host(STRANGER), address);
        text.push('\n');
        step.comment.lines().for_each(|line| text.push_str(&format!("# {line}\n")));
        text.push_str(&format!("packet {UPLINK} {}\n", hex(&frame(source, host(DECIDER), &step.input))));
        for (to, datagram) in &step.outputs {
            let (port, target) = match to {
                To::Source => (UPLINK, source),
                To::Machine(machine) => (machine.0, address(*machine)),
            };
            text.push_str(&format!("expect {port} {}$\n", hex(&frame(host(DECIDER), target, datagram))));
        }
    }
    Some(text)
}
