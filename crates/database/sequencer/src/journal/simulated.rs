//! A journal in memory that the nodes of a test share, with the faults that a real one has: requests and answers are
//! lost, what was sent arrives later, a node is cut off, there is no room.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lockwork_random::Random;

use super::{AppendError, Entry, Journal, Key, LogRange, MIN_MESSAGE_BYTES, Messages, Run, Unreachable};
use crate::io::{File, read_all};

/// A message that was sent and has not arrived.
#[derive(Debug)]
struct Late {
    number: u64,
    message: Vec<u8>,
}

#[derive(Debug)]
struct State {
    first: u64,
    messages: Vec<Vec<u8>>,
    entries: BTreeMap<Key, Entry>,
    checkpoints: BTreeMap<u64, Vec<u8>>,
    late: Vec<Late>,
    /// What single servers have, by number, that all of them together do not have any more.
    stranded: Vec<BTreeMap<u64, Vec<u8>>>,
    /// Of a thousand requests so many are lost, and so many answers.
    lost: u64,
    /// Bytes that all messages may take together.
    capacity: usize,
    /// Reads return at once, also when there is no message.
    hurries: bool,
    chance: Random,
}

/// The messages from `first` on that are there, one behind the other, about `most_bytes` bytes of them.
pub(crate) fn run_from(messages: &BTreeMap<u64, Vec<u8>>, first: u64, most_bytes: usize) -> Option<Run> {
    let mut bytes = 0;
    let found = (first..).map_while(|number| {
        let message = messages.get(&number).filter(|_| bytes < most_bytes)?;
        bytes += message.len();
        Some(message.clone())
    });
    Some(found.collect()).filter(|found: &Run| !found.is_empty())
}

/// A node's way to the journal. [`Self::another`] gives other nodes theirs.
#[derive(Clone, Debug)]
pub struct SimulatedJournal {
    state: Arc<(Mutex<State>, Condvar)>,
    cut: Arc<AtomicBool>,
}

/// What becomes of a request.
#[derive(PartialEq, Eq)]
enum Fate {
    Answered,
    Unanswered,
    Lost,
}

fn unreachable() -> Unreachable {
    Unreachable("the journal does not answer".into())
}

impl SimulatedJournal {
    /// An empty journal without faults.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let state = State {
            first: 1,
            messages: Vec::new(),
            entries: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
            late: Vec::new(),
            stranded: Vec::new(),
            lost: 0,
            capacity: usize::MAX,
            hurries: false,
            chance: Random(seed),
        };
        Self { state: Arc::new((state.into(), Condvar::new())), cut: Arc::default() }
    }

    /// The way of another node to the same journal.
    #[must_use]
    pub fn another(&self) -> Self {
        Self { state: self.state.clone(), cut: Arc::default() }
    }

    /// Cuts the way, or mends it.
    pub fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::Relaxed);
    }

    /// From now on so many of a thousand requests are lost, and so many answers.
    pub fn lose(&self, per_mille: u64) {
        self.state().lost = per_mille;
    }

    /// From now on a read that finds no message returns at once: nodes that are to end soon do.
    pub fn hurry(&self) {
        self.state().hurries = true;
    }

    /// Gives all messages together so many bytes.
    pub fn set_capacity(&self, bytes: usize) {
        self.state().capacity = bytes;
    }

    /// Changes message `number`, as a disk may.
    ///
    /// # Panics
    /// When there is no such message.
    pub fn alter(&self, number: u64, alter: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state();
        let at = (number - state.first) as usize;
        alter(&mut state.messages[at]);
    }

    /// Loses message `number` and gives those behind it other numbers, as no journal should.
    ///
    /// # Panics
    /// When there is no such message.
    pub fn forget(&self, number: u64) {
        let mut state = self.state();
        let at = (number - state.first) as usize;
        state.messages.remove(at);
    }

    /// Loses the last `count` messages, but at one server, another one each time, as no journal should.
    ///
    /// # Panics
    /// When there are not as many.
    pub fn strand(&self, count: usize) {
        let mut state = self.state();
        let kept = state.messages.len().checked_sub(count).expect("so many messages");
        let number = state.first + kept as u64;
        let lost = state.messages.split_off(kept);
        state.stranded.push((number..).zip(lost).collect());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fate(&self, state: &mut State) -> Fate {
        if self.cut.load(Ordering::Relaxed) {
            return Fate::Lost;
        }
        let lost = state.lost as usize;
        match state.chance.index(1000) {
            drawn if drawn < lost => Fate::Lost,
            drawn if drawn < 2 * lost => Fate::Unanswered,
            _ => Fate::Answered,
        }
    }

    /// Does something that is done or not, and answered or not.
    fn request<T>(&self, act: impl FnOnce(&mut State) -> T) -> Result<T, Unreachable> {
        let mut state = self.state();
        let fate = self.fate(&mut state);
        if fate == Fate::Lost {
            return Err(unreachable());
        }
        let done = act(&mut state);
        if fate == Fate::Answered { Ok(done) } else { Err(unreachable()) }
    }
}

impl State {
    fn next(&self) -> u64 {
        self.first + self.messages.len() as u64
    }

