//! Decimals at `lockwork serve`: what is assigned is rounded to its scale, and what is computed or compared keeps its
//! digits, in text and in binary, as a parameter and in the statement itself.

use std::io::Cursor;

use crate::client::Client as Raw;
use crate::server::Server;
use futures::SinkExt;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, NoTls};

const TABLES: &str = "
    CREATE TABLE items (id INTEGER PRIMARY KEY, price DECIMAL(9, 2) NOT NULL, n INTEGER NOT NULL);
    CREATE TABLE prices (price DECIMAL(9, 2), id INTEGER, PRIMARY KEY (price, id));
    CREATE PROCEDURE pay(a DECIMAL(9, 2), OUT b DECIMAL(9, 2)) AS BEGIN b := a; END;";

fn serve() -> Server {
    let server = Server::start(&[]);
    let made = Raw::of(&server).query(TABLES).unwrap();
    assert!(made.ends_with("CREATE PROCEDURE"), "{made}");
    server
}

/// A number as the protocol has it in binary: its groups of four digits, the first worth 10000^0.
#[derive(Debug)]
struct Numeric(&'static [u16]);

impl ToSql for Numeric {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        let decimals = 4 * (self.0.len() as u16 - 1);
        let parts = [self.0.len() as u16, 0, 0, decimals];
        parts.iter().chain(self.0).for_each(|part| out.extend_from_slice(&part.to_be_bytes()));
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::NUMERIC
    }

    to_sql_checked!();
}

/// Statements with `$1`, its value, and what the last line of the answer is.
const CASES: &[(&str, &str, &str)] = &[
    ("UPDATE items SET price = $1 WHERE id = 1", "1.005", "1.01"),
    ("UPDATE items SET price = $1 WHERE id = 1", "-1.005", "-1.01"),
    ("UPDATE items SET price = $1 WHERE id = 1", "1.0049999999999999999999999999", "1.00"),
    ("UPDATE items SET price = $1 WHERE id = 1", "1e-40", "0.00"),
    ("UPDATE items SET price = $1 WHERE id = 1", "9999999.994", "9999999.99"),
    ("UPDATE items SET price = $1 WHERE id = 1", "9999999.995", "ERROR 22003"),
    ("UPDATE items SET price = price * $1 WHERE id = 1", "1.0825", "108.25"),
    ("UPDATE items SET price = price * $1 WHERE id = 1", "0.00005", "0.01"),
    ("UPDATE items SET price = price * $1 WHERE id = 1", "0.00004999", "0.00"),
    ("UPDATE items SET price = price * $1 WHERE id = 1", "1", "100.00"),
    ("UPDATE items SET price = price + $1 WHERE id = 1", "0.005", "100.01"),
    ("UPDATE items SET price = $1 * price + $1 WHERE id = 1", "0.125", "12.63"),
    ("UPDATE items SET price = price / $1 WHERE id = 1", "0.125", "800.00"),
    ("UPDATE items SET price = price * 2 + CAST($1 AS DECIMAL(4, 1)) WHERE id = 1", "0.25", "200.30"),
    ("UPDATE items SET n = n * 2 WHERE id = 1", "", "100.00"),
];

#[test]
fn what_is_assigned_is_rounded_and_what_is_computed_keeps_its_digits() {
    let server = serve();
    let mut client = Raw::of(&server);
    for (text, value, expected) in CASES {
        client.query("DELETE FROM items WHERE id = 1; INSERT INTO items VALUES (1, 100, 3)").unwrap();
        let literal = client.query(&text.replace("$1", value)).unwrap();
        let computed = client.query("SELECT price FROM items WHERE id = 1").unwrap();
        let found = if literal.starts_with("ERROR") { &literal } else { &computed };
        // An exponent is a number in quotes only.
        if !value.contains('e') {
            assert!(found.starts_with(expected), "{text}, {value}: {literal} {computed}");
        }
        client.query("UPDATE items SET price = 100 WHERE id = 1").unwrap();
        let values = if text.contains("$1") { vec![*value] } else { Vec::new() };
        let answered = client.prepared(text, &values).unwrap();
        let computed = client.query("SELECT price FROM items WHERE id = 1").unwrap();
        let found = if answered.contains("ERROR") { answered.lines().last().unwrap_or_default() } else { &computed };
        assert!(found.starts_with(expected), "{text} with {value}: {answered} {computed}");
    }
    assert_eq!(server.end(), Some(0));
}

