//! Statements of ever new shapes: they are kept compiled in a cache, in which users take no places from each other.

use lockwork::MAX_STATEMENTS_OF_USER;

use crate::BANK;
use crate::doors::{PASSWORD, Runtime, users};
use crate::folder::Folder;
use crate::server::Server;

#[test]
fn a_user_with_ever_new_statements_takes_the_places_of_his_own() {
    let folder = Folder::new("server-shapes");
    let file = users(&folder, &[("honest", "write"), ("hostile", "write"), ("admin", "define")]);
    let server = Server::start(&["--init", BANK, "--users", &file]);
    let runtime = Runtime::new();
    let [honest, hostile, admin] =
        ["honest", "hostile", "admin"].map(|user| runtime.login(&server, user, PASSWORD).unwrap());
    let add = |amount: usize, id: usize| format!("UPDATE accounts SET balance = balance + {amount} WHERE id = {id}");
    let prepare = |client: &tokio_postgres::Client, text: String| runtime.0.block_on(client.prepare(&text)).unwrap();
    let run = |client: &tokio_postgres::Client, statement| runtime.0.block_on(client.execute(statement, &[]));
    let (own, first) = (prepare(&honest, add(3, 1)), prepare(&hostile, add(1, 2)));
    assert_eq!((run(&honest, &own).unwrap(), run(&hostile, &first).unwrap()), (1, 1));
    // The transaction is open while the statements of another user come and go.
    runtime.ask(&honest, "BEGIN").unwrap();
    run(&honest, &own).unwrap();
    let more = MAX_STATEMENTS_OF_USER + 50;
    for amount in 2..=more {
        assert_eq!(runtime.ask(&hostile, &add(amount, 2)), Ok(String::new()));
    }
    run(&honest, &own).unwrap();
    runtime.ask(&honest, "COMMIT").unwrap();
    // His first statement has gone from the cache; it is compiled once more without his knowing.
    assert_eq!(run(&hostile, &first).unwrap(), 1);
    let (honest_sum, hostile_sum) = (1000 + 9, 1000 + more * (more + 1) / 2 + 1);
    let balance = |id| runtime.ask(&admin, &format!("SELECT balance FROM accounts WHERE id = {id}")).unwrap();
    assert_eq!([balance(1), balance(2)], [honest_sum, hostile_sum].map(|sum| format!("{sum}.00")));
    runtime.ask(&admin, "CREATE TABLE later (id BIGINT PRIMARY KEY)").unwrap();
    // Calls keep a statement for some rounds, not for ever. A transaction that has a statement which has gone cannot go
    // on, and says so.
    runtime.ask(&hostile, "BEGIN").unwrap();
    run(&hostile, &first).unwrap();
    let other = runtime.login(&server, "hostile", PASSWORD).unwrap();
    for amount in more + 1..=more + 6 * MAX_STATEMENTS_OF_USER {
        runtime.ask(&other, &add(amount, 1)).unwrap();
    }
    let refused = runtime.ask(&hostile, "COMMIT").unwrap_err();
    assert_eq!(refused, "40001 a statement of the transaction has to be compiled again");
    assert_eq!(balance(2), format!("{hostile_sum}.00"));
    assert_eq!(server.end(), Some(0));
}
