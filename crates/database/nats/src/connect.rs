//! Connecting; streams are made, or their settings verified.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::context::{Context, ContextBuilder, GetStreamError, GetStreamErrorKind};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType, Stream};
use async_nats::jetstream::{ErrorCode, kv, object_store};
use async_nats::{Client, ConnectOptions};
use futures::StreamExt;
use lockwork_sequencer::journal::MIN_MESSAGE_BYTES;

use crate::{NatsJournal, REQUEST, words};

/// How long a first connection may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How often a server is asked whether it is there; one that misses two is given up, and another one is connected to.
const PING: Duration = Duration::from_millis(750);
/// How long servers that were just started may take to agree on a stream.
const SETTLE: Duration = Duration::from_secs(20);
/// How long answers of servers about themselves are waited for.
const ANSWERS: Duration = Duration::from_secs(1);
/// How often they are asked: one that has just begun, or is busy, may answer late, or not know the others yet.
const ASKED: usize = 4;

/// How a journal is reached.
#[derive(Clone)]
pub struct Options {
    /// Servers, as `nats://HOST:PORT`, or `tls://HOST:PORT`.
    pub servers: Vec<String>,
    /// User and password, if they are asked for.
    pub user: Option<(String, String)>,
    /// What the journal is called: letters, digits, `-` and `_`.
    pub name: String,
    /// How many servers have everything: 1, 3 or 5.
    pub replicas: usize,
    /// User and password of the system account, to ask servers whether they sync what they acknowledge.
    pub system: Option<(String, String)>,
    /// Whether servers that were not asked, or do not sync, are good enough: then a loss of power of several at once
    /// may lose what was acknowledged.
    pub unsynced: bool,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Passwords are in both of the others.
        let Self { servers, name, replicas, unsynced, .. } = self;
        f.debug_struct("Options")
            .field("servers", servers)
            .field("name", name)
            .field("replicas", replicas)
            .field("unsynced", unsynced)
            .finish()
    }
}

