/* What the programs share with user space: settings, locks, machines, arrivals, interfaces and counters.
 *
 * crates/locks/service/src/kernel/layout.rs has the same layouts in Rust. Numbers of the network (addresses, ports) are
 * kept as they stand in frames, so nothing is converted on the way. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>
#include "table.h"

/* Set once, before the programs are loaded. The map is frozen, so the verifier takes them as constants and removes
 * what they leave unused: without a key no hash is left in the program. */
struct settings {
	__u64 sip[4];        /* SipHash's state after taking up the key */
	__u64 locks;
	__u32 address;       /* only packets to this address are looked at; 0: to any */
	__u16 port;
	__u8 keyed;
	__u8 writers_first;
	__u8 beyond;         /* locks beyond these are user space's business */
	__u8 zero[7];
};
const volatile struct settings settings;

/* A lock of the wide profile. User space maps the same words: what is left to it is decided there. */
struct lock {
	__u64 word;          /* 63..32 incarnation, 31..16 machine of the agent, 1..0 state */
	__u64 token;
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);     /* set by the loader */
	__type(key, __u32);
	__type(value, struct lock);
} locks SEC(".maps");

/* A machine, found by its number. Two addresses stand side by side as they do in a frame, ours first where it is the
 * source. */
struct machine {
	__u32 session;
	__u32 ifindex;       /* 0: not reached from here; what is for it is left to user space */
	__u32 local_address;
	__u32 address;
	__u8 mac[6];
	__u8 local_mac[6];
	__u16 port;
	__u16 alive;
};
#define MACHINES 65536
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MACHINES);
	__type(key, __u32);
	__type(value, struct machine);
} machines SEC(".maps");

/* Where control packets came from: what a frame tells and a socket does not. User space fills `machines` with it. */
struct source {
	__u32 address;
	__u16 port;
	__u16 zero;
};
struct arrival {
	__u32 ifindex;
	__u32 local_address;
	__u8 mac[6];
	__u8 local_mac[6];
};
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct source);
	__type(value, struct arrival);
} arrivals SEC(".maps");

/* The interfaces that the decider is attached to: each under its index and under the index with TWIN, so that a
 * broadcast sends two copies out of each. */
#define TWIN (1U << 31)
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} ports SEC(".maps");

/* Which first copies of two have gone out of an interface; see lockwork_copy. */
struct copied {
	__u64 lock;
	__u32 incarnation;
	__u32 ifindex;
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct copied);
} copies SEC(".maps");

/* The first KINDS_DECIDED counters are decisions, by kind. kernel/counters.rs names them all, in this order. */
enum counter {
	SENT_ON = KINDS_DECIDED,
	CONTROL,
	LEFT_UNREACHED,      /* for the registry, or a machine that only user space reaches */
	LEFT_CONTENDED,      /* the word changed again and again while it was decided on */
	NO_SUCH_LOCK,
	NO_SUCH_SESSION,
	NO_SUCH_MACHINE,
	DROPPED_LENGTH,
	DROPPED_MAGIC,
	DROPPED_VERSION,
	DROPPED_TAG,
	DROPPED_FIELD,
	DROPPED_KIND,        /* what only deciders say */
	DROPPED_FAILED,      /* the kernel could not cut or copy the frame */
	DROPPED_COPY,        /* a copy for a machine behind another interface */
	COUNTERS,
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

static __always_inline void count(__u32 counter)
{
	__u64 *counted = bpf_map_lookup_elem(&counters, &counter);

	if (counted)
		*counted += 1;
}

/* The entry of a machine; the verifier does not know that every number has one. */
static __always_inline struct machine *find_machine(__u32 machine)
{
	return bpf_map_lookup_elem(&machines, &machine);
}
