//! Functions of PostgreSQL, as SQLite calls them.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Error, Result};
use serde_json::Value as Json;

use super::arithmetic::{computed, divided, refused, whole};
use super::array::{elements, memory, text};
use super::fill::{Known, Names, OWNER, identifier};
use super::types;
use crate::limits::{Reserved, reserve};
use crate::session_settings::SessionNames;
use crate::texts::{made, text as word};
use crate::{parameters, settings, sqlite};

/// The functions that answer something here and what type it has; those of SQLite under PostgreSQL's names among them.
pub(super) const RESULTS: &[(&str, &str)] = &[
    ("abs", "int8"),
    ("array_agg", "_text"),
    ("array_length", "int4"),
    ("array_lower", "int4"),
    ("array_to_string", "text"),
    ("array_upper", "int4"),
    ("bool_and", "bool"),
    ("bool_or", "bool"),
    ("cardinality", "int4"),
    ("char_length", "int4"),
    ("coalesce", "text"),
    ("col_description", "text"),
    ("concat", "text"),
    ("concat_ws", "text"),
    ("count", "int8"),
    ("current_catalog", "name"),
    ("current_database", "name"),
    ("current_role", "name"),
    ("current_schema", "name"),
    ("current_schemas", "_name"),
    ("current_setting", "text"),
    ("current_user", "name"),
    ("dense_rank", "int8"),
    ("format_type", "text"),
    ("has_any_column_privilege", "bool"),
    ("has_column_privilege", "bool"),
    ("has_database_privilege", "bool"),
    ("has_function_privilege", "bool"),
    ("has_schema_privilege", "bool"),
    ("has_sequence_privilege", "bool"),
    ("has_table_privilege", "bool"),
    ("has_tablespace_privilege", "bool"),
    ("inet_client_addr", "text"),
    ("inet_server_addr", "text"),
    ("json_build_object", "json"),
    ("left", "text"),
    ("length", "int4"),
    ("lower", "text"),
    ("ltrim", "text"),
    ("max", "text"),
    ("min", "text"),
    ("nullif", "text"),
    ("obj_description", "text"),
    ("pg_backend_pid", "int4"),
    ("pg_client_encoding", "name"),
    ("pg_collation_is_visible", "bool"),
    ("pg_conversion_is_visible", "bool"),
    ("pg_database_size", "int8"),
    ("pg_encoding_to_char", "name"),
    ("pg_function_is_visible", "bool"),
    ("pg_get_constraintdef", "text"),
    ("pg_get_expr", "text"),
    ("pg_get_function_arguments", "text"),
    ("pg_get_function_identity_arguments", "text"),
    ("pg_get_function_result", "text"),
    ("pg_get_function_sqlbody", "text"),
    ("pg_get_functiondef", "text"),
    ("pg_get_indexdef", "text"),
    ("pg_get_partition_constraintdef", "text"),
    ("pg_get_partkeydef", "text"),
    ("pg_get_ruledef", "text"),
    ("pg_get_serial_sequence", "text"),
    ("pg_get_statisticsobjdef_columns", "text"),
    ("pg_get_triggerdef", "text"),
    ("pg_get_userbyid", "name"),
    ("pg_get_viewdef", "text"),
    ("pg_has_role", "bool"),
    ("pg_indexes_size", "int8"),
    ("pg_is_in_recovery", "bool"),
    ("pg_is_other_temp_schema", "bool"),
    ("pg_my_temp_schema", "oid"),
    ("pg_opclass_is_visible", "bool"),
    ("pg_operator_is_visible", "bool"),
    ("pg_relation_is_publishable", "bool"),
    ("pg_relation_size", "int8"),
    ("pg_size_pretty", "text"),
    ("pg_statistics_obj_is_visible", "bool"),
    ("pg_table_is_visible", "bool"),
    ("pg_table_size", "int8"),
    ("pg_tablespace_location", "text"),
    ("pg_total_relation_size", "int8"),
    ("pg_ts_config_is_visible", "bool"),
    ("pg_type_is_visible", "bool"),
    ("quote_ident", "text"),
    ("quote_literal", "text"),
    ("rank", "int8"),
    ("replace", "text"),
    ("right", "text"),
    ("row_number", "int8"),
    ("rtrim", "text"),
    ("session_user", "name"),
    ("set_config", "text"),
    ("shobj_description", "text"),
    ("string_agg", "text"),
    ("strpos", "int4"),
    ("substr", "text"),
    ("substring", "text"),
    ("sum", "int8"),
    ("to_regclass", "regclass"),
    ("to_regnamespace", "regnamespace"),
    ("to_regproc", "regproc"),
    ("to_regrole", "regrole"),
    ("to_regtype", "regtype"),
    ("trim", "text"),
    ("upper", "text"),
    ("user", "name"),
    ("version", "text"),
];

