//! The payload that calls make: runs of calls of one procedure, in serial order.
//!
//! ```text
//! run        procedure id (varint), calls * 2 + whether request ids follow (varint),
//!            request ids (8 each, if they follow), arguments of each call as they stand in the block
//! ```
//!
//! How many argument bytes a call has follows from its procedure, so a run costs two or three bytes and a call nothing
//! but its arguments.

use lockwork_procedure::block::{Batch, HEADER_BYTES};

use super::{Cursor, put_varint};

const HEADER: usize = HEADER_BYTES as usize;
/// The most bytes that the head of a run takes: an id of 32 bits, a count of 32 and a bit.
const RUN: usize = 5 + 5;

/// The most bytes that a call of `arguments` bytes takes.
pub(crate) const fn most_bytes(arguments: usize) -> usize {
    RUN + 8 + arguments
}

/// Appends the calls of `batch` that `indexes` names, in that order. `arguments` says how many argument bytes a
/// procedure has.
pub(crate) fn put(out: &mut Vec<u8>, batch: &Batch, indexes: &[u32], arguments: impl Fn(u32) -> usize) {
    let mut rest = indexes;
    while let Some(&first) = rest.first() {
        let procedure = batch.block(first as usize).procedure();
        let mut requests = false;
        let same = |&&index: &&u32| {
            let block = batch.block(index as usize);
            let same = block.procedure() == procedure;
            requests |= same && block.request() != 0;
            same
        };
        let count = rest.iter().take_while(same).count();
        let (run, after) = rest.split_at(count);
        put_varint(out, u64::from(procedure));
        put_varint(out, (count as u64) << 1 | u64::from(requests));
        if requests {
            run.iter().for_each(|&index| out.extend(batch.block(index as usize).request().to_le_bytes()));
        }
        let end = HEADER + arguments(procedure);
        out.reserve(count * (end - HEADER));
        run.iter().for_each(|&index| out.extend_from_slice(&batch.block(index as usize).bytes()[HEADER..end]));
        rest = after;
    }
}

/// Appends one call without a request id.
pub(crate) fn put_one(out: &mut Vec<u8>, procedure: u32, arguments: &[u8]) {
    put_varint(out, u64::from(procedure));
    put_varint(out, 1 << 1);
    out.extend_from_slice(arguments);
}

/// A run of calls, as it stands in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run<'a> {
    pub(crate) procedure: u32,
    pub(crate) count: usize,
    /// Eight bytes a call, or none at all.
    requests: &'a [u8],
    arguments: &'a [u8],
    each: usize,
}

impl<'a> Run<'a> {
    pub(crate) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// The arguments of all calls, one behind the other.
    pub(crate) fn all_arguments(&self) -> &'a [u8] {
        self.arguments
    }

    pub(crate) fn request(&self, index: usize) -> u64 {
        let bytes = self.requests.get(index * 8..index * 8 + 8);
        bytes.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    }

    pub(crate) fn arguments(&self, index: usize) -> &'a [u8] {
        &self.arguments[index * self.each..(index + 1) * self.each]
    }
}

/// Gives every run of a payload to `each`. `arguments` says how many argument bytes a procedure has, `None` if there is
/// no such procedure.
///
/// # Errors
/// What is wrong with the payload, in words.
pub(crate) fn runs<'a>(
    payload: &'a [u8],
    arguments: impl Fn(u32) -> Option<usize>,
    mut each: impl FnMut(Run<'a>) -> Result<(), String>,
) -> Result<(), String> {
    let mut cursor = Cursor::new(payload);
    while cursor.left() > 0 {
        let procedure = cursor.varint("a procedure id")?;
        let procedure = u32::try_from(procedure).map_err(|_| format!("{procedure} is no procedure id"))?;
        let head = cursor.varint("a count of calls")?;
        let size = arguments(procedure).ok_or_else(|| format!("no procedure has id {procedure}"))?;
        let count = usize::try_from(head >> 1).unwrap_or(usize::MAX);
        // Calls without arguments take no bytes, so their number is bounded here.
        if count == 0 || count > 1 << 28 {
            return Err(format!("a run of {count} calls"));
        }
        let requests = if head & 1 == 1 { cursor.take(count.saturating_mul(8), "request ids")? } else { &[] };
        let bytes = cursor.take(count.saturating_mul(size), "arguments")?;
        each(Run { procedure, count, requests, arguments: bytes, each: size })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(procedure: u32) -> Option<usize> {
        [0, 24, 3].get(procedure as usize).copied()
    }

    #[test]
    fn calls_come_back_in_order() {
        let mut batch = Batch::new(64, 10).unwrap();
        for (number, procedure) in [1, 1, 2, 0, 1].into_iter().enumerate() {
            let mut block = batch.push(procedure).unwrap();
            block.bytes()[32..64].fill(number as u8 + 1);
            block.set_request(if number == 1 { 77 } else { 0 });
        }
        let mut payload = Vec::new();
        put(&mut payload, &batch, &[4, 0, 1, 2, 3], |procedure| arguments(procedure).unwrap());
        let mut found = Vec::new();
        runs(&payload, arguments, |run| {
            found.extend((0..run.count).map(|i| (run.procedure, run.request(i), run.arguments(i).to_vec())));
            Ok(())
        })
        .unwrap();
        let expected = [(1, 0, vec![5; 24]), (1, 0, vec![1; 24]), (1, 77, vec![2; 24]), (2, 0, vec![3; 3])];
        assert_eq!(found[..4], expected);
        assert_eq!(found[4], (0, 0, vec![]));
        assert_eq!(payload.len(), 2 + 24 + 48 + 24 + 2 + 3 + 2);
    }

    #[test]
    fn bad_payloads_are_refused_in_words() {
        let refused = |bytes: &[u8]| runs(bytes, arguments, |_| Ok(())).unwrap_err();
        assert!(refused(&[9, 2]).contains("no procedure has id 9"));
        assert!(refused(&[1, 2, 0]).contains("arguments needs 24 bytes"));
        assert!(refused(&[0, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F]).contains("a run of"));
        assert!(refused(&[0x80]).contains("procedure id"));
        assert!(refused(&[0x80, 0]).contains("no number"));
    }
}
