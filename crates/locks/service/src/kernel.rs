//! The decider in the kernel's data plane: eBPF programs at XDP or at TC ingress.
//!
//! The programs are hardware/xdp, written in C; what is loaded here is their committed object, so users need no
//! compiler. Locks lie in a map that is mapped into this process too. So there are two deciders over the same words:
//! the programs, and the Rust one over [`KernelDecider::words`]. The programs decide on what they can also send.
//! Everything else (control packets, what concerns the registry, machines that no attached interface leads to, IP
//! fragments, IPv6, a word that changes too often) they leave, as it came and undecided, to the UDP socket of the
//! port, where user space decides on it. *Invariant*: a packet is decided once, here or there, and both meet in one
//! compare-and-swap.
//!
//! So a process that serves the port as if there were no kernel decider is right; with one, it sees few packets.
//! Beyond that it has to tell who takes part ([`KernelDecider::admit`], [`KernelDecider::dismiss`]).
//!
//! What interfaces, machines and keys there are is told before or while it runs; settings only before, because the
//! verifier takes them as constants and removes what they leave unused.
//!
//! | module | idea |
//! |---|---|
//! | [`layout`] | values of maps, byte by byte |
//! | [`words`] | the locks, mapped into this process |
//! | [`counters`] | what the programs count |
//! | [`interface`] | network interfaces |
//! | `features` | whether frames can leave by an interface |
//! | [`error`] | what can go wrong, and what to do |

pub mod counters;
pub mod error;
mod features;
pub mod interface;
pub mod layout;
pub mod words;

use crate::kernel::counters::Counters;
use crate::kernel::error::KernelError;
use crate::kernel::layout::{Arrival, MachineEntry, SettingsEntry, Source};
use crate::kernel::words::Words;
use aya::maps::xdp::DevMapHash;
use aya::maps::{Array, HashMap, Map, MapData, PerCpuArray};
use aya::programs::xdp::XdpLinkId;
use aya::programs::{Program, ProgramError, SchedClassifier, TcAttachType, Xdp, XdpMode, tc};
use aya::util::KernelVersion;
use aya::{Ebpf, EbpfLoader};
use lockwork_lock_protocol::decider::{Settings, Wide};
use lockwork_lock_protocol::packet::Key;
use lockwork_lock_protocol::word::Machine;
use std::net::{Ipv4Addr, SocketAddr};

/// The programs that are attached.
const OBJECT: &[u8] = aya::include_bytes_aligned!("../../../../hardware/xdp/lockwork.bpf.o");
/// An interface stands twice in the map of ports, so that a broadcast sends two copies.
const TWIN: u32 = 1 << 31;
/// How many interfaces there is room for.
pub const MAX_INTERFACES: usize = 32;

/// What is fixed before programs are loaded.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How many locks there are; 16 bytes each.
    pub locks: u32,
    /// UDP port of the decider.
    pub port: u16,
    /// Only packets to this address are decided on; `None`: to any.
    pub address: Option<Ipv4Addr>,
    /// Packets about locks beyond those are left to user space.
    pub beyond: bool,
    /// Settings of the decider.
    pub settings: Settings,
    /// The cluster's key.
    pub key: Option<Key>,
}

/// Where in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Before the kernel makes a packet of a frame: the fastest, if the driver has it.
    Xdp,
    /// Ingress of traffic control: on every interface.
    Tc,
}

impl std::fmt::Display for Hook {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(if *self == Self::Xdp { "XDP" } else { "TC ingress" })
    }
}

/// How an interface came to be attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// XDP in the driver.
    Native,
    /// XDP behind the driver, about as fast as TC; and why it is not native.
    Generic(String),
    /// TC ingress.
    Tc,
}

impl Mode {
    /// What it is, without why.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Native => "native XDP",
            Self::Generic(_) => "generic XDP",
            Self::Tc => "TC ingress",
        }
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.name())?;
        if let Self::Generic(why) = self { write!(out, " ({why})") } else { Ok(()) }
    }
}

/// An XDP program on an interface of [`KernelDecider::attached`].
struct XdpLink {
    interface: String,
    ifindex: u32,
    program: &'static str,
    link: XdpLinkId,
}

