//! PostgreSQL's tuple locks as a baseline: how long one takes, as a histogram, on a private server that lives as long
//! as the measurement.
//!
//! What a tuple lock is depends on whom one asks, so three are measured, each on tuples in the order of their insertion
//! and in a random one:
//!
//! * [`Lock::Row`]: `heap_lock_tuple`, which is what `SELECT ... FOR UPDATE` calls for every row: find and lock the
//!   page, look whether the tuple is free, write the locker into it, write a record to the log.
//! * [`Lock::RowUnlogged`]: the same on an unlogged table, which no log record is written for.
//! * [`Lock::Manager`]: `LockTuple` and `UnlockTuple` of the lock manager, the hash table in shared memory that
//!   transactions queue in when a row is taken. Lock and release, as in a shared lock table.
//!
//! A module of ours in the server ([`SOURCE`]) calls them in a loop with nothing but the clock around each. What the
//! clock costs is measured in the same loop and subtracted. Everything else is in PostgreSQL's favour: tuples are small
//! and lie in its buffers, pages were just read, nothing else runs, nothing waits for a disk, and the manager's table
//! stays empty but for one lock. Where the module cannot be compiled or loaded there is a mean instead of a histogram:
//! what `SELECT ... FOR UPDATE` takes longer than the same `SELECT`, and [`Baseline::method`] says so. That has the
//! executor's share in it, but in random order not the way to the page, which the `SELECT` has to go as well.
//!
//! *Invariant*: no figure without its check. Locks of rows are counted by their `xmax` in the transaction that holds
//! them; those of the manager in `pg_locks`.
//!
//! *Trade-off*: a new table for each run of row locks, because the traces of the one before would be measured as well.
//!
//! Source: neoDBMS, experiment 3 (figure 6), which isolates PostgreSQL's tuple lock without saying how.

mod cluster;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;

use lockwork_lock_bench::histogram::Histogram;

pub(crate) use cluster::{Cluster, Installation};

/// The module that the server loads.
const SOURCE: &str = include_str!("../../postgres/tuple_lock.c");

/// As many rows as fit into the buffers that [`Cluster`] asks for.
pub(crate) const MAX_ROWS: u64 = 10_000_000;

/// Locks of the manager that are held at once so that `pg_locks` can be asked for them.
const HELD: u64 = 64;

/// Runs of each statement, where there is no module; the median counts.
const ROUNDS: usize = 3;

/// Why there is no baseline.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PostgresError {
    /// There is no server: say so and go on without.
    #[error(
        "no PostgreSQL server here, so its tuple locks are not measured: initdb, pg_isready, postgres and psql are neither \
         in PATH nor in {looked}; Debian has them in the package postgresql"
    )]
    Absent {
        /// Where else they might have been.
        looked: String,
    },
    /// The number of rows is impossible.
    #[error("{0} rows to lock in PostgreSQL; 1 to {MAX_ROWS} are possible")]
    Rows(u64),
    /// The server could not be started or talked to.
    #[error("PostgreSQL: {0}")]
    Server(String),
    /// It did something else than it was asked for.
    #[error("PostgreSQL, {lock}, {order}: {what}")]
    Check {
        /// What was measured.
        lock: Lock,
        /// In which order.
        order: Order,
        /// What came out.
        what: String,
    },
}

/// Which lock was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lock {
    /// The whole row lock.
    Row,
    /// The same without the log.
    RowUnlogged,
    /// Lock and release in the lock manager.
    Manager,
}

impl fmt::Display for Lock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Row => "row lock",
            Self::RowUnlogged => "row lock, unlogged",
            Self::Manager => "lock manager",
        })
    }
}

/// In which order tuples are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// As they were inserted.
    Sequential,
    /// By a hash of their keys.
    Random,
}

impl fmt::Display for Order {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Sequential => "sequential",
            Self::Random => "random",
        })
    }
}

/// How long locks took, without the clock.
#[derive(Clone, Debug)]
pub(crate) enum Latency {
    /// Each one.
    Each(Histogram),
    /// All together, divided; in nanoseconds.
    Mean(f64),
}

