//! What the log says, by a reading of its own: which calls were made, what each answered, and what the accounts hold
//! behind each record. Whatever nodes and clients say is held against it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use lockwork_storage::Digest;

use super::clients::{BALANCE, image, number_of};
use super::counters::Seen;
use crate::catalogue::Catalogue;
use crate::format::calls::runs;
use crate::format::frame::RecordKind;
use crate::format::items::Definition;
use crate::journal::answers::Answers;
use crate::journal::message::Chain;

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// With both balances, of a transfer.
    Committed([i64; 2]),
    Aborted,
}

/// Accounts by number, and what they hold.
type Accounts = BTreeMap<i64, i64>;

/// See the module.
pub(super) struct Checker {
    chain: Chain,
    catalogue: Catalogue,
    /// Behind each record; the first is of none.
    states: Vec<(Digest, Accounts)>,
    /// Each change of an account, with its record.
    changes: Vec<(u64, i64, i64)>,
    made: HashMap<u64, (u64, Outcome)>,
    /// What clients know to be there.
    told: HashSet<u64>,
    definitions: Vec<String>,
    /// Which process began an epoch, by epochs, and the one of each record's.
    leaders: Vec<usize>,
    /// The last record that some client knows to be there.
    known: u64,
    /// What was appended is no longer what the servers have.
    pub(super) is_damaged: bool,
}

impl Checker {
    pub(super) fn new() -> Self {
        Self {
            chain: Chain::default(),
            catalogue: Catalogue::default(),
            states: vec![Default::default()],
            changes: Vec::new(),
            made: HashMap::new(),
            told: HashSet::new(),
            definitions: Vec::new(),
            leaders: Vec::new(),
            known: 0,
            is_damaged: false,
        }
    }

    /// The last record.
    pub(super) fn last(&self) -> u64 {
        self.states.len() as u64 - 1
    }

    /// Which process leads, by the log.
    pub(super) fn leader(&self) -> Option<usize> {
        self.leaders.last().copied()
    }

    /// Whether a process has led and another one has followed it.
    pub(super) fn is_deposed(&self, life: usize) -> bool {
        self.leaders.contains(&life) && self.leader() != Some(life)
    }

    pub(super) fn epochs(&self) -> usize {
        self.leaders.len()
    }

    pub(super) fn defines(&self, name: &str) -> bool {
        self.definitions.iter().any(|known| known == name)
    }

    /// A message was appended by a process.
    pub(super) fn appended(&mut self, number: u64, message: &[u8], life: usize) -> Result<Vec<Seen>, String> {
        if self.is_damaged {
            return Ok(Vec::new());
        }
        let wrong = |what: String| format!("record {number}: {what}");
        if number != self.last() + 1 {
            return Err(wrong(format!("record {} is due", self.last() + 1)));
        }
        let verified = self.chain.verify(Path::new("log"), number, message);
        let (frame, payload) = verified.map_err(|error| wrong(format!("the chain is broken: {error}")))?;
        let (_, mut accounts) = self.states.last().cloned().unwrap_or_default();
        let mut seen = Vec::new();
        if frame.kind == RecordKind::Epoch {
            seen.push(Seen::Epoch);
            self.leaders.push(life);
        } else if self.leader() != Some(life) {
            return Err(wrong(format!("process {life} has appended in the epoch of another: {:?}", self.leader())));
        }
        match frame.kind {
            RecordKind::Epoch => {}
            RecordKind::Definition => self.define(&Definition::decode(payload).map_err(wrong)?).map_err(wrong)?,
            RecordKind::Answered => {
                let (_, calls) = Answers::split(payload).map_err(wrong)?;
                self.calls(number, calls, &mut accounts).map_err(wrong)?;
            }
            RecordKind::Digest => {
                seen.push(Seen::Digest);
                let digest = self.states.last().map(|(digest, _)| *digest).unwrap_or_default();
                if payload != digest.0.to_le_bytes() {
                    return Err(wrong(format!("the digest of all tables is {digest}, and the leader says another")));
                }
            }
            other => return Err(wrong(format!("a record of kind '{}' is nobody's", other.name()))),
        }
        let sum: i64 = accounts.values().sum();
        if sum != BALANCE * accounts.len() as i64 {
            return Err(wrong(format!("{} accounts have {sum} together", accounts.len())));
        }
        let images: Vec<u8> = accounts.iter().flat_map(|(&id, &balance)| image(id, balance)).collect();
        self.states.push((Digest::of_rows("accounts", 16, &images), accounts));
        Ok(seen)
    }

