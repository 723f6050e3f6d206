//! What servers have each for itself (*direct get*, which the server that one is connected to answers). What comes is
//! held against the chain of hashes, as everything is.
//!
//! **Found**: a message that one server does not have any more, and others do. A server that has lost a block of its
//! own may lead the stream before it has it again from the others, and whoever reads gets what it has: messages behind
//! a gap. So before a gap is believed each server is asked.
//!
//! **Stranded**: a message that one server has, and that all of them together say is not there, or not yet.

use std::time::Duration;

use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::stream::DirectGetErrorKind;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use lockwork_sequencer::journal::Unreachable;
use tokio::time::{Instant, timeout_at};

use crate::{NatsJournal, REQUEST, connect};

/// For how long servers are asked that cannot say whether they have a message: one that was just started, or does not
/// know who leads, answers nothing.
const LONGEST: Duration = Duration::from_secs(5);
/// How long before they are asked again.
const PAUSE: Duration = Duration::from_millis(200);

/// For how long servers are waited for until most have answered: who asks has a lease meanwhile, and does not renew it.
const SOON: Duration = Duration::from_secs(1);
/// For how long the others are waited for then, which may be away.
const LATE: Duration = Duration::from_millis(300);

/// As [`lockwork_sequencer::journal::Journal::stranded`].
pub(crate) async fn stranded(journal: &NatsJournal, number: u64) -> Result<Vec<Vec<u8>>, Unreachable> {
    let servers = &journal.options.servers;
    let mut asked: FuturesUnordered<_> = servers.iter().map(|server| has(journal, server, number)).collect();
    let mut until = Instant::now() + SOON;
    let mut told = Vec::new();
    while let Ok(Some(answer)) = timeout_at(until, asked.next()).await {
        told.extend(answer);
        if 2 * told.len() > servers.len() {
            until = until.min(Instant::now() + LATE);
        }
    }
    if 2 * told.len() <= servers.len() {
        let (few, all) = (told.len(), servers.len());
        let text = format!("{}: {few} of {all} servers say what they have", journal.described);
        return Err(Unreachable(text));
    }
    Ok(told.into_iter().flatten().collect())
}

/// The message of a number that one server has, or none; nothing if it does not say.
async fn has(journal: &NatsJournal, server: &str, number: u64) -> Option<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    ask(journal, server, number, number + 1, usize::MAX, &mut found).await.then_some(found)
}

/// Messages from `first` on, before `until`, about `most_bytes` bytes of them; none when no server has the first.
pub(crate) async fn found(journal: &NatsJournal, first: u64, until: u64, most_bytes: usize) -> Vec<Vec<u8>> {
    let give_up = Instant::now() + LONGEST;
    loop {
        let (mut found, mut is_clear) = (Vec::new(), true);
        for server in &journal.options.servers {
            is_clear &= ask(journal, server, first, until, most_bytes, &mut found).await;
        }
        if is_clear || !found.is_empty() || Instant::now() > give_up {
            return found;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Appends the messages behind those that were found which one server has; whether it has said what it does not have.
async fn ask(
    journal: &NatsJournal,
    server: &str,
    first: u64,
    until: u64,
    most_bytes: usize,
    found: &mut Vec<Vec<u8>>,
) -> bool {
    let mut bytes: usize = found.iter().map(Vec::len).sum();
    let Ok(client) = connect::connect_one(&journal.options, server, &journal.described).await else { return false };
    let context = ContextBuilder::new().timeout(REQUEST).build(client);
    let Ok(stream) = context.get_stream_no_info(journal.options.stream_name(journal.number)).await else {
        return false;
    };
    while bytes < most_bytes && first + (found.len() as u64) < until {
        let number = first + found.len() as u64;
        match tokio::time::timeout(REQUEST, stream.direct_get(number)).await {
            Ok(Ok(message)) if message.sequence == number => {
                bytes += message.payload.len();
                found.push(message.payload.to_vec());
            }
            Ok(Err(error)) => return error.kind() == DirectGetErrorKind::NotFound,
            _ => return false,
        }
    }
    true
}
