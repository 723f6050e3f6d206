//! What clients ask for: each does one thing after the other, and repeats it until it knows what became of it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

use lockwork_procedure::block::{Batch, Block, BlockMut, Status};
use lockwork_procedure::request::RequestId;
use lockwork_storage::Digest;

use super::checker::Outcome;
use super::counters::Seen;
use super::director::Told;
use super::nodes::Plan;
use super::world::{BEGIN_MS, MILLISECOND, SECOND, State, World};
use crate::error::Error;
use crate::format::items::Definition;
use crate::journal::election::Role;
use crate::order::Request;
use crate::sequencer::Handle;

/// Accounts, and what each begins with.
pub(super) const ACCOUNTS: i64 = 10;
pub(super) const BALANCE: i64 = 1000;

/// What there is before anything else, in this order: procedures are known by their place in it.
pub(super) const FURNITURE: [(&str, &str); 4] = [
    ("accounts", "table accounts (id: i64 key, balance: i64) partition by hash(id)"),
    (
        "transfer",
        "procedure transfer\ntable accounts\nparam from: i64\nparam to: i64\nparam amount: i64\n\
         result from_balance: i64\nresult to_balance: i64\n\
         update c0, accounts, [from]\nupdate c1, accounts, [to]\nret r1, c0\nret r2, c1\nload r3, [amount]\n\
         loadr r4, r1[accounts.balance]\ncmp r4, r3\nbl poor\nsub r4, r4, r3\nstorer r4, r1[accounts.balance]\n\
         loadr r5, r2[accounts.balance]\nadd r5, r5, r3\nstorer r5, r2[accounts.balance]\n\
         store r4, [from_balance]\nstore r5, [to_balance]\ncommit\npoor:\nabort 1\n",
    ),
    (
        "audit",
        "procedure audit\ntable accounts\nparam id: i64\nresult balance: i64\n\
         search c0, accounts, [id]\nret r1, c0\nloadr r2, r1[accounts.balance]\nstore r2, [balance]\ncommit\n",
    ),
    (
        "open",
        "procedure open\ntable accounts\nparam id: i64\nparam balance: i64\n\
         insert c0, accounts, [id]\nret r1, c0\nload r2, [balance]\nstorer r2, r1[accounts.balance]\ncommit\n",
    ),
];
const TRANSFER: u32 = 0;
const AUDIT: u32 = 1;
const OPEN: u32 = 2;

/// Bytes of a block, and where arguments begin; results are behind them.
const BLOCK: u32 = 72;
const ARGUMENTS: usize = 32;

/// An account's row.
pub(super) fn image(id: i64, balance: i64) -> [u8; 16] {
    let mut image = [0; 16];
    image[..8].copy_from_slice(&id.to_le_bytes());
    image[8..].copy_from_slice(&balance.to_le_bytes());
    image
}

/// Something that a client does.
#[derive(Clone, Debug)]
pub(super) enum Task {
    Define {
        name: String,
        assembly: String,
    },
    Open {
        request: u64,
        id: i64,
    },
    Transfer {
        request: u64,
        from: i64,
        to: i64,
        amount: i64,
    },
    Audit {
        id: i64,
        known: u64,
    },
    /// Of everything, at some node, no earlier than behind a record; until then it waits.
    Read {
        node: usize,
        after: u64,
        until: u64,
    },
}

/// What a client heard.
#[derive(Clone, Debug)]
pub(super) enum Said {
    Done,
    /// The record that was read.
    Read(u64),
    /// It has not happened: call another one, or again.
    Not(Seen),
    /// It is for the leader; which node that is, as far as is known.
    Elsewhere(Option<usize>),
    Unknown,
    /// Whether it has happened was forgotten.
    TooOld,
}

/// See the module.
pub(super) struct Client {
    pub(super) number: usize,
    pub(super) task: Option<Task>,
    /// When it does something next.
    pub(super) at: u64,
    /// Which process it waits for.
    pub(super) waits: Option<usize>,
    /// Counts what it has asked.
    pub(super) attempt: u64,
    /// How often it has asked for what it does.
    pub(super) tries: u64,
    /// The node that it asks next.
    pub(super) node: usize,
    /// The last record that it knows, and what it read last, of which process, since that last joined.
    seen: u64,
    session: (usize, u64),
    requests: u64,
    /// When it began what it does, in milliseconds.
    pub(super) began: u64,
    /// It makes another request id for each attempt, which no client may.
    is_forgetful: bool,
    /// The answer to a definition that it waits for.
    pub(super) definition: Option<Receiver<Result<(), Error>>>,
}

/// The request id of a call that a client numbers so and that it began at a time of the simulation, in milliseconds.
fn request_id(number: u64, began: u64) -> RequestId {
    let mut random = [0; 10];
    random[2..].copy_from_slice(&number.to_be_bytes());
    RequestId::new(BEGIN_MS + began, random)
}

