//! One of several engines that run one order together, each with a part of every table, on as many machines.
//!
//! ```text
//!             the same batches, in the same order
//!        |                      |                     |
//!     [reach]                [reach]               [reach]        which calls touch this part
//!        |                      |                     |
//!   [coordinator]          [coordinator]         [coordinator]    who else takes part; outcomes
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
//! not concern a look at them where they stand in the log (`reach`); one that has to be looked at costs everybody a
//! wait until all before it has ended.
//!
//! Source: Calvin (Thomson et al., SIGMOD 2012), sections 3.1 to 3.3.

mod outcomes;
mod places;
mod reach;

use std::collections::{BTreeMap, VecDeque};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use lockwork_engine::registry::{Registered, Registry};
use lockwork_engine::{
    BatchReport, Calls, Completed, Divided, Engine, EngineError, Gathered, Images, Interrupt, Loaded, Place, Refused,
    SerialOrder,
};
use lockwork_memory::Pages;
use lockwork_procedure::block::{Batch, Status, abort};
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::{Catalog, TableSchema};
use lockwork_storage::Database;

use crate::coordinator::{Lost, refuse_if_lost};
use crate::exchange::Exchange;
use crate::layout::Spread;
use crate::links::{Links, Members, key};
use crate::member::{Apart, Arrivals, Member, Rows, Shares, Unmet, engine, lock};
use crate::message::{FORGET, START};
use crate::stream::Stream;
use crate::wire::Put;

use outcomes::Outcomes;
use reach::{Reach, Scratch};

/// The most parts: sets of them are words.
pub const MAX_PARTS: usize = 64;
/// Bytes that are kept, for each other engine, of what was said to it, unless told otherwise.
pub const KEPT_BYTES: usize = 256 << 20;

/// The number of a cluster, by its name.
#[must_use]
pub fn cluster_number(name: &str) -> [u8; 16] {
    let mut number = [0; 16];
    number.copy_from_slice(&blake3::derive_key("lockwork number of a divided cluster 1", name.as_bytes())[..16]);
    number
}

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
    /// Of each procedure.
    reaches: Vec<Arc<Reach>>,
    /// The rows.
    rows: Rows,
    unmet: Unmet,
    /// Whether the member has not met all procedures and tables.
    is_stale: bool,
    member: Stream,
    settled: u32,
    /// Frames of outcomes that others have said of calls of later batches, by the first stamp in them that is.
    early: BTreeMap<u64, Vec<Vec<u8>>>,
    scratch: Scratch,
    calls: Vec<u8>,
    /// The first call of which something may still have to be heard.
    wanted: Arc<AtomicU64>,
    /// What is told outside of calls.
    exchange: Arc<Exchange>,
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
    /// Of each procedure, as the core has them: to choose, no lock is taken.
    reaches: Vec<Arc<Reach>>,
    scratch: Scratch,
    /// The stamp behind the last one, for those who give none.
    next: u64,
    to_leader: Option<Sender<Submitted>>,
    from_leader: Receiver<Completed>,
    in_flight: usize,
    threads: Vec<JoinHandle<()>>,
}

/// Blocks, where they stand behind the place, and that.
type Submitted = (Batch, Vec<u32>, Place);

fn own(core: &Mutex<Core>) -> MutexGuard<'_, Core> {
    core.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number behind the last one.
fn behind(offsets: &[u32], place: Place) -> u64 {
    place.stamp + offsets.last().map_or(0, |&last| u64::from(last) + 1)
}

