//! Nodes that have a part of every table each.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{SinkExt, TryStreamExt};
use lockwork::request_id;
use lockwork_nats::Options;
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage};

use super::harness::{Cluster, LONG, Told, free_ports, parts_under_load, runtime, signal};

async fn leader(nodes: &[Config]) -> Client {
    for node in nodes.iter().cycle().take(10_000) {
        if let Ok((client, connection)) = node.connect(NoTls).await {
            tokio::spawn(connection);
            return client;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nobody leads");
}

/// Rows of a query, a line each.
async fn rows(client: &Client, query: &str) -> Vec<String> {
    let answered = client.simple_query(query).await.unwrap_or_else(|error| panic!("{query}: {error:?}"));
    let rows = answered.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => {
            let cells: Vec<&str> = (0..row.len()).map(|at| row.get(at).unwrap_or("NULL")).collect();
            Some(cells.join("|"))
        }
        _ => None,
    });
    rows.collect()
}

/// SQLSTATE and message of what is refused.
async fn refused(client: &Client, query: &str) -> (String, String) {
    let error = client.simple_query(query).await.expect_err(query);
    let error = error.as_db_error().expect("the server says why");
    (error.code().code().into(), format!("{} {}", error.message(), error.detail().unwrap_or_default()))
}

async fn copy_in(client: &Client, statement: &str, lines: String) -> Result<u64, tokio_postgres::Error> {
    let mut sink = pin!(client.copy_in(statement).await?);
    for piece in lines.into_bytes().chunks(50_000) {
        sink.send(Bytes::copy_from_slice(piece)).await?;
    }
    sink.finish().await
}

#[test]
fn clients_find_all_rows_at_the_leader_of_parts() {
    let Some(cluster) = Cluster::start_with(&["--partitions", "3"], 3) else { return };
    cluster.leader(0);
    runtime().block_on(async {
        let client = leader(&cluster.nodes()).await;
        for statement in [
            "CREATE TABLE people (id BIGINT PRIMARY KEY, town INTEGER NOT NULL, name VARCHAR(20) NOT NULL) \
             PARTITION BY HASH (id)",
            "CREATE TABLE towns (id INTEGER PRIMARY KEY, name VARCHAR(20) NOT NULL) REPLICATED",
        ] {
            rows(&client, statement).await;
        }
        let people =
            |ids: std::ops::Range<i64>| -> String { ids.map(|id| format!("{id}\t{}\tn{id}\n", id % 50)).collect() };
        let towns: String = (0..50).map(|id| format!("{id}\tt{id}\n")).collect();
        assert_eq!(copy_in(&client, "COPY people FROM STDIN", people(1..60_001)).await.unwrap(), 60_000);
        assert_eq!(copy_in(&client, "COPY towns FROM STDIN", towns).await.unwrap(), 50);

        // Rows of all parts, those of a table that is everywhere once.
        let counted = "SELECT t.name, count(*), min(p.id) FROM people p JOIN towns t ON t.id = p.town \
                       GROUP BY t.name ORDER BY 3 LIMIT 2";
        assert_eq!(rows(&client, counted).await, ["t1|1200|1", "t2|1200|2"]);
        assert_eq!(rows(&client, "SELECT count(*), sum(id) FROM people").await, ["60000|1800030000"]);
        assert_eq!(rows(&client, "SELECT count(*) FROM towns").await, ["50"]);
        let all: Vec<Bytes> = client.copy_out("COPY people TO STDOUT").await.unwrap().try_collect().await.unwrap();
        let mut lines: Vec<String> = String::from_utf8(all.concat()).unwrap().lines().map(str::to_string).collect();
        lines.sort_by_key(|line| line.split('\t').next().unwrap().parse::<i64>().unwrap());
        assert!(lines.iter().map(|line| format!("{line}\n")).collect::<String>() == people(1..60_001));

        // A key that some part has ends a COPY at the same row everywhere.
        let twice = format!("{}{}{}", people(60_001..60_011), people(7..8), people(60_011..60_020));
        let error = copy_in(&client, "COPY people FROM STDIN", twice).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "23505");
        assert_eq!(rows(&client, "SELECT count(*), max(id) FROM people").await, ["60010|60010"]);

        // An index over rows that are there, of all parts, and of those that come.
        rows(&client, "CREATE INDEX by_town ON people (town)").await;
        rows(
            &client,
            "CREATE PROCEDURE moves(i BIGINT, t INTEGER) AS $$ BEGIN UPDATE people SET town = t WHERE id = i; END $$",
        )
        .await;
        rows(&client, "CALL moves(5, 1000)").await;
        rows(&client, "UPDATE people SET town = 1000 WHERE id = 6").await;
        rows(&client, "INSERT INTO people VALUES (70000, 1000, 'a'), (70001, 1000, 'b')").await;
        rows(&client, "DELETE FROM people WHERE id = 70001").await;
        assert_eq!(copy_in(&client, "COPY people FROM STDIN", "70002\t1000\tc\n".into()).await.unwrap(), 1);
        assert_eq!(
            rows(&client, "SELECT id FROM people WHERE town = 1000 ORDER BY id").await,
            ["5", "6", "70000", "70002"]
        );
        assert_eq!(rows(&client, "SELECT count(*) FROM people WHERE town = 5").await, ["1200"]);

        let (state, told) = refused(&client, "BEGIN").await;
        assert!(state == "0A000" && told.contains("several statements"), "{state} {told}");
    });
    // A node that follows has a part only, so it answers nobody.
    let leads = cluster.until("a leader", |told| (told.leader > 0).then_some(told.leader));
    let mut follower = cluster.nodes()[leads % 3].clone();
    follower.options("-c default_transaction_read_only=on");
    let error = runtime().block_on(async { follower.connect(NoTls).await.err().expect("it is refused") });
    let error = error.as_db_error().expect("it says why");
    assert!(error.code().code() == "57P03" && error.message().contains("a part of every table"), "{error:?}");
}

