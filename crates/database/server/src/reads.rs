//! Reads at a node of a cluster that follows.
//!
//! Who connects there is sent to the leader, as clients with a list of hosts expect, unless the client says first that
//! it only reads: `default_transaction_read_only=on` among the settings that it begins with. Every statement of such a
//! session sees what the log makes up to one record, whose number it can ask for; and it can have reads wait for a
//! record that it has heard of elsewhere. Nothing is registered: a statement is compiled and run beside the log.
//!
//! When the node leads, the same sessions go on, and others come.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockwork::sequencer::Role;
use lockwork::sql::{Kind, Value};
use lockwork::{Error, Lockwork, SqlAnswer};
use tokio::sync::oneshot;

use crate::cancel::Cancel;
use crate::error::{Refusal, refuse};
use crate::session_settings::{DEFAULT_READ_ONLY, READ_AFTER};
use crate::shared::{Database, Plan, Shared, closed};
use crate::verb::Verb;

/// How long a read waits for its record.
const LONGEST: Duration = Duration::from_secs(10);
/// How often it is looked whether the record is there.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// What transactions are at a node that follows: each of their statements sees a record of its own.
pub(crate) const LEVEL: &str = "read committed";

/// What a session has said of its reads, and what they have seen.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// Whether transactions that do not say it are READ ONLY, and whether they were from the beginning.
    read_only: AtomicBool,
    began_read_only: AtomicBool,
    /// The record that reads wait for, and the one from the beginning.
    after: AtomicU64,
    began_after: AtomicU64,
    /// The record that the last read was of; 0 before the first.
    pub(crate) seen: AtomicU64,
}

impl Reader {
    /// The settings that the client begins with.
    ///
    /// # Errors
    /// A value that is not possible.
    pub(crate) fn begin(&self, parameters: &BTreeMap<String, String>) -> Result<(), Refusal> {
        let Beginning { read_only, after } = Beginning::of(parameters)?;
        self.began_read_only.store(read_only, Ordering::Relaxed);
        self.began_after.store(after, Ordering::Relaxed);
        self.reset();
        Ok(())
    }

    /// As it was in the beginning.
    pub(crate) fn reset(&self) {
        self.set_read_only(self.began_read_only.load(Ordering::Relaxed));
        self.set_after(self.began_after.load(Ordering::Relaxed));
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }

    pub(crate) fn began_read_only(&self) -> bool {
        self.began_read_only.load(Ordering::Relaxed)
    }

    pub(crate) fn set_read_only(&self, is_read_only: bool) {
        self.read_only.store(is_read_only, Ordering::Relaxed);
    }

    pub(crate) fn after(&self) -> u64 {
        self.after.load(Ordering::Relaxed)
    }

    pub(crate) fn set_after(&self, record: u64) {
        self.after.store(record, Ordering::Relaxed);
    }

    /// A read was of this record. Of two at the same time the later record counts.
    pub(crate) fn saw(&self, record: u64) {
        self.seen.fetch_max(record, Ordering::Relaxed);
    }
}

/// What the first message of a client says of its reads.
#[derive(Debug, Default, PartialEq, Eq)]
struct Beginning {
    read_only: bool,
    after: u64,
}

impl Beginning {
    /// Others are of no interest here.
    fn of(parameters: &BTreeMap<String, String>) -> Result<Self, Refusal> {
        let mut beginning = Self::default();
        for (name, value) in settings(parameters) {
            match name.as_str() {
                DEFAULT_READ_ONLY => {
                    beginning.read_only =
                        crate::session_settings::truth(DEFAULT_READ_ONLY, &value.to_ascii_lowercase())?;
                }
                READ_AFTER => beginning.after = crate::session_settings::record(&value)?,
                _ => {}
            }
        }
        Ok(beginning)
    }
}

