/* The limits of a device: independent random reads of whole lines, and nothing else. */

static inline ulong lw_next_word(ulong word)
{
    word += 0x9E3779B97F4A7C15UL;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9UL;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBUL;
    return word ^ (word >> 31);
}

/* Each work-item reads `rounds` random lines out of mask + 1; the sums keep the reads from being left out. */
__kernel void lw_probe(const __global ulong8 *restrict lines, uint mask, uint rounds, __global ulong *restrict sums)
{
    const uint item = get_global_id(0);
    ulong sum = 0;
    for (uint round = 0; round < rounds; round++) {
        const ulong at = lw_next_word((ulong)item * rounds + round) & mask;
        const ulong8 line = lines[at];
        sum += line.s0 ^ line.s7;
    }
    sums[item] = sum;
}
