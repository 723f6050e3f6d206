//! Statements that are no business of a database but that clients send: settings, transactions of one statement, and
//! questions about the server.

use pgwire::api::Type;
use sqlparser::ast::{
    Expr, FunctionArguments, ObjectName, Query, Select, SelectItem, SetExpr, Statement, UnaryOperator, Value,
};

use crate::error::{Refusal, refuse};
use crate::parameters;
use crate::syntax::read;

/// What such a statement answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// What it is called when it is done.
    pub(crate) tag: String,
    /// A row of columns with names and types; of no columns for none.
    pub(crate) row: Vec<(String, Type, String)>,
}

/// What the words of a session are: they answer `current_user` and `current_database()`.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    pub(crate) user: String,
    pub(crate) database: String,
}

/// The answer to the first statement of a text if it is one of these, and the text behind it; else nothing.
pub(crate) fn known<'a>(text: &'a str, who: &Who) -> Option<(Result<Known, Refusal>, &'a str)> {
    let (first, rest) = divide(text);
    alone(first, who).map(|answer| (answer, rest))
}

/// A text up to its first semicolon, and what stands behind it. Semicolons in quotes and comments are none.
pub(crate) fn divide(text: &str) -> (&str, &str) {
    let mut bytes = text.bytes().enumerate().peekable();
    while let Some((at, byte)) = bytes.next() {
        let next = bytes.peek().map(|&(_, next)| next);
        match (byte, next) {
            (b';', _) => return (&text[..at], &text[at + 1..]),
            (b'\'' | b'"', _) => _ = bytes.find(|&(_, other)| other == byte),
            (b'-', Some(b'-')) => _ = bytes.find(|&(_, other)| other == b'\n'),
            (b'/', Some(b'*')) => {
                let end = text[at + 2..].find("*/").map_or(text.len(), |end| at + 2 + end + 1);
                _ = bytes.find(|&(other, _)| other >= end);
            }
            _ => {}
        }
    }
    (text, "")
}

/// The answer to a text if it is one of these statements.
fn alone(text: &str, who: &Who) -> Option<Result<Known, Refusal>> {
    let first: String = text.trim_start().chars().take_while(char::is_ascii_alphabetic).collect();
    let plain = |tag: &str| Some(Ok(Known { tag: tag.into(), row: Vec::new() }));
    match first.to_ascii_lowercase().as_str() {
        "set" => plain("SET"),
        "reset" => plain("RESET"),
        "discard" => plain("DISCARD ALL"),
        "deallocate" => plain("DEALLOCATE"),
        "commit" | "end" => plain("COMMIT"),
        "rollback" | "abort" => plain("ROLLBACK"),
        "begin" | "start" | "savepoint" | "release" => {
            let hint = "each statement is a transaction; what belongs together is a procedure. Switch autocommit on";
            Some(Err(refuse("0A000", "transactions of several statements are not supported").hint(hint)))
        }
        "show" | "select" => {
            let parsed = read(text)?;
            let [statement] = &parsed[..] else { return None };
            match statement {
                Statement::ShowVariable { variable } => {
                    let words: Vec<String> = variable.iter().map(|word| word.value.clone()).collect();
                    Some(show(&words.join(" ")))
                }
                Statement::Query(query) => constants(query, who).map(Ok),
                _ => None,
            }
        }
        _ => None,
    }
}

fn show(variable: &str) -> Result<Known, Refusal> {
    let name = variable.to_ascii_lowercase();
    let name = if name == "transaction isolation level" { "transaction_isolation" } else { &name };
    let value = parameters::LIST
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
        .map(|(_, value)| (*value).to_string())
        .ok_or_else(|| refuse("42704", format!("there is no setting called '{variable}'")))?;
    Ok(Known { tag: "SHOW".into(), row: vec![(name.to_string(), Type::TEXT, value)] })
}

/// A SELECT of constants and of what the server says of itself.
fn constants(query: &Query, who: &Who) -> Option<Known> {
    let SetExpr::Select(select) = &*query.body else { return None };
    let Select { projection, from, selection: None, .. } = &**select else { return None };
    if !from.is_empty() {
        return None;
    }
    let mut row = Vec::new();
    for item in projection {
        let (expr, alias) = match item {
            SelectItem::UnnamedExpr(expr) => (expr, None),
            SelectItem::ExprWithAlias { expr, alias } => (expr, Some(alias.value.clone())),
            _ => return None,
        };
        let (name, ty, value) = constant(expr, who)?;
        row.push((alias.unwrap_or(name), ty, value));
    }
    Some(Known { tag: "SELECT 1".into(), row })
}

