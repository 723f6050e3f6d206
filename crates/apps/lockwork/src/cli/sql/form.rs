//! Answers as they are printed: tables for people, CSV, JSON.

use clap::ValueEnum;
use lockwork::SqlAnswer;
use lockwork::sql::{Kind, Value};
use serde_json::json;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// Tables for people
    Text,
    /// Rows alone, with a line of column names
    Csv,
    /// A JSON object a statement
    Json,
}

/// A value of an answer; nothing for a NULL, which only a server's catalog has.
pub(super) type Cell = Option<Value>;

/// What a statement answered, in a folder or at a server.
pub(super) enum Answer {
    /// It was done, and is called so.
    Done(String),
    /// So many rows were written.
    Written(i64),
    /// The rows of a SELECT, with the names of their columns.
    Rows(Vec<String>, Vec<Vec<Cell>>),
    /// The results of a CALL, by name.
    Called(Vec<(String, Cell)>),
    /// What EXPLAIN says.
    Text(String),
}

impl From<SqlAnswer> for Answer {
    fn from(answer: SqlAnswer) -> Self {
        match answer {
            SqlAnswer::Created(kind) => Self::Done(tag(kind).into()),
            SqlAnswer::Written(rows) => Self::Written(rows),
            SqlAnswer::Rows(columns, rows) => {
                Self::Rows(columns, rows.into_iter().map(|row| row.into_iter().map(Some).collect()).collect())
            }
            SqlAnswer::Called(results) => {
                Self::Called(results.into_iter().map(|(name, value)| (name, Some(value))).collect())
            }
            SqlAnswer::Text(text) => Self::Text(text),
            other => Self::Text(format!("{other:?}")),
        }
    }
}

/// What a definition is called when it is done.
pub(super) const fn tag(kind: Kind) -> &'static str {
    match kind {
        Kind::CreateTable => "CREATE TABLE",
        Kind::CreateIndex => "CREATE INDEX",
        _ => "CREATE PROCEDURE",
    }
}

/// An answer as it is printed.
pub(super) fn form(answer: &Answer, output: Output) -> String {
    match (answer, output) {
        (Answer::Done(tag), Output::Text) => format!("{tag}\n"),
        (Answer::Written(rows), Output::Text) => format!("{rows} row{}\n", if *rows == 1 { "" } else { "s" }),
        (Answer::Text(text), Output::Text | Output::Csv) => format!("{text}\n"),
        (Answer::Rows(columns, rows), Output::Text) => {
            let count = rows.len();
            format!("{}({count} row{})\n", table(columns, rows), if count == 1 { "" } else { "s" })
        }
        (Answer::Called(results), Output::Text) if results.is_empty() => "CALL\n".into(),
        (Answer::Called(results), Output::Text) => {
            let (columns, row): (Vec<_>, Vec<_>) = results.iter().cloned().unzip();
            table(&columns, &[row])
        }
        (Answer::Done(_) | Answer::Written(_), Output::Csv) => String::new(),
        (Answer::Rows(columns, rows), Output::Csv) => csv(columns, rows),
        (Answer::Called(results), Output::Csv) => {
            let (columns, row): (Vec<_>, Vec<_>) = results.iter().cloned().unzip();
            if columns.is_empty() { String::new() } else { csv(&columns, &[row]) }
        }
        (Answer::Done(tag), Output::Json) => format!("{}\n", json!({ "done": tag })),
        (Answer::Written(rows), Output::Json) => format!("{}\n", json!({ "written": rows })),
        (Answer::Text(text), Output::Json) => format!("{}\n", json!({ "text": text })),
        (Answer::Rows(columns, rows), Output::Json) => {
            let distinct: std::collections::HashSet<_> = columns.iter().collect();
            let row = |row: &Vec<Cell>| match distinct.len() == columns.len() {
                true => object(columns.iter().zip(row)),
                // An object could not hold two values of one name.
                false => row.iter().map(json_of).collect(),
            };
            let rows: Vec<_> = rows.iter().map(row).collect();
            format!("{}\n", json!({ "columns": columns, "rows": rows }))
        }
        (Answer::Called(results), Output::Json) => {
            format!("{}\n", json!({ "results": object(results.iter().map(|(name, value)| (name, value))) }))
        }
    }
}

