//! Stores the members in etcd, so that a restarted lockd can resume their sessions: see
//! `lockwork_lock_protocol::report`.
//!
//! The deciding thread never waits for etcd. A member's join is answered once it is durable. A member that has left is
//! removed later, because a stored member that is gone costs no more than a lease.

use lockwork_lock_protocol::registry::Member;
use lockwork_lock_protocol::report::in_era;
use lockwork_lock_protocol::word::Machine;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A store of keys and values, such as etcd. Nothing here may wait.
pub trait Records: Send + std::fmt::Debug {
    /// Queues a write; writes are done in order.
    fn put(&self, key: String, value: Vec<u8>, ticket: u64);
    /// Queues a removal, likewise.
    fn delete(&self, key: String, ticket: u64);
    /// Appends the tickets of what has become durable since the last call.
    fn completed(&self, tickets: &mut Vec<u64>);
    /// Nothing, or why it does not answer.
    fn why_not(&self) -> Option<String>;
}

/// The folder of members.
pub const MACHINES: &str = "machines/";

/// What follows the address of a machine that offers to keep locks beyond the decider's.
const MANAGES: &str = "manages";

/// A member as it is written down under [`MACHINES`]: session, nonce, address, and `manages` if it does; the session
/// without its era.
///
/// # Errors
/// What is wrong with it.
pub fn member(key: &[u8], value: &[u8], era: u32) -> Result<Member<SocketAddr>, String> {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (key, value) = (text(key), text(value));
    let parse = || {
        let mut words = value.split(' ');
        let (machine, session) = (Machine(key.parse().ok()?), words.next()?.parse().ok()?);
        let (nonce, address) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let manages = match words.next() {
            None => false,
            Some(MANAGES) => true,
            Some(_) => return None,
        };
        Some(Member { machine, session: in_era(session, era), nonce, address, manages })
    };
    parse().ok_or_else(|| {
        format!("'{MACHINES}{key}' is '{value}', not a session, a nonce, an address, and perhaps '{MANAGES}'")
    })
}

/// Writes members to etcd, and tracks the writes that etcd has not confirmed.
#[derive(Debug)]
pub(super) struct MemberLog {
    records: Box<dyn Records>,
    joining: HashMap<u64, Member<SocketAddr>>,
    next: u64,
    durable: Vec<u64>,
    /// Since when it does not answer, which has been said.
    away: Option<Instant>,
}

impl MemberLog {
    pub(super) fn new(records: Box<dyn Records>) -> Self {
        Self { records, joining: HashMap::new(), next: 0, durable: Vec::new(), away: None }
    }

    fn ticket(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn record(&mut self, member: Member<SocketAddr>) {
        let ticket = self.ticket();
        let Member { machine, session, nonce, address, manages } = member;
        let mut value = format!("{} {nonce} {address}", in_era(session, 0));
        if manages {
            value += " ";
            value += MANAGES;
        }
        self.joining.insert(ticket, member);
        self.records.put(format!("{MACHINES}{}", machine.0), value.into_bytes(), ticket);
    }

    pub(super) fn forget(&mut self, machine: Machine) {
        let ticket = self.ticket();
        self.records.delete(format!("{MACHINES}{}", machine.0), ticket);
    }

    /// Members that are written down now.
    pub(super) fn recorded(&mut self) -> Vec<Member<SocketAddr>> {
        self.records.completed(&mut self.durable);
        self.durable.drain(..).filter_map(|ticket| self.joining.remove(&ticket)).collect()
    }

    /// Whether somebody waits to be written down.
    pub(super) fn is_waited_for(&self) -> bool {
        !self.joining.is_empty()
    }

    /// Whether it answers; logs when that changes.
    pub(super) fn look(&mut self) -> bool {
        let answers = self.records.why_not().is_none();
        match (answers, self.away) {
            (false, None) => {
                tracing::warn!("locks go on being granted; who joins waits until etcd is back");
                self.away = Some(Instant::now());
            }
            (true, Some(_)) => {
                tracing::info!("who joins is let in again");
                self.away = None;
            }
            _ => {}
        }
        answers
    }

    /// For how long it has not answered.
    pub(super) fn away(&self) -> Duration {
        self.away.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_read_in_a_later_era_and_what_is_none_is_told() {
        let read = member(b"7", b"12 99 127.0.0.1:81", 3).unwrap();
        let address = "127.0.0.1:81".parse().unwrap();
        let is = Member { machine: Machine(7), session: in_era(12, 3), nonce: 99, address, manages: false };
        assert_eq!(read, is);
        assert_eq!(member(b"7", b"12 99 127.0.0.1:81 manages", 3).unwrap(), Member { manages: true, ..is });
        for (key, value) in [
            ("7", "12 99"),
            ("7", "12 99 127.0.0.1:81 man"),
            ("x", "12 99 127.0.0.1:81"),
            ("70000", "12 99 127.0.0.1:81"),
            ("7", ""),
        ] {
            let wrong = member(key.as_bytes(), value.as_bytes(), 3).unwrap_err();
            assert!(wrong.contains(value), "{wrong}");
        }
    }
}
