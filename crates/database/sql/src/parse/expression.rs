//! Expressions: sqlparser reads them, and this module turns them into the supported ones; it refuses the others by
//! name.

use sqlparser::ast as sql;
use sqlparser::ast::Spanned;

use super::cursor::{Cursor, check_schema, place_of};
use crate::error::{Result, SqlError, state, unsupported, unsupported_in};
use crate::syntax::{BinaryOp, Comparison, Expr, ExprKind, Name, Place};
use crate::text::array_elements;
use crate::types::{MAX_PRECISION, SqlType};
use lockwork_procedure::schema::ColumnType;

pub(super) fn expression(cursor: &mut Cursor) -> Result<Expr> {
    let place = cursor.place();
    let raw = cursor.raw_expression()?;
    convert(raw, place)
}

/// The value behind DEFAULT.
pub(super) fn default_value(cursor: &mut Cursor) -> Result<Expr> {
    let place = cursor.place();
    let raw = cursor.raw_default()?;
    convert(raw, place)
}

fn name(ident: sql::Ident, around: Place) -> Name {
    let place = place_at(ident.span, around);
    let text = if ident.quote_style.is_some() { ident.value } else { ident.value.to_ascii_lowercase() };
    Name { text, place }
}

/// Some nodes of sqlparser have no place; then what is around them says where it is.
fn place_at(span: sqlparser::tokenizer::Span, around: Place) -> Place {
    if span.start.line == 0 { around } else { place_of(span) }
}

fn boxed(raw: sql::Expr, around: Place) -> Result<Box<Expr>> {
    convert(raw, around).map(Box::new)
}

fn many(raw: Vec<sql::Expr>, around: Place) -> Result<Vec<Expr>> {
    raw.into_iter().map(|one| convert(one, around)).collect()
}

