//! One side's end of a channel, used by many threads at once.
//!
//! Whoever waits for an entry may have to read the ring for others. At most one thread does at any time, the *leader*:
//! it takes what has come, puts each entry into the box of its call, and wakes whoever waits there. A thread that finds
//! something in its own box goes, and if nobody leads then, it wakes one that waits, to lead. So a lone caller reads
//! its own answer from the ring without a change of threads, and a crowd has one reader.
//!
//! Invariant: if a thread waits and nothing is in its box, somebody leads. Both are changed under one lock.
//!
//! The end comes once: the other process is gone, has sent what makes no sense, or has said that it ends. What had come
//! before is still delivered; an answer that was written is not lost with its writer.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::entry::{Body, Entry, Slots, WINDOW};
use super::ring::{self, Reader, Writer};
use super::segment::{Direction, ENTRY_BYTES, Segment};
use crate::link::Link;

/// The most entries that a leader takes before it looks who they are for.
const BATCH: usize = 32;

/// Why nothing more will come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The host has said so.
    Shutdown,
    /// The other process is gone.
    Gone(String),
    /// The other process has sent what makes no sense.
    Broken(String),
    /// The device of this process has panicked.
    Panicked(String),
}

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Host,
    Storage,
}

/// What a call in flight may do next.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    slots: Slots,
    /// Which of them the other side has, a bit for each.
    lent: u8,
}

#[derive(Debug)]
struct Desk {
    leading: bool,
    ended: bool,
    /// Entries that nobody has taken: one box for each call, and one for what belongs to none.
    boxes: Vec<VecDeque<Entry>>,
    /// How many threads wait at each box.
    waiting: Vec<u32>,
    calls: Vec<Option<InFlight>>,
}

/// Bytes that an end has moved.
#[derive(Debug, Default)]
pub(crate) struct Moved {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
}

/// An end.
#[derive(Debug)]
pub(crate) struct Port {
    segment: Arc<Segment>,
    side: Side,
    link: Link,
    spin: Duration,
    writer: Mutex<Writer>,
    reader: Mutex<Reader>,
    desk: Mutex<Desk>,
    wakes: Vec<Condvar>,
    end: OnceLock<End>,
    pub(crate) moved: Moved,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bits(slots: &Slots) -> u8 {
    (1 << slots.all().len()) - 1
}

impl Port {
    pub(crate) fn new(segment: Segment, side: Side, link: Link, spin: Duration) -> Self {
        let (calls, segment) = (usize::from(segment.size().calls), Arc::new(segment));
        let (sends, receives) = match side {
            Side::Host => (Direction::Submission, Direction::Completion),
            Side::Storage => (Direction::Completion, Direction::Submission),
        };
        let desk = Desk {
            leading: false,
            ended: false,
            boxes: vec![VecDeque::new(); calls + 1],
            waiting: vec![0; calls + 1],
            calls: vec![None; calls],
        };
        Self {
            side,
            link,
            spin,
            writer: Mutex::new(Writer::new(segment.clone(), sends)),
            reader: Mutex::new(Reader::new(segment.clone(), receives)),
            desk: Mutex::new(desk),
            wakes: (0..=calls).map(|_| Condvar::new()).collect(),
            end: OnceLock::new(),
            moved: Moved::default(),
            segment,
        }
    }

    /// The number of the box for entries of no call.
    pub(crate) fn common(&self) -> u16 {
        self.segment.size().calls
    }

    fn receives(&self) -> Direction {
        match self.side {
            Side::Host => Direction::Completion,
            Side::Storage => Direction::Submission,
        }
    }

    /// Nothing more will come, for this reason; the first one given counts.
    pub(crate) fn finish(&self, end: End) {
        if self.end.set(end).is_ok() {
            // The leader may sleep, or be about to; followers hear of it from the leader, and without one there are
            // none.
            ring::ring_all(&self.segment, self.receives());
        }
    }

    /// Why nothing more will come, if that is so.
    pub(crate) fn ended(&self) -> Option<&End> {
        self.end.get()
    }

    /// The other side breaks its promises.
    pub(crate) fn broken<T>(&self, problem: impl Into<String>) -> Result<T, End> {
        self.finish(End::Broken(problem.into()));
        Err(self.reason())
    }

