//! The scenarios: only what goes in is written here; the decider says what comes out.
//!
//! Two groups. *Tables* meet every row of the decision table that any packet can meet, each row with a lock of its own.
//! *Stories* are conversations, most of them from new locks on, so that they can be played without a look into the
//! decider, and by a switch. Machine `m` has session `100 + m`.

use lockwork_lock_protocol::export::rows::{Row, rows};
use lockwork_lock_protocol::packet::{AGENT, GRANTED, Key, Kind, Packet, TRY, Waiter, datagram, waiters_to_body};
use lockwork_lock_protocol::table::{Case, ROWS};
use lockwork_lock_protocol::vectors::{Lock, Scenario, Setup};
use lockwork_lock_protocol::word::{Machine, Profile, State, Word};
use lockwork_locking::LockMode;
use std::sync::LazyLock;

/// Mode bits.
const SHARED: u8 = 1;
const EXCLUSIVE: u8 = 3;
/// The machine of the agent, in tables.
const AGENTS: u16 = 2;

/// A scenario in the making.
pub(crate) struct Story {
    /// Name of its file.
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) setup: Setup,
    pub(crate) inputs: Vec<(String, Vec<u8>)>,
}

impl Story {
    fn new(name: &str, title: &str) -> Self {
        let mut setup = Setup::new(8);
        setup.sessions = (1..=4).map(|machine| (Machine(machine), session(machine))).collect();
        Self { name: name.into(), title: title.into(), setup, inputs: Vec::new() }
    }

    /// The next packet.
    fn then(mut self, comment: &str, packet: Packet) -> Self {
        let bytes = datagram(&packet, &[], self.setup.key.as_ref());
        self.inputs.push((comment.into(), bytes));
        self
    }

    fn then_with(mut self, comment: &str, packet: Packet, body: &[u8]) -> Self {
        let bytes = datagram(&packet, body, self.setup.key.as_ref());
        self.inputs.push((comment.into(), bytes));
        self
    }

    /// The next datagram, made of a good one by `spoil`.
    fn spoilt(mut self, comment: &str, packet: Packet, spoil: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut bytes = datagram(&packet, &[], self.setup.key.as_ref());
        spoil(&mut bytes);
        self.inputs.push((comment.into(), bytes));
        self
    }

    fn writers_first(mut self) -> Self {
        self.setup.writers_first = true;
        self
    }

    fn lock(mut self, lock: u64, state: State, machine: u16, incarnation: u32, token: u64) -> Self {
        let word = Word { state, machine: Machine(machine), incarnation };
        self.setup.words.push(Lock { lock, word, token });
        self
    }

    pub(crate) fn record(self) -> Scenario {
        Scenario::record(self.title, self.setup, self.inputs)
    }
}

fn session(machine: u16) -> u32 {
    if machine == 0 { Machine::REGISTRY_SESSION } else { 100 + u32::from(machine) }
}

/// A packet from `machine` about a request of its own.
fn from(machine: u16, kind: Kind, lock: u64) -> Packet {
    let mut packet = Packet::new(kind, lock);
    (packet.requester, packet.sender) = (Machine(machine), Machine(machine));
    (packet.requester_session, packet.session) = (session(machine), session(machine));
    packet.request = 1 << 32 | 7;
    packet
}

fn asks(machine: u16, lock: u64, mode: u8) -> Packet {
    Packet { flags: mode, ..from(machine, Kind::Acquire, lock) }
}

/// An operation of an agent on the word with this incarnation.
fn agent(machine: u16, kind: Kind, lock: u64, incarnation: u32) -> Packet {
    Packet { incarnation, ..from(machine, kind, lock) }
}

fn moves(machine: u16, lock: u64, incarnation: u32, to: u16) -> Packet {
    Packet { flags: EXCLUSIVE, target: Machine(to), ..agent(machine, Kind::Move, lock, incarnation) }
}

/// Everything, tables first.
pub(crate) fn all() -> Vec<Story> {
    let mut stories: Vec<Story> =
        Kind::ALL[..8].iter().flat_map(|&kind| [table(kind, false), table(kind, true)]).collect();
    stories.extend(workflows());
    stories.extend(faults());
    stories.extend(routes());
    stories.extend(wrong());
    stories
}

