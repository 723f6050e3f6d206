//! The servers of the log, as a model: a stream, a key and a place for objects, which do what they are asked one thing
//! after the other; and the way between them and the nodes, where everything goes wrong that goes wrong on the real
//! one.
//!
//! A request arrives later than it was sent, or much later, or twice, or never; so does its answer. A node that is cut
//! off loses both; while the servers are away everybody does.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use super::counters::Seen;
use super::world::{MICROSECOND, MILLISECOND, SECOND, State};
use super::{Broken, Rates};
use crate::journal::message::Chain;
use crate::journal::simulated::run_from;
use crate::journal::{Entry, LogRange, Messages, Run};

/// What a node asks the servers.
#[derive(Clone)]
pub(super) enum Ask {
    Publish {
        number: u64,
        message: Arc<Vec<u8>>,
    },
    /// A message.
    Get(u64),
    Read {
        first: u64,
        most_bytes: usize,
        wait: u64,
    },
    LogRange,
    /// Messages that one server has, and all of them together do not.
    Stranded {
        first: u64,
        most_bytes: usize,
    },
    Truncate(u64),
    Lease,
    TakeLease {
        revision: u64,
        holder: String,
    },
    Checkpoints,
    Keep(u64, Arc<Vec<u8>>),
    Fetch(u64),
    Drop(u64),
}

/// What they answer.
#[derive(Clone)]
pub(super) enum Answer {
    Published(Result<u64, Refused>),
    Message(Option<Vec<u8>>, LogRange),
    Messages(Messages),
    LogRange(LogRange),
    Stranded(Option<Run>),
    Lease(Option<Entry>),
    Taken(Option<u64>),
    Checkpoints(Vec<u64>),
    Fetched(Option<Arc<Vec<u8>>>),
    Done,
}

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Full,
    /// Another message is the last.
    Last(u64),
}

/// Who waits for an answer.
#[derive(Clone)]
pub(super) struct Asker {
    pub(super) life: usize,
    /// Its thread.
    pub(super) slot: usize,
    pub(super) answer: SyncSender<Answer>,
}

/// What happens at some time.
pub(super) enum Event {
    /// A request comes to the servers, and so long after it perhaps a second copy.
    Arrives { ask: Ask, asker: Asker, sent: u64, is_answered: bool, again: Option<u64> },
    /// An answer comes to a node.
    Answered { answer: Answer, asker: Asker },
    /// A read has waited long enough.
    Waited(u64),
}

/// A read that waits for a message.
struct Parked {
    number: u64,
    first: u64,
    most_bytes: usize,
    asker: Asker,
}

/// See the module.
pub(super) struct Servers {
    pub(super) rates: Rates,
    pub(super) broken: Option<Broken>,
    pub(super) first: u64,
    pub(super) messages: Vec<Vec<u8>>,
    /// What one server has behind the end, by number.
    stranded: BTreeMap<u64, Vec<u8>>,
    stranded_at: u64,
    /// Bytes that all messages may take together.
    pub(super) capacity: usize,
    /// What was written as the lease, and when.
    leases: Vec<(u64, Entry)>,
    pub(super) checkpoints: BTreeMap<u64, Arc<Vec<u8>>>,
    parked: Vec<Parked>,
    parks: u64,
    /// Until then nobody is answered.
    pub(super) away_until: u64,
    /// Until then a node reaches nobody.
    pub(super) cut_until: Vec<u64>,
}

impl Servers {
    pub(super) fn new(nodes: usize, rates: Rates, broken: Option<Broken>) -> Self {
        Self {
            rates,
            broken,
            first: 1,
            messages: Vec::new(),
            stranded: BTreeMap::new(),
            stranded_at: 0,
            capacity: usize::MAX,
            leases: Vec::new(),
            checkpoints: BTreeMap::new(),
            parked: Vec::new(),
            parks: 0,
            away_until: 0,
            cut_until: vec![0; nodes],
        }
    }

    pub(super) fn next(&self) -> u64 {
        self.first + self.messages.len() as u64
    }

    pub(super) fn used(&self) -> usize {
        self.messages.iter().map(Vec::len).sum()
    }

    /// Loses up to so many of the last messages, but at one server: none that a checkpoint covers. How many.
    pub(super) fn strand(&mut self, most: usize, now: u64) -> usize {
        self.stranded_at = now;
        let covered = self.checkpoints.last_key_value().map_or(self.first, |(&number, _)| number + 1);
        let behind = usize::try_from(self.next().saturating_sub(covered.max(self.first + 1))).unwrap_or(usize::MAX);
        let kept = self.messages.len() - most.min(behind);
        let number = self.first + kept as u64;
        let lost = self.messages.split_off(kept);
        let count = lost.len();
        self.stranded.extend((number..).zip(lost));
        count
    }

    fn log_range(&self) -> LogRange {
        LogRange { first: self.first, next: self.next() }
    }

