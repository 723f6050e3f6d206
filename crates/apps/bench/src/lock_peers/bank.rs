//! A bank with its accounts in Redis, and locks of somebody else: FissLock's figure 17, right.
//!
//! Application servers, each a thread with one asynchronous connection to the store, serve many clients as coroutines:
//! commands of all clients of a server share its connection and go out together. Nine of ten operations look at a
//! balance, the others move money between two accounts: two-phase locking, accounts in the order of their numbers,
//! then the balances are read, written, and the locks given back. A balance is read under a shared lock where there
//! are such; Redis has none.
//!
//! *Invariant checked*: nobody is in an account's critical section with a writer, and after every measurement all
//! money is still there. [`Locking::None`] keeps neither: it is there to show what the store alone would allow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockwork_lock_bench::checker::Checker;
use lockwork_lock_bench::histogram::Histogram;
use lockwork_lock_bench::interrupted;
use lockwork_locking::LockMode;
use lockwork_locks::client::{Guard, Locks};
use lockwork_workload::random::Random;
use lockwork_workload::zipf::Chooser;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisResult, Value};
use tokio::task::JoinSet;

use super::redis::{RELEASE, delay, delete, set, validity, value};
use super::server::Server;
use super::{Failure, load, lockwork, outside};

/// What every account has in the beginning.
const BALANCE: u64 = 1000;
/// One of so many operations moves money.
const TRANSFERS: u64 = 10;
/// Accounts of one command when all are written or read.
const CHUNK: u64 = 10_000;

/// Who keeps operations apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Locking {
    /// The lock service.
    Lockwork,
    /// One instance of Redis.
    Redis,
    /// The majority of three, asked at the same time.
    RedLock,
    /// Nobody.
    None,
}

impl Locking {
    pub(super) const ALL: [Self; 4] = [Self::Lockwork, Self::Redis, Self::RedLock, Self::None];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Lockwork => "lockwork",
            Self::Redis => "redis",
            Self::RedLock => "redlock",
            Self::None => "store-alone",
        }
    }
}

/// Everything that runs.
pub(super) struct Bank {
    pub(super) store: Server,
    /// One or three instances for locks.
    pub(super) instances: Vec<Server>,
    pub(super) lockd: Option<Server>,
    pub(super) accounts: u64,
    /// Application servers.
    pub(super) servers: u32,
    pub(super) chooser: Chooser,
    pub(super) seed: u64,
    pub(super) retry: Duration,
    pub(super) measured: Duration,
}

/// What clients did.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    pub(super) operations: u64,
    pub(super) seconds: f64,
    /// Of operations, whole.
    pub(super) latency: Histogram,
    /// Share of the time in which the store's process had a core.
    pub(super) store_busy: f64,
    /// Whether exclusion was checked and all money counted, and right.
    pub(super) verified: bool,
}

/// A connection that many share.
async fn connect(server: &Server) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let client = redis::Client::open(format!("redis://{}/", server.address))?;
    client.get_multiplexed_async_connection_with_config(&config).await
}

/// What a server's clients take locks from.
#[derive(Clone)]
enum Locker {
    Lockwork(Locks),
    Redis { instances: Vec<MultiplexedConnection>, script: Arc<str>, retry: Duration },
    None,
}

/// A lock that is held.
enum Held {
    Lockwork(Guard),
    Redis { lock: u64, value: [u8; 16] },
    None,
}

/// Asks all instances at the same time; how many have said `wanted`.
async fn ask(instances: &mut [MultiplexedConnection], command: &Cmd, wanted: &Value) -> RedisResult<usize> {
    let answers = match instances {
        [one] => [one.send_packed_command(command).await?, Value::Nil, Value::Nil],
        [one, two, three] => {
            let answers = tokio::try_join!(
                one.send_packed_command(command),
                two.send_packed_command(command),
                three.send_packed_command(command)
            );
            answers?.into()
        }
        _ => unreachable!("one instance, or three"),
    };
    Ok(answers.iter().filter(|answer| *answer == wanted).count())
}

impl Locker {
    /// The lock, and its token if it has one.
    async fn acquire(&mut self, lock: u64, mode: LockMode, random: &mut Random) -> Result<(Held, Option<u64>), String> {
        match self {
            Self::Lockwork(locks) => {
                let request = if mode == LockMode::Shared { locks.shared(lock) } else { locks.exclusive(lock) };
                let guard = request.acquire_async().await.map_err(|error| error.to_string())?;
                let token = guard.token();
                Ok((Held::Lockwork(guard), Some(token)))
            }
            Self::Redis { instances, script, retry } => loop {
                let value = value(random);
                let began = Instant::now();
                let granted = ask(instances, &set(lock, &value), &Value::Okay).await.map_err(|e| e.to_string())?;
                if granted > instances.len() / 2 && validity(began.elapsed()).is_some() {
                    return Ok((Held::Redis { lock, value }, None));
                }
                if instances.len() > 1 {
                    let back = ask(instances, &delete(script, lock, &value), &Value::Int(1)).await;
                    back.map_err(|error| error.to_string())?;
                }
                tokio::time::sleep(delay(random, *retry)).await;
            },
            Self::None => Ok((Held::None, None)),
        }
    }

