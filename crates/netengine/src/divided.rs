//! One of several engines that run one order together, each with a part of every table, on as many machines.
//!
//! ```text
//!             the same batches, in the same order
//!        |                      |                     |
//!   [coordinator]          [coordinator]         [coordinator]    which calls touch this part; outcomes
//!        |                      |                     |
//!     [member] ---values---- [member] ---values--- [member]       runs them, keeps its rows
//! ```
//!
//! It is [`network-deterministic`](crate) turned round: there one coordinator tells each worker what concerns it, here
//! everyone is told everything, and picks. The member is the same, on a thread instead of in a process, with
//! connections to others that come and go. So who is gone is waited for; and who begins again, with the rows that it
//! had somewhere in the order, is given what follows, and hears from the others once more what they said of it.
//!
//! What calls touch is found out as in every engine of this crate. A call whose arguments tell costs those that it does
//! not concern a look at its keys; one that has to be looked at costs everybody a wait until all before it has ended.
//!
//! Source: Calvin (Thomson et al., SIGMOD 2012), sections 3.1 to 3.3.

mod outcomes;

use std::collections::{HashMap, VecDeque};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use lockwork_engine::registry::{Registered, Registry};
use lockwork_engine::{BatchReport, Completed, Divided, Engine, EngineError, Interrupt, Place, Refused, SerialOrder};
use lockwork_memory::Pages;
use lockwork_procedure::access::KeyAccess;
use lockwork_procedure::block::{Batch, Status, abort};
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::{Catalog, TableSchema};
use lockwork_storage::Database;

use crate::core::{Lost, refuse_if_lost};
use crate::layout::Spread;
use crate::links::{Links, Members, key};
use crate::member::{Apart, Arrivals, Member, Rows, engine, lock};
use crate::message::{FORGET, START};
use crate::stream::Stream;
use crate::wire::Put;

use outcomes::Outcomes;

/// The most parts: sets of them are words.
pub const MOST_PARTS: usize = 64;
/// Bytes that are kept, for each other engine, of what was said to it, unless told otherwise.
pub const KEPT_BYTES: usize = 256 << 20;

/// How an engine of several takes part.
#[derive(Debug)]
pub struct DividedOptions {
    /// Its part, from 0.
    pub part: u16,
    /// Where the engine of each part listens, its own included: host and port.
    pub addresses: Vec<String>,
    /// Where this one does: bound to its address.
    pub listener: TcpListener,
    /// Those of other clusters are not talked to.
    pub cluster: [u8; 16],
    /// All of them have it.
    pub secret: Vec<u8>,
    /// Bytes that are kept, for each other engine, of what was said to it; more is dropped, and who needs it then
    /// cannot go on.
    pub kept_bytes: usize,
    /// Of the rows.
    pub pages: Pages,
}

/// Which other engines are there.
#[derive(Clone, Debug)]
pub struct Others {
    me: usize,
    arrivals: Arc<Arrivals>,
    addresses: Vec<String>,
}

impl Others {
    /// For every part: the address of its engine, and why it is not connected, if so.
    #[must_use]
    pub fn status(&self) -> Vec<(String, Option<String>)> {
        let trouble = |number: usize| match number == self.me || self.arrivals.is_connected(number) {
            true => None,
            false => Some(self.arrivals.trouble(number).unwrap_or_else(|| "not yet connected".into())),
        };
        self.addresses.iter().enumerate().map(|(number, address)| (address.clone(), trouble(number))).collect()
    }
}

/// Everything that the thread which runs batches has.
struct Core {
    me: usize,
    parts: usize,
    /// The tables without rows: what procedures are verified against.
    tables: Database,
    registry: Registry,
    spreads: Vec<Spread>,
    /// The rows.
    rows: Rows,
    procedures: Arc<Mutex<Vec<Procedure>>>,
    /// Whether the member has not met all procedures and tables.
    is_stale: bool,
    member: Stream,
    settled: u32,
    /// Outcomes that others have said of calls that are not told yet, by stamp.
    early: HashMap<u64, Vec<u8>>,
    known: Vec<KeyAccess>,
    calls: Vec<u8>,
    /// The first call of which something may still have to be heard.
    wanted: Arc<AtomicU64>,
    interrupt: Interrupt,
    lost: Lost,
    first_sequence: u64,
    conflicts: u64,
}