fn table_name(kind: Kind, writers_first: bool) -> String {
    let first = if writers_first { "writers" } else { "readers" };
    format!("table-{}-{first}-first", format!("{kind:?}").to_lowercase())
}

/// The cases of a kind that a packet can meet: one cannot both match a word and be what made it.
fn cases(kind: Kind, writers_first: bool) -> impl Iterator<Item = Case> {
    let wanted =
        move |case: &Case| case.kind == kind && case.writers_first == writers_first && !(case.matches && case.applied);
    (0..ROWS).map(Case::of_index).filter(wanted)
}

/// A packet that meets `case` at a lock with this incarnation, whose agent is at [`AGENTS`] unless it is free.
fn packet_for(case: Case, lock: u64, incarnation: u32) -> Packet {
    let agent = if case.state == State::Free { 0 } else { AGENTS };
    let mut packet = from(if case.from_agent { agent } else { 3 }, case.kind, lock);
    let needs_mode = matches!(case.kind, Kind::Acquire | Kind::Move | Kind::Enrol);
    packet.flags = if case.shared {
        SHARED
    } else if needs_mode {
        EXCLUSIVE
    } else {
        0
    };
    packet.target = Machine(if case.applied { agent } else { 4 });
    packet.incarnation = match (case.matches, case.applied) {
        (true, _) => incarnation,
        (false, true) => incarnation - 1,
        (false, false) => incarnation - 2,
    };
    packet
}

fn says(case: Case) -> String {
    let Case { state, from_agent, matches, applied, .. } = case;
    let who = if from_agent { "agent's machine" } else { "another machine" };
    let incarnation = if matches {
        "matches"
    } else if applied {
        "is applied already"
    } else {
        "is older"
    };
    format!("{state}; from the {who}; incarnation {incarnation}").replace("the another", "another")
}

fn table(kind: Kind, writers_first: bool) -> Story {
    let name = table_name(kind, writers_first);
    let first = if writers_first { "writers" } else { "readers" };
    let mut story = Story::new(&name, &format!("Every row of the decision table for {kind:?}, {first} first."));
    story.setup.writers_first = writers_first;
    for (lock, case) in (0..).zip(cases(kind, writers_first)) {
        let incarnation = 40 + lock as u32;
        let machine = if case.state == State::Free { 0 } else { AGENTS };
        story = story.lock(lock, case.state, machine, incarnation, (lock + 1) << 16);
        story = story.then(&says(case), packet_for(case, lock, incarnation));
        story.setup.locks = lock + 1;
    }
    story
}

/// Whether a case stands for its row in the merged table and its state: the first of them that a packet can meet.
fn stands_for_its_row(case: Case) -> bool {
    static MERGED: LazyLock<Vec<Row>> = LazyLock::new(rows);
    let row = MERGED.iter().find(|row| row.is_for(case)).expect("every case has a row");
    let like = |other: &Case| row.is_for(*other) && other.state == case.state && !(other.matches && other.applied);
    (0..ROWS).map(Case::of_index).find(like) == Some(case)
}

/// The merged table, for a decider whose words cannot be set: packets bring each lock into its state. Rows that write
/// nothing share a lock.
pub(crate) fn table_from_new_locks(kind: Kind, writers_first: bool) -> Story {
    let name = table_name(kind, writers_first);
    let mut story = Story::new(&name, &format!("Every merged row of the decision table for {kind:?}."));
    story.setup.writers_first = writers_first;
    story.setup.profile = Profile::Lean;
    let (mut lock, mut ready) = (0, None);
    for case in cases(kind, writers_first).filter(|case| stands_for_its_row(*case)) {
        if ready != Some(case.state) {
            lock += u64::from(ready.is_some());
            let write =
                [asks(AGENTS, lock, EXCLUSIVE), agent(AGENTS, Kind::Free, lock, 1), asks(AGENTS, lock, EXCLUSIVE)];
            let path = match case.state {
                State::Free => [&write[..], &[agent(AGENTS, Kind::Free, lock, 2)]].concat(),
                State::Shared => vec![asks(AGENTS, lock, SHARED), asks(AGENTS, lock, SHARED)],
                State::Led => vec![asks(AGENTS, lock, EXCLUSIVE), moves(AGENTS, lock, 1, AGENTS)],
                State::Exclusive => write.to_vec(),
            };
            story = path.into_iter().fold(story, |story, packet| story.then("", packet));
        }
        story = story.then(&says(case), packet_for(case, lock, 2));
        let writes = lockwork_lock_protocol::table::rule(case).state.is_some();
        ready = if writes { None } else { Some(case.state) };
        lock += u64::from(writes);
        story.setup.locks = lock + 1;
    }
    story
}

