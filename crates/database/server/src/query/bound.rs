//! Expressions in the words of SQLite, and how one of one kind becomes one of another.

use lockwork::sql::{SqlType, Value};
use sqlparser::tokenizer::Location;

use super::bind::Binder;
use super::functions::range;
use super::kinds::{Kind, decimal};
use crate::error::Refusal;
use crate::quoting::literal;
use crate::values::DAY;

/// What is not known of an expression until something stands beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Open {
    /// Nothing.
    Closed,
    /// A number that stands in the query, as SQLite has it.
    Number(i64),
    /// What a text in quotes is.
    Quoted(String),
    /// The type of a parameter.
    Parameter(usize),
    /// Of which kind NULL is.
    Null,
}

/// An expression.
#[derive(Clone, Debug)]
pub(super) struct Bound {
    pub(super) sql: String,
    pub(super) kind: Kind,
    /// The type of the column that it is.
    pub(super) own: Option<SqlType>,
    open: Open,
}

/// What CAST makes of something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) kind: Kind,
    /// The digits of a DECIMAL.
    pub(super) precision: Option<u8>,
    /// Whether it is `numeric` without digits.
    pub(super) is_any_numeric: bool,
}

impl Bound {
    pub(super) fn new(sql: String, kind: Kind) -> Self {
        Self { sql, kind, own: None, open: Open::Closed }
    }

    pub(super) fn column(sql: String, kind: Kind, own: Option<SqlType>) -> Self {
        Self { own, ..Self::new(sql, kind) }
    }

    pub(super) fn truth(sql: String) -> Self {
        Self::new(sql, Kind::Boolean)
    }

    pub(super) fn number(number: i64, kind: Kind) -> Self {
        // The lowest number has no text: SQLite would read one in double precision.
        let sql = match number {
            i64::MIN => "(-9223372036854775807 - 1)".into(),
            0.. => number.to_string(),
            _ => format!("({number})"),
        };
        Self { open: Open::Number(number), ..Self::new(sql, kind) }
    }

    /// # Errors
    /// The text has a character that none can have.
    pub(super) fn quoted(text: String) -> Result<Self, Refusal> {
        Ok(Self { open: Open::Quoted(text.clone()), ..Self::new(literal(&text)?, Kind::Text) })
    }

    pub(super) fn parameter(number: usize) -> Self {
        Self { open: Open::Parameter(number), ..Self::new(format!("?{number}"), Kind::Text) }
    }

    pub(super) fn null() -> Self {
        Self { open: Open::Null, ..Self::new("NULL".into(), Kind::Text) }
    }

    /// The number that stands in the query.
    pub(super) fn constant(&self) -> Option<i64> {
        match self.open {
            Open::Number(number) => Some(number),
            _ => None,
        }
    }

    /// Whether its kind depends on what it stands beside.
    pub(super) fn is_open(&self) -> bool {
        !matches!(self.open, Open::Closed | Open::Number(_))
    }

    /// The same expression as one of a kind whose values are held in the same way.
    pub(super) fn held_as(self, kind: Kind) -> Self {
        Self { kind, own: None, ..self }
    }

    /// The same number with more decimals.
    fn up(self, decimals: u8, kind: Kind) -> Self {
        if decimals == 0 {
            return Self { kind, own: None, ..self };
        }
        let number = self.constant().and_then(|number| number.checked_mul(10_i64.checked_pow(decimals.into())?));
        match number {
            Some(number) => Self::number(number, kind),
            None => Self::new(format!("lw_up({}, {decimals})", self.sql), kind),
        }
    }

    /// A number of the query without the zeros at its end, down to so many decimals.
    fn trimmed(self, decimals: u8) -> Self {
        let (Some(mut number), Kind::Decimal(mut scale)) = (self.constant(), self.kind) else { return self };
        while scale > decimals && number % 10 == 0 {
            (number, scale) = (number / 10, scale - 1);
        }
        Self::number(number, Kind::Decimal(scale))
    }

    /// A number of the query with so many decimals, if it has fewer and fits.
    fn lifted(self, decimals: u8) -> Self {
        let more = self.kind.scale().and_then(|scale| decimals.checked_sub(scale)).filter(|more| *more > 0);
        let number = self.constant().zip(more).and_then(|(number, more)| number.checked_mul(10_i64.pow(more.into())));
        number.map_or(self, |number| Self::number(number, Kind::Decimal(decimals)))
    }