/// Kills and stops the node of each part in turn, whether it leads or not.
fn each_is_killed_and_stopped(parts: u16, sequencers: u16) {
    let (of, taking) = (parts.to_string(), sequencers.to_string());
    let Some(cluster) = Cluster::start_with(&["--partitions", &of, "--sequencers", &taking], parts) else { return };
    cluster.leader(0);
    parts_under_load(&cluster.nodes(), &|| cluster.said(), |load| {
        let all = 1..=usize::from(parts);
        for (how, number) in ["-KILL", "-STOP"].into_iter().flat_map(|how| all.clone().map(move |at| (how, at))) {
            let start = Instant::now();
            let standing = |told: &Told| Some((told.leader == number, told.terms, *told.nodes.get(&number)?));
            let (leads, terms, process) = cluster.until("a node has no process", standing);
            signal(process, how);
            if how == "-STOP" {
                std::thread::sleep(Duration::from_secs(4));
                signal(process, "-CONT");
            } else if leads {
                cluster.leader(terms);
            }
            load.go_on();
            let (what, pause) = (if leads { "leads" } else { "follows" }, load.pause(start).as_secs_f64());
            let of = format!("part {number} of {parts}, {sequencers} of which sequence");
            println!("{how} of {of}, which {what}: {pause:.2} s without an answer");
        }
    });
}

#[test]
fn any_of_two_parts_may_be_killed_or_stopped() {
    each_is_killed_and_stopped(2, 1);
}

#[test]
fn any_of_three_parts_may_be_killed_or_stopped() {
    each_is_killed_and_stopped(3, 1);
}

#[test]
fn any_of_three_sequencers_may_be_killed_or_stopped() {
    each_is_killed_and_stopped(3, 3);
}