    fn get(&self, number: u64) -> Option<&Vec<u8>> {
        self.messages.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    fn read(&self, first: u64, most_bytes: usize) -> Messages {
        let first = first.max(self.first);
        let mut bytes = 0;
        let fits = |message: &&Vec<u8>| {
            let fits = bytes == 0 || bytes < most_bytes;
            bytes += message.len();
            fits
        };
        let behind = self.messages.iter().skip((first - self.first) as usize);
        Messages { first, messages: behind.take_while(fits).cloned().collect() }
    }
}

impl State {
    /// A request goes on its way.
    pub(super) fn send(&mut self, ask: Ask, asker: Asker) {
        let rates = self.servers.rates;
        let node = self.lives[asker.life].node;
        if self.now < self.servers.cut_until[node] {
            return self.saw(Seen::CutOff);
        }
        if self.happens(rates.lost) {
            return self.saw(Seen::Lost);
        }
        let is_answered = !self.happens(rates.lost);
        let publishes = matches!(ask, Ask::Publish { .. });
        let sent = self.now;
        let mut after = self.delay();
        if publishes && self.happens(rates.late) {
            after += self.below(8 * SECOND);
        }
        let again = (publishes && self.happens(rates.doubled)).then(|| self.below(3 * SECOND));
        self.later(after, Event::Arrives { ask, asker, sent, is_answered, again });
    }

    /// How long something is on its way.
    fn delay(&mut self) -> u64 {
        let most = if self.happens(20) { 300 * MILLISECOND } else { 800 * MICROSECOND };
        100 * MICROSECOND + self.below(most)
    }

    pub(super) fn happen(&mut self, event: Event) {
        match event {
            Event::Arrives { ask, asker, sent, is_answered, again } => {
                if self.now < self.servers.away_until {
                    return self.saw(Seen::Away);
                }
                let copy = again.map(|after| (after, ask.clone(), asker.clone()));
                let Some(answer) = self.serve(ask, &asker, sent) else { return };
                // What was refused for want of room does not come later: servers have each publication once.
                if let Some((after, ask, asker)) = copy
                    && !matches!(answer, Answer::Published(Err(Refused::Full)))
                {
                    self.saw(Seen::Duplicate);
                    self.later(after, Event::Arrives { ask, asker, sent, is_answered: false, again: None });
                }
                if is_answered {
                    self.answer(answer, asker);
                } else {
                    self.saw(Seen::Lost);
                }
            }
            Event::Answered { answer, asker } => {
                if self.now < self.servers.cut_until[self.lives[asker.life].node] {
                    return self.saw(Seen::CutOff);
                }
                let is_appended = matches!(answer, Answer::Published(Ok(_)));
                match asker.answer.try_send(answer) {
                    Ok(()) => self.wake(asker.slot),
                    // Nobody waits any more.
                    Err(_) if is_appended => self.saw(Seen::AppendedLate),
                    Err(_) => {}
                }
            }
            Event::Waited(number) => {
                if let Some(at) = self.servers.parked.iter().position(|parked| parked.number == number) {
                    let Parked { first, asker, .. } = self.servers.parked.remove(at);
                    self.answer(Answer::Messages(Messages { first, messages: Vec::new() }), asker);
                }
            }
        }
    }

    fn answer(&mut self, answer: Answer, asker: Asker) {
        let after = self.delay();
        self.later(after, Event::Answered { answer, asker });
    }

    /// Does what was asked; `None` when it is answered later.
    fn serve(&mut self, ask: Ask, asker: &Asker, sent: u64) -> Option<Answer> {
        Some(match ask {
            Ask::Publish { number, message } => {
                let outcome = self.publish(number, &message, asker, sent);
                self.tell(format_args!("{}: publish {number}: {outcome:?}", self.name(asker.life)));
                Answer::Published(outcome)
            }
            Ask::Get(number) => Answer::Message(self.servers.get(number).cloned(), self.servers.log_range()),
            Ask::Read { first, most_bytes, wait } => {
                if self.servers.next() <= first {
                    self.servers.parks += 1;
                    let number = self.servers.parks;
                    self.servers.parked.push(Parked { number, first, most_bytes, asker: asker.clone() });
                    self.later(wait, Event::Waited(number));
                    return None;
                }
                Answer::Messages(self.servers.read(first, most_bytes))
            }
            Ask::LogRange => Answer::LogRange(self.servers.log_range()),
            Ask::Stranded { first, most_bytes } => {
                Answer::Stranded(run_from(&self.servers.stranded, first, most_bytes))
            }
            Ask::Truncate(first) => {
                let gone = first.saturating_sub(self.servers.first).min(self.servers.messages.len() as u64);
                self.servers.messages.drain(..gone as usize);
                self.servers.first += gone;
                self.tell(format_args!("{}: cut behind {}", self.name(asker.life), self.servers.first - 1));
                if gone > 0 {
                    self.saw(Seen::Purged);
                }
                Answer::Done
            }
            Ask::Lease => Answer::Lease(self.lease()),
            Ask::TakeLease { revision, holder } => Answer::Taken(self.take_lease(revision, holder, asker)),
            Ask::Checkpoints => Answer::Checkpoints(self.servers.checkpoints.keys().copied().collect()),
            Ask::Keep(number, bytes) => {
                self.tell(format_args!("{}: keep checkpoint {number}", self.name(asker.life)));
                self.servers.checkpoints.insert(number, bytes);
                self.saw(Seen::Checkpoint);
                Answer::Done
            }
            Ask::Fetch(number) => Answer::Fetched(self.servers.checkpoints.get(&number).cloned()),
            Ask::Drop(number) => {
                self.servers.checkpoints = self.servers.checkpoints.split_off(&number);
                Answer::Done
            }
        })
    }

