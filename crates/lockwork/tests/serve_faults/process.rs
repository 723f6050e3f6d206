//! What a process takes of the machine, as the system tells it, for several tests.

use std::time::{Duration, Instant};

use crate::server::Server;

/// Resident memory of a server, in KiB.
pub(crate) fn resident(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// How many files and connections a server has open.
pub(crate) fn descriptors(server: &Server) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", server.child.id())).unwrap().count()
}

/// Waits for something that has to come.
pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let some = Instant::now() + Duration::from_secs(20);
    while !is() {
        assert!(Instant::now() < some, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
