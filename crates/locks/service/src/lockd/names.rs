//! Names, as the daemon keeps them: [`Names`] with packets before it and etcd behind it.
//!
//! Names that were stored are loaded by a thread of their own, so the daemon grants locks from the start on; until they
//! are there, questions about names stay unanswered, and are asked again. While etcd is out of reach the same is true
//! of new names; those that are known are told as ever.

use super::Options;
use super::counters::Counters;
use lockwork_etcd::{Entry, Etcd};
use lockwork_lock_protocol::control::{Service, name_of_body, name_to_body};
use lockwork_lock_protocol::decider::{Sessions, Store};
use lockwork_lock_protocol::names::{Asker, Effect, Names, Reply};
use lockwork_lock_protocol::packet::{GRANTED, Kind, Packet, Problem, TRY};
use lockwork_lock_protocol::registry::Registry;
use lockwork_lock_protocol::word::Word;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

/// The folder of names in etcd: the name is the key, and the lock's number the value.
const FOLDER: &str = "names/";
/// Names that are looked at between two batches of packets.
const MAX_AT_ONCE: usize = 1000;
/// How soon it is noticed that etcd has done what it was asked.
const POLL_INTERVAL_NS: u64 = 200_000;
/// How long loading may take before it is begun again.
const LOAD: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Naming {
    names: Names,
    etcd: Option<Arc<Etcd>>,
    /// What was stored, until it is loaded.
    loading: Option<Receiver<Names>>,
    /// Sessions that have survived the start of this daemon.
    survived: Vec<u32>,
    done: Vec<u64>,
    outgoing: VecDeque<(SocketAddr, Packet, Vec<u8>)>,
}

impl Naming {
    pub(super) fn new(options: &Options, service: Service) -> Self {
        let range = service.locks - service.names..service.locks;
        let etcd = (service.names > 0 && !options.etcd.is_empty())
            .then(|| Arc::new(Etcd::connect(&options.etcd, &options.etcd_prefix)));
        let loading = etcd.as_ref().map(|etcd| {
            let (sender, receiver) = channel();
            let (etcd, range) = (Arc::clone(etcd), range.clone());
            std::thread::spawn(move || {
                if let Some(names) = load(&etcd, &range) {
                    // If the daemon has ended meanwhile, nobody takes them.
                    _ = sender.send(names);
                }
            });
            receiver
        });
        let names = Names::new(range);
        Self { names, etcd, loading, survived: Vec::new(), done: Vec::new(), outgoing: VecDeque::new() }
    }

    /// These sessions began at the daemon before and go on: no name is freed before each of them has told all that it
    /// keeps, or has ended. Before any question is answered.
    pub(super) fn survived(&mut self, sessions: impl IntoIterator<Item = u32>) {
        self.survived.extend(sessions);
        self.names.survived(self.survived.iter().copied());
    }

    /// A session that has survived has asked again for every name that it keeps.
    fn told_all(&mut self, session: u32) {
        self.survived.retain(|one| *one != session);
        self.names.told_all(session);
    }

    /// A packet about names.
    pub(super) fn receive(
        &mut self,
        now: u64,
        store: &impl Store,
        registry: &Registry<SocketAddr>,
        from: SocketAddr,
        packet: &Packet,
        body: &[u8],
    ) {
        // An answer is nobody's question.
        let Ok(name) = name_of_body(body) else { return };
        if packet.has(GRANTED) {
            return;
        }
        if packet.kind == Kind::Name && packet.has(TRY) {
            return self.look_up(from, packet, body);
        }
        if registry.session(packet.sender) != Some(packet.session) {
            return self.problem(from, packet, body, Problem::NoSuchSession);
        }
        let is_end = name.is_empty() && packet.kind == Kind::Unname;
        let Some(address) = registry.address(packet.sender).filter(|_| !name.is_empty() || is_end) else { return };
        let asker = Asker { machine: packet.sender, session: packet.session, number: packet.request };
        match packet.kind {
            _ if self.names.range().is_empty() => self.problem(address, packet, body, Problem::NoNames),
            // Nothing is known yet; it will be asked again.
            _ if self.loading.is_some() => {}
            Kind::Unname => {
                match is_end {
                    true => self.told_all(packet.session),
                    false => self.names.forget(now, name, asker),
                }
                self.outgoing.push_back((address, answer(Kind::Unname, asker, 0), body.to_vec()));
            }
            _ => {
                match self.names.ask(store, name, asker) {
                    Reply::Lock(lock) => self.tell(address, asker, name, lock),
                    Reply::Later => {}
                    Reply::Full => self.problem(address, packet, body, Problem::NamesFull),
                }
                self.carry_out(store);
            }
        }
    }

    /// For people's tools, which keep nothing: the lock of a name, or the name of a lock if none is given.
    fn look_up(&mut self, from: SocketAddr, packet: &Packet, body: &[u8]) {
        let Some(name) = name_of_body(body).ok().filter(|_| self.loading.is_none()) else { return };
        let found = match name {
            "" => self.names.name_of(packet.lock).map(|name| (name.to_string(), packet.lock)),
            _ => self.names.look_up(name).map(|lock| (name.to_string(), lock)),
        };
        match found {
            Some((name, lock)) => {
                let asker = Asker { machine: packet.sender, session: packet.session, number: packet.request };
                self.tell(from, asker, &name, lock);
            }
            None if self.names.range().is_empty() => self.problem(from, packet, body, Problem::NoNames),
            None => self.problem(from, packet, body, Problem::NoSuchName),
        }
    }

