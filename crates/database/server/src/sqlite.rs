//! SQLite, as the server has it: databases in memory whose statements are bounded in memory and in time.
//!
//! All memory of SQLite comes from an allocator that counts it for the query that runs in the thread
//! ([`crate::limits`]); SQLite has no count of its own, whose lock all queries would share. A database is sealed before
//! a client's query runs in it: it then reads its tables and calls the functions that are named, and does nothing else.

use std::alloc::{Layout, alloc, dealloc, realloc};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Once;

use rusqlite::ffi::{SQLITE_CONFIG_MALLOC, SQLITE_CONFIG_MEMSTATUS, SQLITE_OK, sqlite3_config, sqlite3_mem_methods};
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, Error, ErrorCode, Result};

use crate::error::{Refusal, refuse};
use crate::limits::{self, Limits};
use crate::texts;

/// Instructions of SQLite between looks whether it is over. Between two of them an operator may join or compare large
/// values; functions look themselves.
const CHECK_OPCODES: i32 = 500;
/// The most bytes of a value.
pub(crate) const MAX_VALUE: usize = 64 << 20;

/// Bytes in front of each allocation of SQLite, which begin with its size and keep its alignment.
const HEAD: usize = 16;

/// An allocation with its head; nothing for sizes that there are not.
fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.checked_add(HEAD)?, HEAD).ok()
}

/// The size of an allocation of SQLite.
///
/// # Safety
/// `place` comes from [`allocate`] or [`reallocate`] and was not freed.
unsafe fn size(place: *mut c_void) -> usize {
    // SAFETY: the size stands in front of what SQLite was given.
    unsafe { place.byte_sub(HEAD).cast::<usize>().read() }
}

/// Writes the size into a new allocation and returns what SQLite gets of it.
///
/// # Safety
/// `begin` is null or has room for the head.
unsafe fn headed(begin: *mut u8, bytes: usize) -> *mut c_void {
    if begin.is_null() {
        limits::free(bytes);
        return null_mut();
    }
    // SAFETY: there is room, and the head is aligned.
    unsafe {
        begin.cast::<usize>().write(bytes);
        begin.byte_add(HEAD).cast()
    }
}

unsafe extern "C" fn allocate(bytes: c_int) -> *mut c_void {
    let bytes = usize::try_from(bytes).unwrap_or(0);
    match layout(bytes).filter(|_| limits::allocate(bytes)) {
        // SAFETY: the layout has the head at least.
        Some(layout) => unsafe { headed(alloc(layout), bytes) },
        None => null_mut(),
    }
}

unsafe extern "C" fn release(place: *mut c_void) {
    if place.is_null() {
        return;
    }
    // SAFETY: SQLite frees what it was given, once.
    unsafe {
        let bytes = size(place);
        if let Some(layout) = layout(bytes) {
            dealloc(place.byte_sub(HEAD).cast(), layout);
        }
        limits::free(bytes);
    }
}

unsafe extern "C" fn reallocate(place: *mut c_void, bytes: c_int) -> *mut c_void {
    let bytes = usize::try_from(bytes).unwrap_or(0);
    // SAFETY: SQLite gives back what it was given; when nothing is returned, that stays as it is.
    unsafe {
        let before = size(place);
        let (Some(old), Some(new)) = (layout(before), layout(bytes)) else { return null_mut() };
        if !limits::allocate(bytes) {
            return null_mut();
        }
        let moved = headed(realloc(place.byte_sub(HEAD).cast(), old, new.size()), bytes);
        if !moved.is_null() {
            limits::free(before);
        }
        moved
    }
}

unsafe extern "C" fn size_of_place(place: *mut c_void) -> c_int {
    // SAFETY: SQLite asks for what it was given.
    if place.is_null() { 0 } else { unsafe { size(place) as c_int } }
}

unsafe extern "C" fn rounded(bytes: c_int) -> c_int {
    bytes.saturating_add(7) & !7
}

unsafe extern "C" fn begin(_: *mut c_void) -> c_int {
    SQLITE_OK
}

unsafe extern "C" fn end(_: *mut c_void) {}

/// Gives SQLite the allocator, before anything uses it.
fn configure() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let methods = sqlite3_mem_methods {
            xMalloc: Some(allocate),
            xFree: Some(release),
            xRealloc: Some(reallocate),
            xSize: Some(size_of_place),
            xRoundup: Some(rounded),
            xInit: Some(begin),
            xShutdown: Some(end),
            pAppData: null_mut(),
        };
        // SAFETY: SQLite has not begun, copies the methods, and takes these arguments.
        let done = unsafe {
            [
                sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0 as c_int),
                sqlite3_config(SQLITE_CONFIG_MALLOC, std::ptr::from_ref(&methods)),
            ]
        };
        assert!(done == [SQLITE_OK; 2], "SQLite was used before its memory was bounded");
    });
}

