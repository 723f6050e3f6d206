//! What a daemon that is one of several does about locks that are not its own; see `lockwork_lock_protocol::racks`.
//!
//! What is written down about the parts is read and written by somebody else, who may have to wait for it: through a
//! [`Board`], which nobody holds for longer than it takes to put something there.

use super::{Lockd, first_token};
use crate::plane::DataPlane;
use lockwork_lock_protocol::beyond::PARTS;
use lockwork_lock_protocol::control::{ALL_LOCKS, address_to_body};
use lockwork_lock_protocol::packet::{GRANTED, Kind, Packet, Problem, body};
use lockwork_lock_protocol::racks::{Diverted, Duty, Handed, Racks};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// What a decider has to do with each part, below what the tokens of its locks are, and in which generation that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Map {
    /// Duties and tokens.
    pub duties: [(Duty, u64); PARTS as usize],
    /// Generations: see [`super::map`].
    pub generations: [u64; PARTS as usize],
}

/// How much longer than a lease a rack waits before it lets anybody in, if it is the first that etcd knows of. Another
/// one may decide on the same locks still, because etcd has lost what it knew of it: it finds that out within this
/// time, and ends.
pub const LOST_ETCD: Duration = Duration::from_secs(3);
/// Locks of each part that leaves which are looked at before packets are looked for again.
const A_STEP: u64 = 256;
/// How soon more of a part is handed on.
const STEP_NS: u64 = 1_000_000;

/// What a daemon and whoever reads and writes for it have to tell each other.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<Desk>>);

#[derive(Debug, Default)]
struct Desk {
    map: Option<Map>,
    arrived: Vec<Handed>,
    handed: Vec<(u64, Handed)>,
    left: Vec<Left>,
    in_use: usize,
}

/// A part that all locks have left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Which part.
    pub part: u64,
    /// In which generation it left.
    pub generation: u64,
    /// All its tokens are below.
    pub token: u64,
}

/// What has become of the parts that leave, since the last time.
#[derive(Debug)]
pub struct Gone {
    /// To be written down, and in which generation of its part. Before it is durable, nobody else has it.
    pub handed: Vec<(u64, Handed)>,
    /// Parts that are the other rack's once all that was handed on is durable.
    pub left: Vec<Left>,
    /// How many locks that leave are in use.
    pub in_use: usize,
}

impl Board {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the daemon what is written down now.
    pub fn tell(&self, map: Map, arrived: Vec<Handed>) {
        let mut desk = self.desk();
        desk.map = Some(map);
        desk.arrived = arrived;
    }

    /// What the daemon has handed on.
    #[must_use]
    pub fn gone(&self) -> Gone {
        let mut desk = self.desk();
        Gone { handed: std::mem::take(&mut desk.handed), left: desk.left.clone(), in_use: desk.in_use }
    }
}

/// The present clock of a daemon in tokens; see `lockwork_lock_protocol::racks`.
#[must_use]
pub fn clock() -> u64 {
    first_token(SystemTime::now())
}

#[derive(Debug)]
pub(super) struct OneOfSeveral {
    racks: Racks,
    board: Board,
    generations: [u64; PARTS as usize],
}

impl OneOfSeveral {
    /// The answer to a question of people about a lock that another decider decides on.
    pub(super) fn asked_elsewhere(&self, packet: &Packet) -> Option<(Packet, Vec<u8>)> {
        if packet.kind != Kind::Status || packet.has(GRANTED) || packet.lock == ALL_LOCKS {
            return None;
        }
        let Duty::Elsewhere { at } = self.racks.duty(packet.lock) else { return None };
        Some((Packet { kind: Kind::Error, token: Problem::Moved as u64, ..*packet }, address_to_body(at)))
    }
}

impl<P: DataPlane> Lockd<P> {
    /// Makes this daemon one of several, which decides on its parts of the locks only. Before it is
    /// [restored](Lockd::restore) and runs, and not before its [`clock`] is past [`Racks::least_clock`].
    #[must_use]
    pub fn share(&mut self, map: Map, handed: &[Handed]) -> Board {
        let board = Board::default();
        let racks = Racks::new(self.plane.store(), map.duties, handed);
        self.several = Some(OneOfSeveral { racks, board: board.clone(), generations: map.generations });
        board
    }

    /// Does what is due, and tells how soon to come again.
    pub(super) fn tick_racks(&mut self) -> u64 {
        let Some(OneOfSeveral { racks, board, generations }) = &mut self.several else { return u64::MAX };
        let store = self.plane.store();
        let (map, arrived) = {
            let mut desk = board.desk();
            (desk.map.take(), std::mem::take(&mut desk.arrived))
        };
        if map.is_some() || !arrived.is_empty() {
            let clock = clock();
            if let Some(map) = map {
                for (part, generation) in (0..).zip(generations.iter_mut()) {
                    let newest = map.generations[part as usize];
                    if racks.set(store, part, map.duties[part as usize], newest > *generation, clock) {
                        *generation = newest;
                    }
                }
            }
            arrived.iter().for_each(|handed| racks.receive(store, handed, clock));
        }
        if !racks.is_leaving() {
            board.desk().left.clear();
            return u64::MAX;
        }
        if self.registry.recovering().is_none() && !self.registry.settles() {
            let handed = racks.step(self.now, store, self.successors.node_mut(), A_STEP);
            let of = |part: u64| generations[part as usize];
            let left = |part| Some(Left { part, generation: of(part), token: racks.left(part, store)? });
            let mut desk = board.desk();
            desk.handed.extend(handed.into_iter().map(|handed| (of(handed.part), handed)));
            desk.left = (0..PARTS).filter_map(left).collect();
            desk.in_use = racks.waits_for();
        }
        self.now + STEP_NS
    }

    /// What becomes of a packet that the decider has sent to the registry, if the lock is another decider's: whether it
    /// is.
    pub(super) fn divert(&mut self, packet: &Packet) -> bool {
        let Some(OneOfSeveral { racks, .. }) = &self.several else { return false };
        let Some(diverted) = racks.divert(self.plane.store(), packet) else { return false };
        let requester = self.registry.address(packet.requester);
        match (diverted, requester) {
            (Diverted::Dropped, _) | (_, None) => {}
            (Diverted::Answered(answer), Some(to)) => self.push(to, &answer, &[]),
            (Diverted::Moved(answer, at), Some(to)) => {
                self.counters.problem(Problem::Moved);
                self.push(to, &answer, &address_to_body(at));
            }
        }
        true
    }

    /// Tells who waited for locks that are another decider's now.
    pub(super) fn tell_moved(&mut self) {
        while let Some((packet, at)) = self.several.as_mut().and_then(|several| several.racks.poll_moved()) {
            if let Some(to) = self.registry.address(packet.requester) {
                self.counters.problem(Problem::Moved);
                self.push(to, &packet, &address_to_body(at));
            }
        }
    }

    /// The queue that an agent brings to the registry's own, which only those of several daemons ask for.
    pub(super) fn brought(&self, packet: &Packet, payload: &[u8]) -> Vec<u8> {
        let asks = self.several.is_some() && packet.kind == Kind::Grant && !payload.is_empty();
        if !asks {
            return Vec::new();
        }
        let bytes = [&packet.header(payload.len(), self.key.as_ref())[..], payload].concat();
        body(&bytes, self.key.as_ref()).map(<[u8]>::to_vec).unwrap_or_default()
    }
}
