//! Waiting without the interpreter's lock, in pieces between which Ctrl-C is seen.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use tokio::runtime::Handle;

/// How long a thread waits before it looks for signals.
const PIECE: Duration = Duration::from_millis(50);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future. What it waits for may go on when a signal ends the wait.
///
/// # Errors
/// What a signal handler raised: `KeyboardInterrupt`.
pub(crate) fn finish<F: Future<Output: Send> + Send>(py: Python<'_>, future: F) -> PyResult<F::Output> {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        let mut piece = || {
            let began = Instant::now();
            loop {
                if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    return Some(output);
                }
                match PIECE.checked_sub(began.elapsed()) {
                    Some(left) => thread::park_timeout(left),
                    None => return None,
                }
            }
        };
        match py.detach(&mut piece) {
            Some(output) => return Ok(output),
            None => py.check_signals()?,
        }
    }
}

/// As [`finish`], for a future that needs a runtime's clock and network.
///
/// # Errors
/// As there.
pub(crate) fn finish_in<F: Future<Output: Send> + Send>(
    py: Python<'_>,
    runtime: &Handle,
    future: F,
) -> PyResult<F::Output> {
    let mut future = pin!(future);
    let polled = std::future::poll_fn(|context| {
        let _entered = runtime.enter();
        future.as_mut().poll(context)
    });
    finish(py, polled)
}