fn convert(raw: sql::Expr, around: Place) -> Result<Expr> {
    use sql::Expr as E;
    let place = match &raw {
        // Their span is computed by a walk over the whole tree; the left side is where they begin.
        E::BinaryOp { .. }
        | E::Between { .. }
        | E::InList { .. }
        | E::IsNull(_)
        | E::IsNotNull(_)
        | E::AnyOp { .. }
        | E::AllOp { .. } => around,
        other => place_at(other.span(), around),
    };
    let not = |negated: bool, kind: ExprKind| {
        if negated { ExprKind::Not(Box::new(Expr { kind, place })) } else { kind }
    };
    let kind = match raw {
        E::Identifier(ident) => ExprKind::Name(None, name(ident, place)),
        E::CompoundIdentifier(mut idents) => {
            if idents.len() == 3 {
                check_schema(&name(idents.remove(0), place).text, place)?;
            }
            let [qualifier, column] = <[sql::Ident; 2]>::try_from(idents)
                .map_err(|_| SqlError::new(state::NOT_SUPPORTED, place, "a column is 'table.column' at most"))?;
            ExprKind::Name(Some(name(qualifier, place)), name(column, place))
        }
        E::CompoundFieldAccess { root, access_chain } => return element(*root, access_chain, place),
        E::Nested(inner) => return convert(*inner, place),
        E::Value(value) => literal(value.value, place)?,
        E::UnaryOp { op: sql::UnaryOperator::Minus, expr } => match convert(*expr, place)? {
            Expr { kind: ExprKind::Number(digits), .. } if !digits.starts_with('-') => {
                ExprKind::Number(format!("-{digits}"))
            }
            inner => ExprKind::Negate(Box::new(inner)),
        },
        E::UnaryOp { op: sql::UnaryOperator::Plus, expr } => return convert(*expr, place),
        E::UnaryOp { op: sql::UnaryOperator::Not, expr } => ExprKind::Not(boxed(*expr, place)?),
        E::BinaryOp { left, op, right } => {
            let left = boxed(*left, place)?;
            let (place, op) = (left.place, operator(&op, place)?);
            let right = boxed(*right, place)?;
            return Ok(Expr { kind: ExprKind::Binary(op, left, right), place });
        }
        E::Between { expr, negated, low, high } => {
            not(negated, ExprKind::Between(boxed(*expr, place)?, boxed(*low, place)?, boxed(*high, place)?))
        }
        E::InList { list, .. } if list.is_empty() => {
            return Err(SqlError::new(state::SYNTAX, place, "IN needs at least one value"));
        }
        E::InList { expr, list, negated } => not(negated, ExprKind::In(boxed(*expr, place)?, many(list, place)?)),
        E::AnyOp { left, compare_op: sql::BinaryOperator::Eq, right, .. } => any_of(*left, *right, place)?,
        E::AllOp { left, compare_op: sql::BinaryOperator::NotEq, right } => not(true, any_of(*left, *right, place)?),
        E::IsTrue(inner) | E::IsNotFalse(inner) => return convert(*inner, place),
        E::IsFalse(inner) | E::IsNotTrue(inner) => ExprKind::Not(boxed(*inner, place)?),
        E::IsNull(_) | E::IsNotNull(_) => {
            let alone = "no column is NULL: use a value of your own for 'none', and compare with it";
            return unsupported_in(
                place,
                "there are no NULLs",
                ("test FOUND, or use a value of your own for 'none'", alone),
            );
        }
        E::Case { operand, conditions, else_result, .. } => {
            let arm = |when: sql::CaseWhen| Ok((convert(when.condition, place)?, convert(when.result, place)?));
            ExprKind::Case {
                operand: operand.map(|operand| boxed(*operand, place)).transpose()?,
                arms: conditions.into_iter().map(arm).collect::<Result<_>>()?,
                otherwise: else_result.map(|result| boxed(*result, place)).transpose()?,
            }
        }
        E::Cast { kind: sql::CastKind::Cast | sql::CastKind::DoubleColon, expr, data_type, format: None } => {
            let inner = boxed(*expr, place)?;
            match inner.kind {
                ExprKind::Placeholder(number) if is_any_text(&data_type) => ExprKind::TextPlaceholder(number),
                _ => ExprKind::Cast(inner, cast_type(&data_type, place)?),
            }
        }
        E::Substring { expr, substring_from: Some(from), substring_for: Some(length), .. } => {
            ExprKind::Substring(boxed(*expr, place)?, boxed(*from, place)?, boxed(*length, place)?)
        }
        E::TypedString(sql::TypedString { data_type: sql::DataType::Timestamp(None, _), value, .. }) => {
            match value.value {
                sql::Value::SingleQuotedString(text) => ExprKind::Timestamp(text),
                _ => return unsupported(place, "this is no timestamp", "write TIMESTAMP '2024-01-31 12:00:00'"),
            }
        }
        E::Function(function) => return call(function, place),
        E::Subquery(_) | E::InSubquery { .. } | E::Exists { .. } => {
            let hints = (
                "select INTO a variable first, or use FOR over a SELECT",
                "SELECT the values first, and write them here",
            );
            return unsupported_in(place, "a query inside of an expression is not supported", hints);
        }
        E::Like { .. } | E::ILike { .. } | E::SimilarTo { .. } => {
            let hint = "compare with = or with SUBSTRING(text FROM a FOR n)";
            return unsupported(place, "patterns are not supported", hint);
        }
        other => {
            let text: String = other.to_string().chars().take(60).collect();
            return unsupported(place, format!("the expression '{text}' is not supported"), "see docs/sql.md");
        }
    };
    Ok(Expr { kind, place })
}

/// `left = ANY(array)`, as `left IN (...)` if the array has its elements in the text.
fn any_of(left: sql::Expr, array: sql::Expr, place: Place) -> Result<ExprKind> {
    let left = boxed(left, place)?;
    let elements = match without_cast(array) {
        sql::Expr::Array(array) => many(array.elem, place)?,
        other => match convert(other, place)?.kind {
            ExprKind::Placeholder(number) => return Ok(ExprKind::AnyOf(left, number)),
            ExprKind::Text(text) => {
                let wrong = || SqlError::new(state::INVALID_TEXT, place, "ANY needs an array, such as '{1,2,3}'");
                let element = |element: Option<String>| {
                    let kind = element.map_or(ExprKind::Null, ExprKind::Text);
                    Expr { kind, place }
                };
                array_elements(&text).ok_or_else(wrong)?.into_iter().map(element).collect()
            }
            _ => {
                let hint = "write ANY($1), ANY(ARRAY[1, 2, 3]), ANY('{1,2,3}') or IN (1, 2, 3)";
                return unsupported(place, "ANY and ALL take a parameter or a constant array", hint);
            }
        },
    };
    Ok(ExprKind::In(left, elements))
}

