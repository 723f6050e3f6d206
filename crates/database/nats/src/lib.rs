//! The journal of a cluster ([`lockwork_sequencer::journal`]) on NATS JetStream.
//!
//! | what | where |
//! |---|---|
//! | record `n` | message `n` of the stream `lockwork_NAME`, published on the condition that `n - 1` is the last |
//! | who leads | key `leader` of the key-value bucket `lockwork_NAME_lease`, written by compare and swap |
//! | digest of the rows of part `n` | key `digest-part-n` there |
//! | checkpoint up to record `n` | object `n`, 20 digits, of the object store `lockwork_NAME_checkpoints` |
//!
//! All of them are in files, replicated as often as [`Options::replicas`] says. JetStream acknowledges a message when a
//! majority has it, but by default before it is synced, so a loss of power of several servers at once may lose what was
//! acknowledged: servers need `sync_interval: always`, and are asked whether they have it. A stream whose settings
//! could lose messages is refused. What JetStream loses, alters or forks all the same is found by the chain of hashes.
//!
//! | module | idea |
//! |---|---|
//! | `connect` | connecting; streams are made, or their settings verified |
//! | `append` | publishing, and looking whether a message is there |
//! | `read` | an ordered consumer that is made again when it breaks |
//! | `replicas` | reads one server's own copy of the log |
//! | [`audit`] | compares the copies of all servers |
//! | [`repair`] | gives a server the messages that it has lost |
//! | `objects` | checkpoints |
//! | [`local`] | servers on this machine |

mod append;
pub mod audit;
mod connect;
pub mod local;
mod objects;
mod read;
pub mod repair;
mod replicas;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::context::Context;
use async_nats::jetstream::kv;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::object_store::ObjectStore;
use async_nats::jetstream::stream::{LastRawMessageErrorKind, Stream};
use lockwork_sequencer::Threads;
use lockwork_sequencer::io::File;
use lockwork_sequencer::journal::{AppendError, Entry, Journal, Key, LogRange, Messages, Run, Unreachable};
use tokio::runtime::Runtime;

pub use connect::{Error, Options};

/// How long a single request may take.
const REQUEST: Duration = Duration::from_secs(2);

/// See the crate.
pub struct NatsJournal {
    runtime: Arc<Runtime>,
    context: Context,
    stream: Stream,
    /// What nodes write down, by key.
    entries: kv::Store,
    checkpoints: ObjectStore,
    reader: tokio::sync::Mutex<Option<read::Reader>>,
    subject: String,
    most_bytes: usize,
    options: Options,
    /// Which of the journal's streams it is, from 1.
    number: u16,
    described: String,
}

/// What is wrong, with its causes.
fn words(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

impl NatsJournal {
    /// What a key is called in the bucket.
    fn name_of(&self, key: Key) -> String {
        let name = match key {
            Key::Leader => "leader".into(),
            Key::Digest(part) => format!("digest-part-{}", part + 1),
        };
        match self.number {
            1 => name,
            number => format!("{name}-{number}"),
        }
    }

    fn unreachable(&self, action: &str, error: &dyn std::error::Error) -> Unreachable {
        Unreachable(format!("{}: {action}: {}", self.described, words(error)))
    }

    /// Does something that takes a few seconds at most.
    fn within<T, E: std::error::Error>(
        &self,
        action: &str,
        time: Duration,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Unreachable> {
        match self.runtime.block_on(async { tokio::time::timeout(time, work).await }) {
            Ok(done) => done.map_err(|error| self.unreachable(action, &error)),
            Err(late) => Err(self.unreachable(action, &late)),
        }
    }
}

impl Journal for NatsJournal {
    fn describe(&self) -> String {
        self.described.clone()
    }

    fn most_bytes(&self) -> usize {
        self.most_bytes
    }

    fn append(&self, first: u64, messages: &[Vec<u8>]) -> (usize, Result<(), AppendError>) {
        lockwork_sequencer::journal::append::append(self, &Threads::default(), first, messages)
    }

    fn read(&self, first: u64, most_bytes: usize, wait: Duration) -> Result<Messages, Unreachable> {
        self.runtime.block_on(read::read(self, first, most_bytes, wait))
    }

    fn log_range(&self) -> Result<LogRange, Unreachable> {
        let info = self.within("ask for the stream", REQUEST, self.stream.get_info())?;
        Ok(read::log_range(&info.state))
    }

    fn stranded(&self, first: u64, most_bytes: usize) -> Result<Vec<Run>, Unreachable> {
        self.runtime.block_on(replicas::stranded(self, first, most_bytes))
    }

    fn truncate(&self, first: u64) -> Result<(), Unreachable> {
        let purge = async { self.stream.purge().sequence(first).await };
        self.within("cut the stream", 4 * REQUEST, purge).map(drop)
    }

    fn entry(&self, key: Key) -> Result<Option<Entry>, Unreachable> {
        let name = self.name_of(key);
        // From the server that leads the bucket: a direct get would be answered by any, also by one that is behind.
        let subject = format!("$KV.{}.{name}", self.entries.name);
        let read = async {
            match self.entries.stream.get_last_raw_message_by_subject(&subject).await {
                Ok(message) => Ok(Some(message)),
                Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
                Err(error) => Err(error),
            }
        };
        let found = self.within(&format!("read '{name}'"), REQUEST, read)?;
        let entry = |message: StreamMessage| Entry {
            revision: message.sequence,
            text: String::from_utf8_lossy(&message.payload).into_owned(),
        };
        Ok(found.map(entry))
    }

    fn write(&self, key: Key, revision: u64, text: &str) -> Result<Option<u64>, Unreachable> {
        let (name, value) = (self.name_of(key), bytes::Bytes::copy_from_slice(text.as_bytes()));
        let write = async {
            match self.entries.update(&name, value, revision).await {
                Ok(revision) => Ok(Some(revision)),
                Err(error) if error.kind() == kv::UpdateErrorKind::WrongLastRevision => Ok(None),
                Err(error) => Err(error),
            }
        };
        self.within(&format!("write '{name}'"), REQUEST, write)
    }

    fn checkpoints(&self) -> Result<Vec<u64>, Unreachable> {
        self.runtime.block_on(objects::list(self))
    }

    fn keep_checkpoint(&self, number: u64, file: &dyn File) -> Result<(), Unreachable> {
        self.runtime.block_on(objects::keep(self, number, file))
    }

    fn fetch_checkpoint(&self, number: u64, file: &dyn File) -> Result<(), Unreachable> {
        self.runtime.block_on(objects::fetch(self, number, file))
    }

    fn drop_checkpoints(&self, number: u64) -> Result<(), Unreachable> {
        for old in self.checkpoints()?.into_iter().filter(|&old| old < number) {
            self.within("remove a checkpoint", 4 * REQUEST, self.checkpoints.delete(objects::name(old)))?;
        }
        Ok(())
    }
}
