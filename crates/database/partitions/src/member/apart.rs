//! Members on other machines: connections that come and go, and calls that are looked at in their turn.
//!
//! Nobody votes, so nobody has to be there: who is away is waited for, and hears what was said meanwhile when it comes
//! back, or begins again. Everything that is said is of a call, and a call's values, outcome and footprint are the same
//! whenever they are said; so to say something twice does no harm, and is how nothing gets lost.
//!
//! A call whose arguments do not tell what it touches is *looked at* when everything before it has ended, at all
//! members: one of them runs it on copies of rows, which it asks the others for, and tells all what it touches. Nothing
//! changes in between, so what it touches is what it will touch. The price: everybody waits for everybody.
//!
//! Invariant: a member answers who looks at a call only while everything before that call has ended here and nothing
//! behind it has begun, or with what it touches, if that is known.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use lockwork_engine::registry::Registered;
use lockwork_procedure::key::Key;
use lockwork_procedure::program::Procedure;

use super::kept::{Kept, put};
use super::shares::Shares;
use super::transaction::Block;
use super::{End, Member, lock};
use crate::access::Access;
use crate::fetch::{LocalPartition, fetched};
use crate::layout::cuts;
use crate::message::{FETCH, FETCHED, FOOTPRINT, GOT, LOOKING, OUTCOMES, SETTLED, SHARE, VALUES};
use crate::partition;
use crate::stream::Stream;
use crate::wire::{Malformed, Put, Reader};

/// Procedures that a member has not met yet, in order, each with the id of the one that it replaces, if it does.
pub(crate) type Unmet = Arc<Mutex<Vec<(Option<u32>, Procedure)>>>;

/// A connection to another member that was just made.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) number: usize,
    pub(crate) stream: Stream,
    /// It wants to hear what is of this call and of later ones.
    pub(crate) from: u64,
}

/// Where connections are handed over, and which there are.
#[derive(Debug)]
pub(crate) struct Arrivals {
    new: Mutex<Vec<Arrival>>,
    bell: UnixStream,
    connected: Vec<AtomicBool>,
    trouble: Mutex<Vec<Option<String>>>,
    /// Why this member cannot go on, if so.
    end: OnceLock<String>,
}

impl Arrivals {
    /// For so many members, and what rings when somebody has come.
    pub(crate) fn new(members: usize) -> io::Result<(Self, UnixStream)> {
        let (bell, rings) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        rings.set_nonblocking(true)?;
        let connected = (0..members).map(|_| AtomicBool::new(false)).collect();
        let (trouble, end) = (Mutex::new(vec![None; members]), OnceLock::new());
        Ok((Self { new: Mutex::default(), bell, connected, trouble, end }, rings))
    }

    pub(crate) fn come(&self, arrival: Arrival) {
        self.connected[arrival.number].store(true, Ordering::Release);
        self.note(arrival.number, None);
        self.new.lock().unwrap_or_else(PoisonError::into_inner).push(arrival);
        // One that is full rings already.
        _ = (&self.bell).write(&[1]);
    }

    /// The connections that were made since the last call.
    pub(crate) fn take_new(&self) -> Vec<Arrival> {
        std::mem::take(&mut *self.new.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// This member cannot go on.
    pub(crate) fn end(&self, why: String) {
        _ = self.end.set(why);
        _ = (&self.bell).write(&[1]);
    }

    pub(crate) fn is_connected(&self, number: usize) -> bool {
        self.connected[number].load(Ordering::Acquire)
    }

    /// Why a member is not there, as far as is known.
    pub(crate) fn note(&self, number: usize, trouble: Option<String>) {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)[number] = trouble;
    }

    pub(crate) fn trouble(&self, number: usize) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)[number].clone()
    }
}

/// A call that is looked at.
#[derive(Debug)]
struct Look {
    stamp: u64,
    /// What this member runs, if it is the one who looks.
    attempt: Option<Attempt>,
}

#[derive(Debug)]
struct Attempt {
    registered: Arc<Registered>,
    block: Block,
    accesses: Vec<Access>,
    /// The question that is under way, and how many are still to answer it.
    question: u32,
    outstanding: usize,
}