/// One run.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// What was locked.
    pub(crate) lock: Lock,
    /// In which order.
    pub(crate) order: Order,
    /// Tuples that were locked, each once, as counted afterwards.
    pub(crate) count: u64,
    /// How long it took.
    pub(crate) latency: Latency,
}

/// All runs, and what it takes to understand them.
#[derive(Clone, Debug)]
pub(crate) struct Baseline {
    /// The version of the server, in its own words.
    pub(crate) version: String,
    /// Its settings that differ from the defaults of a cluster, as it names them.
    pub(crate) settings: Vec<(String, String)>,
    /// How it was measured, in words.
    pub(crate) method: String,
    /// What two readings of the clock with nothing in between differ by: the median, which is subtracted from each
    /// latency. `None` if only means are known.
    pub(crate) clock_ns: Option<u64>,
    /// The runs.
    pub(crate) runs: Vec<Measured>,
}

impl fmt::Display for Baseline {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings: Vec<String> = self.settings.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        writeln!(formatter, "PostgreSQL {}; {}", self.version, self.method)?;
        writeln!(formatter, "{}", settings.join(", "))?;
        let columns = ["p50 ns", "p90", "p99", "p99.9", "longest"];
        write!(formatter, "{:<20} {:<12} {:>9}", "lock", "order", "locks")?;
        writeln!(formatter, "{}", columns.map(|column| format!(" {column:>9}")).concat())?;
        for Measured { lock, order, count, latency } in &self.runs {
            write!(formatter, "{lock:<20} {order:<12} {count:>9}")?;
            match latency {
                Latency::Each(histogram) => {
                    let figures =
                        [0.5, 0.9, 0.99, 0.999, 1.0].map(|share| format!(" {:>9}", histogram.quantile(share)));
                    writeln!(formatter, "{}", figures.concat())?;
                }
                Latency::Mean(ns) => writeln!(formatter, "  mean {ns:.0} ns")?,
            }
        }
        Ok(())
    }
}

/// Locks `rows` tuples in every way, in every order; `seed` chooses the random one.
///
/// Takes about 15 seconds for a million. The folder for temporary files needs room for 60 MB and 150 bytes a row;
/// nothing of it is left behind.
pub(crate) fn measure(rows: u64, seed: u64) -> Result<Baseline, PostgresError> {
    measure_on(&Installation::find()?, rows, seed)
}

fn measure_on(installation: &Installation, rows: u64, seed: u64) -> Result<Baseline, PostgresError> {
    if !(1..=MAX_ROWS).contains(&rows) {
        return Err(PostgresError::Rows(rows));
    }
    let cluster = Cluster::start(installation, rows)?;
    let session = Session { cluster: &cluster, rows, seed };
    let baseline = session.baseline(installation)?;
    cluster.stop()?;
    Ok(baseline)
}

/// What every run needs.
struct Session<'a> {
    cluster: &'a Cluster,
    rows: u64,
    seed: u64,
}

/// What the module is told to do, by its numbers.
const NOTHING: u32 = 0;
const ROW: u32 = 1;
const MANAGER: u32 = 2;
const MANAGER_HELD: u32 = 3;

/// Rows that this transaction has locked. A locker's number is cut to 32 bits where it is kept.
const LOCKED: &str = "SELECT count(*) FROM rows WHERE xmax::text::bigint = txid_current() % (1::bigint << 32);\n";

