//! Reads at a node that follows, by clients of PostgreSQL: what they may, what they see, and what becomes of them when
//! the node leads.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockwork::sequencer::journal::simulated::SimulatedJournal;
use lockwork::sequencer::{Handle, NodeOptions, Role};
use lockwork::{Error, Lockwork, Node, OpenOptions};
use lockwork_server::{LeadershipHandle, Options, ShutdownHandle, StartupListener};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

const TABLES: &str = "
    CREATE TABLE accounts (id BIGINT PRIMARY KEY, owner VARCHAR(8) NOT NULL, balance DECIMAL(12, 2) NOT NULL);
    CREATE PROCEDURE transfer(a BIGINT, b BIGINT, amount DECIMAL(12, 2), OUT left DECIMAL(12, 2)) AS $$
    BEGIN
        SELECT balance INTO left FROM accounts WHERE id = a;
        left := left - amount;
        UPDATE accounts SET balance = balance - amount WHERE id = a;
        UPDATE accounts SET balance = balance + amount WHERE id = b;
    END $$;
    CREATE PROCEDURE audit(a BIGINT, OUT balance_now DECIMAL(12, 2)) AS $$
    BEGIN
        SELECT balance INTO balance_now FROM accounts WHERE id = a;
        IF balance_now < 0 THEN RAISE EXCEPTION 'in debt' USING ERRCODE = 'BK002'; END IF;
    END $$;
    INSERT INTO accounts VALUES (1, 'ann', 100.00), (2, 'bob', 100.00), (3, 'bob', 5.50);";

/// The options of a client that only reads.
const READS: &str = "options='-c default_transaction_read_only=on'";

/// A node with its server.
struct Served {
    address: SocketAddr,
    handle: Handle,
    promoter: LeadershipHandle,
    ending: ShutdownHandle,
    serving: JoinHandle<Result<(), Error>>,
    _folder: tempfile::TempDir,
}

async fn serve(journal: &SimulatedJournal, may_lead: bool) -> Served {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { drain: Duration::from_secs(1), ..Options::default() };
    let gate = StartupListener::listen("127.0.0.1:0".parse().unwrap(), &options).await.unwrap();
    let address = gate.address().unwrap();
    // Longer than a busy machine keeps a thread waiting; who ends gives it back.
    let lease = Duration::from_secs(3);
    let node = NodeOptions { lease, may_lead, ..NodeOptions::new(address.to_string()) };
    let (journal, path) = (Arc::new(journal.another()), folder.path().to_path_buf());
    let join = move || Node::join(journal, path, &OpenOptions::default(), node, |_| ());
    let (node, _) = tokio::task::spawn_blocking(join).await.unwrap().unwrap();
    let handle = node.handle();
    let server = gate.open(node.follow(), options).unwrap();
    let (ending, promoter) = (server.ending(), server.promoter());
    let serving = tokio::spawn(server.run());
    Served { address, handle, promoter, ending, serving, _folder: folder }
}

impl Served {
    /// Waits until the node leads, and has the server do so.
    async fn lead(&self, script: &str) {
        until("it leads", || self.handle.role() == Some(Role::Leading)).await;
        let first = |database: &mut Lockwork| database.sql(script).map(drop);
        tokio::task::block_in_place(|| self.promoter.lead(first)).unwrap();
    }

    async fn connect(&self, options: &str) -> Result<Client, tokio_postgres::Error> {
        let config = format!("host=127.0.0.1 port={} user=ann dbname=bank {options}", self.address.port());
        let (client, connection) = tokio_postgres::connect(&config, NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    async fn end(self) {
        self.ending.end();
        self.serving.await.unwrap().unwrap();
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Rows and tags of an answer, or SQLSTATE and message.
async fn ask(client: &Client, text: &str) -> String {
    let line = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|at| row.get(at).unwrap_or("NULL")).collect::<Vec<_>>().join("|"))
        }
        _ => None,
    };
    match client.simple_query(text).await {
        Ok(messages) => messages.iter().filter_map(line).collect::<Vec<_>>().join(" "),
        Err(error) => refused(&error),
    }
}

