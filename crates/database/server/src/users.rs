//! Who may connect, what each may do, and what proves their passwords.
//!
//! A file of users has a line for each: name, right, and the verifier of SCRAM-SHA-256 (RFC 5803) in the form in which
//! PostgreSQL keeps it, so that neither the file nor what goes over the wire tells the password. Empty lines and those
//! that begin with `#` are comments. The file is read at each login: who changes it need not restart the server.
//!
//! Behind the verifier a line may have grants ([`Grants`]): single procedures and tables, for a user who may do less.
//!
//! Beside it, in `FILE.secret`, are random bytes from which the salts of users that do not exist are derived: they stay
//! the same when the server starts again, as those of users do.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, hash_map::DefaultHasher};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::hash::{Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, RwLock};

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pgwire::api::auth::sasl::scram::{SCRAM_ITERATIONS, ScramSecret, gen_salted_password};
use pgwire::api::auth::{AuthSource, LoginInfo, Password};
use pgwire::error::{PgWireError, PgWireResult};

use crate::grants::{Grants, Privilege};
use crate::private::{self, Unusable};
use crate::rights::Right;

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
    /// Others than its owner can read it; the text says how to change that.
    #[error("{0}")]
    Open(String),
    /// A line is no user.
    #[error(
        "{path}, line {line}: {problem}; a line is NAME none|call|write|define SCRAM-SHA-256$... and grants: lockwork \
         user makes it"
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

/// The longest name, as PostgreSQL has it, the shortest password, in characters, and the longest one, in bytes.
const LONGEST_NAME: usize = 63;
const SHORTEST_PASSWORD: usize = 12;
const LONGEST_PASSWORD: usize = 1024;
/// Behind the name of a file of users: what salts of users that do not exist are derived from.
const SECRET: &str = ".secret";
const SCHEME: &str = "SCRAM-SHA-256$";
/// Words of a line before the grants.
const OWN_WORDS: usize = 3;

/// A file of users.
pub struct Users {
    path: PathBuf,
    /// Makes up what is asked of users that do not exist, so that nobody learns who does.
    mask: [u8; 32],
    /// What each user was granted, when the file was read for the last time.
    granted: RwLock<HashMap<String, Grants>>,
    /// Held while the file is read or changed, so that `granted` never goes back to what was read before.
    turn: Mutex<()>,
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users").field("path", &self.path).finish_non_exhaustive()
    }
}

pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) login: Login,
    secret: ScramSecret,
    pub(crate) grants: Grants,
}

/// Which content of a file of users it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version([u64; 3], [i64; 4]);

/// What a file says of a user who has logged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) right: Right,
    /// Another one when right or password are others.
    pub(crate) stamp: u64,
}

fn random<const N: usize>() -> Result<[u8; N], UsersError> {
    let mut bytes = [0; N];
    let unavailable = |error: getrandom::Error| UsersError::Io { path: "random bytes".into(), error: error.into() };
    getrandom::fill(&mut bytes).map_err(unavailable)?;
    Ok(bytes)
}

/// A line of the file; nothing for a comment.
fn user(line: &str) -> Result<Option<User>, String> {
    let Some(name) = name_of(line) else { return Ok(None) };
    let mut words = line.split_whitespace().skip(1);
    let [Some(right), Some(verifier)] = [words.next(), words.next()] else {
        return Err("it has not three words".into());
    };
    let right = right.parse().map_err(|error: UsersError| error.to_string())?;
    let secret = secret(verifier).ok_or("its third word is no verifier of SCRAM-SHA-256")?;
    let mut hasher = DefaultHasher::new();
    // Grants count at once: a session does not end for them.
    line.split_whitespace().take(OWN_WORDS).for_each(|word| word.hash(&mut hasher));
    let login = Login { right, stamp: hasher.finish() };
    Ok(Some(User { name: name.into(), login, secret, grants: Grants::read(words)? }))
}

/// The user of a line; nothing for a comment.
fn name_of(line: &str) -> Option<&str> {
    line.split_whitespace().next().filter(|name| !name.starts_with('#'))
}

/// Reads the lines of a file.
fn parse(path: &Path, text: &str) -> Result<Vec<User>, UsersError> {
    let wrong = |line, problem| UsersError::Line { path: path.display().to_string(), line, problem };
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
    let io = |error| UsersError::Io { path: path.display().to_string(), error };
    let bytes = private::read(path).map_err(|why| match why {
        Unusable::Io(error) => io(error),
        Unusable::Open(why) => UsersError::Open(why),
    })?;
    String::from_utf8(bytes).map_err(|error| io(io::Error::new(io::ErrorKind::InvalidData, error.utf8_error())))
}

/// The file beside one of users that holds the secret.
fn secret_of(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(SECRET);
    beside.into()
}

