//! Lines and fields of what is copied, out of bytes that come in any pieces.

use super::statement::Form;
use crate::error::{Refusal, refuse};

/// Bytes of a line at most: a row has 64 KiB, and a byte of it four characters.
const LONGEST: usize = 1 << 20;

/// Divides bytes into records: lines, or what stands on several in quotes.
#[derive(Debug)]
pub(super) struct Reader {
    csv: bool,
    quote: u8,
    /// `None` where it is the quote.
    escape: Option<u8>,
    buffer: Vec<u8>,
    /// Where the first record of the buffer begins, and how far it has been looked at.
    begin: usize,
    seen: usize,
    quoted: bool,
    escaped: bool,
    /// Lines that have ended.
    lines: u64,
    ended: bool,
}

impl Reader {
    pub(super) fn new(form: &Form) -> Self {
        Self {
            csv: form.csv,
            quote: form.quote,
            escape: (form.escape != form.quote).then_some(form.escape),
            buffer: Vec::new(),
            begin: 0,
            seen: 0,
            quoted: false,
            escaped: false,
            lines: 0,
            ended: false,
        }
    }

    /// The line at which the record ended that was given last, from 1.
    pub(super) fn line(&self) -> u64 {
        self.lines
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.begin);
        self.seen -= self.begin;
        self.begin = 0;
        if !self.ended {
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// The next record, if all of it is there; behind the last bytes, what is left.
    ///
    /// # Errors
    /// It is too long, or ends within quotes.
    pub(super) fn next(&mut self, is_last: bool) -> Result<Option<&[u8]>, Refusal> {
        let Some(end) = self.end(is_last)? else { return Ok(None) };
        let record = &self.buffer[self.begin..end];
        let record = record.strip_suffix(b"\n").unwrap_or(record);
        let record = record.strip_suffix(b"\r").unwrap_or(record);
        self.begin = end;
        if record == b"\\." {
            self.ended = true;
            self.begin = self.buffer.len();
            self.seen = self.begin;
            return Ok(None);
        }
        Ok(Some(record))
    }

    /// Where the next record ends, behind the end of its line.
    fn end(&mut self, is_last: bool) -> Result<Option<usize>, Refusal> {
        while self.seen < self.buffer.len() {
            let byte = self.buffer[self.seen];
            self.seen += 1;
            if byte == b'\n' {
                self.lines += 1;
                if !self.quoted && !self.escaped {
                    return Ok(Some(self.seen));
                }
            }
            if !self.csv {
                self.escaped = byte == b'\\' && !self.escaped;
                continue;
            }
            if byte == self.quote && !self.escaped {
                self.quoted = !self.quoted;
            }
            self.escaped = self.quoted && Some(byte) == self.escape && !self.escaped;
        }
        if self.buffer.len() - self.begin > LONGEST {
            self.lines += 1;
            return Err(refuse("54000", format!("a line has more than {LONGEST} bytes")));
        }
        if !is_last || self.begin == self.buffer.len() {
            return Ok(None);
        }
        self.lines += 1;
        if self.quoted {
            return Err(refuse("22P04", "unterminated CSV quoted field"));
        }
        Ok(Some(self.buffer.len()))
    }
}

/// The fields of a record.
#[derive(Debug, Default)]
pub(super) struct Fields {
    bytes: Vec<u8>,
    /// Where each ends, and whether it is NULL.
    ends: Vec<(usize, bool)>,
}

impl Fields {
    /// The bytes of each; none for NULL.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = Option<&[u8]>> {
        let begin = |at: usize| at.checked_sub(1).map_or(0, |before| self.ends[before].0);
        self.ends.iter().enumerate().map(move |(at, &(end, is_null))| (!is_null).then(|| &self.bytes[begin(at)..end]))
    }

    pub(super) fn split(&mut self, record: &[u8], form: &Form) {
        self.bytes.clear();
        self.ends.clear();
        let mut rest = record;
        while let Some(behind) = if form.csv { self.quoted(rest, form) } else { self.escaped(rest, form) } {
            rest = behind;
        }
    }

