//! Locks over several deciders, each for its part of them, and how a part goes from one to another while it is used.
//!
//! Section 5.4 of the paper spreads locks over the switches of several racks, and sends packets by machine numbers that
//! hold everywhere. Here every rack is a service of its own, with its own registry, and a machine takes part in those
//! that it needs: what a packet is for is the pair of rack and machine. Locks are divided into [`PARTS`] parts, each of
//! one rack. Who asks another one is told where to ask ([`Problem::Moved`]).
//!
//! A word that is not its decider's own says that the lock is led by the registry, whatever decides: so each packet
//! about it reaches the registry, which knows better ([`Racks::divert`]), and data planes need to know nothing.
//!
//! ```text
//! rack 1: decides -> leaves ----- lock by lock ----> elsewhere
//!                       | the registry's own agent acquires it, exclusively, in its turn
//!                       | Handed(locks, token), written down
//! rack 2: elsewhere -> comes ----- lock by lock ----> decides, with tokens above
//! ```
//!
//! *Invariant*: a rack grants a lock only if no other does. The one that it leaves holds it exclusively when it says
//! so, and never releases it; the one that it comes to opens it when it hears so, or when all of the part is its own.
//!
//! *Invariant*: all tokens of a rack are below what it would begin with if it began anew now. So it opens nothing with
//! tokens that its clock has not reached (`clock` below), and begins only when it has: see [`Racks::least_clock`].
//!
//! *Invariant*: nobody waits for another lock's holder. A lock that is free is handed on at once, one that is held when
//! those who hold and wait have had it.

use crate::beyond::{PARTS, part};
use crate::client::{Ask, Event};
use crate::decider::{Store, TOKEN_STEP};
use crate::node::Node;
use crate::packet::{BUSY, GRANTED, Kind, Packet, Problem, Waiter};
use crate::word::{Machine, State, Word};
use lockwork_locking::LockMode;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

/// What a decider has to do with a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// It decides.
    Decides,
    /// It decides on what it has not handed on yet.
    Leaves {
        /// The rack that the part goes to.
        to: SocketAddr,
    },
    /// It decides on what has been handed on to it.
    Comes,
    /// Another one decides.
    Elsewhere {
        /// Which one.
        at: SocketAddr,
    },
}

/// Locks of a part that one rack grants no more, and the next one may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handed {
    /// Which part.
    pub part: u64,
    /// All their tokens so far are smaller.
    pub token: u64,
    /// Ranges of their numbers divided by [`PARTS`]: the first and the last one.
    pub ranges: Vec<(u64, u64)>,
}

impl Handed {
    /// As text, without the part: the token, and the ranges.
    #[must_use]
    pub fn to_text(&self) -> String {
        let ranges = self.ranges.iter().map(|(first, last)| match first == last {
            true => format!(" {first}"),
            false => format!(" {first}-{last}"),
        });
        self.token.to_string() + &ranges.collect::<String>()
    }

    /// From such a text.
    #[must_use]
    pub fn of_text(part: u64, text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let token = words.next()?.parse().ok().filter(|token| *token < MAX_TOKEN)?;
        let range = |word: &str| {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            let (first, last) = (first.parse().ok()?, last.parse().ok()?);
            (first <= last).then_some((first, last))
        };
        Some(Self { part, token, ranges: words.map(range).collect::<Option<_>>()? })
    }

    /// Those that there are, of `locks` in all.
    fn locks(&self, locks: u64) -> impl Iterator<Item = u64> {
        let end = locks.saturating_sub(self.part).div_ceil(PARTS);
        self.ranges
            .iter()
            .flat_map(move |(first, last)| *first..end.min(last.saturating_add(1)))
            .map(|at| at * PARTS + self.part)
    }
}

/// No clock gets so far: who reads a larger number reads something else.
pub const MAX_TOKEN: u64 = 1 << 63;

/// What becomes of a packet about a lock that is not this decider's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Diverted {
    /// Whoever sent it sends it again.
    Dropped,
    /// The requester is answered.
    Answered(Packet),
    /// The requester is told where to ask.
    Moved(Packet, SocketAddr),
}

