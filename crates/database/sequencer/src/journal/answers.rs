//! What calls answered, as a digest that stands in their record: whoever runs the calls again compares.
//!
//! It is of what is the same on every engine: status, abort code and results, in the order of the log. It costs a few
//! nanoseconds a call, and finds an engine that goes another way at the first call that can be seen to. What no call
//! has read since is found by the digest of the whole database ([`super::compare`]).

use lockwork_procedure::block::Block;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The digest of what one call answered; `results` is where in its block they are.
pub(crate) fn of_call(block: Block<'_>, (start, length): (usize, usize)) -> u64 {
    let outcome = u64::from(block.abort_code()) << 8 | block.status().map_or(0, |status| status as u64);
    xxh3_64_with_seed(block.bytes().get(start..start + length).unwrap_or_default(), outcome)
}

/// What the calls of a record answered, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answers(pub(crate) u64);

impl Answers {
    /// Bytes of it in a record.
    pub(crate) const BYTES: usize = 8;

    /// Adds what a further call answered.
    pub(crate) fn add(&mut self, call: u64) {
        self.0 = (self.0.rotate_left(5) ^ call).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1);
    }

    /// A record's payload, parted into this and its calls.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(crate) fn split(payload: &[u8]) -> Result<(Self, &[u8]), String> {
        match payload.split_first_chunk() {
            Some((answers, calls)) if !calls.is_empty() => Ok((Self(u64::from_le_bytes(*answers)), calls)),
            _ => Err(format!("a record of calls of {} bytes", payload.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    use lockwork_procedure::block::{Batch, Status};

    use super::*;

    #[test]
    fn every_part_of_an_answer_counts_and_nothing_else() {
        let of = |status, code, results: &[u8], argument: u8| {
            let mut batch = Batch::new(64, 1).unwrap();
            let mut block = batch.push(3).unwrap();
            block.bytes()[32] = argument;
            block.bytes()[40..40 + results.len()].copy_from_slice(results);
            block.set_outcome(status, code);
            of_call(batch.block(0), (40, 16))
        };
        let one = of(Status::Committed, 0, &[1; 16], 0);
        assert_eq!(one, of(Status::Committed, 0, &[1; 16], 7), "arguments are in the log");
        let mut others = vec![one, of(Status::Aborted, 0, &[1; 16], 0), of(Status::Committed, 1, &[1; 16], 0)];
        for bit in 0..128 {
            let mut results = [1; 16];
            results[bit / 8] ^= 1 << (bit % 8);
            others.push(of(Status::Committed, 0, &results, 0));
        }
        let count = others.len();
        others.sort_unstable();
        others.dedup();
        assert_eq!(others.len(), count);
    }

    #[test]
    fn order_and_number_of_calls_count() {
        let of = |calls: &[u64]| {
            let mut answers = Answers::default();
            calls.iter().for_each(|&call| answers.add(call));
            answers
        };
        let all = [&[][..], &[0], &[0, 0], &[1], &[1, 2], &[2, 1], &[1, 2, 3], &[3, 2, 1]].map(of);
        for (at, one) in all.iter().enumerate() {
            assert!(all[..at].iter().all(|other| other != one), "{at}");
        }
        assert!(
            Answers::split(&[1, 0, 0, 0, 0, 0, 0, 0, 9]).is_ok_and(|(answers, calls)| answers.0 == 1 && calls == [9])
        );
        for bytes in [8, 3] {
            let refused = Answers::split(&[0; 8][..bytes]).map(drop);
            assert_eq!(refused, Err(format!("a record of calls of {bytes} bytes")));
        }
    }
}