/// What switches can play: new locks of the lean profile, no key, machines of one byte.
pub(crate) fn for_switches() -> Vec<Story> {
    let mut stories: Vec<Story> = Kind::ALL[..8].iter().map(|&kind| table_from_new_locks(kind, false)).collect();
    // Only ACQUIRE has rows that depend on who goes first.
    stories.push(table_from_new_locks(Kind::Acquire, true));
    let fits = |story: &Story| {
        let Setup { key, words, sessions, .. } = &story.setup;
        key.is_none() && words.is_empty() && sessions.iter().all(|(machine, _)| machine.0 < 10)
    };
    for mut story in all().into_iter().filter(fits) {
        story.setup.profile = Profile::Lean;
        stories.push(story);
    }
    stories
}

/// Figure 5, as the decider sees it.
fn workflows() -> Vec<Story> {
    let queue = waiters_to_body(&[
        Waiter { machine: Machine(3), session: session(3), request: 9, mode: LockMode::Shared },
        Waiter { machine: Machine(4), session: session(4), request: 5, mode: LockMode::Exclusive },
    ]);
    vec![
        Story::new("workflow-1-free", "(1) A free lock goes to whoever comes, with a new agent.")
            .then("a reader; its token ends in ffff, above whatever the last writer handed on", asks(1, 0, SHARED))
            .then("a writer; the token grows", asks(2, 1, EXCLUSIVE))
            .then("one who would not wait", Packet { flags: EXCLUSIVE | TRY, ..asks(3, 2, 0) }),
        Story::new("workflow-2-join", "(2) A reader joins readers: both the reader and the agent hear of it.")
            .then("the agent comes to machine 1", asks(1, 0, SHARED))
            .then("granted at once; the agent enters it afterwards", asks(2, 0, SHARED))
            .then("one more", asks(3, 0, SHARED))
            .then("a second reader of the agent's machine: one packet is both", Packet { request: 8, ..asks(1, 0, SHARED) }),
        Story::new("workflow-3-wait", "(3) What cannot be granted is sent on to the agent, which queues it.")
            .then("machine 1 writes", asks(1, 0, EXCLUSIVE))
            .then("a writer waits", asks(2, 0, EXCLUSIVE))
            .then("a reader too", asks(3, 0, SHARED))
            .then("machine 1 reads", asks(1, 1, SHARED))
            .then("a writer waits; readers still pass", asks(2, 1, EXCLUSIVE))
            .then("they do", asks(3, 1, SHARED)),
        Story::new("workflow-3-wait-writers-first", "(3) A writer that waits closes the lock to further readers.")
            .writers_first()
            .then("machine 1 reads", asks(1, 0, SHARED))
            .then("machine 2 too", asks(2, 0, SHARED))
            .then("a writer waits: the lock is led now", asks(3, 0, EXCLUSIVE))
            .then("a reader waits behind it", asks(4, 0, SHARED))
            .then("when the writer has been, the agent opens", agent(1, Kind::Open, 0, 2))
            .then("and readers join again", asks(4, 0, SHARED)),
        Story::new(
            "workflow-4-local-grant",
            "(4) The agent grants to its own machine. The decider sees nothing of it: only what comes before and after.",
        )
        .then("machine 1 reads; its other tasks now read without a packet", asks(1, 0, SHARED))
        .then("the last of them has gone", agent(1, Kind::Free, 0, 1)),
        Story::new(
            "workflow-5-local-wait",
            "(5) A task of the agent's machine waits. The decider sees nothing of it: only what comes before and after.",
        )
        .then("machine 1 writes; its other tasks queue without a packet", asks(1, 0, EXCLUSIVE))
        .then("a writer elsewhere queues behind them", asks(2, 0, EXCLUSIVE))
        .then("the local ones have had their turn, with tokens 65537 and so on", moves(1, 0, 1, 2)),
        Story::new(
            "workflow-6-local-release",
            "(6) A holder on the agent's machine releases while others hold. The decider sees nothing of it.",
        )
        .then("machine 1 reads, with several tasks", asks(1, 0, SHARED))
        .then("machine 2 reads; meanwhile tasks of machine 1 release", asks(2, 0, SHARED))
        .then("machine 2 is the last", from(2, Kind::Release, 0))
        .then("the agent has seen both grants", agent(1, Kind::Free, 0, 2)),
        Story::new("workflow-7-free", "(7) The last holder has gone and nobody waits: the agent gives the lock back.")
            .then("", asks(1, 0, EXCLUSIVE))
            .then("free, the incarnation stays", agent(1, Kind::Free, 0, 1))
            .then("the next gets a larger incarnation and token", asks(2, 0, EXCLUSIVE))
            .then("a reader joins after the agent has counted", asks(3, 1, SHARED))
            .then("", asks(4, 1, SHARED))
            .then("refused: the agent has seen one grant of two", agent(3, Kind::Free, 1, 1))
            .then("now it has seen both", agent(3, Kind::Free, 1, 2)),
        Story::new("workflow-8-hand-over", "(8) The lock goes to the next waiter, and the agent with it.")
            .then("", asks(1, 0, EXCLUSIVE))
            .then("", asks(2, 0, EXCLUSIVE))
            .then("to machine 2, without further waiters", moves(1, 0, 1, 2))
            .then_with("to machine 3, with a queue; the payload goes along", Packet { parts: 1, ..moves(2, 0, 2, 3) }, &queue)
            .then("who asks now is sent to machine 3", asks(4, 0, SHARED))
            .then("a reader got it: its agent opens the lock", agent(3, Kind::Open, 0, 3))
            .then("so readers join", asks(4, 0, SHARED))
            .then("and it closes it again, whatever it has seen", agent(3, Kind::Close, 0, 4)),
        Story::new("workflow-9-remote-release", "(9) A holder that has not the agent releases by way of the decider.")
            .then("", asks(1, 0, SHARED))
            .then("", asks(2, 0, SHARED))
            .then("sent on to the agent; nothing is written", from(2, Kind::Release, 0))
            .then("the agent gives back", agent(1, Kind::Free, 0, 2))
            .then("a second copy finds the lock free: settled", from(2, Kind::Release, 0)),
    ]
}

