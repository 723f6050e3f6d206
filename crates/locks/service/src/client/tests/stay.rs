//! Locks that stay with a session when they are given back.

use super::*;

fn staying(daemon: &Daemon, most_stay: usize) -> Locks {
    // Longer than the test; it is cut to a lease, which is why that is long too.
    let options = Options { stay: Duration::from_secs(60), most_stay, ..Options::default() };
    Locks::connect_with(&daemon.address.to_string(), options).unwrap()
}

fn daemon() -> Daemon {
    Daemon::at("127.0.0.1:0".parse().unwrap(), None, 60_000)
}

#[test]
fn a_lock_that_stays_is_taken_again_without_a_packet_and_others_get_it_as_soon_as_they_ask() {
    let daemon = daemon();
    let (one, two) = (staying(&daemon, 1000), daemon.locks());
    let mut token = one.exclusive(17).acquire().unwrap().token();
    let sent = one.counters().sent;
    for _ in 0..100 {
        let guard = one.exclusive(17).acquire().unwrap();
        assert!(guard.token() > token, "tokens grow");
        token = guard.token();
        drop(guard);
        drop(one.shared(17).acquire().unwrap());
    }
    assert_eq!(one.counters().sent, sent);
    // Nobody holds it: who does not wait gets it too.
    let guard = two.exclusive(17).try_acquire().unwrap();
    assert!(guard.token() > token);
    assert!(matches!(one.exclusive(17).try_acquire(), Err(LockError::Busy(LockName::Number(17)))));
    drop(guard);
    // And so does who comes after the session has ended in good order.
    drop(one.exclusive(18).acquire());
    drop(one);
    assert!(two.exclusive(18).timeout(LONG).acquire().is_ok());
}

#[test]
fn no_more_locks_stay_than_the_session_may_keep() {
    let daemon = daemon();
    let (one, two) = (staying(&daemon, 10), daemon.locks());
    let before = one.counters();
    (0..100).for_each(|lock| drop(one.exclusive(lock).acquire().unwrap()));
    let stays = || one.0.shared.core().node.idle_agents().len();
    assert!((1..=10).contains(&stays()), "{}", stays());
    (0..100).for_each(|lock| drop(two.exclusive(lock).timeout(LONG).acquire().unwrap()));
    let moved = Instant::now();
    while stays() > 0 {
        assert!(moved.elapsed() < LONG, "they have gone where they were asked for");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(one.counters().local == before.local, "each was asked for once");
}
