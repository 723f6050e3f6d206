//! Texts and names as SQLite reads them.
//!
//! Every statement for SQLite is written here and by the modules that call this one, never by the parser's `Display`,
//! which does not double quotes that it takes for doubled ones.

use crate::error::{Refusal, refuse};

/// Returns a text as a literal of SQLite.
///
/// # Errors
/// The text has a character NUL, at which SQLite would stop reading; PostgreSQL refuses it too.
pub(crate) fn literal(text: &str) -> Result<String, Refusal> {
    wrapped(text, '\'')
}

/// Returns a name as an identifier of SQLite, which is never a keyword, a number or a function.
///
/// # Errors
/// The name has a character NUL.
pub(crate) fn identifier(name: &str) -> Result<String, Refusal> {
    wrapped(name, '"')
}

fn wrapped(text: &str, quote: char) -> Result<String, Refusal> {
    let mut made = String::with_capacity(text.len() + 2);
    made.push(quote);
    for c in text.chars() {
        match c {
            '\0' => return Err(refuse("22021", "a text or name has the character NUL").hint("leave it out")),
            c if c == quote => made.extend([c, c]),
            c => made.push(c),
        }
    }
    made.push(quote);
    Ok(made)
}
