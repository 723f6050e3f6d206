//! Arrays: texts of JSON while SQLite has them, and in the words of PostgreSQL outside.

use serde_json::Value;

/// A text as an element.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// The bytes that the elements of an array need at most while they are read and written: those of the text, and of each
/// element its place in a list that grows, and the text that it may be. An object, which JSON may have, is a tree.
pub(super) fn memory(text: &str) -> usize {
    let bytes = text.bytes();
    let (separators, objects) = bytes.fold((1_usize, 0_usize), |(separators, objects), byte| match byte {
        b',' | b' ' | b'[' => (separators + 1, objects),
        b'{' => (separators, objects + 1),
        _ => (separators, objects),
    });
    2 * text.len() + separators * (3 * size_of::<Value>() + 32) + objects * 1024
}

/// The elements of an array in either form, or of a vector; nothing if it is none.
pub(super) fn elements(text: &str) -> Option<Vec<Value>> {
    match text.trim().as_bytes().first() {
        Some(b'[') => serde_json::from_str(text).ok(),
        Some(b'{') => braces(text.trim()),
        _ => text.split_whitespace().map(|word| word.parse::<i64>().ok().map(Value::from)).collect(),
    }
}

/// The elements of `{1,"a b",NULL}`.
fn braces(text: &str) -> Option<Vec<Value>> {
    let inner = text.strip_prefix('{')?.strip_suffix('}')?;
    let mut elements = Vec::new();
    if inner.trim().is_empty() {
        return Some(elements);
    }
    let mut chars = inner.chars().peekable();
    loop {
        let (mut word, mut is_quoted) = (String::new(), false);
        while let Some(c) = chars.next_if(|&c| c != ',') {
            match c {
                '"' => {
                    is_quoted = true;
                    loop {
                        match chars.next()? {
                            '"' => break,
                            '\\' => word.push(chars.next()?),
                            other => word.push(other),
                        }
                    }
                }
                '\\' => word.push(chars.next()?),
                '{' | '}' => return None,
                other => word.push(other),
            }
        }
        elements.push(match word.trim() {
            bare if is_quoted || bare.is_empty() => Value::from(word),
            bare if bare.eq_ignore_ascii_case("null") => Value::Null,
            bare => bare.parse::<i64>().map_or_else(|_| Value::from(bare), Value::from),
        });
        if chars.next().is_none() {
            return Some(elements);
        }
    }
}

/// The text of an element; nothing for NULL.
pub(super) fn text(element: &Value) -> Option<String> {
    match element {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Bool(truth) => Some(if *truth { "t" } else { "f" }.into()),
        other => Some(other.to_string()),
    }
}

/// An array as PostgreSQL writes it.
pub(super) fn written(elements: &[Value], is_bool: bool) -> String {
    let one = |element: &Value| match text(element) {
        None => "NULL".into(),
        Some(text) if is_bool => if matches!(text.as_str(), "1" | "t") { "t" } else { "f" }.into(),
        Some(text) => {
            let is_special = |c: char| c.is_whitespace() || matches!(c, '"' | '\\' | '{' | '}' | ',');
            if text.is_empty() || text.eq_ignore_ascii_case("null") || text.contains(is_special) {
                format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
            } else {
                text
            }
        }
    };
    format!("{{{}}}", elements.iter().map(one).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_read_in_every_form_and_written_in_one() {
        for (text, expected) in [
            ("[1,2]", "{1,2}"),
            ("{a,\"b c\",NULL,\"null\",\"\"}", "{a,\"b c\",NULL,\"null\",\"\"}"),
            ("{}", "{}"),
            ("1 2", "{1,2}"),
            ("", "{}"),
            (r#"{"a\"b\\"}"#, r#"{"a\"b\\"}"#),
            (r#"["a\"b"]"#, r#"{"a\"b"}"#),
        ] {
            assert_eq!(written(&elements(text).unwrap(), false), expected, "{text}");
        }
        assert_eq!(written(&elements("[1,0]").unwrap(), true), "{t,f}");
        for text in ["{", "[1", "{\"a}", "{{1}}", "a b"] {
            assert_eq!(elements(text), None, "{text}");
        }
    }
}