/// Locks of a part that are asked for at a time: each is a packet every now and then while others hold it, and there
/// may be as many as there are locks.
const MAX_ASKED: usize = 64;
/// Of those that are in use beside them, so large a share of what is looked at in a step.
const REPEAT_SHARE: u64 = 8;

/// A part that leaves.
#[derive(Debug, Default)]
struct Leaving {
    /// The next lock to look at, divided by [`PARTS`].
    next: u64,
    /// Requests of the registry's own for locks that are in use.
    asked: BTreeSet<u64>,
    /// Those that hold, whose agents have not come to rest, and their locks.
    held: Vec<(u64, u64)>,
    /// Locks in use to look at once more, when fewer are asked for.
    again: VecDeque<u64>,
    ranges: Vec<(u64, u64)>,
    token: u64,
}

impl Leaving {
    /// Whether nothing is left.
    fn is_over(&self, of: u64, store: &impl Store) -> bool {
        let seen = self.next * PARTS + of >= store.locks();
        seen && self.asked.is_empty() && self.again.is_empty() && self.ranges.is_empty()
    }

    fn take(&mut self, lock: u64, token: u64) {
        self.token = self.token.max(token);
        let at = lock / PARTS;
        match self.ranges.last_mut() {
            Some((_, last)) if *last + 1 == at => *last = at,
            _ => self.ranges.push((at, at)),
        }
    }
}

/// Which locks a decider decides on, and what it does about the others.
#[derive(Debug)]
pub struct Racks {
    duties: [Duty; PARTS as usize],
    fences: Fences,
    leaving: BTreeMap<u64, Leaving>,
    moved: VecDeque<(Packet, SocketAddr)>,
}

/// In a new incarnation, so that nothing that was sent before changes it.
fn replace(store: &impl Store, lock: u64, old: Word, state: State) -> bool {
    let incarnation = store.profile().add(old.incarnation, 1);
    store.swap(lock, old, Word { state, machine: Machine::REGISTRY, incarnation })
}

/// Which locks are other deciders': their words say that they are led by the registry, and so do those of locks that
/// its own agents have, or are about to take over. A bit each.
#[derive(Debug)]
struct Fences(Vec<u64>);

impl Fences {
    fn has(&self, lock: u64) -> bool {
        self.0[(lock / 64) as usize] >> (lock % 64) & 1 == 1
    }

    fn put(&mut self, lock: u64, is: bool) {
        let word = &mut self.0[(lock / 64) as usize];
        *word = *word & !(1 << (lock % 64)) | u64::from(is) << (lock % 64);
    }

    /// The lock is another decider's from now on, if its word says that it is free.
    fn fence(&mut self, store: &impl Store, lock: u64) -> bool {
        let old = store.load(lock);
        let fenced = old.state == State::Free && replace(store, lock, old, State::Led);
        if fenced {
            self.put(lock, true);
        }
        fenced
    }

    /// The same, whatever its word says: the registry's own agent had it, exclusively, and has gone.
    fn close(&mut self, store: &impl Store, lock: u64) {
        // Others may ask meanwhile, which makes it led.
        while !replace(store, lock, store.load(lock), State::Led) {}
        self.put(lock, true);
    }

    /// A lock that was fenced is free.
    fn open(&mut self, store: &impl Store, lock: u64, token: u64) {
        if self.has(lock) {
            store.raise_token(lock, token);
            while !replace(store, lock, store.load(lock), State::Free) {}
            self.put(lock, false);
        }
    }
}

/// Locks of a part, from `first` divided by [`PARTS`] on.
fn locks_of<S: Store>(part: u64, store: &S, first: u64) -> impl Iterator<Item = u64> + use<S> {
    let locks = store.locks();
    (first..).map(move |at| at * PARTS + part).take_while(move |lock| *lock < locks)
}

