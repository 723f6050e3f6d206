//! A script cut into statements without understanding them: a server may know some that this program does not.
//!
//! A statement ends with a semicolon that stands outside of quotes, comments, dollar quotes and the body of a
//! procedure: from BEGIN, or DECLARE before it, to its END.

use std::ops::Range;

/// The statements of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divided {
    /// Where each stands, in bytes: from its first character to its semicolon, which belongs to it.
    pub statements: Vec<Range<usize>>,
    /// Whether nothing stands behind the last semicolon, so that nothing more has to come.
    pub is_ended: bool,
}

/// Whether this is a COPY, of whose data a client that does not speak that part of the protocol knows nothing.
/// `statement` begins with its first word, as [`divide`] gives it.
#[must_use]
pub fn is_copy(statement: &str) -> bool {
    let first = statement.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '$').next();
    first.is_some_and(|word| word.eq_ignore_ascii_case("copy"))
}

/// Where the first COPY of a text stands, in bytes. A server that is sent one goes over to another part of the
/// protocol, and a client that cannot is out of step with it from then on: it has to be found before.
#[must_use]
pub fn find_copy(script: &str) -> Option<usize> {
    // A byte order mark is no part of the text, to a server neither.
    let text = script.strip_prefix('\u{feff}').unwrap_or(script);
    let found = divide(text).statements.into_iter().find(|place| is_copy(&text[place.clone()]));
    found.map(|place| script.len() - text.len() + place.start)
}

/// Cuts a script into its statements.
#[must_use]
pub fn divide(script: &str) -> Divided {
    let mut scan = Scan { text: script, at: 0, is_whole: true };
    let mut statements = Vec::new();
    let mut start = None;
    let mut body = Body::default();
    while let Some((token, place)) = scan.token() {
        match token {
            Token::Semicolon if start.is_none() => {}
            Token::Semicolon if body.is_outside() => {
                statements.extend(start.take().map(|start| start..place.end));
                body = Body::default();
            }
            _ => {
                start.get_or_insert(place.start);
                body.take(if token == Token::Word { &script[place] } else { "" });
            }
        }
    }
    let is_ended = start.is_none() && scan.is_whole;
    statements.extend(start.map(|start| start..script.trim_end().len()));
    Divided { statements, is_ended }
}

/// The words of a statement outside of texts and comments, in capitals, each with the number of parentheses around it.
/// A name in double quotes is one of them, with its quotes.
pub(crate) fn words(statement: &str) -> Vec<(usize, String)> {
    let mut scan = Scan { text: statement, at: 0, is_whole: true };
    let (mut words, mut depth) = (Vec::new(), 0_usize);
    while let Some((token, place)) = scan.token() {
        match (token, &statement[place]) {
            (_, "(") => depth += 1,
            (_, ")") => depth = depth.saturating_sub(1),
            (Token::Word, word) => words.push((depth, word.to_ascii_uppercase())),
            (_, name) if name.starts_with('"') => words.push((depth, name.into())),
            _ => {}
        }
    }
    words
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Token {
    Word,
    Semicolon,
    /// A text in quotes, or one character.
    Other,
}

struct Scan<'a> {
    text: &'a str,
    at: usize,
    /// Whether every quote and comment so far has an end.
    is_whole: bool,
}

