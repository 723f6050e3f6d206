//! Statements that are no business of a database but that clients send: settings and questions about the server.

use pgwire::api::Type;
use sqlparser::ast::{
    DiscardObject, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, ObjectName, Query, Select, SelectItem,
    SetExpr, Statement, UnaryOperator, Value,
};

use crate::error::{Refusal, refuse};
use crate::parameters;
use crate::settings::{self, Setting};
use crate::syntax::{comment, folded, read};

/// What such a statement answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// What it is called when it is done.
    pub(crate) tag: String,
    /// A row of columns with names and types; of no columns for none.
    pub(crate) row: Vec<(String, Type, String)>,
    /// What it does to the session.
    pub(crate) effect: Option<Effect>,
}

/// Prepared statements that a session needs no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frees {
    /// Those that have a name, outside of a transaction only if it is so.
    All(bool),
    One(String),
}

/// What such a statement does to a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Frees(Frees),
    /// Says whether the transaction that is open is READ ONLY.
    Transaction(bool),
    /// Says whether those are that do not say it themselves.
    Default(bool),
    /// The same, as the session has begun.
    DefaultAsBegun,
    /// A setting changes, until the end of the transaction only if it is so.
    Set(Setting, bool),
    /// Reads wait until the node has this record.
    ReadAfter(u64),
    /// All of that is as the session has begun.
    AsBegun,
}

/// Settings of a session: SHOW asks for them when it runs.
pub(crate) const READ_ONLY: &str = "transaction_read_only";
pub(crate) const DEFAULT_READ_ONLY: &str = "default_transaction_read_only";
pub(crate) const IN_STANDBY: &str = "in_hot_standby";
pub(crate) const ISOLATION: [&str; 2] = ["transaction_isolation", "default_transaction_isolation"];
pub(crate) const READ_AFTER: &str = "lockwork.read_after";
pub(crate) const RECORD: &str = "lockwork.record";

/// What the words of a session are: they answer `current_user` and `current_database()`.
#[derive(Clone, Debug)]
pub(crate) struct SessionNames {
    pub(crate) user: String,
    pub(crate) database: String,
}

/// Whether a text asks for transactions whose statements all see one moment.
pub(crate) fn wants_one_moment(text: &str) -> bool {
    let first: String = text.trim_start().chars().take_while(char::is_ascii_alphabetic).collect();
    let may = ["begin", "start", "set"].iter().any(|word| first.eq_ignore_ascii_case(word));
    let is_level = |word: &String| word.contains("isolation");
    let is_strict = |word: &String| matches!(word.as_str(), "serializable" | "repeatable");
    may && {
        let words = words(text);
        words.iter().any(is_level) && words.iter().any(is_strict)
    }
}