/// See the module.
pub struct DividedEngine {
    core: Arc<Mutex<Core>>,
    part: (u16, u16),
    lost: Lost,
    interrupt: Interrupt,
    others: Others,
    joining: Option<(Members, TcpListener)>,
    links: Option<Links>,
    wanted: Arc<AtomicU64>,
    /// The stamp behind the last one, for those who give none.
    next: u64,
    to_leader: Option<Sender<(Batch, Place)>>,
    from_leader: Receiver<Completed>,
    in_flight: usize,
    threads: Vec<JoinHandle<()>>,
}

fn own(core: &Mutex<Core>) -> MutexGuard<'_, Core> {
    core.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DividedEngine {
    /// An engine without tables. It looks for the others when the first batch comes.
    ///
    /// # Errors
    /// [`EngineError::Setting`]; [`EngineError::BackEnd`] for what the system refuses.
    pub fn new(options: DividedOptions) -> Result<Self, EngineError> {
        let DividedOptions { part, addresses, listener, cluster, secret, kept_bytes, pages } = options;
        let parts = addresses.len();
        if !(1..=MOST_PARTS).contains(&parts) || usize::from(part) >= parts {
            let text = format!("part {} of {parts}: 1 to {MOST_PARTS} parts are possible", u32::from(part) + 1);
            return Err(EngineError::Setting(text));
        }
        let system = |error: std::io::Error| EngineError::BackEnd(format!("a divided engine: {error}"));
        let (me, procedures) = (usize::from(part), Arc::new(Mutex::new(Vec::new())));
        let (arrivals, rings) = Arrivals::new(parts).map_err(system)?;
        let (arrivals, rows) = (Arc::new(arrivals), Arc::new(Mutex::new(engine(pages)?)));
        let apart = Box::new(Apart::new(arrivals.clone(), rings, procedures.clone(), parts, kept_bytes));
        let (mine, theirs) = UnixStream::pair().map_err(system)?;
        let (mine, theirs) = (Stream::new(mine).map_err(system)?, Stream::new(theirs).map_err(system)?);
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let spawned = std::thread::Builder::new().name(name.into()).spawn(work);
            spawned.map_err(|error| EngineError::Worker(format!("could not be started: {error}")))
        };
        let shared = rows.clone();
        let member = spawn(
            "lockwork-member",
            Box::new(move || {
                let peers = (0..parts).map(|_| None).collect();
                // Made here: it has addresses of its rows, and stays on one thread.
                let served = Member::new(theirs, peers, me, shared, Some(apart)).serve();
                if let Err(why) = served {
                    eprintln!("lockwork: a divided engine has ended: {why}");
                }
            }),
        )?;
        let (lost, interrupt, wanted) = (Lost::default(), Interrupt::default(), Arc::new(AtomicU64::new(0)));
        let core = Arc::new(Mutex::new(Core {
            me,
            parts,
            tables: Database::default(),
            registry: Registry::default(),
            spreads: Vec::new(),
            rows,
            procedures,
            is_stale: true,
            member: mine,
            settled: 0,
            early: HashMap::new(),
            known: Vec::new(),
            calls: Vec::new(),
            wanted: wanted.clone(),
            interrupt: interrupt.clone(),
            lost: lost.clone(),
            first_sequence: 0,
            conflicts: 0,
        }));
        let (to_leader, batches) = channel::<(Batch, Place)>();
        let (finished, from_leader) = channel();
        let shared = core.clone();
        let leader = spawn(
            "lockwork-divided",
            Box::new(move || {
                for (batch, place) in batches {
                    if finished.send(own(&shared).run(batch, place)).is_err() {
                        return;
                    }
                }
            }),
        )?;
        let members = Members { me: part, begun: 0, addresses: addresses.clone(), cluster, key: key(&secret) };
        Ok(Self {
            core,
            part: (part, parts as u16),
            lost,
            interrupt,
            others: Others { me, arrivals, addresses },
            joining: Some((members, listener)),
            links: None,
            wanted,
            next: 1,
            to_leader: Some(to_leader),
            from_leader,
            in_flight: 0,
            threads: vec![leader, member],
        })
    }

    /// Which other engines are there, now and later.
    #[must_use]
    pub fn others(&self) -> Others {
        self.others.clone()
    }

    /// The core, while nothing is in flight.
    fn idle(&self) -> Result<MutexGuard<'_, Core>, EngineError> {
        match self.in_flight {
            0 => Ok(own(&self.core)),
            busy => Err(EngineError::Busy(busy)),
        }
    }

    /// Looks for the others: what is of calls before `stamp` need not be heard.
    fn join(&mut self, stamp: u64) -> Result<(), EngineError> {
        let Some((mut members, listener)) = self.joining.take() else { return Ok(()) };
        members.begun = stamp;
        self.wanted.store(stamp, Ordering::Release);
        let links = Links::start(members, &listener, self.others.arrivals.clone(), self.wanted.clone());
        self.links = Some(links.map_err(|error| EngineError::BackEnd(format!("a divided engine: {error}")))?);
        Ok(())
    }
}

