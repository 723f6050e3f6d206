//! What cannot be reached from outside in reasonable time.

use super::{Ask, Client};
use crate::config::{Config, Identity};
use crate::word::Machine;
use lockwork_locking::LockMode;

#[test]
fn numbers_begin_again_without_those_that_are_in_use() {
    let mut client = Client::new(Config::new(4), Identity { machine: Machine(1), session: 1 });
    let ask = Ask { task: 7, ..Ask::default() };
    let first = client.begin(0, 0, LockMode::Exclusive, ask);
    client.counter = u32::MAX;
    let next = [1, 2].map(|lock| client.begin(0, lock, LockMode::Exclusive, ask));
    assert_eq!((first, next), (7 << 32 | 1, [7 << 32, 7 << 32 | 2]));
    assert_eq!(client.get(first).map(|request| request.lock), Some(0));
    let largest = client.begin(0, 3, LockMode::Shared, Ask { task: u32::MAX, ..ask });
    assert_eq!(largest >> 32, u64::from(u32::MAX) - 1, "that of operations");
}
