//! A database that is killed while it commits: what it acknowledged is there, and nothing is there by half.

use std::io::{BufRead, BufReader, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockwork::{Lockwork, SqlAnswer};

use super::{Random, start};
use crate::cli::{Failure, print};

const ACCOUNTS: u64 = 100;
const SCHEMA: &str = "
CREATE TABLE accounts (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL) WITH (ordered = true);
CREATE TABLE transfers (id BIGINT PRIMARY KEY, amount BIGINT NOT NULL) WITH (ordered = true);
CREATE PROCEDURE transfer(number BIGINT, from_id BIGINT, to_id BIGINT) AS $$
BEGIN
    UPDATE accounts SET balance = balance - 1 WHERE id = from_id;
    UPDATE accounts SET balance = balance + 1 WHERE id = to_id;
    INSERT INTO transfers VALUES (number, 1);
END $$;
";
/// How long transfers run until the kill.
const RUNNING: Duration = Duration::from_millis(1_500);

/// Runs transfers in a process, kills it, opens the database and counts; returns what failed.
pub(super) fn show() -> Result<Option<String>, Failure> {
    let folder = std::env::temp_dir().join(format!("lockwork-demo-{}", std::process::id()));
    let shown = in_folder(&folder.display().to_string());
    // What cannot be removed is found by its name.
    drop(std::fs::remove_dir_all(&folder));
    shown
}

fn in_folder(folder: &str) -> Result<Option<String>, Failure> {
    print("\nA process commits transfers to a folder, one after the other, until kill -9\n")?;
    let mut database = Lockwork::open(folder)?;
    database.sql(SCHEMA)?;
    let rows: Vec<String> = (0..ACCOUNTS).map(|id| format!("({id}, 1000)")).collect();
    database.sql(&format!("INSERT INTO accounts VALUES {}", rows.join(", ")))?;
    database.close()?;
    let mut process = start(&["sql", folder])?;
    let mut calls = process.0.stdin.take().expect("a pipe");
    let answers = BufReader::new(process.0.stdout.take().expect("a pipe"));
    let acknowledged = AtomicU64::new(0);
    let sent = std::thread::scope(|scope| {
        scope.spawn(|| {
            // After the kill the pipe ends.
            answers.lines().map_while(Result::ok).for_each(|_| _ = acknowledged.fetch_add(1, Ordering::Relaxed));
        });
        let (mut random, mut sent, begin) = (Random(1), 0, Instant::now());
        while begin.elapsed() < RUNNING {
            let from = random.below(ACCOUNTS);
            let to = (from + 1 + random.below(ACCOUNTS - 1)) % ACCOUNTS;
            if writeln!(calls, "CALL transfer({sent}, {from}, {to});").is_err() {
                break;
            }
            sent += 1;
        }
        // SIGKILL.
        drop(process.0.kill());
        sent
    });
    drop(process);
    let acknowledged = acknowledged.into_inner();
    let opening = Instant::now();
    let mut database = Lockwork::open(folder)?;
    let opened = opening.elapsed();
    let (money, accounts) =
        sum(&mut database, "SELECT balance FROM accounts WHERE id BETWEEN 0 AND 1000000000 LIMIT 1000")?;
    let found = count(&mut database, sent)?;
    database.close()?;
    print(&format!(
        "{acknowledged} transfers acknowledged, {sent} sent; opened again in {} ms: {found} transfers are there, and {money} of \
         {} units of money\n",
        opened.as_millis(),
        ACCOUNTS * 1000
    ))?;
    let right = acknowledged > 0 && (acknowledged..=sent).contains(&found);
    let whole = money == (ACCOUNTS * 1000) as i64 && accounts == ACCOUNTS;
    Ok((!(right && whole)).then(|| "after kill -9 the database is not what it acknowledged".to_string()))
}

/// The sum of the only column of a query, and how many rows it has.
fn sum(database: &mut Lockwork, select: &str) -> Result<(i64, u64), Failure> {
    let (mut sum, mut count) = (0, 0);
    for answer in database.sql(select)? {
        if let SqlAnswer::Rows(_, rows) = answer {
            count += rows.len() as u64;
            sum += rows.iter().filter_map(|row| row[0].to_string().parse::<i64>().ok()).sum::<i64>();
        }
    }
    Ok((sum, count))
}

/// How many of the transfers below `sent` are there.
fn count(database: &mut Lockwork, sent: u64) -> Result<u64, Failure> {
    let mut found = 0;
    for first in (0..=sent).step_by(1000) {
        let last = first + 999;
        let select = format!("SELECT id FROM transfers WHERE id BETWEEN {first} AND {last} LIMIT 1000");
        found += sum(database, &select)?.1;
    }
    Ok(found)
}