#[test]
fn what_is_compared_keeps_its_digits() {
    let server = serve();
    let mut client = Raw::of(&server);
    client.query("INSERT INTO prices VALUES (-1.01, 1), (1.00, 2), (1.01, 3), (2.00, 4)").unwrap();
    client.query("INSERT INTO items VALUES (1, -1.01, 1), (2, 1.00, 2), (3, 1.01, 3), (4, 2.00, 4)").unwrap();
    for (condition, value, expected) in [
        ("price > $1", "1.005", "3 4"),
        ("price >= $1", "1.005", "3 4"),
        ("price < $1", "1.005", "1 2"),
        ("price <= $1", "1.005", "1 2"),
        ("price = $1", "1.005", ""),
        ("price = $1", "1.0100", "3"),
        ("price > $1", "-1.015", "1 2 3 4"),
        ("price < $1", "-1.005", "1"),
        ("price <= $1", "-1.0100001", ""),
        ("price > $1", "99999999999999999999.5", ""),
        ("price BETWEEN $1 AND 1.015", "0.999", "2 3"),
    ] {
        // By the key; by a query of the whole table.
        for text in ["SELECT id FROM prices WHERE", "SELECT id FROM items WHERE n > 0 AND"] {
            let is_long = value.len() > 19;
            if is_long && text.contains("items") {
                continue;
            }
            let end = if text.contains("items") { "ORDER BY id" } else { "ORDER BY price, id LIMIT 9" };
            let text = format!("{text} {condition} {end}");
            let rows = |answered: String| {
                assert!(!answered.contains("ERROR"), "{text} with {value}: {answered}");
                let rows = answered.lines().filter(|line| line.parse::<i32>().is_ok());
                rows.map(str::to_string).collect::<Vec<_>>().join(" ")
            };
            assert_eq!(rows(client.prepared(&text, &[value]).unwrap()), expected, "{text} with {value}");
            if !is_long {
                assert_eq!(rows(client.query(&text.replace("$1", value)).unwrap()), expected, "{text}: {value}");
            }
        }
    }
    let computed = client.prepared("SELECT price * $1 FROM items WHERE n = 3 AND id > 0", &["1.0825"]).unwrap();
    assert!(computed.contains("1.093325"), "{computed}");
    assert_eq!(server.end(), Some(0));
}

async fn connect(server: &Server) -> Client {
    let settings = format!("host=127.0.0.1 port={} user=ann dbname=bank", server.port);
    let (client, connection) = tokio_postgres::connect(&settings, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[test]
fn calls_copies_and_binary_values_are_rounded_like_others() {
    let server = serve();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let client = connect(&server).await;
        let cell = async |text: &str| {
            let rows = client.simple_query(text).await.unwrap();
            let row = rows.iter().find_map(|message| match message {
                tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_string),
                _ => None,
            });
            row.unwrap_or_default()
        };
        assert_eq!(cell("CALL pay(1.005)").await, "1.01");
        let mut raw = Raw::of(&server);
        assert!(raw.prepared("CALL pay($1)", &["2.675"]).unwrap().ends_with("2.68\nCALL"));
        assert!(raw.prepared("CALL pay($1)", &["12345678.005"]).unwrap().contains("ERROR 22003"));
        assert!(raw.prepared("CALL MANY pay($1)", &["{1.005,1.004}"]).unwrap().contains("{1.01,1.00}"));
        let sink = client.copy_in("COPY items FROM STDIN").await.unwrap();
        let mut sink = std::pin::pin!(sink);
        sink.send(Cursor::new("1\t1.005\t1\n2\t0.0049999\t2\n")).await.unwrap();
        assert_eq!(sink.finish().await.unwrap(), 2);
        assert_eq!(cell("SELECT price FROM items WHERE id = 1").await, "1.01");
        assert_eq!(cell("SELECT price FROM items WHERE id = 2").await, "0.00");
        // 1.0825 in binary.
        let factor = Numeric(&[1, 825]);
        client.execute("UPDATE items SET price = 100 WHERE id = 1", &[]).await.unwrap();
        client.execute("UPDATE items SET price = price * $1 WHERE id = 1", &[&factor]).await.unwrap();
        assert_eq!(cell("SELECT price FROM items WHERE id = 1").await, "108.25");
        client.execute("UPDATE items SET price = $1 WHERE id = 1", &[&Numeric(&[1, 50])]).await.unwrap();
        assert_eq!(cell("SELECT price FROM items WHERE id = 1").await, "1.01");
        for (text, value, expected) in [
            ("UPDATE items SET price = $1 WHERE id = 1", 0.1 + 0.2, "0.30"),
            ("UPDATE items SET price = price * $1 WHERE id = 1", 1.5, "0.45"),
            ("UPDATE items SET n = $1 WHERE id = 1", 2.75, "0.45"),
            ("UPDATE items SET price = n * $1 WHERE id = 1", 0.5, "1.50"),
        ] {
            client.query_typed(text, &[(&value, Type::FLOAT8)]).await.unwrap();
            assert_eq!(cell("SELECT price FROM items WHERE id = 1").await, expected, "{text}");
        }
        let found = client.query_typed("SELECT id FROM items WHERE id = $1", &[(&1.5, Type::FLOAT8)]).await.unwrap();
        assert_eq!(found.len(), 0);
    });
    assert_eq!(server.end(), Some(0));
}

