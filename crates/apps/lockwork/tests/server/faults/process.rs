//! What a process takes of the machine, as the system tells it, for several tests.

use std::time::{Duration, Instant};

use crate::server::Server;

/// Resident memory of a server, in KiB.
pub(crate) fn resident(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The files and connections that a server has open: the number of each, and what it is.
pub(crate) fn descriptors(server: &Server) -> Vec<String> {
    let folder = std::fs::read_dir(format!("/proc/{}/fd", server.child.id())).unwrap();
    // One that is closed while they are listed is none.
    let one = |path: std::path::PathBuf| {
        let is = std::fs::read_link(&path).ok()?;
        Some(format!("{} {}", path.file_name()?.display(), is.display()))
    };
    let mut open: Vec<String> = folder.filter_map(|entry| one(entry.unwrap().path())).collect();
    open.sort();
    open
}

/// Waits until a server has no more open than before; else says what it has, and what it had.
pub(crate) fn until_no_more(server: &Server, before: &[String]) {
    let some = Instant::now() + Duration::from_secs(20);
    loop {
        let open = descriptors(server);
        if open.len() <= before.len() {
            return;
        }
        assert!(Instant::now() < some, "connections that ended take descriptors: {open:#?}, and before {before:#?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for something that has to come.
pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let some = Instant::now() + Duration::from_secs(20);
    while !is() {
        assert!(Instant::now() < some, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
