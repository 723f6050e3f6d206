//! Compiled statements: a cache of procedures that nobody has named.
//!
//! A single statement runs as a procedure, which engine, log and replicas know by an id. There are at most
//! [`MAX_STATEMENTS`] of them, and a user brings in at most [`MAX_STATEMENTS_OF_USER`]. Then the next one takes the
//! place of one that was not called for a while: it gets that one's id with a new version, so that
//! blocks of the earlier version fail ([`Error::Outdated`]), and their statement is prepared again.

use std::collections::HashMap;
use std::hash::Hasher;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use lockwork_procedure::assembly::encode;
use lockwork_procedure::block::{Block, BlockMut, HEADER_BYTES};
use lockwork_procedure::program::{Procedure, STATEMENT};
use siphasher::sip::SipHasher13;

use crate::Error;

/// The most statements that are kept compiled.
pub const MAX_STATEMENTS: usize = 4096;
/// The most compiled statements of one named user.
pub const MAX_STATEMENTS_OF_USER: usize = MAX_STATEMENTS / 4;

/// So many calls keep a statement for as many rounds of the search for a place.
const MAX_COUNT: u8 = 4;

/// Which version of each procedure may be called, by its id. A call is handed over with this held for reading: so a
/// procedure takes the place of another one, and an index is filled, behind all calls that were admitted before.
#[derive(Clone, Default)]
pub(crate) struct Versions(Arc<RwLock<Current>>);

/// See [`Versions`].
#[derive(Default)]
pub(crate) struct Current {
    by_id: Vec<Version>,
    latest: u64,
}

#[derive(Default)]
struct Version {
    /// Zero for a procedure that nothing takes the place of.
    number: u64,
    /// Calls, up to [`MAX_COUNT`], less one for each time that the search for a place has passed over it.
    count: AtomicU8,
}

impl Current {
    fn has(&self, (id, version): (u32, u64)) -> bool {
        self.by_id.get(id as usize).map_or(0, |known| known.number) == version
    }

    /// Counts a call, and returns whether its version may be called.
    fn admits(&self, (id, version): (u32, u64)) -> bool {
        let Some(known) = self.by_id.get(id as usize) else { return version == 0 };
        // Many calls write it no more, so that callers do not take the line from each other.
        let count = known.count.load(Ordering::Relaxed);
        if count < MAX_COUNT {
            known.count.store(count + 1, Ordering::Relaxed);
        }
        known.number == version
    }
}

impl Versions {
    fn read(&self) -> RwLockReadGuard<'_, Current> {
        // Nothing panics while it changes.
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Current> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits calls of these versions: they may be handed over as long as what is returned is held.
    ///
    /// # Errors
    /// [`Error::Outdated`].
    pub(crate) fn admit(
        &self,
        mut calls: impl Iterator<Item = (u32, u64)>,
    ) -> Result<RwLockReadGuard<'_, Current>, Error> {
        let current = self.read();
        if calls.all(|call| current.admits(call)) { Ok(current) } else { Err(Error::Outdated) }
    }

    /// Admits the call in a block, and takes the version out of it, which is not for engines.
    ///
    /// # Errors
    /// [`Error::Outdated`].
    pub(crate) fn admit_block(&self, block: &mut [u8]) -> Result<RwLockReadGuard<'_, Current>, Error> {
        let call = named(block);
        let admitted = self.admit(call.into_iter())?;
        if call.is_some() {
            BlockMut::new(block).set_version(0);
        }
        Ok(admitted)
    }

    /// Whether a call of this version would be admitted.
    pub(crate) fn is_current(&self, call: (u32, u64)) -> bool {
        self.read().has(call)
    }

    /// The version of a procedure.
    fn of(&self, id: u32) -> u64 {
        self.read().by_id.get(id as usize).map_or(0, |known| known.number)
    }

    /// A version that no block names yet: those of before are refused from here on.
    pub(crate) fn renew(&self, id: u32) -> u64 {
        let mut current = self.write();
        current.latest += 1;
        let number = current.latest;
        let at = id as usize;
        if at >= current.by_id.len() {
            current.by_id.resize_with(at + 1, Version::default);
        }
        current.by_id[at] = Version { number, count: AtomicU8::new(1) };
        number
    }

    /// Decrements a procedure's count; returns whether it was positive, so that the procedure keeps its place.
    fn passes_over(&self, id: u32) -> bool {
        let current = self.read();
        let Some(known) = current.by_id.get(id as usize) else { return false };
        let count = known.count.load(Ordering::Relaxed);
        known.count.store(count.saturating_sub(1), Ordering::Relaxed);
        count > 0
    }
}

/// The id and version that a block names.
pub(crate) fn named(block: &[u8]) -> Option<(u32, u64)> {
    let has_header = block.len() >= HEADER_BYTES as usize;
    has_header.then(|| (Block::new(block).procedure(), Block::new(block).version()))
}

/// The name of the statement's procedure with this id.
pub(crate) fn name(id: u32) -> String {
    format!("{STATEMENT}{id}")
}

/// What tells the code of statements apart, whatever the name.
pub(crate) fn digest(procedure: &Procedure) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(&encode(&Procedure { name: String::new(), ..procedure.clone() }));
    hasher.finish()
}