    /// An exact number in double precision.
    fn real(&self) -> String {
        match self.kind.scale() {
            Some(0) => format!("CAST({} AS REAL)", self.sql),
            Some(scale) => format!("(CAST({} AS REAL) / 1e{scale})", self.sql),
            None => self.sql.clone(),
        }
    }
}

/// Bytes on both sides of a comparison as wide as the wider column is: those of a column are filled up with zeros.
fn widened(left: Bound, right: Bound) -> (Bound, Bound) {
    let width = |bound: &Bound| match bound.own {
        Some(SqlType::Bytes(width)) => width,
        _ => 0,
    };
    let most = width(&left).max(width(&right));
    let wide = |bound: Bound| match bound.kind {
        Kind::Bytes if most > 0 && width(&bound) < most => {
            Bound::new(format!("lw_filled({}, {most})", bound.sql), Kind::Bytes)
        }
        _ => bound,
    };
    (wide(left), wide(right))
}

impl Binder<'_> {
    /// Decides what an open expression is beside one of a kind.
    pub(super) fn settle(
        &mut self,
        bound: Bound,
        like: Kind,
        own: Option<SqlType>,
        at: Location,
    ) -> Result<Bound, Refusal> {
        match bound.open.clone() {
            Open::Closed | Open::Number(_) => Ok(bound),
            Open::Null => Ok(Bound { open: Open::Closed, ..Bound::new(bound.sql, like) }),
            Open::Parameter(number) => {
                // The type of a column says what clients may send; a text may be longer than the column.
                let sql = match (self.declared(number), like) {
                    // Nothing else says how many decimals it has.
                    (None, Kind::Integer(_) | Kind::Text) if own.is_none() && self.is_fraction(number) => {
                        Kind::Double.parameter()
                    }
                    (None, Kind::Integer(_)) if self.is_fraction(number) => SqlType::Decimal(18, 0),
                    // A wider integer may have no equal in the column, and is none of its type.
                    (Some(wide @ Kind::Integer(width)), Kind::Integer(most)) if width > most => wide.parameter(),
                    _ => own.filter(|own| !own.is_string()).unwrap_or(like.parameter()),
                };
                let sql = match (sql, self.asker.scales.get(number - 1)) {
                    (SqlType::Decimal(_, has), scale) => SqlType::Decimal(18, has.max(scale.copied().unwrap_or(0))),
                    (SqlType::Integer(_), Some(&scale @ 1..)) => SqlType::Decimal(18, scale),
                    (sql, _) => sql,
                };
                let sql = self.learn(number, sql);
                Ok(Bound::new(bound.sql, self.kind_of(number, sql)))
            }
            Open::Quoted(text) => self.literal(&text, like, at),
        }
    }

    /// The kind that a client says of a parameter.
    fn declared_of(&self, bound: &Bound) -> Option<Kind> {
        match bound.open {
            Open::Parameter(number) => self.declared(number),
            _ => None,
        }
    }

    /// Decides what is open without anything beside it.
    pub(super) fn settled(&mut self, bound: Bound) -> Result<Bound, Refusal> {
        let kind = self.declared_of(&bound).unwrap_or(Kind::Text);
        let is_real = matches!(bound.open, Open::Parameter(number) if self.is_real(number));
        let bound = self.settle(bound, kind, None, Location::empty())?;
        if is_real && bound.kind.is_number() { self.fit(bound, Kind::Double, Location::empty()) } else { Ok(bound) }
    }

    /// A text in quotes as a value of a kind; a number may have other decimals.
    pub(super) fn literal(&self, text: &str, kind: Kind, at: Location) -> Result<Bound, Refusal> {
        if matches!(kind, Kind::Decimal(_) | Kind::Quotient | Kind::Double) {
            let number = decimal(text.trim());
            let wrong = || self.refuse("22P02", format!("'{text}' is no number here"), at);
            return number.map(|(number, scale)| Bound::number(number, Kind::Decimal(scale))).ok_or_else(wrong);
        }
        let value = Value::parse(text, kind.parameter());
        let value = value.map_err(|error| self.refuse(error.sqlstate, error.message, at))?;
        Ok(match value {
            Value::Timestamp(number) if kind == Kind::Date => Bound::number(number - number.rem_euclid(DAY), kind),
            Value::Integer(number) | Value::Timestamp(number) => Bound::number(number, kind),
            Value::Boolean(truth) => Bound::truth(i64::from(truth).to_string()),
            Value::Bytes(bytes) => {
                let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                Bound::new(format!("x'{digits}'"), kind)
            }
            _ => Bound::new(literal(text)?, Kind::Text),
        })
    }

    /// Decides of two expressions what each is beside the other.
    pub(super) fn beside(&mut self, left: Bound, right: Bound, at: Location) -> Result<(Bound, Bound), Refusal> {
        let left = match (left.is_open(), right.is_open()) {
            (true, false) => self.settle(left, right.kind, right.own, at)?,
            (true, true) => self.settled(left)?,
            _ => left,
        };
        let right = self.settle(right, left.kind, left.own, at)?;
        Ok((left, right))
    }

    /// An expression as one of a kind that its own can become.
    pub(super) fn fit(&mut self, bound: Bound, to: Kind, at: Location) -> Result<Bound, Refusal> {
        let bound = self.settle(bound, to, None, at)?;
        let own = bound.own;
        let bound = bound.trimmed(to.scale().unwrap_or(0));
        Ok(match (bound.kind, to) {
            (from, to) if from == to => Bound { own, ..bound },
            (Kind::Integer(from), Kind::Integer(width)) if from <= width => Bound { kind: to, own: None, ..bound },
            (from, Kind::Timestamp | Kind::Moment) if from.is_time() => Bound { kind: to, own: None, ..bound },
            (Kind::Decimal(0), Kind::Integer(8)) => Bound { kind: to, own: None, ..bound },
            (Kind::Integer(_) | Kind::Decimal(_), Kind::Decimal(scale))
                if bound.kind.scale().is_some_and(|from| from <= scale) =>
            {
                let from = bound.kind.scale().unwrap_or(0);
                bound.up(scale - from, to)
            }
            (from, Kind::Quotient | Kind::Double) if from.is_number() => Bound::new(bound.real(), to),
            (from, _) => {
                let message = format!("a {} stands where a {} is needed", from.word(), to.word());
                return Err(self.refuse("42804", message, at).hint("write CAST(... AS ...)"));
            }
        })
    }

    /// Expressions as ones of the kind that all of them can be.
    pub(super) fn alike(&mut self, bounds: Vec<Bound>, at: Location) -> Result<(Vec<Bound>, Kind), Refusal> {
        let like = bounds.iter().find(|bound| !bound.is_open()).map(|bound| (bound.kind, bound.own));
        let declared = || bounds.iter().find_map(|bound| self.declared_of(bound)).map(|kind| (kind, None));
        let (mut kind, own) = like.or_else(declared).unwrap_or((Kind::Text, None));
        let settle = |bound| self.settle(bound, kind, own, at);
        let bounds = bounds.into_iter().map(settle).collect::<Result<Vec<_>, _>>()?;
        for bound in &bounds {
            kind = kind.common(bound.kind).ok_or_else(|| {
                let message = format!("a {} and a {} cannot stand for each other", kind.word(), bound.kind.word());
                self.refuse("42804", message, at)
            })?;
        }
        let bounds = bounds.into_iter().map(|bound| self.fit(bound, kind, at)).collect::<Result<_, _>>()?;
        Ok((bounds, kind))
    }

    /// `left op right`, for `=`, `<` and the like.
    pub(super) fn compare(&mut self, left: Bound, op: &str, right: Bound, at: Location) -> Result<Bound, Refusal> {
        let (left, right) = self.beside(left, right, at)?;
        let (mut left, mut right) = (left, right);
        if let (Some(from), Some(to)) = (left.kind.scale(), right.kind.scale()) {
            // A number of the query takes the decimals of the other side, so that an index can be of use.
            (left, right) = (left.trimmed(to).lifted(to), right.trimmed(from).lifted(from));
            let (from, to) = (left.kind.scale().unwrap_or(0), right.kind.scale().unwrap_or(0));
            if from != to && !op.starts_with("IS") {
                return Ok(Bound::truth(format!("(lw_compare({}, {from}, {}, {to}) {op} 0)", left.sql, right.sql)));
            }
        }
        let (left, right) = widened(left, right);
        let (both, _) = self.alike(vec![left, right], at)?;
        Ok(Bound::truth(format!("({} {op} {})", both[0].sql, both[1].sql)))
    }

    /// CAST.
    pub(super) fn cast(&mut self, bound: Bound, target: Target, at: Location) -> Result<Bound, Refusal> {
        let Target { kind, precision, is_any_numeric } = target;
        let own = precision.and_then(|precision| Some(SqlType::Decimal(precision, kind.scale()?)));
        if is_any_numeric {
            let made = self.settle(bound, Kind::Decimal(6), None, at)?;
            return Ok(match made.kind {
                Kind::Decimal(_) | Kind::Quotient => Bound { own: None, ..made },
                Kind::Integer(_) => Bound { kind: Kind::Decimal(0), own: None, ..made },
                Kind::Double => Bound::new(made.sql, Kind::Quotient),
                from => return Err(self.no_cast(from, kind, at)),
            });
        }
        let bound = match bound.open {
            Open::Parameter(number) if matches!(kind, Kind::Integer(_)) && self.is_fraction(number) => {
                self.settle(bound, Kind::Decimal(6), None, at)?
            }
            _ => self.settle(bound, kind, own, at)?,
        };
        let (sql, from) = (bound.sql.clone(), bound.kind);
        let made = match (from, kind) {
            (Kind::Integer(from), Kind::Integer(to)) if from <= to => Bound { kind, own: None, ..bound },
            (_, Kind::Integer(_) | Kind::Decimal(_)) if from.is_number() => {
                let to = kind.scale().unwrap_or(0);
                let sql = match from.scale() {
                    None => format!("lw_whole({sql}, {to}, '{}')", if from == Kind::Double { "even" } else { "round" }),
                    Some(from) if from <= to => bound.up(to - from, kind).sql,
                    Some(from) => format!("lw_down({sql}, {}, 'round')", from - to),
                };
                let (lowest, highest) = match (precision, kind) {
                    (Some(precision), _) => (1 - 10_i64.pow(precision.into()), 10_i64.pow(precision.into()) - 1),
                    (None, Kind::Integer(width)) => range(width),
                    (None, _) => range(8),
                };
                let is_bounded = lowest > i64::MIN;
                Bound::new(if is_bounded { format!("lw_fit({sql}, {lowest}, {highest})") } else { sql }, kind)
            }
            (_, Kind::Quotient | Kind::Double) if from.is_number() => Bound::new(bound.real(), kind),
            (Kind::Boolean, Kind::Integer(4)) => Bound::new(sql, kind),
            (Kind::Integer(_), Kind::Boolean) => Bound::truth(format!("({sql} <> 0)")),
            (_, Kind::Text) => Bound::new(self.text_of(&bound, at)?, kind),
            (from, Kind::Date) if from.is_time() => Bound::new(format!("lw_day({sql})"), kind),
            (from, Kind::Timestamp | Kind::Moment) if from.is_time() => Bound { kind, own: None, ..bound },
            (from, to) if from == to => Bound { own: None, ..bound },
            (from, to) => return Err(self.no_cast(from, to, at)),
        };
        Ok(Bound { own, ..made })
    }

    fn no_cast(&self, from: Kind, to: Kind, at: Location) -> Refusal {
        self.refuse("42846", format!("a {} cannot be made a {} in a query", from.word(), to.word()), at)
    }

    /// An expression as text.
    pub(super) fn text_of(&mut self, bound: &Bound, at: Location) -> Result<String, Refusal> {
        let sql = &bound.sql;
        Ok(match bound.kind {
            Kind::Text | Kind::Uuid => sql.clone(),
            Kind::Integer(_) => format!("lw_text({sql}, 0)"),
            Kind::Decimal(scale) => format!("lw_text({sql}, {scale})"),
            Kind::Quotient => format!("lw_real_text({sql}, 1)"),
            Kind::Double => format!("lw_real_text({sql}, 0)"),
            Kind::Boolean => format!("(CASE {sql} WHEN 1 THEN 'true' WHEN 0 THEN 'false' END)"),
            Kind::Timestamp => format!("lw_time_text({sql}, 0)"),
            Kind::Moment => format!("lw_time_text({sql}, 1)"),
            Kind::Date => format!("lw_time_text({sql}, 2)"),
            Kind::Bytes => return Err(self.no_cast(Kind::Bytes, Kind::Text, at)),
        })
    }
}
