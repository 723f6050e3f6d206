//! Who may connect, what each may do, and what proves their passwords.
//!
//! A file of users has a line for each: name, right, and the verifier of SCRAM-SHA-256 (RFC 5803) in the form in which
//! PostgreSQL keeps it, so that neither the file nor what goes over the wire tells the password. Empty lines and those
//! that begin with `#` are comments. The file is read at each login: who changes it need not restart the server.

use std::collections::HashSet;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lockwork_database::sql::Kind;
use pgwire::api::auth::sasl::scram::{SCRAM_ITERATIONS, ScramSecret, gen_salted_password};
use pgwire::api::auth::{AuthSource, LoginInfo, Password};
use pgwire::error::{PgWireError, PgWireResult};

use crate::error::{Refusal, refuse};

/// What a user may do. Each may also do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// CALL and EXPLAIN.
    Call,
    /// SELECT, INSERT, UPDATE, DELETE and COPY.
    Write,
    /// CREATE.
    Define,
}

impl Right {
    const ALL: [Self; 3] = [Self::Call, Self::Write, Self::Define];

    /// Refuses a statement of this kind to a client that may do less.
    pub(crate) fn check(has: Option<Self>, kind: Kind) -> Result<(), Refusal> {
        let needed = match kind {
            Kind::Call | Kind::Explain | Kind::Transaction => Self::Call,
            kind if kind.is_single() => Self::Write,
            _ => Self::Define,
        };
        if has.is_some_and(|has| has >= needed) {
            return Ok(());
        }
        let has = has.map_or("none".into(), |has| format!("'{has}'"));
        let message = format!("the right '{needed}' is needed, and this user has {has}");
        Err(refuse("42501", message).hint("connect as a user who may; lockwork user gives rights"))
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Call => "call",
            Self::Write => "write",
            Self::Define => "define",
        })
    }
}

impl FromStr for Right {
    type Err = UsersError;

    fn from_str(text: &str) -> Result<Self, UsersError> {
        let right = Self::ALL.into_iter().find(|right| right.to_string() == text);
        right.ok_or_else(|| UsersError::Word(format!("'{text}' is no right; there are call, write and define")))
    }
}

/// Why a file of users cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UsersError {
    /// The system refuses.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: String,
        /// The system's error.
        error: io::Error,
    },
    /// Others than its owner can read it.
    #[error("{0} can be read by others than its owner: chmod 600 {0}")]
    Open(String),
    /// A line is no user.
    #[error(
        "{path}, line {line}: {problem}; a line is NAME call|write|define SCRAM-SHA-256$...: lockwork user makes it"
    )]
    Line {
        /// The file.
        path: String,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// A name, right or password cannot be one.
    #[error("{0}")]
    Word(String),
}

/// The longest name, as PostgreSQL has it, and the longest password.
const LONGEST_NAME: usize = 63;
const LONGEST_PASSWORD: usize = 1024;
const SCHEME: &str = "SCRAM-SHA-256$";

/// A file of users.
pub struct Users {
    path: PathBuf,
    /// Makes up what is asked of users that do not exist, so that nobody learns who does.
    mask: [u8; 32],
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users").field("path", &self.path).finish_non_exhaustive()
    }
}

struct User {
    name: String,
    right: Right,
    secret: ScramSecret,
}

fn random<const N: usize>() -> Result<[u8; N], UsersError> {
    let mut bytes = [0; N];
    let unavailable = |error: getrandom::Error| UsersError::Io { path: "random bytes".into(), error: error.into() };
    getrandom::fill(&mut bytes).map_err(unavailable)?;
    Ok(bytes)
}

/// A line of the file; nothing for a comment.
fn user(line: &str) -> Result<Option<User>, String> {
    let mut words = line.split_whitespace();
    let Some(name) = words.next().filter(|name| !name.starts_with('#')) else { return Ok(None) };
    let [Some(right), Some(verifier), None] = [words.next(), words.next(), words.next()] else {
        return Err("it has not three words".into());
    };
    let right = right.parse().map_err(|error: UsersError| error.to_string())?;
    let secret = secret(verifier).ok_or("its third word is no verifier of SCRAM-SHA-256")?;
    Ok(Some(User { name: name.into(), right, secret }))
}

