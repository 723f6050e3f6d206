//! COPY as it is written, in PostgreSQL's form of today and in that of before 9.0.

use sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::error::{Refusal, refuse};
use crate::syntax::position;
use crate::words::{self, Words, begins_with};

/// How rows are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) csv: bool,
    pub(crate) delimiter: u8,
    /// What stands for NULL, without quotes.
    pub(crate) null: String,
    /// Whether the first line has the names of the columns.
    pub(crate) header: bool,
    /// Of CSV.
    pub(crate) quote: u8,
    /// What stands before a quote in quotes, of CSV.
    pub(crate) escape: u8,
}

/// A COPY as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written<'a> {
    pub(crate) source: Source<'a>,
    pub(crate) is_export: bool,
    pub(crate) form: Form,
}

/// What is copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source<'a> {
    /// Columns of a table; all if none is named.
    Table(String, Vec<String>),
    /// The rows of a query, which is a part of the text.
    Query(&'a str),
}

/// Whether a text begins as COPY does.
pub(crate) fn is_copy(text: &str) -> bool {
    begins_with(text, "copy")
}

const SHAPE: &str =
    "write COPY table (columns) FROM STDIN, or COPY table or (query) TO STDOUT, and WITH (FORMAT csv, HEADER)";
const CLIENT: &str = "let the client read or write the file: \\copy in psql, or COPY .. FROM STDIN and TO STDOUT";

fn wrong(message: impl Into<String>) -> Refusal {
    refuse("42601", message).hint(SHAPE)
}

/// Reads a text that [`is_copy`].
pub(crate) fn read(text: &str) -> Result<Written<'_>, Refusal> {
    let mut tokens = words::tokens(text, SHAPE)?;
    // COPY itself.
    tokens.remove(0);
    let query = query(text, &tokens)?.map(|(query, end)| {
        tokens.drain(..=end);
        query
    });
    let mut words = Words::new(tokens, SHAPE);
    let source = match query {
        Some(query) => Source::Query(query),
        None => words.table()?,
    };
    let is_export = match (words.word().as_deref(), &source) {
        (Some("from"), Source::Table(..)) => false,
        (Some("to"), _) => true,
        (_, Source::Table(..)) => return Err(wrong("FROM or TO is expected behind the table")),
        (_, Source::Query(_)) => return Err(wrong("TO is expected behind the query")),
    };
    match (words.string(), words.word().as_deref(), is_export) {
        (None, Some("stdin"), false) | (None, Some("stdout"), true) => {}
        (Some(_), ..) | (None, Some("program"), _) => {
            return Err(refuse("0A000", "COPY reads and writes no files of the server").hint(CLIENT));
        }
        _ => return Err(wrong(if is_export { "TO STDOUT is expected" } else { "FROM STDIN is expected" })),
    }
    let form = words.form()?;
    words.eat(&Token::SemiColon);
    match words.tokens.next() {
        None | Some(Token::EOF) => Ok(Written { source, is_export, form }),
        Some(other) => Err(refuse("0A000", format!("'{other}' is no option of COPY")).hint(SHAPE)),
    }
}

/// The query in parentheses that tokens begin with, if they do, and which one closes it.
fn query<'a>(text: &'a str, tokens: &[TokenWithSpan]) -> Result<Option<(&'a str, usize)>, Refusal> {
    if tokens.first().is_none_or(|token| token.token != Token::LParen) {
        return Ok(None);
    }
    let mut depth = 0;
    let closes = tokens.iter().position(|token| {
        depth += i32::from(token.token == Token::LParen) - i32::from(token.token == Token::RParen);
        depth == 0
    });
    let end = closes.ok_or_else(|| wrong("the parenthesis of the query is not closed"))?;
    let byte = |at: usize| {
        let character = position(text, tokens[at].span.start) - 1;
        text.char_indices().nth(character).map_or(text.len(), |(byte, _)| byte)
    };
    Ok(Some((&text[byte(0) + 1..byte(end)], end)))
}

