//! CREATE TABLE, CREATE INDEX, and which statement it is.

use super::cursor::Cursor;
use super::expression::{decimal, default_value, expression};
use super::{procedure, statement, transaction};
use crate::error::{Result, SqlError, state, syntax, unsupported};
use crate::syntax::{ColumnDefinition, CreateIndex, CreateTable, Division, Name, Top, TypeName};
use crate::types::SqlType;
use lockwork_procedure::schema::ColumnType;

pub(super) fn top(cursor: &mut Cursor) -> Result<Top> {
    if cursor.eat_all(&["CREATE", "PROCEDURE"]) {
        return procedure::create(cursor, false).map(Top::Procedure);
    }
    if cursor.eat_all(&["CREATE", "OR", "REPLACE", "PROCEDURE"]) {
        return procedure::create(cursor, true).map(Top::Procedure);
    }
    outside_procedure(cursor).map_err(SqlError::outside_procedure)
}

/// A statement that is no CREATE PROCEDURE.
fn outside_procedure(cursor: &mut Cursor) -> Result<Top> {
    let place = cursor.place();
    if cursor.eat_all(&["CREATE", "TABLE"]) {
        return table(cursor).map(Top::Table);
    }
    if cursor.eat_all(&["CREATE", "INDEX"]) {
        return index(cursor).map(Top::Index);
    }
    if cursor.eat_all(&["CREATE", "UNIQUE", "INDEX"]) {
        let hint = "make the columns the PRIMARY KEY of a table of their own, and insert into it too";
        return unsupported(place, "unique indexes are not supported", hint);
    }
    if cursor.eat_all(&["EXPLAIN", "PROCEDURE"]) {
        return Ok(Top::Explain(cursor.object("the name of a procedure")?));
    }
    if cursor.is("EXPLAIN") {
        let hint = "write EXPLAIN PROCEDURE name; to see what a statement is, put it into a procedure";
        return unsupported(place, "only procedures are explained", hint);
    }
    if cursor.eat("CALL") {
        let name = cursor.object("the name of a procedure")?;
        cursor.expect("(")?;
        let arguments = if cursor.is(")") { Vec::new() } else { cursor.list(expression)? };
        cursor.expect(")")?;
        let request = if cursor.eat("REQUEST") { Some(expression(cursor)?) } else { None };
        return Ok(Top::Call(name, arguments, request));
    }
    if let Some(control) = transaction::control(cursor)? {
        return Ok(Top::Transaction(control));
    }
    refuse_others(cursor)?;
    match statement::data(cursor)? {
        Some(kind) => Ok(Top::Single(Box::new(crate::syntax::Stmt { kind, place }))),
        None => cursor.expected("CREATE, SELECT, INSERT, UPDATE, DELETE, CALL, EXPLAIN, BEGIN, COMMIT or ROLLBACK"),
    }
}