/// The functions that answer nothing (NULL) because what they ask for cannot be here.
pub(super) const NOTHING: &[&str] = &[
    "col_description",
    "inet_client_addr",
    "inet_server_addr",
    "obj_description",
    "pg_get_function_sqlbody",
    "pg_get_partition_constraintdef",
    "pg_get_partkeydef",
    "pg_get_ruledef",
    "pg_get_serial_sequence",
    "pg_get_statisticsobjdef_columns",
    "pg_get_triggerdef",
    "pg_get_viewdef",
    "shobj_description",
];

/// The functions that answer that it is so: everything is in view.
pub(super) const SO: &[&str] = &[
    "has_database_privilege",
    "has_schema_privilege",
    "has_sequence_privilege",
    "has_tablespace_privilege",
    "pg_collation_is_visible",
    "pg_conversion_is_visible",
    "pg_function_is_visible",
    "pg_has_role",
    "pg_opclass_is_visible",
    "pg_operator_is_visible",
    "pg_relation_is_publishable",
    "pg_statistics_obj_is_visible",
    "pg_ts_config_is_visible",
    "pg_type_is_visible",
];

/// The functions that answer 0: it is not so, or there are no bytes that could be told.
pub(super) const ZERO: &[&str] = &[
    "pg_backend_pid",
    "pg_database_size",
    "pg_indexes_size",
    "pg_is_in_recovery",
    "pg_is_other_temp_schema",
    "pg_my_temp_schema",
    "pg_relation_size",
    "pg_table_size",
    "pg_total_relation_size",
];

/// The most elements that `generate_series` makes.
const MAX_SERIES: i64 = 100_000;

fn wrong(message: impl Into<String>) -> Error {
    Error::UserFunctionError(message.into().into())
}

pub(super) fn number(context: &Context<'_>, at: usize) -> Option<i64> {
    if at >= context.len() {
        return None;
    }
    match context.get_raw(at) {
        ValueRef::Integer(number) => Some(number),
        ValueRef::Text(bytes) => std::str::from_utf8(bytes).ok()?.trim().parse().ok(),
        _ => None,
    }
}

/// The elements of an array, and the memory that they have; nothing if it is none.
fn list(context: &Context<'_>, at: usize) -> Result<Option<(Vec<Json>, Reserved)>> {
    let Some(text) = word(context, at) else { return Ok(None) };
    let memory = reserve(memory(&text))?;
    Ok(elements(&text).map(|elements| (elements, memory)))
}

fn output(element: &Json) -> Value {
    match element {
        Json::Number(number) => number.as_i64().map_or_else(|| Value::Text(number.to_string()), Value::Integer),
        other => text(other).map_or(Value::Null, Value::Text),
    }
}

/// The last part of a name that may have a schema and quotes.
fn bare(name: &str) -> String {
    let name = name.trim();
    let part = match name.strip_suffix('"') {
        Some(front) => &front[front.rfind('"').map_or(0, |at| at + 1)..],
        None => return name.rsplit('.').next().unwrap_or(name).to_ascii_lowercase(),
    };
    part.into()
}

