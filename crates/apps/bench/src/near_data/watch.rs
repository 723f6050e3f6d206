//! Watches the process of the other side. One that somebody has stopped (SIGSTOP, a debugger) is ended after a while:
//! then its locks are given back and its pipes are closed, and whoever waits for it gets an error.
//!
//! *Trade-off*: a process counts as stuck while it is stopped and takes no processor time, and not while it merely
//! waits, because a storage without work does nothing else. Time in which this process is stopped as well does not
//! count.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::super::Failure;

/// How often it looks.
const TICK: Duration = Duration::from_millis(100);

/// Ends with this.
pub(super) struct Watch {
    limit: Duration,
    over: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches a child of this process, which may be stopped for `limit`.
    pub(super) fn over(child: u32, limit: Duration) -> Result<Self, Failure> {
        let (over, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let look = {
            let (over, ended) = (over.clone(), ended.clone());
            move || watch(child, limit, &over, &ended)
        };
        let thread = std::thread::Builder::new().name("lockwork-watch".into()).spawn(look);
        let thread = thread.map_err(|error| Failure::BackEnd(format!("a thread that watches: {error}")))?;
        Ok(Self { limit, over, ended, thread: Some(thread) })
    }

    /// What the watch has done, if it had to do something.
    pub(super) fn verdict(&self, whose: &str) -> Option<Failure> {
        let seconds = self.limit.as_secs_f64();
        let text = || Failure::BackEnd(format!("{whose} was stopped for {seconds} s (--timeout), so it was ended"));
        self.ended.load(Ordering::SeqCst).then(text)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // If it panicked it has said so.
            drop(thread.join());
        }
    }
}

fn watch(child: u32, limit: Duration, over: &AtomicBool, ended: &AtomicBool) {
    let (mut stuck, mut before, mut looked) = (Duration::ZERO, None, Instant::now());
    while !over.load(Ordering::SeqCst) {
        std::thread::park_timeout(TICK);
        let now = looked.elapsed();
        looked = Instant::now();
        // Gone, or not ours any more.
        let Some(state) = State::of(child) else { return };
        // This process may have been stopped for hours.
        stuck = if state.stopped && before == Some(state.time) { stuck + now.min(2 * TICK) } else { Duration::ZERO };
        before = Some(state.time);
        if stuck >= limit {
            ended.store(true, Ordering::SeqCst);
            // SAFETY: a plain system call. A stopped child does not end by itself, so the number is still its own.
            unsafe { libc::kill(child as libc::pid_t, libc::SIGKILL) };
            return;
        }
    }
}

/// What the kernel says of a child.
struct State {
    stopped: bool,
    /// Processor time, in the kernel's ticks.
    time: u64,
}

impl State {
    /// `None` if this process has no such child.
    fn of(child: u32) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/{child}/stat")).ok()?;
        // The name is in parentheses, and may have some.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        if number(1)? != u64::from(std::process::id()) {
            return None;
        }
        Some(Self { stopped: matches!(fields[0], "T" | "t"), time: number(11)? + number(12)? })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command};

    use super::*;

    fn sleeper() -> Child {
        Command::new("sleep").arg("600").spawn().expect("it starts")
    }

    #[test]
    fn a_stopped_process_is_ended_and_one_that_waits_is_not() {
        let (mut stopped, mut waiting) = (sleeper(), sleeper());
        let limit = Duration::from_millis(500);
        let watches = [&stopped, &waiting].map(|child| Watch::over(child.id(), limit).expect("a thread"));
        // SAFETY: a system call on a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(stopped.id() as libc::pid_t, libc::SIGSTOP) }, 0);
        assert_eq!(stopped.wait().expect("it ends").signal(), Some(libc::SIGKILL));
        let verdict = watches[0].verdict("the peer process").expect("it was the watch").to_string();
        assert_eq!(verdict, "the peer process was stopped for 0.5 s (--timeout), so it was ended");
        std::thread::sleep(limit);
        assert!(watches[1].verdict("").is_none() && waiting.try_wait().expect("a child").is_none());
        drop(watches);
        waiting.kill().and_then(|()| waiting.wait()).expect("it ends");
    }
}
