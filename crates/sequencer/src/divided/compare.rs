//! Digests of the rows of parts: when and where they are made, and who compares.
//!
//! A record of the order says where; one that asks for checkpoints does too. Nobody has all rows, so what stands in
//! that record is not a digest: the node of each part writes down that of its own beside the messages, under the key
//! of its part. Whoever finds there what was written at the same record compares: a node of another set, and one that
//! has begun again, with what it had before. One that catches up passes over the records before the last that was
//! written down, so it makes few.

use std::time::Duration;

use lockwork_storage::Digest;

use super::{Ordered, Parted};
use crate::error::Error;
use crate::format::frame::RecordKind;
use crate::journal::{Entry, Key};
use crate::order::rows;

/// How often it is read again when others write at the same time.
const ATTEMPTS: usize = 4;

/// What is written down of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Written {
    database: u64,
    record: u64,
    digest: Digest,
}

impl Written {
    fn text(&self) -> String {
        format!("{:016x} {} {:032x}", self.database, self.record, self.digest.0)
    }

    fn of(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let mut word = || words.next();
        let database = u64::from_str_radix(word()?, 16).ok()?;
        let record = word()?.parse().ok()?;
        let digest = Digest(u128::from_str_radix(word()?, 16).ok()?);
        word().is_none().then_some(Self { database, record, digest })
    }
}

impl Parted {
    /// Until when the leader may sleep at most, because of the next digests.
    pub(super) fn until_digest(&self) -> Option<Duration> {
        if !self.leads() || !self.has_room() || self.shared.trouble().is_some() {
            return None;
        }
        let at = self.node.comparing.looks_at(self.giving)?;
        Some(at.saturating_duration_since(self.shared.threads.now()))
    }

    /// Gives the journal a record at which the parts make digests, if something has changed, and it is time.
    pub(super) fn compare_if_due(&mut self) {
        if self.until_digest() != Some(Duration::ZERO) {
            return;
        }
        let rows = rows(&*self.engine);
        if self.node.comparing.is_due(rows, self.shared.threads.now()) {
            self.give(RecordKind::Compared, Ordered::Compare(None), |_| ());
            self.node.comparing.wrote(self.giving);
        }
    }

    /// The same where a checkpoint is about to be made, if that does not take long.
    ///
    /// # Errors
    /// [`Error::Differs`].
    pub(super) fn compare_before_cut(&mut self, record: u64) -> Result<(), Error> {
        if self.node.comparing.is_short(rows(&*self.engine)) { self.compare(record) } else { Ok(()) }
    }

    /// Makes the digest of this part at a record that was just met, unless there is no time for it, or a later one was
    /// written down; compares it with what was written down of this one, or writes it down.
    ///
    /// # Errors
    /// [`Error::Differs`]. What cannot be read or written down is not compared.
    pub(super) fn compare(&mut self, record: u64) -> Result<(), Error> {
        let is_last = record + 1 >= self.node.membership.journal_next();
        let has_time = is_last || self.node.comparing.has_time(self.shared.threads.now());
        if !has_time || self.written > record {
            return Ok(());
        }
        let (key, mut mine) = (Key::Digest(self.engine.part().0), None);
        for _ in 0..ATTEMPTS {
            let Ok(entry) = self.node.journal.entry(key) else { return Ok(()) };
            let (revision, text) = entry.map_or((0, String::new()), |Entry { revision, text }| (revision, text));
            // One of a journal that was removed is none.
            let theirs = Written::of(&text).filter(|theirs| theirs.database == self.node.chain.database);
            self.written = theirs.map_or(0, |theirs| theirs.record);
            if self.written > record {
                return Ok(());
            }
            let digest = match mine {
                Some(digest) => digest,
                None => *mine.insert(self.digest_of_part()?),
            };
            match theirs.filter(|theirs| theirs.record == record && self.node.options.compares) {
                Some(theirs) if theirs.digest != digest => {
                    let problem = format!(
                        "the rows of its part have the digest {digest} here, and {} at another node, or at this one \
                         before it began again",
                        theirs.digest
                    );
                    return Err(Error::Differs { record, problem });
                }
                Some(_) => {
                    self.node.membership.compared(record, digest);
                    return Ok(());
                }
                None => {
                    let written = Written { database: self.node.chain.database, record, digest };
                    match self.node.journal.write(key, revision, &written.text()) {
                        Ok(Some(_)) => {
                            self.node.membership.compared(record, digest);
                            return Ok(());
                        }
                        // Another node of this part was faster.
                        Ok(None) => {}
                        Err(_) => return Ok(()),
                    }
                }
            }
        }
        Ok(())
    }

    fn digest_of_part(&mut self) -> Result<Digest, Error> {
        let (rows, start) = (rows(&*self.engine), self.shared.threads.now());
        let digest = self.engine.digest()?;
        let now = self.shared.threads.now();
        let took = now.saturating_duration_since(start);
        self.node.comparing.made(took, rows, now);
        self.shared.count(|statistics| {
            statistics.digests += 1;
            statistics.digest_ns += took.as_nanos() as u64;
        });
        Ok(digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_down_can_be_read_again_and_nothing_else() {
        let written = Written { database: 7, record: 4711, digest: Digest(1 << 100 | 5) };
        assert_eq!(Written::of(&written.text()), Some(written));
        for text in ["", "7 4711", "7 x 5", "7 4711 5 6", "7  5"] {
            assert_eq!(Written::of(text), None, "{text}");
        }
    }
}
