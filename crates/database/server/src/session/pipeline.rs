//! Pipelines: what a client sends up to its next Sync, which is one transaction, as in PostgreSQL.
//!
//! A statement that can be part of a transaction does not run when its Execute comes: it waits for the Sync, with the
//! answers to the messages behind it. At the Sync a single statement runs by itself, and several become one transaction
//! that the engine makes and commits at once. Whatever needs the answers before that, such as a Flush or a statement of
//! another kind, has those that wait run as steps of an implicit transaction, which the Sync commits.
//!
//! | what | when it runs |
//! |---|---|
//! | CALL, SELECT by a key, INSERT, UPDATE, DELETE | at the Sync |
//! | a query of whole tables, rows fetched in portions | at its Execute, in the implicit transaction |
//! | what cannot be part of a transaction: CREATE, CALL MANY, CALL .. REQUEST | at its Execute, if it is the first |
//! | BEGIN | at once: what came before it is part of the transaction that it begins |
//! | COMMIT, ROLLBACK | at once: what comes behind it is another transaction |

use std::sync::Arc;
use std::time::Instant;

use futures::{Sink, SinkExt};
use lockwork::sequencer::Transaction;
use lockwork::sql::Value;
use lockwork::{Error, Prepared, SqlAnswer};
use pgwire::api::ClientInfo;
use pgwire::api::portal::Format;
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage as Message;
use pgwire::messages::response::{CommandComplete, TransactionStatus};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::Session;
use crate::error::{Refusal, refuse};
use crate::prepared::{Stored, Values};
use crate::shared::{Plan, closed, unanswered};
use crate::transaction::{self, Open};

/// Bytes of statements that wait for a Sync; more of them run before it comes.
const MAX_WAITING_BYTES: usize = 256 << 20;
/// Bytes of them that take no room from other connections.
const OWN_BYTES: usize = 64 << 10;
/// What a statement takes that waits, beside its values.
const CALL_BYTES: usize = 256;
/// What an answer takes that waits.
const ANSWER_BYTES: usize = 96;

/// What waits for the Sync, in the order of the answers.
#[derive(Default)]
pub(super) struct Pipeline {
    items: Vec<Item>,
    bytes: usize,
    /// Their room among what waits for clients of all connections, in KiB.
    room: Option<OwnedSemaphorePermit>,
}

impl Pipeline {
    /// Takes room for all that waits; whether there is so much.
    fn has_room(&mut self, waiting: &Arc<Semaphore>) -> bool {
        let has = self.room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let needed = self.bytes.saturating_sub(OWN_BYTES).div_ceil(1 << 10);
        if needed <= has {
            return true;
        }
        // More than it needs now, so that not each statement asks.
        let more = (needed - has + needed / 8) as u32;
        let Ok(more) = waiting.clone().try_acquire_many_owned(more) else { return false };
        match &mut self.room {
            Some(room) => room.merge(more),
            None => self.room = Some(more),
        }
        self.bytes <= MAX_WAITING_BYTES
    }
}

enum Item {
    /// An answer behind that of a statement.
    Ready(Message),
    Call(Call),
}

/// A statement that waits.
struct Call {
    plan: Arc<Plan>,
    values: Vec<Value>,
    format: Format,
    begun: Instant,
}

/// Why the statements that wait run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// A Sync, or what has the same effect: an implicit transaction is committed.
    Sync,
    /// A COMMIT.
    Commit,
    /// The client wants the answers, or a statement of another kind follows: the transaction goes on.
    Flush,
}

/// Bytes of a value, about.
fn bytes_of(value: &Value) -> usize {
    size_of::<Value>()
        + match value {
            Value::Text(text) | Value::Numeric(text) => text.len(),
            Value::Bytes(bytes) => bytes.len(),
            Value::Array(values) => values.iter().map(bytes_of).sum(),
            _ => 0,
        }
}

impl Session {
    /// Sends a message, behind the answers of the statements that wait.
    pub(super) async fn reply<C>(&self, client: &mut C, message: Message) -> PgWireResult<()>
    where
        C: Sink<Message> + Unpin,
        PgWireError: From<<C as Sink<Message>>::Error>,
    {
        let mut pipeline = self.pipeline.lock().await;
        if pipeline.items.is_empty() {
            return Ok(client.feed(message).await?);
        }
        pipeline.bytes += ANSWER_BYTES;
        pipeline.items.push(Item::Ready(message));
        Ok(())
    }

