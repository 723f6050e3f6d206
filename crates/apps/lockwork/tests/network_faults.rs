//! Processes that are killed, and services that are not there: errors that say so, nobody who waits for ever, and locks
//! that others get.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lockwork_conformance::engines::{Random, accounts, fill, prepared};
use lockwork_engine::{Engine, EngineError, Options, Settings};
use lockwork_locks::client::{LockError, Locks};
use lockwork_locks::lockd::{self, Lockd};
use lockwork_locks::plane::InProcess;
use lockwork_partitions::NetworkEngine;
use lockwork_procedure::assembly::assemble;
use lockwork_procedure::block::{Status, abort};

/// What workers run.
const WORKER: &str = env!("CARGO_BIN_EXE_lockwork");

/// A lock service that outlives engines.
struct Service {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    fn new(locks: usize, lease_ms: u32) -> Self {
        let loopback = "127.0.0.1:0".parse().unwrap();
        let options = lockd::Options { fresh: true, lease_ms, ..lockd::Options::new(loopback) };
        let mut daemon = Lockd::bind(&options, InProcess::new(locks).unwrap()).unwrap();
        let (address, stop) = (daemon.address().unwrap(), Arc::new(AtomicBool::new(false)));
        let seen = stop.clone();
        let thread = Some(std::thread::spawn(move || daemon.run(&seen).unwrap()));
        Self { address, stop, thread }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// An engine with accounts and deposits.
fn with_lockd(threads: usize, address: SocketAddr) -> Options {
    let mut settings = Settings::default();
    settings.set("lockd", address.to_string());
    Options { threads, settings, ..Options::default() }
}

fn bank(options: Options) -> NetworkEngine {
    bank_on(NetworkEngine::two_phase::<Locks>(options, WORKER.into()).unwrap())
}

fn bank_on(mut engine: NetworkEngine) -> NetworkEngine {
    engine.create_table(accounts(false), 4).unwrap();
    let source = lockwork_conformance::engines::PROCEDURES[1];
    engine.register(assemble(source, [accounts(false)].as_slice()).unwrap().procedure).unwrap();
    for id in 0..24_i64 {
        let mut image = id.to_le_bytes().to_vec();
        image.resize(40, 0);
        engine.load("accounts", &image).unwrap();
    }
    engine
}

fn signal(process: u32, number: libc::c_int) {
    // SAFETY: a plain system call; the process is a worker that this test has started and nobody has waited for.
    assert_eq!(unsafe { libc::kill(process as libc::pid_t, number) }, 0);
}

/// Completes what is in flight, in a time in which nobody waits for ever.
fn complete_all(engine: &mut NetworkEngine) -> Vec<lockwork_engine::Completed> {
    let begin = Instant::now();
    let completed = std::iter::from_fn(|| engine.complete().unwrap()).collect();
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    completed
}

#[test]
fn a_worker_that_is_killed_is_named_and_nobody_waits_for_it() {
    for round in 0..6 {
        let (options, worker) = (Options { threads: 3, ..Options::default() }, round % 3);
        let mut engine = match round {
            0..3 => bank(options),
            _ => bank_on(NetworkEngine::deterministic(options, WORKER.into()).unwrap()),
        };
        engine.start().unwrap();
        let killed = engine.processes()[worker as usize];
        let mut random = Random(round);
        let batches = [(); 4].map(|()| fill(&engine, &mut random, &["deposit"], 20_000));
        // However fast the others are, some of it is left.
        signal(killed, libc::SIGSTOP);
        batches.into_iter().for_each(|batch| engine.submit(batch).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        signal(killed, libc::SIGKILL);
        let last = complete_all(&mut engine).pop().unwrap();
        assert!(
            last.batch.blocks().all(|b| (b.status(), b.abort_code()) == (Some(Status::Failed), abort::DEVICE_LOST))
        );
        let batch = fill(&engine, &mut random, &["deposit"], 1);
        let refused = engine.submit(batch).unwrap_err().error.to_string();
        let wanted = format!("worker {} of 3 (process {killed}) has ended: signal: 9", worker + 1);
        assert!(refused.contains(&wanted), "{refused}");
        assert!(engine.digest().unwrap_err().to_string().contains(&wanted));
    }
}

/// Whether another session holds a lock.
fn is_held(locks: &Locks, lock: u64) -> bool {
    match locks.exclusive(lock).try_acquire() {
        Ok(_) => false,
        Err(LockError::Busy(_)) => true,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn locks_of_a_worker_that_was_killed_are_free_when_its_lease_is_over() {
    const LOCKS: u64 = 32;
    // Longer than it takes to end the engine on a busy machine.
    let service = Service::new(LOCKS as usize, 5000);
    let mut engine = bank(with_lockd(1, service.address));
    engine.start().unwrap();
    let worker = engine.processes()[0];
    let batch = fill(&engine, &mut Random(1), &["deposit"], 200_000);
    engine.submit(batch).unwrap();
    let locks = Locks::connect(&service.address.to_string()).unwrap();
    // Stopped in the midst of its transactions, then killed: it can release nothing.
    let held: Vec<u64> = loop {
        std::thread::sleep(Duration::from_millis(20));
        signal(worker, libc::SIGSTOP);
        let held: Vec<u64> = (0..LOCKS).filter(|lock| is_held(&locks, *lock)).collect();
        if !held.is_empty() {
            break held;
        }
        signal(worker, libc::SIGCONT);
    };
    signal(worker, libc::SIGKILL);
    complete_all(&mut engine);
    drop(engine);
    for lock in held {
        let granted = locks.exclusive(lock).timeout(Duration::from_secs(20)).acquire();
        assert!(granted.is_ok(), "lock {lock}: {granted:?}");
    }
}

#[test]
fn several_engines_share_a_service() {
    let service = Service::new(16, 2000);
    let mut engines = [1, 2].map(|threads| bank(with_lockd(threads, service.address)));
    for engine in &mut engines {
        let batch = fill(engine, &mut Random(7), &["deposit"], 3_000);
        engine.submit(batch).unwrap();
    }
    for engine in &mut engines {
        let tally = complete_all(engine).pop().unwrap().report.tally;
        assert_eq!((tally.transactions(), tally.failed.len()), (3_000, 0));
    }
    assert_eq!(engines[0].digest().unwrap(), engines[1].digest().unwrap());
}

#[test]
fn a_service_that_is_not_there_is_named() {
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut engine = bank(with_lockd(2, nobody));
    let error = engine.start().unwrap_err().to_string();
    assert!(error.contains(&nobody.to_string()) && error.contains("no answer"), "{error}");
}

#[test]
fn a_program_that_is_no_worker_is_an_error() {
    for (program, wanted) in [("/nowhere/at/all", "cannot be started"), ("/bin/true", "has ended: exit status: 0")] {
        let make = || -> Result<Box<dyn Engine>, EngineError> {
            Ok(Box::new(NetworkEngine::two_phase::<Locks>(
                Options { threads: 2, ..Options::default() },
                program.into(),
            )?))
        };
        let error = prepared(&make, false).start().unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

/// Whether a process runs; one that has ended and that nobody has waited for does not.
fn runs(process: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    state.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

const COORDINATOR: &str = "LOCKWORK_TEST_COORDINATOR";

/// Not a test of its own: what the next one starts as a process and kills.
#[test]
fn coordinator() {
    if std::env::var_os(COORDINATOR).is_none() {
        return;
    }
    let mut engine = bank(Options { threads: 3, ..Options::default() });
    engine.start().unwrap();
    let workers = engine.processes();
    eprintln!("workers {} {} {}", workers[0], workers[1], workers[2]);
    loop {
        let batch = fill(&engine, &mut Random(3), &["deposit"], 1_000);
        engine.submit(batch).unwrap();
        complete_all(&mut engine);
    }
}

#[test]
fn workers_end_with_their_coordinator() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["coordinator", "--exact", "--nocapture"]).env(COORDINATOR, "1").stdout(Stdio::null());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let errors = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut lines = std::io::BufRead::lines(errors).map(Result::unwrap);
    let line = lines.find_map(|line| Some(line.split_once("workers ")?.1.to_string())).unwrap();
    let workers: Vec<u32> = line.split(' ').map(|word| word.parse().unwrap()).collect();
    assert!(workers.len() == 3 && workers.iter().all(|worker| runs(*worker)));
    std::thread::sleep(Duration::from_millis(100));
    child.kill().unwrap();
    child.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while workers.iter().any(|worker| runs(*worker)) {
        assert!(Instant::now() < deadline, "workers of a coordinator that was killed still run");
        std::thread::sleep(Duration::from_millis(10));
    }
}
