//! Appending to a stream of numbered messages, and finding out what became of one whose answer was lost.
//!
//! A stream, such as one of a message broker, takes a message on the condition that a given one is the last. That alone
//! does not say what became of a message when no answer comes: so it is looked whether the message of that number is
//! this one. If it is another one, ours is not there, and never will be.

use std::time::Duration;

use super::Unappended;
use crate::threads::Threads;

/// How long it is tried: longer than servers take to choose another one of them for the stream.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// What is asked of a stream. Each call returns within seconds.
pub trait Stream {
    /// Publishes a message on the condition that `number - 1` is the last one. Returns the number that it got.
    ///
    /// # Errors
    /// Why it has none, as far as is known.
    fn publish(&self, number: u64, message: &[u8]) -> Result<u64, Problem>;

    /// Whether message `number` is this one; `None` when there is none of that number yet.
    ///
    /// # Errors
    /// Why that is not known, in words.
    fn is_there(&self, number: u64, message: &[u8]) -> Result<Option<bool>, String>;
}

/// Why a message was not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// There is no room, so it is not there.
    Full(String),
    /// It may be there, or come later, or another one is.
    Unclear(String),
}

/// As [`super::Journal::append`].
pub fn append(
    stream: &dyn Stream,
    threads: &Threads,
    first: u64,
    messages: &[Vec<u8>],
) -> (usize, Result<(), Unappended>) {
    let until = threads.now() + PATIENCE;
    let mut appended = 0;
    let mut why = String::new();
    while appended < messages.len() {
        if threads.now() > until {
            return (appended, Err(Unappended::Unknown(why)));
        }
        let (more, outcome) = publish(stream, first + appended as u64, &messages[appended..]);
        appended += more;
        match outcome {
            Ok(()) => return (appended, Ok(())),
            Err(Problem::Full(why)) => return (appended, Err(Unappended::Full(why))),
            Err(Problem::Unclear(problem)) => why = problem,
        }
        // It may be there, and so may be those behind it.
        while appended < messages.len() {
            match stream.is_there(first + appended as u64, &messages[appended]) {
                Ok(Some(true)) => appended += 1,
                Ok(Some(false)) => return (appended, Err(Unappended::Superseded)),
                Ok(None) => break,
                Err(problem) => {
                    why = problem;
                    break;
                }
            }
        }
        threads.sleep(PAUSE);
    }
    (appended, Ok(()))
}

/// Publishes them, one after the other; how many are acknowledged. Not several at once: if another node's message
/// stands where the first of them was to stand, the second would find its number right, and be appended behind it.
fn publish(stream: &dyn Stream, first: u64, messages: &[Vec<u8>]) -> (usize, Result<(), Problem>) {
    for (at, (message, number)) in messages.iter().zip(first..).enumerate() {
        match stream.publish(number, message) {
            Ok(got) if got == number => {}
            Ok(got) => {
                let text = format!("message {number} was acknowledged as message {got}");
                return (at, Err(Problem::Unclear(text)));
            }
            Err(problem) => return (at, Err(problem)),
        }
    }
    (messages.len(), Ok(()))
}
