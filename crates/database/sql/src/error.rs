//! Why a text was refused: SQLSTATE, message, place, and what to do instead.

use std::fmt;

use crate::syntax::Place;
use crate::value::Value;

impl Subject {
    /// What a key that exists is about: columns and values of it, if they are known.
    #[must_use]
    pub fn duplicate(table: &str, key: &[(String, Value)]) -> Self {
        let (names, values): (Vec<_>, Vec<_>) =
            key.iter().map(|(name, value)| (name.as_str(), value.to_string())).unzip();
        let detail = format!("Key ({})=({}) already exists.", names.join(", "), values.join(", "));
        let detail = if key.is_empty() { String::new() } else { detail };
        Self { table: table.into(), constraint: format!("{table}_pkey"), detail, ..Self::default() }
    }
}

/// The SQLSTATEs that this crate gives.
pub(crate) mod state {
    /// What is asked for is not supported.
    pub(crate) const NOT_SUPPORTED: &str = "0A000";
    /// The text is no SQL.
    pub(crate) const SYNTAX: &str = "42601";
    /// No such table or index.
    pub(crate) const UNDEFINED_TABLE: &str = "42P01";
    /// No such column or variable.
    pub(crate) const UNDEFINED_COLUMN: &str = "42703";
    /// No such procedure.
    pub(crate) const UNDEFINED_PROCEDURE: &str = "42883";
    /// The table, index or procedure exists.
    pub(crate) const DUPLICATE_TABLE: &str = "42P07";
    /// The name is one of those that only the catalog has.
    pub(crate) const RESERVED_NAME: &str = "42939";
    /// There is no such schema.
    pub(crate) const NO_SCHEMA: &str = "3F000";
    /// The column or variable exists.
    pub(crate) const DUPLICATE_COLUMN: &str = "42701";
    /// Types do not go together.
    pub(crate) const DATATYPE: &str = "42804";
    /// A constant is out of range, or a value of a number too large.
    pub(crate) const OUT_OF_RANGE: &str = "22003";
    /// A value is none of those that are possible.
    pub(crate) const INVALID_VALUE: &str = "22023";
    /// A NULL where there can be none.
    pub(crate) const NOT_NULL: &str = "23502";
    /// A text is too long for its place.
    pub(crate) const TOO_LONG: &str = "22001";
    /// A constant cannot be read as its type.
    pub(crate) const INVALID_TEXT: &str = "22P02";
    /// A definition is not possible.
    pub(crate) const INVALID_DEFINITION: &str = "42P16";
    /// The object is in use by procedures.
    pub(crate) const IN_USE: &str = "55006";
    /// The table is read only.
    pub(crate) const READ_ONLY: &str = "25006";
    /// The program is larger than the machine allows.
    pub(crate) const TOO_COMPLEX: &str = "54001";
    /// The compiler made what the verifier refuses.
    pub(crate) const INTERNAL: &str = "XX000";
}

/// Characters of a long line that are shown before and behind the place of an error.
const SHOWN: usize = 80;

/// What is wrong with a text, and where. It is displayed with the line of the source and a caret under the place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct SqlError {
    /// Five characters that say what kind of error it is.
    pub sqlstate: &'static str,
    /// What is wrong.
    pub message: String,
    /// Counted from 1.
    pub line: u32,
    /// Counted from 1, in characters.
    pub column: u32,
    /// What to do instead; empty where the message says it.
    pub hint: String,
    /// The line of the source, empty until [`Self::in_source`].
    pub source_line: String,
    /// What it is about, of an error of a value.
    pub subject: Option<Box<Subject>>,
    /// What to do instead outside of a procedure, where `hint` speaks of what only procedures have.
    pub(crate) alone: Option<&'static str>,
}

/// What an error of a value is about: clients of a server get it in fields of their own. What there is not is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// The table.
    pub table: String,
    /// Its column.
    pub column: String,
    /// What of the table is hurt: its primary key.
    pub constraint: String,
    /// More about it, as a sentence.
    pub detail: String,
}

impl SqlError {
    pub(crate) fn new(sqlstate: &'static str, place: Place, message: impl Into<String>) -> Self {
        let Place { line, column } = place;
        let message = shortened(message.into());
        let (hint, source_line) = (String::new(), String::new());
        Self { sqlstate, message, line, column, hint, source_line, subject: None, alone: None }
    }

    /// A NULL for a column.
    pub(crate) fn null(table: &str, column: &str, place: Place) -> Self {
        let message = format!("null value in column '{column}' of table '{table}', and there are no NULLs");
        let error = Self::new(state::NOT_NULL, place, message).about(table, column);
        error.hint("use a value of your own for 'none', such as 0 or ''")
    }

    pub(crate) fn about(mut self, table: &str, column: &str) -> Self {
        let subject = Subject { table: table.into(), column: column.into(), ..Subject::default() };
        self.subject = Some(Box::new(subject));
        self
    }