impl Divided for DividedEngine {
    fn part(&self) -> (u16, u16) {
        self.part
    }

    fn begin(&mut self, stamp: u64) -> Result<(), EngineError> {
        drop(self.idle()?);
        self.wanted.fetch_max(stamp, Ordering::AcqRel);
        self.join(stamp)
    }

    fn submit_at(&mut self, batch: Batch, place: Place) -> Result<(), Box<Refused>> {
        let ready = refuse_if_lost(&self.lost).and_then(|()| self.join(place.stamp));
        if let Err(error) = ready {
            return Err(Box::new(Refused { batch, error }));
        }
        assert!(place.stamp >= self.next, "stamps grow");
        self.next = place.stamp + batch.len() as u64;
        let refused = match &self.to_leader {
            Some(to_leader) => to_leader.send((batch, place)).err().map(|refused| refused.0.0),
            None => Some(batch),
        };
        if let Some(batch) = refused {
            return Err(Box::new(Refused { batch, error: EngineError::Worker("died".into()) }));
        }
        self.in_flight += 1;
        Ok(())
    }

    fn interrupt(&self) -> Interrupt {
        self.interrupt.clone()
    }

    fn forget(&mut self, stamp: u64) -> Result<(), EngineError> {
        self.idle()?.member.send(|frame| {
            frame.u8(FORGET);
            frame.u64(stamp);
        });
        Ok(())
    }
}

