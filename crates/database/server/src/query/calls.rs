//! Calls: aggregates, and functions of numbers and texts.

use sqlparser::ast::{DuplicateTreatment, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Spanned};
use sqlparser::tokenizer::Location;

use super::bind::Binder;
use super::bound::Bound;
use super::kinds::{Kind, MAX_DECIMALS};
use crate::error::Refusal;
use crate::parameters;
use crate::quoting::literal;
use crate::syntax::name_of;

/// How the refusal of a function begins that nothing is known of here: the catalog may know it.
pub(super) const NO_FUNCTION: &str = "no function is called";

/// The functions that are no aggregates.
const FUNCTIONS: &[&str] = &[
    "abs",
    "btrim",
    "ceil",
    "ceiling",
    "char_length",
    "character_length",
    "coalesce",
    "concat",
    "floor",
    "greatest",
    "least",
    "length",
    "lower",
    "ltrim",
    "mod",
    "nullif",
    "octet_length",
    "pow",
    "power",
    "replace",
    "round",
    "rtrim",
    "sign",
    "strpos",
    "substr",
    "substring",
    "trunc",
    "upper",
    "uuidv7",
];

const AGGREGATES: &[&str] = &["count", "sum", "avg", "min", "max", "bool_and", "every", "bool_or", "string_agg"];

/// What asks for the time when the query began.
const CLOCKS: &[&str] =
    &["now", "current_timestamp", "statement_timestamp", "transaction_timestamp", "clock_timestamp"];

