//! The dedup table: what became of calls that had a request id, so that a retry gets the first outcome.
//!
//! The table forgets the oldest ids: those made longer ago than the window, and, when its memory is used up, younger
//! ones of the user who takes most of it. Of each user it then remembers the youngest id that it has forgotten, the
//! user's *horizon*, and refuses every id of the user up to it. A horizon only rises, and a checkpoint holds all with
//! the table. So this holds on every node, whatever its clock and its options are:
//!
//! Invariant: the id of each call in the log is in the table, or is not above its user's horizon; ids in the table are
//! above their users' horizons.
//!
//! So a call whose id is above the horizon and not in the table has never run. `docs/durability.md` has the argument.
//! Ids of version 7, which are of no user ([`RequestId::user`]), are together as those of one user are.

use std::collections::BTreeMap;
use std::time::Duration;

use lockwork_procedure::block::{Block, BlockMut, HEADER_BYTES, Status};
use lockwork_procedure::request::RequestId;
use xxhash_rust::xxh3::xxh3_64;

use crate::catalogue::{Catalogue, Known};
use crate::error::Error;
use crate::format::items::put_outcome;
use crate::options::Options;
use crate::threads::Threads;

/// How far ahead of this node's clock the time of an id may be, in milliseconds: clocks of clients differ.
const MAX_AHEAD_MS: u64 = 60_000;
/// Bytes that an id takes in the table beside the results: its node in the tree, which is half full, and an allocation.
const ENTRY_BYTES: usize = 128;

/// Makes a request id of now.
///
/// # Errors
/// The system gives no random bytes.
pub fn request_id() -> std::io::Result<RequestId> {
    let mut random = [0; 10];
    getrandom::fill(&mut random)?;
    Ok(RequestId::new(Threads::default().unix_ms(), random))
}

/// What is called, as far as a retry has to agree with the first call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) procedure: u32,
    /// Hash of the argument bytes.
    pub(crate) arguments: u64,
}

impl Call {
    /// The call of a block that is long enough for its procedure.
    pub(crate) fn of(block: Block<'_>, known: &Known) -> Self {
        let start = HEADER_BYTES as usize;
        Self { procedure: block.procedure(), arguments: xxh3_64(&block.bytes()[start..start + known.arguments]) }
    }

    /// The error of a call `now` with the id of this call.
    pub(crate) fn reused(self, request: RequestId, now: Self, catalogue: &Catalogue) -> Error {
        let is_same_procedure = self.procedure == now.procedure;
        let (first, now) = (name_of(self.procedure, catalogue), name_of(now.procedure, catalogue));
        Error::RequestReused { request, first, now, is_same_procedure }
    }
}

/// The name of a procedure without the number of its definition: what replaces `p` is called `p__2` and so on.
fn name_of(id: u32, catalogue: &Catalogue) -> String {
    let name = catalogue.procedures.get(id as usize).map_or("", |known| known.name.as_str());
    let replaced = name.rsplit_once("__").filter(|(stem, number)| {
        number.parse::<u32>().is_ok() && catalogue.procedures.iter().any(|known| known.name == *stem)
    });
    replaced.map_or(name, |(stem, _)| stem).to_string()
}

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) call: Call,
    pub(crate) status: Status,
    pub(crate) code: u16,
    pub(crate) results: Box<[u8]>,
}

impl Outcome {
    /// The outcome of a block that has run. `None` when it failed: such a call did not happen, and its retry runs.
    pub(crate) fn of(block: Block<'_>, known: &Known) -> Option<Self> {
        let status = block.status().filter(|status| matches!(status, Status::Committed | Status::Aborted))?;
        let (start, length) = known.results;
        let results = block.bytes()[start..start + length].into();
        Some(Self { call: Call::of(block, known), status, code: block.abort_code(), results })
    }

