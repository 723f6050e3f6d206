//! Queries: SELECT, FROM, GROUP BY, ORDER BY, set operations and WITH, in the words of SQLite.
//!
//! Every query answers columns that are called `c1`, `c2` and so on; a table's columns are `c0` and so on as
//! [`super::images`] has them.

use lockwork::sql::SqlType;
use sqlparser::ast::{
    Cte, Distinct, Expr, GroupByExpr, Ident, OrderBy, OrderByExpr, OrderByKind, OrderBySort, Query, Select, SelectItem,
    SelectItemQualifiedWildcardKind, SetExpr, SetOperator, SetQuantifier, Spanned, Value, Values,
    WildcardAdditionalOptions,
};
use sqlparser::tokenizer::Location;

use super::bind::{Binder, Column, Named, Scope, Source};
use super::bound::Bound;
use super::kinds::Kind;
use crate::error::Refusal;
use crate::syntax::{column_name, folded, has_foreign_clause};

/// The most columns of an answer.
const MAX_COLUMNS: usize = 1000;

/// A column that a query answers.
#[derive(Clone, Debug)]
pub(super) struct Output {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) own: Option<SqlType>,
}

/// A query in the words of SQLite.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) sql: String,
    pub(super) columns: Vec<Output>,
    /// Whether it answers one row in any case.
    pub(super) is_single: bool,
}

impl Made {
    /// Its columns as those of something in FROM.
    pub(super) fn source(&self, name: String, made: &str) -> Source {
        let column = |(at, output): (usize, &Output)| Column {
            name: output.name.clone(),
            sql: format!("{made}.c{}", at + 1),
            kind: output.kind,
            own: output.own,
            is_hidden: false,
        };
        let columns = self.columns.iter().enumerate().map(column).collect();
        Source { name, columns, key: Vec::new() }
    }
}

fn output((name, bound): &(String, Bound)) -> Output {
    Output { name: name.clone(), kind: bound.kind, own: bound.own }
}

/// A list of expressions, each with the name that it has for SQLite.
fn listed<'a>(bounds: impl Iterator<Item = &'a Bound>) -> String {
    let one = |(at, bound): (usize, &Bound)| format!("{} AS c{}", bound.sql, at + 1);
    bounds.enumerate().map(one).collect::<Vec<_>>().join(", ")
}

/// The place that a number in ORDER BY or GROUP BY means.
fn ordinal(expr: &Expr) -> Option<usize> {
    match expr {
        Expr::Value(value) => match &value.value {
            Value::Number(digits, _) => digits.parse().ok(),
            _ => None,
        },
        _ => None,
    }
}