/// Why a journal cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// It does not answer.
    Unreachable(String),
    /// It, or an option, is not as it must be; what would be right.
    Settings(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(text) | Self::Settings(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {}

fn settings(text: impl Into<String>) -> Error {
    Error::Settings(text.into())
}

impl Options {
    /// Checks what can be checked without the servers.
    ///
    /// # Errors
    /// The first option that is not possible, and what would be right.
    pub fn validate(&self) -> Result<(), Error> {
        if self.servers.is_empty() {
            return Err(settings("a server is needed, as nats://HOST:PORT"));
        }
        let is_address = |server: &String| server.starts_with("nats://") || server.starts_with("tls://");
        if self.servers.iter().any(|server| server.contains('@') || !is_address(server)) {
            // It may have a password in it.
            return Err(settings(
                "servers are nats://HOST:PORT or tls://HOST:PORT, with user and password beside them",
            ));
        }
        let is_fine = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_');
        if !(1..=32).contains(&self.name.len()) || !self.name.chars().all(is_fine) {
            let text = "the name of a journal has 1 to 32 letters, digits, '-' and '_'";
            return Err(settings(format!("'{}': {text}", self.name)));
        }
        if ![1, 3, 5].contains(&self.replicas) {
            return Err(settings(format!("{} replicas: 1, 3 or 5 are possible", self.replicas)));
        }
        Ok(())
    }

    pub(crate) fn described(&self, number: u16) -> String {
        format!("NATS at {}, stream {}", self.servers.join(","), self.stream_name(number))
    }

    /// What a stream is called; no other journal's has that name, whatever it is called.
    pub(crate) fn stream_name(&self, number: u16) -> String {
        match number {
            1 => format!("lockwork_{}", self.name),
            _ => format!("lockwork-{number}_{}", self.name),
        }
    }

    /// What the bucket is called.
    pub(crate) fn lease(&self) -> String {
        format!("lockwork_{}_lease", self.name)
    }

    /// What the object store is called.
    pub(crate) fn checkpoints(&self) -> String {
        format!("lockwork_{}_checkpoints", self.name)
    }

    /// The streams of both: of the lease, and of checkpoints.
    pub(crate) fn buckets(&self) -> [String; 2] {
        [format!("KV_{}", self.lease()), format!("OBJ_{}", self.checkpoints())]
    }

    fn subject(&self, number: u16) -> String {
        match number {
            1 => format!("lockwork.{}", self.name),
            _ => format!("lockwork.{}.{number}", self.name),
        }
    }

    /// Settings of the stream with this number, from 1.
    fn stream(&self, number: u16) -> Config {
        Config {
            name: self.stream_name(number),
            subjects: vec![self.subject(number)],
            description: Some("records of a Lockwork database; no other program writes here".into()),
            retention: RetentionPolicy::Limits,
            // A full stream refuses what is new: nothing that was acknowledged goes.
            discard: DiscardPolicy::New,
            storage: StorageType::File,
            num_replicas: self.replicas,
            deny_delete: true,
            ..Config::default()
        }
    }
}

fn differs(what: &str, found: impl fmt::Display, wanted: impl fmt::Display) -> Option<String> {
    Some(format!("{what} is {found}, and {wanted} is needed"))
}

/// Why a stream, or that of a bucket, could lose what it has; what would be right.
fn loses(found: &Config, replicas: usize) -> Option<String> {
    if found.num_replicas < replicas {
        return differs("the number of replicas", found.num_replicas, replicas);
    }
    if found.storage != StorageType::File {
        return differs("its storage", "memory", "file");
    }
    if !found.max_age.is_zero() {
        return differs("the age at which messages go", format!("{:?}", found.max_age), "none");
    }
    None
}

/// What of a stream of records is not as it must be; what would be right.
fn wrong(found: &Config, wanted: &Config) -> Option<String> {
    if let Some(problem) = loses(found, wanted.num_replicas) {
        return Some(problem);
    }
    if found.retention != RetentionPolicy::Limits {
        return differs("its retention", format!("{:?}", found.retention), "limits");
    }
    if found.discard != DiscardPolicy::New {
        return differs("what it discards when it is full", "old", "new");
    }
    if found.max_messages_per_subject > 0 {
        return differs("its most messages of a subject", found.max_messages_per_subject, "none");
    }
    if found.no_ack {
        return differs("acknowledging", "off", "on");
    }
    if !found.subjects.iter().eq(&wanted.subjects) {
        return differs("its subject", found.subjects.join(","), wanted.subjects.join(","));
    }
    if found.mirror.is_some() || found.sources.is_some() || found.subject_transform.is_some() {
        return differs("its source", "another stream", "none");
    }
    let most = found.max_message_size;
    if most > 0 && (most as usize) < MIN_MESSAGE_BYTES {
        return differs("its longest message", most, format!("{MIN_MESSAGE_BYTES} bytes or more"));
    }
    None
}

impl NatsJournal {
    /// Connects to a journal, and makes it if it is not there. Returns when its servers have agreed on it.
    ///
    /// # Errors
    /// [`Error::Settings`] when something there could lose what is acknowledged, or options are not possible;
    /// [`Error::Unreachable`].
    pub fn open(options: &Options) -> Result<Self, Error> {
        options.validate()?;
        let described = options.described(1);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("lockwork-nats")
            .enable_all()
            .build()
            .map_err(|error| Error::Unreachable(format!("{described}: no thread: {error}")))?;
        let opened = runtime.block_on(open(options, &described))?;
        let Opened { context, stream, entries, checkpoints, most_bytes } = opened;
        let (subject, reader, options) = (options.subject(1), tokio::sync::Mutex::default(), options.clone());
        let (runtime, number) = (Arc::new(runtime), 1);
        Ok(Self {
            runtime,
            context,
            stream,
            entries,
            checkpoints,
            reader,
            subject,
            most_bytes,
            options,
            number,
            described,
        })
    }

    /// Another stream of the same journal, with a lease of its own, over the same connection; it is made if it is not
    /// there. That of the journal itself is 1.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn beside(&self, number: u16) -> Result<Self, Error> {
        let described = self.options.described(number);
        let wanted = self.options.stream(number);
        let stream = self.runtime.block_on(settled(async || made(&self.context, &wanted, &described).await))?;
        Ok(Self {
            runtime: self.runtime.clone(),
            context: self.context.clone(),
            stream,
            entries: self.entries.clone(),
            checkpoints: self.checkpoints.clone(),
            reader: tokio::sync::Mutex::default(),
            subject: self.options.subject(number),
            most_bytes: self.most_bytes,
            options: self.options.clone(),
            number,
            described,
        })
    }
}

struct Opened {
    context: Context,
    stream: Stream,
    entries: kv::Store,
    checkpoints: object_store::ObjectStore,
    most_bytes: usize,
}

/// Settings of every connection.
fn connecting(user: Option<&(String, String)>) -> ConnectOptions {
    let with = ConnectOptions::new()
        .name("lockwork")
        .connection_timeout(CONNECT)
        .request_timeout(Some(REQUEST))
        .ping_interval(PING);
    match user.cloned() {
        Some((user, password)) => with.user_and_password(user, password),
        None => with,
    }
}

pub(crate) async fn connect(
    options: &Options,
    user: Option<&(String, String)>,
    described: &str,
) -> Result<Client, Error> {
    let with = connecting(user)
        .max_reconnects(None)
        .reconnect_delay_callback(|attempt| Duration::from_millis(50 * (attempt as u64).min(10)));
    let failed = |why: String| Error::Unreachable(format!("{described}: connect: {why}"));
    let connecting = with.connect(options.servers.clone());
    let connected = tokio::time::timeout(2 * CONNECT, connecting).await.map_err(|late| failed(late.to_string()))?;
    connected.map_err(|error| failed(words(&error)))
}

async fn open(options: &Options, described: &str) -> Result<Opened, Error> {
    let client = connect(options, options.user.as_ref(), described).await?;
    let most_bytes = client.server_info().max_payload;
    // What headers take.
    let most_bytes = most_bytes.saturating_sub(1024);
    if most_bytes < MIN_MESSAGE_BYTES {
        let text = "messages of 4 MiB and a little are needed: set max_payload: 8MB in the servers' configuration";
        return Err(settings(format!("{described}: max_payload is {}: {text}", client.server_info().max_payload)));
    }
    if !options.unsynced {
        synced(options, described).await?;
    }
    let context = ContextBuilder::new().timeout(REQUEST).ack_timeout(2 * REQUEST).max_ack_inflight(4096).build(client);
    let (stream, entries, checkpoints) = settled(async || prepare(options, described, &context).await).await?;
    Ok(Opened { context, stream, entries, checkpoints, most_bytes })
}

/// Tries again while servers that were just started may not have agreed.
async fn settled<T>(attempt: impl AsyncFn() -> Result<T, Error>) -> Result<T, Error> {
    let until = tokio::time::Instant::now() + SETTLE;
    loop {
        match attempt().await {
            Err(Error::Unreachable(_)) if tokio::time::Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            outcome => return outcome,
        }
    }
}

/// A stream, if it is there.
pub(crate) async fn look(context: &Context, name: &str) -> Result<Option<Stream>, GetStreamError> {
    match context.get_stream(name).await {
        Ok(stream) => Ok(Some(stream)),
        Err(error) => match error.kind() {
            GetStreamErrorKind::JetStream(inner) if inner.error_code() == ErrorCode::STREAM_NOT_FOUND => Ok(None),
            _ => Err(error),
        },
    }
}

/// A stream with these settings, made if it is not there.
async fn made(context: &Context, wanted: &Config, described: &str) -> Result<Stream, Error> {
    let failed = |what: &str, error: &dyn std::error::Error| {
        Error::Unreachable(format!("{described}: {what}: {}", words(error)))
    };
    let stream = match look(context, &wanted.name).await {
        Ok(Some(stream)) => stream,
        Ok(None) => context.create_stream(wanted.clone()).await.map_err(|error| failed("make the stream", &error))?,
        Err(error) => return Err(failed("look for the stream", &error)),
    };
    if let Some(problem) = wrong(&stream.cached_info().config, wanted) {
        return Err(settings(format!("{described}: {problem}")));
    }
    Ok(stream)
}

async fn prepare(
    options: &Options,
    described: &str,
    context: &Context,
) -> Result<(Stream, kv::Store, object_store::ObjectStore), Error> {
    let failed = |what: &str, error: &dyn std::error::Error| {
        Error::Unreachable(format!("{described}: {what}: {}", words(error)))
    };
    let stream = made(context, &options.stream(1), described).await?;
    let bucket = options.lease();
    let entries = match context.get_key_value(&bucket).await {
        Ok(bucket) => bucket,
        Err(_) => {
            let config = kv::Config { bucket, history: 1, num_replicas: options.replicas, ..kv::Config::default() };
            context.create_key_value(config).await.map_err(|error| failed("make the bucket", &error))?
        }
    };
    let bucket = options.checkpoints();
    let checkpoints = match context.get_object_store(&bucket).await {
        Ok(store) => store,
        Err(_) => {
            let config =
                object_store::Config { bucket, num_replicas: options.replicas, ..object_store::Config::default() };
            context.create_object_store(config).await.map_err(|error| failed("make the object store", &error))?
        }
    };
    // The log is cut behind checkpoints.
    for name in options.buckets() {
        let stream = look(context, &name).await.map_err(|error| failed("look for a bucket", &error))?;
        if let Some(problem) = stream.and_then(|stream| loses(&stream.cached_info().config, options.replicas)) {
            return Err(settings(format!("{described}: {name}: {problem}")));
        }
    }
    Ok((stream, entries, checkpoints))
}

/// Asks all servers whether they sync what they acknowledge.
async fn synced(options: &Options, described: &str) -> Result<(), Error> {
    let advice = "give the system account's user and password, or accept it";
    let Some(system) = &options.system else {
        return Err(settings(format!(
            "{described}: whether servers sync what they acknowledge is not known: {advice}"
        )));
    };
    let client = connect(options, Some(system), described).await?;
    let failed =
        |error: &dyn std::error::Error| Error::Unreachable(format!("{described}: ask servers: {}", words(error)));
    let inbox = client.new_inbox();
    let mut answers = client.subscribe(inbox.clone()).await.map_err(|error| failed(&error))?;
    let mut found = BTreeMap::new();
    for _ in 0..ASKED {
        let asked = client.publish_with_reply("$SYS.REQ.SERVER.PING.VARZ", inbox.clone(), "".into()).await;
        asked.map_err(|error| failed(&error))?;
        // All that there are answer within a moment, and how many there are nobody knows.
        while let Ok(Some(answer)) = tokio::time::timeout(ANSWERS, answers.next()).await {
            let Ok(answer) = serde_json::from_slice::<serde_json::Value>(&answer.payload) else { continue };
            let config = &answer["data"]["jetstream"]["config"];
            let Some(name) = answer["server"]["name"].as_str().filter(|_| config.is_object()) else { continue };
            found.insert(name.to_string(), config["sync_always"].as_bool().unwrap_or(false));
        }
        if found.len() >= options.replicas {
            break;
        }
    }
    if let Some((name, _)) = found.iter().find(|(_, synced)| !**synced) {
        let text = "set jetstream { sync_interval: always } in its configuration";
        return Err(settings(format!("{described}: server {name} acknowledges before it syncs: {text}")));
    }
    if found.len() < options.replicas {
        let text = format!("{} servers with JetStream answer, and {} are needed", found.len(), options.replicas);
        return Err(Error::Unreachable(format!("{described}: {text}")));
    }
    Ok(())
}