/// Kinds of things that have a number and a name, and can be one for the other.
pub(super) const REGISTERED: &[&str] = &["regclass", "regtype", "regproc", "regprocedure", "regnamespace", "regrole"];

/// The number of a thing by its name, or by its number as text.
pub(super) fn numbered(names: &Names, who: &SessionNames, kind: &str, given: &str) -> Option<i64> {
    if let Ok(oid) = given.trim().parse::<i64>() {
        return Some(oid);
    }
    if given.trim() == "-" {
        return Some(0);
    }
    let name = bare(given);
    match kind {
        "regclass" => {
            let mut found: Vec<_> = names.relations.iter().filter(|(_, (_, known))| *known == name).collect();
            let wanted = given.rsplit_once('.').map(|(schema, _)| bare(schema));
            found.retain(|(_, (schema, _))| match &wanted {
                Some(wanted) => schema == wanted,
                None => *schema != "information_schema",
            });
            found.iter().map(|(oid, _)| **oid).min()
        }
        "regtype" => types::named(given).map(|row| row.oid),
        "regproc" | "regprocedure" => {
            let name = bare(given.split('(').next().unwrap_or(given));
            let found = names.procedures.iter().find(|(_, procedure)| procedure.name == name).map(|(oid, _)| *oid);
            found.or((name == "array_in").then_some(750))
        }
        "regnamespace" => [("pg_catalog", 11), ("public", 2200), ("information_schema", 13_000)]
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, oid)| *oid),
        _ => (name == who.user).then_some(OWNER),
    }
}

/// The name of a thing by its number; the number if there is none.
fn named(names: &Names, who: &SessionNames, kind: &str, oid: i64) -> String {
    let known = match kind {
        "regclass" => names.relations.get(&oid).map(|(schema, name)| match *schema {
            "information_schema" => format!("{schema}.{}", identifier(name)),
            _ => identifier(name),
        }),
        "regtype" => types::of_oid(oid).map(|_| types::format(oid, -1)),
        "regproc" | "regprocedure" => match oid {
            750 => Some("array_in".into()),
            _ => names.procedures.get(&oid).map(|procedure| identifier(&procedure.name)),
        },
        "regnamespace" => match oid {
            11 => Some("pg_catalog".into()),
            2200 => Some("public".into()),
            13_000 => Some("information_schema".into()),
            _ => None,
        },
        _ => (oid == OWNER).then(|| identifier(&who.user)),
    };
    known.unwrap_or_else(|| if oid == 0 { "-".into() } else { oid.to_string() })
}

