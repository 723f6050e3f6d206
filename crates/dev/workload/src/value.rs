//! Values that show when they were torn.
//!
//! Every value is expanded from a tag of eight bytes: the tag itself, then one mixed word after the other. Two halves
//! of different values, a value that was never written (zeros) or written in part do not look like that, so a check
//! needs no record of what was written. Values of eight bytes or less have no room for it and always look whole.

use lockwork_random::{STEP, mix};

#[inline(always)]
fn word(tag: u64, index: u64) -> u64 {
    if index == 0 { tag } else { mix(tag.wrapping_add(STEP.wrapping_mul(index))) }
}

/// Fills `value` from its tag.
#[inline]
pub fn write_value(tag: u64, value: &mut [u8]) {
    let mut words = value.chunks_exact_mut(8);
    let mut index = 0;
    for chunk in &mut words {
        chunk.copy_from_slice(&word(tag, index).to_le_bytes());
        index += 1;
    }
    let rest = words.into_remainder();
    let length = rest.len();
    rest.copy_from_slice(&word(tag, index).to_le_bytes()[..length]);
}

/// Whether `value` is one that [`write_value`] wrote, whole.
#[must_use]
#[inline]
pub fn is_intact(value: &[u8]) -> bool {
    let Some((tag, _)) = value.split_first_chunk::<8>() else { return true };
    let tag = u64::from_le_bytes(*tag);
    (0_u64..).zip(value.chunks(8)).all(|(index, chunk)| *chunk == word(tag, index).to_le_bytes()[..chunk.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_values_are_intact_and_torn_ones_are_not() {
        for n in [9, 16, 63, 64, 100] {
            let (mut a, mut b) = (vec![0; n], vec![0; n]);
            write_value(1, &mut a);
            write_value(2, &mut b);
            assert!(is_intact(&a) && is_intact(&b));
            assert!(!is_intact(&vec![0; n]), "never written, {n} bytes");
            for cut in 1..n {
                // The tags differ in their first byte only: what is torn inside the tag is whole from there on.
                let torn = [&a[..cut], &b[cut..]].concat();
                assert!(!is_intact(&torn), "torn at {cut} of {n}");
            }
            a[n - 1] ^= 1;
            assert!(!is_intact(&a));
        }
    }

    #[test]
    fn short_values_always_look_whole() {
        for n in 0..=8 {
            assert!(is_intact(&vec![7; n]));
        }
    }
}
