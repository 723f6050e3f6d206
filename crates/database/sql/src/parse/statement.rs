//! SELECT, INSERT, UPDATE and DELETE.

use super::cursor::Cursor;
use super::expression::expression;
use crate::error::{Result, syntax, unsupported, unsupported_in};
use crate::syntax::{Expr, ExprKind, From, Item, Name, Select, StmtKind, Target};

/// What answers SELECTs that are none of procedures.
const QUERY: &str = "'lockwork serve' answers such a SELECT: docs/operations.md, 'Looking at tables', has what it can";

/// SELECT, INSERT, UPDATE or DELETE, if one is next.
pub(super) fn data(cursor: &mut Cursor) -> Result<Option<StmtKind>> {
    Ok(Some(if cursor.is("SELECT") {
        StmtKind::Select(select(cursor)?)
    } else if cursor.eat("INSERT") {
        insert(cursor)?
    } else if cursor.eat("UPDATE") {
        update(cursor)?
    } else if cursor.eat("DELETE") {
        cursor.expect("FROM")?;
        let table = cursor.object("the name of a table")?;
        let (filter, order, limit) = which_rows(cursor)?;
        refuse_returning(cursor)?;
        StmtKind::Delete { table, filter, order, limit }
    } else if cursor.is("WITH") || cursor.is("MERGE") || cursor.is("VALUES") {
        let hint = "use SELECT, INSERT, UPDATE and DELETE of one table each";
        return unsupported(cursor.place(), "this statement is not supported", hint);
    } else {
        return Ok(None);
    }))
}

pub(super) fn target(cursor: &mut Cursor) -> Result<Target> {
    let name = cursor.name("the name of a variable")?;
    let field = if cursor.eat(".") { Some(cursor.name("the name of a column")?) } else { None };
    let index = if cursor.eat("[") {
        let index = expression(cursor)?;
        cursor.expect("]")?;
        Some(index)
    } else {
        None
    };
    Ok(Target { name, field, index })
}

pub(super) fn select(cursor: &mut Cursor) -> Result<Select> {
    let place = cursor.place();
    cursor.expect("SELECT")?;
    if cursor.is("DISTINCT") {
        let hints = ("keep a list of what was seen in an array", QUERY);
        return unsupported_in(cursor.place(), "DISTINCT is not supported", hints);
    }
    let items = cursor.list(item)?;
    let mut into = Vec::new();
    if cursor.eat("INTO") {
        cursor.eat("STRICT");
        into = cursor.list(target)?;
    }
    if !cursor.is("FROM") {
        let hints = ("without a table write an assignment: variable := expression", QUERY);
        return unsupported_in(cursor.place(), "a SELECT reads a table", hints);
    }
    cursor.advance();
    let from = if cursor.eat("(") {
        let place = cursor.place();
        let inner = select(cursor)?;
        if !inner.into.is_empty() {
            return syntax(place, "an inner SELECT has no INTO");
        }
        cursor.expect(")")?;
        From::Select(Box::new(inner), alias(cursor)?)
    } else {
        let table = cursor.object("the name of a table")?;
        From::Table(table, alias(cursor)?)
    };
    for word in [",", "JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "NATURAL"] {
        if cursor.is(word) {
            let hint = "look the other row up with a SELECT of its own, in a FOR loop if there are several";
            return unsupported_in(cursor.place(), "joins are not supported", (hint, QUERY));
        }
    }
    let mut select =
        Select { items, into, from, filter: None, order: Vec::new(), limit: None, for_update: false, place };
    (select.filter, select.order, select.limit) = which_rows(cursor)?;
    for word in ["GROUP", "HAVING", "UNION", "INTERSECT", "EXCEPT", "WINDOW", "OFFSET"] {
        if cursor.is(word) {
            let message = format!("{word} is not supported");
            return unsupported_in(cursor.place(), message, ("use a FOR loop over the rows", QUERY));
        }
    }
    if cursor.eat_all(&["FOR", "UPDATE"]) {
        select.for_update = true;
    } else {
        cursor.eat_all(&["FOR", "SHARE"]);
    }
    if select.into.is_empty() && cursor.eat("INTO") {
        select.into = cursor.list(target)?;
    }
    Ok(select)
}

fn alias(cursor: &mut Cursor) -> Result<Option<Name>> {
    if cursor.eat("AS") {
        return cursor.name("a name for the table").map(Some);
    }
    // Another word here begins a clause, and those that are unknown are refused there.
    Ok(None)
}

