//! Several calls and statements as one transaction, from a program that thinks between them.

use std::sync::mpsc;

use lockwork_sequencer::{self as sequencer, Mark};
use lockwork_sql as sql;
use lockwork_storage::Database;

use crate::cache::named;
use crate::calls::Answer;
use crate::durable::{Caller, Rows, read};
use crate::prepared::Prepared;
use crate::value::Value;
use crate::{Error, SqlAnswer};

/// A transaction of several calls ([`Caller::begin`]). Nothing of it is there for others before [`Self::commit`];
/// dropping it takes it back.
///
/// It holds no locks, so nobody waits for it. Each further call makes those before it again and sees that they answer
/// what they answered; if others have changed that, it ends with [`sequencer::Error::Conflict`] and is to be begun
/// again ([`Error::is_retryable`]). What commits is serializable. Calls cost the more, the more of them there are, up
/// to [`sequencer::MAX_CALLS`]: what is known beforehand is better one procedure.
///
/// A call that aborts takes back itself only; whoever wants the transaction to end then drops it.
pub struct Transaction {
    caller: Caller,
    /// `None` when it has ended by an error.
    steps: Option<sequencer::Transaction>,
}

impl Caller {
    /// Begins a transaction of several calls.
    #[must_use]
    pub fn begin(&self) -> Transaction {
        Transaction { caller: self.clone(), steps: Some(sequencer::Transaction::default()) }
    }

    /// Makes a further call of a transaction without waiting, by its block ([`Prepared::block`]): `then` gets both when
    /// it has run, as for [`Self::run_then`].
    ///
    /// # Errors
    /// As there; the transaction has ended.
    pub fn step_then(
        &self,
        transaction: sequencer::Transaction,
        block: Vec<u8>,
        then: impl FnOnce(Result<(sequencer::Transaction, Vec<u8>), Error>) + Send + 'static,
    ) -> Result<(), Error> {
        let _admitted = self.versions.admit(transaction.procedures().chain(named(&block)))?;
        Ok(self.handle.step_then(transaction, block, move |outcome| then(outcome.map_err(Error::from)))?)
    }

    /// Makes further calls of a transaction without waiting, by their blocks, up to the first that does not commit. If
    /// `commits`, and all of them do, the whole transaction is made for good, and nothing came between its calls.
    /// `then` gets the transaction and the blocks that ran, as for [`Self::run_then`].
    ///
    /// # Errors
    /// As there; the transaction has ended.
    pub fn steps_then(
        &self,
        transaction: sequencer::Transaction,
        blocks: Vec<Vec<u8>>,
        commits: bool,
        then: impl FnOnce(Result<(sequencer::Transaction, Vec<Vec<u8>>), Error>) + Send + 'static,
    ) -> Result<(), Error> {
        let further = blocks.iter().filter_map(|block| named(block));
        let _admitted = self.versions.admit(transaction.procedures().chain(further))?;
        let then = move |outcome: Result<_, sequencer::Error>| then(outcome.map_err(Error::from));
        Ok(self.handle.steps_then(transaction, blocks, commits, then)?)
    }

    /// As [`Self::rows`], of tables as a transaction has made them: they must not change until it commits. It goes on
    /// when they are [too large](Error::TooLarge).
    ///
    /// # Errors
    /// [`Error::Outdated`], [`sequencer::Error::Conflict`] and its like; the transaction has ended.
    pub fn rows_in(
        &self,
        transaction: sequencer::Transaction,
        tables: &[&str],
        most: u64,
    ) -> Result<(sequencer::Transaction, Result<Vec<Rows>, Error>), Error> {
        let names: Vec<String> = tables.iter().map(ToString::to_string).collect();
        let (sender, rows) = mpsc::sync_channel(1);
        let (done, looked) = mpsc::sync_channel(1);
        let look = {
            let names = names.clone();
            move |database: &Database| {
                let rows = Rows::copy(database, &names, most);
                let has_seen = rows.is_ok();
                drop(sender.send(rows));
                has_seen
            }
        };
        {
            let _admitted = self.versions.admit(transaction.procedures())?;
            self.handle.look_then(transaction, names, look, move |outcome| drop(done.send(outcome)))?;
        }
        let transaction = looked.recv().map_err(|_| sequencer::Error::Closed)??;
        Ok((transaction, rows.recv().map_err(|_| sequencer::Error::Closed)?))
    }

    /// Commits a transaction without waiting: `then` is called when it is durable, as for [`Self::run_then`].
    ///
    /// # Errors
    /// As there; the transaction has ended.
    pub fn commit_then(
        &self,
        transaction: sequencer::Transaction,
        then: impl FnOnce(Result<(), Error>) + Send + 'static,
    ) -> Result<(), Error> {
        let _admitted = self.versions.admit(transaction.procedures())?;
        Ok(self.handle.commit_then(transaction, move |outcome| then(outcome.map_err(Error::from)))?)
    }
}

impl Transaction {
    /// Calls a procedure.
    ///
    /// # Errors
    /// As [`Caller::call`], and [`sequencer::Error::Conflict`].
    pub fn call(&mut self, procedure: &str, arguments: &[(&str, Value)]) -> Result<Answer, Error> {
        let (block, registered) = {
            let procedures = read(&self.caller.procedures);
            let (block, registered) = procedures.block(procedure, arguments)?;
            (block, registered.clone())
        };
        Ok(Answer { bytes: self.step(block)?, registered })
    }

    /// Runs a prepared statement with values for `$1` and so on.
    ///
    /// # Errors
    /// As [`Caller::run`], [`Error::RequestInside`], and [`sequencer::Error::Conflict`].
    pub fn run(&mut self, prepared: &Prepared, values: &[sql::Value]) -> Result<SqlAnswer, Error> {
        if prepared.has_request() {
            return Err(Error::RequestInside);
        }
        let Some(block) = prepared.block(values)? else { return Ok(prepared.nothing()) };
        prepared.answer(&self.step(block)?)
    }

    fn step(&mut self, block: Vec<u8>) -> Result<Vec<u8>, Error> {
        let steps = self.steps.take().ok_or(Error::Ended)?;
        let (sender, ran) = mpsc::sync_channel(1);
        self.caller.step_then(steps, block, move |outcome| drop(sender.send(outcome)))?;
        let (steps, block) = ran.recv().map_err(|_| sequencer::Error::Closed)??;
        self.steps = Some(steps);
        Ok(block)
    }

    /// Now, to go back to.
    ///
    /// # Errors
    /// [`Error::Ended`].
    pub fn savepoint(&self) -> Result<Mark, Error> {
        Ok(self.steps.as_ref().ok_or(Error::Ended)?.mark())
    }

    /// Takes back what was done since a savepoint of this transaction.
    ///
    /// # Errors
    /// [`Error::Ended`].
    pub fn roll_back_to(&mut self, savepoint: Mark) -> Result<(), Error> {
        self.steps.as_mut().ok_or(Error::Ended)?.back_to(savepoint);
        Ok(())
    }

    /// Does all of it, durably.
    ///
    /// # Errors
    /// [`sequencer::Error::Conflict`], and nothing has happened; and what keeps calls from being durable.
    pub fn commit(mut self) -> Result<(), Error> {
        let steps = self.steps.take().ok_or(Error::Ended)?;
        let (sender, done) = mpsc::sync_channel(1);
        self.caller.commit_then(steps, move |outcome| drop(sender.send(outcome)))?;
        done.recv().map_err(|_| sequencer::Error::Closed)?
    }
}