fn refused(error: &tokio_postgres::Error) -> String {
    error
        .as_db_error()
        .map_or_else(|| error.to_string(), |error| format!("{} {}", error.code().code(), error.message()))
}

fn runtime() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().thread_stack_size(lockwork_server::STACK).build().unwrap()
}

async fn pair() -> (SimulatedJournal, Served, Served) {
    let journal = SimulatedJournal::new(1);
    let leader = serve(&journal, true).await;
    leader.lead(TABLES).await;
    let follower = serve(&journal, false).await;
    until("it hears who leads", || follower.handle.leader() == leader.address.to_string()).await;
    (journal, leader, follower)
}

#[test]
fn who_does_not_say_that_it_reads_only_is_sent_to_the_leader() {
    runtime().block_on(async {
        let (_, leader, follower) = pair().await;
        for options in ["", "options='-c search_path=public'", "options='-c default_transaction_read_only=off'"] {
            let error = refused(&follower.connect(options).await.err().unwrap());
            let wanted = format!("57P03 this node of a cluster follows; connect to its leader: {}", leader.address);
            assert!(error.starts_with(&wanted), "{error}");
        }
        let wrong = refused(&follower.connect("options='-c default_transaction_read_only=x'").await.err().unwrap());
        assert!(wrong.starts_with("22023"), "{wrong}");
        // Clients go through a list of hosts, and find who leads, or by the setting whoever follows.
        let (one, other) = (follower.address.port(), leader.address.port());
        let hosts = format!("host=127.0.0.1,127.0.0.1 port={one},{other} user=ann dbname=bank");
        for (more, standby) in [("", "off"), ("target_session_attrs=read-write", "off"), (READS, "on")] {
            let (client, connection) = tokio_postgres::connect(&format!("{hosts} {more}"), NoTls).await.unwrap();
            let told = tokio::spawn(connection);
            assert_eq!(ask(&client, "SHOW in_hot_standby").await, standby, "{more}");
            assert_eq!(ask(&client, "SHOW transaction_read_only").await, standby, "{more}");
            drop(client);
            told.await.unwrap().unwrap();
        }
        // At the leader the same setting makes a session that may say otherwise.
        let reader = leader.connect(READS).await.unwrap();
        assert_eq!(ask(&reader, "SHOW default_transaction_read_only").await, "on");
        assert!(ask(&reader, "DELETE FROM accounts WHERE id = 3").await.starts_with("25006"));
        assert_eq!(ask(&reader, "SET default_transaction_read_only = off").await, "");
        assert_eq!(ask(&reader, "UPDATE accounts SET owner = 'eve' WHERE id = 3").await, "");
        assert_eq!(ask(&reader, "RESET ALL; SHOW default_transaction_read_only").await, "on");
        drop(reader);
        follower.end().await;
        leader.end().await;
    });
}