impl Binder<'_> {
    /// A call.
    pub(super) fn call(&mut self, function: &Function) -> Result<Bound, Refusal> {
        let (name, at) = (name_of(function), function.span().start);
        let is_other = !matches!(function.parameters, FunctionArguments::None)
            || !function.within_group.is_empty()
            || function.null_treatment.is_some()
            || function.uses_odbc_syntax;
        if function.over.is_some() {
            return Err(self.unsupported("OVER", at));
        }
        if is_other {
            return Err(self.unsupported("this call", at));
        }
        let (arguments, is_distinct, is_star) = match &function.args {
            FunctionArguments::None => (Vec::new(), false, false),
            FunctionArguments::Subquery(_) => return Err(self.unsupported("this call", at)),
            FunctionArguments::List(list) => {
                if !list.clauses.is_empty() {
                    return Err(self.unsupported("ORDER BY in a call", at));
                }
                let is_distinct = list.duplicate_treatment == Some(DuplicateTreatment::Distinct);
                if let [FunctionArg::Unnamed(FunctionArgExpr::Wildcard)] = &list.args[..] {
                    (Vec::new(), is_distinct, true)
                } else {
                    let plain = |argument| match argument {
                        &FunctionArg::Unnamed(FunctionArgExpr::Expr(ref expr)) => Ok(expr),
                        _ => Err(self.unsupported("an argument like this", at)),
                    };
                    (list.args.iter().map(plain).collect::<Result<Vec<_>, _>>()?, is_distinct, false)
                }
            }
        };
        if AGGREGATES.contains(&name.as_str()) {
            let made = self.aggregate(&name, &arguments, is_distinct, is_star, function.filter.as_deref(), at)?;
            return Ok(made);
        }
        if is_distinct || is_star || function.filter.is_some() {
            return Err(self.refuse("42809", format!("{name} is no aggregate"), at));
        }
        self.function(&name, &arguments, at)
    }

    fn aggregate(
        &mut self,
        name: &str,
        arguments: &[&Expr],
        is_distinct: bool,
        is_star: bool,
        filter: Option<&Expr>,
        at: Location,
    ) -> Result<Bound, Refusal> {
        let Some(scope) = self.scopes.last_mut() else {
            return Err(self.refuse("42803", "no aggregate can stand here", at));
        };
        let (loose, uses, clause) = (scope.loose.len(), scope.uses, scope.clause);
        if let Some(clause) = clause {
            return Err(self.refuse("42803", format!("no aggregate can stand in {clause}"), at));
        }
        if std::mem::replace(&mut scope.is_in_aggregate, true) {
            return Err(self.refuse("42803", "aggregates do not stand in each other", at));
        }
        let level = self.scopes.len();
        let outer = |binder: &Self| binder.scopes[..level - 1].iter().map(|scope| scope.uses).sum::<usize>();
        let before = outer(self);
        let bounds = arguments.iter().map(|argument| self.expr(argument)).collect::<Result<Vec<_>, _>>()?;
        let bounds = bounds.into_iter().map(|bound| self.settled(bound)).collect::<Result<Vec<_>, _>>()?;
        let condition = filter.map(|filter| self.condition(filter)).transpose()?;
        let of_outer = outer(self) > before;
        let scope = &mut self.scopes[level - 1];
        scope.is_in_aggregate = false;
        scope.loose.truncate(loose);
        scope.aggregates += 1;
        if of_outer && scope.uses == uses {
            return Err(self.unsupported("an aggregate of the outer query", at));
        }
        let distinct = if is_distinct { "DISTINCT " } else { "" };
        let filter = condition.map(|condition| format!(" FILTER (WHERE {condition})")).unwrap_or_default();
        let made = |function: &str, bound: &Bound| format!("{function}({distinct}{}){filter}", bound.sql);
        Ok(match (name, &bounds[..]) {
            ("count", []) if is_star && !is_distinct => Bound::new(format!("count(*){filter}"), Kind::Integer(8)),
            _ if is_star => return Err(self.refuse("42883", format!("{name}(*) is no aggregate"), at)),
            ("count", [of]) => Bound::new(made("count", of), Kind::Integer(8)),
            ("sum", [of]) => match of.kind {
                Kind::Integer(2 | 4) => Bound::new(made("sum", of), Kind::Integer(8)),
                Kind::Integer(_) => Bound::new(made("sum", of), Kind::Decimal(0)),
                kind if kind.is_number() => Bound::new(made("sum", of), kind),
                kind => return Err(self.no_function(name, &[kind], at)),
            },
            ("avg", [of]) => match (of.kind, of.kind.scale()) {
                (_, Some(0)) => Bound::new(made("avg", of), Kind::Quotient),
                (_, Some(scale)) => Bound::new(format!("({} / 1e{scale})", made("avg", of)), Kind::Quotient),
                (kind, None) if kind.is_number() => Bound::new(made("avg", of), kind),
                (kind, None) => return Err(self.no_function(name, &[kind], at)),
            },
            ("min" | "max", [of]) if of.kind != Kind::Boolean => Bound::column(made(name, of), of.kind, of.own),
            ("bool_and" | "every", [of]) if of.kind == Kind::Boolean => Bound::truth(made("min", of)),
            ("bool_or", [of]) if of.kind == Kind::Boolean => Bound::truth(made("max", of)),
            ("string_agg", [of, separator])
                if of.kind == Kind::Text && separator.kind == Kind::Text && !is_distinct =>
            {
                Bound::new(format!("group_concat({}, {}){filter}", of.sql, separator.sql), Kind::Text)
            }
            (_, bounds) => {
                let kinds: Vec<Kind> = bounds.iter().map(|bound| bound.kind).collect();
                return Err(self.no_function(name, &kinds, at));
            }
        })
    }

    fn no_function(&self, name: &str, kinds: &[Kind], at: Location) -> Refusal {
        let hint = "docs/operations.md, Looking at tables, lists them";
        if !FUNCTIONS.contains(&name) && !AGGREGATES.contains(&name) && !CLOCKS.contains(&name) {
            return self.refuse("42883", format!("{NO_FUNCTION} '{name}' here"), at).hint(hint);
        }
        let words: Vec<&str> = kinds.iter().map(|kind| kind.word()).collect();
        let message = format!("there is no function {name}({}) for queries", words.join(", "));
        self.refuse("42883", message, at).hint(hint)
    }

    /// What the server says of itself and of the session.
    pub(super) fn of_session(&self, name: &str) -> Result<Option<Bound>, Refusal> {
        let who = self.asker.who;
        let text = match name {
            "current_user" | "session_user" | "current_role" | "user" => who.user.clone(),
            "current_database" | "current_catalog" => who.database.clone(),
            "current_schema" => "public".into(),
            "version" => parameters::version(),
            _ => return Ok(None),
        };
        Ok(Some(Bound::new(literal(&text)?, Kind::Text)))
    }

    /// A function that is no aggregate.
    pub(super) fn function(&mut self, name: &str, arguments: &[&Expr], at: Location) -> Result<Bound, Refusal> {
        let bounds = arguments.iter().map(|argument| self.expr(argument)).collect::<Result<Vec<_>, _>>()?;
        if bounds.is_empty()
            && let Some(word) = self.of_session(name)?
        {
            return Ok(word);
        }
        match (name, &bounds[..]) {
            ("uuidv7", []) => return Ok(Bound::new("lw_uuidv7()".into(), Kind::Uuid)),
            ("localtimestamp", []) => return Ok(Bound::new("lw_now()".into(), Kind::Timestamp)),
            ("current_date", []) => return Ok(Bound::new("lw_day(lw_now())".into(), Kind::Date)),
            (clock, []) if CLOCKS.contains(&clock) => return Ok(Bound::new("lw_now()".into(), Kind::Moment)),
            ("coalesce", [_, ..]) => {
                let (bounds, kind) = self.alike(bounds, at)?;
                let list: Vec<&str> = bounds.iter().map(|bound| bound.sql.as_str()).collect();
                // SQLite's takes two at least.
                return Ok(Bound::new(format!("coalesce({}, NULL)", list.join(", ")), kind));
            }
            ("greatest" | "least", [_, ..]) => {
                let (bounds, kind) = self.alike(bounds, at)?;
                let list: Vec<&str> = bounds.iter().map(|bound| bound.sql.as_str()).collect();
                return Ok(Bound::new(format!("lw_{name}({})", list.join(", ")), kind));
            }
            ("nullif", [left, right]) => {
                let (left, right) = self.beside(left.clone(), right.clone(), at)?;
                // What `=` makes of the first argument is the result: an integer beside a numeric is one too.
                let left = match (left.kind, right.kind) {
                    (Kind::Integer(_), Kind::Decimal(_) | Kind::Quotient) => left.held_as(Kind::Decimal(0)),
                    (kind, Kind::Double) if kind.is_number() => self.fit(left, Kind::Double, at)?,
                    _ => left,
                };
                let test = self.compare(left.clone(), "=", right, at)?;
                let sql = format!("(CASE WHEN {} THEN NULL ELSE {} END)", test.sql, left.sql);
                return Ok(Bound::new(sql, left.kind));
            }
            ("round" | "trunc" | "ceil" | "ceiling" | "floor", [of]) => {
                return self.rounded(name, of.clone(), None, at);
            }
            ("round" | "trunc", [of, count]) => {
                let count = count.constant().and_then(|count| i8::try_from(count).ok());
                let count = count.filter(|count| count.unsigned_abs() <= MAX_DECIMALS);
                let wrong = || self.refuse("0A000", format!("{name} needs a number of decimals from -18 to 18"), at);
                let count = count.ok_or_else(wrong)?;
                return self.rounded(name, of.clone(), Some(count), at);
            }
            ("abs" | "sign" | "mod", _) => return self.number(name, bounds, at),
            ("power" | "pow", [base, exponent]) => return self.power((base.clone(), exponent.clone()), name, at),
            ("concat", [_, ..]) => {
                let mut parts = Vec::new();
                for bound in bounds {
                    let bound = self.settled(bound)?;
                    parts.push(format!("coalesce({}, '')", self.text_of(&bound, at)?));
                }
                return Ok(Bound::new(format!("({})", parts.join(" || ")), Kind::Text));
            }
            _ => {}
        }
        self.of_text(name, bounds, at)
    }

    /// Functions of texts.
    fn of_text(&mut self, name: &str, bounds: Vec<Bound>, at: Location) -> Result<Bound, Refusal> {
        use Kind::{Bytes, Integer, Text};
        let (sql, needed, kind): (&str, &[Kind], Kind) = match (name, bounds.len()) {
            ("lower", 1) => ("lw_lower", &[Text], Text),
            ("upper", 1) => ("lw_upper", &[Text], Text),
            ("octet_length", 1) if bounds[0].kind == Bytes => ("lw_bytes", &[Bytes], Integer(4)),
            ("octet_length", 1) => ("lw_bytes", &[Text], Integer(4)),
            ("length", 1) if bounds[0].kind == Bytes => ("lw_bytes", &[Bytes], Integer(4)),
            ("length" | "char_length" | "character_length", 1) => ("lw_length", &[Text], Integer(4)),
            ("substring" | "substr", 2) => ("lw_part", &[Text, Integer(8)], Text),
            ("substring" | "substr", 3) => ("lw_part", &[Text, Integer(8), Integer(8)], Text),
            ("strpos", 2) => ("lw_position", &[Text, Text], Integer(4)),
            ("replace", 3) => ("lw_replace", &[Text, Text, Text], Text),
            ("btrim", 1) => ("lw_trim", &[Text], Text),
            ("btrim", 2) => ("lw_trim", &[Text, Text], Text),
            ("ltrim", 1) => ("lw_ltrim", &[Text], Text),
            ("ltrim", 2) => ("lw_ltrim", &[Text, Text], Text),
            ("rtrim", 1) => ("lw_rtrim", &[Text], Text),
            ("rtrim", 2) => ("lw_rtrim", &[Text, Text], Text),
            _ => {
                let kinds: Vec<Kind> = bounds.iter().map(|bound| bound.kind).collect();
                return Err(self.no_function(name, &kinds, at));
            }
        };
        let fitted = bounds.into_iter().zip(needed).map(|(bound, kind)| self.fit(bound, *kind, at));
        let list = fitted.collect::<Result<Vec<_>, _>>()?;
        let list: Vec<&str> = list.iter().map(|bound| bound.sql.as_str()).collect();
        Ok(Bound::new(format!("{sql}({})", list.join(", ")), kind))
    }

    /// A number raised to the power of another: in double precision, which clients see as `numeric` if one is an exact
    /// number with decimals.
    pub(super) fn power(&mut self, numbers: (Bound, Bound), name: &str, at: Location) -> Result<Bound, Refusal> {
        let (base, exponent) = self.beside(numbers.0, numbers.1, at)?;
        let kinds = [base.kind, exponent.kind];
        if base.is_open() || exponent.is_open() || !kinds.iter().all(|kind| kind.is_number()) {
            return Err(self.no_function(name, &kinds, at));
        }
        let is_numeric = kinds.iter().any(|kind| matches!(kind, Kind::Decimal(_) | Kind::Quotient));
        let kind = if is_numeric && !kinds.contains(&Kind::Double) { Kind::Quotient } else { Kind::Double };
        let (base, exponent) = (self.fit(base, kind, at)?, self.fit(exponent, kind, at)?);
        Ok(Bound::new(format!("lw_power({}, {})", base.sql, exponent.sql), kind))
    }

    fn number(&mut self, name: &str, mut bounds: Vec<Bound>, at: Location) -> Result<Bound, Refusal> {
        let kinds: Vec<Kind> = bounds.iter().map(|bound| bound.kind).collect();
        if bounds.iter().any(Bound::is_open) || kinds.iter().any(|kind| !kind.is_number()) {
            return Err(self.no_function(name, &kinds, at));
        }
        match (name, &mut bounds[..]) {
            // The lowest integer has none of its type. What an argument becomes stands in it once: they nest.
            ("abs", [of]) => {
                let sql = match of.kind {
                    Kind::Integer(2) => format!("lw_fit(abs({}), 0, {})", of.sql, i16::MAX),
                    Kind::Integer(4) => format!("lw_fit(abs({}), 0, {})", of.sql, i32::MAX),
                    _ => format!("abs({})", of.sql),
                };
                Ok(Bound::new(sql, of.kind))
            }
            ("sign", [of]) => Ok(Bound::new(format!("sign({})", of.sql), Kind::Decimal(0))),
            ("mod", [_, _]) if kinds.iter().all(|kind| kind.scale().is_some()) => {
                let (both, kind) = self.alike(bounds, at)?;
                let width = if let Kind::Integer(width) = kind { width } else { 8 };
                Ok(Bound::new(format!("lw_modulo({}, {}, {width})", both[0].sql, both[1].sql), kind))
            }
            _ => Err(self.no_function(name, &kinds, at)),
        }
    }

    /// A number with so many decimals; without them a whole one, which stays in double precision if it is.
    fn rounded(&mut self, name: &str, of: Bound, count: Option<i8>, at: Location) -> Result<Bound, Refusal> {
        let how = if name == "ceiling" { "ceil" } else { name };
        let wanted = count.unwrap_or(0);
        let decimals = wanted.max(0).unsigned_abs();
        // What is rounded away left of the point comes back as zeros.
        let zeros = wanted.min(0).unsigned_abs();
        if of.is_open() {
            return Err(self.no_function(name, &[of.kind], at));
        }
        let sql = match (of.kind, of.kind.scale()) {
            (_, Some(scale)) if scale <= decimals && zeros == 0 => {
                let kind = Kind::Decimal(decimals);
                return self.fit(of, kind, at).map(|bound| Bound::new(bound.sql, kind));
            }
            (_, Some(scale)) if scale + zeros <= MAX_DECIMALS => {
                format!("lw_down({}, {}, '{how}')", of.sql, scale - decimals + zeros)
            }
            (Kind::Quotient | Kind::Double, _) if zeros == 0 => {
                let how = if (of.kind, how) == (Kind::Double, "round") { "even" } else { how };
                format!("lw_whole({}, {decimals}, '{how}')", of.sql)
            }
            _ => return Err(self.no_function(name, &[of.kind], at)),
        };
        let sql = if zeros > 0 { format!("lw_up({sql}, {zeros})") } else { sql };
        Ok(Bound::new(sql, Kind::Decimal(decimals)))
    }
}
