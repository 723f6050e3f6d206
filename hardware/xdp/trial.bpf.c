/* The decider's programs, and what tests and benchmarks need beside them. Never attached to an interface. */

#include "lockwork.bpf.c"

/* The kernel's program test does not take egress programs: lockwork_copy for a frame that leaves through the
 * interface that it came in by. */
SEC("xdp")
int trial_copy(struct xdp_md *ctx)
{
	return run_copy((void *)(long)ctx->data, (void *)(long)ctx->data_end, ctx->ingress_ifindex);
}

/* A benchmark repeats one packet, but a decision changes it, and its lock. So before each decision `prepare` makes
 * frame and lock what they were. trial_prepare does that alone, trial_decide and decides; the difference is the
 * decision. */
struct bench {
	__u8 frame[112];     /* FRAME bytes */
	__u64 turn;
	__u8 random;         /* take the locks in an order that no prefetcher knows; their number is a power of two */
	__u8 free;           /* free the lock before */
	__u8 swap;           /* read the lock's word, and swap it for itself */
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bench);
} bench SEC(".maps");

static __always_inline int prepare(void *data, void *end)
{
	__u32 zero = 0, number;
	struct bench *now = bpf_map_lookup_elem(&bench, &zero);
	struct lock *lock;
	__u64 word;

	if (!now || data + FRAME > end)
		return -1;
	/* In the words that decide() reads, because a load that needs two stores still under way waits for both; a
	 * frame that comes from a network card has none. */
	for (int at = 0; at < 12; at += 4)
		AT(__u32, at) = *(__u32 *)&now->frame[at];
	AT(__u16, 12) = *(__u16 *)&now->frame[12];
	for (int at = ETHERNET; at < PACKET; at += 4)
		AT(__u32, at) = *(__u32 *)&now->frame[at];
	for (int at = PACKET; at < FRAME; at += 8)
		AT(__u64, at) = *(__u64 *)&now->frame[at];
	if (now->random) {
		/* Each step can be undone in numbers below a power of two, so each lock comes once in a round. */
		number = (__u32)now->turn++ & (settings.locks - 1);
		number = number * 0x9e3779b1 & (settings.locks - 1);
		number ^= number >> 9;
		number = number * 0x85ebca6b & (settings.locks - 1);
		WORD(1) = number;
		WORD(7) = sip_tag(sip_first_half(WORD(0), WORD(1), WORD(2), WORD(3)), WORD(4), WORD(5), WORD(6));
	}
	number = WORD(1);
	lock = now->free || now->swap ? bpf_map_lookup_elem(&locks, &number) : 0;
	if (lock && now->free)
		*(volatile __u64 *)&lock->word = 0;
	if (lock && now->swap) {
		word = *(volatile __u64 *)&lock->word;
		__sync_val_compare_and_swap(&lock->word, word, word);
	}
	return 0;
}

SEC("xdp")
int trial_prepare(struct xdp_md *ctx)
{
	return prepare((void *)(long)ctx->data, (void *)(long)ctx->data_end) ? XDP_ABORTED : XDP_TX;
}

SEC("xdp")
int trial_decide(struct xdp_md *ctx)
{
	if (prepare((void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return XDP_ABORTED;
	return run_xdp(ctx, true);
}
