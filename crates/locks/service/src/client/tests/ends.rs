//! How sessions end, and what must not end or disturb them.

use super::*;
use lockwork_lock_protocol::control::Service;
use lockwork_lock_protocol::packet::{Kind, Packet, datagram, parse};
use lockwork_lock_protocol::word::Profile;
use std::net::UdpSocket;

/// A session with a service that says WELCOME, by this datagram, and then nothing more.
fn welcomed(key: Option<Key>) -> (Locks, UdpSocket, Vec<u8>) {
    let service = UdpSocket::bind("127.0.0.1:0").unwrap();
    service.set_read_timeout(Some(LONG)).unwrap();
    let address = service.local_addr().unwrap();
    let connects = std::thread::spawn(move || {
        let options = Options { key, connect_timeout: LONG, ..Options::default() };
        Locks::connect_with(&address.to_string(), options).unwrap()
    });
    let mut bytes = [0; 1500];
    let (length, from) = service.recv_from(&mut bytes).unwrap();
    let (join, _) = parse(&bytes[..length], key.as_ref()).unwrap();
    let welcome = Packet { kind: Kind::Welcome, requester_session: 7, ..join };
    let is =
        Service { locks: 10, lease_ms: 60_000, profile: Profile::Wide, writers_first: false, names: 0, beyond: false };
    let welcome = datagram(&welcome, &is.to_body(), key.as_ref());
    service.send_to(&welcome, from).unwrap();
    (connects.join().unwrap(), service, welcome)
}

#[test]
fn datagrams_that_are_no_packets_are_counted_and_change_nothing() {
    let key = Key([1; 16]);
    let (locks, service, good) = welcomed(Some(key));
    let client = locks.0.shared.core().endpoint.socket().local_addr().unwrap();
    let from = SocketAddr::from(([127, 0, 0, 1], client.port()));
    assert_eq!(locks.malformed(), 0);
    let mut version = good.clone();
    version[0] ^= 0x55;
    let other_key = datagram(&Packet::new(Kind::Ack, 0), &[], Some(&Key([2; 16])));
    for bad in [&version, &other_key, &good[..20].to_vec(), &Vec::new()] {
        service.send_to(bad, from).unwrap();
    }
    let start = Instant::now();
    while locks.malformed() < 4 {
        assert!(start.elapsed() < LONG, "{}", locks.malformed());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((locks.malformed(), locks.count(), locks.counters().received), (4, 10, 0));
}

/// The shortest of some times that dropping took.
fn shortest<T>(make: impl Fn() -> T) -> Duration {
    let time = || {
        let made = make();
        let start = Instant::now();
        drop(made);
        start.elapsed()
    };
    (0..5).map(|_| time()).min().unwrap()
}

#[test]
fn the_last_of_a_session_is_dropped_without_waiting_for_what_nobody_will_say() {
    let silent = shortest(|| welcomed(None).0);
    assert!(silent < Duration::from_millis(45), "{silent:?}");
    let daemon = Daemon::start();
    let two = daemon.locks();
    // The agent is with the one that leaves, and another one holds.
    let reader = shortest(|| {
        let one = daemon.locks();
        let guard = one.shared(5).acquire().unwrap();
        let other = two.shared(5).timeout(LONG).acquire().unwrap();
        drop(one);
        std::thread::spawn(move || {
            std::thread::sleep(SHORT * 4);
            drop(other);
        });
        guard
    });
    assert!(reader < Duration::from_millis(25), "{reader:?}");
}

#[test]
fn a_forked_child_neither_holds_nor_releases_nor_hangs() {
    let daemon = Daemon::start();
    let (one, two) = (daemon.locks(), daemon.locks());
    let mut guard = one.exclusive(5).acquire().unwrap();
    let waits = Box::pin(two.exclusive(5).acquire_async());
    let mut waits = Some(waits);
    let poll = |waits: &mut Option<Pin<Box<Acquiring>>>| {
        waits.as_mut().unwrap().as_mut().poll(&mut Context::from_waker(Waker::noop()))
    };
    assert!(poll(&mut waits).is_pending());
    // SAFETY: the child allocates, which works after a fork with this C library, and ends without unwinding.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = matches!(one.exclusive(6).try_acquire(), Err(LockError::Forked));
        let told = matches!(poll(&mut waits), Poll::Ready(Err(LockError::Forked)));
        let lost = guard.is_lost() && guard.wait_lost(LONG) && guard.downgrade().is_err();
        drop((waits, guard, one, two));
        // SAFETY: ends this process, and nothing of the parent.
        unsafe { libc::_exit(i32::from(!(refused && told && lost))) };
    }
    assert!(child > 0);
    let (start, mut status) = (Instant::now(), 0);
    // SAFETY: asks for the end of a child that is not waited for elsewhere; writes into a number that is alive.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if start.elapsed() > LONG / 4 {
            // SAFETY: it is our child, and has not been waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(status, 0, "it hangs if it was killed");
    std::thread::sleep(SHORT);
    assert!(poll(&mut waits).is_pending() && !guard.is_lost());
    assert!(matches!(two.exclusive(5).try_acquire(), Err(LockError::Busy(LockName::Number(5)))));
    drop(guard);
    drop(block_on(waits.unwrap()).unwrap());
    drop(one.exclusive(5).timeout(LONG).acquire().unwrap());
}