#[test]
fn reads_of_every_kind_are_answered_and_all_else_is_refused() {
    runtime().block_on(async {
        let (_, leader, follower) = pair().await;
        let writer = leader.connect("").await.unwrap();
        let reader = follower.connect(READS).await.unwrap();
        let record = ask(&writer, "SHOW lockwork.record").await;
        assert_eq!(ask(&reader, &format!("SET lockwork.read_after = {record}")).await, "");
        for (text, wanted) in [
            ("SELECT balance FROM accounts WHERE id = 3", "5.50"),
            ("SELECT id, balance FROM accounts WHERE id BETWEEN 1 AND 2 ORDER BY id LIMIT 9", "1|100.00 2|100.00"),
            ("SELECT owner, sum(balance) FROM accounts GROUP BY owner ORDER BY owner", "ann|100.00 bob|105.50"),
            ("SELECT count(*) FROM accounts a JOIN accounts b ON a.owner = b.owner", "5"),
            ("SELECT balance FROM accounts WHERE id = 9", ""),
            ("SELECT 1 + 1, lower('A')", "2|a"),
            ("CALL audit(2)", "100.00"),
            ("SELECT relname FROM pg_class WHERE relname = 'accounts'", "accounts"),
            ("SELECT proname FROM pg_proc WHERE proname IN ('audit', 'transfer') ORDER BY proname", "audit transfer"),
            ("BEGIN; SELECT sum(balance) FROM accounts; SELECT owner FROM accounts WHERE id = 1; COMMIT", "205.50 ann"),
            ("BEGIN READ ONLY; SAVEPOINT a; SELECT id FROM accounts WHERE id = 1; ROLLBACK TO a; ROLLBACK", "1"),
            ("SHOW transaction_read_only", "on"),
            ("SHOW in_hot_standby", "on"),
            ("SHOW transaction_isolation", "read committed"),
            ("SHOW lockwork.read_after", &record),
            ("SHOW lockwork.record", &record),
            ("DISCARD ALL; SHOW default_transaction_read_only", "on"),
        ] {
            assert_eq!(ask(&reader, text).await, wanted, "{text}");
        }
        let explained = ask(&reader, "EXPLAIN PROCEDURE transfer").await;
        assert!(explained.contains("accounts"), "{explained}");
        for text in [
            "INSERT INTO accounts VALUES (4, 'eve', 0)",
            "UPDATE accounts SET balance = 0 WHERE id = 1",
            "DELETE FROM accounts WHERE id = 1",
            "CREATE TABLE t (id BIGINT PRIMARY KEY)",
            "CREATE INDEX i ON accounts (owner)",
            "CREATE PROCEDURE p(a BIGINT) AS $$ BEGIN NULL; END $$",
            "CALL transfer(1, 2, 1)",
            "CALL audit(1) REQUEST '0190b5a0-7c1e-7d3a-9f00-3b1c5d2e4f60'",
            "COPY accounts FROM STDIN",
            "BEGIN READ WRITE",
            "SET default_transaction_read_only = off",
            "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
            "BEGIN; SET TRANSACTION READ WRITE",
        ] {
            let error = ask(&reader, text).await;
            let wanted = format!("is for the leader: {}", leader.address);
            assert!(error.starts_with("25006") && error.ends_with(&wanted), "{text}: {error}");
            ask(&reader, "ROLLBACK").await;
        }
        for text in ["BEGIN ISOLATION LEVEL SERIALIZABLE", "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"] {
            assert!(ask(&reader, text).await.starts_with("0A000"), "{text}");
        }
        let many = reader.prepare("CALL MANY audit($1)").await.err().unwrap();
        assert!(refused(&many).starts_with("25006"), "{many}");
        // A call that aborts says what it raises.
        ask(&writer, "UPDATE accounts SET balance = -1.00 WHERE id = 3").await;
        let record = ask(&writer, "SHOW lockwork.record").await;
        assert_eq!(ask(&reader, &format!("SET lockwork.read_after = {record}")).await, "");
        assert_eq!(ask(&reader, "CALL audit(3)").await, "BK002 in debt");
        // Rows come out of tables too.
        let rows = reader.copy_out("COPY accounts TO STDOUT").await.unwrap();
        let rows: Vec<bytes::Bytes> = futures::TryStreamExt::try_collect(rows).await.unwrap();
        assert_eq!(rows.concat(), b"1\tann\t100.00\n2\tbob\t100.00\n3\tbob\t-1.00\n");
        drop((reader, writer));
        follower.end().await;
        leader.end().await;
    });
}