/// `SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey`
fn secret(verifier: &str) -> Option<ScramSecret> {
    let (how, keys) = verifier.strip_prefix(SCHEME)?.split_once('$')?;
    let ((iterations, salt), (stored, server)) = (how.split_once(':')?, keys.split_once(':')?);
    let bytes = |text: &str| STANDARD.decode(text).ok();
    let key = |text: &str| bytes(text).filter(|key| key.len() == 32);
    let iterations = iterations.parse().ok().filter(|iterations| (1..=1_000_000).contains(iterations))?;
    let salt = bytes(salt).filter(|salt| !salt.is_empty())?;
    Some(ScramSecret::Verifier { salt, iterations, stored_key: key(stored)?, server_key: key(server)? })
}

/// What proves a password.
fn verifier(password: &str) -> Result<String, UsersError> {
    let salt: [u8; 16] = random()?;
    let salted = gen_salted_password(password, &salt, SCRAM_ITERATIONS);
    let made = ScramSecret::verifier_from_salted_password(salt.to_vec(), salted, SCRAM_ITERATIONS);
    let ScramSecret::Verifier { salt, iterations, stored_key, server_key } = made else {
        return Err(UsersError::Word("no verifier was made".into()));
    };
    let text = |bytes: &[u8]| STANDARD.encode(bytes);
    Ok(format!("{SCHEME}{iterations}:{}${}:{}", text(&salt), text(&stored_key), text(&server_key)))
}

/// The text of a file that only its owner can read.
fn read(path: &Path) -> Result<String, UsersError> {
    let name = || path.display().to_string();
    let io = |error| UsersError::Io { path: name(), error };
    let mut file = fs::File::open(path).map_err(io)?;
    if file.metadata().map_err(io)?.mode() & 0o077 != 0 {
        return Err(UsersError::Open(name()));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(io)?;
    Ok(text)
}

/// Puts a text in a file's place, whole or not at all.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".tmp");
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, path)
}

impl Users {
    /// The users of a file.
    ///
    /// # Errors
    /// It cannot be read, others can read it, or a line of it is wrong.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, UsersError> {
        let users = Self { path: path.into(), mask: random()? };
        users.list()?;
        Ok(users)
    }

    fn list(&self) -> Result<Vec<User>, UsersError> {
        let text = read(&self.path)?;
        let wrong = |line, problem| UsersError::Line { path: self.path.display().to_string(), line, problem };
        let (mut users, mut names) = (Vec::new(), HashSet::new());
        for (at, line) in text.lines().enumerate() {
            let Some(user) = user(line).map_err(|problem| wrong(at + 1, problem))? else { continue };
            // Of two that differ nobody would know which counts.
            if !names.insert(user.name.clone()) {
                return Err(wrong(at + 1, format!("'{}' has a line before it, and may have one", user.name)));
            }
            users.push(user);
        }
        Ok(users)
    }

    /// Adds a user to a file, or gives one another password and right; the file is made if it is not there.
    ///
    /// # Errors
    /// The name or the password cannot be one, or the file cannot be read or written.
    pub fn set(path: &Path, name: &str, right: Right, password: &str) -> Result<(), UsersError> {
        let is_plain = |c: char| !c.is_whitespace() && !c.is_control();
        if name.is_empty() || name.len() > LONGEST_NAME || name.starts_with('#') || !name.chars().all(is_plain) {
            let rule = format!("1 to {LONGEST_NAME} bytes without blanks, and no '#' first");
            return Err(UsersError::Word(format!("'{}' is no name of a user: {rule}", name.escape_debug())));
        }
        if password.is_empty() || password.len() > LONGEST_PASSWORD {
            return Err(UsersError::Word(format!("a password has 1 to {LONGEST_PASSWORD} bytes")));
        }
        Self::change(path, name, Some(&format!("{name} {right} {}", verifier(password)?))).map(drop)
    }

    /// Takes a user out of a file; whether there was one.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn remove(path: &Path, name: &str) -> Result<bool, UsersError> {
        Self::change(path, name, None)
    }

    /// Puts a line in the place of a user's, or none; whether there was one.
    fn change(path: &Path, name: &str, with: Option<&str>) -> Result<bool, UsersError> {
        let before = match read(path) {
            Err(UsersError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound && with.is_some() => {
                String::new()
            }
            other => other?,
        };
        let is_other = |line: &&str| line.split_whitespace().next() != Some(name);
        let mut lines: Vec<&str> = before.lines().filter(is_other).collect();
        let existed = lines.len() < before.lines().count();
        lines.extend(with);
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        replace(path, &text).map_err(|error| UsersError::Io { path: path.display().to_string(), error })?;
        Ok(existed)
    }
}

