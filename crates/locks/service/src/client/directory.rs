//! What names mean, as one session knows it.
//!
//! The service keeps what a session was told until the session says that it has forgotten it, or ends; so what is
//! known here is right, and a name costs a round trip once. The least recently used names go when there are many, but
//! never one that a request or a guard of this process uses: they keep the text that is the key here, so the count of
//! its owners tells.
//!
//! *Invariants*: numbers of questions grow, so a late copy of "forgotten" takes nothing away; an answer to no question
//! is forgotten at once, with a new number.

use super::wait::Wait;
use lockwork_lock_protocol::client::Ask;
use lockwork_lock_protocol::control::{name_of_body, name_to_body};
use lockwork_lock_protocol::packet::{Kind, Packet, Problem};
use lockwork_locking::LockMode;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A question is asked again after this, and then after twice as long each time.
const AGAIN_NS: u64 = 20_000_000;
/// At the latest after this.
const LATEST_NS: u64 = 500_000_000;
/// For how long a request that is not to wait does wait for what its name means.
const TRY_NS: u64 = 200_000_000;
/// Who have a name known: the map, and the order.
const OWN: usize = 2;
/// How many of the oldest names are looked at for one that nobody uses.
const MAX_TRIED: usize = 16;

/// A request that waits until its name is known.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) wait: Arc<Wait>,
    pub(super) mode: LockMode,
    pub(super) ask: Ask,
    /// When it was made.
    pub(super) made: u64,
}

impl Waiting {
    fn until(&self) -> u64 {
        let limit = if self.ask.try_only { TRY_NS } else { u64::MAX };
        self.made.saturating_add(self.ask.timeout.unwrap_or(u64::MAX).min(limit))
    }
}

/// A question that is asked until it is answered.
#[derive(Debug)]
struct Question {
    number: u64,
    again: u64,
    delay: u64,
}

impl Question {
    fn is_due(&mut self, now: u64) -> bool {
        let due = self.again <= now;
        if due {
            self.again = now.saturating_add(self.delay);
            self.delay = LATEST_NS.min(self.delay * 2);
        }
        due
    }
}

#[derive(Debug)]
struct Known {
    lock: u64,
    /// When it was last used, in the order of uses.
    used: u64,
}

/// Names of one session.
#[derive(Debug)]
pub(super) struct Directory {
    most: usize,
    known: HashMap<Arc<str>, Known>,
    order: BTreeMap<u64, Arc<str>>,
    uses: u64,
    asking: HashMap<Arc<str>, (Question, Vec<Waiting>)>,
    forgetting: HashMap<Arc<str>, Question>,
    number: u64,
    /// A daemon that was started anew is being told what is kept.
    telling: bool,
    /// When something has to be done.
    due: u64,
    /// Packets to send.
    out: Vec<(Kind, u64, Arc<str>)>,
}

