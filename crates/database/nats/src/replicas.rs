//! What servers have each for itself.
//!
//! A consumer that is not replicated is at one of the servers that have the stream, and delivers what that server has;
//! what is told of it names the server. Which one it is, who leads all of them draws, of those that are up to date with
//! it if there are any. So consumers are made until each server has had one. (A *direct get* would be answered by any
//! of them, whichever one is connected to.) What comes is held against the chain of hashes, as everything is.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use async_nats::jetstream::consumer::pull::Config;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer};
use async_nats::jetstream::stream::Stream;
use futures::stream::{FuturesUnordered, unfold};
use futures::{StreamExt, TryStreamExt};
use lockwork_sequencer::journal::{Run, Unreachable};
use tokio::time::{Instant, timeout, timeout_at};

use crate::NatsJournal;

/// How many consumers are being made at a time, and how long that may take: of those that a stopped server is to make,
/// nothing is heard. More would keep a server behind, which then gets none.
const AT_ONCE: usize = 3;
const ATTEMPT: Duration = Duration::from_millis(500);
/// How long before another one is made for one that was not, or is at a server that has had one: at first, and at most.
const PAUSE: Duration = Duration::from_millis(50);
const LONG_PAUSE: Duration = Duration::from_secs(1);
/// For how long a server keeps a consumer that was not removed.
const IDLE: Duration = Duration::from_secs(5);
/// How many messages are asked for at a time, whole and without what is in them.
const MESSAGES: usize = 8;
const EMPTY_MESSAGES: usize = 1024;
/// For how long a server may have nothing more, that is to have all.
const BEHIND: Duration = Duration::from_secs(3);

/// For how long servers are asked before what they do not have is lost: one that was just started, or does not know who
/// leads, answers nothing.
pub(crate) const LONGEST: Duration = Duration::from_secs(10);
/// For how long servers are asked before an epoch begins until most have answered, and then for the others: nobody is
/// served meanwhile.
const SOON: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(500));

/// How many messages those that have something are asked for then, for how long each, and for how long all of them.
const STRANDED: u64 = 256;
const MORE: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(1));

/// What one server has of a stream.
pub(crate) struct Copy {
    /// What the server is called; nothing if it is the only one.
    pub(crate) server: String,
    /// How many messages it has from where the consumer begins, and the number before that.
    pub(crate) count: u64,
    pub(crate) before: u64,
    /// The first of them, one behind the other from where was asked for.
    pub(crate) messages: Run,
}

/// Messages that are asked for: from `first` on, before `until`, about `most_bytes` bytes of them, and no more when
/// that took `longest`.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) longest: Duration,
    pub(crate) first: u64,
    pub(crate) until: u64,
    pub(crate) most_bytes: usize,
}

impl Wanted {
    fn from(self) -> DeliverPolicy {
        DeliverPolicy::ByStartSequence { start_sequence: self.first }
    }
}

/// A consumer at one server.
struct Placed {
    server: String,
    consumer: PullConsumer,
}

impl Placed {
    /// At whichever server. Without what is in messages the server reads and verifies them all the same.
    async fn make(stream: &Stream, from: DeliverPolicy, headers_only: bool) -> Option<Self> {
        let config = Config {
            deliver_policy: from,
            ack_policy: AckPolicy::None,
            inactive_threshold: IDLE,
            num_replicas: 1,
            memory_storage: true,
            headers_only,
            ..Config::default()
        };
        let consumer = timeout(ATTEMPT, stream.create_consumer(config)).await.ok()?.ok()?;
        let server = consumer.cached_info().cluster.as_ref().and_then(|cluster| cluster.leader.clone());
        Some(Self { server: server.unwrap_or_default(), consumer })
    }

    /// The messages wanted, from the first one on; none if something else comes instead.
    async fn read(&self, wanted: Wanted, at_once: usize) -> Option<Run> {
        let (mut found, mut bytes, start) = (Vec::new(), 0, Instant::now());
        while bytes < wanted.most_bytes && wanted.first + (found.len() as u64) < wanted.until {
            if start.elapsed() > wanted.longest {
                break;
            }
            let most = usize::try_from(wanted.until - wanted.first).unwrap_or(usize::MAX) - found.len();
            let batch = self.consumer.fetch().max_messages(most.min(at_once)).messages().await.ok()?;
            // Nothing ends it when its server dies.
            let batch: Vec<_> = timeout(LONGEST, batch.try_collect()).await.ok()?.ok()?;
            let before = found.len();
            for message in batch {
                if message.info().ok()?.stream_sequence != wanted.first + found.len() as u64 {
                    return Some(found);
                }
                bytes += message.payload.len();
                found.push(message.payload.to_vec());
            }
            if found.len() == before {
                break;
            }
        }
        Some(found)
    }