    async fn release(&mut self, held: Held) -> Result<(), String> {
        match (self, held) {
            (Self::Redis { instances, script, .. }, Held::Redis { lock, value }) => {
                let deleted = ask(instances, &delete(script, lock, &value), &Value::Int(1)).await;
                match deleted.map_err(|error| error.to_string())? {
                    deleted if deleted > instances.len() / 2 => Ok(()),
                    _ => Err(format!("lock {lock} was not its holder's any more when it ended")),
                }
            }
            (_, Held::Lockwork(guard)) if guard.is_lost() => {
                Err(format!("lock {} was lost while it was held", guard.lock()))
            }
            _ => Ok(()),
        }
    }
}

/// Shared by all clients.
struct Shared {
    /// `None` where nobody keeps them apart.
    checker: Option<Checker>,
    /// Tokens of those who have none.
    token: AtomicU64,
    chooser: Chooser,
    measuring: AtomicBool,
    stop: AtomicBool,
}

impl Shared {
    fn enter(&self, account: u64, mode: LockMode, token: Option<u64>) -> Result<(), String> {
        let token = token.unwrap_or_else(|| self.token.fetch_add(1, Ordering::SeqCst) + 1);
        self.checker.as_ref().map_or(Ok(()), |checker| checker.enter(account, mode, token))
    }

    fn leave(&self, account: u64, mode: LockMode) {
        self.checker.iter().for_each(|checker| checker.leave(account, mode));
    }
}

/// A client of the bank.
struct Client {
    shared: Arc<Shared>,
    store: MultiplexedConnection,
    locker: Locker,
    random: Random,
}

impl Client {
    async fn work(mut self) -> Result<Histogram, String> {
        let mut latency = Histogram::default();
        while !self.shared.stop.load(Ordering::Relaxed) {
            let account = self.shared.chooser.next(&mut self.random);
            let began = Instant::now();
            if self.random.below(TRANSFERS) == 0 {
                let other = self.shared.chooser.next_other(&mut self.random, |other| other == account);
                self.transfer(account, other).await?;
            } else {
                self.balance(account).await?;
            }
            if self.shared.measuring.load(Ordering::Relaxed) {
                latency.record(began.elapsed().as_nanos() as u64);
            }
        }
        Ok(latency)
    }

    async fn balance(&mut self, account: u64) -> Result<(), String> {
        // Where there are no shared locks, nobody else may be in.
        let mode = if matches!(self.locker, Locker::Redis { .. }) { LockMode::Exclusive } else { LockMode::Shared };
        let (held, token) = self.locker.acquire(account, mode, &mut self.random).await?;
        self.shared.enter(account, mode, token)?;
        let balance: RedisResult<u64> = redis::cmd("GET").arg(account).query_async(&mut self.store).await;
        balance.map_err(|error| format!("account {account}: {error}"))?;
        self.shared.leave(account, mode);
        self.locker.release(held).await
    }

    async fn transfer(&mut self, from: u64, to: u64) -> Result<(), String> {
        let mode = LockMode::Exclusive;
        let (first, token) = self.locker.acquire(from.min(to), mode, &mut self.random).await?;
        self.shared.enter(from.min(to), mode, token)?;
        let (second, token) = self.locker.acquire(from.max(to), mode, &mut self.random).await?;
        self.shared.enter(from.max(to), mode, token)?;
        let failed = |error| format!("accounts {from} and {to}: {error}");
        let balances: RedisResult<(u64, u64)> = redis::cmd("MGET").arg(from).arg(to).query_async(&mut self.store).await;
        let (source, target) = balances.map_err(failed)?;
        if source > 0 {
            let mut write = redis::cmd("MSET");
            write.arg(from).arg(source - 1).arg(to).arg(target + 1);
            write.query_async::<()>(&mut self.store).await.map_err(failed)?;
        }
        self.shared.leave(from, mode);
        self.shared.leave(to, mode);
        self.locker.release(first).await?;
        self.locker.release(second).await
    }
}

impl Bank {
    /// Gives every account its money.
    pub(super) fn open(&self) -> Result<(), Failure> {
        self.chunks(|accounts, connection| {
            let mut write = redis::cmd("MSET");
            accounts.for_each(|account| _ = write.arg(account).arg(BALANCE));
            write.query::<()>(connection)
        })
    }

