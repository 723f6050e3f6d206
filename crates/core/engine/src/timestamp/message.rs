//! Messages between partition workers (BionicDB, section 4.6), and the rings that they go through.
//!
//! Between every two workers there is a bounded ring each way with one producer and one consumer. What a worker has to
//! say it collects, and hands over after each transaction's step: a message costs half a cache line, and the line that
//! says how far a ring is filled moves once for several. Later, at the end of a turn, workers would take turns, each
//! waiting for all that the other one does. Messages of one worker to another arrive in the order in which they were
//! sent.
//!
//! Nobody waits for room: what does not fit stays with its sender until the next time. So two workers whose rings are
//! full both go on, and go on emptying them.
//!
//! Invariant: addresses in messages stay good until they are answered (key images, jobs) or longer
//! (bundles, see there), or for ever (rows).

use lockwork_procedure::access::Operation;
use lockwork_procedure::key::Key;
use lockwork_storage::RowPtr;
use rtrb::{Consumer, Producer, RingBuffer};

use super::bundle::Wanted;
use super::header::Ending;
use crate::conflicts::Cause;

/// Messages that all rings of one worker hold together, about.
const RINGS: usize = 8_192;

/// Whose answer it is: transaction and CP register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Return {
    /// The number of the transaction's slot at its worker.
    pub(super) slot: u16,
    /// The CP register.
    pub(super) cp: u8,
}

/// What a scan wants of another partition.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) table: u16,
    /// First and last key of the range, both included.
    pub(super) from: Key,
    pub(super) to: Key,
    /// Rows of the partition, to be pinned.
    pub(super) rows: Vec<RowPtr>,
}

/// What one worker tells another.
#[derive(Clone, Copy, Debug)]
pub(super) enum Message {
    /// Run this DB instruction, which is no scan, in your partition.
    Access {
        to: Return,
        operation: Operation,
        table: u16,
        /// As the word of a row: the transaction's time, and how often it has pinned the row already.
        stamp: u64,
        /// The key, if it is one word, else its hash.
        word: u64,
        image: *const u8,
    },
    /// Find these rows, `count` of them, and pin them or hold them for writing; `block` is the transaction's.
    Fetch { slot: u16, count: u16, time: u64, block: *const u8, wanted: *mut Wanted },
    /// Pin the job's rows and leave the scan's time on its range.
    Scan { to: Return, time: u64, job: *const Job },
    /// The instructions of the first `count` CP registers are done, and these are their rows; for a scan, none.
    Granted { slot: u16, count: u8, cps: [u8; 3], rows: [u64; 3] },
    /// All rows of the bundle are granted.
    Fetched { slot: u16 },
    /// As [`Self::Granted`], for a search of a row that the transaction has had before.
    Seen { to: Return, row: u64 },
    /// There is no row, or, for an insert, there is one.
    Missing { to: Return, code: u16 },
    /// The transaction comes too late; it would not with a time above this one.
    Conflict { to: Return, above: u64, cause: Cause },
    /// It cannot be done.
    Failed { to: Return, code: u16 },
    /// Take the pin out of each of the first `count` rows.
    Unpin { count: u8, rows: [u64; 3] },
    /// The transaction that had these rows, `count` of them, has ended.
    Release { count: u16, time: u64, wanted: *const Wanted, ending: Ending },
    /// The transaction that holds the row for writing has ended.
    Settle { row: u64, time: u64, ending: Ending },
}

// SAFETY: addresses of rows, of key images, of jobs and of bundles, which mean the same on every thread.
unsafe impl Send for Message {}

const _: () = assert!(size_of::<Message>() == 32, "two messages are a cache line");

/// One worker's ends of all rings.
#[derive(Debug, Default)]
pub(super) struct Mail {
    out: Vec<Outbox>,
    from: Vec<Option<Consumer<Message>>>,
    /// To whom something is to be handed over, each once.
    dirty: Vec<usize>,
}

#[derive(Debug)]
struct Outbox {
    ring: Option<Producer<Message>>,
    /// Whether it is in [`Mail::dirty`].
    dirty: bool,
    /// What was not handed over yet.
    waiting: Vec<Message>,
    unpins: (u8, [u64; 3]),
    grants: Grants,
}

/// Grants to one transaction that go into one message.
#[derive(Clone, Copy, Debug, Default)]
struct Grants {
    slot: u16,
    count: u8,
    cps: [u8; 3],
    rows: [u64; 3],
}

impl Grants {
    fn message(self) -> Message {
        let Self { slot, count, cps, rows } = self;
        Message::Granted { slot, count, cps, rows }
    }
}

/// Messages that a ring holds when there are so many workers.
pub(super) fn capacity(workers: usize) -> usize {
    (RINGS / workers).clamp(16, 1_024)
}

