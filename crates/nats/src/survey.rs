//! What servers have each for itself, of all that a journal has.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::context::{Context, ContextBuilder};
use async_nats::jetstream::stream::Stream;
use futures::TryStreamExt;

use crate::copies::{Copy, Wanted, most, read_at};
use crate::{Error, Options, REQUEST, connect};

/// For how long servers are asked for what they have of a stream, most of them and the others.
const LONGEST: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(5));
/// Between two times that they are.
const BETWEEN: Duration = Duration::from_secs(1);
/// For how long servers may read all of a stream.
const READ: Duration = Duration::from_secs(300);

/// What one server has of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// What the server is called.
    pub server: String,
    /// What the stream is called, and how many servers are to have it.
    pub stream: String,
    /// See `stream`.
    pub replicas: usize,
    /// The first message that it has, and the last, or the one before the first if it has none.
    pub first: u64,
    /// See `first`.
    pub last: u64,
    /// How many messages it has.
    pub count: u64,
    /// How many it does not have of those before its last that any server has, or should. What comes while it is asked
    /// may hide as many. Not known of a stream that has gaps, as that of checkpoints, nor of a server that has messages
    /// yet that most do not have any more.
    pub missing: Option<u64>,
}

/// What servers have, asked twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// What they said last. Those that did not answer are not in it.
    pub holdings: Vec<Holding>,
    /// How many messages servers are without that said so both times: one that is cut, or started again, has less than
    /// others for a moment.
    pub lacking: BTreeMap<String, u64>,
    /// Each of them has everything that any had the first time.
    pub is_whole: bool,
    /// Each of them but one has.
    pub is_whole_but_one: bool,
}

impl Survey {
    /// Which servers are without how many messages, for people.
    #[must_use]
    pub fn said(&self) -> String {
        let said = self.lacking.iter().map(|(name, missing)| format!("{name} is without {missing} messages"));
        said.collect::<Vec<_>>().join(", ")
    }
}

/// Does something with a connection of its own.
fn connected<T>(options: &Options, act: impl AsyncFnOnce(&Context, &str) -> Result<T, Error>) -> Result<T, Error> {
    options.validate()?;
    let described = options.described(1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::Unreachable(format!("{described}: no runtime: {error}")))?;
    runtime.block_on(async {
        let client = connect::connect(options, options.user.as_ref(), &described).await?;
        let only = client.server_info().server_name;
        act(&ContextBuilder::new().timeout(REQUEST).build(client), &only).await
    })
}

fn failed(options: &Options, action: &str, why: &dyn std::fmt::Display) -> Error {
    Error::Unreachable(format!("{}: {action}: {why}", options.described(1)))
}

/// The streams of a journal's records, as many as there are.
async fn streams(context: &Context, options: &Options) -> Result<Vec<Stream>, Error> {
    let mut all = Vec::new();
    for number in 1.. {
        let stream = connect::look(context, &options.stream_name(number)).await;
        match stream.map_err(|error| failed(options, "look for a stream", &error))? {
            Some(stream) => all.push(stream),
            None => break,
        }
    }
    Ok(all)
}

/// What servers have, of all streams of a journal's records, and that of its checkpoints. Those that do not answer are
/// not in it.
///
/// # Errors
/// [`Error::Unreachable`], also when most of them do not answer; [`Error::Settings`].
pub fn holdings(options: &Options) -> Result<Vec<Holding>, Error> {
    connected(options, async |context, only| {
        let checkpoints = connect::look(context, &format!("OBJ_{}", options.checkpoints())).await;
        let checkpoints = checkpoints.map_err(|error| failed(options, "look for a stream", &error))?;
        let mut all = Vec::new();
        for stream in streams(context, options).await?.iter().chain(&checkpoints) {
            all.extend(held(stream, only).await.map_err(|error| failed(options, "ask servers", &error))?);
        }
        all.sort_by(|a, b| (&a.stream, &a.server).cmp(&(&b.stream, &b.server)));
        Ok(all)
    })
}

/// What servers have of a stream. `only`: what the only server is called, where there is one.
async fn held(stream: &Stream, only: &str) -> Result<Vec<Holding>, crate::copies::Few> {
    // In this order: what comes meanwhile is not taken for missing.
    let ends = most(stream, DeliverPolicy::New, None, LONGEST).await?;
    let all = most(stream, DeliverPolicy::All, None, LONGEST).await?;
    let config = &stream.cached_info().config;
    let firsts = all.iter().filter(|copy| copy.count + copy.before > 0).map(|copy| copy.before + 1).collect();
    let first = first_of_most(firsts, config.num_replicas);
    let holding = |Copy { server, count, before, .. }: Copy| {
        let end = ends.iter().find(|end| end.server == server)?.before;
        // One that has not yet removed what the others have may be without as much further on.
        let is_known = config.deny_delete && (before + 1 >= first || count == 0);
        let missing = is_known.then(|| (end + 1).saturating_sub(first + count));
        let server = if server.is_empty() { only.into() } else { server };
        let (stream, replicas) = (config.name.clone(), config.num_replicas);
        // Some may have come meanwhile.
        let last = if config.deny_delete { end.max((first + count).saturating_sub(1)) } else { end };
        Some(Holding { server, stream, replicas, first: before + 1, last, count, missing })
    };
    Ok(all.into_iter().filter_map(holding).collect())
}

