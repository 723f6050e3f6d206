//! The state word of a worker in words: see `hardware/rtl/top/lw_worker.sv`.

/// Pairs of valid and ready, from bit 0 on.
const HANDSHAKES: [&str; 8] = [
    "block to the softcore",
    "outcome to the ring",
    "DB instruction",
    "release of a grant",
    "request to the fabric",
    "request from the fabric",
    "answer of the index",
    "answer to the fabric",
];
/// Where the memory port's pair lies.
const MEMORY_PORT: u32 = 22;
/// Single bits that tell of something under way, and whether they say so by being set.
const UNDER_WAY: [(u32, bool, &str); 7] = [
    (16, true, "an answer from the fabric"),
    (17, true, "an instruction for the skiplist"),
    (18, true, "the index is busy"),
    (19, false, "the softcore is busy"),
    (20, false, "the rings are busy"),
    (21, false, "memory has not answered everything"),
    (24, true, "a context is stuck"),
];
/// What a context does, by its number in `state_e` of the softcore's package.
const CONTEXT: [&str; 10] = [
    "free",
    "ready",
    "in the pipeline",
    "waits for an answer",
    "waits for all answers",
    "waits for its job of loads and stores",
    "waits for a register",
    "waits for memory to answer everything",
    "waits for the divider",
    "waits for a load",
];
/// Contexts that the word has room for.
const CONTEXTS: u32 = 8;

/// What a worker's state word says; what is at rest is left out.
#[must_use]
pub(crate) fn describe(state: u64) -> String {
    let bit = |at: u32| state >> at & 1 == 1;
    let pair = |at: u32, what: &str| {
        bit(at).then(|| format!("{what} {}", if bit(at + 1) { "moves" } else { "waits to be taken" }))
    };
    let mut parts: Vec<String> =
        HANDSHAKES.iter().enumerate().filter_map(|(number, what)| pair(2 * number as u32, what)).collect();
    parts.extend(pair(MEMORY_PORT, "memory request"));
    let under_way = UNDER_WAY.iter().filter(|(at, set, _)| bit(*at) == *set);
    parts.extend(under_way.map(|(_, _, what)| (*what).to_string()));
    for context in 0..CONTEXTS {
        let does = (state >> (32 + 4 * context) & 0xF) as usize;
        if does > 0 {
            parts
                .push(format!("context {context} {}", CONTEXT.get(does).unwrap_or(&"is in a state that there is not")));
        }
    }
    let rest = if parts.is_empty() { "at rest".to_string() } else { parts.join(", ") };
    format!("{rest} (state word {state:#018x})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_tells_what_is_under_way() {
        let rest = 0b111 << 19;
        assert_eq!(describe(rest), "at rest (state word 0x0000000000380000)");
        let text = describe(rest & !(1 << 19) | 0b01 << 4 | 0b11 << 22 | 1 << 24 | 3 << 32 | 7 << 60 | 15 << 36);
        let expected = "DB instruction waits to be taken, memory request moves, the softcore is busy, a context is stuck, \
                        context 0 waits for an answer, context 1 is in a state that there is not, \
                        context 7 waits for memory to answer everything (state word 0x700000f301f00010)";
        assert_eq!(text, expected, "{text}");
    }
}