/// Registers all functions.
pub(super) fn register(connection: &Connection, who: &Arc<Mutex<SessionNames>>) -> Result<()> {
    let scalar = |name: &str, arguments: i32, run: fn(&Context<'_>) -> Result<Value>| {
        sqlite::function(connection, name, arguments, FunctionFlags::SQLITE_DETERMINISTIC, run)
    };
    for name in NOTHING {
        scalar(name, -1, |_| Ok(Value::Null))?;
    }
    for name in SO {
        scalar(name, -1, |_| Ok(Value::Integer(1)))?;
    }
    for name in ZERO {
        scalar(name, -1, |_| Ok(Value::Integer(0)))?;
    }
    scalar("pg_get_expr", -1, |context| Ok(word(context, 0).map_or(Value::Null, Value::Text)))?;
    scalar("pg_encoding_to_char", 1, |_| Ok(Value::Text("UTF8".into())))?;
    scalar("pg_client_encoding", 0, |_| Ok(Value::Text("UTF8".into())))?;
    scalar("pg_tablespace_location", 1, |_| Ok(Value::Text(String::new())))?;
    scalar("pg_size_pretty", 1, |context| {
        Ok(number(context, 0).map_or(Value::Null, |bytes| Value::Text(format!("{bytes} bytes"))))
    })?;
    scalar("version", 0, |_| Ok(Value::Text(parameters::version())))?;
    scalar("current_setting", -1, |context| {
        let name = word(context, 0).unwrap_or_default();
        let mut all = parameters::LIST.iter().chain(parameters::MORE);
        let known = all.find(|(known, _)| known.eq_ignore_ascii_case(&name));
        match known {
            Some((_, value)) => Ok(Value::Text((*value).into())),
            None if number(context, 1) == Some(1) => Ok(Value::Null),
            None => Err(wrong(format!("there is no setting called '{name}'"))),
        }
    })?;
    scalar("set_config", 3, |context| match word(context, 0) {
        // The others are answered and change nothing, as SET does.
        Some(name) if settings::NAMES.iter().any(|known| known.eq_ignore_ascii_case(&name)) => {
            Err(wrong(format!("set_config of '{name}' is the only column of its SELECT, and has constants")))
        }
        _ => Ok(word(context, 1).map_or(Value::Null, Value::Text)),
    })?;
    scalar("current_schema", 0, |_| Ok(Value::Text("public".into())))?;
    scalar("current_schemas", 1, |context| {
        let all = r#"["pg_catalog","public"]"#;
        Ok(Value::Text(if number(context, 0) == Some(1) { all } else { r#"["public"]"# }.into()))
    })?;
    scalar("format_type", 2, |context| {
        let modifier = number(context, 1).unwrap_or(-1);
        Ok(number(context, 0).map_or(Value::Null, |oid| Value::Text(types::format(oid, modifier))))
    })?;
    scalar(
        "quote_ident",
        1,
        |context| Ok(word(context, 0).map_or(Value::Null, |name| Value::Text(identifier(&name)))),
    )?;
    scalar("quote_literal", 1, |context| {
        Ok(word(context, 0).map_or(Value::Null, |text| Value::Text(format!("'{}'", text.replace('\'', "''")))))
    })?;
    scalar("left", 2, |context| Ok(part(context, |count, length| (0, count.clamp(0, length)))))?;
    scalar("right", 2, |context| Ok(part(context, |count, length| (length - count.clamp(0, length), length))))?;
    scalar("pg_add", 2, |context| computed(context, i64::checked_add, |a, b| a + b))?;
    scalar("pg_subtract", 2, |context| computed(context, i64::checked_sub, |a, b| a - b))?;
    scalar("pg_multiply", 2, |context| computed(context, i64::checked_mul, |a, b| a * b))?;
    scalar("pg_whole", 3, whole)?;
    scalar("pg_divide", 2, |context| divided(context, i64::checked_div, |a, b| a / b))?;
    scalar("pg_modulo", 2, |context| divided(context, i64::checked_rem, |a, b| a % b))?;
    arrays(connection)?;
    about_session(connection, who)
}

/// Characters of the first argument from one place to another, which `range` takes from the second and the length.
fn part(context: &Context<'_>, range: fn(i64, i64) -> (i64, i64)) -> Value {
    let (Some(text), Some(count)) = (word(context, 0), number(context, 1)) else { return Value::Null };
    let length = text.chars().count() as i64;
    let (from, to) = range(if count < 0 { length + count } else { count }, length);
    Value::Text(text.chars().skip(from as usize).take((to - from) as usize).collect())
}

fn arrays(connection: &Connection) -> Result<()> {
    let scalar = |name: &str, arguments: i32, run: fn(&Context<'_>) -> Result<Value>| {
        sqlite::function(connection, name, arguments, FunctionFlags::SQLITE_DETERMINISTIC, run)
    };
    scalar("pg_array", 1, |context| {
        let Some(text) = word(context, 0) else { return Ok(Value::Null) };
        let _memory = reserve(memory(&text))?;
        let elements = elements(&text).ok_or_else(|| wrong(format!("'{text:.40}' is no array: write {{1,2}}")))?;
        // A character may need six in JSON.
        let _made = made(text.len())?;
        Ok(Value::Text(Json::Array(elements).to_string()))
    })?;
    // The element of an array by its number and that of the first one.
    scalar("pg_subscript", 3, |context| {
        let at = number(context, 1).zip(number(context, 2)).and_then(|(at, first)| at.checked_sub(first));
        let at = at.and_then(|at| usize::try_from(at).ok());
        let list = list(context, 0)?;
        let element = list.zip(at).and_then(|((list, _), at)| list.get(at).map(output));
        Ok(element.unwrap_or(Value::Null))
    })?;
    scalar("pg_series", -1, |context| {
        let is_none = |at: usize| context.get_raw(at) == ValueRef::Null;
        if !(2..=3).contains(&context.len()) {
            return Err(refused("42883: generate_series takes two or three integers"));
        }
        if (0..context.len()).any(|at| !is_none(at) && number(context, at).is_none()) {
            return Err(refused("0A000: generate_series takes integers here"));
        }
        let (Some(from), Some(to)) = (number(context, 0), number(context, 1)) else { return Ok(Value::Null) };
        let step = if context.len() > 2 { number(context, 2) } else { Some(1) };
        let Some(step) = step else { return Ok(Value::Null) };
        if step == 0 {
            return Err(refused("22023: step size cannot equal zero"));
        }
        let count = to.checked_sub(from).and_then(|distance| distance.checked_div(step));
        match count {
            Some(count) if count < 0 => Ok(Value::Text("[]".into())),
            Some(count) if count < MAX_SERIES => {
                let _series = made(24 * count as usize)?;
                let series: Vec<String> = (0..=count).map(|at| (from + at * step).to_string()).collect();
                Ok(Value::Text(format!("[{}]", series.join(","))))
            }
            _ => Err(wrong(format!("a series of the catalog has at most {MAX_SERIES} numbers"))),
        }
    })?;
    let length = |context: &Context<'_>| {
        let length = list(context, 0)?.map(|(list, _)| list.len() as i64).filter(|&length| length > 0);
        Ok(length.map_or(Value::Null, Value::Integer))
    };
    scalar("array_length", 2, length)?;
    scalar("array_upper", 2, length)?;
    scalar("array_lower", 2, |context| {
        let length = list(context, 0)?.filter(|(list, _)| !list.is_empty());
        Ok(length.map_or(Value::Null, |_| Value::Integer(1)))
    })?;
    scalar("cardinality", 1, |context| {
        Ok(list(context, 0)?.map_or(Value::Null, |(list, _)| Value::Integer(list.len() as i64)))
    })?;
    scalar("array_to_string", -1, |context| {
        let (Some((list, _memory)), Some(between)) = (list(context, 0)?, word(context, 1)) else {
            return Ok(Value::Null);
        };
        let instead = word(context, 2);
        let _words = reserve(context.get_raw(0).as_str_or_null()?.map_or(0, memory))?;
        let one = |element: &Json| text(element).map(Cow::Owned).or(instead.as_deref().map(Cow::Borrowed));
        let words: Vec<Cow<'_, str>> = list.iter().filter_map(one).collect();
        let gaps = between.len().saturating_mul(words.len().saturating_sub(1));
        let _made = made(words.iter().map(|word| word.len()).sum::<usize>().saturating_add(gaps))?;
        Ok(Value::Text(words.join(&*between)))
    })?;
    scalar("pg_truth", 1, |context| match context.get_raw(0) {
        ValueRef::Integer(number) => Ok(Value::Integer((number != 0).into())),
        _ => match word(context, 0).map(|word| word.trim().to_ascii_lowercase()).as_deref() {
            None => Ok(Value::Null),
            Some("t" | "true" | "y" | "yes" | "on" | "1") => Ok(Value::Integer(1)),
            Some("f" | "false" | "n" | "no" | "off" | "0") => Ok(Value::Integer(0)),
            Some(other) => Err(wrong(format!("'{other}' is no boolean: write true or false"))),
        },
    })
}

/// The functions that depend on whose session it is.
fn about_session(connection: &Connection, who: &Arc<Mutex<SessionNames>>) -> Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8;
    for name in ["pg_user", "pg_database"] {
        let who = who.clone();
        connection.create_scalar_function(name, 0, flags, move |_| {
            let who = who.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(if name == "pg_user" { who.user.clone() } else { who.database.clone() })
        })?;
    }
    let of = who.clone();
    connection.create_scalar_function("pg_get_userbyid", 1, flags, move |context| {
        let who = of.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(number(context, 0).map(|oid| match oid {
            OWNER => who.user.clone(),
            other => format!("unknown (OID={other})"),
        }))
    })
}

/// Registers the functions that look names up, which are known when the tables have been filled.
pub(super) fn register_names(connection: &Connection, names: &Known, who: &Arc<Mutex<SessionNames>>) -> Result<()> {
    type Look = fn(&Names, &Context<'_>) -> Option<Value>;
    let looks: [(&str, Look); 7] = [
        ("pg_table_is_visible", |names, context| {
            let (schema, _) = names.relations.get(&number(context, 0)?)?;
            Some(Value::Integer((*schema != "information_schema").into()))
        }),
        ("pg_get_indexdef", |names, context| {
            let (all, columns) = names.indexes.get(&number(context, 0)?)?;
            let text = match number(context, 1).unwrap_or(0) {
                0 => all.clone(),
                at => columns.get(usize::try_from(at - 1).ok()?)?.clone(),
            };
            Some(Value::Text(text))
        }),
        ("pg_get_constraintdef", |names, context| {
            names.constraints.get(&number(context, 0)?).cloned().map(Value::Text)
        }),
        ("pg_get_function_arguments", |names, context| {
            Some(Value::Text(names.procedures.get(&number(context, 0)?)?.arguments.clone()))
        }),
        ("pg_get_function_identity_arguments", |names, context| {
            Some(Value::Text(names.procedures.get(&number(context, 0)?)?.input.clone()))
        }),
        // A procedure has none.
        ("pg_get_function_result", |_, _| None),
        ("pg_get_functiondef", |names, context| {
            let definition = names.procedures.get(&number(context, 0)?)?.definition.clone();
            (!definition.is_empty()).then_some(Value::Text(definition))
        }),
    ];
    for (name, look) in looks {
        let names = names.clone();
        sqlite::function(connection, name, -1, FunctionFlags::default(), move |context| {
            Ok(look(&names, context).unwrap_or(Value::Null))
        })?;
    }
    for &kind in REGISTERED {
        // By its name, or refused; by its name, or nothing; and its name.
        for is_strict in [true, false] {
            let (names, who) = (names.clone(), who.clone());
            let name = if is_strict { format!("pg_{kind}") } else { format!("to_{kind}") };
            sqlite::function(connection, &name, 1, FunctionFlags::default(), move |context| {
                let Some(given) = word(context, 0) else { return Ok(Value::Null) };
                let who = who.lock().unwrap_or_else(PoisonError::into_inner);
                let found = numbered(&names, &who, kind, &given);
                match found {
                    None if is_strict => Err(wrong(format!("there is no {} called '{given:.100}'", &kind[3..]))),
                    found => Ok(found.map_or(Value::Null, Value::Integer)),
                }
            })?;
        }
        let (names, who) = (names.clone(), who.clone());
        sqlite::function(connection, &format!("pg_{kind}_text"), 1, FunctionFlags::default(), move |context| {
            let who = who.lock().unwrap_or_else(PoisonError::into_inner);
            let text = match context.get_raw(0) {
                ValueRef::Integer(oid) => Some(named(&names, &who, kind, oid)),
                _ => word(context, 0),
            };
            Ok(text.map_or(Value::Null, Value::Text))
        })?;
    }
    Ok(())
}
