//! The lock managers without transactions: a batch of access sets in, chains that run in parallel out.
//!
//! Everything that conflicts with one chain only is appended to it; what conflicts with more is deferred to the next
//! batch, where it comes first. Locks are not released one by one: the next batch is the release.
//!
//! `cargo run --release -p lockwork --example 08_locks_alone`

use std::error::Error;

use lockwork_locking::LockMode;
use lockwork_locking::batch::{Access, BatchConfig, BatchLocks, FlatSets};

fn main() -> Result<(), Box<dyn Error>> {
    let write = |record| Access { record, mode: LockMode::Exclusive };
    let read = |record| Access { record, mode: LockMode::Shared };
    // Seven transactions on the records 0 (a), 1 (b) and 2 (c).
    let accesses = [write(0), read(1), read(1), write(0), write(2), write(1), read(2), read(1)];
    let sets = FlatSets::new(&[0, 1, 2, 3, 5, 6, 7, 8], &accesses)?;
    let mut locks = BatchLocks::new(BatchConfig::new(3, 16))?;
    let mut left = 0..sets.len();
    let mut batch = 0;
    let mut seen = Vec::new();
    while !left.is_empty() || !locks.deferred().is_empty() {
        batch += 1;
        let plan = locks.fill(&sets, &mut left)?;
        for head in plan.heads() {
            let chain: Vec<u32> = plan.chain(head).map(|transaction| transaction + 1).collect();
            println!("batch {batch}: {chain:?} in this order");
            seen.push(chain);
        }
    }
    assert_eq!(seen, [vec![1, 4, 6], vec![2], vec![3], vec![5, 7]]);
    Ok(())
}