/// Rows that somebody who looks at a call asks for.
#[derive(Debug)]
struct Asked {
    number: usize,
    stamp: u64,
    frame: Vec<u8>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Apart {
    arrivals: Arc<Arrivals>,
    rings: UnixStream,
    unmet: Unmet,
    /// Of each table: where its granules begin, and how many rows it had when that was found out.
    cuts: Vec<(u64, Vec<Key>)>,
    /// What was said to each.
    values: Vec<Kept>,
    outcomes: Vec<Kept>,
    pub(super) shares: Shares,
    /// What calls touch that were looked at: participants and footprint, as they are said.
    footprints: BTreeMap<u64, Vec<u8>>,
    look: Option<Look>,
    /// For which call each will ask next.
    looking: Vec<u64>,
    asked: Vec<Asked>,
    questions: u32,
}

impl Apart {
    /// `room`: bytes that are kept of what was said to each member.
    pub(crate) fn new(
        arrivals: Arc<Arrivals>,
        rings: UnixStream,
        unmet: Unmet,
        members: usize,
        room: usize,
        shares: Shares,
    ) -> Self {
        let kept = || (0..members).map(|_| Kept::new(room)).collect();
        Self {
            arrivals,
            rings,
            unmet,
            cuts: Vec::new(),
            values: kept(),
            outcomes: kept(),
            shares,
            footprints: BTreeMap::new(),
            look: None,
            looking: vec![0; members],
            asked: Vec::new(),
            questions: 0,
        }
    }

    /// Becomes readable when somebody has come.
    pub(super) fn bell(&self) -> RawFd {
        self.rings.as_raw_fd()
    }
}

impl Member {
    fn apart(&mut self) -> &mut Apart {
        self.apart.as_mut().expect("the others are on other machines")
    }

    /// Takes the connections that were made.
    pub(super) fn arrive(&mut self) -> Result<(), End> {
        let Some(apart) = &mut self.apart else { return Ok(()) };
        while matches!(apart.rings.read(&mut [0; 64]), Ok(count) if count > 0) {}
        if let Some(why) = apart.arrivals.end.get() {
            return Err(End::Failed(why.clone()));
        }
        let new = apart.arrivals.take_new();
        if new.is_empty() {
            return Ok(());
        }
        for Arrival { number, mut stream, from } in new {
            let apart = self.apart();
            let mut say = |kind, bytes: &[u8]| stream.send(|frame| put(frame, kind, bytes));
            let again = apart.values[number].again(from, &mut say);
            if let Err(why) = again.and_then(|()| apart.outcomes[number].again(from, &mut say)) {
                apart.arrivals.connected[number].store(false, Ordering::Release);
                apart.arrivals.note(number, Some(why));
                continue;
            }
            for (stamp, footprint) in apart.footprints.range(from..) {
                stream.send(|frame| put_footprint(frame, *stamp, footprint));
            }
            apart.asked.retain(|asked| asked.number != number);
            apart.shares.again(number, from);
            self.peers[number] = Some(stream);
        }
        self.look_again()
    }

    /// The connection to another member has ended.
    fn lose(&mut self, number: usize) -> Result<(), End> {
        let apart = self.apart();
        apart.asked.retain(|asked| asked.number != number);
        apart.arrivals.note(number, Some("the connection has ended".into()));
        apart.arrivals.connected[number].store(false, Ordering::Release);
        self.look_again()
    }

    /// Takes what another member says.
    pub(super) fn hear_apart(&mut self, number: usize, mut peer: Stream) -> Result<(), End> {
        // Whatever ends a connection, it is made again.
        if peer.receive().is_err() {
            return self.lose(number);
        }
        while let Some(frame) = peer.frame()? {
            let mut reader = Reader::new(&frame);
            match reader.u8()? {
                VALUES => self.take_values(number, frame)?,
                OUTCOMES => self.coordinator.send(|out| out.bytes(&frame)),
                FOOTPRINT => {
                    let stamp = reader.u64()?;
                    self.take_footprint(stamp, frame[9..].to_vec());
                }
                LOOKING => self.apart().looking[number] = reader.u64()?,
                SHARE => self.take_share(number, &mut peer, &mut reader)?,
                GOT => self.take_got(number, &mut reader)?,
                FETCH => {
                    let apart = self.apart();
                    let stamp = apart.looking[number];
                    apart.asked.push(Asked { number, stamp, frame });
                }
                FETCHED => {
                    let question = reader.u32()?;
                    // An answer may block the connection that brought it.
                    self.peers[number] = Some(peer);
                    self.take_answer(question, number, &mut reader)?;
                    match self.peers[number].take() {
                        Some(same) => peer = same,
                        None => return Ok(()),
                    }
                }
                other => return Err(Malformed::new(format_args!("a member sent a message of kind {other}")).into()),
            }
        }
        self.peers[number] = Some(peer);
        Ok(())
    }

