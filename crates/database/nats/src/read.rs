//! Reading the stream, by an ordered consumer that is made again when it breaks.

use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::{Ordered, OrderedConfig};
use async_nats::jetstream::stream::State;
use futures::{FutureExt, StreamExt};
use lockwork_sequencer::journal::{LogRange, Messages, Unreachable};

use crate::replicas::{LONGEST, Wanted, found as found_elsewhere};
use crate::{NatsJournal, REQUEST};

/// How long a message that is there may be on its way.
const LATE: Duration = Duration::from_secs(2);
/// How often it is looked whether one is.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A consumer, and the message that is due.
pub(crate) struct Reader {
    messages: Ordered,
    next: u64,
}

pub(crate) fn log_range(state: &State) -> LogRange {
    // A stream that nothing was ever in begins with message 1, though it says 0.
    LogRange { first: state.first_sequence.max(1), next: state.last_sequence + 1 }
}

/// Makes a consumer that begins with message `first`.
async fn begin(journal: &NatsJournal, first: u64) -> Result<Reader, Unreachable> {
    let deliver_policy = DeliverPolicy::ByStartSequence { start_sequence: first };
    let made = async {
        let consumer = journal.stream.create_consumer(OrderedConfig { deliver_policy, ..Default::default() });
        let consumer = consumer.await.map_err(|error| journal.unreachable("begin to read", &error))?;
        consumer.messages().await.map_err(|error| journal.unreachable("begin to read", &error))
    };
    let made = tokio::time::timeout(2 * REQUEST, made).await;
    let messages = made.map_err(|late| journal.unreachable("begin to read", &late))??;
    Ok(Reader { messages, next: first })
}

/// As [`lockwork_sequencer::journal::Journal::read`].
pub(crate) async fn read(
    journal: &NatsJournal,
    first: u64,
    most_bytes: usize,
    wait: Duration,
) -> Result<Messages, Unreachable> {
    let mut held = journal.reader.lock().await;
    let mut reader = match held.take().filter(|reader| reader.next == first) {
        Some(reader) => reader,
        None => begin(journal, first).await?,
    };
    let mut found = Messages { first, messages: Vec::new() };
    let start = Instant::now();
    let mut bytes = 0;
    while bytes == 0 || bytes < most_bytes {
        let message = if found.messages.is_empty() {
            match tokio::time::timeout(POLL_INTERVAL.min(wait.max(Duration::from_millis(1))), reader.messages.next())
                .await
            {
                Ok(message) => message,
                Err(_) if start.elapsed() < wait => continue,
                Err(_) => {
                    let info = tokio::time::timeout(REQUEST, journal.stream.get_info()).await;
                    let info = info.map_err(|late| journal.unreachable("ask for the stream", &late))?;
                    let info = info.map_err(|error| journal.unreachable("ask for the stream", &error))?;
                    if log_range(&info.state).next <= first {
                        break;
                    }
                    if start.elapsed() > wait + LATE {
                        let messages = found_elsewhere(
                            journal,
                            Wanted { first, until: log_range(&info.state).next, most_bytes, longest: LONGEST },
                        )
                        .await?;
                        if !messages.is_empty() {
                            return Ok(Messages { first, messages });
                        }
                        return Err(Unreachable(format!("{}: message {first} does not come", journal.described)));
                    }
                    continue;
                }
            }
        } else {
            match reader.messages.next().now_or_never() {
                Some(message) => message,
                None => break,
            }
        };
        let message = match message {
            Some(Ok(message)) => message,
            // What was read is good; the reader is made again.
            Some(Err(_)) | None if !found.messages.is_empty() => return Ok(found),
            Some(Err(error)) => return Err(journal.unreachable("read", &error)),
            None => return Err(Unreachable(format!("{}: reading ended", journal.described))),
        };
        let number = match message.info() {
            Ok(info) => info.stream_sequence,
            Err(error) => return Err(Unreachable(format!("{}: read: {error}", journal.described))),
        };
        if found.messages.is_empty() && number < first {
            // A consumer that had nothing to say when it was lost is made again, by the client, to begin with the first
            // message there is.
            reader = begin(journal, first).await?;
            continue;
        }
        if found.messages.is_empty() && number > first {
            let messages =
                found_elsewhere(journal, Wanted { first, until: number, most_bytes, longest: LONGEST }).await?;
            if !messages.is_empty() {
                return Ok(Messages { first, messages });
            }
        }
        if found.messages.is_empty() {
            found.first = number;
        } else if number != reader.next {
            // The next read says from where on there is something.
            return Ok(found);
        }
        reader.next = number + 1;
        bytes += message.payload.len().max(1);
        found.messages.push(message.payload.to_vec());
    }
    *held = Some(reader);
    Ok(found)
}
