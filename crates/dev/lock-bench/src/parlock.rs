//! ParLock, the baseline without a server: every client machine manages its share of the locks, those whose home it is.
//!
//! A task whose lock is at home asks its machine's manager by a plain call, in the thread that clients share with it.
//! Any other lock is asked for by packets to its home; those packets are the same as a lock server's, and go from
//! machine to machine through the kernel of the switch's namespace, which forwards them
//! ([`lockwork_locks::namespace::Network`]).
//!
//! *Invariant*: each lock has one home, and each machine knows it.
//!
//! The trade-off against lock fission: no server is in the way, and one lock of so many is near without a packet; but
//! the place of a lock does not follow the machine that requests it, and the machine with the hottest locks works for
//! all.
//!
//! Source: FissLock, sections 2.3 and 7.1.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockwork_lock_protocol::packet::{Kind, Packet};
use lockwork_lock_protocol::word::Machine;
use lockwork_locking::LockMode;
use lockwork_workload::zipf::fnv1a;

use super::machine::{ClientMachine, Granted, ServerClient};
use super::manager::{Manager, Place};

/// The locks of a machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    locks: u64,
    /// Machines, from 1, and which of them this is.
    machines: u16,
    machine: u16,
    /// How many homes of a workload there are, and locks of each, where locks have any: see [`super::systems::Size`].
    homes: [u64; 2],
}

/// Locks of each machine are shared out so many at a time: one to each, in an order that the hash of the group says.
fn dealt(lock: u64, machines: u16) -> (u64, u16) {
    let machines = u64::from(machines);
    let group = lock / machines;
    (group, ((lock + fnv1a(&group.to_le_bytes()) % machines) % machines) as u16)
}

impl Share {
    /// Of `machine`, from 1, of so many.
    pub(super) fn of(locks: u64, machines: u16, machine: u16, homes: [u64; 2]) -> Self {
        Self { locks, machines, machine, homes }
    }

    /// The machine that a lock is managed by, from 1: the one that it is near to, or else the hash's.
    pub(super) fn home(&self, lock: u64) -> u16 {
        let [homes, each] = self.homes;
        match homes {
            0 => 1 + dealt(lock, self.machines).1,
            // The last machine whose first home is not behind this one.
            _ => 1 + (lock / each * u64::from(self.machines) / homes) as u16,
        }
    }

    /// The first of them, where locks have homes.
    fn first(&self, machine: u16) -> u64 {
        let [homes, each] = self.homes;
        (u64::from(machine - 1) * homes).div_ceil(self.machines.into()) * each
    }

    /// How many places its table needs.
    pub(super) fn locks(&self) -> u64 {
        match self.homes[0] {
            0 => self.locks.div_ceil(self.machines.into()),
            _ => self.first(self.machine + 1) - self.first(self.machine),
        }
    }

    /// A lock's place in the table of its home; `None` if that is elsewhere.
    pub(super) fn place(&self, lock: u64) -> Option<usize> {
        if lock >= self.locks || self.home(lock) != self.machine {
            return None;
        }
        Some(match self.homes[0] {
            0 => dealt(lock, self.machines).0,
            _ => lock - self.first(self.machine),
        } as usize)
    }
}

/// A client machine that manages its share.
pub(super) struct PartitionClient {
    /// What its tasks want.
    own: ServerClient,
    manager: Manager,
    share: Share,
    outgoing: VecDeque<Packet>,
    /// Locks of all machines that are not free when they end.
    held: Arc<AtomicU64>,
}

impl PartitionClient {
    pub(super) fn new(share: Share, tasks: u32, held: Arc<AtomicU64>) -> Self {
        Self {
            own: ServerClient::new(share.machine),
            manager: Manager::new(Place::Share(share), share.machines, tasks),
            share,
            outgoing: VecDeque::new(),
            held,
        }
    }

    fn serve(&mut self, now: u64, packet: &Packet) {
        let Self { own, manager, share, outgoing, .. } = self;
        manager.serve(packet, |mut answer| {
            if answer.target.0 == share.machine {
                own.receive(now, &answer, &[]);
            } else {
                answer.sender = Machine(share.machine);
                outgoing.push_back(answer);
            }
        });
    }

    /// Brings what its tasks want to where it belongs.
    fn dispatch(&mut self, now: u64) {
        while let Some((mut packet, _)) = self.own.poll_packet() {
            let home = self.share.home(packet.lock);
            if home == self.share.machine {
                self.serve(now, &packet);
            } else {
                packet.target = Machine(home);
                self.outgoing.push_back(packet);
            }
        }
    }
}

