//! Which rack decides on which part of the locks, as it is written down for all of them.
//!
//! | key | value |
//! |---|---|
//! | `racks/NAME` | where the rack is: `HOST:PORT` |
//! | `parts/PART` | `GENERATION NAME TOKEN`, and ` > NAME` while it moves there |
//! | `handed/PART/GENERATION/NUMBER` | what has been handed on of a part that moves: [`Handed::to_text`] |
//! | `locks` | how many locks all racks have |
//!
//! A generation is one larger with every change of its part, so that what is left of an earlier move means nothing.

use super::racks::Map;
use lockwork_lock_protocol::beyond::PARTS;
use lockwork_lock_protocol::racks::{Duty, Handed, MAX_TOKEN};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// The folder of racks.
pub const RACKS: &str = "racks/";
/// The folder of parts.
pub const OF_PARTS: &str = "parts/";
/// The folder of what has been handed on.
pub const HANDED: &str = "handed/";
/// The key of the number of locks.
pub const LOCKS: &str = "locks";

/// Whether a rack may be called so: 1 to 32 letters, digits, dots, hyphens and underscores.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    (1..=32).contains(&name.len()) && name.bytes().all(good)
}

/// A part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// One larger with every change.
    pub generation: u64,
    /// Which rack decides on it, or on what it has not handed on.
    pub owner: String,
    /// All tokens of its locks are below, but those that the owner has granted.
    pub token: u64,
    /// Where it goes.
    pub to: Option<String>,
}

impl std::fmt::Display for Part {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { generation, owner, token, to } = self;
        write!(out, "{generation} {owner} {token}")?;
        to.as_ref().map_or(Ok(()), |to| write!(out, " > {to}"))
    }
}

impl Part {
    /// From the text of a value.
    #[must_use]
    pub fn of_text(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let (generation, owner, token, to) = match words[..] {
            [generation, owner, token] => (generation, owner, token, None),
            [generation, owner, token, ">", to] => (generation, owner, token, Some(to)),
            _ => return None,
        };
        let named = is_name(owner) && to.is_none_or(is_name);
        let of = |number: &str| number.parse().ok().filter(|number| *number < MAX_TOKEN);
        let part = || {
            Some(Self {
                generation: of(generation)?,
                owner: owner.to_string(),
                token: of(token)?,
                to: to.map(str::to_string),
            })
        };
        named.then(part).flatten()
    }

    /// The same part when all of it has arrived.
    #[must_use]
    pub fn arrived(&self, token: u64) -> Option<Self> {
        // What the clock of the rack that it leaves says is no reason to begin below what is known.
        let token = token.max(self.token);
        Some(Self { generation: self.generation + 1, owner: self.to.clone()?, token, to: None })
    }

    /// The same part when it is to go to another rack.
    #[must_use]
    pub fn leaving(&self, to: &str) -> Self {
        Self { generation: self.generation + 1, to: Some(to.to_string()), ..self.clone() }
    }

    /// What the rack `me` has to do with it; nothing if it is not known where another one is.
    #[must_use]
    pub fn duty(&self, me: &str, racks: &BTreeMap<String, SocketAddr>) -> Option<Duty> {
        Some(match &self.to {
            None if self.owner == me => Duty::Decides,
            Some(to) if self.owner == me => Duty::Leaves { to: *racks.get(to)? },
            Some(to) if to == me => Duty::Comes,
            _ => Duty::Elsewhere { at: *racks.get(&self.owner)? },
        })
    }
}

/// The parts in order of their numbers, if all are there.
#[must_use]
pub fn map_of(parts: &BTreeMap<u64, Part>, me: &str, racks: &BTreeMap<String, SocketAddr>) -> Option<Map> {
    let of = |at: u64| parts.get(&at).and_then(|part| Some((part.duty(me, racks)?, part.token)));
    let duties: Vec<_> = (0..PARTS).map_while(of).collect();
    let duties = duties.try_into().ok()?;
    Some(Map { duties, generations: std::array::from_fn(|at| parts[&(at as u64)].generation) })
}

