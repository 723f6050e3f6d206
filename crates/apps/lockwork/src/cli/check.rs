//! `lockwork cluster check`: whether every NATS server of a cluster has everything.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use lockwork_nats::audit::{Holding, audit};
use lockwork_nats::local::options_of;
use lockwork_nats::{Error as NatsError, Options};

use super::cluster::{USER, secret};
use super::{Failure, Outcome, print};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The NATS servers; user and password, as USER:PASSWORD, are in LOCKWORK_NATS_USER
    #[arg(long, value_name = "nats://HOST:PORT,..", value_delimiter = ',', required_unless_present = "data")]
    cluster: Vec<String>,
    /// In place of them the folder of a `lockwork cluster up` that runs
    #[arg(long, value_name = "DIR", conflicts_with = "cluster")]
    data: Option<PathBuf>,
    /// What the cluster's database is called on those servers
    #[arg(long, value_name = "NAME", default_value = "lockwork")]
    cluster_name: String,
}

/// What servers have, a line for each stream of each.
fn table(all: &[Holding]) -> String {
    let widest =
        |cell: fn(&Holding) -> &str, least| all.iter().map(|one| cell(one).len()).max().unwrap_or(0).max(least);
    let (server, stream) = (widest(|one| &one.server, 6), widest(|one| &one.stream, 6));
    let mut text = format!(
        "{:server$}  {:stream$}  {:>10}  {:>10}  {:>10}  {:>10}\n",
        "server", "stream", "messages", "first", "last", "missing"
    );
    for one in all {
        let missing = one.missing.map_or("-".into(), |missing| missing.to_string());
        let Holding { server: name, stream: of, count, first, last, .. } = one;
        // Text takes everything.
        let _ = writeln!(text, "{name:server$}  {of:stream$}  {count:>10}  {first:>10}  {last:>10}  {missing:>10}");
    }
    text
}

impl Arguments {
    fn options(&self) -> Result<Options, Failure> {
        let name = self.cluster_name.clone();
        if let Some(folder) = &self.data {
            return options_of(&folder.join("nats"), &name).map_err(Failure::usage);
        }
        let (servers, user) = (self.cluster.clone(), secret(USER)?);
        Ok(Options { servers, name, replicas: 1, user, system: None, unsynced: true })
    }
}

pub(super) fn run(arguments: &Arguments) -> Outcome {
    let options = arguments.options()?;
    let audit = audit(&options).map_err(|error| match error {
        NatsError::Unreachable(text) => Failure::Connect(text),
        NatsError::Settings(text) => Failure::Usage(text),
    })?;
    let found = &audit.holdings;
    if found.is_empty() {
        return Err(Failure::Check(format!("there is no database '{}' on these servers", options.name)));
    }
    print(&table(found))?;
    let mut wrong = Vec::new();
    let answers = |stream: &str| -> Vec<&str> {
        found.iter().filter(|one| one.stream == stream).map(|one| &one.server[..]).collect()
    };
    if let Some(Holding { stream, replicas, .. }) = found.iter().find(|one| answers(&one.stream).len() < one.replicas) {
        let (few, names) = (answers(stream).len(), answers(stream).join(", "));
        wrong.push(format!("{few} of {replicas} servers say what they have of {stream}: {names}"));
    }
    if !audit.lacking.is_empty() {
        wrong.push(audit.said());
    }
    if !audit.early().is_empty() {
        wrong.push(audit.early());
    }
    match (wrong.is_empty(), audit.is_whole) {
        (true, true) => Ok(()),
        (true, false) => {
            Err(Failure::Check("a server is behind the others, which give it what it lacks: ask again".into()))
        }
        (false, _) => {
            let where_to = "if it stays so, docs/cluster.md, When a server is damaged, says what to do";
            Err(Failure::Check(format!("{}: {where_to}", wrong.join("; "))))
        }
    }
}