/// What lost, doubled and late packets do.
fn faults() -> Vec<Story> {
    vec![
        Story::new("lost-grant", "The grant of a free lock is lost: the requester takes the agent over.")
            .then("granted, but the answer does not arrive", asks(1, 0, SHARED))
            .then("a reader elsewhere joins; machine 1 gets its packet and has no agent", asks(2, 0, SHARED))
            .then("asked again: it has joined by now, and is the agent's machine", asks(1, 0, SHARED))
            .then("it moves the agent to itself, with the word it saw", moves(1, 0, 3, 1))
            .then("nobody joins meanwhile", asks(3, 0, SHARED)),
        Story::new("doubled", "Second copies change nothing.")
            .then("", asks(1, 0, EXCLUSIVE))
            .then("ACQUIRE twice: sent on to the agent, which knows the request", asks(1, 0, EXCLUSIVE))
            .then("", moves(1, 0, 1, 2))
            .then("MOVE twice: sent on again in case the first was lost", moves(1, 0, 1, 2))
            .then("", agent(2, Kind::Open, 0, 2))
            .then("OPEN twice: done already", agent(2, Kind::Open, 0, 2))
            .then("", agent(2, Kind::Close, 0, 3))
            .then("CLOSE twice", agent(2, Kind::Close, 0, 3))
            .then("", agent(2, Kind::Free, 0, 3))
            .then("FREE twice", agent(2, Kind::Free, 0, 3))
            .then("RELEASE of what is free", from(1, Kind::Release, 0))
            .then("the lock is another's now", asks(3, 0, EXCLUSIVE))
            .then("FREE a third time", agent(2, Kind::Free, 0, 3))
            .then("and the first MOVE", moves(1, 0, 1, 2)),
        Story::new(
            "own-late-packets",
            "The agent's machine has the lock again; packets of its former agent change nothing.",
        )
        .then("", asks(1, 0, EXCLUSIVE))
        .then("", agent(1, Kind::Free, 0, 1))
        .then("", asks(1, 0, EXCLUSIVE))
        .then("a late FREE: refused, with the incarnation of today", agent(1, Kind::Free, 0, 1))
        .then("a late MOVE", moves(1, 0, 1, 2))
        .then("a late OPEN", agent(1, Kind::Open, 0, 1)),
        Story::new("not-the-agent", "Operations of an agent from another machine change nothing.")
            .then("", asks(1, 0, EXCLUSIVE))
            .then("", agent(2, Kind::Free, 0, 1))
            .then("", agent(2, Kind::Open, 0, 1))
            .then("", moves(2, 0, 1, 2))
            .then("", asks(1, 1, SHARED))
            .then("", agent(2, Kind::Close, 1, 1)),
        Story::new("early", "An agent that is not there yet sends packets back; the decider sends them on again.")
            .then("", asks(1, 0, SHARED))
            .then("", asks(2, 0, SHARED))
            .then(
                "what machine 1 heard of machine 2, sent back; not granted a second time",
                Packet {
                    flags: SHARED | GRANTED,
                    hops: 1,
                    sender: Machine(1),
                    session: session(1),
                    incarnation: 2,
                    ..asks(2, 0, 0)
                },
            )
            .then(
                "the same for a request that waits",
                Packet { flags: EXCLUSIVE, hops: 63, sender: Machine(1), session: session(1), ..asks(3, 0, 0) },
            ),
        Story::new("enrol", "A reader tells the agent what it was granted.")
            .then("", asks(1, 0, SHARED))
            .then("", asks(2, 0, SHARED))
            .then("", Packet { flags: SHARED, incarnation: 2, ..from(2, Kind::Enrol, 0) })
            .then("", agent(1, Kind::Free, 0, 2))
            .then("too late: it holds nothing", Packet { flags: SHARED, incarnation: 2, ..from(2, Kind::Enrol, 0) })
            .then(
                "the same in another's words",
                Packet {
                    flags: SHARED | GRANTED,
                    sender: Machine(3),
                    session: session(3),
                    ..from(2, Kind::Acquire, 0)
                },
            ),
        Story::new("wrap", "Incarnations go round, and nothing is special there.")
            .lock(0, State::Shared, 1, u32::MAX, 0)
            .lock(1, State::Exclusive, 1, u32::MAX, 5 << 16)
            .lock(2, State::Led, 2, 0, 5 << 16)
            .then("joined by the last, which makes it 0", asks(2, 0, SHARED))
            .then("older by one", agent(1, Kind::Free, 0, u32::MAX))
            .then("", agent(1, Kind::Free, 0, 0))
            .then("", moves(1, 1, u32::MAX, 2))
            .then("a move that is applied already", moves(1, 2, u32::MAX, 2)),
        Story::new(
            "tokens",
            "Tokens of writers grow; those of readers end in ffff, so no later hand-over is below them.",
        )
        .lock(0, State::Free, 0, 9, 0x7fff_ffff_0000)
        .lock(1, State::Free, 0, 9, 0x7fff_ffff_0000)
        .lock(2, State::Shared, 1, 9, 0x1234_0000)
        .then("", asks(1, 0, EXCLUSIVE))
        .then("", asks(1, 1, SHARED))
        .then("", asks(2, 2, SHARED))
        .then("each move is a step", moves(1, 0, 10, 2)),
    ]
}

