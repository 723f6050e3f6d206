//! A place in the tokens of a text.

use sqlparser::dialect::{Dialect, PostgreSqlDialect, Precedence};
use sqlparser::keywords::Keyword;
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::{Location, Span, Token, TokenWithSpan, Tokenizer};

use crate::error::{Result, SqlError, state, syntax};
use crate::syntax::{Name, Place};

static DIALECT: PostgreSqlDialect = PostgreSqlDialect {};

/// The only schema.
const SCHEMA: &str = "public";

/// Stands for `..`, which the tokenizer does not know.
const DOTS: char = '\u{2025}';
/// The longest expression, in tokens: trees are walked recursively.
const MAX_EXPRESSION_TOKENS: usize = 1_000;

pub(crate) struct Cursor {
    pub(super) parser: Parser<'static>,
    /// How deep statements lie in each other.
    pub(super) depth: u32,
    /// How many arms lie in front, of all IFs around.
    pub(super) arms: u32,
}

impl Cursor {
    pub(crate) fn new(text: &str) -> Result<Self> {
        let tokens = tokens(text, Location { line: 1, column: 1 })?;
        Ok(Self { parser: Parser::new(&DIALECT).with_tokens_with_locations(tokens), depth: 0, arms: 0 })
    }

    /// A cursor in a dollar-quoted body that begins at `place`.
    pub(super) fn nested(text: &str, place: Place) -> Result<Self> {
        let start = Location { line: u64::from(place.line), column: u64::from(place.column) };
        let tokens = tokens(text, start)?;
        Ok(Self { parser: Parser::new(&DIALECT).with_tokens_with_locations(tokens), depth: 0, arms: 0 })
    }

    pub(crate) fn place(&self) -> Place {
        place_of(self.parser.peek_token_ref().span)
    }

    pub(crate) fn at_end(&self) -> bool {
        self.parser.peek_token_ref().token == Token::EOF
    }

    pub(super) fn token(&self) -> &Token {
        &self.parser.peek_token_ref().token
    }

    /// The word that stands `ahead` from here, in capitals.
    pub(super) fn word(&self, ahead: usize) -> Option<String> {
        match &self.parser.peek_nth_token_ref(ahead).token {
            Token::Word(word) => Some(word.value.to_ascii_uppercase()),
            _ => None,
        }
    }

    pub(super) fn advance(&mut self) {
        self.parser.advance_token();
    }

    /// Whether token `ahead` from here is this word, in any case, or this sign.
    pub(super) fn is_at(&self, ahead: usize, wanted: &str) -> bool {
        match &self.parser.peek_nth_token_ref(ahead).token {
            Token::Word(word) => word.quote_style.is_none() && word.value.eq_ignore_ascii_case(wanted),
            Token::EOF => false,
            Token::Char(DOTS) => wanted == "..",
            other => !wanted.as_bytes()[0].is_ascii_alphabetic() && other.to_string() == wanted,
        }
    }

    pub(super) fn is(&self, wanted: &str) -> bool {
        self.is_at(0, wanted)
    }

    /// Goes over the word or sign if it is next.
    pub(crate) fn eat(&mut self, wanted: &str) -> bool {
        let found = self.is(wanted);
        if found {
            self.advance();
        }
        found
    }

    /// Goes over several words if they are next.
    pub(super) fn eat_all(&mut self, wanted: &[&str]) -> bool {
        let found = wanted.iter().enumerate().all(|(ahead, word)| self.is_at(ahead, word));
        if found {
            wanted.iter().for_each(|_| self.advance());
        }
        found
    }

    pub(crate) fn expect(&mut self, wanted: &str) -> Result<()> {
        if self.eat(wanted) { Ok(()) } else { self.expected(&format!("'{wanted}'")) }
    }

    /// Refuses what is next.
    pub(super) fn expected<T>(&self, what: &str) -> Result<T> {
        let found = match self.token() {
            Token::EOF => "at the end of the text".to_string(),
            Token::Char(DOTS) => "at or near '..'".to_string(),
            token => {
                let text = token.to_string();
                let short: String = text.chars().take(40).collect();
                format!("at or near '{short}{}'", if short.len() < text.len() { "..." } else { "" })
            }
        };
        syntax(self.place(), format!("syntax error {found}: {what} is expected"))
    }

    /// A name. Words that begin or end a clause are none unless they are quoted.
    pub(super) fn name(&mut self, what: &str) -> Result<Name> {
        let place = self.place();
        match self.token() {
            Token::Word(word) if word.quote_style.is_some() || !is_reserved(word.keyword, &word.value) => {
                let quoted = word.quote_style.is_some();
                let text = if quoted { word.value.clone() } else { word.value.to_ascii_lowercase() };
                if !lockwork_procedure::schema::is_name(&text) {
                    let message = format!("'{text}' is no name: 1 to 63 letters, digits and '_', no digit first");
                    return Err(SqlError::new("42602", place, message));
                }
                self.advance();
                Ok(Name { text, place })
            }
            _ => self.expected(what),
        }
    }

