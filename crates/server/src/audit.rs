//! The audit log: one line of JSON for each login, refused login, and definition.
//!
//! | `event` | further fields |
//! |---|---|
//! | `login` | `session`, `right`, `tls`, `database` |
//! | `refused` | `reason`, `tls` |
//! | `definition` | `session`, `statement` (the first 4 KiB of it), `sqlstate` (00000 if it was carried out) |
//! | `ended` | `session`, `reason`: the server ended a session because its user was changed or removed |
//!
//! Each has `time` (UTC), `user` and, but for `ended`, `address`. The file is read by its owner only. At 64 MiB it is
//! renamed to `FILE.1`, in the place of the one before; one that something else has renamed or removed is begun anew.
//! The log never delays a client: when a write fails, the server warns once and goes on.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockwork_database::sql::Value as SqlValue;
use rustix::fs::OFlags;
use serde_json::{Map, Value, json};

/// A file that is longer is begun anew.
const MAX_BYTES: u64 = 64 << 20;
/// How often it is looked whether the file is still the one of this name.
const LOOK: Duration = Duration::from_secs(1);
/// As much of a statement or a name is written.
const MAX_STATEMENT: usize = 4 << 10;
const MAX_NAME: usize = 256;

struct Log {
    file: File,
    looked: Instant,
    /// It could not be written, which was told.
    is_broken: bool,
}

/// An audit log.
#[derive(Clone)]
pub struct Audit {
    path: Arc<Path>,
    log: Arc<Mutex<Log>>,
    warn: fn(&str),
}

impl std::fmt::Debug for Audit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Audit").field("path", &self.path).finish_non_exhaustive()
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits() as i32);
    options.open(path)
}

/// As much of a text as fits, whole characters.
fn short(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

impl Audit {
    /// Opens a log, which is made if it is not there; `warn` is told when it cannot be written later.
    ///
    /// # Errors
    /// The system's; the file is a symbolic link.
    pub fn open(path: impl Into<PathBuf>, warn: fn(&str)) -> io::Result<Self> {
        let path: PathBuf = path.into();
        let log = Log { file: open(&path)?, looked: Instant::now(), is_broken: false };
        Ok(Self { path: path.into(), log: Arc::new(Mutex::new(log)), warn })
    }

    fn write(&self, event: &str, user: &str, more: Value) {
        let micros = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let time = SqlValue::Timestamp(i64::try_from(micros).unwrap_or(i64::MAX)).to_string().replacen(' ', "T", 1);
        let mut line = Map::new();
        line.insert("time".into(), format!("{time}Z").into());
        line.insert("event".into(), event.into());
        line.insert("user".into(), short(user, MAX_NAME).into());
        if let Value::Object(more) = more {
            line.extend(more);
        }
        let line = format!("{}\n", Value::Object(line));
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let written = self.look(&mut log).and_then(|()| log.file.write_all(line.as_bytes()));
        if let (Err(error), false) = (&written, log.is_broken) {
            (self.warn)(&format!("{} is not written: {error}; the server goes on without it", self.path.display()));
        }
        log.is_broken = written.is_err();
    }

    /// Begins the file anew when it is too long, or is not the one of this name any more.
    fn look(&self, log: &mut Log) -> io::Result<()> {
        if log.looked.elapsed() < LOOK && !log.is_broken {
            return Ok(());
        }
        log.looked = Instant::now();
        let ours = log.file.metadata()?;
        let is_there = |metadata: io::Result<std::fs::Metadata>| {
            metadata.is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino()))
        };
        if is_there(std::fs::symlink_metadata(&self.path)) {
            if ours.len() < MAX_BYTES {
                return Ok(());
            }
            let mut before = self.path.as_os_str().to_owned();
            before.push(".1");
            std::fs::rename(&self.path, before)?;
        }
        log.file = open(&self.path)?;
        Ok(())
    }

    pub(crate) fn login(&self, of: Of<'_>, session: u64, right: &str, database: &str) {
        let database = short(database, MAX_NAME);
        let more = json!({ "address": of.address.to_string(), "session": session, "right": right, "tls": of.tls,
            "database": database });
        self.write("login", of.user, more);
    }

    pub(crate) fn refused(&self, of: Of<'_>, reason: &str) {
        let more = json!({ "address": of.address.to_string(), "reason": short(reason, MAX_NAME), "tls": of.tls });
        self.write("refused", of.user, more);
    }

    pub(crate) fn definition(&self, of: Of<'_>, session: u64, statement: &str, sqlstate: &str) {
        let more = json!({ "address": of.address.to_string(), "session": session,
            "statement": short(statement, MAX_STATEMENT), "sqlstate": sqlstate });
        self.write("definition", of.user, more);
    }

    pub(crate) fn ended(&self, user: &str, session: u64, reason: &str) {
        self.write("ended", user, json!({ "session": session, "reason": reason }));
    }
}

/// Whose event it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Of<'a> {
    pub(crate) user: &'a str,
    pub(crate) address: SocketAddr,
    pub(crate) tls: bool,
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn lines(path: &Path) -> Vec<Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn events_are_lines_that_only_their_owner_reads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let audit = Audit::open(&path, |_| {}).unwrap();
        let of = Of { user: "a\"\n\u{1}b", address: "10.0.0.1:5".parse().unwrap(), tls: true };
        audit.login(of, 7, "call", "bank");
        audit.refused(Of { user: &"x".repeat(9000), ..of }, "wrong password");
        audit.definition(of, 7, &"é".repeat(5000), "42P07");
        audit.ended("ann", 9, "the user was removed");
        let all = lines(&path);
        let events: Vec<&str> = all.iter().map(|line| line["event"].as_str().unwrap()).collect();
        assert_eq!(events, ["login", "refused", "definition", "ended"]);
        assert_eq!((all[0]["user"].as_str(), all[0]["session"].as_u64()), (Some(of.user), Some(7)));
        assert_eq!((all[1]["user"].as_str().unwrap().len(), all[2]["statement"].as_str().unwrap().len()), (256, 4096));
        let time = all[0]["time"].as_str().unwrap();
        assert!(time.len() >= 20 && &time[10..11] == "T" && time.ends_with('Z'), "{time}");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // What has been renamed, as programs that rotate logs do, is begun anew.
        std::fs::rename(&path, folder.path().join("before")).unwrap();
        audit.log.lock().unwrap().looked = Instant::now().checked_sub(LOOK).unwrap();
        audit.ended("ann", 9, "the user was removed");
        assert_eq!(lines(&path).len(), 1);
        // What is too long as well.
        audit.log.lock().unwrap().file.set_len(MAX_BYTES).unwrap();
        audit.log.lock().unwrap().looked = Instant::now().checked_sub(LOOK).unwrap();
        audit.ended("ann", 9, "the user was removed");
        assert_eq!(lines(&path).len(), 1);
        assert_eq!(std::fs::metadata(folder.path().join("audit.1")).unwrap().len(), MAX_BYTES);
        std::os::unix::fs::symlink("elsewhere", folder.path().join("link")).unwrap();
        let error = Audit::open(folder.path().join("link"), |_| {}).map(drop).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::LOOP.raw_os_error()), "{error}");
    }
}
