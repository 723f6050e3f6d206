//! Memory that processes share: files without a name, and sleeping on a word until another process changes it.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Makes a file of no bytes that lives in memory, can be sealed, and goes with its last descriptor and mapping. The
/// name is what tools show; the descriptor does not survive an `exec`.
///
/// # Errors
/// What the kernel says.
pub fn anonymous_file(name: &CStr) -> io::Result<File> {
    // SAFETY: the name lives through the call; the result is checked.
    let descriptor = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given it to us.
    Ok(unsafe { File::from_raw_fd(descriptor) })
}

/// Gives the memory of some bytes of a file in memory back to the kernel: they read as zero from then on.
///
/// # Errors
/// What the kernel says.
pub fn give_back(file: &File, start: u64, bytes: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: a plain system call on an open file.
    let result = unsafe { libc::fallocate(file.as_raw_fd(), mode, start as libc::off_t, bytes as libc::off_t) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sleeps if `word` still has this value, until it is woken ([`wake`]), the time is over, or for no reason at all: the
/// caller looks again. The word may be in memory that several processes map.
pub fn sleep(word: &AtomicU32, value: u32, limit: Option<Duration>) {
    let limit = limit.map(|limit| libc::timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: word and time live through the call. Whatever it returns, the caller looks again.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, limit) };
}

/// Wakes up to `most` of those that [`sleep`] on a word.
pub fn wake(word: &AtomicU32, most: u32) {
    // SAFETY: the word lives through the call, which cannot fail for a good address; with nobody asleep it does
    // nothing.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, most.min(i32::MAX as u32)) };
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn memory_that_was_given_back_is_zero() {
        let file = anonymous_file(c"test").expect("there is memory");
        file.write_all_at(&[7; 12288], 0).expect("there is memory");
        give_back(&file, 4096, 4096).expect("it is in memory");
        let mut read = [1; 12288];
        file.read_exact_at(&mut read, 0).expect("it is as long as before");
        assert!(read[..4096].iter().chain(&read[8192..]).all(|&byte| byte == 7));
        assert!(read[4096..8192].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_sleeper_is_woken_and_does_not_sleep_on_another_value() {
        let word = Arc::new(AtomicU32::new(0));
        sleep(&word, 1, None);
        let sleeper = std::thread::spawn({
            let word = word.clone();
            move || {
                while word.load(Ordering::Acquire) == 0 {
                    sleep(&word, 0, None);
                }
            }
        });
        word.store(1, Ordering::Release);
        wake(&word, u32::MAX);
        sleeper.join().expect("it was woken");
    }
}
