//! `lockwork cluster check`: whether every NATS server of a cluster has everything.

use std::fmt::Write;

use clap::Args;
use lockwork_nats::mend::{Holding, have_all, holdings, lacking};
use lockwork_nats::{Error as NatsError, Options};

use super::cluster::{SYSTEM, USER, secret};
use super::{Failure, Outcome, print};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The NATS servers; user and password, as USER:PASSWORD, are in LOCKWORK_NATS_USER
    #[arg(long, value_name = "nats://HOST:PORT,..", value_delimiter = ',', required = true)]
    cluster: Vec<String>,
    /// What the cluster's database is called on those servers
    #[arg(long, value_name = "NAME", default_value = "lockwork")]
    cluster_name: String,
    /// How many of the servers have everything: 1, 3 or 5
    #[arg(long, value_name = "N", default_value_t = 3)]
    replicas: usize,
}

/// What servers have, a line for each stream of each.
fn table(all: &[Holding]) -> String {
    let widest =
        |cell: fn(&Holding) -> &str, least| all.iter().map(|one| cell(one).len()).max().unwrap_or(0).max(least);
    let (server, stream) = (widest(|one| &one.server, 6), widest(|one| &one.stream, 6));
    let mut text =
        format!("{:server$}  {:stream$}  {:>10}  {:>10}  {:>10}\n", "server", "stream", "messages", "last", "missing");
    for one in all {
        let missing = one.missing.map_or("-".into(), |missing| missing.to_string());
        let Holding { server: name, stream: of, count, last, .. } = one;
        // Text takes everything.
        let _ = writeln!(text, "{name:server$}  {of:stream$}  {count:>10}  {last:>10}  {missing:>10}");
    }
    text
}

pub(super) fn run(arguments: &Arguments) -> Outcome {
    let options = Options {
        servers: arguments.cluster.clone(),
        name: arguments.cluster_name.clone(),
        replicas: arguments.replicas,
        user: secret(USER)?,
        system: secret(SYSTEM)?,
        unsynced: true,
    };
    let ask = || {
        holdings(&options).map_err(|error| match error {
            NatsError::Unreachable(text) => Failure::Connect(text),
            NatsError::Settings(text) => Failure::Usage(text),
        })
    };
    let (before, found) = (ask()?, ask()?);
    if found.is_empty() {
        return Err(Failure::Check(format!("there is no database '{}' on these servers", options.name)));
    }
    print(&table(&found))?;
    let without: Vec<_> =
        lacking(&found).into_iter().map(|(name, n)| format!("{name} is without {n} messages")).collect();
    if !without.is_empty() {
        let advice = "each needs an empty store, one after the other: docs/cluster.md says how";
        return Err(Failure::Check(format!("{}: {advice}", without.join(", "))));
    }
    let few = found.iter().map(|one| found.iter().filter(|other| other.stream == one.stream).count()).min();
    if let Some(few) = few.filter(|few| *few < options.replicas) {
        return Err(Failure::Check(format!("{few} of {} servers say what they have", options.replicas)));
    }
    if !have_all(&found, &before, options.replicas) {
        return Err(Failure::Check("a server is behind the others: they give it what it lacks; ask again".into()));
    }
    Ok(())
}
