//! Grants: each is one procedure or table, for a user who lacks the right for all of them.
//!
//! They stand on the line of the user in the file of users, so they outlive the server, and are held in memory, so a
//! GRANT or REVOKE counts for the next statement of every session.
//!
//! | module | idea |
//! |---|---|
//! | `mod` | what users were granted, and changing it in the file |
//! | `statement` | GRANT and REVOKE as they are written |

mod statement;

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use lockwork::sql::Table;

use crate::catalog::identifier;
use crate::error::{Refusal, refuse};
use crate::rights::Right;
use crate::shared::{Shared, closed};
use crate::users::{User, Users, UsersError};
pub(crate) use statement::{Change, is_change, read};

/// What a grant lets a user do with one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Privilege {
    /// CALL of a procedure.
    Execute,
    /// SELECT, and COPY TO, of a table.
    Select,
}

impl Privilege {
    const ALL: [Self; 2] = [Self::Execute, Self::Select];

    /// What it is called, in the file of users too.
    fn word(self) -> &'static str {
        match self {
            Self::Execute => "execute",
            Self::Select => "select",
        }
    }

    /// What it is granted on.
    fn object(self) -> &'static str {
        match self {
            Self::Execute => "procedure",
            Self::Select => "table",
        }
    }

    /// The right that lets a user do the same with all things.
    pub(crate) fn right(self) -> Right {
        match self {
            Self::Execute => Right::Call,
            Self::Select => Right::Write,
        }
    }

    /// Returns the error of a user who lacks it.
    pub(crate) fn denied(self, name: &str, user: &str) -> Refusal {
        let (object, word) = (self.object(), self.word().to_ascii_uppercase());
        let (on, to) = (identifier(name), identifier(user));
        refuse("42501", format!("permission denied for {object} {name}")).hint(format!(
            "ask a user with the right 'define' for GRANT {word} ON {} {on} TO {to}; the right '{}' covers every {object}",
            object.to_ascii_uppercase(),
            self.right()
        ))
    }
}

/// What a user was granted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grants {
    execute: BTreeSet<String>,
    select: BTreeSet<String>,
}

impl Grants {
    fn of(&self, privilege: Privilege) -> &BTreeSet<String> {
        match privilege {
            Privilege::Execute => &self.execute,
            Privilege::Select => &self.select,
        }
    }

    fn of_mut(&mut self, privilege: Privilege) -> &mut BTreeSet<String> {
        match privilege {
            Privilege::Execute => &mut self.execute,
            Privilege::Select => &mut self.select,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        Privilege::ALL.into_iter().all(|privilege| !self.has_any(privilege))
    }

    pub(crate) fn has(&self, privilege: Privilege, name: &str) -> bool {
        self.of(privilege).contains(name)
    }

    /// Whether there is a grant of this kind.
    pub(crate) fn has_any(&self, privilege: Privilege) -> bool {
        !self.of(privilege).is_empty()
    }

    /// Reads the words of a line of the file of users that stand behind the verifier.
    pub(crate) fn read<'a>(words: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let mut grants = Self::default();
        for word in words {
            let read = word.split_once(':').and_then(|(kind, name)| {
                let privilege = Privilege::ALL.into_iter().find(|privilege| privilege.word() == kind)?;
                Some((privilege, unescaped(name)?))
            });
            let wrong = || format!("'{word}' is no grant; one is execute:PROCEDURE or select:TABLE");
            let (privilege, name) = read.ok_or_else(wrong)?;
            grants.of_mut(privilege).insert(name);
        }
        Ok(grants)
    }

    /// Writes them as the file of users has them: words with a blank before each.
    pub(crate) fn words(&self) -> String {
        let mut words = String::new();
        for privilege in Privilege::ALL {
            for name in self.of(privilege) {
                words += &format!(" {}:{}", privilege.word(), escaped(name));
            }
        }
        words
    }
}

/// The objects of each kind, as GRANT writes them behind `EXECUTE ON PROCEDURE` and `SELECT ON TABLE`.
impl fmt::Display for Grants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = Privilege::ALL.into_iter().filter(|privilege| self.has_any(*privilege)).map(|privilege| {
            let names: Vec<String> = self.of(privilege).iter().map(|name| identifier(name)).collect();
            let (word, object) = (privilege.word().to_ascii_uppercase(), privilege.object().to_ascii_uppercase());
            format!("{word} ON {object} {}", names.join(", "))
        });
        f.write_str(&kinds.collect::<Vec<_>>().join("; "))
    }
}

