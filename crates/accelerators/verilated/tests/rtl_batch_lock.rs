//! `lw_batch_lock` against the batch manager of the locking crate: the same decisions in the same order for the same
//! input, whatever the input's and the output's rhythm.

use lockwork_locking::batch::{Access, BatchConfig, BatchError, BatchLocks, FlatSets};
use lockwork_locking::{LockMode, compatible};
use lockwork_random::Random;
use lockwork_verilated::{Build, Model, Port};

const RECORDS: u32 = 32;
const SET_MAX: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Grant { id: u32, position: u32, chain: u32 },
    End { length: u32 },
    Unknown { id: u32 },
    TooLong { id: u32 },
}

/// The ports of the unit.
struct Unit {
    model: Model,
    access_valid: Port,
    access_ready: Port,
    id: Port,
    record: Port,
    mode: Port,
    last: Port,
    close: Port,
    grant_valid: Port,
    grant_ready: Port,
    kind: Port,
    grant_id: Port,
    position: Port,
    chain: Port,
    deferred: Port,
}

fn build(records: u32, position: u32, epoch: u32, set_max: usize) -> Model {
    Build::new("lw_batch_lock")
        .parameter("Records", records)
        .parameter("PositionWidth", position)
        .parameter("Deferred", 16)
        .parameter("SetMax", set_max)
        .parameter("EpochWidth", epoch)
        .load()
        .expect("the module builds")
}

impl Unit {
    /// Out of reset.
    fn new(mut model: Model, capacity: u32, deferred_limit: u32) -> Self {
        let port = |name: &str| model.port(name).unwrap();
        let (reset, capacity_i, limit_i) = (port("rst_ni"), port("capacity_i"), port("deferred_limit_i"));
        let (access_valid, access_ready) = (port("access_valid_i"), port("access_ready_o"));
        let (id, record, mode) = (port("access_id_i"), port("access_record_i"), port("access_mode_i"));
        let (last, close) = (port("access_last_i"), port("close_i"));
        let (grant_valid, grant_ready) = (port("grant_valid_o"), port("grant_ready_i"));
        let (kind, grant_id, position) = (port("grant_kind_o"), port("grant_id_o"), port("grant_position_o"));
        let (chain, deferred) = (port("grant_chain_o"), port("deferred_o"));
        model.set(reset, 0);
        model.tick();
        model.set(capacity_i, capacity.into());
        model.set(limit_i, deferred_limit.into());
        model.set(reset, 1);
        model.eval();
        Self {
            model,
            access_valid,
            access_ready,
            id,
            record,
            mode,
            last,
            close,
            grant_valid,
            grant_ready,
            kind,
            grant_id,
            position,
            chain,
            deferred,
        }
    }

    /// All decisions about this stream. Accesses come, and decisions are taken, with these chances in percent.
    fn decide(&mut self, sets: &[Vec<Access>], valid: u64, ready: u64, random: &mut Random) -> Vec<Decision> {
        // A beat for each access, or one without access.
        let beats = |(id, set): (usize, &Vec<Access>)| {
            let beat = |at: usize| set.get(at).map_or((0, 0), |access| (access.record, access.mode.bits()));
            let length = set.len().max(1);
            (0..length).map(|at| (id as u64, beat(at), at + 1 == length)).collect::<Vec<_>>()
        };
        let beats: Vec<_> = sets.iter().enumerate().flat_map(beats).collect();
        let (mut next, mut there, mut decisions, mut idle) = (0, false, Vec::new(), 0);
        let mut done = 0;
        while done < sets.len() || !matches!(decisions.last(), Some(Decision::End { .. })) || idle < 8 {
            there |= next < beats.len() && random.percent(valid);
            self.model.set(self.access_valid, there.into());
            if there {
                let (id, (record, mode), last) = beats[next];
                self.model.set(self.id, id);
                self.model.set(self.record, record.into());
                self.model.set(self.mode, mode.into());
                self.model.set(self.last, last.into());
            }
            // A pause in the stream is not its end.
            self.model.set(self.close, (next == beats.len()).into());
            self.model.set(self.grant_ready, random.percent(ready).into());
            self.model.eval();
            let taken = there && self.model.get(self.access_ready) == 1;
            idle += 1;
            if self.model.get(self.grant_valid) == 1 && self.model.get(self.grant_ready) == 1 {
                let id = self.model.get(self.grant_id) as u32;
                let position = self.model.get(self.position) as u32;
                let chain = self.model.get(self.chain) as u32;
                let decision = match self.model.get(self.kind) {
                    0 => Decision::Grant { id, position, chain },
                    1 => Decision::End { length: position },
                    2 => Decision::Unknown { id },
                    _ => Decision::TooLong { id },
                };
                done += usize::from(!matches!(decision, Decision::End { .. }));
                decisions.push(decision);
                idle = 0;
            }
            self.model.tick();
            (next, there) = if taken { (next + 1, false) } else { (next, there) };
            if idle > 4000 {
                break;
            }
            if done == sets.len()
                && matches!(decisions.last(), Some(Decision::Unknown { .. } | Decision::TooLong { .. }))
            {
                break;
            }
        }
        assert_eq!(self.model.get(self.deferred), 0, "nothing is left");
        decisions
    }
}

