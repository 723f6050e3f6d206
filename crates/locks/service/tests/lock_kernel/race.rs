//! Two processors, one lock: each grant has an incarnation of its own. A decider with a load and a store in the place
//! of the compare-and-swap must be found out by the same test, or the test would show nothing.

use crate::frames::{BEFORE, Machines, run};
use crate::{BROKEN, KEY, load, options};
use aya::programs::Xdp;
use lockwork_lock_protocol::packet::{Kind, Packet, datagram, parse};
use lockwork_lock_protocol::word::Machine;
use lockwork_testkit::skip_optional;
use std::collections::BTreeSet;
use std::sync::Barrier;

/// How often each processor asks.
const TRIES: u32 = 150_000;

/// The processors that this process may use.
fn processors() -> Vec<usize> {
    // SAFETY: a set of processors of its own size; all bits are a set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &raw mut set), 0);
        (0..libc::CPU_SETSIZE as usize).filter(|processor| libc::CPU_ISSET(*processor, &set)).collect()
    }
}

fn stay_on(processor: usize) {
    // SAFETY: a set of processors of its own size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &raw const set), 0);
    }
}

/// Asks for lock 0 as `machine`, and frees it whenever it is granted. Gives the incarnations of its grants.
fn ask_and_free(program: &Xdp, machines: &Machines, machine: u16) -> Vec<u32> {
    let mut packet = Packet::new(Kind::Acquire, 0);
    packet.flags = 3;
    (packet.sender, packet.session) = (Machine(machine), 100 * u32::from(machine));
    (packet.requester, packet.requester_session) = (packet.sender, packet.session);
    let ask = machines.arriving(&datagram(&packet, &[], Some(&KEY)));
    let mut grants = Vec::new();
    for _ in 0..TRIES {
        let (_, out) = run(program, &ask);
        let (answer, _) = parse(&out[BEFORE..], Some(&KEY)).expect("a packet");
        if answer.kind != Kind::Grant {
            continue;
        }
        grants.push(answer.incarnation);
        packet.kind = Kind::Free;
        packet.incarnation = answer.incarnation;
        run(program, &machines.arriving(&datagram(&packet, &[], Some(&KEY))));
    }
    grants
}

/// How many grants there were, and in how many incarnations.
fn race(object: Option<&[u8]>) -> Option<(usize, usize)> {
    let [first, second, ..] = processors()[..] else {
        skip_optional("one processor cannot race with itself");
        return None;
    };
    let mut decider = load(&options(1, Some(KEY), false), object, &["lockwork_xdp"])?;
    let machines = Machines::behind(2);
    for machine in [1, 2] {
        decider.set_machine(Machine(machine), machines.0[&machine]).expect("the map is written");
    }
    let program: &Xdp = decider.program("lockwork_xdp").expect("it is there");
    let start = Barrier::new(2);
    let grants: Vec<u32> = std::thread::scope(|scope| {
        let threads = [(1, first), (2, second)].map(|(machine, processor)| {
            let (start, machines) = (&start, &machines);
            scope.spawn(move || {
                stay_on(processor);
                start.wait();
                ask_and_free(program, machines, machine)
            })
        });
        threads.into_iter().flat_map(|thread| thread.join().expect("it ends")).collect()
    });
    Some((grants.len(), grants.iter().collect::<BTreeSet<_>>().len()))
}

#[test]
fn privileged_two_processors_never_get_one_lock() {
    let Some((grants, incarnations)) = race(None) else { return };
    assert!(grants > 1000, "only {grants} grants");
    assert_eq!(grants, incarnations, "a grant was given twice");
}

#[test]
fn privileged_a_decider_without_compare_and_swap_is_found_out() {
    let Some((grants, incarnations)) = race(Some(BROKEN)) else { return };
    assert!(grants > incarnations, "{grants} grants in as many incarnations: the race is not seen");
}
