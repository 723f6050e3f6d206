//! What a client's query may come to read and call in SQLite, whatever the rewriter lets through.

use super::fill::is_table;
use super::functions::{NOTHING, SO, ZERO};
use super::privileges;
use crate::sqlite::Allowed;

/// The tables of the catalog and the elements of arrays, and the functions that are there for it.
pub(super) const ALLOWED: Allowed =
    Allowed { table: |name| name == "json_each" || is_table(name), function: is_allowed };

/// Functions of SQLite that the catalog's statements call, beside those that are registered here and in
/// [`crate::texts`].
const OF_SQLITE: &[&str] = &[
    "abs",
    "avg",
    "ceil",
    "coalesce",
    "concat",
    "concat_ws",
    "count",
    "dense_rank",
    "first_value",
    "floor",
    "group_concat",
    "json_array",
    "json_extract",
    "json_group_array",
    "json_object",
    "lag",
    "last_value",
    "lead",
    "max",
    "min",
    "mod",
    "nullif",
    "rank",
    "round",
    "row_number",
    "sign",
    "sqrt",
    "substr",
    "sum",
];

/// Whether a client's query may come to call a function of SQLite's: those that read files or tell of the build are not
/// among them.
fn is_allowed(name: &str) -> bool {
    let is_own = ["pg_", "lw_", "to_reg"].iter().any(|begin| name.starts_with(begin));
    is_own || privileges::is_one(name) || [OF_SQLITE, OWN, NOTHING, SO, ZERO].iter().any(|list| list.contains(&name))
}

/// Functions that are registered here under the names that PostgreSQL has for them.
const OWN: &[&str] = &[
    "array_length",
    "array_lower",
    "array_to_string",
    "array_upper",
    "cardinality",
    "current_schema",
    "current_schemas",
    "current_setting",
    "format_type",
    "left",
    "quote_ident",
    "quote_literal",
    "right",
    "set_config",
    "version",
];