    fn reason(&self) -> End {
        self.end.get().cloned().expect("it has ended for some reason")
    }

    /// A call of this host begins.
    pub(crate) fn begin(&self, call: u16, slots: Slots) {
        lock(&self.desk).calls[usize::from(call)] = Some(InFlight { slots, lent: 0 });
    }

    /// The call is over: entries about it make no sense any more.
    pub(crate) fn finished(&self, call: u16) {
        let mut desk = lock(&self.desk);
        desk.calls[usize::from(call)] = None;
        desk.boxes[usize::from(call)].clear();
    }

    /// The other side may write into these slots of a call; `None`: into all of them.
    pub(crate) fn lend(&self, call: u16, slot: Option<u16>) {
        if let Some(flight) = &mut lock(&self.desk).calls[usize::from(call)] {
            flight.lent |= match slot {
                Some(slot) => bit(&flight.slots, slot).unwrap_or_default(),
                None => bits(&flight.slots),
            };
        }
    }

    /// Says that calls are taken.
    pub(crate) fn ready(&self) -> Result<(), End> {
        self.send(&Entry::Ready)
    }

    /// Writes an entry.
    pub(crate) fn send(&self, entry: &Entry) -> Result<(), End> {
        let rung = {
            let mut writer = lock(&self.writer);
            let words = entry.encode(writer.position());
            match writer.push(&words) {
                Ok(rung) => rung,
                Err(problem) => return self.broken(problem),
            }
        };
        self.moved.sent.fetch_add(ENTRY_BYTES as u64, Ordering::Relaxed);
        // The device writes the host's memory; the host writes the device's doorbell.
        if self.side == Side::Storage || rung {
            self.link.line();
        }
        Ok(())
    }

    /// Copies a message into a slot.
    pub(crate) fn write(&self, slot: u16, parts: &[&[u8]]) -> u32 {
        let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
        self.segment.write(slot, parts);
        self.payload(bytes, &self.moved.sent);
        bytes as u32
    }

    /// Copies a message out of a slot.
    pub(crate) fn read(&self, slot: u16, length: u32, buffer: &mut Vec<u8>) {
        self.segment.read(slot, length as usize, buffer);
        self.payload(length as usize, &self.moved.received);
    }

    fn payload(&self, bytes: usize, count: &AtomicU64) {
        count.fetch_add(bytes as u64, Ordering::Relaxed);
        // The slots are in the host's memory.
        if self.side == Side::Storage {
            self.link.transfer(bytes);
        }
    }

    /// The next entry of a box, waiting for it.
    pub(crate) fn wait(&self, index: u16) -> Result<Entry, End> {
        let index = usize::from(index);
        let mut desk = lock(&self.desk);
        loop {
            if let Some(entry) = desk.boxes[index].pop_front() {
                self.pass_on(&desk);
                return Ok(entry);
            }
            if desk.ended {
                return Err(self.reason());
            }
            if desk.leading {
                desk.waiting[index] += 1;
                desk = self.wakes[index].wait(desk).unwrap_or_else(PoisonError::into_inner);
                desk.waiting[index] -= 1;
                continue;
            }
            desk.leading = true;
            drop(desk);
            let batch = self.take();
            desk = lock(&self.desk);
            desk.leading = false;
            let routed = batch.and_then(|batch| {
                let over = batch.is_empty();
                batch.into_iter().try_for_each(|entry| self.route(&mut desk, entry))?;
                Ok(over)
            });
            let over = routed.unwrap_or_else(|problem| {
                self.finish(End::Broken(problem));
                true
            });
            if over {
                desk.ended = true;
                self.wakes.iter().for_each(Condvar::notify_all);
            }
        }
    }

    /// Wakes one that waits, if nobody leads and it cannot wait until the doorbell rings.
    fn pass_on(&self, desk: &Desk) {
        let Some(index) = desk.waiting.iter().position(|waiting| *waiting > 0) else { return };
        // Who waits for a new call has nothing to do until there is one. The stand-in hears of a ring that is broken as
        // of one that has entries: whoever it wakes finds out.
        let patient = self.side == Side::Storage && index == usize::from(self.common());
        if desk.leading || patient && lock(&self.reader).leave().unwrap_or(false) {
            return;
        }
        self.wakes[index].notify_one();
    }