/// The number that a client gave to the call with a request id.
pub(super) fn number_of(request: RequestId) -> u64 {
    let bytes = request.to_bytes();
    u64::from_be_bytes(bytes[8..].try_into().expect("eight bytes")) & (u64::MAX >> 2)
}

fn block(procedure: u32, request: Option<RequestId>, arguments: &[i64]) -> Vec<u8> {
    let mut batch = Batch::new(BLOCK, 1).expect("one block");
    let mut block = batch.push(procedure).expect("there is room for one");
    for (argument, bytes) in arguments.iter().zip(block.bytes()[ARGUMENTS..].chunks_exact_mut(8)) {
        bytes.copy_from_slice(&argument.to_le_bytes());
    }
    let mut bytes = batch.block(0).bytes()[..BLOCK as usize].to_vec();
    BlockMut::new(&mut bytes).set_request(request);
    bytes
}

fn word(block: &[u8], index: usize) -> i64 {
    let at = ARGUMENTS + 8 * index;
    i64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"))
}

/// What an error says.
fn refused(error: &Error) -> Said {
    match error {
        Error::Follower { leader } => Said::Elsewhere(leader.strip_prefix("node ").and_then(|node| node.parse().ok())),
        Error::Superseded => Said::Not(Seen::Superseded),
        Error::JournalFull(_) => Said::Not(Seen::Full),
        Error::Lapsed => Said::Not(Seen::Lapsed),
        Error::RequestTooOld { .. } => Said::TooOld,
        _ => Said::Unknown,
    }
}

impl Client {
    pub(super) fn new(number: usize, is_forgetful: bool) -> Self {
        Self {
            number,
            task: None,
            at: 0,
            waits: None,
            attempt: 0,
            tries: 0,
            node: 0,
            seen: 0,
            session: (0, 0),
            requests: 0,
            began: 0,
            is_forgetful,
            definition: None,
        }
    }

    /// A request id of its own.
    fn request(&mut self) -> u64 {
        self.requests += 1;
        (self.number as u64 + 1) << 32 | self.requests
    }

    /// Begins with something.
    pub(super) fn choose(&mut self, state: &mut State, nodes: usize, plan: &Plan) {
        if state.happens(plan.wanders) {
            self.node = state.below(nodes as u64) as usize;
        }
        let draw = if state.happens(plan.reads) { 68 } else { state.below(100) };
        let from = state.below(ACCOUNTS as u64) as i64;
        let to = (from + 1 + state.below(ACCOUNTS as u64 - 1) as i64) % ACCOUNTS;
        self.task = Some(match draw {
            0..60 => {
                let amount = if draw < 6 { 100_000 } else { 1 + state.below(200) as i64 };
                Task::Transfer { request: self.request(), from, to, amount }
            }
            60..68 => Task::Audit { id: from, known: state.checker.known() },
            68..96 => {
                let after = if state.happens(500) { self.seen } else { 0 };
                Task::Read { node: state.below(nodes as u64) as usize, after, until: state.now + 10 * SECOND }
            }
            _ => {
                let name = format!("extra_{:x}", self.request());
                let assembly = FURNITURE[2].1.replace("procedure audit", &format!("procedure {name}"));
                Task::Define { name, assembly }
            }
        });
    }

    /// Whether what it defines is there, or never will be.
    pub(super) fn defined(&self) -> Option<Said> {
        match self.definition.as_ref()?.try_recv() {
            Ok(Ok(())) => Some(Said::Done),
            Ok(Err(error)) => Some(refused(&error)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Said::Unknown),
        }
    }

    pub(super) fn is_defining(&self) -> bool {
        self.definition.is_some()
    }

    /// Asks a process for what it does. Says whether it could.
    pub(super) fn ask(&mut self, world: &Arc<World>, life: usize, handle: &Handle, timeout: u64) -> bool {
        let Some(task) = self.task.clone() else { return false };
        self.attempt += 1;
        let (client, attempt) = (self.number, self.attempt);
        let asked = match task {
            Task::Define { name, assembly, .. } => {
                let (reply, answer) = sync_channel(1);
                self.definition = Some(answer);
                handle.give(Request::Define { definition: Definition::new(assembly, name), reply })
            }
            Task::Open { request, id } => self.once(world, life, handle, (OPEN, request, &[id, BALANCE])),
            Task::Transfer { request, from, to, amount } => {
                self.once(world, life, handle, (TRANSFER, request, &[from, to, amount]))
            }
            Task::Audit { id, known } => self.call(world, life, handle, block(AUDIT, None, &[id]), (0, known)),
            Task::Read { after, .. } => {
                if handle.record() < after {
                    world.state().saw(Seen::ReadWaited);
                    return false;
                }
                let least = if self.session.0 == life { after.max(self.session.1) } else { after };
                // Whoever leads now knows what anybody was told.
                let leads = handle.role() == Some(Role::Leading);
                let least = if leads { least.max(world.state().checker.known()) } else { least };
                let world = world.clone();
                handle.read_then(
                    |engine, record| (record, engine.digest().unwrap_or_default()),
                    move |seen| {
                        let seen = seen.and_then(|seen| seen.map_err(|_| Error::Closed));
                        let said = world.state().read(life, seen, least, leads);
                        if let Some(said) = said {
                            world.tell(Told::Said(client, attempt, said));
                        }
                    },
                )
            }
        };
        world.state().touch(life);
        self.waits = Some(life).filter(|_| asked.is_ok());
        self.at = world.state().now + timeout;
        asked.is_ok()
    }