/// Refuses what PostgreSQL has, and says what to do without it.
fn refuse_others(cursor: &Cursor) -> Result<()> {
    let instead = |known: &[(&str, &'static str)], ahead: usize| {
        let is_one = |words: &str| words.split(' ').any(|word| cursor.is_at(ahead, word));
        known.iter().find(|(words, _)| is_one(words)).map(|(_, hint)| *hint)
    };
    let Some(mut hint) = instead(STATEMENTS, 0) else { return Ok(()) };
    let mut what = cursor.word(0).unwrap_or_default();
    if matches!(&*what, "CREATE" | "ALTER" | "DROP") {
        let object = if cursor.is_at(1, "OR") { 3 } else { 1 };
        hint = instead(OBJECTS, object).unwrap_or(hint);
        what = [Some(what), cursor.word(object)].into_iter().flatten().collect::<Vec<_>>().join(" ");
    }
    unsupported(cursor.place(), format!("{what} is not supported"), hint)
}

/// First words of unsupported statements, and what to use instead.
const STATEMENTS: &[(&str, &str)] = &[
    ("CREATE", "CREATE TABLE, CREATE INDEX and CREATE PROCEDURE are"),
    (
        "DROP",
        "tables, indexes and procedures stay; CREATE OR REPLACE PROCEDURE changes a procedure, DELETE removes rows",
    ),
    ("ALTER", "make a table of another name, and COPY the rows over"),
    ("TRUNCATE", "DELETE ... LIMIT n removes rows"),
    (
        "GRANT REVOKE REASSIGN SECURITY",
        "'lockwork serve --users FILE' has GRANT and REVOKE; elsewhere there are no users",
    ),
    ("VACUUM ANALYZE REINDEX CLUSTER CHECKPOINT REFRESH", "leave it away: nothing here has to be tidied up"),
    ("DECLARE FETCH MOVE CLOSE", "there are no cursors: SELECT ... LIMIT, or COPY (SELECT ...) TO STDOUT"),
    ("PREPARE EXECUTE", "drivers prepare statements by the protocol, which is supported"),
    ("LISTEN NOTIFY UNLISTEN", "there are no notifications"),
    ("LOCK", "leave it away: transactions are serializable as they are"),
    ("DO", "CREATE PROCEDURE, and CALL it"),
    ("MERGE", "in a procedure: INSERT ... ON CONFLICT DO NOTHING, then UPDATE if it was not FOUND"),
    ("COMMENT IMPORT LOAD", "leave it away"),
];

/// The same of what they create, alter or drop.
const OBJECTS: &[(&str, &str)] = &[
    ("ROLE USER GROUP POLICY", "'lockwork user' says who may connect, and what each may do"),
    ("SCHEMA DATABASE", "a server has one database, which may have any name, and all of it is in 'public'"),
    ("VIEW MATERIALIZED", "write its query where it is needed"),
    ("FUNCTION AGGREGATE TRIGGER RULE", "CREATE PROCEDURE, with OUT parameters for what it answers"),
    ("SEQUENCE", "take numbers from a row that counts"),
    ("TEMP TEMPORARY UNLOGGED", "CREATE TABLE makes one that stays"),
    ("TYPE DOMAIN COLLATION", "docs/sql.md, 'Types', says which there are"),
    ("EXTENSION LANGUAGE", "leave it away"),
    ("SYSTEM", "'lockwork serve --help' says what can be set"),
];

/// A type. `n` elements of it are an array where `arrays`.
pub(super) fn type_name(cursor: &mut Cursor, arrays: bool) -> Result<TypeName> {
    // As many names with points between as stand in front of '%'.
    let is_named =
        |names: usize| (1..names).all(|name| cursor.is_at(2 * name - 1, ".")) && cursor.is_at(2 * names - 1, "%");
    if let Some(names) = (1..=3).find(|&names| is_named(names)) {
        return type_of_name(cursor, names, arrays);
    }
    let sql_type = sql_type(cursor)?;
    Ok(TypeName::Sql(sql_type, elements(cursor, arrays)?))
}

/// `[n]`, if it follows a type.
fn elements(cursor: &mut Cursor, arrays: bool) -> Result<Option<u32>> {
    if !cursor.is("[") {
        return Ok(None);
    }
    if !arrays {
        return unsupported(cursor.place(), "a column is no array", "make a row of each element");
    }
    cursor.advance();
    let place = cursor.place();
    let count = cursor.count("the number of elements")?;
    if count == 0 {
        return Err(SqlError::new(state::INVALID_DEFINITION, place, "an array has at least one element"));
    }
    cursor.expect("]")?;
    Ok(Some(count))
}

/// `table%ROWTYPE`, `table.column%TYPE` or `variable%TYPE`, of so many names.
fn type_of_name(cursor: &mut Cursor, names: usize, arrays: bool) -> Result<TypeName> {
    let is_row = cursor.is_at(2 * names, "ROWTYPE");
    if is_row || names == 1 {
        let name = cursor.object("the name of a table or variable")?;
        cursor.expect("%")?;
        cursor.expect(if is_row { "ROWTYPE" } else { "TYPE" })?;
        let count = elements(cursor, arrays)?;
        return Ok(if is_row { TypeName::Rows(name, count) } else { TypeName::Variable(name, count) });
    }
    if names == 3 {
        cursor.schema()?;
    }
    let table = cursor.name("the name of a table")?;
    cursor.expect(".")?;
    let column = cursor.name("the name of a column")?;
    cursor.expect("%")?;
    cursor.expect("TYPE")?;
    Ok(TypeName::Column(table, column, elements(cursor, arrays)?))
}

fn sql_type(cursor: &mut Cursor) -> Result<SqlType> {
    use ColumnType as T;
    let place = cursor.place();
    let integers = [
        (&["TINYINT"][..], T::I8, Some(T::U8)),
        (&["SMALLINT", "INT2"], T::I16, Some(T::U16)),
        (&["INTEGER", "INT", "INT4"], T::I32, Some(T::U32)),
        (&["BIGINT", "INT8"], T::I64, None),
    ];
    for (names, signed, unsigned) in integers {
        if names.iter().any(|name| cursor.eat(name)) {
            if !cursor.eat("UNSIGNED") {
                return Ok(SqlType::Integer(signed));
            }
            return match unsigned {
                Some(unsigned) => Ok(SqlType::Integer(unsigned)),
                None => unsupported(place, "there is no unsigned BIGINT", "use BIGINT"),
            };
        }
    }
    if cursor.eat("BOOLEAN") || cursor.eat("BOOL") {
        return Ok(SqlType::Boolean);
    }
    if cursor.eat("TIMESTAMP") {
        if cursor.eat("WITH") {
            return unsupported(place, "a timestamp has no time zone", "use TIMESTAMP, which is UTC");
        }
        cursor.eat_all(&["WITHOUT", "TIME", "ZONE"]);
        return Ok(SqlType::Timestamp);
    }
    if cursor.eat("DECIMAL") || cursor.eat("NUMERIC") || cursor.eat("DEC") {
        if !cursor.eat("(") {
            return unsupported(place, "a DECIMAL needs its precision", "write DECIMAL(12, 2)");
        }
        let precision = cursor.count("the number of digits")?;
        let scale = if cursor.eat(",") { cursor.count("the number of decimals")? } else { 0 };
        cursor.expect(")")?;
        return decimal(u64::from(precision), u64::from(scale), place);
    }
    let text = cursor.eat("CHAR") || cursor.eat("CHARACTER") || cursor.eat("VARCHAR");
    if text || cursor.eat("BYTEA") || cursor.eat("BINARY") || cursor.eat("VARBINARY") {
        if text {
            cursor.eat("VARYING");
        }
        if !cursor.eat("(") {
            return unsupported(place, "rows have a fixed width, so the type needs a length", "write VARCHAR(20)");
        }
        let length = cursor.count("the number of bytes")?;
        cursor.expect(")")?;
        if length == 0 || length > 65_535 {
            let message = format!("a length of {length} is not possible; 1 to 65535 are");
            return Err(SqlError::new(state::INVALID_DEFINITION, place, message));
        }
        return Ok(if text { SqlType::Text(length) } else { SqlType::Bytes(length) });
    }
    for (word, hint) in [
        ("TEXT", "write VARCHAR(n)"),
        ("REAL", "use DECIMAL(p, s): results must be the same on every machine"),
        ("FLOAT", "use DECIMAL(p, s): results must be the same on every machine"),
        ("DOUBLE", "use DECIMAL(p, s): results must be the same on every machine"),
        ("DATE", "use TIMESTAMP, or INTEGER days"),
        ("SERIAL", "use BIGINT, and take numbers from a row that counts"),
        ("BIGSERIAL", "use BIGINT, and take numbers from a row that counts"),
        ("UUID", "use BYTEA(16)"),
        ("JSON", "use BYTEA(n), or columns"),
    ] {
        if cursor.is(word) {
            return unsupported(place, format!("the type {word} is not supported"), hint);
        }
    }
    cursor.expected("a type")
}

fn names(cursor: &mut Cursor) -> Result<Vec<Name>> {
    cursor.expect("(")?;
    let names = cursor.list(|cursor| cursor.name("the name of a column"))?;
    cursor.expect(")")?;
    Ok(names)
}

fn table(cursor: &mut Cursor) -> Result<CreateTable> {
    if cursor.is("IF") {
        return unsupported(cursor.place(), "IF NOT EXISTS is not supported", "ask the catalogue first");
    }
    let name = cursor.object("the name of a table")?;
    if cursor.is("AS") {
        let hint = "CREATE TABLE with its columns, then COPY the rows over";
        return unsupported(cursor.place(), "CREATE TABLE ... AS is not supported", hint);
    }
    let (mut columns, mut primary) = (Vec::new(), None);
    cursor.expect("(")?;
    loop {
        let place = cursor.place();
        let is_named = cursor.eat("CONSTRAINT");
        if is_named {
            cursor.name("the name of the constraint")?;
        }
        // A column may have the name of a constraint: then a type follows it.
        if is_named || cursor.is_at(1, "(") || cursor.is_at(1, "KEY") || cursor.is_at(1, "USING") {
            refuse_constraint(cursor)?;
        }
        if cursor.eat_all(&["PRIMARY", "KEY"]) {
            if primary.replace(names(cursor)?).is_some() {
                return syntax(place, "a table has one PRIMARY KEY");
            }
        } else {
            columns.push(column(cursor)?);
        }
        if !cursor.eat(",") {
            break;
        }
    }
    cursor.expect(")")?;
    let mut table = CreateTable { name, columns, primary, ordered: None, partition: None, division: Division::None };
    loop {
        let place = cursor.place();
        if cursor.eat_all(&["PARTITION", "BY", "HASH"]) {
            cursor.expect("(")?;
            table.partition = Some(cursor.name("the name of a column")?);
            cursor.expect(")")?;
        } else if cursor.eat_all(&["PARTITION", "BY"]) {
            return unsupported(place, "only hash partitioning is supported", "write PARTITION BY HASH (column)");
        } else if cursor.eat("REPLICATED") {
            table.division = Division::Replicated;
        } else if cursor.eat("WITH") {
            cursor.expect("(")?;
            cursor.expect("ordered")?;
            cursor.expect("=")?;
            table.ordered = Some(if cursor.eat("true") {
                true
            } else if cursor.eat("false") {
                false
            } else {
                return cursor.expected("true or false");
            });
            cursor.expect(")")?;
        } else {
            break;
        }
    }
    if table.partition.is_some() && table.division == Division::Replicated {
        return syntax(table.name.place, "a table is either partitioned or replicated");
    }
    Ok(table)
}

/// What begins a constraint of a table or follows a column, and is not supported; what to do instead.
const CONSTRAINTS: &[(&str, &str)] = &[
    ("FOREIGN", "write rows by procedures that look the other row up: a row that is not there aborts"),
    ("REFERENCES", "write rows by procedures that look the other row up: a row that is not there aborts"),
    (
        "UNIQUE",
        "only the PRIMARY KEY is unique: make a second table with these columns as its PRIMARY KEY, and insert into both in \
         a procedure or a transaction",
    ),
    ("CHECK", "write rows by procedures that test them: IF NOT (...) THEN RAISE ..."),
    ("EXCLUDE", "write rows by procedures that test them: IF NOT (...) THEN RAISE ..."),
    ("COLLATE", "leave it out: texts compare byte by byte"),
    ("GENERATED", "compute the value where rows are inserted"),
];

fn refuse_constraint(cursor: &Cursor) -> Result<()> {
    match CONSTRAINTS.iter().find(|(word, _)| cursor.is(word)) {
        Some((word, hint)) => unsupported(cursor.place(), format!("{word} is not supported"), *hint),
        None => Ok(()),
    }
}

fn column(cursor: &mut Cursor) -> Result<ColumnDefinition> {
    let name = cursor.name("the name of a column")?;
    let TypeName::Sql(sql_type, None) = type_name(cursor, false)? else {
        return unsupported(name.place, "a column has a plain type", "see docs/sql.md, 'Types'");
    };
    let mut column = ColumnDefinition { name, sql_type, not_null: false, primary: false, default: None };
    loop {
        let place = cursor.place();
        if cursor.eat_all(&["NOT", "NULL"]) {
            column.not_null = true;
        } else if cursor.eat_all(&["PRIMARY", "KEY"]) {
            column.primary = true;
        } else if cursor.eat("DEFAULT") {
            column.default = Some(default_value(cursor)?);
        } else if cursor.is("NULL") {
            let hint = "write NOT NULL, and use a value of your own for 'none'";
            return unsupported(place, "there are no NULLs", hint);
        } else {
            if cursor.eat("CONSTRAINT") {
                cursor.name("the name of the constraint")?;
                continue;
            }
            refuse_constraint(cursor)?;
            return Ok(column);
        }
    }
}

fn index(cursor: &mut Cursor) -> Result<CreateIndex> {
    for (word, hint) in [
        ("CONCURRENTLY", "leave it away: an index is made in one go"),
        ("IF", "ask the catalogue first"),
        ("ON", "write CREATE INDEX name ON table (columns)"),
    ] {
        if cursor.is(word) && !cursor.is_at(1, "ON") {
            let what = if word == "ON" { "an index without a name".into() } else { format!("CREATE INDEX {word}") };
            return unsupported(cursor.place(), format!("{what} is not supported"), hint);
        }
    }
    let name = cursor.name("the name of the index")?;
    cursor.expect("ON")?;
    let table = cursor.object("the name of a table")?;
    let columns = names(cursor)?;
    if cursor.is("WHERE") || cursor.is("USING") || cursor.is("INCLUDE") {
        return unsupported(cursor.place(), "an index has columns only", "write CREATE INDEX name ON table (columns)");
    }
    Ok(CreateIndex { name, table, columns })
}
