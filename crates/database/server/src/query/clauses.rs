//! What stands around a query: WITH, ORDER BY, LIMIT and OFFSET.
//!
//! What stands behind the parentheses around a query is its own, as in PostgreSQL: `(SELECT .. LIMIT 2) ORDER BY 1` is
//! `SELECT .. ORDER BY 1 LIMIT 2`, and each clause can be there once.

use std::borrow::Cow;

use sqlparser::ast::{Expr, LimitClause, OrderBy, Query, SetExpr, Spanned, Value, With};
use sqlparser::tokenizer::Location;

use super::bind::Binder;
use super::kinds::Kind;
use crate::error::Refusal;

/// The clauses of a query.
#[derive(Default)]
pub(super) struct Clauses<'q> {
    pub(super) with: Option<&'q With>,
    pub(super) order: Option<&'q OrderBy>,
    limit: Option<Cow<'q, Expr>>,
    offset: Option<&'q Expr>,
}

impl Binder<'_> {
    /// The clauses of a query, and what they belong to, which is no query in parentheses.
    pub(super) fn clauses<'q>(&self, mut query: &'q Query) -> Result<(Clauses<'q>, &'q SetExpr), Refusal> {
        let mut clauses = Clauses::default();
        loop {
            let at = query.span().start;
            let is_other = query.for_clause.is_some()
                || query.settings.is_some()
                || query.format_clause.is_some()
                || !query.pipe_operators.is_empty();
            if is_other || !query.locks.is_empty() {
                return Err(self.unsupported("what stands behind the query", at));
            }
            let (limit, offset) = self.bounds(query, at)?;
            self.once("WITH", &mut clauses.with, query.with.as_ref(), at)?;
            self.once("ORDER BY", &mut clauses.order, query.order_by.as_ref(), at)?;
            self.once("LIMIT", &mut clauses.limit, limit, at)?;
            self.once("OFFSET", &mut clauses.offset, offset, at)?;
            match &*query.body {
                SetExpr::Query(inner) => query = inner,
                body => return Ok((clauses, body)),
            }
        }
    }

    fn once<T>(&self, word: &str, there: &mut Option<T>, more: Option<T>, at: Location) -> Result<(), Refusal> {
        match (there.is_some(), more) {
            (_, None) => Ok(()),
            (false, more) => {
                *there = more;
                Ok(())
            }
            (true, _) => {
                let message = format!("a query has one {word}, which may stand behind its parentheses");
                Err(self.refuse("42601", message, at).hint("write SELECT .. FROM (query) AS name for one more"))
            }
        }
    }

    /// LIMIT and OFFSET of a query.
    fn bounds<'q>(&self, query: &'q Query, at: Location) -> Result<(Option<Cow<'q, Expr>>, Option<&'q Expr>), Refusal> {
        let (limit, offset) = match &query.limit_clause {
            None => (None, None),
            Some(LimitClause::LimitOffset { limit, offset, limit_by }) if limit_by.is_empty() => {
                (limit.as_ref().map(Cow::Borrowed), offset.as_ref().map(|offset| &offset.value))
            }
            Some(_) => return Err(self.unsupported("this LIMIT", at).hint("write LIMIT n OFFSET m")),
        };
        let Some(fetch) = &query.fetch else { return Ok((limit, offset)) };
        if fetch.with_ties || fetch.percent {
            return Err(self.unsupported("WITH TIES", at));
        }
        let one = || Cow::Owned(Expr::value(Value::Number("1".into(), false)));
        Ok((Some(fetch.quantity.as_ref().map_or_else(one, Cow::Borrowed)), offset))
    }

    /// LIMIT and OFFSET in the words of SQLite; NULL is none.
    pub(super) fn limit(&mut self, clauses: &Clauses<'_>) -> Result<String, Refusal> {
        let limit = clauses.limit.as_deref().map(|limit| self.count(limit, "lw_limit", -1)).transpose()?;
        let offset = clauses.offset.map(|offset| self.count(offset, "lw_offset", 0)).transpose()?;
        Ok(match (limit, offset) {
            (None, None) => String::new(),
            (Some(limit), None) => format!(" LIMIT {limit}"),
            (limit, Some(offset)) => format!(" LIMIT {} OFFSET {offset}", limit.unwrap_or("-1".into())),
        })
    }

    fn count(&mut self, expr: &Expr, check: &str, none: i8) -> Result<String, Refusal> {
        // No columns are known here.
        let scopes = std::mem::take(&mut self.scopes);
        let bound = self.expr_of(expr, Kind::Integer(8));
        self.scopes = scopes;
        Ok(format!("coalesce({check}({}), {none})", bound?.sql))
    }
}
