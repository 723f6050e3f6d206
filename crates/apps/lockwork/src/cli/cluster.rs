//! `lockwork serve --cluster`: a node of a cluster, whose log is a journal on NATS JetStream.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use lockwork::divided::Others;
use lockwork::sequencer::journal::Journal;
use lockwork::sequencer::{self, Error as Trouble, Journals, NodeOptions, Role};
use lockwork::{Error, Node, OpenOptions};
use lockwork_nats::{Error as NatsError, NatsJournal};
use lockwork_server::{LeadershipHandle, Options, Server, Stage, StartupListener, Watcher};
use tokio::runtime::Runtime;

use super::engines;
use super::parts::{Divided, Place};
use super::serve::{
    Arguments, Signals, example, failure, host, notify_ready, notify_stopping, place_of, read, while_starting,
};
use super::{Failure, print};

/// How often it is looked whether the role of this node is another one.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Before a node that has lost its part tries to have one again.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// How long calls that are under way may take when this node does not lead any more: they fail by themselves.
const DRAIN: Duration = Duration::from_secs(1);

/// User and password, in the environment: what others may read on the command line is no secret.
pub(super) const USER: &str = "LOCKWORK_NATS_USER";
pub(super) const SYSTEM: &str = "LOCKWORK_NATS_SYSTEM";

#[derive(Debug, Args)]
pub(super) struct Join {
    /// Take part in a cluster: its log is a stream of these NATS servers, and the node that leads answers clients, the
    /// others follow. User and password, as USER:PASSWORD, are in LOCKWORK_NATS_USER, those of the system account in
    /// LOCKWORK_NATS_SYSTEM
    #[arg(long, value_name = "nats://HOST:PORT,..", value_delimiter = ',', conflicts_with_all = ["data", "durability"])]
    cluster: Vec<String>,
    /// What the cluster's database is called on those servers
    #[arg(long, value_name = "NAME", default_value = "lockwork", requires = "cluster")]
    cluster_name: String,
    /// How many of the servers have everything: 1, 3 or 5
    #[arg(long, value_name = "N", default_value_t = 3, requires = "cluster")]
    replicas: usize,
    /// Where clients of other machines find this node [default: the address that it listens at]
    #[arg(long, value_name = "HOST:PORT", requires = "cluster")]
    advertise: Option<String>,
    /// For how long a leader that is not heard of keeps others from leading, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1500, requires = "cluster")]
    leader_lease: u64,
    /// Never lead: replay, and answer reads only
    #[arg(long, requires = "cluster")]
    no_leader: bool,
    /// The least time between two digests of all tables that this node puts into the log when it leads, for others to
    /// compare, in seconds; 0 for none. At most a hundredth of the time is spent on them
    #[arg(long, value_name = "S", default_value_t = 10, requires = "cluster")]
    digest_interval: u64,
    /// Go on with what the log says, also where a leader has computed something else from it
    #[arg(long, requires = "cluster")]
    skip_divergence_check: bool,
    /// Take servers that acknowledge before they sync, or cannot be asked: a loss of power of several at once may lose
    /// what was acknowledged
    #[arg(long, requires = "cluster")]
    allow_unsynced_log: bool,
    /// A folder for files on their way; what is in it goes [default: one of the system's for such files]
    #[arg(long, value_name = "DIR", requires = "cluster")]
    scratch: Option<PathBuf>,
    #[command(flatten)]
    divided: Divided,
}

/// A variable of the environment that holds USER:PASSWORD.
pub(super) fn secret(variable: &str) -> Result<Option<(String, String)>, Failure> {
    let Some(value) = std::env::var_os(variable) else { return Ok(None) };
    let pair = value.to_str().and_then(|text| text.split_once(':'));
    let (user, password) = pair.ok_or_else(|| Failure::usage(format!("{variable} has to be USER:PASSWORD")))?;
    Ok(Some((user.into(), password.into())))
}

impl Join {
    pub(super) fn is_wanted(&self) -> bool {
        !self.cluster.is_empty()
    }