/// Packets that are sent on.
fn routes() -> Vec<Story> {
    let with_target = |packet: Packet, to| Packet { target: Machine(to), ..packet };
    vec![
        Story::new("routed", "What is not decided is sent on to its target, payload and all.")
            .then("a grant of an agent", with_target(Packet { flags: SHARED, ..agent(1, Kind::Grant, 0, 3) }, 2))
            .then_with(
                "a later part of an agent",
                with_target(Packet { flags: EXCLUSIVE | AGENT, part: 1, parts: 2, ..agent(1, Kind::Grant, 0, 3) }, 2),
                &[0; 16],
            )
            .then("", with_target(from(1, Kind::Ack, 0), 3))
            .then_with("", with_target(from(1, Kind::Probe, 0), 4), &[1; 8])
            .then("locks need not be there: these are not looked up", with_target(from(1, Kind::Ack, 1 << 40), 3))
            .then("to the registry", with_target(from(1, Kind::Ack, 0), 0))
            .then("a circle is sought at the agent", asks(1, 0, SHARED))
            .then("", from(2, Kind::Seek, 0))
            .then("at a free lock there is none", from(2, Kind::Seek, 1)),
        Story::new("control", "The registry's packets are sent on to it, from whomever they come.")
            .then_with("", Packet { sender: Machine(999), session: 999, ..Packet::new(Kind::Join, 1 << 60) }, &[2; 24])
            .then("", from(1, Kind::Renew, 0))
            .then("", from(1, Kind::Leave, 0))
            .then("", from(1, Kind::Sweep, 0))
            .then("", from(1, Kind::Swept, 0))
            .then("", from(2, Kind::Status, 0))
            .then("also those that only it sends", from(1, Kind::Welcome, 0))
            .then("", from(1, Kind::Renewed, 0))
            .then("", from(1, Kind::Left, 0))
            .then("", from(1, Kind::Died, 0)),
        Story::new("dead-agent", "The agent's machine is gone: the registry takes its place.")
            .lock(0, State::Shared, 77, 5, 1 << 16)
            .lock(1, State::Exclusive, 77, 5, 1 << 16)
            .then("a reader joins, and the registry hears of it", asks(1, 0, SHARED))
            .then("", asks(2, 0, EXCLUSIVE))
            .then("", from(2, Kind::Release, 1))
            .then("", asks(3, 1, SHARED)),
        Story::new(
            "registry",
            "The registry is machine 0 and keeps agents like any other, in the process of a decider.",
        )
        .lock(0, State::Led, 0, 5, 1 << 16)
        .lock(1, State::Led, 0, 5, 1 << 16)
        .then("", asks(1, 0, SHARED))
        .then("over a network nobody speaks for it", moves(0, 0, 5, 1))
        .then("", agent(0, Kind::Free, 1, 5))
        .then("in no session", Packet { session: 0, requester_session: 0, ..agent(0, Kind::Free, 1, 5) })
        .then("", Packet { session: 0, target: Machine(2), ..from(0, Kind::Grant, 1) }),
    ]
}

