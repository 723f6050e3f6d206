//! BEGIN .. COMMIT of a session. The database holds nothing for it: a statement makes those before it again, and is
//! told if they answer something else by now ([`lockwork::Transaction`]).

use std::collections::BTreeMap;

use lockwork::sequencer::{MAX_CALLS, Mark, Transaction};
use lockwork::sql::Control;
use lockwork::{Error, Prepared};
use pgwire::messages::response::TransactionStatus as Status;

use crate::error::{Refusal, refuse};
use crate::shared::Plan;
use crate::verb::Verb;

/// A transaction of a session, from BEGIN on.
#[derive(Debug)]
pub(crate) struct Open {
    /// What it has done; `None` when an error has ended it.
    pub(crate) steps: Option<Transaction>,
    pub(crate) read_only: bool,
    /// Whether no BEGIN has begun it, but a statement of a pipeline: the next Sync commits it.
    pub(crate) is_implicit: bool,
    /// The oldest first; of one name the last counts.
    savepoints: Vec<Savepoint>,
    /// Portals that were opened in it, by name, and how many were before each.
    portals: BTreeMap<String, u64>,
    opened: u64,
}

#[derive(Debug)]
struct Savepoint {
    name: String,
    mark: Mark,
    /// Portals that were opened before it.
    opened: u64,
}

/// What becomes of a session by such a statement.
pub(crate) enum Turn {
    /// It is in this state now.
    Now(Status),
    /// It goes on, without these portals.
    Back(Vec<String>),
    /// The transaction is to be made durable.
    Commit(Transaction),
}

/// Why there is nothing to go on with.
pub(crate) fn ended() -> Refusal {
    let message = "other transactions have changed what this one has seen, and it has ended";
    refuse("40001", message).hint("ROLLBACK, and begin it again")
}

/// The error of whatever comes between an error and the ROLLBACK.
pub(crate) fn failed() -> Refusal {
    refuse("25P02", "the transaction has failed, and statements are ignored until its end").hint("ROLLBACK")
}

/// The error of a statement or COMMIT in a transaction. Its earlier statements cannot be understood anew.
pub(crate) fn error(error: Error) -> Refusal {
    match error {
        Error::Outdated => refuse("40001", "a statement of the transaction has to be compiled again")
            .hint("ROLLBACK, and begin it again"),
        error => Refusal::of(error, ""),
    }
}

/// What a statement is called when it is done.
pub(crate) fn tag(control: &Control) -> &'static str {
    match control {
        Control::Begin { .. } => "BEGIN",
        Control::Commit => "COMMIT",
        Control::RollBack | Control::RollBackTo(_) => "ROLLBACK",
        Control::Savepoint(_) => "SAVEPOINT",
        Control::Release(_) => "RELEASE",
    }
}