/// The statements that are compiled.
#[derive(Default)]
pub(crate) struct Statements {
    pub(crate) versions: Versions,
    by_digest: HashMap<u64, u32>,
    kept: Vec<Kept>,
    /// Where in `kept` that of an id is.
    places: HashMap<u32, usize>,
    /// Where the search for one that is not called goes on.
    hand: usize,
}

struct Kept {
    id: u32,
    digest: u64,
    /// Who has brought it in; empty where nobody logs in.
    user: Arc<str>,
}

/// Where a new statement goes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place {
    New,
    /// It takes the place of the procedure with this id.
    Of(u32),
}

impl Statements {
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }

    /// The ids of all.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u32> {
        self.kept.iter().map(|kept| kept.id)
    }

    /// The id and version of a statement with this code.
    pub(crate) fn find(&self, digest: u64) -> Option<(u32, u64)> {
        let id = *self.by_digest.get(&digest)?;
        Some((id, self.versions.of(id)))
    }

    /// Where the next statement of a user goes.
    pub(crate) fn place(&mut self, user: &str) -> Place {
        let of_user = self.kept.iter().filter(|kept| !user.is_empty() && *kept.user == *user).count();
        let is_over = of_user >= MAX_STATEMENTS_OF_USER;
        if !is_over && self.kept.len() < MAX_STATEMENTS {
            return Place::New;
        }
        // The clock algorithm with counts evicts what was called once before what is called often. Callers may raise
        // counts during the search, so it ends after a bounded number of rounds.
        let mut passed_over = 0;
        loop {
            self.hand = (self.hand + 1) % self.kept.len();
            let kept = &self.kept[self.hand];
            if is_over && *kept.user != *user {
                continue;
            }
            if !self.versions.passes_over(kept.id) || passed_over > usize::from(MAX_COUNT + 1) * self.kept.len() {
                return Place::Of(kept.id);
            }
            passed_over += 1;
        }
    }

    /// Notes who has brought in the statement with this id, and returns its version.
    pub(crate) fn brought_in(&mut self, id: u32, user: &str) -> u64 {
        if let Some(&place) = self.places.get(&id) {
            self.kept[place].user = user.into();
        }
        self.versions.of(id)
    }

    /// Learns of the procedure of a statement.
    pub(crate) fn add(&mut self, id: u32, procedure: &Procedure) {
        let digest = digest(procedure);
        let kept = Kept { id, digest, user: "".into() };
        match self.places.get(&id) {
            Some(&place) => {
                let old = std::mem::replace(&mut self.kept[place], kept);
                if self.by_digest.get(&old.digest) == Some(&id) {
                    self.by_digest.remove(&old.digest);
                }
            }
            None => {
                self.places.insert(id, self.kept.len());
                self.kept.push(kept);
            }
        }
        self.by_digest.insert(digest, id);
        self.versions.renew(id);
    }
}

#[cfg(test)]
mod tests {
    use lockwork_procedure::assembly::assemble;

    use super::*;

    /// A procedure that differs from all others of its kind.
    fn code(number: u64) -> Procedure {
        let source = format!("procedure p\nresult x: i64\nmov r1, {number}\nstore r1, [x]\ncommit");
        assemble(&source, &Vec::new()).unwrap().procedure
    }

    /// Adds statements of a user as they come, and gives the ids that they got.
    fn bring(statements: &mut Statements, user: &str, digests: std::ops::Range<u64>) -> Vec<u32> {
        let one = |digest| {
            let id = match statements.place(user) {
                Place::New => statements.len() as u32,
                Place::Of(id) => id,
            };
            statements.add(id, &code(digest));
            statements.brought_in(id, user);
            id
        };
        digests.map(one).collect()
    }

    fn find(statements: &Statements, number: u64) -> Option<(u32, u64)> {
        statements.find(digest(&code(number)))
    }

    #[test]
    fn a_user_takes_the_places_of_his_own_statements() {
        let mut statements = Statements::default();
        let honest = bring(&mut statements, "honest", 0..10);
        let versions: Vec<_> = (0..10).map(|number| find(&statements, number).unwrap()).collect();
        let hostile = bring(&mut statements, "hostile", 100..100 + 3 * MAX_STATEMENTS as u64);
        assert_eq!(statements.len(), 10 + MAX_STATEMENTS_OF_USER);
        assert!(hostile.iter().all(|id| !honest.contains(id)));
        assert!(versions.iter().all(|&call| statements.versions.is_current(call)));
        // The last of his are there, the first are not.
        let last = 100 + 3 * MAX_STATEMENTS as u64 - 1;
        assert!(find(&statements, last).is_some() && find(&statements, 100).is_none());
    }

    #[test]
    fn what_is_called_stays_and_what_has_gone_is_refused() {
        let mut statements = Statements::default();
        let ids = bring(&mut statements, "", 0..MAX_STATEMENTS as u64);
        let (often, once) = (find(&statements, 0).unwrap(), find(&statements, 1).unwrap());
        for digest in MAX_STATEMENTS as u64..3 * MAX_STATEMENTS as u64 {
            assert!(statements.versions.admit([often, (u32::MAX, 0)].into_iter()).is_ok());
            bring(&mut statements, "", digest..digest + 1);
        }
        assert_eq!((statements.len(), ids.len()), (MAX_STATEMENTS, MAX_STATEMENTS));
        assert_eq!(find(&statements, 0), Some(often));
        assert!(matches!(statements.versions.admit([often, once].into_iter()), Err(Error::Outdated)));
        assert!(find(&statements, 1).is_none());
    }
}
