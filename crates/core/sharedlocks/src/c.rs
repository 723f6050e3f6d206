//! The interface for C, as `include/lockwork_shared_locks.h` declares and describes it.
//!
//! Every function takes null for an error of its caller and says so. A session is for one thread at a time; a table for
//! all. What went wrong last in a thread is told by [`lockwork_locks_error`].

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::time::Duration;

use lockwork_locking::shared::TableError;

use crate::{Error, Layout, LockMode, Options, Session, SharedLocks};

/// Done.
pub const OK: c_int = 0;
/// The lock is held by somebody else, and the request was not to wait.
pub const BUSY: c_int = 1;
/// The lock was not granted in time.
pub const TIMED_OUT: c_int = 2;
/// Waiting could be waiting in a circle.
pub const WOULD_DEADLOCK: c_int = 3;
/// The session does not hold the lock.
pub const NOT_HELD: c_int = 4;
/// The session holds or waits for something, so its age cannot change.
pub const IN_USE: c_int = 5;
/// Anything else; see [`lockwork_locks_error`].
pub const FAILED: c_int = -1;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

fn note(message: &str) {
    let text = CString::new(message.replace('\0', " ")).unwrap_or_default();
    // A destructor of a thread may come after those of Rust.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
}

fn code(done: Result<(), Error>) -> c_int {
    let Err(error) = done else { return OK };
    note(&error.to_string());
    match error {
        Error::Busy => BUSY,
        Error::TimedOut => TIMED_OUT,
        Error::WouldDeadlock => WOULD_DEADLOCK,
        Error::Table(TableError::NotHeld(_)) => NOT_HELD,
        Error::Table(TableError::InUse(_)) => IN_USE,
        _ => FAILED,
    }
}

/// # Safety
/// `name` is null or a string that ends with zero.
unsafe fn text<'a>(name: *const c_char) -> Option<&'a str> {
    if name.is_null() {
        note("the name of the lock table is a null pointer");
        return None;
    }
    // SAFETY: as the caller's.
    let text = unsafe { CStr::from_ptr(name) }.to_str();
    text.map_err(|_| note("the name of the lock table is not UTF-8")).ok()
}

fn give<T>(made: Result<T, Error>) -> *mut T {
    match made {
        Ok(value) => Box::into_raw(Box::new(value)),
        Err(error) => {
            note(&error.to_string());
            std::ptr::null_mut()
        }
    }
}

/// What went wrong last in this thread; empty if nothing did. Good until the thread's next call.
#[unsafe(no_mangle)]
pub extern "C" fn lockwork_locks_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"the thread is ending".as_ptr())
}

/// Makes a table with `lines` lines (a power of two) and room for `sessions` sessions; null if it cannot.
///
/// # Safety
/// `name` is null or a string that ends with zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockwork_locks_create(name: *const c_char, lines: u32, sessions: u16) -> *mut SharedLocks {
    // SAFETY: as the caller's.
    let Some(name) = (unsafe { text(name) }) else { return std::ptr::null_mut() };
    let layout = Layout { held: lines.clamp(1, 4096), ..Layout::new(lines, sessions) };
    give(SharedLocks::create(name, &Options { layout, reserve: true }))
}

/// Attaches to a table; null if it cannot.
///
/// # Safety
/// `name` is null or a string that ends with zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockwork_locks_attach(name: *const c_char) -> *mut SharedLocks {
    // SAFETY: as the caller's.
    let Some(name) = (unsafe { text(name) }) else { return std::ptr::null_mut() };
    give(SharedLocks::attach(name))
}

/// Detaches. Sessions stay good.
///
/// # Safety
/// `locks` is null, or comes from create or attach and was not closed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockwork_locks_close(locks: *mut SharedLocks) {
    if !locks.is_null() {
        // SAFETY: as the caller's.
        drop(unsafe { Box::from_raw(locks) });
    }
}

/// Opens a session; null if it cannot.
///
/// # Safety
/// `locks` is null or an open table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockwork_session_open(locks: *const SharedLocks) -> *mut Session {
    // SAFETY: as the caller's.
    match unsafe { locks.as_ref() } {
        Some(locks) => give(locks.session()),
        None => {
            note("the lock table is a null pointer");
            std::ptr::null_mut()
        }
    }
}

/// Gives back all that a session holds, and closes it.
///
/// # Safety
/// `session` is null, or open and not in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockwork_session_close(session: *mut Session) {
    if !session.is_null() {
        // SAFETY: as the caller's.
        drop(unsafe { Box::from_raw(session) });
    }
}

/// # Safety
/// `session` is null, or open and not in use.
unsafe fn with(session: *mut Session, step: impl FnOnce(&mut Session) -> Result<(), Error>) -> c_int {
    // SAFETY: as the caller's.
    match unsafe { session.as_mut() } {
        Some(session) => code(step(session)),
        None => {
            note("the session is a null pointer");
            FAILED
        }
    }
}

/// Tells a session's age for wait-die: smaller is older. [`IN_USE`] while the session holds or waits for anything.
///
/// # Safety
/// `session` is null, or open and not in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockwork_session_set_age(session: *mut Session, age: u64) -> c_int {
    // SAFETY: as the caller's.
    unsafe { with(session, |session| session.set_age(age)) }
}

/// Takes the lock of a key in a mode (1 shared, 2 intent, 3 exclusive); `timeout_ns` 0: only if at once, negative: as
/// long as it takes, but never in a circle.
///
/// # Safety
/// `session` is null, or open and not in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockwork_lock(session: *mut Session, key: u64, mode: c_int, timeout_ns: i64) -> c_int {
    let mode = match mode {
        1 => LockMode::Shared,
        2 => LockMode::IntentExclusive,
        3 => LockMode::Exclusive,
        other => {
            note(&format!("{other} is not a mode; 1 is shared, 2 intent, 3 exclusive"));
            return FAILED;
        }
    };
    // SAFETY: as the caller's.
    unsafe {
        with(session, |session| match u64::try_from(timeout_ns) {
            Err(_) => session.lock(key, mode),
            Ok(0) => session.try_lock(key, mode),
            Ok(limit) => session.lock_within(key, mode, Duration::from_nanos(limit)),
        })
    }
}

/// Gives back one grant of a key.
///
/// # Safety
/// `session` is null, or open and not in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockwork_unlock(session: *mut Session, key: u64) -> c_int {
    // SAFETY: as the caller's.
    unsafe { with(session, |session| session.unlock(key)) }
}

/// Gives back all that a session holds.
///
/// # Safety
/// `session` is null, or open and not in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lockwork_unlock_all(session: *mut Session) -> c_int {
    // SAFETY: as the caller's.
    unsafe { with(session, Session::unlock_all) }
}
