//! Names and expressions of a query: what each is, of which kind, and in the words of SQLite.
//!
//! Everything is resolved here: SQLite gets names of its own (`a1.c2`), so it never decides what a name means, and what
//! is not known here is refused.

use std::collections::BTreeSet;

use lockwork::sql::{Catalogue, SqlType};
use pgwire::api::Type;
use sqlparser::ast::{
    BinaryOperator, CastKind, CeilFloorKind, DateTimeField, Expr, Ident, Spanned, TrimWhereField, Value, ValueWithSpan,
};
use sqlparser::tokenizer::Location;

use super::Asker;
use super::bound::{Bound, Target};
use super::kinds::{Kind, decimal};
use crate::catalog::types;
use crate::error::{Refusal, refuse};
use crate::syntax::{folded, position};

/// How deep expressions and queries may stand in each other.
const MAX_DEPTH: usize = 150;

/// The most expressions that are understood: what stands once may be understood several times, and what stands in that
/// several times each.
const MAX_EXPRESSIONS: usize = 200_000;

/// A column of what stands in FROM.
#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) sql: String,
    pub(super) kind: Kind,
    pub(super) own: Option<SqlType>,
    /// Whether it is found by the name of its table only, because JOIN ... USING has it on the other side too.
    pub(super) is_hidden: bool,
}

/// A table, query or CTE in FROM.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) name: String,
    pub(super) columns: Vec<Column>,
    /// The columns of a table's key: those say what the others are.
    pub(super) key: Vec<String>,
}

/// The names that a SELECT can use.
#[derive(Debug, Default)]
pub(super) struct Scope {
    pub(super) sources: Vec<Source>,
    /// What stands behind GROUP BY.
    pub(super) groups: Vec<String>,
    /// Columns that stand neither there nor in an aggregate: names and places.
    pub(super) loose: Vec<(String, Location)>,
    /// How often a column of it was used.
    pub(super) uses: usize,
    pub(super) aggregates: usize,
    pub(super) is_in_aggregate: bool,
    /// The clause that is read, where no aggregate can stand.
    pub(super) clause: Option<&'static str>,
}

/// A query that WITH gives a name.
#[derive(Clone, Debug)]
pub(super) struct Named {
    pub(super) name: String,
    pub(super) source: Source,
    /// What SQLite calls it.
    pub(super) made: String,
}

/// What is known of a query while it is understood.
pub(super) struct Binder<'a> {
    text: &'a str,
    pub(super) catalogue: &'a Catalogue,
    /// The tables that are asked, by the number that is in their name for SQLite.
    pub(super) tables: Vec<String>,
    parameters: Vec<Option<SqlType>>,
    /// The parameters that are arrays, by number.
    pub(super) lists: BTreeSet<usize>,
    pub(super) asker: Asker<'a>,
    pub(super) scopes: Vec<Scope>,
    pub(super) named: Vec<Named>,
    made: usize,
    pub(super) depth: usize,
    expressions: usize,
    /// The bytes that expressions may have in the words of SQLite.
    most_bytes: usize,
}

impl<'a> Binder<'a> {
    pub(super) fn new(text: &'a str, catalogue: &'a Catalogue, asker: Asker<'a>) -> Self {
        let (tables, parameters, scopes, named) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let lists = BTreeSet::new();
        let most_bytes = super::MAX_SQL + super::MAX_GROWTH * text.len();
        let (made, depth, expressions) = (0, 0, 0);
        Self { text, catalogue, tables, parameters, lists, asker, scopes, named, made, depth, expressions, most_bytes }
    }

    pub(super) fn refuse(&self, sqlstate: &str, message: impl Into<String>, at: Location) -> Refusal {
        Refusal { position: position(self.text, at), ..refuse(sqlstate, message) }
    }

    /// The error for something that PostgreSQL has and Lockwork lacks.
    pub(super) fn unsupported(&self, what: &str, at: Location) -> Refusal {
        let hint = "docs/operations.md, Looking at tables, says what a query can have; or COPY the table out";
        self.refuse("0A000", format!("{what} is not supported in queries"), at).hint(hint)
    }