    /// A process, for people.
    pub(super) fn name(&self, life: usize) -> String {
        format!("node {} ({life})", self.lives[life].node)
    }

    fn publish(&mut self, number: u64, message: &Arc<Vec<u8>>, asker: &Asker, sent: u64) -> Result<u64, Refused> {
        let fenced = self.servers.broken != Some(Broken::Fencing);
        let next = self.servers.next();
        let is_full = self.servers.used() + message.len() > self.servers.capacity;
        // Servers look at both, in an order of their own.
        let full_first = is_full && self.happens(500);
        if fenced && number != next && !full_first {
            self.saw(Seen::RefusedStale);
            if self.checker.is_deposed(asker.life) {
                self.saw(Seen::RefusedDeposed);
            }
            return Err(Refused::Last(next - 1));
        }
        if is_full {
            self.saw(Seen::RefusedFull);
            return Err(Refused::Full);
        }
        if let Some(stranded) = self.servers.stranded.get(&next) {
            let is_it = **message == *stranded;
            let epoch = |number, message: &[u8]| {
                Chain::behind(Path::new("log"), number, message).map_or(0, |chain| chain.epoch)
            };
            let last = self.servers.messages.last().map_or(0, |last| epoch(next - 1, last));
            let begins = last < epoch(next, message);
            if !is_it && begins && sent > self.servers.stranded_at {
                self.fail(format!("an epoch begins with record {next}, and a server has another one there"));
            }
            if !is_it {
                // What was on its way for long, or is a leader's of before who knows of nothing, would be a fork, which
                // readers find: see `damage`.
                return Err(Refused::Last(next - 1));
            }
            self.saw(Seen::Completed);
            self.servers.stranded.remove(&next);
            self.servers.messages.push(message.to_vec());
            self.serve_parked(next);
            return Ok(next);
        }
        self.append(message.to_vec(), asker.life);
        Ok(next)
    }

    /// A message is the last from now on.
    fn append(&mut self, message: Vec<u8>, life: usize) {
        let number = self.servers.next();
        let before = self.checker.leader().filter(|&before| before != life && !self.lives[before].is_killed);
        let checked = self.checker.appended(number, &message, life);
        if before.is_some() && self.checker.leader() == Some(life) {
            self.saw(Seen::Deposed);
        }
        self.servers.messages.push(message);
        match checked {
            Ok(seen) => seen.into_iter().for_each(|seen| self.saw(seen)),
            Err(what) => self.fail(what),
        }
        self.serve_parked(number);
    }

    /// Answers reads that have waited for message `number`.
    fn serve_parked(&mut self, number: u64) {
        let (wanted, others): (Vec<_>, _) =
            std::mem::take(&mut self.servers.parked).into_iter().partition(|parked| parked.first <= number);
        self.servers.parked = others;
        for Parked { first, most_bytes, asker, .. } in wanted {
            let messages = self.servers.read(first, most_bytes);
            self.answer(Answer::Messages(messages), asker);
        }
    }

    fn lease(&mut self) -> Option<Entry> {
        let leases = self.servers.leases.len();
        let stale = self.servers.rates.stale;
        if leases > 1 && self.happens(stale) {
            let (written, _) = self.servers.leases[leases - 1];
            if self.now < written + SECOND {
                self.saw(Seen::StaleLease);
                return Some(self.servers.leases[leases - 2].1.clone());
            }
        }
        self.servers.leases.last().map(|(_, lease)| lease.clone())
    }

    fn take_lease(&mut self, revision: u64, holder: String, asker: &Asker) -> Option<u64> {
        let last = self.servers.leases.last().map(|(_, lease)| lease.clone());
        let (current, before) = last.map_or((0, String::new()), |lease| (lease.revision, lease.text));
        if current != revision {
            return None;
        }
        if before != holder {
            self.tell(format_args!("{}: lease {} is '{holder}'", self.name(asker.life), revision + 1));
            match (before.is_empty(), holder.is_empty()) {
                (false, false) => self.saw(Seen::LeaseTaken),
                (_, true) => self.saw(Seen::LeaseGivenBack),
                _ => {}
            }
        }
        self.servers.leases.push((self.now, Entry { revision: revision + 1, text: holder }));
        Some(revision + 1)
    }
}
