//! The payload that calls make: runs of calls of one procedure, in serial order.
//!
//! ```text
//! run        procedure id (varint), head (varint),
//!            head = 1: number of calls (varint), request ids (16 each, zeros where a call has none)
//!            arguments of each call as they stand in the block
//! ```
//!
//! Without request ids the head is twice the number of calls. An earlier version of this program wrote request ids of 8
//! bytes: the head is then twice the number of calls plus one, 3 at least, and the ids follow it. They are passed over.
//!
//! How many argument bytes a call has follows from its procedure, so a run costs two or three bytes and a call nothing
//! but its arguments.

use lockwork_procedure::block::{Batch, HEADER_BYTES};
use lockwork_procedure::request::RequestId;

use super::{Cursor, put_varint};

const HEADER: usize = HEADER_BYTES as usize;
/// The most bytes that the head of a run takes: a procedure id of 32 bits, 1, and a count of 32 bits.
const RUN: usize = 5 + 1 + 5;
/// Bytes of a request id.
const REQUEST: usize = 16;
/// Bytes of a request id as an earlier version wrote it.
const SHORT_REQUEST: usize = 8;
/// The head of a run with request ids.
const WITH_REQUESTS: u64 = 1;

/// The most bytes that a call of `arguments` bytes takes.
pub(crate) const fn most_bytes(arguments: usize) -> usize {
    RUN + REQUEST + arguments
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
            requests |= same && batch.request(index as usize).is_some();
            same
        };
        let count = rest.iter().take_while(same).count();
        let (run, after) = rest.split_at(count);
        put_varint(out, u64::from(procedure));
        if requests {
            put_varint(out, WITH_REQUESTS);
            put_varint(out, count as u64);
            for &index in run {
                out.extend(batch.request(index as usize).map_or([0; REQUEST], RequestId::to_bytes));
            }
        } else {
            put_varint(out, (count as u64) << 1);
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
    /// Of each call, or empty.
    requests: &'a [[u8; REQUEST]],
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

    pub(crate) fn request(&self, index: usize) -> Option<RequestId> {
        self.requests.get(index).copied().and_then(RequestId::from_bytes)
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
        let has_requests = head == WITH_REQUESTS;
        let count = if has_requests { cursor.varint("a count of calls")? } else { head >> 1 };
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        // Calls without arguments take no bytes, so their number is bounded here.
        if count == 0 || count > 1 << 28 {
            return Err(format!("a run of {count} calls"));
        }
        let mut requests: &[[u8; REQUEST]] = &[];
        if has_requests {
            requests = cursor.take(count * REQUEST, "request ids")?.as_chunks().0;
            if requests.iter().any(|id| *id != [0; REQUEST] && RequestId::from_bytes(*id).is_none()) {
                return Err("a request id is no UUID of version 7 or 8".into());
            }
        } else if head & 1 == 1 {
            cursor.take(count * SHORT_REQUEST, "request ids")?;
        }
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
            batch.push(procedure).unwrap().bytes()[32..64].fill(number as u8 + 1);
        }
        let id = RequestId::new(77, [7; 10]);
        batch.set_request(1, id);
        let mut payload = Vec::new();
        put(&mut payload, &batch, &[4, 0, 1, 2, 3], |procedure| arguments(procedure).unwrap());
        let mut found = Vec::new();
        runs(&payload, arguments, |run| {
            found.extend((0..run.count).map(|i| (run.procedure, run.request(i), run.arguments(i).to_vec())));
            Ok(())
        })
        .unwrap();
        let expected = [(1, None, vec![5; 24]), (1, None, vec![1; 24]), (1, Some(id), vec![2; 24])];
        assert_eq!(found[..3], expected);
        assert_eq!(found[3..], [(2, None, vec![3; 3]), (0, None, vec![])]);
        assert_eq!(payload.len(), 3 + 48 + 72 + 2 + 3 + 2);
    }

    #[test]
    fn request_ids_of_eight_bytes_are_passed_over() {
        // Two calls with ids of eight bytes, and one without.
        let payload = [&[2, 2 << 1 | 1][..], &[0xEE; 16], &[5; 6], &[2, 1 << 1], &[6; 3]].concat();
        let mut found = Vec::new();
        runs(&payload, arguments, |run| {
            found.extend((0..run.count).map(|i| (run.request(i), run.arguments(i)[0])));
            Ok(())
        })
        .unwrap();
        assert_eq!(found, [(None, 5), (None, 5), (None, 6)]);
    }

    #[test]
    fn bad_payloads_are_refused_in_words() {
        let refused = |bytes: &[u8]| runs(bytes, arguments, |_| Ok(())).unwrap_err();
        assert!(refused(&[9, 2]).contains("no procedure has id 9"));
        assert!(refused(&[1, 2, 0]).contains("arguments needs 24 bytes"));
        assert!(refused(&[0, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F]).contains("a run of"));
        assert!(refused(&[0x80]).contains("procedure id"));
        assert!(refused(&[0x80, 0]).contains("no number"));
        assert!(refused(&[0, 1, 0]).contains("a run of 0 calls"));
        assert!(refused(&[0, 1, 1, 7]).contains("request ids needs 16 bytes"));
        assert!(refused(&[&[0, 1, 1][..], &[7; 16]].concat()).contains("no UUID of version 7 or 8"));
    }
}
