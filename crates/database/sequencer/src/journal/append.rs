//! Appending to a stream of numbered messages, and finding out what became of one whose answer was lost.
//!
//! A stream, such as one of a message broker, takes a message on the condition that a given one is the last. That alone
//! does not say what became of a message when no answer comes: so it is looked whether the message of that number is
//! this one. If it is another one, ours is not there, and never will be.

use std::time::Duration;

use super::{AppendError, Run, Unreachable};
use crate::threads::Threads;

/// How long it is tried: longer than servers take to choose another one of them for the stream.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// What a stream has of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageState {
    /// The message that it is asked for.
    It,
    /// Another one.
    Another,
    /// None yet.
    Nothing,
    /// None any more: one was there, and was removed behind a checkpoint. Whose it was is not known, as others read and
    /// remove also what was never acknowledged.
    Removed,
    /// None, but one of its servers has another one for itself, or may have.
    Stranded,
}

impl MessageState {
    /// Of a number that the stream does not have, when servers say that of it for themselves
    /// ([`super::Journal::stranded`]).
    #[must_use]
    pub fn behind_the_end(stranded: &Result<Vec<Run>, Unreachable>, message: &[u8]) -> Self {
        let is_it = |stranded: &Vec<Run>| stranded.iter().all(|run| run.first().is_some_and(|one| one == message));
        if stranded.as_ref().is_ok_and(is_it) { Self::Nothing } else { Self::Stranded }
    }
}

/// What is asked of a stream. Each call returns within seconds.
pub trait Stream {
    /// Publishes a message on the condition that `number - 1` is the last one. Returns the number that it got.
    ///
    /// # Errors
    /// Why it has none, as far as is known.
    fn publish(&self, number: u64, message: &[u8]) -> Result<u64, Problem>;

    /// Whether message `number` is this one.
    ///
    /// # Errors
    /// Why that is not known, in words.
    fn there(&self, number: u64, message: &[u8]) -> Result<MessageState, String>;
}

/// Why a message was not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// There is no room, so it is not there, and does not come later: callers are told that nothing has happened.
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
) -> (usize, Result<(), AppendError>) {
    let until = threads.now() + TIMEOUT;
    let mut appended = 0;
    let mut why = String::new();
    // The message of which an attempt had no answer: it may be there, or still come.
    let mut unclear = None;
    let mut is_due = true;
    while appended < messages.len() {
        if threads.now() > until {
            return (appended, Err(AppendError::Unknown(why)));
        }
        if is_due {
            let (more, outcome) = publish(stream, first + appended as u64, &messages[appended..]);
            appended += more;
            match outcome {
                Ok(()) => return (appended, Ok(())),
                Err(Problem::Full(why)) if unclear != Some(appended) => return (appended, Err(AppendError::Full(why))),
                Err(Problem::Full(problem) | Problem::Unclear(problem)) => {
                    unclear = Some(appended);
                    why = problem;
                }
            }
        }
        // It may be there, and so may be those behind it.
        while appended < messages.len() {
            let there = stream.there(first + appended as u64, &messages[appended]);
            // What a server has in its place, or may have, somebody may have read; who begins an epoch sees to it.
            is_due = there == Ok(MessageState::Nothing);
            match there {
                Ok(MessageState::It) => appended += 1,
                Ok(MessageState::Another) => return (appended, Err(AppendError::Superseded)),
                Ok(MessageState::Nothing) => break,
                Ok(MessageState::Removed) => {
                    let number = first + appended as u64;
                    let why = format!("message {number} was removed before it was known whose it was");
                    return (appended, Err(AppendError::Unknown(why)));
                }
                Ok(MessageState::Stranded) => {
                    why = format!("message {}: one of the servers has another, or may have", first + appended as u64);
                    break;
                }
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

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// A stream whose first attempt has no answer, if so, and that is full then; what it did not answer is there later.
    struct Filling {
        answers: bool,
        attempts: Cell<u32>,
        looks: Cell<u32>,
    }

    impl Stream for Filling {
        fn publish(&self, _: u64, _: &[u8]) -> Result<u64, Problem> {
            self.attempts.set(self.attempts.get() + 1);
            Err(match self.answers || self.attempts.get() > 1 {
                true => Problem::Full("full".into()),
                false => Problem::Unclear("no answer".into()),
            })
        }

        fn there(&self, _: u64, _: &[u8]) -> Result<MessageState, String> {
            self.looks.set(self.looks.get() + 1);
            Ok(if self.looks.get() > 2 { MessageState::It } else { MessageState::Nothing })
        }
    }

    /// A stream that says these things of a message, one after the other, and answers no attempt.
    struct Telling {
        told: RefCell<Vec<Result<MessageState, String>>>,
        attempts: Cell<u32>,
    }

    impl Stream for Telling {
        fn publish(&self, _: u64, _: &[u8]) -> Result<u64, Problem> {
            self.attempts.set(self.attempts.get() + 1);
            Err(Problem::Unclear("no answer".into()))
        }

        fn there(&self, _: u64, _: &[u8]) -> Result<MessageState, String> {
            self.told.borrow_mut().pop().expect("asked as often")
        }
    }

    #[test]
    fn nothing_is_published_again_before_it_is_known_that_nobody_has_another_one() {
        let unknown = || Err("no answer".to_string());
        let told =
            [Ok(MessageState::Another), Ok(MessageState::Nothing), unknown(), Ok(MessageState::Stranded), unknown()]
                .into();
        let stream = Telling { told: RefCell::new(told), attempts: Cell::new(0) };
        let appended = append(&stream, &Threads::default(), 1, &[b"message".to_vec()]);
        assert_eq!((appended, stream.attempts.get()), ((0, Err(AppendError::Superseded)), 2));
    }

    #[test]
    fn what_was_removed_before_it_was_looked_for_may_have_been_this_one() {
        let stream = Telling { told: RefCell::new([Ok(MessageState::Removed)].into()), attempts: Cell::new(0) };
        let appended = append(&stream, &Threads::default(), 7, &[b"message".to_vec()]);
        assert!(matches!(appended, (0, Err(AppendError::Unknown(why))) if why.contains("message 7 was removed")));
    }

    fn fill(answers: bool) -> (usize, Result<(), AppendError>) {
        let stream = Filling { answers, attempts: Cell::new(0), looks: Cell::new(0) };
        append(&stream, &Threads::default(), 1, &[b"message".to_vec()])
    }

    #[test]
    fn a_stream_that_is_full_now_may_have_taken_what_it_did_not_answer() {
        assert_eq!(fill(false), (1, Ok(())));
        assert_eq!(fill(true), (0, Err(AppendError::Full("full".into()))));
    }
}