    fn define(&mut self, definition: &Definition) -> Result<(), String> {
        let addition = self.catalogue.understand(definition).map_err(|error| error.to_string())?;
        let tables = addition.tables.iter().map(|table| table.name().to_string());
        self.definitions.extend(tables.chain(addition.procedure.iter().map(|procedure| procedure.name.clone())));
        self.catalogue.add(addition);
        Ok(())
    }

    fn calls(&mut self, number: u64, payload: &[u8], accounts: &mut Accounts) -> Result<(), String> {
        let Self { catalogue, made, changes, .. } = self;
        runs(
            payload,
            |procedure| catalogue.arguments(procedure),
            |run| {
                for index in 0..run.count {
                    let name = &*catalogue.procedures[run.procedure as usize].name;
                    let (arguments, _) = run.arguments(index).as_chunks();
                    let arguments: Vec<i64> = arguments.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect();
                    let outcome = make(name, &arguments, accounts)?;
                    let touched = arguments.iter().take(2).filter_map(|id| Some((number, *id, *accounts.get(id)?)));
                    changes.extend(touched);
                    let request = run.request(index).map(number_of).ok_or("a call has no request id")?;
                    if let Some((first, _)) = made.insert(request, (number, outcome)) {
                        return Err(format!("request {request:x} was made in record {first}, and once more"));
                    }
                }
                Ok(())
            },
        )
    }

    /// Whether the log has a call.
    pub(super) fn has(&self, request: u64) -> bool {
        self.made.contains_key(&request)
    }

    /// A client was told that a call was made, and what it answered. Says whether that was for the first time.
    pub(super) fn acknowledged(&mut self, request: u64, outcome: Outcome) -> Result<bool, String> {
        match self.made.get(&request) {
            None => Err(format!("request {request:x} was acknowledged, and the log does not have it")),
            Some((record, made)) if *made != outcome && !matches!(made, Outcome::Committed([-1, -1])) => {
                Err(format!("request {request:x}, record {record}: {outcome:?} was answered, and {made:?} is right"))
            }
            Some((record, _)) => {
                self.known = self.known.max(*record);
                Ok(self.told.insert(request))
            }
        }
    }

    /// Behind this record a reader of the leader must be.
    pub(super) fn known(&self) -> u64 {
        self.known
    }

    /// Somebody has read everything behind a record.
    pub(super) fn read(&mut self, record: u64, digest: Digest) -> Result<(), String> {
        match self.states.get(record as usize) {
            None => Err(format!("a read saw record {record}, which the log does not have")),
            Some((right, _)) if *right != digest => {
                Err(format!("a read saw {digest} behind record {record}, and {right} is right"))
            }
            Some(_) => Ok(()),
        }
    }

    /// Somebody has read an account at the leader, knowing a record.
    pub(super) fn audited(&self, account: i64, balance: i64, known: u64) -> Result<(), String> {
        let before = self.states[known as usize].1.get(&account) == Some(&balance);
        let since = self.changes.iter().rev().take_while(|(record, ..)| *record > known);
        if before || since.into_iter().any(|&(_, id, had)| (id, had) == (account, balance)) {
            return Ok(());
        }
        Err(format!("account {account} had {balance}, which it had not behind record {known} or a later one"))
    }
}

/// What a call does.
fn make(name: &str, arguments: &[i64], accounts: &mut Accounts) -> Result<Outcome, String> {
    match (name, arguments) {
        ("transfer", &[from, to, amount]) => {
            let (Some(&source), Some(&target)) = (accounts.get(&from), accounts.get(&to)) else {
                return Err(format!("a transfer from {from} to {to}, which are not both there"));
            };
            if source < amount {
                return Ok(Outcome::Aborted);
            }
            accounts.insert(from, source - amount);
            accounts.insert(to, target + amount);
            Ok(Outcome::Committed([source - amount, target + amount]))
        }
        ("open", &[id, balance]) => match accounts.insert(id, balance) {
            // It answers nothing.
            None => Ok(Outcome::Committed([-1, -1])),
            Some(_) => Err(format!("account {id} was opened twice")),
        },
        _ => Err(format!("a call of '{name}' with {} arguments", arguments.len())),
    }
}
