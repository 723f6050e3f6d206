//! Per-thread stripes: state that every thread changes, spread over cache lines so that threads do not meet.
//!
//! A thread gets a number on first use; numbers go round over [`STRIPES`]. Two threads of one stripe are correct,
//! only slower.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How many stripes there are: a power of two.
pub(crate) const STRIPES: usize = 16;

/// A value on cache lines of its own (two, because processors fetch lines in pairs).
#[repr(align(128))]
#[derive(Debug, Default)]
pub(crate) struct Padded<T>(pub(crate) T);

/// The stripe of the calling thread.
#[inline]
pub(crate) fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES;
    }
    MINE.with(|mine| *mine)
}
