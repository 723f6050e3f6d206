//! FROM clauses: whose tables a query asks, and functions that stand for tables.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, Ident, ObjectName, Query, Select, SelectItem, SetExpr, TableAlias,
    TableFactor, TableFunctionArgs, TableWithJoins, VisitMut, VisitorMut,
};
use sqlparser::tokenizer::Location;

use super::fill::relations;
use super::infer::{Types, element_of};
use super::render::{is_made, made, raw};
use super::rewrite::{Rewriter, SETS, call};
use super::types;
use crate::error::{Refusal, refuse};
use crate::quoting::identifier;
use crate::syntax::{arguments, folded, name_of, position};

/// The columns of functions that stand in a FROM clause, as SQLite has them.
#[derive(Default)]
pub(super) struct Places {
    /// By the name of the table and the column.
    columns: HashMap<(String, String), Place>,
    /// By the name of the column, or of the table where that stands for its only column.
    names: HashMap<String, Place>,
    /// Names of columns, in their order, by the name of the table.
    order: HashMap<String, Vec<String>>,
}

/// Such a column in the words of SQLite, and its type.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) sql: String,
    pub(super) ty: String,
}

impl Places {
    /// The columns of a function in FROM; nothing if it is something else.
    pub(super) fn all_of(&self, table: &TableFactor) -> Option<Vec<Expr>> {
        let TableFactor::Table { alias: Some(alias), args: Some(_), .. } = table else { return None };
        let column = |name: &String| {
            Expr::CompoundIdentifier([&alias.name.value, name].map(|name| Ident::with_quote('"', name)).into())
        };
        Some(self.order.get(&alias.name.value)?.iter().map(column).collect())
    }

    pub(super) fn of_name(&self, name: &str) -> Option<Place> {
        self.names.get(&name.to_lowercase()).cloned()
    }

    pub(super) fn of_column(&self, table: &str, column: &str) -> Option<Place> {
        self.columns.get(&(table.to_lowercase(), column.to_lowercase())).cloned()
    }
}

/// The elements of an array as a table, which SQLite has `key` and `value` of.
fn elements_of(array: Expr, name: Ident) -> TableFactor {
    let args = vec![FunctionArg::Unnamed(FunctionArgExpr::Expr(array))];
    TableFactor::Table {
        name: ObjectName::from(vec![made("json_each")]),
        alias: Some(TableAlias { explicit: true, name, columns: Vec::new(), at: None }),
        args: Some(TableFunctionArgs { args, settings: None }),
        with_hints: Vec::new(),
        version: None,
        with_ordinality: false,
        partitions: Vec::new(),
        json_path: None,
        sample: None,
        index_hints: Vec::new(),
    }
}

/// What the first look at a query finds.
pub(super) struct Sources<'a> {
    text: &'a str,
    pub(super) places: Places,
    /// Names that the query gives to tables of its own.
    own: HashSet<String>,
    /// Whether a table of the catalog is asked.
    pub(super) catalog: bool,
    /// A table that is none of the catalog.
    pub(super) other: Option<(String, Location)>,
    /// Whether a column is asked for.
    pub(super) columns: bool,
}