    /// Goes over a schema and the point behind it.
    pub(super) fn schema(&mut self) -> Result<()> {
        let schema = self.name("the name of a schema")?;
        check_schema(&schema.text, schema.place)?;
        self.expect(".")
    }

    /// The name of a table or procedure, perhaps with its schema, of which there is one, and that with the database,
    /// which may have any name.
    pub(super) fn object(&mut self, what: &str) -> Result<Name> {
        let mut name = self.name(what)?;
        if self.eat(".") {
            let mut schema = std::mem::replace(&mut name, self.name(what)?);
            if self.eat(".") {
                schema = std::mem::replace(&mut name, self.name(what)?);
            }
            check_schema(&schema.text, schema.place)?;
        }
        Ok(name)
    }

    /// A number without sign that fits 32 bits.
    pub(super) fn count(&mut self, what: &str) -> Result<u32> {
        if let Token::Number(digits, _) = self.token()
            && let Ok(value) = digits.parse::<u32>()
        {
            self.advance();
            return Ok(value);
        }
        self.expected(what)
    }

    pub(super) fn text(&mut self, what: &str) -> Result<String> {
        if let Token::SingleQuotedString(text) = self.token() {
            let text = text.clone();
            self.advance();
            return Ok(text);
        }
        self.expected(what)
    }

    /// One or more, with commas between.
    pub(super) fn list<T>(&mut self, mut one: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut all = vec![one(self)?];
        while self.eat(",") {
            all.push(one(self)?);
        }
        Ok(all)
    }

    /// An expression, as sqlparser reads it.
    pub(super) fn raw_expression(&mut self) -> Result<sqlparser::ast::Expr> {
        self.raw_above(DIALECT.prec_unknown())
    }

    /// An expression in front of `NOT NULL`, which is no part of it.
    pub(super) fn raw_default(&mut self) -> Result<sqlparser::ast::Expr> {
        self.raw_above(DIALECT.prec_value(Precedence::Is))
    }

    /// An expression of operators that bind more strongly.
    fn raw_above(&mut self, precedence: u8) -> Result<sqlparser::ast::Expr> {
        let place = self.place();
        let ends = |token: &Token| matches!(token, Token::SemiColon | Token::EOF);
        let long = (0..MAX_EXPRESSION_TOKENS).all(|ahead| !ends(&self.parser.peek_nth_token_ref(ahead).token));
        if long {
            let message = format!("the statement goes on for more than {MAX_EXPRESSION_TOKENS} tokens from here");
            return Err(SqlError::new(state::TOO_COMPLEX, place, message).hint("divide it into several statements"));
        }
        self.parser.parse_subexpr(precedence).map_err(|error| from_parser(error, place))
    }
}

/// Refuses a schema that there is not.
pub(super) fn check_schema(name: &str, place: Place) -> Result<()> {
    if name == SCHEMA {
        return Ok(());
    }
    let message = format!("no schema is called '{name}'");
    Err(SqlError::new(state::NO_SCHEMA, place, message).hint(format!("everything is in '{SCHEMA}'")))
}

/// Words that end an expression or begin a clause.
fn is_reserved(keyword: Keyword, word: &str) -> bool {
    use Keyword as K;
    let unknown_to_sqlparser = ["elsif", "loop"].iter().any(|known| word.eq_ignore_ascii_case(known));
    unknown_to_sqlparser
        || matches!(
            keyword,
            K::SELECT
                | K::FROM
                | K::WHERE
                | K::INTO
                | K::VALUES
                | K::SET
                | K::AND
                | K::OR
                | K::NOT
                | K::IN
                | K::BETWEEN
                | K::CASE
                | K::WHEN
                | K::THEN
                | K::ELSE
                | K::END
                | K::IF
                | K::ELSEIF
                | K::FOR
                | K::LIMIT
                | K::ORDER
                | K::BY
                | K::BEGIN
                | K::DECLARE
                | K::AS
                | K::CREATE
                | K::PRIMARY
                | K::INSERT
                | K::UPDATE
                | K::DELETE
                | K::RETURN
                | K::NULL
                | K::TRUE
                | K::FALSE
        )
}

pub(super) fn place_of(span: Span) -> Place {
    let Location { line, column } = span.start;
    Place {
        line: u32::try_from(line).unwrap_or(u32::MAX).max(1),
        column: u32::try_from(column).unwrap_or(u32::MAX).max(1),
    }
}