impl Mail {
    /// The ends of `workers` workers, of rings that hold so many messages each.
    pub(super) fn all(workers: usize, capacity: usize) -> Vec<Self> {
        let outbox =
            || Outbox { ring: None, dirty: false, waiting: Vec::new(), unpins: (0, [0; 3]), grants: Grants::default() };
        let mut all: Vec<Self> = (0..workers)
            .map(|_| Self {
                out: (0..workers).map(|_| outbox()).collect(),
                from: (0..workers).map(|_| None).collect(),
                dirty: Vec::new(),
            })
            .collect();
        for from in 0..workers {
            for to in (0..workers).filter(|&to| to != from) {
                let (producer, consumer) = RingBuffer::new(capacity);
                all[from].out[to].ring = Some(producer);
                all[to].from[from] = Some(consumer);
            }
        }
        all
    }

    /// Sends a message with the next [`Self::flush`].
    #[inline(always)]
    pub(super) fn send(&mut self, to: usize, message: Message) {
        self.outbox(to).waiting.push(message);
    }

    /// Answers a transaction of worker `to` that it has a row.
    #[inline(always)]
    pub(super) fn grant(&mut self, to: usize, back: Return, row: u64) {
        let Outbox { waiting, grants, .. } = self.outbox(to);
        if grants.count == 3 || grants.count > 0 && grants.slot != back.slot {
            waiting.push(grants.message());
            grants.count = 0;
        }
        let at = usize::from(grants.count);
        (grants.slot, grants.cps[at], grants.rows[at]) = (back.slot, back.cp, row);
        grants.count += 1;
    }

    /// Lets `to` unpin a row.
    #[inline(always)]
    pub(super) fn unpin(&mut self, to: usize, row: RowPtr) {
        let outbox = self.outbox(to);
        let (count, rows) = &mut outbox.unpins;
        rows[usize::from(*count)] = row.as_ptr() as u64;
        *count += 1;
        if *count == 3 {
            outbox.waiting.push(Message::Unpin { count: 3, rows: *rows });
            *count = 0;
        }
    }

    /// Hands over as much as there is room for. Returns whether that was everything.
    #[inline(always)]
    pub(super) fn flush(&mut self) -> bool {
        if !self.dirty.is_empty() {
            self.hand_over();
        }
        self.dirty.is_empty()
    }

    /// Where to put something for worker `to`.
    #[inline(always)]
    fn outbox(&mut self, to: usize) -> &mut Outbox {
        let outbox = &mut self.out[to];
        if !outbox.dirty {
            outbox.dirty = true;
            self.dirty.push(to);
        }
        outbox
    }

    fn hand_over(&mut self) {
        self.dirty.retain(|&to| {
            let Outbox { ring, dirty, waiting, unpins, grants } = &mut self.out[to];
            if grants.count > 0 {
                waiting.push(grants.message());
                grants.count = 0;
            }
            if unpins.0 > 0 {
                waiting.push(Message::Unpin { count: unpins.0, rows: unpins.1 });
                unpins.0 = 0;
            }
            let ring = ring.as_mut().expect("nobody sends to itself");
            let count = ring.slots().min(waiting.len());
            let chunk = ring.write_chunk_uninit(count).expect("as much as there is room for");
            chunk.fill_from_iter(waiting.drain(..count));
            *dirty = !waiting.is_empty();
            *dirty
        });
    }

    /// Calls `f` with the sender and each message that has arrived. Returns whether there were any.
    #[inline(always)]
    pub(super) fn receive(&mut self, mut f: impl FnMut(usize, Message)) -> bool {
        let mut any = false;
        for (from, ring) in self.from.iter_mut().enumerate() {
            let Some(ring) = ring else { continue };
            let count = ring.slots();
            if count > 0 {
                any = true;
                let chunk = ring.read_chunk(count).expect("as much as there is");
                chunk.into_iter().for_each(|message| f(from, message));
            }
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_a_ring_full_comes_later_and_in_order() {
        let mut mails = Mail::all(2, 4);
        let to = Return { slot: 0, cp: 0 };
        for (me, mail) in mails.iter_mut().enumerate() {
            (0..50).for_each(|code| mail.send(1 - me, Message::Missing { to, code }));
            (0..7).for_each(|row| mail.grant(1 - me, to, row));
            assert!(!mail.flush() && !mail.flush(), "there is room for four");
        }
        let (mut codes, mut granted): (_, [Vec<u64>; 2]) = ([vec![], vec![]], [vec![], vec![]]);
        // Two workers that send before they receive, each time.
        let handed_over = (0..20).position(|_| {
            let all = mails.iter_mut().fold(true, |all, mail| mail.flush() & all);
            for (me, mail) in mails.iter_mut().enumerate() {
                mail.receive(|from, message| match message {
                    _ if from == me => panic!("nobody sends to itself"),
                    Message::Missing { code, .. } => codes[me].push(code),
                    Message::Granted { count, rows, .. } => granted[me].extend(&rows[..usize::from(count)]),
                    other => panic!("{other:?} was not sent"),
                });
            }
            all
        });
        // 50 answers and three messages of grants, four at a time.
        assert_eq!(handed_over, Some(13));
        for me in 0..2 {
            assert!(codes[me].iter().copied().eq(0..50) && granted[me].iter().copied().eq(0..7));
        }
    }
}
