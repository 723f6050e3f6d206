//! Rights of users: each holds for all procedures and tables.

use std::fmt;
use std::str::FromStr;

use lockwork::sql::Kind;

use crate::error::{Refusal, refuse};
use crate::users::UsersError;

/// What a user may do. Each may also do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// Log in, query the catalog, and use grants.
    Nothing,
    /// CALL.
    Call,
    /// SELECT, INSERT, UPDATE, DELETE and COPY.
    Write,
    /// CREATE, GRANT, REVOKE and EXPLAIN, and seeing the source of procedures.
    Define,
}

impl Right {
    const ALL: [Self; 4] = [Self::Nothing, Self::Call, Self::Write, Self::Define];

    /// Returns the highest right below this one.
    pub(crate) fn below(self) -> Self {
        Self::ALL.into_iter().rev().find(|right| *right < self).unwrap_or(Self::Nothing)
    }

    /// Returns the right that a statement of this kind needs.
    pub(crate) fn of(kind: Kind) -> Self {
        match kind {
            Kind::Transaction => Self::Nothing,
            Kind::Call => Self::Call,
            kind if kind.is_single() => Self::Write,
            _ => Self::Define,
        }
    }

    /// Refuses what needs this right to a client that has less.
    pub(crate) fn check(has: Option<Self>, needed: Self) -> Result<(), Refusal> {
        if has.is_some_and(|has| has >= needed) {
            return Ok(());
        }
        let has = has.unwrap_or(Self::Nothing);
        let message = format!("the right '{needed}' is needed, and this user has '{has}'");
        Err(refuse("42501", message).hint("connect as a user who may; lockwork user gives rights"))
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "none",
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
        right.ok_or_else(|| UsersError::Word(format!("'{text}' is no right; there are none, call, write and define")))
    }
}
