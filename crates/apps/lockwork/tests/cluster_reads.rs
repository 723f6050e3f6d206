//! Reads at the nodes of a cluster of real processes that follow, while others write; and a node that differs.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockwork::sequencer::{NodeOptions, Role};
use lockwork::{Node, OpenOptions};
use lockwork_nats::NatsJournal;
use lockwork_testkit::nats::TestServers;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// For how long something is waited for that comes at once on a machine that does nothing else.
const LONG: Duration = Duration::from_secs(120);
/// What all accounts have together, in hundredths.
const TOTAL: i64 = 1_000_000;
/// The option of a client that only reads.
const READS: &str = "-c default_transaction_read_only=on";

#[derive(Default)]
struct Told {
    lines: Vec<String>,
    /// Processes of nodes, by number.
    nodes: BTreeMap<u16, u32>,
    leader: u16,
    terms: usize,
}

/// `lockwork cluster up`, ended on drop.
struct Cluster {
    child: Child,
    told: Arc<Mutex<Told>>,
    port: u16,
}

/// Three ports behind each other that are free at the moment.
fn free_ports() -> u16 {
    for port in (20_004..32_000).step_by(7) {
        let start = port + (std::process::id() % 1000) as u16;
        if (start..start + 3).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return start;
        }
    }
    panic!("no free ports");
}

