//! The daemon on loopback, with packets written by hand.

use super::*;
use crate::plane::InProcess;
use lockwork_lock_protocol::packet::{AGENT, Malformed};
use lockwork_lock_protocol::word::Machine;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};

const KEY: Key = Key([3; 16]);

struct Daemon {
    address: SocketAddr,
    metrics: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Daemon {
    fn start() -> Self {
        let mut options = Options::new("127.0.0.1:0".parse().unwrap());
        options.metrics = Some("127.0.0.1:0".parse().unwrap());
        options.lease_ms = 300;
        options.fresh = true;
        options.key = Some(KEY);
        let mut lockd = Lockd::bind(&options, InProcess::new(100).unwrap()).unwrap();
        let (address, metrics) = (lockd.address().unwrap(), lockd.metrics_address().unwrap());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || lockd.run(&stopped).unwrap());
        Self { address, metrics, stop, thread: Some(thread) }
    }

    fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    fn get(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.metrics).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// The value of a counter, when it has become `value`; it may be refreshed only now and then.
    fn counts(&self, sample: &str, value: u64) {
        let line = format!("lockwork_lockd_{sample} {value}");
        let start = Instant::now();
        loop {
            let text = self.get("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
            if text.lines().any(|found| found == line) {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "no '{line}' in:\n{text}");
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

struct Peer {
    socket: UdpSocket,
    me: (Machine, u32),
}

impl Peer {
    fn join(daemon: &Daemon) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(daemon.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut peer = Self { socket, me: (Machine(0), 0) };
        let nonce = peer.socket.local_addr().unwrap().port().into();
        peer.send(Packet { request: nonce, ..Packet::new(Kind::Join, 0) });
        let (welcome, body) = peer.receive();
        assert!(welcome.kind == Kind::Welcome && welcome.request == nonce, "{welcome:?}");
        assert_eq!(Service::of_body(&body).unwrap().locks, 100);
        peer.me = (welcome.requester, welcome.requester_session);
        peer
    }

    fn send(&self, packet: Packet) {
        let mut packet = Packet { sender: self.me.0, session: self.me.1, ..packet };
        (packet.requester, packet.requester_session) = self.me;
        self.socket.send(&datagram(&packet, &[], Some(&KEY))).unwrap();
    }

    fn receive(&self) -> (Packet, Vec<u8>) {
        let mut buffer = [0; 2000];
        let count = self.socket.recv(&mut buffer).unwrap();
        let (packet, _) = parse(&buffer[..count], Some(&KEY)).unwrap();
        (packet, body(&buffer[..count], Some(&KEY)).unwrap().to_vec())
    }

    /// The next packet of a kind.
    fn next(&self, kind: Kind) -> Packet {
        loop {
            let (packet, _) = self.receive();
            if packet.kind == kind {
                return packet;
            }
        }
    }

    fn acquire(&self, lock: u64, flags: u8) {
        self.send(Packet { flags, request: 9, ..Packet::new(Kind::Acquire, lock) });
    }
}

#[test]
fn a_free_lock_is_granted_and_the_next_request_goes_to_its_agent() {
    let mut daemon = Daemon::start();
    let (one, two) = (Peer::join(&daemon), Peer::join(&daemon));
    one.acquire(7, 3);
    let (grant, _) = one.receive();
    assert!(
        grant.kind == Kind::Grant && grant.has(AGENT) && grant.token % (1 << 23) == 1 << 16 && grant.request == 9,
        "{grant:?}"
    );
    two.acquire(7, 1);
    let (asked, _) = one.receive();
    assert!(asked.kind == Kind::Acquire && asked.requester == two.me.0, "{asked:?}");
    two.acquire(100, 1);
    let (error, _) = two.receive();
    assert!(error.kind == Kind::Error && error.token == Problem::NoSuchLock as u64, "{error:?}");
    daemon.counts("grants_total{mode=\"exclusive\"}", 1);
    daemon.counts("packets_refused_total{problem=\"no_such_lock\"}", 1);
    daemon.counts("machines", 2);
    daemon.stop();
    for peer in [&one, &two] {
        let (over, _) = peer.receive();
        assert!(over.kind == Kind::Error && over.token == Problem::NoSuchSession as u64, "{over:?}");
    }
}

#[test]
fn what_is_no_packet_changes_nothing_and_is_counted_by_cause() {
    let mut daemon = Daemon::start();
    let one = Peer::join(&daemon);
    let good = Packet { flags: 3, sender: one.me.0, session: one.me.1, ..Packet::new(Kind::Acquire, 7) };
    let good = Packet { requester: one.me.0, requester_session: one.me.1, ..good };
    let whole = datagram(&good, &[], Some(&KEY));
    let mut version = whole.clone();
    version[2] = 9;
    let mut field = datagram(&Packet { flags: 2, ..good }, &[], Some(&KEY));
    let wrong = datagram(&good, &[], Some(&Key([4; 16])));
    let none = datagram(&good, &[], None);
    for (bytes, cause) in [
        (&whole[..63], Malformed::Length),
        (&[&whole[..], &[0; 2000]].concat(), Malformed::Length),
        (&[0x55; 64][..28].repeat(3), Malformed::Length),
        (&version, Malformed::Version(9)),
        (&wrong, Malformed::Tag),
        (&none, Malformed::Tag),
        (&field, Malformed::Field),
    ] {
        assert!(parse(bytes, Some(&KEY)).is_err_and(|found| found == cause), "{cause:?}");
        one.socket.send(bytes).unwrap();
    }
    field.truncate(0);
    one.socket.send(&field).unwrap();
    daemon.counts("packets_dropped_total{cause=\"length\"}", 4);
    daemon.counts("packets_dropped_total{cause=\"version\"}", 1);
    daemon.counts("packets_dropped_total{cause=\"tag\"}", 2);
    daemon.counts("packets_dropped_total{cause=\"field\"}", 1);
    daemon.counts("decisions_total", 0);
    one.acquire(7, 3);
    assert_eq!(one.receive().0.incarnation, 1, "the first decision on this lock");
    daemon.stop();
}

#[test]
fn a_machine_that_falls_silent_loses_its_locks() {
    let mut daemon = Daemon::start();
    let (one, two) = (Peer::join(&daemon), Peer::join(&daemon));
    one.acquire(7, 3);
    assert_eq!(one.receive().0.kind, Kind::Grant);
    let start = Instant::now();
    let mut died = None;
    while start.elapsed() < Duration::from_millis(900) {
        two.send(Packet::new(Kind::Renew, 0));
        let (packet, _) = two.receive();
        if packet.kind == Kind::Died {
            died = Some(packet);
            two.send(Packet { request: packet.request, ..Packet::new(Kind::Swept, 0) });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(died.expect("it is told").requester, one.me.0);
    one.acquire(7, 3);
    let (error, _) = one.receive();
    assert_eq!((error.kind, error.token), (Kind::Error, Problem::NoSuchSession as u64));
    two.acquire(7, 3);
    let grant = two.next(Kind::Grant);
    assert_eq!(grant.token % (1 << 23), 2 << 16, "{grant:?}");
    daemon.counts("sessions_expired_total", 1);
    daemon.counts("locks_freed_total", 1);
    daemon.stop();
}

#[test]
fn only_metrics_are_served_over_http() {
    let mut daemon = Daemon::start();
    assert!(daemon.get("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    assert!(daemon.get("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    let text = daemon.get("GET /metrics?x=1 HTTP/1.1\r\n\r\n");
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains(&format!("Content-Length: {}", body.len())));
    for line in body.lines() {
        let sample = line.split(' ').count() == 2 && line.rsplit(' ').next().unwrap().parse::<u64>().is_ok();
        assert!(line.starts_with("# HELP ") || line.starts_with("# TYPE ") || sample, "{line}");
    }
    assert!(daemon.get("HEAD /metrics HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
    daemon.stop();
}

#[test]
fn a_taken_address_and_a_senseless_lease_are_refused_by_name() {
    let daemon = Daemon::start();
    let mut options = Options::new(daemon.address);
    let error = Lockd::bind(&options, InProcess::new(1).unwrap()).unwrap_err().to_string();
    assert!(error.contains(&format!("UDP address {}", daemon.address)), "{error}");
    options.udp.set_port(0);
    options.metrics = Some(daemon.metrics);
    let error = Lockd::bind(&options, InProcess::new(1).unwrap()).unwrap_err().to_string();
    assert!(error.contains("TCP address for metrics"), "{error}");
    options.lease_ms = 0;
    assert!(matches!(Lockd::bind(&options, InProcess::new(1).unwrap()), Err(StartError::Lease(0))));
}

/// A daemon that is killed and started again must not grant what clients of the former still hold.
#[test]
fn a_daemon_that_starts_again_lets_nobody_in_before_old_leases_have_ended() {
    let options = Options { lease_ms: 300, ..Options::new("127.0.0.1:0".parse().unwrap()) };
    let mut lockd = Lockd::bind(&options, InProcess::new(4).unwrap()).unwrap();
    let address = lockd.address().unwrap();
    let (stop, start) = (AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        scope.spawn(|| lockd.run(&stop).unwrap());
        let locks = crate::client::Locks::connect(&address.to_string()).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(290), "{:?}", start.elapsed());
        assert_eq!(locks.exclusive(1).acquire().unwrap().token() % (1 << 23), 1 << 16);
        drop(locks);
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn tokens_of_a_later_daemon_are_larger() {
    let at = |seconds| super::first_token(std::time::UNIX_EPOCH + Duration::from_secs(seconds));
    assert_eq!((at(0), at(1_735_689_600)), (0, 0));
    // A day later, after a grant every 8 us; and a millisecond later.
    assert!(at(1_800_086_400) > at(1_800_000_000) + ((86_400 * 125_000) << 16));
    let later = super::first_token(std::time::UNIX_EPOCH + Duration::from_millis(1_800_000_000_001));
    assert!(later > at(1_800_000_000) && later.is_multiple_of(1 << 16));
    assert!(at(2_800_000_000) < i64::MAX as u64);
}
