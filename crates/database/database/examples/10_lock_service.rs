//! Locks for any program: readers, writers, fencing tokens, and what a guard says when its service is gone.
//!
//! The daemon runs in this process, so that the example needs nothing else; programs connect to one that was started
//! with `lockwork lockd`.
//!
//! `cargo run --release -p lockwork --example 10_lock_service`

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockwork_locks::client::{LockError, LockName, Locks};
use lockwork_locks::lockd::{Lockd, Options};
use lockwork_locks::plane::InProcess;

fn main() -> Result<(), Box<dyn Error>> {
    let mut lockd =
        Lockd::bind(&Options { fresh: true, ..Options::new("127.0.0.1:0".parse()?) }, InProcess::new(1000)?)?;
    let address = lockd.address()?.to_string();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| lockd.run(&stop).expect("the socket works"));
        let shown = show(&address, &stop);
        stop.store(true, Ordering::Relaxed);
        shown
    })
}

fn show(address: &str, stop: &AtomicBool) -> Result<(), Box<dyn Error>> {
    // Two machines of the service; usually each is a process of its own.
    let (one, two) = (Locks::connect(address)?, Locks::connect(address)?);

    let mut guard = one.exclusive(17).timeout(Duration::from_secs(5)).acquire()?;
    println!("machine {} writes under lock 17 with token {}", one.machine(), guard.token());
    assert!(matches!(two.shared(17).try_acquire(), Err(LockError::Busy(LockName::Number(17)))));

    // A writer that becomes a reader lets other readers in, and no writer comes between.
    guard.downgrade()?;
    let reader = two.shared(17).timeout(Duration::from_secs(5)).acquire()?;
    println!("machine {} reads with machine {}", two.machine(), one.machine());
    drop((guard, reader));

    let guard = two.exclusive(17).timeout(Duration::from_secs(5)).acquire()?;
    println!("machine {} writes with token {}: a larger one", two.machine(), guard.token());

    // Whoever cannot reach the service has lost its locks, and is told so.
    stop.store(true, Ordering::Relaxed);
    assert!(guard.wait_lost(Duration::from_secs(10)));
    println!("the service has stopped, and the guard of lock {} says that it is lost", guard.lock());
    Ok(())
}
