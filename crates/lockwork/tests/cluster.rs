//! A cluster of real processes: nodes and NATS servers that are killed and stopped while clients call. Every call that
//! was acknowledged was made, once.

#[path = "common/command.rs"]
#[allow(dead_code, reason = "others need more of it")]
mod command;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// For how long something is waited for that comes at once on a machine that does nothing else.
const LONG: Duration = Duration::from_secs(60);
/// How long a client waits for an answer before it asks somebody else: a node that is stopped takes connections, and
/// never says anything.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Default)]
struct Told {
    lines: Vec<String>,
    /// Processes of nodes, by number: the newest.
    nodes: BTreeMap<usize, u32>,
    servers: Vec<u32>,
    /// The node that said last that it leads, and how often that was said.
    leader: usize,
    terms: usize,
}

/// `lockwork cluster up`, ended on drop.
struct Cluster {
    child: Child,
    told: Arc<Mutex<Told>>,
    ports: Vec<u16>,
}

/// Three ports behind each other that are free at the moment.
fn free_ports() -> u16 {
    for port in (20_000..32_000).step_by(7) {
        let start = port + (std::process::id() % 1000) as u16;
        if (start..start + 3).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return start;
        }
    }
    panic!("no free ports");
}

impl Cluster {
    /// Nothing, and the test is said to be skipped, if NATS is not installed.
    fn start(more: &[&str]) -> Option<Self> {
        if Command::new(lockwork_nats::local::program()).arg("--version").output().is_err() {
            lockwork_skip::skip("nats-server is not installed (scripts/nats)");
            return None;
        }
        let port = free_ports();
        let mut up = Command::new(env!("CARGO_BIN_EXE_lockwork"));
        up.args(["cluster", "up", "--port", &port.to_string(), "--init", "examples/bank.sql"]).args(more);
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
                } else if let Some(process) = process {
                    told.servers.push(process);
                }
                told.lines.push(line);
            }
        });
        Some(Self { child, told, ports: (port..port + 3).collect() })
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

    /// Waits until somebody leads who did not say so before: how often somebody has, and the process.
    fn leader(&self, terms: usize) -> (usize, u32) {
        self.until("nobody leads", |told| (told.terms > terms).then(|| (told.terms, told.nodes[&told.leader])))
    }

    /// A session with whoever leads: the first that takes one, of those that answer in time. As libpq's
    /// `connect_timeout` does; that of tokio-postgres ends with the TCP connection.
    async fn connect(&self) -> Option<Client> {
        for port in &self.ports {
            let config = format!("host=127.0.0.1 port={port} user=a dbname=bank");
            let connecting = tokio_postgres::connect(&config, NoTls);
            if let Ok(Ok((client, connection))) = tokio::time::timeout(PATIENCE, connecting).await {
                tokio::spawn(connection);
                return Some(client);
            }
        }
        None
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // It ends the others; without it they end by themselves.
        signal(self.child.id(), "-INT");
        let start = Instant::now();
        while start.elapsed() < LONG && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn signal(process: u32, signal: &str) {
    drop(Command::new("kill").args([signal, &process.to_string()]).stderr(Stdio::null()).status());
}

async fn asked(client: &Client, text: &str) -> Option<String> {
    let rows = client.simple_query(text).await.ok()?;
    rows.iter().find_map(|row| match row {
        SimpleQueryMessage::Row(row) => Some(row.get(0)?.to_string()),
        _ => None,
    })
}

/// Makes calls with ids of its own until it is told to stop, each again and again until it is acknowledged; counts
/// those. The last one too, unless that takes long.
async fn calls(cluster: &Cluster, first: u64, made: &AtomicU64, over: &AtomicBool) {
    let (mut client, mut request, mut since) = (None, first, None);
    loop {
        if over.load(Ordering::Relaxed) && since.is_none_or(|since: Instant| since.elapsed() > LONG) {
            return;
        }
        let Some(connected) = &client else {
            client = cluster.connect().await;
            if client.is_none() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            continue;
        };
        since = since.or_else(|| Some(Instant::now()));
        let call = format!("CALL transfer(1, 2, 0.01) REQUEST {request}");
        if let Ok(Some(_)) = tokio::time::timeout(PATIENCE, asked(connected, &call)).await {
            made.fetch_add(1, Ordering::Relaxed);
            (request, since) = (request + 1, None);
        } else {
            client = None;
        }
    }
}

/// Ends callers when it goes, also when a test fails: others wait for them.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Balances of both accounts, in hundredths.
async fn balances(cluster: &Cluster) -> [i64; 2] {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < LONG, "nobody answers");
        let Some(client) = cluster.connect().await else { continue };
        let ask = async |id: u8| asked(&client, &format!("SELECT balance FROM accounts WHERE id = {id}")).await;
        if let (Some(one), Some(two)) = (ask(1).await, ask(2).await) {
            return [one, two].map(|text| text.replace('.', "").parse().expect("a number"));
        }
    }
}

