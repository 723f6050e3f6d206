//! What cancels a statement: a request with the key that its connection was told at login, its client's end, or its
//! timeout.
//!
//! They only mark the connection. What takes long looks at the mark between its steps, and what waits is woken by it;
//! a call that is in the engine goes on and answers. A mark is gone when the client has its answer, so that it never
//! meets a later statement.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use pgwire::api::cancel::CancelHandler;
use pgwire::messages::cancel::CancelRequest;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::error::{Refusal, refuse};

/// How often a client is looked for that waits for the answer of a query.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Nothing is being done.
const IDLE: u8 = 0;
/// A message is being carried out.
const WORKING: u8 = 1;
/// It, and what stands behind it up to the next answer, are to end.
const ASKED: u8 = 2;
/// The same, because it has taken longer than `statement_timeout` says.
const TIMED_OUT: u8 = 3;
/// The client has gone.
const GONE: u8 = 4;

/// The mark of one connection.
#[derive(Debug, Default)]
pub(crate) struct Cancel {
    state: AtomicU8,
    marked: Notify,
    /// The socket once more, to look whether the client is there without reading what it has sent. Gone with the
    /// connection, whoever keeps the mark: while it is there, the client is not told that the connection has ended.
    peer: Mutex<Option<OwnedFd>>,
}

impl Cancel {
    fn turn(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// A message is carried out from now on.
    pub(crate) fn begin(&self) {
        self.turn(IDLE, WORKING);
    }

    /// It has been; if `is_answered`, all that the client has asked.
    pub(crate) fn end(&self, is_answered: bool) {
        self.turn(WORKING, IDLE);
        if is_answered {
            self.turn(ASKED, IDLE);
            self.turn(TIMED_OUT, IDLE);
        }
    }

    /// Waits for something that looks at the mark, which is set when that takes longer than it may.
    pub(crate) async fn within<T>(&self, timeout: Duration, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        tokio::select! {
            biased;
            done = &mut work => done,
            () = tokio::time::sleep(timeout) => {
                if self.turn(WORKING, TIMED_OUT) {
                    self.marked.notify_waiters();
                }
                work.await
            }
        }
    }

    /// The error of what has been ended.
    fn cancelled(&self) -> Refusal {
        match self.state.load(Ordering::Acquire) {
            TIMED_OUT => refuse("57014", "canceling statement due to statement timeout")
                .hint("raise statement_timeout, or ask for less"),
            _ => refuse("57014", "the statement has been cancelled, as its client has asked"),
        }
    }

    /// Marks what is being carried out, if anything is.
    pub(crate) fn ask(&self) {
        if self.turn(WORKING, ASKED) {
            self.marked.notify_waiters();
        }
    }

    fn peer(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.peer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody waits for answers any more.
    fn leave(&self) {
        *self.peer() = None;
        self.state.store(GONE, Ordering::Release);
        self.marked.notify_waiters();
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.state.load(Ordering::Acquire) >= ASKED
    }

    /// # Errors
    /// It is to end.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        if self.is_asked() { Err(self.cancelled()) } else { Ok(()) }
    }

    /// A refusal of what has been ended says so.
    pub(crate) fn explain(&self, refusal: Refusal) -> Refusal {
        if refusal.sqlstate == "57014" && self.is_asked() { self.cancelled() } else { refusal }
    }

    /// Waits for the mark.
    pub(crate) async fn asked(&self) {
        let mut marked = std::pin::pin!(self.marked.notified());
        loop {
            marked.as_mut().enable();
            if self.is_asked() {
                return;
            }
            marked.as_mut().await;
            marked.set(self.marked.notified());
        }
    }

    /// Waits for the mark, and sets it when the client has gone.
    pub(crate) async fn asked_or_gone(&self) {
        while tokio::time::timeout(POLL_INTERVAL, self.asked()).await.is_err() {
            if self.is_peer_gone() {
                self.leave();
            }
        }
    }

    fn is_peer_gone(&self) -> bool {
        let peer = self.peer();
        let Some(peer) = &*peer else { return false };
        let mut looked = [PollFd::new(peer, PollFlags::RDHUP)];
        let is_told = poll(&mut looked, Some(&Timespec::default())).is_ok_and(|told| told > 0);
        is_told && looked[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
    }

    /// Waits for something unless it is cancelled.
    pub(crate) async fn unless<T>(&self, wait: impl Future<Output = T>) -> Result<T, Refusal> {
        tokio::select! {
            biased;
            done = wait => Ok(done),
            () = self.asked() => Err(self.cancelled()),
        }
    }

    /// Waits for something unless it is cancelled or the client goes.
    pub(crate) async fn unless_gone<T>(&self, wait: impl Future<Output = T>) -> Result<T, Refusal> {
        tokio::select! {
            biased;
            done = wait => Ok(done),
            () = self.asked_or_gone() => Err(self.cancelled()),
        }
    }

    /// Waits for something that looks at the mark, which is set if the client goes meanwhile.
    pub(crate) async fn watched<T>(&self, wait: impl Future<Output = T>) -> T {
        let mut wait = std::pin::pin!(wait);
        tokio::select! {
            biased;
            done = &mut wait => done,
            () = self.asked_or_gone() => wait.await,
        }
    }
}

/// The connections of a server by their keys, of 63 random bits.
#[derive(Debug, Default)]
pub(crate) struct Cancels(Mutex<HashMap<u64, Arc<Cancel>>>);

impl Cancels {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, Arc<Cancel>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A key for a connection, for as long as it is there.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub(crate) fn enter(self: &Arc<Self>, socket: &TcpStream) -> io::Result<Entered> {
        // Without a descriptor for it the client's end is found out when it gets its answer.
        let peer = Mutex::new(socket.as_fd().try_clone_to_owned().ok());
        let cancel = Arc::new(Cancel { peer, ..Cancel::default() });
        let mut all = self.all();
        let mut key = random()?;
        while all.contains_key(&key) {
            key = random()?;
        }
        all.insert(key, cancel.clone());
        drop(all);
        Ok(Entered { cancels: self.clone(), key, cancel })
    }

    /// All clients have been told that the server ends: nothing that their connections are at is waited for.
    pub(crate) fn end(&self) {
        let all: Vec<Arc<Cancel>> = self.all().values().cloned().collect();
        all.iter().for_each(|cancel| cancel.leave());
    }

    /// Cancels what the connection with this key is at, if there is one.
    pub(crate) fn cancel(&self, number: i32, secret: i32) {
        let key = u64::from(number as u32) << 32 | u64::from(secret as u32);
        let found = self.all().get(&key).cloned();
        if let Some(cancel) = found {
            cancel.ask();
        }
    }
}

/// A number of 63 bits that nobody guesses.
fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes) >> 1)
}