impl Scan<'_> {
    /// The next token that is neither blank nor comment, and where it stands.
    fn token(&mut self) -> Option<(Token, Range<usize>)> {
        loop {
            let rest = &self.text[self.at..];
            let first = rest.chars().next()?;
            let start = self.at;
            let is_of_word = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
            let word = || rest.find(|c| !is_of_word(c)).unwrap_or(rest.len());
            let token = match first {
                _ if first.is_whitespace() => None,
                _ if rest.starts_with("--") || rest.starts_with("/*") => None,
                ';' => Some(Token::Semicolon),
                _ if first.is_alphabetic() || first == '_' => Some(Token::Word),
                _ => Some(Token::Other),
            };
            self.at += match first {
                _ if rest.starts_with("--") => rest.find('\n').unwrap_or(rest.len()),
                _ if rest.starts_with("/*") => self.comment(rest),
                // A quote in it is two of them, so that the text goes on as another one.
                '\'' | '"' => self.ended(rest, 1, &rest[..1]),
                'e' | 'E' if rest[1..].starts_with('\'') => self.escaped(rest),
                '$' => match rest[1..].find('$').map(|end| &rest[..end + 2]) {
                    Some(tag) if tag[1..tag.len() - 1].chars().all(|c| c.is_alphanumeric() || c == '_') => {
                        self.ended(rest, tag.len(), tag)
                    }
                    _ => 1,
                },
                _ if is_of_word(first) => word(),
                _ => first.len_utf8(),
            };
            if let Some(token) = token {
                return Some((token, start..self.at));
            }
        }
    }

    /// The length of what begins with so many bytes and ends with `end`.
    fn ended(&mut self, rest: &str, begin: usize, end: &str) -> usize {
        let found = rest[begin..].find(end).map(|at| begin + at + end.len());
        self.is_whole &= found.is_some();
        found.unwrap_or(rest.len())
    }

    /// The length of a text in which backslashes take what follows.
    fn escaped(&mut self, rest: &str) -> usize {
        let mut bytes = rest.bytes().enumerate().skip(2);
        while let Some((at, byte)) = bytes.next() {
            match byte {
                b'\'' => return at + 1,
                b'\\' => drop(bytes.next()),
                _ => {}
            }
        }
        self.is_whole = false;
        rest.len()
    }

    /// The length of a comment, which may have others in it.
    fn comment(&mut self, rest: &str) -> usize {
        let (mut at, mut depth) = (2, 1);
        while depth > 0 {
            match rest[at..].find(['*', '/']).map(|next| at + next) {
                Some(next) if rest[next..].starts_with("/*") => (at, depth) = (next + 2, depth + 1),
                Some(next) if rest[next..].starts_with("*/") => (at, depth) = (next + 2, depth - 1),
                Some(next) => at = next + 1,
                None => {
                    self.is_whole = false;
                    return rest.len();
                }
            }
        }
        at
    }
}

/// Where in a statement its words have come to.
#[derive(Default)]
struct Body {
    head: Head,
    declares: bool,
    /// How many BEGIN and CASE have no END yet.
    depth: i32,
    /// The word right before, in capitals; empty for something else.
    last: String,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Head {
    #[default]
    Start,
    /// CREATE, OR, REPLACE.
    Create,
    /// CREATE PROCEDURE or FUNCTION.
    Routine,
    Other,
}

impl Body {
    fn is_outside(&self) -> bool {
        !self.declares && self.depth <= 0
    }

    /// Goes on to a word, or to something else, which is an empty one.
    fn take(&mut self, word: &str) {
        let word = word.to_ascii_uppercase();
        self.head = match (self.head, word.as_str()) {
            (Head::Start, "CREATE") | (Head::Create, "OR" | "REPLACE") => Head::Create,
            (Head::Create, "PROCEDURE" | "FUNCTION") | (Head::Routine, _) => Head::Routine,
            _ => Head::Other,
        };
        if self.head == Head::Routine {
            match (self.last.as_str(), word.as_str()) {
                ("AS" | "IS", "DECLARE") => self.declares = true,
                // END IF and END LOOP end what is not counted.
                ("END", "IF" | "LOOP") => self.depth += 1,
                ("END", "CASE") => {}
                (_, "BEGIN") => {
                    self.declares = false;
                    self.depth += 1;
                }
                (_, "CASE") => self.depth += 1,
                (_, "END") => self.depth -= 1,
                _ => {}
            }
        }
        self.last = word;
    }
}

#[cfg(test)]
mod tests {
    use lockwork_sql::statements;

    use super::*;

    fn pieces(script: &str) -> (Vec<&str>, bool) {
        let Divided { statements, is_ended } = divide(script);
        (statements.into_iter().map(|place| &script[place]).collect(), is_ended)
    }