/// An attached interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Name.
    pub interface: String,
    /// Index.
    pub ifindex: u32,
    /// How.
    pub mode: Mode,
}

/// Loaded programs and their maps. Dropping it detaches them; the words live as long as somebody has them.
pub struct KernelDecider {
    ebpf: Ebpf,
    words: Words,
    /// Programs name maps by descriptors until they are loaded, so it stays open.
    _locks: MapData,
    machines: Array<MapData, MachineEntry>,
    arrivals: HashMap<MapData, Source, Arrival>,
    ports: DevMapHash<MapData>,
    counters: PerCpuArray<MapData, u64>,
    attached: Vec<Attached>,
    /// Programs that run natively.
    native: Vec<XdpLink>,
}

impl std::fmt::Debug for KernelDecider {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("KernelDecider").field("words", &self.words).field("attached", &self.attached).finish()
    }
}

impl KernelDecider {
    /// Loads the programs; no packet passes them before [`Self::attach`]. The registry is there, machines are not.
    ///
    /// # Errors
    /// [`KernelError::NoPermission`] without the rights of root (CAP_BPF and CAP_NET_ADMIN),
    /// [`KernelError::Locks`] for no lock, [`KernelError::Load`] if the kernel refuses.
    pub fn load(options: &Options) -> Result<Self, KernelError> {
        Self::load_object(options, OBJECT)
    }

