/* The decider: crates/locks/protocol/src/{packet,decider}.rs for frames, word for word, with the rows of table.h.
 *
 * One rule is of its own. User space has a decider too, the Rust one, over the same words. Whatever cannot be sent
 * from here (a packet that concerns the registry, or a machine that no interface leads to) is left to it *as it came,
 * before anything is written*. So a packet is decided exactly once, here or there, and nothing is ever half done. */
#pragma once

#include "frame.h"

/* How often a word may change while a packet is decided on, before the packet is left to user space too. The verifier
 * follows each try, so more of them make loading slower. */
#define TRIES 8

/* Replaces `before` by `after` if it is still there. The one place where deciders meet. */
#ifndef SWAPPED
#define SWAPPED(word, before, after) (__sync_val_compare_and_swap(word, before, after) == (before))
#endif

#define MODE 3
#define SHARED_MODE 1
#define NEED_MODE (1U << KIND_ACQUIRE | 1U << KIND_MOVE | 1U << KIND_ENROL)

#define ROW_SEND(row) ((row) & 7)
#define ROW_STATE(row) ((row) >> 3 & 3)
#define ROW_WRITES 0x20
#define ROW_PLACE(row) ((row) >> 6 & 3)
#define ROW_NEXT 0x100
#define ROW_TOKEN 0x200

enum verdict {
	LEAVE,      /* to whoever listens */
	REMEMBER,   /* likewise, and where it came from */
	DROP,
	ANSWER,     /* back where it came from */
	SEND,       /* to one machine */
	SPLIT,      /* what it is now to the agent, and a GRANT to the requester */
};

struct decision {
	struct machine *to;         /* SEND: the target. SPLIT: the agent's machine */
	struct machine *requester;  /* SPLIT */
	__u32 cut;                  /* so many bytes at the end do not go along */
};

static __always_inline enum verdict drop(__u32 cause)
{
	count(cause);
	return DROP;
}

static __always_inline enum verdict leave(__u32 cause)
{
	count(cause);
	return LEAVE;
}

static __always_inline bool is_there(const struct machine *machine, __u32 session)
{
	return machine && machine->alive && machine->session == session;
}

/* Words 5 and 6 of what a decider says: word and target; kind, flags, and state beside the hops. */
static __always_inline __u64 stamp_parties(__u64 word, __u64 target)
{
	return (word & 0xffffffff00000000) | target << 16 | (word >> 16 & 0xffff);
}

static __always_inline __u64 with_state(__u64 w6, __u64 word)
{
	return (w6 & ~(3ULL << 48)) | (word & 3) << 48;
}

static __always_inline __u64 stamp_kind(__u64 w6, __u64 word, __u64 kind, __u64 flags)
{
	return with_state(w6 & 0x00fc000000000000, word) | kind << 32 | flags << 40;
}

