//! Calls over the channel give what calls of the device give, of any length, from many threads, while others run. Both
//! ends are in this process; `processes.rs` has two.

mod memory;

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use lockwork_neardata::channel::{ChannelSize, RemoteDevice, StorageEnd, Traffic};
use lockwork_neardata::device::{
    Device, DeviceError, Fold, Modified, Operation, Piece, Purpose, Ran, TransactionId, Version,
};
use lockwork_neardata::link::Link;
use lockwork_neardata::record::{RecordId, Vid};
use lockwork_neardata::serve::{ServeError, Served, serve};
use memory::{IMAGE_BYTES, Memory, images, operation, schema};

type Serving = JoinHandle<Result<Served, ServeError>>;

/// This process, by file.
fn this_process() -> OwnedFd {
    use std::os::fd::FromRawFd;
    // SAFETY: a plain system call; a file that is none makes `serve` fail.
    let file = unsafe { libc::syscall(libc::SYS_pidfd_open, std::process::id(), 0) };
    assert!(file >= 0);
    // SAFETY: nobody else knows of the file.
    unsafe { OwnedFd::from_raw_fd(file as i32) }
}

fn over_channel(device: Arc<dyn Device>, size: ChannelSize, link: Link) -> (Arc<RemoteDevice>, Serving) {
    let spin = Duration::from_micros(5);
    let (remote, file) = RemoteDevice::create(size, link, spin).expect("there is memory");
    let serving = std::thread::spawn(move || {
        let channel = StorageEnd::attach(file, link, spin).expect("it is a channel");
        serve(channel, this_process(), device)
    });
    (Arc::new(remote), serving)
}

const SMALL: ChannelSize = ChannelSize { calls: 3, slots: 3 };

fn version(vid: u32, number: u32, image: Option<Box<[u8]>>) -> Version {
    Version { vid: Vid(vid), number, created: u64::from(number), image }
}

/// Everything that can be asked, directly and over the channel, with the same answers.
fn all_calls(size: ChannelSize, link: Link, versions: u32, rows: u64) -> Traffic {
    let direct = Memory::default();
    let (remote, serving) = over_channel(Arc::new(Memory::default()), size, link);
    let both = [&direct as &dyn Device, &*remote];
    let same = |what: &str, call: &dyn Fn(&dyn Device) -> String| {
        let [left, right] = both.map(call);
        assert!(left == right, "{what}: {left:.500} and {right:.500}");
    };
    for name in ["a", "b", "a"] {
        same("create", &|device| format!("{:?}", device.create_table(&schema(name))));
    }
    same("tables", &|device| format!("{:?}", device.tables()));
    for (table, count) in [(0, 0), (0, 1), (1, versions)] {
        let image = |vid: u32| (!vid.is_multiple_of(5)).then(|| vec![vid as u8; (vid % 300) as usize].into());
        let versions = (0..count).map(|vid| version(vid, 1, image(vid))).collect::<Vec<_>>();
        same("flush", &|device| format!("{:?}", device.flush(table, &versions, 1)));
    }
    let widest = [version(9, 2, Some(vec![3; 65_536].into())), version(10, 2, None)];
    same("flush", &|device| format!("{:?}", device.flush(0, &widest, 1)));
    for (vid, snapshot) in [(9, 2), (9, 1), (10, 9), (11, 9), (0, 9), (0xffff_fff2, 1)] {
        same("read", &|device| format!("{:?}", device.read(0, Vid(vid), snapshot)));
    }
    for table in [0, 1, 2] {
        same("tuples", &|device| {
            let mut all = Vec::new();
            format!("{:?} {all:?}", device.tuples(table, &mut |tuple| all.push(format!("{tuple:?}"))))
        });
    }
    let folds = vec![("x".into(), Fold::Sum), ("y".into(), Fold::Max)];
    let update = Purpose::Update(TransactionId(5));
    for (purpose, rows) in [
        (Purpose::Filter, 0),
        (Purpose::Filter, rows),
        (Purpose::Aggregate(folds.clone()), 0),
        (Purpose::Aggregate(folds), rows),
        (update, rows),
    ] {
        let operation = operation(purpose, rows, 10_007, Duration::ZERO);
        same("run", &|device| {
            let (mut vids, mut bytes, mut others, mut modified) = (vec![], vec![], vec![], Vec::<Modified>::new());
            let ran = device.run(&operation, &mut |piece| match piece {
                Piece::Rows { vids: some, images } => {
                    vids.extend_from_slice(some);
                    bytes.extend_from_slice(images);
                }
                Piece::Modified(some) => modified.extend_from_slice(some),
                Piece::Folded { .. } => others.push(format!("{piece:?}")),
            });
            let right = vids.len() as u64 == if operation.purpose == Purpose::Filter { rows } else { 0 };
            assert!(right && vids.is_sorted() && bytes == images(0, vids.len() as u64));
            assert!(modified.iter().enumerate().all(|(at, modified)| modified.vid.0 as usize == at));
            format!("{ran:?} {} {} {others:?}", vids.len(), modified.len())
        });
    }
    same("run", &|device| {
        let operation = Operation { program: vec![], ..operation(Purpose::Filter, 1, 1, Duration::ZERO) };
        format!("{:?}", device.run(&operation, &mut |_| panic!("there is nothing")))
    });
    for transaction in [5, 5, 6] {
        same("commit", &|device| format!("{:?}", device.commit(TransactionId(transaction), 9)));
        same("abort", &|device| format!("{:?}", device.abort(TransactionId(transaction))));
    }
    same("collect", &|device| format!("{:?}", device.collect(77)));
    same("status", &|device| format!("{:?}", device.status()));
    let long = [version(9, 2, Some(vec![3; 65_537].into()))];
    assert!(matches!(remote.flush(0, &long, 1), Err(DeviceError::Refused(text)) if text.contains("65537 bytes")));
    let traffic = remote.traffic();
    remote.shut_down();
    assert_eq!(serving.join().expect("no panic").expect("in good order"), Served::ShutDown);
    assert!(matches!(remote.status(), Err(DeviceError::Gone(_))));
    traffic
}