#[test]
fn a_reader_sees_what_was_acknowledged_when_it_names_the_record_and_says_which_it_saw() {
    runtime().block_on(async {
        let (_, leader, follower) = pair().await;
        let writer = leader.connect("").await.unwrap();
        let reader = follower.connect(READS).await.unwrap();
        let by_key = reader.prepare("SELECT id FROM accounts WHERE id = $1").await.unwrap();
        for number in 0..50 {
            let id = 100 + number;
            let wrote = ask(&writer, &format!("INSERT INTO accounts VALUES ({id}, 'x', {number})")).await;
            assert_eq!(wrote, "");
            let record: u64 = ask(&writer, "SHOW lockwork.record").await.parse().unwrap();
            assert_eq!(ask(&reader, &format!("SET lockwork.read_after = {record}")).await, "");
            if number % 2 == 0 {
                assert_eq!(reader.query(&by_key, &[&i64::from(id)]).await.unwrap().len(), 1);
            } else {
                assert_eq!(ask(&reader, &format!("SELECT count(*) FROM accounts WHERE id = {id}")).await, "1");
            }
            let seen: u64 = ask(&reader, "SHOW lockwork.record").await.parse().unwrap();
            assert!(seen >= record, "{seen}, {record}");
        }
        // What is not there is waited for, and not for ever; also from the beginning of a session.
        let next: u64 = ask(&writer, "SHOW lockwork.record").await.parse().unwrap();
        let options = format!("options='-c default_transaction_read_only=on -c lockwork.read_after={}'", next + 1);
        let waiting = follower.connect(&options).await.unwrap();
        let (count, wrote) = tokio::join!(ask(&waiting, "SELECT count(*) FROM accounts WHERE id = 7"), async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            ask(&writer, "INSERT INTO accounts VALUES (7, 'x', 0)").await
        });
        assert_eq!((count.as_str(), wrote.as_str()), ("1", ""));
        assert_eq!(ask(&reader, "SET lockwork.read_after = 1000000").await, "");
        let start = Instant::now();
        let error = ask(&reader, "SELECT count(*) FROM accounts").await;
        assert!(error.starts_with("40001") && error.contains("1000000"), "{error}");
        assert!(start.elapsed() >= Duration::from_secs(9));
        // Somebody may have better things to do.
        let cancel = reader.cancel_token();
        let (error, _) = tokio::join!(ask(&reader, "SELECT count(*) FROM accounts"), async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            cancel.cancel_query(NoTls).await
        });
        assert!(error.starts_with("57014"), "{error}");
        drop((reader, writer, waiting));
        follower.end().await;
        leader.end().await;
    });
}

#[test]
fn definitions_that_come_later_are_known_to_sessions_and_statements_that_are_there() {
    runtime().block_on(async {
        let (_, leader, follower) = pair().await;
        let writer = leader.connect("").await.unwrap();
        let reader = follower.connect(READS).await.unwrap();
        let prepared = reader.prepare("SELECT owner FROM accounts WHERE id = $1").await.unwrap();
        assert!(ask(&reader, "SELECT * FROM later").await.starts_with("42P01"));
        let script = [
            "CREATE TABLE later (id BIGINT PRIMARY KEY, name VARCHAR(5) NOT NULL)",
            "INSERT INTO later VALUES (1, 'one'), (2, 'two')",
            "CREATE INDEX by_name ON later (name)",
            "CREATE PROCEDURE count_it(OUT n BIGINT) AS $$ BEGIN n := 7; END $$",
        ];
        for text in script {
            assert_eq!(ask(&writer, text).await, "", "{text}");
        }
        let record = ask(&writer, "SHOW lockwork.record").await;
        assert_eq!(ask(&reader, &format!("SET lockwork.read_after = {record}")).await, "");
        assert_eq!(ask(&reader, "SELECT id FROM later WHERE name = 'two' LIMIT 3").await, "2");
        assert_eq!(ask(&reader, "CALL count_it()").await, "7");
        assert_eq!(ask(&reader, "SELECT count(*) FROM pg_class WHERE relname = 'by_name'").await, "1");
        let rows = reader.query(&prepared, &[&2_i64]).await.unwrap();
        assert_eq!(rows[0].get::<_, &str>(0), "bob");
        drop((reader, writer));
        follower.end().await;
        leader.end().await;
    });
}