impl Racks {
    /// The duties of a decider that begins, before it decides, and before it is restored; below what all tokens of a
    /// part are so far; and what has been handed on of parts that leave or come. Words of what is its own stay as they
    /// are, for those who report them.
    #[must_use]
    pub fn new(store: &impl Store, parts: [(Duty, u64); PARTS as usize], handed: &[Handed]) -> Self {
        let duties = parts.map(|(duty, _)| duty);
        let fences = Fences(vec![0; store.locks().div_ceil(64) as usize]);
        let mut racks = Self { duties, fences, leaving: BTreeMap::new(), moved: VecDeque::new() };
        for (part, (duty, token)) in (0..).zip(parts) {
            let of_it = || handed.iter().filter(|handed| handed.part == part);
            let least = of_it().map(|handed| handed.token).fold(token, u64::max);
            let gone: BTreeSet<u64> = of_it().flat_map(|handed| handed.locks(store.locks())).collect();
            for lock in locks_of(part, store, 0) {
                let is_own = match duty {
                    Duty::Decides => true,
                    Duty::Leaves { .. } => !gone.contains(&lock),
                    Duty::Comes => gone.contains(&lock),
                    Duty::Elsewhere { .. } => false,
                };
                match is_own {
                    true => store.raise_token(lock, least),
                    false => _ = racks.fences.fence(store, lock),
                }
            }
            if matches!(duty, Duty::Leaves { .. }) {
                racks.leaving.insert(part, Leaving { token: least, ..Leaving::default() });
            }
        }
        racks
    }

    /// What the clock of a decider with these duties has to have reached before it begins.
    pub fn least_clock(parts: &[(Duty, u64); PARTS as usize], handed: &[Handed]) -> u64 {
        let decides = parts.iter().filter(|(duty, _)| matches!(duty, Duty::Decides | Duty::Leaves { .. }));
        let coming = handed.iter().filter(|handed| parts[handed.part as usize].0 == Duty::Comes);
        decides.map(|(_, token)| *token).chain(coming.map(|handed| handed.token)).max().unwrap_or_default()
    }

    /// What this decider has to do with the part of a lock.
    #[must_use]
    pub const fn duty(&self, lock: u64) -> Duty {
        self.duties[part(lock) as usize]
    }

    /// These locks are its own now, unless its clock is behind. Nothing happens for those that are already.
    pub fn receive(&mut self, store: &impl Store, handed: &Handed, clock: u64) {
        if self.duty(handed.part) == Duty::Comes && handed.token <= clock {
            for lock in handed.locks(store.locks()) {
                self.fences.open(store, lock, handed.token);
            }
        }
    }

    /// A part has another duty, and all its tokens are below `token`. `is_news` says that it is of a later generation
    /// than the last one that was taken. False, and nothing is changed, if that cannot be yet: what it decides on
    /// leaves first, and its clock may be behind.
    pub fn set(&mut self, store: &impl Store, of: u64, (duty, token): (Duty, u64), is_news: bool, clock: u64) -> bool {
        let known = &mut self.duties[of as usize];
        if let (Duty::Leaves { to }, true) = (*known, is_news) {
            // It has been handed over, whatever has become of it since: generations may have been missed.
            if !self.leaving.get(&of).is_none_or(|leaving| leaving.is_over(of, store)) {
                return false;
            }
            self.leaving.remove(&of);
            *known = Duty::Elsewhere { at: to };
        }
        match (*known, duty) {
            (Duty::Decides, Duty::Comes | Duty::Elsewhere { .. })
            | (Duty::Leaves { .. }, Duty::Decides | Duty::Comes | Duty::Elsewhere { .. }) => return false,
            (Duty::Decides, Duty::Leaves { .. }) => _ = self.leaving.insert(of, Leaving::default()),
            (Duty::Comes | Duty::Elsewhere { .. }, Duty::Decides | Duty::Leaves { .. }) if token > clock => {
                return false;
            }
            (Duty::Comes | Duty::Elsewhere { .. }, Duty::Decides | Duty::Leaves { .. }) => {
                locks_of(of, store, 0).for_each(|lock| self.fences.open(store, lock, token));
                if matches!(duty, Duty::Leaves { .. }) {
                    self.leaving.insert(of, Leaving::default());
                }
            }
            _ => {}
        }
        *known = duty;
        true
    }