    /// Sends everything that was said to others, and keeps it.
    pub(super) fn say_apart(&mut self) {
        self.share();
        let Self { apart, peers, said, latest, .. } = self;
        let Some(apart) = apart else { return };
        for (number, peer) in peers.iter_mut().enumerate() {
            let kept =
                [(VALUES, &mut said.values, &mut apart.values), (OUTCOMES, &mut said.outcomes, &mut apart.outcomes)];
            for (kind, said, kept) in kept {
                let bytes = &mut said[number];
                kept[number].keep(kind, bytes, *latest);
                if let (Some(peer), false) = (&mut *peer, bytes.is_empty()) {
                    peer.send(|frame| put(frame, kind, bytes));
                }
                bytes.clear();
            }
            if let Some(peer) = peer {
                // One that is gone is noticed where it is heard.
                _ = peer.flush();
            }
        }
    }

    /// Everything that was told has ended.
    pub(super) fn settled(&mut self) -> Result<(), End> {
        if let Some(number) = self.settling.take() {
            // What became of it is said before.
            self.say_to_coordinator();
            self.coordinator.send(|frame| {
                frame.u8(SETTLED);
                frame.u32(number);
            });
        }
        Ok(())
    }

    /// Meets procedures that are new, and says where the granules of all tables begin.
    pub(super) fn renew(&mut self) -> Result<Vec<Vec<Key>>, End> {
        let Self { apart, registry, engine, .. } = self;
        let apart = apart.as_mut().expect("the others are on other machines");
        let mut unmet = std::mem::take(&mut *apart.unmet.lock().unwrap_or_else(PoisonError::into_inner));
        let mut registered = Ok(());
        let known = &mut apart.cuts;
        lock(engine).with_database(&mut |database| {
            registered = unmet.drain(..).try_for_each(|(id, procedure)| match id {
                Some(id) => registry.replace(id, Registered::of(procedure, database)?),
                None => registry.register(procedure, database).map(drop),
            });
            known.resize_with(database.len(), Default::default);
            for (id, known) in (0_u16..).zip(known.iter_mut()) {
                let table = database.table(id);
                // A table that has grown a lot is cut anew.
                if registry.is_scanned(id) && table.len() > 2 * known.0 {
                    *known = (table.len(), cuts(table));
                }
            }
        })?;
        registered?;
        Ok(known.iter().map(|(_, cuts)| cuts.clone()).collect())
    }

    /// No member begins before this call any more.
    pub(super) fn forget(&mut self, stamp: u64) {
        let Some(apart) = &mut self.apart else { return };
        apart.values.iter_mut().chain(&mut apart.outcomes).for_each(|kept| kept.forget(stamp));
        apart.footprints = apart.footprints.split_off(&stamp);
        apart.shares.forget(stamp);
    }

    /// It is a call's turn to be looked at.
    pub(super) fn take_look(&mut self, reader: &mut Reader<'_>) -> Result<(), End> {
        let (stamp, who) = (reader.u64()?, reader.u16()?);
        let (registered, _, arguments) = self.call(reader)?;
        let attempt = (usize::from(who) == self.me).then(|| {
            let mut block = Block::default();
            block.fill(&registered, arguments);
            Attempt { registered, block, accesses: Vec::new(), question: 0, outstanding: 0 }
        });
        let apart = self.apart();
        if let Some(known) = apart.footprints.get(&stamp) {
            let known = known.clone();
            self.coordinator.send(|frame| put_footprint(frame, stamp, &known));
            return Ok(());
        }
        apart.look = Some(Look { stamp, attempt });
        self.look_again()
    }

    /// Begins to look at a call, if it is this member's to do.
    fn look_again(&mut self) -> Result<(), End> {
        let apart = self.apart();
        let Some(attempt) = apart.look.as_mut().and_then(|look| look.attempt.as_mut()) else { return Ok(()) };
        attempt.accesses.clear();
        attempt.outstanding = 0;
        self.look_on()
    }

