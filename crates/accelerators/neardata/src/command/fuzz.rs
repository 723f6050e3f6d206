//! What must hold of any bytes that the other process may send.
//!
//! The functions panic when a promise of this module is broken, and do nothing when the input is refused.

use super::Request;
use super::answer::{Content, Elements, decode_outcome, decode_piece, encode_outcome, modified, records, rows};
use super::wire::Malformed;
use crate::device::Piece;

/// Any bytes as a request, a piece and an outcome: no panic; what decodes is written as the same bytes.
///
/// # Panics
/// When that does not hold.
pub fn message(bytes: &[u8]) {
    match Request::decode(bytes) {
        Ok(request) => assert_eq!(request.encode(), bytes, "one request has one form"),
        Err(error) => has_place(&error, bytes),
    }
    match decode_outcome(bytes) {
        Ok(outcome) => assert_eq!(encode_outcome(&outcome), bytes, "one outcome has one form"),
        Err(error) => has_place(&error, bytes),
    }
    match decode_piece(bytes, &mut Elements::default()) {
        Ok(content) => {
            if let Some(again) = encode(&content) {
                assert_eq!(again, bytes, "one piece has one form");
            }
        }
        Err(error) => has_place(&error, bytes),
    }
}

fn has_place(Malformed { offset, problem }: &Malformed, bytes: &[u8]) {
    assert!(*offset <= bytes.len() && !problem.is_empty(), "an error has a place and a message");
}

/// The piece as bytes; nothing if a device would not send it, because it is empty or its rows are wider than any.
fn encode(content: &Content<'_>) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let send = |parts: &[&[u8]]| -> Result<(), ()> {
        parts.iter().for_each(|part| out.extend_from_slice(part));
        Ok(())
    };
    let limit = 1 << 20;
    match content {
        Content::Bulk(Piece::Rows { vids, images }) if images.len() <= 65_536 => rows(vids, images, limit, send),
        Content::Bulk(Piece::Modified(all)) => modified(all, limit, send),
        Content::Records(all) => records(all, limit, send),
        _ => return None,
    }
    .expect("nothing fails");
    (!out.is_empty()).then_some(out)
}
