//! Settings of sessions at `lockwork serve`: timeouts end statements, and the search path changes no name.

use std::time::{Duration, Instant};

use crate::BANK;
use crate::client::Client as Raw;
use crate::server::Server;
use tokio_postgres::{Client, NoTls};

/// A query of the two accounts that counts for longer than anything may run.
fn long() -> String {
    let tables: Vec<String> = (0..40).map(|at| format!("accounts a{at}")).collect();
    format!("SELECT count(*) FROM {}", tables.join(", "))
}

const TIMED_OUT: &str = "ERROR 57014 canceling statement due to statement timeout";
/// A query that is ended ends in less; one that is not takes half a minute.
const SOON: Duration = Duration::from_secs(10);

#[test]
fn a_statement_ends_at_its_timeout() {
    let server = Server::start(&["--init", BANK]);
    let mut client = Raw::of(&server);
    let show = |client: &mut Raw| client.query("SHOW statement_timeout").unwrap().lines().next().unwrap().to_string();
    assert_eq!(show(&mut client), "0");
    client.query("SET statement_timeout = '300ms'").unwrap();
    assert_eq!(show(&mut client), "300ms");
    let begun = Instant::now();
    let ended = client.query(&long()).unwrap();
    assert!(ended.starts_with(TIMED_OUT) && begun.elapsed() < SOON, "{:?}: {ended}", begun.elapsed());
    // It ends its statement only; of several in one message each has a time of its own.
    assert_eq!(client.query("SELECT count(*) FROM accounts").unwrap(), "2\nSELECT 1");
    let ended = client.query(&format!("SELECT count(*) FROM accounts; {}; SELECT 1", long())).unwrap();
    assert!(ended.starts_with("2\nSELECT 1\nERROR 57014"), "{ended}");
    let ended = client.prepared(&long(), &[]).unwrap();
    assert!(ended.contains(TIMED_OUT), "{ended}");
    assert_eq!(client.query("SELECT count(*) FROM accounts").unwrap(), "2\nSELECT 1");
    client.query("BEGIN").unwrap();
    client.query("SET LOCAL statement_timeout = '1min'; SET lock_timeout = 7").unwrap();
    assert_eq!(show(&mut client), "1min");
    client.query("COMMIT").unwrap();
    assert_eq!(client.query("SHOW lock_timeout").unwrap(), "7ms\nSHOW");
    client.query("BEGIN; SET statement_timeout = '2s'").unwrap();
    client.query("ROLLBACK").unwrap();
    assert_eq!(show(&mut client), "300ms");
    client.query("RESET statement_timeout").unwrap();
    assert_eq!(show(&mut client), "0");
    assert_eq!(client.query("SELECT set_config('statement_timeout', '7s', false)").unwrap(), "7s\nSELECT 1");
    assert_eq!(show(&mut client), "7s");
    let refused = client.query("SELECT set_config('statement_timeout', '7s', false), 2").unwrap();
    assert!(refused.starts_with("ERROR"), "{refused}");
    for (text, expected) in [
        ("SET statement_timeout = 'soon'", "ERROR 22023"),
        ("SET search_path TO other, public", "ERROR 0A000 the search path cannot have the schema 'other'"),
        ("SET search_path = ''", "ERROR 0A000"),
        ("SET search_path TO \"$user\", public, pg_catalog", "SET"),
    ] {
        let said = client.query(text).unwrap();
        assert!(said.starts_with(expected), "{text}: {said}");
    }
    assert_eq!(client.query("SHOW search_path").unwrap(), "\"$user\", public, pg_catalog\nSHOW");
    client.query("DISCARD ALL").unwrap();
    assert_eq!(client.query("SHOW search_path").unwrap(), "public\nSHOW");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_session_begins_with_the_settings_of_its_client() {
    let server = Server::start(&["--init", BANK]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let connect = async |options: &str| {
        let settings = format!("host=127.0.0.1 port={} user=ann dbname=bank options='{options}'", server.port);
        let (client, connection) = tokio_postgres::connect(&settings, NoTls).await?;
        tokio::spawn(connection);
        Ok::<Client, tokio_postgres::Error>(client)
    };
    runtime.block_on(async {
        let client = connect("-c statement_timeout=300ms").await.unwrap();
        let begun = Instant::now();
        let ended = client.query(&long(), &[]).await.unwrap_err();
        assert_eq!(ended.code().unwrap().code(), "57014");
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        client.batch_execute("SET statement_timeout = 0; RESET ALL").await.unwrap();
        let shown = client.query_one("SHOW statement_timeout", &[]).await.unwrap();
        assert_eq!(shown.get::<_, &str>(0), "300ms");
        let refused = connect("-c search_path=other").await.err().unwrap();
        assert_eq!(refused.code().unwrap().code(), "0A000");
        assert_eq!(connect("-c lock_timeout=x").await.err().unwrap().code().unwrap().code(), "22023");
    });
    assert_eq!(server.end(), Some(0));
}
