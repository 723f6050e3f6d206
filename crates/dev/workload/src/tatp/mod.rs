//! TATP: the register of a mobile network, asked and changed by very short transactions.
//!
//! Source: "Telecommunication Application Transaction Processing (TATP) Benchmark Description", version 1.0, IBM 2009.
//! All seven transactions with the standard mix, subscribers chosen by its non-uniform distribution. Four in five
//! transactions only read; a known share fails because a row is not there: GetAccessData and UpdateSubscriberData
//! commit in 62.5 % of the calls, InsertCallForwarding and DeleteCallForwarding in 31.25 %. Failures are aborts here,
//! and counted as such. For GetNewDestination the specification states 23.9 %, but its own rules for rows and
//! arguments, which are followed here, make 15.5 % of it on the rows that are loaded; forwardings that are inserted end
//! later than loaded ones, so it grows towards 20 %.
//!
//! Subscribers have 32-bit numbers, so that every key but the telephone number is one word.
//!
//! Invariant: facilities, accesses and subscribers are those that were loaded; every forwarding belongs to a facility;
//! and there are as many as were loaded and inserted, less those that were deleted, by committed transactions.

mod locks;
mod population;
mod procedures;
#[cfg(test)]
mod tests;

use lockwork_procedure::block::{Batch, Status};
use lockwork_procedure::schema::TableSchema;

use crate::fields::{Place, Procedures, violation};
use crate::random::Random;
use crate::{Export, Lookup, Repeat, Source, Workload, WorkloadError, fill, from_sql, within};
use population::{Population, schemas, sub_nbr, table};

/// The transactions, in the order of the procedures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
enum Kind {
    GetSubscriberData,
    GetNewDestination,
    GetAccessData,
    UpdateSubscriberData,
    UpdateLocation,
    InsertCallForwarding,
    DeleteCallForwarding,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::GetSubscriberData,
        Self::GetNewDestination,
        Self::GetAccessData,
        Self::UpdateSubscriberData,
        Self::UpdateLocation,
        Self::InsertCallForwarding,
        Self::DeleteCallForwarding,
    ];

    /// Transactions of this kind in a hundred.
    const fn weight(self) -> u64 {
        match self {
            Self::GetSubscriberData | Self::GetAccessData => 35,
            Self::GetNewDestination => 10,
            Self::UpdateLocation => 14,
            Self::UpdateSubscriberData | Self::InsertCallForwarding | Self::DeleteCallForwarding => 2,
        }
    }

    /// Names of the parameters: who, then what.
    const fn parameters(self) -> &'static [&'static str] {
        match self {
            Self::GetSubscriberData => &["s"],
            Self::GetNewDestination => &["s", "sf_type", "start_time", "end_time"],
            Self::GetAccessData => &["s", "ai_type"],
            Self::UpdateSubscriberData => &["s", "sf_type", "bit_1", "data_a"],
            Self::UpdateLocation => &["sub_nbr", "location"],
            Self::InsertCallForwarding => &["sub_nbr", "sf_type", "start_time", "end_time", "numberx"],
            Self::DeleteCallForwarding => &["sub_nbr", "sf_type", "start_time"],
        }
    }
}

/// What TATP is to be like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TatpConfig {
    /// Subscribers, 1 to 4,000,000,000; their numbers are 1 to `subscribers`.
    pub subscribers: u64,
    /// Everything random follows from it.
    pub seed: u64,
    /// What the procedures are written in.
    pub source: Source,
}

impl Default for TatpConfig {
    fn default() -> Self {
        Self { subscribers: 100_000, seed: 1, source: Source::Assembly }
    }
}

impl TatpConfig {
    /// Whether everything is possible.
    ///
    /// # Errors
    /// [`WorkloadError::Option`] with the option, its value and what is possible.
    pub fn validate(&self) -> Result<(), WorkloadError> {
        within("subscribers", self.subscribers, 1, 4_000_000_000)
    }
}

/// A TATP workload.
#[derive(Clone, Debug)]
pub struct Tatp {
    config: TatpConfig,
    schemas: [TableSchema; 5],
    population: Population,
    procedures: Procedures,
    /// Parameters of each kind.
    parameters: Vec<Vec<Place>>,
    /// The data that GetSubscriberData answers, and how many numbers GetNewDestination does.
    data: Place,
    count: Place,
    random: Random,
    /// Observed calls of each kind, and those that committed.
    calls: [u64; 7],
    committed: [u64; 7],
}

