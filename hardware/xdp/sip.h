/* SipHash-1-3 over the first 55 bytes of a header, in two halves: deciders change nothing before byte 32, so the
 * state after the first half serves the packet and its answer. (Aumasson and Bernstein, "SipHash: a fast short-input
 * PRF", 2012.) */
#pragma once

#include "maps.h"

struct sip {
	__u64 a, b, c, d;
};

#define ROTATED(x, bits) ((x) << (bits) | (x) >> (64 - (bits)))

static __always_inline void sip_round(struct sip *s)
{
	s->a += s->b;
	s->c += s->d;
	s->b = ROTATED(s->b, 13) ^ s->a;
	s->d = ROTATED(s->d, 16) ^ s->c;
	s->a = ROTATED(s->a, 32);
	s->c += s->b;
	s->a += s->d;
	s->b = ROTATED(s->b, 17) ^ s->c;
	s->d = ROTATED(s->d, 21) ^ s->a;
	s->c = ROTATED(s->c, 32);
}

static __always_inline void sip_word(struct sip *s, __u64 word)
{
	s->d ^= word;
	sip_round(s);
	s->a ^= word;
}

/* Bytes 0 to 31. Without a key nobody asks for it; the verifier removes what follows the question. */
static __always_inline struct sip sip_first_half(__u64 w0, __u64 w1, __u64 w2, __u64 w3)
{
	struct sip s = { 0, 0, 0, 0 };

	if (!settings.keyed)
		return s;
	s = (struct sip){ settings.sip[0], settings.sip[1], settings.sip[2], settings.sip[3] };
	sip_word(&s, w0);
	sip_word(&s, w1);
	sip_word(&s, w2);
	sip_word(&s, w3);
	return s;
}

/* Bytes 32 to 54, and the tag, which is 0 without a key. The last byte of the last word is the number of bytes. */
static __always_inline __u64 sip_tag(struct sip s, __u64 w4, __u64 w5, __u64 w6)
{
	if (!settings.keyed)
		return 0;
	sip_word(&s, w4);
	sip_word(&s, w5);
	sip_word(&s, (w6 & 0x00ffffffffffffff) | 55ULL << 56);
	s.c ^= 0xff;
	sip_round(&s);
	sip_round(&s);
	sip_round(&s);
	return s.a ^ s.b ^ s.c ^ s.d;
}