    /// Writes the outcome into the block of a retry.
    pub(crate) fn answer(&self, block: &mut BlockMut<'_>, (start, length): (usize, usize)) {
        block.set_outcome(self.status, self.code);
        if self.results.len() == length {
            block.bytes()[start..start + length].copy_from_slice(&self.results);
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct DedupTable {
    window_ms: u64,
    max_bytes: usize,
    /// By user: 12 bits, so there are at most 4,097.
    users: BTreeMap<Option<u16>, Remembered>,
    /// Bytes of the table, about.
    bytes: usize,
    /// When to look again which ids are older than the window, in milliseconds since 1970.
    next_expiry: u64,
}

/// What is remembered of one user's ids.
#[derive(Debug, Default, PartialEq, Eq)]
struct Remembered {
    outcomes: BTreeMap<RequestId, Outcome>,
    horizon: Option<RequestId>,
    bytes: usize,
}

impl Remembered {
    /// Forgets the oldest id. Returns the bytes that it took; 0 if there is none.
    fn forget_oldest(&mut self) -> usize {
        let Some((request, outcome)) = self.outcomes.pop_first() else { return 0 };
        let bytes = bytes_of(&outcome);
        self.bytes -= bytes;
        self.horizon = self.horizon.max(Some(request));
        bytes
    }

    /// Forgets the oldest ids as long as `is_old` says so. Returns the bytes that they took.
    fn forget_while(&mut self, is_old: impl Fn(RequestId) -> bool) -> usize {
        let mut bytes = 0;
        while self.outcomes.first_key_value().is_some_and(|(oldest, _)| is_old(*oldest)) {
            bytes += self.forget_oldest();
        }
        bytes
    }
}

fn bytes_of(outcome: &Outcome) -> usize {
    ENTRY_BYTES + outcome.results.len()
}

impl DedupTable {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            window_ms: u64::try_from(options.request_window.as_millis()).unwrap_or(u64::MAX),
            max_bytes: usize::try_from(options.request_memory).unwrap_or(usize::MAX),
            users: BTreeMap::new(),
            bytes: 0,
            next_expiry: 0,
        }
    }

    pub(crate) fn get(&self, request: RequestId) -> Option<&Outcome> {
        self.users.get(&request.user())?.outcomes.get(&request)
    }

    fn horizon(&self, request: RequestId) -> Option<RequestId> {
        self.users.get(&request.user())?.horizon
    }

    /// Whether a call with this id may have been made and forgotten. Nodes with the same options agree at each record
    /// if none of them calls [`Self::expire`].
    pub(crate) fn has_forgotten(&self, request: RequestId) -> bool {
        self.horizon(request).is_some_and(|horizon| request <= horizon)
    }

    /// Why a call with this id, which is not in the table, may not run; `None` when it may. `now` is in milliseconds
    /// since 1970, by the clock of this node.
    pub(crate) fn refusal(&self, request: RequestId, now: u64) -> Option<Error> {
        let made = request.unix_ms();
        let begin = now.saturating_sub(self.window_ms);
        if self.has_forgotten(request) || made < begin {
            let begin = self.horizon(request).map_or(begin, |horizon| begin.max(horizon.unix_ms()));
            let age = Duration::from_millis(now.saturating_sub(made));
            return Some(Error::RequestTooOld {
                request,
                age,
                window: Duration::from_millis(now.saturating_sub(begin)),
            });
        }
        let ahead = made.saturating_sub(now);
        (ahead > MAX_AHEAD_MS).then(|| Error::RequestInFuture { request, ahead: Duration::from_millis(ahead) })
    }

    /// Remembers the outcome of a call that is in the log, and evicts the oldest ids of the user with the most bytes if
    /// there is no memory for all.
    pub(crate) fn put(&mut self, request: RequestId, outcome: Outcome) {
        if self.has_forgotten(request) {
            return;
        }
        let remembered = self.users.entry(request.user()).or_default();
        let bytes = bytes_of(&outcome);
        let before = remembered.outcomes.insert(request, outcome).as_ref().map_or(0, bytes_of);
        remembered.bytes = remembered.bytes + bytes - before;
        self.bytes = self.bytes + bytes - before;
        while self.bytes > self.max_bytes {
            let most = self.users.values_mut().max_by_key(|remembered| remembered.bytes);
            self.bytes -= most.map_or(0, Remembered::forget_oldest);
        }
    }

    /// Forgets ids that were made longer ago than the window, by the clock of this node, within a second.
    pub(crate) fn expire(&mut self, now: u64) {
        if now < self.next_expiry {
            return;
        }
        self.next_expiry = now + 1_000;
        let begin = now.saturating_sub(self.window_ms);
        for remembered in self.users.values_mut() {
            self.bytes -= remembered.forget_while(|id| id.unix_ms() < begin);
        }
    }

    /// Refuses all ids of its user up to this one from now on.
    pub(crate) fn raise(&mut self, horizon: RequestId) {
        let remembered = self.users.entry(horizon.user()).or_default();
        self.bytes -= remembered.forget_while(|id| id <= horizon);
        remembered.horizon = remembered.horizon.max(Some(horizon));
    }

    pub(crate) fn len(&self) -> usize {
        self.users.values().map(|remembered| remembered.outcomes.len()).sum()
    }

    /// Encodes the table for a checkpoint, in payloads of about `piece_bytes`, with how many ids each has; none when
    /// there is nothing to remember.
    pub(crate) fn encode(&self, piece_bytes: usize) -> Vec<(Vec<u8>, u64)> {
        let mut pieces = Vec::new();
        for remembered in self.users.values() {
            let head = remembered.horizon.map_or([0; 16], RequestId::to_bytes).to_vec();
            let mut piece = (head.clone(), 0);
            for (request, outcome) in &remembered.outcomes {
                if piece.1 > 0 && piece.0.len() >= piece_bytes {
                    pieces.push(std::mem::replace(&mut piece, (head.clone(), 0)));
                }
                put_outcome(&mut piece.0, *request, outcome);
                piece.1 += 1;
            }
            pieces.push(piece);
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::items::outcomes;

    fn id(unix_ms: u64) -> RequestId {
        RequestId::new(unix_ms, [unix_ms as u8; 10])
    }

    fn outcome(code: u16) -> Outcome {
        let call = Call { procedure: 0, arguments: 5 };
        Outcome { call, status: Status::Aborted, code, results: [].into() }
    }

    fn table(seconds: u64, entries: u64) -> DedupTable {
        let request_window = Duration::from_secs(seconds);
        DedupTable::new(&Options { request_window, request_memory: entries * ENTRY_BYTES as u64, ..Options::default() })
    }

    fn ids(table: &DedupTable) -> Vec<u64> {
        table.users.values().flat_map(|remembered| remembered.outcomes.keys()).map(|id| id.unix_ms()).collect()
    }

    #[test]
    fn the_oldest_ids_go_when_memory_is_used_up_and_are_refused() {
        let mut table = table(600, 3);
        [5, 2, 4, 1, 3].into_iter().for_each(|at| table.put(id(at), outcome(at as u16)));
        assert_eq!((ids(&table), table.bytes), (vec![3, 4, 5], 3 * ENTRY_BYTES));
        assert_eq!((table.get(id(4)).map(|outcome| outcome.code), table.get(id(2))), (Some(4), None));
        assert!(table.has_forgotten(id(2)) && table.has_forgotten(id(1)) && !table.has_forgotten(id(3)));
        let Some(Error::RequestTooOld { age, window, .. }) = table.refusal(id(1), 10) else { panic!("it may run") };
        assert_eq!((age.as_millis(), window.as_millis()), (9, 8));
        assert!(table.refusal(id(6), 10).is_none());
        // What was forgotten is not remembered again.
        table.put(id(2), outcome(2));
        assert_eq!(ids(&table), [3, 4, 5]);
    }

    #[test]
    fn ids_go_when_the_window_is_over_and_are_refused_by_any_clock() {
        let mut table = table(10, 100);
        [1_000, 2_000, 9_000].into_iter().for_each(|at| table.put(id(at), outcome(0)));
        table.expire(12_000);
        assert_eq!(ids(&table), [2_000, 9_000]);
        let too_old =
            |table: &DedupTable, at, now| matches!(table.refusal(id(at), now), Some(Error::RequestTooOld { .. }));
        // An id that never was there is too old by the clock alone, one that was is also when the clock goes back.
        assert!(too_old(&table, 1_999, 12_000) && !too_old(&table, 1_999, 11_000));
        assert!(too_old(&table, 1_000, 5_000) && too_old(&table, 500, 5_000));
        table.expire(5_000);
        assert!(too_old(&table, 1_000, 5_000));
    }

    #[test]
    fn a_user_who_takes_all_memory_forgets_their_own_ids() {
        let mut table = table(600, 4);
        let of = |user, at| id(at).of_user(user, at);
        table.put(of(1, 5), outcome(1));
        (10..20).for_each(|at| table.put(of(2, at), outcome(2)));
        table.put(of(3, 3), outcome(3));
        assert_eq!([of(1, 5), of(3, 3), of(2, 19), of(2, 18)].map(|id| table.get(id).is_some()), [true; 4]);
        assert_eq!((table.bytes, table.len()), (4 * ENTRY_BYTES, 4));
        // What is too old for one user is not for another.
        assert!(table.has_forgotten(of(2, 17)) && !table.has_forgotten(of(1, 4)) && !table.has_forgotten(id(4)));
        let mut again = self::table(600, 4);
        read(&table.encode(80), &mut again);
        assert_eq!(again.users, table.users);
    }

    #[test]
    fn ids_of_the_future_are_refused() {
        let table = table(10, 100);
        assert!(table.refusal(id(100_000), 40_000).is_none());
        assert!(matches!(table.refusal(id(100_001), 40_000), Some(Error::RequestInFuture { ahead, .. })
            if ahead == Duration::from_millis(60_001)));
    }

    fn read(pieces: &[(Vec<u8>, u64)], table: &mut DedupTable) {
        for (payload, count) in pieces {
            let (mut found, mut horizon) = (Vec::new(), None);
            outcomes(payload, |id| horizon = Some(id), |id, outcome| found.push((id, outcome))).unwrap();
            assert_eq!(found.len() as u64, *count);
            horizon.into_iter().for_each(|horizon| table.raise(horizon));
            found.into_iter().for_each(|(id, outcome)| table.put(id, outcome));
        }
    }

    #[test]
    fn a_checkpoint_holds_the_table_and_the_horizon() {
        assert!(table(10, 3).encode(100).is_empty());
        for (entries, pieces) in [(4, 2), (1, 1), (0, 1)] {
            let mut table = table(10, entries);
            (1..=4).for_each(|at| table.put(id(at), outcome(at as u16)));
            let encoded = table.encode(80);
            assert_eq!(encoded.len(), pieces, "{entries}");
            let mut again = self::table(10, 100);
            read(&encoded, &mut again);
            assert_eq!(again.users, table.users);
        }
    }

    proptest! {
        /// Calls with any ids of some users, at nodes with any windows, memories and clocks, one after the other: a
        /// checkpoint goes from one to the next. None runs twice.
        #[test]
        fn no_call_runs_twice(
            nodes in prop::collection::vec(
                (1_u64..100, 0_u64..20, prop::collection::vec((0_u64..200_000, 0_u64..200_000, 0_u16..4), 0..30)), 1..6)
        ) {
            let mut ran = std::collections::HashSet::new();
            let mut before: Option<DedupTable> = None;
            for (seconds, entries, calls) in nodes {
                let mut table = table(seconds, entries);
                before.iter().for_each(|before| read(&before.encode(90), &mut table));
                for (now, at, user) in calls {
                    // Few ids, so that many come again.
                    let id = id(at / 5_000 * 5_000);
                    let id = if user == 0 { id } else { id.of_user(user, 7) };
                    if let Some(outcome) = table.get(id) {
                        prop_assert_eq!(outcome.code, (id.unix_ms() / 5_000) as u16);
                    } else if table.refusal(id, now).is_none() {
                        prop_assert!(ran.insert(id), "{} ran twice", id);
                        table.put(id, outcome((id.unix_ms() / 5_000) as u16));
                    }
                    table.expire(now);
                }
                before = Some(table);
            }
        }
    }
}
