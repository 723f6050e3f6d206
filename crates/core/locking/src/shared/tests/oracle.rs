//! Long random scripts against a list: a line is its requests in the order in which they came, and a request holds the
//! lock if it is compatible with every earlier one. After each step the same sessions must hold and wait as in the
//! table.

use proptest::prelude::*;

use super::*;

/// All requests of a line, oldest first.
#[derive(Clone, Debug, Default)]
struct Requests(Vec<(u16, LockMode)>);

impl Requests {
    fn holds(&self, at: usize) -> bool {
        self.0[..at].iter().all(|(_, earlier)| compatible(*earlier, self.0[at].1))
    }

    /// Whether all that this request waits for are younger. Its own group is none of them; who of those with the same
    /// mode in front of it is of its group is known only if all of them are younger or none has to be looked at.
    fn waits_for_younger(&self, at: usize) -> Option<bool> {
        let (session, mode) = self.0[at];
        let younger = |ahead: &[(u16, LockMode)]| ahead.iter().all(|(other, _)| *other > session);
        let alike = self.0[..at].iter().rev().take_while(|(_, other)| compatible(*other, mode)).count();
        let (all, others) = (younger(&self.0[..at]), younger(&self.0[..at - alike]));
        (all == others).then_some(all)
    }

    fn of(&self, session: u16) -> Option<usize> {
        self.0.iter().position(|(of, _)| *of == session)
    }
}

struct Oracle {
    lines: Vec<Requests>,
    timeout: WaitPolicy,
}

impl Oracle {
    fn is_absent(&self, session: u16) -> bool {
        self.lines.iter().all(|line| line.of(session).is_none())
    }

    /// Whether the session waits for nobody older, anywhere; `told` where that depends on groups.
    fn waits_for_younger(&self, session: u16, told: bool) -> bool {
        let younger = |line: &Requests, at: usize| line.holds(at) || line.waits_for_younger(at).unwrap_or(told);
        self.lines.iter().all(|line| line.of(session).is_none_or(|at| younger(line, at)))
    }

    fn ask(&mut self, session: u16, line: usize, mode: LockMode, told: Step) -> Step {
        if let Some(at) = self.lines[line].of(session) {
            let held = self.lines[line].0[at].1;
            let wanted = held.join(mode);
            let requests = &mut self.lines[line];
            let alone = (0..requests.0.len()).all(|other| other == at || !requests.holds(other));
            if wanted != held && !alone {
                return Step::Refused;
            }
            requests.0[at].1 = wanted;
            return Step::Granted;
        }
        if self.timeout != WaitPolicy::Queue && !self.waits_for_younger(session, told != Step::Refused) {
            return Step::Refused;
        }
        let first = self.is_absent(session);
        let requests = &mut self.lines[line];
        requests.0.push((session, mode));
        let last = requests.0.len() - 1;
        if requests.holds(last) {
            return Step::Granted;
        }
        let younger = requests.waits_for_younger(last).unwrap_or(told == Step::Waiting);
        let waits = match self.timeout {
            WaitPolicy::Try => false,
            WaitPolicy::WaitDie => younger,
            WaitPolicy::Safe => first || younger,
            WaitPolicy::Queue => true,
        };
        if !waits {
            requests.0.pop();
        }
        if waits { Step::Waiting } else { Step::Refused }
    }

    fn forget(&mut self, session: u16) {
        self.lines.iter_mut().for_each(|line| line.0.retain(|(of, _)| *of != session));
    }
}

/// Everybody stands where the oracle says, and those who wait are in its order.
fn same(world: &World, oracle: &Oracle) -> Result<(), TestCaseError> {
    for (line, requests) in oracle.lines.iter().enumerate() {
        for session in 1..=world.sessions.len() as u16 {
            let stands = world.table.standing(number_of(session), line as u32).unwrap();
            let expected = requests.of(session).map(|at| requests.holds(at).then_some(requests.0[at].1));
            prop_assert_eq!(stands, expected, "session {} in line {}: {:?}", session, line, requests);
        }
        let mut order = Vec::new();
        world.table.everybody(line as u32, |session| order.push(session.get())).unwrap();
        let waits = |session: &u16| requests.of(*session).is_some_and(|at| !requests.holds(at));
        // Within a group there is no order.
        let writers = |session: &u16| waits(session) && requests.of(*session).is_some_and(|at| requests.0[at].1 == X);
        let theirs: Vec<u16> = requests.0.iter().map(|(session, _)| *session).filter(writers).collect();
        prop_assert_eq!(order.into_iter().filter(writers).collect::<Vec<_>>(), theirs);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_table_does_what_a_list_does(
        timeout in 0..4_usize,
        steps in prop::collection::vec((1..=8_u16, 0..2_u32, 0..7_u8, 0..3_usize), 1..250),
    ) {
        let timeout = [WaitPolicy::Try, WaitPolicy::WaitDie, WaitPolicy::Safe, WaitPolicy::Queue][timeout];
        let world = World::new(2, 8, timeout);
        let mut oracle = Oracle { lines: vec![Requests::default(); 2], timeout };
        for (session, line, what, mode) in steps {
            let mode = [S, IX, X][mode];
            let stand = world.stands.borrow().get(&(session, line)).copied();
            match (what, stand) {
                (0..=2, None | Some(Stand::Holds)) => {
                    let step = world.ask(session, line, mode);
                    // Entries that were taken back have places until it is their turn.
                    let is_full = Control(world.words(line)[0]).length() == 7;
                    if step == Step::Full || (is_full && step == Step::Refused && stand.is_none()) {
                        prop_assert!(is_full);
                        world.stands.borrow_mut().remove(&(session, line));
                    } else {
                        prop_assert_eq!(step, oracle.ask(session, line as usize, mode, step));
                    }
                }
                (3 | 4, Some(_)) => {
                    world.leave(session, line);
                    oracle.lines[line as usize].0.retain(|(of, _)| *of != session);
                }
                (5, _) => {
                    world.play(LeaveAll(session));
                    oracle.forget(session);
                }
                (6, _) if mode == X => {
                    world.stands.borrow_mut().retain(|(of, _), _| *of != session);
                    world.table.clean_up(number_of(session), &mut |wake| world.wake(wake)).unwrap();
                    *world.session(session) = world.table.open(number_of(session), 1, &mut |_| {}).unwrap();
                    world.table.set_age(&world.session(session), session.into()).unwrap();
                    oracle.forget(session);
                }
                _ => {}
            }
            while world.look() {}
            same(&world, &oracle)?;
        }
        world.finish(&timeout);
    }
}