    fn tell(&mut self, address: SocketAddr, asker: Asker, name: &str, lock: u64) {
        self.outgoing.push_back((address, answer(Kind::Name, asker, lock), name_to_body(name)));
    }

    fn problem(&mut self, address: SocketAddr, packet: &Packet, body: &[u8], problem: Problem) {
        let mut answer = Packet { kind: Kind::Error, target: packet.sender, part: packet.kind as u8, ..*packet };
        answer.requester = packet.sender;
        answer.requester_session = packet.session;
        answer.stamp(Word::NEW, problem as u64);
        self.outgoing.push_back((address, answer, body.to_vec()));
    }

    /// A session has ended.
    pub(super) fn gone(&mut self, session: u32) {
        self.survived.retain(|one| *one != session);
        self.names.gone(session);
    }

    /// Notices what has become durable, and frees what is due.
    pub(super) fn tick(&mut self, now: u64, store: &impl Store) {
        match self.loading.as_ref().map(Receiver::try_recv) {
            Some(Ok(names)) => {
                self.names = names;
                self.names.survived(self.survived.iter().copied());
                self.loading = None;
            }
            // It was said why.
            Some(Err(TryRecvError::Disconnected)) => {
                self.names = Names::new(0..0);
                self.loading = None;
            }
            Some(Err(TryRecvError::Empty)) => return,
            None => {}
        }
        if let Some(etcd) = &self.etcd {
            etcd.completed(&mut self.done);
        }
        for lock in self.done.drain(..) {
            self.names.stored(store, lock);
        }
        self.names.tick(now, store, MAX_AT_ONCE);
        self.carry_out(store);
    }

    pub(super) fn next_tick(&self, now: u64) -> Option<u64> {
        let looks = self.loading.is_some() || self.names.under_way() > 0;
        looks.then(|| now + POLL_INTERVAL_NS).into_iter().chain(self.names.next_tick()).min()
    }

    /// Writes what is to be stored; without etcd it counts as stored at once.
    fn carry_out(&mut self, store: &impl Store) {
        let key = |name: &str| format!("{FOLDER}{name}");
        while let Some(effect) = self.names.poll_effect() {
            match (effect, &self.etcd) {
                (Effect::Put(name, lock), Some(etcd)) => etcd.put(key(&name), lock.to_string().into_bytes(), lock),
                (Effect::Delete(name, lock), Some(etcd)) => etcd.delete(key(&name), lock),
                (Effect::Put(_, lock) | Effect::Delete(_, lock), None) => self.names.stored(store, lock),
                (Effect::Tell(asker, name, lock), _) => {
                    // Where it is, the registry knows when the packet goes out.
                    let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
                    self.tell(nowhere, asker, &name, lock);
                }
            }
        }
    }

    /// The next packet to send, where to, and its body.
    pub(super) fn poll_packet(&mut self, registry: &Registry<SocketAddr>) -> Option<(SocketAddr, Packet, Vec<u8>)> {
        while let Some((address, packet, body)) = self.outgoing.pop_front() {
            if address.port() != 0 {
                return Some((address, packet, body));
            }
            if registry.session(packet.target) == Some(packet.requester_session) {
                return registry.address(packet.target).map(|address| (address, packet, body));
            }
        }
        None
    }

    /// Names that are on their way into etcd or out of it.
    pub(super) fn under_way(&self) -> u64 {
        self.names.under_way() as u64
    }

    pub(super) fn count(&self, counters: &Counters) {
        counters.names.set(self.names.len() as u64);
        counters.names_under_way.set(self.under_way());
        counters.etcd.set(u64::from(self.etcd.as_ref().is_none_or(|etcd| etcd.health().reachable)));
    }
}

fn answer(kind: Kind, asker: Asker, lock: u64) -> Packet {
    Packet {
        flags: GRANTED,
        request: asker.number,
        requester: asker.machine,
        requester_session: asker.session,
        target: asker.machine,
        part: kind as u8,
        ..Packet::new(kind, lock)
    }
}

/// All names that are stored; nothing, and why as an event, if they do not fit. Tries on while nobody uses
/// the connection but this thread's daemon.
fn load(etcd: &Arc<Etcd>, range: &Range<u64>) -> Option<Names> {
    while Arc::strong_count(etcd) > 1 {
        // Why it failed, the connection says.
        let Ok(entries) = etcd.load(FOLDER, LOAD) else { continue };
        let names = entries.into_iter().map(pair).collect::<Result<Vec<_>, _>>();
        match names.and_then(|names| Names::restore(range.clone(), names).map_err(|error| error.to_string())) {
            Ok(names) => return Some(names),
            Err(error) => {
                tracing::error!("there are no names: {error}");
                return None;
            }
        }
    }
    None
}

fn pair(entry: Entry) -> Result<(String, u64), String> {
    let name = String::from_utf8_lossy(&entry.key).into_owned();
    let lock = std::str::from_utf8(&entry.value).ok().and_then(|text| text.parse().ok());
    let lock = lock.ok_or_else(|| format!("the value of key '{FOLDER}{name}' is no number of a lock"))?;
    Ok((name, lock))
}
