//! A lockd that is one of several: what it reads and writes in etcd about the parts of the locks.
//!
//! A thread of its own looks several times a second, so that the daemon never waits; see `lockwork_locks::lockd::map`
//! for what is there.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lockwork_etcd::{Entry, Error, Etcd};
use lockwork_lock_protocol::beyond::PARTS;
use lockwork_lock_protocol::racks::{Handed, Racks};
use lockwork_locks::lockd::map::{HANDED, LOCKS, OF_PARTS, Part, RACKS, handed_of, is_name, map_of, move_of};
use lockwork_locks::lockd::racks::{Board, Gone, Left, Map, clock};

use super::Failure;
use super::lockd::fence;

/// How long etcd is waited for at the start.
const TIMEOUT: Duration = Duration::from_secs(10);
/// And while it serves.
const ANSWER: Duration = Duration::from_secs(1);
/// How often it is looked what is written down.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Ranges that are written down under one key; each takes some 20 bytes, and thousands of keys are read at a time.
const RANGES: usize = 50;
/// After so long it is said that locks that are to leave are in use.
const LONG: Duration = Duration::from_secs(10);
/// How far the clocks of racks may differ: a rack begins only when its own is past all tokens.
const MAX_BEHIND: Duration = Duration::from_secs(10);

/// A rack's name, as an option.
pub(super) fn name(text: &str) -> Result<String, String> {
    match is_name(text) {
        true => Ok(text.to_string()),
        false => Err("a rack is called by 1 to 32 letters, digits, dots, hyphens and underscores".to_string()),
    }
}

/// All that is written down.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) racks: BTreeMap<String, SocketAddr>,
    pub(super) parts: BTreeMap<u64, Part>,
    pub(super) handed: Vec<Handed>,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn read<K: Ord, V>(entries: Vec<Entry>, one: impl Fn(&str, &str) -> Option<(K, V)>) -> Result<BTreeMap<K, V>, String> {
    let one = |entry: Entry| {
        let (key, value) = (text(&entry.key), text(&entry.value));
        one(&key, &value).ok_or_else(|| format!("'{key}' is '{value}', which no lockd writes"))
    };
    entries.into_iter().map(one).collect()
}

impl Written {
    /// What is written down, as far as it can be read at one time: racks first, because parts name them.
    pub(super) fn load(etcd: &Etcd, timeout: Duration) -> Result<Result<Self, String>, Error> {
        let handed = etcd.load(HANDED, timeout)?;
        let (parts, racks) = (etcd.load(OF_PARTS, timeout)?, etcd.load(RACKS, timeout)?);
        Ok(Self::of(racks, parts, &handed))
    }

    fn of(racks: Vec<Entry>, parts: Vec<Entry>, handed: &[Entry]) -> Result<Self, String> {
        let racks = read(racks, |key, value| Some((key.to_string(), value.parse().ok()?)))?;
        let parts =
            read(parts, |key, value| Some((key.parse().ok().filter(|at| *at < PARTS)?, Part::of_text(value)?)))?;
        // Looked at before the parts: what is of a move that is over since means nothing.
        let one = |entry: &Entry| handed_of(&text(&entry.key), &text(&entry.value), &parts);
        let handed = handed.iter().filter_map(|entry| one(entry).transpose()).collect::<Result<_, _>>()?;
        Ok(Self { racks, parts, handed })
    }
}

/// What a rack finds when it begins.
pub(super) struct Found {
    pub(super) map: Map,
    pub(super) handed: Vec<Handed>,
}