/// The place that sqlparser writes at the end of its messages.
fn from_parser(error: ParserError, place: Place) -> SqlError {
    let text = match error {
        ParserError::RecursionLimitExceeded => {
            return SqlError::new(state::TOO_COMPLEX, place, "the expression is nested too deeply")
                .hints("assign parts of it to variables first", "write a shorter one, or a procedure");
        }
        ParserError::ParserError(text) | ParserError::TokenizerError(text) => text,
    };
    let Some((message, at)) = text.rsplit_once(" at Line: ") else { return SqlError::new(state::SYNTAX, place, text) };
    let number = |text: &str| text.trim().parse::<u32>().ok().filter(|&number| number > 0);
    let found = at.split_once(", Column: ").and_then(|(line, column)| Some((number(line)?, number(column)?)));
    let place = found.map_or(place, |(line, column)| Place { line, column });
    SqlError::new(state::SYNTAX, place, message.to_string())
}

/// The signs that make up an operator: the tokenizer takes `>-` for one. `None` if others are among them.
fn signs(text: &str, span: Span) -> Option<Vec<TokenWithSpan>> {
    const SIGNS: [(&str, Token); 12] = [
        ("<=", Token::LtEq),
        (">=", Token::GtEq),
        ("<>", Token::Neq),
        ("!=", Token::Neq),
        ("<", Token::Lt),
        (">", Token::Gt),
        ("=", Token::Eq),
        ("+", Token::Plus),
        ("-", Token::Minus),
        ("*", Token::Mul),
        ("/", Token::Div),
        ("%", Token::Mod),
    ];
    if text.contains("--") || text.contains("/*") {
        return None;
    }
    let mut all = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (sign, token) = SIGNS.iter().find(|(sign, _)| rest.starts_with(sign))?;
        let mut span = span;
        span.start.column += (text.len() - rest.len()) as u64;
        span.end.column = span.start.column + sign.len() as u64;
        all.push(TokenWithSpan { token: token.clone(), span });
        rest = &rest[sign.len()..];
    }
    Some(all)
}

/// The tokens of a text whose first character stands at `start`.
fn tokens(text: &str, start: Location) -> Result<Vec<TokenWithSpan>> {
    let shift = |mut at: Location| {
        if at.line <= 1 {
            at.column += start.column - 1;
        }
        at.line += start.line - 1;
        at
    };
    let tokens = Tokenizer::new(&DIALECT, text).tokenize_with_location().map_err(|error| {
        let at = shift(error.location);
        let place = place_of(Span { start: at, end: at });
        SqlError::new(state::SYNTAX, place, error.message)
    })?;
    let mut all: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    for mut token in tokens {
        token.span = Span { start: shift(token.span.start), end: shift(token.span.end) };
        let number = |text: &str| Token::Number(text.to_string(), false);
        let before = all.last_mut();
        // `1..n`, `a..15` and their like come as numbers and periods.
        match (before, &token.token) {
            (Some(TokenWithSpan { token: Token::Number(first, _), .. }), Token::Number(second, long))
                if first.ends_with('.') && second.starts_with('.') =>
            {
                first.pop();
                let after = TokenWithSpan { token: Token::Number(second[1..].to_string(), *long), span: token.span };
                all.push(TokenWithSpan { token: Token::Char(DOTS), span: token.span });
                all.push(after);
            }
            (Some(TokenWithSpan { token: Token::Number(first, _), .. }), Token::Period) if first.ends_with('.') => {
                first.pop();
                all.push(TokenWithSpan { token: Token::Char(DOTS), span: token.span });
            }
            (Some(before @ TokenWithSpan { token: Token::Period, .. }), Token::Period) => {
                before.token = Token::Char(DOTS);
            }
            (Some(before @ TokenWithSpan { token: Token::Period, .. }), Token::Number(second, _))
                if second.starts_with('.') =>
            {
                before.token = Token::Char(DOTS);
                let after = number(&second[1..]);
                all.push(TokenWithSpan { token: after, span: token.span });
            }
            (_, Token::CustomBinaryOperator(text)) => match signs(text, token.span) {
                Some(signs) => all.extend(signs),
                None => all.push(token),
            },
            _ => all.push(token),
        }
    }
    all.retain(|token| !matches!(token.token, Token::Whitespace(_)));
    // What ends the text has a place too.
    let end = text.split('\n').count().max(1) as u64;
    let column = text.rsplit('\n').next().map_or(0, |line| line.chars().count()) as u64 + 1;
    let at = shift(Location { line: end, column });
    all.push(TokenWithSpan { token: Token::EOF, span: Span { start: at, end: at } });
    Ok(all)
}
