//! Statements that were compiled before a definition that they depend on, at `lockwork serve`.

use crate::client::{Client, execute, message};
use crate::server::Server;

const TABLE: &str = "CREATE TABLE t (id INTEGER PRIMARY KEY, g INTEGER NOT NULL, v INTEGER NOT NULL);
    INSERT INTO t VALUES (1, 10, 0), (2, 20, 0);";

fn serve() -> Server {
    let server = Server::start(&[]);
    let created = Client::of(&server).query(TABLE).unwrap();
    assert!(created.ends_with("INSERT 0 2"), "{created}");
    server
}

/// Prepares a statement under a name, without parameters that have a type.
fn parse(name: &str, text: &str) -> Vec<u8> {
    message(b'P', format!("{name}\0{text}\0\0\0").as_bytes())
}

/// Runs a prepared statement with values in text.
fn run(name: &str, values: &[&str]) -> Vec<u8> {
    let mut body = [b"\0", name.as_bytes(), b"\0\0\0"].concat();
    body.extend((values.len() as u16).to_be_bytes());
    for value in values {
        body.extend((value.len() as u32).to_be_bytes());
        body.extend(value.as_bytes());
    }
    body.extend([0, 0]);
    [message(b'B', &body), execute(0), message(b'S', b"")].concat()
}

#[test]
fn an_update_beside_a_new_index_goes_on_on_every_connection() {
    let server = serve();
    let (mut one, mut other) = (Client::of(&server), Client::of(&server));
    let update = "UPDATE t SET v = 1 WHERE id = 1";
    assert_eq!(one.query(update).unwrap(), "UPDATE 1");
    let sync = message(b'S', b"");
    let prepared = [
        parse("v", "UPDATE t SET v = $1 WHERE id = $2"),
        parse("g", "UPDATE t SET g = $1 WHERE id = $2"),
        parse("i", "INSERT INTO t VALUES ($1, $2, 0)"),
        sync,
    ];
    assert_eq!(one.ask(&prepared.concat()).unwrap(), "");
    for (name, values) in [("v", ["1", "1"]), ("g", ["11", "1"]), ("i", ["3", "30"])] {
        assert!(!one.ask(&run(name, &values)).unwrap().contains("ERROR"), "{name}");
    }
    assert_eq!(one.query("CREATE INDEX tg ON t (g)").unwrap(), "CREATE INDEX");
    for client in [&mut one, &mut other] {
        assert_eq!(client.query("UPDATE t SET v = 2 WHERE id = 1").unwrap(), "UPDATE 1");
        assert_eq!(client.query("BEGIN; UPDATE t SET v = 3 WHERE id = 1; COMMIT").unwrap(), "BEGIN\nUPDATE 1\nCOMMIT");
    }
    assert_eq!(one.ask(&run("v", &["4", "1"])).unwrap(), "UPDATE 1");
    assert_eq!(one.ask(&run("g", &["12", "1"])).unwrap(), "UPDATE 1");
    assert_eq!(one.ask(&run("i", &["4", "40"])).unwrap(), "INSERT 0 1");
    assert_eq!(other.query("SELECT id, v FROM t WHERE g = 12 LIMIT 9").unwrap(), "1|4\nSELECT 1");
    assert_eq!(other.query("SELECT id FROM t WHERE g = 11 LIMIT 9").unwrap(), "SELECT 0");
    assert_eq!(other.query("SELECT id FROM t WHERE g = 40 LIMIT 9").unwrap(), "4\nSELECT 1");
    assert_eq!(other.query("DELETE FROM t WHERE id = 4").unwrap(), "DELETE 1");
    assert_eq!(other.query("SELECT id FROM t WHERE g = 40 LIMIT 9").unwrap(), "SELECT 0");
    // A second index, while both have a transaction.
    assert_eq!(one.query("BEGIN; UPDATE t SET v = 5 WHERE id = 1").unwrap(), "BEGIN\nUPDATE 1");
    assert_eq!(other.query("CREATE INDEX tv ON t (v)").unwrap(), "CREATE INDEX");
    assert!(one.query("UPDATE t SET v = 6 WHERE id = 2").unwrap().starts_with("ERROR 40001"));
    assert_eq!(one.query("ROLLBACK").unwrap(), "ROLLBACK");
    let again = "BEGIN; UPDATE t SET v = 5 WHERE id = 1; UPDATE t SET v = 6 WHERE id = 2; COMMIT";
    assert_eq!(one.query(again).unwrap(), "BEGIN\nUPDATE 1\nUPDATE 1\nCOMMIT");
    assert_eq!(other.query("SELECT id FROM t WHERE v = 6 LIMIT 9").unwrap(), "2\nSELECT 1");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_prepared_call_follows_its_procedure() {
    let server = serve();
    let mut client = Client::of(&server);
    let define = |body: &str| format!("CREATE OR REPLACE PROCEDURE p({body}; END;");
    client.query(&define("a INTEGER, OUT b INTEGER) AS BEGIN b := a + 1")).unwrap();
    let prepared = [parse("p", "CALL p($1)"), message(b'S', b"")].concat();
    assert_eq!(client.ask(&prepared).unwrap(), "");
    assert_eq!(client.ask(&run("p", &["1"])).unwrap(), "2\nCALL");
    let mut other = Client::of(&server);
    other.query(&define("a INTEGER, OUT b INTEGER) AS BEGIN b := a + 10")).unwrap();
    assert_eq!(client.ask(&run("p", &["1"])).unwrap(), "11\nCALL");
    // Its parameter has another type: values are read for that.
    other.query(&define("a DECIMAL(9, 1), OUT b INTEGER) AS BEGIN b := CAST(a * 10 AS INTEGER)")).unwrap();
    assert_eq!(client.ask(&run("p", &["1.25"])).unwrap(), "13\nCALL");
    other.query(&define("a INTEGER, OUT b BIGINT) AS BEGIN b := a")).unwrap();
    let changed = client.ask(&run("p", &["1"])).unwrap();
    assert!(changed.starts_with("ERROR 0A000 cached plan must not change result type"), "{changed}");
    assert_eq!(client.query("CALL p(7)").unwrap(), "7\nCALL");
    assert_eq!(server.end(), Some(0));
}
