//! The thread of who leads, or sequences, that appends to the journal, and tells those who wait.
//!
//! Units come in order, each the records of one batch. What has gathered while the journal was busy is appended in one
//! go. While nothing comes, it is looked now and then whether the journal still has what was appended.
//!
//! Invariant: nothing is appended before everything before it is durable there. Whatever goes wrong ends this node's
//! epoch: the engine of one that has everything has run what the journal may not have.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::election::Membership;
use super::message::Chain;
use super::{AppendError, Journal};
use crate::error::Error;
use crate::log::writer::{MAX_BYTES, Unit};
use crate::shared::Shared;

/// After how long without a unit it looks whether the journal has what was appended.
const IDLE: Duration = Duration::from_secs(2);
/// For how long servers that have just chosen another one of them for the journal may say that it has less.
const LATE: Duration = Duration::from_secs(5);

/// See the module.
pub(crate) struct Publisher {
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) membership: Arc<Membership>,
    /// What the next message follows.
    pub(crate) chain: Chain,
    /// Its number.
    pub(crate) next: u64,
    /// Whether the journal is that of the order; others are told then how far it is durable.
    pub(crate) orders: bool,
}

impl Publisher {
    /// Appends units until there will be no more.
    pub(crate) fn run(mut self, units: &Receiver<Unit>) {
        // Since when the journal has had less than was appended.
        let mut short = None;
        loop {
            let first = match self.shared.threads.receive(units, Some(IDLE)) {
                Ok(first) => first,
                Err(RecvTimeoutError::Timeout) => {
                    self.look(&mut short);
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let mut gathered = first.bytes.len();
            let mut group = vec![first];
            while gathered < MAX_BYTES
                && let Ok(unit) = units.try_recv()
            {
                gathered += unit.bytes.len();
                group.push(unit);
            }
            self.publish(group);
            short = None;
        }
    }

    /// Looks whether what was appended is there. If it is not for a while, others wait for it, and whoever begins an
    /// epoch looks for it at each server ([`super::complete`]); so this one ends.
    fn look(&self, short: &mut Option<Instant>) {
        if !self.journal.log_range().is_ok_and(|log_range| log_range.next < self.next) {
            *short = None;
            return;
        }
        let now = self.shared.threads.now();
        let since = *short.get_or_insert(now);
        if now - since > LATE {
            let last = self.next - 1;
            self.membership.end(format!("the journal does not have record {last} any more, which was appended"));
            self.shared.stop(Error::Superseded);
        }
    }

    fn publish(&mut self, group: Vec<Unit>) {
        if let Some(error) = self.shared.trouble() {
            return group.into_iter().for_each(|unit| (unit.done)(Err(error.clone())));
        }
        let mut messages = Vec::new();
        for unit in &group {
            let ends = unit.frames.iter().skip(1).copied().chain([unit.bytes.len()]);
            messages.extend(unit.frames.iter().zip(ends).map(|(&from, to)| self.chain.seal(&unit.bytes[from..to])));
        }
        let (appended, outcome) = self.append(&messages);
        let mut before = 0;
        for mut unit in group {
            let count = unit.frames.len();
            let outcome = match &outcome {
                // What was seen is what came before; it is as it was seen while nobody else can have begun to lead.
                _ if count == 0 && before <= appended => self.membership.may_answer().map_err(|lapsed| match lapsed {
                    // What it says was done before, such as rows that were loaded, may be.
                    lapsed if unit.requires_durability => Error::Unknown(lapsed.to_string()),
                    lapsed => lapsed,
                }),
                _ if count > 0 && before + count <= appended => Ok(()),
                Err(AppendError::Unknown(why)) => Err(Error::Unknown(why.clone())),
                // The first of its records may be there, and the others not.
                Err(why) if before < appended => Err(Error::Unknown(why.to_string())),
                Err(AppendError::Full(why)) => Err(Error::JournalFull(why.clone())),
                Err(AppendError::Superseded) | Ok(()) => Err(Error::Superseded),
            };
            before += count;
            (unit.done)(outcome);
            self.shared.give_back(std::mem::take(&mut unit.bytes));
        }
    }

    fn append(&mut self, messages: &[Vec<u8>]) -> (usize, Result<(), AppendError>) {
        if messages.is_empty() {
            return (0, Ok(()));
        }
        let start = self.shared.threads.now();
        let (appended, outcome) = self.journal.append(self.next, messages);
        self.next += appended as u64;
        if self.orders {
            self.shared.set_durable(self.next);
        }
        let bytes = messages[..appended].iter().map(Vec::len).sum();
        self.shared.count_sync(bytes, appended > 0, self.shared.threads.now() - start);
        if let Err(why) = &outcome {
            self.membership.end(why.to_string());
            self.shared.stop(Error::Superseded);
        }
        (appended, outcome)
    }
}