/// Carries out such a statement in a session that is in state `status`; a BEGIN that does not say it is READ ONLY if
/// `is_read_only`. As in PostgreSQL, BEGIN in a transaction and
/// COMMIT or ROLLBACK outside of one do nothing, and COMMIT of one that has failed takes it back.
///
/// # Errors
/// What does not fit the state.
pub(crate) fn turn(
    open: &mut Option<Open>,
    control: &Control,
    status: Status,
    is_read_only: bool,
) -> Result<Turn, Refusal> {
    let Some(transaction) = open else {
        return match control {
            Control::Begin { read_only } => {
                *open = Some(Open::new(read_only.unwrap_or(is_read_only), false));
                Ok(Turn::Now(Status::Transaction))
            }
            Control::Commit | Control::RollBack => Ok(Turn::Now(Status::Idle)),
            _ => Err(refuse("25P01", "there are savepoints in transactions only").hint("BEGIN")),
        };
    };
    let is_failed = status == Status::Error;
    match control {
        Control::RollBack => {
            *open = None;
            Ok(Turn::Now(Status::Idle))
        }
        Control::Commit => {
            let steps = open.take().and_then(|open| open.steps).filter(|_| !is_failed);
            Ok(steps.map_or(Turn::Now(Status::Idle), Turn::Commit))
        }
        Control::RollBackTo(name) => {
            let at = transaction.savepoint(name)?;
            let Savepoint { mark, opened, .. } = transaction.savepoints[at];
            transaction.steps.as_mut().ok_or_else(ended)?.back_to(mark);
            transaction.savepoints.truncate(at + 1);
            let gone = transaction.portals.extract_if(.., |_, before| *before >= opened);
            Ok(Turn::Back(gone.map(|(name, _)| name).collect()))
        }
        _ if is_failed => Err(failed()),
        Control::Begin { read_only } if transaction.is_implicit => {
            // What the pipeline has done before is part of it.
            transaction.is_implicit = false;
            read_only.map_or(Ok(()), |read_only| transaction.set_read_only(read_only))?;
            Ok(Turn::Now(Status::Transaction))
        }
        Control::Begin { .. } => Ok(Turn::Now(status)),
        Control::Savepoint(_) if transaction.savepoints.len() >= MAX_CALLS => {
            Err(refuse("54000", format!("a transaction has at most {MAX_CALLS} savepoints")).hint("RELEASE some"))
        }
        Control::Savepoint(name) => {
            let mark = transaction.steps.as_ref().ok_or_else(ended)?.mark();
            transaction.savepoints.push(Savepoint { name: name.clone(), mark, opened: transaction.opened });
            Ok(Turn::Now(status))
        }
        Control::Release(name) => {
            let at = transaction.savepoint(name)?;
            transaction.savepoints.truncate(at);
            Ok(Turn::Now(status))
        }
    }
}

/// Refuses what a transaction does not that is READ ONLY.
pub(crate) fn reads(plan: &Plan) -> Result<(), Refusal> {
    if plan.writes() || plan.is_definition() { Err(is_read_only(plan.verb)) } else { Ok(()) }
}

pub(crate) fn is_read_only(verb: Verb) -> Refusal {
    refuse("25006", format!("this {} writes, and the transaction is READ ONLY", verb.words()))
}

impl Open {
    pub(crate) fn new(read_only: bool, is_implicit: bool) -> Self {
        let (savepoints, portals) = (Vec::new(), BTreeMap::new());
        Self { steps: Some(Transaction::default()), read_only, is_implicit, savepoints, portals, opened: 0 }
    }

    /// Makes it READ ONLY, or READ WRITE, which only its beginning can.
    pub(crate) fn set_read_only(&mut self, is_read_only: bool) -> Result<(), Refusal> {
        if self.read_only && !is_read_only && self.steps.as_ref().is_none_or(|steps| steps.calls() > 0) {
            let message = "a transaction that is READ ONLY is made READ WRITE before its first statement";
            return Err(refuse("25001", message).hint("ROLLBACK, and BEGIN READ WRITE"));
        }
        self.read_only = is_read_only;
        Ok(())
    }

    /// A portal has been opened.
    pub(crate) fn open_portal(&mut self, name: &str) {
        self.portals.insert(name.into(), self.opened);
        self.opened += 1;
    }

    /// A portal has been closed.
    pub(crate) fn close_portal(&mut self, name: &str) {
        self.portals.remove(name);
    }

    /// The number of the savepoint of this name.
    fn savepoint(&self, name: &str) -> Result<usize, Refusal> {
        let found = self.savepoints.iter().rposition(|known| known.name == name);
        found.ok_or_else(|| refuse("3B001", format!("there is no savepoint called '{name}'")))
    }

    /// Refuses what cannot be part of a transaction.
    pub(crate) fn admit(&self, plan: &Plan) -> Result<(), Refusal> {
        if plan.is_many() {
            let message = "a CALL MANY is many transactions, and cannot be part of one";
            return Err(refuse("25001", message).hint("COMMIT before it"));
        }
        if plan.prepared.as_ref().is_some_and(Prepared::has_request) {
            let message = "a CALL with the id of a request is a transaction of its own, and cannot be part of one";
            return Err(refuse("25001", message).hint("COMMIT before it, or leave REQUEST out"));
        }
        if plan.is_definition() {
            let message = format!("{} cannot be part of a transaction", plan.verb.words());
            return Err(refuse("25001", message).hint("COMMIT before it"));
        }
        if self.read_only { reads(plan) } else { Ok(()) }
    }
}