    /// Whether a statement can wait for the Sync.
    pub(super) fn can_wait(&self, stored: &Stored) -> bool {
        let Stored::Plan(plan) = stored else { return false };
        let is_call = plan.prepared.as_ref().is_some_and(|prepared| !prepared.has_request());
        is_call && !plan.is_many() && self.database.runs_compounds && !self.database.follows()
    }

    /// Has a statement wait for the Sync.
    pub(super) async fn wait<C>(
        &self,
        client: &mut C,
        plan: &Arc<Plan>,
        values: Values,
        format: &Format,
    ) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<Message> + Unpin + Send,
        PgWireError: From<<C as Sink<Message>>::Error>,
    {
        if client.transaction_status() == TransactionStatus::Error {
            return Err(transaction::failed().into());
        }
        let Values::Plan(values) = values else {
            return Err(refuse("XX000", "the values are those of another statement").into());
        };
        self.database.reach(self.reader.after(), &self.cancel).await?;
        self.allow_plan(plan)?;
        self.admit(self.open.lock().await.as_ref(), plan)?;
        let is_full = {
            let mut pipeline = self.pipeline.lock().await;
            let block = plan.prepared.as_ref().map_or(0, Prepared::block_bytes);
            let last = pipeline.items.iter().rev().find_map(Item::call);
            // One that was prepared once is there once.
            let of_plan = if last.is_some_and(|last| Arc::ptr_eq(&last.plan, plan)) { 0 } else { plan.memory_bytes() };
            pipeline.bytes += CALL_BYTES + block + of_plan + values.iter().map(bytes_of).sum::<usize>();
            let call = Call { plan: plan.clone(), values, format: format.clone(), begun: Instant::now() };
            pipeline.items.push(Item::Call(call));
            !pipeline.has_room(&self.database.waiting)
        };
        if is_full { self.settle(client, End::Flush).await } else { Ok(()) }
    }

    /// Begins the implicit transaction, if there is none, for a statement that runs at once. One that is all that its
    /// client sends up to the Sync needs none.
    pub(super) async fn begin_implicit(&self) {
        let mut open = self.open.lock().await;
        let is_needed = open.is_none() && self.database.runs_compounds && !self.database.follows();
        if is_needed && !self.is_last.load(std::sync::atomic::Ordering::Relaxed) {
            *open = Some(Open::new(self.is_read_only(), true));
        }
    }

    /// Whether there is an implicit transaction.
    pub(crate) async fn is_implicit(&self) -> bool {
        self.open.lock().await.as_ref().is_some_and(|open| open.is_implicit)
    }

    /// Runs the statements that wait, and sends their answers.
    pub(crate) async fn settle<C>(&self, client: &mut C, end: End) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<Message> + Unpin + Send,
        PgWireError: From<<C as Sink<Message>>::Error>,
    {
        let Pipeline { items, room: _room, .. } = std::mem::take(&mut *self.pipeline.lock().await);
        let answers = {
            let calls: Vec<&Call> = items.iter().filter_map(Item::call).collect();
            // A REVOKE may have come since its Execute.
            calls.iter().try_for_each(|call| self.allow_plan(&call.plan))?;
            let mut open = self.open.lock().await;
            let commits = match end {
                End::Sync => open.as_ref().is_none_or(|open| open.is_implicit),
                End::Commit => true,
                End::Flush => false,
            };
            match (&calls[..], commits, &mut *open) {
                // A COMMIT without statements that wait commits by itself.
                ([], true, open @ Some(_)) if end == End::Sync => {
                    let steps = open.take().and_then(|open| open.steps).ok_or_else(transaction::ended)?;
                    self.database.commit(steps, &self.cancel).await?;
                    Vec::new()
                }
                ([], ..) => Vec::new(),
                ([call], true, None) => {
                    self.cancel.check()?;
                    let (reader, cancel) = (&self.reader, &self.cancel);
                    vec![self.database.run(&call.plan, &call.values, self.owner(), None, reader, cancel).await]
                }
                (calls, commits, open) => self.runs_compounds(calls, open, commits).await?,
            }
        };
        let mut answers = answers.into_iter();
        for item in items {
            match item {
                Item::Ready(message) => client.feed(message).await?,
                Item::Call(call) => {
                    let answer = answers.next().ok_or_else(|| refuse("XX000", "a statement has no answer"))??;
                    let answered = call.plan.answered(&answer, &call.format);
                    for row in answered.rows {
                        client.feed(Message::DataRow(row)).await?;
                    }
                    client.feed(Message::CommandComplete(CommandComplete::new(answered.tag))).await?;
                }
            }
        }
        Ok(())
    }