    /// Whether a part leaves.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Looks at `most` locks of each part that leaves, with the registry's `own` agents: what can be handed on now. It
    /// is once [`Handed`] is durable.
    pub fn step(&mut self, now: u64, store: &impl Store, own: &mut Node, most: u64) -> Vec<Handed> {
        while let Some(event) = own.poll_event() {
            self.happened(now, own, event);
        }
        let mut all = Vec::new();
        for (part, leaving) in &mut self.leaving {
            let Duty::Leaves { to } = self.duties[*part as usize] else { continue };
            for (request, lock) in std::mem::take(&mut leaving.held) {
                match own.take(request) {
                    Some((token, waiters)) => {
                        leaving.asked.remove(&request);
                        self.fences.close(store, lock);
                        leaving.take(lock, token.max(store.token(lock)));
                        self.moved.extend(waiters.into_iter().map(|waiter| (refusal(lock, &waiter), to)));
                    }
                    None => leaving.held.push((request, lock)),
                }
            }
            let again = leaving.again.len().min(most.div_ceil(REPEAT_SHARE) as usize);
            let again: Vec<_> = leaving.again.drain(..again).collect();
            let unseen: Vec<_> = locks_of(*part, store, leaving.next).take(most as usize).collect();
            leaving.next += unseen.len() as u64;
            for lock in again.into_iter().chain(unseen) {
                if self.fences.fence(store, lock) {
                    leaving.take(lock, store.token(lock));
                } else if !self.fences.has(lock) {
                    let ask = || own.acquire(now, lock, LockMode::Exclusive, Ask::default()).ok();
                    match (leaving.asked.len() < MAX_ASKED).then(ask).flatten() {
                        Some(request) => _ = leaving.asked.insert(request),
                        None => leaving.again.push_back(lock),
                    }
                }
            }
            if !leaving.ranges.is_empty() {
                let token = (leaving.token | (TOKEN_STEP - 1)) + 1;
                all.push(Handed { part: *part, token, ranges: std::mem::take(&mut leaving.ranges) });
            }
        }
        all
    }

    fn happened(&mut self, now: u64, own: &mut Node, event: Event) {
        let (Event::Granted { request, lock, .. } | Event::Lost { request, lock }) = event else { return };
        match (event, self.leaving.get_mut(&part(lock))) {
            (Event::Granted { .. }, Some(leaving)) => leaving.held.push((request, lock)),
            (Event::Granted { .. }, None) => _ = own.release(now, request),
            (_, Some(leaving)) => {
                // Before its agent had come to rest; it is asked for again.
                leaving.held.retain(|(of, _)| *of != request);
                leaving.asked.remove(&request);
                leaving.again.push_back(lock);
            }
            (_, None) => {}
        }
    }

    /// Whether all locks have left a part: the token that all of theirs are below. Once all [`Handed`] are durable, the
    /// part is the other one's.
    #[must_use]
    pub fn left(&self, of: u64, store: &impl Store) -> Option<u64> {
        let leaving = self.leaving.get(&of).filter(|leaving| leaving.is_over(of, store))?;
        Some((leaving.token | (TOKEN_STEP - 1)) + 1)
    }

    /// How many locks in use are waited for.
    #[must_use]
    pub fn waits_for(&self) -> usize {
        self.leaving.values().map(|leaving| leaving.asked.len() + leaving.again.len()).sum()
    }