fn object<'a>(fields: impl Iterator<Item = (&'a String, &'a Cell)>) -> serde_json::Value {
    fields.map(|(name, value)| (name.clone(), json_of(value))).collect::<serde_json::Map<_, _>>().into()
}

fn json_of(cell: &Cell) -> serde_json::Value {
    /// Decimals stay texts, because a reader of JSON may take numbers for floating-point ones.
    fn of_value(value: &Value) -> serde_json::Value {
        match value {
            Value::Integer(number) => json!(number),
            Value::Boolean(truth) => json!(truth),
            Value::Array(values) => values.iter().map(of_value).collect(),
            other => json!(other.to_string()),
        }
    }
    cell.as_ref().map(of_value).into()
}

fn text(cell: &Cell) -> String {
    cell.as_ref().map(ToString::to_string).unwrap_or_default()
}

fn table(columns: &[String], rows: &[Vec<Cell>]) -> String {
    let cells: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(text).collect()).collect();
    let width = |column: usize| {
        let cells = cells.iter().map(|row| row[column].chars().count());
        cells.chain([columns[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let is_number = |column: usize| {
        rows.iter().all(|row| matches!(row[column], Some(Value::Integer(_) | Value::Decimal(..)) | None))
    };
    let numbers: Vec<bool> = (0..columns.len()).map(is_number).collect();
    let line = |cells: &[String]| {
        let cell = |(column, cell): (usize, &String)| {
            let width = widths[column];
            if numbers[column] { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        };
        let cells: Vec<String> = cells.iter().enumerate().map(cell).collect();
        format!(" {}\n", cells.join(" | ").trim_end())
    };
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(width + 2)).collect();
    let mut text = line(columns);
    text.push_str(&format!("{}\n", rule.join("+")));
    cells.iter().for_each(|row| text.push_str(&line(row)));
    text
}

fn csv(columns: &[String], rows: &[Vec<Cell>]) -> String {
    let quoted = |cell: String| {
        let plain = !cell.contains([',', '"', '\n', '\r']);
        if plain { cell } else { format!("\"{}\"", cell.replace('"', "\"\"")) }
    };
    let mut lines = columns.iter().cloned().map(quoted).collect::<Vec<_>>().join(",") + "\n";
    for row in rows {
        lines.push_str(&(row.iter().map(|cell| quoted(text(cell))).collect::<Vec<_>>().join(",") + "\n"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_tables_lines_or_objects() {
        let form = |answer: &SqlAnswer, output| form(&answer.clone().into(), output);
        let rows = SqlAnswer::Rows(
            vec!["id".into(), "name".into()],
            vec![vec![Value::Integer(7), Value::Text("a,b".into())], vec![Value::Integer(10), Value::Text("c".into())]],
        );
        assert_eq!(form(&rows, Output::Text), " id | name\n----+------\n  7 | a,b\n 10 | c\n(2 rows)\n");
        assert_eq!(form(&rows, Output::Csv), "id,name\n7,\"a,b\"\n10,c\n");
        let expected =
            "{\"columns\":[\"id\",\"name\"],\"rows\":[{\"id\":7,\"name\":\"a,b\"},{\"id\":10,\"name\":\"c\"}]}\n";
        assert_eq!(form(&rows, Output::Json), expected);
        let called = SqlAnswer::Called(vec![("left".into(), Value::Decimal(1050, 2))]);
        assert_eq!(form(&called, Output::Text), "  left\n-------\n 10.50\n");
        assert_eq!(form(&called, Output::Json), "{\"results\":{\"left\":\"10.50\"}}\n");
    }

    #[test]
    fn a_null_is_nothing() {
        let rows = Answer::Rows(vec!["a".into(), "b".into()], vec![vec![None, Some(Value::Integer(1))]]);
        assert_eq!(form(&rows, Output::Text), " a | b\n---+---\n   | 1\n(1 row)\n");
        assert_eq!(form(&rows, Output::Csv), "a,b\n,1\n");
        assert_eq!(form(&rows, Output::Json), "{\"columns\":[\"a\",\"b\"],\"rows\":[{\"a\":null,\"b\":1}]}\n");
    }
}
