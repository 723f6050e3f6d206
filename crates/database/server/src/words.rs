//! Statements of PostgreSQL that are read here word by word: COPY, GRANT and REVOKE.

use std::iter::Peekable;
use std::vec::IntoIter;

use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer, Word};

use crate::error::{Refusal, refuse};

/// The words and signs of a statement.
pub(crate) struct Words {
    pub(crate) tokens: Peekable<IntoIter<Token>>,
    /// What to write instead of a statement that is wrong.
    hint: &'static str,
}

/// Returns the words and signs of a text with their places, without blanks and comments.
///
/// # Errors
/// 42601 with this hint: a quote has no end.
pub(crate) fn tokens(text: &str, hint: &str) -> Result<Vec<TokenWithSpan>, Refusal> {
    let tokens = Tokenizer::new(&PostgreSqlDialect {}, text).tokenize_with_location();
    let mut tokens = tokens.map_err(|error| refuse("42601", error.to_string()).hint(hint))?;
    tokens.retain(|token| !matches!(token.token, Token::Whitespace(_)));
    Ok(tokens)
}

/// Whether a text begins with this word.
pub(crate) fn begins_with(text: &str, word: &str) -> bool {
    let (first, behind) = text.trim_start().split_at_checked(word.len()).unwrap_or_default();
    first.eq_ignore_ascii_case(word) && behind.starts_with(|c: char| c.is_whitespace() || c == '(' || c == '"')
}

impl Words {
    pub(crate) fn new(tokens: Vec<TokenWithSpan>, hint: &'static str) -> Self {
        let tokens: Vec<Token> = tokens.into_iter().map(|token| token.token).collect();
        Self { tokens: tokens.into_iter().peekable(), hint }
    }

    /// Returns an error of syntax.
    pub(crate) fn wrong(&self, message: impl Into<String>) -> Refusal {
        refuse("42601", message).hint(self.hint)
    }

    /// Passes over this token; whether it is the next one.
    pub(crate) fn eat(&mut self, token: &Token) -> bool {
        self.tokens.next_if_eq(token).is_some()
    }

    pub(crate) fn expect(&mut self, token: &Token) -> Result<(), Refusal> {
        let found = self.tokens.next().unwrap_or(Token::EOF);
        match found == *token {
            true => Ok(()),
            false => Err(self.wrong(format!("'{token}' is expected, and there is '{found}'"))),
        }
    }

    /// Returns the next token if it is a word without quotes, in small letters.
    pub(crate) fn word(&mut self) -> Option<String> {
        let word = self.tokens.next_if(|token| matches!(token, Token::Word(word) if word.quote_style.is_none()))?;
        Some(word.to_string().to_ascii_lowercase())
    }

    /// Passes over this word, which is in small letters; whether it is the next token.
    pub(crate) fn eat_word(&mut self, word: &str) -> bool {
        let is_it = |found: &Word| found.quote_style.is_none() && found.value.eq_ignore_ascii_case(word);
        self.tokens.next_if(|token| matches!(token, Token::Word(found) if is_it(found))).is_some()
    }

    /// Returns a name: as it stands in quotes, else in small letters.
    pub(crate) fn name(&mut self) -> Result<String, Refusal> {
        match self.tokens.next() {
            Some(Token::Word(word)) if word.quote_style.is_some() => Ok(word.value),
            Some(Token::Word(word)) => Ok(word.value.to_ascii_lowercase()),
            other => {
                let found = other.unwrap_or(Token::EOF);
                Err(self.wrong(format!("a name is expected, and there is '{found}'")))
            }
        }
    }

    /// Returns a name that may have the schema before it.
    pub(crate) fn qualified_name(&mut self) -> Result<String, Refusal> {
        let mut name = self.name()?;
        while self.eat(&Token::Period) {
            if name != "public" {
                let refusal = refuse("3F000", format!("there is no schema '{name}'"));
                return Err(refusal.hint("everything is in 'public'"));
            }
            name = self.name()?;
        }
        Ok(name)
    }
}
