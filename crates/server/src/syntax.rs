//! Statements as PostgreSQL writes them: reading them, places in their text, and names.

use sqlparser::ast::{
    AccessExpr, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, SelectItem, SetExpr, Statement,
    Value,
};
use sqlparser::dialect::{Dialect, PostgreSqlDialect};
use sqlparser::parser::Parser;
use sqlparser::tokenizer::{Location, Token, Tokenizer};

use crate::catalog::types;

/// The most operators of a statement that is read as a whole: they nest, and reading goes down as deep.
const MOST_OPERATORS: usize = 400;

/// Reads the statements of a text for what is not the database's; nothing if it is no SQL, or too deep to be read.
pub(crate) fn read(text: &str) -> Option<Vec<Statement>> {
    let dialect = PostgreSqlDialect {};
    let tokens = Tokenizer::new(&dialect as &dyn Dialect, text).tokenize_with_location().ok()?;
    let nests = |token: &&sqlparser::tokenizer::TokenWithSpan| match &token.token {
        Token::Word(word) => {
            let word = word.value.to_ascii_lowercase();
            matches!(word.as_str(), "and" | "or" | "not" | "is" | "like" | "union" | "intersect" | "except" | "collate")
        }
        Token::Comma | Token::Period | Token::SemiColon | Token::LParen | Token::RParen | Token::Whitespace(_) => false,
        Token::Number(..) | Token::SingleQuotedString(_) | Token::Placeholder(_) | Token::EOF => false,
        _ => true,
    };
    if tokens.iter().filter(nests).count() > MOST_OPERATORS {
        return None;
    }
    Parser::new(&dialect).with_tokens_with_locations(tokens).parse_statements().ok()
}

/// A text up to its first semicolon, and what stands behind it. Semicolons in quotes and comments are none.
pub(crate) fn divide(text: &str) -> (&str, &str) {
    let mut bytes = text.bytes().enumerate().peekable();
    while let Some((at, byte)) = bytes.next() {
        let next = bytes.peek().map(|&(_, next)| next);
        match (byte, next) {
            (b';', _) => return (&text[..at], &text[at + 1..]),
            (b'\'' | b'"', _) => _ = bytes.find(|&(_, other)| other == byte),
            (b'-', Some(b'-')) => _ = bytes.find(|&(_, other)| other == b'\n'),
            (b'/', Some(b'*')) => {
                let end = text[at + 2..].find("*/").map_or(text.len(), |end| at + 2 + end + 1);
                _ = bytes.find(|&(other, _)| other >= end);
            }
            _ => {}
        }
    }
    (text, "")
}

/// Where something stands in a text: characters from 1.
pub(crate) fn position(text: &str, location: Location) -> usize {
    if location.line == 0 {
        return 0;
    }
    let before = text.split('\n').take(location.line as usize - 1).map(|line| line.chars().count() + 1);
    before.sum::<usize>() + location.column as usize
}

/// A name: in lower case, unless it is quoted.
pub(crate) fn folded(ident: &Ident) -> String {
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_lowercase() }
}

/// The expressions that a function is called with.
pub(crate) fn arguments(function: &Function) -> Vec<&Expr> {
    let FunctionArguments::List(list) = &function.args else { return Vec::new() };
    list.args
        .iter()
        .filter_map(|argument| match argument {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr),
            _ => None,
        })
        .collect()
}

/// The last part of a function's name.
pub(crate) fn name_of(function: &Function) -> String {
    let last = function.name.0.last().and_then(|part| part.as_ident());
    last.map(|ident| ident.value.to_ascii_lowercase()).unwrap_or_default()
}

/// What PostgreSQL calls the column of an expression without a name.
pub(crate) fn column_name(expr: &Expr) -> String {
    match expr {
        Expr::Identifier(ident) => folded(ident),
        Expr::CompoundIdentifier(parts) => parts.last().map(folded).unwrap_or_default(),
        Expr::Function(function) => name_of(function),
        Expr::Nested(inner) | Expr::Collate { expr: inner, .. } => column_name(inner),
        Expr::Cast { expr, data_type, .. } => {
            let mut inner = expr;
            while let Expr::Cast { expr, .. } | Expr::Nested(expr) = &**inner {
                inner = expr;
            }
            match column_name(inner).as_str() {
                "?column?" | "case" | "bool" => types::named(&data_type.to_string()).map_or("?column?", |row| row.name),
                name => return name.into(),
            }
            .into()
        }
        Expr::CompoundFieldAccess { root, access_chain } => match access_chain.last() {
            Some(AccessExpr::Dot(Expr::Identifier(ident))) => folded(ident),
            _ => column_name(root),
        },
        Expr::Case { .. } => "case".into(),
        Expr::Exists { .. } => "exists".into(),
        Expr::Array(_) => "array".into(),
        Expr::Ceil { .. } => "ceil".into(),
        Expr::Floor { .. } => "floor".into(),
        Expr::Substring { .. } => "substring".into(),
        Expr::Trim { .. } => "btrim".into(),
        Expr::Subquery(query) => match &*query.body {
            SetExpr::Select(select) => match select.projection.first() {
                Some(SelectItem::UnnamedExpr(expr)) => column_name(expr),
                Some(SelectItem::ExprWithAlias { alias, .. }) => folded(alias),
                _ => "?column?".into(),
            },
            _ => "?column?".into(),
        },
        Expr::Value(value) if matches!(value.value, Value::Boolean(_)) => "bool".into(),
        _ => "?column?".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_ends_at_its_first_semicolon_outside_of_quotes_and_comments() {
        for (text, first, rest) in [
            ("SET a = ';'; SET b = 2", "SET a = ';'", " SET b = 2"),
            ("SET a = 1 -- one; two\n; SELECT 1", "SET a = 1 -- one; two\n", " SELECT 1"),
            ("SET a /* ; */ = \"x;y\"; /* it */", "SET a /* ; */ = \"x;y\"", " /* it */"),
            ("SELECT 1; SELECT 2", "SELECT 1", " SELECT 2"),
            ("SELECT 'a", "SELECT 'a", ""),
            ("", "", ""),
        ] {
            assert_eq!(divide(text), (first, rest), "{text}");
        }
    }
}
