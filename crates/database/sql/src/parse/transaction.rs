//! BEGIN, COMMIT, ROLLBACK and savepoints.

use super::cursor::Cursor;
use crate::error::{Result, unsupported};
use crate::syntax::Control;

/// Such a statement, if it is one.
pub(super) fn control(cursor: &mut Cursor) -> Result<Option<Control>> {
    let place = cursor.place();
    if cursor.eat("BEGIN") {
        work(cursor);
        return begin(cursor).map(Some);
    }
    if cursor.eat_all(&["START", "TRANSACTION"]) {
        return begin(cursor).map(Some);
    }
    if cursor.is("PREPARE") && cursor.is_at(1, "TRANSACTION") || cursor.is_at(1, "PREPARED") {
        return unsupported(place, "transactions in two phases are not supported", "COMMIT without PREPARED");
    }
    if cursor.eat("COMMIT") || cursor.eat("END") {
        work(cursor);
        return alone(cursor).map(|()| Some(Control::Commit));
    }
    if cursor.eat("ROLLBACK") || cursor.eat("ABORT") {
        work(cursor);
        if cursor.eat("TO") {
            cursor.eat("SAVEPOINT");
            return name(cursor).map(|name| Some(Control::RollBackTo(name)));
        }
        return alone(cursor).map(|()| Some(Control::RollBack));
    }
    if cursor.eat("SAVEPOINT") {
        return name(cursor).map(|name| Some(Control::Savepoint(name)));
    }
    if cursor.eat("RELEASE") {
        cursor.eat("SAVEPOINT");
        return name(cursor).map(|name| Some(Control::Release(name)));
    }
    Ok(None)
}

fn work(cursor: &mut Cursor) {
    let _optional = cursor.eat("WORK") || cursor.eat("TRANSACTION");
}

fn name(cursor: &mut Cursor) -> Result<String> {
    Ok(cursor.name("the name of a savepoint")?.text)
}

/// What may stand behind COMMIT and ROLLBACK.
fn alone(cursor: &mut Cursor) -> Result<()> {
    let place = cursor.place();
    if cursor.eat_all(&["AND", "NO", "CHAIN"]) || !cursor.is("AND") {
        return Ok(());
    }
    unsupported(place, "AND CHAIN is not supported", "write BEGIN behind it")
}

/// The modes of a transaction. Every isolation level is the strictest one.
fn begin(cursor: &mut Cursor) -> Result<Control> {
    let mut read_only = None;
    loop {
        if cursor.eat_all(&["ISOLATION", "LEVEL"]) {
            let levels: [&[&str]; 4] =
                [&["SERIALIZABLE"], &["REPEATABLE", "READ"], &["READ", "COMMITTED"], &["READ", "UNCOMMITTED"]];
            if !levels.iter().any(|level| cursor.eat_all(level)) {
                return cursor.expected("SERIALIZABLE, REPEATABLE READ, READ COMMITTED or READ UNCOMMITTED");
            }
        } else if cursor.eat_all(&["READ", "ONLY"]) {
            read_only = Some(true);
        } else if cursor.eat_all(&["READ", "WRITE"]) {
            read_only = Some(false);
        } else if !(cursor.eat_all(&["NOT", "DEFERRABLE"]) || cursor.eat("DEFERRABLE") || cursor.eat(",")) {
            return Ok(Control::Begin { read_only });
        }
    }
}