impl Binder<'_> {
    /// A query, also one that stands in another.
    pub(super) fn query(&mut self, query: &Query) -> Result<Made, Refusal> {
        let at = query.span().start;
        self.enter(at)?;
        let (clauses, body) = self.clauses(query)?;
        let named = self.named.len();
        let mut with = Vec::new();
        if let Some(clause) = clauses.with {
            if clause.recursive {
                return Err(self.unsupported("WITH RECURSIVE", at));
            }
            for cte in &clause.cte_tables {
                with.push(self.cte(cte)?);
            }
        }
        let mut made = self.body(body, clauses.order)?;
        let limit = self.limit(&clauses)?;
        if !with.is_empty() {
            made.sql = format!("WITH {} {}", with.join(", "), made.sql);
        }
        self.named.truncate(named);
        self.depth -= 1;
        Ok(Made { sql: made.sql + &limit, ..made })
    }

    fn cte(&mut self, cte: &Cte) -> Result<String, Refusal> {
        if cte.from.is_some() {
            return Err(self.unsupported("FROM behind a name of WITH", cte.alias.name.span.start));
        }
        let made = self.query(&cte.query)?;
        let name = self.fresh("w");
        let mut source = made.source(folded(&cte.alias.name), &name);
        self.rename(&mut source, cte.alias.columns.iter().map(|column| &column.name))?;
        let named = Named { name: source.name.clone(), source, made: name.clone() };
        self.named.push(named);
        Ok(format!("{name} AS ({})", made.sql))
    }

    /// Gives columns the names that stand behind an alias.
    pub(super) fn rename<'b>(
        &self,
        source: &mut Source,
        names: impl Iterator<Item = &'b Ident>,
    ) -> Result<(), Refusal> {
        for (at, name) in names.enumerate() {
            let Some(column) = source.columns.get_mut(at) else {
                let message = format!("'{}' has {} columns, and more are named", source.name, source.columns.len());
                return Err(self.refuse("42P10", message, name.span.start));
            };
            column.name = folded(name);
        }
        Ok(())
    }

    fn body(&mut self, body: &SetExpr, order: Option<&OrderBy>) -> Result<Made, Refusal> {
        match body {
            SetExpr::Select(select) => self.select(select, order),
            SetExpr::Query(inner) => {
                let made = self.query(inner)?;
                self.ordered(made, order)
            }
            SetExpr::SetOperation { left, op, set_quantifier, right } => {
                let made = self.operation(left, *op, *set_quantifier, right)?;
                self.ordered(made, order)
            }
            SetExpr::Values(values) => {
                let made = self.values(values)?;
                self.ordered(made, order)
            }
            _ => Err(self.unsupported("this statement", body.span().start)),
        }
    }

    /// A query ordered by columns that it answers.
    fn ordered(&mut self, made: Made, order: Option<&OrderBy>) -> Result<Made, Refusal> {
        let Some(order) = order else { return Ok(made) };
        let mut keys = Vec::new();
        for item in self.order_items(order)? {
            let place = self.place(&item.expr, &made.columns)?;
            let at = item.expr.span().start;
            let place = place.ok_or_else(|| {
                self.refuse("0A000", "ORDER BY of a query like this names columns that it answers", at)
            })?;
            keys.push(self.key(&(place + 1).to_string(), item)?);
        }
        let names: Vec<String> = (1..=made.columns.len()).map(|column| format!("c{column}")).collect();
        let sql = format!("SELECT {} FROM ({}) ORDER BY {}", names.join(", "), made.sql, keys.join(", "));
        Ok(Made { sql, ..made })
    }

    fn order_items<'b>(&self, order: &'b OrderBy) -> Result<&'b [OrderByExpr], Refusal> {
        match &order.kind {
            OrderByKind::Expressions(items) if order.interpolate.is_none() => Ok(items),
            _ => Err(self.unsupported("ORDER BY ALL", Location::empty())),
        }
    }

    /// Which column of the answer an expression names, by number or by name.
    fn place(&self, expr: &Expr, columns: &[Output]) -> Result<Option<usize>, Refusal> {
        let at = expr.span().start;
        if let Some(number) = ordinal(expr) {
            let is_one = (1..=columns.len()).contains(&number);
            let wrong = || self.refuse("42P10", format!("there is no column {number} in the list"), at);
            return if is_one { Ok(Some(number - 1)) } else { Err(wrong()) };
        }
        let Expr::Identifier(name) = expr else { return Ok(None) };
        let name = folded(name);
        let mut named = (0..columns.len()).filter(|column| columns[*column].name == name);
        match (named.next(), named.next()) {
            (_, Some(_)) => {
                let refusal = self.refuse("42702", format!("several columns of the list are called '{name}'"), at);
                Err(refusal.hint("name it by its number"))
            }
            (first, None) => Ok(first),
        }
    }

    /// A key of ORDER BY. NULLs are larger than everything else.
    fn key(&self, sql: &str, item: &OrderByExpr) -> Result<String, Refusal> {
        let is_descending = match &item.options.sort {
            None | Some(OrderBySort::Asc) => false,
            Some(OrderBySort::Desc) => true,
            Some(OrderBySort::Using(_)) => return Err(self.unsupported("USING", item.expr.span().start)),
        };
        if item.with_fill.is_some() {
            return Err(self.unsupported("WITH FILL", item.expr.span().start));
        }
        let nulls = if item.options.nulls_first.unwrap_or(is_descending) { "FIRST" } else { "LAST" };
        Ok(format!("{sql} {} NULLS {nulls}", if is_descending { "DESC" } else { "ASC" }))
    }

    /// VALUES.
    fn values(&mut self, values: &Values) -> Result<Made, Refusal> {
        let at = values.rows.first().and_then(|row| row.content.first()).map_or(Location::empty(), |e| e.span().start);
        let width = values.rows.first().map_or(0, |row| row.content.len());
        if width == 0 || values.rows.iter().any(|row| row.content.len() != width) {
            return Err(self.refuse("42601", "the rows of VALUES have one length", at));
        }
        let mut columns = Vec::new();
        for column in 0..width {
            let cells = values.rows.iter().map(|row| self.expr(&row.content[column])).collect::<Result<Vec<_>, _>>()?;
            columns.push(self.alike(cells, at)?);
        }
        let row = |row: usize| columns.iter().map(|(cells, _)| cells[row].sql.as_str()).collect::<Vec<_>>().join(", ");
        let rows: Vec<String> = (0..values.rows.len()).map(|at| format!("({})", row(at))).collect();
        let names: Vec<String> = (1..=width).map(|column| format!("column{column} AS c{column}")).collect();
        let sql = format!("SELECT {} FROM (VALUES {})", names.join(", "), rows.join(", "));
        let named = |(at, (_, kind)): (usize, &(Vec<Bound>, Kind))| Output {
            name: format!("column{}", at + 1),
            kind: *kind,
            own: None,
        };
        Ok(Made { sql, columns: columns.iter().enumerate().map(named).collect(), is_single: values.rows.len() == 1 })
    }

    fn operation(
        &mut self,
        left: &SetExpr,
        op: SetOperator,
        quantifier: SetQuantifier,
        right: &SetExpr,
    ) -> Result<Made, Refusal> {
        let at = right.span().start;
        let word = match (op, quantifier) {
            (SetOperator::Union, SetQuantifier::All) => "UNION ALL",
            (SetOperator::Union, SetQuantifier::None | SetQuantifier::Distinct) => "UNION",
            (SetOperator::Intersect, SetQuantifier::None | SetQuantifier::Distinct) => "INTERSECT",
            (SetOperator::Except, SetQuantifier::None | SetQuantifier::Distinct) => "EXCEPT",
            _ => return Err(self.unsupported(&format!("{op} {quantifier}"), at)),
        };
        self.enter(at)?;
        let (left_body, right_body) = (left, right);
        let (left, right) = (self.body(left, None)?, self.body(right, None)?);
        self.depth -= 1;
        if left.columns.len() != right.columns.len() {
            return Err(self.refuse("42601", format!("both sides of {op} answer as many columns"), at));
        }
        let mut sides = (Vec::new(), Vec::new());
        let mut columns = Vec::new();
        for (number, (a, b)) in left.columns.iter().zip(&right.columns).enumerate() {
            let cell = |output: &Output| Bound::column(format!("c{}", number + 1), output.kind, output.own);
            // A text in quotes, or NULL, is what the other side makes of it.
            let first = self.literal_of(left_body, number, left.columns.len()).unwrap_or_else(|| cell(a));
            let second = self.literal_of(right_body, number, left.columns.len()).unwrap_or_else(|| cell(b));
            let (mut both, kind) = self.alike(vec![first, second], at)?;
            let own = a.own.filter(|own| Some(*own) == b.own);
            columns.push(Output { name: a.name.clone(), kind, own });
            sides.1.extend(both.pop());
            sides.0.extend(both.pop());
        }
        let sql = format!(
            "SELECT {} FROM ({}) {word} SELECT {} FROM ({})",
            listed(sides.0.iter()),
            left.sql,
            listed(sides.1.iter()),
            right.sql
        );
        Ok(Made { sql, columns, is_single: false })
    }

    /// The text in quotes, or NULL, that stands in a SELECT of so many columns as one of them.
    fn literal_of(&mut self, body: &SetExpr, column: usize, columns: usize) -> Option<Bound> {
        let select = match body {
            SetExpr::Select(select) => select,
            SetExpr::Query(query) => return self.literal_of(&query.body, column, columns),
            _ => return None,
        };
        match select.projection.get(column).filter(|_| select.projection.len() == columns)? {
            SelectItem::UnnamedExpr(Expr::Value(value))
            | SelectItem::ExprWithAlias { expr: Expr::Value(value), .. }
                if !matches!(value.value, Value::Placeholder(_)) =>
            {
                self.value(value).ok().filter(Bound::is_open)
            }
            _ => None,
        }
    }

    /// Refuses what other databases have.
    fn plain(&self, select: &Select) -> Result<bool, Refusal> {
        let at = select.select_token.0.span.start;
        if select.into.is_some() {
            return Err(self.unsupported("SELECT INTO", at));
        }
        if !select.named_window.is_empty() {
            return Err(self.unsupported("WINDOW", at));
        }
        match &select.distinct {
            _ if has_foreign_clause(select) => Err(self.unsupported("a clause of this SELECT", at)),
            None | Some(Distinct::All) => Ok(false),
            Some(Distinct::Distinct) => Ok(true),
            Some(Distinct::On(_)) => Err(self.unsupported("DISTINCT ON", at)),
        }
    }

    fn select(&mut self, select: &Select, order: Option<&OrderBy>) -> Result<Made, Refusal> {
        let is_distinct = self.plain(select)?;
        let (from, sources) = self.from(&select.from)?;
        self.scopes.push(Scope { sources, ..Scope::default() });
        let filter = select.selection.as_ref().map(|filter| self.filter(filter, "WHERE")).transpose()?;
        let groups = self.groups(select)?;
        let items = self.items(select)?;
        let having = select.having.as_ref().map(|having| self.condition(having)).transpose()?;
        let keys = self.keys(order, &items, is_distinct)?;
        let scope = self.scopes.pop().unwrap_or_default();
        let is_grouped = !groups.is_empty() || having.is_some() || scope.aggregates > 0;
        if let (true, Some((name, at))) = (is_grouped, scope.loose.first()) {
            let message = format!("column '{name}' stands neither in GROUP BY nor in an aggregate");
            return Err(self.refuse("42803", message, *at));
        }
        let mut sql = format!("SELECT {}", if is_distinct { "DISTINCT " } else { "" });
        sql += &listed(items.iter().map(|(_, bound)| bound));
        let clause = |word: &str, list: &[String]| format!(" {word} {}", list.join(", "));
        for part in [
            (!from.is_empty()).then(|| format!(" FROM {from}")),
            filter.map(|filter| format!(" WHERE {filter}")),
            (!groups.is_empty()).then(|| clause("GROUP BY", &groups)),
            having.as_ref().map(|having| format!(" HAVING {having}")),
            (!keys.is_empty()).then(|| clause("ORDER BY", &keys)),
        ] {
            sql += part.as_deref().unwrap_or_default();
        }
        let is_single = is_grouped && groups.is_empty() && having.is_none();
        Ok(Made { sql, columns: items.iter().map(output).collect(), is_single })
    }

    fn groups(&mut self, select: &Select) -> Result<Vec<String>, Refusal> {
        let at = select.select_token.0.span.start;
        let GroupByExpr::Expressions(exprs, modifiers) = &select.group_by else {
            return Err(self.unsupported("GROUP BY ALL", at));
        };
        if !modifiers.is_empty() {
            return Err(self.unsupported("this GROUP BY", at));
        }
        self.in_clause(Some("GROUP BY"));
        let mut groups = Vec::new();
        for expr in exprs {
            let at = expr.span().start;
            let expr = self.grouped(expr, &select.projection)?;
            let bound = self.expr(expr)?;
            let bound = self.settled(bound)?;
            if bound.constant().is_some() || matches!(expr, Expr::Value(_)) {
                return Err(self.refuse("0A000", "GROUP BY names no constant", at));
            }
            groups.push(bound.sql);
        }
        self.in_clause(None);
        if let Some(scope) = self.scopes.last_mut() {
            scope.loose.clear();
            scope.groups = groups.clone();
        }
        Ok(groups)
    }

    /// What an expression behind GROUP BY means: it may be the number, or the name, of an item of the list.
    fn grouped<'b>(&self, expr: &'b Expr, list: &'b [SelectItem]) -> Result<&'b Expr, Refusal> {
        if let Some(number) = ordinal(expr) {
            let item = number.checked_sub(1).and_then(|at| list.get(at));
            return match item {
                Some(SelectItem::UnnamedExpr(item) | SelectItem::ExprWithAlias { expr: item, .. }) => Ok(item),
                _ => {
                    let message = format!("there is no column {number} in the list");
                    Err(self.refuse("42P10", message, expr.span().start))
                }
            };
        }
        let Expr::Identifier(name) = expr else { return Ok(expr) };
        if self.has_column(name) {
            return Ok(expr);
        }
        let named = list.iter().find_map(|item| match item {
            SelectItem::ExprWithAlias { expr, alias } if folded(alias) == folded(name) => Some(expr),
            _ => None,
        });
        Ok(named.unwrap_or(expr))
    }

    /// Whether a column of this SELECT has this name.
    fn has_column(&self, name: &Ident) -> bool {
        let name = folded(name);
        let sources = self.scopes.last().into_iter().flat_map(|scope| &scope.sources);
        sources.flat_map(|source| &source.columns).any(|column| column.name == name)
    }

    /// The list of a SELECT, with names.
    fn items(&mut self, select: &Select) -> Result<Vec<(String, Bound)>, Refusal> {
        let mut items = Vec::new();
        for item in &select.projection {
            let (name, expr) = match item {
                SelectItem::UnnamedExpr(expr) => (column_name(expr), expr),
                SelectItem::ExprWithAlias { expr, alias } if alias.quote_style == Some('\'') => {
                    let message = format!("syntax error at or near \"{alias}\"");
                    let hint = "a name stands in double quotes, and texts are joined by ||";
                    return Err(self.refuse("42601", message, expr.span().start).hint(hint));
                }
                SelectItem::ExprWithAlias { expr, alias } => (folded(alias), expr),
                SelectItem::Wildcard(options) => {
                    self.all(None, options, &mut items)?;
                    continue;
                }
                SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(table), options) => {
                    let table = table.0.last().and_then(|part| part.as_ident());
                    self.all(table, options, &mut items)?;
                    continue;
                }
                other => return Err(self.unsupported(&format!("'{other}'"), other.span().start)),
            };
            let bound = self.expr(expr)?;
            items.push((name, self.settled(bound)?));
        }
        let at = select.select_token.0.span.start;
        if items.is_empty() {
            return Err(self.unsupported("a SELECT without columns", at));
        }
        if items.len() > MAX_COLUMNS {
            return Err(self.refuse("54011", format!("a query answers at most {MAX_COLUMNS} columns"), at));
        }
        Ok(items)
    }

    /// `*` and `table.*`.
    fn all(
        &mut self,
        table: Option<&Ident>,
        options: &WildcardAdditionalOptions,
        items: &mut Vec<(String, Bound)>,
    ) -> Result<(), Refusal> {
        let at = table.map_or(options.wildcard_token.0.span.start, |table| table.span.start);
        let WildcardAdditionalOptions {
            opt_ilike: None,
            opt_exclude: None,
            opt_except: None,
            opt_replace: None,
            opt_rename: None,
            opt_alias: None,
            ..
        } = options
        else {
            return Err(self.unsupported("what stands behind *", at));
        };
        let wanted = table.map(folded);
        let Some(scope) = self.scopes.last_mut() else { return Ok(()) };
        let named = |source: &&Source| wanted.as_ref().is_none_or(|wanted| *wanted == source.name);
        let mut sources = scope.sources.iter().filter(named).peekable();
        if sources.peek().is_none() {
            let message = match &wanted {
                Some(table) => format!("no table of this query is called '{table}'"),
                None => "SELECT * needs tables".into(),
            };
            return Err(self.refuse("42P01", message, at));
        }
        let mut loose = Vec::new();
        for source in sources {
            for column in source.columns.iter().filter(|column| table.is_some() || !column.is_hidden) {
                let is_group = scope.groups.contains(&column.sql)
                    || !source.key.is_empty() && source.key.iter().all(|key| scope.groups.contains(key));
                if !is_group {
                    loose.push((column.name.clone(), at));
                }
                let bound = Bound::column(column.sql.clone(), column.kind, column.own);
                items.push((column.name.clone(), bound));
            }
        }
        scope.loose.extend(loose);
        Ok(())
    }

    /// ORDER BY of a SELECT.
    fn keys(
        &mut self,
        order: Option<&OrderBy>,
        items: &[(String, Bound)],
        is_distinct: bool,
    ) -> Result<Vec<String>, Refusal> {
        let Some(order) = order else { return Ok(Vec::new()) };
        let mut outputs: Vec<Output> = items.iter().map(output).collect();
        // Columns that are one and the same are not told apart.
        for at in 1..items.len() {
            if items[..at].iter().any(|(name, bound)| *name == items[at].0 && bound.sql == items[at].1.sql) {
                outputs[at].name.clear();
            }
        }
        let mut keys = Vec::new();
        for item in self.order_items(order)? {
            let at = item.expr.span().start;
            let place = match self.place(&item.expr, &outputs)? {
                Some(place) => Some(place),
                None => {
                    let bound = self.expr(&item.expr)?;
                    let bound = self.settled(bound)?;
                    let place = items.iter().position(|(_, item)| item.sql == bound.sql);
                    if place.is_none() && (bound.constant().is_some() || matches!(item.expr, Expr::Value(_))) {
                        return Err(self.refuse("42601", "ORDER BY names no constant", at));
                    }
                    if place.is_none() && !is_distinct {
                        keys.push(self.key(&bound.sql, item)?);
                        continue;
                    }
                    place
                }
            };
            let missing = || self.refuse("42P10", "with DISTINCT, ORDER BY names columns of the list", at);
            let number = place.ok_or_else(missing)? + 1;
            keys.push(self.key(&number.to_string(), item)?);
        }
        Ok(keys)
    }
}