    /// A packet that the decider has sent to the registry: what becomes of it, if the lock is not this decider's.
    #[must_use]
    pub fn divert(&self, store: &impl Store, packet: &Packet) -> Option<Diverted> {
        let about_an_agent = matches!(packet.kind, Kind::Acquire | Kind::Release | Kind::Enrol | Kind::Seek);
        if !about_an_agent || packet.lock >= store.locks() || !self.fences.has(packet.lock) {
            return None;
        }
        let at = match self.duty(packet.lock) {
            Duty::Decides => return None,
            Duty::Leaves { to } => Some(to),
            Duty::Elsewhere { at } => Some(at),
            Duty::Comes => None,
        };
        // The requests of the registry's own agents are about what is in use.
        if packet.requester == Machine::REGISTRY {
            return Some(Diverted::Dropped);
        }
        let answer = Packet { target: packet.requester, sender: Machine::REGISTRY, session: 0, ..*packet };
        Some(match (packet.kind, at) {
            (Kind::Acquire, Some(at)) if !packet.has(GRANTED) => Diverted::Moved(moved(answer), at),
            // It was given back before the lock was handed on, or never granted here.
            (Kind::Release, _) => {
                let flags = packet.flags & 3;
                Diverted::Answered(Packet { kind: Kind::Ack, part: Kind::Release as u8, flags, ..answer })
            }
            _ => Diverted::Dropped,
        })
    }

    /// Who waited for a lock when it was handed on, and where to ask.
    pub fn poll_moved(&mut self) -> Option<(Packet, SocketAddr)> {
        self.moved.pop_front()
    }
}

fn refusal(lock: u64, waiter: &Waiter) -> Packet {
    moved(Packet {
        flags: waiter.mode as u8,
        request: waiter.request,
        requester: waiter.machine,
        requester_session: waiter.session,
        target: waiter.machine,
        part: Kind::Acquire as u8,
        ..Packet::new(Kind::Acquire, lock)
    })
}

