//! What stands in the rings: 64 bytes each.
//!
//! ```text
//! word 0    kind, 1 byte | flags, 1 byte | call, 2 bytes | length, 4 bytes
//! word 1    position in the ring
//! word 2-3  slots, 2 bytes each; 0xffff where there is none
//! word 4-7  a message of at most 32 bytes
//! ```
//!
//! | kind | from | meaning |
//! |---|---|---|
//! | call | host | the first fragment of a request, and the slots that its call may use |
//! | more | host | a further fragment |
//! | taken | host | a piece was copied; its slot is the storage's again |
//! | shutdown | host | nothing more will come |
//! | ready | storage | the storage takes calls |
//! | accepted | storage | a fragment was copied; its slot is the host's again |
//! | piece | storage | part of an answer |
//! | done | storage | how the call ended; the last one about it |
//!
//! Invariant: an entry has one form. What is not used is zero, or 0xffff for slots, and anything else is refused.

use super::ring::Words;
use super::segment::{ChannelSize, SLOT_BYTES};

/// The longest message that travels in an entry.
pub(crate) const INLINE_BYTES: usize = 32;
/// The most slots of a call.
pub(crate) const WINDOW: usize = 4;
const NO_SLOT: u16 = u16::MAX;
/// Flag: the last fragment.
const LAST: u8 = 1;
/// Flag: the message is in the entry.
const INLINE: u8 = 2;

/// Slots of a call, all different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slots {
    slots: [u16; WINDOW],
    count: usize,
}

impl Slots {
    /// # Panics
    /// If there are none, or too many.
    pub(crate) fn new(some: &[u16]) -> Self {
        assert!((1..=WINDOW).contains(&some.len()), "{} slots for a call", some.len());
        let mut slots = [NO_SLOT; WINDOW];
        slots[..some.len()].copy_from_slice(some);
        Self { slots, count: some.len() }
    }

    pub(crate) fn all(&self) -> &[u16] {
        &self.slots[..self.count]
    }
}

/// Where a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// In the entry.
    Inline { length: u8, bytes: [u8; INLINE_BYTES] },
    /// In a slot; in that of a [`Entry::Call`], the first of its slots.
    Slot { slot: u16, length: u32 },
}

impl Body {
    /// A message that fits the entry.
    pub(crate) fn inline(message: &[u8]) -> Option<Self> {
        let mut bytes = [0; INLINE_BYTES];
        bytes.get_mut(..message.len())?.copy_from_slice(message);
        Some(Self::Inline { length: message.len() as u8, bytes })
    }
}

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Call { call: u16, last: bool, slots: Slots, body: Body },
    More { call: u16, last: bool, slot: u16, length: u32 },
    Taken { call: u16, slot: u16 },
    Shutdown,
    Ready,
    Accepted { call: u16, slot: u16 },
    Piece { call: u16, slot: u16, length: u32 },
    Done { call: u16, body: Body },
}

const CALL: u8 = 1;
const MORE: u8 = 2;
const TAKEN: u8 = 3;
const SHUTDOWN: u8 = 4;
const READY: u8 = 5;
const ACCEPTED: u8 = 6;
const PIECE: u8 = 7;
const DONE: u8 = 8;

