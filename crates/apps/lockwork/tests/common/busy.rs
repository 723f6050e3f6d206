//! Whether a server computes, as the system tells it: what is to be ended under way is under way then, however busy the
//! machine is.

use std::time::{Duration, Instant};

use crate::server::Server;

/// The processor time that a server has had, in ticks of 10 ms.
pub(crate) fn ticks(server: &Server) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.child.id())).unwrap();
    // Behind the name, which may be anything, user and system time are the twelfth and the next.
    let fields = stat.rsplit(") ").next().unwrap().split(' ');
    fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

/// Whether it has computed for a fifth of a second since it had had so many ticks; it has a minute for that.
pub(crate) fn is_busy(server: &Server, since: u64, asked: Instant) -> bool {
    let had = ticks(server) - since;
    assert!(asked.elapsed() < Duration::from_secs(60), "the server does nothing: {had} ticks");
    had >= 20
}

/// Waits for that.
pub(crate) fn until_busy(server: &Server, since: u64) {
    let asked = Instant::now();
    while !is_busy(server, since, asked) {
        std::thread::sleep(Duration::from_millis(10));
    }
}