impl Directory {
    /// Nothing is known. `most` names stay known that nobody uses.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            known: HashMap::new(),
            order: BTreeMap::new(),
            uses: 0,
            asking: HashMap::new(),
            forgetting: HashMap::new(),
            number: 0,
            telling: false,
            due: u64::MAX,
            out: Vec::new(),
        }
    }

    /// The lock of a name, and the text that keeps the name known.
    pub(super) fn look_up(&mut self, name: &str) -> Option<(Arc<str>, u64)> {
        let (name, _) = self.known.get_key_value(name)?;
        let name = Arc::clone(name);
        self.uses += 1;
        let known = self.known.get_mut(&name)?;
        self.order.remove(&known.used);
        known.used = self.uses;
        self.order.insert(self.uses, Arc::clone(&name));
        Some((name, known.lock))
    }

    /// Asks what a name means.
    pub(super) fn ask(&mut self, now: u64, name: &Arc<str>, waiting: Waiting) {
        // What is asked for is not to be forgotten; the number says which came last.
        self.forgetting.remove(name);
        self.due = self.due.min(waiting.until());
        if let Some((_, all)) = self.asking.get_mut(name) {
            all.push(waiting);
            return;
        }
        let question = self.question(now, Kind::Name, name);
        self.asking.insert(Arc::clone(name), (question, vec![waiting]));
    }

    fn question(&mut self, now: u64, kind: Kind, name: &Arc<str>) -> Question {
        self.number += 1;
        self.out.push((kind, self.number, Arc::clone(name)));
        self.due = self.due.min(now.saturating_add(AGAIN_NS));
        Question { number: self.number, again: now.saturating_add(AGAIN_NS), delay: 2 * AGAIN_NS }
    }

    /// Takes an answer: the lock, or why there is none, and who waits for it.
    pub(super) fn answered(&mut self, now: u64, packet: &Packet, body: &[u8]) -> Vec<(Waiting, Result<u64, Problem>)> {
        let Ok(name) = name_of_body(body) else { return Vec::new() };
        let answers = |question: &Question| question.number == packet.request;
        if packet.part == Kind::Unname as u8 {
            if self.forgetting.get(name).is_some_and(answers) {
                self.forgetting.remove(name);
            }
            return Vec::new();
        }
        let problem = Problem::of_number(packet.token).filter(|_| packet.kind == Kind::Error);
        if !self.asking.get(name).is_some_and(|(question, _)| answers(question)) {
            if problem.is_none() && !self.known.contains_key(name) && !self.asking.contains_key(name) {
                self.forget(now, &name.into());
            }
            return Vec::new();
        }
        let Some((name, (_, waiting))) = self.asking.remove_entry(name) else { return Vec::new() };
        if problem.is_none() {
            self.learn(now, &name, packet.lock);
        }
        if self.telling {
            self.due = self.due.min(now);
        }
        let answer = problem.map_or(Ok(packet.lock), Err);
        waiting.into_iter().map(|waiting| (waiting, answer)).collect()
    }

    fn learn(&mut self, now: u64, name: &Arc<str>, lock: u64) {
        self.uses += 1;
        if let Some(before) = self.known.insert(Arc::clone(name), Known { lock, used: self.uses }) {
            self.order.remove(&before.used);
        }
        self.order.insert(self.uses, Arc::clone(name));
        let too_many = self.known.len().saturating_sub(self.most);
        for _ in 0..MAX_TRIED.min(too_many) {
            let Some((used, oldest)) = self.order.pop_first() else { return };
            // One owner more is `oldest` itself, in the place of that in the order.
            if Arc::strong_count(&oldest) > OWN {
                self.uses += 1;
                if let Some(known) = self.known.get_mut(&oldest).filter(|known| known.used == used) {
                    known.used = self.uses;
                    self.order.insert(self.uses, oldest);
                }
                continue;
            }
            self.known.remove(&oldest);
            self.forget(now, &oldest);
        }
    }

    fn forget(&mut self, now: u64, name: &Arc<str>) {
        let question = self.question(now, Kind::Unname, name);
        self.forgetting.insert(Arc::clone(name), question);
    }

    /// The session goes on with a daemon that was started anew, and has to be told what is kept: asks for all of it,
    /// and says so when that is done, by forgetting the name without letters, which no lock has.
    pub(super) fn tell_again(&mut self, now: u64) {
        let names: Vec<_> = self.known.keys().filter(|name| !self.asking.contains_key(*name)).cloned().collect();
        for name in names {
            let question = self.question(now, Kind::Name, &name);
            self.asking.insert(name, (question, Vec::new()));
        }
        self.telling = true;
        self.due = self.due.min(now);
    }

    /// Whether the daemon has answered all of [`Directory::tell_again`].
    fn has_told(&self) -> bool {
        self.asking.keys().all(|name| !self.known.contains_key(name))
    }

    /// Nobody waits for this any more.
    pub(super) fn withdraw(&mut self, wait: &Arc<Wait>) {
        for (_, waiting) in self.asking.values_mut() {
            waiting.retain(|one| !Arc::ptr_eq(&one.wait, wait));
        }
    }

    /// Asks again what is due. Who has waited long enough.
    pub(super) fn tick(&mut self, now: u64) -> Vec<Waiting> {
        let mut late = Vec::new();
        if now < self.due {
            return late;
        }
        self.due = u64::MAX;
        if self.telling && self.has_told() {
            self.telling = false;
            self.forget(now, &"".into());
        }
        for (name, (question, waiting)) in &mut self.asking {
            late.extend(waiting.extract_if(.., |waiting| waiting.until() <= now));
            if question.is_due(now) {
                self.out.push((Kind::Name, question.number, Arc::clone(name)));
            }
            let ends = waiting.iter().map(Waiting::until);
            self.due = ends.chain([self.due, question.again]).min().unwrap_or(now);
        }
        for (name, question) in &mut self.forgetting {
            if question.is_due(now) {
                self.out.push((Kind::Unname, question.number, Arc::clone(name)));
            }
            self.due = self.due.min(question.again);
        }
        late
    }

    /// When [`Directory::tick`] has something to do, or a little earlier.
    pub(super) fn next_tick(&self) -> Option<u64> {
        Some(self.due).filter(|due| *due != u64::MAX)
    }

    /// The session has ended, and what it was told with it: who still waits.
    pub(super) fn clear(&mut self) -> Vec<Waiting> {
        let waiting = self.asking.drain().flat_map(|(_, (_, waiting))| waiting).collect();
        *self = Self::new(self.most);
        waiting
    }

    /// A packet to send, and its body.
    pub(super) fn poll_packet(&mut self) -> Option<(Packet, Vec<u8>)> {
        let (kind, number, name) = self.out.pop()?;
        Some((Packet { request: number, part: kind as u8, ..Packet::new(kind, 0) }, name_to_body(&name)))
    }

    /// Names that are known.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting() -> Waiting {
        Waiting { wait: Arc::default(), mode: LockMode::Exclusive, ask: Ask::default(), made: 0 }
    }

    fn sent(directory: &mut Directory) -> Vec<(Kind, u64, String)> {
        let mut all = Vec::new();
        while let Some((packet, body)) = directory.poll_packet() {
            all.push((packet.kind, packet.request, name_of_body(&body).unwrap().to_string()));
        }
        all
    }

    fn told(directory: &mut Directory, number: u64, name: &str, lock: u64) -> usize {
        let packet = Packet { request: number, part: Kind::Name as u8, ..Packet::new(Kind::Name, lock) };
        directory.answered(0, &packet, &name_to_body(name)).len()
    }

    #[test]
    fn the_oldest_name_that_nobody_uses_goes_first() {
        let mut directory = Directory::new(2);
        let name = |name: &str| Arc::from(name);
        for (number, text) in [(1, "a"), (2, "b")] {
            directory.ask(0, &name(text), waiting());
            assert_eq!(sent(&mut directory), [(Kind::Name, number, text.to_string())]);
            assert_eq!(told(&mut directory, number, text, number), 1);
        }
        let (used, lock) = directory.look_up("a").unwrap();
        assert_eq!(lock, 1);
        directory.look_up("b").unwrap();
        directory.ask(0, &name("c"), waiting());
        told(&mut directory, 3, "c", 3);
        assert_eq!(directory.len(), 3, "the oldest is used");
        assert!(sent(&mut directory).iter().all(|(kind, ..)| *kind == Kind::Name));
        drop(used);
        directory.ask(0, &name("d"), waiting());
        told(&mut directory, 4, "d", 4);
        assert_eq!(directory.len(), 2);
        assert!(directory.look_up("b").is_none());
        let mut forgotten: Vec<_> =
            sent(&mut directory).into_iter().filter(|(kind, ..)| *kind == Kind::Unname).collect();
        forgotten.sort_by_key(|(_, number, _)| *number);
        assert_eq!(forgotten[0], (Kind::Unname, 5, "b".to_string()));
        assert_eq!(forgotten.len(), 2);
    }

    #[test]
    fn questions_are_repeated_and_answers_to_none_are_forgotten() {
        let mut directory = Directory::new(10);
        directory.ask(0, &"a".into(), waiting());
        sent(&mut directory);
        assert_eq!(directory.next_tick(), Some(AGAIN_NS));
        assert!(directory.tick(AGAIN_NS).is_empty());
        assert_eq!(sent(&mut directory), [(Kind::Name, 1, "a".to_string())]);
        assert_eq!(told(&mut directory, 7, "a", 5), 0, "a question that was not asked");
        assert_eq!(told(&mut directory, 1, "a", 5), 1);
        assert_eq!(told(&mut directory, 1, "a", 5), 0);
        directory.tick(10 * AGAIN_NS);
        assert!(sent(&mut directory).is_empty() && directory.next_tick().is_none());
        told(&mut directory, 9, "z", 5);
        assert_eq!(sent(&mut directory), [(Kind::Unname, 2, "z".to_string())]);
        let done = Packet { request: 2, part: Kind::Unname as u8, ..Packet::new(Kind::Unname, 0) };
        directory.answered(0, &done, &name_to_body("z"));
        directory.tick(u64::MAX - 1);
        assert!(directory.next_tick().is_none());
    }

    #[test]
    fn a_daemon_that_was_started_anew_is_told_what_is_kept() {
        let mut directory = Directory::new(10);
        for (number, text) in [(1, "a"), (2, "b")] {
            directory.ask(0, &text.into(), waiting());
            told(&mut directory, number, text, number);
        }
        sent(&mut directory);
        directory.tell_again(0);
        let mut asked = sent(&mut directory);
        asked.sort_by_key(|(_, number, _)| *number);
        assert!(asked.len() == 2 && !directory.has_told());
        for (_, number, name) in asked {
            assert_eq!(told(&mut directory, number, &name, 9), 0);
        }
        assert!(directory.has_told() && directory.len() == 2 && directory.order.len() == 2);
    }

    #[test]
    fn who_waits_too_long_is_told_and_the_end_of_the_session_tells_all() {
        let mut directory = Directory::new(10);
        let mut short = waiting();
        short.ask.timeout = Some(5);
        directory.ask(0, &"a".into(), short);
        directory.ask(0, &"a".into(), waiting());
        assert_eq!(directory.next_tick(), Some(5));
        assert_eq!(directory.tick(5).len(), 1);
        assert_eq!(directory.clear().len(), 1);
        assert!(directory.asking.is_empty() && directory.next_tick().is_none());
    }
}