impl DividedEngine {
    /// An engine without tables. It looks for the others when the first batch comes.
    ///
    /// # Errors
    /// [`EngineError::Setting`]; [`EngineError::BackEnd`] for what the system refuses.
    pub fn new(options: DividedOptions) -> Result<Self, EngineError> {
        let DividedOptions { part, addresses, listener, cluster, secret, kept_bytes, pages } = options;
        let parts = addresses.len();
        if !(1..=MAX_PARTS).contains(&parts) || usize::from(part) >= parts {
            let text = format!("part {} of {parts}: 1 to {MAX_PARTS} parts are possible", u32::from(part) + 1);
            return Err(EngineError::Setting(text));
        }
        let system = |error: std::io::Error| EngineError::BackEnd(format!("a divided engine: {error}"));
        let (me, unmet) = (usize::from(part), Unmet::default());
        let (arrivals, rings) = Arrivals::new(parts).map_err(system)?;
        let (arrivals, rows) = (Arc::new(arrivals), Arc::new(Mutex::new(engine(pages)?)));
        let (lost, interrupt, wanted) = (Lost::default(), Interrupt::default(), Arc::new(AtomicU64::new(0)));
        let exchange = Arc::new(Exchange::new(wanted.clone()));
        let shares = Shares::new(exchange.clone());
        let apart = Box::new(Apart::new(arrivals.clone(), rings, unmet.clone(), parts, kept_bytes, shares));
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
        let core = Arc::new(Mutex::new(Core {
            me,
            parts,
            tables: Database::default(),
            registry: Registry::default(),
            spreads: Vec::new(),
            reaches: Vec::new(),
            rows,
            unmet,
            is_stale: true,
            member: mine,
            settled: 0,
            early: BTreeMap::new(),
            scratch: Scratch::default(),
            calls: Vec::new(),
            wanted: wanted.clone(),
            exchange,
            interrupt: interrupt.clone(),
            lost: lost.clone(),
            first_sequence: 0,
            conflicts: 0,
        }));
        let (to_leader, batches) = channel::<Submitted>();
        let (finished, from_leader) = channel();
        let shared = core.clone();
        let leader = spawn(
            "lockwork-divided",
            Box::new(move || {
                for (batch, offsets, place) in batches {
                    if finished.send(own(&shared).run(batch, &offsets, place)).is_err() {
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
            reaches: Vec::new(),
            scratch: Scratch::default(),
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

    /// Does something at a place that is no call's. What fails may have been done in half.
    fn at<T>(&mut self, place: Place, act: impl FnOnce(&mut Core) -> Result<T, EngineError>) -> Result<T, EngineError> {
        drop(self.idle()?);
        refuse_if_lost(&self.lost)?;
        self.join(place.stamp)?;
        assert!(place.stamp >= self.next, "stamps grow");
        self.next = place.stamp + 1;
        act(&mut own(&self.core)).inspect_err(|error| _ = self.lost.set(error.to_string()))
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

    fn choose(&mut self, calls: &Calls<'_>, chosen: &mut Vec<u32>) {
        match self.reaches.get(calls.procedure as usize) {
            Some(reach) => reach.choose(calls, self.part.0.into(), &mut self.scratch, chosen),
            None => chosen.extend(0..calls.count as u32),
        }
    }

    fn submit_some(&mut self, batch: Batch, offsets: Vec<u32>, place: Place) -> Result<(), Box<Refused>> {
        let ascend = offsets.is_sorted_by(|before, after| before < after);
        assert!(offsets.len() == batch.len() && ascend, "every block has an offset, and they ascend");
        let ready = refuse_if_lost(&self.lost).and_then(|()| self.join(place.stamp));
        if let Err(error) = ready {
            return Err(Box::new(Refused { batch, error }));
        }
        assert!(place.stamp >= self.next, "stamps grow");
        self.next = behind(&offsets, place);
        let refused = match &self.to_leader {
            Some(to_leader) => to_leader.send((batch, offsets, place)).err().map(|refused| refused.0.0),
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

    fn gather(&mut self, place: Place, tables: &[u16], most: u64, wants: bool) -> Result<Gathered, EngineError> {
        self.at(place, |core| core.gather(place, tables, most, wants))
    }

    fn load_at(&mut self, place: Place, tables: &[Images<'_>]) -> Result<Loaded, EngineError> {
        self.at(place, |core| core.load_at(place, tables))
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
        let mut guard = self.idle()?;
        let core = &mut *guard;
        let id = core.registry.register(procedure.clone(), &core.tables)?;
        let registered = core.registry.get(id).expect("it was just registered").clone();
        let reach = Arc::new(Reach::new(registered, &core.spreads, core.parts));
        core.reaches.push(reach.clone());
        lock(&core.rows).register(procedure.clone())?;
        core.unmet.lock().unwrap_or_else(PoisonError::into_inner).push((None, procedure));
        core.is_stale = true;
        drop(guard);
        self.reaches.push(reach);
        Ok(id)
    }

    fn replace(&mut self, id: u32, procedure: Procedure) -> Result<(), EngineError> {
        let mut guard = self.idle()?;
        let core = &mut *guard;
        core.registry.replace(id, Registered::of(procedure.clone(), &core.tables)?)?;
        let registered = core.registry.get(id).expect("it was just replaced").clone();
        let reach = Arc::new(Reach::new(registered, &core.spreads, core.parts));
        core.reaches[id as usize] = reach.clone();
        lock(&core.rows).replace(id, procedure.clone())?;
        core.unmet.lock().unwrap_or_else(PoisonError::into_inner).push((Some(id), procedure));
        core.is_stale = true;
        drop(guard);
        self.reaches[id as usize] = reach;
        Ok(())
    }

    fn accepts(&self, procedure: &Procedure, tables: &dyn Catalog, old: Option<u32>) -> Result<(), EngineError> {
        own(&self.core).registry.accepts(procedure, tables, old)
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

    /// Runs a batch at its place, where its blocks stand at these offsets.
    fn run(&mut self, mut batch: Batch, offsets: &[u32], place: Place) -> Completed {
        let start = Instant::now();
        self.wanted.fetch_max(place.stamp, Ordering::AcqRel);
        self.renew();
        let ran = Outcomes::new(self, offsets, place).run(&mut batch);
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
        self.wanted.fetch_max(behind(offsets, place), Ordering::AcqRel);
        let mut report = BatchReport { total_ns: start.elapsed().as_nanos() as u64, ..BatchReport::default() };
        let known = batch.blocks().filter(|block| block.status() != Some(Status::Pending));
        known.for_each(|block| report.tally.count(block.status().unwrap_or(Status::Failed), block.abort_code()));
        Completed { batch, report }
    }
}
