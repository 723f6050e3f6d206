//! Rows by lists of keys, and with conditions beside the key, as drivers ask for them.

use crate::server::Server;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, NoTls};

/// A server of a table of 300 rows, and a client of it.
async fn numbers() -> (Server, Client) {
    let server = Server::start(&[]);
    let settings = format!("host=127.0.0.1 port={} user=ann dbname=bank", server.port);
    let (client, connection) = tokio_postgres::connect(&settings, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
        .batch_execute("CREATE TABLE n (id INTEGER PRIMARY KEY, v BIGINT NOT NULL, t VARCHAR(9) NOT NULL)")
        .await
        .unwrap();
    client.batch_execute("CREATE TABLE w (t VARCHAR(9) PRIMARY KEY, v BIGINT NOT NULL)").await.unwrap();
    for first in (0..300).step_by(50) {
        let rows: Vec<String> = (first..first + 50).map(|id| format!("({id}, {}, 't{id}')", id * 10)).collect();
        client.batch_execute(&format!("INSERT INTO n VALUES {}", rows.join(", "))).await.unwrap();
    }
    client.batch_execute("INSERT INTO w VALUES ('a', 1), ('it''s \"x\"', 2), ('c', 3)").await.unwrap();
    (server, client)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(future)
}

#[test]
fn keys_come_in_lists_as_drivers_send_them() {
    block_on(async {
        let (server, client) = numbers().await;
        let select = client.prepare("SELECT v FROM n WHERE id = ANY($1) ORDER BY id").await.unwrap();
        assert_eq!(select.params(), [Type::INT4_ARRAY]);
        let update = client.prepare("UPDATE n SET v = v + 1 WHERE id = ANY($1) AND v >= $2").await.unwrap();
        // One element, several, as many as the next larger procedures have room for, and more keys than there are rows.
        for length in [0, 1, 3, 16, 17, 256, 257, 4096] {
            let keys: Vec<Option<i32>> = (0..length).rev().map(Some).chain([None, Some(0), Some(-7)]).collect();
            let keys = &keys[..keys.len().min(4096)];
            let expected =
                keys.iter().flatten().filter(|key| (0..300).contains(*key)).collect::<std::collections::BTreeSet<_>>();
            let rows = client.query(&select, &[&keys]).await.unwrap();
            let values: Vec<i64> = rows.iter().map(|row| row.get::<_, i64>(0) / 10).collect();
            assert_eq!(values, expected.iter().map(|key| i64::from(**key)).collect::<Vec<_>>(), "{length}");
            let count = expected.iter().filter(|key| ***key >= 2).count() as u64;
            assert_eq!(client.execute(&update, &[&keys, &20_i64]).await.unwrap(), count, "{length}");
        }
        // A SELECT by more keys than a procedure takes is a query.
        let all: Vec<i32> = (0..100_000).rev().collect();
        for length in [4097, 100_000] {
            let rows = client.query(&select, &[&all[all.len() - length..].to_vec()]).await.unwrap();
            let values: Vec<i64> = rows.iter().map(|row| row.get::<_, i64>(0) / 10).collect();
            assert_eq!(values, (0..300).collect::<Vec<i64>>(), "{length}");
        }
        let too_long = client.query(&select, &[&vec![0; 100_001]]).await.unwrap_err();
        assert_eq!(too_long.code().map(|code| code.code()), Some("22003"), "{too_long}");
        let written = client.execute(&update, &[&all[..4097].to_vec(), &20_i64]).await.unwrap_err();
        assert_eq!(written.code().map(|code| code.code()), Some("22003"), "{written}");
        assert_eq!(client.query(&select, &[&Option::<Vec<i32>>::None]).await.unwrap().len(), 0);
        assert_eq!(client.execute(&update, &[&vec![5, 6], &Option::<i64>::None]).await.unwrap(), 0);
        let texts = vec!["c", "none", "it's \"x\"", "longer than nine"];
        let rows = client.query("SELECT v FROM w WHERE t = ANY($1::text[])", &[&texts]).await.unwrap();
        assert_eq!(rows.iter().map(|row| row.get(0)).collect::<Vec<i64>>(), [3, 2]);
        let deleted =
            client.execute("DELETE FROM n WHERE id IN ($1, $2, $1, $3)", &[&7, &8, &Option::<i32>::None]).await;
        assert_eq!(deleted.unwrap(), 2);
        // In a transaction too, and by texts in the statement.
        for (text, answered) in [
            (
                "BEGIN; SELECT count(*) FROM n WHERE id IN (1, 2, 7); UPDATE n SET v = 0 WHERE id IN (1, 2, 7); COMMIT",
                "2",
            ),
            ("SELECT id FROM n WHERE id = ANY('{1,NULL}'::int[]) AND v = 0", "1"),
            ("SELECT id FROM n WHERE id = ANY(ARRAY[2, 7])", "2"),
            ("SELECT sum(id) FROM n WHERE v = 0 AND id = ANY('{}')", ""),
        ] {
            let messages = client.simple_query(text).await.unwrap();
            let first = messages.iter().find_map(|message| match message {
                tokio_postgres::SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default().to_string()),
                _ => None,
            });
            assert_eq!(first.as_deref(), Some(answered), "{text}");
        }
        drop(client);
        assert_eq!(server.end(), Some(0));
    });
}

