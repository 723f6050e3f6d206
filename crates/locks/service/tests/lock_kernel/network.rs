//! End to end: machines in network namespaces of their own, the decider attached to the interfaces between them.
//!
//! Namespaces have no names: they belong to threads and sockets, so nothing is left behind, however a test ends. The
//! Rust decider goes along as a model, and tells what each machine has to receive.

use crate::{KEY, PORT, ip, load, options};
use lockwork_lock_protocol::decider::{Sessions, Settings, Store, To, Wide, WideLock, decide};
use lockwork_lock_protocol::packet::{Key, Kind, Packet, datagram, parse};
use lockwork_lock_protocol::word::{Machine, State, Word};
use lockwork_locks::kernel::error::KernelError;
use lockwork_locks::kernel::{Hook, KernelDecider, Mode};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const LOCKS: u32 = 8;
const TIMEOUT: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_millis(50);

fn unshare() {
    // SAFETY: only this thread leaves its network.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "{}", std::io::Error::last_os_error());
}

/// Turns receive offload on: veth takes frames from XDP programs only into a queue that somebody polls.
fn receive_offload(interface: &str) {
    const ETHTOOL_SGRO: u32 = 0x2c;
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    let mut value = [ETHTOOL_SGRO, 1];
    // SAFETY: a request of this layout, with a name shorter than its room, and data that outlives the call.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
        let done = libc::ioctl(socket.as_raw_fd(), 0x8946, &raw mut request);
        assert_eq!(done, 0, "{interface}: {}", std::io::Error::last_os_error());
    }
}

/// A host behind interface `dN` of this thread's network, with sockets of `machines`. Its own end of the cable takes
/// what XDP sends if it `polls`.
fn host(number: u8, machines: u16, polls: bool) -> Vec<UdpSocket> {
    let (here, there) = (format!("d{number}"), format!("h{number}"));
    let (tell, told) = channel();
    let (go, wait) = channel::<()>();
    std::thread::scope(|scope| {
        let name = there.clone();
        let sockets = scope.spawn(move || {
            unshare();
            // SAFETY: it only asks.
            tell.send(unsafe { libc::gettid() }).expect("somebody listens");
            wait.recv().expect("the interface comes");
            ip(&format!("addr add 10.77.{number}.2/24 dev {name}"));
            ip(&format!("link set {name} up"));
            if polls {
                receive_offload(&name);
            }
            let socket = |_| UdpSocket::bind(format!("10.77.{number}.2:0")).expect("the address is there");
            (0..machines).map(socket).collect::<Vec<_>>()
        });
        let thread = told.recv().expect("it tells");
        ip(&format!("link add {here} type veth peer name {there}"));
        ip(&format!("link set {there} netns {thread}"));
        ip(&format!("addr add 10.77.{number}.1/24 dev {here}"));
        ip(&format!("link set {here} up"));
        receive_offload(&here);
        go.send(()).expect("it waits");
        let sockets = sockets.join().expect("it ends");
        sockets.iter().for_each(|socket| socket.connect(format!("10.77.{number}.1:{PORT}")).expect("an address"));
        sockets
    })
}