impl Words {
    fn table(&mut self) -> Result<Source<'static>, Refusal> {
        let table = self.qualified_name()?;
        let mut columns = Vec::new();
        if self.eat(&Token::LParen) {
            columns.push(self.name()?);
            while self.eat(&Token::Comma) {
                columns.push(self.name()?);
            }
            self.expect(&Token::RParen)?;
        }
        Ok(Source::Table(table, columns))
    }

    fn string(&mut self) -> Option<String> {
        let is_string = |token: &Token| matches!(token, Token::SingleQuotedString(_) | Token::EscapedStringLiteral(_));
        match self.tokens.next_if(is_string)? {
            Token::SingleQuotedString(text) | Token::EscapedStringLiteral(text) => Some(text),
            _ => None,
        }
    }

    fn text(&mut self, option: &str) -> Result<String, Refusal> {
        self.string().ok_or_else(|| wrong(format!("{option} takes a text in quotes")))
    }

    fn byte(&mut self, option: &str) -> Result<u8, Refusal> {
        match self.text(option)?.as_bytes() {
            [byte] if byte.is_ascii() && !matches!(byte, b'\n' | b'\r' | 0) => Ok(*byte),
            _ => {
                let message = format!("{option} is one character of one byte, and no end of a line");
                Err(refuse("22023", message).hint(SHAPE))
            }
        }
    }

    /// A truth that may be left out, and is one then.
    fn truth(&mut self) -> Result<bool, Refusal> {
        let number = self.tokens.next_if(|token| matches!(token, Token::Number(..))).map(|number| number.to_string());
        match self.string().or(number).or_else(|| self.word()).as_deref() {
            None | Some("true" | "on" | "1") => Ok(true),
            Some("false" | "off" | "0") => Ok(false),
            Some(other) => Err(refuse("0A000", format!("an option is true or false, and not '{other}'"))),
        }
    }

    fn format(&mut self) -> Result<bool, Refusal> {
        let name = self.string().or_else(|| self.word()).unwrap_or_default().to_ascii_lowercase();
        match name.as_str() {
            "csv" => Ok(true),
            "text" => Ok(false),
            "binary" => Err(binary()),
            _ => Err(refuse("22023", format!("there is no format '{name}'")).hint("take text or csv")),
        }
    }

    fn form(&mut self) -> Result<Form, Refusal> {
        // WITH is noise, and so is AS.
        let with = |token: &Token| token.to_string().eq_ignore_ascii_case("with");
        self.tokens.next_if(with);
        let is_list = self.eat(&Token::LParen);
        let (mut csv, mut header) = (false, false);
        let (mut delimiter, mut null, mut quote, mut escape) = (None, None, None, None);
        let mut seen: Vec<String> = Vec::new();
        while let Some(option) = self.word() {
            if !is_list {
                self.tokens.next_if(|token| token.to_string().eq_ignore_ascii_case("as"));
            }
            match option.as_str() {
                "format" if is_list => csv = self.format()?,
                "csv" if !is_list => csv = true,
                "binary" if !is_list => return Err(binary()),
                "header" if !is_list => header = true,
                "header" => header = self.truth()?,
                // It says how PostgreSQL keeps the rows, and says nothing here.
                "freeze" => _ = !is_list || self.truth()?,
                "delimiter" | "delimiters" => delimiter = Some(self.byte("DELIMITER")?),
                "null" => null = Some(self.text("NULL")?),
                "quote" => quote = Some(self.byte("QUOTE")?),
                "escape" => escape = Some(self.byte("ESCAPE")?),
                "encoding" => {
                    let name = self.text("ENCODING")?;
                    if !matches!(name.to_ascii_lowercase().as_str(), "utf8" | "utf-8" | "unicode") {
                        return Err(refuse("0A000", format!("the encoding is UTF8, and not '{name}'")));
                    }
                }
                other => return Err(refuse("0A000", format!("COPY has no option '{other}'")).hint(SHAPE)),
            }
            if seen.contains(&option) {
                return Err(wrong(format!("the option '{option}' stands there twice")));
            }
            seen.push(option);
            if is_list && !self.eat(&Token::Comma) {
                break;
            }
        }
        if is_list {
            self.expect(&Token::RParen)?;
        }
        if !csv && (quote.is_some() || escape.is_some()) {
            return Err(refuse("0A000", "QUOTE and ESCAPE are of CSV").hint("add FORMAT csv"));
        }
        let delimiter = delimiter.unwrap_or(if csv { b',' } else { b'\t' });
        let null = null.unwrap_or(if csv { "" } else { "\\N" }.into());
        let quote = quote.unwrap_or(b'"');
        let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'\\' | b'.');
        if !csv && letter(delimiter) {
            let message = "DELIMITER of text is no small letter, digit, point or backslash";
            return Err(refuse("22023", message).hint("take FORMAT csv, or another one"));
        }
        if csv && delimiter == quote {
            return Err(refuse("22023", "DELIMITER and QUOTE are the same character"));
        }
        if null.bytes().any(|byte| byte == delimiter || matches!(byte, b'\n' | b'\r') || csv && byte == quote) {
            return Err(refuse("22023", "the text of NULL has a delimiter, a quote or an end of a line in it"));
        }
        Ok(Form { csv, delimiter, null, header, quote, escape: escape.unwrap_or(quote) })
    }
}