/// The answer to a text if it is one of these statements.
pub(crate) fn known(text: &str, who: &SessionNames) -> Option<Result<Known, Refusal>> {
    let first: String = text.trim_start().chars().take_while(char::is_ascii_alphabetic).collect();
    match first.to_ascii_lowercase().as_str() {
        "set" => Some(setting(text, who)),
        "reset" => Some(Ok(resetting(text))),
        "discard" | "deallocate" => Some(freeing(text)),
        "close" => Some(closing(text)),
        "unlisten" if words(text).len() == 2 || text.trim_end().ends_with('*') => {
            // Nobody listens to anything.
            Some(Ok(Known { tag: "UNLISTEN".into(), row: Vec::new(), effect: None }))
        }
        "show" if matches!(&*words(text), [_, name] if [RECORD, READ_AFTER].contains(&name.as_str())) => {
            Some(show(&words(text)[1]))
        }
        "show" | "select" => {
            let parsed = read(text)?;
            let [statement] = &parsed[..] else { return None };
            match statement {
                Statement::ShowVariable { variable } => {
                    let words: Vec<String> = variable.iter().map(|word| word.value.clone()).collect();
                    Some(show(&words.join(" ")))
                }
                Statement::Query(query) => set_config(query).or_else(|| constants(query, who).map(Ok)),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The words of a text, in lower case. Comments have none.
fn words(text: &str) -> Vec<String> {
    let is_of_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    let (mut words, mut rest) = (Vec::new(), text);
    while let Some(first) = rest.chars().next() {
        let length = match comment(rest) {
            0 => first.len_utf8(),
            comment => comment,
        };
        let word = rest.split(|c| !is_of_word(c)).next().filter(|word| !word.is_empty());
        if let Some(word) = word.filter(|_| length == first.len_utf8()) {
            // What a comment ends is a word, too.
            let word = word.split_once("--").map_or(word, |(word, _)| word);
            words.push(word.to_ascii_lowercase());
            rest = &rest[word.len()..];
        } else {
            rest = &rest[length..];
        }
    }
    words
}

/// SET changes only whether transactions are READ ONLY, and is refused where a client would rely on something else.
fn setting(text: &str, who: &SessionNames) -> Result<Known, Refusal> {
    let words = words(text);
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    let is_of_encoding = |word: &&str| matches!(*word, "client_encoding" | "names");
    let encoding = words.iter().skip(1).take(2).any(is_of_encoding).then(|| words.last()).flatten();
    if let Some(other) = encoding.filter(|encoding| !parameters::is_utf8(encoding)) {
        return Err(parameters::other_encoding(other));
    }
    let scope = words.get(1).copied().filter(|word| matches!(*word, "session" | "local"));
    if scope.is_some() && words.get(2) != Some(&"characteristics") {
        words.remove(1);
    }
    words.retain(|word| *word != "to");
    if let ["role" | "authorization", role] = words[1..]
        && !matches!(role, "none" | "default")
        && role != who.user.to_lowercase()
    {
        let message = format!("a session stays who it is, and cannot become '{role}'");
        return Err(refuse("0A000", message).hint("connect as who is to do it"));
    }
    if let Some(setting) = words.get(1).and_then(|name| settings::of(text, name)) {
        let effect = Some(Effect::Set(setting?, scope == Some("local")));
        return Ok(Known { tag: "SET".into(), row: Vec::new(), effect });
    }
    let effect = match words[1..] {
        ["transaction", ref modes @ ..] => mode(modes).map(Effect::Transaction),
        ["session", "characteristics", "as", "transaction", ref modes @ ..] => mode(modes).map(Effect::Default),
        [READ_ONLY, value] => Some(Effect::Transaction(truth(READ_ONLY, value)?)),
        [DEFAULT_READ_ONLY, "default"] => (scope != Some("local")).then_some(Effect::DefaultAsBegun),
        [READ_AFTER, "default"] => Some(Effect::ReadAfter(0)),
        [READ_AFTER, value] => Some(Effect::ReadAfter(record(value)?)),
        [RECORD, _] => return Err(refuse("55P02", format!("'{RECORD}' is only shown")).hint(READ_AFTER)),
        // That of a transaction says nothing about itself.
        [DEFAULT_READ_ONLY, value] => {
            let truth = truth(DEFAULT_READ_ONLY, value)?;
            (scope != Some("local")).then_some(Effect::Default(truth))
        }
        _ => None,
    };
    Ok(Known { tag: "SET".into(), row: Vec::new(), effect })
}

/// Whether modes of a transaction say READ ONLY, or READ WRITE.
fn mode(modes: &[&str]) -> Option<bool> {
    modes.windows(2).rev().find_map(|mode| match mode {
        ["read", "only"] => Some(true),
        ["read", "write"] => Some(false),
        _ => None,
    })
}

/// A value of a setting that is on or off.
pub(crate) fn truth(setting: &str, value: &str) -> Result<bool, Refusal> {
    match value {
        "on" | "true" | "t" | "yes" | "y" | "1" => Ok(true),
        "off" | "false" | "f" | "no" | "n" | "0" | "default" => Ok(false),
        _ => Err(refuse("22023", format!("the setting '{setting}' is on or off, and not '{value}'"))),
    }
}

/// The number of a record.
pub(crate) fn record(value: &str) -> Result<u64, Refusal> {
    value.parse().map_err(|_| refuse("22023", format!("'{READ_AFTER}' is the number of a record, and not '{value}'")))
}

fn resetting(text: &str) -> Known {
    let words = words(text);
    let effect = match words.get(1).map(String::as_str) {
        Some("all") => Some(Effect::AsBegun),
        Some(DEFAULT_READ_ONLY) => Some(Effect::DefaultAsBegun),
        Some(READ_AFTER) => Some(Effect::ReadAfter(0)),
        Some(name) => {
            let name = settings::NAMES.into_iter().find(|known| *known == name);
            name.map(|name| Effect::Set(Setting::AsBegun(name), false))
        }
        None => None,
    };
    Known { tag: "RESET".into(), row: Vec::new(), effect }
}

/// DEALLOCATE and DISCARD.
fn freeing(text: &str) -> Result<Known, Refusal> {
    let parsed = read(text).unwrap_or_default();
    let (tag, frees) = match &parsed[..] {
        [Statement::Deallocate { name, .. }] if name.quote_style.is_none() && folded(name) == "all" => {
            ("DEALLOCATE ALL".into(), Some(Frees::All(false)))
        }
        [Statement::Deallocate { name, .. }] => ("DEALLOCATE".into(), Some(Frees::One(folded(name)))),
        [Statement::Discard { object_type: DiscardObject::ALL }] => ("DISCARD ALL".into(), Some(Frees::All(true))),
        [Statement::Discard { object_type }] => (format!("DISCARD {object_type}"), None),
        _ => return Err(refuse("42601", "this frees nothing").hint("DEALLOCATE name, DEALLOCATE ALL or DISCARD ALL")),
    };
    Ok(Known { tag, row: Vec::new(), effect: frees.map(Effect::Frees) })
}

/// CLOSE: there are no cursors, so there is none to close, and all of them are closed.
fn closing(text: &str) -> Result<Known, Refusal> {
    match &*words(text) {
        [_, all] if all == "all" => Ok(Known { tag: "CLOSE CURSOR ALL".into(), row: Vec::new(), effect: None }),
        [_, name] => Err(refuse("34000", format!("there is no cursor '{name}'"))),
        _ => Err(refuse("42601", "CLOSE names a cursor").hint("CLOSE name, or CLOSE ALL")),
    }
}

fn show(variable: &str) -> Result<Known, Refusal> {
    let name = variable.to_ascii_lowercase();
    let name = if name == "transaction isolation level" { "transaction_isolation" } else { &name };
    let value = parameters::LIST
        .iter()
        .chain(parameters::MORE)
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
        .map(|(_, value)| (*value).to_string())
        .ok_or_else(|| refuse("42704", format!("there is no setting called '{variable}'")))?;
    Ok(Known { tag: "SHOW".into(), row: vec![(name.to_string(), Type::TEXT, value)], effect: None })
}

/// `SELECT set_config(name, value, is_local)`, of a setting that SET changes.
fn set_config(query: &Query) -> Option<Result<Known, Refusal>> {
    let SetExpr::Select(select) = &*query.body else { return None };
    let [
        SelectItem::UnnamedExpr(Expr::Function(function))
        | SelectItem::ExprWithAlias { expr: Expr::Function(function), .. },
    ] = &select.projection[..]
    else {
        return None;
    };
    let FunctionArguments::List(list) = &function.args else { return None };
    let [FunctionArg::Unnamed(name), FunctionArg::Unnamed(value), FunctionArg::Unnamed(is_local)] = &list.args[..]
    else {
        return None;
    };
    let text = |argument: &FunctionArgExpr| match argument {
        FunctionArgExpr::Expr(Expr::Value(value)) => match &value.value {
            Value::SingleQuotedString(text) => Some(text.clone()),
            Value::Boolean(truth) => Some(truth.to_string()),
            _ => None,
        },
        _ => None,
    };
    let (name, value, is_local) = (text(name)?, text(value)?, text(is_local)?);
    let known = settings::NAMES.into_iter().find(|known| known.eq_ignore_ascii_case(&name))?;
    let is_alone = query.to_string() == format!("SELECT {}", select.projection[0]);
    if last(&function.name)? != "set_config" || !is_alone {
        return None;
    }
    Some(settings::read(known, &value).map(|setting| {
        let column = ("set_config".to_string(), Type::TEXT, value);
        let effect = Some(Effect::Set(setting, is_local == "true"));
        Known { tag: "SELECT 1".into(), row: vec![column], effect }
    }))
}

/// A SELECT of constants and of what the server says of itself.
fn constants(query: &Query, who: &SessionNames) -> Option<Known> {
    let SetExpr::Select(select) = &*query.body else { return None };
    let Select { projection, .. } = &**select;
    let items: Vec<String> = projection.iter().map(ToString::to_string).collect();
    if query.to_string() != format!("SELECT {}", items.join(", ")) {
        // Some clause more.
        return None;
    }
    let mut row = Vec::new();
    for item in projection {
        let (expr, alias) = match item {
            SelectItem::UnnamedExpr(expr) => (expr, None),
            SelectItem::ExprWithAlias { expr, alias } if alias.quote_style != Some('\'') => (expr, Some(folded(alias))),
            _ => return None,
        };
        let (name, ty, value) = constant(expr, who)?;
        row.push((alias.unwrap_or(name), ty, value));
    }
    Some(Known { tag: "SELECT 1".into(), row, effect: None })
}

fn constant(expr: &Expr, who: &SessionNames) -> Option<(String, Type, String)> {
    let unnamed = |ty, value| Some(("?column?".to_string(), ty, value));
    match expr {
        Expr::Value(value) => match &value.value {
            Value::Number(digits, _) if digits.parse::<i32>().is_ok() => unnamed(Type::INT4, digits.clone()),
            Value::SingleQuotedString(text) => unnamed(Type::TEXT, text.clone()),
            Value::Boolean(truth) => Some(("bool".into(), Type::BOOL, if *truth { "t".into() } else { "f".into() })),
            _ => None,
        },
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => {
            let Expr::Value(value) = &**expr else { return None };
            let Value::Number(digits, _) = &value.value else { return None };
            digits.parse::<i32>().ok().and_then(|_| unnamed(Type::INT4, format!("-{digits}")))
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
                // There are no advisory locks that a session could hold.
                "pg_advisory_unlock_all" => return Some((name, Type::VOID, String::new())),
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
        let who = SessionNames { user: "ann".into(), database: "bank".into() };
        known(text, &who).map(|known| match known {
            Ok(Known { tag, row, .. }) => {
                let cells: Vec<String> = row.iter().map(|(name, ty, value)| format!("{name} {ty} {value}")).collect();
                format!("{tag}: {}", cells.join(", "))
            }
            Err(refusal) => refusal.to_string(),
        })
    }

    #[test]
    fn what_makes_transactions_read_only_is_found() {
        let who = SessionNames { user: "ann".into(), database: "bank".into() };
        let effect = |text: &str| known(text, &who).unwrap().map(|known| known.effect);
        for (text, expected) in [
            ("SET TRANSACTION READ ONLY", Some(Effect::Transaction(true))),
            ("set local transaction isolation level read committed, read write", Some(Effect::Transaction(false))),
            ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", None),
            ("SET /* it */ TRANSACTION -- is\n READ ONLY", Some(Effect::Transaction(true))),
            ("SET TRANSACTION--\nREAD ONLY", Some(Effect::Transaction(true))),
            ("SET transaction_read_only TO 'on'", Some(Effect::Transaction(true))),
            ("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", Some(Effect::Default(true))),
            ("SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE, DEFERRABLE", Some(Effect::Default(false))),
            ("SET default_transaction_read_only = on", Some(Effect::Default(true))),
            ("SET SESSION \"default_transaction_read_only\" TO DEFAULT", Some(Effect::DefaultAsBegun)),
            ("SET lockwork.read_after = 17", Some(Effect::ReadAfter(17))),
            ("set session lockwork.read_after to '18'", Some(Effect::ReadAfter(18))),
            ("RESET lockwork.read_after", Some(Effect::ReadAfter(0))),
            ("SET LOCAL default_transaction_read_only = on", None),
            ("RESET ALL", Some(Effect::AsBegun)),
            ("RESET default_transaction_read_only", Some(Effect::DefaultAsBegun)),
            ("RESET search_path", Some(Effect::Set(Setting::AsBegun("search_path"), false))),
            ("SET LOCAL statement_timeout = '5s'", Some(Effect::Set(Setting::StatementTimeout(5000), true))),
            ("SET application_name = 'read only'", None),
            (
                "SELECT set_config('statement_timeout', '5s', false)",
                Some(Effect::Set(Setting::StatementTimeout(5000), false)),
            ),
            ("SELECT set_config('LOCK_TIMEOUT', '7', true) AS new", Some(Effect::Set(Setting::LockTimeout(7), true))),
            ("SET ROLE ann", None),
            ("SET LOCAL ROLE NONE", None),
            ("SET SESSION AUTHORIZATION DEFAULT", None),
        ] {
            assert_eq!(effect(text), Ok(expected), "{text}");
        }
        assert_eq!(effect("SET default_transaction_read_only = 2").unwrap_err().sqlstate, "22023");
        assert_eq!(effect("SET lockwork.read_after = x").unwrap_err().sqlstate, "22023");
        assert_eq!(effect("SET lockwork.record = 3").unwrap_err().sqlstate, "55P02");
    }

    #[test]
    fn who_wants_to_see_one_moment_is_known() {
        for text in [
            "BEGIN ISOLATION LEVEL SERIALIZABLE",
            "start transaction read only, isolation level repeatable read",
            "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
            "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            "SET default_transaction_isolation = 'serializable'",
        ] {
            assert!(wants_one_moment(text), "{text}");
        }
        for text in ["BEGIN", "BEGIN ISOLATION LEVEL READ COMMITTED", "SET application_name = serializable", "SELECT 1"]
        {
            assert!(!wants_one_moment(text), "{text}");
        }
    }

    #[test]
    fn clients_get_what_they_ask_for_and_the_database_the_rest() {
        for (text, expected) in [
            ("SET client_encoding TO 'UTF8'", "SET: "),
            ("SET NAMES 'utf-8'", "SET: "),
            ("set session client_encoding = Unicode", "SET: "),
            ("SET search_path TO public", "SET: "),
            ("CLOSE ALL", "CLOSE CURSOR ALL: "),
            ("UNLISTEN *", "UNLISTEN: "),
            ("SELECT pg_advisory_unlock_all()", "SELECT 1: pg_advisory_unlock_all void "),
            ("SHOW statement_timeout", "SHOW: statement_timeout text 0"),
            ("SELECT pg_catalog.set_config('statement_timeout', '5s', false)", "SELECT 1: set_config text 5s"),
            ("show Lockwork.Record;", "SHOW: lockwork.record text 0"),
            ("SELECT 1", "SELECT 1: ?column? int4 1"),
            ("SELECT 1 AS Foo, 2 AS \"Bar\"", "SELECT 1: foo int4 1, Bar int4 2"),
            ("select -7 as x, 'a', true", "SELECT 1: x int4 -7, ?column? text a, bool bool t"),
            ("select current_schema(), current_user", "SELECT 1: current_schema text public, current_user text ann"),
            ("SELECT pg_catalog.current_database()", "SELECT 1: current_database text bank"),
            ("SHOW TRANSACTION ISOLATION LEVEL", "SHOW: transaction_isolation text serializable"),
            ("DEALLOCATE PREPARE a", "DEALLOCATE: "),
            ("deallocate all", "DEALLOCATE ALL: "),
            ("DISCARD PLANS", "DISCARD PLANS: "),
            ("show standard_conforming_strings", "SHOW: standard_conforming_strings text on"),
        ] {
            assert_eq!(answer(text).as_deref(), Some(expected), "{text}");
        }
        assert!(answer("SHOW nonsense").unwrap().starts_with("42704"));
        assert!(answer("DEALLOCATE").unwrap().starts_with("42601"));
        for text in [
            "SET ROLE bob",
            "SET SESSION AUTHORIZATION 'bob'",
            "SET client_encoding TO 'LATIN1'",
            "SET NAMES latin1",
            "SET LOCAL client_encoding=sjis",
            "SET search_path TO names",
        ] {
            assert!(answer(text).unwrap().starts_with("0A000"), "{text}");
        }
        for clause in
            ["LIMIT 0", "OFFSET 1", "FETCH FIRST 0 ROWS ONLY", "HAVING false", "INTO t", "WHERE false", "ORDER BY 1"]
        {
            assert_eq!(answer(&format!("SELECT 1 {clause}")), None, "{clause}");
        }
        assert_eq!((answer("SELECT - -5"), answer("SELECT DISTINCT 1")), (None, None));
        for text in ["SELECT a FROM t WHERE id = 1", "CALL p(1)", "INSERT INTO t VALUES (1)", "BEGIN", "SELECT", ""] {
            assert_eq!(answer(text), None, "{text}");
        }
    }
}
