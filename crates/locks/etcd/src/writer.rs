//! The writes, in order, and each of them once.
//!
//! Several go into one transaction, and a transaction is repeated until there is an answer. An answer may be lost, and
//! a request may arrive after the one that repeated it, and after later ones: then it would bring back what was deleted
//! since. So each transaction also counts at a key of this writer alone, and takes effect only while that key has the
//! number before. The key lies under a lease, so that no trace is left of writers that are gone.

use crate::health::Part;
use crate::{Failed, LONGEST_VALUE, PAUSES, Shared, attempt, lease, locked, random};
use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp, TxnOpResponse};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::AbortHandle;

/// etcd takes 128 operations in a transaction; one is ours.
const MAX_WRITES: usize = 127;
/// The folder where writers count.
pub(crate) const PLACES: &str = "writers/";
/// How long a writer's key outlives it, or its connection, in seconds.
const TTL: i64 = 600;

/// A key that gets a value, or loses it.
#[derive(Debug)]
pub(crate) struct Write {
    pub(crate) key: String,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) ticket: u64,
}

impl Write {
    fn operation(&self) -> TxnOp {
        match &self.value {
            Some(value) => TxnOp::put(self.key.clone(), value.clone(), None),
            None => TxnOp::delete(self.key.clone(), None),
        }
    }

    fn bytes(&self) -> usize {
        self.key.len() + self.value.as_ref().map_or(0, Vec::len)
    }
}

/// Writes what is queued until nobody can queue any more.
pub(crate) async fn run(client: Client, shared: Arc<Shared>, mut queued: UnboundedReceiver<Write>) {
    let mut writer = Writer { client, shared, count: 0, place: None };
    let mut held = None;
    loop {
        let Some(first) = (match held.take() {
            Some(write) => Some(write),
            None => queued.recv().await,
        }) else {
            return;
        };
        let mut bytes = first.bytes();
        let mut keys = HashSet::from([first.key.clone()]);
        let mut batch = vec![first];
        while batch.len() < MAX_WRITES
            && let Ok(write) = queued.try_recv()
        {
            bytes += write.bytes();
            // A transaction may not write a key twice.
            if bytes > LONGEST_VALUE || !keys.insert(write.key.clone()) {
                held = Some(write);
                break;
            }
            batch.push(write);
        }
        writer.write(&batch).await;
    }
}

/// Where a writer counts.
struct Place {
    key: String,
    renewal: AbortHandle,
}

struct Writer {
    client: Client,
    shared: Arc<Shared>,
    /// Transactions that have taken effect.
    count: u64,
    place: Option<Place>,
}

impl Writer {
    async fn write(&mut self, batch: &[Write]) {
        let mut pause = PAUSES.0;
        loop {
            let outcome = self.attempt(batch).await;
            self.shared.watch.note(Part::Writes, &outcome);
            match outcome {
                Ok(true) => break,
                Ok(false) => {}
                Err(_) => {
                    tokio::time::sleep(pause).await;
                    pause = PAUSES.1.min(pause * 2);
                }
            }
        }
        self.count += 1;
        locked(&self.shared.completed).extend(batch.iter().map(|write| write.ticket));
        self.shared.in_flight.fetch_sub(batch.len(), Ordering::Relaxed);
    }

    /// Whether the batch has taken effect; if not, it should be tried again at once.
    async fn attempt(&mut self, batch: &[Write]) -> Result<bool, Failed> {
        let key = match &self.place {
            Some(place) => place.key.clone(),
            None => self.settle().await?,
        };
        let (now, next) = (self.count.to_string(), (self.count + 1).to_string());
        let mut operations: Vec<TxnOp> = batch.iter().map(Write::operation).collect();
        let keep_lease = PutOptions::new().with_ignore_lease();
        operations.push(TxnOp::put(key.clone(), next.clone(), Some(keep_lease)));
        let transaction = Txn::new()
            .when([Compare::value(key.clone(), CompareOp::Equal, now)])
            .and_then(operations)
            .or_else([TxnOp::get(key, None)]);
        let answer = attempt(self.client.txn(transaction)).await?;
        if answer.succeeded() {
            return Ok(true);
        }
        let found = answer.op_responses().into_iter().find_map(|response| match response {
            TxnOpResponse::Get(get) => get.kvs().first().map(|entry| entry.value().to_vec()),
            _ => None,
        });
        if found.is_some_and(|found| found == next.as_bytes()) {
            // An attempt before has succeeded, and its answer was lost.
            return Ok(true);
        }
        // The lease has ended meanwhile.
        if let Some(place) = self.place.take() {
            place.renewal.abort();
        }
        Ok(false)
    }

    /// Makes a key to count at, under a lease of its own.
    async fn settle(&mut self) -> Result<String, Failed> {
        let lease = attempt(self.client.lease_grant(TTL, None)).await?.id();
        let key = format!("{}{PLACES}{:016x}", self.shared.prefix, random());
        let put = TxnOp::put(key.clone(), self.count.to_string(), Some(PutOptions::new().with_lease(lease)));
        let absent = Compare::create_revision(key.clone(), CompareOp::Equal, 0);
        attempt(self.client.txn(Txn::new().when([absent]).and_then([put]))).await?;
        locked(&self.shared.leases).insert(key.clone(), lease);
        let (client, shared, name) = (self.client.clone(), Arc::clone(&self.shared), key.clone());
        let renewal = tokio::spawn(async move {
            lease::renew(&client, &shared, lease, TTL).await;
            locked(&shared.leases).remove(&name);
        });
        self.place = Some(Place { key: key.clone(), renewal: renewal.abort_handle() });
        Ok(key)
    }
}