    #[test]
    fn semicolons_end_statements_where_they_are_none_of_something_else() {
        for (script, expected) in [
            ("", &[][..]),
            ("; ;-- a;\n/* b; /* c; */ d; */", &[]),
            ("a;b ; c", &["a;", "b ;", "c"]),
            ("a -- it's; one\n;b", &["a -- it's; one\n;", "b"]),
            ("/* a; */ b /* ' */; -- c", &["b /* ' */;"]),
            ("'a;''b;'; \"c;\";e'\\';'; é;", &["'a;''b;';", "\"c;\";", "e'\\';';", "é;"]),
            ("$$a;$$; $x$ $$;$$ $x$; $1; $2", &["$$a;$$;", "$x$ $$;$$ $x$;", "$1;", "$2"]),
            ("BEGIN; END; SELECT CASE a; b", &["BEGIN;", "END;", "SELECT CASE a;", "b"]),
            (
                "create or replace procedure p() as declare x INT; begin if a then x := case 1 end; end if; end; c",
                &[
                    "create or replace procedure p() as declare x INT; begin if a then x := case 1 end; end if; end;",
                    "c",
                ],
            ),
            (
                "CREATE PROCEDURE p() AS BEGIN CASE a END CASE; END LOOP; x; END; b",
                &["CREATE PROCEDURE p() AS BEGIN CASE a END CASE; END LOOP; x; END;", "b"],
            ),
        ] {
            assert_eq!(pieces(script).0, expected, "{script}");
        }
    }

    #[test]
    fn a_text_is_ended_when_nothing_stands_behind_its_last_semicolon() {
        for script in ["", " \n", "a;", "a; -- b", "a; /* b */\n", "CREATE PROCEDURE p() AS BEGIN a; END;"] {
            assert!(pieces(script).1, "{script}");
        }
        for script in ["a", "a; b", "a; /* b", "'a;", "\"a;", "$a$;", "e'\\';", "CREATE PROCEDURE p() IS BEGIN a;"] {
            assert!(!pieces(script).1, "{script}");
        }
    }

    #[test]
    fn a_copy_is_found_wherever_it_is_a_statement() {
        for (script, expected) in [
            ("COPY t FROM STDIN", Some(0)),
            (" -- a\n copy t TO STDOUT;", Some(7)),
            ("SELECT 1; /* ; */ Copy(SELECT 1) TO STDOUT; SELECT 2", Some(18)),
            ("\u{feff}COPY t FROM STDIN", Some(3)),
            ("BEGIN; COPY t FROM STDIN; COMMIT", Some(7)),
            ("CREATE PROCEDURE p() AS BEGIN x := 1; END; COPY t TO STDOUT", Some(43)),
            ("CREATE PROCEDURE p() AS BEGIN COPY; END", None),
            ("SELECT 'a; COPY t FROM STDIN'; -- COPY\n SELECT copy FROM t; copying", None),
            ("\"COPY\"; $$; COPY t TO STDOUT$$; COPY_t; copy$", None),
            ("", None),
        ] {
            assert_eq!(find_copy(script), expected, "{script}");
        }
    }

    #[test]
    fn every_text_is_divided_and_a_part_of_it_is_one() {
        let words =
            ["'", "\"", "$", "$a$", ";", "/*", "*/", "--", "\n", " ", "e'", "\\", "é", "1", "END", "CASE", "BEGIN"];
        let more = ["CREATE PROCEDURE ", " AS DECLARE ", "; "];
        let words: Vec<&str> = words.into_iter().chain(more).collect();
        let mut random = lockwork_random::Random(1);
        let mut count = 0;
        for _ in 0..20_000 {
            let script: String = (0..12).map(|_| random.pick(&words)).collect();
            let Divided { statements, .. } = divide(&script);
            for place in statements.split_last().map_or(&[][..], |(_, ended)| ended) {
                let part = &script[place.clone()];
                assert_eq!(pieces(part), (vec![part], true), "{script}");
                count += 1;
            }
        }
        assert!(count > 1_000);
    }

    #[test]
    fn the_parts_are_those_of_the_parser() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dev/workload/sql");
        let files =
            std::fs::read_dir(folder).unwrap().map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
        let bank = include_str!("../../../../examples/bank.sql").to_string();
        let mut count = 0;
        for script in files.chain([bank]) {
            let parsed: Vec<_> = statements(&script).map(|statement| statement.unwrap().text()).collect();
            let divided: Vec<_> = pieces(&script).0.iter().map(|text| text.trim_end_matches(';').trim_end()).collect();
            assert_eq!(divided, parsed);
            count += parsed.len();
        }
        assert!(count > 20);
    }
}
