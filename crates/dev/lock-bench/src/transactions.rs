//! Transactions of TATP and TPC-C on lock managers: figures 14 (right) and 15 of FissLock's evaluation (section 7.4).
//!
//! Every client replays transactions of a trace ([`LockTrace`]): acquires their locks one after the other, spends the
//! time that the transaction would run for, and releases them. TPC-C transactions belong to warehouses, and a warehouse
//! to one client: what two clients both want is then mostly what is remote.
//!
//! The paper's transactions take locks as they come and give up after 10 ms, since they may wait in a circle. Here
//! locks are taken in the order of their numbers, nobody ever waits in a circle, and nobody gives up: every
//! transaction that is counted has run.

use std::time::Duration;

use lockwork_locking::LockMode;
use lockwork_workload::lock_trace::LockTrace;

use super::load::{Load, Script};
use super::netlock::MAX_HOT;
use super::systems::Size;
use super::{BenchError, Client, Measured, Settings, System, measure};
use lockwork_locks::namespace::Network;

/// How long at most for the first grant, and at the end for all: a long transaction of a crowd takes a hundred times as
/// long as a lock.
const DRAIN: Duration = Duration::from_secs(120);

/// What is measured.
#[derive(Clone, Debug)]
pub struct Clients {
    /// Client machines.
    pub machines: u16,
    /// Clients of each machine, each with one transaction at a time.
    pub clients: u32,
    /// What client machines send and receive with.
    pub client: Client,
    /// How long a transaction has its locks, at least.
    pub inside: Duration,
    /// How long to measure.
    pub measured: Duration,
}

/// Machines, ready for rounds of any system.
pub struct Transactions {
    network: Network,
    clients: Clients,
    trace: LockTrace,
    /// For each client, those of the first machine first, its transactions.
    turns: Vec<Vec<u32>>,
    /// Locks of the largest transaction.
    most: u32,
}

/// The client, of so many, that a transaction or lock of a home belongs to: homes of a client, and so of a machine, lie
/// side by side.
fn client_of(home: u64, trace: &LockTrace, clients: usize) -> usize {
    (home * clients as u64 / trace.homes()) as usize
}

/// The transactions of each client: those of its homes, or, where there are no homes, each in turn. A client without
/// any gets another one's.
fn deal(trace: &LockTrace, clients: usize) -> Vec<Vec<u32>> {
    let mut turns = vec![Vec::new(); clients];
    for (at, transaction) in trace.transactions().enumerate() {
        let client = transaction.home.map_or(at % clients, |home| client_of(home, trace, clients));
        turns[client].push(at as u32);
    }
    for (client, turns) in turns.iter_mut().enumerate() {
        if turns.is_empty() {
            turns.push((client % trace.len()) as u32);
        }
    }
    turns
}

impl Clients {
    /// Whether these systems can have such clients.
    ///
    /// # Errors
    /// [`BenchError::Usage`] where something is impossible.
    pub fn check(&self, systems: &[System], trace: &LockTrace) -> Result<(), BenchError> {
        if trace.is_empty() {
            return Err(BenchError::Usage("there are no transactions; 1 or more are possible".into()));
        }
        let settings = Settings {
            machines: self.machines,
            clients: self.clients,
            locks: trace.locks(),
            objects: trace.locks(),
            hotspot: None,
            slice: None,
            writes: 0.0,
            theta: None,
            seed: 0,
            client: self.client,
            measured: self.measured,
        };
        settings.check(systems)
    }
}

impl Transactions {
    /// Makes the namespaces.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn new(clients: Clients, trace: LockTrace) -> Result<Self, BenchError> {
        clients.check(&[], &trace)?;
        let turns = deal(&trace, usize::from(clients.machines) * clients.clients as usize);
        let most = trace.transactions().map(|transaction| transaction.requests.len()).max().unwrap_or(1) as u32;
        Ok(Self { network: Network::new(clients.machines)?, turns, most, clients, trace })
    }

    /// What is replayed.
    #[must_use]
    pub fn trace(&self) -> &LockTrace {
        &self.trace
    }

    /// The machine, from 0, whose clients ask for this lock most often: where a lock manager that places locks by the
    /// workload keeps it. `None` where no machine is nearer than another.
    #[must_use]
    pub fn machine_of(&self, lock: u64) -> Option<u16> {
        let client = client_of(self.trace.home_of(lock)?, &self.trace, self.turns.len());
        Some((client / self.clients.clients as usize) as u16)
    }

    /// All clients, on a system that is started afresh.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn round(&self, system: System) -> Result<Measured, BenchError> {
        let clients = &self.clients;
        clients.check(&[system], &self.trace)?;
        let load = Load {
            locks: self.trace.locks(),
            tasks: clients.clients,
            most: self.most,
            types: self.trace.types().len(),
            inside: clients.inside.as_nanos() as u64,
            first_only: false,
            one_by_one: false,
            // Until as many long transactions end as begin.
            warmup: clients.measured,
            measured: clients.measured,
            drain: DRAIN,
            slices: None,
        };
        let most = if system == System::NetLock { MAX_HOT } else { 0 };
        let hot: Vec<u64> = self.trace.hottest(most).into_iter().map(|(lock, _)| lock).collect();
        let size = Size {
            locks: load.locks,
            machines: clients.machines,
            tasks: load.tasks * load.most,
            client: clients.client,
            homes: [self.trace.homes(), self.trace.locks() / self.trace.homes().max(1)],
            hot: &hot,
        };
        let scripts = (0..clients.machines).map(|machine| Replay::new(self, machine)).collect();
        measure(system, &self.network, size, scripts, &load)
    }
}

