//! A rewritten query as a statement of SQLite.
//!
//! What is not named here is refused: nothing that the parser knows gets through because it writes it in some way.
//! Names and texts are quoted by [`crate::quoting`]; what the rewriter has made itself stands as it is ([`raw`]).
//! Operators stand in parentheses, so SQLite's precedence of them is of no matter.

use sqlparser::ast::{
    BinaryOperator, CaseWhen, CeilFloorKind, Cte, CteAsMaterialized, DateTimeField, Distinct, Expr, FunctionArg,
    FunctionArgExpr, GroupByExpr, Ident, Join, JoinConstraint, JoinOperator, LimitClause, NamedWindowDefinition,
    NamedWindowExpr, ObjectName, OrderBy, OrderByKind, Query, Select, SelectItem, SelectItemQualifiedWildcardKind,
    SetExpr, SetOperator, SetQuantifier, Spanned, TableAlias, TableFactor, TableWithJoins, UnaryOperator, Value,
    WildcardAdditionalOptions,
};
use sqlparser::tokenizer::Location;

use super::UNCLEAR;
use crate::error::{Refusal, refuse};
use crate::quoting::{identifier, literal};
use crate::syntax::{has_foreign_clause, position};

/// The mark of an identifier that is an expression in the words of SQLite. The parser makes none, and its `Display`
/// panics at it: a query is written here and nowhere else.
const MADE: Option<char> = Some('\0');

/// An identifier that is written as it is.
pub(super) fn made(text: impl Into<String>) -> Ident {
    Ident { quote_style: MADE, ..Ident::new(text) }
}

/// An expression in the words of SQLite.
pub(super) fn raw(text: String) -> Expr {
    Expr::Identifier(made(text))
}

/// Whether an identifier was made here.
pub(super) fn is_made(ident: &Ident) -> bool {
    ident.quote_style == MADE
}

/// Writes the parts of a query whose text is this.
#[derive(Clone, Copy)]
pub(super) struct Renderer<'a>(pub(super) &'a str);

pub(super) type Written = Result<String, Refusal>;

/// Texts with something between them.
pub(super) fn joined(texts: impl Iterator<Item = Written>, between: &str) -> Written {
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join(between))
}

