//! A log that loses, reorders, forks or alters what it has: every reader finds it, and stops with a report.

use std::path::Path;

use super::Damage;
use super::director::Director;
use super::servers::Servers;
use super::world::{MILLISECOND, SECOND};
use crate::format::frame::{self, RecordKind};
use crate::journal::message::{Chain, salt};

/// How long readers have.
const TIMEOUT: u64 = 60 * SECOND;

impl Director {
    /// One node lags, the log is damaged in what it has not read, and it goes on; then all begin anew.
    pub(super) fn damage(&mut self, damage: Damage) {
        self.heal();
        self.until("one leads, and all have the log", TIMEOUT, Self::is_together);
        if self.has_failed() {
            return;
        }
        let leader = self.world.state().checker.leader();
        let lags = self.places.iter().position(|place| Some(place.life) != leader).unwrap_or(0);
        let has = self.world.state().checker.last();
        self.world.state().servers.cut_until[lags] = u64::MAX;
        self.more(60);
        let number = {
            let mut state = self.world.state();
            // What is behind it shows it, so it is not the last; the lag is only there where another node leads.
            let last = state.checker.last();
            let first = if self.places.len() > 1 { has + 1 } else { 1 };
            let number = first + state.below(last.saturating_sub(first));
            let Some(number) = state.servers.damage(damage, number) else {
                return state.fail(format!("there is no record from {number} on that could be damaged"));
            };
            state.checker.is_damaged = true;
            state.tell(format_args!("{damage} of record {number}"));
            state.servers.cut_until[lags] = 0;
            number
        };
        if self.places.len() > 1 {
            self.until("the node that lagged has stopped", TIMEOUT, |all| all.places[lags].stopped.is_some());
        }
        for node in 0..self.places.len() {
            self.world.state().kill(self.places[node].life);
            (self.places[node].handle, self.places[node].restart) = (None, Some(self.now() + 10 * MILLISECOND));
            self.places[node].stopped = None;
        }
        let all_stopped = |all: &Self| all.places.iter().all(|place| place.stopped.is_some());
        self.until("every reader has stopped", TIMEOUT, all_stopped);
        let mut state = self.world.state();
        for why in self.places.iter().filter_map(|place| place.stopped.as_ref()) {
            let is_told = (number..number + 2).any(|at| why.contains(&format!("damaged at offset {at}:")));
            if !is_told {
                state.fail(format!("record {number} is damaged, and a node says: {why}"));
            }
        }
    }
}

impl Servers {
    /// Damages message `number`, or the next one that can be; says which.
    fn damage(&mut self, damage: Damage, number: u64) -> Option<u64> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        match damage {
            Damage::Loss => drop(self.messages.remove(at)),
            Damage::Reordering => self.messages.swap(at, at + 1),
            Damage::Alteration => {
                let message = &mut self.messages[at];
                let middle = message.len() / 2;
                message[middle] ^= 1;
            }
            Damage::Fork => {
                let sound = (at..self.messages.len() - 1).find_map(|at| Some((at, self.other(at)?)));
                let (at, other) = sound?;
                self.messages[at] = other;
                return Some(self.first + at as u64);
            }
        }
        Some(number)
    }

    /// Another message of calls that is sound in this place.
    fn other(&self, at: usize) -> Option<Vec<u8>> {
        let path = Path::new("log");
        let number = self.first + at as u64;
        let mut chain = Chain::behind(path, number - 1, &self.messages[at.checked_sub(1)?]).ok()?;
        let (frame, payload) = { chain }.verify(path, number, &self.messages[at]).ok()?;
        let mut frames = Vec::new();
        let longer = |out: &mut Vec<u8>| {
            out.extend(payload);
            // The same calls once more.
            out.extend(&payload[8..]);
        };
        (frame.kind == RecordKind::Answered).then(|| {
            frame::put(&mut frames, salt(chain.database), frame.kind, number, 0, longer);
            chain.seal(&frames)
        })
    }
}
