//! The nine workflows of the paper's figure 5, packet by packet.
//!
//! A line is a packet on its way to or from the decider D: kind, mode, flags, the task that it is about; in brackets
//! the decision word as D has stamped it, and behind `at` the incarnation that an agent believes in.

use crate::network::Network;

#[test]
fn workflow_1_a_free_lock_costs_four_packets_from_request_to_release() {
    let mut net = Network::new(2, false);
    let a = net.write(1, 'a');
    assert_eq!(net.granted(), "a");
    net.release(1, a);
    net.expect(
        "1 -> D: acquire exclusive a
         D -> 1: grant exclusive agent a (exclusive 1)
         1 -> D: free at 1
         D -> 1: done (free 1)",
    );
    let b = net.read(2, 'b');
    net.release(2, b);
    net.expect(
        "2 -> D: acquire shared b
         D -> 2: grant shared agent b (shared 2)
         2 -> D: free at 2
         D -> 2: done (free 2)",
    );
    net.is_idle();
}

#[test]
fn workflow_2_a_reader_joins_readers_elsewhere_by_the_decider_alone() {
    let mut net = Network::new(3, false);
    net.read(1, 'a');
    net.lines();
    let b = net.read(2, 'b');
    // The grant does not wait for the agent, which is told by a second packet.
    net.expect(
        "2 -> D: acquire shared b
         D -> 2: grant shared b (shared 2)
         D -> 1: acquire shared granted b (shared 2)",
    );
    net.release(2, b);
    net.expect(
        "2 -> D: release shared granted b
         D -> 1: release shared granted b
         1 -> D: ack shared b of release
         D -> 2: ack shared b of release",
    );
    assert_eq!((net.granted(), net.word()), ("ab".into(), "shared 2 at 1".into()));
}

#[test]
fn workflow_3_who_has_to_wait_is_sent_on_to_the_agent() {
    let mut net = Network::new(3, false);
    net.write(1, 'a');
    net.lines();
    net.write(2, 'b');
    net.read(3, 'c');
    net.expect(
        "2 -> D: acquire exclusive b
         D -> 1: acquire exclusive b
         1 -> D: ack exclusive b of acquire
         D -> 2: ack exclusive b of acquire
         3 -> D: acquire shared c
         D -> 1: acquire shared c
         1 -> D: ack shared c of acquire
         D -> 3: ack shared c of acquire",
    );
    assert_eq!(net.granted(), "a");
}

#[test]
fn workflow_3_with_writers_first_a_writer_closes_the_lock_to_readers() {
    let mut net = Network::new(3, true);
    net.read(1, 'a');
    net.lines();
    net.write(2, 'b');
    net.read(3, 'c');
    net.expect(
        "2 -> D: acquire exclusive b
         D -> 1: acquire exclusive b
         1 -> D: ack exclusive b of acquire
         D -> 2: ack exclusive b of acquire
         3 -> D: acquire shared c
         D -> 1: acquire shared c
         1 -> D: ack shared c of acquire
         D -> 3: ack shared c of acquire",
    );
    assert_eq!((net.granted(), net.word()), ("a".into(), "led 1 at 1".into()));
}

#[test]
fn workflow_4_a_reader_beside_the_agent_is_granted_without_a_packet() {
    let mut net = Network::new(2, false);
    net.read(1, 'a');
    net.lines();
    net.read(1, 'b');
    net.expect("");
    assert_eq!(net.granted(), "ab");
}

#[test]
fn workflow_5_who_waits_beside_the_agent_sends_no_packet() {
    let mut net = Network::new(2, false);
    net.write(1, 'a');
    net.lines();
    net.write(1, 'b');
    net.read(1, 'c');
    net.expect("");
    assert_eq!(net.granted(), "a");
    let view = net.node(1).pool().view(crate::network::LOCK).expect("the agent is here");
    assert_eq!((view.holders.len(), view.waiters.len()), (1, 2));
}

#[test]
fn workflow_6_a_release_while_others_hold_sends_no_packet() {
    let mut net = Network::new(2, false);
    let a = net.read(1, 'a');
    net.read(2, 'b');
    let c = net.read(1, 'c');
    net.lines();
    net.release(1, a);
    net.release(1, c);
    net.expect("");
    assert_eq!((net.granted(), net.word()), ("abc".into(), "shared 2 at 1".into()));
}