/// A buffer for a burst; frames of XDP take a page each.
fn long_queue(socket: &UdpSocket) {
    let bytes: libc::c_int = 16 << 20;
    // SAFETY: an option of this size.
    let done = unsafe {
        let value = (&raw const bytes).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, value, size_of_val(&bytes) as u32)
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

struct Live(BTreeMap<u16, u32>);

impl Sessions for Live {
    fn session(&self, machine: Machine) -> Option<u32> {
        self.0.get(&machine.0).copied()
    }
}

/// Machines 1.. with sockets, a decider with its user space, and the model.
struct Cluster {
    kernel: Option<KernelDecider>,
    user_space: UdpSocket,
    sockets: Vec<UdpSocket>,
    sessions: Live,
    model: Wide<Vec<WideLock>>,
    key: Option<Key>,
}

fn receive(socket: &UdpSocket, key: Option<&Key>, timeout: Duration) -> Option<(Packet, Vec<u8>)> {
    socket.set_read_timeout(Some(timeout)).expect("not zero");
    let mut bytes = [0; 2048];
    match socket.recv(&mut bytes) {
        Ok(length) => {
            let (packet, payload) = parse(&bytes[..length], key).expect("a packet with a right tag");
            Some((packet, payload.to_vec()))
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        Err(error) => panic!("{error}"),
    }
}

impl Cluster {
    /// Every socket joins, as machine 1 and so on.
    fn new(kernel: KernelDecider, sockets: Vec<UdpSocket>, key: Option<Key>) -> Self {
        let user_space = UdpSocket::bind(("0.0.0.0", PORT)).expect("the port is free");
        let sessions = Live(BTreeMap::from([(0, 0)]));
        let model = Wide::<Vec<WideLock>>::new(LOCKS as usize);
        let mut cluster = Self { kernel: Some(kernel), user_space, sockets, sessions, model, key };
        for (number, socket) in (1_u16..).zip(&cluster.sockets) {
            long_queue(socket);
            socket.send(&datagram(&Packet::new(Kind::Join, 0), &[], key.as_ref())).expect("it is sent");
            cluster.user_space.set_read_timeout(Some(TIMEOUT)).expect("not zero");
            let (_, from) = cluster.user_space.recv_from(&mut [0; 2048]).expect("the packet reaches user space");
            let session = 100 * u32::from(number);
            cluster.sessions.0.insert(number, session);
            let kernel = cluster.kernel.as_mut().expect("it is there");
            assert!(kernel.admit(Machine(number), session, from).expect("the map is written"), "machine {number}");
        }
        cluster
    }

    fn packet(&self, kind: Kind, machine: u16, lock: u64, flags: u8) -> Packet {
        let mut packet = Packet::new(kind, lock);
        packet.flags = flags;
        (packet.sender, packet.session) = (Machine(machine), self.sessions.0[&machine]);
        (packet.requester, packet.requester_session) = (packet.sender, packet.session);
        packet
    }

    fn send(&self, packet: &Packet, body: &[u8]) {
        let socket = &self.sockets[usize::from(packet.sender.0) - 1];
        socket.send(&datagram(packet, body, self.key.as_ref())).expect("it is sent");
    }

    /// What each machine has to receive of `packet`.
    fn model(&self, packet: &Packet, payload: &[u8]) -> Vec<(u16, (Packet, Vec<u8>))> {
        let settings = Settings { writers_first: false };
        let outputs = decide(&self.model, &self.sessions, settings, packet);
        let payload = if outputs.payload { payload } else { &[] };
        let to = |to: To| match to {
            To::Source => packet.sender.0,
            To::Machine(machine) => machine.0,
        };
        outputs.packets.into_iter().flatten().map(|(target, packet)| (to(target), (packet, payload.to_vec()))).collect()
    }

    /// Sends a packet and sees that everybody gets what the model says, and nobody more. Gives what the first got.
    fn exchange(&self, packet: &Packet, body: &[u8]) -> Packet {
        let bytes = datagram(packet, body, self.key.as_ref());
        let expected = self.model(packet, &bytes[64..]);
        self.send(packet, body);
        for (machine, expected) in &expected {
            let socket = &self.sockets[usize::from(*machine) - 1];
            let got = receive(socket, self.key.as_ref(), TIMEOUT);
            assert_eq!(got.as_ref(), Some(expected), "machine {machine} after {packet:?}");
        }
        self.nobody_gets_more();
        let words = self.kernel.as_ref().expect("it is there").words();
        assert_eq!(words.load(packet.lock), self.model.load(packet.lock), "after {packet:?}");
        expected[0].1.0
    }

    fn nobody_gets_more(&self) {
        for (number, socket) in (1..).zip(self.sockets.iter()) {
            assert_eq!(receive(socket, self.key.as_ref(), SILENCE), None, "machine {number}");
        }
        assert_eq!(receive(&self.user_space, self.key.as_ref(), SILENCE), None, "user space");
    }

    /// Every way out: back, to another machine behind the same and another interface, two copies behind one and two,
    /// with a payload, to user space.
    fn every_way(&self) {
        let last = self.sockets.len() as u16;
        let grant = self.exchange(&self.packet(Kind::Acquire, 1, 0, 1), &[]);
        assert_eq!((grant.kind, grant.target), (Kind::Grant, Machine(1)));
        for reader in [last, 2, 1] {
            self.exchange(&self.packet(Kind::Acquire, reader, 0, 1), &[]);
        }
        for writer in [last, 2, 1] {
            let asked = self.exchange(&self.packet(Kind::Acquire, writer, 0, 3), &[]);
            assert_eq!((asked.kind, asked.target), (Kind::Acquire, Machine(1)));
        }
        // The agent goes to the last machine, with as long a queue as there can be; the answer to a second copy has
        // none.
        let mut agent = self.packet(Kind::Move, 1, 0, 3);
        agent.target = Machine(last);
        agent.incarnation = self.model.load(0).incarnation;
        let queue: Vec<u8> = (0..1328).map(|byte| byte as u8).collect();
        let moved = self.exchange(&agent, &queue);
        assert_eq!((moved.kind, moved.target), (Kind::Grant, Machine(last)));
        agent.incarnation = 77;
        assert_eq!(self.exchange(&agent, &queue).kind, Kind::Done);
        let mut ack = self.packet(Kind::Ack, last, 0, 3);
        ack.target = Machine(1);
        self.exchange(&ack, &[]);
        let mut unknown = self.packet(Kind::Acquire, 2, 0, 1);
        unknown.session = 1;
        assert_eq!(self.exchange(&unknown, &[]).kind, Kind::Error);
    }

    /// Copies and plain frames mixed as fast as they can be sent: each arrives, as what it has to be.
    fn burst(&self) {
        let last = self.sockets.len() as u16;
        self.exchange(&self.packet(Kind::Acquire, 1, 1, 1), &[]);
        self.exchange(&self.packet(Kind::Acquire, 1, 2, 3), &[]);
        let mut counts = BTreeMap::new();
        for round in 0..60 {
            for (machine, lock, mode) in [(last, 1, 1), (last, 2, 3), (2, 1, 1), (2, 2, 3)] {
                let mut packet = self.packet(Kind::Acquire, machine, lock, mode);
                packet.request = round;
                for (machine, (packet, _)) in self.model(&packet, &[]) {
                    *counts.entry((machine, packet.kind as u8, packet.lock, packet.requester.0)).or_insert(0) += 1;
                }
                self.send(&packet, &[]);
            }
        }
        let mut got = BTreeMap::new();
        for (machine, socket) in (1_u16..).zip(&self.sockets) {
            let wanted: i32 = counts.iter().filter(|((to, ..), _)| *to == machine).map(|(_, count)| count).sum();
            for _ in 0..wanted {
                let Some((packet, _)) = receive(socket, self.key.as_ref(), TIMEOUT) else { break };
                *got.entry((machine, packet.kind as u8, packet.lock, packet.requester.0)).or_insert(0) += 1;
            }
        }
        assert_eq!(got, counts);
        self.nobody_gets_more();
    }

    /// What concerns the registry, or a machine that no interface leads to, reaches user space as it was sent; and so
    /// does everything when the decider is gone.
    fn what_is_left(mut self) {
        let words = self.kernel.as_ref().expect("it is there").words();
        let held = Word { state: State::Shared, machine: Machine::REGISTRY, incarnation: 9 };
        assert!(words.swap(3, words.load(3), held) && self.model.swap(3, Word::NEW, held));
        let mut packet = self.packet(Kind::Acquire, 1, 3, 1);
        self.send(&packet, &[]);
        let got = receive(&self.user_space, self.key.as_ref(), TIMEOUT);
        assert_eq!(got, Some((packet, Vec::new())));
        assert_eq!(words.load(3), held, "user space decides about it");
        let kernel = self.kernel.as_mut().expect("it is there");
        kernel.dismiss(Machine(2)).expect("the map is written");
        self.sessions.0.remove(&2);
        packet.kind = Kind::Ack;
        packet.target = Machine(2);
        assert_eq!(self.exchange(&packet, &[]).kind, Kind::Error);
        self.kernel = None;
        // A child that another test is about to start may have its files for a moment longer.
        let begun = Instant::now();
        let mut got = None;
        while got.is_none() && begun.elapsed() < TIMEOUT {
            self.send(&packet, &[]);
            got = receive(&self.user_space, self.key.as_ref(), SILENCE);
        }
        assert_eq!(got, Some((packet, Vec::new())), "a decider that was dropped is detached");
    }
}

fn end_to_end(hook: Hook, key: Option<Key>) {
    let Some(mut kernel) = load(&options(LOCKS, key, false), None, &[]) else { return };
    unshare();
    let sockets: Vec<UdpSocket> = [host(1, 2, true), host(2, 1, true)].into_iter().flatten().collect();
    for interface in ["d1", "d2"] {
        let attached = kernel.attach(hook, interface).expect("it attaches");
        assert_eq!(attached.mode, if hook == Hook::Xdp { Mode::Native } else { Mode::Tc });
    }
    let cluster = Cluster::new(kernel, sockets, key);
    cluster.every_way();
    cluster.burst();
    cluster.what_is_left();
}

#[test]
fn privileged_machines_in_namespaces_get_what_they_have_to_through_native_xdp() {
    end_to_end(Hook::Xdp, Some(KEY));
}

#[test]
fn privileged_machines_in_namespaces_get_what_they_have_to_through_tc() {
    end_to_end(Hook::Tc, Some(KEY));
}

#[test]
fn privileged_where_the_other_end_would_lose_frames_all_interfaces_are_generic() {
    let Some(mut kernel) = load(&options(LOCKS, None, false), None, &[]) else { return };
    unshare();
    let sockets: Vec<UdpSocket> = [host(1, 2, true), host(2, 1, false)].into_iter().flatten().collect();
    assert_eq!(kernel.attach(Hook::Xdp, "d1").expect("it attaches").mode, Mode::Native);
    let attached = kernel.attach(Hook::Xdp, "d2").expect("it attaches");
    assert!(matches!(&attached.mode, Mode::Generic(why) if why.contains("gro on")), "{attached:?}");
    assert!(kernel.attached().iter().all(|attached| attached.mode.name() == "generic XDP"), "{kernel:?}");
    Cluster::new(kernel, sockets, None).every_way();
}

#[test]
fn privileged_an_interface_without_native_xdp_has_it_generic() {
    let Some(mut kernel) = load(&options(LOCKS, None, false), None, &[]) else { return };
    unshare();
    ip("link set lo up");
    let attached = kernel.attach(Hook::Xdp, "lo").expect("it attaches");
    assert!(matches!(attached.mode, Mode::Generic(_)), "{attached:?}");
    let socket = |_| {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.connect(("127.0.0.1", PORT)).expect("an address");
        socket
    };
    let cluster = Cluster::new(kernel, (0..3).map(socket).collect(), None);
    cluster.every_way();
    cluster.burst();
}

#[test]
fn privileged_what_cannot_be_attached_is_told_and_leaves_nothing() {
    let Some(mut kernel) = load(&options(1, None, false), None, &[]) else { return };
    let Some(mut second) = load(&options(1, None, false), None, &[]) else { return };
    unshare();
    ip("link set lo up");
    let error = kernel.attach(Hook::Xdp, "eth77").expect_err("there is none").to_string();
    assert!(error.contains("'eth77'") && error.contains("there are: lo"), "{error}");
    kernel.attach(Hook::Xdp, "lo").expect("it attaches");
    let error = second.attach(Hook::Xdp, "lo").expect_err("it has one");
    assert!(matches!(&error, KernelError::Busy { interface } if interface == "lo"), "{error}");
    let error = kernel.attach(Hook::Tc, "lo").expect_err("it is attached");
    assert!(matches!(error, KernelError::Twice { .. }), "{error}");
    drop(kernel);
    second.attach(Hook::Xdp, "lo").expect("the first is gone");
    assert_eq!(second.attached().len(), 1);
}

#[test]
fn privileged_without_rights_the_error_says_which_are_needed() {
    if load(&options(1, None, false), None, &[]).is_none() {
        return;
    }
    // SAFETY: the system call changes this thread alone, which ends with the test.
    let dropped = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
    assert_eq!(dropped, 0);
    let error = KernelDecider::load(&options(1, None, false)).expect_err("nobody may");
    assert!(matches!(error, KernelError::NoPermission { .. }), "{error}");
    assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
}

#[test]
fn no_locks_are_refused_before_anything_is_loaded() {
    assert!(matches!(KernelDecider::load(&options(0, None, false)), Err(KernelError::Locks)));
}
