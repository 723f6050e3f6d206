//! Which sessions live: an open-file-description lock on byte *n* of the segment's file for session *n*.
//!
//! The kernel takes the lock away when the process ends, however it ends, and at no other time: a process that is
//! merely stopped, or slow, keeps its locks and its sessions. Whoever gets the lock of a session is the only one who
//! may write its record: a process that opens it, or one that cleans up after its death.
//!
//! A child that forks without `exec` shares the description, and keeps its parent's sessions alive until it ends.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

use lockwork_locking::shared::SessionNumber;

/// The liveness locks of one attachment.
#[derive(Debug)]
pub(crate) struct Liveness {
    alive: File,
    /// Another description, which conflicts with the first: by it one learns whether a session of this process lives.
    others: Mutex<File>,
    own: Mutex<BTreeSet<u16>>,
}

impl Liveness {
    pub(crate) fn new(alive: File, others: File) -> Self {
        Self { alive, others: Mutex::new(others), own: Mutex::default() }
    }

    /// Takes the lock of the first of these sessions that nobody has; `None` if all are taken.
    pub(crate) fn take_free(&self, sessions: RangeInclusive<u16>) -> io::Result<Option<SessionNumber>> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        for number in sessions {
            if !own.contains(&number) && lock(&self.alive, number, true)? {
                own.insert(number);
                return Ok(SessionNumber::new(number));
            }
        }
        Ok(None)
    }

    /// Gives a lock of this process back.
    pub(crate) fn give_back(&self, number: SessionNumber) -> io::Result<()> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.remove(&number.get());
        lock(&self.alive, number.get(), false).map(drop)
    }

    /// Whether somebody has the lock of a session, without touching it.
    pub(crate) fn is_alive(&self, number: SessionNumber) -> io::Result<bool> {
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let mut range = range(number.get(), libc::F_WRLCK);
        control(&others, libc::F_OFD_GETLK, &mut range)?;
        Ok(range.l_type != libc::F_UNLCK as libc::c_short)
    }

    /// Runs `clean_up` if the session's process is dead, or never was, while nobody else can open it.
    pub(crate) fn if_dead<T>(&self, number: SessionNumber, clean_up: impl FnOnce() -> T) -> io::Result<Option<T>> {
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        if !lock(&others, number.get(), true)? {
            return Ok(None);
        }
        let done = clean_up();
        lock(&others, number.get(), false)?;
        Ok(Some(done))
    }
}

/// Locks or unlocks a byte. `false`: another description has it.
fn lock(file: &File, byte: u16, exclusive: bool) -> io::Result<bool> {
    let mut range = range(byte, if exclusive { libc::F_WRLCK } else { libc::F_UNLCK });
    match control(file, libc::F_OFD_SETLK, &mut range) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        done => done.map(|()| true),
    }
}

fn range(byte: u16, kind: libc::c_int) -> libc::flock {
    // SAFETY: zero is a good value of every field.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    range.l_start = byte.into();
    range.l_len = 1;
    range
}

fn control(file: &File, command: libc::c_int, range: &mut libc::flock) -> io::Result<()> {
    loop {
        // SAFETY: a system call with a structure that lives through it.
        if unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut *range) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
