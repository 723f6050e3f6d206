//! Operators: arithmetic, comparisons, IN, LIKE and CASE.

use lockwork::sql::array_elements;
use sqlparser::ast::{BinaryOperator, CaseWhen, DataType, Expr, Query, Spanned, UnaryOperator, Value, ValueWithSpan};
use sqlparser::tokenizer::Location;

use super::bind::{Binder, inner};
use super::bound::Bound;
use super::kinds::{Kind, MAX_DECIMALS};
use crate::error::Refusal;
use crate::quoting::literal;
use crate::values::DAY;

impl Binder<'_> {
    pub(super) fn unary(&mut self, op: UnaryOperator, expr: &Expr, at: Location) -> Result<Bound, Refusal> {
        if op == UnaryOperator::Not {
            return Ok(Bound::truth(format!("(NOT {})", self.condition(expr)?)));
        }
        if let (UnaryOperator::Minus, Expr::Value(ValueWithSpan { value: Value::Number(digits, _), .. })) = (op, expr) {
            // The lowest number has no positive one.
            return self.number_of(&format!("-{digits}"), at);
        }
        let bound = self.expr(expr)?;
        if !bound.kind.is_number() || bound.is_open() {
            return Err(self.refuse("42883", format!("{op} takes a number"), at));
        }
        match (op, bound.constant(), bound.kind) {
            (UnaryOperator::Plus, ..) => Ok(bound),
            (UnaryOperator::Minus, Some(number), kind) => {
                let outside = || self.refuse("22003", "a number is out of range", at);
                Ok(Bound::number(number.checked_neg().ok_or_else(outside)?, kind))
            }
            (UnaryOperator::Minus, None, kind @ (Kind::Quotient | Kind::Double)) => {
                Ok(Bound::new(format!("(-{})", bound.sql), kind))
            }
            (UnaryOperator::Minus, None, kind) => {
                let width = if let Kind::Integer(width) = kind { width } else { 8 };
                Ok(Bound::new(format!("lw_subtract(0, {}, {width})", bound.sql), kind))
            }
            (op, ..) => Err(self.unsupported(&format!("the operator {op}"), at)),
        }
    }

    pub(super) fn compared(&mut self, left: &Expr, op: &str, right: &Expr, at: Location) -> Result<Bound, Refusal> {
        let (left, right) = (self.expr(left)?, self.expr(right)?);
        self.compare(left, op, right, at)
    }

    pub(super) fn binary(
        &mut self,
        left: &Expr,
        op: &BinaryOperator,
        right: &Expr,
        at: Location,
    ) -> Result<Bound, Refusal> {
        match op {
            BinaryOperator::And | BinaryOperator::Or => {
                let (left, right) = (self.condition(left)?, self.condition(right)?);
                let word = if *op == BinaryOperator::And { "AND" } else { "OR" };
                Ok(Bound::truth(format!("({left} {word} {right})")))
            }
            BinaryOperator::Eq => self.compared(left, "=", right, at),
            BinaryOperator::NotEq => self.compared(left, "<>", right, at),
            BinaryOperator::Lt => self.compared(left, "<", right, at),
            BinaryOperator::LtEq => self.compared(left, "<=", right, at),
            BinaryOperator::Gt => self.compared(left, ">", right, at),
            BinaryOperator::GtEq => self.compared(left, ">=", right, at),
            BinaryOperator::StringConcat => {
                let (left, right) = (self.expr(left)?, self.expr(right)?);
                let (left, right) = (self.settled(left)?, self.settled(right)?);
                if left.kind != Kind::Text && right.kind != Kind::Text {
                    return Err(self.refuse("42883", "|| joins texts", at));
                }
                let (left, right) = (self.text_of(&left, at)?, self.text_of(&right, at)?);
                Ok(Bound::new(format!("({left} || {right})"), Kind::Text))
            }
            BinaryOperator::PGLikeMatch => self.like(left, right, false, None, false),
            BinaryOperator::PGNotLikeMatch => self.like(left, right, true, None, false),
            BinaryOperator::PGILikeMatch => self.like(left, right, false, None, true),
            BinaryOperator::PGNotILikeMatch => self.like(left, right, true, None, true),
            BinaryOperator::Plus => self.arithmetic(left, "add", right, at),
            BinaryOperator::Minus => self.arithmetic(left, "subtract", right, at),
            BinaryOperator::Multiply => self.arithmetic(left, "multiply", right, at),
            BinaryOperator::Divide => self.arithmetic(left, "divide", right, at),
            BinaryOperator::Modulo => self.arithmetic(left, "modulo", right, at),
            BinaryOperator::PGExp | BinaryOperator::BitwiseXor => {
                let both = (self.expr(left)?, self.expr(right)?);
                self.power(both, "power", at)
            }
            other => Err(self.unsupported(&format!("the operator {other}"), at)),
        }
    }

    fn arithmetic(&mut self, left: &Expr, word: &str, right: &Expr, at: Location) -> Result<Bound, Refusal> {
        let (left, right) = (self.expr(left)?, self.expr(right)?);
        if left.is_open() && right.is_open() {
            let refusal = self.refuse("42P18", "nothing says of which type these are", at);
            return Err(refusal.hint("write CAST($1 AS type)"));
        }
        let (left, right) = match (left.kind, right.kind) {
            // What is added to a timestamp are microseconds.
            (Kind::Date, _) if right.is_open() && word == "add" => {
                let right = self.settle(right, Kind::Integer(4), None, at)?;
                (left, right)
            }
            (Kind::Timestamp | Kind::Moment, _) if right.is_open() && word == "add" => {
                let right = self.settle(right, Kind::Integer(8), None, at)?;
                (left, right)
            }
            _ => self.beside(left, right, at)?,
        };
        let (a, b) = (&left.sql, &right.sql);
        let of = |kind: Kind, width: u8| Ok(Bound::new(format!("lw_{word}({a}, {b}, {width})"), kind));
        match (left.kind, right.kind) {
            (Kind::Integer(left), Kind::Integer(right)) => of(Kind::Integer(left.max(right)), left.max(right)),
            (from, to)
                if from.is_time() && to.is_time() && word == "subtract" && from.common(to) != Some(Kind::Date) =>
            {
                of(Kind::Integer(8), 8)
            }
            (Kind::Date, Kind::Date) if word == "subtract" => {
                let days = format!("lw_divide(lw_subtract({a}, {b}, 8), {DAY}, 4)");
                Ok(Bound::new(days, Kind::Integer(4)))
            }
            (Kind::Date, Kind::Integer(_)) if matches!(word, "add" | "subtract") => {
                Ok(Bound::new(format!("lw_{word}({a}, lw_multiply({b}, {DAY}, 8), 8)"), Kind::Date))
            }
            (Kind::Integer(_), Kind::Date) if word == "add" => {
                Ok(Bound::new(format!("lw_add(lw_multiply({a}, {DAY}, 8), {b}, 8)"), Kind::Date))
            }
            (from @ (Kind::Timestamp | Kind::Moment), Kind::Integer(_)) if matches!(word, "add" | "subtract") => {
                of(from, 8)
            }
            (Kind::Integer(_), to @ (Kind::Timestamp | Kind::Moment)) if word == "add" => of(to, 8),
            (from, to) => match (from.scale(), to.scale()) {
                (Some(from), Some(to)) if word == "multiply" => {
                    if from + to > MAX_DECIMALS {
                        let message = format!("a product has {} decimals, and 18 are possible", from + to);
                        let hint = "round before, with CAST(... AS DECIMAL(p, s)), or CAST to DOUBLE PRECISION";
                        return Err(self.refuse("22003", message, at).hint(hint));
                    }
                    of(Kind::Decimal(from + to), 8)
                }
                (Some(_), Some(_)) if word != "divide" => {
                    let (both, kind) = self.alike(vec![left, right], at)?;
                    Ok(Bound::new(format!("lw_{word}({}, {}, 8)", both[0].sql, both[1].sql), kind))
                }
                _ if from.is_number() && to.is_number() && word != "modulo" => {
                    let kind = from.common(to).filter(|kind| *kind == Kind::Double).unwrap_or(Kind::Quotient);
                    let (left, right) = (self.fit(left, kind, at)?, self.fit(right, kind, at)?);
                    Ok(Bound::new(format!("lw_{word}_real({}, {})", left.sql, right.sql), kind))
                }
                _ => {
                    let message = format!("a {} and a {} cannot be computed like this", from.word(), to.word());
                    Err(self.refuse("42883", message, at))
                }
            },
        }
    }

    pub(super) fn in_list(&mut self, expr: &Expr, list: &[Expr], is_not: bool, at: Location) -> Result<Bound, Refusal> {
        let left = self.expr(expr)?;
        let list = list.iter().map(|element| self.expr(element)).collect::<Result<Vec<_>, _>>()?;
        self.one_of(left, list, is_not, at)
    }

    /// `left = ANY(right)`, or, if it `is_not`, `left <> ALL(right)`: of a subquery or an array.
    pub(super) fn any_of(&mut self, left: &Expr, right: &Expr, is_not: bool, at: Location) -> Result<Bound, Refusal> {
        match inner(right) {
            Expr::Subquery(query) => self.in_query(left, query, is_not, at),
            Expr::Cast { expr, data_type: DataType::Array(_), .. } => self.any_of(left, expr, is_not, at),
            Expr::Array(array) => self.in_list(left, &array.elem, is_not, at),
            Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(text), .. }) => {
                let wrong = || self.refuse("22P02", format!("'{text:.40}' is no array: write '{{1,2,3}}'"), at);
                let elements = array_elements(text).ok_or_else(wrong)?;
                let one = |element: Option<String>| element.map_or_else(|| Ok(Bound::null()), Bound::quoted);
                let list = elements.into_iter().map(one).collect::<Result<_, _>>()?;
                let left = self.expr(left)?;
                self.one_of(left, list, is_not, at)
            }
            Expr::Value(ValueWithSpan { value: Value::Placeholder(text), .. }) => {
                let left = self.expr(left)?;
                let left = self.settled(left)?;
                let number = self.parameter_number(text, at)?;
                if matches!(left.kind, Kind::Bytes | Kind::Quotient | Kind::Double) {
                    let what = format!("a parameter that is an array of {}", left.kind.word());
                    return Err(self.unsupported(&what, at).hint("write IN ($1, $2)"));
                }
                let own = left.own.filter(|own| !own.is_string());
                let sql = self.learn_list(number, own.unwrap_or(left.kind.parameter()), at)?;
                if !self.kind_of(number, sql).is_alike(left.kind) {
                    let message = format!("parameter ${number} is an array of other values elsewhere");
                    return Err(self.refuse("42804", message, at));
                }
                let not = if is_not { "NOT " } else { "" };
                let list = format!("({} {not}IN (SELECT value FROM json_each(?{number})))", left.sql);
                Ok(Bound::truth(format!("(CASE WHEN ?{number} IS NOT NULL THEN {list} END)")))
            }
            _ => {
                let refusal = self.unsupported("ANY or ALL of an expression", at);
                Err(refusal.hint("write ANY($1), ANY(ARRAY[1, 2]), ANY('{1,2}'), or IN (1, 2)"))
            }
        }
    }

    /// Whether an expression is equal to one of a list, or, if it `is_not`, to none.
    fn one_of(&mut self, left: Bound, list: Vec<Bound>, is_not: bool, at: Location) -> Result<Bound, Refusal> {
        if list.is_empty() {
            return Ok(Bound::truth(i64::from(is_not).to_string()));
        }
        let mut left = left;
        if left.is_open() {
            let like = list.iter().find(|element| !element.is_open()).map_or(Kind::Text, |element| element.kind);
            left = self.settle(left, like, None, at)?;
        }
        let mut parts = Vec::new();
        let mut simple = Vec::new();
        let begin = format!("({} = ", left.sql);
        for element in list {
            let made = self.compare(left.clone(), "=", element, at)?.sql;
            match made.strip_prefix(&begin).and_then(|rest| rest.strip_suffix(')')) {
                Some(right) => simple.push(right.to_string()),
                None => parts.push(made),
            }
        }
        if !simple.is_empty() {
            parts.push(format!("({} IN ({}))", left.sql, simple.join(", ")));
        }
        let not = if is_not { "NOT " } else { "" };
        Ok(Bound::truth(format!("({not}({}))", parts.join(" OR "))))
    }

    pub(super) fn in_query(
        &mut self,
        expr: &Expr,
        query: &Query,
        is_not: bool,
        at: Location,
    ) -> Result<Bound, Refusal> {
        let left = self.expr(expr)?;
        let made = self.query(query)?;
        let [column] = &made.columns[..] else {
            return Err(self.refuse("42601", "a subquery behind IN answers one column", at));
        };
        let right = Bound::column("c1".into(), column.kind, column.own);
        let (both, _) = {
            let (left, right) = self.beside(left, right, at)?;
            self.alike(vec![left, right], at)?
        };
        let right = match both[1].sql.as_str() {
            "c1" => made.sql,
            sql => format!("SELECT {sql} FROM ({})", made.sql),
        };
        let not = if is_not { "NOT " } else { "" };
        Ok(Bound::truth(format!("({} {not}IN ({right}))", both[0].sql)))
    }

    /// A subquery that stands for a value.
    pub(super) fn only(&mut self, query: &Query, at: Location) -> Result<Bound, Refusal> {
        let made = self.query(query)?;
        let [column] = &made.columns[..] else {
            return Err(self.refuse("42601", "a subquery that stands for a value answers one column", at));
        };
        let sql = match made.is_single {
            true => format!("({})", made.sql),
            false => format!("(SELECT lw_only(c1) FROM ({}))", made.sql),
        };
        Ok(Bound::column(sql, column.kind, None))
    }

    pub(super) fn like(
        &mut self,
        expr: &Expr,
        pattern: &Expr,
        is_not: bool,
        escape: Option<&Expr>,
        is_folded: bool,
    ) -> Result<Bound, Refusal> {
        let (text, pattern) = (self.expr_of(expr, Kind::Text)?.sql, self.expr_of(pattern, Kind::Text)?.sql);
        let escape = match escape {
            None => "'\\'".to_string(),
            Some(Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(text), .. }))
                if text.chars().count() == 1 =>
            {
                literal(text)?
            }
            Some(other) => return Err(self.unsupported("ESCAPE that is not one character", other.span().start)),
        };
        let not = if is_not { "NOT " } else { "" };
        Ok(Bound::truth(format!("({not}lw_like({text}, {pattern}, {escape}, {}))", i32::from(is_folded))))
    }

    pub(super) fn case(
        &mut self,
        operand: Option<&Expr>,
        conditions: &[CaseWhen],
        otherwise: Option<&Expr>,
        at: Location,
    ) -> Result<Bound, Refusal> {
        let (mut tests, mut results) = (Vec::new(), Vec::new());
        for CaseWhen { condition, result } in conditions {
            tests.push(match operand {
                Some(operand) => self.compared(operand, "=", condition, at)?.sql,
                None => self.condition(condition)?,
            });
            results.push(self.expr(result)?);
        }
        results.push(match otherwise {
            Some(otherwise) => self.expr(otherwise)?,
            None => Bound::null(),
        });
        let (results, kind) = self.alike(results, at)?;
        let arms = tests.iter().zip(&results).map(|(test, result)| format!("WHEN {test} THEN {} ", result.sql));
        let otherwise = results.last().map_or("NULL", |result| result.sql.as_str());
        Ok(Bound::new(format!("(CASE {}ELSE {otherwise} END)", arms.collect::<String>()), kind))
    }
}