impl Tatp {
    /// Prepares a workload. Takes time linear in the subscribers.
    ///
    /// # Errors
    /// As [`TatpConfig::validate`].
    pub fn new(config: TatpConfig) -> Result<Self, WorkloadError> {
        config.validate()?;
        let schemas = schemas();
        let sources = match config.source {
            Source::Assembly => procedures::SOURCES.map(String::from).to_vec(),
            Source::Sql => from_sql::assembly(&[procedures::SQL], &schemas, &procedures::NAMES),
        };
        let procedures = Procedures::new(sources, &schemas);
        let places = |kind: Kind| {
            let names = kind.parameters().iter();
            names.map(|name| procedures.place(kind as usize, name)).collect()
        };
        Ok(Self {
            parameters: Kind::ALL.into_iter().map(places).collect(),
            data: procedures.place(Kind::GetSubscriberData as usize, "data"),
            count: procedures.place(Kind::GetNewDestination as usize, "count"),
            population: Population::new(config.subscribers, config.seed),
            random: Random::stream(config.seed, 0),
            calls: [0; 7],
            committed: [0; 7],
            schemas,
            procedures,
            config,
        })
    }

    /// The tables: the specification's four, and the index of subscribers by telephone number, with how many rows of
    /// each a subscriber has on average.
    #[must_use]
    pub fn tables() -> [(TableSchema, f64); 5] {
        let each = [1.0, 1.0, 2.5, 2.5, 3.75];
        let mut each = each.into_iter();
        schemas().map(|schema| (schema, each.next().expect("as many tables")))
    }

    /// What it was made from.
    #[must_use]
    pub fn config(&self) -> &TatpConfig {
        &self.config
    }

    fn draw(&mut self) -> Kind {
        let mut draw = self.random.below(100);
        let kind = Kind::ALL.into_iter().find(|kind| {
            let found = draw < kind.weight();
            draw = draw.wrapping_sub(kind.weight());
            found
        });
        kind.expect("weights of 100")
    }

    /// A subscriber: two draws, their bits together, as the specification has it.
    fn subscriber(&mut self) -> u64 {
        let all = self.config.subscribers;
        let bits = match all {
            0..=1_000_000 => 65_535,
            1_000_001..=10_000_000 => 1_048_575,
            _ => 2_097_151,
        };
        (self.random.below(bits + 1) | (1 + self.random.below(all))) % all + 1
    }

    fn write_call(&mut self, kind: Kind, block: &mut [u8]) {
        let s = self.subscriber();
        for (at, name) in kind.parameters().iter().enumerate() {
            let place = self.parameters[kind as usize][at];
            let value = match *name {
                "s" => s,
                "sub_nbr" => {
                    place.put_text(block, &sub_nbr(s));
                    continue;
                }
                "numberx" => {
                    let number = self.random.below(1_000_000_000_000_000);
                    place.put_text(block, &sub_nbr(number));
                    continue;
                }
                "sf_type" | "ai_type" => 1 + self.random.below(4),
                "start_time" => 8 * self.random.below(3),
                "end_time" => 1 + self.random.below(24),
                "bit_1" => self.random.below(2),
                "data_a" => self.random.below(256),
                _ => self.random.next_u64() >> 32,
            };
            place.put(block, value as i64);
        }
    }
}

impl Workload for Tatp {
    fn name(&self) -> String {
        "tatp".into()
    }

    fn describe(&self) -> String {
        let TatpConfig { subscribers, seed, .. } = self.config;
        format!("tatp: {subscribers} subscribers, seed {seed}")
    }

    fn schemas(&self) -> Vec<TableSchema> {
        self.schemas.to_vec()
    }

    fn row_count(&self, table: usize) -> u64 {
        if table < self.schemas.len() { self.population.row_count(table) } else { 0 }
    }

    fn row_image(&self, table: usize, row: u64, image: &mut Vec<u8>) {
        assert!(row < self.row_count(table), "row {row} of table {table}");
        self.population.row_image(table, &self.schemas[table], row, image);
    }

    fn sources(&self) -> Vec<(String, String)> {
        self.procedures.sources()
    }

    fn bind(&mut self, lookup: &mut Lookup<'_>) -> Result<(), WorkloadError> {
        self.procedures.bind(lookup)
    }

    fn fill(&mut self, batch: &mut Batch, transactions: usize) -> Result<usize, WorkloadError> {
        let room = self.procedures.room(batch, transactions)?;
        let draw = |this: &mut Self, _| {
            let kind = this.draw();
            (kind, this.procedures.id(kind as usize))
        };
        Ok(fill(self, batch, room, draw, Self::write_call))
    }

    fn block_bytes(&self) -> u32 {
        self.procedures.block_bytes()
    }

    fn payload_bytes(&self) -> u32 {
        // 56 bytes of a subscriber, 10 of an access where there is one, and a few of the others.
        (35 * 56 + 35 * 6 + 10 * 8 + 2 * 2 + 14 * 8 + 2 * 10 + 2 * 4) / 100
    }

