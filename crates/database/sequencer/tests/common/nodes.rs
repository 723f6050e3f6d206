//! Nodes that share a journal, for tests.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockwork_engine::EngineKind;
use lockwork_sequencer::io::simulated::SimulatedDisk;
use lockwork_sequencer::journal::simulated::SimulatedJournal;
use lockwork_sequencer::{Error, NodeOptions, Options, RecoveryReport, Role, Sequencer};

use super::engine;

pub(crate) const LEASE: Duration = Duration::from_millis(200);

/// Joins with a disk of its own.
pub(crate) fn join_with(
    journal: &SimulatedJournal,
    name: &str,
    may_lead: bool,
) -> Result<(Sequencer, RecoveryReport), Error> {
    join_as(journal, NodeOptions { may_lead, ..node(name) })
}

/// A node that may lead, and appends digests only when it is asked to.
pub(crate) fn node(name: &str) -> NodeOptions {
    NodeOptions { lease: LEASE, digest_interval: Duration::ZERO, ..NodeOptions::new(name) }
}

pub(crate) fn join_as(journal: &SimulatedJournal, node: NodeOptions) -> Result<(Sequencer, RecoveryReport), Error> {
    join_telling(journal, node, &mut || ())
}

/// The same; `told` is called whenever it has come further.
pub(crate) fn join_telling(
    journal: &SimulatedJournal,
    node: NodeOptions,
    told: &mut dyn FnMut(),
) -> Result<(Sequencer, RecoveryReport), Error> {
    join_remembering(journal, node, Options::default().request_memory, told)
}

/// The same, with so many bytes for request ids.
pub(crate) fn join_remembering(
    journal: &SimulatedJournal,
    node: NodeOptions,
    request_memory: u64,
    told: &mut dyn FnMut(),
) -> Result<(Sequencer, RecoveryReport), Error> {
    let options = Options { checkpoint_bytes: 0, request_memory, ..Options::default() };
    let disk = Arc::new(SimulatedDisk::new(1));
    let journal = Arc::new(journal.clone());
    Sequencer::join(journal, disk, Path::new("/n"), options, node, engine(EngineKind::DETERMINISTIC), &mut |_| told())
}

pub(crate) fn join(journal: &SimulatedJournal, name: &str) -> Sequencer {
    join_with(journal, name, true).unwrap().0
}

/// Waits until a condition holds; fails with the current state if it does not hold for long.
pub(crate) fn until<T>(mut holds: impl FnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        match holds() {
            Ok(found) => return found,
            Err(why) if start.elapsed() > Duration::from_secs(30) => panic!("{why}"),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

pub(crate) fn role(node: &Sequencer) -> Role {
    node.handle().node().unwrap().role
}

pub(crate) fn wait_for(node: &Sequencer, wanted: Role) {
    until(|| if role(node) == wanted { Ok(()) } else { Err(format!("{:?}, not {wanted:?}", node.handle().node())) });
}

/// Waits until a node has what another one has.
pub(crate) fn wait_until_as_far(node: &Sequencer, other: &Sequencer) {
    let wanted = other.handle().node().unwrap().next;
    until(|| match node.handle().node().unwrap() {
        status if status.next >= wanted => Ok(()),
        status => Err(format!("{status:?}, and {wanted} is wanted")),
    });
}
