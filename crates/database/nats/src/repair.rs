//! Giving a server again what it has lost.
//!
//! A server that finds a damaged message when it starts drops what is behind it in the same file, and is then brought
//! up to date by the others: behind the last message that it has, never before it. So what it lost of older files it
//! does not have again, nothing says so, and what servers lose one after the other nobody has in the end. Only a server
//! whose store is empty is given everything.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::audit::{Holding, audit, others_have_all, strangers, was_removed};
use crate::local::{Servers, lock};
use crate::{Error, Options};

/// For how long the others are asked again, while they agree upon one that leads, whether they have everything. To read
/// it may take longer.
const AGREE: Duration = Duration::from_secs(20);
/// Before they are asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// What was found of servers, and done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mended {
    /// All of them have everything.
    Whole,
    /// Some do not say what they have, or are behind the others, or have more in front; the text says which.
    Unsure(String),
    /// One begins with an empty store, because it was without something; the text says what.
    Emptied(String),
    /// One is without something, and others do not say that they have everything; the text says what.
    NotYet(String),
}

/// Looks whether each of the servers has everything, and gives an empty store to one that has not, if all others have:
/// they give it everything again. Its old one is kept until somebody [discards](Servers::discard) it. Whoever keeps the
/// servers starts it then ([`Servers::revive`]).
///
/// # Errors
/// [`Error::Unreachable`]; [`Error::Settings`] when several servers are without something, there are no others, or the
/// servers have other streams too.
pub fn repair(servers: &Mutex<Servers>, options: &Options) -> Result<Mended, Error> {
    let audit = audit(options)?;
    let said = audit.said();
    let number = |name: &str| name.strip_prefix("nats-")?.parse::<usize>().ok()?.checked_sub(1);
    let is_only_there = |one: &Holding| one.early > 0 && !was_removed(one, &audit.holdings);
    let at = match &audit.lacking.keys().collect::<Vec<_>>()[..] {
        [] if audit.is_whole => return Ok(Mended::Whole),
        [] if audit.early().is_empty() => {
            return Ok(Mended::Unsure("one is behind the others, or does not say what it has".into()));
        }
        [] => return Ok(Mended::Unsure(audit.early())),
        [name] if audit.holdings.iter().any(|one| one.server == **name && is_only_there(one)) => {
            return Ok(Mended::Unsure(format!("{said}; {}", audit.early())));
        }
        [name] if options.replicas > 1 => number(name),
        _ => return Err(Error::Settings(format!("{said}, and there are not enough others that have everything"))),
    };
    let at =
        at.filter(|at| *at < lock(servers).count()).ok_or_else(|| Error::Settings(format!("no server: {said}")))?;
    let strangers = strangers(options)?;
    if !strangers.is_empty() {
        let others = strangers.join(", ");
        return Err(Error::Settings(format!("{said}, and is not emptied: it may have more than others of {others}")));
    }
    let not_yet = || Mended::NotYet(format!("{said}, and the others do not say that they have everything"));
    if !audit.is_whole_but_one {
        return Ok(not_yet());
    }
    // From now on nothing is acknowledged that only it and one other have.
    let ended = lock(servers).kill(at);
    ended.map_err(|error| Error::Settings(format!("{said}, and cannot be ended: {error}")))?;
    let until = Instant::now() + AGREE;
    let whole = loop {
        // Nobody says anything before there is one that leads.
        let whole = others_have_all(options, &audit.holdings).unwrap_or(false);
        if whole || Instant::now() > until {
            break whole;
        }
        std::thread::sleep(PAUSE);
    };
    let emptied = if whole { lock(servers).empty(at) } else { Ok(()) };
    lock(servers).release(at);
    emptied.map_err(|error| Error::Settings(format!("{said}; its store cannot be emptied: {error}")))?;
    Ok(match whole {
        true => Mended::Emptied(format!("{said}: it begins with an empty store, and has them from the others")),
        false => not_yet(),
    })
}