const fn moved(packet: Packet) -> Packet {
    let (flags, token) = (packet.flags & (3 | BUSY), Problem::Moved as u64);
    Packet { kind: Kind::Error, flags, token, ..packet }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::decider::{Wide, WideLock};

    #[test]
    fn what_is_handed_on_is_written_and_read() {
        let handed = Handed { part: 7, token: 1 << 40, ranges: vec![(0, 3), (5, 5), (9, 1 << 50)] };
        let text = handed.to_text();
        assert_eq!(text, "1099511627776 0-3 5 9-1125899906842624");
        assert_eq!(Handed::of_text(7, &text), Some(handed));
        assert_eq!(Handed::of_text(7, "5"), Some(Handed { part: 7, token: 5, ranges: Vec::new() }));
        let most = u64::MAX;
        let all = Handed { part: 3, token: 5, ranges: vec![(0, most), (most, most)] };
        assert_eq!(all.locks(2 * PARTS + 4).collect::<Vec<_>>(), [3, PARTS + 3, 2 * PARTS + 3]);
        assert_eq!(all.locks(3).count(), 0);
        for wrong in ["18446744073709551615 1", "", "x", "5 3-2", "5 -", "5 1-2-3", "5  1", "-1 3"] {
            assert_eq!(Handed::of_text(7, wrong), None, "{wrong}");
        }
    }

    const TO: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

    fn store() -> Wide<Vec<WideLock>> {
        Wide::new(2 * PARTS as usize)
    }

    /// What a scan for dead machines makes of a lock of which others are readers, before the registry's agents have it.
    fn adopt(store: &impl Store, lock: u64) -> Word {
        let old = store.load(lock);
        let adopted = Word { state: State::Led, machine: Machine::REGISTRY, ..old };
        assert!(store.swap(lock, old, adopted));
        adopted
    }

    #[test]
    fn a_lock_that_is_about_to_be_taken_over_from_a_dead_machine_is_no_other_deciders() {
        // Where its part leaves it is neither passed over nor is anybody sent away.
        let (store, mut own) = (store(), Node::registry(Config::new(2 * PARTS)));
        let mut racks = Racks::new(&store, [(Duty::Decides, 0); PARTS as usize], &[]);
        adopt(&store, 3);
        assert!(racks.set(&store, 3, (Duty::Leaves { to: TO }, 0), true, 9));
        let handed = racks.step(1, &store, &mut own, 10);
        assert_eq!(handed.iter().map(|handed| &handed.ranges).collect::<Vec<_>>(), [&[(1, 1)]]);
        assert_eq!((racks.left(3, &store), racks.waits_for()), (None, 1));
        assert_eq!(racks.divert(&store, &Packet::new(Kind::Acquire, 3)), None);
        assert!(racks.divert(&store, &Packet::new(Kind::Acquire, 3 + PARTS)).is_some());
        // Where its part comes, it is not opened.
        let mut racks = Racks::new(&store, [(Duty::Comes, 0); PARTS as usize], &[]);
        let handed = Handed { part: 5, token: 7, ranges: vec![(0, 0)] };
        racks.receive(&store, &handed, 9);
        assert_eq!(store.load(5).state, State::Free);
        let adopted = adopt(&store, 5);
        racks.receive(&store, &handed, 9);
        assert!(racks.set(&store, 5, (Duty::Decides, 7), true, 9));
        assert_eq!(store.load(5), adopted);
        assert_eq!(store.load(5 + PARTS).state, State::Free);
    }

    #[test]
    fn of_many_locks_in_use_few_are_asked_for_at_a_time_and_all_go_when_they_are_free() {
        const LOCKS: u64 = 1000;
        let store = Wide::<Vec<WideLock>>::new((LOCKS * PARTS) as usize);
        let mut own = Node::registry(Config::new(LOCKS * PARTS));
        let mut racks = Racks::new(&store, [(Duty::Decides, 0); PARTS as usize], &[]);
        let (free, held) = (Word::NEW, Word { state: State::Exclusive, machine: Machine(7), incarnation: 1 });
        let all: Vec<_> = locks_of(3, &store, 0).collect();
        assert!(all.iter().all(|lock| store.swap(*lock, free, held)));
        assert!(racks.set(&store, 3, (Duty::Leaves { to: TO }, 0), true, 9));
        for _ in 0..100 {
            assert!(racks.step(1, &store, &mut own, 64).is_empty());
        }
        let asked = std::iter::from_fn(|| own.poll_packet()).count();
        assert_eq!((asked, racks.waits_for()), (MAX_ASKED, LOCKS as usize));
        // Those that are asked for are given by their agents, which are not here.
        assert!(all.iter().all(|lock| store.swap(*lock, held, Word { incarnation: 2, ..free })));
        let step = |_| racks.step(1, &store, &mut own, 64).into_iter().flat_map(|handed| handed.ranges);
        let gone: u64 = (0..200).flat_map(step).map(|(first, last)| last - first + 1).sum();
        assert_eq!((gone, racks.waits_for()), (LOCKS - MAX_ASKED as u64, MAX_ASKED));
    }

    #[test]
    fn generations_may_be_missed_when_a_part_has_left() {
        for next in [Duty::Decides, Duty::Leaves { to: TO }, Duty::Comes, Duty::Elsewhere { at: TO }] {
            let (store, mut own) = (store(), Node::registry(Config::new(2 * PARTS)));
            let mut racks = Racks::new(&store, [(Duty::Decides, 0); PARTS as usize], &[]);
            let leaves = (Duty::Leaves { to: TO }, 0);
            assert!(racks.set(&store, 3, leaves, true, 9));
            assert!(racks.set(&store, 3, leaves, false, 9), "the same again is nothing new");
            assert!(!racks.set(&store, 3, (next, 1 << 30), true, 1 << 30), "its locks have not left");
            assert_eq!(racks.step(1, &store, &mut own, 10).len(), 1);
            assert!(racks.left(3, &store).is_some());
            // Meanwhile others have had it, with tokens up to this.
            assert!(racks.set(&store, 3, (next, 1 << 30), true, 1 << 30));
            assert_eq!(racks.duty(3), next);
            let is_own = matches!(next, Duty::Decides | Duty::Leaves { .. });
            assert_eq!(store.load(3).state == State::Free, is_own);
            if let Duty::Leaves { .. } = next {
                assert_eq!(racks.left(3, &store), None);
                let handed = racks.step(2, &store, &mut own, 10);
                assert!(handed[0].token > 1 << 30, "{handed:?}");
            }
        }
    }
}
