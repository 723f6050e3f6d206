//! A query in the words of PostgreSQL becomes one in the words of SQLite.
//!
//! First the FROM clauses ([`super::from`]), then the expressions, from the inside out. What is left as it is must mean
//! the same in both: [`super::render`] writes that, and refuses the rest.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use sqlparser::ast::{
    AccessExpr, BinaryOperator, CastKind, Distinct, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList,
    FunctionArguments, Ident, LimitClause, ObjectName, Query, Select, SelectItem, SetExpr, Subscript, TrimWhereField,
    UnaryOperator, Value, VisitorMut,
};
use sqlparser::tokenizer::Location;

use super::from::{Place, Places, series};
use super::functions::RESULTS;
use super::infer::{Types, array_of};
use super::render::{Renderer, is_made, made, raw};
use crate::error::{Refusal, refuse};
use crate::quoting::identifier;
use crate::syntax::{arguments, column_name, folded, name_of, position};

/// Functions that are called alike in both.
const NATIVE: &[&str] =
    &["abs", "avg", "ceil", "floor", "lag", "lead", "mod", "first_value", "last_value", "round", "sign", "sqrt"];

/// Functions that SQLite has under another name.
const RENAMED: &[(&str, &str)] = &[
    ("string_agg", "group_concat"),
    ("array_agg", "json_group_array"),
    ("bool_and", "min"),
    ("every", "min"),
    ("bool_or", "max"),
    ("json_build_object", "json_object"),
    ("jsonb_build_object", "json_object"),
    ("json_agg", "json_group_array"),
    ("char_length", "lw_length"),
    ("character_length", "lw_length"),
    ("length", "lw_length"),
    ("lower", "lw_lower"),
    ("upper", "lw_upper"),
    ("replace", "lw_replace"),
    ("strpos", "lw_position"),
    ("substring", "substr"),
    ("greatest", "max"),
    ("least", "min"),
    ("btrim", "lw_trim"),
    ("trim", "lw_trim"),
    ("ltrim", "lw_ltrim"),
    ("rtrim", "lw_rtrim"),
    ("unnest_array", "pg_array"),
    ("series_array", "pg_series"),
    ("current_user", "pg_user"),
    ("session_user", "pg_user"),
    ("current_role", "pg_user"),
    ("user", "pg_user"),
    ("current_database", "pg_database"),
    ("current_catalog", "pg_database"),
];

/// Functions that answer rows; their calls in a SELECT list become tables.
pub(super) const SETS: &[&str] = &["unnest", "generate_subscripts", "_pg_expandarray", "generate_series"];

/// What is known of a query while it is rewritten.
pub(super) struct Rewriter<'a> {
    pub(super) text: &'a str,
    pub(super) places: Places,
    pub(super) types: Types,
    /// The types of parameters, by number.
    pub(super) parameters: BTreeMap<usize, Option<String>>,
    /// Tables made of calls in SELECT lists.
    pub(super) made: usize,
    /// Whether no table of the catalog is asked.
    pub(super) is_alone: bool,
}