fn constant(expr: &Expr, who: &Who) -> Option<(String, Type, String)> {
    let unnamed = |ty, value| Some(("?column?".to_string(), ty, value));
    match expr {
        Expr::Value(value) => match &value.value {
            Value::Number(digits, _) if digits.parse::<i32>().is_ok() => unnamed(Type::INT4, digits.clone()),
            Value::SingleQuotedString(text) => unnamed(Type::TEXT, text.clone()),
            Value::Boolean(truth) => Some(("bool".into(), Type::BOOL, if *truth { "t".into() } else { "f".into() })),
            _ => None,
        },
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => {
            let (name, ty, value) = constant(expr, who)?;
            (ty == Type::INT4).then(|| (name, ty, format!("-{value}")))
        }
        Expr::Nested(inner) => constant(inner, who),
        Expr::Function(function) => {
            let name = last(&function.name)?;
            let no_arguments = match &function.args {
                FunctionArguments::None => true,
                FunctionArguments::List(list) => list.args.is_empty(),
                FunctionArguments::Subquery(_) => false,
            };
            let value = match name.as_str() {
                _ if !no_arguments => return None,
                "version" => parameters::version(),
                "current_schema" => "public".into(),
                "current_database" | "current_catalog" => who.database.clone(),
                "current_user" | "session_user" | "user" => who.user.clone(),
                _ => return None,
            };
            Some((name, Type::TEXT, value))
        }
        Expr::Identifier(word) if word.quote_style.is_none() => match word.value.to_ascii_lowercase().as_str() {
            name @ ("current_user" | "session_user" | "user") => Some((name.into(), Type::TEXT, who.user.clone())),
            name @ "current_catalog" => Some((name.into(), Type::TEXT, who.database.clone())),
            _ => None,
        },
        _ => None,
    }
}

fn last(name: &ObjectName) -> Option<String> {
    Some(name.0.last()?.as_ident()?.value.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> Option<String> {
        let who = Who { user: "ann".into(), database: "bank".into() };
        known(text, &who).map(|(known, rest)| match known {
            Ok(Known { tag, row }) => {
                let cells: Vec<String> = row.iter().map(|(name, ty, value)| format!("{name} {ty} {value}")).collect();
                let rest = if rest.trim().is_empty() { String::new() } else { format!(" then{rest}") };
                format!("{tag}: {}{rest}", cells.join(", "))
            }
            Err(refusal) => refusal.to_string(),
        })
    }

    #[test]
    fn clients_get_what_they_ask_for_and_the_database_the_rest() {
        for (text, expected) in [
            ("SET client_encoding TO 'UTF8'", "SET: "),
            ("  rollback", "ROLLBACK: "),
            ("SELECT 1", "SELECT 1: ?column? int4 1"),
            ("select -7 as x, 'a', true", "SELECT 1: x int4 -7, ?column? text a, bool bool t"),
            ("select current_schema(), current_user", "SELECT 1: current_schema text public, current_user text ann"),
            ("SELECT pg_catalog.current_database()", "SELECT 1: current_database text bank"),
            ("SHOW TRANSACTION ISOLATION LEVEL", "SHOW: transaction_isolation text serializable"),
            ("SET a = ';'; SET b = 2", "SET:  then SET b = 2"),
            ("SET a = 1 -- one; two\n; SELECT 1", "SET:  then SELECT 1"),
            ("SET a /* ; */ = \"x;y\"; /* it */", "SET:  then /* it */"),
            ("SELECT 1; SELECT 2", "SELECT 1: ?column? int4 1 then SELECT 2"),
            ("show standard_conforming_strings", "SHOW: standard_conforming_strings text on"),
        ] {
            assert_eq!(answer(text).as_deref(), Some(expected), "{text}");
        }
        assert!(answer("BEGIN").unwrap().starts_with("0A000"));
        assert!(answer("SHOW nonsense").unwrap().starts_with("42704"));
        for text in ["SELECT a FROM t WHERE id = 1", "CALL p(1)", "INSERT INTO t VALUES (1)", "SELECT", ""] {
            assert_eq!(answer(text), None, "{text}");
        }
    }
}
