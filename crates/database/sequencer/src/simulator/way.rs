//! A node's way to the servers: its journal.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::Duration;

use super::Broken;
use super::counters::Seen;
use super::servers::{Answer, Ask, Asker, Refused};
use super::world::{Seat, World};
use crate::io::{File, read_all};
use crate::journal::append::{MessageState, Problem, Stream, append};
use crate::journal::{AppendError, Entry, Journal, Key, LogRange, MIN_MESSAGE_BYTES, Messages, Run, Unreachable};
use crate::threads::{Scheduler, Threads, Waits};

/// How long an answer is waited for.
const REQUEST: Duration = Duration::from_secs(2);

/// See the module.
pub(super) struct Way {
    seat: Seat,
    threads: Threads,
    broken: Option<Broken>,
}

fn unreachable() -> Unreachable {
    Unreachable("the servers do not answer".into())
}

impl Way {
    pub(super) fn new(seat: Seat, broken: Option<Broken>) -> Self {
        Self { threads: seat.threads(), seat, broken }
    }

    fn send(&self, ask: Ask) -> Receiver<Answer> {
        let (answer, answered) = sync_channel(2);
        let asker = Asker { life: self.seat.life, slot: World::current(), answer };
        self.seat.world.state().send(ask, asker);
        answered
    }

    /// Asks, and gives the answer to `take`; another one than that to the question there is none.
    fn ask<T>(&self, ask: Ask, most: Duration, take: impl FnOnce(Answer) -> Option<T>) -> Result<T, Unreachable> {
        // Before these nothing is done that other threads wait for and are not told of.
        let has_acted = !matches!(ask, Ask::Read { .. } | Ask::Lease | Ask::TakeLease { .. } | Ask::LogRange);
        let answered = self.send(ask);
        let until = self.seat.now() + most;
        loop {
            match answered.try_recv() {
                Ok(answer) => return take(answer).ok_or_else(unreachable),
                Err(TryRecvError::Empty) if self.seat.now() < until => {}
                Err(_) => return Err(unreachable()),
            }
            if !self.seat.wait(Some(until), has_acted, Waits::Time) {
                return Err(unreachable());
            }
        }
    }
}

macro_rules! only {
    ($pattern:pat => $value:expr) => {
        |answer| match answer {
            $pattern => Some($value),
            _ => None,
        }
    };
}

impl Stream for Way {
    fn publish(&self, number: u64, message: &[u8]) -> Result<u64, Problem> {
        let ask = Ask::Publish { number, message: Arc::new(message.to_vec()) };
        let answer = self.ask(ask, REQUEST, only!(Answer::Published(outcome) => outcome));
        match answer.map_err(|error| Problem::Unclear(error.to_string()))? {
            Ok(number) => Ok(number),
            Err(Refused::Full) => Err(Problem::Full("its most of bytes is reached".into())),
            Err(Refused::Last(last)) => Err(Problem::Unclear(format!("the last message is {last}"))),
        }
    }

    fn there(&self, number: u64, message: &[u8]) -> Result<MessageState, String> {
        let answer =
            self.ask(Ask::Get(number), REQUEST, only!(Answer::Message(found, log_range) => (found, log_range)));
        let (found, log_range) = answer.map_err(|error| error.to_string())?;
        match found {
            Some(found) if found == message => {
                self.seat.world.state().saw(Seen::Found);
                Ok(MessageState::It)
            }
            Some(_) => Ok(MessageState::Another),
            None if log_range.first > number => Ok(MessageState::Removed),
            _ => Ok(MessageState::behind_the_end(&self.stranded(number, 1), message)),
        }
    }
}

impl Journal for Way {
    fn describe(&self) -> String {
        "the simulated servers".into()
    }

    fn most_bytes(&self) -> usize {
        MIN_MESSAGE_BYTES
    }

    fn append(&self, first: u64, messages: &[Vec<u8>]) -> (usize, Result<(), AppendError>) {
        if self.broken == Some(Broken::Acknowledgement) {
            for (number, message) in (first..).zip(messages) {
                drop(self.send(Ask::Publish { number, message: Arc::new(message.clone()) }));
            }
            return (messages.len(), Ok(()));
        }
        append(self, &self.threads, first, messages)
    }

    fn read(&self, first: u64, most_bytes: usize, wait: Duration) -> Result<Messages, Unreachable> {
        let ask = Ask::Read { first, most_bytes, wait: wait.as_nanos() as u64 };
        self.ask(ask, wait + REQUEST, only!(Answer::Messages(messages) => messages))
    }

    fn log_range(&self) -> Result<LogRange, Unreachable> {
        self.ask(Ask::LogRange, REQUEST, only!(Answer::LogRange(log_range) => log_range))
    }

    fn stranded(&self, first: u64, most_bytes: usize) -> Result<Vec<Run>, Unreachable> {
        let ask = Ask::Stranded { first, most_bytes };
        self.ask(ask, REQUEST, only!(Answer::Stranded(found) => found.into_iter().collect()))
    }

    fn truncate(&self, first: u64) -> Result<(), Unreachable> {
        self.ask(Ask::Truncate(first), REQUEST, only!(Answer::Done => ()))
    }

    fn entry(&self, key: Key) -> Result<Option<Entry>, Unreachable> {
        assert_eq!(key, Key::Leader, "these nodes have whole tables");
        self.ask(Ask::Lease, REQUEST, only!(Answer::Lease(lease) => lease))
    }

    fn write(&self, key: Key, revision: u64, text: &str) -> Result<Option<u64>, Unreachable> {
        assert_eq!(key, Key::Leader, "these nodes have whole tables");
        let ask = Ask::TakeLease { revision, holder: text.into() };
        self.ask(ask, REQUEST, only!(Answer::Taken(taken) => taken))
    }

    fn checkpoints(&self) -> Result<Vec<u64>, Unreachable> {
        self.ask(Ask::Checkpoints, REQUEST, only!(Answer::Checkpoints(numbers) => numbers))
    }

    fn keep_checkpoint(&self, number: u64, file: &dyn File) -> Result<(), Unreachable> {
        let bytes = read_all(file).map_err(|error| Unreachable(error.to_string()))?;
        self.ask(Ask::Keep(number, Arc::new(bytes)), 4 * REQUEST, only!(Answer::Done => ()))
    }

    fn fetch_checkpoint(&self, number: u64, file: &dyn File) -> Result<(), Unreachable> {
        let fetched = self.ask(Ask::Fetch(number), 4 * REQUEST, only!(Answer::Fetched(bytes) => bytes))?;
        let bytes = fetched.ok_or_else(|| Unreachable(format!("there is no checkpoint {number}")))?;
        file.write_at(0, &bytes).map_err(|error| Unreachable(error.to_string()))
    }

    fn drop_checkpoints(&self, number: u64) -> Result<(), Unreachable> {
        self.ask(Ask::Drop(number), REQUEST, only!(Answer::Done => ()))
    }
}
