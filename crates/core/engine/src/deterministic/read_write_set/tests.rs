//! Claims of random accesses: whoever meets in the database meets in a claim.

use super::super::filter::Filter;
use super::*;
use proptest::prelude::*;

/// A row, or the keys from one to another, of one of two tables.
#[derive(Clone, Copy, Debug)]
struct Touch {
    table: u16,
    first: u64,
    last: u64,
    operation: Operation,
}

/// A scanned table.
const CUT: Cut =
    Cut { shift: 64, last: u64::MAX, changes: true, read: true, written: false, ranges: 0, bits: 0, widest: 0 };

fn key(value: u64) -> Key {
    Key([value << 20, 0, 0, 0])
}

fn touch() -> impl Strategy<Value = Touch> {
    let operations = [Operation::Search, Operation::Update, Operation::Insert, Operation::Remove, Operation::Scan];
    (0_u16..2, 0_u64..40, 0_u64..10, prop::sample::select(operations.to_vec())).prop_map(
        |(table, first, more, operation)| {
            let last = if operation == Operation::Scan { first + more } else { first };
            Touch { table, first, last, operation }
        },
    )
}

fn meet(a: &Touch, b: &Touch) -> bool {
    let apart = a.table != b.table || a.last < b.first || b.last < a.first;
    !apart && (a.operation.writes() || b.operation.writes())
}

fn claims(granules: &Granules, touches: &[Touch]) -> Vec<Claim> {
    let mut read_write_set = ReadWriteSet::default();
    read_write_set.clear();
    for touch in touches {
        let (first, last) = (key(touch.first), key(touch.last));
        if touch.operation == Operation::Scan {
            assert!(read_write_set.scan(granules, touch.table, &first, &last, 0));
        } else {
            read_write_set.point(granules, touch.table, touch.operation, &first, first.hash(), 0);
        }
    }
    let mut names: Vec<u64> = read_write_set.claims().iter().map(|claim| claim.record).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), read_write_set.claims().len(), "each name once");
    read_write_set.claims().to_vec()
}

fn excludes(a: &[Claim], b: &[Claim]) -> bool {
    a.iter().any(|a| b.iter().any(|b| a.record == b.record && !a.hold.compatible(b.hold)))
}

proptest! {
    #[test]
    fn who_meets_in_the_database_meets_in_a_claim(
        a in prop::collection::vec(touch(), 1..30),
        b in prop::collection::vec(touch(), 1..30),
        shift in 18_u32..=64,
        last in 0_u64..60,
        others in 0_u64..40,
    ) {
        let cut = Cut { shift, last: last << 20, ..CUT };
        let granules = Granules { cuts: vec![cut; 2], whole: false };
        let (first, second) = (claims(&granules, &a), claims(&granules, &b));
        let met = a.iter().any(|a| b.iter().any(|b| meet(a, b)));
        prop_assert!(!met || excludes(&first, &second));
        // What decision bits leave out excludes nobody.
        let mut filter = Filter::default();
        filter.prepare(2, others as usize);
        let kept = |number: usize, claims: &[Claim]| {
            // SAFETY: this thread is all workers, one after the other.
            let bits = unsafe { filter.begin(number) };
            claims.iter().for_each(|claim| filter.note(bits, claim.record, claim.hold));
        };
        kept(0, &first);
        kept(1, &second);
        // SAFETY: as above.
        unsafe {
            (0..2).for_each(|number| filter.add_up(number, 2));
            let keep = |claims: &[Claim]| -> Vec<Claim> {
                claims.iter().filter(|claim| filter.may_conflict(claim.record)).copied().collect()
            };
            prop_assert_eq!(excludes(&keep(&first), &keep(&second)), excludes(&first, &second));
        }
    }

    #[test]
    fn what_may_hold_with_both_may_hold_with_their_join(a in 0_usize..4, b in 0_usize..4, c in 0_usize..4) {
        let [a, b, c] = [a, b, c].map(|number| Hold::ALL[number]);
        if a.compatible(b) {
            prop_assert_eq!(c.compatible(a.join(b)), c.compatible(a) && c.compatible(b));
        }
    }
}

#[test]
fn granules_follow_the_ranges() {
    let mut granules = Granules { cuts: vec![CUT], whole: false };
    let mut read_write_set = ReadWriteSet::default();
    let claimed = |read_write_set: &mut ReadWriteSet, granules: &Granules, last: u64| {
        read_write_set.clear();
        let fits = read_write_set.scan(granules, 0, &Key([0; 4]), &Key([last, 0, 0, 0]), 0);
        fits.then_some(read_write_set.claims().len())
    };
    assert_eq!(claimed(&mut read_write_set, &granules, 1_000), Some(1));
    granules.follow([&mut read_write_set].into_iter());
    assert_eq!(claimed(&mut read_write_set, &granules, 1_000), Some(1));
    assert_eq!(claimed(&mut read_write_set, &granules, 10_000), Some(10));
    assert_eq!(claimed(&mut read_write_set, &granules, 1_000_000), None);
    granules.follow([&mut read_write_set].into_iter());
    assert!(claimed(&mut read_write_set, &granules, 1_000_000).is_some());
}
