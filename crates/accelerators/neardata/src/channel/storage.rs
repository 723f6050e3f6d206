//! The storage's end: takes calls off the channel and sends back what the device answers.
//!
//! Invariant: before the outcome of a call is sent, its whole request has been taken and the host has taken every
//! piece, so that nothing about the call is under way in either direction when its number is free again.

use std::os::fd::OwnedFd;
use std::time::Duration;

use super::entry::{Body, Entry, Slots};
use super::port::{End, Port, Side};
use super::segment::{ChannelError, SLOT_BYTES, Segment};
use crate::command::answer::{self, Answer, encode_outcome};
use crate::command::{Incoming, Request};
use crate::device::{Device, DeviceError, Piece};
use crate::link::Link;

/// The storage's end of a channel.
#[derive(Debug)]
pub struct StorageEnd {
    pub(crate) port: Port,
}

impl StorageEnd {
    /// The channel that the host has made in this file.
    ///
    /// # Errors
    /// It is none, or of another layout; the text says in what.
    pub fn attach(file: OwnedFd, link: Link, spin: Duration) -> Result<Self, ChannelError> {
        Ok(Self { port: Port::new(Segment::attach(file)?, Side::Storage, link, spin) })
    }
}

/// A call that has begun.
pub(crate) struct Job<'a> {
    port: &'a Port,
    call: u16,
    slots: Slots,
    /// Slots that may be written.
    free: Vec<u16>,
}

impl<'a> Job<'a> {
    /// Waits for the next call, and calls `taken` when it is there.
    pub(crate) fn serve(port: &'a Port, device: &dyn Device, taken: impl FnOnce()) -> Result<(), End> {
        let entry = port.wait(port.common())?;
        taken();
        let Entry::Call { call, last, slots, body } = entry else {
            return port.broken(format!("{entry:?} begins no call"));
        };
        let mut job = Self { port, call, slots, free: Vec::new() };
        let outcome = match job.request(last, body)? {
            Ok(request) => job.carry_out(device, request)?,
            Err(refused) => Err(refused),
        };
        job.done(&encode_outcome(&outcome))
    }

    /// Takes the whole request.
    fn request(&mut self, mut last: bool, first: Body) -> Result<Result<Request, DeviceError>, End> {
        let (port, call) = (self.port, self.call);
        let (mut incoming, mut buffer, mut problem) = (Incoming::default(), Vec::new(), None);
        let mut fragment = match first {
            Body::Inline { length, bytes } => {
                problem = incoming.push(&bytes[..length.into()]).err();
                None
            }
            Body::Slot { slot, length } => Some((slot, length)),
        };
        loop {
            if let Some((slot, length)) = fragment.take() {
                port.read(slot, length, &mut buffer);
                if !last {
                    port.send(&Entry::Accepted { call, slot })?;
                }
                if problem.is_none() {
                    problem = incoming.push(&buffer).err();
                }
            }
            if last {
                break;
            }
            match port.wait(call)? {
                Entry::More { slot, length, last: ends, .. } => (fragment, last) = (Some((slot, length)), ends),
                entry => return port.broken(format!("{entry:?} in the middle of a request")),
            }
        }
        self.free.extend_from_slice(self.slots.all());
        let request = problem.map_or_else(|| incoming.finish(), Err);
        Ok(request.map_err(|problem| DeviceError::Refused(format!("a request that is none: {problem}"))))
    }

    fn carry_out(&mut self, device: &dyn Device, request: Request) -> Result<Result<Answer, DeviceError>, End> {
        // What ends the channel while the device is at work; the rest of its answer is dropped.
        let mut state = Ok(());
        let mut step = |state: &mut Result<(), End>, run: &mut dyn FnMut(&mut Self) -> Result<(), End>| {
            if state.is_ok() {
                *state = run(self);
            }
        };
        let outcome = match request {
            Request::CreateTable(schema) => device.create_table(&schema).map(Answer::Table),
            Request::Tables => device.tables().map(|tables| {
                for table in &tables {
                    step(&mut state, &mut |job| job.piece(&[&answer::table(table)]));
                }
                Answer::Nothing
            }),
            Request::Tuples(table) => {
                let mut some = Vec::with_capacity(SLOT_BYTES);
                answer::start_tuples(&mut some);
                let outcome = device.tuples(table, &mut |tuple| {
                    answer::put_tuple(&mut some, &tuple);
                    if some.len() + answer::TUPLE_BYTES > SLOT_BYTES {
                        step(&mut state, &mut |job| job.piece(&[&some]));
                        answer::start_tuples(&mut some);
                    }
                });
                if outcome.is_ok() {
                    step(&mut state, &mut |job| job.piece(&[&some]));
                }
                outcome.map(|()| Answer::Nothing)
            }
            Request::Flush { table, watermark, versions } => device.flush(table, &versions, watermark).map(|places| {
                step(&mut state, &mut |job| answer::records(&places, SLOT_BYTES, |parts| job.piece(parts)));
                Answer::Nothing
            }),
            Request::Read { table, vid, snapshot } => device.read(table, vid, snapshot).map(Answer::Version),
            Request::Run(operation) => device
                .run(&operation, &mut |piece| {
                    step(&mut state, &mut |job| match piece {
                        Piece::Rows { vids, images } => {
                            answer::rows(vids, images, SLOT_BYTES, |parts| job.piece(parts))
                        }
                        Piece::Modified(all) => answer::modified(all, SLOT_BYTES, |parts| job.piece(parts)),
                        Piece::Folded { rows, values } => job.piece(&[&answer::folded(rows, values)]),
                    });
                })
                .map(Answer::Ran),
            Request::Commit { transaction, timestamp } => {
                device.commit(transaction, timestamp).map(|()| Answer::Nothing)
            }
            Request::Abort(transaction) => device.abort(transaction).map(|()| Answer::Nothing),
            Request::Collect(watermark) => device.collect(watermark).map(Answer::Freed),
            Request::Status => device.status().map(Answer::Status),
        };
        state.map(|()| outcome)
    }

    fn slot(&mut self) -> Result<u16, End> {
        if let Some(slot) = self.free.pop() {
            return Ok(slot);
        }
        match self.port.wait(self.call)? {
            Entry::Taken { slot, .. } => Ok(slot),
            entry => self.port.broken(format!("{entry:?} in the middle of an answer")),
        }
    }

    fn piece(&mut self, parts: &[&[u8]]) -> Result<(), End> {
        let (slot, call) = (self.slot()?, self.call);
        let length = self.port.write(slot, parts);
        self.port.lend(call, Some(slot));
        self.port.send(&Entry::Piece { call, slot, length })
    }

    fn done(mut self, message: &[u8]) -> Result<(), End> {
        let (port, call, window) = (self.port, self.call, self.slots.all().len());
        let mut back = Vec::with_capacity(window);
        while back.len() < window {
            back.push(self.slot()?);
        }
        let slot = back[0];
        let body = Body::inline(message).unwrap_or_else(|| Body::Slot { slot, length: port.write(slot, &[message]) });
        port.finished(call);
        port.send(&Entry::Done { call, body })
    }
}