/// An empty database, whose statements end with the limits of the query that runs them.
///
/// # Errors
/// Those of SQLite.
pub(crate) fn open() -> Result<Connection> {
    configure();
    let mut connection = Connection::open_in_memory()?;
    connection.execute_batch("PRAGMA temp_store = MEMORY; PRAGMA trusted_schema = OFF")?;
    connection.progress_handler(CHECK_OPCODES, Some(limits::is_over))?;
    texts::register(&connection)?;
    Ok(connection)
}

/// What a client's query may come to read and call, by its name in lower case.
#[derive(Clone, Copy)]
pub(crate) struct Allowed {
    pub(crate) table: fn(&str) -> bool,
    pub(crate) function: fn(&str) -> bool,
}

/// From now on the database answers SELECTs of tables that are allowed, and calls functions that are.
///
/// # Errors
/// Those of SQLite.
pub(crate) fn seal(connection: &mut Connection, allowed: Allowed) -> Result<()> {
    connection.authorizer(Some(move |context: AuthContext<'_>| {
        let is_known = match context.action {
            AuthAction::Select | AuthAction::Recursive => true,
            AuthAction::Read { table_name, .. } => (allowed.table)(&table_name.to_ascii_lowercase()),
            AuthAction::Function { function_name } => (allowed.function)(&function_name.to_ascii_lowercase()),
            _ => false,
        };
        if is_known { Authorization::Allow } else { Authorization::Deny }
    }))
}

/// The database takes any statement again.
///
/// # Errors
/// Those of SQLite.
pub(crate) fn unseal(connection: &mut Connection) -> Result<()> {
    connection.authorizer(None::<fn(AuthContext<'_>) -> Authorization>)
}

/// Registers a function that is paid for: its arguments count as work, and twice as memory while it runs, for the
/// copies that it makes of them. What can become larger than that is reserved by the function.
///
/// # Errors
/// Those of SQLite.
pub(crate) fn function(
    connection: &Connection,
    name: &str,
    arguments: c_int,
    flags: FunctionFlags,
    run: impl Fn(&Context<'_>) -> Result<Value> + Send + 'static,
) -> Result<()> {
    connection.create_scalar_function(name, arguments, FunctionFlags::SQLITE_UTF8 | flags, move |context| {
        let bytes = |at: usize| match context.get_raw(at) {
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.len(),
            _ => 8,
        };
        let bytes: usize = (0..context.len()).map(bytes).sum();
        limits::spend(bytes)?;
        let _copies = limits::reserve(2 * bytes)?;
        run(context).map(ToSqlOutput::Owned)
    })
}

/// What SQLite says of an error.
pub(crate) fn message(error: &Error) -> String {
    match error {
        Error::SqlInputError { msg, .. } => msg.clone(),
        Error::SqliteFailure(_, Some(message)) => message.clone(),
        Error::UserFunctionError(inner) => inner.to_string(),
        other => other.to_string(),
    }
}

/// An error of a function of ours, which says its SQLSTATE itself.
pub(crate) fn stated(message: &str) -> Option<Refusal> {
    let (sqlstate, message) = message.split_once(": ")?;
    let is_state = sqlstate.len() == 5 && sqlstate.bytes().all(|b| b.is_ascii_alphanumeric());
    let hint = if matches!(sqlstate, "53200" | "57014") { "ask for less" } else { "" };
    is_state.then(|| refuse(sqlstate, message).hint(hint))
}

/// The refusal of what ran for too long, or needed too much memory; nothing for other errors.
pub(crate) fn beyond(error: &Error, limits: &Limits) -> Option<Refusal> {
    let refusal = match error.sqlite_error_code()? {
        ErrorCode::OperationInterrupted => limits.too_long(),
        ErrorCode::OutOfMemory => limits.refusal().unwrap_or_else(|| limits.too_large()),
        ErrorCode::TooBig => {
            refuse("53200", format!("a value has more than {} MiB", MAX_VALUE >> 20)).hint("ask for less")
        }
        ErrorCode::AuthorizationForStatementDenied => refuse("0A000", message(error)),
        _ => return None,
    };
    Some(refusal)
}