static __always_inline enum verdict decide(void *data, void *end, __u32 bytes, struct decision *decision)
{
	__u64 w0, w1, w2, w3, w4, w5, w6, word, after, token;
	__u32 payload, length, kind, flags, requester, sender, target, holder, index, row, send, who;
	struct machine *sender_at, *requester_at, *to = 0;
	enum verdict verdict;
	struct lock *lock;
	struct sip first;

	/* Ours? Fragments, IP options and frames with something behind the packet are for the network stack. */
	if (data + PACKET > end || AT(__u16, 12) != bpf_htons(0x0800) || AT(__u8, ETHERNET) != 0x45 ||
	    AT(__u8, ETHERNET + 9) != 17 || AT(__u16, ETHERNET + IP + 2) != settings.port ||
	    (AT(__u16, ETHERNET + 6) & bpf_htons(0x3fff)) ||
	    (settings.address && AT(__u32, ETHERNET + 16) != settings.address))
		return LEAVE;
	length = bpf_ntohs(AT(__u16, ETHERNET + IP + 4));
	if (bytes != ETHERNET + IP + length || bpf_ntohs(AT(__u16, ETHERNET + 2)) != IP + length)
		return LEAVE;

	/* Length, magic, version, tag, fields. */
	if (data + FRAME > end || length < UDP + HEADER)
		return drop(DROPPED_LENGTH);
	payload = length - UDP - HEADER;
	w0 = WORD(0);
	w1 = WORD(1);
	w2 = WORD(2);
	w3 = WORD(3);
	w4 = WORD(4);
	w5 = WORD(5);
	w6 = WORD(6);
	/* The lock comes from memory while the packet is checked. */
	index = w1;
	lock = w1 < settings.locks ? bpf_map_lookup_elem(&locks, &index) : 0;
	if (lock)
		(void)*(volatile __u64 *)&lock->word;
	if ((w3 >> 32 & 0xffff) != payload || payload % 8 || payload > MOST_BYTES - HEADER)
		return drop(DROPPED_LENGTH);
	if ((w0 & 0xffff) != MAGIC)
		return drop(DROPPED_MAGIC);
	if ((w0 >> 16 & 0xff) != VERSION)
		return drop(DROPPED_VERSION);
	first = sip_first_half(w0, w1, w2, w3);
	if (WORD(7) != sip_tag(first, w4, w5, w6))
		return drop(DROPPED_TAG);
	kind = w6 >> 32 & 0xff;
	flags = w6 >> 40 & 0xff;
	if (kind > 31 || !(KINDS_KNOWN >> kind & 1) || flags >> 6 || w6 >> 56 || (w0 & 0x0000ffffff000000) ||
	    (flags & MODE) == 2 || (!(flags & MODE) && (NEED_MODE >> kind & 1)))
		return drop(DROPPED_FIELD);

	/* The registry checks the sessions of what is for it. */
	if (kind >= KIND_JOIN) {
		count(CONTROL);
		return REMEMBER;
	}
	requester = w0 >> 48;
	sender = w5 & 0xffff;
	target = w5 >> 16 & 0xffff;
	word = 0;
	/* Nobody on the network speaks for the registry, machine 0. */
	sender_at = sender ? find_machine(sender) : 0;
	if (!is_there(sender_at, w6)) {
		token = PROBLEM_NO_SUCH_SESSION;
		goto problem;
	}
	if (kind >= KINDS_DECIDED) {
		if (kind != KIND_GRANT && kind != KIND_ACK && kind != KIND_PROBE)
			return drop(DROPPED_KIND);
		to = find_machine(target);
		if (!to || !to->alive) {
			token = PROBLEM_NO_SUCH_MACHINE;
			goto problem;
		}
		if (!to->ifindex)
			return leave(LEFT_UNREACHED);
		count(SENT_ON);
		decision->to = to;
		return SEND;
	}
	if (!lock && settings.beyond)
		return leave(LEFT_UNREACHED);
	if (!lock) {
		token = PROBLEM_NO_SUCH_LOCK;
		goto problem;
	}
	requester_at = find_machine(requester);
	if (!is_there(requester_at, w3)) {
		word = *(volatile __u64 *)&lock->word;
		token = PROBLEM_NO_SUCH_MACHINE;
		goto problem;
	}

	/* The decision. */
	for (int try = 0;; try++) {
		if (try == TRIES)
			return leave(LEFT_CONTENDED);
		word = *(volatile __u64 *)&lock->word;
		holder = word >> 16 & 0xffff;
		index = kind == KIND_ACQUIRE && (flags & FLAG_GRANTED) ? KIND_ENROL : kind;
		index |= (word & 3) << 3 | ((flags & MODE) == SHARED_MODE) << 5 | (sender == holder) << 6 |
			 ((__u32)(w5 >> 32) == (__u32)(word >> 32)) << 7 |
			 (target == holder && (__u32)((w5 >> 32) + 1) == (__u32)(word >> 32)) << 8 |
			 settings.writers_first << 9;
		row = rows[index & (ROWS - 1)];
		send = ROW_SEND(row);
		/* Is everybody there whom this would send something to? */
		who = send == SEND_TARGET ? target : send == SEND_JOIN || send == SEND_AGENT ? holder : requester;
		to = find_machine(who);
		if (!to)
			return leave(LEFT_UNREACHED);
		if (send == SEND_TARGET && !to->alive) {
			token = PROBLEM_NO_SUCH_MACHINE;
			goto problem;
		}
		if (send != SEND_DONE && send != SEND_REFUSED &&
		    (!to->ifindex || (send == SEND_JOIN && !requester_at->ifindex)))
			return leave(LEFT_UNREACHED);
		if (!(row & ROW_WRITES)) {
			after = word;
			token = *(volatile __u64 *)&lock->token;
			break;
		}
		who = ROW_PLACE(row) == PLACE_KEEP        ? holder
		      : ROW_PLACE(row) == PLACE_REQUESTER ? requester
		      : ROW_PLACE(row) == PLACE_TARGET    ? target
							  : 0;
		after = (word & 0xffffffff00000000) + (row & ROW_NEXT ? 1ULL << 32 : 0);
		after |= (__u64)who << 16 | ROW_STATE(row);
		/* Before the word that says that it is taken: whoever finds that word finds this token too. */
		if (row & ROW_TOKEN)
			token = __sync_fetch_and_add(&lock->token, TOKEN_STEP) + TOKEN_STEP;
		else
			token = *(volatile __u64 *)&lock->token;
		if (SWAPPED(&lock->word, word, after))
			break;
	}
	count(kind);

	/* What is sent. */
	verdict = SEND;
	decision->to = to;
	decision->cut = payload;
	switch (send) {
	case SEND_AGENT:
		w5 = (w5 & 0xffffffff0000ffff) | (__u64)holder << 16;
		if (kind == KIND_ACQUIRE && !(flags & FLAG_GRANTED))
			w5 = (w5 & 0xffffffff) | (after & 0xffffffff00000000);
		w6 = with_state(w6, after);
		break;
	case SEND_TARGET:
		decision->cut = 0;
		w4 = token;
		w5 = (w5 & 0xffffffff) | (after & 0xffffffff00000000);
		w6 = with_state(w6 & 0xffffff00ffffffff, after) | (__u64)KIND_GRANT << 32 | (__u64)FLAG_AGENT << 40;
		break;
	case SEND_GRANT:
	case SEND_JOIN:
		/* Readers may come after every hand-over within the machine of the last writer: the end of its range.
		 * */
		w4 = (flags & MODE) == SHARED_MODE ? token | (TOKEN_STEP - 1) : token;
		w5 = stamp_parties(after, send == SEND_JOIN ? holder : requester);
		w6 = send == SEND_JOIN ? stamp_kind(w6, after, kind, flags | FLAG_GRANTED)
				       : stamp_kind(w6, after, KIND_GRANT, flags | FLAG_AGENT);
		if (send == SEND_JOIN && holder != requester) {
			decision->requester = requester_at;
			verdict = SPLIT;
		}
		break;
	case SEND_DONE:
	case SEND_REFUSED:
		verdict = ANSWER;
		w4 = token;
		w5 = stamp_parties(after, sender);
		w6 = stamp_kind(w6, after, send == SEND_DONE ? KIND_DONE : KIND_REFUSED, flags);
		break;
	default:
		w4 = send == SEND_ACK ? token : PROBLEM_NOT_HELD;
		w5 = stamp_parties(after, requester);
		w6 = stamp_kind(w6, after, send == SEND_ACK ? KIND_ACK : KIND_ERROR, flags);
	}
	goto write;

problem:
	count(NO_SUCH_LOCK + token - PROBLEM_NO_SUCH_LOCK);
	verdict = ANSWER;
	decision->cut = payload;
	w4 = token;
	w5 = stamp_parties(word, sender);
	w6 = stamp_kind(w6, word, KIND_ERROR, flags);

write:
	if (decision->cut) {
		/* The length is in the first half. */
		w3 &= 0xffff0000ffffffff;
		WORD(3) = w3;
		AT(__u16, ETHERNET + 2) = bpf_htons(IP + UDP + HEADER);
		AT(__u16, ETHERNET + IP + 4) = bpf_htons(UDP + HEADER);
		first = sip_first_half(w0, w1, w2, w3);
	}
	write_second_half(data, first, w4, w5, w6);
	return verdict;
}

/* Makes the agent's copy the requester's. */
static __always_inline void to_grant(void *data)
{
	__u64 requester = WORD(0) >> 48, kind = WORD(6);

	kind = (kind & ~(0xffULL << 32 | (__u64)FLAG_GRANTED << 40)) | (__u64)KIND_GRANT << 32;
	write_second_half(data, sip_first_half(WORD(0), WORD(1), WORD(2), WORD(3)), WORD(4),
			  (WORD(5) & 0xffffffff0000ffff) | requester << 16, kind);
}