#[test]
fn every_call_answers_as_the_device_itself() {
    let traffic = all_calls(ChannelSize::default(), Link::None, 50_000, 300_000);
    let images = 300_000 * IMAGE_BYTES as u64;
    assert!(traffic.to_host > images + 300_000 * (4 + 16) && traffic.to_host < 2 * images + 2_000_000, "{traffic:?}");
    let flushed = (0..50_000_u64).map(|vid| 20 + if vid % 5 > 0 { vid % 300 } else { 0 }).sum::<u64>() + 65_556;
    assert!(traffic.to_storage > flushed && traffic.to_storage < flushed + flushed / 10, "{traffic:?} {flushed}");
    assert!(traffic.calls == 31 && traffic.pieces > 90, "{traffic:?}");
}

#[test]
fn one_call_and_one_slot_are_enough() {
    all_calls(ChannelSize { calls: 1, slots: 1 }, Link::None, 3_000, 30_000);
}

#[test]
fn links_change_nothing_but_the_time() {
    let [none, pcie] = [Link::None, Link::Pcie].map(|link| all_calls(SMALL, link, 3_000, 30_000));
    assert_eq!(none, pcie);
}

#[test]
fn many_threads_call_at_once_and_short_calls_pass_a_bulk_operation() {
    for size in [ChannelSize::default(), SMALL] {
        let (remote, serving) = over_channel(Arc::new(Memory::default()), size, Link::None);
        let versions = (0..1000).map(|vid| version(vid, 1, Some(vec![vid as u8; 40].into()))).collect::<Vec<_>>();
        remote.flush(3, &versions, 0).expect("there is room");
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..6_u32 {
                let (remote, over) = (&remote, &over);
                scope.spawn(move || {
                    let mut calls = 0;
                    while !over.load(Ordering::Relaxed) || calls < 300 {
                        let vid = (calls * 7 + thread * 131) % 1000;
                        let version = remote.read(3, Vid(vid), 1).expect("it is served").expect("it was flushed");
                        assert_eq!(version.image.as_deref(), Some(&[vid as u8; 40][..]));
                        if calls % 50 == thread {
                            let new = [Version { vid: Vid(5000 + thread), ..version }];
                            assert_eq!(remote.flush(3, &new, 0), Ok(vec![RecordId::new(5001 + thread, 1)]));
                        }
                        calls += 1;
                    }
                });
            }
            let bulk = operation(Purpose::Filter, 500, 1, Duration::from_micros(300));
            let mut rows = 0;
            let ran = remote.run(&bulk, &mut |piece| {
                let Piece::Rows { vids, .. } = piece else { panic!("{piece:?}") };
                rows += vids.len();
                // A call in the middle of another one.
                if rows % 100 == 0 {
                    remote.status().expect("it is served");
                }
            });
            over.store(true, Ordering::Relaxed);
            assert_eq!((ran, rows), (Ok(Ran { rows: 1000, taken: 500 }), 500));
        });
        remote.shut_down();
        assert_eq!(serving.join().expect("no panic").expect("in good order"), Served::ShutDown);
    }
}

#[test]
fn a_caller_that_panics_on_a_piece_leaves_the_channel_whole() {
    let (remote, serving) = over_channel(Arc::new(Memory::default()), SMALL, Link::None);
    for _ in 0..10 {
        let bulk = operation(Purpose::Filter, 100_000, 1000, Duration::ZERO);
        let panics = &mut |_: Piece<'_>| std::panic::resume_unwind(Box::new("the caller's"));
        let panicked = catch_unwind(AssertUnwindSafe(|| remote.run(&bulk, panics))).expect_err("it goes on");
        assert_eq!(panicked.downcast_ref(), Some(&"the caller's"));
        remote.status().expect("it is served");
    }
    remote.shut_down();
    assert_eq!(serving.join().expect("no panic").expect("in good order"), Served::ShutDown);
}
