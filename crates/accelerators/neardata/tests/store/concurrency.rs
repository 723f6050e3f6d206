//! Calls from many threads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

/// Locks that are granted when the test says so.
struct HeldBack(Mutex<Option<(Sender<Vid>, Receiver<()>)>>);

struct Gated(Option<(Sender<Vid>, Receiver<()>)>);

impl LockSource for HeldBack {
    fn open(&self, _: TransactionId, _: usize) -> Result<Box<dyn RowLocks>, LockRefusal> {
        Ok(Box::new(Gated(self.0.lock().unwrap().take())))
    }
}

impl RowLocks for Gated {
    fn lock(&mut self, _: TableId, vid: Vid, _: u32) -> Result<(), LockRefusal> {
        if let Some((asked, granted)) = self.0.take() {
            asked.send(vid).unwrap();
            granted.recv().unwrap();
        }
        Ok(())
    }
}

#[test]
fn short_calls_are_served_while_an_update_waits_for_a_lock() {
    let (asked, asks) = channel();
    let (grant, granted) = channel();
    let config =
        StoreConfig { elements: 1, locks: Arc::new(HeldBack(Mutex::new(Some((asked, granted))))), ..config(None) };
    let store = Store::over(Arc::new(MemoryDisk::new()), &config).unwrap();
    store.create_table(&schema()).unwrap();
    let versions: Vec<Version> = (0..100).map(|vid| version(vid, 1, 1, i64::from(vid))).collect();
    store.flush(0, &versions, 0).unwrap();
    std::thread::scope(|scope| {
        let update = scope.spawn(|| raise(&store, 1, 50, 1000, 1));
        asks.recv().unwrap();
        assert_eq!(store.read(0, Vid(60), 1).unwrap().unwrap(), versions[60]);
        store.flush(0, &[version(3, 2, 2, 33)], 2).unwrap();
        assert_eq!(raise(&store, 2, -5, 1, 2).unwrap(), 100);
        assert_eq!(
            store.commit(TransactionId(1), 3).map_err(|error| error.to_string().contains("not waiting")),
            Err(true)
        );
        store.abort(TransactionId(2)).unwrap();
        assert_eq!(total(&store, 1), Ok((100, Some(4950))));
        // The update still wants what its snapshot sees.
        assert_eq!(store.collect(2), Ok(0));
        assert_eq!(store.status().unwrap().versions, 101);
        grant.send(()).unwrap();
        assert_eq!(update.join().unwrap(), Ok(50));
    });
    store.commit(TransactionId(1), 3).unwrap();
    assert_eq!((store.collect(2), total(&store, 3)), (Ok(1), Ok((100, Some(4950 + 30 + 50_000)))));
}

#[test]
fn every_snapshot_is_whole_while_money_moves() {
    const ACCOUNTS: u32 = 64;
    let disk = MemoryDisk::new();
    let store = store_over(&disk);
    let versions: Vec<Version> = (0..ACCOUNTS).map(|vid| version(vid, 1, 1, 100)).collect();
    store.flush(0, &versions, 0).unwrap();
    let visible = AtomicU64::new(1);
    let in_use = Mutex::new(BTreeMap::<u64, u32>::new());
    let done = AtomicBool::new(false);
    // The host's part: no watermark above a snapshot in use.
    let begin = || {
        let mut in_use = in_use.lock().unwrap();
        let snapshot = visible.load(Ordering::SeqCst);
        *in_use.entry(snapshot).or_default() += 1;
        snapshot
    };
    let end = |snapshot| {
        let mut in_use = in_use.lock().unwrap();
        let count = in_use.get_mut(&snapshot).unwrap();
        *count -= 1;
        if *count == 0 {
            in_use.remove(&snapshot);
        }
    };
    let watermark = || {
        let in_use = in_use.lock().unwrap();
        in_use.keys().next().copied().unwrap_or_else(|| visible.load(Ordering::SeqCst))
    };
    std::thread::scope(|scope| {
        for reader in 0..3_u32 {
            let (store, done, begin, end) = (&store, &done, &begin, &end);
            scope.spawn(move || {
                let mut rounds = 0;
                while !done.load(Ordering::SeqCst) || rounds < 3 {
                    let snapshot = begin();
                    if reader == 0 {
                        let sum: i64 = (0..ACCOUNTS)
                            .map(|vid| balance(&store.read(0, Vid(vid), snapshot).unwrap().unwrap().image.unwrap()))
                            .sum();
                        assert_eq!(sum, 6400, "at {snapshot}");
                    } else {
                        assert_eq!(total(store, snapshot), Ok((u64::from(ACCOUNTS), Some(6400))), "at {snapshot}");
                    }
                    end(snapshot);
                    rounds += 1;
                }
            });
        }
        let mut state: Vec<(u32, i64)> = vec![(1, 100); ACCOUNTS as usize];
        for time in 2..400_u64 {
            let (from, to) = ((time * 7 % 64) as usize, (time * 13 % 64 + 1) as usize % 64);
            let mut moved = BTreeMap::new();
            for (account, amount) in [(from, -5), (to, 5)] {
                state[account].1 += amount;
                moved.insert(account, ());
            }
            let versions: Vec<Version> = moved
                .into_keys()
                .map(|account| {
                    state[account].0 += 1;
                    version(account as u32, state[account].0, time, state[account].1)
                })
                .collect();
            store.flush(0, &versions, watermark()).unwrap();
            visible.store(time, Ordering::SeqCst);
            if time % 16 == 0 {
                store.collect(watermark()).unwrap();
            }
        }
        done.store(true, Ordering::SeqCst);
    });
    store.collect(399).unwrap();
    assert_eq!(store.status().unwrap().versions, u64::from(ACCOUNTS));
    assert_eq!(total(&store_over(&disk.after_crash(0)), 399), Ok((64, Some(6400))));
    let status = store.status().unwrap();
    assert!(status.pages - status.free_pages < 40, "{status:?}");
}