#[test]
fn calls_are_taken_by_sequencers_and_everything_else_by_the_leader() {
    let Some(cluster) = Cluster::start_with(&["--partitions", "2", "--sequencers", "2"], 2) else { return };
    cluster.leader(0);
    let sequences = |told: &Told| {
        told.lines.iter().find(|line| line.starts_with("node 2 ") && line.contains(": sequences: ")).cloned()
    };
    cluster.until("nobody sequences", sequences);
    runtime().block_on(async {
        let [one, two] = cluster.nodes().try_into().expect("two nodes");
        let (leads, sequences) = (leader(&[one]).await, leader(&[two]).await);
        assert_eq!(rows(&sequences, "CALL transfer(1, 2, 25.00)").await, ["975.00"]);
        let once = format!("CALL transfer(2, 1, 5.00) REQUEST '{}'", request_id().unwrap());
        assert_eq!(rows(&leads, &once).await, ["1020.00"]);
        // A retry is answered wherever it comes to, and an id is of one procedure.
        assert_eq!(rows(&sequences, &once).await, ["1020.00"]);
        for (what, of) in [("CREATE TABLE a (id BIGINT PRIMARY KEY) PARTITION BY HASH (id)", "leads: 127.0.0.1:"),
            ("SELECT count(*) FROM accounts", "leads: 127.0.0.1:"), ("UPDATE accounts SET balance = 1.00 WHERE id = 1", "leads: 127.0.0.1:"), ("BEGIN", "several statements")] {
            let (state, told) = refused(&sequences, what).await;
            assert!(["25006", "0A000"].contains(&&*state) && told.contains(of), "{what}: {state} {told}");
        }
        // What the leader makes is there, at the latest when who calls asks for it.
        rows(&leads, "CREATE PROCEDURE gives(i BIGINT, a NUMERIC(12,2)) AS $$ BEGIN UPDATE accounts SET balance = balance + a WHERE id = i; END $$").await;
        let record = rows(&leads, "SHOW lockwork.record").await;
        rows(&sequences, &format!("SET lockwork.read_after = {}", record[0])).await;
        rows(&sequences, "CALL gives(1, 1.00)").await;
        assert_eq!(rows(&leads, "SELECT balance FROM accounts ORDER BY id").await, ["981.00", "1020.00"]);
        // And so is a statement whose shape it has made.
        rows(&leads, "UPDATE accounts SET balance = 2.00 WHERE id = 1").await;
        let record = rows(&leads, "SHOW lockwork.record").await;
        rows(&sequences, &format!("SET lockwork.read_after = {}", record[0])).await;
        rows(&sequences, "UPDATE accounts SET balance = 3.00 WHERE id = 1").await;
        assert_eq!(rows(&leads, "SELECT sum(balance) FROM accounts").await, ["1023.00"]);
    });
}

/// A node of its own beside a cluster, whose NATS server it uses.
struct Node {
    child: Child,
    /// Where its page is.
    page: String,
    said: Arc<Mutex<String>>,
}

impl Node {
    /// The node of a part, from 1, of those that listen at these ports for each other; clients find it at `port`, and
    /// its page behind that.
    fn start(options: &Options, part: usize, peers: &[u16], port: u16, secret: Option<&str>) -> Self {
        Self::start_with(options, part, peers, port, secret, &["--init", "../../../examples/bank.sql"])
    }

