//! A file system in memory that knows what is durable, for tests: every call can fail, tear or be late, the disk can be
//! full, bits can flip, and a crash forgets what was not synced, or some of it, sector by sector.
//!
//! All of it follows from a seed. What a crash leaves of a file is what was synced, and of each 512-byte sector that
//! was written since, by chance, the old or the new bytes; of a directory, the names as they were synced and the first
//! few of the changes since. A sync that fails drops what it should have written from the list of what is still to be
//! written, as kernels do: it stays readable until the crash, and no later sync saves it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockwork_random::Random;

use super::{File, Io, Locking, Mode};

const SECTOR: usize = 512;

/// What is to happen at one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call fails with `EIO`, and nothing is done.
    Fail,
    /// The call fails with `EIO`, and a part of it is done.
    Tear,
    /// The call succeeds, but takes some milliseconds.
    Delay,
    /// A part of the call is done, and every later one fails, until [`SimulatedDisk::crash`].
    Crash,
}

#[derive(Clone, Debug, Default)]
struct Node {
    /// What programs see.
    bytes: Vec<u8>,
    /// What is on the disk for certain.
    durable: Vec<u8>,
    /// Ranges written since, that a crash may or may not have put on the disk.
    dirty: Vec<(usize, usize)>,
}

/// A change of a directory that no sync has made durable.
#[derive(Clone, Debug)]
enum Change {
    Link(PathBuf, usize),
    Unlink(PathBuf),
    Rename(PathBuf, PathBuf),
}

fn apply(names: &mut BTreeMap<PathBuf, usize>, change: &Change) {
    match change {
        Change::Link(path, node) => drop(names.insert(path.clone(), *node)),
        Change::Unlink(path) => drop(names.remove(path)),
        Change::Rename(from, to) => {
            if let Some(node) = names.remove(from) {
                names.insert(to.clone(), node);
            }
        }
    }
}

#[derive(Debug)]
struct State {
    nodes: Vec<Node>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    changes: Vec<Change>,
    locked: bool,
    calls: u64,
    fault: Option<(u64, Fault)>,
    fired: Option<String>,
    dead: bool,
    /// Bytes that all files may take together.
    capacity: u64,
    chance: Random,
    /// Counts crashes: files opened before one are of no use after it.
    life: u64,
}

/// See the module. Clones are the same disk.
#[derive(Clone, Debug)]
pub struct SimulatedDisk(Arc<Mutex<State>>);

fn broken() -> io::Error {
    io::Error::from_raw_os_error(5)
}

enum Verdict {
    Go,
    Part,
}

impl SimulatedDisk {
    /// An empty disk without limits.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            nodes: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            changes: Vec::new(),
            locked: false,
            calls: 0,
            fault: None,
            fired: None,
            dead: false,
            capacity: u64::MAX,
            chance: Random(seed),
            life: 0,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `fault` happen at call number `call`, counted from 0 from now on.
    pub fn inject(&self, call: u64, fault: Fault) {
        let mut state = self.state();
        (state.calls, state.fired, state.fault) = (0, None, Some((call, fault)));
    }

    /// How many calls there were since the last [`Self::inject`].
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// The call at which the fault happened, in words; `None` if there were not so many calls.
    #[must_use]
    pub fn fired(&self) -> Option<String> {
        self.state().fired.clone()
    }

    /// Bytes that all files together may take from now on.
    pub fn set_capacity(&self, bytes: u64) {
        self.state().capacity = bytes;
    }

