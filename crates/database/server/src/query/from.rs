//! FROM: tables, queries and joins.

use lockwork::sql::Table;
use sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, Join, JoinConstraint, JoinOperator, ObjectName, Spanned, TableAlias,
    TableFactor, TableFunctionArgs, TableWithJoins, Value,
};
use sqlparser::tokenizer::Location;

use super::bind::{Binder, Column, Scope, Source};
use super::bound::Bound;
use super::kinds::Kind;
use super::select::{Made, Output};
use crate::error::Refusal;
use crate::syntax::folded;

/// The function that stands in FROM.
const SERIES: &str = "generate_series";

/// The most tables of a join, which are SQLite's.
const MAX_TABLES: usize = 64;

impl Binder<'_> {
    pub(super) fn from(&mut self, from: &[TableWithJoins]) -> Result<(String, Vec<Source>), Refusal> {
        let mut sources = Vec::new();
        let mut parts = Vec::new();
        for item in from {
            let sql = self.joined(item, &mut sources)?;
            let is_outer = |join: &Join| {
                use JoinOperator as J;
                matches!(join.join_operator, J::Right(_) | J::RightOuter(_) | J::FullOuter(_))
            };
            // SQLite reads a list from left to right; these have to be joined before the list is.
            let needs_parentheses = from.len() > 1 && item.joins.iter().any(is_outer);
            parts.push(if needs_parentheses { format!("({sql})") } else { sql });
        }
        self.check_names(&sources)?;
        if sources.len() > MAX_TABLES {
            let at = from[0].relation.span().start;
            return Err(self.refuse("54000", format!("a SELECT joins at most {MAX_TABLES} tables"), at));
        }
        Ok((parts.join(", "), sources))
    }

    fn check_names(&self, sources: &[Source]) -> Result<(), Refusal> {
        let is_twice = |at: &usize| sources[..*at].iter().any(|other| other.name == sources[*at].name);
        match (0..sources.len()).find(is_twice) {
            None => Ok(()),
            Some(at) => {
                let message = format!("two tables of the query are called '{}'", sources[at].name);
                Err(self.refuse("42712", message, Location::empty()).hint("give one another name: FROM t AS a, t AS b"))
            }
        }
    }

    fn joined(&mut self, item: &TableWithJoins, sources: &mut Vec<Source>) -> Result<String, Refusal> {
        let first = sources.len();
        let mut sql = self.factor(&item.relation, sources)?;
        for join in &item.joins {
            use JoinOperator as J;
            let middle = sources.len();
            let right = self.factor(&join.relation, sources)?;
            let at = join.relation.span().start;
            let (word, constraint) = match &join.join_operator {
                J::Join(on) | J::Inner(on) => ("JOIN", on),
                J::CrossJoin(on @ JoinConstraint::None) => ("JOIN", on),
                J::Left(on) | J::LeftOuter(on) => ("LEFT JOIN", on),
                J::Right(on) | J::RightOuter(on) => ("RIGHT JOIN", on),
                J::FullOuter(on) => ("FULL JOIN", on),
                _ => return Err(self.unsupported("this JOIN", at)),
            };
            if join.global {
                return Err(self.unsupported("GLOBAL JOIN", at));
            }
            let on = match constraint {
                JoinConstraint::On(condition) => {
                    // The condition knows the tables of this join only.
                    let sources = sources[first..].to_vec();
                    self.scopes.push(Scope { sources, ..Scope::default() });
                    let condition = self.filter(condition, "ON")?;
                    self.scopes.pop();
                    format!(" ON {condition}")
                }
                JoinConstraint::Using(names) if matches!(word, "JOIN" | "LEFT JOIN") => {
                    let (left, right) = sources[first..].split_at_mut(middle - first);
                    self.using(names, left, right)?
                }
                JoinConstraint::Using(_) => {
                    return Err(self.unsupported(&format!("{word} ... USING"), at).hint("write ON"));
                }
                JoinConstraint::Natural => {
                    return Err(self.unsupported("NATURAL JOIN", at).hint("write USING (columns)"));
                }
                JoinConstraint::None if matches!(join.join_operator, J::CrossJoin(_)) => String::new(),
                JoinConstraint::None => return Err(self.refuse("42601", "a JOIN needs ON or USING", at)),
            };
            sql = format!("{sql} {word} {right}{on}");
        }
        Ok(sql)
    }

    /// The columns of both sides are equal, and found once.
    fn using(&mut self, names: &[ObjectName], left: &[Source], right: &mut [Source]) -> Result<String, Refusal> {
        let mut conditions = Vec::new();
        for name in names {
            let ident = name.0.last().and_then(|part| part.as_ident());
            let (word, at) =
                ident.map_or((String::new(), Location::empty()), |ident| (folded(ident), ident.span.start));
            let is_it = |column: &&Column| column.name == word && !column.is_hidden;
            let of_left: Vec<&Column> = left.iter().flat_map(|source| &source.columns).filter(is_it).collect();
            let mut of_right: Vec<&mut Column> =
                right.iter_mut().flat_map(|source| &mut source.columns).filter(|c| is_it(&&**c)).collect();
            let ([a], [b]) = (&of_left[..], &mut of_right[..]) else {
                return Err(self.refuse("42703", format!("each side of USING has one column '{word}'"), at));
            };
            let side = |column: &Column| Bound::column(column.sql.clone(), column.kind, column.own);
            conditions.push(self.compare(side(a), "=", side(b), at)?.sql);
            b.is_hidden = true;
        }
        Ok(format!(" ON {}", conditions.join(" AND ")))
    }

    fn factor(&mut self, factor: &TableFactor, sources: &mut Vec<Source>) -> Result<String, Refusal> {
        let at = factor.span().start;
        match factor {
            TableFactor::Table {
                name,
                alias,
                args: None,
                with_hints,
                version: None,
                with_ordinality: false,
                partitions,
                json_path: None,
                sample: None,
                index_hints,
            } if with_hints.is_empty() && partitions.is_empty() && index_hints.is_empty() => {
                self.table(name, alias.as_ref(), sources)
            }
            TableFactor::Table {
                name,
                alias,
                args: Some(TableFunctionArgs { args, settings: None }),
                with_ordinality,
                ..
            } if name.0.last().and_then(|part| part.as_ident()).is_some_and(|name| folded(name) == SERIES) => {
                self.series(args, alias.as_ref(), *with_ordinality, at, sources)
            }
            TableFactor::Table { args: Some(_), .. }
            | TableFactor::Function { .. }
            | TableFactor::TableFunction { .. }
            | TableFactor::UNNEST { .. } => Err(self.unsupported("a function in FROM", at)),
            TableFactor::Derived { lateral: true, .. } => Err(self.unsupported("LATERAL", at)),
            TableFactor::Derived { lateral: false, subquery, alias, sample: None } => {
                let made = self.query(subquery)?;
                let name = self.fresh("a");
                let shown = alias.as_ref().map_or_else(|| name.clone(), |alias| folded(&alias.name));
                let mut source = made.source(shown, &name);
                let names = alias.iter().flat_map(|alias| &alias.columns).map(|column| &column.name);
                self.rename(&mut source, names)?;
                sources.push(source);
                Ok(format!("({}) AS {name}", made.sql))
            }
            TableFactor::NestedJoin { table_with_joins, alias: None } => {
                Ok(format!("({})", self.joined(table_with_joins, sources)?))
            }
            _ => Err(self.unsupported("what stands in FROM", at)),
        }
    }

    /// `generate_series(first, last, step)` of integers; with their numbers from 1 on, if it has WITH ORDINALITY.
    fn series(
        &mut self,
        arguments: &[FunctionArg],
        alias: Option<&TableAlias>,
        is_numbered: bool,
        at: Location,
        sources: &mut Vec<Source>,
    ) -> Result<String, Refusal> {
        let one = Expr::value(Value::Number("1".into(), false));
        let plain = |argument| match argument {
            &FunctionArg::Unnamed(FunctionArgExpr::Expr(ref expr)) => Ok(expr),
            _ => Err(self.unsupported("an argument like this", at)),
        };
        let given = arguments.iter().map(plain).collect::<Result<Vec<_>, _>>()?;
        let given = match given[..] {
            [first, last] => [first, last, &one],
            [first, last, step] => [first, last, step],
            _ => return Err(self.refuse("42883", "generate_series takes two or three integers", at)),
        };
        // What else stands in FROM is not known to it.
        let scopes = std::mem::take(&mut self.scopes);
        let bounds = given.into_iter().map(|expr| self.expr(expr)).collect::<Result<Vec<_>, _>>();
        self.scopes = scopes;
        let mut settled = Vec::new();
        for bound in bounds? {
            settled.push(self.settle(bound, Kind::Integer(4), None, at)?);
        }
        let (bounds, kind) = self.alike(settled, at)?;
        if !matches!(kind, Kind::Integer(_)) {
            let message = format!("generate_series takes integers, and this is {}", kind.word());
            // No state of what the catalog may know better.
            return Err(self.refuse("42804", message, at));
        }
        let (rows, name) = (self.fresh("s"), self.fresh("a"));
        let [first, last, step] = [0, 1, 2].map(|at| bounds[at].sql.as_str());
        let shown = alias.map_or_else(|| SERIES.into(), |alias| folded(&alias.name));
        let mut columns = vec![Output { name: shown.clone(), kind, own: None }];
        if is_numbered {
            columns.push(Output { name: "ordinality".into(), kind: Kind::Integer(8), own: None });
        }
        let [head, begin, next, end] =
            if is_numbered { ["n, o", ", 1", ", o + 1", ", o AS c2"] } else { ["n", "", "", ""] };
        let sql = format!(
            "(WITH RECURSIVE {rows}({head}) AS (SELECT lw_first({first}, {last}, {step}){begin} UNION ALL \
             SELECT lw_next(n, {last}, {step}){next} FROM {rows} WHERE n IS NOT NULL) \
             SELECT n AS c1{end} FROM {rows} WHERE n IS NOT NULL) AS {name}"
        );
        let mut source = Made { sql: String::new(), columns, is_single: false }.source(shown, &name);
        self.rename(&mut source, alias.iter().flat_map(|alias| &alias.columns).map(|column| &column.name))?;
        sources.push(source);
        Ok(sql)
    }

    /// A table, or a query that WITH has given a name.
    pub(super) fn table(
        &mut self,
        name: &ObjectName,
        alias: Option<&TableAlias>,
        sources: &mut Vec<Source>,
    ) -> Result<String, Refusal> {
        let at = name.span().start;
        let words: Vec<String> = name.0.iter().filter_map(|part| part.as_ident()).map(folded).collect();
        let table = match &words[..] {
            [table] => table,
            [schema, table] | [_, schema, table] if schema == "public" => table,
            [schema, _] | [_, schema, _] => {
                let refusal = self.refuse("3F000", format!("no schema is called '{schema}'"), at);
                return Err(refusal.hint("everything is in 'public'"));
            }
            _ => return Err(self.refuse("42P01", format!("no table is called '{name}'"), at)),
        };
        let made = self.fresh("a");
        let named = self.named.iter().rev().find(|named| named.name == *table && words.len() == 1);
        let (sql, mut source) = match named {
            Some(named) => {
                let mut source = named.source.clone();
                for (number, column) in source.columns.iter_mut().enumerate() {
                    column.sql = format!("{made}.c{}", number + 1);
                }
                (format!("{} AS {made}", named.made), source)
            }
            None => {
                let found = self.catalogue.find(table);
                let found = found.ok_or_else(|| self.no_table(table, at))?;
                if let Some(base) = found.index_of() {
                    let refusal = self.refuse("42809", format!("'{table}' is an index"), at);
                    return Err(refusal.hint(format!("ask the table, {base}")));
                }
                let number = self.tables.iter().position(|known| known == table).unwrap_or_else(|| {
                    self.tables.push(table.clone());
                    self.tables.len() - 1
                });
                (format!("t{number} AS {made}"), columns(found, table, &made))
            }
        };
        if let Some(alias) = alias {
            source.name = folded(&alias.name);
            self.rename(&mut source, alias.columns.iter().map(|column| &column.name))?;
        }
        sources.push(source);
        Ok(sql)
    }

    fn no_table(&self, table: &str, at: Location) -> Refusal {
        let refusal = self.refuse("42P01", format!("no table is called '{table}'"), at);
        let tables = self.catalogue.tables().iter().filter(|table| table.index_of().is_none());
        let known: Vec<&str> = tables.take(30).map(|table| table.schema().name()).collect();
        if known.is_empty() { refusal } else { refusal.hint(format!("there are: {}", known.join(", "))) }
    }
}

/// The columns of a table, in the order in which they were declared.
fn columns(table: &Table, name: &str, made: &str) -> Source {
    let sql = |column: usize| format!("{made}.c{column}");
    let column = |&at: &usize| {
        let own = table.types()[at];
        let name = table.schema().columns()[at].name.clone();
        Column { name, sql: sql(at), kind: Kind::of(own), own: Some(own), is_hidden: false }
    };
    let columns = table.declared().iter().map(column).collect();
    // The columns of the key come first.
    let key = (0..table.schema().key().len()).map(sql).collect();
    Source { name: name.into(), columns, key }
}