    fn accesses(&self) -> u32 {
        // 1, 3, 1, 2, 2, 6, 2 by kind.
        (35 + 10 * 3 + 35 + 2 * 2 + 14 * 2 + 2 * 6 + 2 * 2 + 50) / 100
    }

    fn growth(&self, table: usize) -> f64 {
        if table == table::CALL_FORWARDING { 0.02 } else { 0.0 }
    }

    fn repeat(&self) -> Repeat {
        Repeat::Observed
    }

    fn observe(&mut self, batch: &Batch) {
        for block in batch.blocks() {
            let Some(number) = self.procedures.number(block.procedure()) else { continue };
            self.calls[number] += 1;
            self.committed[number] += u64::from(block.status() == Some(Status::Committed));
        }
    }

    fn check_results(&self, batch: &Batch) -> Result<u64, WorkloadError> {
        let mut values = 0;
        for (index, block) in batch.blocks().enumerate() {
            let Some(number) = self.procedures.number(block.procedure()) else { continue };
            if block.status() != Some(Status::Committed) {
                continue;
            }
            let bytes = block.bytes();
            match Kind::ALL[number] {
                Kind::GetSubscriberData => {
                    let s = self.parameters[number][0].get(bytes) as u64;
                    let digits = (0..15).map(|at| self.data.get_at(bytes, at) as u8);
                    if !digits.eq(sub_nbr(s)) {
                        return violation(format!("block {index}: the data of subscriber {s} is another one's"));
                    }
                }
                Kind::GetNewDestination if !(1..=3).contains(&self.count.get(bytes)) => {
                    return violation(format!("block {index}: {} destinations", self.count.get(bytes)));
                }
                _ => {}
            }
            values += 1;
        }
        Ok(values)
    }

    fn check(&mut self, export: &mut Export<'_>) -> Result<String, WorkloadError> {
        let subscribers = self.config.subscribers;
        let place = |number: usize, name: &str| Place::column(&self.schemas[number], name);
        let keys: [Place; 5] = std::array::from_fn(|number| place(number, "s"));
        let [facility, forwarded] = [table::SPECIAL_FACILITY, table::CALL_FORWARDING].map(|at| place(at, "sf_type"));
        let start = place(table::CALL_FORWARDING, "start_time");
        let number = place(table::SUBSCRIBER_NUMBER, "sub_nbr");
        let mut counts = [0_u64; 5];
        // Types of each subscriber's facilities, and of those with a forwarding, as bits.
        let mut types = vec![[0_u8; 2]; subscribers as usize];
        let mut wrong = None;
        export(&mut |name, image| {
            let Some(table) = self.schemas.iter().position(|schema| schema.name() == name) else { return };
            counts[table] += 1;
            let s = keys[table].get(image) as u64;
            if !(1..=subscribers).contains(&s) {
                wrong = Some(format!("{name}: a row of subscriber {s}, who there is not"));
                return;
            }
            let types = &mut types[s as usize - 1];
            match table {
                table::SUBSCRIBER_NUMBER if number.bytes_at(image, 0) != sub_nbr(s) => {
                    wrong = Some(format!("the number of subscriber {s} is another one's"));
                }
                table::SPECIAL_FACILITY => types[0] |= 1 << (facility.get(image) & 7),
                table::CALL_FORWARDING => {
                    types[1] |= 1 << (forwarded.get(image) & 7);
                    if ![0, 8, 16].contains(&start.get(image)) {
                        wrong = Some(format!("a forwarding of subscriber {s} starts at {}", start.get(image)));
                    }
                }
                _ => {}
            }
        });
        if let Some(wrong) = wrong {
            return violation(wrong);
        }
        if let Some(s) = types.iter().position(|[has, forwards]| forwards & !has != 0) {
            return violation(format!("subscriber {} forwards calls of a facility that there is not", s + 1));
        }
        let [inserted, deleted] =
            [Kind::InsertCallForwarding, Kind::DeleteCallForwarding].map(|kind| self.committed[kind as usize]);
        for (table, found) in counts.into_iter().enumerate() {
            let change = if table == table::CALL_FORWARDING { (inserted, deleted) } else { (0, 0) };
            let expected = self.row_count(table) + change.0 - change.1;
            if found != expected {
                let (name, (inserted, deleted)) = (self.schemas[table].name(), change);
                return violation(format!(
                    "{name} has {found} rows; {} loaded, {inserted} inserted and {deleted} deleted make {expected}",
                    self.row_count(table)
                ));
            }
        }
        let shares = Kind::ALL.map(|kind| {
            let (calls, committed) = (self.calls[kind as usize].max(1), self.committed[kind as usize]);
            format!("{:.1}", committed as f64 * 100.0 / calls as f64)
        });
        Ok(format!(
            "{subscribers} subscribers, {inserted} forwardings inserted and {deleted} deleted; committed {} %",
            shares.join(", ")
        ))
    }
}