impl Entry {
    /// As it lies at `position` of a ring.
    pub(crate) fn encode(&self, position: u64) -> Words {
        let mut slots = [NO_SLOT; 8];
        let (mut flags, mut length, mut inline) = (0, 0, [0; INLINE_BYTES]);
        let mut body = |body: &Body, slot: &mut u16| match *body {
            Body::Inline { length: bytes, bytes: message } => (flags, length, inline) = (INLINE, bytes.into(), message),
            Body::Slot { slot: number, length: bytes } => (*slot, length) = (number, bytes),
        };
        let (kind, call) = match self {
            Self::Call { call, last, slots: window, body: message } => {
                body(message, &mut slots[0]);
                slots[..window.count].copy_from_slice(window.all());
                flags |= u8::from(*last) * LAST;
                (CALL, *call)
            }
            Self::More { call, last, slot, length: bytes } => {
                (flags, length, slots[0]) = (u8::from(*last) * LAST, *bytes, *slot);
                (MORE, *call)
            }
            Self::Taken { call, slot } => {
                slots[0] = *slot;
                (TAKEN, *call)
            }
            Self::Shutdown => (SHUTDOWN, 0),
            Self::Ready => (READY, 0),
            Self::Accepted { call, slot } => {
                slots[0] = *slot;
                (ACCEPTED, *call)
            }
            Self::Piece { call, slot, length: bytes } => {
                (length, slots[0]) = (*bytes, *slot);
                (PIECE, *call)
            }
            Self::Done { call, body: message } => {
                body(message, &mut slots[0]);
                (DONE, *call)
            }
        };
        let mut words = [0; 8];
        words[0] = u64::from(kind) | u64::from(flags) << 8 | u64::from(call) << 16 | u64::from(length) << 32;
        words[1] = position;
        for (index, slot) in slots.into_iter().enumerate() {
            words[2 + index / 4] |= u64::from(slot) << (16 * (index % 4));
        }
        for (word, bytes) in words[4..].iter_mut().zip(inline.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        words
    }

    /// The entry in these words, if it can be one of a channel of this size.
    pub(crate) fn decode(words: &Words, position: u64, size: ChannelSize) -> Result<Self, String> {
        let wrong = |problem: String| Err(format!("entry {position}: {problem}"));
        let [kind, flags] = [0, 8].map(|shift| (words[0] >> shift) as u8);
        let (call, length) = ((words[0] >> 16) as u16, (words[0] >> 32) as u32);
        if words[1] != position {
            return wrong(format!("it says that it is entry {}", words[1]));
        }
        if call >= size.calls {
            return wrong(format!("call {call}; there are {}", size.calls));
        }
        let slots: [u16; 8] = std::array::from_fn(|index| (words[2 + index / 4] >> (16 * (index % 4))) as u16);
        let count = slots.iter().position(|slot| *slot == NO_SLOT).unwrap_or(slots.len());
        if let Some(slot) = slots[..count].iter().find(|slot| **slot >= size.slots) {
            return wrong(format!("slot {slot}; there are {}", size.slots));
        }
        if count > WINDOW || (0..count).any(|index| slots[..index].contains(&slots[index])) {
            return wrong(format!("slots {:?}; at most {WINDOW} different ones are possible", &slots[..count]));
        }
        let last = flags & LAST != 0;
        let most = if flags & INLINE == 0 { SLOT_BYTES } else { INLINE_BYTES };
        if length as usize > most {
            return wrong(format!("a message of {length} bytes; at most {most} are possible"));
        }
        let slot = slots[0];
        let body = if flags & INLINE == 0 {
            Body::Slot { slot, length }
        } else {
            let mut bytes = [0; INLINE_BYTES];
            for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(&words[4..]) {
                *bytes = word.to_le_bytes();
            }
            if bytes[length as usize..].iter().any(|byte| *byte != 0) {
                return wrong(format!("a message of {length} bytes that goes on: {bytes:x?}"));
            }
            Body::Inline { length: length as u8, bytes }
        };
        let in_slot = count == 1;
        let entry = match kind {
            CALL if count > 0 => Self::Call { call, last, slots: Slots::new(&slots[..count]), body },
            MORE if in_slot => Self::More { call, last, slot, length },
            TAKEN if in_slot => Self::Taken { call, slot },
            SHUTDOWN => Self::Shutdown,
            READY => Self::Ready,
            ACCEPTED if in_slot => Self::Accepted { call, slot },
            PIECE if in_slot => Self::Piece { call, slot, length },
            DONE if in_slot == (flags & INLINE == 0) => Self::Done { call, body },
            CALL | MORE | TAKEN | ACCEPTED | PIECE | DONE => return wrong(format!("kind {kind} with {count} slots")),
            _ => return wrong(format!("kind {kind}; there are 1 to 8")),
        };
        if entry.encode(position) != *words {
            return wrong(format!("kind {kind} with something in fields that it does not use: {words:x?}"));
        }
        Ok(entry)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: ChannelSize = ChannelSize { calls: 4, slots: 6 };

    fn entries() -> Vec<Entry> {
        let slots = Slots::new(&[5, 0, 2]);
        let inline = Body::inline(&[1; 32]).expect("it fits");
        vec![
            Entry::Call { call: 3, last: true, slots, body: inline },
            Entry::Call { call: 0, last: false, slots, body: Body::Slot { slot: 5, length: SLOT_BYTES as u32 } },
            Entry::More { call: 1, last: true, slot: 3, length: 9 },
            Entry::Taken { call: 1, slot: 5 },
            Entry::Shutdown,
            Entry::Ready,
            Entry::Accepted { call: 2, slot: 0 },
            Entry::Piece { call: 2, slot: 0, length: 1 },
            Entry::Done { call: 1, body: Body::inline(&[]).expect("it fits") },
            Entry::Done { call: 1, body: Body::Slot { slot: 4, length: 33 } },
        ]
    }

    #[test]
    fn entries_come_back() {
        for entry in entries() {
            assert_eq!(Entry::decode(&entry.encode(77), 77, SIZE), Ok(entry));
            let error = Entry::decode(&entry.encode(77), 78, SIZE).expect_err("an old one");
            assert_eq!(error, "entry 78: it says that it is entry 77");
        }
        assert_eq!(Body::inline(&[0; 33]), None);
    }

    proptest! {
        #[test]
        fn any_words_are_an_entry_or_refused(which in 0..10_usize, spoil in prop::collection::vec(any::<u64>(), 8),
                                             mask in prop::collection::vec(any::<u64>(), 8), some in 0_u8..255) {
            let mut words = entries()[which].encode(5);
            for (index, word) in words.iter_mut().enumerate() {
                if some >> index & 1 == 1 {
                    *word = *word & mask[index] | spoil[index] & !mask[index];
                }
            }
            if let Ok(entry) = Entry::decode(&words, 5, SIZE) {
                prop_assert_eq!(entry.encode(5), words);
            }
            let _ = Entry::decode(&[spoil[0], 5, spoil[2], spoil[3], 0, 0, 0, 0], 5, SIZE);
        }

        #[test]
        fn one_wrong_bit_is_another_entry_or_refused(which in 0..10_usize, bit in 0..512_usize) {
            let mut words = entries()[which].encode(5);
            words[bit / 64] ^= 1 << (bit % 64);
            if let Ok(entry) = Entry::decode(&words, 5, SIZE) {
                prop_assert_ne!(entry, entries()[which]);
            }
        }
    }
}