impl Cluster {
    /// Nothing, and the test is said to be skipped, if NATS is not installed.
    fn start() -> Option<Self> {
        if Command::new(lockwork_nats::local::program()).arg("--version").output().is_err() {
            lockwork_testkit::skip("nats-server is not installed (scripts/nats)");
            return None;
        }
        let port = free_ports();
        let mut up = Command::new(env!("CARGO_BIN_EXE_lockwork"));
        up.args(["cluster", "up", "--port", &port.to_string(), "--init", "../../../examples/bank.sql"]);
        let mut child = up.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().expect("it starts");
        let told = Arc::new(Mutex::new(Told::default()));
        let (out, all) = (child.stdout.take().expect("a pipe"), told.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let mut told = all.lock().unwrap();
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
        let cluster = Self { child, told, port };
        cluster.until("all follow", |told| (told.nodes.len() == 3).then_some(()));
        Some(cluster)
    }

    fn until<T>(&self, what: &str, found: impl Fn(&Told) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            let told = self.told.lock().unwrap();
            if let Some(found) = found(&told) {
                return found;
            }
            assert!(start.elapsed() < LONG, "{what}: {}", told.lines.join("\n"));
            drop(told);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The number of the node that leads, when somebody has said so more often than this.
    fn leader(&self, terms: usize) -> u16 {
        self.until("nobody leads", |told| (told.terms > terms).then_some(told.leader))
    }

    /// The numbers of the others, when they have said that they follow.
    fn followers(&self, leader: u16) -> Vec<u16> {
        self.until("they follow", |told| {
            let ready = |number: &u16| {
                let start = format!("node {number} ");
                told.lines.iter().any(|line| line.starts_with(&start) && line.contains(": ready: "))
            };
            let others: Vec<u16> = (1..=3).filter(|number| *number != leader).collect();
            others.iter().all(ready).then_some(others)
        })
    }

    /// A session at a node, of this kind.
    async fn connect(&self, number: u16, options: &str) -> Result<Client, String> {
        let port = self.port + number - 1;
        let config = format!("host=127.0.0.1 port={port} user=a dbname=bank options='{options}'");
        let connecting = tokio_postgres::connect(&config, NoTls);
        let connected = tokio::time::timeout(Duration::from_secs(5), connecting).await;
        let (client, connection) = connected.map_err(|late| late.to_string())?.map_err(|error| refused(&error))?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// The same, as soon as there is somebody to connect to.
    async fn session(&self, number: u16, options: &str) -> Client {
        let start = Instant::now();
        loop {
            match self.connect(number, options).await {
                Ok(client) => return client,
                Err(error) => assert!(start.elapsed() < LONG, "node {number}: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // It ends the others; without it they end by themselves.
        signal(self.child.id(), "-INT");
        ended(&mut self.child, LONG);
    }
}

/// Waits for the end of a process, and makes it if it does not come.
fn ended(child: &mut Child, long: Duration) -> Option<i32> {
    let start = Instant::now();
    while start.elapsed() < long && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(child.kill());
    child.wait().ok()?.code()
}

fn signal(process: u32, signal: &str) {
    drop(Command::new("kill").args([signal, &process.to_string()]).stderr(Stdio::null()).status());
}

fn refused(error: &tokio_postgres::Error) -> String {
    error
        .as_db_error()
        .map_or_else(|| error.to_string(), |error| format!("{} {}", error.code().code(), error.message()))
}

async fn asked(client: &Client, text: &str) -> Result<Option<String>, String> {
    let rows = client.simple_query(text).await.map_err(|error| refused(&error))?;
    Ok(rows.iter().find_map(|row| match row {
        SimpleQueryMessage::Row(row) => Some(row.get(0)?.to_string()),
        _ => None,
    }))
}

async fn number(client: &Client, text: &str) -> Result<i64, String> {
    let answer = asked(client, text).await?.ok_or_else(|| format!("{text}: no row"))?;
    answer.replace('.', "").parse().map_err(|_| format!("{text}: {answer}"))
}

/// Ends those who work when it goes, also when a test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Reads at a follower until it is told to stop: each sum is that of all money, and records never go back.
async fn read(client: &Client, over: &AtomicBool) -> Result<u64, String> {
    let (mut reads, mut last) = (0, 0);
    while !over.load(Ordering::Relaxed) {
        assert_eq!(number(client, "SELECT sum(balance) FROM accounts").await?, TOTAL);
        let seen = number(client, "SHOW lockwork.record").await?;
        assert!(seen >= last, "{seen} after {last}");
        (reads, last) = (reads + 1, seen);
        // Rows by key are of one record too.
        let (one, two) = ("SELECT id, balance FROM accounts WHERE id BETWEEN 1 AND 10 ORDER BY id LIMIT 10", 1);
        let rows = client.simple_query(one).await.map_err(|error| refused(&error))?;
        let balance = |row: &SimpleQueryMessage| match row {
            SimpleQueryMessage::Row(row) => row.get(two)?.replace('.', "").parse::<i64>().ok(),
            _ => None,
        };
        assert_eq!(rows.iter().filter_map(balance).sum::<i64>(), TOTAL);
        reads += 1;
    }
    Ok(reads)
}

/// Moves money between accounts of its own at the leader, and finds what it was told at a follower.
async fn write(leader: &Client, follower: &Client, first: i64, made: &AtomicU64, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let left = number(leader, &format!("CALL transfer({first}, {}, 0.01)", first + 1)).await.unwrap();
        made.fetch_add(1, Ordering::Relaxed);
        let record = number(leader, "SHOW lockwork.record").await.unwrap();
        asked(follower, &format!("SET lockwork.read_after = {record}")).await.unwrap();
        let seen = number(follower, &format!("SELECT balance FROM accounts WHERE id = {first}")).await.unwrap();
        assert_eq!(seen, left, "at record {record}");
        // And back, which nobody waits for.
        number(leader, &format!("CALL transfer({}, {first}, 0.01)", first + 1)).await.unwrap();
    }
}

#[test]
fn sums_hold_at_every_record_and_clients_read_what_they_wrote() {
    let Some(cluster) = Cluster::start() else { return };
    let runtime = runtime();
    let leader = cluster.leader(0);
    let followers = cluster.followers(leader);
    let (start, address) = (Instant::now(), format!("127.0.0.1:{}", cluster.port + leader - 1));
    loop {
        let plain = runtime.block_on(cluster.connect(followers[0], "")).err().unwrap();
        assert!(plain.starts_with("57P03") && start.elapsed() < LONG, "{plain}");
        // It may have to hear first who leads.
        if plain.contains(&address) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    runtime.block_on(async {
        let rows: Vec<String> = (3..=10).map(|id| format!("({id}, 1000.00)")).collect();
        let client = cluster.session(leader, "").await;
        asked(&client, &format!("INSERT INTO accounts VALUES {}", rows.join(", "))).await.unwrap();
        let record = number(&client, "SHOW lockwork.record").await.unwrap();
        for &number in &followers {
            let options = format!("{READS} -c lockwork.read_after={record}");
            let reader = cluster.session(number, &options).await;
            assert_eq!(asked(&reader, "SELECT count(*) FROM accounts").await.unwrap().unwrap(), "10");
        }
    });
    let (made, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let reads = std::thread::scope(|scope| {
        let _ends = Ends(&over);
        let (runtime, cluster, made, over) = (&runtime, &cluster, &made, &over);
        let readers: Vec<_> = followers
            .iter()
            .map(|&number| {
                scope.spawn(move || {
                    runtime.block_on(async { read(&cluster.session(number, READS).await, over).await.unwrap() })
                })
            })
            .collect();
        for (at, first) in [1, 3, 5].into_iter().enumerate() {
            let follower = followers[at % 2];
            scope.spawn(move || {
                runtime.block_on(async {
                    let (at_leader, at_follower) =
                        (cluster.session(leader, "").await, cluster.session(follower, READS).await);
                    write(&at_leader, &at_follower, first, made, over).await;
                });
            });
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(4) || made.load(Ordering::Relaxed) < 100 {
            assert!(start.elapsed() < LONG, "too few calls are made");
            std::thread::sleep(Duration::from_millis(20));
        }
        over.store(true, Ordering::Relaxed);
        readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<u64>>()
    });
    println!("{} written and read, {reads:?} reads of sums", made.load(Ordering::Relaxed));
    assert!(reads.iter().all(|&reads| reads > 10), "{reads:?}");
    psql_finds_its_way(&cluster, leader);
    sql_finds_its_way(&cluster, "", leader);
    // When the leader dies, sessions of reads go on, or end; sums hold.
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&over);
        let (runtime, cluster, over) = (&runtime, &cluster, &over);
        let readers: Vec<_> = followers
            .iter()
            .map(|&number| {
                scope.spawn(move || {
                    let read = async { read(&cluster.session(number, READS).await, over).await };
                    runtime.block_on(read)
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(200));
        signal(cluster.told.lock().unwrap().nodes[&leader], "-KILL");
        let next = cluster.leader(1);
        assert_ne!(next, leader);
        runtime.block_on(async {
            let client = cluster.session(next, "").await;
            number(&client, "CALL transfer(1, 2, 0.01)").await.unwrap();
        });
        sql_finds_its_way(cluster, &format!(" REQUEST '{}'", lockwork::request_id().unwrap()), next);
        over.store(true, Ordering::Relaxed);
        // Neither of them was the leader that died, so nothing ends them.
        assert!(readers.into_iter().all(|reader| reader.join().unwrap().unwrap() > 0));
    });
}

/// What psql prints, and whether it says that all is well.
fn psql(cluster: &Cluster, more: &str, options: &str, text: &str) -> (bool, String) {
    let ports: Vec<String> = (cluster.port..cluster.port + 3).map(|port| port.to_string()).collect();
    let hosts = format!("host=127.0.0.1,127.0.0.1,127.0.0.1 port={} dbname=bank user=a {more}", ports.join(","));
    let mut psql = Command::new("psql");
    let output =
        psql.env("PGOPTIONS", options).args(["-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose"]);
    let output = output.args([&hosts, "-c", text]).output().unwrap();
    let told = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&told).trim().to_string())
}

/// With a list of hosts, as people have it.
fn psql_finds_its_way(cluster: &Cluster, leader: u16) {
    if Command::new("psql").arg("--version").output().is_err() {
        lockwork_testkit::skip("psql is not installed");
        return;
    }
    for (more, options, standby) in [
        ("", "", "off"),
        ("target_session_attrs=read-write", "", "off"),
        ("target_session_attrs=primary", READS, "off"),
        ("target_session_attrs=standby", READS, "on"),
        ("target_session_attrs=prefer-standby", READS, "on"),
        ("target_session_attrs=read-only", READS, ""),
    ] {
        let (well, told) = psql(cluster, more, options, "SHOW in_hot_standby");
        assert!(well && (told == standby || standby.is_empty()), "{more}: {told}");
    }
    let reads = |text: &str| psql(cluster, "target_session_attrs=standby", READS, text);
    assert_eq!(reads("SELECT sum(balance) FROM accounts"), (true, "10000.00".into()));
    assert!(reads("\\d accounts").1.contains("balance"), "{:?}", reads("\\d accounts"));
    assert!(reads("\\df").1.contains("transfer"), "{:?}", reads("\\df"));
    for text in
        ["CALL transfer(1, 2, 1)", "INSERT INTO accounts VALUES (99, 1)", "CREATE TABLE t (id BIGINT PRIMARY KEY)"]
    {
        let (well, told) = reads(text);
        let address = format!("127.0.0.1:{}", cluster.port + leader - 1);
        assert!(!well && told.contains("25006") && told.contains(&address), "{text}: {told}");
    }
}

/// `lockwork sql` with a list of hosts; the call moves no money.
fn sql_finds_its_way(cluster: &Cluster, request: &str, leader: u16) {
    let hosts: Vec<String> = (cluster.port..cluster.port + 3).map(|port| format!("127.0.0.1:{port}")).collect();
    let sql = |place: &str, text: &str| {
        let mut sql = Command::new(env!("CARGO_BIN_EXE_lockwork"));
        let output = sql.args(["sql", place, "--output", "csv", "-c", text]).output().unwrap();
        let told = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&told).trim().to_string())
    };
    let list = hosts.join(",");
    let call = format!("CALL transfer(1, 2, 0.00){request}; SHOW in_hot_standby;");
    let (code, told) = sql(&list, &call);
    assert!(code == Some(0) && told.ends_with("in_hot_standby\noff"), "{told}");
    for (attrs, standby) in [("primary", "off"), ("read-write", "off"), ("standby", "on"), ("prefer-standby", "on")] {
        let url = format!("postgres://a@{list}/bank?target_session_attrs={attrs}");
        let (code, told) = sql(&url, "SHOW in_hot_standby; SELECT sum(balance) AS money FROM accounts;");
        assert_eq!((code, told), (Some(0), format!("in_hot_standby\n{standby}\nmoney\n10000.00")), "{attrs}");
    }
    // The others take no calls.
    let others: Vec<&str> = (1..=3).filter(|&at| at != leader).map(|at| hosts[usize::from(at) - 1].as_str()).collect();
    let (code, told) = sql(&others.join(","), &call);
    assert!(code == Some(3) && told.contains("none of 2 servers") && told.contains("57P03"), "{told}");
}

/// What a page answers.
fn get(address: &str, path: &str) -> String {
    let Ok(mut stream) = TcpStream::connect(address) else { return String::new() };
    let mut answer = String::new();
    drop(write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
    drop(stream.read_to_string(&mut answer));
    answer
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|bound| bound.local_addr()).unwrap().port()
}

/// A log whose leader has had a row in its memory that the log does not make.
fn differing_log(servers: &TestServers, name: &str) -> u64 {
    let journal = Arc::new(NatsJournal::open(&servers.options(name)).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let node = Node::join(journal, folder.path(), &OpenOptions::default(), NodeOptions::new("test:1"), |_| ());
    let (node, _) = node.unwrap();
    let (handle, start) = (node.handle(), Instant::now());
    while handle.role() != Some(Role::Leading) {
        assert!(start.elapsed() < LONG, "{:?}", handle.node());
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut database = node.lead().unwrap();
    database.sql(include_str!("../../../../examples/bank.sql")).unwrap();
    let altered = database.read(|engine| {
        engine.with_database(&mut |database| {
            let table = database.table(database.table_id("accounts").unwrap());
            table.for_each(|row| {
                let image = row.image(table.schema()).cast::<u8>();
                // SAFETY: no call runs, and behind its key the row has a balance.
                unsafe { image.add(8).write(image.add(8).read() ^ 1) };
            });
        })
    });
    altered.unwrap().unwrap();
    let record = handle.record() + 1;
    database.sql("CALL transfer(1, 2, 1.00)").unwrap();
    database.close().unwrap();
    record
}

#[test]
fn a_node_that_differs_says_so_until_it_is_ended() {
    let Some(servers) = TestServers::start(1) else { return };
    let record = differing_log(&servers, "differs");
    let options = servers.options("differs");
    let serve = |more: &[&str]| {
        let (port, page) = (free_port(), format!("127.0.0.1:{}", free_port()));
        let mut serve = Command::new(env!("CARGO_BIN_EXE_lockwork"));
        serve.args(["serve", "--cluster", &options.servers.join(","), "--cluster-name", "differs", "--replicas", "1"]);
        serve.args(["--listen", &format!("127.0.0.1:{port}"), "--http", &page]).args(more);
        let secrets = [("LOCKWORK_NATS_USER", &options.user), ("LOCKWORK_NATS_SYSTEM", &options.system)];
        for (variable, (user, password)) in secrets.iter().filter_map(|(name, pair)| Some((name, pair.as_ref()?))) {
            serve.env(variable, format!("{user}:{password}"));
        }
        (serve.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap(), port, page)
    };
    let until = |child: &mut Child, what: &str, holds: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !holds() {
            if start.elapsed() > LONG || !matches!(child.try_wait(), Ok(None)) {
                let mut told = String::new();
                drop(child.kill());
                drop(child.stderr.take().unwrap().read_to_string(&mut told));
                panic!("{what}: {told}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let (mut child, port, page) = serve(&[]);
    let reason = format!("record {record}: its calls answered something else");
    until(&mut child, "it stops", &|| get(&page, "/readyz").contains("stopped"));
    let ready = get(&page, "/readyz");
    assert!(ready.starts_with("HTTP/1.1 503") && ready.contains(&reason), "{ready}");
    assert!(get(&page, "/metrics").contains("lockwork_node_differs 1\n"));
    assert!(get(&page, "/status.json").contains(&reason));
    let told = runtime().block_on(async {
        let config = format!("host=127.0.0.1 port={port} user=a dbname=bank");
        tokio_postgres::connect(&config, NoTls).await.map(drop).map_err(|error| refused(&error)).unwrap_err()
    });
    assert!(told.starts_with("57P03") && told.contains(&reason), "{told}");
    signal(child.id(), "-TERM");
    assert_eq!(ended(&mut child, LONG), Some(5));
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains(&reason) && said.contains("has stopped"), "{said}");
    // Whoever has looked into it may have the log count.
    let (mut child, port, page) = serve(&["--skip-divergence-check", "--digest-interval", "0"]);
    until(&mut child, "it leads", &|| get(&page, "/readyz").starts_with("HTTP/1.1 200"));
    let left = runtime().block_on(async {
        let config = format!("host=127.0.0.1 port={port} user=a dbname=bank");
        let (client, connection) = tokio_postgres::connect(&config, NoTls).await.unwrap();
        tokio::spawn(connection);
        number(&client, "SELECT balance FROM accounts WHERE id = 1").await
    });
    assert_eq!(left, Ok(99_900));
    signal(child.id(), "-TERM");
    assert_eq!(ended(&mut child, LONG), Some(0));
}
