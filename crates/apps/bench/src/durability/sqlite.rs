//! SQLite, in this process: the system's library, WAL, `synchronous = FULL`, prepared statements.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;

use libloading::{Library, Symbol};

use super::{Transfer, YIELD};

/// What the library calls its connection and its statements.
type Handle = *mut c_void;

const ROW: c_int = 100;
const DONE: c_int = 101;

/// A database of accounts, and the statements of a transfer.
pub(super) struct Sqlite {
    library: Library,
    connection: Handle,
    begin: Handle,
    balance: Handle,
    add: Handle,
    commit: Handle,
}

impl Sqlite {
    /// A new database in `folder`.
    ///
    /// # Errors
    /// There is no library, or it refuses.
    pub(super) fn new(folder: &Path, accounts: u64, balance: i64) -> Result<Self, String> {
        // SAFETY: the library has nothing that runs when it is loaded.
        let library = unsafe { Library::new("libsqlite3.so.0") };
        let library = library.map_err(|error| format!("no SQLite here ({error}); Debian has it in libsqlite3-0"))?;
        let file = folder.join("sqlite.db");
        let name = CString::new(file.as_os_str().as_encoded_bytes()).map_err(|error| error.to_string())?;
        let mut connection = std::ptr::null_mut();
        // SAFETY: the type is that of the library's documentation, and the pointers live.
        let opened = unsafe {
            let open: Symbol<'_, unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int> =
                symbol(&library, b"sqlite3_open\0")?;
            open(name.as_ptr(), &raw mut connection)
        };
        let null = std::ptr::null_mut();
        let mut sqlite = Self { library, connection, begin: null, balance: null, add: null, commit: null };
        if opened != 0 {
            return Err(sqlite.problem("open"));
        }
        sqlite.execute("PRAGMA journal_mode = WAL")?;
        sqlite.execute("PRAGMA synchronous = FULL")?;
        sqlite.execute("PRAGMA cache_size = -1000000")?;
        sqlite.execute("CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)")?;
        sqlite.execute(&format!(
            "WITH RECURSIVE ids(id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM ids WHERE id + 1 < {accounts}) \
             INSERT INTO accounts SELECT id, {balance} FROM ids"
        ))?;
        sqlite.begin = sqlite.prepare("BEGIN IMMEDIATE")?;
        sqlite.balance = sqlite.prepare("SELECT balance FROM accounts WHERE id = ?1")?;
        sqlite.add = sqlite.prepare("UPDATE accounts SET balance = balance + ?2 WHERE id = ?1")?;
        sqlite.commit = sqlite.prepare("COMMIT")?;
        Ok(sqlite)
    }

    fn problem(&self, what: &str) -> String {
        // SAFETY: as in `new`; the text lives until the next call.
        unsafe {
            match symbol::<unsafe extern "C" fn(Handle) -> *const c_char>(&self.library, b"sqlite3_errmsg\0") {
                Ok(message) => {
                    format!("SQLite: {what}: {}", CStr::from_ptr(message(self.connection)).to_string_lossy())
                }
                Err(error) => error,
            }
        }
    }

    fn prepare(&self, text: &str) -> Result<Handle, String> {
        type Prepare = unsafe extern "C" fn(Handle, *const c_char, c_int, *mut Handle, *mut *const c_char) -> c_int;
        let (mut statement, mut rest) = (std::ptr::null_mut(), std::ptr::null());
        // SAFETY: as in `new`; the text is as long as is said.
        let prepared = unsafe {
            let prepare: Symbol<'_, Prepare> = symbol(&self.library, b"sqlite3_prepare_v2\0")?;
            prepare(self.connection, text.as_ptr().cast(), text.len() as c_int, &raw mut statement, &raw mut rest)
        };
        if prepared == 0 { Ok(statement) } else { Err(self.problem(text)) }
    }

    /// Runs a statement with these parameters; the first column of its last row, if there is one.
    fn run(&self, statement: Handle, parameters: &[i64]) -> Result<Option<i64>, String> {
        let mut answer = None;
        // SAFETY: as in `new`; the statement is one of this connection.
        unsafe {
            let bind: Symbol<'_, unsafe extern "C" fn(Handle, c_int, i64) -> c_int> =
                symbol(&self.library, b"sqlite3_bind_int64\0")?;
            let step: Symbol<'_, unsafe extern "C" fn(Handle) -> c_int> = symbol(&self.library, b"sqlite3_step\0")?;
            let column: Symbol<'_, unsafe extern "C" fn(Handle, c_int) -> i64> =
                symbol(&self.library, b"sqlite3_column_int64\0")?;
            let reset: Symbol<'_, unsafe extern "C" fn(Handle) -> c_int> = symbol(&self.library, b"sqlite3_reset\0")?;
            for (at, value) in parameters.iter().enumerate() {
                bind(statement, at as c_int + 1, *value);
            }
            let ended = loop {
                match step(statement) {
                    ROW => answer = Some(column(statement, 0)),
                    other => break other,
                }
            };
            reset(statement);
            if ended != DONE {
                return Err(self.problem("a statement"));
            }
        }
        Ok(answer)
    }

    fn execute(&self, text: &str) -> Result<Option<i64>, String> {
        let statement = self.prepare(text)?;
        let answer = self.run(statement, &[]);
        self.finalize(statement)?;
        answer
    }

    fn finalize(&self, statement: Handle) -> Result<(), String> {
        // SAFETY: as in `new`; nobody has the statement afterwards.
        unsafe {
            let finalize: Symbol<'_, unsafe extern "C" fn(Handle) -> c_int> =
                symbol(&self.library, b"sqlite3_finalize\0")?;
            finalize(statement);
        }
        Ok(())
    }

    /// Makes transfers, `together` in each transaction, until the time is over; how many.
    pub(super) fn transfers(
        &self,
        transfers: &mut dyn Iterator<Item = Transfer>,
        together: usize,
        is_over: &mut dyn FnMut() -> bool,
    ) -> Result<u64, String> {
        let mut made = 0;
        while !is_over() {
            self.run(self.begin, &[])?;
            for Transfer { from, to, amount } in transfers.take(together.min(YIELD)) {
                if self.run(self.balance, &[from])?.is_some_and(|balance| balance >= amount) {
                    self.run(self.add, &[from, -amount])?;
                    self.run(self.add, &[to, amount])?;
                }
                made += 1;
            }
            self.run(self.commit, &[])?;
        }
        Ok(made)
    }

    /// All money.
    pub(super) fn total(&self) -> Result<i64, String> {
        Ok(self.execute("SELECT sum(balance) FROM accounts")?.unwrap_or(0))
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        for statement in [self.begin, self.balance, self.add, self.commit] {
            // A statement that was not prepared is null, which is let be.
            drop(self.finalize(statement));
        }
        // SAFETY: as in `new`; nobody has the connection afterwards.
        unsafe {
            if let Ok(close) = symbol::<unsafe extern "C" fn(Handle) -> c_int>(&self.library, b"sqlite3_close\0") {
                close(self.connection);
            }
        }
    }
}

/// A function of the library.
///
/// # Safety
/// `T` is its type.
unsafe fn symbol<'a, T>(library: &'a Library, name: &[u8]) -> Result<Symbol<'a, T>, String> {
    // SAFETY: the caller says so.
    unsafe { library.get(name) }.map_err(|error| format!("SQLite: {error}"))
}
