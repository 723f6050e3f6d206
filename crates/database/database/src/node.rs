//! A database whose log several nodes share ([`lockwork_sequencer::journal`], `docs/cluster.md`).

use std::path::Path;
use std::sync::{Arc, mpsc};

use lockwork_engine::registry::Registered;
use lockwork_engine::{Engine, EngineError, create};
use lockwork_partitions::divided::{DividedEngine, DividedOptions, Others};
use lockwork_procedure::program::Procedure;
use lockwork_sequencer::io::Disk;
use lockwork_sequencer::journal::Journal;
use lockwork_sequencer::{
    self as sequencer, Handle, Journals, NodeOptions, NodeStatus, Progress, RecoveryReport, Role, Sequencer,
};
use lockwork_sql::{self as sql, Kind, Statement};
use lockwork_storage::Digest;

use crate::cache::digest;
use crate::statements::Known;
use crate::{Caller, Error, Lockwork, OpenOptions, Prepared, SqlAnswer, durable};

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
        let engine = create(options.engine, options.engine_options.clone())?;
        let (io, sequencer) = (Arc::new(Disk::new()), options.sequencer.clone());
        let joined = Sequencer::join(journal, io, folder.as_ref(), sequencer, node, engine, &mut progress);
        let (sequencer, report) = joined?;
        Ok((Self(sequencer), report))
    }

    /// As [`Self::join`], with a part of every table: other nodes have the others ([`DividedOptions`]), and are waited
    /// for without end. Which of them are there is told by what comes third.
    ///
    /// # Errors
    /// As there; [`sequencer::Error::Option`] when the journal is of nodes that have everything, or of another number
    /// of parts or streams.
    pub fn join_divided(
        journals: Journals,
        folder: impl AsRef<Path>,
        options: &OpenOptions,
        node: NodeOptions,
        divided: DividedOptions,
        mut progress: impl FnMut(Progress),
    ) -> Result<(Self, RecoveryReport, Others), Error> {
        let engine = DividedEngine::new(divided)?;
        let others = engine.others();
        let (io, sequencer, engine) = (Arc::new(Disk::new()), options.sequencer.clone(), Box::new(engine));
        let joined = Sequencer::join_divided(journals, io, folder.as_ref(), sequencer, node, engine, &mut progress);
        let (sequencer, report) = joined?;
        Ok((Self(sequencer), report, others))
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

    /// The database, for calls, of a node that leads.
    ///
    /// # Errors
    /// When its role has ended.
    pub fn lead(self) -> Result<Lockwork, Error> {
        let mut lockwork = self.follow();
        lockwork.lead()?;
        Ok(lockwork)
    }

    /// The database, for reads beside the log ([`Lockwork::prepare_read`]) until it leads.
    #[must_use]
    pub fn follow(self) -> Lockwork {
        Lockwork::empty(self.0)
    }

    /// Leaves. A leader gives its lease back, so that another one goes on at once.
    ///
    /// # Errors
    /// Why its role had ended.
    pub fn close(self) -> Result<(), Error> {
        Ok(self.0.close()?)
    }
}

impl Lockwork {
    /// Learns which tables, indexes and procedures the log has by now, at a node that follows; whether there was
    /// anything new. What was prepared before stays right.
    ///
    /// # Errors
    /// When its role has ended, and [`Error::Unfilled`].
    pub fn learn(&mut self) -> Result<bool, Error> {
        let handle = self.sequencer.handle();
        let is_new = handle.definitions_met() != self.learnt;
        if is_new {
            let definitions = handle.definitions(self.learnt)?;
            self.refresh()?;
            self.learnt += definitions.len();
            self.remember_all(&definitions)?;
        }
        // Where others have the other parts, only who leads can find out, and does when it does.
        if handle.is_divided() && handle.role() != Some(Role::Leading) {
            return Ok(is_new);
        }
        while let Some(index) = self.sql.unfilled.last() {
            if !self.is_full(index)? {
                return Err(Error::Unfilled(index.name.clone()));
            }
            self.sql.unfilled.pop();
        }
        Ok(is_new)
    }

    /// From now on it is a database for calls: the node leads, or sequences. It learns what it does not know yet, and
    /// where it leads makes indexes whole that the leader before has left in half.
    ///
    /// # Errors
    /// As [`Self::learn`], and those of calls.
    pub fn lead(&mut self) -> Result<(), Error> {
        let learnt = self.learn();
        // Of statements the log says only what they are.
        let known = durable::read(&self.procedures).len() as u32;
        self.relearn(0..known)?;
        match learnt {
            Ok(_) => Ok(()),
            Err(Error::Unfilled(_)) => self.fill_all(),
            Err(error) => Err(error),
        }
    }