/// Writes down that there is a rack of this name at this address, with so many locks. The first one has all parts.
pub(super) fn enter(etcd: &Etcd, prefix: &str, name: &str, address: SocketAddr, locks: u64) -> Result<Found, Failure> {
    let usage = |what: String| Failure::usage(format!("in etcd --etcd-prefix {prefix} {what}"));
    let failed = Failure::connect;
    if !etcd.load("era", TIMEOUT).map_err(failed)?.is_empty() {
        return Err(usage("is that of a lockd without --rack: give racks a prefix of their own".to_string()));
    }
    let replace = |key: &str, new: &str| etcd.replace(key, None, new, TIMEOUT).map_err(failed);
    if !replace(LOCKS, &locks.to_string())? {
        let known = etcd.load(LOCKS, TIMEOUT).map_err(failed)?;
        let known = known.first().map_or(String::new(), |entry| text(&entry.value));
        return Err(usage(format!("racks have {known} locks, and this one {locks}: all have the same number")));
    }
    if !replace(&format!("{RACKS}{name}"), &address.to_string())? {
        let racks = Written::load(etcd, TIMEOUT).map_err(failed)?.map_err(usage)?.racks;
        let at = racks.get(name).map_or(String::new(), SocketAddr::to_string);
        return Err(usage(format!(
            "rack '{name}' is at {at}, not {address}: start it there, or give this one another name"
        )));
    }
    for part in 0..PARTS {
        replace(&format!("{OF_PARTS}{part}"), &format!("0 {name} 0"))?;
    }
    // What a lockd of this name that was killed may have sent, and has not arrived, arrives no more: those that live
    // begin to count anew.
    etcd.forget_writers(TIMEOUT).map_err(failed)?;
    let began = Instant::now();
    loop {
        let Written { racks, parts, handed } = Written::load(etcd, TIMEOUT).map_err(failed)?.map_err(usage)?;
        let map =
            map_of(&parts, name, &racks).ok_or_else(|| usage("parts go to a rack that never began".to_string()))?;
        let least = Racks::least_clock(&map.duties, &handed);
        if least <= clock() {
            return Ok(Found { map, handed });
        }
        if began.elapsed() > MAX_BEHIND {
            let behind = least.saturating_sub(clock()) >> 23;
            return Err(Failure::usage(format!(
                "the clock of this machine is {behind} ms behind those of other racks: set it, because tokens grow with it"
            )));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// A number that no other process has, nor this one in another life.
fn unlike_any_other() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // Seeded by the system's randomness.
    let mut hasher = std::hash::RandomState::new().build_hasher();
    hasher.write_u128(std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos()));
    hasher.finish()
}

/// The thread that reads and writes for a daemon.
#[derive(Debug)]
pub(super) struct Scribe {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Scribe {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

impl Scribe {
    pub(super) fn start(etcd: Etcd, name: &str, address: SocketAddr, map: &Map, board: Board) -> std::io::Result<Self> {
        let (stop, me) = (Arc::new(AtomicBool::new(false)), name.to_string());
        let writer = Writer {
            etcd,
            me,
            address,
            generations: map.generations,
            board,
            stop: Arc::clone(&stop),
            tickets: 0,
            life: unlike_any_other(),
            keys: BTreeMap::new(),
            said: None,
            in_use_since: None,
        };
        let thread = std::thread::Builder::new().name("lockd-racks".to_string()).spawn(move || writer.run())?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

struct Writer {
    etcd: Etcd,
    me: String,
    address: SocketAddr,
    /// The newest ones that were read.
    generations: [u64; PARTS as usize],
    board: Board,
    stop: Arc<AtomicBool>,
    tickets: u64,
    /// In the keys that it writes, so that they are none of a lockd that was there before.
    life: u64,
    /// How many keys have been written in the present move of a part, and the generation of that.
    keys: BTreeMap<u64, (u64, u64)>,
    /// What was last logged.
    said: Option<String>,
    /// Since when locks that leave are in use, or since when that was said.
    in_use_since: Option<Instant>,
}

impl Writer {
    fn run(mut self) {
        let mut written = None;
        if let Ok(Ok(Written { parts, .. })) = Written::load(&self.etcd, ANSWER) {
            // Of racks that were killed between the two.
            self.forget("", |(part, of)| parts.get(&part).is_some_and(|present| of < present.generation));
        }
        while !self.stop.load(Ordering::Relaxed) {
            std::thread::sleep(POLL_INTERVAL);
            match Written::load(&self.etcd, ANSWER) {
                Ok(Ok(now)) => {
                    if self.is_forgotten(&now) {
                        return fence::end(format!(
                            "etcd has lost what it knew of rack '{}': this one ends, because whoever begins first is \
                             given its locks; start it again",
                            self.me
                        ));
                    }
                    if let Some(map) = map_of(&now.parts, &self.me, &now.racks) {
                        self.board.tell(map, now.handed.clone());
                    }
                    written = Some(now);
                    self.said = None;
                }
                Ok(Err(wrong)) => self.say(format!("in etcd {wrong}: parts stay where they are")),
                Err(error) => self.say(format!("{error}: parts stay where they are")),
            }
            let gone = self.board.gone();
            self.tell_in_use(gone.in_use);
            if self.write(&gone)
                && let Some(Written { parts, .. }) = &written
            {
                self.hand_over(parts, &gone);
            }
        }
    }

    /// Whether what is written down is older than what was read before, or gone: then others may have been given
    /// what this rack decides on.
    fn is_forgotten(&mut self, now: &Written) -> bool {
        let newest = |(at, known): (u64, &mut u64)| match now.parts.get(&at) {
            Some(part) if part.generation >= *known => {
                *known = part.generation;
                true
            }
            _ => false,
        };
        now.racks.get(&self.me) != Some(&self.address) || !(0..).zip(&mut self.generations).all(newest)
    }

    fn tell_in_use(&mut self, in_use: usize) {
        let since = self.in_use_since.get_or_insert_with(Instant::now);
        if in_use == 0 {
            self.in_use_since = None;
        } else if since.elapsed() > LONG {
            tracing::info!(
                rack = self.me,
                "{in_use} locks that go to other racks are held or waited for, and go when they are released"
            );
            self.in_use_since = Some(Instant::now());
        }
    }

    fn say(&mut self, what: String) {
        if self.said.as_ref() != Some(&what) {
            tracing::warn!(rack = self.me, "{what}");
        }
        self.said = Some(what);
    }

    /// Whether all that was handed on is durable; if not, the daemon ends.
    fn write(&mut self, gone: &Gone) -> bool {
        let mut of_parts: BTreeMap<(u64, u64), Handed> = BTreeMap::new();
        for (generation, Handed { part, token, ranges }) in &gone.handed {
            let none = Handed { part: *part, token: 0, ranges: Vec::new() };
            let all = of_parts.entry((*part, *generation)).or_insert(none);
            all.token = all.token.max(*token);
            all.ranges.extend(ranges);
        }
        let first = self.tickets;
        for ((_, generation), Handed { part, token, ranges }) in of_parts {
            for ranges in ranges.chunks(RANGES) {
                let key = self.next_key(part, generation);
                let handed = Handed { part, token, ranges: ranges.to_vec() };
                self.tickets += 1;
                self.etcd.put(key, handed.to_text().into_bytes(), self.tickets);
            }
        }
        let mut durable = Vec::new();
        while (durable.len() as u64) < self.tickets - first {
            if self.stop.load(Ordering::Relaxed) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
            self.etcd.completed(&mut durable);
            durable.retain(|ticket| *ticket > first);
        }
        true
    }

    fn next_key(&mut self, part: u64, generation: u64) -> String {
        let (of, count) = self.keys.entry(part).or_default();
        if *of != generation {
            (*of, *count) = (generation, 0);
        }
        *count += 1;
        // A lockd that goes on where another ended writes beside what that one has written.
        format!("{HANDED}{part}/{generation}/{:016x}-{count}", self.life)
    }

    /// Parts that have left are the other racks' now.
    fn hand_over(&mut self, parts: &BTreeMap<u64, Part>, gone: &Gone) {
        for Left { part: at, generation, token } in &gone.left {
            let is_it = |part: &&Part| part.owner == self.me && part.generation == *generation;
            let Some(arrived) = parts.get(at).filter(is_it).and_then(|part| part.arrived(*token)) else { continue };
            let part = &parts[at];
            let (old, new) = (part.to_string(), arrived.to_string());
            if !self.etcd.replace(&format!("{OF_PARTS}{at}"), Some(&old), &new, ANSWER).unwrap_or(false) {
                // It is looked at again.
                continue;
            }
            self.forget(&format!("{at}/"), |(_, of)| of <= *generation);
        }
    }

    /// Removes what was handed on in moves that are over.
    fn forget(&self, folder: &str, is_over: impl Fn((u64, u64)) -> bool) {
        for entry in self.etcd.load(&format!("{HANDED}{folder}"), ANSWER).unwrap_or_default() {
            let key = format!("{folder}{}", text(&entry.key));
            if move_of(&key).is_some_and(&is_over) {
                self.etcd.delete(format!("{HANDED}{key}"), 0);
            }
        }
    }
}
