//! The thread of a node that reads the journal, while the node follows.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use super::Journal;
use super::election::{Membership, Role};
use crate::order::Request;
use crate::threads::Threads;

/// About how many bytes of messages are read at a time.
pub(crate) const READ_BYTES: usize = 4 << 20;
/// How long a read waits for a message.
const WAIT: Duration = Duration::from_millis(100);

/// Reads messages from `next` on, and hands them to the order thread. Two pieces are in memory at a time.
pub(crate) fn follow(
    journal: &Arc<dyn Journal>,
    requests: &SyncSender<Request>,
    membership: &Membership,
    threads: &Threads,
    mut next: u64,
) {
    let mut applied: Option<Receiver<()>> = None;
    while membership.role() == Role::Following && !membership.is_closed() {
        match journal.read(next, READ_BYTES, WAIT) {
            Ok(messages) if messages.messages.is_empty() => {}
            Ok(messages) => {
                next = messages.first + messages.messages.len() as u64;
                if applied.take().is_some_and(|applied| threads.receive(&applied, None).is_err()) {
                    return;
                }
                let (done, taken) = sync_channel(1);
                if threads.send(requests, Request::Follow { messages, done }).is_err() {
                    return;
                }
                applied = Some(taken);
            }
            Err(error) => {
                membership.reached(Some(error.to_string()));
                threads.sleep(WAIT);
            }
        }
    }
}