/// The settings of a client's first message by their names in lower case. They come as parameters of their own, and in
/// `options` as PostgreSQL's command line has them: `-c name=value` or `--name=value`, with a backslash before a blank.
pub(crate) fn settings(parameters: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let options = parameters.get("options").map_or(Vec::new(), |options| words(options));
    let mut options = options.into_iter();
    let mut settings = BTreeMap::new();
    while let Some(word) = options.next() {
        let setting = match word.strip_prefix("-c") {
            Some("") => options.next(),
            Some(setting) => Some(setting.to_string()),
            None => word.strip_prefix("--").map(str::to_string),
        };
        let pair = setting.as_deref().and_then(|setting| setting.split_once('='));
        settings.extend(pair.map(|(name, value)| (name.replace('-', "_").to_ascii_lowercase(), value.to_string())));
    }
    settings.extend(parameters.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())));
    settings
}

/// Words between blanks; a backslash takes the next character as it is.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut characters) = (Vec::new(), String::new(), text.chars());
    while let Some(character) = characters.next() {
        match character {
            '\\' => word.extend(characters.next()),
            blank if blank.is_whitespace() => words.push(std::mem::take(&mut word)),
            other => word.push(other),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

impl Shared {
    /// Whether this is a node of a cluster that does not lead, or not yet: there are reads only.
    pub(crate) fn follows(&self) -> bool {
        !self.leads.load(Ordering::Acquire)
    }

    /// Whether another node makes definitions, so that they have to be learnt.
    fn learns(&self) -> bool {
        self.follows() || self.caller.role() == Some(Role::Sequencing)
    }

    /// Why a client cannot connect; nothing if it can.
    pub(crate) fn elsewhere(&self, reads_only: bool) -> Option<String> {
        match self.caller.role() {
            Some(Role::Ended) => Some("the part of this node in its cluster has ended; connect to another one".into()),
            _ if !self.follows() => None,
            _ if reads_only && self.caller.is_divided() => Some(format!(
                "this node of a cluster has a part of every table, and answers nothing while it follows; connect to the \
                 leader: {}",
                self.caller.leader()
            )),
            _ if reads_only => None,
            _ => Some(format!(
                "this node of a cluster follows; connect to its leader: {}; for reads only, begin with the option \
                 '-c {DEFAULT_READ_ONLY}=on'",
                self.caller.leader()
            )),
        }
    }

    /// Refuses what writes, at a node that follows.
    pub(crate) fn admit_write(&self, verb: Verb) -> Result<(), Refusal> {
        if self.follows() { Err(self.writes_elsewhere(verb.words())) } else { Ok(()) }
    }

    /// As [`Self::admit_write`], of a kind of statement.
    pub(crate) fn admit_kind(&self, kind: Kind) -> Result<(), Refusal> {
        match kind {
            Kind::Select | Kind::Call | Kind::Explain | Kind::Transaction => Ok(()),
            kind => self.admit_write(Verb::of(kind)),
        }
    }

    pub(crate) fn writes_elsewhere(&self, what: &str) -> Refusal {
        let leader = self.caller.leader();
        let message = format!("this node of a cluster follows, and {what} is for the leader: {leader}");
        refuse("25006", message).hint("connect to it; clients with a list of hosts find it by target_session_attrs")
    }

    /// An error of what was to be understood as a read.
    pub(crate) fn of_read(&self, error: Error, source: &str) -> Refusal {
        match error {
            Error::Writes(_) => self.writes_elsewhere("a CALL that may write"),
            error => Refusal::of(error, source),
        }
    }

    /// Waits until this node has a record, and where another node leads learns what was defined up to there.
    pub(crate) async fn reach(&self, record: u64, cancel: &Cancel) -> Result<(), Refusal> {
        if self.caller.record() < record {
            let there = async {
                while self.caller.record() < record {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            };
            if cancel.unless(tokio::time::timeout(LONGEST, there)).await?.is_err() {
                let message = format!(
                    "this node has the log up to record {}, and has not come to {record}, as {READ_AFTER} asks for, \
                     within {} s",
                    self.caller.record(),
                    LONGEST.as_secs()
                );
                return Err(refuse("40001", message).hint("read again, or at another node"));
            }
        }
        if self.learns() && self.caller.definitions_met() as u64 != self.learnt.load(Ordering::Acquire) {
            tokio::task::block_in_place(|| self.learn())?;
        }
        Ok(())
    }

    fn learn(&self) -> Result<(), Refusal> {
        let mut guard = self.database();
        let database = guard.as_mut().ok_or_else(closed)?;
        if self.learns() {
            let met = self.caller.definitions_met() as u64;
            let learnt = database.learn().map_err(|error| Refusal::of(error, ""));
            // Also of what was learnt before an error.
            self.define_anew();
            learnt?;
            self.learnt.store(met, Ordering::Release);
        }
        Ok(())
    }

    /// Runs a statement that was understood as a read, beside the log.
    pub(crate) async fn run_read(
        &self,
        plan: &Plan,
        values: &[Value],
        reader: &Reader,
        cancel: &Cancel,
    ) -> Result<SqlAnswer, Refusal> {
        let refused = |error| Refusal::of(error, "");
        let prepared = plan.prepared.as_ref().ok_or_else(closed)?;
        let Some(block) = prepared.block(values).map_err(refused)? else {
            reader.saw(self.caller.record());
            return Ok(prepared.nothing());
        };
        let _permit = cancel.unless(self.queue.acquire()).await?.map_err(|_| closed())?;
        let (sender, answer) = oneshot::channel();
        self.caller.read_then(prepared, block, move |ran| drop(sender.send(ran))).map_err(refused)?;
        let (record, block) = answer.await.map_err(|_| closed())?.map_err(refused)?;
        reader.saw(record);
        prepared.answer(&block).map_err(refused)
    }
}

/// Has a server of a node lead, when its node does.
#[derive(Clone)]
pub struct LeadershipHandle(pub(crate) Database);

impl LeadershipHandle {
    /// From now on everybody may connect, and do everything. Before that, `first` has the database. It waits for the
    /// database; to be called from a thread that may.
    ///
    /// # Errors
    /// When the node's role has ended, and those of `first`; then it stays as it is.
    pub fn lead<E: From<Error>>(&self, first: impl FnOnce(&mut Lockwork) -> Result<(), E>) -> Result<(), E> {
        let LeadershipHandle(shared) = self;
        let mut guard = shared.database();
        let closed = || Error::Durability(lockwork::sequencer::Error::Closed);
        let database = guard.as_mut().ok_or_else(closed)?;
        database.lead()?;
        first(database)?;
        shared.define_anew();
        shared.leads.store(true, Ordering::Release);
        shared.watch.ready();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beginning(pairs: &[(&str, &str)]) -> Result<Beginning, Refusal> {
        Beginning::of(&pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect())
    }

    #[test]
    fn settings_are_found_where_clients_put_them() {
        let reads = |after| Ok(Beginning { read_only: true, after });
        for options in [
            "-c default_transaction_read_only=on",
            "-cdefault_transaction_read_only=true",
            "--default_transaction_read_only=1",
            "--default-transaction-read-only=on",
            "  -c search_path=a\\ b   -c DEFAULT_transaction_READ_only=ON -c a",
        ] {
            assert_eq!(beginning(&[("options", options)]), reads(0), "{options}");
        }
        assert_eq!(beginning(&[("default_transaction_read_only", "on"), ("user", "a")]), reads(0));
        let both = "-c default_transaction_read_only=on -c lockwork.read_after=17";
        assert_eq!(beginning(&[("options", both)]), reads(17));
        for options in ["", "-c", "-c a=b", "-c default_transaction_read_only=off", "x\\", "-c\\ default"] {
            assert_eq!(beginning(&[("options", options)]), Ok(Beginning::default()), "{options}");
        }
        for options in ["-c default_transaction_read_only=maybe", "-c lockwork.read_after=x"] {
            assert_eq!(beginning(&[("options", options)]).unwrap_err().sqlstate, "22023", "{options}");
        }
    }
}
