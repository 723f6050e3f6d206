//! A sequencer whose log is a [`Journal`] that it shares with others: opening, how it stands, and reads that say which
//! record they are of.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;

use lockwork_engine::{Engine, Interrupt};

use crate::begin::{Begun, begin};
use crate::divided::GatheredTables;
use crate::error::Error;
use crate::format::items::Definition;
use crate::io::Io;
use crate::journal::Journal;
use crate::journal::election::{Election, NodeOptions, NodeStatus, Role, holder};
use crate::journal::follower::follow;
use crate::options::Options;
use crate::order::{Answered, Node, Order, Parts, Request};
use crate::recovery::{Progress, RecoveryReport};
use crate::sequencer::{Handle, REQUESTS, Sequencer};
use crate::shared::Shared;

impl Sequencer {
    /// Takes part in a database whose log is a journal: loads the newest checkpoint that the journal has into `engine`,
    /// runs what the journal has behind it, and goes on so, until this node leads. `path` is a directory for files that
    /// are of no use later; what is in it of an earlier time is removed. `progress` is told how far the beginning has
    /// come.
    ///
    /// Until it leads, calls are refused ([`Error::Follower`]) and reads see the database as it was after some record.
    /// A node that did lead, and does not any more, answers nothing ([`Error::Superseded`]): it is to be dropped, and
    /// opened again.
    ///
    /// # Errors
    /// [`Error::Unreachable`]; [`Error::Damaged`] and [`Error::Version`], of the journal; [`Error::Differs`], when this
    /// node computes something else than a leader had; [`Error::Option`]; an engine that does not run calls in the
    /// order of a log, or is not empty; [`Error::Locked`], [`Error::Foreign`] and [`Error::Io`], of the directory.
    pub fn join(
        journal: Arc<dyn Journal>,
        io: Arc<dyn Io>,
        path: &Path,
        options: Options,
        node: NodeOptions,
        mut engine: Box<dyn Engine>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Self, RecoveryReport), Error> {
        node.validate()?;
        if !engine.runs_in_order() {
            let expected = "one that can run calls in the order of a log is needed, such as 'deterministic'".into();
            return Err(Error::Option { option: "engine", value: engine.name().to_string(), expected });
        }
        let begun = begin(&*journal, &*io, path, &options, &mut *engine, progress)?;
        let Begun { directory, lock, mut report, log_range, catalogue, definitions, dedup, chain, next, .. } = begun;
        let threads = node.threads.clone();
        let fresh = threads.fresh();
        let node = Node::new(journal.clone(), node, chain, catalogue.clone(), fresh);
        let (membership, node_options) = (node.membership.clone(), node.options.clone());
        membership.saw(log_range);
        let shared = Arc::new(Shared::of_node(next, membership.clone(), threads.clone()));
        let mut order = Order::new(Parts {
            engine,
            options,
            io,
            directory,
            database: chain.database,
            space: None,
            units: None,
            shared: shared.clone(),
            catalogue,
            definitions,
            dedup,
            next,
            node: Some(node),
            uncovered: std::time::Duration::ZERO,
        });
        shared.definitions.store(order.definitions.added().len(), Ordering::Release);
        let start = threads.now();
        let mut tell = |done_bytes, records, calls| {
            // The leader appends meanwhile.
            let total_records = log_range.next.saturating_sub(next).max(records);
            let elapsed = threads.now() - start;
            progress(Progress { done_bytes, total_bytes: done_bytes, records, total_records, calls, elapsed });
        };
        tell(0, 0, 0);
        let caught_up = order.catch_up(&mut tell);
        caught_up.map_err(|error| cut_meanwhile(&*journal, order.next, error))?;
        report.next = order.next;
        report.records = order.next - next;
        report.definitions = order.definitions.added().to_vec();
        let (requests, taken) = sync_channel(REQUESTS);
        let next = order.next;
        let mut started = Vec::new();
        let holder = holder(&node_options.address, fresh);
        let election = Election {
            journal: journal.clone(),
            options: node_options,
            membership: membership.clone(),
            requests: requests.clone(),
            holder,
        };
        started.push(threads.start("lockwork-lease", move || election.run())?);
        let (reads, wanted, waits) = (requests.clone(), membership.clone(), threads.clone());
        started.push(threads.start("lockwork-follow", move || follow(&journal, &reads, &wanted, &waits, next))?);
        started.push(threads.start("lockwork-order", move || order.run(&taken))?);
        let handle = Handle { requests, shared };
        Ok((Self { handle: Some(handle), threads: started, _lock: lock }, report))
    }
}

/// What kept a node from catching up. Records that are missing may have been cut behind a newer checkpoint than the one
/// that it began with, if it took that long: then it is to begin again.
fn cut_meanwhile(journal: &dyn Journal, next: u64, error: Error) -> Error {
    match journal.log_range() {
        Ok(log_range) if matches!(error, Error::Damaged { .. }) && log_range.first > next => {
            Error::Unreachable(format!("the journal was cut behind a newer checkpoint before record {next} was read"))
        }
        _ => error,
    }
}