    fn start_with(
        options: &Options,
        part: usize,
        peers: &[u16],
        port: u16,
        secret: Option<&str>,
        more: &[&str],
    ) -> Self {
        let addresses: Vec<String> = peers.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let page = format!("127.0.0.1:{}", port + 1);
        let mut node = Command::new(env!("CARGO_BIN_EXE_lockwork"));
        node.args(["serve", "--cluster", &options.servers.join(","), "--cluster-name", "other", "--replicas", "1"]);
        node.args(["--allow-unsynced-log", "--partition", &part.to_string(), "--peers", &addresses.join(",")]);
        node.args(["--listen", &format!("127.0.0.1:{port}"), "--http", &page]).args(more);
        let (user, password) = options.user.as_ref().expect("a user");
        node.env("LOCKWORK_NATS_USER", format!("{user}:{password}"));
        secret.map(|secret| node.env("LOCKWORK_PEER_SECRET", secret));
        let mut child = node.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        let (said, err) = (Arc::new(Mutex::new(String::new())), child.stderr.take().expect("a pipe"));
        let all = said.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(err).lines().map_while(Result::ok) {
                *all.lock().unwrap() += &format!("{line}\n");
            }
        });
        Self { child, page, said }
    }

    fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// What its page answers, with head; nothing if nobody is there.
    fn get(&self, path: &str) -> String {
        let mut answer = String::new();
        if let Ok(mut stream) = TcpStream::connect(&self.page) {
            let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            // It may end at any time.
            drop(stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer)));
        }
        answer
    }

    /// Waits until a page has all of these texts.
    fn until(&self, path: &str, wanted: &[String]) {
        let start = Instant::now();
        loop {
            let answer = self.get(path);
            let missing = wanted.iter().find(|wanted| !answer.contains(*wanted));
            let Some(missing) = missing else { return };
            assert!(start.elapsed() < LONG, "{path} does not say {missing:?}: {answer}\n{}", self.said());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until it has ended by itself: its exit code.
    fn ended(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status.code();
            }
            assert!(start.elapsed() < LONG, "it does not end: {}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn a_node_with_a_part_shows_which_others_are_there() {
    let Some(cluster) = Cluster::start_with(&["--nodes", "1"], 1) else { return };
    cluster.leader(0);
    let (options, ports) = (cluster.options(), free_ports(7));
    let (peers, [first, second]) = ([ports, ports + 1], [ports + 2, ports + 4]);
    let connected = |part: usize, is: u8| {
        format!("lockwork_part_connected{{part=\"{part}\",address=\"127.0.0.1:{}\"}} {is}\n", peers[part - 1])
    };
    let mut one = Node::start(&options, 1, &peers, first, None);
    let alone = ["lockwork_node_part 1\n".into(), "lockwork_node_parts 2\n".into(), connected(1, 1), connected(2, 0)];
    one.until("/metrics", &alone);
    // It leads, and runs nothing, so not --init either, before the other one is there.
    let missing = format!("\nfollowing\npart 2 (127.0.0.1:{}): not yet connected\n", peers[1]);
    one.until("/metrics", &["lockwork_node_leads 1\n".into()]);
    one.until("/readyz", &["HTTP/1.1 503".into(), missing]);
    let start = Instant::now();
    while !one.said().contains("waits for the nodes of all parts before it answers clients: part 2") {
        assert!(start.elapsed() < LONG, "{}", one.said());
        std::thread::sleep(Duration::from_millis(20));
    }

    // Who does not know the secret is not talked to.
    let stranger = Node::start(&options, 2, &peers, second, Some("another secret than theirs"));
    let unproved = "it closes the connection instead of proving itself: perhaps it has another secret";
    stranger.until("/readyz", &[format!("part 1 (127.0.0.1:{}): {unproved}\n", peers[0])]);
    stranger.until("/status.json", &[format!("[1,\"127.0.0.1:{}\",\"{unproved}\"]", peers[0])]);
    one.until("/metrics", &[connected(2, 0)]);
    drop(stranger);

    let two = Node::start(&options, 2, &peers, second, None);
    one.until("/readyz", &["HTTP/1.1 200".into(), "\r\n\r\nready\n".into()]);
    one.until("/metrics", &[connected(1, 1), connected(2, 1)]);
    two.until("/metrics", &["lockwork_node_part 2\n".into(), connected(1, 1), connected(2, 1)]);
    runtime().block_on(async {
        let client = leader(&[format!("host=127.0.0.1 port={first} user=a dbname=bank").parse().unwrap()]).await;
        assert_eq!(rows(&client, "SELECT sum(balance) FROM accounts").await, ["2000.00"]);
    });

    // How many parts there are is for good.
    drop(two);
    one.until("/readyz", &["HTTP/1.1 200".into(), format!("ready\npart 2 (127.0.0.1:{}): ", peers[1])]);
    let mut third = Node::start(&options, 2, &[peers[0], peers[1], ports + 6], second, None);
    let code = third.ended();
    assert!(
        code == Some(2) && third.said().contains("the tables of this journal have 2"),
        "{code:?}: {}",
        third.said()
    );

    // A call that waits for a part which is gone does not keep a node that is asked to end.
    let waits = std::thread::spawn(move || {
        runtime().block_on(async {
            let client = leader(&[format!("host=127.0.0.1 port={first} user=a dbname=bank").parse().unwrap()]).await;
            client.simple_query("CALL transfer(1, 2, 1.00)").await.expect_err("the other account is gone")
        })
    });
    std::thread::sleep(Duration::from_millis(500));
    assert!(!waits.is_finished(), "{}", one.said());
    signal(one.child.id(), "-TERM");
    assert_eq!(one.ended(), Some(0), "{}", one.said());
    // The call may have run; a retry with its request id tells.
    let error = waits.join().expect("an error");
    assert!(error.is_closed() || error.code().is_some(), "{error:?}");
}

#[test]
fn a_node_shows_how_far_it_is_in_the_streams_of_sequencers() {
    let Some(cluster) = Cluster::start_with(&["--nodes", "1"], 1) else { return };
    cluster.leader(0);
    let (options, ports) = (cluster.options(), free_ports(6));
    let (peers, [first, second]) = ([ports, ports + 1], [ports + 2, ports + 4]);
    let more = ["--init", "../../../examples/bank.sql", "--sequencers", "2"];
    let one = Node::start_with(&options, 1, &peers, first, None, &more);
    let two = Node::start_with(&options, 2, &peers, second, None, &more);
    one.until("/readyz", &["HTTP/1.1 200".into()]);
    two.until("/metrics", &["lockwork_node_sequences 1\n".into()]);
    runtime().block_on(async {
        let client = leader(&[format!("host=127.0.0.1 port={second} user=a dbname=bank").parse().unwrap()]).await;
        assert_eq!(rows(&client, "CALL transfer(1, 2, 25.00)").await, ["975.00"]);
    });
    // Its epoch's first message and the call.
    let all = ["record{part=\"2\"} 2\n", "lag_records{part=\"2\"} 0\n"];
    let all = all.map(|of| format!("lockwork_stream_{of}"));
    [&one, &two].iter().for_each(|node| node.until("/metrics", &all));
    one.until("/status.json", &["\"streams\":[[2,2,0]]".into()]);
}

#[test]
fn a_node_that_waits_for_another_part_in_its_init_ends_when_it_is_asked_to() {
    let Some(cluster) = Cluster::start_with(&["--nodes", "1"], 1) else { return };
    cluster.leader(0);
    let (options, ports) = (cluster.options(), free_ports(6));
    let (peers, [first, second]) = ([ports, ports + 1], [ports + 2, ports + 4]);
    let script = tempfile::NamedTempFile::new().unwrap();
    let mut text = "CREATE TABLE many (id BIGINT PRIMARY KEY) PARTITION BY HASH (id);\n".to_string();
    (0..20_000).for_each(|id| text += &format!("INSERT INTO many VALUES ({id});\n"));
    std::fs::write(&script, text).unwrap();
    let init = script.path().to_str().unwrap();
    let mut one = Node::start_with(&options, 1, &peers, first, None, &["--init", init]);
    one.until("/metrics", &["lockwork_node_leads 1\n".into()]);
    let two = Node::start_with(&options, 2, &peers, second, None, &["--init", init]);
    // In the middle of it the other part stops.
    let records = || {
        let metrics = one.get("/metrics");
        let line = metrics.lines().find_map(|line| line.strip_prefix("lockwork_node_record "));
        line.map_or(0, |number| number.parse::<f64>().unwrap() as u64)
    };
    let start = Instant::now();
    while records() < 50 {
        assert!(start.elapsed() < LONG, "{}", one.said());
        std::thread::sleep(Duration::from_millis(5));
    }
    signal(two.child.id(), "-STOP");
    std::thread::sleep(Duration::from_millis(500));
    assert!(records() < 20_000, "all of it is done");
    signal(one.child.id(), "-TERM");
    let code = one.ended();
    assert_eq!(code, Some(0), "{}", one.said());
}
