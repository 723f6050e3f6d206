// The decider of the lock service for programmable switches: P4_16, v1model, lean profile (18 bits a lock).
//
// What is decided is in crates/locks/protocol/src/table.rs; the entries of the table `decision` below are written from it.
// The stages are those of FissLock's figure 12, with our states: its two 1-bit arrays are the two bits of the state
// here, and the machine and the incarnation are compared in every mode. See README.md for what was checked and what was
// not.
//
// Numbers of the lock header are little-endian and stay so: machines, sessions and incarnations are only compared, so
// tables hold them as they are on the wire. `low(x)` is the first byte on the wire, which is the only one that the lean
// profile keeps.

#include <core.p4>
#include <v1model.p4>

// Locks in one array of machines or incarnations: what a stage of 560 KB holds. Three make 1.68 million.
#define LOCKS_A_MAU 560000
#define LOCKS 1680000
#define low(x) ((x)[15:8])

#include "packets.p4inc"

struct metadata_t {
    // Settings.
    bit<32> locks;
    bit<1> writers_first;
    // Who takes part.
    bit<1> sender_there;
    bit<1> requester_there;
    bit<1> target_there;
    bit<1> agent_there;
    // MAU selection.
    bit<2> mau;
    bit<32> offset;
    bit<32> lock;
    // The word before and after.
    bit<2> old_state;
    bit<8> old_machine;
    bit<8> old_incarnation;
    bit<2> new_state;
    bit<8> new_machine;
    bit<8> new_incarnation;
    // The case.
    bit<8> kind;
    bit<1> shared;
    bit<1> from_agent;
    bit<1> matches;
    bit<1> applied;
    // The action.
    bit<4> send;
    bit<1> write;
    bit<2> place;
    bit<1> next;
    // Destination.
    bit<16> destination;
    bit<16> agent;
    bit<1> to_source;
    bit<1> with_payload;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            IPV4: parse_ipv4;
            default: accept;
        }
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.version, hdr.ipv4.words, hdr.ipv4.flags[0:0], hdr.ipv4.fragment, hdr.ipv4.protocol) {
            (4, 5, 0, 0, UDP): parse_udp;
            default: accept;
        }
    }

    state parse_udp {
        packet.extract(hdr.udp);
        packet.extract(hdr.lock);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

// One of the three arrays that a field is spread over.
#define READ(array, value)                                          \
    if (meta.mau == 0) { array##_0.read(value, meta.offset); }      \
    else if (meta.mau == 1) { array##_1.read(value, meta.offset); } \
    else { array##_2.read(value, meta.offset); }
#define WRITE(array, value)                                          \
    if (meta.mau == 0) { array##_0.write(meta.offset, value); }      \
    else if (meta.mau == 1) { array##_1.write(meta.offset, value); } \
    else { array##_2.write(meta.offset, value); }

control Decide(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    register<bit<8>>(LOCKS_A_MAU) incarnations_0;
    register<bit<8>>(LOCKS_A_MAU) incarnations_1;
    register<bit<8>>(LOCKS_A_MAU) incarnations_2;
    register<bit<1>>(LOCKS) states_low;
    register<bit<1>>(LOCKS) states_high;
    register<bit<8>>(LOCKS_A_MAU) machines_0;
    register<bit<8>>(LOCKS_A_MAU) machines_1;
    register<bit<8>>(LOCKS_A_MAU) machines_2;

    action configure(bit<32> locks, bit<1> writers_first) {
        meta.locks = locks;
        meta.writers_first = writers_first;
    }

    table settings {
        actions = { configure; }
        default_action = configure(LOCKS, 0);
    }

    // Who takes part: the same entries in four tables, since a table is looked up once. Machine 0, session 0, is the
    // registry, and always there.
    action sender_is_there() { meta.sender_there = 1; }
    table senders {
        key = { hdr.lock.sender: exact; hdr.lock.session: exact; }
        actions = { sender_is_there; NoAction; }
        default_action = NoAction;
        size = 256;
    }

    action requester_is_there() { meta.requester_there = 1; }
    table requesters {
        key = { hdr.lock.requester: exact; hdr.lock.requester_session: exact; }
        actions = { requester_is_there; NoAction; }
        default_action = NoAction;
        size = 256;
    }

    action target_is_there() { meta.target_there = 1; }
    table targets {
        key = { hdr.lock.target: exact; }
        actions = { target_is_there; NoAction; }
        default_action = NoAction;
        size = 256;
    }

    action agent_is_there() { meta.agent_there = 1; }
    table agents {
        key = { meta.agent: exact; }
        actions = { agent_is_there; NoAction; }
        default_action = NoAction;
        size = 256;
    }

    action act(bit<4> send, bit<1> write, bit<2> new_state, bit<2> place, bit<1> next) {
        meta.send = send;
        meta.write = write;
        meta.new_state = new_state;
        meta.place = place;
        meta.next = next;
    }

    table decision {
        key = {
            meta.kind: exact;
            meta.old_state: ternary;
            meta.shared: ternary;
            meta.from_agent: ternary;
            meta.matches: ternary;
            meta.applied: ternary;
            meta.writers_first: ternary;
        }
        actions = { act; }
        const default_action = act(SEND_NOTHING, 0, STATE_FREE, PLACE_KEEP, 0);
        const entries = {
#include "decision.p4inc"
        }
    }

    // Machine 0 is the registry: its entry has the port of the switch's own processor.
    action leave_by(bit<9> port) { standard.egress_spec = port; }
    action drop() { mark_to_drop(standard); }
    table ports {
        key = { meta.destination: exact; }
        actions = { leave_by; drop; }
        default_action = drop;
        size = 256;
    }

    // What deciders send shows the word, and says where the agent is.
    action stamp(bit<2> word_state, bit<8> machine, bit<8> incarnation, bit<64> token) {
        hdr.lock.word_state = word_state;
        hdr.lock.sender = machine ++ 8w0;
        hdr.lock.session = 0;
        hdr.lock.incarnation = incarnation;
        hdr.lock.incarnation_high = 0;
        hdr.lock.token = token;
    }

    action problem(bit<64> number) {
        hdr.lock.kind = ERROR;
        hdr.lock.target = hdr.lock.sender;
        // Problems are below 256.
        stamp(meta.old_state, meta.old_machine, meta.old_incarnation, number << 56);
        meta.send = SEND_PROBLEM;
        meta.to_source = 1;
    }

    apply {
        settings.apply();
        // What is no packet of the lock service is dropped. Without a key tags are 0.
        bit<16> payload_bytes = hdr.lock.payload_bytes[7:0] ++ hdr.lock.payload_bytes[15:8];
        bool needs_mode = hdr.lock.kind == ACQUIRE || hdr.lock.kind == MOVE || hdr.lock.kind == ENROL;
        bool known = hdr.lock.kind <= PROBE || (hdr.lock.kind >= FIRST_CONTROL && hdr.lock.kind <= LAST_CONTROL);
        if (standard.parser_error != error.NoError || !hdr.lock.isValid() ||
            payload_bytes[2:0] != 0 || payload_bytes > MAX_BYTES - HEADER ||
            hdr.udp.bytes != UDP_BYTES + HEADER + payload_bytes || hdr.ipv4.bytes != IPV4_BYTES + hdr.udp.bytes ||
            standard.packet_length < ETHERNET_BYTES + (bit<32>) hdr.ipv4.bytes ||
            hdr.lock.magic != MAGIC || hdr.lock.version != VERSION || hdr.lock.tag != 0 ||
            hdr.lock.zero_3 != 0 || hdr.lock.rack != 0 || hdr.lock.zero_55 != 0 || hdr.lock.zero_flags != 0 ||
            hdr.lock.mode == 2 || (needs_mode && hdr.lock.mode == 0) || !known) {
            drop();
            return;
        }
        senders.apply();
        requesters.apply();
        targets.apply();
        meta.send = SEND_NOTHING;

        if (hdr.lock.kind >= FIRST_CONTROL) {
            // The registry checks sessions itself: who joins has none.
            meta.send = SEND_ON;
            meta.with_payload = 1;
            meta.destination = 0;
        } else if (meta.sender_there == 0) {
            problem(NO_SUCH_SESSION);
        } else if (hdr.lock.kind > SEEK) {
            if (hdr.lock.kind == GRANT || hdr.lock.kind == ACK || hdr.lock.kind == PROBE) {
                if (meta.target_there == 1) {
                    meta.send = SEND_ON;
                    meta.with_payload = 1;
                    meta.destination = hdr.lock.target;
                } else {
                    problem(NO_SUCH_MACHINE);
                }
            }
        } else {
            meta.lock = hdr.lock.lock_3 ++ hdr.lock.lock_2 ++ hdr.lock.lock_1 ++ hdr.lock.lock_0;
            if (hdr.lock.lock_high != 0 || meta.lock >= meta.locks || meta.lock >= LOCKS) {
                problem(NO_SUCH_LOCK);
            } else {
                @atomic {
                    // Stage 1, MAU selection: which array, and where in it.
                    if (meta.lock < LOCKS_A_MAU) {
                        meta.mau = 0;
                        meta.offset = meta.lock;
                    } else if (meta.lock < 2 * LOCKS_A_MAU) {
                        meta.mau = 1;
                        meta.offset = meta.lock - LOCKS_A_MAU;
                    } else {
                        meta.mau = 2;
                        meta.offset = meta.lock - 2 * LOCKS_A_MAU;
                    }
                    // Stage 2, check: the incarnation.
                    READ(incarnations, meta.old_incarnation)
                    if (hdr.lock.incarnation_high == 0 && hdr.lock.incarnation == meta.old_incarnation) {
                        meta.matches = 1;
                    }
                    // Stages 3 and 4, free and r/w: the two bits of the state.
                    bit<1> bit_0;
                    bit<1> bit_1;
                    states_low.read(bit_0, meta.lock);
                    states_high.read(bit_1, meta.lock);
                    meta.old_state = bit_1 ++ bit_0;
                    // Stage 5, MID: where the agent is.
                    READ(machines, meta.old_machine)
                    meta.agent = meta.old_machine ++ 8w0;
                    if (hdr.lock.sender == meta.agent) {
                        meta.from_agent = 1;
                    }
                    if (hdr.lock.target == meta.agent && hdr.lock.incarnation + 1 == meta.old_incarnation) {
                        meta.applied = 1;
                    }
                    if (hdr.lock.mode == 1) {
                        meta.shared = 1;
                    }
                    // A reader that the decider has granted asks nothing: it enrols.
                    meta.kind = hdr.lock.kind;
                    if (hdr.lock.kind == ACQUIRE && hdr.lock.granted == 1) {
                        meta.kind = ENROL;
                    }
                    if (meta.requester_there == 0) {
                        problem(NO_SUCH_MACHINE);
                    } else {
                        decision.apply();
                        if (meta.place == PLACE_TARGET && meta.target_there == 0) {
                            problem(NO_SUCH_MACHINE);
                        } else if (meta.write == 1) {
                            meta.new_machine = meta.old_machine;
                            if (meta.place == PLACE_REQUESTER) {
                                meta.new_machine = low(hdr.lock.requester);
                            } else if (meta.place == PLACE_TARGET) {
                                meta.new_machine = low(hdr.lock.target);
                            } else if (meta.place == PLACE_NOBODY) {
                                meta.new_machine = 0;
                            }
                            meta.new_incarnation = meta.old_incarnation + (bit<8>) meta.next;
                            WRITE(incarnations, meta.new_incarnation)
                            states_low.write(meta.lock, meta.new_state[0:0]);
                            states_high.write(meta.lock, meta.new_state[1:1]);
                            WRITE(machines, meta.new_machine)
                        } else {
                            meta.new_state = meta.old_state;
                            meta.new_machine = meta.old_machine;
                            meta.new_incarnation = meta.old_incarnation;
                        }
                    }
                }
                // The agent of a machine that is gone: the registry will know what to do.
                agents.apply();
                if (meta.agent_there == 0) {
                    meta.agent = 0;
                }
            }
        }

        // Stage 6, destination.
        bit<64> token = 0;
        if (meta.shared == 1 && (meta.send == SEND_GRANT || meta.send == SEND_JOIN)) {
            token = TOKEN_OF_READERS;
        }
        if (meta.send == SEND_GRANT) {
            hdr.lock.kind = GRANT;
            hdr.lock.with_agent = 1;
            hdr.lock.target = hdr.lock.requester;
            meta.destination = hdr.lock.requester;
            stamp(meta.new_state, meta.new_machine, meta.new_incarnation, token);
        } else if (meta.send == SEND_JOIN) {
            stamp(meta.new_state, meta.new_machine, meta.new_incarnation, token);
            if (meta.agent == hdr.lock.requester) {
                // One packet for both.
                hdr.lock.granted = 1;
                hdr.lock.target = meta.agent;
                meta.destination = meta.agent;
            } else {
                standard.mcast_grp = low(hdr.lock.requester) ++ low(meta.agent);
            }
        } else if (meta.send == SEND_AGENT) {
            hdr.lock.target = meta.agent;
            hdr.lock.word_state = meta.new_state;
            if (hdr.lock.kind == ACQUIRE && hdr.lock.granted == 0) {
                hdr.lock.incarnation = meta.new_incarnation;
                hdr.lock.incarnation_high = 0;
            }
            meta.destination = meta.agent;
        } else if (meta.send == SEND_TARGET) {
            hdr.lock.kind = GRANT;
            hdr.lock.with_agent = 1;
            hdr.lock.word_state = meta.new_state;
            hdr.lock.incarnation = meta.new_incarnation;
            hdr.lock.incarnation_high = 0;
            hdr.lock.token = 0;
            meta.destination = hdr.lock.target;
            meta.with_payload = 1;
        } else if (meta.send == SEND_DONE || meta.send == SEND_REFUSED) {
            hdr.lock.kind = meta.send == SEND_DONE ? DONE : REFUSED;
            hdr.lock.target = hdr.lock.sender;
            stamp(meta.new_state, meta.new_machine, meta.new_incarnation, 0);
            meta.to_source = 1;
        } else if (meta.send == SEND_ACK) {
            hdr.lock.kind = ACK;
            hdr.lock.target = hdr.lock.requester;
            meta.destination = hdr.lock.requester;
            stamp(meta.new_state, meta.new_machine, meta.new_incarnation, 0);
        } else if (meta.send == SEND_GONE) {
            hdr.lock.kind = ERROR;
            hdr.lock.target = hdr.lock.requester;
            meta.destination = hdr.lock.requester;
            stamp(meta.new_state, meta.new_machine, meta.new_incarnation, NOT_HELD << 56);
        } else if (meta.send == SEND_NOTHING) {
            // Only deciders say these.
            drop();
            return;
        }
        if (meta.to_source == 1) {
            standard.egress_spec = standard.ingress_port;
        } else if (standard.mcast_grp == 0) {
            ports.apply();
        }
        if (meta.with_payload == 0) {
            hdr.lock.payload_bytes = 0;
            hdr.udp.bytes = UDP_BYTES + HEADER;
            hdr.ipv4.bytes = IPV4_BYTES + UDP_BYTES + HEADER;
        }
    }
}

control Address(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    // From where the packet came to is from where the answer comes.
    action swap() {
        bit<48> ethernet = hdr.ethernet.source;
        hdr.ethernet.source = hdr.ethernet.destination;
        hdr.ethernet.destination = ethernet;
        bit<32> ipv4 = hdr.ipv4.source;
        hdr.ipv4.source = hdr.ipv4.destination;
        hdr.ipv4.destination = ipv4;
        bit<16> udp = hdr.udp.source;
        hdr.udp.source = hdr.udp.destination;
        hdr.udp.destination = udp;
    }

    action to(bit<48> ethernet, bit<32> ipv4, bit<16> udp) {
        swap();
        hdr.ethernet.destination = ethernet;
        hdr.ipv4.destination = ipv4;
        hdr.udp.destination = udp;
    }

    action drop() { mark_to_drop(standard); }
    table addresses {
        key = { meta.destination: exact; }
        actions = { to; drop; }
        default_action = drop;
        size = 256;
    }

    apply {
        // The two packets of a join. Replica numbers are those of the group's nodes.
        if (standard.egress_rid == TO_REQUESTER) {
            hdr.lock.kind = GRANT;
            hdr.lock.target = hdr.lock.requester;
            meta.destination = hdr.lock.requester;
        } else if (standard.egress_rid == TO_AGENT) {
            hdr.lock.granted = 1;
            hdr.lock.target = meta.agent;
            meta.destination = meta.agent;
        }
        if (meta.to_source == 1) {
            swap();
        } else {
            addresses.apply();
        }
        if (meta.with_payload == 0) {
            truncate(ETHERNET_BYTES + (bit<32>) (IPV4_BYTES + UDP_BYTES + HEADER));
        }
        hdr.ipv4.hops = 64;
        // None: over IPv4 that is allowed, and the header below is checked anyway.
        hdr.udp.checksum = 0;
    }
}

control Checksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid(), {
                hdr.ipv4.version, hdr.ipv4.words, hdr.ipv4.service, hdr.ipv4.bytes, hdr.ipv4.identification,
                hdr.ipv4.flags, hdr.ipv4.fragment, hdr.ipv4.hops, hdr.ipv4.protocol, hdr.ipv4.source,
                hdr.ipv4.destination },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.lock);
    }
}

V1Switch(Parse(), Verify(), Decide(), Address(), Checksum(), Deparse()) main;
