//! Statements as PostgreSQL writes them: reading them, places in their text, and names.

use sqlparser::ast::{
    AccessExpr, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, Select, SelectFlavor,
    SelectItem, SetExpr, Statement, Value,
};
use sqlparser::dialect::{Dialect, PostgreSqlDialect};
use sqlparser::keywords::Keyword;
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::{Location, Token, TokenWithSpan, Tokenizer, Whitespace};

use crate::catalog::types;

/// Whether a SELECT has a clause that the parser knows of other databases, and PostgreSQL does not have.
pub(crate) fn has_foreign_clause(select: &Select) -> bool {
    !select.optimizer_hints.is_empty()
        || select.select_modifiers.is_some()
        || select.top.is_some()
        || select.exclude.is_some()
        || !select.lateral_views.is_empty()
        || select.prewhere.is_some()
        || !select.connect_by.is_empty()
        || !select.cluster_by.is_empty()
        || !select.distribute_by.is_empty()
        || !select.sort_by.is_empty()
        || select.qualify.is_some()
        || select.value_table_mode.is_some()
        || select.flavor != SelectFlavor::Standard
}

/// The most operators and keywords of a statement that is read as a whole. Operators nest, and reading, walking and
/// forgetting go down as deep, on the stack of [`crate::STACK`].
const MAX_OPERATORS: usize = 1_000;

/// The most parentheses and CASEs in each other that the parser reads.
const MAX_LEVELS: usize = 46;

/// Words that make no expression deeper, however many there are: what they begin is in a list or in parentheses, of
/// which there may be few. All others are taken for operators.
const FLAT: &[Keyword] = &[
    Keyword::NoKeyword,
    Keyword::SELECT,
    Keyword::FROM,
    Keyword::AS,
    Keyword::WHERE,
    Keyword::JOIN,
    Keyword::LEFT,
    Keyword::INNER,
    Keyword::OUTER,
    Keyword::ON,
    Keyword::CASE,
    Keyword::WHEN,
    Keyword::THEN,
    Keyword::ELSE,
    Keyword::END,
    Keyword::ORDER,
    Keyword::GROUP,
    Keyword::BY,
    Keyword::NULL,
    Keyword::TRUE,
    Keyword::FALSE,
];

/// Whether a token may make an expression deeper.
fn nests(token: &Token) -> bool {
    match token {
        Token::Word(word) => !FLAT.contains(&word.keyword),
        Token::Comma | Token::Period | Token::SemiColon | Token::LParen | Token::RParen | Token::Whitespace(_) => false,
        Token::Number(..) | Token::SingleQuotedString(_) | Token::Placeholder(_) | Token::EOF => false,
        _ => true,
    }
}

/// Why a text is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// It is no SQL.
    Unknown,
    TooDeep,
}

/// Reads the statements of a text for what is not the database's; nothing if it is no SQL, or too deep to be read.
pub(crate) fn read(text: &str) -> Option<Vec<Statement>> {
    attempt(text).ok()
}

/// As [`read`], with the reason.
pub(crate) fn attempt(text: &str) -> Result<Vec<Statement>, Unread> {
    let dialect = PostgreSqlDialect {};
    let tokens = Tokenizer::new(&dialect as &dyn Dialect, text).tokenize_with_location();
    let tokens = trimmed(joined(tokens.map_err(|_| Unread::Unknown)?));
    if tokens.iter().filter(|token| nests(&token.token)).count() > MAX_OPERATORS {
        return Err(Unread::TooDeep);
    }
    let is_deep = depth(&tokens) > MAX_LEVELS;
    let read = Parser::new(&dialect).with_tokens_with_locations(tokens).parse_statements();
    read.map_err(|error| match error {
        ParserError::RecursionLimitExceeded => Unread::TooDeep,
        // Of CASE the parser only says that it is none.
        _ if is_deep => Unread::TooDeep,
        _ => Unread::Unknown,
    })
}

/// How many parentheses and CASEs stand in each other.
fn depth(tokens: &[TokenWithSpan]) -> usize {
    let (mut depth, mut most) = (0_usize, 0);
    for token in tokens {
        match &token.token {
            Token::LParen => depth += 1,
            Token::RParen => depth = depth.saturating_sub(1),
            Token::Word(word) if word.keyword == Keyword::CASE => depth += 1,
            Token::Word(word) if word.keyword == Keyword::END => depth = depth.saturating_sub(1),
            _ => {}
        }
        most = most.max(depth);
    }
    most
}

