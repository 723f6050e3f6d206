//! etcd for daemons whose main thread must never block.
//!
//! One thread of its own speaks to etcd; who has the handle leaves writes with it and later asks which of them are
//! durable. Nothing that is called while packets are served waits: only [`Etcd::load`] and [`Etcd::increment`], which
//! a daemon needs before it serves, take a time limit.
//!
//! *Invariant*: writes take effect in the order in which they were queued, each of them, and none again after a later
//! one: see `writer.rs`.
//!
//! *Trade-off*: what is queued is kept in memory until etcd has it. The caller bounds that by what it leaves in flight
//! ([`Etcd::in_flight`]), because only it knows which of its own callers to refuse.

mod ask;
mod health;
mod lease;
mod writer;

pub use health::Health;

use etcd_client::{Client, ConnectOptions};
use health::{Part, Watch};
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc as queue, oneshot};
use tokio::task::AbortHandle;
use writer::Write;

/// For how long one attempt waits for an answer.
const ATTEMPT: Duration = Duration::from_secs(2);
/// What lies between two attempts: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// How often etcd is asked whether it is there.
const PING: Duration = Duration::from_secs(1);
/// For how long a handle that is dropped waits until its leases are given back.
const FAREWELL: Duration = Duration::from_millis(500);
/// The longest value of one write, in bytes: etcd refuses requests of 1.5 MiB.
pub const LONGEST_VALUE: usize = 1 << 20;

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key, without prefix and folder.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// etcd's revision that made the key. Of two keys the one that was made earlier has the smaller one.
    pub created: i64,
}

/// A question that was not answered in time.
#[derive(Clone, Debug, thiserror::Error)]
#[error("etcd at {endpoints} has not answered within {timeout_ms} ms: {why}; is it running, and is the address right?")]
pub struct Error {
    endpoints: String,
    timeout_ms: u128,
    why: String,
}

/// What went wrong in one attempt.
type Failed = String;

/// What the thread and the handle share.
#[derive(Debug)]
struct Shared {
    prefix: String,
    watch: Watch,
    completed: Mutex<Vec<u64>>,
    in_flight: AtomicUsize,
    /// Leases that are given back at the end.
    leases: Mutex<HashMap<String, i64>>,
}

/// A connection to etcd. Ended on drop: what is kept is taken away, and what was not durable yet may be lost.
#[derive(Debug)]
pub struct Etcd {
    shared: Arc<Shared>,
    client: Result<Arc<Connection>, Failed>,
    endpoints: String,
    writes: queue::UnboundedSender<Write>,
    keeps: Mutex<HashMap<String, AbortHandle>>,
    runtime: tokio::runtime::Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The client, which tells nothing about itself.
struct Connection(Client);

impl std::fmt::Debug for Connection {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Connection")
    }
}

