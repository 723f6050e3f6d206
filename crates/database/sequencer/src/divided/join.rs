//! How a node that has a part begins.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;

use lockwork_engine::Divided;

use super::choose::Chooser;
use super::compare::Digests;
use super::own::Own;
use super::parts::PartJournal;
use super::streams::Streams;
use super::{PLACE_BITS, PartitionedOrder};
use crate::begin::{Begun, begin};
use crate::error::Error;
use crate::io::Io;
use crate::journal::Journal;
use crate::journal::election::{Election, NodeOptions, holder};
use crate::journal::follower::follow;
use crate::options::Options;
use crate::order::Node;
use crate::recovery::{Progress, RecoveryReport};
use crate::sequencer::{Handle, REQUESTS, Sequencer};
use crate::shared::Shared;

/// Where nodes that have parts of every table have their log.
pub struct Journals {
    /// What gives everything its place, and has checkpoints.
    pub order: Arc<dyn Journal>,
    /// Those of further sequencers, alike at all nodes, if one is not enough: the nodes of the second part take calls
    /// for the first of them, and so on. There are fewer than parts.
    pub streams: Vec<Arc<dyn Journal>>,
}

impl Journals {
    /// Without further sequencers.
    pub fn one(order: impl Journal + 'static) -> Self {
        Self { order: Arc::new(order), streams: Vec::new() }
    }
}

impl Sequencer {
    /// As [`Sequencer::join`], for a node that has a part of every table, with the nodes of the other parts.
    /// Checkpoints are of all parts at one record, or of none; such a node begins with the newest that is whole.
    ///
    /// Transactions of several calls ([`Handle::step_then`]) are refused. Reads see the rows of this part alone, as of
    /// one record; [`Handle::gather_then`] reads those of all partitions.
    ///
    /// # Errors
    /// As there; [`Error::Option`], when the journal is of nodes that have everything, or of another number of parts or
    /// streams.
    pub fn join_divided(
        journals: Journals,
        io: Arc<dyn Io>,
        path: &Path,
        options: Options,
        node: NodeOptions,
        mut engine: Box<dyn Divided>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Self, RecoveryReport), Error> {
        node.validate()?;
        options.validate_divided()?;
        let (part, parts) = engine.part();
        let journal = PartJournal::new(journals.order, part, parts);
        journal.refuse_others()?;
        let journal: Arc<dyn Journal> = Arc::new(journal);
        let begun = begin(&*journal, &*io, path, &options, &mut *engine, progress)?;
        let Begun { directory, lock, mut report, log_range, catalogue, definitions, dedup, chain, next, streams } =
            begun;
        let threads = node.threads.clone();
        let fresh = threads.fresh();
        engine.begin(next << PLACE_BITS)?;
        let own = Own::of(part, journals.streams.len(), &node);
        let streams = Streams::new(journals.streams, parts, &streams, next - 1)?;
        let mut node = Node::new(journal.clone(), node, chain, catalogue.clone(), fresh);
        node.decoder.divided = true;
        let (membership, node_options) = (node.membership.clone(), node.options.clone());
        membership.saw(log_range);
        let mut shared = Shared::of_node(next, membership.clone(), threads.clone());
        shared.interrupt = Some(engine.interrupt());
        shared.streams = streams.progress();
        shared.sequencing = own.as_ref().map(|own| own.membership.clone());
        let shared = Arc::new(shared);
        shared.definitions.store(definitions.added().len(), Ordering::Release);
        let count = catalogue.procedures.len() as u32;
        let procedures = (0..count).filter_map(|id| engine.procedure(id)).collect();
        let (requests, taken) = sync_channel(REQUESTS);
        let (digests, comparer) = Digests::start((&journal, part), node.options.compares, &membership, &requests)?;
        let parted = PartitionedOrder {
            engine,
            options,
            io,
            directory,
            shared: shared.clone(),
            catalogue,
            definitions,
            procedures,
            dedup,
            next,
            node,
            chooser: Chooser::default(),
            streams,
            own,
            reads: Vec::new(),
            stalled: None,
            requests: requests.clone(),
            units: None,
            cut_at: next,
            digests,
            giving: next,
            pending: VecDeque::new(),
            held: VecDeque::new(),
            later: VecDeque::new(),
            closing: None,
        };
        report.next = next;
        report.definitions = parted.definitions.added().to_vec();
        let mut started = parted.streams.start(&requests, &membership)?;
        started.push(comparer);
        if let Some(own) = &parted.own {
            started.push(own.start(parted.streams.journal(own.index), &requests, fresh)?);
        }
        let holder = holder(&node_options.address, fresh);
        let may_lead = node_options.may_lead && parted.own.is_none();
        let election = Election {
            journal: journal.clone(),
            options: NodeOptions { may_lead, ..node_options },
            membership: membership.clone(),
            requests: requests.clone(),
            holder,
        };
        started.push(threads.start("lockwork-lease", move || election.run())?);
        let (reads, waits) = (requests.clone(), threads.clone());
        started.push(threads.start("lockwork-follow", move || follow(&journal, &reads, &membership, &waits, next))?);
        started.push(threads.start("lockwork-order", move || parted.run(&taken))?);
        let handle = Handle { requests, shared };
        Ok((Self { handle: Some(handle), threads: started, _lock: lock }, report))
    }
}
