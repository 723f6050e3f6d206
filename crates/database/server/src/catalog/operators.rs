//! Operators and casts of a query of the catalog, in the words of SQLite.

use sqlparser::ast::{BinaryOperator, DataType, Expr, UnaryOperator};
use sqlparser::tokenizer::Location;

use super::functions::REGISTERED;
use super::infer::array_of;
use super::render::{Renderer, raw};
use super::rewrite::{Rewriter, call, integer, like};
use super::types;
use crate::error::Refusal;
use crate::syntax::{arguments, name_of};

/// The types of numbers.
const NUMBERS: &[&str] = &["int2", "int4", "int8", "oid", "float4", "float8", "numeric"];

impl Rewriter<'_> {
    pub(super) fn cast(&mut self, mut inner: Expr, data_type: &DataType) -> Result<Expr, Refusal> {
        let text = data_type.to_string().to_lowercase();
        let row = types::named(&text);
        let Some(row) = row else {
            let message = format!("no type is called '{text}'");
            return Err(self.refuse("42704", message, Location::empty()));
        };
        let was = self.types.of(&inner);
        self.learn(&inner, Some(row.name.into()));
        let is_registered = |ty: Option<&str>| ty.filter(|ty| REGISTERED.contains(ty)).map(str::to_string);
        if let Some(kind) = is_registered(Some(row.name)) {
            // What has become a number stays it: the name is only for who reads it.
            return Ok(call(&format!("pg_{kind}"), vec![inner]));
        }
        if row.category == "A" && row.name.starts_with('_') || row.name.ends_with("vector") {
            let array = self.sql(&call("pg_array", vec![inner]))?;
            self.types.note(&array, row.name);
            return Ok(raw(array));
        }
        if let (Some(kind), true) = (is_registered(was.as_deref()), matches!(row.category, "S")) {
            inner = call(&format!("pg_{kind}_text"), vec![inner]);
        } else if was.as_deref() == Some("bool") && row.category == "S" {
            inner = raw(format!("(CASE {} WHEN 1 THEN 'true' WHEN 0 THEN 'false' END)", self.sql(&inner)?));
        }
        if row.name == "bool" {
            return Ok(call("pg_truth", vec![inner]));
        }
        let inner = self.sql(&inner)?;
        let whole = |lowest: i64, highest: i64| format!("pg_whole({inner}, {lowest}, {highest})");
        let made = match row.name {
            "int2" => whole(i16::MIN.into(), i16::MAX.into()),
            "int4" => whole(i32::MIN.into(), i32::MAX.into()),
            "int8" => whole(-i64::MAX, i64::MAX),
            "oid" | "xid" => whole(0, u32::MAX.into()),
            "float4" | "float8" | "numeric" if self.is_alone => {
                return Err(self.refuse("0A000", format!("nothing can be made a {text} here"), Location::empty()));
            }
            "float4" | "float8" | "numeric" => format!("CAST({inner} AS REAL)"),
            "record" | "void" | "anyarray" => {
                return Err(self.refuse("0A000", format!("nothing can be made a {text} here"), Location::empty()));
            }
            // Of so many characters.
            "varchar" | "bpchar" if text.contains('(') => {
                let most: u32 =
                    text.split(['(', ')']).nth(1).and_then(|most| most.trim().parse().ok()).unwrap_or(u32::MAX);
                format!("substr(CAST({inner} AS TEXT), 1, {most})")
            }
            _ => format!("CAST({inner} AS TEXT)"),
        };
        self.types.note(&made, row.name);
        Ok(raw(made))
    }

    pub(super) fn binary(&mut self, left: Expr, op: BinaryOperator, right: Expr) -> Result<Expr, Refusal> {
        let word = match &op {
            BinaryOperator::PGCustomBinaryOperator(parts) => parts.last().cloned().unwrap_or_default(),
            other => other.to_string(),
        };
        let of = [self.types.of(&left), self.types.of(&right)];
        if word != "||" {
            self.learn(&left, of[1].clone());
            self.learn(&right, of[0].clone());
        }
        let not = |expr| Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(expr) };
        let regex = |case: i64| call("pg_regex", vec![left.clone(), right.clone(), integer(case)]);
        let like = |negated, is_folded| like(negated, left.clone(), right.clone(), None, is_folded);
        Ok(match word.as_str() {
            "~" => regex(0),
            "~*" => regex(1),
            "!~" => not(regex(0)),
            "!~*" => not(regex(1)),
            "~~" => like(false, false),
            "!~~" => like(true, false),
            "~~*" => like(false, true),
            "!~~*" => like(true, true),
            "+" | "-" | "*" | "/" | "%" => {
                let is_number = |ty: &Option<String>| !matches!(ty.as_deref(), Some("bool" | "text" | "name"));
                if !of.iter().all(is_number) {
                    return Err(self.refuse("42883", format!("{word} takes numbers"), Location::empty()));
                }
                let ty =
                    self.types.of(&Expr::BinaryOp { left: Box::new(left.clone()), op, right: Box::new(right.clone()) });
                let name = match word.as_str() {
                    "+" => "pg_add",
                    "-" => "pg_subtract",
                    "*" => "pg_multiply",
                    "/" => "pg_divide",
                    _ => "pg_modulo",
                };
                let made = self.sql(&call(name, vec![left, right]))?;
                self.types.note(&made, &ty.unwrap_or_else(|| "int8".into()));
                raw(made)
            }
            "||" if of.iter().all(|ty| ty.as_deref().is_some_and(|ty| NUMBERS.contains(&ty))) => {
                return Err(self.refuse("42883", "|| joins texts".into(), Location::empty()));
            }
            "=" => Expr::BinaryOp { left: Box::new(left), op: BinaryOperator::Eq, right: Box::new(right) },
            "<>" | "!=" => Expr::BinaryOp { left: Box::new(left), op: BinaryOperator::NotEq, right: Box::new(right) },
            "&" | "|" | "<<" | ">>" if self.is_alone => {
                return Err(self.refuse("0A000", format!("the operator {word} is not supported"), Location::empty()));
            }
            "#" | "^" | "@" | "@>" | "<@" | "&&" | "->" | "->>" | "#>" | "#>>" | "?" => {
                let message = format!("there is no operator {word} for queries of the catalog");
                return Err(self.refuse("42883", message, Location::empty()));
            }
            _ => Expr::BinaryOp { left: Box::new(left), op, right: Box::new(right) },
        })
    }

    /// `left op ANY (array)`, or ALL.
    pub(super) fn quantified(
        &mut self,
        left: Expr,
        op: &BinaryOperator,
        right: Expr,
        is_all: bool,
    ) -> Result<Expr, Refusal> {
        let element = self.types.of(&left);
        self.learn(&right, element.as_deref().and_then(array_of));
        let right = match right {
            Expr::Nested(inner) => *inner,
            other => other,
        };
        let renderer = Renderer(self.text);
        let (left, word) = (renderer.expr(&left)?, renderer.operator(op, Location::empty())?);
        // What the operator compares with: values in parentheses, or a table with a column.
        let (listed, values) = match &right {
            Expr::Function(function) if name_of(function) == "json_array" => {
                let list = arguments(function).into_iter().map(|element| renderer.expr(element));
                let list = list.collect::<Result<Vec<_>, _>>()?.join(", ");
                (Some(format!("({list})")), format!("SELECT value FROM json_each({})", renderer.expr(&right)?))
            }
            Expr::Subquery(query) => {
                let query = renderer.query(query)?;
                let values = format!("SELECT value FROM (WITH of_any(value) AS ({query}) SELECT value FROM of_any)");
                (Some(format!("({query})")), values)
            }
            Expr::Identifier(_) | Expr::CompoundIdentifier(_) => {
                (None, format!("SELECT value FROM json_each({})", renderer.expr(&right)?))
            }
            _ => (None, format!("SELECT value FROM json_each(pg_array({}))", renderer.expr(&right)?)),
        };
        let listed = || listed.unwrap_or_else(|| format!("({values})"));
        let made = match (op, is_all) {
            (BinaryOperator::Eq, false) => format!("({left} IN {})", listed()),
            (BinaryOperator::NotEq, true) => format!("({left} NOT IN {})", listed()),
            (_, false) => format!("EXISTS ({values} WHERE {left} {word} value)"),
            (_, true) => format!("NOT EXISTS ({values} WHERE NOT ({left} {word} value))"),
        };
        self.types.note(&made, "bool");
        Ok(raw(made))
    }
}