impl<'a> Sources<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let (own, other) = (HashSet::new(), None);
        Self { text, places: Places::default(), own, catalog: false, other, columns: false }
    }

    fn refuse(&self, sqlstate: &str, message: String, location: Location) -> Refusal {
        Refusal { position: position(self.text, location), ..refuse(sqlstate, message) }
    }

    fn relation(&mut self, name: &mut ObjectName) -> Result<(), Refusal> {
        let mut idents: Vec<Ident> = name.0.iter().filter_map(|part| part.as_ident().cloned()).collect();
        if idents.len() == 3 {
            // The database, which is this one.
            idents.remove(0);
        }
        let location = idents.last().map_or(Location::empty(), |ident| ident.span.start);
        let words: Vec<String> = idents.iter().map(folded).collect();
        let (schema, table) = match &words[..] {
            [table] if self.own.contains(table) => return Ok(()),
            [table] => (None, table),
            [schema, table] => (Some(schema.as_str()), table),
            _ => return Ok(()),
        };
        let is_ours = match schema {
            None => table.starts_with("pg_"),
            Some(schema) => matches!(schema, "pg_catalog" | "information_schema"),
        };
        if !is_ours {
            self.other.get_or_insert((name.to_string(), location));
            return Ok(());
        }
        self.catalog = true;
        let wanted = schema.unwrap_or("pg_catalog");
        if !relations().any(|(_, schema, known, _)| schema == wanted && known == table) {
            let message = format!("the catalog here has no table '{wanted}.{table}'");
            return Err(self.refuse("42P01", message, location));
        }
        *name = ObjectName::from(idents);
        Ok(())
    }

    /// A function in place of a table becomes a call of SQLite's `json_each`.
    fn function(
        &mut self,
        name: &ObjectName,
        arguments: Vec<FunctionArg>,
        ordinality: bool,
        alias: Option<&TableAlias>,
    ) -> Result<TableFactor, Refusal> {
        let ident = name.0.last().and_then(|part| part.as_ident());
        let location = ident.map_or(Location::empty(), |ident| ident.span.start);
        let function = ident.map(folded).unwrap_or_default();
        let mut exprs: Vec<Expr> = Vec::new();
        for argument in arguments {
            match argument {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => exprs.push(expr),
                _ => return Err(self.refuse("0A000", format!("{function} takes plain values here"), location)),
            }
        }
        let element = match exprs.first() {
            Some(Expr::Cast { data_type, .. }) => types::named(&data_type.to_string()).map(|row| row.name.to_string()),
            Some(array) => Types::default().of(array),
            None => None,
        };
        let ty = match function.as_str() {
            "unnest" => element.and_then(|array| element_of(&array)).unwrap_or_else(|| "text".into()),
            _ => "int4".into(),
        };
        let (array, key) = match (function.as_str(), exprs.len()) {
            ("unnest", 1) => (call("unnest_array", exprs), "value"),
            ("generate_series", 2 | 3) => (call("series_array", exprs), "value"),
            ("generate_subscripts", 2) => {
                exprs.truncate(1);
                (call("unnest_array", exprs), "key + 1")
            }
            ("generate_series", _) => {
                return Err(self.refuse("42883", "generate_series takes two or three integers".into(), location));
            }
            _ => {
                let message = format!("the function '{function}' cannot stand in FROM here");
                return Err(self.refuse("42883", message, location));
            }
        };
        let table = alias.map_or_else(|| function.clone(), |alias| folded(&alias.name));
        let columns: Vec<String> =
            alias.map(|alias| alias.columns.iter().map(|column| folded(&column.name)).collect()).unwrap_or_default();
        let quoted = identifier(&table)?;
        let mut places = vec![Place { sql: format!("({quoted}.{key})"), ty }];
        if ordinality {
            places.push(Place { sql: format!("({quoted}.key + 1)"), ty: "int8".into() });
        }
        let named = ["", "ordinality"].iter().enumerate().map(|(at, default)| {
            columns.get(at).cloned().unwrap_or_else(|| if at == 0 { table.clone() } else { (*default).into() })
        });
        let named: Vec<String> = named.take(places.len()).collect();
        self.places.order.insert(table.clone(), named.clone());
        for (column, place) in named.into_iter().zip(&places) {
            self.places.columns.insert((table.clone(), column.clone()), place.clone());
            self.places.names.insert(column, place.clone());
        }
        self.places.names.entry(table.clone()).or_insert_with(|| places[0].clone());
        Ok(elements_of(array, Ident::with_quote('"', table)))
    }

    fn table_factor(&mut self, factor: &mut TableFactor) -> Result<(), Refusal> {
        match factor {
            TableFactor::Table { name, args: Some(args), alias, with_ordinality, .. } => {
                let is_made = name.0.iter().all(|part| part.as_ident().is_some_and(is_made));
                if args.settings.is_some() {
                    return Err(self.refuse("0A000", "a function takes plain values here".into(), Location::empty()));
                }
                if !is_made {
                    let arguments = std::mem::take(&mut args.args);
                    *factor = self.function(&name.clone(), arguments, *with_ordinality, alias.clone().as_ref())?;
                }
            }
            TableFactor::Function { name, args, with_ordinality, alias, .. } => {
                let arguments = std::mem::take(args);
                *factor = self.function(&name.clone(), arguments, *with_ordinality, alias.clone().as_ref())?;
            }
            TableFactor::UNNEST { array_exprs, with_ordinality, alias, .. } => {
                let arguments = std::mem::take(array_exprs);
                let argument = |expr| FunctionArg::Unnamed(FunctionArgExpr::Expr(expr));
                let name = ObjectName::from(vec![Ident::new("unnest")]);
                let arguments = arguments.into_iter().map(argument).collect();
                *factor = self.function(&name, arguments, *with_ordinality, alias.clone().as_ref())?;
            }
            TableFactor::Derived { lateral: true, .. } => {
                let message = "LATERAL is not possible in queries of the catalog".to_string();
                return Err(self.refuse("0A000", message, Location::empty()));
            }
            TableFactor::Table { name, args: None, alias, .. } => {
                self.relation(name)?;
                if let Some(alias) = alias
                    && !alias.columns.is_empty()
                {
                    let message = "columns of a table of the catalog cannot be renamed in FROM".to_string();
                    return Err(self.refuse("0A000", message, alias.name.span.start));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl VisitorMut for Sources<'_> {
    type Break = Refusal;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Refusal> {
        for cte in query.with.iter().flat_map(|with| &with.cte_tables) {
            self.own.insert(folded(&cte.alias.name));
        }
        let is_writing = matches!(
            *query.body,
            SetExpr::Insert(_) | SetExpr::Update(_) | SetExpr::Delete(_) | SetExpr::Merge(_) | SetExpr::Table(_)
        );
        if is_writing {
            let message = "a query is a SELECT, also in and behind WITH".to_string();
            return ControlFlow::Break(self.refuse("0A000", message, Location::empty()));
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Refusal> {
        if select.into.is_some() {
            let message = "a query of the catalog makes no table".to_string();
            return ControlFlow::Break(self.refuse("0A000", message, select.select_token.0.span.start));
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Refusal> {
        match self.table_factor(factor) {
            Ok(()) => ControlFlow::Continue(()),
            Err(refusal) => ControlFlow::Break(refusal),
        }
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Refusal> {
        self.columns |= matches!(expr, Expr::Identifier(_) | Expr::CompoundIdentifier(_));
        ControlFlow::Continue(())
    }
}

/// Calls of functions in a SELECT list that answer rows: one table for all of them, which go on in step.
struct Sets {
    table: String,
    /// The array that has a row for each element.
    first: Option<String>,
    types: Vec<(String, String)>,
}

impl Sets {
    fn replace(
        &mut self,
        function: &Function,
        field: Option<&str>,
        rewriter: &Rewriter<'_>,
    ) -> Result<Option<Expr>, Refusal> {
        let name = name_of(function);
        let exprs = arguments(function);
        let array = match (name.as_str(), &exprs[..]) {
            ("generate_series", [..]) => call("pg_series", exprs.iter().copied().cloned().collect()),
            (_, [array, ..]) => call("pg_array", vec![(*array).clone()]),
            _ => return Ok(None),
        };
        let array = rewriter.sql(&array)?;
        let ty = exprs.first().and_then(|array| rewriter.types.of(array)).unwrap_or_default();
        let element = match name.as_str() {
            "generate_series" | "generate_subscripts" => "int4".to_string(),
            _ => element_of(&ty).unwrap_or_else(|| "text".into()),
        };
        let table = &self.table;
        let first = self.first.get_or_insert_with(|| array.clone());
        let value = if *first == array {
            format!("{table}.value")
        } else {
            format!("json_extract({array}, '$[' || {table}.key || ']')")
        };
        // The first element of a vector is that of number 0.
        let number = format!("({table}.key + {})", i64::from(!ty.ends_with("vector")));
        let (made, ty) = match (name.as_str(), field) {
            ("generate_subscripts", None) => (number, "int4".into()),
            ("_pg_expandarray", Some("n")) => (format!("({table}.key + 1)"), "int4".into()),
            ("_pg_expandarray", Some(_)) => (value, element),
            ("_pg_expandarray", None) => {
                (format!("json_object('x', {value}, 'n', {table}.key + 1)"), "json".to_string())
            }
            (_, None) => (value, element),
            _ => return Ok(None),
        };
        self.types.push((made.clone(), ty));
        Ok(Some(raw(made)))
    }
}

struct Replace<'a, 'b>(&'a mut Sets, &'a Rewriter<'b>);

impl VisitorMut for Replace<'_, '_> {
    /// Nothing where a function is used in a way that is not possible.
    type Break = Option<Refusal>;

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Option<Refusal>> {
        let Expr::Function(function) = &*expr else { return ControlFlow::Continue(()) };
        let name = name_of(function);
        let made = match name.strip_prefix("pg_field_") {
            Some(field) => match arguments(function).first() {
                Some(Expr::Function(inner)) => self.0.replace(inner, Some(field), self.1),
                _ => Ok(None),
            },
            None if SETS.contains(&name.as_str()) => self.0.replace(function, None, self.1),
            None => return ControlFlow::Continue(()),
        };
        match made {
            Ok(Some(made)) => {
                *expr = made;
                ControlFlow::Continue(())
            }
            Ok(None) => ControlFlow::Break(None),
            Err(refusal) => ControlFlow::Break(Some(refusal)),
        }
    }
}

/// Makes a table of what answers rows in the list of a SELECT.
pub(super) fn series(rewriter: &mut Rewriter<'_>, select: &mut Select) -> Result<(), Refusal> {
    let mut sets = Sets { table: format!("lockwork_set_{}", rewriter.made), first: None, types: Vec::new() };
    for item in &mut select.projection {
        let (SelectItem::ExprWithAlias { expr, .. } | SelectItem::UnnamedExpr(expr)) = item else { continue };
        if let ControlFlow::Break(refusal) = expr.visit(&mut Replace(&mut sets, rewriter)) {
            let message = "a function that answers rows is used in a way that is not possible here".to_string();
            return Err(refusal.unwrap_or_else(|| rewriter.refuse("0A000", message, select.select_token.0.span.start)));
        }
    }
    let Some(array) = sets.first else { return Ok(()) };
    rewriter.made += 1;
    sets.types.iter().for_each(|(made, ty)| rewriter.types.note(made, ty));
    let relation = elements_of(raw(array), made(sets.table));
    select.from.push(TableWithJoins { relation, joins: Vec::new() });
    Ok(())
}