impl Session<'_> {
    fn baseline(&self, installation: &Installation) -> Result<Baseline, PostgresError> {
        let compiled = self.cluster.compile(installation, SOURCE).and_then(|module| {
            self.cluster.psql(&declarations(&module)).map(|_| ()).map_err(|error| error.to_string())
        });
        let (method, clock_ns, runs) = match compiled {
            Ok(()) => {
                let against =
                    if installation.headers().is_some() { "the server's headers" } else { "its own declarations" };
                let (clock_ns, runs) = self.each()?;
                let method = format!(
                    "each lock timed by a module inside the server (compiled against {against}), less {clock_ns} ns for \
                     the clock"
                );
                (method, Some(clock_ns), runs)
            }
            Err(why) => {
                let method = format!("means only, SELECT FOR UPDATE less SELECT, as there is no module: {why}");
                (method, None, self.means()?)
            }
        };
        let version = self.cluster.psql("SHOW server_version;")?.trim().to_string();
        let settings = self.cluster.psql(
            "SELECT name || '=' || current_setting(name) FROM pg_settings WHERE source = 'configuration file' AND name \
             !~ '^(lc_|log_|unix_socket|default_text|DateStyle|TimeZone|listen)' ORDER BY name;",
        )?;
        let settings = settings.lines().filter_map(|line| line.split_once('='));
        let settings = settings.map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Ok(Baseline { version, settings, method, clock_ns, runs })
    }

    /// A new table. Its rows are read once: the first reader of a row notes in it that its writer has committed.
    fn table(&self, lock: Lock) -> String {
        let logged = if lock == Lock::RowUnlogged { "UNLOGGED " } else { "" };
        let rows = self.rows;
        format!(
            "DROP TABLE IF EXISTS rows;\nCREATE {logged}TABLE rows (id bigint);\n\
             INSERT INTO rows SELECT generate_series(1, {rows});\nSELECT count(*) FROM rows;\nCHECKPOINT;\n"
        )
    }

    fn key(&self, order: Order) -> String {
        match order {
            Order::Sequential => "ctid".into(),
            // Cut to the bits of bigint.
            Order::Random => format!("hashint8extended(id, {})", self.seed as i64),
        }
    }

    /// Every lock on its own.
    fn each(&self) -> Result<(u64, Vec<Measured>), PostgresError> {
        let (_, clock) = self.one(Lock::Manager, Order::Sequential, NOTHING, 0)?;
        let clock_ns = clock.quantile(0.5);
        let mut runs = Vec::new();
        for lock in [Lock::Row, Lock::RowUnlogged, Lock::Manager] {
            for order in [Order::Sequential, Order::Random] {
                let what = if lock == Lock::Manager { MANAGER } else { ROW };
                let (count, latency) = self.one(lock, order, what, clock_ns)?;
                runs.push(Measured { lock, order, count, latency: Latency::Each(latency) });
            }
        }
        Ok((clock_ns, runs))
    }

    /// One run, its number of locks checked, and its latencies less `clock_ns`.
    fn one(&self, lock: Lock, order: Order, what: u32, clock_ns: u64) -> Result<(u64, Histogram), PostgresError> {
        let (rows, key) = (self.rows, self.key(order));
        let held = HELD.min(rows);
        // Each answer is a line: rows of the table, tuples collected, locks got, locks found; then the durations.
        let mut script = self.table(lock);
        script +=
            &format!("SELECT max(lockwork_add(tid)) FROM (SELECT ctid AS tid FROM rows ORDER BY {key}) AS tids;\n");
        script += &format!(
            "BEGIN;\nLOCK TABLE rows IN ROW SHARE MODE;\nSELECT lockwork_run('rows'::regclass, {what}, {rows});\n"
        );
        script += LOCKED;
        script += &format!(
            "COPY (SELECT lockwork_duration(at) FROM generate_series(0, {rows} - 1) AS at) TO STDOUT;\n\
             SELECT lockwork_run('rows'::regclass, {MANAGER_HELD}, {held});\n\
             SELECT count(DISTINCT (page, tuple)) FROM pg_locks WHERE locktype = 'tuple' AND granted AND pid = \
             pg_backend_pid() AND relation = 'rows'::regclass;\nROLLBACK;\n"
        );
        let answer = self.cluster.psql(&script)?;
        let wrong = |what: String| PostgresError::Check { lock, order, what };
        let mut lines = answer.lines().map(|line| {
            line.parse::<u64>()
                .map_err(|_| wrong(format!("'{line}' where a number of locks or of nanoseconds was expected")))
        });
        let mut next = || lines.next().unwrap_or_else(|| Err(wrong("the answers end early".into())));
        let locked = if what == ROW { rows } else { 0 };
        let expected =
            [("rows inserted", rows), ("tuples collected", rows), ("locks got", rows), ("rows locked", locked)];
        for (name, expected) in expected {
            let found = next()?;
            if found != expected {
                return Err(wrong(format!("{found} {name} instead of {expected}")));
            }
        }
        let mut histogram = Histogram::default();
        for _ in 0..rows {
            histogram.record(next()?.saturating_sub(clock_ns));
        }
        // The manager's locks are gone when they have been measured; so some are taken again, and kept.
        for name in ["locks of the manager got", "locks of the manager in pg_locks"] {
            let found = next()?;
            if found != held {
                return Err(wrong(format!("{found} {name} instead of {held}")));
            }
        }
        Ok((rows, histogram))
    }

    /// What `FOR UPDATE` adds to a `SELECT`, a row.
    fn means(&self) -> Result<Vec<Measured>, PostgresError> {
        let mut runs = Vec::new();
        for lock in [Lock::Row, Lock::RowUnlogged] {
            for order in [Order::Sequential, Order::Random] {
                let mut differences = Vec::new();
                for _ in 0..ROUNDS {
                    differences.push(self.difference(lock, order)?);
                }
                differences.sort_by(f64::total_cmp);
                let mean = differences[ROUNDS / 2] / self.rows as f64;
                runs.push(Measured { lock, order, count: self.rows, latency: Latency::Mean(mean) });
            }
        }
        Ok(runs)
    }

    /// Nanoseconds that `SELECT FOR UPDATE` of all rows takes longer than `SELECT`.
    fn difference(&self, lock: Lock, order: Order) -> Result<f64, PostgresError> {
        let (select, node) = match order {
            Order::Sequential => ("SELECT 1 FROM rows", "Seq Scan on rows"),
            Order::Random => ("SELECT 1 FROM tids JOIN rows ON rows.ctid = tids.tid", "Tid Scan on rows"),
        };
        let mut script = self.table(lock);
        script += &format!(
            "CREATE TEMP TABLE tids AS SELECT ctid AS tid FROM rows ORDER BY {};\nANALYZE rows, tids;\n\
             SET enable_hashjoin = off; SET enable_mergejoin = off;\nBEGIN;\n",
            self.key(order)
        );
        for tail in ["", "", " FOR UPDATE OF rows"] {
            script += &format!("EXPLAIN (ANALYZE, TIMING OFF) {select}{tail};\n");
        }
        let answer = self.cluster.psql(&(script + LOCKED + "ROLLBACK;\n"))?;
        let wrong = |what: &str| PostgresError::Check { lock, order, what: format!("{what}:\n{answer}") };
        if answer.matches(node).count() != 3 || answer.matches("LockRows").count() != 1 {
            return Err(wrong(&format!("the plans are not three of '{node}', one of them with LockRows")));
        }
        let locked = answer.lines().next_back().and_then(|line| line.parse::<u64>().ok());
        if locked != Some(self.rows) {
            return Err(wrong(&format!("the last line does not say that {} rows are locked", self.rows)));
        }
        let times = answer.lines().filter_map(|line| line.trim().strip_prefix("Execution Time: ")?.strip_suffix(" ms"));
        let times: Vec<f64> = times.filter_map(|ms| ms.parse().ok()).collect();
        // The first one warms up.
        let [_, without, with] = times[..] else { return Err(wrong("there are not three execution times")) };
        Ok((with - without).max(0.0) * 1e6)
    }
}

/// The functions of the module, as SQL declares them.
fn declarations(module: &Path) -> String {
    let module = module.display().to_string().replace('\'', "''");
    let function = |name: &str, arguments: &str| {
        format!(
            "CREATE FUNCTION {name}({arguments}) RETURNS bigint AS '{module}', '{name}' LANGUAGE C VOLATILE STRICT;\n"
        )
    };
    function("lockwork_add", "tid")
        + &function("lockwork_run", "oid, int, bigint")
        + &function("lockwork_duration", "bigint")
}