#[async_trait]
impl CancelHandler for Cancels {
    async fn on_cancel_request(&self, request: CancelRequest) {
        if let Some(secret) = request.secret_key.as_i32() {
            self.cancel(request.pid, secret);
        }
    }
}

/// A connection that can be cancelled. When it ends, so does what it is at.
pub(crate) struct Entered {
    cancels: Arc<Cancels>,
    key: u64,
    pub(crate) cancel: Arc<Cancel>,
}

impl Entered {
    /// The number of the connection, which is no secret, and what is.
    pub(crate) fn key(&self) -> (i32, i32) {
        ((self.key >> 32) as i32, self.key as i32)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.cancels.all().remove(&self.key);
        self.cancel.leave();
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn only_what_is_carried_out_is_cancelled_and_only_by_its_key() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        let cancels = Arc::new(Cancels::default());
        let (one, two) = (cancels.enter(&socket).unwrap(), cancels.enter(&socket).unwrap());
        let (number, secret) = one.key();
        let cancel = one.cancel.clone();
        assert!(one.key() != two.key() && number >= 0);

        cancels.cancel(number, secret);
        cancel.begin();
        assert!(!cancel.is_asked(), "it was idle");
        for (number, secret) in [(number, secret ^ 1), (number ^ 1, secret), (0, 0), (two.key().0, secret)] {
            cancels.cancel(number, secret);
        }
        assert!(!cancel.is_asked(), "others");
        assert_eq!(cancel.unless(async { 1 }).await, Ok(1));
        let (waited, ()) = tokio::join!(cancel.unless(std::future::pending::<()>()), async {
            tokio::task::yield_now().await;
            cancels.cancel(number, secret);
        });
        assert_eq!(waited.unwrap_err().sqlstate, "57014");
        // What stands behind it in a pipeline has been asked for together with it.
        cancel.end(false);
        cancel.begin();
        assert_eq!(cancel.check().unwrap_err().sqlstate, "57014");
        assert!(!two.cancel.is_asked());
        cancel.end(true);
        cancel.begin();
        assert!(cancel.check().is_ok());

        // Bytes that nobody has read do not hide the client's end.
        client.try_write(b"more").unwrap();
        assert!(timeout(POLL_INTERVAL * 2, cancel.asked_or_gone()).await.is_err());
        drop(client);
        timeout(POLL_INTERVAL * 20, cancel.asked_or_gone()).await.unwrap();
        cancel.end(true);
        assert!(cancel.is_asked());
        let other = two.cancel.clone();
        drop((one, two));
        assert!(other.is_asked() && cancels.all().is_empty() && other.peer().is_none());
    }
}