    /// The error that a client is told when one has come up: that of a statement before it that has waited, if there is
    /// one. The implicit transaction is taken back.
    pub(crate) async fn fail<C>(&self, client: &mut C, error: PgWireError) -> PgWireError
    where
        C: ClientInfo + Sink<Message> + Unpin + Send,
        PgWireError: From<<C as Sink<Message>>::Error>,
    {
        let settled = self.settle(client, End::Flush).await;
        self.abandon().await;
        if client.transaction_status() == TransactionStatus::Idle {
            self.settings.end(false);
        }
        settled.err().unwrap_or(error)
    }

    /// Takes the implicit transaction back.
    pub(super) async fn abandon(&self) {
        let mut open = self.open.lock().await;
        open.take_if(|open| open.is_implicit);
    }

    /// Runs statements as the next steps of a transaction, up to the first that fails; the last answer then says why.
    /// If `commits`, and none fails, the transaction is committed in the same moment.
    async fn runs_compounds(
        &self,
        calls: &[&Call],
        open: &mut Option<Open>,
        commits: bool,
    ) -> Result<Vec<Result<SqlAnswer, Refusal>>, Refusal> {
        let mut transaction = match open {
            Some(open) => open.steps.take().ok_or_else(transaction::ended)?,
            None => Transaction::default(),
        };
        let mut may_repeat = transaction.calls() == 0;
        loop {
            self.cancel.check()?;
            let Built { plans, blocks, refused } = self.build(calls);
            self.database.watch.calls(blocks.iter().map(Vec::as_slice));
            let permit = self.cancel.unless(self.database.queue.acquire()).await?.map_err(|_| closed())?;
            let (sender, answer) = oneshot::channel();
            let then = move |ran| drop(sender.send(ran));
            match self.database.caller.steps_then(transaction, blocks, commits && refused.is_none(), then) {
                Err(Error::Outdated) if may_repeat => {
                    // An index is being made: when it is there, the statements are compiled once more.
                    drop(permit);
                    tokio::task::block_in_place(|| drop(self.database.database()));
                    (transaction, may_repeat) = (Transaction::default(), false);
                    continue;
                }
                handed_over => handed_over.map_err(transaction::error)?,
            }
            let (after, ran) = answer.await.map_err(|_| unanswered())?.map_err(transaction::error)?;
            let mut ran = ran.iter();
            let mut answers = Vec::with_capacity(plans.len() + 1);
            for (call, (plan, runs)) in calls.iter().zip(&plans) {
                let prepared = plan.prepared.as_ref().ok_or_else(closed)?;
                let answer = match runs {
                    true => prepared.answer(ran.next().ok_or_else(closed)?).map_err(|error| Refusal::of(error, "")),
                    false => Ok(prepared.nothing()),
                };
                self.database.count(plan, call.begun, answer.as_ref().err());
                let has_failed = answer.is_err();
                answers.push(answer);
                if has_failed {
                    break;
                }
            }
            if let (Some(refusal), true) = (refused, answers.iter().all(Result::is_ok)) {
                self.database.count(&calls[answers.len()].plan, calls[answers.len()].begun, Some(&refusal));
                answers.push(Err(refusal));
            }
            if commits && answers.iter().all(Result::is_ok) {
                *open = None;
            } else {
                open.get_or_insert_with(|| Open::new(self.is_read_only(), true)).steps = Some(after);
            }
            return Ok(answers);
        }
    }

    /// The blocks of statements, up to the first whose values do not fit.
    fn build(&self, calls: &[&Call]) -> Built {
        let mut built = Built { plans: Vec::with_capacity(calls.len()), blocks: Vec::new(), refused: None };
        for call in calls {
            let one = || {
                let plan = self.database.current(&call.plan, &call.values)?.unwrap_or_else(|| call.plan.clone());
                let prepared = plan.prepared.as_ref().ok_or_else(closed)?;
                let block = prepared.block(&call.values).map_err(|error| Refusal::of(error, ""))?;
                Ok((plan, block))
            };
            match one() {
                Ok((plan, block)) => {
                    built.plans.push((plan, block.is_some()));
                    built.blocks.extend(block);
                }
                Err(refusal) => {
                    built.refused = Some(refusal);
                    break;
                }
            }
        }
        built
    }
}

/// Statements that were built: how each was compiled and whether it has a block, the blocks, and why the next one has
/// none.
struct Built {
    plans: Vec<(Arc<Plan>, bool)>,
    blocks: Vec<Vec<u8>>,
    refused: Option<Refusal>,
}

impl Item {
    fn call(&self) -> Option<&Call> {
        match self {
            Self::Call(call) => Some(call),
            Self::Ready(_) => None,
        }
    }
}