fn binary() -> Refusal {
    refuse("0A000", "COPY has no binary format").hint("take FORMAT text or csv")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_say_the_same() {
        fn read(text: &str) -> Written<'_> {
            super::read(text).unwrap_or_else(|refusal| panic!("{text}: {refusal}"))
        }
        let form = Form { csv: true, delimiter: b'|', null: "-".into(), header: true, quote: b'\'', escape: b'\\' };
        let source = Source::Table("t".into(), vec!["a".to_string(), "B".to_string()]);
        let expected = Written { source, is_export: false, form };
        for text in [
            "COPY t (a, \"B\") FROM STDIN WITH (FORMAT csv, DELIMITER '|', NULL '-', HEADER, QUOTE '''', ESCAPE '\\')",
            " copy public.T(A,\"B\") from stdin (header true, format 'CSV', null '-', quote E'\\'', escape '\\',
               delimiter '|', freeze, encoding 'utf8');",
            "copy t (a, \"B\") from stdin with delimiter as '|' null '-' csv header quote as '''' escape '\\'",
        ] {
            assert!(is_copy(text));
            assert_eq!(read(text), expected, "{text}");
        }
        let plain = read("COPY t TO STDOUT");
        assert!(plain.is_export && plain.form.null == "\\N" && !plain.form.csv);
        assert_eq!(plain.source, Source::Table("t".into(), Vec::new()));
        let query = read("COPY ( SELECT 'ä)', (1)\n\t)to stdout");
        assert_eq!((query.source, query.is_export), (Source::Query(" SELECT 'ä)', (1)\n\t"), true));
        assert_eq!(read("copy t from stdin with (freeze on)").form.delimiter, b'\t');
        assert!(!is_copy("copying") && !is_copy("copy"));
    }

    #[test]
    fn what_is_no_copy_is_refused() {
        for (text, sqlstate) in [
            ("COPY t", "42601"),
            ("COPY t FROM STDOUT", "42601"),
            ("COPY t TO STDIN", "42601"),
            ("COPY FROM STDIN", "42601"),
            ("COPY t (a FROM STDIN", "42601"),
            ("COPY t FROM STDIN WITH (FORMAT csv", "42601"),
            ("COPY t FROM STDIN (HEADER, HEADER)", "42601"),
            ("COPY t FROM STDIN WHERE a = 1", "0A000"),
            ("COPY t FROM STDIN; SELECT 1", "0A000"),
            ("COPY t FROM '/etc/passwd'", "0A000"),
            ("COPY t TO PROGRAM 'cat'", "0A000"),
            ("COPY (SELECT 1) FROM STDIN", "42601"),
            ("COPY (SELECT 1 TO STDOUT", "42601"),
            ("COPY t FROM STDIN (FORMAT binary)", "0A000"),
            ("COPY t FROM STDIN BINARY", "0A000"),
            ("COPY t FROM STDIN (HEADER match)", "0A000"),
            ("COPY t FROM STDIN (ENCODING 'latin1')", "0A000"),
            ("COPY t FROM STDIN (QUOTE '\"')", "0A000"),
            ("COPY t FROM STDIN (DELIMITER ';;')", "22023"),
            ("COPY t FROM STDIN (DELIMITER 'a')", "22023"),
            ("COPY t FROM STDIN (FORMAT csv, DELIMITER '\"')", "22023"),
            ("COPY t FROM STDIN (NULL E'a\\tb')", "22023"),
            ("COPY t FROM STDIN (FORMAT xml)", "22023"),
            ("COPY other.t FROM STDIN", "3F000"),
            ("COPY t FROM STDIN 'unended", "42601"),
        ] {
            assert_eq!(read(text).unwrap_err().sqlstate, sqlstate, "{text}");
        }
    }
}