/// A name as a word: `%` and two digits stand for each byte of what would part words.
fn escaped(name: &str) -> String {
    let mut word = String::with_capacity(name.len());
    for c in name.chars() {
        if c == '%' || c.is_whitespace() || c.is_control() {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                _ = write!(word, "%{byte:02x}");
            }
        } else {
            word.push(c);
        }
    }
    word
}

fn unescaped(word: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(word.len()), word.bytes());
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok().filter(|name| !name.is_empty())
}

impl Shared {
    /// Whether there is a table of this name.
    pub(crate) fn has_table(&self, name: &str) -> bool {
        tokio::task::block_in_place(|| {
            self.database().as_ref().is_some_and(|database| database.sql_catalogue().find(name).is_some())
        })
    }

    /// Refuses a grant on what does not exist, or is something else.
    pub(crate) fn check_grantable(&self, privilege: Privilege, name: &str) -> Result<(), Refusal> {
        tokio::task::block_in_place(|| {
            let guard = self.database();
            let database = guard.as_ref().ok_or_else(closed)?;
            let table = database.sql_catalogue().find(name);
            match (privilege, table.map(Table::index_of)) {
                (Privilege::Execute, _) => {
                    let is_there = database.procedure_definitions().iter().any(|procedure| procedure.name == name);
                    let message = || format!("procedure '{name}' does not exist");
                    if is_there { Ok(()) } else { Err(refuse("42883", message())) }
                }
                (Privilege::Select, Some(None)) => Ok(()),
                (Privilege::Select, Some(Some(table))) => {
                    let hint = format!("grant SELECT on its table, '{table}'");
                    Err(refuse("42809", format!("'{name}' is an index")).hint(hint))
                }
                (Privilege::Select, None) => Err(refuse("42P01", format!("table '{name}' does not exist"))),
            }
        })
    }
}

/// Changes what a user was granted, whose right is `right`.
fn apply(change: &Change, User { name, login, grants, .. }: &mut User) -> Result<(), Refusal> {
    let all = change.privilege.right();
    if !change.is_grant && login.right >= all {
        let object = change.privilege.object();
        let message = format!("user '{name}' has the right '{}', which covers every {object}", login.right);
        let less = Right::below(all);
        let hint = format!("lockwork user FILE {name} --right {less} removes it, and keeps the grants");
        return Err(refuse("0LP01", message).hint(hint));
    }
    let has = grants.of_mut(change.privilege);
    for thing in &change.names {
        if change.is_grant {
            has.insert(thing.clone())
        } else {
            has.remove(thing)
        };
    }
    Ok(())
}

