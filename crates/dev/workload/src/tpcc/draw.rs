//! How TPC-C draws: non-uniform numbers and last names (clauses 2.1.6 and 4.3.2).

use crate::random::Random;

/// NURand's constant for last names when customers are loaded; the one of calls may differ from it by 65 to 119, but
/// not by 96 or 112.
const LOAD_NAME: u64 = 157;
/// NURand's constants of calls.
const CALL_NAME: u64 = 223;
const CALL_CUSTOMER: u64 = 259;
const CALL_ITEM: u64 = 7911;

/// The bits of the first draw of NURand for `n` values: 8191 for 100,000, 1023 for 3,000, 255 for 1,000, and as wide in
/// comparison for fewer.
fn bits(n: u64) -> u64 {
    if n > 1 << 16 { 8191 } else { (n.next_power_of_two() / 4).saturating_sub(1) }
}

/// A number from 0 to `n` - 1, those with many one bits more often.
fn nurand(random: &mut Random, n: u64, constant: u64) -> u64 {
    let bits = bits(n);
    let constant = constant & bits;
    ((random.below(bits + 1) | random.below(n)) + constant) % n
}

/// A customer's number, from 1, of `n`.
pub(super) fn customer(random: &mut Random, n: u64) -> u64 {
    1 + nurand(random, n, CALL_CUSTOMER)
}

/// An item's number, from 1, of `n`.
pub(super) fn item(random: &mut Random, n: u64) -> u64 {
    1 + nurand(random, n, CALL_ITEM)
}

/// The number of a last name of `n`, for a call.
pub(super) fn called_name(random: &mut Random, n: u64) -> u64 {
    nurand(random, n, CALL_NAME)
}

/// The number of a last name of `n`, for a customer that is loaded.
pub(super) fn loaded_name(random: &mut Random, n: u64) -> u64 {
    nurand(random, n, LOAD_NAME)
}

/// Last name number 0 to 999, at most 15 letters.
pub(super) fn last_name(number: u64) -> Vec<u8> {
    const PARTS: [&str; 10] = ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];
    let digits = [number / 100 % 10, number / 10 % 10, number % 10];
    digits.iter().flat_map(|&digit| PARTS[digit as usize].bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_of_three_parts() {
        assert_eq!(last_name(371), b"PRICALLYOUGHT");
        assert_eq!(last_name(40), b"BARPRESBAR");
        assert!((0..1000).all(|number| last_name(number).len() <= 15));
    }

    #[test]
    fn the_specifications_ranges_have_its_bits_and_draws_stay_inside() {
        assert_eq!([100_000, 3000, 1000].map(bits), [8191, 1023, 255]);
        let delta = CALL_NAME - LOAD_NAME;
        assert!((65..=119).contains(&delta) && delta != 96 && delta != 112);
        let mut random = Random::new(1);
        for n in [1, 2, 3, 10, 100, 1000, 3000, 100_000] {
            assert!((0..2000).all(|_| nurand(&mut random, n, 7911) < n), "{n}");
        }
    }

    #[test]
    fn draws_are_not_uniform() {
        let mut random = Random::new(1);
        let mut seen = vec![0_u32; 1000];
        (0..100_000).for_each(|_| seen[called_name(&mut random, 1000) as usize] += 1);
        let most = seen.iter().max().unwrap();
        assert!((2000..3200).contains(most), "{most} of 100 on average");
    }
}