    /// Whether all money is there.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let mut total = 0;
        self.chunks(|accounts, connection| {
            let mut read = redis::cmd("MGET");
            accounts.for_each(|account| _ = read.arg(account));
            total += read.query::<Vec<u64>>(connection)?.into_iter().sum::<u64>();
            Ok(())
        })?;
        match self.accounts * BALANCE {
            all if all == total => Ok(()),
            all => Err(Failure::Check(format!("the bank has {total} instead of {all}"))),
        }
    }

    fn chunks(
        &self,
        mut each: impl FnMut(std::ops::Range<u64>, &mut redis::Connection) -> RedisResult<()>,
    ) -> Result<(), Failure> {
        let failed = |error| outside("the store", error);
        let client = redis::Client::open(format!("redis://{}/", self.store.address)).map_err(failed)?;
        let mut connection = client.get_connection().map_err(failed)?;
        for first in (0..self.accounts).step_by(CHUNK as usize) {
            each(first..(first + CHUNK).min(self.accounts), &mut connection).map_err(failed)?;
        }
        Ok(())
    }

    /// Lets `clients` work.
    ///
    /// # Errors
    /// One fails, two are where only one may be, or money was lost; somebody wants it to end.
    pub(super) fn round(&self, locking: Locking, clients: u32) -> Result<Measured, Failure> {
        let shared = Arc::new(Shared {
            checker: (locking != Locking::None).then(|| Checker::new(self.accounts)),
            token: AtomicU64::new(0),
            chooser: self.chooser.clone(),
            measuring: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let mut all = Measured::default();
        std::thread::scope(|scope| {
            let serve = |server: u32| {
                let shared = &shared;
                move || {
                    let done = self.serve(shared, locking, clients, server);
                    if done.is_err() {
                        shared.stop.store(true, Ordering::Relaxed);
                    }
                    done
                }
            };
            let threads: Vec<_> = (0..self.servers.min(clients)).map(|server| scope.spawn(serve(server))).collect();
            load::wait(self.measured / 5, &shared.stop);
            shared.measuring.store(true, Ordering::Relaxed);
            let (began, busy) = (Instant::now(), self.store.processor_s());
            load::wait(self.measured, &shared.stop);
            shared.measuring.store(false, Ordering::Relaxed);
            all.seconds = began.elapsed().as_secs_f64();
            all.store_busy = (self.store.processor_s() - busy) / all.seconds;
            shared.stop.store(true, Ordering::Relaxed);
            for thread in threads {
                let latency = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                all.latency.add(&latency.map_err(Failure::Check)?);
            }
            Ok::<(), Failure>(())
        })?;
        all.operations = all.latency.count();
        match shared.checker.as_ref().map_or(0, Checker::occupied) {
            _ if interrupted() => Err(Failure::Interrupted),
            0 if all.operations == 0 => Err(Failure::Check(format!("nothing was done in {:?}", self.measured))),
            0 if locking == Locking::None => self.open().map(|()| all),
            0 => self.check().map(|()| Measured { verified: true, ..all }),
            count => Err(Failure::Check(format!("somebody is still in {count} critical sections"))),
        }
    }

    /// One application server, with its share of the clients, until they are to stop.
    fn serve(&self, shared: &Arc<Shared>, locking: Locking, clients: u32, server: u32) -> Result<Histogram, String> {
        // A runtime without workers: with one, the store alone would serve half as many operations.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| error.to_string())?.block_on(async {
            let failed = |error: redis::RedisError| error.to_string();
            let store = connect(&self.store).await.map_err(failed)?;
            let locker = self.locker(locking).await?;
            let mut tasks = JoinSet::new();
            for client in (server..clients).step_by(self.servers as usize) {
                let random = Random::stream(self.seed, u64::from(client));
                let (shared, store, locker) = (Arc::clone(shared), store.clone(), locker.clone());
                tasks.spawn(Client { shared, store, locker, random }.work());
            }
            let mut all = Histogram::default();
            while let Some(done) = tasks.join_next().await {
                all.add(&done.map_err(|error| error.to_string())??);
            }
            Ok(all)
        })
    }

    async fn locker(&self, locking: Locking) -> Result<Locker, String> {
        let instances = match locking {
            Locking::Lockwork => {
                let lockd = self.lockd.as_ref().ok_or("no lock service runs")?;
                return Ok(Locker::Lockwork(lockwork::session(lockd, false, false)?));
            }
            Locking::None => return Ok(Locker::None),
            Locking::Redis => &self.instances[..1],
            Locking::RedLock => &self.instances[..],
        };
        let failed = |error: redis::RedisError| error.to_string();
        let (mut connections, mut script) = (Vec::new(), String::new());
        for instance in instances {
            let mut connection = connect(instance).await.map_err(failed)?;
            let load = redis::cmd("SCRIPT").arg("LOAD").arg(RELEASE).query_async(&mut connection).await;
            script = load.map_err(failed)?;
            connections.push(connection);
        }
        Ok(Locker::Redis { instances: connections, script: script.into(), retry: self.retry })
    }
}