    /// The same with another object that has these programs and maps, aligned to 8 bytes.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_object(options: &Options, object: &[u8]) -> Result<Self, KernelError> {
        if options.locks == 0 {
            return Err(KernelError::Locks);
        }
        let settings = SettingsEntry::of(options);
        let mut ebpf = EbpfLoader::new()
            .override_global("settings", &settings, true)
            .map_max_entries("locks", options.locks)
            .load(object)
            .map_err(|error| KernelError::load_object(options.locks, error))?;
        let mut map = |name: &'static str| ebpf.take_map(name).ok_or_else(|| KernelError::load(name, "no such map"));
        let Map::Array(locks) = map("locks")? else {
            return Err(KernelError::load("locks", "not an array"));
        };
        let words = Words::map(&locks, options.locks).map_err(|error| KernelError::load("locks", error))?;
        let mut decider = Self {
            words,
            _locks: locks,
            machines: map("machines")?.try_into().map_err(|error| KernelError::load("machines", error))?,
            arrivals: map("arrivals")?.try_into().map_err(|error| KernelError::load("arrivals", error))?,
            ports: map("ports")?.try_into().map_err(|error| KernelError::load("ports", error))?,
            counters: map("counters")?.try_into().map_err(|error| KernelError::load("counters", error))?,
            ebpf,
            attached: Vec::new(),
            native: Vec::new(),
        };
        decider.load_program("lockwork_copy")?;
        decider.set_machine(Machine::REGISTRY, MachineEntry::there(Machine::REGISTRY_SESSION))?;
        Ok(decider)
    }

    /// Has the kernel verify and compile a program, unless it has. [`Self::attach`] does this for those that it needs.
    ///
    /// # Errors
    /// [`KernelError::NoPermission`], [`KernelError::Load`].
    pub fn load_program(&mut self, name: &str) -> Result<(), KernelError> {
        let loaded = match self.ebpf.program_mut(name) {
            Some(Program::Xdp(program)) => program.load(),
            Some(Program::SchedClassifier(program)) => program.load(),
            _ => return Err(KernelError::load(name, "no such program")),
        };
        match loaded {
            Ok(()) | Err(ProgramError::AlreadyLoaded) => Ok(()),
            Err(error) => Err(KernelError::load(name, error)),
        }
    }

    /// Attaches to an interface: from now on its packets are decided on. XDP is native if the driver has it and frames
    /// can leave by the interface; else generic, and then on all interfaces, because a native program cannot send to an
    /// interface that is generic for want of these.
    ///
    /// # Errors
    /// [`KernelError::NoInterface`], [`KernelError::Twice`], [`KernelError::Busy`] if another XDP program is there,
    /// [`KernelError::Attach`]. None of them leaves anything attached.
    pub fn attach(&mut self, hook: Hook, interface: &str) -> Result<Attached, KernelError> {
        let ifindex = interface::index(interface)?;
        if self.attached.iter().any(|attached| attached.ifindex == ifindex) {
            return Err(KernelError::Twice { interface: interface.into() });
        }
        if self.attached.len() == MAX_INTERFACES {
            return Err(KernelError::attach(interface, format!("there are {MAX_INTERFACES} already")));
        }
        self.open_port(ifindex).map_err(|error| KernelError::attach(interface, error))?;
        let mode = match hook {
            Hook::Xdp => self.attach_xdp(interface, ifindex),
            Hook::Tc => self.attach_tc(interface),
        };
        let mode = mode.inspect_err(|_| self.close_port(ifindex))?;
        let attached = Attached { interface: interface.into(), ifindex, mode };
        self.attached.push(attached.clone());
        Ok(attached)
    }

    /// The interfaces that it is attached to.
    #[must_use]
    pub fn attached(&self) -> &[Attached] {
        &self.attached
    }

    fn attach_xdp(&mut self, interface: &str, ifindex: u32) -> Result<Mode, KernelError> {
        // XDP_TX over veth loses frames unless the other end has an XDP program; redirection needs only a queue there.
        let veth = interface::driver(interface).is_some_and(|driver| driver == "veth");
        let name = if veth { "lockwork_xdp_redirecting" } else { "lockwork_xdp" };
        self.load_program(name)?;
        let program: &mut Xdp = self.program_mut(name)?;
        let why = match program.attach_to_if_index(ifindex, XdpMode::Driver) {
            Ok(link) => match self.keeps_from_native(interface, ifindex, veth) {
                None => {
                    self.native.push(XdpLink { interface: interface.into(), ifindex, program: name, link });
                    return Ok(Mode::Native);
                }
                Some(why) => {
                    let program: &mut Xdp = self.program_mut(name)?;
                    program.detach(link).map_err(|error| KernelError::attach(interface, error))?;
                    why
                }
            },
            Err(error) => match error::errno(&error) {
                Some(libc::EBUSY) => return Err(KernelError::Busy { interface: interface.into() }),
                Some(libc::EOPNOTSUPP) => "the driver has no native XDP".into(),
                _ => format!("the driver refuses native XDP: {}", error::reason(&error)),
            },
        };
        self.attach_generic(name, interface, ifindex, &why)?;
        for XdpLink { interface: other, ifindex, program: name, link } in std::mem::take(&mut self.native) {
            let program: &mut Xdp = self.program_mut(name)?;
            program.detach(link).map_err(|error| KernelError::attach(&other, error))?;
            let why = format!("as on {interface}");
            self.attach_generic(name, &other, ifindex, &why)?;
            let attached = self.attached.iter_mut().find(|attached| attached.ifindex == ifindex);
            attached.into_iter().for_each(|attached| attached.mode = Mode::Generic(why.clone()));
        }
        Ok(Mode::Generic(why))
    }

    /// Why an interface must not have the native program that it has just got.
    fn keeps_from_native(&self, interface: &str, ifindex: u32, veth: bool) -> Option<String> {
        if let Some(other) = self.attached.iter().find(|other| matches!(other.mode, Mode::Generic(_))) {
            return Some(format!("as on {}", other.interface));
        }
        match veth.then(|| features::transmits(ifindex))? {
            Some(true) => None,
            Some(false) => Some(
                "natively the kernel would drop what is sent, because the other end of this veth has neither GRO nor an \
                 XDP program: 'ethtool -K PEER gro on' there, and start again"
                    .into(),
            ),
            None => {
                tracing::warn!(
                    "{interface} is a veth; if its other end has neither GRO nor an XDP program, the \
                     kernel drops what is sent: 'ethtool -K PEER gro on' there, or use --tc"
                );
                None
            }
        }
    }

    fn attach_generic(&mut self, name: &str, interface: &str, ifindex: u32, why: &str) -> Result<(), KernelError> {
        let program: &mut Xdp = self.program_mut(name)?;
        match program.attach_to_if_index(ifindex, XdpMode::Skb) {
            Ok(_) => Ok(()),
            Err(error) if error::errno(&error) == Some(libc::EBUSY) => {
                Err(KernelError::Busy { interface: interface.into() })
            }
            Err(error) => {
                let both = format!("native: {why}; generic: {}", error::reason(&error));
                Err(KernelError::attach(interface, both))
            }
        }
    }

    fn attach_tc(&mut self, interface: &str) -> Result<Mode, KernelError> {
        let name = "lockwork_tc";
        if !KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(6, 6, 0)) {
            // Older kernels need the queueing discipline clsact; that it is there already is no error.
            let _ = tc::qdisc_add_clsact(interface);
        }
        // Their filters outlive a process that was killed, and one that is left would decide before ours, over words
        // that nobody has any more. That there is none is no error either.
        let _ = tc::qdisc_detach_program(interface, TcAttachType::Ingress, name);
        self.load_program(name)?;
        let program: &mut SchedClassifier = self.program_mut(name)?;
        let attached = program.attach(interface, TcAttachType::Ingress);
        attached.map_err(|error| KernelError::attach(interface, error))?;
        Ok(Mode::Tc)
    }

    /// A program, for the kernel's program test.
    ///
    /// # Errors
    /// [`KernelError::Load`] if the object has none of that name and type.
    pub fn program<'a, P>(&'a self, name: &str) -> Result<&'a P, KernelError>
    where
        &'a P: TryFrom<&'a Program>,
    {
        let program = self.ebpf.program(name).and_then(|program| program.try_into().ok());
        program.ok_or_else(|| KernelError::load(name, "no such program"))
    }

    /// A map that is not this type's own, for tests.
    ///
    /// # Errors
    /// [`KernelError::Load`] if the object has none of that name and type.
    pub fn take_map<M: TryFrom<Map>>(&mut self, name: &str) -> Result<M, KernelError> {
        let map = self.ebpf.take_map(name).and_then(|map| map.try_into().ok());
        map.ok_or_else(|| KernelError::load(name, "no such map"))
    }

    fn program_mut<'a, P>(&'a mut self, name: &str) -> Result<&'a mut P, KernelError>
    where
        &'a mut P: TryFrom<&'a mut Program>,
    {
        let program = self.ebpf.program_mut(name).and_then(|program| program.try_into().ok());
        program.ok_or_else(|| KernelError::load(name, "no such program"))
    }

    /// Lets packets out through an interface without deciding on what comes in there. [`Self::attach`] does this too.
    ///
    /// # Errors
    /// [`KernelError::Map`].
    pub fn open_port(&mut self, ifindex: u32) -> Result<(), KernelError> {
        let copy = self.ebpf.program("lockwork_copy").and_then(|program| <&Xdp>::try_from(program).ok());
        let copy = copy.ok_or_else(|| KernelError::load("lockwork_copy", "no such program"))?;
        let fd = copy.fd().map_err(|error| KernelError::load("lockwork_copy", error))?;
        for key in [ifindex, ifindex | TWIN] {
            self.ports.insert(key, ifindex, Some(fd), 0).map_err(|error| KernelError::map("ports", error))?;
        }
        Ok(())
    }

    fn close_port(&mut self, ifindex: u32) {
        for key in [ifindex, ifindex | TWIN] {
            // It may not be there; then nothing is to be closed.
            let _ = self.ports.remove(key);
        }
    }

    /// The locks: a [`Store`](lockwork_lock_protocol::decider::Store) over the very words that the programs decide on.
    #[must_use]
    pub fn words(&self) -> Wide<Words> {
        Wide(self.words.clone())
    }

    /// Lets a machine take part. `address` is where its control packet came from; if an attached interface leads
    /// there, the programs send to it from now on, and `true` is given. Otherwise what is for it is left to user
    /// space.
    ///
    /// To be called again when it renews its session: the way to it may have changed. If nothing has, nothing is
    /// written.
    ///
    /// # Errors
    /// [`KernelError::Map`].
    pub fn admit(&mut self, machine: Machine, session: u32, address: SocketAddr) -> Result<bool, KernelError> {
        let arrival = self.arrival(address)?;
        let known = arrival.filter(|arrival| self.attached.iter().any(|port| port.ifindex == arrival.ifindex));
        let entry = match (known, address) {
            (Some(arrival), SocketAddr::V4(address)) => MachineEntry::reached(session, address, &arrival),
            _ => MachineEntry::there(session),
        };
        let index = u32::from(machine.0);
        let old = self.machines.get(&index, 0).map_err(|error| KernelError::map("machines", error))?;
        if old != entry {
            // Entries are not written at once. Meanwhile nobody is to see the new session with the old address; and
            // one whose session goes on is left to user space, rather than told that it has ended.
            let goes_on = old.alive == 1 && old.session == session;
            let meanwhile = if goes_on { MachineEntry::there(session) } else { MachineEntry::default() };
            self.set_machine(machine, meanwhile)?;
            self.set_machine(machine, entry)?;
        }
        Ok(entry.ifindex != 0)
    }

    /// The machine is gone. Packets that are for its agents are left to user space from now on.
    ///
    /// # Errors
    /// [`KernelError::Map`].
    pub fn dismiss(&mut self, machine: Machine) -> Result<(), KernelError> {
        self.set_machine(machine, MachineEntry::default())
    }

    /// Writes a machine's entry.
    ///
    /// # Errors
    /// [`KernelError::Map`].
    pub fn set_machine(&mut self, machine: Machine, entry: MachineEntry) -> Result<(), KernelError> {
        self.machines.set(u32::from(machine.0), entry, 0).map_err(|error| KernelError::map("machines", error))
    }

    /// What the frame of the last control packet from an address told, if the programs have seen one.
    ///
    /// # Errors
    /// [`KernelError::Map`].
    pub fn arrival(&self, address: SocketAddr) -> Result<Option<Arrival>, KernelError> {
        let SocketAddr::V4(address) = address else { return Ok(None) };
        match self.arrivals.get(&Source::of(address), 0) {
            Ok(arrival) => Ok(Some(arrival)),
            Err(aya::maps::MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(KernelError::map("arrivals", error)),
        }
    }

    /// What was counted since it was loaded, on all processors.
    ///
    /// # Errors
    /// [`KernelError::Map`].
    pub fn counters(&self) -> Result<Counters, KernelError> {
        let mut counters = Counters::default();
        for (index, sum) in (0..).zip(counters.0.iter_mut()) {
            let values = self.counters.get(&index, 0).map_err(|error| KernelError::map("counters", error))?;
            *sum = values.iter().sum();
        }
        Ok(counters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::{Network, NetworkError};
    use aya::programs::tc::{NlOptions, TcAttachOptions, TcError};
    use lockwork_testkit::or_skip;

    #[test]
    fn privileged_a_filter_that_a_killed_process_left_is_removed() {
        let Some(network) = or_skip(Network::new(1), NetworkError::is_unavailable) else { return };
        let port = Network::port(1);
        let settings = Settings { writers_first: false };
        let options = Options { locks: 1, port: 7600, address: None, beyond: false, settings, key: None };
        let name = "lockwork_tc";
        let work = || {
            let mut killed = KernelDecider::load(&options).expect("as root");
            killed.load_program(name).expect("as root");
            tc::qdisc_add_clsact(&port).expect("it has none");
            let program: &mut SchedClassifier = killed.program_mut(name).expect("it is loaded");
            // As kernels before 6.6 do it.
            let netlink = TcAttachOptions::Netlink(NlOptions::default());
            program.attach_with_options(&port, TcAttachType::Ingress, netlink).expect("it has clsact");
            std::mem::forget(killed);
            let mut next = KernelDecider::load(&options).expect("as root");
            assert_eq!(next.attach(Hook::Tc, &port).expect("as root").mode, Mode::Tc);
            let left = tc::qdisc_detach_program(&port, TcAttachType::Ingress, name);
            let none = matches!(&left, Err(TcError::IoError(error)) if error.kind() == std::io::ErrorKind::NotFound);
            assert!(none, "the filter is still there: {left:?}");
        };
        network.switch.within(work).expect("it is there");
    }
}