    /// How the journal is reached, as far as that can be told without the servers.
    fn nats(&self) -> Result<lockwork_nats::Options, Failure> {
        let options = lockwork_nats::Options {
            servers: self.cluster.clone(),
            name: self.cluster_name.clone(),
            replicas: self.replicas,
            user: secret(USER)?,
            system: secret(SYSTEM)?,
            unsynced: self.allow_unsynced_log,
        };
        options.validate().map_err(unusable)?;
        Ok(options)
    }
}

/// Connects to the journal, and to the streams that further sequencers have beside it.
fn journals(options: &lockwork_nats::Options, sequencers: u16) -> Result<Vec<Arc<dyn Journal>>, Failure> {
    let first = NatsJournal::open(options).map_err(unusable)?;
    let others = (2..=sequencers).map(|number| first.beside(number).map_err(unusable));
    let others = others.collect::<Result<Vec<_>, _>>()?;
    let all = std::iter::once(first).chain(others);
    Ok(all.map(|journal| Arc::new(journal) as Arc<dyn Journal>).collect())
}

/// Why a journal cannot be used, as this command ends with it.
fn unusable(error: NatsError) -> Failure {
    match error {
        NatsError::Unreachable(text) => Failure::Connect(text),
        NatsError::Settings(text) => Failure::Usage(format!(
            "{text} (USER:PASSWORD in {USER}, and of the system account in {SYSTEM}; docs/cluster.md has all settings)"
        )),
    }
}

/// What became of a term.
enum Over {
    /// This node does not lead any more, or cannot follow: it begins again.
    Ended(String),
    /// This node has computed something else than a leader: it goes on with nothing.
    Differs(String),
    /// It was asked to end.
    Asked,
}

