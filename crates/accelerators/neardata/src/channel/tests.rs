//! What either side does with entries that the other one must not send: it says so and ends, and no thread waits on.
//! The other side is the bare segment here, written to by the test.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::RemoteDevice;
use super::StorageEnd;
use super::entry::{Body, Entry, Slots};
use super::pidfd::PidFd;
use super::ring::{Reader, Words, Writer};
use super::segment::{ChannelSize, Direction, Segment};
use crate::command::Request;
use crate::command::answer::{Answer, encode_outcome};
use crate::device::{Device, DeviceError, DeviceStatus, Operation, Piece, Ran, TableId, TransactionId, Tuple, Version};
use crate::link::Link;
use crate::record::{RecordId, Timestamp, Vid};
use crate::serve::{ServeError, Served, serve};
use lockwork_procedure::schema::TableSchema;

const SIZE: ChannelSize = ChannelSize { calls: 4, slots: 8 };

/// A device that has nothing.
struct Nothing;

impl Device for Nothing {
    fn create_table(&self, _: &TableSchema) -> Result<TableId, DeviceError> {
        Ok(0)
    }
    fn tables(&self) -> Result<Vec<TableSchema>, DeviceError> {
        Ok(vec![])
    }
    fn tuples(&self, _: TableId, _: &mut dyn FnMut(Tuple<'_>)) -> Result<(), DeviceError> {
        Ok(())
    }
    fn flush(&self, _: TableId, versions: &[Version], _: Timestamp) -> Result<Vec<RecordId>, DeviceError> {
        Ok(vec![RecordId::NONE; versions.len()])
    }
    fn read(&self, _: TableId, _: Vid, _: Timestamp) -> Result<Option<Version>, DeviceError> {
        Ok(None)
    }
    fn run(&self, _: &Operation, _: &mut dyn FnMut(Piece<'_>)) -> Result<Ran, DeviceError> {
        Ok(Ran::default())
    }
    fn commit(&self, _: TransactionId, _: Timestamp) -> Result<(), DeviceError> {
        Ok(())
    }
    fn abort(&self, _: TransactionId) -> Result<(), DeviceError> {
        Ok(())
    }
    fn collect(&self, _: Timestamp) -> Result<u64, DeviceError> {
        Ok(0)
    }
    fn status(&self) -> Result<DeviceStatus, DeviceError> {
        Ok(DeviceStatus::default())
    }
}

/// The other side: the segment, and the ends of its rings.
struct Other {
    segment: Arc<Segment>,
    writer: Writer,
    reader: Reader,
}

impl Other {
    fn new(segment: Segment, sends: Direction) -> Self {
        let receives = match sends {
            Direction::Submission => Direction::Completion,
            Direction::Completion => Direction::Submission,
        };
        let segment = Arc::new(segment);
        Self { writer: Writer::new(segment.clone(), sends), reader: Reader::new(segment.clone(), receives), segment }
    }

    fn send(&mut self, entry: &Entry) {
        let words = entry.encode(self.writer.position());
        self.send_words(&words);
    }

    fn send_words(&mut self, words: &Words) {
        self.writer.push(words).expect("there is room");
    }

    fn receive(&mut self) -> Entry {
        loop {
            let position = self.reader.position();
            if let Some(words) = self.reader.take().expect("the ring is whole") {
                return Entry::decode(&words, position, SIZE).expect("an entry");
            }
            std::thread::yield_now();
        }
    }
}

fn call(call: u16, slots: &[u16], request: &Request) -> Entry {
    let body = Body::inline(&request.encode()).expect("a short one");
    Entry::Call { call, last: true, slots: Slots::new(slots), body }
}

/// Serves a host that does this, and then nothing.
fn host_that(acts: impl FnOnce(&mut Other)) -> Result<Served, ServeError> {
    let (segment, file) = Segment::create(SIZE).expect("there is memory");
    let mut host = Other::new(segment, Direction::Submission);
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let channel = StorageEnd::attach(file, Link::None, Duration::ZERO).expect("it is a channel");
            let this = PidFd::open(std::process::id()).expect("it runs");
            serve(channel, OwnedFd::from(this), Arc::new(Nothing))
        });
        assert_eq!(host.receive(), Entry::Ready);
        acts(&mut host);
        serving.join().expect("no panic")
    })
}

fn refused(acts: impl FnOnce(&mut Other)) -> String {
    host_that(acts).expect_err("it makes no sense").to_string()
}