    /// Calls a procedure with arguments and a request id.
    fn once(
        &self,
        world: &Arc<World>,
        life: usize,
        handle: &Handle,
        (procedure, number, arguments): (u32, u64, &[i64]),
    ) -> Result<(), Error> {
        let began = self.began + if self.is_forgetful { self.attempt } else { 0 };
        let block = block(procedure, Some(request_id(number, began)), arguments);
        self.call(world, life, handle, block, (number, 0))
    }

    /// Calls by a block; `request` is the client's number of the call, if it has one.
    fn call(
        &self,
        world: &Arc<World>,
        life: usize,
        handle: &Handle,
        block: Vec<u8>,
        (request, known): (u64, u64),
    ) -> Result<(), Error> {
        let (client, attempt, world) = (self.number, self.attempt, world.clone());
        handle.call_then(block, move |outcome| {
            let said = world.state().called(life, outcome, request, known);
            if let Some(said) = said {
                world.tell(Told::Said(client, attempt, said));
            }
        })
    }

    /// A read was answered.
    pub(super) fn has_read(&mut self, life: usize, record: u64) {
        self.session = (life, record);
        self.seen = self.seen.max(record);
    }

    /// A process begins again, and connections ended with its part before: it may have less now, if the log has lost
    /// its end meanwhile.
    pub(super) fn is_parted_from(&mut self, life: usize) {
        if self.session.0 == life {
            self.session.1 = 0;
        }
    }

    /// A call was answered; what it knows is what the log has by now.
    pub(super) fn has_called(&mut self, known: u64) {
        self.seen = self.seen.max(known);
    }
}

impl State {
    /// A process answers a call; `None` when nobody hears it.
    fn called(&mut self, life: usize, outcome: Result<Vec<u8>, Error>, request: u64, known: u64) -> Option<Said> {
        if self.lives[life].is_killed {
            return None;
        }
        let bytes = match outcome {
            Ok(bytes) => bytes,
            Err(error) => return Some(self.not(&error)),
        };
        let block = Block::new(&bytes);
        let checked = match (block.procedure(), block.status()) {
            (AUDIT, Some(Status::Committed)) => {
                self.saw(Seen::Audited);
                self.checker.audited(word(&bytes, 0), word(&bytes, 1), known)
            }
            (procedure, Some(Status::Committed)) => {
                let results = if procedure == TRANSFER { [word(&bytes, 3), word(&bytes, 4)] } else { [-1, -1] };
                self.saw(Seen::Committed);
                self.acknowledged(request, Outcome::Committed(results))
            }
            (_, Some(Status::Aborted)) => {
                self.saw(Seen::Aborted);
                self.acknowledged(request, Outcome::Aborted)
            }
            // Not all of the furniture is there at a node that has just begun to lead.
            (_, other) => Err(format!("a call of procedure {} had status {other:?}", block.procedure())),
        };
        self.check(checked);
        Some(Said::Done)
    }

    fn acknowledged(&mut self, request: u64, outcome: Outcome) -> Result<(), String> {
        let is_first = self.checker.acknowledged(request, outcome)?;
        if !is_first {
            self.saw(Seen::Repeated);
        }
        Ok(())
    }

    fn not(&mut self, error: &Error) -> Said {
        let said = refused(error);
        match said {
            Said::Not(seen) => self.saw(seen),
            Said::Elsewhere(_) => self.saw(Seen::RefusedByFollower),
            Said::TooOld => self.saw(Seen::TooOld),
            _ => self.saw(Seen::Unknown),
        }
        said
    }

    /// A process answers a read that wants record `least`.
    fn read(&mut self, life: usize, seen: Result<(u64, Digest), Error>, least: u64, leads: bool) -> Option<Said> {
        if self.lives[life].is_killed {
            return None;
        }
        let (record, digest) = match seen {
            Ok(seen) => seen,
            Err(error) => return Some(self.not(&error)),
        };
        if self.checker.is_damaged {
            return Some(Said::Read(record));
        }
        self.saw(if leads { Seen::ReadAtLeader } else { Seen::ReadAtFollower });
        if record < least {
            let who = self.name(life);
            self.fail(format!("{who} answered a read behind record {record}, and {least} was to be seen"));
        }
        let checked = self.checker.read(record, digest);
        self.check(checked);
        Some(Said::Read(record))
    }
}

/// How long a client waits before it does something again.
pub(super) fn pause(state: &mut State) -> u64 {
    10 * MILLISECOND + state.below(60 * MILLISECOND)
}