/// An array without the parentheses and the type that may stand around it: what it is compared with says the type.
fn without_cast(array: sql::Expr) -> sql::Expr {
    match array {
        sql::Expr::Nested(inner) => without_cast(*inner),
        sql::Expr::Cast { expr, data_type: sql::DataType::Array(_), .. } => without_cast(*expr),
        other => other,
    }
}

fn element(root: sql::Expr, chain: Vec<sql::AccessExpr>, place: Place) -> Result<Expr> {
    let (sql::Expr::Identifier(array), Ok([access])) = (root, <[sql::AccessExpr; 1]>::try_from(chain)) else {
        return unsupported(place, "only elements of arrays can be named so", "write array[index]");
    };
    let sql::AccessExpr::Subscript(sql::Subscript::Index { index }) = access else {
        return unsupported(place, "slices of arrays are not supported", "use a FOR loop");
    };
    let index = boxed(index, place)?;
    Ok(Expr { kind: ExprKind::Element(name(array, place), index), place })
}

fn operator(op: &sql::BinaryOperator, place: Place) -> Result<BinaryOp> {
    use sql::BinaryOperator as B;
    Ok(match op {
        B::Plus => BinaryOp::Add,
        B::Minus => BinaryOp::Sub,
        B::Multiply => BinaryOp::Mul,
        B::Divide => BinaryOp::Div,
        B::Modulo => BinaryOp::Rem,
        B::StringConcat => BinaryOp::Concat,
        B::And => BinaryOp::And,
        B::Or => BinaryOp::Or,
        B::Eq => BinaryOp::Compare(Comparison::Eq),
        B::NotEq => BinaryOp::Compare(Comparison::Ne),
        B::Lt => BinaryOp::Compare(Comparison::Lt),
        B::LtEq => BinaryOp::Compare(Comparison::Le),
        B::Gt => BinaryOp::Compare(Comparison::Gt),
        B::GtEq => BinaryOp::Compare(Comparison::Ge),
        other => {
            let hint = "there are + - * / % || = <> < <= > >= AND OR NOT BETWEEN IN CASE";
            return unsupported(place, format!("the operator '{other}' is not supported"), hint);
        }
    })
}

fn literal(value: sql::Value, place: Place) -> Result<ExprKind> {
    use sql::Value as V;
    Ok(match value {
        V::Number(digits, _) => ExprKind::Number(digits),
        V::SingleQuotedString(text) | V::EscapedStringLiteral(text) => ExprKind::Text(text),
        V::Boolean(value) => ExprKind::Bool(value),
        V::HexStringLiteral(digits) => {
            let wrong = || SqlError::new(state::INVALID_TEXT, place, "X'...' holds pairs of hexadecimal digits");
            ExprKind::Bytes(hex(&digits).ok_or_else(wrong)?)
        }
        V::Placeholder(text) if text.starts_with(':') && text.len() > 1 => {
            let qualifier = Name { text: ":".into(), place };
            ExprKind::Name(Some(qualifier), Name { text: text[1..].to_ascii_lowercase(), place })
        }
        V::Placeholder(text) if text.starts_with('$') => match text[1..].parse() {
            Ok(number @ 1..) => ExprKind::Placeholder(number),
            _ => {
                return unsupported(place, format!("the parameter '{text}' is not possible"), "write $1 to $65535");
            }
        },
        V::Null => ExprKind::Null,
        other => {
            return unsupported(place, format!("the constant {other} is not supported"), "see docs/sql.md, 'Types'");
        }
    })
}

/// Bytes of pairs of hexadecimal digits.
pub(crate) fn hex(digits: &str) -> Option<Vec<u8>> {
    if !digits.len().is_multiple_of(2) || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).ok()).collect()
}