impl Engine for DividedEngine {
    fn name(&self) -> &'static str {
        "divided"
    }

    fn serial_order(&self) -> SerialOrder {
        SerialOrder::Batch
    }

    fn create_table(&mut self, schema: TableSchema, rows: usize) -> Result<u16, EngineError> {
        let core = &mut *self.idle()?;
        let expected = rows.div_ceil(core.parts);
        lock(&core.rows).create_table(schema.clone(), expected)?;
        core.spreads.push(Spread::of(&schema));
        core.is_stale = true;
        Ok(core.tables.create_table(schema, 1)?)
    }

    fn register(&mut self, procedure: Procedure) -> Result<u32, EngineError> {
        let core = &mut *self.idle()?;
        let id = core.registry.register(procedure.clone(), &core.tables)?;
        lock(&core.rows).register(procedure.clone())?;
        core.procedures.lock().unwrap_or_else(PoisonError::into_inner).push(procedure);
        core.is_stale = true;
        Ok(id)
    }

    fn accepts(&self, procedure: &Procedure, tables: &dyn Catalog) -> Result<(), EngineError> {
        own(&self.core).registry.accepts(procedure, tables)
    }

    fn procedure(&self, id: u32) -> Option<Arc<Registered>> {
        own(&self.core).registry.get(id).cloned()
    }

    fn procedure_id(&self, name: &str) -> Option<u32> {
        own(&self.core).registry.id(name)
    }

    /// The rows of this part.
    fn with_database(&self, read: &mut dyn FnMut(&Database)) -> Result<(), EngineError> {
        let core = self.idle()?;
        refuse_if_lost(&core.lost)?;
        lock(&core.rows).with_database(read)
    }

    /// Without a place, batches stand one behind the other, and this part is home to all.
    fn submit(&mut self, batch: Batch) -> Result<(), Box<Refused>> {
        let place = Place { stamp: self.next, home: self.part.0 };
        self.submit_at(batch, place)
    }

    fn complete(&mut self) -> Result<Option<Completed>, EngineError> {
        if self.in_flight == 0 {
            return Ok(None);
        }
        let completed = self.from_leader.recv().map_err(|_| EngineError::Worker("died".into()))?;
        self.in_flight -= 1;
        refuse_if_lost(&self.lost)?;
        Ok(Some(completed))
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// A row of another part is not kept here.
    fn load(&mut self, table: &str, image: &[u8]) -> Result<(), EngineError> {
        self.load_rows(table, image.len().max(1), image)
    }

    fn load_rows(&mut self, table: &str, width: usize, images: &[u8]) -> Result<(), EngineError> {
        let core = &mut *self.idle()?;
        let Some((id, _)) = Catalog::table(&core.tables, table) else {
            // It says what is wrong.
            return lock(&core.rows).load_rows(table, width, images);
        };
        let (spread, known) = (core.spreads[usize::from(id)], core.tables.table(id).clone());
        let format = known.key_format();
        let mut mine = Vec::new();
        for image in images.chunks(width) {
            let is_whole = image.len() >= format.image_bytes();
            let owner = if is_whole { spread.owner(&format.encode(image), core.parts) } else { None };
            if owner.is_none_or(|owner| owner == core.me) {
                mine.extend_from_slice(image);
            }
        }
        lock(&core.rows).load_rows(table, width, &mine)
    }
}

impl Drop for DividedEngine {
    fn drop(&mut self) {
        self.interrupt.set();
        self.to_leader = None;
        self.links = None;
        // The leader ends first; its end of the socket, and with it the member, when the last who has the core does.
        let mut threads = VecDeque::from(std::mem::take(&mut self.threads));
        if let Some(leader) = threads.pop_front() {
            drop(leader.join());
        }
        own(&self.core).member.close();
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl Core {
    /// Has the member meet what was defined since it did.
    fn renew(&mut self) {
        if std::mem::take(&mut self.is_stale) {
            self.member.send(|frame| frame.u8(START));
        }
    }

    /// Runs a batch at its place.
    fn run(&mut self, mut batch: Batch, place: Place) -> Completed {
        let start = Instant::now();
        self.wanted.fetch_max(place.stamp, Ordering::AcqRel);
        self.renew();
        let ran = Outcomes::new(self, &batch, place).run(&mut batch);
        if let Err(error) = ran {
            _ = self.lost.set(error.to_string());
            for index in 0..batch.len() {
                batch.block_mut(index).set_outcome(Status::Failed, abort::DEVICE_LOST);
            }
        }
        for index in 0..batch.len() {
            batch.block_mut(index).set_sequence(self.first_sequence + index as u64);
        }
        self.first_sequence += batch.len() as u64;
        self.wanted.fetch_max(place.stamp + batch.len() as u64, Ordering::AcqRel);
        let mut report = BatchReport { total_ns: start.elapsed().as_nanos() as u64, ..BatchReport::default() };
        let known = batch.blocks().filter(|block| block.status() != Some(Status::Pending));
        known.for_each(|block| report.tally.count(block.status().unwrap_or(Status::Failed), block.abort_code()));
        Completed { batch, report }
    }
}
