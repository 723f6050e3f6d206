//! What measurements are summed up by.

/// Returns the middle of some values: of an even number of them the upper one, of none NaN.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_and_of_two_the_upper() {
        assert_eq!((median([3.0, 1.0, 2.0]), median([1.0, 2.0]), median([5.0])), (2.0, 2.0, 5.0));
        assert!(median([]).is_nan());
    }
}
