//! Servers that do not have everything, and giving it to them again.
//!
//! A server that finds a damaged message drops what is behind it in the same file, and is then brought up to date by
//! the others: behind the last message that it has, never before it. So what it lost of older files it does not have
//! again, nothing says so, and what servers lose one after the other nobody has in the end. Only a server whose store is
//! empty is given everything.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::stream::Stream;

use crate::copies::{Copy, most};
use crate::local::Servers;
use crate::{Error, Options, REQUEST, connect};

/// For how long servers are waited for until most have answered, and for how long the others then.
const LONGEST: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(1));
/// How long the others may take to agree upon one that leads.
const AGREE: Duration = Duration::from_secs(20);

/// What one server has of one of a journal's streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// What the server is called.
    pub server: String,
    /// What the stream is called.
    pub stream: String,
    /// The last message that it has; 0 for none.
    pub last: u64,
    /// How many messages it has.
    pub count: u64,
    /// How many it does not have of those before its last; messages that come while it is asked may hide as many. Not
    /// known of a stream that has gaps, as that of checkpoints.
    pub missing: Option<u64>,
}

/// What servers have each for itself, of all streams of a journal. Those that do not answer are not in it.
///
/// # Errors
/// [`Error::Unreachable`], also when most of them do not answer.
pub fn holdings(options: &Options) -> Result<Vec<Holding>, Error> {
    options.validate()?;
    let described = options.described(1);
    let failed = |what: &str, why: &dyn std::fmt::Display| Error::Unreachable(format!("{described}: {what}: {why}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed("no runtime", &error))?;
    runtime.block_on(async {
        let client = connect::connect(options, options.user.as_ref(), &described).await?;
        let only = client.server_info().server_name;
        let context = ContextBuilder::new().timeout(REQUEST).build(client);
        let look = async |name: String| match connect::look(&context, &name).await {
            Ok(Some(stream)) => held(stream, &only).await.map_err(|error| failed("ask servers", &error)),
            Ok(None) => Ok(Vec::new()),
            Err(error) => Err(failed("look for a stream", &error)),
        };
        let mut all = look(format!("OBJ_{}", options.checkpoints())).await?;
        for number in 1.. {
            match look(options.stream_name(number)).await? {
                found if found.is_empty() => break,
                found => all.extend(found),
            }
        }
        Ok(all)
    })
}

/// What servers have of a stream. `only`: what the only server is called, where there is one.
async fn held(mut stream: Stream, only: &str) -> Result<Vec<Holding>, Box<dyn std::error::Error>> {
    // In this order: what comes or goes meanwhile is not taken for missing.
    let ends = most(&stream, DeliverPolicy::Last, None, LONGEST).await?;
    let counts = most(&stream, DeliverPolicy::All, None, LONGEST).await?;
    let counts: BTreeMap<_, _> = counts.into_iter().map(|copy| (copy.server, copy.count)).collect();
    let info = stream.info().await?;
    let (first, name) = (info.state.first_sequence.max(1), &info.config.name);
    let both = ends.into_iter().filter_map(|Copy { server, count: left, before, .. }| {
        let count = *counts.get(&server)?;
        let server = if server.is_empty() { only.into() } else { server };
        let (mut last, mut missing) = (if left == 0 { 0 } else { before + 1 }, None);
        if info.config.deny_delete {
            missing = Some((last + 1).saturating_sub(first + count));
            // What came meanwhile.
            last = last.max((first + count).saturating_sub(1));
        }
        Some(Holding { server, stream: name.clone(), last, count, missing })
    });
    Ok(both.collect())
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

/// What servers have, asked twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// What they said last.
    pub holdings: Vec<Holding>,
    /// What servers are without, which said so both times: one that was started again in between had less for a moment.
    pub lacking: BTreeMap<String, u64>,
    /// Each of them has everything that any had before.
    pub is_whole: bool,
}

/// Asks servers for what they have.
///
/// # Errors
/// As [`holdings`].
pub fn survey(options: &Options) -> Result<Survey, Error> {
    let (first, second) = (holdings(options)?, holdings(options)?);
    let (before, mut lacking) = (self::lacking(&first), self::lacking(&second));
    lacking.retain(|server, _| before.contains_key(server));
    let is_whole = have_all(&second, &first, options.replicas);
    Ok(Survey { holdings: second, lacking, is_whole })
}

/// Whether so many servers have everything that was there `before`, of every stream.
#[must_use]
pub fn have_all(holdings: &[Holding], before: &[Holding], servers: usize) -> bool {
    before.iter().all(|old| {
        let has_all = |new: &Holding| new.missing.map_or(new.count >= old.count, |missing| missing == 0);
        let has = |new: &&Holding| new.stream == old.stream && new.last >= old.last && has_all(new);
        holdings.iter().filter(has).count() >= servers
    })
}

fn lock(servers: &Mutex<Servers>) -> MutexGuard<'_, Servers> {
    servers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was found of servers, and done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mended {
    /// All of them have everything.
    Whole,
    /// Some do not say what they have, or are behind the others.
    Unsure,
    /// The store of one was emptied, because it was without something; the text says what.
    Emptied(String),
    /// One is without something, and others do not say that they have everything; the text says what.
    NotYet(String),
}

/// Looks whether each of the servers has everything, and gives an empty store to one that has not, if all others have:
/// they give it everything again. Whoever keeps the servers starts it then ([`Servers::revive`]).
///
/// # Errors
/// [`Error::Unreachable`]; [`Error::Settings`] when several servers are without something, or there are no others.
pub fn mend(servers: &Mutex<Servers>, options: &Options) -> Result<Mended, Error> {
    let Survey { holdings: before, lacking, is_whole } = survey(options)?;
    let said: Vec<_> = lacking.iter().map(|(name, missing)| format!("{name} is without {missing} messages")).collect();
    let said = said.join(", ");
    let number = |name: &str| name.rsplit('-').next()?.parse::<usize>().ok()?.checked_sub(1);
    let at = match &lacking.keys().collect::<Vec<_>>()[..] {
        [] => return Ok(if is_whole { Mended::Whole } else { Mended::Unsure }),
        [name] if options.replicas > 1 => number(name).ok_or_else(|| Error::Settings(format!("no server {name}")))?,
        _ => return Err(Error::Settings(format!("{said}, and there are not enough others that have everything"))),
    };
    let failed = |error: std::io::Error| Error::Settings(format!("{said}; its store cannot be emptied: {error}"));
    // From now on nothing is acknowledged that only it and one other have. If it has led, others have to agree first.
    lock(servers).kill(at).map_err(failed)?;
    let until = Instant::now() + AGREE;
    let whole = loop {
        let whole = holdings(options).is_ok_and(|after| have_all(&after, &before, options.replicas - 1));
        if whole || Instant::now() > until {
            break whole;
        }
    };
    let emptied = if whole { lock(servers).empty(at) } else { Ok(()) };
    lock(servers).release(at);
    emptied.map_err(failed)?;
    match whole {
        true => Ok(Mended::Emptied(format!("{said}: it begins with an empty store, and has them from the others"))),
        false => Ok(Mended::NotYet(format!("{said}, and the others do not say that they have everything"))),
    }
}