/// The clients of a machine.
struct Replay<'a> {
    trace: &'a LockTrace,
    /// Transactions of each client, and how many it has begun.
    turns: Vec<(&'a [u32], usize)>,
}

impl<'a> Replay<'a> {
    fn new(of: &'a Transactions, machine: u16) -> Self {
        let clients = of.clients.clients as usize;
        let turns = of.turns.iter().skip(usize::from(machine) * clients).take(clients);
        Self { trace: &of.trace, turns: turns.map(|turns| (turns.as_slice(), 0)).collect() }
    }
}

impl Script for Replay<'_> {
    fn next(&mut self, task: u32, locks: &mut Vec<(u64, LockMode)>) -> usize {
        let (turns, begun) = &mut self.turns[task as usize];
        let transaction = self.trace.transaction(turns[*begun % turns.len()] as usize);
        *begun += 1;
        let mode = |exclusive| if exclusive { LockMode::Exclusive } else { LockMode::Shared };
        locks.extend(transaction.requests.iter().map(|request| (request.lock, mode(request.exclusive))));
        transaction.type_number
    }
}

#[cfg(test)]
mod tests {
    use lockwork_workload::tatp::TatpConfig;
    use lockwork_workload::tpcc::TpccConfig;

    use super::*;
    use lockwork_locks::namespace::NetworkError;
    use lockwork_testkit::or_skip;

    fn tatp() -> LockTrace {
        LockTrace::tatp(TatpConfig { subscribers: 100, ..TatpConfig::default() }, 500).expect("it is possible")
    }

    fn tpcc() -> LockTrace {
        let config = TpccConfig { customers: 60, items: 1000, ..TpccConfig::standard(4) };
        LockTrace::tpcc(config, 400).expect("it is possible")
    }

    #[test]
    fn every_transaction_is_some_clients_and_those_of_a_warehouse_one_clients() {
        let turns = deal(&tatp(), 7);
        let mut all: Vec<u32> = turns.concat();
        all.sort_unstable();
        assert_eq!(all, (0..500).collect::<Vec<_>>());
        assert!(turns.iter().all(|turns| (71..=72).contains(&turns.len())));
        let trace = tpcc();
        let turns = deal(&trace, 3);
        assert_eq!(turns.concat().len(), 400);
        for (client, turns) in turns.iter().enumerate() {
            let homes = turns.iter().map(|at| trace.transaction(*at as usize).home);
            // Of four warehouses the first client has two.
            let own: &[u64] = [&[0, 1][..], &[2], &[3]][client];
            assert!(homes.into_iter().all(|home| home.is_some_and(|home| own.contains(&home))));
        }
        // More clients than warehouses.
        let turns = deal(&trace, 9);
        let busy: Vec<bool> = turns.iter().map(|turns| turns.len() > 1).collect();
        assert_eq!(busy, [true, false, true, false, true, false, true, false, false]);
    }

    #[test]
    fn locks_are_near_to_the_machine_whose_clients_have_their_homes() {
        let trace = tpcc();
        for (machines, clients) in [(1, 3), (2, 2), (2, 3), (3, 1), (3, 5), (4, 1)] {
            let homes = [trace.homes(), trace.locks() / trace.homes()];
            let size = Size { locks: trace.locks(), machines, tasks: 1, client: Client::Udp, homes, hot: &[] };
            for lock in 0..trace.locks() {
                let home = trace.home_of(lock).expect("a warehouse");
                let machine = client_of(home, &trace, usize::from(machines) * clients) / clients;
                let near = size.near(machine as u16);
                assert!((near[0]..near[1]).contains(&lock), "{machines} {clients}: {lock} at {machine}, {near:?}");
            }
        }
    }

    #[test]
    fn privileged_agents_that_stay_grant_without_packets() {
        if or_skip(Network::new(2), NetworkError::is_unavailable).is_none() {
            return;
        }
        let clients = Clients {
            machines: 2,
            clients: 2,
            client: Client::Udp,
            inside: Duration::from_micros(10),
            measured: Duration::from_millis(300),
        };
        let bench = Transactions::new(clients, tpcc()).expect("as root");
        let [anywhere, local] = [System::Xdp, System::XdpLocal].map(|system| {
            let measured = bench.round(system).unwrap_or_else(|error| panic!("{}: {error}", system.name()));
            measured.packets.iter().sum::<u64>() as f64 / measured.grants as f64
        });
        assert!(anywhere > 3.0 && local < 1.5, "{anywhere} and {local} packets a lock");
    }

    #[test]
    fn privileged_transactions_run_on_every_system() {
        let clients = Clients {
            machines: 2,
            clients: 8,
            client: Client::Udp,
            inside: Duration::from_micros(10),
            measured: Duration::from_millis(200),
        };
        if or_skip(Network::new(2), NetworkError::is_unavailable).is_none() {
            return;
        }
        for trace in [tatp(), tpcc()] {
            let bench = Transactions::new(clients.clone(), trace).expect("as root");
            for &system in System::ALL.iter().chain(&[System::XdpLocal]) {
                let measured = bench.round(system).unwrap_or_else(|error| panic!("{}: {error}", system.name()));
                let counts: Vec<u64> = measured.transactions.iter().map(|latency| latency.count()).collect();
                assert!(counts.iter().sum::<u64>() > 0 && measured.grants >= counts.iter().sum(), "{counts:?}");
                let least = measured.transactions.iter().filter(|latency| latency.count() > 0);
                assert!(least.map(|latency| latency.quantile(0.0)).min() >= Some(10_000), "{}", system.name());
            }
        }
    }
}