/// A comparison with a sign right behind it, as in `a>-1`, which the tokenizer takes for one operator, is two.
fn signs(token: TokenWithSpan) -> Vec<TokenWithSpan> {
    const COMPARISONS: [(&str, Token); 5] =
        [("<", Token::Lt), (">", Token::Gt), ("=", Token::Eq), ("<=", Token::LtEq), (">=", Token::GtEq)];
    let Token::CustomBinaryOperator(text) = &token.token else { return vec![token] };
    let ends = [("-", Token::Minus), ("+", Token::Plus)];
    let parted = ends.into_iter().find_map(|(sign, last)| {
        let first = text.strip_suffix(sign)?;
        let (_, first) = COMPARISONS.into_iter().find(|(comparison, _)| *comparison == first)?;
        Some([first, last])
    });
    let span = token.span;
    match parted {
        Some(parts) => parts.map(|token| TokenWithSpan { token, span }).into(),
        None => vec![token],
    }
}

/// Texts in quotes with a line break between them are one.
fn joined(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let mut joined: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    for token in tokens.into_iter().flat_map(signs) {
        if let Token::SingleQuotedString(more) = &token.token {
            let blanks = joined.iter().rev().take_while(|token| matches!(token.token, Token::Whitespace(_))).count();
            let behind = joined.len() - blanks;
            let (before, blanks) = joined.split_at_mut(behind);
            let is_broken = blanks.iter().any(|blank| blank.token == Token::Whitespace(Whitespace::Newline));
            if let (true, Some(Token::SingleQuotedString(text))) =
                (is_broken, before.last_mut().map(|last| &mut last.token))
            {
                text.push_str(more);
                continue;
            }
        }
        joined.push(token);
    }
    joined
}

/// `trim(LEADING FROM text)` takes blanks away, which the parser wants to be told.
fn trimmed(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    const SIDES: [Keyword; 3] = [Keyword::LEADING, Keyword::TRAILING, Keyword::BOTH];
    let word = |token: &TokenWithSpan| match &token.token {
        Token::Word(word) => word.keyword,
        _ => Keyword::NoKeyword,
    };
    let mut made: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    for token in tokens {
        let before = made.iter().rev().find(|token| !matches!(token.token, Token::Whitespace(_)));
        if word(&token) == Keyword::FROM && before.is_some_and(|before| SIDES.contains(&word(before))) {
            made.push(TokenWithSpan { token: Token::SingleQuotedString(" ".into()), span: token.span });
        }
        made.push(token);
    }
    made
}

/// Bytes of the comment that a text begins with. Comments in comments are a part of them.
pub(crate) fn comment(text: &str) -> usize {
    closed(text).unwrap_or(text.len())
}

/// Whether a text is a comment whose end is missing.
pub(crate) fn is_unclosed(text: &str) -> bool {
    closed(text).is_none()
}

/// Bytes of the comment that a text begins with; nothing if its end is missing.
fn closed(text: &str) -> Option<usize> {
    if text.starts_with("--") {
        return Some(text.find('\n').map_or(text.len(), |end| end + 1));
    }
    let (mut depth, mut at) = (0, 0);
    loop {
        match text.as_bytes().get(at..at + 2) {
            Some(b"/*") => (depth, at) = (depth + 1, at + 2),
            Some(b"*/") if depth > 0 => (depth, at) = (depth - 1, at + 2),
            Some(_) if depth > 0 => at += 1,
            None if depth > 0 => return None,
            _ => return Some(at),
        }
        if depth == 0 {
            return Some(at);
        }
    }
}

/// Bytes of what stands in quotes at the beginning of a text, with the quotes: `'..'`, `".."` or `$tag$..$tag$`. Where
/// `escapes`, a backslash takes its meaning from what is behind it.
fn quoted(text: &str, escapes: bool) -> usize {
    let bytes = text.as_bytes();
    match bytes.first() {
        Some(&quote @ (b'\'' | b'"')) => {
            let mut at = 1;
            while at < bytes.len() && bytes[at] != quote {
                at += if escapes && bytes[at] == b'\\' { 2 } else { 1 };
            }
            (at + 1).min(bytes.len())
        }
        Some(b'$') => {
            let is_of_tag = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || !byte.is_ascii();
            let tag = 1 + bytes[1..].iter().take_while(|byte| is_of_tag(byte)).count();
            if bytes.get(tag) != Some(&b'$') || bytes[1].is_ascii_digit() {
                return 0;
            }
            text[tag + 1..].find(&text[..=tag]).map_or(text.len(), |end| 2 * (tag + 1) + end)
        }
        _ => 0,
    }
}

