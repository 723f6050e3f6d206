//! Publishing, and looking whether a message is there.

use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::RawMessageErrorKind;
use bytes::Bytes;
use lockwork_sequencer::journal::append::{MessageState, Problem, Stream};

use crate::{NatsJournal, REQUEST, read, replicas, words};

/// What JetStream says of a stream that is full, of servers with no room for more (`max_store`), and of an account:
/// before it is agreed that the message be stored.
fn is_full(text: &str) -> bool {
    let known =
        ["maximum bytes exceeded", "maximum messages exceeded", "insufficient resources", "resource limits exceeded"];
    known.iter().any(|known| text.contains(known))
}

fn problem(journal: &NatsJournal, error: &PublishError) -> Problem {
    let why = words(error);
    // What servers and the stream are called has no say in it.
    let full = error.kind() == PublishErrorKind::Other && is_full(&why);
    let text = format!("{}: publish: {why}", journal.described);
    if full { Problem::Full(text) } else { Problem::Unclear(text) }
}

impl Stream for NatsJournal {
    fn publish(&self, number: u64, message: &[u8]) -> Result<u64, Problem> {
        let payload = Bytes::copy_from_slice(message);
        let publish = PublishMessage::build().payload(payload).expected_last_sequence(number - 1);
        let answer =
            self.runtime.block_on(async { self.context.send_publish(self.subject.clone(), publish).await?.await });
        answer.map(|answer| answer.sequence).map_err(|error| problem(self, &error))
    }

    fn there(&self, number: u64, message: &[u8]) -> Result<MessageState, String> {
        self.runtime.block_on(there(self, number, message))
    }
}

/// As [`Stream::there`].
async fn there(journal: &NatsJournal, number: u64, message: &[u8]) -> Result<MessageState, String> {
    let failed = |error: &dyn std::error::Error| format!("{}: look for a message: {}", journal.described, words(error));
    let found = tokio::time::timeout(REQUEST, journal.stream.get_raw_message(number)).await;
    match found.map_err(|late| failed(&late))? {
        Ok(found) if found.payload == *message => Ok(MessageState::It),
        Ok(_) => Ok(MessageState::Another),
        Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => {
            let info = tokio::time::timeout(REQUEST, journal.stream.get_info()).await;
            let info = info.map_err(|late| failed(&late))?.map_err(|error| failed(&error))?;
            if read::log_range(&info.state).first > number {
                return Ok(MessageState::Removed);
            }
            Ok(MessageState::behind_the_end(&replicas::stranded(journal, number, 1).await, message))
        }
        Err(error) => Err(failed(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_are_called_says_nothing_of_room() {
        assert!(is_full("other: maximum bytes exceeded") && is_full("insufficient resources, error code 10023"));
        assert!(!is_full("no answer from nats://full:10023") && !is_full("store is closed, error code 10077"));
    }
}