/// The part and the generation that a key below [`HANDED`] is about.
#[must_use]
pub fn move_of(key: &str) -> Option<(u64, u64)> {
    let mut words = key.split('/');
    let part = words.next()?.parse().ok().filter(|part| *part < PARTS)?;
    Some((part, words.next()?.parse().ok()?))
}

/// What has been handed on in the present move of its part; nothing for what is of an earlier one. `key` is that below
/// [`HANDED`].
///
/// # Errors
/// It is of the present move, or of none, and cannot be read: then nobody may guess who has the locks.
pub fn handed_of(key: &str, text: &str, parts: &BTreeMap<u64, Part>) -> Result<Option<Handed>, String> {
    let wrong =
        || format!("'{HANDED}{key}' is '{}', which no lockd writes", text.chars().take(100).collect::<String>());
    let (part, generation) = move_of(key).ok_or_else(wrong)?;
    let present = parts.get(&part).is_some_and(|present| present.generation == generation && present.to.is_some());
    if present { Handed::of_text(part, text).map(Some).ok_or_else(wrong) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_written_and_read_and_what_is_none_is_not() {
        let part = Part { generation: 3, owner: "a".into(), token: 77, to: None };
        assert_eq!(part.to_string(), "3 a 77");
        let leaving = part.leaving("b-2");
        assert_eq!(leaving.to_string(), "4 a 77 > b-2");
        for one in [&part, &leaving] {
            assert_eq!(Part::of_text(&one.to_string()).as_ref(), Some(one));
        }
        assert_eq!(leaving.arrived(99).unwrap().to_string(), "5 b-2 99");
        assert_eq!(part.arrived(99), None);
        for wrong in ["", "3 a", "x a 7", "3 a/b 7", "3 a 7 >", "3 a 7 b", "3 a 7 > b c", "3  7"] {
            assert_eq!(Part::of_text(wrong), None, "{wrong}");
        }
        assert!(is_name("rack-1.b_C") && !is_name("") && !is_name("a b") && !is_name(&"x".repeat(33)));
    }

    #[test]
    fn what_is_of_an_earlier_move_means_nothing() {
        let parts = BTreeMap::from([(5, Part::of_text("4 a 77 > b").unwrap()), (6, Part::of_text("4 a 77").unwrap())]);
        let handed = handed_of("5/4/0", "80 0-3", &parts);
        assert_eq!(handed, Ok(Some(Handed { part: 5, token: 80, ranges: vec![(0, 3)] })));
        for (key, text) in [("5/3/0", "80 0-3"), ("6/4/0", "80 0-3"), ("7/4/0", "80 0-3"), ("5/3/0", "x")] {
            assert_eq!(handed_of(key, text, &parts), Ok(None), "{key}");
        }
        for (key, text) in [("5/4/0", "x"), ("5", "80 1"), ("64/4/0", "80 1"), ("5/x/0", "80 1")] {
            let wrong = handed_of(key, text, &parts).unwrap_err();
            assert!(wrong.contains(&format!("{key}' is '{text}', which no lockd writes")), "{wrong}");
        }
    }

    #[test]
    fn a_map_is_whole_or_none() {
        let racks = BTreeMap::from([("a".to_string(), "1.2.3.4:5".parse().unwrap())]);
        let all = |text: &str| (0..PARTS).map(|at| (at, Part::of_text(text).unwrap())).collect::<BTreeMap<_, _>>();
        let at = racks["a"];
        let is = |duty| Some(Map { duties: [(duty, 7); PARTS as usize], generations: [1; PARTS as usize] });
        assert_eq!(map_of(&all("1 a 7"), "a", &racks), is(Duty::Decides));
        assert_eq!(map_of(&all("1 a 7"), "b", &racks), is(Duty::Elsewhere { at }));
        assert_eq!(map_of(&all("1 a 7 > b"), "b", &racks), is(Duty::Comes));
        assert_eq!(map_of(&all("1 a 7 > b"), "a", &racks), None, "nobody knows where b is");
        assert_eq!(map_of(&all("1 b 7 > a"), "b", &racks), is(Duty::Leaves { to: at }));
        let mut some = all("1 a 7");
        some.remove(&9);
        assert_eq!(map_of(&some, "a", &racks), None);
    }
}
