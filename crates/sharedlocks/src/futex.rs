//! Sleeping on a word that processes share.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps while the word is `value`, at most for `limit`, or for no reason.
pub(crate) fn sleep(word: &AtomicU32, value: u32, limit: Duration) {
    let limit = libc::timespec {
        tv_sec: limit.as_secs().min(i64::MAX as u64) as libc::time_t,
        tv_nsec: limit.subsec_nanos().into(),
    };
    // SAFETY: word and time live through the call. It returns for many reasons, and the caller looks again after each.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const limit) };
}

/// Wakes up to `most` sleepers.
pub(crate) fn wake(word: &AtomicU32, most: u32) {
    // SAFETY: the word lives through the call, which cannot fail for a good address.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, most) };
}
