//! The audit log: one line of JSON for each login, refused login, definition, and grant.
//!
//! | `event` | further fields |
//! |---|---|
//! | `login` | `session`, `right`, `tls`, `database` |
//! | `refused` | `reason`, `tls` |
//! | `definition` | `session`, `statement` (the first 4 KiB of it), `sqlstate` (00000 if it was carried out) |
//! | `grant` | the same, of a GRANT or REVOKE |
//! | `ended` | `session`, `reason`: the server ended a session because its user was changed or removed |
//!
//! Each has `time` (UTC), `user` and, but for `ended`, `address`. The file is read by its owner only. At 64 MiB it is
//! renamed to `FILE.1`, in the place of the one before; one that something else has renamed or removed is begun anew.
//!
//! The log keeps at most ten statements a second that were denied (42501), so that no user can fill the
//! file. The next one then has `omitted`, the number of those that are missing.
//!
//! The log never delays a client: when a write fails, the server warns once and goes on.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockwork::sql::Value as SqlValue;
use rustix::fs::OFlags;
use serde_json::{Map, Value, json};

/// A file that is longer is begun anew.
const MAX_BYTES: u64 = 64 << 20;
/// How often it is looked whether the file is still the one of this name.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// As much of a statement or a name is written.
const MAX_STATEMENT: usize = 4 << 10;
const MAX_NAME: usize = 256;
/// As much of a statement that its user lacks the right for, and as many of these in a second.
const MAX_DENIED_STATEMENT: usize = 512;
const MAX_DENIED: u32 = 10;
const DENIED: &str = "42501";

struct Log {
    file: File,
    looked: Instant,
    denied: Denied,
    /// It could not be written, which was told.
    is_broken: bool,
}

/// Counts statements that their users lack the right for.
struct Denied {
    /// When the second began that they are counted in.
    since: Instant,
    count: u32,
    /// Those that were not written since the last one that was.
    omitted: u64,
}

impl Denied {
    /// Whether one more is written: then with the number of those before it that were not.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if now.duration_since(self.since) >= Duration::from_secs(1) {
            (self.since, self.count) = (now, 0);
        }
        self.count = self.count.saturating_add(1);
        if self.count > MAX_DENIED {
            self.omitted += 1;
            return None;
        }
        Some(std::mem::take(&mut self.omitted))
    }
}

/// A kind of statement that is written down.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Definition,
    /// GRANT and REVOKE.
    Grant,
}

/// An audit log.
#[derive(Clone)]
pub struct Audit {
    path: Arc<Path>,
    log: Arc<Mutex<Log>>,
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
    /// Opens a log, which is made if it is not there.
    ///
    /// # Errors
    /// The system's; the file is a symbolic link.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path: PathBuf = path.into();
        let looked = Instant::now();
        let denied = Denied { since: looked, count: 0, omitted: 0 };
        let log = Log { file: open(&path)?, looked, denied, is_broken: false };
        Ok(Self { path: path.into(), log: Arc::new(Mutex::new(log)) })
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
            let path = self.path.display();
            tracing::warn!("the audit log {path} is not written: {error}; the server goes on without it");
        }
        log.is_broken = written.is_err();
    }

    /// Begins the file anew when it is too long, or is not the one of this name any more.
    fn look(&self, log: &mut Log) -> io::Result<()> {
        if log.looked.elapsed() < POLL_INTERVAL && !log.is_broken {
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

    /// Writes down that a statement was carried out, or was not.
    pub(crate) fn statement(&self, event: Event, of: Of<'_>, session: u64, statement: &str, sqlstate: &str) {
        let is_denied = sqlstate == DENIED;
        let most = if is_denied { MAX_DENIED_STATEMENT } else { MAX_STATEMENT };
        let mut more = json!({ "address": of.address.to_string(), "session": session,
            "statement": short(statement, most), "sqlstate": sqlstate });
        if is_denied {
            let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
            match log.denied.admit(Instant::now()) {
                None => return,
                Some(0) => {}
                Some(omitted) => more["omitted"] = omitted.into(),
            }
        }
        let event = match event {
            Event::Definition => "definition",
            Event::Grant => "grant",
        };
        self.write(event, of.user, more);
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
        let audit = Audit::open(&path).unwrap();
        let of = Of { user: "a\"\n\u{1}b", address: "10.0.0.1:5".parse().unwrap(), tls: true };
        audit.login(of, 7, "call", "bank");
        audit.refused(Of { user: &"x".repeat(9000), ..of }, "wrong password");
        audit.statement(Event::Definition, of, 7, &"é".repeat(5000), "42P07");
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
        audit.log.lock().unwrap().looked = Instant::now().checked_sub(POLL_INTERVAL).unwrap();
        audit.ended("ann", 9, "the user was removed");
        assert_eq!(lines(&path).len(), 1);
        // What is too long as well.
        audit.log.lock().unwrap().file.set_len(MAX_BYTES).unwrap();
        audit.log.lock().unwrap().looked = Instant::now().checked_sub(POLL_INTERVAL).unwrap();
        audit.ended("ann", 9, "the user was removed");
        assert_eq!(lines(&path).len(), 1);
        assert_eq!(std::fs::metadata(folder.path().join("audit.1")).unwrap().len(), MAX_BYTES);
        std::os::unix::fs::symlink("elsewhere", folder.path().join("link")).unwrap();
        let error = Audit::open(folder.path().join("link")).map(drop).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::LOOP.raw_os_error()), "{error}");
    }

    #[test]
    fn statements_that_lack_a_right_fill_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let audit = Audit::open(&path).unwrap();
        let of = Of { user: "ann", address: "10.0.0.1:5".parse().unwrap(), tls: false };
        // All within one second.
        let later = Instant::now() + Duration::from_secs(60);
        audit.log.lock().unwrap().denied.since = later;
        for _ in 0..100 {
            audit.statement(Event::Definition, of, 7, &"x".repeat(5000), DENIED);
        }
        audit.statement(Event::Grant, of, 7, "GRANT SELECT ON t TO ann", "00000");
        let all = lines(&path);
        assert_eq!((all.len(), all[0]["statement"].as_str().unwrap().len()), (11, 512));
        assert_eq!((all[10]["event"].as_str(), all[10].get("omitted")), (Some("grant"), None));
        audit.log.lock().unwrap().denied.since = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        audit.statement(Event::Grant, of, 7, "GRANT SELECT ON t TO ann", DENIED);
        assert_eq!(lines(&path)[11]["omitted"].as_u64(), Some(90));
    }
}
