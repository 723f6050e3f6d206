//! A password that is asked for at a terminal, which shows nothing of it.
//!
//! While it is typed the terminal does not show what is typed, and it would not afterwards either if the process ended
//! in between, as with Ctrl-C. So a signal that ends the process puts the terminal back first.
//!
//! *Invariant*: whatever ends the process here, but SIGKILL, leaves the terminal as it was.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// What ends a process that does not care.
const ENDS: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// A terminal as it was before it was asked for a password.
struct Before {
    terminal: libc::c_int,
    modes: libc::termios,
}

/// What a signal puts back; null when no password is asked for.
static BEFORE: AtomicPtr<Before> = AtomicPtr::new(ptr::null_mut());

/// Asks for a password.
///
/// # Errors
/// There is no terminal, or it is gone.
pub(super) fn password(prompt: &str) -> io::Result<String> {
    let _kept = Kept::keep()?;
    rpassword::prompt_password(prompt)
}

/// As long as it is there signals put the terminal back.
struct Kept([libc::sighandler_t; ENDS.len()]);

impl Kept {
    fn keep() -> io::Result<Self> {
        let terminal = File::open("/dev/tty")?;
        // SAFETY: a plain C structure for which all bytes zero is a value.
        let mut modes = unsafe { std::mem::zeroed::<libc::termios>() };
        // SAFETY: the file is open, and the modes are written to a structure of ours.
        if unsafe { libc::tcgetattr(terminal.as_raw_fd(), &raw mut modes) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // Both stay until the process ends, which is soon: a handler may still run in another thread.
        let before = Box::leak(Box::new(Before { terminal: terminal.into_raw_fd(), modes }));
        BEFORE.store(before, Ordering::Release);
        let handler = put_back as extern "C" fn(libc::c_int) as libc::sighandler_t;
        Ok(Self(ENDS.map(|signal| {
            // SAFETY: the handler makes calls only that are allowed in one.
            let was = unsafe { libc::signal(signal, handler) };
            if was == libc::SIG_IGN {
                // SAFETY: what is ignored (nohup) stays so; that runs no code.
                unsafe { libc::signal(signal, libc::SIG_IGN) };
            }
            was
        })))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        for (signal, was) in ENDS.into_iter().zip(self.0) {
            // SAFETY: what was there before.
            unsafe { libc::signal(signal, was) };
        }
        BEFORE.store(ptr::null_mut(), Ordering::Release);
    }
}

/// Puts the terminal back, and ends the process as the signal does it.
extern "C" fn put_back(signal: libc::c_int) {
    let before = BEFORE.load(Ordering::Acquire);
    // SAFETY: calls that are allowed in a handler, on a structure that is never freed, and a file that stays open. A
    // process in the background is not to be stopped for it.
    unsafe {
        libc::signal(libc::SIGTTOU, libc::SIG_IGN);
        if !before.is_null() {
            libc::tcsetattr((*before).terminal, libc::TCSANOW, &raw const (*before).modes);
        }
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}