/// A call.
pub(super) fn call(name: &str, arguments: Vec<Expr>) -> Expr {
    let argument = |expr| FunctionArg::Unnamed(FunctionArgExpr::Expr(expr));
    let args = arguments.into_iter().map(argument).collect();
    Expr::Function(Function {
        name: ObjectName::from(vec![made(name)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList { duplicate_treatment: None, args, clauses: Vec::new() }),
        within_group: Vec::new(),
        filter: None,
        null_treatment: None,
        over: None,
    })
}

pub(super) fn integer(number: i64) -> Expr {
    raw(number.to_string())
}

fn take(expr: &mut Expr) -> Expr {
    std::mem::replace(expr, raw(String::new()))
}

fn is_number(expr: &Expr) -> bool {
    matches!(expr, Expr::Value(value) if matches!(value.value, Value::Number(..)))
}

fn placeholder(expr: &Expr) -> Option<usize> {
    match expr {
        Expr::Nested(inner) => placeholder(inner),
        Expr::Value(value) => match &value.value {
            Value::Placeholder(text) => text[1..].parse().ok(),
            _ => None,
        },
        _ => None,
    }
}

impl Rewriter<'_> {
    pub(super) fn refuse(&self, sqlstate: &str, message: String, location: Location) -> Refusal {
        let hint = "the catalog here is for clients that ask what tables, columns, indexes and procedures there are";
        Refusal { position: position(self.text, location), ..refuse(sqlstate, message).hint(hint) }
    }

    /// An expression in the words of SQLite.
    pub(super) fn sql(&self, expr: &Expr) -> Result<String, Refusal> {
        Renderer(self.text).expr(expr)
    }

    /// A column of a function in FROM.
    fn placed(&mut self, place: Place) -> Expr {
        self.types.note(&place.sql, &place.ty);
        raw(place.sql)
    }

    /// Takes note of the type of a parameter, if `expr` is one.
    pub(super) fn learn(&mut self, expr: &Expr, ty: Option<String>) {
        if let (Some(number), Some(ty)) = (placeholder(expr), ty) {
            self.parameters.insert(number, Some(ty));
        }
    }

    fn function(&mut self, function: &mut Function) -> Result<Option<Expr>, Refusal> {
        let name = name_of(function);
        if name == "array" {
            let FunctionArguments::Subquery(query) = &function.args else { return Ok(None) };
            let element = self.types.of_body(&query.body);
            let Some(SelectItem::ExprWithAlias { alias, .. }) = first_item(&query.body) else {
                let message = "ARRAY of a query takes one that names its column".to_string();
                return Err(self.refuse("0A000", message, Location::empty()));
            };
            let (name, query) = (identifier(&alias.value)?, Renderer(self.text).query(query)?);
            let made = format!("(SELECT json_group_array({name}) FROM ({query}))");
            let array = element.as_deref().and_then(array_of).unwrap_or_else(|| "_text".into());
            self.types.note(&made, &array);
            return Ok(Some(raw(made)));
        }
        if SETS.contains(&name.as_str()) {
            // The SELECT that it stands in makes a table of it.
            return Ok(None);
        }
        let renamed = RENAMED.iter().find(|(known, _)| *known == name).map(|(_, to)| *to);
        let is_known =
            renamed.is_some() || NATIVE.contains(&name.as_str()) || RESULTS.iter().any(|(known, _)| *known == name);
        let ident = function.name.0.last().and_then(|part| part.as_ident());
        if !is_known {
            let location = ident.map_or(Location::empty(), |ident| ident.span.start);
            return Err(self.refuse("42883", format!("there is no function called '{name}' here"), location));
        }
        let bool_type = matches!(name.as_str(), "bool_and" | "bool_or" | "every");
        function.name = ObjectName::from(vec![made(renamed.unwrap_or(&name))]);
        if matches!(function.args, FunctionArguments::None) && name != "current_timestamp" {
            function.args = FunctionArguments::List(FunctionArgumentList {
                duplicate_treatment: None,
                args: Vec::new(),
                clauses: Vec::new(),
            });
        }
        // Of a single argument, SQLite's are aggregates.
        if matches!(name.as_str(), "greatest" | "least" | "coalesce") && arguments(function).len() == 1 {
            return Ok(arguments(function).first().map(|only| Expr::Nested(Box::new((*only).clone()))));
        }
        if bool_type {
            let made = self.sql(&Expr::Function(function.clone()))?;
            self.types.note(&made, "bool");
            return Ok(Some(raw(made)));
        }
        Ok(None)
    }

    fn subscript(&mut self, root: Expr, chain: Vec<AccessExpr>) -> Result<Expr, Refusal> {
        let mut expr = match root {
            Expr::Nested(inner) => *inner,
            Expr::Identifier(table)
                if !is_made(&table) && matches!(chain.first(), Some(AccessExpr::Dot(Expr::Identifier(_)))) =>
            {
                Expr::CompoundIdentifier(vec![table])
            }
            other => other,
        };
        let is_table = |expr: &Expr| matches!(expr, Expr::CompoundIdentifier(parts) if parts.len() == 1);
        for access in chain {
            expr = match access {
                // A column of a table, of which an element is taken.
                AccessExpr::Dot(Expr::Identifier(column)) if is_table(&expr) => {
                    let Expr::CompoundIdentifier(mut parts) = expr else { return Ok(expr) };
                    parts.push(column);
                    match self.places.of_column(&parts[0].value, &parts[1].value) {
                        Some(place) => self.placed(place),
                        None => Expr::CompoundIdentifier(parts),
                    }
                }
                AccessExpr::Subscript(Subscript::Index { index }) => {
                    let array = self.types.of(&expr).unwrap_or_default();
                    let first = i64::from(!array.ends_with("vector"));
                    call("pg_subscript", vec![expr, index, integer(first)])
                }
                AccessExpr::Dot(Expr::Identifier(field)) if matches!(folded(&field).as_str(), "n" | "x") => {
                    let field = folded(&field);
                    match &expr {
                        Expr::Function(function) if SETS.contains(&name_of(function).as_str()) => {
                            // Its SELECT makes a table of it and takes the field.
                            call(&format!("pg_field_{field}"), vec![expr])
                        }
                        _ => {
                            let made = format!("json_extract({}, '$.{field}')", self.sql(&expr)?);
                            self.types.note(&made, "int4");
                            raw(made)
                        }
                    }
                }
                _ => {
                    let message = "only elements of arrays can be taken, one by one".to_string();
                    return Err(self.refuse("0A000", message, Location::empty()));
                }
            };
        }
        Ok(expr)
    }

    fn expression(&mut self, expr: &mut Expr) -> Result<(), Refusal> {
        let made = match expr {
            Expr::Identifier(ident) if ident.quote_style.is_none() => match self.places.of_name(&ident.value) {
                Some(place) => self.placed(place),
                None if ident.value.eq_ignore_ascii_case("user") => call("pg_user", Vec::new()),
                None => return Ok(()),
            },
            Expr::CompoundIdentifier(parts) => match &parts[..] {
                [table, column] => match self.places.of_column(&table.value, &column.value) {
                    Some(place) => self.placed(place),
                    None => return Ok(()),
                },
                _ => return Ok(()),
            },
            Expr::Value(value) => match &value.value {
                Value::Number(digits, _) if self.is_alone && digits.parse::<i64>().is_err() => {
                    let message = format!("the number {digits} cannot stand beside what the catalog answers");
                    return Err(self.refuse("0A000", message, value.span.start));
                }
                Value::EscapedStringLiteral(text)
                | Value::NationalStringLiteral(text)
                | Value::UnicodeStringLiteral(text) => {
                    // A text as any other, also for the types of what stands beside it.
                    value.value = Value::SingleQuotedString(text.clone());
                    return Ok(());
                }
                Value::DollarQuotedString(text) => {
                    value.value = Value::SingleQuotedString(text.value.clone());
                    return Ok(());
                }
                Value::Placeholder(text) => {
                    let number = text.strip_prefix('$').and_then(|digits| digits.parse::<usize>().ok());
                    let Some(number) = number.filter(|number| (1..=1000).contains(number)) else {
                        let message = format!("'{text}' is no parameter: write $1 to $1000");
                        return Err(self.refuse("42P02", message, value.span.start));
                    };
                    self.parameters.entry(number).or_insert(None);
                    value.value = Value::Placeholder(format!("?{number}"));
                    return Ok(());
                }
                _ => return Ok(()),
            },
            Expr::Collate { expr, .. } => take(expr),
            Expr::Cast { kind: CastKind::Cast | CastKind::DoubleColon, expr, data_type, format: None } => {
                let data_type = data_type.clone();
                self.cast(take(expr), &data_type)?
            }
            Expr::TypedString(typed) if !typed.uses_odbc_syntax => {
                let value = Expr::Value(typed.value.clone());
                let data_type = typed.data_type.clone();
                self.cast(value, &data_type)?
            }
            Expr::Function(function) => match self.function(function)? {
                Some(made) => made,
                None => return Ok(()),
            },
            Expr::CompoundFieldAccess { root, access_chain } => {
                let chain = std::mem::take(access_chain);
                self.subscript(take(root), chain)?
            }
            Expr::BinaryOp { left, op, right } => {
                let op = op.clone();
                self.binary(take(left), op, take(right))?
            }
            Expr::UnaryOp { op: op @ (UnaryOperator::Minus | UnaryOperator::Plus), expr } if !is_number(expr) => {
                let op = if *op == UnaryOperator::Minus { BinaryOperator::Minus } else { BinaryOperator::Plus };
                self.binary(integer(0), op, take(expr))?
            }
            Expr::AnyOp { left, compare_op, right, .. } => {
                let op = compare_op.clone();
                self.quantified(take(left), &op, take(right), false)?
            }
            Expr::AllOp { left, compare_op, right } => {
                let op = compare_op.clone();
                self.quantified(take(left), &op, take(right), true)?
            }
            Expr::InList { expr, list, .. } => {
                let ty = self.types.of(expr);
                list.iter().for_each(|element| self.learn(element, ty.clone()));
                return Ok(());
            }
            Expr::Array(array) => call("json_array", std::mem::take(&mut array.elem)),
            Expr::ILike { negated, any: false, expr, pattern, escape_char } => {
                like(*negated, take(expr), take(pattern), escape_char.take(), true)
            }
            Expr::Like { negated, any: false, expr, pattern, escape_char } => {
                like(*negated, take(expr), take(pattern), escape_char.take(), false)
            }
            Expr::Substring { expr, substring_from, substring_for, .. } => {
                let from = substring_from.as_mut().map_or_else(|| integer(1), |from| take(from));
                let mut arguments = vec![take(expr), from];
                arguments.extend(substring_for.as_mut().map(|count| take(count)));
                call("substr", arguments)
            }
            Expr::Trim { trim_where, trim_what, expr, trim_characters: None } => {
                let name = match trim_where {
                    Some(TrimWhereField::Leading) => "lw_ltrim",
                    Some(TrimWhereField::Trailing) => "lw_rtrim",
                    _ => "lw_trim",
                };
                let mut arguments = vec![take(expr)];
                arguments.extend(trim_what.as_mut().map(|what| take(what)));
                call(name, arguments)
            }
            Expr::Position { expr, r#in } => call("lw_position", vec![take(r#in), take(expr)]),
            _ => return Ok(()),
        };
        *expr = made;
        Ok(())
    }

    /// `*` is the columns that a function in FROM has here, and not those that it has in SQLite.
    fn all(&self, select: &mut Select) -> Result<(), Refusal> {
        let tables = select
            .from
            .iter()
            .flat_map(|from| std::iter::once(&from.relation).chain(from.joins.iter().map(|join| &join.relation)));
        let columns: Vec<Option<Vec<Expr>>> = tables.map(|table| self.places.all_of(table)).collect();
        let is_all = |item: &SelectItem| matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..));
        if columns.iter().all(Option::is_none) || !select.projection.iter().any(is_all) {
            return Ok(());
        }
        let columns: Option<Vec<Vec<Expr>>> = columns.into_iter().collect();
        match (columns, &select.projection[..]) {
            (Some(columns), [SelectItem::Wildcard(_)]) => {
                select.projection = columns.into_iter().flatten().map(SelectItem::UnnamedExpr).collect();
                Ok(())
            }
            _ => {
                let message = "* beside a function in FROM is not possible in queries of the catalog".to_string();
                Err(self.refuse("0A000", message, select.select_token.0.span.start))
            }
        }
    }

    fn select(&mut self, select: &mut Select) -> Result<(), Refusal> {
        if matches!(select.distinct, Some(Distinct::On(_))) {
            let message = "DISTINCT ON is not possible in queries of the catalog".to_string();
            return Err(self.refuse("0A000", message, select.select_token.0.span.start));
        }
        series(self, select)?;
        for item in &mut select.projection {
            if let SelectItem::ExprWithAlias { expr, alias } = item {
                let ty = self.types.of(expr);
                if let Some(ty) = ty {
                    self.types.note_column(&alias.value, &ty);
                }
            }
        }
        Ok(())
    }
}

