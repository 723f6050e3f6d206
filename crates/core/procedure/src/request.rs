//! Request ids: a client gives one to a call, so that a retry of the call is recognised and runs nothing.
//!
//! A request id is a UUID of version 7 (RFC 9562): 48 bits of Unix time in milliseconds, 4 bits of version, 12 random
//! bits, 2 bits of variant, 62 random bits. The time lets a server refuse an id that it may have forgotten. Ids compare
//! as their times do.
//!
//! A server with users keeps another id in its place, [that of the user](RequestId::of_user), so that the ids of
//! different users never meet: a UUID of version 8 with the same time, 12 bits of the user, and 62 bits of a hash of
//! the user and the id.
//!
//! This module reads no clock and makes no random numbers; the caller passes both.

use std::fmt;
use std::num::NonZeroU128;
use std::str::FromStr;

/// The version and variant bits of an id of a client and of a user, and the mask of the bits that they take.
const FIXED: u128 = 0x7000_8000_0000_0000_0000;
const FIXED_OF_USER: u128 = 0x8000_8000_0000_0000_0000;
const FIXED_MASK: u128 = 0xF000_C000_0000_0000_0000;
/// The bits of the user in an id of version 8, and where they begin.
const USER_MASK: u16 = 0xFFF;
const USER_SHIFT: u32 = 64;

/// A request id: a UUID of version 7 that a client has made, or one of version 8 that a server keeps in its place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(NonZeroU128);

impl RequestId {
    /// Returns the id of a time, in milliseconds since 1970-01-01 00:00 UTC, and of random bytes. 48 bits of the time
    /// count, and 74 bits of the random bytes.
    #[must_use]
    pub const fn new(unix_ms: u64, random: [u8; 10]) -> Self {
        let mut bits = (unix_ms as u128) << 80;
        let mut index = 0;
        while index < random.len() {
            bits |= (random[index] as u128) << (72 - 8 * index);
            index += 1;
        }
        match NonZeroU128::new(bits & !FIXED_MASK | FIXED) {
            Some(id) => Self(id),
            None => unreachable!(),
        }
    }

