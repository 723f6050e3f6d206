//! The host's end: a [`Device`] whose calls are made by another process.
//!
//! A call takes a number and slots, sends its request, and then takes what comes for it: pieces, which it copies, gives
//! back, checks, and hands over, and at last the outcome. Nothing is looked at where the storage could still change it.
//!
//! Invariant: a call's number and slots are free again only after its last entry, also when the caller's own code
//! panics on a piece: then the rest is taken and dropped.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockwork_procedure::schema::TableSchema;

use super::entry::{Body, Entry, Slots};
use super::pidfd::PidFd;
use super::port::{End, Port, Side};
use super::segment::{ChannelError, ChannelSize, SLOT_BYTES, Segment};
use super::slots::Pool;
use crate::command::answer::{Answer, Content, Elements, decode_outcome, decode_piece};
use crate::command::{Malformed, Outgoing, Request};
use crate::device::{Device, DeviceError, DeviceStatus, Operation, Piece, Ran, TableId, TransactionId, Tuple, Version};
use crate::link::Link;
use crate::record::{RecordId, Timestamp, Vid};

/// What has been moved between the processes: entries of the rings and what lies in slots. Doorbells and the counters
/// of the rings are not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Bytes from host to storage.
    pub to_storage: u64,
    /// Bytes from storage to host.
    pub to_host: u64,
    /// Calls that have ended: one round trip each.
    pub calls: u64,
    /// Pieces of answers, each of which was acknowledged.
    pub pieces: u64,
}

/// A device that lives behind a channel.
#[derive(Debug)]
pub struct RemoteDevice {
    port: Port,
    pool: Pool,
    calls: AtomicU64,
    pieces: AtomicU64,
    /// Whom to end when it breaks its promises.
    process: OnceLock<PidFd>,
}

impl RemoteDevice {
    /// A channel, and the file to hand to the storage ([`StorageEnd::attach`](super::StorageEnd::attach)). Calls wait
    /// until somebody serves it.
    ///
    /// # Errors
    /// A size that is not possible, or no memory.
    pub fn create(size: ChannelSize, link: Link, spin: Duration) -> Result<(Self, OwnedFd), ChannelError> {
        let (segment, file) = Segment::create(size)?;
        let port = Port::new(segment, Side::Host, link, spin);
        let (calls, pieces) = Default::default();
        Ok((Self { port, pool: Pool::new(size), calls, pieces, process: OnceLock::new() }, file))
    }

    /// What has been moved so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        Traffic {
            to_storage: self.port.moved.sent.load(Ordering::Relaxed),
            to_host: self.port.moved.received.load(Ordering::Relaxed),
            calls: self.calls.load(Ordering::Relaxed),
            pieces: self.pieces.load(Ordering::Relaxed),
        }
    }

    /// Says that no more calls will come. Those in flight end with [`DeviceError::Gone`].
    pub fn shut_down(&self) {
        self.pool.close();
        // If that fails, the storage is gone or worse, and needs not be told.
        let _ = self.port.send(&Entry::Shutdown);
    }

    /// Ends this process if the storage breaks its promises.
    pub(crate) fn watch(&self, process: PidFd) {
        let _ = self.process.set(process);
    }

    /// Every call in flight and every later one fails for this reason.
    pub(crate) fn finish(&self, end: End) {
        self.port.finish(end);
        self.pool.close();
    }

    /// Waits until the storage says that it takes calls.
    pub(crate) fn ready(&self) -> Result<(), DeviceError> {
        self.port.wait(self.port.common()).map(drop).map_err(|end| self.gone(end))
    }

    fn gone(&self, end: End) -> DeviceError {
        self.pool.close();
        DeviceError::Gone(match end {
            End::Shutdown => "it was shut down".into(),
            End::Gone(text) | End::Panicked(text) => text,
            End::Broken(problem) => {
                // What sends nonsense may do it to the data as well. Whoever hears that it is gone releases its locks.
                self.process.get().into_iter().for_each(PidFd::kill);
                format!("it sent what makes no sense, and was ended: {problem}")
            }
        })
    }

    fn call(
        &self,
        bulk: bool,
        outgoing: Outgoing<'_>,
        each: &mut dyn FnMut(Content<'_>) -> Result<(), Malformed>,
    ) -> Result<Answer, DeviceError> {
        let Some((call, slots)) = self.pool.acquire(bulk) else {
            return Err(self.gone(self.port.ended().cloned().unwrap_or(End::Shutdown)));
        };
        self.port.begin(call, slots);
        let call = Call { device: self, call, slots, over: false };
        let outcome = call.make(outgoing, each).map_err(|end| self.gone(end))?;
        self.calls.fetch_add(1, Ordering::Relaxed);
        outcome
    }

    /// A call without pieces.
    fn short(&self, request: &Request) -> Result<Answer, DeviceError> {
        self.call(false, Outgoing::Bytes(&request.encode()), &mut |content| unexpected(&content))
    }

    /// An answer of a kind that the call cannot have.
    fn wrong<T>(&self, answer: &Answer) -> Result<T, DeviceError> {
        let end = self.port.broken(format!("an answer to another question: {answer:?}"));
        end.map_err(|end| self.gone(end))
    }
}