impl ClientMachine for PartitionClient {
    fn acquire(&mut self, now: u64, lock: u64, mode: LockMode, task: u32) -> Result<u64, String> {
        let request = self.own.acquire(now, lock, mode, task)?;
        self.dispatch(now);
        Ok(request)
    }

    fn release(&mut self, now: u64, request: u64) -> Result<(), String> {
        self.own.release(now, request)?;
        self.dispatch(now);
        Ok(())
    }

    fn receive(&mut self, now: u64, packet: &Packet, body: &[u8]) {
        match packet.kind {
            Kind::Acquire | Kind::Release => self.serve(now, packet),
            _ => self.own.receive(now, packet, body),
        }
    }

    fn tick(&mut self, now: u64) {
        self.own.tick(now);
        self.dispatch(now);
    }

    fn poll_packet(&mut self) -> Option<(Packet, Vec<u8>)> {
        self.outgoing.pop_front().map(|packet| (packet, Vec::new()))
    }

    fn poll_event(&mut self) -> Result<Option<Granted>, String> {
        self.own.poll_event()
    }

    fn is_idle(&self) -> bool {
        self.own.is_idle()
    }
}

impl Drop for PartitionClient {
    fn drop(&mut self) {
        self.held.fetch_add(self.manager.held(), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lock_has_one_home_and_a_place_of_its_own_there() {
        for (locks, machines, homes) in [(1000, 3, [0; 2]), (7, 8, [0; 2]), (60, 4, [6, 10]), (30, 4, [3, 10])] {
            let shares: Vec<_> = (1..=machines).map(|machine| Share::of(locks, machines, machine, homes)).collect();
            let mut taken: Vec<Vec<bool>> = shares.iter().map(|share| vec![false; share.locks() as usize]).collect();
            for lock in 0..locks {
                let found = shares.iter().zip(&mut taken).filter_map(|(share, taken)| {
                    let place = share.place(lock)?;
                    assert_eq!(share.home(lock), share.machine);
                    Some(std::mem::replace(&mut taken[place], true))
                });
                assert_eq!(found.collect::<Vec<_>>(), [false], "lock {lock} of {locks}, {machines} machines");
            }
            assert!(shares.iter().all(|share| share.place(locks).is_none()));
        }
        // Hashed: about as many neighbours have the same home as not.
        let share = Share::of(100_000, 2, 1, [0; 2]);
        let same = (0..50_000).filter(|group| share.home(2 * group) == 1).count();
        assert!((24_000..26_000).contains(&same), "{same}");
    }

    #[test]
    fn what_is_at_home_needs_no_packet_and_what_is_not_goes_there() {
        let held = Arc::new(AtomicU64::new(0));
        let mut machines = [1, 2].map(|n| PartitionClient::new(Share::of(8, 2, n, [0; 2]), 4, Arc::clone(&held)));
        let near = (0..8).find(|lock| machines[0].share.home(*lock) == 1).expect("half of them");
        let far = (0..8).find(|lock| machines[0].share.home(*lock) == 2).expect("half of them");
        let request = machines[0].acquire(0, near, LockMode::Exclusive, 0).expect("it may ask");
        let granted = machines[0].poll_event().expect("nothing else happens").expect("it is free");
        assert_eq!((granted.request, machines[0].poll_packet()), (request, None));
        machines[0].release(0, request).expect("it is granted");
        assert!(machines[0].is_idle() && machines[0].poll_packet().is_none());
        let request = machines[0].acquire(0, far, LockMode::Exclusive, 1).expect("it may ask");
        let mut there = |packet: Packet, from: usize, to: usize| {
            assert_eq!(packet.target.0 as usize, to + 1);
            machines[to].receive(0, &packet, &[]);
            (machines[to].poll_packet(), machines[from].poll_packet(), machines[to].poll_event())
        };
        let mut packet = Packet::new(Kind::Acquire, far);
        (packet.request, packet.requester, packet.flags) = (request, Machine(1), LockMode::Exclusive as u8);
        packet.target = Machine(2);
        let (grant, asked, _) = there(packet, 0, 1);
        let (grant, asked) = (grant.expect("it is free").0, asked.expect("it has asked").0);
        assert_eq!((asked.target, asked.lock, asked.request), (Machine(2), far, request));
        let (_, _, event) = there(grant, 1, 0);
        assert_eq!(event.map(|event| event.map(|granted| granted.request)), Ok(Some(request)));
        drop(machines);
        assert_eq!(held.load(Ordering::SeqCst), 1);
    }
}