    /// Whether the server has all messages wanted, or soon has them, as one that is a moment behind the others has;
    /// nothing if it does not answer.
    async fn has_all(&self, mut wanted: Wanted) -> Option<bool> {
        let mut since = Instant::now();
        while wanted.first < wanted.until && since.elapsed() < BEHIND {
            match self.read(wanted, EMPTY_MESSAGES).await?.len() as u64 {
                0 => tokio::time::sleep(PAUSE).await,
                read => (wanted.first, since) = (wanted.first + read, Instant::now()),
            }
        }
        Some(wanted.first >= wanted.until)
    }

    /// Removes it; nobody waits for that.
    fn remove(&self, stream: &Stream) {
        let (stream, name) = (stream.clone(), self.consumer.cached_info().name.clone());
        tokio::spawn(async move { drop(stream.delete_consumer(&name).await) });
    }
}

/// What some server has, whichever; nothing if it does not answer.
async fn one(stream: &Stream, from: DeliverPolicy, wanted: Option<Wanted>) -> Option<Copy> {
    let placed = Placed::make(stream, from, false).await?;
    let messages = match wanted {
        Some(wanted) => timeout(LONGEST, placed.read(wanted, MESSAGES)).await.ok().flatten(),
        None => Some(Vec::new()),
    };
    placed.remove(stream);
    let info = placed.consumer.cached_info();
    let (count, before) = (info.num_pending, info.delivered.stream_sequence);
    Some(Copy { server: placed.server, count, before, messages: messages? })
}

/// What each server has, as they answer; it ends when all have.
pub(crate) fn read_replicas(
    stream: &Stream,
    from: DeliverPolicy,
    wanted: Option<Wanted>,
) -> impl futures::Stream<Item = Copy> {
    let begin = (FuturesUnordered::new(), BTreeSet::new(), Duration::ZERO);
    unfold(begin, move |(mut asked, mut seen, mut pause)| async move {
        while seen.len() < replicas(stream) {
            while asked.len() < AT_ONCE {
                asked.push(async move {
                    tokio::time::sleep(pause).await;
                    one(stream, from, wanted).await
                });
            }
            match asked.next().await.flatten() {
                Some(copy) if seen.insert(copy.server.clone()) => return Some((copy, (asked, seen, PAUSE))),
                _ => pause = pause.mul_f64(1.2).clamp(PAUSE, LONG_PAUSE),
            }
        }
        None
    })
}

/// What servers have: most of them at least, which are waited for so long, and then so long for the others, but for
/// those that they know to be away.
pub(crate) async fn most(
    stream: &Stream,
    from: DeliverPolicy,
    wanted: Option<Wanted>,
    (longest, others): (Duration, Duration),
) -> Result<Vec<Copy>, Few> {
    let (mut until, all) = (Instant::now() + longest, replicas(stream));
    let info = timeout(ATTEMPT, stream.get_info()).await;
    let peers = info.ok().and_then(Result::ok).and_then(|info| info.cluster).map(|cluster| cluster.replicas);
    let away: Vec<_> = peers.into_iter().flatten().filter(|peer| peer.offline).map(|peer| peer.name).collect();
    let mut asked = pin!(read_replicas(stream, from, wanted));
    let mut told: Vec<Copy> = Vec::new();
    let is_silent = |told: &[Copy], name: &String| told.iter().all(|copy| copy.server != *name);
    while 2 * told.len() <= all || told.len() + away.iter().filter(|name| is_silent(&told, name)).count() < all {
        match timeout_at(until, asked.next()).await {
            Ok(Some(copy)) => told.push(copy),
            _ => break,
        }
        if 2 * told.len() > all {
            until = until.min(Instant::now() + others);
        }
    }
    if 2 * told.len() > all { Ok(told) } else { Err(Few { told: told.len(), all }) }
}

