//! A lockd that is started anew goes on where another ended, in one process: the records are in memory.

use lockwork_lock_protocol::packet::{Kind, Packet, datagram, parse};
use lockwork_lock_protocol::word::Machine;
use lockwork_locks::client::{Locks, Options as Connecting};
use lockwork_locks::lockd::records::{MACHINES, Records, member};
use lockwork_locks::lockd::{Lockd, Options};
use lockwork_locks::plane::{DataPlane, InProcess};
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

const LOCKS: usize = 2000;
const LONG: Duration = Duration::from_secs(20);

/// What is written down, and the tickets of that.
type Written = (BTreeMap<String, Vec<u8>>, Vec<u64>);

#[derive(Clone, Debug, Default)]
struct Memory(Arc<Mutex<Written>>);

impl Records for Memory {
    fn put(&self, key: String, value: Vec<u8>, ticket: u64) {
        let mut all = self.0.lock().unwrap();
        all.0.insert(key, value);
        all.1.push(ticket);
    }

    fn delete(&self, key: String, ticket: u64) {
        let mut all = self.0.lock().unwrap();
        all.0.remove(&key);
        all.1.push(ticket);
    }

    fn completed(&self, tickets: &mut Vec<u64>) {
        tickets.append(&mut self.0.lock().unwrap().1);
    }

    fn why_not(&self) -> Option<String> {
        None
    }
}

struct Daemon {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

fn start(address: SocketAddr, memory: &Memory, era: u32) -> Daemon {
    let options = Options { lease_ms: 10_000, fresh: true, ..Options::new(address) };
    begin(Lockd::bind(&options, InProcess::new(LOCKS).unwrap()).unwrap(), memory, era)
}

fn begin<P: DataPlane + Send + 'static>(mut lockd: Lockd<P>, memory: &Memory, era: u32) -> Daemon {
    let read =
        |(key, value): (&String, &Vec<u8>)| member(key.strip_prefix(MACHINES).unwrap().as_bytes(), value, era).unwrap();
    let members = memory.0.lock().unwrap().0.iter().map(read).collect();
    lockd.restore(Box::new(memory.clone()), era, members);
    let (address, stop) = (lockd.address().unwrap(), Arc::new(AtomicBool::new(false)));
    let flag = Arc::clone(&stop);
    let thread = std::thread::spawn(move || lockd.run(&flag).unwrap());
    Daemon { address, stop, thread }
}

#[test]
fn locks_go_on_after_every_restart_under_load() {
    let memory = Memory::default();
    let mut daemon = start("127.0.0.1:0".parse().unwrap(), &memory, 1);
    let address = daemon.address;
    let connect = || {
        let connecting = Connecting { connect_timeout: LONG, ..Connecting::default() };
        Locks::connect_with(&address.to_string(), connecting).unwrap()
    };
    let machines: Vec<Locks> = (0..3).map(|_| connect()).collect();
    let write = machines[0].exclusive(1000).acquire().unwrap();
    let reads: Vec<_> = machines.iter().map(|locks| locks.shared(1001).acquire().unwrap()).collect();
    let (over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let daemon = std::thread::scope(|scope| {
        for (number, locks) in machines.iter().chain(&machines).enumerate() {
            let (over, rounds) = (&over, &rounds);
            scope.spawn(move || {
                let mut at = number as u64;
                while !over.load(Ordering::Relaxed) {
                    at = (at * 5 + 3) % 64;
                    let acquire = if at.is_multiple_of(3) { locks.exclusive(at % 8) } else { locks.shared(at % 8) };
                    assert!(!acquire.timeout(LONG).acquire().unwrap().is_lost());
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for era in 2..8 {
            let (before, begin) = (rounds.load(Ordering::Relaxed), Instant::now());
            while rounds.load(Ordering::Relaxed) < before + 200 {
                assert!(begin.elapsed() < LONG, "locks are not granted any more");
                sleep(Duration::from_millis(1));
            }
            daemon.stop.store(true, Ordering::Relaxed);
            daemon.thread.join().unwrap();
            daemon = start(address, &memory, era);
        }
        over.store(true, Ordering::Relaxed);
        daemon
    });
    assert!(!write.is_lost() && reads.iter().all(|read| !read.is_lost()));
    daemon.stop.store(true, Ordering::Relaxed);
    daemon.thread.join().unwrap();
}

/// A data plane that writes down what it is told: of a machine, or to begin.
#[derive(Debug)]
struct Told(InProcess, Arc<Mutex<Vec<Option<Machine>>>>);

impl DataPlane for Told {
    type Store = <InProcess as DataPlane>::Store;

    fn store(&self) -> &Self::Store {
        self.0.store()
    }

    fn begin_tokens(&self, after: u64) {
        self.0.begin_tokens(after);
    }

    fn begin(&mut self) -> io::Result<()> {
        self.1.lock().unwrap().push(None);
        Ok(())
    }

    fn set_machine(&mut self, machine: Machine, _: u32, _: SocketAddr) -> io::Result<()> {
        self.1.lock().unwrap().push(Some(machine));
        Ok(())
    }

    fn remove_machine(&mut self, _: Machine) {}

    fn name(&self) -> String {
        "told".to_string()
    }
}

/// A data plane in the kernel answers who is not in its table that there is no such session, which ends that session.
#[test]
fn a_data_plane_knows_all_machines_before_it_decides_again() {
    let bind = || UdpSocket::bind("127.0.0.1:0").unwrap();
    // One machine of before does not answer, so that another one can join before all words are back.
    let (silent, joins, memory) = (bind(), bind(), Memory::default());
    let member = format!("5 1 {}", silent.local_addr().unwrap());
    memory.0.lock().unwrap().0.insert(format!("{MACHINES}9"), member.into_bytes());
    let told = Arc::<Mutex<_>>::default();
    let options = Options { lease_ms: 1000, ..Options::new("127.0.0.1:0".parse().unwrap()) };
    let plane = Told(InProcess::new(LOCKS).unwrap(), Arc::clone(&told));
    let daemon = begin(Lockd::bind(&options, plane).unwrap(), &memory, 2);
    sleep(Duration::from_millis(300));
    joins.set_read_timeout(Some(LONG)).unwrap();
    let join = Packet { request: 77, ..Packet::new(Kind::Join, 0) };
    joins.send_to(&datagram(&join, &[], None), daemon.address).unwrap();
    let mut bytes = [0; 2048];
    let count = joins.recv(&mut bytes).unwrap();
    let welcome = parse(&bytes[..count], None).unwrap().0;
    assert_eq!(welcome.kind, Kind::Welcome);
    let begun = Instant::now();
    while !told.lock().unwrap().contains(&None) {
        assert!(begun.elapsed() < LONG, "it does not begin");
        sleep(Duration::from_millis(1));
    }
    let told = told.lock().unwrap();
    assert_eq!(told[..2], [Some(welcome.requester), None]);
    daemon.stop.store(true, Ordering::Relaxed);
    daemon.thread.join().unwrap();
}