    /// What was sent earlier arrives, or not yet.
    fn arrive(&mut self) {
        while !self.late.is_empty() && self.chance.index(2) == 0 {
            let Late { number, message } = self.late.remove(0);
            if self.next() == number {
                self.messages.push(message);
            }
        }
    }

    fn append(&mut self, number: u64, message: &[u8]) -> Result<(), AppendError> {
        if number < self.next() {
            return match number.checked_sub(self.first).map(|at| &self.messages[at as usize]) {
                Some(there) if there == message => Ok(()),
                Some(_) => Err(AppendError::Superseded),
                None => Err(AppendError::Unknown(format!("message {number} was removed"))),
            };
        }
        if number > self.next() {
            return Err(AppendError::Unknown(format!("message {} is the last", self.next() - 1)));
        }
        let used: usize = self.messages.iter().map(Vec::len).sum();
        if used + message.len() > self.capacity {
            return Err(AppendError::Full(format!("{} bytes are possible", self.capacity)));
        }
        self.messages.push(message.to_vec());
        Ok(())
    }
}

impl Journal for SimulatedJournal {
    fn describe(&self) -> String {
        "the simulated journal".into()
    }

    fn most_bytes(&self) -> usize {
        MIN_MESSAGE_BYTES
    }

    fn append(&self, first: u64, messages: &[Vec<u8>]) -> (usize, Result<(), AppendError>) {
        let mut state = self.state();
        state.arrive();
        for (appended, (message, number)) in messages.iter().zip(first..).enumerate() {
            match self.fate(&mut state) {
                Fate::Answered => {
                    if let Err(why) = state.append(number, message) {
                        self.state.1.notify_all();
                        return (appended, Err(why));
                    }
                }
                Fate::Unanswered => {
                    // It is there, or will be, if nobody else is faster.
                    let message = message.clone();
                    state.late.push(Late { number, message });
                    state.arrive();
                    self.state.1.notify_all();
                    return (appended, Err(AppendError::Unknown(unreachable().to_string())));
                }
                Fate::Lost => return (appended, Err(AppendError::Unknown(unreachable().to_string()))),
            }
        }
        self.state.1.notify_all();
        (messages.len(), Ok(()))
    }

    fn read(&self, first: u64, most_bytes: usize, wait: Duration) -> Result<Messages, Unreachable> {
        let until = Instant::now() + wait;
        let mut state = self.state();
        if self.fate(&mut state) != Fate::Answered {
            return Err(unreachable());
        }
        state.arrive();
        while state.next() <= first {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || state.hurries {
                return Ok(Messages { first, messages: Vec::new() });
            }
            state = self.state.1.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let from = first.max(state.first);
        let mut bytes = 0;
        let fits = |message: &&Vec<u8>| {
            let fits = bytes == 0 || bytes + message.len() <= most_bytes;
            bytes += message.len();
            fits
        };
        let messages = state.messages[(from - state.first) as usize..].iter().take_while(fits).cloned().collect();
        Ok(Messages { first: from, messages })
    }

    fn log_range(&self) -> Result<LogRange, Unreachable> {
        self.request(|state| LogRange { first: state.first, next: state.next() })
    }

    fn stranded(&self, first: u64, most_bytes: usize) -> Result<Vec<Run>, Unreachable> {
        self.request(|state| state.stranded.iter().filter_map(|server| run_from(server, first, most_bytes)).collect())
    }

    fn truncate(&self, first: u64) -> Result<(), Unreachable> {
        self.request(|state| {
            let gone = first.saturating_sub(state.first).min(state.messages.len() as u64);
            state.messages.drain(..gone as usize);
            state.first += gone;
        })
    }

    fn entry(&self, key: Key) -> Result<Option<Entry>, Unreachable> {
        self.request(|state| state.entries.get(&key).cloned())
    }

    fn write(&self, key: Key, revision: u64, text: &str) -> Result<Option<u64>, Unreachable> {
        self.request(|state| {
            let current = state.entries.get(&key).map_or(0, |entry| entry.revision);
            (current == revision).then(|| {
                state.entries.insert(key, Entry { revision: current + 1, text: text.into() });
                current + 1
            })
        })
    }

    fn checkpoints(&self) -> Result<Vec<u64>, Unreachable> {
        self.request(|state| state.checkpoints.keys().copied().collect())
    }

    fn keep_checkpoint(&self, number: u64, file: &dyn File) -> Result<(), Unreachable> {
        let bytes = read_all(file).map_err(|error: io::Error| Unreachable(error.to_string()))?;
        self.request(|state| drop(state.checkpoints.insert(number, bytes)))
    }

    fn fetch_checkpoint(&self, number: u64, file: &dyn File) -> Result<(), Unreachable> {
        let bytes = self.request(|state| state.checkpoints.get(&number).cloned())?;
        let bytes = bytes.ok_or_else(|| Unreachable(format!("there is no checkpoint {number}")))?;
        file.write_at(0, &bytes).map_err(|error| Unreachable(error.to_string()))
    }

    fn drop_checkpoints(&self, number: u64) -> Result<(), Unreachable> {
        self.request(|state| state.checkpoints = state.checkpoints.split_off(&number))
    }
}
