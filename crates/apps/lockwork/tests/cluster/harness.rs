//! A cluster of real processes, clients that call it while something happens, and what has to hold then.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lockwork::{RequestId, request_id};
use lockwork_nats::Options;
use lockwork_nats::audit::{have_all, holdings};
use lockwork_random::Random;
use tempfile::TempDir;
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage};

/// For how long something is waited for that comes at once on a machine that does nothing else.
pub(crate) const LONG: Duration = Duration::from_secs(120);
/// Until a damaged server has everything again: others have to read all of it first, while the machine does much else.
const MENDED: Duration = Duration::from_secs(300);
/// How long a client waits for an answer before it asks somebody else: a node that is stopped takes connections, and
/// never says anything.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Clients that call at the same time.
const CLIENTS: u64 = 3;

/// One cluster at a time: two of them would wait for each other's disk.
static ONE: Mutex<()> = Mutex::new(());

/// For as long as it lives no other test has a cluster.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether NATS is here; if not, the test is said to be skipped.
pub(crate) fn nats_is_here() -> bool {
    let here = Command::new(lockwork_nats::local::program()).arg("--version").output().is_ok();
    if !here {
        lockwork_testkit::skip("nats-server is not installed (scripts/nats)");
    }
    here
}

pub(crate) fn signal(process: u32, signal: &str) {
    drop(Command::new("kill").args([signal, &process.to_string()]).stderr(Stdio::null()).status());
}

#[derive(Default)]
pub(crate) struct Told {
    pub(crate) lines: Vec<String>,
    /// Processes of nodes, by number: the newest.
    pub(crate) nodes: BTreeMap<usize, u32>,
    /// The node that said last that it leads, and how often that was said.
    pub(crate) leader: usize,
    pub(crate) terms: usize,
}

/// `lockwork cluster up`, ended on drop.
pub(crate) struct Cluster {
    child: Child,
    pub(crate) told: Arc<Mutex<Told>>,
    pub(crate) ports: Vec<u16>,
    folder: TempDir,
    _alone: MutexGuard<'static, ()>,
}

/// The first of so many ports behind each other that are free at the moment.
pub(crate) fn free_ports(count: u16) -> u16 {
    for port in (20_000..31_000).step_by(7) {
        let start = port + (std::process::id() % 1000) as u16;
        if (start..start + count).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return start;
        }
    }
    panic!("no free ports");
}

