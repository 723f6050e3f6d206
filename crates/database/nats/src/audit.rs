//! What servers have each for itself, of all that a journal has.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::context::{Context, ContextBuilder};
use async_nats::jetstream::stream::Stream;
use futures::TryStreamExt;
use lockwork_sequencer::journal::{Run, Unreachable};

use crate::replicas::{self, Copy, LONGEST as LONGEST_READ, Wanted, most, read_at};
use crate::{Error, NatsJournal, Options, REQUEST, connect};

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
    /// How many it does not have of those from its first to its last, or to have from where most servers begin. What
    /// comes while it is asked may hide as many. Not known of a stream that has gaps, as that of checkpoints.
    pub missing: Option<u64>,
    /// How many numbers in front of where most servers begin it has yet: it has not removed what they have removed, or
    /// they have lost that.
    pub early: u64,
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

    /// Which servers have yet what most do not have any more, or have lost; nothing if none has.
    #[must_use]
    pub fn early(&self) -> String {
        let early = self.holdings.iter().filter(|one| one.early > 0);
        let said = early.map(|Holding { server, stream, first, early, .. }| {
            format!("{server} has {early} numbers of {stream} from {first} on that most do not have")
        });
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
        let [_, checkpoints] = options.buckets();
        let checkpoints = connect::look(context, &checkpoints).await;
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
async fn held(stream: &Stream, only: &str) -> Result<Vec<Holding>, crate::replicas::Few> {
    // In this order: what comes meanwhile is not taken for missing.
    let ends = most(stream, DeliverPolicy::New, None, LONGEST).await?;
    let all = most(stream, DeliverPolicy::All, None, LONGEST).await?;
    let config = &stream.cached_info().config;
    let told = |Copy { server, count, before, .. }: Copy| {
        let end = ends.iter().find(|end| end.server == server)?.before;
        let server = if server.is_empty() { only.into() } else { server };
        Some(Told { server, before, count, end })
    };
    Ok(holdings_of(all.into_iter().filter_map(told).collect(), &config.name, config.num_replicas, config.deny_delete))
}

/// What a server says of a stream: the number before its first message, how many it has, and, before it was asked for
/// those, the last.
struct Told {
    server: String,
    before: u64,
    count: u64,
    end: u64,
}

/// `is_whole`: the stream has no gaps.
fn holdings_of(told: Vec<Told>, stream: &str, replicas: usize, is_whole: bool) -> Vec<Holding> {
    let firsts = told.iter().filter(|one| one.count + one.before > 0).map(|one| one.before + 1).collect();
    let first_of_most = first_of_most(firsts, replicas);
    let holding = |Told { server, before, count, end }: Told| {
        let first = before + 1;
        let missing = is_whole.then(|| (end + 1).saturating_sub(first.min(first_of_most) + count));
        // Some may have come meanwhile.
        let last = if is_whole { end.max(before + count) } else { end };
        let early = if is_whole && count > 0 { first_of_most.saturating_sub(first) } else { 0 };
        let stream = stream.into();
        Holding { server, stream, replicas, first, last, count, missing, early }
    };
    told.into_iter().map(holding).collect()
}

/// Where a stream begins, by where servers do: most of them with this message or behind it, since what was there before
/// was removed, behind a checkpoint.
fn first_of_most(mut firsts: Vec<u64>, servers: usize) -> u64 {
    firsts.sort_unstable_by(|a, b| b.cmp(a));
    firsts.get(servers / 2).or(firsts.last()).copied().unwrap_or(1)
}

/// Whether what a server has in front of where the others begin was removed there, and not lost: all of them begin with
/// the same message, and there are checkpoints, behind which messages are removed.
pub(crate) fn was_removed(of: &Holding, holdings: &[Holding]) -> bool {
    let others = || holdings.iter().filter(|one| one.stream == of.stream && one.server != of.server);
    let has_checkpoints = holdings.iter().any(|one| one.missing.is_none() && one.count > 0);
    has_checkpoints && others().all(|one| one.first == of.first + of.early && one.count > 0)
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

/// Whether all servers have everything that was there `before`, of every stream, or all but so many, and nothing that
/// most have removed. Of nothing that is not known.
#[must_use]
pub fn have_all(holdings: &[Holding], before: &[Holding], but: usize) -> bool {
    !before.is_empty()
        && before.iter().all(|old| {
            let has_all =
                |new: &Holding| new.missing.map_or(new.count >= old.count, |missing| missing + new.early == 0);
            let has = |new: &&Holding| new.stream == old.stream && new.last >= old.last && has_all(new);
            holdings.iter().filter(has).count() + but >= old.replicas
        })
}

/// Asks servers for what they have.
///
/// # Errors
/// As [`holdings`].
pub fn audit(options: &Options) -> Result<Survey, Error> {
    let first = holdings(options)?;
    std::thread::sleep(BETWEEN);
    let second = holdings(options)?;
    let (before, mut lacking) = (self::lacking(&first), self::lacking(&second));
    lacking.retain(|server, _| before.contains_key(server));
    let (is_whole, is_whole_but_one) = (have_all(&second, &first, 0), have_all(&second, &first, 1));
    Ok(Survey { holdings: second, lacking, is_whole, is_whole_but_one })
}

/// Returns the messages of a journal from `first` on, before `until`, as the first server that answers with message
/// `first` has them.
///
/// # Errors
/// [`Unreachable`] if no server that answers has it, and one that does not answer may have it.
pub fn messages(journal: &NatsJournal, first: u64, until: u64) -> Result<Run, Unreachable> {
    let wanted = Wanted { first, until, most_bytes: usize::MAX, longest: LONGEST_READ };
    journal.runtime.block_on(replicas::found(journal, wanted))
}

/// Whether all servers but one, which does not answer, have every record that is there now, of the streams that are in
/// `known`: each of them reads all.
pub(crate) fn others_have_all(options: &Options, known: &[Holding]) -> Result<bool, Error> {
    let now = holdings(options)?;
    connected(options, async |context, _| {
        let names: BTreeSet<&str> =
            known.iter().filter(|one| one.missing.is_some()).map(|one| &one.stream[..]).collect();
        for name in &names {
            let of_it: Vec<_> = now.iter().filter(|one| one.stream == *name).collect();
            let stream = connect::look(context, name).await;
            let Some(stream) = stream.map_err(|error| failed(options, "look for a stream", &error))? else {
                return Ok(false);
            };
            let others = stream.cached_info().config.num_replicas.saturating_sub(1);
            let (Some(first), Some(last)) =
                (of_it.iter().map(|one| one.first).min(), of_it.iter().map(|one| one.last).max())
            else {
                return Ok(false);
            };
            let wanted = Wanted { first, until: last + 1, most_bytes: usize::MAX, longest: READ };
            if others == 0 || of_it.len() < others || !read_at(&stream, wanted, others, READ).await {
                return Ok(false);
            }
        }
        Ok(!names.is_empty())
    })
}

/// Streams on these servers, of the same account, that are not the journal's.
pub(crate) fn strangers(options: &Options) -> Result<Vec<String>, Error> {
    connected(options, async |context, _| {
        let names: Vec<String> =
            context.stream_names().try_collect().await.map_err(|error| failed(options, "list streams", &error))?;
        let mut known = Vec::from(options.buckets());
        let numbers = 1..=u16::try_from(names.len()).unwrap_or(u16::MAX);
        known.extend(numbers.map(|number| options.stream_name(number)));
        Ok(names.into_iter().filter(|name| !known.contains(name)).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of three servers that say these things of where they begin, how many messages they have, and the last.
    fn held(told: &[(u64, u64, u64)]) -> Vec<Holding> {
        let of =
            |(&(before, count, end), server): (_, u8)| Told { server: (server as char).into(), before, count, end };
        holdings_of(told.iter().zip(b'a'..).map(of).collect(), "S", 3, true)
    }

    fn cells(holdings: &[Holding]) -> Vec<(u64, u64, u64)> {
        holdings.iter().map(|one| (one.last, one.missing.unwrap(), one.early)).collect()
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
    fn what_servers_are_without_is_told_whether_or_not_they_begin_alike() {
        assert_eq!(cells(&held(&[(0, 100, 100), (0, 100, 100), (0, 100, 100)])), [(100, 0, 0); 3]);
        // Without the oldest, without some further on, and an empty store.
        let damaged = held(&[(10, 90, 100), (0, 70, 100), (0, 0, 0)]);
        assert_eq!(cells(&damaged), [(100, 10, 0), (100, 30, 0), (0, 0, 0)]);
        // All was removed; some came while they were asked.
        assert_eq!(
            cells(&held(&[(100, 0, 100), (100, 0, 100), (100, 2, 100)])),
            [(100, 0, 0), (100, 0, 0), (102, 0, 0)]
        );
        // One has not yet removed what the others have, and is without something or not.
        let behind = held(&[(0, 100, 100), (89, 11, 100), (89, 11, 100)]);
        assert_eq!(cells(&behind), [(100, 0, 89), (100, 0, 0), (100, 0, 0)]);
        assert_eq!(cells(&held(&[(0, 80, 100), (89, 11, 100), (89, 11, 100)]))[0], (100, 20, 89));
    }

    #[test]
    fn a_server_that_has_more_than_most_in_front_is_not_without_anything_nor_are_all_alike() {
        let (behind, same) = (held(&[(0, 100, 100), (89, 11, 100), (89, 11, 100)]), held(&[(89, 11, 100); 3]));
        assert!(lacking(&behind).is_empty());
        assert!(!have_all(&behind, &behind, 0) && have_all(&behind, &behind, 1));
        assert!(have_all(&same, &behind, 0) && !have_all(&same[1..], &behind, 0));
        let without = held(&[(89, 5, 100), (89, 11, 100), (89, 11, 100)]);
        assert_eq!(lacking(&without), BTreeMap::from([("a".into(), 6)]));
        assert!(!have_all(&without, &behind, 0) && have_all(&without, &behind, 1));
        assert!(!have_all(&same, &[], 0));
    }

    #[test]
    fn what_others_do_not_have_was_removed_only_if_they_begin_alike_and_there_are_checkpoints() {
        let checkpoints = |count| {
            let told = Told { server: "a".into(), before: 0, count, end: count };
            holdings_of(vec![told], "OBJ", 3, false)
        };
        let behind = held(&[(0, 80, 100), (89, 11, 100), (89, 11, 100)]);
        let removed = |held: &[Holding], count| was_removed(&held[0], &[held, &checkpoints(count)].concat());
        assert!(removed(&behind, 2) && !removed(&behind, 0));
        assert!(!removed(&held(&[(0, 80, 100), (89, 11, 100), (92, 8, 100)]), 2));
        assert!(!removed(&held(&[(0, 80, 100), (89, 11, 100), (0, 0, 0)]), 2));
    }

    #[test]
    fn checkpoints_of_which_a_server_has_lost_the_first_do_not_keep_it_from_being_mended() {
        let told = [(99, 40, 200), (149, 20, 200), (99, 40, 200)];
        let of = |(before, count, end)| Told { server: format!("{before}"), before, count, end };
        let held = holdings_of(told.map(of).into(), "OBJ", 3, false);
        assert!(held.iter().all(|one| one.missing.is_none() && one.early == 0));
        assert!(!have_all(&held, &held, 0) && have_all(&held, &held, 1));
    }
}