    /// Runs the call that is looked at until it has everything, or has to wait for others.
    fn look_on(&mut self) -> Result<(), End> {
        let Some(mut look) = self.apart().look.take() else { return Ok(()) };
        let Some(attempt) = &mut look.attempt else {
            self.apart().look = Some(look);
            return Ok(());
        };
        while attempt.outstanding == 0 {
            fetched(&mut attempt.accesses);
            let (registered, block) = (attempt.registered.clone(), attempt.block.as_mut_ptr());
            // SAFETY: the block is the procedure's.
            let (_, lacks) = unsafe { self.windows.attempt(&registered, block, &mut attempt.accesses) };
            if !lacks.fetch {
                let (participants, footprint) = self.footprint(&attempt.accesses);
                let mut bytes = Vec::new();
                bytes.u64(participants.all);
                bytes.u64(participants.active);
                bytes.counted(&footprint);
                let stamp = look.stamp;
                self.apart().look = Some(look);
                self.take_footprint(stamp, bytes);
                return Ok(());
            }
            let me = self.me;
            let is_absent = |(number, peer): (usize, &Option<Stream>)| number != me && peer.is_none();
            if self.peers.iter().enumerate().any(is_absent) {
                // It is begun anew when somebody comes.
                break;
            }
            let Self { engine, layout, peers, apart, .. } = self;
            let apart = apart.as_mut().expect("the others are on other machines");
            let layout = layout.as_ref().expect("it was begun");
            apart.questions += 1;
            attempt.question = apart.questions;
            for peer in peers.iter_mut().flatten() {
                peer.send(|frame| {
                    frame.u8(LOOKING);
                    frame.u64(look.stamp);
                });
            }
            lock(engine).with_database(&mut |database| {
                let here = LocalPartition { layout, database, me };
                attempt.outstanding = here.fetch(&mut attempt.accesses, attempt.question, peers);
            })?;
        }
        self.apart().look = Some(look);
        Ok(())
    }

    /// Takes rows that were asked for to look at a call.
    fn take_answer(&mut self, question: u32, number: usize, reader: &mut Reader<'_>) -> Result<(), End> {
        let Self { engine, layout, apart, me, .. } = self;
        let apart = apart.as_mut().expect("the others are on other machines");
        let attempt = apart.look.as_mut().and_then(|look| look.attempt.as_mut());
        let Some(attempt) = attempt.filter(|attempt| attempt.question == question && attempt.outstanding > 0) else {
            // It was asked again, or is known by now.
            return Ok(());
        };
        let layout = layout.as_ref().expect("it was begun");
        let mut taken = Ok(());
        lock(engine).with_database(&mut |database| {
            taken = LocalPartition { layout, database, me: *me }.take(&mut attempt.accesses, number, reader);
        })?;
        taken?;
        attempt.outstanding -= 1;
        self.look_on()
    }

    /// Somebody, or this member, has found out what a call touches.
    fn take_footprint(&mut self, stamp: u64, bytes: Vec<u8>) {
        let Self { apart, coordinator, peers, .. } = self;
        let apart = apart.as_mut().expect("the others are on other machines");
        let is_new = !apart.footprints.contains_key(&stamp);
        if let Some(look) = apart.look.take_if(|look| look.stamp == stamp) {
            coordinator.send(|frame| put_footprint(frame, stamp, &bytes));
            if look.attempt.is_some() {
                peers.iter_mut().flatten().for_each(|peer| peer.send(|frame| put_footprint(frame, stamp, &bytes)));
            }
        }
        if is_new {
            apart.footprints.insert(stamp, bytes);
        }
    }

    /// Answers those who look at calls, if it is time.
    pub(super) fn answer_apart(&mut self) -> Result<(), End> {
        let Self { engine, peers, apart, .. } = self;
        let Some(apart) = apart else { return Ok(()) };
        let Apart { asked, footprints, look, .. } = &mut **apart;
        let mut answered = Ok(());
        asked.retain(|asked| {
            let Some(peer) = &mut peers[asked.number] else { return false };
            if let Some(known) = footprints.get(&asked.stamp) {
                peer.send(|frame| put_footprint(frame, asked.stamp, known));
                return false;
            }
            if look.as_ref().is_none_or(|look| look.stamp != asked.stamp) {
                return true;
            }
            let done = answer_one(&**lock(engine), peer, &asked.frame);
            answered = std::mem::replace(&mut answered, Ok(())).and(done);
            false
        });
        answered
    }
}

/// Answers a `FETCH`.
fn answer_one(engine: &dyn lockwork_engine::Engine, peer: &mut Stream, asked: &[u8]) -> Result<(), End> {
    let mut reader = Reader::new(&asked[1..]);
    let (question, mut answer) = (reader.u32()?, Ok(()));
    engine.with_database(&mut |database| {
        peer.send(|frame| {
            frame.u8(FETCHED);
            frame.u32(question);
            answer = partition::answer(database, &mut reader, frame);
        });
    })?;
    Ok(answer?)
}

fn put_footprint(frame: &mut Vec<u8>, stamp: u64, footprint: &[u8]) {
    frame.u8(FOOTPRINT);
    frame.u64(stamp);
    frame.bytes(footprint);
}
