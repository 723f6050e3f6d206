//! How a node begins: with the newest checkpoint that its journal has.

use std::path::Path;
use std::sync::mpsc::channel;

use lockwork_engine::Engine;

use crate::catalogue::{Catalogue, Definitions};
use crate::directory::Directory;
use crate::error::Error;
use crate::io::{Io, Locking, Mode};
use crate::journal::message::{Chain, Position};
use crate::journal::{Journal, LogRange, MIN_MESSAGE_BYTES, Unreachable};
use crate::options::Options;
use crate::recovery::{Progress, RecoveryReport, Replay};
use crate::requests::DedupTable;
use crate::sequencer::is_empty;

/// What a checkpoint made of a node.
pub(crate) struct Begun {
    pub(crate) directory: Directory,
    pub(crate) lock: Box<dyn Send + Sync>,
    pub(crate) report: RecoveryReport,
    pub(crate) log_range: LogRange,
    pub(crate) catalogue: Catalogue,
    pub(crate) definitions: Definitions,
    pub(crate) dedup: DedupTable,
    /// What the record behind the checkpoint follows.
    pub(crate) chain: Chain,
    /// How far it was in the streams of further sequencers; nothing where there were none.
    pub(crate) streams: Vec<Position>,
    /// The number of that record.
    pub(crate) next: u64,
}

/// Loads the newest checkpoint of a journal into an engine, which is empty; `path` is a directory for it on its way.
///
/// # Errors
/// [`Error::Unreachable`]; [`Error::Damaged`] and [`Error::Version`]; [`Error::Option`]; [`Error::Locked`],
/// [`Error::Foreign`] and [`Error::Io`], of the directory.
pub(crate) fn begin(
    journal: &dyn Journal,
    io: &dyn Io,
    path: &Path,
    options: &Options,
    engine: &mut dyn Engine,
    progress: &mut dyn FnMut(Progress),
) -> Result<Begun, Error> {
    options.validate()?;
    is_empty(engine)?;
    if journal.most_bytes() < MIN_MESSAGE_BYTES {
        return Err(Error::Option {
            option: "the journal's most bytes of a message",
            value: journal.most_bytes().to_string(),
            expected: format!("{MIN_MESSAGE_BYTES} or more are needed"),
        });
    }
    let (directory, lock) = scratch(io, path)?;
    let mut report = RecoveryReport { io: journal.describe(), ..RecoveryReport::default() };
    let failed = |error: Unreachable| Error::Unreachable(error.to_string());
    let log_range = journal.log_range().map_err(failed)?;
    let newest = journal.checkpoints().map_err(failed)?.last().copied();
    if newest.unwrap_or(0).saturating_add(1) < log_range.first {
        let problem = format!("records 1 to {} are missing, and no checkpoint covers them", log_range.first - 1);
        return Err(Error::damaged(Path::new(&journal.describe()), 1, problem));
    }
    let mut replay = Replay::new(engine, DedupTable::new(options), &mut report, progress, channel().0);
    let mut chain = Chain::default();
    if let Some(number) = newest {
        let path = directory.checkpoint(number);
        let opened = io.open(&path, Mode::Create).map_err(|error| Error::io("create", &path, error));
        let file = opened?;
        journal.fetch_checkpoint(number, &*file).map_err(failed)?;
        replay.expect(file.length().unwrap_or(0));
        let (header, _) = crate::checkpoint::read::read(io, &path, number, &mut replay)?;
        let theirs = replay.chain.filter(|chain| chain.database == header.database);
        let foreign = || Error::damaged(&path, 16, "the checkpoint is not of the journal that keeps it");
        chain = theirs.ok_or_else(foreign)?;
    }
    let Replay { catalogue, definitions, dedup, streams, .. } = replay;
    let next = newest.unwrap_or(0) + 1;
    Ok(Begun { directory, lock, report, log_range, catalogue, definitions, dedup, chain, streams, next })
}

/// A directory for checkpoints on their way, empty, and the lock on it.
fn scratch(io: &dyn Io, path: &Path) -> Result<(Directory, Box<dyn Send + Sync>), Error> {
    let directory = Directory::new(path);
    directory.refuse_foreign(io)?;
    for folder in [&directory.root, &directory.log, &directory.checkpoint] {
        io.create_directory(folder).map_err(|error| Error::io("create", folder, error))?;
    }
    let taken = io.lock(&directory.lock()).map_err(|error| Error::io("lock", &directory.lock(), error))?;
    let lock = match taken {
        Locking::Held(lock) => lock,
        Locking::Taken(owner) => return Err(Error::Locked { path: path.to_path_buf(), owner }),
    };
    let listing = directory.list(io)?;
    if directory.is_database(io)? || !listing.segments.is_empty() {
        let expected =
            "a database of its own is there, and the journal has another one; name an empty directory".into();
        return Err(Error::Option { option: "directory", value: path.display().to_string(), expected });
    }
    let old = listing.checkpoints.iter().map(|&number| directory.checkpoint(number));
    for path in old.chain(listing.unfinished.iter().cloned()) {
        io.remove(&path).map_err(|error| Error::io("remove", &path, error))?;
    }
    Ok((directory, lock))
}
