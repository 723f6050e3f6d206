//! Locks of Redis, as its documentation says ("Distributed Locks with Redis"): one instance, or the majority of three
//! (RedLock).
//!
//! A lock is a key: `SET key VALUE NX PX milliseconds` takes it, where VALUE is 16 random bytes, and a script that
//! compares and deletes gives it back. Who is refused tries again after a random time. RedLock does so on three
//! instances, holds the lock if two have granted it within its validity, and else gives back what it got before it
//! tries again. The instances are asked one after the other, as the algorithm's description and most of its
//! libraries do, or at the same time, as the description recommends for speed.
//!
//! *Trade-off*: connections are blocking, one a client, which is what takes least of the processor for one lock; the
//! bank ([`super::bank`]) has asynchronous ones.

use std::time::{Duration, Instant};

use lockwork_workload::random::Random;
use redis::{Cmd, Connection, ConnectionLike, RedisResult, Value};

use super::server::{Server, find, free_port};
use super::{Failure, Peer};

/// How long a lock lives if nobody gives it back. Longer than anybody has to wait for one here.
pub(super) const LIFE: Duration = Duration::from_secs(30);
/// Deletes a lock that is still its holder's.
pub(super) const RELEASE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
/// Of the clocks of RedLock's instances, in parts of the life of a lock, beside 2 ms.
const DRIFT: f64 = 0.01;

/// Starts an instance that keeps nothing on a disk.
pub(super) fn start() -> Result<Server, Failure> {
    let (program, _) = find("redis-server", "redis-server")?;
    let port = free_port()?;
    let mut command = vec![program.display().to_string(), "--port".into(), port.to_string()];
    command.extend("--bind 127.0.0.1 --appendonly no --daemonize no --save".split(' ').map(String::from));
    command.push(String::new());
    Server::start(&command, port, |at, _| {
        let answer = connect(at).and_then(|mut to| redis::cmd("PING").query::<String>(&mut to));
        answer.is_ok_and(|answer| answer == "PONG").then_some(at)
    })
}

fn connect(at: std::net::SocketAddr) -> RedisResult<Connection> {
    redis::Client::open(format!("redis://{at}/"))?.get_connection_with_timeout(Duration::from_secs(5))
}

/// How long a client waits before it tries again: anything up to `most`.
pub(super) fn delay(random: &mut Random, most: Duration) -> Duration {
    Duration::from_nanos(random.below(most.as_nanos() as u64 + 1))
}

/// The random value of one holding.
pub(super) fn value(random: &mut Random) -> [u8; 16] {
    (u128::from(random.next_u64()) << 64 | u128::from(random.next_u64())).to_le_bytes()
}

/// How much of a lock's life is left after it took `took` to get it, less what clocks may differ by.
pub(super) fn validity(took: Duration) -> Option<Duration> {
    let drift = LIFE.mul_f64(DRIFT) + Duration::from_millis(2);
    LIFE.checked_sub(took + drift).filter(|left| !left.is_zero())
}

pub(super) fn set(lock: u64, value: &[u8; 16]) -> Cmd {
    let mut set = redis::cmd("SET");
    set.arg(lock).arg(&value[..]).arg("NX").arg("PX").arg(LIFE.as_millis() as u64);
    set
}

pub(super) fn delete(script: &str, lock: u64, value: &[u8; 16]) -> Cmd {
    let mut delete = redis::cmd("EVALSHA");
    delete.arg(script).arg(1).arg(lock).arg(&value[..]);
    delete
}

/// A client of one instance, or of several by majority.
pub(super) struct Redis {
    instances: Vec<Connection>,
    /// The script's name.
    script: String,
    /// Whether instances are asked at the same time.
    at_once: bool,
    retry: Duration,
    random: Random,
    value: [u8; 16],
}

impl Redis {
    pub(super) fn new(servers: &[Server], at_once: bool, retry: Duration, random: Random) -> Result<Self, String> {
        let connections = servers.iter().map(|server| connect(server.address)).collect::<RedisResult<Vec<_>>>();
        let mut instances = connections.map_err(|error| error.to_string())?;
        let mut script = String::new();
        for instance in &mut instances {
            let load = redis::cmd("SCRIPT").arg("LOAD").arg(RELEASE).query(instance);
            script = load.map_err(|error| error.to_string())?;
        }
        Ok(Self { instances, script, at_once, retry, random, value: [0; 16] })
    }

    /// Asks every instance; how many have said `wanted`.
    fn ask(&mut self, command: &Cmd, wanted: &Value) -> RedisResult<usize> {
        let command = command.get_packed_command();
        let mut answers = 0;
        if self.at_once {
            for instance in &mut self.instances {
                instance.send_packed_command(&command)?;
            }
            for instance in &mut self.instances {
                answers += usize::from(instance.recv_response()? == *wanted);
            }
        } else {
            for instance in &mut self.instances {
                answers += usize::from(instance.req_packed_command(&command)? == *wanted);
            }
        }
        Ok(answers)
    }
}

impl Peer for Redis {
    fn acquire(&mut self, lock: u64) -> Result<Option<u64>, String> {
        loop {
            self.value = value(&mut self.random);
            let began = Instant::now();
            let granted = self.ask(&set(lock, &self.value), &Value::Okay).map_err(|error| error.to_string())?;
            if granted > self.instances.len() / 2 && validity(began.elapsed()).is_some() {
                return Ok(None);
            }
            if self.instances.len() > 1 {
                self.ask(&delete(&self.script, lock, &self.value), &Value::Int(1))
                    .map_err(|error| error.to_string())?;
            }
            std::thread::sleep(delay(&mut self.random, self.retry));
        }
    }

    fn release(&mut self, lock: u64) -> Result<(), String> {
        let deleted = self.ask(&delete(&self.script, lock, &self.value), &Value::Int(1));
        let deleted = deleted.map_err(|error| error.to_string())?;
        if deleted > self.instances.len() / 2 {
            return Ok(());
        }
        Err(format!("lock {lock} was its holder's on {deleted} of {} instances when it ended", self.instances.len()))
    }
}
