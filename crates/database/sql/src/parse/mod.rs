//! From text to [`crate::syntax`]. The tokens and the expressions are sqlparser's; what a procedure, a table and a
//! statement are is read here, token by token, because sqlparser knows no bodies with DECLARE, FOR and RAISE, and so
//! that every error has its place.

mod cursor;
mod define;
mod expression;
mod procedure;
mod statement;
mod transaction;

pub(crate) use cursor::Cursor;
pub(crate) use expression::hex;

use crate::error::Result;
use crate::syntax::{Place, Top};

/// The next statement of a script with the place where it begins and the one where it ends; `None` at the end.
pub(crate) fn next(cursor: &mut Cursor) -> Result<Option<(Top, Place, Place)>> {
    while cursor.eat(";") {}
    if cursor.at_end() {
        return Ok(None);
    }
    let start = cursor.place();
    let top = define::top(cursor)?;
    let end = cursor.place();
    if !cursor.at_end() {
        cursor.expect(";")?;
    }
    Ok(Some((top, start, end)))
}