#[test]
fn lists_of_keys_and_conditions_beside_a_key_compare_exactly() {
    const TWO: &str = "SELECT id FROM items WHERE id IN ($1, $2) AND price > $3";
    const ANY: &str = "SELECT id FROM items WHERE id = ANY($1) AND price BETWEEN $2 AND $3";
    const KEYS: &str = "SELECT id FROM levels WHERE price = ANY($1)";
    let server = serve();
    let mut client = Raw::of(&server);
    client.query("CREATE TABLE levels (price DECIMAL(9, 2) PRIMARY KEY, id INTEGER NOT NULL)").unwrap();
    client.query("INSERT INTO levels VALUES (-1.01, 1), (1.00, 2), (1.01, 3), (2.00, 4)").unwrap();
    client.query("INSERT INTO items VALUES (1, -1.01, 1), (2, 1.00, 2), (3, 1.01, 3), (4, 2.00, 4)").unwrap();
    let many: Vec<String> = (-300..300).map(|id| id.to_string()).collect();
    let many = format!("{{{}}}", many.join(","));
    let cases: [(&str, &[&str], &str); 22] = [
        (TWO, &["2", "3", "1.005"], "3"),
        (TWO, &["2", "3", "0.9999"], "2 3"),
        (TWO, &["2", "3", "1"], "3"),
        (ANY, &["{1,2,3,4}", "1.0001", "1.9999"], "3"),
        // Procedures for longer lists have the decimals too.
        (ANY, &["{1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17}", "-1.0101", "1.0099"], "1 2"),
        (ANY, &[&many, "1.00999999", "2"], "3 4"),
        ("SELECT id FROM items WHERE id = 3 AND price = $1", &["1.0100"], "3"),
        ("SELECT id FROM items WHERE id = 3 AND price = $1", &["1.0149"], ""),
        ("SELECT id FROM items WHERE id = 3 AND price = CAST($1 AS DECIMAL(9, 2))", &["1.0149"], "3"),
        ("SELECT id FROM items WHERE id = 3 AND price * $1 > $2", &["1.0825", "1.09332"], "3"),
        ("SELECT id FROM items WHERE id = 3 AND price * $1 > $2", &["1.0825", "1.093325"], ""),
        ("SELECT id FROM items WHERE id = 3 AND NOT (price > $1) AND price NOT IN ($2, 7)", &["1.015", "1.014"], "3"),
        (KEYS, &["{1.005,1.010,2}"], "3 4"),
        (KEYS, &["{1.005,99999999999999999999.5,NULL,-1.01}"], "1"),
        (KEYS, &["{1.005}"], ""),
        ("SELECT id FROM levels WHERE price IN ($1, $2)", &["1.005", "1.010"], "3"),
        ("SELECT id FROM levels WHERE price IN (1.005, 1.010, '2.000', '1.0000001')", &[], "3 4"),
        ("SELECT id FROM levels WHERE price = 1.005 OR price = $1", &["2.0000"], "4"),
        ("SELECT id FROM items WHERE n > 0 AND price = ANY($1) ORDER BY id", &["{1.005,1.010,2}"], "3 4"),
        ("SELECT id FROM items WHERE n > 0 AND price <> ALL($1) ORDER BY id", &["{1.005,1.010,1e30}"], "1 2 4"),
        ("SELECT id FROM items WHERE n > 0 AND price <> ALL($1) ORDER BY id", &["{1.005,NULL}"], ""),
        ("SELECT id FROM items WHERE n > 0 AND price IN ($1, 2) AND price < $2 ORDER BY id", &["1.005", "2.001"], "4"),
    ];
    for (text, values, expected) in cases {
        let answered = client.prepared(text, values).unwrap();
        assert!(!answered.contains("ERROR"), "{text} with {values:?}: {answered}");
        let rows: Vec<&str> = answered.lines().filter(|line| line.parse::<i32>().is_ok()).collect();
        assert_eq!(rows.join(" "), expected, "{text} with {values:?}");
    }
    let update = "UPDATE items SET price = price * $1 WHERE id IN (1, 2) AND price > $2";
    assert!(client.prepared(update, &["1.505", "0.995"]).unwrap().ends_with("UPDATE 1"));
    let computed = client.query("SELECT price FROM items WHERE id = 2").unwrap();
    assert!(computed.starts_with("1.51"), "{computed}");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let client = connect(&server).await;
        let ids = |rows: Vec<tokio_postgres::Row>| rows.iter().map(|row| row.get(0)).collect::<Vec<i32>>();
        // 1.005 and 1.01 in binary.
        let list = vec![Numeric(&[1, 50]), Numeric(&[1, 100])];
        assert_eq!(ids(client.query(KEYS, &[&list]).await.unwrap()), [3]);
        let list = vec![1.5, 3.0];
        let text = "SELECT id FROM items WHERE id = ANY($1) AND n < $2";
        let types = [Type::FLOAT8_ARRAY, Type::FLOAT8];
        for (bound, expected) in [(3.5, &[3][..]), (2.5, &[])] {
            let values: [(&(dyn ToSql + Sync), Type); 2] = [(&list, types[0].clone()), (&bound, types[1].clone())];
            assert_eq!(ids(client.query_typed(text, &values).await.unwrap()), expected, "{bound}");
        }
    });
    assert_eq!(server.end(), Some(0));
}