/// A text up to its first semicolon, and what stands behind it. Semicolons in quotes and comments are none.
pub(crate) fn divide(text: &str) -> (&str, &str) {
    let bytes = text.as_bytes();
    let is_of_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii();
    // Bytes of the word that has gone on up to here.
    let (mut at, mut word) = (0, 0);
    while at < bytes.len() {
        let rest = &text[at..];
        let begins = bytes[at];
        at += match bytes[at] {
            b';' => return (&text[..at], &text[at + 1..]),
            b'-' | b'/' => comment(rest).max(1),
            b'\'' => quoted(rest, word == 1 && matches!(bytes[at - 1], b'e' | b'E')),
            b'"' => quoted(rest, false),
            // In a name it is a letter.
            b'$' if word == 0 => quoted(rest, false).max(1),
            _ => 1,
        };
        while !text.is_char_boundary(at) {
            at += 1;
        }
        word = if is_of_word(begins) { word + 1 } else { 0 };
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
    fn no_text_is_too_deep_for_the_stack() {
        let operators = [
            " in (1)",
            " notnull",
            " isnull",
            " ilike 'a'",
            " rlike 'a'",
            " like 'a'",
            " similar to 'a'",
            " is null",
            " between 1 and 2",
            " at time zone 'a'",
            " collate a",
            "::int",
            "[1]",
            " + 1",
            " || 'a'",
            " -> 1",
            " and 1",
            " is distinct from 1",
            " is true",
            " union select 1",
            " join t on 1",
            " operator(pg_catalog.+) 1",
            ".a",
            ", 1",
            " regexp 'a'",
            " xor 1",
            " div 1",
            " overlaps 1",
            " glob 1",
            " match 1",
            " member of (1)",
            " escape 'a'",
            " over a",
            " filter (where 1)",
            " is json",
            " as a",
            " limit 1",
            " where 1",
            " case",
            " not",
            " (",
            " - ",
            " []",
        ];
        let deep = move || {
            for operator in operators {
                for count in [900, (1 << 20) / operator.len()] {
                    let text = format!("SELECT 1{}", operator.repeat(count));
                    for statement in read(&text).unwrap_or_default() {
                        // What walks down.
                        assert!(statement == statement.clone() && !statement.to_string().is_empty());
                    }
                }
            }
        };
        std::thread::Builder::new().stack_size(crate::STACK).spawn(deep).unwrap().join().unwrap();
    }

    #[test]
    fn a_text_ends_at_its_first_semicolon_outside_of_quotes_and_comments() {
        for (text, first, rest) in [
            ("SET a = ';'; SET b = 2", "SET a = ';'", " SET b = 2"),
            ("SET a = 1 -- one; two\n; SELECT 1", "SET a = 1 -- one; two\n", " SELECT 1"),
            ("SET a /* ; */ = \"x;y\"; /* it */", "SET a /* ; */ = \"x;y\"", " /* it */"),
            ("SELECT 1; SELECT 2", "SELECT 1", " SELECT 2"),
            ("SELECT 'a", "SELECT 'a", ""),
            ("a /* x /* ; */ ; */; b", "a /* x /* ; */ ; */", " b"),
            ("a /* /* ; */", "a /* /* ; */", ""),
            ("a */ ; b", "a */ ", " b"),
            ("E'\\';' ; b", "E'\\';' ", " b"),
            ("ae'\\'; b", "ae'\\'", " b"),
            ("e'\u{e9}\\\u{e9};'; b", "e'\u{e9}\\\u{e9};'", " b"),
            ("'it''s;'; b", "'it''s;'", " b"),
            ("$$;$$; b", "$$;$$", " b"),
            ("$a$ $$; $b$ $a$; b", "$a$ $$; $b$ $a$", " b"),
            ("$1; b", "$1", " b"),
            ("a$b$; c", "a$b$", " c"),
            ("$a; b", "$a", " b"),
            ("", "", ""),
        ] {
            assert_eq!(divide(text), (first, rest), "{text}");
        }
    }
}
