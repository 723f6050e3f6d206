//! The worker processes, as the coordinator sees them: started, filled, given calls, ended.
//!
//! Every two of them share a socket, made here and inherited by number; only between fork and exec are files marked to
//! be inherited, so no other child gets them. A process that is gone closes its socket, so nobody waits for it. If the
//! coordinator is gone, its sockets are closed too, and the workers end.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockwork_engine::EngineError;

use crate::message::{FAILED, PIECE};
use crate::program::ARGUMENT;
use crate::stamps::Stamps;
use crate::stream::{Stream, StreamError, poll, poll_of};

/// How long workers may take to end in good order.
const END: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub(crate) struct Processes {
    workers: Vec<(Stream, Child)>,
}

impl Processes {
    /// Starts so many workers of a scheme.
    pub(crate) fn start(program: &Path, scheme: &str, count: usize) -> Result<Self, EngineError> {
        let failed = |error: io::Error| {
            EngineError::BackEnd(format!("worker processes ('{}') cannot be started: {error}", program.display()))
        };
        let stamps = Stamps::create().map_err(failed)?;
        // What is still to be given to each worker, by the workers before it.
        let mut given: Vec<Vec<Option<UnixStream>>> = (0..count).map(|_| Vec::new()).collect();
        let mut ends: Vec<Vec<Option<UnixStream>>> = Vec::with_capacity(count);
        while !given.is_empty() {
            let mut peers = given.remove(0);
            peers.push(None);
            for later in &mut given {
                let (one, other) = UnixStream::pair().map_err(failed)?;
                peers.push(Some(one));
                later.push(Some(other));
            }
            ends.push(peers);
        }
        let mut processes = Self { workers: Vec::with_capacity(count) };
        for peers in &ends {
            let (mine, coordinator) = UnixStream::pair().map_err(failed)?;
            let mine = Stream::new(mine).map_err(failed)?;
            let child = spawn(program, scheme, coordinator.into(), &stamps, peers).map_err(failed)?;
            processes.workers.push((mine, child));
        }
        Ok(processes)
    }

    /// What goes to worker number `worker` with the next [`Self::flush`].
    pub(crate) fn stream(&mut self, worker: usize) -> &mut Stream {
        &mut self.workers[worker].0
    }

    /// Sends until little is left to be sent to a worker. It must not be waiting for this process to read.
    pub(crate) fn drain(&mut self, worker: usize) -> Result<(), EngineError> {
        match self.workers[worker].0.drain(PIECE) {
            // It may have said why.
            Err(StreamError::Ended) => self.listen(|_, _| Ok(false)),
            sent => sent.map_err(|error| self.gone(worker, error)),
        }
    }

    /// Gives `each` what workers say, with their numbers, until it says that this was the last of it.
    pub(crate) fn listen(
        &mut self,
        mut each: impl FnMut(usize, &[u8]) -> Result<bool, EngineError>,
    ) -> Result<(), EngineError> {
        loop {
            let mut files = Vec::with_capacity(self.workers.len());
            for number in 0..self.workers.len() {
                let flushed = self.workers[number].0.flush_before_receive();
                flushed.map_err(|error| self.gone(number, error))?;
                let stream = &self.workers[number].0;
                let events = if stream.backlog() > 0 { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
                files.push(poll_of(stream.as_raw_fd(), events));
            }
            poll(&mut files, -1).map_err(|error| EngineError::BackEnd(format!("worker processes: {error}")))?;
            for number in (0..files.len()).filter(|&number| files[number].revents != 0) {
                let received = self.workers[number].0.receive();
                received.map_err(|error| self.gone(number, error))?;
                loop {
                    let frame = self.workers[number].0.frame();
                    let Some(frame) = frame.map_err(|error| self.gone(number, error))? else { break };
                    if frame.first() == Some(&FAILED) {
                        let text = String::from_utf8_lossy(&frame[1..]);
                        return Err(EngineError::BackEnd(format!("{} failed: {text}", self.name(number))));
                    }
                    if each(number, &frame)? {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn name(&self, worker: usize) -> String {
        format!("worker {} of {} (process {})", worker + 1, self.workers.len(), self.workers[worker].1.id())
    }

    /// Why nothing more is heard of a worker.
    fn gone(&mut self, worker: usize, error: StreamError) -> EngineError {
        let what = match error {
            StreamError::Ended => match wait(&mut self.workers[worker].1, END) {
                Some(status) => format!("has ended: {status}"),
                None => "has closed its socket".into(),
            },
            other => format!("cannot be understood: {other}"),
        };
        EngineError::BackEnd(format!("{} {what}; its rows are lost", self.name(worker)))
    }

    /// The numbers of the processes.
    pub(crate) fn ids(&self) -> Vec<u32> {
        self.workers.iter().map(|(_, child)| child.id()).collect()
    }
}

fn spawn(
    program: &Path,
    scheme: &str,
    coordinator: OwnedFd,
    stamps: &OwnedFd,
    peers: &[Option<UnixStream>],
) -> io::Result<Child> {
    let mut command = Command::new(program);
    let mut inherited = vec![coordinator.as_raw_fd(), stamps.as_raw_fd()];
    command.arg(ARGUMENT).arg(scheme).args(inherited.iter().map(ToString::to_string));
    for peer in peers {
        match peer {
            Some(socket) => {
                command.arg(socket.as_raw_fd().to_string());
                inherited.push(socket.as_raw_fd());
            }
            None => _ = command.arg("-"),
        }
    }
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let inherit = move || {
        for file in &inherited {
            // SAFETY: a plain system call, which is allowed between fork and exec.
            if unsafe { libc::fcntl(*file, libc::F_SETFD, 0) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: what runs between fork and exec makes system calls only, and allocates nothing.
    unsafe { command.pre_exec(inherit) };
    command.spawn()
}

/// Waits for a process to end, for so long.
fn wait(child: &mut Child, time: Duration) -> Option<std::process::ExitStatus> {
    let deadline = Instant::now() + time;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            _ => return None,
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        // All sockets are closed before the first is waited for: they end at the same time.
        let (streams, children): (Vec<_>, Vec<_>) = self.workers.drain(..).unzip();
        drop(streams);
        for mut child in children {
            if wait(&mut child, END).is_none() {
                _ = child.kill();
                _ = child.wait();
            }
        }
    }
}