/// Whether so many servers have every one of these messages, which each of them reads, all at the same time.
pub(crate) async fn read_at(stream: &Stream, wanted: Wanted, servers: usize, longest: Duration) -> bool {
    let begun = RefCell::new(BTreeSet::new());
    let read_one = async || {
        let placed = Placed::make(stream, wanted.from(), true).await?;
        let is_new = begun.borrow_mut().insert(placed.server.clone());
        let has_all = if is_new { placed.has_all(wanted).await } else { None };
        placed.remove(stream);
        if is_new && has_all.is_none() {
            begun.borrow_mut().remove(&placed.server);
        }
        has_all
    };
    let read_each = async {
        let (mut asked, mut whole) = (FuturesUnordered::new(), 0);
        while whole < servers {
            while asked.len() + whole < servers {
                asked.push(read_one());
            }
            match asked.next().await.flatten() {
                Some(true) => whole += 1,
                Some(false) => return false,
                None => tokio::time::sleep(PAUSE).await,
            }
        }
        true
    };
    timeout(longest, read_each).await.unwrap_or(false)
}

/// How many servers have a stream.
pub(crate) fn replicas(stream: &Stream) -> usize {
    stream.cached_info().config.num_replicas
}

/// Too few servers say what they have.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("{told} of {all} servers say what they have")]
pub(crate) struct Few {
    told: usize,
    all: usize,
}

/// Messages that one server may have, and that all of them together say are not there, or not yet: as
/// [`lockwork_sequencer::journal::Journal::stranded`].
pub(crate) async fn stranded(journal: &NatsJournal, first: u64, most_bytes: usize) -> Result<Vec<Run>, Unreachable> {
    // One message each, which decides, is there soon; what else there is may take longer.
    let one = Wanted { first, until: first + 1, most_bytes, longest: LONGEST };
    let told = most(&journal.stream, one.from(), Some(one), SOON).await;
    let mut told = told.map_err(|few| journal.unreachable("ask servers", &few))?;
    told.retain(|copy| !copy.messages.is_empty());
    let is_short = |copy: &Copy| copy.count > 1 && copy.messages.len() == 1 && copy.messages[0].len() < most_bytes;
    let mut short = told.iter().filter(|copy| is_short(copy)).count();
    let wanted = Wanted { until: first + STRANDED, longest: MORE.0, ..one };
    let (mut asked, until) =
        (pin!(read_replicas(&journal.stream, wanted.from(), Some(wanted))), Instant::now() + MORE.1);
    while short > 0
        && let Ok(Some(more)) = timeout_at(until, asked.next()).await
    {
        if let Some(copy) = told.iter_mut().find(|copy| copy.server == more.server && is_short(copy)) {
            short -= 1;
            // Whatever became of it meanwhile: the one message was there.
            if more.messages.first() == copy.messages.first() {
                *copy = more;
            }
        }
    }
    Ok(told.into_iter().map(|copy| copy.messages).collect())
}

/// Messages that one server does not have any more, as another one has them; none when no server has the first.
///
/// A server that has lost a block of its own may lead the stream without it, and whoever reads gets what it has:
/// messages behind a gap. So before a gap is believed each server is asked.
///
/// # Errors
/// [`Unreachable`] as long as a server that does not answer may have it, unless most begin behind it.
pub(crate) async fn found(journal: &NatsJournal, wanted: Wanted) -> Result<Run, Unreachable> {
    let mut asked = pin!(read_replicas(&journal.stream, wanted.from(), Some(wanted)));
    let (until, all) = (Instant::now() + LONGEST, replicas(&journal.stream));
    let (mut told, mut cut) = (0, 0);
    while let Ok(Some(copy)) = timeout_at(until, asked.next()).await {
        if !copy.messages.is_empty() {
            return Ok(copy.messages);
        }
        (told, cut) = (told + 1, cut + usize::from(copy.before >= wanted.first));
    }
    // What most begin behind was removed there, behind a checkpoint, though one that has it may not answer.
    let is_gone = told == all || 2 * cut > all;
    if is_gone { Ok(Vec::new()) } else { Err(journal.unreachable("ask servers", &Few { told, all })) }
}
