//! COPY TO STDOUT: the rows of a table as of one moment, in the order of the primary key, or those of a query.

use std::io;
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, BytesMut};
use futures::{Sink, SinkExt};
use lockwork::sql::Value;
use lockwork::{Error, Rows};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage as Message;
use pgwire::messages::copy::{CopyData, CopyDone, CopyOutResponse};
use pgwire::messages::data::DataRow;
use tokio::sync::SemaphorePermit;
use tokio::time::timeout;

use super::statement::Form;
use super::{Table, tag};
use crate::cancel::Cancel;
use crate::error::{Refusal, refuse};
use crate::prepared::Stored;
use crate::reads::Reader;
use crate::shared::Shared;
use crate::values;

/// Bytes of rows that are copied at most.
const MOST: u64 = 1 << 30;
/// Bytes of rows that are copied whatever others do.
const LITTLE: u64 = 1 << 20;
/// How many copies of more there are at a time.
pub(crate) const AT_ONCE: usize = 2;
/// How long a client may read nothing while there are rows for it. Then its connection ends, and others have its place.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Lines that are made before any is sent.
const LINES: usize = 1024;

/// Sends the rows of a table. The client sets the pace: nothing is made before what was made has been taken.
pub(super) async fn table<C>(
    database: &Shared,
    client: &mut C,
    table: &Table,
    reader: &Reader,
    cancel: &Cancel,
) -> PgWireResult<()>
where
    C: Sink<Message> + Unpin,
    PgWireError: From<<C as Sink<Message>>::Error>,
{
    let begun = Instant::now();
    let (rows, order, _room) = match rows(database, table, reader) {
        Ok(copied) => copied,
        Err(refusal) => {
            database.count_copy(begun, Some(&refusal));
            return Err(refusal.into());
        }
    };
    // What has been fed are whole messages, so the error may come behind any of them.
    match cancel.unless(send(client, table, &rows, &order, TIMEOUT)).await {
        Ok(sent) => sent?,
        Err(refusal) => {
            database.count_copy(begun, Some(&refusal));
            return Err(refusal.into());
        }
    }
    database.count_copy(begun, None);
    Ok(client.feed(tag(order.len() as u64)).await?)
}

async fn send<C>(client: &mut C, table: &Table, rows: &Rows, order: &[u32], io_timeout: Duration) -> PgWireResult<()>
where
    C: Sink<Message> + Unpin,
    PgWireError: From<<C as Sink<Message>>::Error>,
{
    let mut lines = BytesMut::new();
    begin(client, table.columns.iter().map(|column| column.name.as_str()), &table.form, &mut lines).await?;
    let mut ends = Vec::with_capacity(LINES);
    for some in order.chunks(LINES) {
        ends.clear();
        for &row in some {
            let image = &rows.images[row as usize * table.blank.len()..];
            let field =
                |column: &super::Column| match Value::read(column.sql, &image[column.at..column.at + column.width]) {
                    Value::Text(text) => text,
                    other => values::text(&other),
                };
            let before = lines.len();
            put_line(table.columns.iter().map(|column| Some(field(column))), &table.form, &mut lines);
            ends.push(lines.len() - before);
        }
        for &length in &ends {
            let line = Message::CopyData(CopyData::new(lines.split_to(length).freeze()));
            timeout(io_timeout, client.feed(line)).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        }
    }
    Ok(client.feed(Message::CopyDone(CopyDone::new())).await?)
}

/// Sends the rows that a query has answered, as texts.
pub(super) async fn answer<C>(client: &mut C, stored: &Stored, rows: Vec<DataRow>, form: &Form) -> PgWireResult<()>
where
    C: Sink<Message> + Unpin,
    PgWireError: From<<C as Sink<Message>>::Error>,
{
    let mut lines = BytesMut::new();
    let (columns, count) = (stored.columns(), rows.len() as u64);
    begin(client, columns.iter().map(|(name, ..)| name.as_str()), form, &mut lines).await?;
    for row in rows {
        let mut data = row.data;
        let fields = columns.iter().map(|_| {
            let length = usize::try_from(data.get_i32()).ok()?;
            Some(data.split_to(length))
        });
        put_line(fields, form, &mut lines);
        client.feed(Message::CopyData(CopyData::new(lines.split().freeze()))).await?;
    }
    client.feed(Message::CopyDone(CopyDone::new())).await?;
    Ok(client.feed(tag(count)).await?)
}