    /// Returns the id with these bytes, the time first; `None` when they are no UUID of version 7 or 8.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Option<Self> {
        let bits = u128::from_be_bytes(bytes);
        match NonZeroU128::new(bits) {
            Some(id) if matches!(bits & FIXED_MASK, FIXED | FIXED_OF_USER) => Some(Self(id)),
            _ => None,
        }
    }

    /// Returns what is kept in place of this id when a user has given it. 12 bits of `user` count, and 62 bits of
    /// `hash`, which is of the user and this id: who cannot find collisions of it cannot meet the id of another user.
    #[must_use]
    pub const fn of_user(self, user: u16, hash: u64) -> Self {
        let bits = (self.unix_ms() as u128) << 80 | ((user & USER_MASK) as u128) << USER_SHIFT | hash as u128;
        match NonZeroU128::new(bits & !FIXED_MASK | FIXED_OF_USER) {
            Some(id) => Self(id),
            None => unreachable!(),
        }
    }

    /// Returns the 12 bits of the user; `None` for an id of version 7.
    #[must_use]
    pub const fn user(self) -> Option<u16> {
        let bits = self.0.get();
        if bits & FIXED_MASK == FIXED_OF_USER { Some((bits >> USER_SHIFT) as u16 & USER_MASK) } else { None }
    }

    /// Returns the 16 bytes of the id, the time first.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.get().to_be_bytes()
    }

    /// Returns the time when the id was made, in milliseconds since 1970-01-01 00:00 UTC.
    #[must_use]
    pub const fn unix_ms(self) -> u64 {
        (self.0.get() >> 80) as u64
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0.get();
        let part = |shift: u32, digits: u32| bits >> shift & ((1 << (4 * digits)) - 1);
        let (a, b, c, d, e) = (part(96, 8), part(80, 4), part(64, 4), part(48, 4), part(0, 12));
        write!(f, "{a:08x}-{b:04x}-{c:04x}-{d:04x}-{e:012x}")
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text is no request id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no request id, which is a UUID of version 7 such as 0190b5a0-7c1e-7d3a-9f00-3b1c5d2e4f60")]
pub struct RequestIdError(String);

/// How to make a request id, for hints of errors.
pub const HOW_TO_MAKE: &str = "make an id once for each call with SELECT uuidv7(), lockwork request-id, \
    lockwork.request_id() in Python or lockwork::request_id() in Rust, and repeat it with the same call only";

impl FromStr for RequestId {
    type Err = RequestIdError;

    /// Reads the forms of a UUID that PostgreSQL reads: 32 hexadecimal digits, hyphens behind any group of four,
    /// braces around all of it.
    fn from_str(text: &str) -> Result<Self, RequestIdError> {
        let refused = || RequestIdError(text.chars().take(64).collect());
        let inside = text.trim();
        let inside = match inside.strip_prefix('{') {
            Some(rest) => rest.strip_suffix('}').ok_or_else(refused)?,
            None => inside,
        };
        let (mut bits, mut digits, mut may_part) = (0_u128, 0, false);
        for letter in inside.chars() {
            if letter == '-' && may_part {
                may_part = false;
                continue;
            }
            let digit = letter.to_digit(16).filter(|_| digits < 32).ok_or_else(refused)?;
            bits = bits << 4 | u128::from(digit);
            digits += 1;
            may_part = digits % 4 == 0 && digits < 32;
        }
        let id = Self::from_bytes(bits.to_be_bytes()).filter(|id| digits == 32 && id.user().is_none());
        id.ok_or_else(refused)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_id_has_the_bits_that_rfc_9562_says() {
        // The example of RFC 9562, A.6.
        let id = RequestId::new(0x017F_22E2_79B0, [0x0C, 0xC3, 0x18, 0xC4, 0xDC, 0x0C, 0x0C, 0x07, 0x39, 0x8F]);
        assert_eq!(id.to_string(), "017f22e2-79b0-7cc3-98c4-dc0c0c07398f");
        assert_eq!(id.unix_ms(), 1_645_557_742_000);
        assert!(RequestId::new(1, [0xFF; 10]) < RequestId::new(2, [0; 10]));
        assert_eq!(size_of::<Option<RequestId>>(), 16);
    }

    #[test]
    fn an_id_of_a_user_keeps_its_time_and_is_none_that_a_client_can_give() {
        let id = RequestId::new(0x017F_22E2_79B0, [0xFF; 10]);
        let kept = id.of_user(0x1ABC, u64::MAX);
        assert_eq!(kept.to_string(), "017f22e2-79b0-8abc-bfff-ffffffffffff");
        assert_eq!((kept.unix_ms(), kept.user(), id.user()), (id.unix_ms(), Some(0xABC), None));
        assert_eq!(RequestId::from_bytes(kept.to_bytes()), Some(kept));
        assert!(kept.to_string().parse::<RequestId>().is_err());
        assert_ne!(kept, id.of_user(0xABC, u64::MAX - 1));
    }

    #[test]
    fn other_texts_are_refused() {
        let right = "017f22e2-79b0-7cc3-98c4-dc0c0c07398f";
        for text in [
            right,
            "017F22E279B07CC398C4DC0C0C07398F",
            "{017f22e2-79b07cc398c4-dc0c-0c07-398f}",
            " 017f22e279b0-7cc3-98c4-dc0c0c07398f\n",
        ] {
            assert_eq!(text.parse::<RequestId>().unwrap().to_string(), right, "{text}");
        }
        for text in [
            "",
            "17",
            "017f22e2-79b0-4cc3-98c4-dc0c0c07398f",
            "017f22e2-79b0-7cc3-18c4-dc0c0c07398f",
            "017f22e2-79b0-7cc3-98c4-dc0c0c07398",
            "017f22e2-79b0-7cc3-98c4-dc0c0c07398f0",
            "017f22e2-79b0-7cc3-98c4-dc0c0c07398g",
            "017f22e2--79b0-7cc3-98c4-dc0c0c07398f",
            "017f2-2e279b0-7cc3-98c4-dc0c0c07398f",
            "017f22e2-79b0-7cc3-98c4-dc0c0c07398f-",
            "{017f22e2-79b0-7cc3-98c4-dc0c0c07398f",
            "00000000-0000-0000-0000-000000000000",
        ] {
            assert!(text.parse::<RequestId>().unwrap_err().to_string().contains("UUID of version 7"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn an_id_is_read_as_it_was_written(unix_ms in 0_u64..1 << 48, random: [u8; 10], text in ".{0,40}") {
            let id = RequestId::new(unix_ms, random);
            prop_assert_eq!(id.unix_ms(), unix_ms);
            prop_assert_eq!(id.to_string().parse(), Ok(id));
            prop_assert_eq!(RequestId::from_bytes(id.to_bytes()), Some(id));
            drop(text.parse::<RequestId>());
        }
    }
}
