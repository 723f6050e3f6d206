//! Publishing, and finding out what became of a message whose answer was lost.

use std::time::{Duration, Instant};

use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::RawMessageErrorKind;
use bytes::Bytes;
use lockwork_sequencer::journal::Unappended;

use crate::{NatsJournal, REQUEST, read, words};

/// How long it is tried: longer than the servers take to choose another one of them for the stream.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// As [`lockwork_sequencer::journal::Journal::append`].
pub(crate) async fn append(journal: &NatsJournal, first: u64, messages: &[Vec<u8>]) -> (usize, Result<(), Unappended>) {
    let until = Instant::now() + PATIENCE;
    let messages: Vec<Bytes> = messages.iter().map(|message| Bytes::copy_from_slice(message)).collect();
    let mut appended = 0;
    let mut why = String::new();
    while appended < messages.len() {
        if Instant::now() > until {
            return (appended, Err(Unappended::Unknown(why)));
        }
        let (more, outcome) = publish(journal, first + appended as u64, &messages[appended..]).await;
        appended += more;
        match outcome {
            Ok(()) => return (appended, Ok(())),
            Err(Problem::Full(why)) => return (appended, Err(Unappended::Full(why))),
            Err(Problem::Unclear(problem)) => why = problem,
        }
        // It may be there, and so may be those behind it.
        while appended < messages.len() {
            match there(journal, first + appended as u64, &messages[appended]).await {
                Ok(Some(true)) => appended += 1,
                Ok(Some(false)) => return (appended, Err(Unappended::Superseded)),
                Ok(None) => break,
                Err(problem) => {
                    why = problem;
                    break;
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    (appended, Ok(()))
}

enum Problem {
    Full(String),
    /// It may be there, or come later, or another one is.
    Unclear(String),
}

/// JetStream's codes for a stream that is full, and for a store that is.
fn is_full(text: &str) -> bool {
    [
        "maximum bytes exceeded",
        "maximum messages exceeded",
        "insufficient storage",
        "resource limits exceeded",
        "10077",
        "10047",
    ]
    .iter()
    .any(|known| text.contains(known))
}

fn problem(journal: &NatsJournal, error: &PublishError) -> Problem {
    let text = format!("{}: publish: {}", journal.described, words(error));
    let full = error.kind() == PublishErrorKind::Other && is_full(&text);
    if full { Problem::Full(text) } else { Problem::Unclear(text) }
}

/// Publishes them, one after the other; how many are acknowledged. Not several at once: if another node's message
/// stands where the first of them was to stand, the second would find its number right, and be appended behind it.
async fn publish(journal: &NatsJournal, first: u64, messages: &[Bytes]) -> (usize, Result<(), Problem>) {
    for (at, (message, number)) in messages.iter().zip(first..).enumerate() {
        let publish = PublishMessage::build().payload(message.clone()).expected_last_sequence(number - 1);
        let answer = match journal.context.send_publish(journal.subject.clone(), publish).await {
            Ok(acknowledged) => acknowledged.await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(answer) if answer.sequence == number => {}
            Ok(answer) => {
                let text = format!("message {number} was acknowledged as message {}", answer.sequence);
                return (at, Err(Problem::Unclear(text)));
            }
            Err(error) => return (at, Err(problem(journal, &error))),
        }
    }
    (messages.len(), Ok(()))
}

/// Whether message `number` is this one; `None` when there is none of that number.
async fn there(journal: &NatsJournal, number: u64, message: &Bytes) -> Result<Option<bool>, String> {
    let failed = |error: &dyn std::error::Error| format!("{}: look for a message: {}", journal.described, words(error));
    let found = tokio::time::timeout(REQUEST, journal.stream.get_raw_message(number)).await;
    match found.map_err(|late| failed(&late))? {
        Ok(found) => Ok(Some(found.payload == *message)),
        Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => {
            let info = tokio::time::timeout(REQUEST, journal.stream.get_info()).await;
            let info = info.map_err(|late| failed(&late))?.map_err(|error| failed(&error))?;
            // One that was there and was removed was another's: ours are not removed before they are acknowledged.
            Ok((read::extent(&info.state).first > number).then_some(false))
        }
        Err(error) => Err(failed(&error)),
    }
}