    /// As [`Self::prepare`], of a SELECT or a CALL that only reads, and beside the log: nothing is registered, so it
    /// works at a node that follows ([`Caller::read_then`]). The scales are those of [`Self::prepare_for`].
    ///
    /// # Errors
    /// As there, and [`Error::Writes`].
    pub fn prepare_read(&mut self, statement: &Statement<'_>, scales: &[u8]) -> Result<Prepared, Error> {
        if statement.kind() == Kind::Call {
            let Known { compiled, id, .. } = self.known_of(statement)?;
            let registered = durable::read(&self.procedures).all()[id as usize].clone();
            if registered.traits.writes {
                return Err(Error::Writes(statement.name().unwrap_or_default().into()));
            }
            let arguments = statement.arguments(&compiled)?;
            let columns = compiled.results.iter().map(|field| field.name.clone()).collect();
            let (reads, version, inserted) = (Some(registered), 0, None);
            let (kind, longer, text) = (Kind::Call, Vec::new(), "".into());
            return Ok(Prepared { kind, compiled, id, version, arguments, columns, inserted, reads, longer, text });
        }
        let single = self.sql.catalogue.single_for(statement, scales)?;
        let mut prepared = self.single_read(statement.kind(), single)?;
        // Nothing is registered, so these numbers only tell their blocks apart.
        for (single, id) in self.longer(statement, &prepared.arguments, scales)?.into_iter().zip(1..) {
            let longer = Prepared { id, ..self.single_read(statement.kind(), single)? };
            prepared.longer.push(longer);
        }
        Ok(prepared)
    }

    fn single_read(&mut self, kind: Kind, single: sql::Single) -> Result<Prepared, Error> {
        let sql::Single { compiled, arguments, columns, inserted } = single;
        let shape = digest(&compiled.procedure);
        let reads = match self.sql.reads.get(&shape) {
            Some(known) => known.clone(),
            None => self.compile_read(shape, &compiled.procedure)?,
        };
        let (compiled, reads, longer, text) = (Arc::new(compiled), Some(reads), Vec::new(), "".into());
        let (id, version) = (0, 0);
        Ok(Prepared { kind, compiled, id, version, arguments, columns, inserted, reads, longer, text })
    }
}

/// Compiled reads that are kept for those who ask the same.
const KEPT: usize = 1024;

impl Lockwork {
    /// Binds a procedure that only reads to the tables, and keeps it for the next statement of its shape.
    fn compile_read(&mut self, shape: u64, procedure: &Procedure) -> Result<Arc<Registered>, Error> {
        let bound = procedure.clone();
        let made = self.read(move |engine| {
            let mut made = None;
            let read = engine.with_database(&mut |database| made = Some(Registered::of(bound.clone(), database)));
            read.and(made.unwrap_or_else(|| Err(ended())))
        })??;
        if made.traits.writes {
            return Err(Error::Writes(procedure.name.clone()));
        }
        if self.sql.reads.len() >= KEPT {
            self.sql.reads.clear();
        }
        let made = Arc::new(made);
        self.sql.reads.insert(shape, made.clone());
        Ok(made)
    }
}

/// Of a read that has not run.
fn ended() -> EngineError {
    EngineError::Worker("has ended".into())
}

impl Caller {
    /// Runs a statement of [`Lockwork::prepare_read`] without waiting, by its block: `then` gets the last record that
    /// the database had then, and the block, as for [`Self::run_then`].
    ///
    /// # Errors
    /// As there, and [`Error::Writes`] for what was not prepared so.
    pub fn read_then(
        &self,
        prepared: &Prepared,
        block: Vec<u8>,
        then: impl FnOnce(Result<(u64, Vec<u8>), Error>) + Send + 'static,
    ) -> Result<(), Error> {
        let refused = || Error::Writes(prepared.compiled.procedure.name.clone());
        let registered = prepared.of_block(&block).reads.clone().ok_or_else(refused)?;
        let read = move |engine: &dyn Engine, record| {
            let mut ran = None;
            engine.with_database(&mut |database| ran = Some(lockwork_engine::read(&registered, database, &block)))?;
            let batch = ran.unwrap_or_else(|| Err(ended()))?;
            Ok::<_, EngineError>((record, batch.block(0).bytes().to_vec()))
        };
        let done = |outcome: Result<std::thread::Result<Result<_, EngineError>>, sequencer::Error>| match outcome {
            Ok(Ok(ran)) => ran.map_err(Error::from),
            Ok(Err(_)) => Err(EngineError::Worker("has panicked".into()).into()),
            Err(error) => Err(error.into()),
        };
        Ok(self.handle.read_then(read, move |outcome| then(done(outcome)))?)
    }

    /// As [`Self::read_then`] with values for `$1` and so on, and waits.
    ///
    /// # Errors
    /// As there, and what [`Lockwork::run`] has.
    pub fn read(&self, prepared: &Prepared, values: &[sql::Value]) -> Result<(u64, SqlAnswer), Error> {
        let Some(block) = prepared.block(values)? else { return Ok((self.record(), prepared.nothing())) };
        let (sender, ran) = mpsc::sync_channel(1);
        self.read_then(prepared, block, move |ran| drop(sender.send(ran)))?;
        let (record, block) = ran.recv().map_err(|_| sequencer::Error::Closed)??;
        Ok((record, prepared.answer(&block)?))
    }

    /// The last durable record of the log: whoever was answered before finds what it was told up to there.
    #[must_use]
    pub fn record(&self) -> u64 {
        self.handle.record()
    }

    /// The address of the node that leads, or "nobody", where several nodes share the log.
    #[must_use]
    pub fn leader(&self) -> String {
        self.handle.leader()
    }

    /// What this node does, where several share the log.
    #[must_use]
    pub fn role(&self) -> Option<sequencer::Role> {
        self.handle.role()
    }

    /// How many definitions a node that follows has met in the log.
    #[must_use]
    pub fn definitions_met(&self) -> usize {
        self.handle.definitions_met()
    }
}
