//! Which type an expression has, in the names of the catalog: from its columns, casts and functions.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use sqlparser::ast::{BinaryOperator, CaseWhen, Expr, Function, SelectItem, SetExpr, UnaryOperator, Value};

use super::fill::relations;
use super::functions::{REGISTERED, RESULTS};
use crate::syntax::{arguments, name_of};

/// The types of the catalog's columns by name; those of one name have one type wherever it matters.
static COLUMNS: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| {
    let mut columns = HashMap::new();
    for (name, ty) in relations().flat_map(|(_, _, _, columns)| columns) {
        columns.entry(name).or_insert(ty);
    }
    columns
});

/// What is known of the names that a statement gives itself, and of expressions: by hashes, because expressions stand
/// in each other, so their texts together may be as long as the square of the statement.
#[derive(Default)]
pub(super) struct Types {
    known: HashMap<(u64, u64), String>,
    hashers: [RandomState; 2],
}

impl Types {
    /// Takes note of the name that a column is given; what is called as a column of the catalog is taken for that.
    pub(super) fn note_column(&mut self, name: &str, ty: &str) {
        if !COLUMNS.contains_key(name) {
            self.note(name, ty);
        }
    }

    /// Takes note of what a name, or an expression in the words of SQLite, stands for.
    pub(super) fn note(&mut self, name: &str, ty: &str) {
        self.known.insert(self.hash(&name.to_ascii_lowercase()), ty.to_string());
    }

    fn hash(&self, name: &str) -> (u64, u64) {
        (self.hashers[0].hash_one(name), self.hashers[1].hash_one(name))
    }

    fn of_name(&self, name: &str) -> Option<String> {
        let name = name.to_ascii_lowercase();
        self.known.get(&self.hash(&name)).cloned().or_else(|| COLUMNS.get(name.as_str()).map(ToString::to_string))
    }

    /// The type of an expression, if there is a reason for one.
    pub(super) fn of(&self, expr: &Expr) -> Option<String> {
        let is = |ty: &str| Some(ty.to_string());
        match expr {
            Expr::Identifier(ident) => self.of_name(&ident.value),
            Expr::CompoundIdentifier(parts) => self.of_name(&parts.last()?.value),
            Expr::Nested(inner) | Expr::Collate { expr: inner, .. } => self.of(inner),
            Expr::Value(value) => match &value.value {
                Value::Number(digits, _) if digits.parse::<i32>().is_ok() => is("int4"),
                Value::Number(digits, _) if digits.parse::<i64>().is_ok() => is("int8"),
                Value::Number(..) => is("float8"),
                Value::Boolean(_) => is("bool"),
                Value::SingleQuotedString(_) => is("text"),
                _ => None,
            },
            Expr::Cast { data_type, .. } => match data_type.to_string().as_str() {
                "INTEGER" => is("int8"),
                "REAL" => is("float8"),
                _ => is("text"),
            },
            Expr::UnaryOp { op: UnaryOperator::Not, .. } => is("bool"),
            Expr::UnaryOp { expr, .. } => self.of(expr),
            Expr::BinaryOp { left, op, right } => match op {
                BinaryOperator::Plus
                | BinaryOperator::Minus
                | BinaryOperator::Multiply
                | BinaryOperator::Divide
                | BinaryOperator::Modulo
                | BinaryOperator::BitwiseAnd
                | BinaryOperator::BitwiseOr
                | BinaryOperator::PGBitwiseShiftLeft
                | BinaryOperator::PGBitwiseShiftRight => wider(self.of(left), self.of(right)),
                BinaryOperator::StringConcat => is("text"),
                _ => is("bool"),
            },
            Expr::IsNull(_)
            | Expr::IsNotNull(_)
            | Expr::IsTrue(_)
            | Expr::IsNotTrue(_)
            | Expr::IsFalse(_)
            | Expr::IsNotFalse(_)
            | Expr::IsDistinctFrom(..)
            | Expr::IsNotDistinctFrom(..)
            | Expr::InList { .. }
            | Expr::InSubquery { .. }
            | Expr::Between { .. }
            | Expr::Like { .. }
            | Expr::Exists { .. } => is("bool"),
            Expr::Case { conditions, else_result, .. } => {
                let results = conditions.iter().map(|CaseWhen { result, .. }| result);
                results.chain(else_result.as_deref()).find_map(|result| self.of(result))
            }
            Expr::Subquery(query) => self.of_body(&query.body),
            Expr::Function(function) => self.of_function(function),
            _ => None,
        }
    }

    /// The type of the first column of a query.
    pub(super) fn of_body(&self, body: &SetExpr) -> Option<String> {
        match body {
            SetExpr::Select(select) => match select.projection.first()? {
                SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => self.of(expr),
                _ => None,
            },
            SetExpr::Query(query) => self.of_body(&query.body),
            SetExpr::SetOperation { left, .. } => self.of_body(left),
            _ => None,
        }
    }

    fn of_function(&self, function: &Function) -> Option<String> {
        let name = name_of(function);
        let first = || arguments(function).into_iter().find_map(|argument| self.of(argument));
        let is = |ty: &str| Some(ty.to_string());
        match name.as_str() {
            "coalesce" | "nullif" | "min" | "max" => first(),
            "json_group_array" | "json_array" => first().and_then(|element| array_of(&element)).or_else(|| is("_text")),
            "json_object" => is("json"),
            "pg_truth" | "pg_regex" | "lw_like" => is("bool"),
            "pg_user" | "pg_database" => is("name"),
            "pg_int2" | "pg_int4" | "pg_int8" | "pg_oid" | "pg_name" => is(&name[3..]),
            "group_concat" => is("text"),
            "lw_position" | "lw_length" => is("int4"),
            "lw_trim" | "lw_ltrim" | "lw_rtrim" | "lw_lower" | "lw_upper" | "lw_replace" => is("text"),
            "pg_subscript" => first().and_then(|array| element_of(&array)),
            "pg_array" => first().filter(|ty| ty.starts_with('_')).or_else(|| is("_text")),
            _ => {
                let is_kind = |kind: &&&str| name.strip_prefix("pg_") == Some(**kind);
                let kind = REGISTERED.iter().find(is_kind).copied();
                let known = || RESULTS.iter().find(|(known, _)| *known == name).map(|(_, ty)| *ty);
                kind.or_else(known).map(str::to_string)
            }
        }
    }
}

fn wider(left: Option<String>, right: Option<String>) -> Option<String> {
    let order = ["int2", "int4", "oid", "int8", "float4", "float8"];
    let place = |ty: &Option<String>| order.iter().position(|known| Some(*known) == ty.as_deref());
    Some(order[place(&left).max(place(&right)).unwrap_or(3)].into())
}

/// The type of the elements of an array or vector.
pub(super) fn element_of(array: &str) -> Option<String> {
    match array {
        "int2vector" => Some("int2".into()),
        "oidvector" => Some("oid".into()),
        other => other.strip_prefix('_').map(str::to_string),
    }
}

/// The type of arrays of a type.
pub(super) fn array_of(element: &str) -> Option<String> {
    let array = format!("_{element}");
    super::types::LIST.iter().any(|row| row.name == array).then_some(array)
}