    /// Bytes that all files take.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.state().used()
    }

    /// Forgets, by chance, what was not synced; ends faults and locks. Files that are open are of no use any more.
    pub fn crash(&self) {
        let state = &mut *self.state();
        let mut names = state.durable_names.clone();
        let kept = state.chance.index(state.changes.len() + 1);
        state.changes[..kept].iter().for_each(|change| apply(&mut names, change));
        let chance = &mut state.chance;
        for node in &mut state.nodes {
            // Now and then all of it, or nothing: the usual cases are as likely as the odd ones.
            let mood = chance.index(4);
            let mut after = node.durable.clone();
            let long = if mood == 0 { false } else { mood == 1 || chance.index(2) == 0 };
            if long || node.bytes.len() < after.len() {
                after.resize(node.bytes.len(), 0);
            }
            for &(start, end) in &node.dirty {
                let mut at = start;
                while at < end {
                    let next = ((at / SECTOR + 1) * SECTOR).min(end);
                    let take = match mood {
                        0 => false,
                        1 => true,
                        _ => chance.index(2) == 0,
                    };
                    let next_there = next.min(after.len()).min(node.bytes.len());
                    if take && at < next_there {
                        after[at..next_there].copy_from_slice(&node.bytes[at..next_there]);
                    }
                    at = next;
                }
            }
            *node = Node { bytes: after.clone(), durable: after, dirty: Vec::new() };
        }
        (state.names, state.durable_names) = (names.clone(), names);
        state.changes.clear();
        (state.locked, state.fault, state.dead) = (false, None, false);
        state.life += 1;
    }

    /// Ends the process only: everything written is there, locks are free.
    pub fn kill(&self) {
        let mut state = self.state();
        (state.locked, state.fault, state.dead) = (false, None, false);
        state.life += 1;
    }

    /// Files and their lengths.
    #[must_use]
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let state = self.state();
        state.names.iter().map(|(path, &node)| (path.clone(), state.nodes[node].bytes.len() as u64)).collect()
    }

    /// The contents of a file; `None` when there is none.
    #[must_use]
    pub fn contents(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.state();
        state.names.get(path).map(|&node| state.nodes[node].bytes.clone())
    }

    /// Puts a file there, durably, as if it had always been.
    pub fn put(&self, path: &Path, bytes: &[u8]) {
        let mut state = self.state();
        let node = Node { bytes: bytes.to_vec(), durable: bytes.to_vec(), dirty: Vec::new() };
        state.nodes.push(node);
        let number = state.nodes.len() - 1;
        state.names.insert(path.to_path_buf(), number);
        state.durable_names.insert(path.to_path_buf(), number);
    }

    /// An independent copy of the disk as programs see it, everything durable.
    #[must_use]
    pub fn copy(&self, seed: u64) -> Self {
        let copy = Self::new(seed);
        for (path, _) in self.files() {
            copy.put(&path, &self.contents(&path).unwrap_or_default());
        }
        copy
    }

    /// Counts a call and says what becomes of it.
    fn enter(&self, what: impl FnOnce() -> String, life: Option<u64>) -> io::Result<(MutexGuard<'_, State>, Verdict)> {
        let mut state = self.state();
        if state.dead || life.is_some_and(|life| life != state.life) {
            return Err(broken());
        }
        let call = state.calls;
        state.calls += 1;
        let Some((_, fault)) = state.fault.filter(|(at, _)| *at == call) else { return Ok((state, Verdict::Go)) };
        state.fired = Some(format!("{fault:?} at call {call}, {}", what()));
        match fault {
            Fault::Fail => Err(broken()),
            Fault::Tear => Ok((state, Verdict::Part)),
            Fault::Crash => {
                state.dead = true;
                Ok((state, Verdict::Part))
            }
            Fault::Delay => {
                drop(state);
                std::thread::sleep(Duration::from_millis(3));
                Ok((self.state(), Verdict::Go))
            }
        }
    }
}

impl State {
    fn used(&self) -> u64 {
        self.names.values().map(|&node| self.nodes[node].bytes.len() as u64).sum()
    }

    fn change(&mut self, change: Change) {
        apply(&mut self.names, &change);
        self.changes.push(change);
    }

    fn node(&self, path: &Path) -> io::Result<usize> {
        self.names.get(path).copied().ok_or_else(|| io::Error::from_raw_os_error(2))
    }

    /// Whether a call that is to be done in part is done at all.
    fn half(&mut self, verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::Go) || self.chance.index(2) == 0
    }
}

fn end(verdict: &Verdict) -> io::Result<()> {
    match verdict {
        Verdict::Go => Ok(()),
        Verdict::Part => Err(broken()),
    }
}

impl Io for SimulatedDisk {
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>> {
        let (mut state, verdict) = self.enter(|| format!("open {} ({mode:?})", path.display()), None)?;
        let known = state.node(path);
        let node = match (mode, known) {
            (Mode::Create, Err(_)) if state.half(&verdict) => {
                state.nodes.push(Node::default());
                let node = state.nodes.len() - 1;
                state.change(Change::Link(path.to_path_buf(), node));
                node
            }
            (Mode::Create, Ok(node)) => {
                let node_state = &mut state.nodes[node];
                node_state.bytes.clear();
                node_state.dirty.clear();
                node
            }
            (_, known) => known?,
        };
        end(&verdict)?;
        Ok(Arc::new(SimulatedFile { disk: self.clone(), node, path: path.to_path_buf(), life: state.life }))
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        // Directories are there and durable as soon as they are made.
        let (_state, verdict) = self.enter(|| format!("create directory {}", path.display()), None)?;
        end(&verdict)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let (state, verdict) = self.enter(|| format!("list {}", directory.display()), None)?;
        end(&verdict)?;
        let here = state.names.keys().filter(|path| path.parent() == Some(directory));
        Ok(here.filter_map(|path| path.file_name()).map(|name| name.to_string_lossy().into_owned()).collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (mut state, verdict) = self.enter(|| format!("rename {}", from.display()), None)?;
        state.node(from)?;
        if state.half(&verdict) {
            state.change(Change::Rename(from.to_path_buf(), to.to_path_buf()));
        }
        end(&verdict)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let (mut state, verdict) = self.enter(|| format!("remove {}", path.display()), None)?;
        state.node(path)?;
        if state.half(&verdict) {
            state.change(Change::Unlink(path.to_path_buf()));
        }
        end(&verdict)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let (mut state, verdict) = self.enter(|| format!("sync directory {}", path.display()), None)?;
        let here = |change: &Change| match change {
            Change::Link(name, _) | Change::Unlink(name) | Change::Rename(name, _) => name.parent() == Some(path),
        };
        if state.half(&verdict) {
            let (done, left): (Vec<Change>, Vec<Change>) =
                std::mem::take(&mut state.changes).into_iter().partition(here);
            done.iter().for_each(|change| apply(&mut state.durable_names, change));
            state.changes = left;
        }
        end(&verdict)
    }

    fn lock(&self, path: &Path) -> io::Result<Locking> {
        let (mut state, verdict) = self.enter(|| format!("lock {}", path.display()), None)?;
        end(&verdict)?;
        if state.locked {
            return Ok(Locking::Taken("another process".into()));
        }
        state.locked = true;
        Ok(Locking::Held(Box::new(Unlock { disk: self.clone(), life: state.life })))
    }

    fn describe(&self) -> String {
        "simulated".into()
    }
}

struct Unlock {
    disk: SimulatedDisk,
    life: u64,
}

impl Drop for Unlock {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        if state.life == self.life {
            state.locked = false;
        }
    }
}