    /// Sees to it that somebody reads what comes while all are at work, until it is over. The storage has a thread for
    /// this.
    pub(crate) fn stand_in(&self) {
        while self.ended().is_none() {
            ring::stand_in(&self.segment, self.receives(), || self.pass_on(&lock(&self.desk)));
        }
    }

    /// Takes the entries that have come, at least one; none: it is over.
    fn take(&self) -> Result<Vec<Entry>, String> {
        let mut reader = lock(&self.reader);
        reader.awake();
        let mut batch = Vec::new();
        loop {
            let over = self.end.get().is_some();
            while batch.len() < BATCH {
                let position = reader.position();
                let Some(words) = reader.take()? else { break };
                batch.push(Entry::decode(&words, position, self.segment.size())?);
            }
            if over || !batch.is_empty() {
                break;
            }
            reader.wait(self.spin, || self.end.get().is_some())?;
        }
        self.moved.received.fetch_add((batch.len() * ENTRY_BYTES) as u64, Ordering::Relaxed);
        if self.side == Side::Storage {
            batch.iter().for_each(|_| self.link.line());
        }
        Ok(batch)
    }

    /// Puts an entry into its box, if the other side may send it now.
    fn route(&self, desk: &mut Desk, entry: Entry) -> Result<(), String> {
        let common = usize::from(self.common());
        let index = match (self.side, entry) {
            (Side::Storage, Entry::Call { call, slots, .. }) => {
                if desk.calls[usize::from(call)].is_some() {
                    return Err(format!("call {call} begins a second time before it has ended"));
                }
                let others = desk.calls.iter().flatten().flat_map(|other| other.slots.all());
                if let Some(slot) = others.into_iter().find(|slot| slots.all().contains(slot)) {
                    return Err(format!("call {call} brings slot {slot}, which another one has"));
                }
                desk.calls[usize::from(call)] = Some(InFlight { slots, lent: 0 });
                common
            }
            (Side::Storage, Entry::Shutdown) => {
                self.finish(End::Shutdown);
                return Ok(());
            }
            (Side::Host, Entry::Ready) if desk.boxes[common].is_empty() => common,
            (Side::Storage, Entry::More { call, slot, .. }) => in_flight(desk, call, Some(slot), false)?,
            (Side::Storage, Entry::Taken { call, slot }) => in_flight(desk, call, Some(slot), true)?,
            (Side::Host, Entry::Accepted { call, slot } | Entry::Piece { call, slot, .. }) => {
                in_flight(desk, call, Some(slot), true)?
            }
            (Side::Host, Entry::Done { call, body }) => match body {
                Body::Slot { slot, .. } => in_flight(desk, call, Some(slot), true)?,
                Body::Inline { .. } => in_flight(desk, call, None, true)?,
            },
            _ => return Err(format!("{entry:?} is not for this side, or not now")),
        };
        desk.boxes[index].push_back(entry);
        if desk.waiting[index] > 0 {
            self.wakes[index].notify_one();
        }
        Ok(())
    }
}

/// The bit of a slot among those of its call.
fn bit(slots: &Slots, slot: u16) -> Option<u8> {
    slots.all().iter().position(|other| *other == slot).map(|index| 1 << index)
}

/// The box of a call in flight that has this slot; if it is to be lent, it comes back.
fn in_flight(desk: &mut Desk, call: u16, slot: Option<u16>, back: bool) -> Result<usize, String> {
    let index = usize::from(call);
    let Some(flight) = &mut desk.calls[index] else { return Err(format!("call {call} is not in flight")) };
    if let Some(slot) = slot {
        let Some(bit) = bit(&flight.slots, slot) else { return Err(format!("call {call} has no slot {slot}")) };
        if back && flight.lent & bit == 0 {
            return Err(format!("call {call} gives slot {slot} back, which was not lent"));
        }
        if back {
            flight.lent &= !bit;
        }
    }
    // Every entry of a call but the last fits its slots once; more would fill our memory.
    if desk.boxes[index].len() > 2 * WINDOW {
        return Err(format!("call {call} has more entries than slots"));
    }
    Ok(index)
}