#[test]
fn storage_answers_what_is_a_call_and_ends_at_what_is_no_entry() {
    let served = host_that(|host| {
        host.send(&call(3, &[7], &Request::Status));
        assert!(matches!(host.receive(), Entry::Done { call: 3, body: Body::Slot { slot: 7, length: 34 } }));
        // No request, but an entry: the answer says so, and the channel goes on.
        let body = Body::inline(&[99]).expect("a short one");
        host.send(&Entry::Call { call: 0, last: true, slots: Slots::new(&[1]), body });
        let Entry::Done { call: 0, body: Body::Slot { slot: 1, length } } = host.receive() else { panic!() };
        let mut text = Vec::new();
        host.segment.read(1, length as usize, &mut text);
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(text.contains("a request that is none: byte 1: no call has number 99"), "{text}");
        // A request in three fragments, the slots of which are given back.
        let request = Request::Abort(TransactionId(77)).encode();
        let slots = Slots::new(&[2, 3]);
        host.segment.write(2, &[&request[..3]]);
        host.send(&Entry::Call { call: 1, last: false, slots, body: Body::Slot { slot: 2, length: 3 } });
        assert_eq!(host.receive(), Entry::Accepted { call: 1, slot: 2 });
        host.segment.write(3, &[&request[3..5]]);
        host.send(&Entry::More { call: 1, last: false, slot: 3, length: 2 });
        assert_eq!(host.receive(), Entry::Accepted { call: 1, slot: 3 });
        host.segment.write(2, &[&request[5..]]);
        host.send(&Entry::More { call: 1, last: true, slot: 2, length: request.len() as u32 - 5 });
        let nothing = Body::inline(&encode_outcome(&Ok(Answer::Nothing))).expect("a short one");
        assert_eq!(host.receive(), Entry::Done { call: 1, body: nothing });
        host.send(&Entry::Shutdown);
    });
    assert_eq!(served.expect("in good order"), Served::ShutDown);

    assert!(refused(|host| host.send_words(&[0; 8])).contains("entry 0: slots [0, 0, 0, 0, 0, 0, 0, 0]"));
    assert!(refused(|host| host.send_words(&[u64::MAX; 8])).contains("entry 0: it says that it is entry"));
    assert!(refused(|host| host.send(&Entry::Ready)).contains("Ready is not for this side"));
    let taken = Entry::Taken { call: 1, slot: 1 };
    assert!(refused(|host| host.send(&taken)).contains("call 1 is not in flight"));
    // A call that is in flight as it is not whole.
    let begin = |slots: &[u16]| {
        let body = Body::Slot { slot: slots[0], length: 0 };
        Entry::Call { call: 1, last: false, slots: Slots::new(slots), body }
    };
    let then = |entry: Entry| {
        refused(|host| {
            host.send(&begin(&[1, 2]));
            host.send(&entry);
        })
    };
    assert!(then(begin(&[3])).contains("call 1 begins a second time"));
    assert!(then(call(2, &[2], &Request::Status)).contains("call 2 brings slot 2, which another one has"));
    assert!(then(taken).contains("call 1 gives slot 1 back, which was not lent"));
    assert!(then(Entry::More { call: 1, last: true, slot: 4, length: 1 }).contains("call 1 has no slot 4"));
    // Counters that cannot be.
    let counter = |act: fn(&Segment)| {
        refused(|host| {
            act(&host.segment);
            super::ring::ring_all(&host.segment, Direction::Submission);
        })
    };
    let text =
        counter(|segment| segment.tail(Direction::Submission).store(1 << 40, std::sync::atomic::Ordering::SeqCst));
    assert!(text.contains("Submission ring of 32 entries: 1099511627776 were written, and 0 read"), "{text}");
    let text = refused(|host| {
        host.segment.head(Direction::Completion).store(9, std::sync::atomic::Ordering::SeqCst);
        host.send(&call(1, &[1], &Request::Status));
    });
    assert!(text.contains("Completion ring of 32 entries: 1 were written, and 9 read"), "{text}");
}

/// What `status` gives if the storage answers so.
fn status_when(acts: impl FnOnce(&mut Other, Entry)) -> Result<DeviceStatus, DeviceError> {
    let (remote, file) = RemoteDevice::create(SIZE, Link::None, Duration::ZERO).expect("there is memory");
    let mut storage = Other::new(Segment::attach(file).expect("it is a channel"), Direction::Completion);
    std::thread::scope(|scope| {
        let status = scope.spawn(|| remote.status());
        let entry = storage.receive();
        acts(&mut storage, entry);
        let status = status.join().expect("no panic");
        // Other errors may be the answer itself.
        if let Err(error @ DeviceError::Gone(text)) = &status
            && text.starts_with("it sent what makes no sense")
        {
            assert_eq!(remote.collect(1).as_ref(), Err(error), "what is broken stays so");
        }
        status
    })
}

