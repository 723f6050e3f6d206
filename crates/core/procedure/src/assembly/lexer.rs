//! Source text as tokens, each with its place.
//!
//! Lines matter (a statement is a line), so a newline is a token. Tokens are made on demand: the first error in the
//! source is then the first one reported, whether it is one of spelling or of grammar.

use super::AssemblyError;

/// Where a token begins: line and column, both counted from 1, the column in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) line: u32,
    pub(super) column: u32,
}

impl Place {
    /// An error here.
    pub(super) fn error(self, message: impl Into<String>) -> AssemblyError {
        AssemblyError { line: self.line, column: self.column, message: message.into() }
    }
}

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind<'a> {
    /// A name, a mnemonic, a register, a keyword.
    Word(&'a str),
    /// A constant without its sign.
    Number(u64),
    /// One of `, : . + - # @ [ ] ( )`.
    Mark(char),
    /// The end of a line.
    Newline,
    /// The end of the source.
    End,
}

impl Kind<'_> {
    /// The token as an error message quotes it.
    pub(super) fn describe(self) -> String {
        match self {
            Self::Word(word) => format!("'{}'", shorten(word)),
            Self::Number(number) => format!("'{number}'"),
            Self::Mark(mark) => format!("'{mark}'"),
            Self::Newline => "the end of the line".to_string(),
            Self::End => "the end of the source".to_string(),
        }
    }
}

/// A word cut to a length that fits an error message. Words are ASCII.
pub(super) fn shorten(word: &str) -> String {
    match word.get(..64) {
        Some(start) if word.len() > 64 => format!("{start}..."),
        _ => word.to_string(),
    }
}

/// A token and where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind<'a>,
    pub(super) place: Place,
}

/// Makes the tokens of a source, one after the other.
#[derive(Debug)]
pub(super) struct Lexer<'a> {
    rest: &'a str,
    place: Place,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(source: &'a str) -> Self {
        Self { rest: source, place: Place { line: 1, column: 1 } }
    }

    /// The next token; at the end of the source [`Kind::End`], as often as asked.
    pub(super) fn token(&mut self) -> Result<Token<'a>, AssemblyError> {
        self.skip_blanks();
        let place = self.place;
        let Some(first) = self.rest.chars().next() else {
            return Ok(Token { kind: Kind::End, place });
        };
        let kind = match first {
            '\n' => {
                self.rest = &self.rest[1..];
                self.place = Place { line: place.line.saturating_add(1), column: 1 };
                Kind::Newline
            }
            ',' | ':' | '.' | '+' | '-' | '#' | '@' | '[' | ']' | '(' | ')' => {
                self.take(1);
                Kind::Mark(first)
            }
            _ if is_word(first) => {
                let end = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
                let word = self.take(end);
                if first.is_ascii_digit() { Kind::Number(number(word, place)?) } else { Kind::Word(word) }
            }
            _ => {
                return Err(
                    place.error(format!("'{}' has no meaning here; comments begin with ';'", first.escape_default()))
                );
            }
        };
        Ok(Token { kind, place })
    }

    /// Passes over spaces and a comment, but not over the end of the line.
    fn skip_blanks(&mut self) {
        let blanks = self.rest.find(|c: char| !matches!(c, ' ' | '\t' | '\r')).unwrap_or(self.rest.len());
        self.take(blanks);
        if self.rest.starts_with(';') {
            let end = self.rest.find('\n').unwrap_or(self.rest.len());
            let comment = &self.rest[..end];
            let characters = u32::try_from(comment.chars().count()).unwrap_or(u32::MAX);
            self.place.column = self.place.column.saturating_add(characters);
            self.rest = &self.rest[end..];
        }
    }

    /// Moves over `bytes` bytes, all of them ASCII.
    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        self.place.column = self.place.column.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        taken
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The value of a word that begins with a digit.
fn number(word: &str, place: Place) -> Result<u64, AssemblyError> {
    let (digits, radix) = match word.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (word, 10),
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return Err(place
            .error(format!("'{}' is no number; write decimal digits, or 0x and hexadecimal digits", shorten(word))));
    }
    u64::from_str_radix(digits, radix)
        .map_err(|_| place.error(format!("{} is outside the range of 64-bit integers", shorten(word))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(source: &str) -> Result<Vec<(Kind<'_>, u32, u32)>, AssemblyError> {
        let mut lexer = Lexer::new(source);
        let mut found = Vec::new();
        loop {
            let Token { kind, place } = lexer.token()?;
            found.push((kind, place.line, place.column));
            if kind == Kind::End {
                return Ok(found);
            }
        }
    }

    #[test]
    fn every_token_knows_its_line_and_column() {
        let found = tokens("load.u8 r1 ; größer\r\n\t[a#0x1F]").unwrap();
        let expected = [
            (Kind::Word("load"), 1, 1),
            (Kind::Mark('.'), 1, 5),
            (Kind::Word("u8"), 1, 6),
            (Kind::Word("r1"), 1, 9),
            (Kind::Newline, 1, 21),
            (Kind::Mark('['), 2, 2),
            (Kind::Word("a"), 2, 3),
            (Kind::Mark('#'), 2, 4),
            (Kind::Number(31), 2, 5),
            (Kind::Mark(']'), 2, 9),
            (Kind::End, 2, 10),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn bad_numbers_and_characters_are_refused_where_they_stand() {
        for (source, column, part) in [
            ("mov 12ab", 5, "'12ab' is no number"),
            ("0x", 1, "'0x' is no number"),
            ("18446744073709551616", 1, "outside the range"),
            ("a €", 3, "has no meaning"),
        ] {
            let error = tokens(source).unwrap_err();
            assert_eq!((error.line, error.column), (1, column), "{source}");
            assert!(error.message.contains(part), "{source}: {error}");
        }
    }
}