/// What salts of users that do not exist are derived from; it is made if it is not there. Where it cannot be made, as
/// in a folder that is read-only, the verifiers of those who exist are as secret, and the same at each start.
fn mask(path: &Path, users: &[User]) -> Result<[u8; 32], UsersError> {
    let beside = secret_of(path);
    let io = |error| UsersError::Io { path: beside.display().to_string(), error };
    let read = || match private::read(&beside) {
        Ok(bytes) => match <[u8; 32]>::try_from(bytes) {
            Ok(mask) => Ok(Some(mask)),
            Err(_) => Err(io(io::Error::new(io::ErrorKind::InvalidData, "it has not 32 bytes; remove it"))),
        },
        Err(Unusable::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(Unusable::Io(error)) => Err(io(error)),
        Err(Unusable::Open(why)) => Err(UsersError::Open(why)),
    };
    if let Some(mask) = read()? {
        return Ok(mask);
    }
    let mask: [u8; 32] = random()?;
    let Err(error) = create(&beside, &mask) else { return Ok(mask) };
    // Another process may have been faster.
    if error.kind() == io::ErrorKind::AlreadyExists
        && let Some(mask) = read()?
    {
        return Ok(mask);
    }
    let keys: Vec<u8> = users.iter().flat_map(|user| user.secret_bytes().iter().copied()).collect();
    let derived = gen_salted_password(&STANDARD.encode(keys), SECRET.as_bytes(), 1);
    derived.try_into().map_err(|_| io(io::Error::other("no secret was derived")))
}

/// Makes a file with these bytes under its name, whole or not at all.
///
/// # Errors
/// The system's; the file is there.
fn create(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    let random: [u8; 8] = random().map_err(io::Error::other)?;
    name.push(format!(".{:016x}.tmp", u64::from_ne_bytes(random)));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&name)?;
    let linked = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| fs::hard_link(&name, path));
    let removed = fs::remove_file(&name);
    linked.and(removed)?;
    sync_folder(path)
}

/// Makes the name of a file durable.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// Waits until no other process changes a file; that holds until what is returned is dropped.
fn lock(path: &Path) -> io::Result<File> {
    loop {
        // A file system of the network takes a lock of a file that is open for writing only.
        let file = OpenOptions::new().read(true).write(true).open(path).or_else(|_| File::open(path))?;
        file.lock()?;
        // The one before may have put another file in its place.
        let [ours, there] = [file.metadata()?, fs::metadata(path)?];
        if (ours.dev(), ours.ino()) == (there.dev(), there.ino()) {
            return Ok(file);
        }
    }
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
    fs::rename(&beside, path)?;
    sync_folder(path)
}