    /// Goes one level deeper.
    pub(super) fn enter(&mut self, at: Location) -> Result<(), Refusal> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let message = format!("expressions and queries stand in each other more than {MAX_DEPTH} deep");
            return Err(self.refuse("54001", message, at));
        }
        Ok(())
    }

    /// Whether there is nothing in FROM, anywhere: what stands there has a name.
    pub(super) fn names_nothing(&self) -> bool {
        self.made == 0
    }

    /// A name that is new to SQLite.
    pub(super) fn fresh(&mut self, letter: &str) -> String {
        self.made += 1;
        format!("{letter}{}", self.made)
    }

    /// Takes note of a parameter's type, if none is known; what it is.
    pub(super) fn learn(&mut self, number: usize, sql: SqlType) -> SqlType {
        *self.parameters[number - 1].get_or_insert(sql)
    }

    /// The kind that a client says a parameter has.
    pub(super) fn declared(&self, number: usize) -> Option<Kind> {
        self.asker.declared.get(number - 1).and_then(Option::as_ref).and_then(Kind::declared)
    }

    /// The kind of a parameter of a type: what a client says, if it is one.
    pub(super) fn kind_of(&self, number: usize, sql: SqlType) -> Kind {
        self.declared(number).filter(|kind| kind.parameter() == sql).unwrap_or(Kind::of(sql))
    }

    /// Whether a client says that a parameter is a number with decimals.
    pub(super) fn is_fraction(&self, number: usize) -> bool {
        let declared = self.asker.declared.get(number - 1).and_then(Option::as_ref);
        matches!(declared, Some(&Type::NUMERIC | &Type::FLOAT4 | &Type::FLOAT8))
    }

    /// Whether a client says that a parameter is a number in double precision.
    pub(super) fn is_real(&self, number: usize) -> bool {
        let declared = self.asker.declared.get(number - 1).and_then(Option::as_ref);
        matches!(declared, Some(&Type::FLOAT4 | &Type::FLOAT8))
    }

    /// The types of all parameters.
    pub(super) fn parameters(&self) -> Result<Vec<SqlType>, Refusal> {
        let typed = |(at, sql): (usize, &Option<SqlType>)| {
            let unused = || refuse("42P18", format!("nothing says the type of ${}, which is not used", at + 1));
            sql.ok_or_else(|| unused().hint("number parameters from $1 on without a gap"))
        };
        self.parameters.iter().enumerate().map(typed).collect()
    }

    /// An expression.
    pub(super) fn expr(&mut self, expr: &Expr) -> Result<Bound, Refusal> {
        self.enter(expr.span().start)?;
        let loose = self.scopes.last().map_or(0, |scope| scope.loose.len());
        self.expressions += 1;
        let bound = self.expression(expr)?;
        if self.expressions > MAX_EXPRESSIONS || bound.sql.len() > self.most_bytes {
            return Err(self.refuse("54001", "the query is too complex", expr.span().start).hint(super::DEEP_HINT));
        }
        self.depth -= 1;
        if let Some(scope) = self.scopes.last_mut()
            && scope.groups.contains(&bound.sql)
        {
            scope.loose.truncate(loose);
        }
        Ok(bound)
    }

    /// An expression of a kind.
    pub(super) fn expr_of(&mut self, expr: &Expr, kind: Kind) -> Result<Bound, Refusal> {
        let bound = self.expr(expr)?;
        self.fit(bound, kind, expr.span().start)
    }

    /// A condition.
    pub(super) fn condition(&mut self, expr: &Expr) -> Result<String, Refusal> {
        Ok(self.expr_of(expr, Kind::Boolean)?.sql)
    }

    /// A condition of a clause without aggregates.
    pub(super) fn filter(&mut self, expr: &Expr, clause: &'static str) -> Result<String, Refusal> {
        self.in_clause(Some(clause));
        let condition = self.condition(expr)?;
        self.in_clause(None);
        if let Some(scope) = self.scopes.last_mut() {
            scope.loose.clear();
        }
        Ok(condition)
    }

    pub(super) fn in_clause(&mut self, clause: Option<&'static str>) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.clause = clause;
        }
    }

    fn expression(&mut self, expr: &Expr) -> Result<Bound, Refusal> {
        let at = expr.span().start;
        match expr {
            Expr::Identifier(column) => self.column(None, column),
            Expr::CompoundIdentifier(parts) => match &parts[..] {
                [table, column] => self.column(Some(table), column),
                [schema, table, column] if folded(schema) == "public" => self.column(Some(table), column),
                _ => Err(self.refuse("42P01", "columns are named column or table.column", at)),
            },
            Expr::Nested(inner) => self.expr(inner),
            Expr::Value(value) => self.value(value),
            Expr::TypedString(typed) => {
                let inner = self.value(&typed.value)?;
                let target = self.target(&typed.data_type.to_string(), at)?;
                self.cast(inner, target, at)
            }
            Expr::UnaryOp { op, expr } => self.unary(*op, expr, at),
            Expr::BinaryOp { left, op, right } => self.binary(left, op, right, at),
            Expr::IsNull(inner) => self.is(inner, "IS NULL", None),
            Expr::IsNotNull(inner) => self.is(inner, "IS NOT NULL", None),
            Expr::IsTrue(inner) => self.is(inner, "IS TRUE", Some(Kind::Boolean)),
            Expr::IsNotTrue(inner) => self.is(inner, "IS NOT TRUE", Some(Kind::Boolean)),
            Expr::IsFalse(inner) => self.is(inner, "IS FALSE", Some(Kind::Boolean)),
            Expr::IsNotFalse(inner) => self.is(inner, "IS NOT FALSE", Some(Kind::Boolean)),
            Expr::IsDistinctFrom(left, right) => self.compared(left, "IS NOT", right, at),
            Expr::IsNotDistinctFrom(left, right) => self.compared(left, "IS", right, at),
            Expr::Between { expr, negated, low, high } => {
                let (from, to) = (self.compared(expr, ">=", low, at)?, self.compared(expr, "<=", high, at)?);
                let not = if *negated { "NOT " } else { "" };
                Ok(Bound::truth(format!("({not}({} AND {}))", from.sql, to.sql)))
            }
            Expr::InList { expr, list, negated } => self.in_list(expr, list, *negated, at),
            Expr::InSubquery { expr, subquery, negated } => self.in_query(expr, subquery, *negated, at),
            Expr::AnyOp { left, compare_op: BinaryOperator::Eq, right, .. } => self.any_of(left, right, false, at),
            Expr::AllOp { left, compare_op: BinaryOperator::NotEq, right } => self.any_of(left, right, true, at),
            Expr::Exists { subquery, negated } => {
                let made = self.query(subquery)?;
                Ok(Bound::truth(format!("({}EXISTS ({}))", if *negated { "NOT " } else { "" }, made.sql)))
            }
            Expr::Subquery(query) => self.only(query, at),
            Expr::Like { negated, any: false, expr, pattern, escape_char } => {
                self.like(expr, pattern, *negated, escape_char.as_deref(), false)
            }
            Expr::ILike { negated, any: false, expr, pattern, escape_char } => {
                self.like(expr, pattern, *negated, escape_char.as_deref(), true)
            }
            Expr::Case { operand, conditions, else_result, .. } => {
                self.case(operand.as_deref(), conditions, else_result.as_deref(), at)
            }
            Expr::Cast { kind: CastKind::Cast | CastKind::DoubleColon, expr, data_type, .. } => {
                let inner = self.expr(expr)?;
                let target = self.target(&data_type.to_string(), at)?;
                let made = self.cast(inner, target, at)?;
                self.shortened(made, &data_type.to_string())
            }
            Expr::Function(function) => self.call(function),
            Expr::Substring { expr, substring_from, substring_for, .. } => {
                let one = Expr::value(Value::Number("1".into(), false));
                let mut arguments = vec![&**expr, substring_from.as_deref().unwrap_or(&one)];
                arguments.extend(substring_for.as_deref());
                self.function("substring", &arguments, at)
            }
            Expr::Trim { trim_where, trim_what, expr, trim_characters: None } => {
                let name = match trim_where {
                    Some(TrimWhereField::Leading) => "ltrim",
                    Some(TrimWhereField::Trailing) => "rtrim",
                    _ => "btrim",
                };
                let mut arguments = vec![&**expr];
                arguments.extend(trim_what.as_deref());
                self.function(name, &arguments, at)
            }
            Expr::Position { expr, r#in } => self.function("strpos", &[r#in, expr], at),
            Expr::Ceil { expr, field: CeilFloorKind::DateTimeField(DateTimeField::NoDateTime) } => {
                self.function("ceil", &[expr], at)
            }
            Expr::Floor { expr, field: CeilFloorKind::DateTimeField(DateTimeField::NoDateTime) } => {
                self.function("floor", &[expr], at)
            }
            other => {
                let shown: String = other.to_string().chars().take(40).collect();
                Err(self.unsupported(&format!("'{shown}'"), at))
            }
        }
    }

    fn is(&mut self, inner: &Expr, what: &str, kind: Option<Kind>) -> Result<Bound, Refusal> {
        let bound = match kind {
            Some(kind) => self.expr_of(inner, kind)?,
            None => {
                let bound = self.expr(inner)?;
                self.settled(bound)?
            }
        };
        Ok(Bound::truth(format!("({} {what})", bound.sql)))
    }

    /// What a name stands for.
    fn column(&mut self, table: Option<&Ident>, column: &Ident) -> Result<Bound, Refusal> {
        let (wanted, name, at) = (table.map(folded), folded(column), table.unwrap_or(column).span.start);
        let mut has_table = table.is_none();
        for level in (0..self.scopes.len()).rev() {
            let scope = &self.scopes[level];
            let named = |source: &&Source| wanted.as_ref().is_none_or(|wanted| *wanted == source.name);
            let sources: Vec<&Source> = scope.sources.iter().filter(named).collect();
            has_table |= !sources.is_empty();
            let is_meant = |column: &Column| column.name == name && (table.is_some() || !column.is_hidden);
            let found = sources.iter().flat_map(|source| {
                source.columns.iter().filter(|column| is_meant(column)).map(|column| (*source, column))
            });
            let found: Vec<(&Source, &Column)> = found.collect();
            let (source, column) = match found[..] {
                [] => continue,
                [one] => one,
                _ => {
                    return Err(self
                        .refuse("42702", format!("several columns are called '{name}'"), at)
                        .hint("write table.column"));
                }
            };
            let bound = Bound::column(column.sql.clone(), column.kind, column.own);
            let is_decided = !source.key.is_empty() && source.key.iter().all(|key| scope.groups.contains(key));
            let scope = &mut self.scopes[level];
            scope.uses += 1;
            if !scope.is_in_aggregate && !is_decided {
                scope.loose.push((name, at));
            }
            return Ok(bound);
        }
        if let (false, Some(table)) = (has_table, wanted) {
            return Err(self.refuse("42P01", format!("no table of this query is called '{table}'"), at));
        }
        if table.is_none()
            && column.quote_style.is_none()
            && let Some(word) = self.of_session(&name)?
        {
            return Ok(word);
        }
        let columns =
            self.scopes.last().into_iter().flat_map(|scope| &scope.sources).flat_map(|source| &source.columns);
        let known: Vec<&str> = columns.take(30).map(|column| column.name.as_str()).collect();
        let refusal = self.refuse("42703", format!("no column is called '{name}'"), at);
        Err(if known.is_empty() { refusal } else { refusal.hint(format!("there are: {}", known.join(", "))) })
    }

    pub(super) fn value(&mut self, value: &ValueWithSpan) -> Result<Bound, Refusal> {
        let at = value.span.start;
        Ok(match &value.value {
            Value::Number(digits, _) => self.number_of(digits, at)?,
            Value::SingleQuotedString(text)
            | Value::EscapedStringLiteral(text)
            | Value::NationalStringLiteral(text)
            | Value::UnicodeStringLiteral(text) => Bound::quoted(text.clone())?,
            Value::DollarQuotedString(text) => Bound::quoted(text.value.clone())?,
            Value::Boolean(truth) => Bound::truth(i64::from(*truth).to_string()),
            Value::HexStringLiteral(digits) => self.hexadecimal(digits, at)?,
            Value::Null => Bound::null(),
            Value::Placeholder(text) => {
                let number = self.parameter_number(text, at)?;
                if self.lists.contains(&number) {
                    let message = format!("parameter ${number} is an array elsewhere, and a single value here");
                    return Err(self.refuse("42804", message, at));
                }
                match self.parameters[number - 1] {
                    Some(sql) => Bound::column(format!("?{number}"), self.kind_of(number, sql), None),
                    None => Bound::parameter(number),
                }
            }
            other => return Err(self.unsupported(&format!("'{other}'"), at)),
        })
    }

    /// The number of a parameter `$n`, of which note is taken.
    pub(super) fn parameter_number(&mut self, text: &str, at: Location) -> Result<usize, Refusal> {
        let number = text.strip_prefix('$').and_then(|digits| digits.parse::<usize>().ok());
        let wrong = || self.refuse("42P02", format!("'{text}' is no parameter: write $1 to $1000"), at);
        let number = number.filter(|number| (1..=1000).contains(number)).ok_or_else(wrong)?;
        if self.parameters.len() < number {
            self.parameters.resize(number, None);
        }
        Ok(number)
    }

    /// Takes note that a parameter is an array of elements of a type. Returns the type that they have.
    pub(super) fn learn_list(&mut self, number: usize, sql: SqlType, at: Location) -> Result<SqlType, Refusal> {
        if self.parameters[number - 1].is_some() && !self.lists.contains(&number) {
            let message = format!("parameter ${number} is a single value elsewhere, and an array here");
            return Err(self.refuse("42804", message, at));
        }
        self.lists.insert(number);
        Ok(self.learn(number, sql))
    }

    /// A number, maybe with a minus before it.
    pub(super) fn number_of(&self, digits: &str, at: Location) -> Result<Bound, Refusal> {
        if digits.contains('_') {
            let refusal = self.refuse("42601", format!("'{digits}' is no number"), at);
            return Err(refusal.hint("a number has no '_' in it"));
        }
        let outside = || self.refuse("22003", format!("{digits} is out of range"), at);
        let (number, scale) = decimal(digits).ok_or_else(outside)?;
        let is_whole = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        let kind = match (is_whole, i32::try_from(number)) {
            (true, Ok(_)) => Kind::Integer(4),
            (true, Err(_)) => Kind::Integer(8),
            (false, _) => Kind::Decimal(scale),
        };
        Ok(Bound::number(number, kind))
    }

    /// `0x1F`, which is a number, or `X'1F'`, which is bytes.
    fn hexadecimal(&self, digits: &str, at: Location) -> Result<Bound, Refusal> {
        let begins = self.text.chars().nth(position(self.text, at).saturating_sub(1));
        if begins != Some('0') {
            let is_whole = digits.len().is_multiple_of(2) && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            let wrong = || self.refuse("22P02", format!("X'{digits}' is no bytes: write two digits each"), at);
            return is_whole.then(|| Bound::new(format!("x'{digits}'"), Kind::Bytes)).ok_or_else(wrong);
        }
        let outside = || self.refuse("22003", format!("0x{digits} is out of range"), at);
        let number = i64::from_str_radix(digits, 16).map_err(|_| outside())?;
        Ok(Bound::number(number, Kind::Integer(if i32::try_from(number).is_ok() { 4 } else { 8 })))
    }

    /// The type of a CAST.
    pub(super) fn target(&self, text: &str, at: Location) -> Result<Target, Refusal> {
        let unknown = || self.refuse("42704", format!("no type is called '{}'", text.to_lowercase()), at);
        let row = types::named(text).ok_or_else(unknown)?;
        let digits = modifiers(text);
        let plain = |kind| Target { kind, precision: None, is_any_numeric: false };
        Ok(match (row.name, &digits[..]) {
            ("int2", _) => plain(Kind::Integer(2)),
            ("int4", _) => plain(Kind::Integer(4)),
            ("int8", _) => plain(Kind::Integer(8)),
            ("float4" | "float8", _) => plain(Kind::Double),
            ("bool", _) => plain(Kind::Boolean),
            ("text" | "varchar" | "bpchar" | "name", _) => plain(Kind::Text),
            ("timestamp", _) => plain(Kind::Timestamp),
            ("timestamptz", _) => plain(Kind::Moment),
            ("date", _) => plain(Kind::Date),
            ("bytea", _) => plain(Kind::Bytes),
            ("numeric", []) => Target { is_any_numeric: true, ..plain(Kind::Decimal(6)) },
            ("numeric", [precision @ 1..=18, rest @ ..]) if rest.len() < 2 && rest.iter().all(|s| s <= precision) => {
                let scale = rest.first().map_or(0, |scale| *scale as u8);
                Target { precision: Some(*precision as u8), ..plain(Kind::Decimal(scale)) }
            }
            ("numeric", _) => {
                return Err(self.refuse("22023", "DECIMAL(p, s) has 1 to 18 digits, and s of them decimals", at));
            }
            (name, _) => return Err(self.unsupported(&format!("the type {name}"), at)),
        })
    }

    /// A text as CAST to VARCHAR(n) makes it.
    fn shortened(&mut self, bound: Bound, text: &str) -> Result<Bound, Refusal> {
        match (bound.kind, &modifiers(text)[..]) {
            (Kind::Text, [most]) => Ok(Bound::new(format!("lw_part({}, 1, {most})", bound.sql), Kind::Text)),
            _ => Ok(bound),
        }
    }
}

/// The numbers in the parentheses of a type.
fn modifiers(text: &str) -> Vec<u32> {
    let inside = text.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
    let numbers = inside.map(|(inside, _)| inside.split(',').map(|word| word.trim().parse().unwrap_or(u32::MAX)));
    numbers.into_iter().flatten().collect()
}

/// What stands in parentheses.
pub(super) fn inner(expr: &Expr) -> &Expr {
    match expr {
        Expr::Nested(nested) => inner(nested),
        other => other,
    }
}