fn unexpected(content: &Content<'_>) -> Result<(), Malformed> {
    let what = match content {
        Content::Bulk(_) => "of a bulk operation",
        Content::Tuples(_) => "of tuples",
        Content::Records(_) => "of record ids",
        Content::Schemas(_) => "of tables",
    };
    Err(Malformed { offset: 0, problem: format!("the call has no piece {what}") })
}

/// A call in flight.
struct Call<'a> {
    device: &'a RemoteDevice,
    call: u16,
    slots: Slots,
    /// Its last entry has come, or none will.
    over: bool,
}

impl Call<'_> {
    fn make(
        mut self,
        outgoing: Outgoing<'_>,
        each: &mut dyn FnMut(Content<'_>) -> Result<(), Malformed>,
    ) -> Result<Result<Answer, DeviceError>, End> {
        let port = &self.device.port;
        let mut buffer = Vec::new();
        self.request(outgoing, &mut buffer)?;
        let mut memory = Elements::default();
        let number = self.call;
        loop {
            match self.next()? {
                Entry::Piece { call, slot, length } => {
                    port.read(slot, length, &mut buffer);
                    port.lend(call, Some(slot));
                    port.send(&Entry::Taken { call, slot })?;
                    self.device.pieces.fetch_add(1, Ordering::Relaxed);
                    if let Err(problem) = decode_piece(&buffer, &mut memory).and_then(&mut *each) {
                        return port.broken(format!("call {number}: {problem}"));
                    }
                }
                Entry::Done { body, .. } => {
                    match body {
                        Body::Inline { length, bytes } => {
                            buffer.clear();
                            buffer.extend_from_slice(&bytes[..length.into()]);
                        }
                        Body::Slot { slot, length } => port.read(slot, length, &mut buffer),
                    }
                    return decode_outcome(&buffer).or_else(|problem| port.broken(format!("call {number}: {problem}")));
                }
                entry => return port.broken(format!("{entry:?} after the whole request was sent")),
            }
        }
    }

    /// Sends the request; afterwards the storage has all slots.
    fn request(&mut self, mut outgoing: Outgoing<'_>, buffer: &mut Vec<u8>) -> Result<(), End> {
        let (port, call, slots) = (&self.device.port, self.call, self.slots);
        let mut last = outgoing.fragment(buffer, SLOT_BYTES);
        let mut free = slots.all().to_vec();
        let body = match Body::inline(buffer) {
            Some(body) if last => body,
            _ => {
                let slot = free.remove(0);
                Body::Slot { slot, length: port.write(slot, &[buffer]) }
            }
        };
        port.lend(call, if last { None } else { Some(slots.all()[0]) });
        port.send(&Entry::Call { call, last, slots, body })?;
        while !last {
            last = outgoing.fragment(buffer, SLOT_BYTES);
            // With the last one all slots go to the storage, so all must have come back.
            while free.len() < if last { slots.all().len() } else { 1 } {
                match self.next()? {
                    Entry::Accepted { slot, .. } => free.push(slot),
                    entry => return port.broken(format!("{entry:?} before the whole request was sent")),
                }
            }
            let slot = free.pop().expect("at least one is free");
            let length = port.write(slot, &[buffer]);
            port.lend(call, if last { None } else { Some(slot) });
            port.send(&Entry::More { call, last, slot, length })?;
        }
        Ok(())
    }

    /// The next entry of this call.
    fn next(&mut self) -> Result<Entry, End> {
        let entry = self.device.port.wait(self.call);
        self.over |= matches!(entry, Ok(Entry::Done { .. }) | Err(_));
        entry
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let (call, port) = (self.call, &self.device.port);
        while !self.over && port.ended().is_none() {
            if let Ok(Entry::Piece { slot, .. }) = self.next() {
                port.lend(call, Some(slot));
                let _ = port.send(&Entry::Taken { call, slot });
            }
        }
        port.finished(call);
        self.device.pool.release(call, &self.slots);
    }
}

