//! Which of the names that exist was probably meant.

/// The longest name that is compared with others; names of the language are at most 63 characters long.
const MAX_COMPARED: usize = 64;
/// How many names a message lists when none is near.
const MAX_LISTED: usize = 8;

/// How a message about an unknown `name` ends: the nearest candidate as a question, else the list of candidates, else
/// nothing.
pub(super) fn suggestion<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    let mut nearest: Option<(usize, &str)> = None;
    let mut listed: Vec<&str> = Vec::new();
    let mut more = 0_usize;
    for candidate in candidates {
        if let Some(distance) = near(name, candidate)
            && nearest.is_none_or(|(best, _)| distance < best)
        {
            nearest = Some((distance, candidate));
        }
        if listed.len() < MAX_LISTED {
            listed.push(candidate);
        } else {
            more += 1;
        }
    }
    match (nearest, listed.is_empty()) {
        (Some((_, candidate)), _) => format!("; did you mean '{candidate}'?"),
        (None, true) => String::new(),
        (None, false) if more == 0 => format!("; there are: {}", listed.join(", ")),
        (None, false) => format!("; there are: {} and {more} more", listed.join(", ")),
    }
}

/// The distance between two names, if it is small enough for one to be a slip for the other: a third of the longer.
fn near(a: &str, b: &str) -> Option<usize> {
    let longer = a.len().max(b.len());
    let allowed = (longer / 3).max(1);
    if longer > MAX_COMPARED || a.len().abs_diff(b.len()) > allowed {
        return None;
    }
    Some(distance(a.as_bytes(), b.as_bytes())).filter(|&distance| distance <= allowed && distance < longer)
}

/// Insertions, deletions, substitutions and exchanges of neighbours that make `a` into `b` (optimal string alignment).
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut before_last = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let substituted = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = substituted.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before_last[j - 2] + 1);
            }
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slip_is_one_step() {
        for (a, b, steps) in [
            ("amout", "amount", 1),
            ("amuont", "amount", 1),
            ("amount", "amount", 0),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(a.as_bytes(), b.as_bytes()), steps, "{a} {b}");
            assert_eq!(distance(b.as_bytes(), a.as_bytes()), steps, "{b} {a}");
        }
    }

    #[test]
    fn the_nearest_name_is_asked_for_and_far_ones_are_listed() {
        assert_eq!(suggestion("amout", ["from", "amount"]), "; did you mean 'amount'?");
        assert_eq!(suggestion("zzz", ["from", "amount"]), "; there are: from, amount");
        assert_eq!(suggestion("x", ["y"]), "; there are: y");
        assert_eq!(suggestion("zzz", []), "");
        let many: Vec<String> = (0..10).map(|i| format!("name{i}")).collect();
        assert!(suggestion("zzz", many.iter().map(String::as_str)).ends_with("name7 and 2 more"));
    }
}
