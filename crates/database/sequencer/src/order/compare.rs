//! Digests of the whole database in the journal: the leader appends them, and others compare.

use std::time::Duration;

use lockwork_engine::Engine;
use lockwork_storage::Digest;

use super::Order;
use crate::decode::Item;
use crate::error::Error;
use crate::format::frame::RecordKind;

/// Bytes of a digest.
const BYTES: usize = 16;

/// What is done when the record of a digest is durable, with its number.
pub(crate) type DigestReply = Box<dyn FnOnce(Result<u64, Error>) + Send>;

/// How many rows an engine has.
pub(crate) fn rows(engine: &dyn Engine) -> u64 {
    let mut rows = 0;
    let counted = engine.with_database(&mut |database| {
        rows = (0..database.len()).map(|id| database.table(id as u16).len()).sum();
    });
    // An engine that is lost says so to whoever calls.
    counted.map_or(u64::MAX, |()| rows)
}

impl Order {
    /// For how long the leader may sleep at most, because of the next digest.
    pub(super) fn until_digest(&self) -> Option<Duration> {
        let node = self.node.as_ref().filter(|node| node.is_leading())?;
        let at = node.comparing.looks_at(self.next).filter(|_| self.shared.trouble().is_none())?;
        Some(at.saturating_duration_since(self.shared.threads.now()))
    }

    /// Appends a digest, if this node leads, something has changed, and it is time.
    pub(super) fn digest_if_due(&mut self) {
        if self.until_digest() != Some(Duration::ZERO) {
            return;
        }
        self.drain();
        let rows = rows(&*self.engine);
        let due = self.node.as_mut().is_some_and(|node| node.comparing.is_due(rows, self.shared.threads.now()));
        if due {
            // Whoever waits for calls learns why nothing can be appended.
            self.append_digest(Box::new(|_| {}));
        }
    }

    /// The same before a checkpoint, whenever the one before was.
    pub(super) fn digest_before_checkpoint(&mut self) {
        let rows = rows(&*self.engine);
        let wanted = self.node.as_ref().is_some_and(|node| {
            node.is_leading() && node.comparing.has_changed(self.next) && node.comparing.is_short(rows)
        });
        if wanted {
            self.append_digest(Box::new(|_| {}));
        }
    }

    /// Appends the digest of the database as it is now.
    pub(super) fn append_digest(&mut self, reply: DigestReply) {
        if self.node.is_none() {
            let error = Error::Option {
                option: "digest",
                value: "a record of it".into(),
                expected: "only a log that several nodes share has such records".into(),
            };
            return reply(Err(error));
        }
        if let Err(error) = self.room_for_record(BYTES) {
            return reply(Err(error));
        }
        let (start, rows) = (self.shared.threads.now(), rows(&*self.engine));
        let digest = match self.engine.digest() {
            Ok(digest) => digest,
            Err(error) => return reply(Err(error.into())),
        };
        let (took, record) = (start.elapsed(), self.next);
        let membership = self.node.as_mut().map(|node| {
            let now = self.shared.threads.now();
            node.comparing.made(took, rows, now);
            node.comparing.wrote(record + 1, now);
            node.membership.clone()
        });
        self.shared.count_digest(took);
        let done = move |outcome: Result<(), Error>| {
            if let (Ok(()), Some(membership)) = (&outcome, membership) {
                membership.compared(record, digest);
            }
            reply(outcome.map(|()| record));
        };
        self.record(RecordKind::Digest, BYTES, |out| out.extend(digest.0.to_le_bytes()), done);
    }

    /// Leaves out digests that there is no time to compare: of messages that were read in one go the last one counts,
    /// and while there are many behind them, not each of these. `next` is the record behind them.
    pub(super) fn choose_digests(&self, items: Vec<Item>, next: u64) -> Vec<Item> {
        let Some(node) = &self.node else { return items };
        let wanted = next >= node.membership.journal_next() || node.comparing.has_time(self.shared.threads.now());
        let is_digest = |item: &Item| matches!(item, Item::Digest(..));
        let last = items.iter().rposition(is_digest).filter(|_| wanted);
        let numbered = items.into_iter().enumerate();
        numbered.filter(|(at, item)| !is_digest(item) || Some(*at) == last).map(|(_, item)| item).collect()
    }

    /// A digest was compared, and is the leader's.
    pub(super) fn compared(&mut self, record: u64, digest: Digest, took: Duration) {
        let rows = rows(&*self.engine);
        if let Some(node) = &mut self.node {
            node.comparing.made(took, rows, self.shared.threads.now());
            node.membership.compared(record, digest);
        }
        self.shared.count_digest(took);
    }
}