/// Serves as a node until it is asked to end.
pub(super) fn serve(arguments: &Arguments, runtime: &Runtime, watcher: &Watcher) -> Result<ExitCode, Failure> {
    let join = &arguments.join;
    let script = arguments.init.as_ref().map(|file| read(file)).transpose()?;
    let engine = engines::find(&arguments.engine)?;
    let engine_options = arguments.engine_options.options(engine)?;
    let nats = join.nats()?;
    // Both ports first: a port that is in use ends the node before it touches anything.
    let place = join.divided.place(&join.cluster_name, &arguments.engine)?;
    let gate =
        runtime.block_on(StartupListener::listen(arguments.listen, &arguments.options(watcher)?)).map_err(failure)?;
    // A port that the system chose stays the same in later terms.
    let listen = gate.address().map_err(Failure::connect)?;
    watcher.starting(Stage::Connecting);
    let sequencers = place.as_ref().map_or(1, |place| place.sequencers);
    let journals = while_starting(runtime, &gate, watcher, || journals(&nats, sequencers))?;
    let temporary = match &join.scratch {
        Some(_) => None,
        None => Some(tempfile::Builder::new().prefix("lockwork-node").tempdir().map_err(Failure::connect)?),
    };
    let scratch = join.scratch.as_deref().or(temporary.as_ref().map(|folder| folder.path())).unwrap_or("".as_ref());
    let sequencer = arguments.requests.applied(sequencer::Options::default())?;
    let options = OpenOptions { engine, engine_options, sequencer };
    let (mut first_gate, mut is_first) = (Some(gate), true);
    let mut signals = runtime.block_on(async { Signals::new() })?;
    loop {
        let served = runtime.block_on(async {
            let gate = match first_gate.take() {
                Some(gate) => gate,
                None => StartupListener::listen(listen, &arguments.options(watcher)?).await.map_err(failure)?,
            };
            let address = join.advertise.clone().unwrap_or_else(|| format!("{}:{}", host(listen), listen.port()));
            let lease = Duration::from_millis(join.leader_lease);
            let (may_lead, compares) = (!join.no_leader, !join.skip_divergence_check);
            let digest_interval = Duration::from_secs(join.digest_interval);
            let node = NodeOptions { lease, may_lead, digest_interval, compares, ..NodeOptions::new(address) };
            let (script, place) = (script.as_deref(), place.as_ref());
            let term = Term { journals: &journals, scratch, options: &options, node, watcher, script, place };
            term.run(gate, arguments, &mut signals, &mut is_first).await
        });
        match served {
            Ok(Over::Asked) => return Ok(ExitCode::SUCCESS),
            Ok(Over::Ended(why)) => tracing::warn!("{why}; joining again"),
            Ok(Over::Differs(why)) => {
                let gate =
                    runtime.block_on(StartupListener::listen(listen, &arguments.options(watcher)?)).map_err(failure)?;
                return Err(runtime.block_on(stay(&gate, &why, watcher, &mut signals)));
            }
            Err(Failure::Connect(why)) if !is_first => tracing::warn!("{why}; joining again"),
            Err(failure) => return Err(failure),
        }
        let stopped = runtime.block_on(async {
            tokio::select! {
                () = signals.next() => true,
                () = tokio::time::sleep(RETRY_DELAY) => false,
            }
        });
        if stopped {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// What a node does whose data differ from the leader's: it refuses every client with the reason, until it is ended.
/// Beginning again by itself, it might differ again, and again; whoever runs it should know, and may want to look at
/// it.
async fn stay(gate: &StartupListener, why: &str, watcher: &Watcher, signals: &mut Signals) -> Failure {
    watcher.stopped(why);
    tracing::error!(
        "{why}; this node has stopped, and answers nobody; end it, and start it again to have it begin anew \
         (docs/cluster.md, When a node differs)"
    );
    notify_ready();
    gate.refuse(|| format!("this node of a cluster has stopped: {why}"), signals.next()).await;
    Failure::Damaged(why.into())
}

/// Why a node that was to lead does not.
#[derive(Debug)]
enum Unled {
    /// The journal does not let it, now: it gives up leading, and begins again.
    Again(String),
    /// What it was told cannot be done.
    Failed(Failure),
}

impl From<Error> for Unled {
    fn from(error: Error) -> Self {
        match error {
            Error::Durability(
                error @ (Trouble::Lapsed
                | Trouble::Superseded
                | Trouble::Follower { .. }
                | Trouble::JournalFull(_)
                | Trouble::Unreachable(_)
                | Trouble::Unknown(_)
                | Trouble::Closed),
            ) => Self::Again(error.to_string()),
            error => Self::Failed(error.into()),
        }
    }
}

/// What people are told of a term.
#[derive(Clone)]
struct Told {
    place: String,
    psql: String,
}

/// From joining to the end of the part that came of it.
struct Term<'a> {
    /// That of the order, and behind it those of further sequencers.
    journals: &'a [Arc<dyn Journal>],
    scratch: &'a std::path::Path,
    options: &'a OpenOptions,
    node: NodeOptions,
    watcher: &'a Watcher,
    script: Option<&'a str>,
    /// If it has a part of every table.
    place: Option<&'a Place>,
}

fn failed(error: Error) -> Failure {
    match error {
        Error::Durability(Trouble::Unreachable(text)) => Failure::Connect(text),
        error => error.into(),
    }
}

/// Has the server take everybody, with what --init says done if this node leads and the database is new.
fn lead(promoter: &LeadershipHandle, role: Role, script: Option<&str>, told: &Told) -> Result<(), Unled> {
    let mut call = None;
    promoter.lead(|database| {
        let is_new = role == Role::Leading && database.tables().is_empty();
        if let Some(script) = script.filter(|_| is_new) {
            let mut done = 0;
            let ran = database.sql_each(script, |_, _| done += 1);
            ran.map_err(|error| {
                let told = format!("--init: {}{error}", place_of(script, done, &error));
                match Unled::from(error) {
                    Unled::Failed(_) => Unled::Failed(Failure::usage(told)),
                    again => again,
                }
            })?;
        }
        call = example(database);
        Ok::<_, Unled>(())
    })?;
    tracing::info!(?role, place = told.place, "this node answers all clients now");
    let does = if role == Role::Leading { "leads" } else { "sequences" };
    print(&format!("{does}: {}; {}\n", told.place, told.psql)).map_err(Unled::Failed)?;
    if let Some(call) = call {
        eprintln!("for example: {} -c \"{call}\"", told.psql);
    }
    Ok(())
}

impl Term<'_> {
    async fn run(
        self,
        gate: StartupListener,
        arguments: &Arguments,
        signals: &mut Signals,
        is_first: &mut bool,
    ) -> Result<Over, Failure> {
        let (order, streams) = (self.journals[0].clone(), self.journals[1..].to_vec());
        let (scratch, options) = (self.scratch.to_path_buf(), self.options.clone());
        let (node, watcher) = (self.node.clone(), self.watcher.clone());
        watcher.starting(Stage::Opening);
        let divided = self.place.map(|place| place.options(&options)).transpose()?;
        let join = tokio::task::spawn_blocking(move || {
            let told = |progress| watcher.starting(Stage::Recovering(progress));
            match divided {
                None => Node::join(order, &scratch, &options, node, told).map(|(node, report)| (node, report, None)),
                Some(divided) => {
                    Node::join_divided(Journals { order, streams }, &scratch, &options, node, divided, told)
                        .map(|(node, report, others)| (node, report, Some(others)))
                }
            }
        });
        let joined = gate.starting(self.watcher, join).await;
        let (node, report, others) = match joined.map_err(|error| Failure::BackEnd(error.to_string()))? {
            Err(Error::Durability(error @ Trouble::Differs { .. })) => return Ok(Over::Differs(error.to_string())),
            // It was there a moment ago, so it may be again.
            Err(Error::Durability(Trouble::Unreachable(why))) => return Ok(Over::Ended(why)),
            joined => joined.map_err(failed)?,
        };
        let handle = node.handle();
        self.watcher.following(handle.clone());
        let others = self.place.zip(others).map(|(place, others)| {
            self.watcher.divided(place.part, others.clone());
            others
        });
        let server = gate.open(node.follow(), arguments.options(self.watcher)?).map_err(failure)?;
        let address = server.address().map_err(Failure::connect)?;
        let (host, port) = (host(address), address.port());
        let part = self.place.map_or(String::new(), |place| format!(", {}", place.describe()));
        let told = Told {
            place: format!("{}, {} records{part}", self.journals[0].describe(), report.next - 1),
            psql: format!("psql -h {host} -p {port}"),
        };
        if *is_first {
            print(&format!("ready: {}: follows; {} when it leads\n", told.place, told.psql))?;
            notify_ready();
            *is_first = false;
        }
        self.serve(server, &handle, others.as_ref(), signals, &told).await
    }

    /// Answers readers while the node follows, and everybody when it leads, until its part has ended or it is asked to.
    async fn serve(
        &self,
        server: Server,
        handle: &sequencer::Handle,
        others: Option<&Others>,
        signals: &mut Signals,
        told: &Told,
    ) -> Result<Over, Failure> {
        // A call that touches the part of a node which is not there would wait for it.
        let mut missing = others.map(Missing::new);
        let (ending, promoter) = (server.ending(), Arc::new(server.promoter()));
        let mut serving = tokio::spawn(server.run());
        // Whether it ends, for whatever reason, and how often it was asked to.
        let (mut ends, mut asked, mut leads, mut led) = (false, 0, false, Ok(()));
        let closed = loop {
            let turn = async {
                loop {
                    match handle.role() {
                        Some(Role::Following) => {}
                        Some(Role::Leading | Role::Sequencing)
                            if leads || missing.as_mut().is_some_and(Missing::is_told) => {}
                        role => return role,
                    }
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            };
            tokio::select! {
                closed = &mut serving => break closed,
                role = turn, if !ends => {
                    let taken = role.filter(|role| matches!(role, Role::Leading | Role::Sequencing));
                    if let Some(role) = taken {
                        leads = true;
                        let recovered = handle.statistics().recovered;
                        if recovered > 0 {
                            tracing::warn!("one server alone still had {recovered} messages; they are appended again");
                        }
                        let (promoter, told) = (promoter.clone(), told.clone());
                        let script = self.script.map(str::to_string);
                        // It may have to wait for other parts.
                        let work = move || lead(&promoter, role, script.as_deref(), &told);
                        let mut work = tokio::task::spawn_blocking(work);
                        let done = loop {
                            tokio::select! {
                                done = &mut work => break done,
                                () = signals.next() => is_asked(&mut asked, handle),
                                () = tokio::time::sleep(DRAIN), if asked > 0 => handle.break_off(),
                            }
                        };
                        led = done.map_err(|error| Failure::BackEnd(format!("the server: {error}")))?;
                    }
                    if taken.is_some() && led.is_ok() && asked == 0 {
                        continue;
                    }
                }
                () = signals.next() => is_asked(&mut asked, handle),
            }
            ends = true;
            ending.end();
        };
        let closed = closed.map_err(|error| Failure::BackEnd(format!("the server: {error}")))?;
        if ended(handle) {
            // Told the same again, it would find the same.
            if let Some(error @ Trouble::Option { .. }) = handle.trouble() {
                return Err(Failure::usage(error));
            }
            return Ok(match handle.node().and_then(|status| status.differs) {
                Some(_) => Over::Differs(self.why(handle)),
                None => self.over(asked, self.why(handle)),
            });
        }
        match led {
            Ok(()) => {}
            Err(Unled::Again(why)) => {
                return Ok(self.over(asked, format!("{} does not lead: {why}", self.node.address)));
            }
            Err(Unled::Failed(failure)) => return Err(failure),
        }
        closed.map_err(failed)?;
        Ok(Over::Asked)
    }

    /// What becomes of a node whose part has ended, for this reason.
    fn over(&self, asked: u32, why: String) -> Over {
        if asked == 0 {
            return Over::Ended(why);
        }
        // Also if that is why: calls that waited for other parts were broken off.
        tracing::warn!("{why}");
        Over::Asked
    }

    fn why(&self, handle: &sequencer::Handle) -> String {
        let trouble = handle.node().and_then(|status| status.trouble);
        format!("{}: the part of this node has ended: {}", self.node.address, trouble.unwrap_or_default())
    }
}

/// Parts whose nodes are not there yet when a node is to lead.
struct Missing<'a> {
    others: &'a Others,
    told: bool,
}

impl<'a> Missing<'a> {
    fn new(others: &'a Others) -> Self {
        Self { others, told: false }
    }

    /// Whether one is, which is told once.
    fn is_told(&mut self) -> bool {
        let all = self.others.status();
        let mut missing = all.iter().enumerate().filter_map(|(at, (_, why))| why.as_ref().map(|why| (at + 1, why)));
        let Some((part, why)) = missing.next() else { return false };
        if !std::mem::replace(&mut self.told, true) {
            tracing::info!("waits for the nodes of all parts before it answers clients: part {part}: {why}");
        }
        true
    }
}

/// A signal has come; another one ends the process at once.
fn is_asked(asked: &mut u32, handle: &sequencer::Handle) {
    if *asked > 0 && !ended(handle) {
        tracing::warn!("ended at once; what was acknowledged is there");
        std::process::exit(130);
    }
    tracing::info!("ending; once more ends it at once");
    notify_stopping();
    *asked += 1;
}

fn ended(handle: &sequencer::Handle) -> bool {
    handle.node().is_none_or(|status| status.role == Role::Ended)
}

impl Arguments {
    /// How a server of a cluster works.
    fn options(&self, watcher: &Watcher) -> Result<Options, Failure> {
        let (users, audit, tls) = (self.users()?, self.audit()?, self.tls()?);
        let (connections, watcher) = (self.connections, watcher.clone());
        Ok(Options { connections, users, audit, tls, watcher, drain: DRAIN, ..Options::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_the_journal_does_not_let_lead_begins_again_and_one_that_was_told_wrong_ends() {
        let passing = [
            Trouble::Lapsed,
            Trouble::Superseded,
            Trouble::Closed,
            Trouble::Follower { leader: "a".into() },
            Trouble::Unknown("a".into()),
            Trouble::Unreachable("a".into()),
            Trouble::JournalFull("a".into()),
        ];
        for error in passing {
            let told = error.to_string();
            let led = Unled::from(Error::Durability(error));
            assert!(matches!(&led, Unled::Again(why) if *why == told), "{told}: {led:?}");
        }
        for error in [Trouble::TooLong, Trouble::Stopped("a".into())] {
            let led = Unled::from(Error::Durability(error));
            assert!(matches!(led, Unled::Failed(_)), "{led:?}");
        }
    }
}