impl Renderer<'_> {
    pub(super) fn unknown(self, what: &str, at: Location) -> Refusal {
        let hint = "the catalog here is for clients that ask what tables, columns, indexes and procedures there are";
        let refusal = refuse("0A000", format!("{UNCLEAR} ({what})")).hint(hint);
        Refusal { position: position(self.0, at), ..refusal }
    }

    pub(super) fn ident(self, ident: &Ident) -> Written {
        if is_made(ident) { Ok(ident.value.clone()) } else { identifier(&ident.value) }
    }

    fn idents(self, idents: &[Ident]) -> Written {
        joined(idents.iter().map(|ident| self.ident(ident)), ".")
    }

    fn object(self, name: &ObjectName) -> Written {
        let unknown = || self.unknown("a name like this", name.span().start);
        let part = |part: &sqlparser::ast::ObjectNamePart| self.ident(part.as_ident().ok_or_else(unknown)?);
        joined(name.0.iter().map(part), ".")
    }

    fn value(self, value: &Value, at: Location) -> Written {
        match value {
            Value::Number(digits, false)
                if digits.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte)) =>
            {
                Ok(digits.clone())
            }
            Value::SingleQuotedString(text)
            | Value::EscapedStringLiteral(text)
            | Value::NationalStringLiteral(text)
            | Value::UnicodeStringLiteral(text) => literal(text),
            Value::DollarQuotedString(text) => literal(&text.value),
            Value::Boolean(truth) => Ok(if *truth { "true" } else { "false" }.into()),
            Value::Null => Ok("NULL".into()),
            Value::Placeholder(text)
                if text.len() > 1 && text.starts_with('?') && text[1..].bytes().all(|byte| byte.is_ascii_digit()) =>
            {
                Ok(text.clone())
            }
            _ => Err(self.unknown("a value of this form", at)),
        }
    }

    pub(super) fn list(self, exprs: &[Expr]) -> Written {
        joined(exprs.iter().map(|expr| self.expr(expr)), ", ")
    }

    /// An expression.
    pub(super) fn expr(self, expr: &Expr) -> Written {
        let at = expr.span().start;
        let behind = |inner: &Expr, what: &str| Ok(format!("({} {what})", self.expr(inner)?));
        let between =
            |left: &Expr, what: &str, right: &Expr| Ok(format!("({} {what} {})", self.expr(left)?, self.expr(right)?));
        let not = |negated: bool| if negated { "NOT " } else { "" };
        match expr {
            Expr::Identifier(ident) => self.ident(ident),
            Expr::CompoundIdentifier(parts) => self.idents(parts),
            Expr::Nested(inner) => Ok(format!("({})", self.expr(inner)?)),
            Expr::Value(value) => self.value(&value.value, value.span.start),
            Expr::IsFalse(inner) => behind(inner, "IS FALSE"),
            Expr::IsNotFalse(inner) => behind(inner, "IS NOT FALSE"),
            Expr::IsTrue(inner) => behind(inner, "IS TRUE"),
            Expr::IsNotTrue(inner) => behind(inner, "IS NOT TRUE"),
            Expr::IsNull(inner) => behind(inner, "IS NULL"),
            Expr::IsNotNull(inner) => behind(inner, "IS NOT NULL"),
            Expr::IsDistinctFrom(left, right) => between(left, "IS NOT", right),
            Expr::IsNotDistinctFrom(left, right) => between(left, "IS", right),
            Expr::InList { expr, list, negated } => {
                Ok(format!("({} {}IN ({}))", self.expr(expr)?, not(*negated), self.list(list)?))
            }
            Expr::InSubquery { expr, subquery, negated } => {
                Ok(format!("({} {}IN ({}))", self.expr(expr)?, not(*negated), self.query(subquery)?))
            }
            Expr::Between { expr, negated, low, high } => {
                let (low, high) = (self.expr(low)?, self.expr(high)?);
                Ok(format!("({} {}BETWEEN {low} AND {high})", self.expr(expr)?, not(*negated)))
            }
            Expr::UnaryOp { op, expr } => {
                let op = match op {
                    UnaryOperator::Not => "NOT ",
                    UnaryOperator::Minus => "-",
                    UnaryOperator::Plus => "+",
                    _ => return Err(self.unknown("this operator", at)),
                };
                Ok(format!("({op}{})", self.expr(expr)?))
            }
            Expr::BinaryOp { left, op, right } => {
                let word = self.operator(op, at)?;
                let right = self.expr(right)?;
                // Many in a row are no deeper for SQLite than one.
                let mut texts = vec![right];
                let mut first = left;
                while let Expr::BinaryOp { left, op: other, right } = &**first
                    && matches!(op, BinaryOperator::And | BinaryOperator::Or)
                    && other == op
                {
                    texts.push(self.expr(right)?);
                    first = left;
                }
                texts.push(self.expr(first)?);
                texts.reverse();
                Ok(format!("({})", texts.join(&format!(" {word} "))))
            }
            Expr::Case { operand, conditions, else_result, .. } => {
                let operand = operand.as_ref().map(|operand| Ok(format!("{} ", self.expr(operand)?))).transpose()?;
                let arm = |CaseWhen { condition, result }: &CaseWhen| {
                    Ok(format!("WHEN {} THEN {} ", self.expr(condition)?, self.expr(result)?))
                };
                let otherwise =
                    else_result.as_ref().map(|other| Ok(format!("ELSE {} ", self.expr(other)?))).transpose()?;
                let arms = joined(conditions.iter().map(arm), "")?;
                Ok(format!("(CASE {}{arms}{}END)", operand.unwrap_or_default(), otherwise.unwrap_or_default()))
            }
            Expr::Exists { subquery, negated } => Ok(format!("({}EXISTS ({}))", not(*negated), self.query(subquery)?)),
            Expr::Subquery(query) => Ok(format!("({})", self.query(query)?)),
            Expr::Tuple(exprs) => Ok(format!("({})", self.list(exprs)?)),
            Expr::Function(function) => self.function(function, at),
            Expr::Ceil { expr, field: CeilFloorKind::DateTimeField(DateTimeField::NoDateTime) } => {
                Ok(format!("ceil({})", self.expr(expr)?))
            }
            Expr::Floor { expr, field: CeilFloorKind::DateTimeField(DateTimeField::NoDateTime) } => {
                Ok(format!("floor({})", self.expr(expr)?))
            }
            _ => Err(self.unknown("an expression of this form", at)),
        }
    }

    /// An operator that means the same in both, or what the rewriter left because it does.
    pub(super) fn operator(self, op: &BinaryOperator, at: Location) -> Result<&'static str, Refusal> {
        Ok(match op {
            BinaryOperator::And => "AND",
            BinaryOperator::Or => "OR",
            BinaryOperator::Eq => "=",
            BinaryOperator::NotEq => "<>",
            BinaryOperator::Lt => "<",
            BinaryOperator::LtEq => "<=",
            BinaryOperator::Gt => ">",
            BinaryOperator::GtEq => ">=",
            BinaryOperator::StringConcat => "||",
            BinaryOperator::BitwiseAnd => "&",
            BinaryOperator::BitwiseOr => "|",
            BinaryOperator::PGBitwiseShiftLeft => "<<",
            BinaryOperator::PGBitwiseShiftRight => ">>",
            BinaryOperator::PGCustomBinaryOperator(parts) => match parts.last().map(String::as_str) {
                Some("=") => "=",
                Some("<>") => "<>",
                Some("<") => "<",
                Some("<=") => "<=",
                Some(">") => ">",
                Some(">=") => ">=",
                Some("||") => "||",
                Some("&") => "&",
                Some("|") => "|",
                Some("<<") => "<<",
                Some(">>") => ">>",
                _ => return Err(self.unknown("this operator", at)),
            },
            _ => return Err(self.unknown("this operator", at)),
        })
    }

    /// A query, also one that stands in another.
    pub(super) fn query(self, query: &Query) -> Written {
        let at = query.span().start;
        let is_other = query.for_clause.is_some()
            || query.settings.is_some()
            || query.format_clause.is_some()
            || !query.pipe_operators.is_empty()
            || !query.locks.is_empty();
        if is_other {
            return Err(self.unknown("what stands behind the query", at));
        }
        let mut made = String::new();
        if let Some(with) = &query.with {
            let word = if with.recursive { "WITH RECURSIVE" } else { "WITH" };
            made += &format!("{word} {} ", joined(with.cte_tables.iter().map(|cte| self.cte(cte)), ", ")?);
        }
        made += &self.body(&query.body)?;
        if let Some(OrderBy { kind, interpolate }) = &query.order_by {
            match (kind, interpolate) {
                (OrderByKind::Expressions(items), None) => made += &format!(" ORDER BY {}", self.order(items)?),
                _ => return Err(self.unknown("ORDER BY ALL", at)),
            }
        }
        let (mut limit, mut offset) = (None, None);
        match &query.limit_clause {
            None => {}
            Some(LimitClause::LimitOffset { limit: most, offset: skipped, limit_by }) if limit_by.is_empty() => {
                limit = most.as_ref().map(|most| self.expr(most)).transpose()?;
                offset = skipped.as_ref().map(|skipped| self.expr(&skipped.value)).transpose()?;
            }
            Some(_) => return Err(self.unknown("this LIMIT", at)),
        }
        if let Some(fetch) = &query.fetch {
            if fetch.with_ties || fetch.percent || limit.is_some() {
                return Err(self.unknown("this FETCH", at));
            }
            limit = Some(fetch.quantity.as_ref().map_or_else(|| Ok("1".into()), |count| self.expr(count))?);
        }
        match (limit, offset) {
            (None, None) => {}
            (Some(limit), None) => made += &format!(" LIMIT {limit}"),
            (limit, Some(offset)) => made += &format!(" LIMIT {} OFFSET {offset}", limit.unwrap_or("-1".into())),
        }
        Ok(made)
    }

    fn cte(self, cte: &Cte) -> Written {
        if cte.from.is_some() {
            return Err(self.unknown("FROM behind a name of WITH", cte.alias.name.span.start));
        }
        let materialized = match cte.materialized {
            None => "",
            Some(CteAsMaterialized::Materialized) => "MATERIALIZED ",
            Some(CteAsMaterialized::NotMaterialized) => "NOT MATERIALIZED ",
        };
        Ok(format!("{} AS {materialized}({})", self.alias(&cte.alias)?, self.query(&cte.query)?))
    }

    /// A name and the columns that stand behind it.
    fn alias(self, alias: &TableAlias) -> Written {
        let name = self.ident(&alias.name)?;
        let is_other = alias.at.is_some() || alias.columns.iter().any(|column| column.data_type.is_some());
        match &alias.columns[..] {
            _ if is_other => Err(self.unknown("an alias like this", alias.name.span.start)),
            [] => Ok(name),
            columns => Ok(format!("{name}({})", joined(columns.iter().map(|column| self.ident(&column.name)), ", ")?)),
        }
    }

    fn body(self, body: &SetExpr) -> Written {
        match body {
            SetExpr::Select(select) => self.select(select),
            SetExpr::Values(values) => {
                let row = |row: &[Expr]| Ok(format!("({})", self.list(row)?));
                Ok(format!("VALUES {}", joined(values.rows.iter().map(|one| row(&one.content)), ", ")?))
            }
            // SQLite has no parentheses around a query, nor around a part of a UNION.
            SetExpr::Query(query) => Ok(format!("SELECT * FROM ({})", self.query(query)?)),
            SetExpr::SetOperation { op, set_quantifier, left, right } => {
                let at = body.span().start;
                let word = match (op, set_quantifier) {
                    (SetOperator::Union, SetQuantifier::All) => "UNION ALL",
                    (SetOperator::Union, SetQuantifier::None | SetQuantifier::Distinct) => "UNION",
                    (SetOperator::Intersect, SetQuantifier::None | SetQuantifier::Distinct) => "INTERSECT",
                    (SetOperator::Except, SetQuantifier::None | SetQuantifier::Distinct) => "EXCEPT",
                    _ => return Err(self.unknown("this set operation", at)),
                };
                let left = self.body(left)?;
                // They are read from left to right.
                let right = match &**right {
                    other @ SetExpr::SetOperation { .. } => format!("SELECT * FROM ({})", self.body(other)?),
                    other => self.body(other)?,
                };
                Ok(format!("{left} {word} {right}"))
            }
            _ => Err(self.unknown("this statement", body.span().start)),
        }
    }

    fn select(self, select: &Select) -> Written {
        let at = select.select_token.0.span.start;
        if has_foreign_clause(select) || select.into.is_some() {
            return Err(self.unknown("a clause of this SELECT", at));
        }
        let distinct = match &select.distinct {
            None | Some(Distinct::All) => "",
            Some(Distinct::Distinct) => "DISTINCT ",
            Some(Distinct::On(_)) => return Err(self.unknown("DISTINCT ON", at)),
        };
        let mut made =
            format!("SELECT {distinct}{}", joined(select.projection.iter().map(|item| self.item(item)), ", ")?);
        if !select.from.is_empty() {
            made += &format!(" FROM {}", joined(select.from.iter().map(|from| self.joins(from)), ", ")?);
        }
        if let Some(filter) = &select.selection {
            made += &format!(" WHERE {}", self.expr(filter)?);
        }
        match &select.group_by {
            GroupByExpr::Expressions(exprs, modifiers) if modifiers.is_empty() => {
                if !exprs.is_empty() {
                    made += &format!(" GROUP BY {}", self.list(exprs)?);
                }
            }
            _ => return Err(self.unknown("this GROUP BY", at)),
        }
        if let Some(having) = &select.having {
            made += &format!(" HAVING {}", self.expr(having)?);
        }
        if !select.named_window.is_empty() {
            let one = |NamedWindowDefinition(name, window): &NamedWindowDefinition| match window {
                NamedWindowExpr::WindowSpec(window) => {
                    Ok(format!("{} AS ({})", self.ident(name)?, self.window(window)?))
                }
                NamedWindowExpr::NamedWindow(_) => Err(self.unknown("this WINDOW", name.span.start)),
            };
            made += &format!(" WINDOW {}", joined(select.named_window.iter().map(one), ", ")?);
        }
        Ok(made)
    }

    fn item(self, item: &SelectItem) -> Written {
        let at = item.span().start;
        let all = |options: &WildcardAdditionalOptions, before: String| match options {
            WildcardAdditionalOptions {
                opt_ilike: None,
                opt_exclude: None,
                opt_except: None,
                opt_replace: None,
                opt_rename: None,
                opt_alias: None,
                ..
            } => Ok(before + "*"),
            _ => Err(self.unknown("what stands behind *", at)),
        };
        match item {
            SelectItem::UnnamedExpr(expr) => self.expr(expr),
            SelectItem::ExprWithAlias { expr, alias } => Ok(format!("{} AS {}", self.expr(expr)?, self.ident(alias)?)),
            SelectItem::Wildcard(options) => all(options, String::new()),
            SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(table), options) => {
                all(options, self.object(table)? + ".")
            }
            _ => Err(self.unknown("this column", at)),
        }
    }

    fn joins(self, from: &TableWithJoins) -> Written {
        let mut made = self.factor(&from.relation)?;
        for Join { relation, global, join_operator } in &from.joins {
            use JoinOperator as J;
            let at = relation.span().start;
            let (word, constraint) = match join_operator {
                J::Join(on) | J::Inner(on) => ("JOIN", on),
                J::CrossJoin(on @ JoinConstraint::None) => ("CROSS JOIN", on),
                J::Left(on) | J::LeftOuter(on) => ("LEFT JOIN", on),
                J::Right(on) | J::RightOuter(on) => ("RIGHT JOIN", on),
                J::FullOuter(on) => ("FULL JOIN", on),
                _ => return Err(self.unknown("this JOIN", at)),
            };
            if *global {
                return Err(self.unknown("this JOIN", at));
            }
            let relation = self.factor(relation)?;
            made += &match constraint {
                JoinConstraint::On(condition) => format!(" {word} {relation} ON {}", self.expr(condition)?),
                JoinConstraint::Using(columns) => {
                    let columns = joined(columns.iter().map(|column| self.object(column)), ", ")?;
                    format!(" {word} {relation} USING ({columns})")
                }
                JoinConstraint::Natural => format!(" NATURAL {word} {relation}"),
                JoinConstraint::None => format!(" {word} {relation}"),
            };
        }
        Ok(made)
    }

    fn factor(self, factor: &TableFactor) -> Written {
        let at = factor.span().start;
        let named = |made: String, alias: &Option<TableAlias>| match alias {
            None => Ok(made),
            Some(alias) => Ok(format!("{made} AS {}", self.alias(alias)?)),
        };
        match factor {
            TableFactor::Table {
                name,
                alias,
                args,
                with_hints,
                version: None,
                with_ordinality: false,
                partitions,
                json_path: None,
                sample: None,
                index_hints,
            } if with_hints.is_empty() && partitions.is_empty() && index_hints.is_empty() => {
                let mut made = self.object(name)?;
                if let Some(args) = args {
                    let is_ours = name.0.iter().all(|part| part.as_ident().is_some_and(is_made));
                    let argument = |argument: &FunctionArg| match argument {
                        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) if is_ours => self.expr(expr),
                        _ => Err(self.unknown("a function in FROM", at)),
                    };
                    made += &format!("({})", joined(args.args.iter().map(argument), ", ")?);
                }
                named(made, alias)
            }
            TableFactor::Derived { lateral: false, subquery, alias, sample: None } => match alias {
                // SQLite names columns in WITH only.
                Some(alias) if !alias.columns.is_empty() => {
                    let name = self.ident(&alias.name)?;
                    let query = self.query(subquery)?;
                    Ok(format!("(WITH {} AS ({query}) SELECT * FROM {name}) AS {name}", self.alias(alias)?))
                }
                alias => named(format!("({})", self.query(subquery)?), alias),
            },
            TableFactor::NestedJoin { table_with_joins, alias: None } => {
                Ok(format!("({})", self.joins(table_with_joins)?))
            }
            _ => Err(self.unknown("what stands in FROM", at)),
        }
    }
}
