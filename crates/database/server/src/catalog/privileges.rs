//! What the client of a query may do: `has_table_privilege` and its like.

use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::Value;
use rusqlite::{Connection, Result};

use super::arithmetic::refused;
use super::fill::{Known, Names, OWNER};
use super::functions::numbered;
use crate::grants::{Grants, Privilege};
use crate::rights::Right;
use crate::session_settings::SessionNames;
use crate::sqlite;
use crate::texts::text as word;

/// The privileges of a client: its right and its grants.
#[derive(Clone, Debug)]
pub(super) struct Privileges {
    pub(super) right: Right,
    pub(super) grants: Grants,
}

impl Default for Privileges {
    fn default() -> Self {
        Self { right: Right::Define, grants: Grants::default() }
    }
}

/// The functions, with how many arguments each has that are no user, and what it asks about.
const FUNCTIONS: [(&str, usize, Privilege); 4] = [
    ("has_any_column_privilege", 2, Privilege::Select),
    ("has_column_privilege", 3, Privilege::Select),
    ("has_function_privilege", 2, Privilege::Execute),
    ("has_table_privilege", 2, Privilege::Select),
];

/// Whether it is the name of one of the functions.
pub(super) fn is_one(name: &str) -> bool {
    FUNCTIONS.iter().any(|(known, ..)| *known == name)
}

impl Privileges {
    fn may(&self, privilege: Privilege, name: &str) -> bool {
        self.right >= privilege.right() || self.grants.has(privilege, name)
    }

    /// Whether the client has one of the privileges of a list, as PostgreSQL writes it; on no table or procedure of
    /// its own if there is no name.
    fn has(&self, kind: Privilege, list: &str, name: Option<&str>) -> Result<bool> {
        let mut has_one = false;
        for word in list.split(',') {
            let word = word.trim().to_ascii_uppercase();
            let (word, may_pass_on) = match word.strip_suffix(" WITH GRANT OPTION") {
                Some(word) => (word.trim_end(), self.right == Right::Define),
                None => (&*word, true),
            };
            let has = match (kind, word) {
                (Privilege::Select, "SELECT") | (Privilege::Execute, "EXECUTE") => {
                    name.is_none_or(|name| self.may(kind, name))
                }
                (Privilege::Select, "INSERT" | "UPDATE" | "DELETE") => name.is_some() && self.right >= Right::Write,
                (Privilege::Select, "TRUNCATE" | "REFERENCES" | "TRIGGER" | "MAINTAIN") => {
                    name.is_some() && self.right == Right::Define
                }
                _ => return Err(refused(&format!("22023: there is no privilege '{word:.100}'"))),
            };
            has_one |= has && may_pass_on;
        }
        Ok(has_one)
    }
}

/// Registers the functions.
pub(super) fn register(
    connection: &Connection,
    names: &Known,
    who: &Arc<Mutex<SessionNames>>,
    privileges: &Arc<Mutex<Privileges>>,
) -> Result<()> {
    for (function, arguments, kind) in FUNCTIONS {
        let (names, who, privileges) = (names.clone(), who.clone(), privileges.clone());
        sqlite::function(connection, function, -1, FunctionFlags::default(), move |context| {
            let who = who.lock().unwrap_or_else(PoisonError::into_inner);
            let privileges = privileges.lock().unwrap_or_else(PoisonError::into_inner);
            let first = match context.len().checked_sub(arguments) {
                Some(first @ (0 | 1)) => first,
                _ => return Err(refused(&format!("42883: {function} has not so many arguments"))),
            };
            let has = asked(context, first, kind, &names, &who, &privileges)?;
            Ok(has.map_or(Value::Null, |has| Value::Integer(has.into())))
        })?;
    }
    Ok(())
}

/// Returns whether the client has what a call asks about, whose arguments behind the user begin at `first`. Nothing is
/// known of other users, and of what does not exist by its number.
fn asked(
    context: &Context<'_>,
    first: usize,
    kind: Privilege,
    names: &Names,
    who: &SessionNames,
    privileges: &Privileges,
) -> Result<Option<bool>> {
    if first == 1 {
        let user = word(context, 0);
        if user.is_none_or(|user| user != who.user && user != OWNER.to_string()) {
            return Ok(None);
        }
    }
    let (Some(given), Some(list)) = (word(context, first), word(context, context.len() - 1)) else { return Ok(None) };
    let (registered, sqlstate, object) = match kind {
        Privilege::Select => ("regclass", "42P01", "table"),
        Privilege::Execute => ("regproc", "42883", "procedure"),
    };
    let Some(oid) = numbered(names, who, registered, &given) else {
        return Err(refused(&format!("{sqlstate}: {object} '{given:.100}' does not exist")));
    };
    let name = match kind {
        Privilege::Select => names.relations.get(&oid).map(|(schema, name)| (*schema == "public").then_some(&**name)),
        Privilege::Execute if oid == 750 => Some(None),
        Privilege::Execute => names.procedures.get(&oid).map(|procedure| Some(&*procedure.name)),
    };
    name.map(|name| privileges.has(kind, &list, name)).transpose()
}