struct SimulatedFile {
    disk: SimulatedDisk,
    node: usize,
    path: PathBuf,
    life: u64,
}

impl SimulatedFile {
    fn enter(&self, what: &str) -> io::Result<(MutexGuard<'_, State>, Verdict)> {
        self.disk.enter(|| format!("{what} {}", self.path.display()), Some(self.life))
    }
}

impl File for SimulatedFile {
    fn length(&self) -> io::Result<u64> {
        let (state, verdict) = self.enter("length of")?;
        end(&verdict)?;
        Ok(state.nodes[self.node].bytes.len() as u64)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let (state, verdict) = self.enter("read")?;
        end(&verdict)?;
        let held = &state.nodes[self.node].bytes;
        let start = (offset as usize).min(held.len());
        let count = bytes.len().min(held.len() - start);
        bytes[..count].copy_from_slice(&held[start..start + count]);
        Ok(count)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (mut state, verdict) = self.enter("write")?;
        let start = offset as usize;
        let part = match verdict {
            Verdict::Go => bytes.len(),
            Verdict::Part => state.chance.index(bytes.len() + 1),
        };
        let grown = (start + part).saturating_sub(state.nodes[self.node].bytes.len()) as u64;
        if state.used() + grown > state.capacity {
            return Err(io::Error::from_raw_os_error(28));
        }
        let node = &mut state.nodes[self.node];
        if node.bytes.len() < start + part {
            node.bytes.resize(start + part, 0);
        }
        node.bytes[start..start + part].copy_from_slice(&bytes[..part]);
        node.dirty.push((start, start + part));
        end(&verdict)
    }

    fn sync(&self) -> io::Result<()> {
        let (mut state, verdict) = match self.enter("sync") {
            Ok(entered) => entered,
            Err(error) => {
                let state = &mut *self.disk.state();
                if !state.dead && state.life == self.life {
                    state.nodes[self.node].dirty.clear();
                }
                return Err(error);
            }
        };
        let part = matches!(verdict, Verdict::Part);
        let coins: Vec<bool> = (0..64).map(|_| state.chance.index(2) == 0).collect();
        let node = &mut state.nodes[self.node];
        let length = node.bytes.len();
        if !part || coins[63] {
            node.durable.resize(length, 0);
        }
        for (index, (start, end)) in std::mem::take(&mut node.dirty).into_iter().enumerate() {
            let end = end.min(node.durable.len()).min(length);
            if start < end && (!part || coins[index % 63]) {
                node.durable[start..end].copy_from_slice(&node.bytes[start..end]);
            }
        }
        end(&verdict)
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        let (mut state, verdict) = self.enter("allocate")?;
        let grown = length.saturating_sub(state.nodes[self.node].bytes.len() as u64);
        if state.used() + grown > state.capacity {
            return Err(io::Error::from_raw_os_error(28));
        }
        if state.half(&verdict) && grown > 0 {
            state.nodes[self.node].bytes.resize(length as usize, 0);
        }
        end(&verdict)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let (mut state, verdict) = self.enter("truncate")?;
        if state.half(&verdict) {
            let node = &mut state.nodes[self.node];
            node.bytes.truncate(length as usize);
            for range in &mut node.dirty {
                range.1 = range.1.min(length as usize);
            }
            node.dirty.retain(|(start, end)| start < end);
        }
        end(&verdict)
    }
}