impl Handle {
    /// How this node stands; `None` when the log is this process's own.
    #[must_use]
    pub fn node(&self) -> Option<NodeStatus> {
        let status = self.shared.membership.as_ref()?.status(self.shared.durable());
        let own = self.shared.sequencing.as_ref().map(|own| own.status(0));
        let trouble = status.trouble.or(own.and_then(|own| own.trouble));
        let streams = self.shared.stream_status();
        Some(NodeStatus { role: self.shared.role()?, trouble, streams, ..status })
    }

    /// Why nothing is taken any more, if so.
    #[must_use]
    pub fn trouble(&self) -> Option<Error> {
        self.shared.trouble()
    }

    /// Has the leader append the digest of the whole database, which the others compare, whenever the last one was; or,
    /// where tables are divided, a record at which the nodes of each part compare theirs. Returns the number of the
    /// record, when it is durable, compared or not.
    ///
    /// # Errors
    /// [`Error::Follower`] where another node leads, [`Error::Option`] where the log is this process's own, and why
    /// nothing can be appended.
    pub fn append_digest(&self) -> Result<u64, Error> {
        self.ask(|reply| Request::Digest(Box::new(move |outcome| drop(reply.send(outcome)))))
    }

    /// As [`Self::read`] without waiting. `read` is told the number of the last record that the database has then: what
    /// it sees is what the log makes up to that one. `then` gets what it says, or its panic, on a thread of the
    /// sequencer: it must neither wait nor panic. It is dropped when the sequencer ends before it knows. Waits while
    /// very many requests are queued.
    ///
    /// # Errors
    /// As there.
    pub fn read_then<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn Engine, u64) -> T + Send + 'static,
        then: impl FnOnce(Result<std::thread::Result<T>, Error>) + Send + 'static,
    ) -> Result<(), Error> {
        let read = Box::new(move |engine: &dyn Engine, record| -> Answered {
            // What it looks at it cannot change, so nothing is left in half.
            let seen = catch_unwind(AssertUnwindSafe(|| read(engine, record)));
            Box::new(move |outcome: Result<(), Error>| then(outcome.map(|()| seen)))
        });
        self.give(Request::Read(read))
    }

    /// Whether this process has a part of every table only: the rest is where other nodes are.
    #[must_use]
    pub fn is_divided(&self) -> bool {
        self.shared.interrupt.is_some()
    }

    /// Whether several nodes sequence calls, each those of a stream of its own, without knowing of each other.
    #[must_use]
    pub fn has_streams(&self) -> bool {
        !self.shared.streams.is_empty()
    }

    /// Ends what this node does if its engine waits for other parts, or as soon as it does. Nothing happens where this
    /// process has everything.
    pub fn break_off(&self) {
        self.shared.interrupt.iter().for_each(Interrupt::set);
    }

    /// Gets all rows of some tables from the nodes of all parts, as of one record, if they are no more than `most`
    /// bytes; calls wait meanwhile. `then` runs on a thread of the sequencer, must neither wait nor panic, and is
    /// dropped when the sequencer ends before it knows.
    ///
    /// # Errors
    /// [`Error::Closed`]. `then` gets [`Error::Engine`] for a table that there is not, [`Error::Lapsed`] when it is not
    /// known whether this node leads, and [`Error::Follower`] where it does not.
    ///
    /// # Panics
    /// Where this process has everything ([`Self::is_divided`]).
    pub fn gather_then(
        &self,
        tables: Vec<String>,
        most: u64,
        then: impl FnOnce(Result<GatheredTables, Error>) + Send + 'static,
    ) -> Result<(), Error> {
        assert!(self.is_divided(), "this process has all rows");
        self.give(Request::Gather { tables, most, reply: Box::new(then) })
    }

    /// The last record that is durable; whoever was answered before can find what it was told in the log up to there.
    #[must_use]
    pub fn record(&self) -> u64 {
        self.shared.durable() - 1
    }

    /// What this node does; `None` when the log is this process's own.
    #[must_use]
    pub fn role(&self) -> Option<Role> {
        self.shared.role()
    }

    /// The address of the node that leads, or "nobody", as far as is known.
    #[must_use]
    pub fn leader(&self) -> String {
        self.shared.membership.as_ref().map_or_else(|| "nobody".into(), |membership| membership.leader())
    }

    /// The definitions that there are, in order, with the texts that they were made from; those before `from` left out.
    ///
    /// # Errors
    /// [`Error::Closed`], or why its role has ended.
    pub fn definitions(&self, from: usize) -> Result<Vec<Definition>, Error> {
        self.ask(|reply| Request::Definitions(from, reply))
    }

    /// How many definitions a node that follows has met in the journal.
    #[must_use]
    pub fn definitions_met(&self) -> usize {
        self.shared.definitions.load(Ordering::Acquire)
    }
}
