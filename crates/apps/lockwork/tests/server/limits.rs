//! What a client may cost others at `lockwork serve`: time and memory of its queries.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::BANK;
use crate::busy::{ticks, until_busy};
use crate::client::{Client, bind, execute, message};
use crate::server::Server;

/// A query of the catalog that would take minutes: each byte of a long text makes a new state of the expression.
const ENDLESS: &str = "SELECT string_agg((a.oid * b.oid * c.oid * d.oid / 7)::text, '') ~ '[0-9]*[13579][0-9]{900}[g-z]' \
    FROM pg_class a, pg_class b, pg_class c, (SELECT 1 AS oid UNION SELECT 3 UNION SELECT 5 UNION SELECT 7) d";
/// What a query of the catalog may take.
const LIMIT: &str = "ERROR 57014 the query of the catalog ran for more than 5 s";

fn send(client: &mut Client, text: &str) {
    client.0.get_mut().write_all(&message(b'Q', &[text.as_bytes(), b"\0"].concat())).unwrap();
}

fn answer(client: &mut Client) -> String {
    client.ask(b"").unwrap()
}

/// The most memory that a server has had, in MiB.
fn peak(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

#[test]
fn a_regular_expression_ends_with_its_query_and_delays_nobody() {
    let server = Server::start(&["--init", BANK]);
    let mut short = Client::of(&server);
    // Only a machine that is very busy takes five seconds for a short query; a lock would have it wait each time.
    let overtakes = (0..5).any(|_| {
        let mut long = Client::of(&server);
        let since = ticks(&server);
        send(&mut long, ENDLESS);
        until_busy(&server, since);
        assert_eq!(
            short.query("SELECT relname FROM pg_class WHERE relname = 'accounts'").unwrap(),
            "accounts\nSELECT 1"
        );
        long.0.get_ref().set_nonblocking(true).unwrap();
        let is_first = long.0.get_mut().peek(&mut [0]).is_err();
        long.0.get_ref().set_nonblocking(false).unwrap();
        assert_eq!(answer(&mut long), LIMIT);
        is_first
    });
    assert!(overtakes);

    short.query("SET statement_timeout = '300ms'").unwrap();
    assert_eq!(short.query(ENDLESS).unwrap(), "ERROR 57014 canceling statement due to statement timeout");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_server_ends_in_its_time_whatever_a_query_does() {
    let server = Server::start(&["--init", BANK]);
    let mut clients: Vec<Client> = (0..3).map(|_| Client::of(&server)).collect();
    let since = ticks(&server);
    clients.iter_mut().for_each(|client| send(client, ENDLESS));
    until_busy(&server, since);
    let begun = Instant::now();
    assert_eq!(server.end(), Some(0));
    // The queries have five seconds, and connections ten; the expression would take a minute and more.
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
}

#[test]
fn arrays_of_a_query_are_counted_before_they_are_there() {
    let server = Server::start(&[]);
    let mut client = Client::of(&server);
    let array = format!("{{{}1}}", "1,".repeat(30_000_000));
    let refused = "ERROR 53200 the query of the catalog needs more than the 256 MiB of memory that it may have";
    for text in [
        "SELECT cardinality($1::int[]), oid FROM pg_class LIMIT 1",
        "SELECT array_length($1::text::int[], 1), oid FROM pg_class LIMIT 1",
    ] {
        let answered = client.prepared(text, &[&array]).unwrap();
        assert_eq!(answered.lines().last(), Some(refused), "{text}");
    }
    drop(array);
    let answered = client.prepared("SELECT cardinality($1::int[]), oid FROM pg_class LIMIT 1", &["{1,2}"]).unwrap();
    assert!(answered.lines().nth(1).is_some_and(|line| line.starts_with("2|")), "{answered}");
    // The message, which is bounded by itself, and what the query may have.
    let peak = peak(&server);
    assert!(peak < 640, "{peak} MiB");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn answers_that_nobody_reads_have_a_bound() {
    let server = Server::start(&["--init", BANK]);
    let mut client = Client::of(&server);
    client.query("CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(1000) NOT NULL)").unwrap();
    let values: Vec<String> = (0..1000).map(|id| format!("({id}, '{}')", "x".repeat(900))).collect();
    for some in values.chunks(50) {
        client.query(&format!("INSERT INTO t VALUES {}", some.join(", "))).unwrap();
    }
    // 45 MB each.
    let first = |_| {
        let mut client = Client::of(&server);
        send(&mut client, "SELECT a.name FROM t a, t b WHERE b.id < 50");
        let mut kind = [0];
        client.0.get_mut().peek(&mut kind).unwrap();
        (kind[0], client)
    };
    let all: Vec<(u8, Client)> = (0..16).map(first).collect();
    let waiting = all.iter().filter(|(kind, _)| *kind == b'T').count();
    assert!((3..9).contains(&waiting), "{waiting}");
    for (kind, mut client) in all {
        if kind == b'E' {
            let refused = "ERROR 53200 the queries of all clients fill the 384 MiB of memory that they have";
            assert_eq!(answer(&mut client), refused);
        }
    }
    // Those that are there take nothing from queries that need little, and give back what they have when they go.
    assert_eq!(client.query("SELECT count(*) FROM t").unwrap(), "1000\nSELECT 1");
    let peak = peak(&server);
    assert!(peak < 900, "{peak} MiB");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn statements_that_wait_for_their_sync_have_a_bound() {
    let server = Server::start(&["--init", BANK]);
    let text = |number: u32| format!("SELECT balance FROM accounts WHERE id = {}", number % 2 + 1);
    let one = |number| {
        let parse = message(b'P', &[b"\0", text(number).as_bytes(), b"\0\0\0"].concat());
        [parse, bind(&[]), execute(0)].concat()
    };
    let pipeline: Vec<u8> = (0..12_000).flat_map(one).collect();
    let mut clients: Vec<Client> = (0..12).map(|_| Client::of(&server)).collect();
    std::thread::scope(|scope| {
        for client in &mut clients {
            let pipeline = &pipeline;
            scope.spawn(move || client.0.get_mut().write_all(pipeline).unwrap());
        }
    });
    // They run when their memory is full, and so many are too much for a transaction that does not run at once.
    let answers = clients.iter_mut().map(|client| client.ask(&message(b'S', b"")).unwrap());
    assert!(answers.map(|answer| answer.contains("ERROR 54000")).filter(|is_refused| *is_refused).count() >= 4);
    assert!(peak(&server) < 500, "{} MiB", peak(&server));
    assert_eq!(Client::of(&server).query("SELECT balance FROM accounts WHERE id = 1").unwrap(), "1000.00\nSELECT 1");
    assert_eq!(server.end(), Some(0));
}