impl Device for RemoteDevice {
    fn create_table(&self, schema: &TableSchema) -> Result<TableId, DeviceError> {
        match self.short(&Request::CreateTable(schema.clone()))? {
            Answer::Table(table) => Ok(table),
            other => self.wrong(&other),
        }
    }

    fn tables(&self) -> Result<Vec<TableSchema>, DeviceError> {
        let mut tables = Vec::new();
        let answer = self.call(true, Outgoing::Bytes(&Request::Tables.encode()), &mut |content| match content {
            Content::Schemas(some) => {
                tables.extend(some);
                Ok(())
            }
            other => unexpected(&other),
        })?;
        self.nothing(&answer)?;
        Ok(tables)
    }

    fn tuples(&self, table: TableId, each: &mut dyn FnMut(Tuple<'_>)) -> Result<(), DeviceError> {
        let request = Request::Tuples(table).encode();
        let answer = self.call(true, Outgoing::Bytes(&request), &mut |content| match content {
            Content::Tuples(some) => {
                some.into_iter().for_each(&mut *each);
                Ok(())
            }
            other => unexpected(&other),
        })?;
        self.nothing(&answer)
    }

    fn flush(&self, table: TableId, versions: &[Version], watermark: Timestamp) -> Result<Vec<RecordId>, DeviceError> {
        let outgoing = Outgoing::flush(table, versions, watermark).map_err(DeviceError::Refused)?;
        let mut records = Vec::with_capacity(versions.len());
        let answer = self.call(true, outgoing, &mut |content| match content {
            Content::Records(some) if records.len() + some.len() <= versions.len() => {
                records.extend(some);
                Ok(())
            }
            other => unexpected(&other),
        })?;
        self.nothing(&answer)?;
        if records.len() == versions.len() {
            return Ok(records);
        }
        let problem = format!("{} record ids for {} versions", records.len(), versions.len());
        self.port.broken(problem).map_err(|end| self.gone(end))
    }

    fn read(&self, table: TableId, vid: Vid, snapshot: Timestamp) -> Result<Option<Version>, DeviceError> {
        match self.short(&Request::Read { table, vid, snapshot })? {
            Answer::Version(version) if version.as_ref().is_none_or(|version| version.vid == vid) => Ok(version),
            other => self.wrong(&other),
        }
    }

    fn run(&self, operation: &Operation, piece: &mut dyn FnMut(Piece<'_>)) -> Result<Ran, DeviceError> {
        let request = Request::Run(operation.clone()).encode();
        if request.len() > crate::command::MAX_REQUEST_BYTES {
            let (bytes, most) = (request.len(), crate::command::MAX_REQUEST_BYTES);
            return Err(DeviceError::Refused(format!("an operation of {bytes} bytes; at most {most} are possible")));
        }
        let answer = self.call(true, Outgoing::Bytes(&request), &mut |content| match content {
            Content::Bulk(some) => {
                piece(some);
                Ok(())
            }
            other => unexpected(&other),
        })?;
        match answer {
            Answer::Ran(ran) => Ok(ran),
            other => self.wrong(&other),
        }
    }

    fn commit(&self, transaction: TransactionId, timestamp: Timestamp) -> Result<(), DeviceError> {
        let answer = self.short(&Request::Commit { transaction, timestamp })?;
        self.nothing(&answer)
    }

    fn abort(&self, transaction: TransactionId) -> Result<(), DeviceError> {
        let answer = self.short(&Request::Abort(transaction))?;
        self.nothing(&answer)
    }

    fn collect(&self, watermark: Timestamp) -> Result<u64, DeviceError> {
        match self.short(&Request::Collect(watermark))? {
            Answer::Freed(count) => Ok(count),
            other => self.wrong(&other),
        }
    }

    fn status(&self) -> Result<DeviceStatus, DeviceError> {
        match self.short(&Request::Status)? {
            Answer::Status(status) => Ok(status),
            other => self.wrong(&other),
        }
    }
}

impl RemoteDevice {
    fn nothing(&self, answer: &Answer) -> Result<(), DeviceError> {
        if *answer == Answer::Nothing { Ok(()) } else { self.wrong(answer) }
    }
}