#[test]
fn workflow_7_the_last_one_gives_the_lock_back_to_the_decider() {
    let mut net = Network::new(3, false);
    let a = net.read(1, 'a');
    let b = net.read(1, 'b');
    let c = net.read(2, 'c');
    net.release(1, a);
    net.release(2, c);
    net.lines();
    net.release(1, b);
    net.expect(
        "1 -> D: free at 2
         D -> 1: done (free 2)",
    );
    assert_eq!(net.granted(), "abc");
    net.is_idle();
}

#[test]
fn workflow_8_the_lock_goes_to_the_next_waiter_with_agent_and_queue() {
    let mut net = Network::new(4, false);
    let a = net.write(1, 'a');
    net.write(2, 'b');
    net.write(3, 'c');
    net.lines();
    net.release(1, a);
    net.expect(
        "1 -> D: move exclusive b at 1 with c exclusive
         D -> 2: grant exclusive agent b at 2 with c exclusive
         2 -> D: ack exclusive agent b of grant
         D -> 1: ack exclusive agent b of grant",
    );
    assert_eq!((net.granted(), net.word()), ("ab".into(), "led 2 at 2".into()));
    assert!(net.node(1).is_idle(), "nothing is left where the agent was");
}

#[test]
fn workflow_8_the_new_agent_lets_readers_of_its_queue_in_and_then_all() {
    let mut net = Network::new(4, false);
    let a = net.write(1, 'a');
    net.read(2, 'b');
    net.read(3, 'c');
    net.read(2, 'd');
    net.lines();
    net.release(1, a);
    // The agent of b grants c and d.
    net.expect(
        "1 -> D: move shared b at 1 with c shared, d shared
         D -> 2: grant shared agent b at 2 with c shared, d shared
         2 -> D: ack shared agent b of grant
         D -> 1: ack shared agent b of grant
         2 -> D: grant shared c
         D -> 3: grant shared c
         3 -> D: ack shared c of grant
         D -> 2: ack shared c of grant",
    );
    assert_eq!(net.granted(), "abdc");
    // A reader who comes now is the first to ask the new agent, which opens the lock to readers.
    net.read(4, 'e');
    net.expect(
        "4 -> D: acquire shared e
         D -> 2: acquire shared e
         2 -> D: grant shared e
         D -> 4: grant shared e
         2 -> D: open at 2
         D -> 2: done (shared 3)
         4 -> D: ack shared e of grant
         D -> 2: ack shared e of grant",
    );
    // From now on the decider adds readers by itself.
    net.read(4, 'f');
    net.expect(
        "4 -> D: acquire shared f
         D -> 4: grant shared f (shared 4)
         D -> 2: acquire shared granted f (shared 4)",
    );
    assert_eq!(net.granted(), "ef");
}

#[test]
fn workflow_9_a_release_from_elsewhere_is_sent_on_to_the_agent() {
    let mut net = Network::new(3, false);
    let a = net.read(1, 'a');
    let b = net.read(2, 'b');
    net.release(1, a);
    net.lines();
    // The last holder lets the agent give the lock back.
    net.release(2, b);
    net.expect(
        "2 -> D: release shared granted b
         D -> 1: release shared granted b
         1 -> D: ack shared b of release
         D -> 2: ack shared b of release
         1 -> D: free at 2
         D -> 1: done (free 2)",
    );
    assert_eq!(net.granted(), "ab");
    net.is_idle();
}

#[test]
fn workflow_9_a_release_from_elsewhere_lets_the_next_one_in() {
    let mut net = Network::new(3, false);
    let a = net.read(1, 'a');
    let b = net.read(2, 'b');
    net.write(3, 'c');
    net.release(1, a);
    net.lines();
    net.release(2, b);
    net.expect(
        "2 -> D: release shared granted b
         D -> 1: release shared granted b
         1 -> D: ack shared b of release
         D -> 2: ack shared b of release
         1 -> D: move exclusive c at 2
         D -> 3: grant exclusive agent c at 3
         3 -> D: ack exclusive agent c of grant
         D -> 1: ack exclusive agent c of grant",
    );
    assert_eq!((net.granted(), net.word()), ("abc".into(), "led 3 at 3".into()));
}
