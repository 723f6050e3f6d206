//! Times on the command line.

use std::time::Duration;

/// The longest time: six weeks, which are 32 bits of milliseconds.
const LONGEST_HOURS: f64 = 1000.0;

/// Parses a time as people write it: `500ms`, `2s`, `1.5m`, `1h`; a number alone is seconds.
///
/// # Errors
/// A text for people: what is wrong with it, and an example.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is no time: write a number and ms, s, m or h, such as 500ms or 2s");
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.trim().parse().map_err(|_| wrong())?;
    let seconds = match unit {
        "ms" => number / 1e3,
        "s" | "" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err(wrong()),
    };
    if seconds > LONGEST_HOURS * 3600.0 {
        return Err(format!("'{text}' is too long: at most {LONGEST_HOURS}h"));
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_units_and_nonsense_is_refused() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2s"), Ok(Duration::from_secs(2)));
        assert_eq!(duration("2"), Ok(Duration::from_secs(2)));
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        for wrong in ["", "s", "-1s", "5 parsecs", "1d", "nan", "inf", "1e300h"] {
            assert!(duration(wrong).is_err_and(|message| message.contains("500ms")), "{wrong}");
        }
        assert_eq!(duration("1000h"), Ok(Duration::from_secs(3_600_000)));
        for long in ["1001h", "99999999999s"] {
            assert_eq!(duration(long), Err(format!("'{long}' is too long: at most 1000h")));
        }
    }
}
