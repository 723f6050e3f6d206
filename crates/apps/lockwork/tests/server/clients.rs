//! Clients that people have, against `lockwork serve`: what they ask of the system catalog, and what they do.

use std::process::Command;

use crate::server::{Server, program};
use tokio_postgres::NoTls;
use tokio_postgres::types::Type;

const SQL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/bank.sql");
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../..");

/// Where `scripts/clients` has put things, if it has.
pub(crate) fn installed(name: &str) -> Option<std::path::PathBuf> {
    let path = std::path::Path::new(ROOT).join("target/clients").join(name);
    let is_there = path.exists();
    if !is_there {
        lockwork_testkit::skip(&format!("target/clients/{name} is not there; scripts/clients installs it"));
    }
    is_there.then_some(path)
}

/// What a program prints.
pub(crate) fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}{errors}", String::from_utf8_lossy(&output.stdout));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

#[test]
fn psql_shows_what_there_is() {
    let Some(_) = program("psql") else { return };
    let server = Server::start(&["--init", SQL]);
    assert!(server.ready.starts_with("ready: "), "{}", server.ready);
    let port = server.port.to_string();
    for (ask, expected) in [
        ("\\d", include_str!("../clients/d.txt")),
        ("\\d accounts", include_str!("../clients/d_accounts.txt")),
        ("\\d t", include_str!("../clients/d_t.txt")),
        ("\\d t_name", include_str!("../clients/d_t_name.txt")),
        ("\\dt", include_str!("../clients/d.txt")),
        ("\\di", include_str!("../clients/di.txt")),
        ("\\df", include_str!("../clients/df.txt")),
        ("\\l", include_str!("../clients/l.txt")),
        ("\\dn", include_str!("../clients/dn.txt")),
        ("\\du", include_str!("../clients/du.txt")),
    ] {
        let mut psql = program("psql").unwrap();
        psql.env("LC_ALL", "C.UTF-8").args(["-h", "127.0.0.1", "-p", &port, "-U", "ann", "-X", "bank", "-c", ask]);
        assert_eq!(printed(&mut psql).trim_end(), expected.trim_end(), "{ask}");
    }
    // Others of the family have only to work.
    for ask in
        ["\\d+ t", "\\dt+", "\\di+", "\\df+", "\\dv", "\\ds", "\\dT", "\\dp", "\\dx", "\\db", "\\dA", "\\dS pg_am"]
    {
        let mut psql = program("psql").unwrap();
        psql.args(["-h", "127.0.0.1", "-p", &port, "-U", "ann", "-X", "-v", "ON_ERROR_STOP=1", "bank", "-c", ask]);
        printed(&mut psql);
    }
    assert_eq!(server.end(), Some(0));
}

#[test]
fn psycopg_and_sqlalchemy_ask_and_call() {
    let Some(python) = installed("bin/python3") else { return };
    let run = |name: &str, engine: &str, expected: &str| {
        let server = Server::start(&["--init", SQL, "--engine", engine]);
        let script = format!("{}/tests/clients/{name}.py", env!("CARGO_MANIFEST_DIR"));
        let text = printed(Command::new(&python).arg(script).arg(server.port.to_string()));
        assert_eq!(text, expected.trim_end(), "{engine}");
        assert_eq!(server.end(), Some(0));
    };
    run("python", "deterministic", include_str!("../clients/python.txt"));
    for engine in ["two-phase", "deterministic"] {
        run("transactions", engine, include_str!("../clients/transactions.txt"));
    }
}

#[test]
fn the_jdbc_driver_asks_and_calls() {
    let Some(jar) = installed("postgresql-42.7.7.jar") else { return };
    if !Command::new("java").arg("-version").output().is_ok_and(|output| output.status.success()) {
        lockwork_testkit::skip("java is not in PATH; scripts/setup installs it");
        return;
    }
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/Jdbc.java");
    for mode in ["text", "binary"] {
        let server = Server::start(&["--init", SQL]);
        let mut java = Command::new("java");
        let text = printed(java.arg("-cp").arg(&jar).args([source, &server.port.to_string(), mode]));
        assert_eq!(text, include_str!("../clients/jdbc.txt").trim_end(), "{mode}");
        assert_eq!(server.end(), Some(0));
    }
}

#[test]
fn tokio_postgres_prepares_queries_and_looks_types_up() {
    let server = Server::start(&["--init", SQL]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let settings = format!("host=127.0.0.1 port={} user=ann dbname=bank", server.port);
        let (mut client, connection) = tokio_postgres::connect(&settings, NoTls).await.unwrap();
        let connection = tokio::spawn(connection);
        let mut transaction = client.transaction().await.unwrap();
        assert_eq!(transaction.execute("DELETE FROM accounts WHERE id = $1", &[&2_i64]).await.unwrap(), 1);
        let inner = transaction.transaction().await.unwrap();
        assert_eq!(inner.execute("INSERT INTO accounts VALUES ($1, 5.00)", &[&2_i64]).await.unwrap(), 1);
        inner.rollback().await.unwrap();
        assert!(transaction.query("SELECT id FROM accounts WHERE id = 2", &[]).await.unwrap().is_empty());
        transaction.rollback().await.unwrap();
        let statement = client.prepare("SELECT id FROM accounts WHERE id = $1").await.unwrap();
        assert_eq!(statement.params(), [Type::INT8]);
        let rows = client.query(&statement, &[&2_i64]).await.unwrap();
        assert_eq!(rows.iter().map(|row| row.get::<_, i64>(0)).collect::<Vec<_>>(), [2]);
        let added = client.execute("INSERT INTO accounts VALUES ($1, 5.00)", &[&3_i64]).await.unwrap();
        assert_eq!(added, 1);
        let rows = client
            .query_typed("SELECT relname, oid, relhasindex FROM pg_class WHERE relname = $1", &[(&"t", Type::TEXT)])
            .await
            .unwrap();
        let row: (&str, u32, bool) = (rows[0].get(0), rows[0].get(1), rows[0].get(2));
        assert_eq!(row, ("t", 16_388, true));
        // What it asks when it meets a type that it does not know.
        let lookup = "SELECT t.typname, t.typtype, t.typelem, r.rngsubtype, t.typbasetype, n.nspname, t.typrelid \
                      FROM pg_catalog.pg_type t LEFT OUTER JOIN pg_catalog.pg_range r ON r.rngtypid = t.oid \
                      INNER JOIN pg_catalog.pg_namespace n ON t.typnamespace = n.oid WHERE t.oid = $1";
        let statement = client.prepare(lookup).await.unwrap();
        assert_eq!(statement.params(), [Type::OID]);
        let row = client.query_one(&statement, &[&1231_u32]).await.unwrap();
        assert_eq!((row.get::<_, &str>(0), row.get::<_, i8>(1), row.get::<_, u32>(2)), ("_numeric", b'b' as i8, 1700));
        assert_eq!((row.get::<_, Option<u32>>(3), row.get::<_, &str>(5)), (None, "pg_catalog"));
        let refused = client.query("SELECT nonsense FROM pg_class", &[]).await.unwrap_err();
        assert_eq!(refused.code().unwrap().code(), "42703");
        drop(client);
        connection.await.unwrap().unwrap();
    });
    assert_eq!(server.end(), Some(0));
}