/// What is refused, and what is dropped.
fn wrong() -> Vec<Story> {
    let good = asks(1, 0, EXCLUSIVE);
    let key = Key([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
    let mut keyed =
        Story::new("keyed", "A cluster with a key: answers carry tags, and only tags of the key are taken.");
    keyed.setup.key = Some(key);
    let mut many = Story::new("machines", "Large machine numbers, sessions and requests.");
    many.setup.sessions.extend([(Machine(u16::MAX), u32::MAX), (Machine(256), 1 << 31)]);
    let large = |machine: u16, session| Packet {
        requester: Machine(machine),
        requester_session: session,
        sender: Machine(machine),
        session,
        request: u64::MAX,
        ..asks(1, 7, SHARED)
    };
    vec![
        Story::new("errors", "Every answer ERROR of a decider. Problem numbers are in the field token.")
            .then("1: there are eight locks", asks(1, 8, EXCLUSIVE))
            .then("1: far outside", asks(1, u64::MAX, EXCLUSIVE))
            .then("2: a machine that never was", asks(9, 0, EXCLUSIVE))
            .then("2: a session that has ended", Packet { session: 7, ..good })
            .then("2: comes before 1", Packet { session: 7, ..asks(1, 8, EXCLUSIVE) })
            .then("2: routed packets too", Packet { session: 7, target: Machine(2), ..from(1, Kind::Ack, 0) })
            .then("3: the requester is not there", Packet { requester: Machine(9), ..good })
            .then("3: the requester's session has ended; the word is shown", Packet { requester_session: 7, ..good })
            .then("", asks(1, 0, EXCLUSIVE))
            .then("3: the target of a move is not there; nothing is written", moves(1, 0, 1, 9))
            .then("3: nor the target of a routed packet", Packet { target: Machine(9), ..from(1, Kind::Ack, 0) })
            .then("5: the lock is free, so it is not held", Packet { flags: SHARED, ..from(2, Kind::Enrol, 1) }),
        Story::new("deciders-words", "Packets that only deciders send are dropped.")
            .then("", from(1, Kind::Done, 0))
            .then("", from(1, Kind::Refused, 0))
            .then("", from(1, Kind::Error, 0)),
        Story::new("malformed", "What is no packet is dropped.")
            .spoilt("nothing at all", good, Vec::clear)
            .spoilt("a byte short", good, |bytes| bytes.truncate(63))
            .spoilt("a byte long", good, |bytes| bytes.push(0))
            .spoilt("eight bytes that the length does not name", good, |bytes| bytes.extend([0; 8]))
            .spoilt("eight bytes named that are not there", good, |bytes| bytes[28] = 8)
            .spoilt("a payload of three bytes", good, |bytes| {
                bytes[28] = 3;
                bytes.extend([0; 3]);
            })
            .spoilt("the largest packet, and eight bytes more", good, |bytes| {
                bytes[28..30].copy_from_slice(&1344_u16.to_le_bytes());
                bytes.extend([0; 1344]);
            })
            .spoilt("another magic", good, |bytes| bytes[0] = b'l')
            .spoilt("another magic", good, |bytes| bytes[1] = b'k')
            .spoilt("version 0", good, |bytes| bytes[2] = 0)
            .spoilt("version 2", good, |bytes| bytes[2] = 2)
            .spoilt("a tag where there is no key", good, |bytes| bytes[56] = 1)
            .spoilt("a tag where there is no key", good, |bytes| bytes[63] = 0x80)
            .spoilt("byte 3", good, |bytes| bytes[3] = 1)
            .spoilt("byte 55", good, |bytes| bytes[55] = 1)
            .spoilt("another rack", good, |bytes| bytes[4] = 1)
            .spoilt("another rack", good, |bytes| bytes[5] = 1)
            .spoilt("flag 6", good, |bytes| bytes[53] |= 0x40)
            .spoilt("flag 7", good, |bytes| bytes[53] |= 0x80)
            .spoilt("mode 2", good, |bytes| bytes[53] = 2)
            .spoilt("an ACQUIRE without mode", good, |bytes| bytes[53] = 0)
            .spoilt("a MOVE without mode", from(1, Kind::Move, 0), |_| {})
            .spoilt("an ENROL without mode", from(1, Kind::Enrol, 0), |_| {})
            .spoilt("kind 14", good, |bytes| bytes[52] = 14)
            .spoilt("kind 15", good, |bytes| bytes[52] = 15)
            .spoilt("kind 32", good, |bytes| bytes[52] = 32)
            .spoilt("kind 255", good, |bytes| bytes[52] = 255)
            .then("and the good one, to see that nothing happened", good),
        Story::new(
            "payload",
            "Payloads go along with agents and with what is only routed; otherwise they are dropped.",
        )
        .then_with("a grant has none", asks(1, 0, SHARED), &[3; 8])
        .then_with("the largest packet: on to the agent, without", asks(2, 0, EXCLUSIVE), &[4; 1328])
        .then_with("two answers, both without", asks(3, 0, SHARED), &[5; 16])
        .then_with("the largest, with a move", moves(1, 0, 2, 2), &[6; 1328]),
        keyed
            .then("", good)
            .then("", asks(2, 0, SHARED))
            .spoilt("a wrong tag", asks(3, 0, SHARED), |bytes| bytes[60] ^= 1)
            .spoilt("no tag", asks(3, 0, SHARED), |bytes| bytes[56..].fill(0))
            .spoilt("a changed lock under the old tag", asks(3, 0, SHARED), |bytes| bytes[8] = 1)
            .spoilt("a changed incarnation under the old tag", agent(1, Kind::Free, 0, 0), |bytes| bytes[44] = 1)
            .then_with("a payload; its own tag stays right, since what it covers stays", moves(1, 0, 1, 2), &[7; 32])
            .then("an error has a tag too", asks(1, 8, SHARED)),
        many.then("", large(u16::MAX, u32::MAX)).then("", large(256, 1 << 31)),
    ]
}