impl Users {
    /// The users of a file.
    ///
    /// # Errors
    /// It cannot be read, others can read it, or a line of it is wrong.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, UsersError> {
        let (granted, turn) = (RwLock::default(), Mutex::default());
        let mut users = Self { path: path.into(), mask: [0; 32], granted, turn };
        let list = users.list()?;
        users.mask = mask(&users.path, &list)?;
        Ok(users)
    }

    /// Another one when the file may have been changed.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn version(&self) -> io::Result<Version> {
        let metadata = fs::metadata(&self.path)?;
        let changed = [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()];
        Ok(Version([metadata.dev(), metadata.ino(), metadata.len()], changed))
    }

    /// What the file says now of each user.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(crate) fn logins(&self) -> Result<HashMap<String, Login>, UsersError> {
        Ok(self.list()?.into_iter().map(|user| (user.name, user.login)).collect())
    }

    fn list(&self) -> Result<Vec<User>, UsersError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let users = parse(&self.path, &read(&self.path)?)?;
        self.remember(&users);
        Ok(users)
    }

    fn remember(&self, users: &[User]) {
        let has_some = |user: &&User| !user.grants.is_empty();
        let granted = users.iter().filter(has_some).map(|user| (user.name.clone(), user.grants.clone())).collect();
        *self.granted.write().unwrap_or_else(PoisonError::into_inner) = granted;
    }

    /// Returns what a user was granted.
    pub(crate) fn grants(&self, user: &str) -> Grants {
        let granted = self.granted.read().unwrap_or_else(PoisonError::into_inner);
        granted.get(user).cloned().unwrap_or_default()
    }

    /// Whether a user was granted this.
    pub(crate) fn has(&self, user: &str, privilege: Privilege, name: &str) -> bool {
        let granted = self.granted.read().unwrap_or_else(PoisonError::into_inner);
        granted.get(user).is_some_and(|grants| grants.has(privilege, name))
    }

    /// Whether a user was granted the reading of some table.
    pub(crate) fn reads_any(&self, user: &str) -> bool {
        let granted = self.granted.read().unwrap_or_else(PoisonError::into_inner);
        granted.get(user).is_some_and(|grants| grants.has_any(Privilege::Select))
    }

    /// Changes the grants of users: in the file, then for all sessions. Nothing changes unless `edit` answers true.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub(crate) fn edit(&self, edit: impl FnOnce(&mut [User]) -> bool) -> Result<(), UsersError> {
        let io = |error| UsersError::Io { path: self.path.display().to_string(), error };
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let _lock = lock(&self.path).map_err(io)?;
        let text = read(&self.path)?;
        let mut users = parse(&self.path, &text)?;
        if !edit(&mut users) {
            return Ok(());
        }
        let mut changed = String::with_capacity(text.len());
        let mut next = users.iter();
        for line in text.lines() {
            match name_of(line).and_then(|_| next.next()) {
                Some(user) => {
                    let own: Vec<&str> = line.split_whitespace().take(OWN_WORDS).collect();
                    changed += &own.join(" ");
                    changed += &user.grants.words();
                }
                None => changed += line,
            }
            changed.push('\n');
        }
        replace(&self.path, &changed).map_err(io)?;
        self.remember(&users);
        Ok(())
    }

    /// Returns a line for each user of a file: the name, the right and the grants.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn describe(path: &Path) -> Result<String, UsersError> {
        let mut users = parse(path, &read(path)?)?;
        users.sort_by(|one, other| one.name.cmp(&other.name));
        let width = |text: fn(&User) -> String| users.iter().map(|user| text(user).chars().count()).max().unwrap_or(0);
        let (names, rights) = (width(|user| user.name.clone()), width(|user| user.login.right.to_string()));
        let line = |User { name, login, grants, .. }: &User| {
            let line = format!("{name:names$}  {:rights$}  {grants}", login.right.to_string());
            format!("{}\n", line.trim_end())
        };
        Ok(users.iter().map(line).collect())
    }

    /// Adds a user to a file, or gives one another password, and returns the user's right: `right`, or else the right
    /// that the user has, `call` for a new one. Grants stay. The file is made if it is not there.
    ///
    /// # Errors
    /// The name or the password cannot be one, or the file cannot be read or written.
    pub fn set(path: &Path, name: &str, right: Option<Right>, password: &str) -> Result<Right, UsersError> {
        let is_plain = |c: char| !c.is_whitespace() && !c.is_control();
        if name.is_empty() || name.len() > LONGEST_NAME || name.starts_with('#') || !name.chars().all(is_plain) {
            let rule = format!("1 to {LONGEST_NAME} bytes without blanks, and no '#' first");
            return Err(UsersError::Word(format!("'{}' is no name of a user: {rule}", name.escape_debug())));
        }
        let characters = password.chars().count();
        if characters < SHORTEST_PASSWORD || password.len() > LONGEST_PASSWORD {
            return Err(UsersError::Word(format!(
                "a password has at least {SHORTEST_PASSWORD} characters and at most {LONGEST_PASSWORD} bytes, and this \
                 one has {characters}; openssl rand -base64 18 makes a good one"
            )));
        }
        let verifier = verifier(password)?;
        let mut chosen = Right::Call;
        let line = |old: Option<&str>| {
            chosen = right.or_else(|| old?.parse().ok()).unwrap_or(Right::Call);
            Some(format!("{name} {chosen} {verifier}"))
        };
        Self::change(path, name, line)?;
        // At once, so that a server that may only read the folder has it.
        mask(path, &[])?;
        Ok(chosen)
    }

    /// Takes a user out of a file; whether there was one.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn remove(path: &Path, name: &str) -> Result<bool, UsersError> {
        Self::change(path, name, |_| None)
    }

    /// Replaces the line of a user by what `with` makes of the right in it, and by the same grants, or removes it;
    /// whether there was one.
    fn change(path: &Path, name: &str, with: impl FnOnce(Option<&str>) -> Option<String>) -> Result<bool, UsersError> {
        let io = |error| UsersError::Io { path: path.display().to_string(), error };
        let (_lock, before) = match lock(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => (None, String::new()),
            locked => (Some(locked.map_err(io)?), read(path)?),
        };
        let is_own = |line: &&str| line.split_whitespace().next() == Some(name);
        let (own, mut lines): (Vec<&str>, Vec<&str>) = before.lines().partition(is_own);
        let grants: Vec<&str> = own.iter().flat_map(|line| line.split_whitespace().skip(OWN_WORDS)).collect();
        let old = own.first().and_then(|line| line.split_whitespace().nth(1));
        let line = with(old).map(|with| [&[&with[..]], &grants[..]].concat().join(" "));
        if own.is_empty() && line.is_none() {
            return Ok(false);
        }
        lines.extend(line.as_deref());
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        replace(path, &text).map_err(io)?;
        Ok(!own.is_empty())
    }
}

impl User {
    /// What only a file of users has of a password.
    fn secret_bytes(&self) -> &[u8] {
        match &self.secret {
            ScramSecret::Verifier { server_key, .. } => server_key,
            _ => &[],
        }
    }
}

#[async_trait]
impl AuthSource<Login> for Users {
    async fn get_password(&self, login: &LoginInfo) -> PgWireResult<Password> {
        // Only mechanisms that see the password ask for it.
        Err(PgWireError::InvalidPassword(login.user().unwrap_or_default().into()))
    }

    async fn get_scram_secret(&self, login: &LoginInfo) -> PgWireResult<(ScramSecret, Option<Login>)> {
        let name = login.user().unwrap_or_default();
        let users = self.list().map_err(|error| {
            tracing::error!("nobody can log in: {error}");
            PgWireError::UserError(Box::new(crate::session::fatal("28000", "the server cannot read its users")))
        })?;
        let found = users.into_iter().find(|user| user.name == name);
        Ok(found.map_or_else(|| (self.masked(name), None), |User { login, secret, .. }| (secret, Some(login))))
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