#[test]
fn an_index_of_which_not_all_rows_are_there_is_not_read() {
    const TABLE: &str = "CREATE TABLE later (id BIGINT PRIMARY KEY, name VARCHAR(5) NOT NULL);
                         INSERT INTO later VALUES (1, 'one'), (2, 'two');";
    runtime().block_on(async {
        // What another log says of such an index; its rows come behind it.
        let other = serve(&SimulatedJournal::new(4), true).await;
        other.lead(&format!("{TABLE} CREATE INDEX by_name ON later (name)")).await;
        let index = other.handle.definitions(0).unwrap().pop().unwrap();
        assert!(index.source.starts_with("CREATE INDEX"), "{index:?}");
        other.end().await;
        let journal = SimulatedJournal::new(5);
        let leader = serve(&journal, true).await;
        leader.lead(TABLE).await;
        let follower = serve(&journal, true).await;
        leader.handle.define(index).unwrap();
        let options =
            format!("options='-c default_transaction_read_only=on -c lockwork.read_after={}'", leader.handle.record());
        let reader = follower.connect(&options).await.unwrap();
        let ask_by_name = async || ask(&reader, "SELECT id FROM later WHERE name = 'two' LIMIT 3").await;
        for _ in 0..2 {
            let error = ask_by_name().await;
            assert!(error.starts_with("40001") && error.contains("by_name"), "{error}");
        }
        // Who leads next puts them there.
        leader.end().await;
        follower.lead("").await;
        assert_eq!(ask_by_name().await, "2");
        drop(reader);
        follower.end().await;
    });
}

#[test]
fn a_session_of_reads_goes_on_when_its_node_leads() {
    runtime().block_on(async {
        let journal = SimulatedJournal::new(2);
        let first = serve(&journal, true).await;
        first.lead(TABLES).await;
        let second = serve(&journal, true).await;
        let reader = second.connect(READS).await.unwrap();
        let prepared = reader.prepare("SELECT owner FROM accounts WHERE id = $1").await.unwrap();
        assert_eq!(reader.query(&prepared, &[&1_i64]).await.unwrap()[0].get::<_, &str>(0), "ann");
        assert_eq!(ask(&reader, "BEGIN; SELECT owner FROM accounts WHERE id = 1").await, "ann");
        first.end().await;
        until("it leads", || second.handle.role() == Some(Role::Leading)).await;
        // Until its server is told so there are readers only.
        assert!(refused(&second.connect("").await.err().unwrap()).starts_with("57P03"));
        assert_eq!(ask(&reader, "SELECT owner FROM accounts WHERE id = 2").await, "bob");
        second.lead("INSERT INTO accounts VALUES (5, 'fay', 1)").await;
        assert_eq!(ask(&reader, "SELECT owner FROM accounts WHERE id = 2; COMMIT").await, "bob");
        assert_eq!(reader.query(&prepared, &[&5_i64]).await.unwrap()[0].get::<_, &str>(0), "fay");
        assert_eq!(ask(&reader, "SHOW in_hot_standby").await, "off");
        assert!(ask(&reader, "DELETE FROM accounts WHERE id = 5").await.starts_with("25006"));
        assert_eq!(ask(&reader, "SET default_transaction_read_only = off").await, "");
        assert_eq!(ask(&reader, "CALL transfer(1, 2, 40)").await, "60.00");
        let writer = second.connect("").await.unwrap();
        assert_eq!(ask(&writer, "SELECT sum(balance) FROM accounts").await, "206.50");
        drop((reader, writer));
        second.end().await;
    });
}