    /// An error of a value, which is for this column.
    pub(crate) fn of_column(self, table: &str, column: &str) -> Self {
        if !self.sqlstate.starts_with("22") {
            return self;
        }
        Self { message: format!("column '{column}': {}", self.message), ..self }.about(table, column)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        (self.hint, self.alone) = (hint.into(), None);
        self
    }

    /// Says what to do instead in a procedure, and outside of one.
    pub(crate) fn hints(mut self, in_procedure: impl Into<String>, alone: &'static str) -> Self {
        (self.hint, self.alone) = (in_procedure.into(), Some(alone));
        self
    }

    /// The same error with the hint that can be followed outside of a procedure.
    pub(crate) fn outside_procedure(mut self) -> Self {
        if let Some(alone) = self.alone.take() {
            self.hint = alone.into();
        }
        self
    }

    /// The same error with the line of `source`, the text that its place counts in.
    #[must_use]
    pub fn in_source(mut self, source: &str) -> Self {
        if self.source_line.is_empty() {
            let line = source.split('\n').nth(self.line.saturating_sub(1) as usize).unwrap_or("");
            self.source_line = line.trim_end_matches('\r').to_string();
        }
        self
    }
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sqlstate, message, line, column, hint, source_line, .. } = self;
        write!(f, "line {line}, column {column}: error {sqlstate}: {message}")?;
        f.write_str(&pointed(source_line, *column))?;
        if !hint.is_empty() {
            write!(f, "\nhint: {hint}")?;
        }
        Ok(())
    }
}

/// A line of source, indented, and a caret under a place in it, each behind a line break; nothing for a blank line.
/// The column counts characters from 1. Of a long line what is around the place.
#[must_use]
pub fn pointed(source_line: &str, column: u32) -> String {
    if source_line.trim().is_empty() {
        return String::new();
    }
    let place = column.saturating_sub(1) as usize;
    let length = source_line.chars().count();
    let first = if length > 2 * SHOWN { place.saturating_sub(SHOWN) } else { 0 };
    let shown: String = source_line.chars().skip(first).take(2 * SHOWN).collect();
    let (cut, more) = (if first > 0 { "..." } else { "" }, if first + 2 * SHOWN < length { "..." } else { "" });
    // Tabs stay tabs, so that the caret stands under its place.
    let before = cut.chars().map(|_| ' ').chain(shown.chars().take(place - first));
    let blank: String = before.map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
    format!("\n    {cut}{shown}{more}\n    {blank}^")
}

/// A message that quotes a giant name shows both of its ends.
fn shortened(message: String) -> String {
    let length = message.chars().count();
    if length <= 4 * SHOWN {
        return message;
    }
    let first: String = message.chars().take(2 * SHOWN).collect();
    let last: String = message.chars().skip(length - 2 * SHOWN).collect();
    format!("{first}...{last}")
}

/// What the rooms of this crate return.
pub(crate) type Result<T> = std::result::Result<T, SqlError>;

/// Refuses something that is not supported.
pub(crate) fn unsupported<T>(place: Place, message: impl Into<String>, hint: impl Into<String>) -> Result<T> {
    Err(SqlError::new(state::NOT_SUPPORTED, place, message).hint(hint))
}

/// Refuses something that is not supported, with what to do instead in a procedure and outside of one.
pub(crate) fn unsupported_in<T>(
    place: Place,
    message: impl Into<String>,
    (in_procedure, alone): (impl Into<String>, &'static str),
) -> Result<T> {
    Err(SqlError::new(state::NOT_SUPPORTED, place, message).hints(in_procedure, alone))
}

/// Refuses a text that is no SQL.
pub(crate) fn syntax<T>(place: Place, message: impl Into<String>) -> Result<T> {
    Err(SqlError::new(state::SYNTAX, place, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_line_the_place_is_shown() {
        let line = format!("{}\tWRONG{}", "a".repeat(1_000_000), "b".repeat(1_000_000));
        let place = Place { line: 2, column: 1_000_002 };
        let shown = SqlError::new(state::SYNTAX, place, "no").in_source(&format!("first\n{line}")).to_string();
        let lines: Vec<_> = shown.lines().collect();
        assert!(shown.len() < 500 && lines[1].ends_with("bb..."), "{shown}");
        assert_eq!(lines[1].find("WRONG").unwrap(), lines[2].find('^').unwrap());
        let message = SqlError::new(state::SYNTAX, place, format!("'{}' is long", "é".repeat(1_000_000))).message;
        assert!(message.chars().count() < 400 && message.starts_with("'é") && message.ends_with("é' is long"));
        let short = SqlError::new(state::SYNTAX, Place { line: 1, column: 3 }, "no").in_source("abc").to_string();
        assert_eq!(short, "line 1, column 3: error 42601: no\n    abc\n      ^");
    }
}
