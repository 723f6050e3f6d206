//! PostgreSQL: a private server on the same disk, `fsync` on, the transfers in a loop inside the server, so that
//! nothing is sent to and fro.

use super::super::near_data::postgres::{Cluster, Installation, PostgresError};

/// Durable as PostgreSQL comes, with room for everything, and nothing beside the transfers.
const SETTINGS: &str = "
fsync = on
synchronous_commit = on
full_page_writes = on
autovacuum = off
max_wal_size = 16GB
checkpoint_timeout = 1h
max_connections = 10
";

/// A server with accounts.
pub(super) struct Postgres(Cluster);

impl Postgres {
    /// Starts one.
    ///
    /// # Errors
    /// There is none, or it does not start.
    pub(super) fn new(accounts: u64, balance: i64) -> Result<Self, PostgresError> {
        let cluster = Cluster::start_with(&Installation::find()?, accounts, SETTINGS)?;
        cluster.psql(&format!(
            "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL);
             INSERT INTO accounts SELECT id, {balance} FROM generate_series(0, {accounts} - 1) AS id;
             VACUUM ANALYZE accounts;
             CREATE PROCEDURE transfer(source bigint, target bigint, amount bigint) LANGUAGE plpgsql AS $$
             DECLARE remains bigint;
             BEGIN
                 SELECT balance INTO remains FROM accounts WHERE id = source FOR UPDATE;
                 IF remains >= amount THEN
                     UPDATE accounts SET balance = balance - amount WHERE id = source;
                     UPDATE accounts SET balance = balance + amount WHERE id = target;
                 END IF;
             END $$;
             CREATE PROCEDURE work(seconds double precision, together int, INOUT made bigint) LANGUAGE plpgsql AS $$
             DECLARE ends timestamptz := clock_timestamp() + make_interval(secs => seconds);
             BEGIN
                 made := 0;
                 WHILE clock_timestamp() < ends LOOP
                     FOR i IN 1 .. together LOOP
                         CALL transfer((random() * ({accounts} - 1))::bigint, (random() * ({accounts} - 1))::bigint, 1);
                     END LOOP;
                     made := made + together;
                     COMMIT;
                 END LOOP;
             END $$;"
        ))?;
        Ok(Self(cluster))
    }

    /// Makes transfers for so many seconds, `together` in each transaction; how many.
    pub(super) fn transfers(&self, seconds: f64, together: usize) -> Result<u64, PostgresError> {
        self.number(&format!("CALL work({seconds}, {together}, NULL)"))
    }

    /// All money.
    pub(super) fn total(&self) -> Result<u64, PostgresError> {
        self.number("SELECT sum(balance)::bigint FROM accounts")
    }

    pub(super) fn stop(self) -> Result<(), PostgresError> {
        self.0.stop()
    }

    fn number(&self, statement: &str) -> Result<u64, PostgresError> {
        let said = self.0.psql(statement)?;
        said.trim().parse().map_err(|_| PostgresError::Server(format!("'{statement}' answered '{}'", said.trim())))
    }
}
