//! Checkpoints, in an object store.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::TryStreamExt;
use lockwork_sequencer::io::File;
use lockwork_sequencer::journal::Unreachable;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use crate::{NatsJournal, REQUEST};

/// Bytes that are written at a time.
const PIECE: usize = 1 << 20;

pub(crate) fn name(number: u64) -> String {
    format!("{number:020}")
}

/// A file from its beginning to its end. Reading blocks: it is done by a thread that has nothing else to do.
struct Contents<'a> {
    file: &'a dyn File,
    offset: u64,
}

impl AsyncRead for Contents<'_> {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = self.file.read_at(self.offset, buffer.initialize_unfilled())?;
        buffer.advance(read);
        self.offset += read as u64;
        Poll::Ready(Ok(()))
    }
}

pub(crate) async fn list(journal: &NatsJournal) -> Result<Vec<u64>, Unreachable> {
    let failed = |error: &dyn std::error::Error| journal.unreachable("list the checkpoints", error);
    let listed = async {
        let objects = journal.checkpoints.list().await.map_err(|error| failed(&error))?;
        objects.try_collect::<Vec<_>>().await.map_err(|error| failed(&error))
    };
    let objects = tokio::time::timeout(4 * REQUEST, listed).await.map_err(|late| failed(&late))??;
    let mut numbers: Vec<u64> = objects.iter().filter_map(|object| object.name.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

pub(crate) async fn keep(journal: &NatsJournal, number: u64, file: &dyn File) -> Result<(), Unreachable> {
    let mut contents = Contents { file, offset: 0 };
    let kept = journal.checkpoints.put(name(number).as_str(), &mut contents).await;
    kept.map(drop).map_err(|error| journal.unreachable("keep a checkpoint", &error))
}

pub(crate) async fn fetch(journal: &NatsJournal, number: u64, file: &dyn File) -> Result<(), Unreachable> {
    let failed = |error: &dyn std::error::Error| journal.unreachable("fetch a checkpoint", error);
    let mut object = journal.checkpoints.get(name(number)).await.map_err(|error| failed(&error))?;
    let (mut piece, mut offset) = (vec![0; PIECE], 0);
    loop {
        let read = tokio::time::timeout(4 * REQUEST, object.read(&mut piece)).await;
        let read = read.map_err(|late| failed(&late))?.map_err(|error| failed(&error))?;
        if read == 0 {
            return Ok(());
        }
        file.write_at(offset, &piece[..read]).map_err(|error| failed(&error))?;
        offset += read as u64;
    }
}
