//! Sleeping until a word in shared memory changes: the kernel's futex, for words that several processes map.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps if `word` still has this value, until somebody wakes it, the time is over, or for no reason at all.
pub(crate) fn wait(word: &AtomicU32, value: u32, time: Option<Duration>) {
    let limit = time.map(|time| libc::timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word and the time live during the call. Whatever it returns, the caller looks again.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, limit) };
}

/// Wakes all that sleep on `word`.
pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: the word lives during the call; with nobody asleep it does nothing.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