#[test]
fn the_host_takes_what_is_an_answer_and_ends_at_anything_else() {
    let right = encode_outcome(&Ok(Answer::Status(DeviceStatus { pages: 5, ..DeviceStatus::default() })));
    let done = |storage: &mut Other, entry: Entry, message: &[u8]| {
        let Entry::Call { call, slots, .. } = entry else { panic!("{entry:?}") };
        let slot = slots.all()[0];
        storage.segment.write(slot, &[message]);
        storage.send(&Entry::Done { call, body: Body::Slot { slot, length: message.len() as u32 } });
    };
    assert_eq!(status_when(|storage, entry| done(storage, entry, &right)).map(|status| status.pages), Ok(5));
    let gone = |acts: &dyn Fn(&mut Other, Entry)| match status_when(acts) {
        Err(DeviceError::Gone(text)) => text,
        other => panic!("{other:?}"),
    };
    let text = gone(&|storage, entry| done(storage, entry, &right[..9]));
    assert!(text.contains("8 more bytes should follow, and 7 do"), "{text}");
    let text = gone(&|storage, entry| done(storage, entry, &encode_outcome(&Ok(Answer::Freed(1)))));
    assert!(text.contains("an answer to another question: Freed(1)"), "{text}");
    let text = gone(&|storage, _| storage.send_words(&[1; 8]));
    assert!(text.starts_with("it sent what makes no sense, and was ended: entry 0: "), "{text}");
    let text = gone(&|storage, entry| storage.send(&entry));
    assert!(text.contains("is not for this side"), "{text}");
    let text =
        gone(&|storage, _| storage.send(&Entry::Done { call: 0, body: Body::inline(&right[..2]).expect("short") }));
    assert!(text.contains("call 0 is not in flight"), "{text}");
    let text = gone(&|storage, entry| {
        let Entry::Call { call, slots, .. } = entry else { panic!("{entry:?}") };
        let piece = Entry::Piece { call, slot: slots.all()[0], length: 5 };
        storage.segment.write(slots.all()[0], &[&[5; 5]]);
        storage.send(&piece);
        storage.send(&piece);
    });
    // The first piece is nonsense in itself, the second one names a slot that is not the storage's: whichever is seen
    // first.
    assert!(text.contains("more bytes should follow") || text.contains("which was not lent"), "{text}");
    let text = gone(&|storage, entry| {
        let Entry::Call { call, .. } = entry else { panic!("{entry:?}") };
        storage.send(&Entry::Piece { call, slot: 0, length: 5 });
    });
    assert!(text.contains("has no slot 0"), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn storage_outlives_or_refuses_any_entries(
        words in prop::collection::vec((prop::array::uniform8(any::<u64>()), any::<u8>(), 0..512_usize), 1..12),
    ) {
        let served = host_that(|host| {
            for (mut words, how, bit) in words {
                if how > 40 {
                    // An entry that could be one, but for a bit.
                    let body = Body::inline(&words[4].to_le_bytes()[..usize::from(how % 8)]).expect("short");
                    let slots = Slots::new(&[u16::from(how % 8)]);
                    words = Entry::Call { call: u16::from(how % 4), last: how < 220, slots, body }
                        .encode(host.writer.position());
                    if how % 4 == 3 {
                        words[bit / 64] ^= 1 << (bit % 64);
                    }
                }
                host.send_words(&words);
            }
            let end = Entry::Shutdown.encode(host.writer.position());
            host.send_words(&end);
        });
        if let Err(error) = served {
            prop_assert!(matches!(error, ServeError::Broken(_)), "{}", error);
        }
    }

    #[test]
    fn the_host_outlives_any_answer(words in prop::array::uniform8(any::<u64>()), how: u8, bit in 0..512_usize,
                                    message in prop::collection::vec(any::<u8>(), 0..60)) {
        let status = status_when(|storage, entry| {
            let Entry::Call { call, slots, .. } = entry else { panic!("{entry:?}") };
            let slot = slots.all()[0];
            storage.segment.write(slot, &[&message]);
            let body = Body::Slot { slot, length: message.len() as u32 };
            let mut likely = Entry::Done { call, body }.encode(0);
            if how > 128 {
                likely[bit / 64] ^= 1 << (bit % 64);
            }
            storage.send_words(if how > 20 { &likely } else { &words });
            // Whatever that was, this is the second last answer to one call.
            storage.send(&Entry::Done { call, body: Body::inline(&[4, 0, 0, 0, 0]).expect("short") });
        });
        prop_assert!(status.is_ok() || matches!(status, Err(DeviceError::Gone(_) | DeviceError::Refused(_)))
            || message.first().is_some_and(|first| *first > 0));
    }
}