/// Says that lines of so many columns come, and sends their names if they are asked for.
async fn begin<'a, C>(
    client: &mut C,
    names: impl ExactSizeIterator<Item = &'a str>,
    form: &Form,
    lines: &mut BytesMut,
) -> PgWireResult<()>
where
    C: Sink<Message> + Unpin,
    PgWireError: From<<C as Sink<Message>>::Error>,
{
    let columns = names.len();
    client.feed(Message::CopyOutResponse(CopyOutResponse::new(0, columns as i16, vec![0; columns]))).await?;
    if form.header {
        put_line(names.map(Some), form, lines);
        client.feed(Message::CopyData(CopyData::new(lines.split().freeze()))).await?;
    }
    Ok(())
}

/// Copies the rows, and says in which order they go. Many take one of the places for that.
fn rows<'a>(
    database: &'a Shared,
    table: &Table,
    reader: &Reader,
) -> Result<(Rows, Vec<u32>, Option<SemaphorePermit<'a>>), Refusal> {
    let copy = |most: u64| tokio::task::block_in_place(|| database.caller.rows_at(&[&table.name], most));
    let (copied, room) = match copy(LITTLE) {
        Err(Error::TooLarge { .. }) => {
            let busy = || refuse("53000", format!("{AT_ONCE} large tables are being copied to clients already"));
            let room = database.exports.try_acquire().map_err(|_| busy().hint("try later"))?;
            (copy(MOST), Some(room))
        }
        copied => (copied, None),
    };
    let (record, copied) = copied.map_err(|error| match error {
        Error::TooLarge { .. } => {
            refuse("54000", error.to_string()).hint("SELECT the rows in parts, or copy the data folder")
        }
        error => Refusal::of(error, ""),
    })?;
    reader.saw(record);
    let rows = copied.into_iter().next().ok_or_else(|| refuse("XX000", "there is no copy"))?;
    let order = tokio::task::block_in_place(|| rows.by_key());
    Ok((rows, order, room))
}

fn put_line<F: AsRef<[u8]>>(fields: impl Iterator<Item = Option<F>>, form: &Form, line: &mut BytesMut) {
    for (at, field) in fields.enumerate() {
        if at > 0 {
            line.put_u8(form.delimiter);
        }
        match field {
            None => line.put_slice(form.null.as_bytes()),
            Some(field) if form.csv => put_quoted(field.as_ref(), form, line),
            Some(field) => put_escaped(field.as_ref(), form, line),
        }
    }
    line.put_u8(b'\n');
}

fn put_escaped(mut rest: &[u8], form: &Form, line: &mut BytesMut) {
    let is_special = |byte: &u8| *byte == form.delimiter || *byte == b'\\' || (8..=13).contains(byte);
    while let Some(at) = rest.iter().position(is_special) {
        line.put_slice(&rest[..at]);
        let letter = match rest[at] {
            8 => b'b',
            b'\t' => b't',
            b'\n' => b'n',
            11 => b'v',
            12 => b'f',
            b'\r' => b'r',
            other => other,
        };
        line.put_slice(&[b'\\', letter]);
        rest = &rest[at + 1..];
    }
    line.put_slice(rest);
}

fn put_quoted(field: &[u8], form: &Form, line: &mut BytesMut) {
    let needs = |byte: &u8| *byte == form.delimiter || *byte == form.quote || matches!(byte, b'\n' | b'\r');
    // A point behind a backslash alone in a line would end the data.
    if !field.iter().any(needs) && field != form.null.as_bytes() && field != b"\\." {
        return line.put_slice(field);
    }
    line.put_u8(form.quote);
    for &byte in field {
        if byte == form.quote || byte == form.escape {
            line.put_u8(form.escape);
        }
        line.put_u8(byte);
    }
    line.put_u8(form.quote);
}