#[test]
fn nothing_that_was_acknowledged_is_lost_and_nothing_is_made_twice() {
    let Some(cluster) = Cluster::start(&[]) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (mut terms, mut leader) = cluster.leader(0);
    let before = runtime.block_on(balances(&cluster));
    let (made, over) = ([const { AtomicU64::new(0) }; 3], AtomicBool::new(false));
    let total = || made.iter().map(|made| made.load(Ordering::Relaxed)).sum::<u64>();
    let go_on = || {
        let (start, seen) = (Instant::now(), total());
        while total() < seen + 100 {
            assert!(start.elapsed() < LONG, "calls are not made: {}", cluster.told.lock().unwrap().lines.join("\n"));
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    std::thread::scope(|scope| {
        let _ends = Ends(&over);
        for (number, made) in (1_u64..).zip(&made) {
            let (runtime, cluster, over) = (&runtime, &cluster, &over);
            scope.spawn(move || runtime.block_on(calls(cluster, number << 32, made, over)));
        }
        go_on();
        // Nodes that lead: killed twice, and stopped for longer than the lease.
        for how in ["-KILL", "-STOP", "-KILL"] {
            signal(leader, how);
            let stopped = leader;
            (terms, leader) = cluster.leader(terms);
            go_on();
            signal(stopped, "-CONT");
            go_on();
        }
        // NATS servers, one after the other; they are started again. Who leads may change.
        for server in cluster.until("three servers", |told| (told.servers.len() == 3).then(|| told.servers.clone())) {
            signal(server, "-KILL");
            go_on();
            std::thread::sleep(Duration::from_secs(2));
        }
        // A follower.
        let follower = {
            let told = cluster.told.lock().unwrap();
            told.nodes.iter().find(|(number, _)| **number != told.leader).map(|(_, process)| *process)
        };
        signal(follower.expect("there are three"), "-KILL");
        go_on();
    });
    let after = runtime.block_on(balances(&cluster));
    let moved = total() as i64;
    assert_eq!([after[0] - before[0], after[1] - before[1]], [-moved, moved]);
    // Of which some were asked for again: the same id makes it once.
    let again = runtime.block_on(async {
        let client = cluster.connect().await?;
        asked(&client, &format!("CALL transfer(1, 2, 0.01) REQUEST {}", 1_u64 << 32)).await
    });
    assert!(again.is_some());
    assert_eq!(runtime.block_on(balances(&cluster)), after);
}

#[test]
fn mistakes_with_clusters_are_named() {
    let refused = |line: &str, code: i32, wanted: &str| {
        let output = command::run(line);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(code) && told.contains(wanted), "{line}: {:?}, {told}", output.status);
    };
    refused("cluster up --nodes 2", 2, "write 1, 3 or 5");
    refused("cluster up --port 65535", 2, "65535");
    refused("cluster up --engine none", 6, "does not start");
    refused("serve --cluster 127.0.0.1:1", 2, "nats://HOST:PORT");
    refused("serve --cluster nats://a:b@127.0.0.1:1", 2, "LOCKWORK_NATS_USER");
    refused("serve --cluster nats://127.0.0.1:1 --replicas 2", 2, "1, 3 or 5");
    refused("serve --cluster nats://127.0.0.1:1 --cluster-name a.b", 2, "letters");
    refused("serve --cluster nats://127.0.0.1:1 --data x", 2, "--data");
    refused("serve --replicas 3", 2, "--cluster");
    refused("serve --cluster nats://127.0.0.1:1", 3, "connect");
}