/// LIKE, or ILIKE if case is of no matter. Without ESCAPE the escape character is a backslash.
pub(super) fn like(negated: bool, text: Expr, pattern: Expr, escape: Option<Box<Expr>>, is_folded: bool) -> Expr {
    let escape = escape.map_or_else(|| raw("'\\'".into()), |escape| *escape);
    let like = call("lw_like", vec![text, pattern, escape, integer(is_folded.into())]);
    if negated { Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(like) } } else { like }
}

fn first_item(body: &SetExpr) -> Option<&SelectItem> {
    match body {
        SetExpr::Select(select) => select.projection.first(),
        SetExpr::SetOperation { left, .. } => first_item(left),
        SetExpr::Query(query) => first_item(&query.body),
        _ => None,
    }
}

fn flow(result: Result<(), Refusal>) -> ControlFlow<Refusal> {
    match result {
        Ok(()) => ControlFlow::Continue(()),
        Err(refusal) => ControlFlow::Break(refusal),
    }
}

impl VisitorMut for Rewriter<'_> {
    type Break = Refusal;

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Refusal> {
        if let Err(refusal) = self.all(select) {
            return ControlFlow::Break(refusal);
        }
        for item in &mut select.projection {
            match item {
                SelectItem::UnnamedExpr(expr) => {
                    let alias = Ident::with_quote('"', column_name(expr));
                    *item = SelectItem::ExprWithAlias { expr: take(expr), alias };
                }
                SelectItem::ExprWithAlias { alias, .. } => *alias = Ident::with_quote('"', folded(alias)),
                _ => {}
            }
        }
        ControlFlow::Continue(())
    }

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<Refusal> {
        flow(self.select(select))
    }

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<Refusal> {
        query.locks.clear();
        if let Some(LimitClause::LimitOffset { limit, offset, .. }) = &mut query.limit_clause {
            // NULL is no limit, and no offset.
            let or = |expr: &mut Expr, none: i64| *expr = call("coalesce", vec![take(expr), integer(none)]);
            limit.iter_mut().for_each(|limit| or(limit, -1));
            offset.iter_mut().for_each(|offset| or(&mut offset.value, 0));
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Refusal> {
        flow(self.expression(expr))
    }
}