fn call(function: sql::Function, place: Place) -> Result<Expr> {
    let [sql::ObjectNamePart::Identifier(ident)] = &function.name.0[..] else {
        return unsupported(place, "this function is not supported", "see docs/sql.md, 'Expressions'");
    };
    let name = name(ident.clone(), place);
    let list = match function.args {
        sql::FunctionArguments::List(list) => list,
        // CURRENT_TIMESTAMP and its like.
        sql::FunctionArguments::None => return Ok(Expr { kind: ExprKind::Call(name, Vec::new()), place }),
        sql::FunctionArguments::Subquery(_) => {
            return unsupported(place, format!("'{}' takes no query", name.text), "give plain expressions");
        }
    };
    let plain = function.filter.is_none() && function.over.is_none() && function.within_group.is_empty();
    if !plain || list.duplicate_treatment.is_some() || !list.clauses.is_empty() {
        let hints = ("use a FOR loop over the rows", "SELECT the rows, and compute with them");
        return unsupported_in(place, "DISTINCT, FILTER and OVER are not supported", hints);
    }
    let mut arguments = Vec::new();
    for argument in list.args {
        match argument {
            sql::FunctionArg::Unnamed(sql::FunctionArgExpr::Expr(expr)) => arguments.push(convert(expr, place)?),
            sql::FunctionArg::Unnamed(sql::FunctionArgExpr::Wildcard) if name.text == "count" => {
                return Ok(Expr { kind: ExprKind::CountAll, place });
            }
            _ => return unsupported(place, "this argument is not supported", "give plain expressions in order"),
        }
    }
    Ok(Expr { kind: ExprKind::Call(name, arguments), place })
}

/// Whether it is a text of no length.
fn is_any_text(data_type: &sql::DataType) -> bool {
    use sql::DataType as D;
    matches!(data_type, D::Text | D::Varchar(None) | D::CharacterVarying(None) | D::CharVarying(None))
}

/// The types of CAST, which sqlparser has read.
fn cast_type(data_type: &sql::DataType, place: Place) -> Result<SqlType> {
    use sql::DataType as D;
    let length = |length: &Option<sql::CharacterLength>| match length {
        Some(sql::CharacterLength::IntegerLength { length, unit: None }) => {
            u32::try_from(*length).ok().filter(|&n| n > 0)
        }
        _ => None,
    };
    Ok(match data_type {
        D::BigInt(None) | D::Int8(None) => SqlType::BIGINT,
        D::Int(None) | D::Integer(None) | D::Int4(None) => SqlType::Integer(ColumnType::I32),
        D::SmallInt(None) | D::Int2(None) => SqlType::Integer(ColumnType::I16),
        D::TinyInt(None) => SqlType::Integer(ColumnType::I8),
        D::IntUnsigned(None) | D::IntegerUnsigned(None) => SqlType::Integer(ColumnType::U32),
        D::SmallIntUnsigned(None) => SqlType::Integer(ColumnType::U16),
        D::TinyIntUnsigned(None) => SqlType::Integer(ColumnType::U8),
        D::Decimal(info) | D::Numeric(info) | D::Dec(info) => match *info {
            sql::ExactNumberInfo::Precision(p) => decimal(p, 0, place)?,
            sql::ExactNumberInfo::PrecisionAndScale(p, s) => decimal(p, u64::try_from(s).unwrap_or(u64::MAX), place)?,
            sql::ExactNumberInfo::None => {
                return unsupported(place, "a DECIMAL needs its precision", "write DECIMAL(12, 2)");
            }
        },
        D::Char(n) | D::Character(n) | D::Varchar(n) => match length(n) {
            Some(n) => SqlType::Text(n),
            None => return unsupported(place, "a text needs its length", "write VARCHAR(20)"),
        },
        D::Timestamp(None, _) => SqlType::Timestamp,
        other => {
            let hint = "CAST makes integers, DECIMAL(p, s), CHAR(n) and TIMESTAMP";
            return unsupported(place, format!("a cast to {other} is not supported"), hint);
        }
    })
}

pub(super) fn decimal(precision: u64, scale: u64, place: Place) -> Result<SqlType> {
    if !(1..=u64::from(MAX_PRECISION)).contains(&precision) || scale > precision {
        let message = format!("DECIMAL({precision}, {scale}) is not possible");
        return unsupported(
            place,
            message,
            format!("use 1 to {MAX_PRECISION} digits, of which none or more are decimals"),
        );
    }
    Ok(SqlType::Decimal(precision as u8, scale as u8))
}
