/* The decider in the kernel's data plane: at XDP and at TC ingress. See README.md. */

#include <linux/pkt_cls.h>
#include "decide.h"

/* XDP has no clone. What goes to two machines is broadcast: two equal copies leave through every attached interface,
 * and lockwork_copy makes one a GRANT, leaves the other as it is, and drops what is for a machine elsewhere. Frames
 * that it has to look at have this in the place of the UDP checksum. */
#define UNFINISHED 0xffff

/* `transmits`: XDP_TX works on the interface. It does not on veth whose other end has no XDP program; there is
 * redirection. */
static __always_inline int run_xdp(struct xdp_md *ctx, bool transmits)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct decision decision = {};
	__u32 ifindex = ctx->ingress_ifindex;

	switch (decide(data, end, end - data, &decision)) {
	case LEAVE:
		return XDP_PASS;
	case REMEMBER:
		remember_source(data, ifindex);
		return XDP_PASS;
	case DROP:
		return XDP_DROP;
	case ANSWER:
		turn_round(data);
		break;
	case SEND:
		address_to(data, decision.to);
		ifindex = decision.to->ifindex;
		break;
	case SPLIT:
		AT(__u16, ETHERNET + IP + 6) = UNFINISHED;
		ifindex = TWIN;
		break;
	}
	if (decision.cut && bpf_xdp_adjust_tail(ctx, -(int)decision.cut)) {
		count(DROPPED_FAILED);
		return XDP_DROP;
	}
	if (transmits && ifindex == ctx->ingress_ifindex)
		return XDP_TX;
	/* Always through the map, never by bpf_redirect: the kernel runs one egress program for all frames that it has
	 * collected for an interface, the one of the first of them. */
	if (ifindex == TWIN)
		return bpf_redirect_map(&ports, 0, BPF_F_BROADCAST);
	return bpf_redirect_map(&ports, ifindex, XDP_DROP);
}

/* `ifindex`: of the interface that the frame leaves through. */
static __always_inline int run_copy(void *data, void *end, __u32 ifindex)
{
	struct machine *machine;
	struct copied *copied;
	__u32 key = 0, incarnation;
	bool second;

	if (data + FRAME > end || AT(__u16, ETHERNET + IP + 6) != UNFINISHED)
		return XDP_PASS;
	copied = bpf_map_lookup_elem(&copies, &key);
	if (!copied)
		return XDP_DROP;
	/* Both copies come one after the other on one processor; no other decision has this lock and incarnation. */
	incarnation = WORD(5) >> 32;
	second = copied->lock == WORD(1) && copied->incarnation == incarnation && copied->ifindex == ifindex;
	copied->lock = WORD(1);
	copied->incarnation = incarnation;
	copied->ifindex = second ? 0 : ifindex;
	machine = find_machine(second ? WORD(5) >> 16 & 0xffff : WORD(0) >> 48);
	if (!machine || machine->ifindex != ifindex) {
		count(DROPPED_COPY);
		return XDP_DROP;
	}
	if (!second)
		to_grant(data);
	address_to(data, machine);
	return XDP_PASS;
}

static __always_inline int run_tc(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct decision decision = {};
	__u32 ifindex = skb->ifindex;

	/* Several datagrams in one, or a tag beside the frame: for the network stack. */
	if (skb->protocol != bpf_htons(0x0800) || skb->gso_size || skb->vlan_present)
		return TC_ACT_OK;
	if (data + FRAME > end && skb->len >= FRAME) {
		if (bpf_skb_pull_data(skb, FRAME))
			return TC_ACT_OK;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
	}
	switch (decide(data, end, skb->len, &decision)) {
	case LEAVE:
		return TC_ACT_OK;
	case REMEMBER:
		remember_source(data, ifindex);
		return TC_ACT_OK;
	case DROP:
		return TC_ACT_SHOT;
	case ANSWER:
		turn_round(data);
		break;
	case SEND:
	case SPLIT:
		address_to(data, decision.to);
		ifindex = decision.to->ifindex;
		break;
	}
	if (decision.cut && bpf_skb_change_tail(skb, skb->len - decision.cut, 0))
		goto failed;
	if (decision.requester) {
		if (bpf_clone_redirect(skb, ifindex, 0))
			goto failed;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		if (data + FRAME > end)
			goto failed;
		to_grant(data);
		address_to(data, decision.requester);
		ifindex = decision.requester->ifindex;
	}
	return bpf_redirect(ifindex, 0);

failed:
	count(DROPPED_FAILED);
	return TC_ACT_SHOT;
}

SEC("xdp")
int lockwork_xdp(struct xdp_md *ctx)
{
	return run_xdp(ctx, true);
}

SEC("xdp")
int lockwork_xdp_redirecting(struct xdp_md *ctx)
{
	return run_xdp(ctx, false);
}

SEC("xdp/devmap")
int lockwork_copy(struct xdp_md *ctx)
{
	return run_copy((void *)(long)ctx->data, (void *)(long)ctx->data_end, ctx->egress_ifindex);
}

SEC("classifier")
int lockwork_tc(struct __sk_buff *skb)
{
	return run_tc(skb);
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