impl Etcd {
    /// Begins to connect to any of `endpoints`, each `HOST:PORT`. All keys begin with `prefix`. Never fails for want of
    /// etcd, and does not wait for it: it keeps trying, and [`Etcd::health`] tells.
    ///
    /// # Panics
    /// If the system has no thread left.
    #[must_use]
    pub fn connect(endpoints: &[String], prefix: &str) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime for etcd");
        let client = runtime.block_on(connect(endpoints)).map(|client| Arc::new(Connection(client)));
        let shared = Arc::new(Shared {
            prefix: prefix.to_string(),
            watch: Watch::new(endpoints.join(",")),
            completed: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            leases: Mutex::default(),
        });
        let (writes, queued) = queue::unbounded_channel();
        let (stop, stopped) = oneshot::channel();
        let handle = runtime.handle().clone();
        match &client {
            Ok(connection) => {
                handle.spawn(writer::run(connection.0.clone(), Arc::clone(&shared), queued));
                handle.spawn(ping(connection.0.clone(), Arc::clone(&shared)));
            }
            Err(why) => shared.watch.failed(Part::Ping, why),
        }
        let ending = client.as_ref().ok().map(|connection| connection.0.clone());
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("etcd".to_string())
            .spawn(move || serve(&runtime, stopped, ending, &of_thread))
            .expect("a thread for etcd");
        let (keeps, endpoints) = (Mutex::default(), endpoints.join(","));
        Self { shared, client, endpoints, writes, keeps, runtime: handle, stop: Some(stop), thread: Some(thread) }
    }

    /// All keys below `prefix` and `folder`, in order, as of one moment. Waits up to `timeout`.
    ///
    /// # Errors
    /// If etcd has not given all of them in time.
    pub fn load(&self, folder: &str, timeout: Duration) -> Result<Vec<Entry>, Error> {
        let folder = format!("{}{folder}", self.shared.prefix);
        self.ask(timeout, move |client| ask::load(client, folder.clone()))
    }

    /// Adds one to the counter at `key`, which counts from 0, and gives the new value: nobody else gets the same one. A
    /// value may be left out when an answer is lost. Waits up to `timeout`.
    ///
    /// # Errors
    /// If etcd has not answered in time, or the value of `key` is no number.
    pub fn increment(&self, key: &str, timeout: Duration) -> Result<u64, Error> {
        let key = format!("{}{key}", self.shared.prefix);
        self.ask(timeout, move |client| ask::increment(client, key.clone()))
    }

    /// What writers below `prefix` have sent, and has not arrived, arrives no more; those that are there send it again.
    /// Waits up to `timeout`.
    ///
    /// # Errors
    /// If etcd has not answered in time.
    pub fn forget_writers(&self, timeout: Duration) -> Result<(), Error> {
        let folder = format!("{}{}", self.shared.prefix, writer::PLACES);
        self.ask(timeout, move |client| ask::remove(client, folder.clone()))
    }

    /// Makes the value of `key` `new`, if it is `old` (nothing: if there is no such key). Whether it is `new` now; also
    /// if it was before. Waits up to `timeout`.
    ///
    /// # Errors
    /// If etcd has not answered in time.
    pub fn replace(&self, key: &str, old: Option<&str>, new: &str, timeout: Duration) -> Result<bool, Error> {
        let key = format!("{}{key}", self.shared.prefix);
        let (old, new) = (old.map(str::to_string), new.to_string());
        self.ask(timeout, move |client| ask::replace(client, key.clone(), old.clone(), new.clone()))
    }

    /// Queues a write of at most [`LONGEST_VALUE`] bytes. It is tried until it succeeds; [`Etcd::completed`] gives
    /// `ticket` back once it is durable.
    pub fn put(&self, key: String, value: Vec<u8>, ticket: u64) {
        self.write(Write { key: self.shared.prefix.clone() + &key, value: Some(value), ticket });
    }

    /// Queues the removal of `key`, likewise.
    pub fn delete(&self, key: String, ticket: u64) {
        self.write(Write { key: self.shared.prefix.clone() + &key, value: None, ticket });
    }

    /// Appends the tickets of writes that have become durable since the last call, in order.
    pub fn completed(&self, out: &mut Vec<u64>) {
        out.append(&mut locked(&self.shared.completed));
    }

    /// Writes that are queued and not yet durable. They are kept in memory, so leave no more than is right.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.in_flight.load(Ordering::Relaxed)
    }

    /// Keeps `key` = `value` under a lease of `ttl` seconds, that is renewed until the handle is dropped. When etcd has
    /// lost the lease, key and lease are made anew. Instead of what was kept at `key` before.
    pub fn keep(&self, key: String, value: Vec<u8>, ttl: i64) {
        let Ok(connection) = &self.client else { return };
        let key = self.shared.prefix.clone() + &key;
        let keeping = lease::keep(connection.0.clone(), Arc::clone(&self.shared), key.clone(), value, ttl);
        let mut keeps = locked(&self.keeps);
        if let Some(before) = keeps.remove(&key) {
            before.abort();
        }
        keeps.insert(key, self.runtime.spawn(keeping).abort_handle());
    }

    /// Whether etcd answers.
    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.watch.health()
    }

    fn write(&self, write: Write) {
        self.shared.in_flight.fetch_add(1, Ordering::Relaxed);
        // Without a client nobody takes it: it stays in flight, as with an etcd that never answers.
        _ = self.writes.send(write);
    }

    /// Repeats a question until it is answered or its time is over.
    fn ask<T, F>(&self, timeout: Duration, question: impl Fn(Client) -> F + Send + 'static) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failed>> + Send,
    {
        let failed = |why| Error { endpoints: self.endpoints.clone(), timeout_ms: timeout.as_millis(), why };
        let client = self.client.as_ref().map_err(|why| failed(why.clone()))?.0.clone();
        let (answer, answered) = mpsc::channel();
        let deadline = Instant::now() + timeout;
        let asking = self.runtime.spawn(async move {
            let mut pause = PAUSES.0;
            loop {
                let attempt = question(client.clone()).await;
                let late = Instant::now() + pause >= deadline;
                if attempt.is_ok() || late {
                    _ = answer.send(attempt);
                    return;
                }
                tokio::time::sleep(pause).await;
                pause = PAUSES.1.min(pause * 2);
            }
        });
        let result = answered.recv_timeout(timeout);
        asking.abort();
        let silence = || self.health().why.unwrap_or_else(|| "no answer".to_string());
        result.unwrap_or_else(|_| Err(silence())).map_err(failed)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for keep in locked(&self.keeps).values() {
            keep.abort();
        }
        if let Some(stop) = self.stop.take() {
            _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

/// Nobody panics with such a lock, and what it guards is whole at any time.
fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number that nobody else has.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

async fn connect(endpoints: &[String]) -> Result<Client, Failed> {
    let options = ConnectOptions::new()
        .with_connect_timeout(Duration::from_secs(1))
        .with_keep_alive(Duration::from_secs(5), Duration::from_secs(2))
        .with_tcp_keepalive(Duration::from_secs(5));
    Client::connect(endpoints, Some(options)).await.map_err(|error| error.to_string())
}

/// One attempt, within its time.
async fn attempt<T>(asked: impl Future<Output = Result<T, etcd_client::Error>>) -> Result<T, Failed> {
    match tokio::time::timeout(ATTEMPT, asked).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {} s", ATTEMPT.as_secs())),
    }
}

/// Asks again and again whether etcd is there, so that its absence is known before it is needed.
async fn ping(client: Client, shared: Arc<Shared>) {
    loop {
        let key = format!("{}ping", shared.prefix);
        // Not serializable: the answer needs a leader and a majority, as a write does.
        let answer = attempt(client.clone().get(key, None)).await;
        shared.watch.note(Part::Ping, &answer);
        tokio::time::sleep(PING).await;
    }
}

fn serve(runtime: &Runtime, stopped: oneshot::Receiver<()>, client: Option<Client>, shared: &Shared) {
    runtime.block_on(async {
        _ = stopped.await;
        let leases: Vec<i64> = locked(&shared.leases).values().copied().collect();
        let Some(mut client) = client else { return };
        let farewell = async {
            for lease in leases {
                if client.lease_revoke(lease).await.is_err() {
                    break;
                }
            }
        };
        // Else they end by themselves.
        _ = tokio::time::timeout(FAREWELL, farewell).await;
    });
}