fn item(cursor: &mut Cursor) -> Result<Item> {
    let place = cursor.place();
    if cursor.eat("*") {
        return Ok(Item::All(place));
    }
    let expr = expression(cursor)?;
    let name = if cursor.eat("AS") { Some(cursor.name("a name for the column")?) } else { None };
    Ok(Item::Expr(expr, name))
}

type Rows = (Option<Expr>, Vec<Name>, Option<Expr>);

/// WHERE, ORDER BY and LIMIT.
fn which_rows(cursor: &mut Cursor) -> Result<Rows> {
    let filter = if cursor.eat("WHERE") { Some(expression(cursor)?) } else { None };
    let mut order = Vec::new();
    if cursor.eat_all(&["ORDER", "BY"]) {
        order = cursor.list(|cursor| {
            let name = cursor.name("the name of a column")?;
            if cursor.is("DESC") {
                let hint = "rows are read in ascending key order only; keep an index with a column that falls as the other \
                            grows, such as 4294967295 - number";
                return unsupported(cursor.place(), "ORDER BY ... DESC is not supported", hint);
            }
            cursor.eat("ASC");
            Ok(name)
        })?;
    }
    let mut limit = if cursor.eat("LIMIT") { Some(expression(cursor)?) } else { None };
    if cursor.eat("FETCH") {
        if !cursor.eat("FIRST") {
            cursor.expect("NEXT")?;
        }
        limit = Some(expression(cursor)?);
        if !cursor.eat("ROWS") {
            cursor.expect("ROW")?;
        }
        cursor.expect("ONLY")?;
    }
    Ok((filter, order, limit))
}

fn refuse_returning(cursor: &Cursor) -> Result<()> {
    if cursor.is("RETURNING") {
        let hint = "SELECT the row, before or behind it: in a procedure, or in a transaction, nobody comes between";
        return unsupported(cursor.place(), "RETURNING is not supported", hint);
    }
    Ok(())
}

/// A value of a column: an expression or DEFAULT.
fn value(cursor: &mut Cursor) -> Result<Expr> {
    let place = cursor.place();
    if cursor.eat("DEFAULT") {
        return Ok(Expr { kind: ExprKind::Default, place });
    }
    expression(cursor)
}

fn insert(cursor: &mut Cursor) -> Result<StmtKind> {
    cursor.expect("INTO")?;
    let table = cursor.object("the name of a table")?;
    let columns = if cursor.eat("(") {
        let columns = cursor.list(|cursor| cursor.name("the name of a column"))?;
        cursor.expect(")")?;
        Some(columns)
    } else {
        None
    };
    if cursor.is("SELECT") {
        let alone = "SELECT the rows, or COPY them out, and INSERT or COPY them; a procedure can in a FOR loop";
        let hints = ("use FOR r IN SELECT ... LOOP INSERT ... END LOOP", alone);
        return unsupported_in(cursor.place(), "INSERT ... SELECT is not supported", hints);
    }
    if cursor.is("DEFAULT") {
        return unsupported(cursor.place(), "DEFAULT VALUES is not supported", "write the values of the key");
    }
    cursor.expect("VALUES")?;
    let rows = cursor.list(|cursor| {
        cursor.expect("(")?;
        let row = cursor.list(value)?;
        cursor.expect(")")?;
        Ok(row)
    })?;
    let mut ignore = false;
    if cursor.is("ON") {
        let place = cursor.place();
        if !cursor.eat_all(&["ON", "CONFLICT", "DO", "NOTHING"]) {
            let hints = (
                "use ON CONFLICT DO NOTHING, then IF NOT FOUND THEN UPDATE ... END IF",
                "use ON CONFLICT DO NOTHING, and where it inserts no row, UPDATE the one that there is",
            );
            return unsupported_in(place, "only ON CONFLICT DO NOTHING is supported", hints);
        }
        ignore = true;
    }
    refuse_returning(cursor)?;
    Ok(StmtKind::Insert { table, columns, rows, ignore })
}

fn update(cursor: &mut Cursor) -> Result<StmtKind> {
    let table = cursor.object("the name of a table")?;
    cursor.expect("SET")?;
    let sets = cursor.list(|cursor| {
        let column = cursor.name("the name of a column")?;
        cursor.expect("=")?;
        Ok((column, value(cursor)?))
    })?;
    if cursor.is("FROM") {
        let hints =
            ("SELECT the other row INTO variables first", "UPDATE rows by their key, with values of the other rows");
        return unsupported_in(cursor.place(), "UPDATE ... FROM is not supported", hints);
    }
    let (filter, order, limit) = which_rows(cursor)?;
    refuse_returning(cursor)?;
    Ok(StmtKind::Update { table, sets, filter, order, limit })
}