/// The first message of a stream, by those that servers begin with: most of them begin with it or behind it, since what
/// was there before was removed, behind a checkpoint.
fn first_of_most(mut firsts: Vec<u64>, servers: usize) -> u64 {
    firsts.sort_unstable_by(|a, b| b.cmp(a));
    firsts.get(servers / 2).or(firsts.last()).copied().unwrap_or(1)
}

/// Which servers, and how many messages each is without.
#[must_use]
pub fn lacking(holdings: &[Holding]) -> BTreeMap<String, u64> {
    let mut lacking = BTreeMap::new();
    for holding in holdings {
        let missing = holding.missing.filter(|missing| *missing > 0);
        missing.into_iter().for_each(|missing| *lacking.entry(holding.server.clone()).or_default() += missing);
    }
    lacking
}

/// Whether all servers have everything that was there `before`, of every stream, or all but so many.
#[must_use]
pub fn have_all(holdings: &[Holding], before: &[Holding], but: usize) -> bool {
    before.iter().all(|old| {
        let is_like = |new: &Holding| new.count >= old.count && new.first >= old.first;
        let has_all = |new: &Holding| new.missing.map_or_else(|| is_like(new), |missing| missing == 0);
        let has = |new: &&Holding| new.stream == old.stream && new.last >= old.last && has_all(new);
        holdings.iter().filter(has).count() + but >= old.replicas
    })
}

/// Asks servers for what they have.
///
/// # Errors
/// As [`holdings`].
pub fn survey(options: &Options) -> Result<Survey, Error> {
    let first = holdings(options)?;
    std::thread::sleep(BETWEEN);
    let second = holdings(options)?;
    let (before, mut lacking) = (self::lacking(&first), self::lacking(&second));
    lacking.retain(|server, _| before.contains_key(server));
    let (is_whole, is_whole_but_one) = (have_all(&second, &first, 0), have_all(&second, &first, 1));
    Ok(Survey { holdings: second, lacking, is_whole, is_whole_but_one })
}

/// Whether all servers but one have every record that is there now: each of them reads all, which takes seconds for a
/// gigabyte.
pub(crate) fn others_have_all(options: &Options) -> Result<bool, Error> {
    let now = holdings(options)?;
    connected(options, async |context, _| {
        for stream in streams(context, options).await? {
            let name = &stream.cached_info().config.name;
            let of_it = || now.iter().filter(|one| one.stream == *name);
            let (Some(first), Some(last)) = (of_it().map(|one| one.first).min(), of_it().map(|one| one.last).max())
            else {
                return Ok(false);
            };
            let wanted = Wanted { first, until: last + 1, most_bytes: usize::MAX, longest: READ };
            let others = stream.cached_info().config.num_replicas.saturating_sub(1);
            if others == 0 || !read_at(&stream, wanted, others, READ).await {
                return Ok(false);
            }
        }
        Ok(true)
    })
}

/// Streams on these servers, of the same account, that are not the journal's.
pub(crate) fn strangers(options: &Options) -> Result<Vec<String>, Error> {
    connected(options, async |context, _| {
        let names: Vec<String> =
            context.stream_names().try_collect().await.map_err(|error| failed(options, "list streams", &error))?;
        let mut known = vec![format!("OBJ_{}", options.checkpoints()), format!("KV_{}", options.lease())];
        let numbers = 1..=u16::try_from(names.len()).unwrap_or(u16::MAX);
        known.extend(numbers.map(|number| options.stream_name(number)));
        Ok(names.into_iter().filter(|name| !known.contains(name)).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(server: &str, first: u64, count: u64, missing: Option<u64>) -> Holding {
        Holding { server: server.into(), stream: "S".into(), replicas: 3, first, last: 100, count, missing }
    }

    #[test]
    fn a_stream_begins_where_most_servers_do() {
        assert_eq!(first_of_most(vec![1, 1, 1], 3), 1);
        // One has lost its oldest file; one has not yet removed what the others have.
        assert_eq!(first_of_most(vec![90, 1, 1], 3), 1);
        assert_eq!(first_of_most(vec![90, 1, 90], 3), 90);
        assert_eq!(first_of_most(vec![1, 95, 90], 3), 90);
        // One does not answer, two do not have anything, none does.
        assert_eq!(first_of_most(vec![1, 90], 3), 1);
        assert_eq!(first_of_most(vec![90], 3), 90);
        assert_eq!(first_of_most(vec![], 3), 1);
        assert_eq!(first_of_most(vec![7], 1), 7);
        assert_eq!(first_of_most(vec![80, 1, 90, 80, 1], 5), 80);
    }

    #[test]
    fn a_server_that_has_more_than_most_in_front_is_neither_without_something_nor_has_all() {
        let cut = |server| holding(server, 90, 11, Some(0));
        let behind = [holding("a", 1, 50, None), cut("b"), cut("c")];
        assert!(lacking(&behind).is_empty());
        assert!(!have_all(&behind, &behind, 0) && have_all(&behind, &behind, 1));
        let same = [cut("a"), cut("b"), cut("c")];
        assert!(have_all(&same, &behind, 0) && !have_all(&same[1..], &behind, 0));
        // It turns out to be without something.
        let without = [holding("a", 90, 1, Some(10)), cut("b"), cut("c")];
        assert_eq!(lacking(&without), BTreeMap::from([("a".into(), 10)]));
        assert!(!have_all(&without, &behind, 0) && have_all(&without, &behind, 1));
    }
}