    /// Takes a field in which a backslash says what comes, and gives what stands behind its delimiter.
    fn escaped<'a>(&mut self, rest: &'a [u8], form: &Form) -> Option<&'a [u8]> {
        let mut at = 0;
        while let Some(&byte) = rest.get(at) {
            if byte == form.delimiter {
                break;
            }
            at += 1;
            if byte != b'\\' {
                self.bytes.push(byte);
                continue;
            }
            let Some(&escaped) = rest.get(at) else {
                self.bytes.push(b'\\');
                break;
            };
            at += 1;
            let (digits, base) = match escaped {
                b'0'..=b'7' => (&rest[at - 1..rest.len().min(at + 2)], 8),
                b'x' => (&rest[at..rest.len().min(at + 2)], 16),
                _ => (&rest[..0], 8),
            };
            let digits = digits.iter().map_while(|&digit| char::from(digit).to_digit(base));
            let (count, number) = digits.fold((0, 0), |(count, number), digit| (count + 1, number * base + digit));
            self.bytes.push(match escaped {
                b'b' => 8,
                b'f' => 12,
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'v' => 11,
                _ if count > 0 => {
                    at += count - usize::from(base == 8);
                    number as u8
                }
                other => other,
            });
        }
        let is_null = rest[..at] == *form.null.as_bytes();
        self.ends.push((self.bytes.len(), is_null));
        (at < rest.len()).then(|| &rest[at + 1..])
    }

    /// Takes a field that may stand in quotes, wholly or in part.
    fn quoted<'a>(&mut self, rest: &'a [u8], form: &Form) -> Option<&'a [u8]> {
        let (begin, mut at) = (self.bytes.len(), 0);
        let (mut inside, mut was_inside) = (false, false);
        while let Some(&byte) = rest.get(at) {
            if !inside && byte == form.delimiter {
                break;
            }
            at += 1;
            let next = rest.get(at).copied().filter(|&next| next == form.quote || next == form.escape);
            if let (true, true, Some(next)) = (inside, byte == form.escape, next) {
                self.bytes.push(next);
                at += 1;
            } else if byte == form.quote {
                inside = !inside;
                was_inside = true;
            } else {
                self.bytes.push(byte);
            }
        }
        let is_null = !was_inside && self.bytes[begin..] == *form.null.as_bytes();
        self.ends.push((self.bytes.len(), is_null));
        (at < rest.len()).then(|| &rest[at + 1..])
    }
}

#[cfg(test)]
mod tests {
    use super::super::statement;
    use super::*;

    /// A record, and the line at which it ends.
    type Found = (u64, Vec<Option<String>>);

    /// The records of a text that comes in pieces of a size.
    fn records(options: &str, text: &[u8], piece: usize) -> Result<Vec<Found>, Refusal> {
        let form = statement::read(&format!("COPY t FROM STDIN {options}")).unwrap().form;
        let (mut reader, mut fields, mut records) = (Reader::new(&form), Fields::default(), Vec::new());
        let mut pieces: Vec<&[u8]> = text.chunks(piece).collect();
        pieces.push(b"");
        for (at, piece) in pieces.iter().enumerate() {
            reader.push(piece);
            while let Some(record) = reader.next(at + 1 == pieces.len())? {
                fields.split(record, &form);
                let one = |field: Option<&[u8]>| field.map(|field| String::from_utf8_lossy(field).into_owned());
                records.push((reader.line(), fields.iter().map(one).collect()));
            }
        }
        Ok(records)
    }

    #[test]
    fn fields_are_the_same_in_pieces_of_any_size() {
        for (options, text, expected) in [
            ("", "1\ta\r\n2\t\\N\n", vec![(1, vec![Some("1"), Some("a")]), (2, vec![Some("2"), None])]),
            ("", "a\\tb\\\\n\\n\\101\\x41\\q\\\nc", vec![(2, vec![Some("a\tb\\n\nAAq\nc")])]),
            ("", "\\\\N\t\\\\.\n\n\\.\nignored\n", vec![(1, vec![Some("\\N"), Some("\\.")]), (2, vec![Some("")])]),
            ("NULL ''", "\t\n", vec![(1, vec![None, None])]),
            ("DELIMITER '|'", "a\\|b|c", vec![(1, vec![Some("a|b"), Some("c")])]),
            ("CSV", "1,\"a,\"\"b\"\"\nc\",,\"\"\n", vec![(2, vec![Some("1"), Some("a,\"b\"\nc"), None, Some("")])]),
            ("CSV", "a\"b\"c,\\n\n\\.\nx\n", vec![(1, vec![Some("abc"), Some("\\n")])]),
            ("CSV NULL 'x'", "x,\"x\",", vec![(1, vec![None, Some("x"), Some("")])]),
            ("CSV QUOTE '''' ESCAPE '\\'", "'a\\'b\\\\',c\\\n", vec![(1, vec![Some("a'b\\"), Some("c\\")])]),
            ("CSV", "", vec![]),
        ] {
            let own = |field: &Option<&str>| field.map(String::from);
            let expected: Vec<_> =
                expected.iter().map(|(line, fields)| (*line, fields.iter().map(own).collect::<Vec<_>>())).collect();
            for piece in 1..=text.len().max(1) {
                assert_eq!(records(options, text.as_bytes(), piece).unwrap(), expected, "{options} {text:?}");
            }
        }
        assert_eq!(records("CSV", b"a,\"b\nc", 3).unwrap_err().sqlstate, "22P04");
        assert_eq!(records("", &vec![b'a'; LONGEST + 9], 4096).unwrap_err().sqlstate, "54000");
        assert_eq!(records("CSV", &vec![b'"'; 1 << 12], 7).unwrap().len(), 1);
    }
}