/// What the manager decides about this stream.
fn expected(sets: &[Vec<Access>], records: u32, capacity: u32, deferred_limit: u32) -> Vec<Decision> {
    let mut offsets = vec![0];
    offsets.extend(sets.iter().scan(0, |end, set| {
        *end += set.len() as u32;
        Some(*end)
    }));
    let accesses = sets.concat();
    let sets = FlatSets::new(&offsets, &accesses).unwrap();
    let mut locks = BatchLocks::new(BatchConfig { records, capacity, deferred_limit }).unwrap();
    let mut stream = 0..sets.len();
    let mut decisions = Vec::new();
    loop {
        match locks.fill(&sets, &mut stream) {
            Ok(plan) if plan.grants.is_empty() => break,
            Ok(plan) => {
                let grant = |(at, grant): (usize, &lockwork_locking::batch::Grant)| Decision::Grant {
                    id: grant.transaction,
                    position: at as u32,
                    chain: grant.chain,
                };
                decisions.extend(plan.grants.iter().enumerate().map(grant));
                // As the port has it, modulo the largest batch.
                decisions.push(Decision::End { length: plan.grants.len() as u32 % 16 });
            }
            Err(BatchError::UnknownRecord { transaction, .. }) => {
                decisions.push(Decision::Unknown { id: transaction });
                stream.start += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    decisions
}

fn mode(random: &mut Random, writers: u64) -> LockMode {
    match random.below(100) {
        of if of < writers => LockMode::Exclusive,
        of if of < writers + 10 => LockMode::IntentExclusive,
        _ => LockMode::Shared,
    }
}

/// A stream of up to `length` transactions over the first `records` records; one access in 1000 names none.
fn stream(random: &mut Random, length: u64, records: u64, writers: u64) -> Vec<Vec<Access>> {
    let transaction = |random: &mut Random| {
        let accesses = random.below(SET_MAX as u64 + 1);
        let record = |random: &mut Random| {
            if random.below(1000) == 0 {
                RECORDS + random.next_u64() as u32 % 1000
            } else {
                random.below(records) as u32
            }
        };
        (0..accesses).map(|_| Access { record: record(random), mode: mode(random, writers) }).collect()
    };
    let length = random.below(length) + 1;
    (0..length).map(|_| transaction(random)).collect()
}

/// The decisions alone show that no two chains of a batch conflict: so not even a wrong oracle could hide it.
fn check_isolation(sets: &[Vec<Access>], decisions: &[Decision]) {
    for batch in decisions.split(|decision| matches!(decision, Decision::End { .. })) {
        let granted: Vec<_> = batch
            .iter()
            .filter_map(|decision| match decision {
                Decision::Grant { id, chain, .. } => Some((&sets[*id as usize], *chain)),
                _ => None,
            })
            .collect();
        for (at, (set, chain)) in granted.iter().enumerate() {
            for (other, _) in granted[..at].iter().filter(|(_, other)| other != chain) {
                let clash =
                    set.iter().any(|a| other.iter().any(|b| a.record == b.record && !compatible(a.mode, b.mode)));
                assert!(!clash, "{set:?} and {other:?} are in two chains of one batch");
            }
        }
    }
}

#[test]
fn the_same_decisions_in_the_same_order_as_the_manager() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    // An epoch of 4 bits, so that it runs through many times.
    let built = build(RECORDS, 4, 4, SET_MAX);
    let (mut grants, mut chained, mut ends, mut refused) = (0, 0, 0, 0);
    for seed in 0..600 {
        let mut random = Random(seed);
        let (capacity, limit) = (random.below(16) as u32 + 1, random.below(16) as u32 + 1);
        let (records, writers) = (random.below(u64::from(RECORDS)) + 1, random.below(90));
        let sets = stream(&mut random, 160, records, writers);
        let (valid, ready) = ([100, 60, 15][seed as usize % 3], [100, 100, 50, 10][seed as usize % 4]);
        let expected = expected(&sets, RECORDS, capacity, limit);
        let mut unit = Unit::new(built.again(seed), capacity, limit);
        let decisions = unit.decide(&sets, valid, ready, &mut random);
        let first = decisions.iter().zip(&expected).position(|(is, should)| is != should);
        let around = first.map(|at| (at, decisions[at], expected[at]));
        assert_eq!(around, None, "seed {seed}, capacity {capacity}, limit {limit}: {sets:?}");
        assert_eq!(decisions.len(), expected.len(), "seed {seed}");
        check_isolation(&sets, &decisions);
        for decision in decisions {
            match decision {
                Decision::Grant { position, chain, .. } => {
                    grants += 1;
                    chained += u64::from(position != chain);
                }
                Decision::End { .. } => ends += 1,
                _ => refused += 1,
            }
        }
    }
    println!("{grants} grants, {chained} behind others in their chains, {ends} batches, {refused} refused");
    assert!(grants > 40_000 && chained > 10_000 && ends > 5_000 && refused > 20);
}

#[test]
fn a_transaction_with_too_many_accesses_is_refused_by_name_and_the_rest_goes_on() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let mut unit = Unit::new(build(RECORDS, 4, 4, SET_MAX), 16, 16);
    let of = |record| Access { record, mode: LockMode::Exclusive };
    let sets = vec![vec![of(1)], (0..SET_MAX as u32 + 1).map(of).collect(), vec![of(1), of(2)]];
    let decisions = unit.decide(&sets, 100, 100, &mut Random(1));
    let grant = |id| Decision::Grant { id, position: 0, chain: 0 };
    let end = Decision::End { length: 1 };
    assert_eq!(decisions, [grant(0), end, Decision::TooLong { id: 1 }, grant(2), end]);
}

/// Cycles are the same on every machine.
#[test]
fn a_transaction_takes_two_cycles_an_access_and_two() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    for accesses in [1, 4, 16_u64] {
        let mut unit = Unit::new(build(1024, 10, 18, 16), 1024, 16);
        let mut random = Random(7);
        let count = 1000;
        let sets: Vec<Vec<_>> = (0..count)
            .map(|_| {
                let access = |_| Access { record: random.below(1024) as u32, mode: LockMode::Shared };
                (0..accesses).map(access).collect()
            })
            .collect();
        unit.decide(&[vec![]], 100, 100, &mut Random(1));
        let before = unit.model.cycles();
        let decisions = unit.decide(&sets, 100, 100, &mut Random(1));
        let cycles = unit.model.cycles() - before - 8;
        println!("{accesses} accesses: {:.2} cycles a transaction", cycles as f64 / f64::from(count));
        assert_eq!(decisions.len(), count as usize + 1);
        assert!(cycles <= u64::from(count as u32) * (2 * accesses + 2) + 16, "{cycles}");
    }
}