#[test]
fn queries_of_whole_tables_take_arrays() {
    block_on(async {
        let (server, client) = numbers().await;
        let query = client.prepare("SELECT count(*), sum(v) FROM n WHERE v = ANY($1) AND t <> ALL($2)").await.unwrap();
        assert_eq!(query.params(), [Type::INT8_ARRAY, Type::VARCHAR_ARRAY]);
        for (values, texts, expected) in [
            (vec![Some(10), Some(10), Some(20), None, Some(i64::MAX)], vec![Some("t1")], (1, Some("20"))),
            (vec![Some(10), Some(20)], vec![], (2, Some("30"))),
            (vec![], vec![Some("t1")], (0, None)),
            (vec![Some(10), Some(20)], vec![None], (0, None)),
        ] {
            let row = client.query_one(&query, &[&values, &texts]).await.unwrap();
            let sum = client
                .query_one("SELECT sum(v)::text FROM n WHERE v = ANY($1) AND t <> ALL($2)", &[&values, &texts])
                .await
                .unwrap();
            assert_eq!((row.get::<_, i64>(0), sum.get::<_, Option<&str>>(0)), expected, "{values:?}");
        }
        let none: Option<Vec<i64>> = None;
        for text in ["v = ANY($1)", "NOT (v = ANY($1))", "v <> ALL($1)"] {
            let row = client.query_one(&format!("SELECT count(*) FROM n WHERE {text}"), &[&none]).await.unwrap();
            assert_eq!(row.get::<_, i64>(0), 0, "{text}");
        }
        let row = client.query_one("SELECT count(*) FROM w WHERE t = ANY($1)", &[&vec!["it's \"x\"", "\u{1}\\"]]).await;
        assert_eq!(row.unwrap().get::<_, i64>(0), 1);
        let literal = "SELECT count(*) FROM n WHERE v = ANY('{10,20,NULL}') OR t = ANY(ARRAY['t3', 't4'])";
        assert_eq!(client.query_one(literal, &[]).await.unwrap().get::<_, i64>(0), 4);
        drop(client);
        assert_eq!(server.end(), Some(0));
    });
}

#[test]
fn conditions_beside_a_key_hold_of_the_rows_that_they_hold_of_without_it() {
    block_on(async {
        let (server, client) = numbers().await;
        client
            .batch_execute("CREATE TABLE q (id INT PRIMARY KEY, a VARCHAR(8) NOT NULL, n DECIMAL(8, 2) NOT NULL)")
            .await
            .unwrap();
        client.batch_execute("INSERT INTO q VALUES (1, 'ab', 1)").await.unwrap();
        for condition in ["a || 'cd' = 'abcd'", "n / 3 > 0.33", "n * 3 > 2.99", "NOT a || a <> 'abab'"] {
            for key in ["", "id = 1 AND ", "id IN (1, 2) AND "] {
                let rows = client.query(&format!("SELECT id FROM q WHERE {key}{condition}"), &[]).await.unwrap();
                assert_eq!(rows.len(), 1, "{key}{condition}");
            }
        }
        // A statement that cannot be a query is refused.
        for condition in ["a || 'cd' <> 'abcd'", "n / 3 <= 0.33"] {
            let delete = format!("DELETE FROM q WHERE id = 1 AND {condition}");
            let refused = client.batch_execute(&delete).await.unwrap_err();
            assert_eq!(refused.code().map(|code| code.code()), Some("0A000"), "{refused}");
        }
        // What asyncpg asks before it looks for the types of arrays.
        let jit = "SELECT current_setting('jit') AS cur, set_config('jit', 'off', false) AS new";
        let row = client.query_one(jit, &[]).await.unwrap();
        assert_eq!([row.get::<_, String>(0), row.get(1)], ["off", "off"]);
        assert_eq!(server.end(), Some(0));
    });
}