impl Cluster {
    /// Three nodes. Nothing, and the test is said to be skipped, if NATS is not installed.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(&[], 3)
    }

    /// The same, of so many nodes, which these arguments ask for.
    pub(crate) fn start_with(arguments: &[&str], nodes: u16) -> Option<Self> {
        let alone = alone();
        if !nats_is_here() {
            return None;
        }
        let port = free_ports(2 * nodes);
        let folder = tempfile::Builder::new().prefix("lockwork-test").tempdir().expect("a temporary folder");
        let mut up = Command::new(env!("CARGO_BIN_EXE_lockwork"));
        up.args(["cluster", "up", "--port", &port.to_string(), "--init", "../../../examples/bank.sql"]);
        up.args(arguments).arg("--data");
        let mut child =
            up.arg(folder.path()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().expect("it starts");
        let told = Arc::new(Mutex::new(Told::default()));
        let (out, all) = (child.stdout.take().expect("a pipe"), told.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let mut told = all.lock().unwrap_or_else(PoisonError::into_inner);
                let process = line.split("(process ").nth(1).and_then(|rest| rest.split(')').next()?.parse().ok());
                if let (Some(process), Some(node)) = (process, line.strip_prefix("node ")) {
                    let number = node.split(' ').next().and_then(|number| number.parse().ok()).expect("a number");
                    told.nodes.insert(number, process);
                    if line.contains(": leads: ") {
                        (told.leader, told.terms) = (number, told.terms + 1);
                    }
                }
                told.lines.push(line);
            }
        });
        Some(Self { child, told, ports: (port..port + nodes).collect(), folder, _alone: alone })
    }

    /// Everything that it has said.
    pub(crate) fn said(&self) -> String {
        self.told().lines.join("\n")
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn until<T>(&self, what: &str, found: impl Fn(&Told) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            let told = self.told();
            if let Some(found) = found(&told) {
                return found;
            }
            assert!(start.elapsed() < LONG, "{what}: {}", told.lines.join("\n"));
            drop(told);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until somebody leads who did not say so before: how often somebody has, and the process.
    pub(crate) fn leader(&self, terms: usize) -> (usize, u32) {
        self.until("nobody leads", |told| (told.terms > terms).then(|| (told.terms, told.nodes[&told.leader])))
    }

    /// The process of a node that follows, and its number.
    pub(crate) fn follower(&self) -> (usize, u32) {
        self.until("nobody follows", |told| {
            let found = told.nodes.iter().find(|(number, _)| **number != told.leader);
            found.map(|(number, process)| (*number, *process))
        })
    }

    /// How the NATS servers are reached.
    pub(crate) fn options(&self) -> Options {
        lockwork_nats::local::options_of(&self.nats(), "lockwork").expect("configurations")
    }

    /// Where the NATS servers have their files.
    pub(crate) fn nats(&self) -> PathBuf {
        self.folder.path().join("nats")
    }

    /// The process of a NATS server, by its number from 0: the one that runs with its configuration now.
    pub(crate) fn server(&self, at: usize) -> u32 {
        let wanted = self.nats().join(format!("nats-{}.conf", at + 1)).display().to_string();
        let start = Instant::now();
        loop {
            let found = std::fs::read_dir("/proc").expect("processes").flatten().find_map(|entry| {
                let process = entry.file_name().to_str()?.parse().ok()?;
                let line = std::fs::read(entry.path().join("cmdline")).ok()?;
                String::from_utf8_lossy(&line).split('\0').any(|word| word == wanted).then_some(process)
            });
            if let Some(process) = found {
                return process;
            }
            assert!(start.elapsed() < LONG, "NATS server {} does not run", at + 1);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until every NATS server has everything that any of them has now.
    pub(crate) fn whole(&self) {
        let (options, start) = (self.options(), Instant::now());
        let mut before = Vec::new();
        loop {
            let now = holdings(&options);
            match &now {
                // Checkpoints come and go.
                Ok(now) if before.is_empty() => before.extend(now.iter().filter(|one| one.missing.is_some()).cloned()),
                Ok(now) if have_all(now, &before, 0) => break,
                _ => assert!(start.elapsed() < MENDED, "{now:?}: {}", self.said()),
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        println!("all servers have everything after {:.0} s", start.elapsed().as_secs_f64());
    }

    /// Where nodes are called.
    pub(crate) fn nodes(&self) -> Vec<Config> {
        let at =
            |port: &u16| format!("host=127.0.0.1 port={port} user=a dbname=bank").parse().expect("a configuration");
        self.ports.iter().map(at).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() && std::env::var_os("CLUSTER_KEEP").is_some_and(|what| what == "running") {
            self.folder.disable_cleanup(true);
            println!("process {} runs on, with its files in {}", self.child.id(), self.folder.path().display());
            return;
        }
        // It ends the others; without it they end by themselves.
        signal(self.child.id(), "-INT");
        let start = Instant::now();
        while start.elapsed() < LONG && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() && std::env::var_os("CLUSTER_KEEP").is_some() {
            self.folder.disable_cleanup(true);
            println!("the servers' files are in {}", self.folder.path().display());
        }
    }
}

/// A session with whoever leads: the first node that takes one, of those that answer in time. As libpq's
/// `connect_timeout` does; that of tokio-postgres ends with the TCP connection.
async fn connect(nodes: &[Config]) -> Result<Client, String> {
    let mut refused = Vec::new();
    for node in nodes {
        match tokio::time::timeout(TIMEOUT, node.connect(NoTls)).await {
            Ok(Ok((client, connection))) => {
                tokio::spawn(connection);
                return Ok(client);
            }
            Ok(Err(error)) => refused.push(why(&error)),
            Err(late) => refused.push(late.to_string()),
        }
    }
    Err(refused.join(" | "))
}

/// A session with the node that leads: others that take clients take calls only.
async fn leader(nodes: &[Config]) -> Client {
    let start = Instant::now();
    for node in nodes.iter().cycle() {
        assert!(start.elapsed() < LONG, "nobody leads");
        if let Ok(client) = connect(std::slice::from_ref(node)).await
            && asked(&client, "SELECT count(*) FROM accounts").await.is_some()
        {
            return client;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    unreachable!("there are nodes")
}

/// What somebody was refused with.
fn why(error: &tokio_postgres::Error) -> String {
    error.as_db_error().map_or_else(|| error.to_string(), ToString::to_string)
}

/// The first column of the first row of what a statement answers.
async fn tried(client: &Client, text: &str) -> Result<String, String> {
    let rows = tokio::time::timeout(TIMEOUT, client.simple_query(text)).await.map_err(|late| late.to_string())?;
    let rows = rows.map_err(|error| why(&error))?;
    let first = rows.iter().find_map(|row| match row {
        SimpleQueryMessage::Row(row) => Some(row.get(0)?.to_string()),
        _ => None,
    });
    first.ok_or_else(|| "no row".into())
}

/// The same; `None`: it was refused, or nobody answers.
async fn asked(client: &Client, text: &str) -> Option<String> {
    tried(client, text).await.ok()
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Clients that call, each again and again until it is acknowledged, while something happens.
pub(crate) struct Load<'a> {
    nodes: &'a [Config],
    /// Acknowledged calls from the first account, from the second one, and so on, each to the one behind it.
    made: Vec<AtomicU64>,
    over: AtomicBool,
    /// When calls were acknowledged.
    times: Mutex<Vec<Instant>>,
    /// The last request of each client that was acknowledged, by the client's number.
    last: Mutex<BTreeMap<u64, (u64, RequestId)>>,
    /// What clients were last refused with, by their number.
    refused: Mutex<BTreeMap<u64, String>>,
    told: &'a (dyn Fn() -> String + Sync),
}

impl Load<'_> {
    fn total(&self) -> u64 {
        self.made.iter().map(|made| made.load(Ordering::Relaxed)).sum()
    }

    /// Waits until so many more calls were acknowledged.
    pub(crate) fn go_on(&self) {
        let (start, seen) = (Instant::now(), self.total());
        while self.total() < seen + 100 {
            assert!(start.elapsed() < LONG, "calls are not made: {:?}, {}", self.refused, (self.told)());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The longest time without an acknowledgement since then.
    pub(crate) fn pause(&self, since: Instant) -> Duration {
        let times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let mut last = since;
        let gaps = times.iter().filter(|time| **time > since).map(|time| {
            let gap = *time - last;
            last = *time;
            gap
        });
        gaps.max().unwrap_or_default()
    }

    /// Calls with ids of its own until it is told to stop; the last one too, unless that takes long.
    async fn calls(&self, number: u64) {
        let first = first_request(number);
        // Where several take calls, not all begin with the same.
        let mut nodes = self.nodes.to_vec();
        nodes.rotate_left(number as usize % self.nodes.len());
        let (mut client, mut request, mut since) = (None, first, None);
        let mut id = request_id().expect("random bytes");
        loop {
            if self.over.load(Ordering::Relaxed) && since.is_none_or(|since: Instant| since.elapsed() > LONG) {
                return;
            }
            let Some(connected) = &client else {
                match connect(&nodes).await {
                    Ok(connected) => client = Some(connected),
                    Err(why) => self.refused(number, why),
                }
                if client.is_none() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                continue;
            };
            since = since.or_else(|| Some(Instant::now()));
            match tried(connected, &transfer(request, id, self.made.len())).await {
                Ok(_) => {
                    self.made[payer(request, self.made.len())].fetch_add(1, Ordering::Relaxed);
                    self.times.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
                    self.last.lock().unwrap_or_else(PoisonError::into_inner).insert(number, (request, id));
                    (request, id, since) = (request + 1, request_id().expect("random bytes"), None);
                }
                Err(why) => {
                    self.refused(number, why);
                    client = None;
                }
            }
        }
    }

    fn refused(&self, client: u64, why: String) {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).insert(client, why);
    }
}

/// Has whoever leads insert so many bytes that do not get smaller when they are compressed.
pub(crate) fn fill(nodes: &[Config], bytes: usize) {
    const ROW: usize = 30_000;
    let mut random = Random(1);
    let mut text = || {
        let letter = || char::from(b'0' + random.below(64) as u8);
        std::iter::repeat_with(letter).filter(|letter| !"'\\".contains(*letter)).take(ROW).collect::<String>()
    };
    let mut rows = vec![format!("CREATE TABLE notes (id BIGINT PRIMARY KEY, note VARCHAR({ROW}) NOT NULL)")];
    rows.extend((0..bytes / ROW).map(|id| format!("INSERT INTO notes VALUES ({id}, '{}')", text())));
    runtime().block_on(async {
        let mut client = leader(nodes).await;
        for row in rows {
            // One that was not answered may have been done, which the next attempt is refused for.
            while let Err(error) = client.simple_query(&row).await
                && error.as_db_error().is_none_or(|error| error.code().code().starts_with("57"))
            {
                client = leader(nodes).await;
            }
        }
    });
}

/// The number of a client's first request.
fn first_request(client: u64) -> u64 {
    (client + 1) << 32
}

/// The account that pays with a request, from 0: each in turn, but for the last.
fn payer(request: u64, pairs: usize) -> usize {
    (request % pairs as u64) as usize
}

/// What a request calls: money goes on to the next account, so that whatever is made twice or not at all is seen.
fn transfer(request: u64, id: RequestId, pairs: usize) -> String {
    let from = payer(request, pairs) + 1;
    format!("CALL transfer({from}, {}, 0.01) REQUEST '{id}'", from + 1)
}

/// Ends callers when it goes, also when a test fails: others wait for them.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What a balance is in hundredths.
fn hundredths(text: &str) -> i64 {
    text.replace('.', "").parse().expect("a number")
}

/// The balances of the first accounts, in hundredths, if they are told.
async fn asked_balances(client: &Client, accounts: usize) -> Option<Vec<i64>> {
    let mut all = Vec::new();
    for id in 1..=accounts {
        let text = asked(client, &format!("SELECT balance FROM accounts WHERE id = {id}")).await?;
        all.push(hundredths(&text));
    }
    Some(all)
}

/// The same of whoever leads.
async fn balances(nodes: &[Config], accounts: usize) -> Vec<i64> {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < LONG, "nobody answers");
        if let Some(all) = asked_balances(&leader(nodes).await, accounts).await {
            return all;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Lets clients call while `faults` happens. Then every call that was acknowledged was made, once, and nothing else,
/// and all nodes have the same. `told` says what the cluster has said, for when something is wrong.
pub(crate) fn under_load(nodes: &[Config], told: &(dyn Fn() -> String + Sync), faults: impl FnOnce(&Load<'_>)) {
    let after = loaded(nodes, 2, told, faults);
    runtime().block_on(agree(nodes, &after, told));
}

/// As [`under_load`], with nodes that have parts: as many accounts are used as there are parts, so that each has one,
/// and every call touches two. What nodes have together is what the leader says of single rows.
pub(crate) fn parts_under_load(nodes: &[Config], told: &(dyn Fn() -> String + Sync), faults: impl FnOnce(&Load<'_>)) {
    let accounts = nodes.len().max(2);
    runtime().block_on(async {
        let client = leader(nodes).await;
        for id in 3..=accounts {
            let inserted = client.simple_query(&format!("INSERT INTO accounts VALUES ({id}, 1000.00)")).await;
            inserted.unwrap_or_else(|error| panic!("{error:?}: {}", told()));
        }
    });
    let after = loaded(nodes, accounts, told, faults);
    let whole = runtime().block_on(async {
        let client = leader(nodes).await;
        asked(&client, "SELECT sum(balance) FROM accounts").await.unwrap_or_else(|| panic!("no sum: {}", told()))
    });
    assert_eq!(hundredths(&whole), after.iter().sum::<i64>(), "{}", told());
}

/// Balances after a load, which are what was acknowledged.
fn loaded(
    nodes: &[Config],
    accounts: usize,
    told: &(dyn Fn() -> String + Sync),
    faults: impl FnOnce(&Load<'_>),
) -> Vec<i64> {
    runtime().block_on(async {
        let client = leader(nodes).await;
        for id in 1..=accounts {
            // Enough for hours.
            let gift = format!("UPDATE accounts SET balance = 90000000.00 WHERE id = {id}");
            client.simple_query(&gift).await.unwrap_or_else(|error| panic!("{}: {}", why(&error), told()));
        }
    });
    let before = runtime().block_on(balances(nodes, accounts));
    let made = (1..accounts).map(|_| AtomicU64::new(0)).collect();
    let load = Load {
        nodes,
        made,
        over: AtomicBool::new(false),
        times: Mutex::default(),
        last: Mutex::default(),
        refused: Mutex::default(),
        told,
    };
    std::thread::scope(|scope| {
        let _ends = Ends(&load.over);
        for number in 0..CLIENTS {
            let load = &load;
            scope.spawn(move || runtime().block_on(load.calls(number)));
        }
        load.go_on();
        faults(&load);
        load.go_on();
    });
    let after = runtime().block_on(balances(nodes, accounts));
    let made: Vec<i64> = load.made.iter().map(|made| made.load(Ordering::Relaxed) as i64).collect();
    let mut wanted = before;
    for (from, moved) in made.iter().enumerate() {
        wanted[from] -= moved;
        wanted[from + 1] += moved;
    }
    assert_eq!(after, wanted, "{made:?} were made: {}", told());
    // Of which some were asked for again: the same id makes it once.
    let last = load.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
    runtime().block_on(async {
        let client = connect(nodes).await.expect("somebody leads");
        for (request, id) in last.into_values() {
            assert!(asked(&client, &transfer(request, id, made.len())).await.is_some(), "{}", told());
        }
    });
    assert_eq!(runtime().block_on(balances(nodes, accounts)), after);
    after
}

/// Every node has these balances, as soon as it has what the leader has.
async fn agree(nodes: &[Config], wanted: &[i64], told: &(dyn Fn() -> String + Sync)) {
    let leader = connect(nodes).await.expect("somebody leads");
    let record = asked(&leader, "SHOW lockwork.record").await.expect("it tells");
    for node in nodes {
        let mut node = node.clone();
        node.options(format!("-c default_transaction_read_only=on -c lockwork.read_after={record}"));
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < LONG, "a node does not come to record {record}: {}", told());
            // It may have been started again a moment ago.
            let found = async {
                let (client, connection) = tokio::time::timeout(TIMEOUT, node.connect(NoTls)).await.ok()?.ok()?;
                tokio::spawn(connection);
                asked_balances(&client, wanted.len()).await
            };
            let Some(found) = found.await else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            assert_eq!(found, wanted, "{}", told());
            break;
        }
    }
}