#[async_trait]
impl AuthSource<Right> for Users {
    async fn get_password(&self, login: &LoginInfo) -> PgWireResult<Password> {
        // Only mechanisms that see the password ask for it.
        Err(PgWireError::InvalidPassword(login.user().unwrap_or_default().into()))
    }

    async fn get_scram_secret(&self, login: &LoginInfo) -> PgWireResult<(ScramSecret, Option<Right>)> {
        let name = login.user().unwrap_or_default();
        let users = self.list().map_err(|error| {
            eprintln!("lockwork: nobody can log in: {error}");
            PgWireError::UserError(Box::new(crate::session::fatal("28000", "the server cannot read its users")))
        })?;
        let found = users.into_iter().find(|user| user.name == name);
        Ok(found.map_or_else(|| (self.masked(name), None), |User { right, secret, .. }| (secret, Some(right))))
    }
}

impl Users {
    /// What a user that does not exist is asked to prove: always the same, and nothing proves it.
    fn masked(&self, name: &str) -> ScramSecret {
        let made_up = |iterations| gen_salted_password(name, &self.mask, iterations);
        let salt = made_up(1)[..16].to_vec();
        ScramSecret::Verifier { salt, iterations: SCRAM_ITERATIONS, stored_key: made_up(2), server_key: made_up(3) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_added_changed_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        assert!(matches!(Users::open(&path), Err(UsersError::Io { .. })));
        Users::set(&path, "ann", Right::Define, "secret").unwrap();
        fs::write(&path, format!("# who\n\n{}", fs::read_to_string(&path).unwrap())).unwrap();
        Users::set(&path, "bob", Right::Call, "pässword").unwrap();
        Users::set(&path, "ann", Right::Write, "other").unwrap();
        let users = Users::open(&path).unwrap();
        let list = users.list().unwrap();
        let rights: Vec<_> = list.iter().map(|user| (user.name.as_str(), user.right)).collect();
        assert_eq!(rights, [("bob", Right::Call), ("ann", Right::Write)]);
        assert!(fs::read_to_string(&path).unwrap().starts_with("# who\n\nbob call SCRAM-SHA-256$4096:"));
        assert!(Users::remove(&path, "bob").unwrap() && !Users::remove(&path, "bob").unwrap());
        assert_eq!(users.list().unwrap().len(), 1);
        for name in ["", "#a", "a b", "a\nb", &"a".repeat(64)] {
            assert!(matches!(Users::set(&path, name, Right::Call, "x"), Err(UsersError::Word(_))), "{name}");
        }
        let empty = Users::set(&path, "eve", Right::Call, "").unwrap_err().to_string();
        assert!(empty.starts_with("a password has 1 to "), "{empty}");
        assert_eq!(users.list().unwrap().len(), 1);
    }

    #[test]
    fn files_that_are_wrong_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        Users::set(&path, "ann", Right::Define, "secret").unwrap();
        let good = fs::read_to_string(&path).unwrap();
        for (text, expected) in [
            (format!("{good}bob call\n"), "line 2: it has not three words"),
            (format!("{good}{good}"), "line 2: 'ann' has a line before it"),
            (good.replace("define", "all"), "line 1: 'all' is no right"),
            (good.replace("SCRAM-SHA-256", "md5"), "line 1: its third word is no verifier"),
            (good.replace("$4096:", "$0:"), "line 1: its third word is no verifier"),
            (good.trim_end().trim_end_matches('=').into(), "line 1: its third word is no verifier"),
        ] {
            fs::write(&path, text).unwrap();
            let error = Users::open(&path).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        fs::write(&path, &good).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
        assert!(matches!(Users::open(&path), Err(UsersError::Open(_))));
    }
}
