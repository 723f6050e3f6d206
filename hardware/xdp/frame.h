/* Frames: where what stands in Ethernet, IPv4 without options, UDP and a header of the lock service, and how
 * addresses change.
 *
 * Everything is read and written in place. Whole words are used where fields stand side by side; the names say which.
 * */
#pragma once

#include <bpf/bpf_endian.h>
#include "maps.h"
#include "sip.h"

#define ETHERNET 14
#define IP 20
#define UDP 8
#define PACKET (ETHERNET + IP + UDP)    /* where the header begins */
#define FRAME (PACKET + HEADER)         /* a frame without payload */

#define AT(type, at) (*(type *)(data + (at)))
#define WORD(n) AT(__u64, PACKET + 8 * (n))

/* Another IP header around the same packet: no identification, no fragments, 64 hops to go; and UDP without a
 * checksum. */
static __always_inline void renew_ip(void *data)
{
	__u64 sum;

	AT(__u32, ETHERNET + 4) = bpf_htonl(0x00004000);
	AT(__u32, ETHERNET + 8) = bpf_htonl(0x40110000);
	/* The sum of 16-bit words in ones' complement is the same in any order of bytes, and over wider words. */
	sum = (__u64)AT(__u32, ETHERNET) + AT(__u32, ETHERNET + 4) + AT(__u32, ETHERNET + 8) +
	      AT(__u32, ETHERNET + 12) + AT(__u32, ETHERNET + 16);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	AT(__u16, ETHERNET + 10) = ~sum;
	AT(__u16, ETHERNET + IP + 6) = 0;
}

/* Back to where it came from. */
static __always_inline void turn_round(void *data)
{
	__u32 mac_high = AT(__u32, 0), from_high = AT(__u32, 6);
	__u16 mac_low = AT(__u16, 4), from_low = AT(__u16, 10);
	__u32 address = AT(__u32, ETHERNET + 16), from = AT(__u32, ETHERNET + 12);
	__u32 two_ports = AT(__u32, ETHERNET + IP);

	AT(__u32, 0) = from_high;
	AT(__u16, 4) = from_low;
	AT(__u32, 6) = mac_high;
	AT(__u16, 10) = mac_low;
	AT(__u32, ETHERNET + 12) = address;
	AT(__u32, ETHERNET + 16) = from;
	AT(__u32, ETHERNET + IP) = two_ports << 16 | two_ports >> 16;
	renew_ip(data);
}

/* To a machine. */
static __always_inline void address_to(void *data, const struct machine *machine)
{
	const __u32 *macs = (const __u32 *)machine->mac;

	AT(__u32, 0) = macs[0];
	AT(__u32, 4) = macs[1];
	AT(__u32, 8) = macs[2];
	AT(__u32, ETHERNET + 12) = machine->local_address;
	AT(__u32, ETHERNET + 16) = machine->address;
	AT(__u32, ETHERNET + IP) = settings.port | (__u32)machine->port << 16;
	renew_ip(data);
}

/* Where a frame came from. */
static __always_inline void remember_source(void *data, __u32 ifindex)
{
	struct source source = { .address = AT(__u32, ETHERNET + 12), .port = AT(__u16, ETHERNET + IP) };
	struct arrival arrival = { .ifindex = ifindex, .local_address = AT(__u32, ETHERNET + 16) };

	__builtin_memcpy(arrival.local_mac, data, 6);
	__builtin_memcpy(arrival.mac, data + 6, 6);
	bpf_map_update_elem(&arrivals, &source, &arrival, BPF_ANY);
}

/* The second half of the header: token; sender, target and incarnation; session, kind, flags and state. And the tag. */
static __always_inline void write_second_half(void *data, struct sip first, __u64 w4, __u64 w5, __u64 w6)
{
	WORD(4) = w4;
	WORD(5) = w5;
	WORD(6) = w6;
	WORD(7) = sip_tag(first, w4, w5, w6);
}
