//! A database whose log several nodes share ([`lockwork_sequencer::journal`], `docs/cluster.md`).

use std::path::Path;
use std::sync::Arc;

use lockwork_sequencer::io::Disk;
use lockwork_sequencer::journal::Journal;
use lockwork_sequencer::{Handle, NodeOptions, NodeStatus, Progress, RecoveryReport, Sequencer};
use lockwork_storage::Digest;

use crate::{Error, Lockwork, OpenOptions, Store, engines};

/// A node of a cluster that follows: it runs what the leader has run. When it leads itself, it is a database for calls
/// ([`Self::lead`]).
pub struct Node(Sequencer);

impl Node {
    /// Takes part in the database that has this journal. `folder` is for files on their way, and is emptied; `progress`
    /// is told how far the beginning has come.
    ///
    /// # Errors
    /// As [`Sequencer::join`], and options that are not possible.
    pub fn join(
        journal: Arc<dyn Journal>,
        folder: impl AsRef<Path>,
        options: &OpenOptions,
        node: NodeOptions,
        mut progress: impl FnMut(Progress),
    ) -> Result<(Self, RecoveryReport), Error> {
        let engine = engines::create(options.engine, options.engine_options)?;
        let (io, sequencer) = (Arc::new(Disk::new()), options.sequencer.clone());
        let joined = Sequencer::join(journal, io, folder.as_ref(), sequencer, node, engine, &mut progress);
        let (sequencer, report) = joined?;
        Ok((Self(sequencer), report))
    }

    /// How it stands.
    ///
    /// # Panics
    /// Never: it has a journal.
    #[must_use]
    pub fn status(&self) -> NodeStatus {
        self.0.handle().node().expect("a node has a status")
    }

    /// A way to ask how it stands, also when it leads.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.0.handle()
    }

    /// Digest of all tables, as of some record: equal contents have equal digests, on every node.
    ///
    /// # Errors
    /// When its role has ended.
    pub fn digest(&self) -> Result<Digest, Error> {
        Ok(self.0.digest()?)
    }

    /// The database, for calls; until it leads, all of them are refused.
    ///
    /// # Errors
    /// When its role has ended.
    pub fn lead(self) -> Result<Lockwork, Error> {
        let definitions = self.0.handle().definitions()?;
        let mut lockwork = Lockwork::empty(Store::Folder(self.0));
        lockwork.refresh()?;
        lockwork.remember(&definitions)?;
        Ok(lockwork)
    }

    /// Leaves. A leader gives its lease back, so that another one goes on at once.
    ///
    /// # Errors
    /// Why its role had ended.
    pub fn close(self) -> Result<(), Error> {
        Ok(self.0.close()?)
    }
}