impl Users {
    /// Carries out a GRANT or REVOKE of things that exist: in the file, then for all sessions.
    pub(crate) fn grant(&self, change: &Change) -> Result<(), Refusal> {
        let unusable = |error: UsersError| {
            tracing::error!("{} failed: {error}", change.tag());
            let hint =
                "the standard error of the server has the reason; it needs write access to the folder of the file";
            refuse("58030", "the server cannot change its file of users").hint(hint)
        };
        let mut refused = None;
        let changed = self.edit(|all| {
            for name in &change.users {
                let found = all.iter_mut().find(|user| user.name == *name);
                let unknown = || {
                    let hint = "lockwork user FILE NAME makes a user; a name with capitals stands in double quotes";
                    refuse("42704", format!("user '{name}' does not exist")).hint(hint)
                };
                if let Err(refusal) = found.ok_or_else(unknown).and_then(|user| apply(change, user)) {
                    refused = Some(refusal);
                    return false;
                }
            }
            true
        });
        match (refused, changed) {
            (Some(refusal), _) => Err(refusal),
            (None, changed) => changed.map_err(unusable),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn change(text: &str) -> Change {
        read(text).unwrap()
    }

    #[test]
    fn grants_stand_on_the_line_of_their_user() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        for (name, right) in [("ann", Right::Write), ("bob", Right::Nothing), ("Eve", Right::Call)] {
            Users::set(&path, name, Some(right), "secret secret").unwrap();
        }
        let before = format!("# who\n\n{}", fs::read_to_string(&path).unwrap());
        fs::write(&path, &before).unwrap();
        let users = Users::open(&path).unwrap();
        let grants = |name: &str| users.grants(name).to_string();
        users.grant(&change("GRANT EXECUTE ON PROCEDURE q, p TO bob, \"Eve\"")).unwrap();
        users.grant(&change("GRANT SELECT ON \"T 1%\" TO bob")).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("# who\n\nann write SCRAM-SHA-256$") && text.lines().count() == 5, "{text}");
        assert!(text.lines().nth(3).unwrap().ends_with(" execute:p execute:q select:T%201%25"), "{text}");
        assert!(text.lines().nth(4).unwrap().ends_with(" execute:p execute:q"), "{text}");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(grants("bob"), "EXECUTE ON PROCEDURE p, q; SELECT ON TABLE \"T 1%\"");
        // They are the same after a start, and when the password changes; no session ends for them.
        let stamps = users.logins().unwrap();
        let again = Users::open(&path).unwrap();
        assert_eq!(again.grants("bob"), users.grants("bob"));
        users.grant(&change("REVOKE EXECUTE ON PROCEDURE p, nothing FROM bob")).unwrap();
        assert_eq!(users.logins().unwrap(), stamps);
        Users::set(&path, "bob", Some(Right::Call), "another secret").unwrap();
        assert_ne!(users.logins().unwrap(), stamps);
        assert_eq!(grants("bob"), "EXECUTE ON PROCEDURE q; SELECT ON TABLE \"T 1%\"");
        assert_eq!(
            Users::describe(&path).unwrap(),
            "Eve  call   EXECUTE ON PROCEDURE p, q\nann  write\n\
             bob  call   EXECUTE ON PROCEDURE q; SELECT ON TABLE \"T 1%\"\n"
        );
        // All of a statement is carried out, or nothing.
        let before = fs::read_to_string(&path).unwrap();
        for (text, sqlstate, part) in [
            ("GRANT SELECT ON t TO ann, eve", "42704", "'eve' does not exist"),
            ("REVOKE SELECT ON t FROM bob, ann", "0LP01", "'ann' has the right 'write', which covers every table"),
            ("REVOKE EXECUTE ON PROCEDURE q FROM bob", "0LP01", "'bob' has the right 'call'"),
        ] {
            let refusal = users.grant(&change(text)).unwrap_err();
            assert!(refusal.sqlstate == sqlstate && refusal.message.contains(part), "{text}: {refusal}");
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), before);
        users.grant(&change("REVOKE SELECT ON \"T 1%\" FROM bob")).unwrap();
        assert!(!fs::read_to_string(&path).unwrap().contains("select:"));
        // What another program does is seen when the file is read.
        assert!(Users::remove(&path, "bob").unwrap());
        users.logins().unwrap();
        assert!(users.grants("bob").is_empty());
        fs::write(&path, "nonsense").unwrap();
        assert_eq!(users.grant(&change("GRANT SELECT ON t TO ann")).unwrap_err().sqlstate, "58030");
    }

    #[test]
    fn changes_at_the_same_time_are_all_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        for at in 0..4 {
            Users::set(&path, &format!("u{at}"), Some(Right::Nothing), "secret secret").unwrap();
        }
        std::thread::scope(|scope| {
            for at in 0..4 {
                // Each opens the file as another program does.
                let users = Users::open(&path).unwrap();
                scope.spawn(move || {
                    for p in 0..20 {
                        users.grant(&change(&format!("GRANT EXECUTE ON PROCEDURE p{p} TO u{at}"))).unwrap();
                    }
                });
            }
        });
        let users = Users::open(&path).unwrap();
        for at in 0..4 {
            assert_eq!(users.grants(&format!("u{at}")).execute.len(), 20);
        }
    }

    #[test]
    fn words_that_are_no_grants_are_refused() {
        for word in ["execute", "execute:", "insert:t", "select:%2", "select:%zz", "select:%ff"] {
            assert!(Grants::read([word].into_iter()).is_err(), "{word}");
        }
        let name = "a b%c\u{a0}\n";
        assert_eq!(unescaped(&escaped(name)).as_deref(), Some(name));
        assert!(!escaped(name).contains(char::is_whitespace));
    }
}
