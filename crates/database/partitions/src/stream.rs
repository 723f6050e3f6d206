//! Messages between two processes: frames on a socket, both ends of which never block.
//!
//! What is sent is collected and goes out with [`Stream::flush`], so that all messages of one round of a worker's loop
//! to one other process are one system call. A frame is its length, four bytes, and so many bytes.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use crate::wire::Malformed;

/// The longest frame that is taken.
const LONGEST: usize = 256 << 20;
/// How much is read at once.
const READ: usize = 64 << 10;

/// Why nothing can be sent or received any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamError {
    /// The other process has ended, or closed its end.
    #[error("the other process has ended")]
    Ended,
    /// The system refuses.
    #[error("a socket between processes: {0}")]
    System(#[from] io::Error),
    /// The other process sends what nobody understands.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// One end.
#[derive(Debug)]
pub(crate) struct Stream {
    /// Or one of TCP: what is called is common to both.
    socket: UnixStream,
    buffer: Box<[u8]>,
    incoming: Vec<u8>,
    /// First byte of `incoming` that was not taken.
    taken: usize,
    outgoing: Vec<u8>,
    /// First byte of `outgoing` that was not sent.
    sent: usize,
}

impl Stream {
    pub(crate) fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let buffer = vec![0; READ].into_boxed_slice();
        Ok(Self { socket, buffer, incoming: Vec::new(), taken: 0, outgoing: Vec::new(), sent: 0 })
    }

    pub(crate) fn of(file: OwnedFd) -> io::Result<Self> {
        Self::new(UnixStream::from(file))
    }

    /// Appends a frame that `write` fills.
    pub(crate) fn send(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.outgoing.len();
        self.outgoing.extend([0; 4]);
        write(&mut self.outgoing);
        let length = (self.outgoing.len() - start - 4) as u32;
        self.outgoing[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    /// Ends it for both sides.
    pub(crate) fn close(&self) {
        // One that has ended already is as good.
        _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    /// Bytes that wait to be sent.
    pub(crate) fn backlog(&self) -> usize {
        self.outgoing.len() - self.sent
    }

    /// Sends what the socket takes now.
    pub(crate) fn flush(&mut self) -> Result<(), StreamError> {
        while self.backlog() > 0 {
            match self.socket.write(&self.outgoing[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => break,
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => return Err(StreamError::Ended),
                    _ => return Err(error.into()),
                },
            }
        }
        if self.sent == self.outgoing.len() {
            self.outgoing.clear();
            self.sent = 0;
        } else if self.sent > READ {
            self.outgoing.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    /// As [`Self::flush`], for who calls [`Self::receive`] next: a side that has ended may have said why before, and
    /// `receive` tells the end after that.
    pub(crate) fn flush_before_receive(&mut self) -> Result<(), StreamError> {
        match self.flush() {
            Err(StreamError::Ended) => Ok(()),
            flushed => flushed,
        }
    }

    /// Waits until no more than `most` bytes wait to be sent.
    pub(crate) fn drain(&mut self, most: usize) -> Result<(), StreamError> {
        self.flush()?;
        while self.backlog() > most {
            let mut ready = [poll_of(self.as_raw_fd(), libc::POLLOUT)];
            poll(&mut ready, -1)?;
            self.flush()?;
        }
        Ok(())
    }

    /// Takes what has arrived; `false`: nothing has.
    pub(crate) fn receive(&mut self) -> Result<bool, StreamError> {
        if self.taken > 0 {
            self.incoming.drain(..self.taken);
            self.taken = 0;
        }
        let mut any = false;
        loop {
            match self.socket.read(&mut self.buffer) {
                Ok(0) if any => return Ok(true),
                Ok(0) => return Err(StreamError::Ended),
                Ok(count) => {
                    any = true;
                    self.incoming.extend_from_slice(&self.buffer[..count]);
                    if count < READ {
                        return Ok(true);
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(any),
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::ConnectionReset if any => return Ok(true),
                    io::ErrorKind::ConnectionReset => return Err(StreamError::Ended),
                    _ => return Err(error.into()),
                },
            }
        }
    }

    /// The next whole frame that has arrived.
    pub(crate) fn frame(&mut self) -> Result<Option<Vec<u8>>, StreamError> {
        let Some(length) = self.incoming[self.taken..].first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > LONGEST {
            return Err(Malformed::new(format_args!("a frame of {length} bytes")).into());
        }
        let start = self.taken + 4;
        let Some(bytes) = self.incoming.get(start..start + length) else { return Ok(None) };
        self.taken = start + length;
        Ok(Some(bytes.to_vec()))
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// What [`poll`] is to look at.
pub(crate) fn poll_of(file: RawFd, events: libc::c_short) -> libc::pollfd {
    libc::pollfd { fd: file, events, revents: 0 }
}

/// Sleeps until one of the files is ready, or for some milliseconds (-1: for ever). Signals may end it early.
pub(crate) fn poll(files: &mut [libc::pollfd], milliseconds: libc::c_int) -> io::Result<()> {
    // SAFETY: the slice lives during the call and is as long as is said.
    let ready = unsafe { libc::poll(files.as_mut_ptr(), files.len() as libc::nfds_t, milliseconds) };
    if ready < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_arrive_whole_and_in_order_and_an_end_is_told() {
        let (one, other) = UnixStream::pair().unwrap();
        let (mut one, mut other) = (Stream::new(one).unwrap(), Stream::new(other).unwrap());
        let long: Vec<u8> = (0..3_000_000).map(|at| at as u8).collect();
        one.send(|frame| frame.extend(b"first"));
        one.send(|_| {});
        one.send(|frame| frame.extend(&long));
        let mut frames = Vec::new();
        while frames.len() < 3 {
            one.flush().unwrap();
            other.receive().unwrap();
            while let Some(frame) = other.frame().unwrap() {
                frames.push(frame);
            }
        }
        assert_eq!(frames, [b"first".to_vec(), Vec::new(), long]);
        assert!(!other.receive().unwrap());
        drop(one);
        assert!(matches!(other.receive(), Err(StreamError::Ended)));
        other.send(|frame| frame.push(1));
        assert!(matches!(other.flush(), Err(StreamError::Ended)));
    }

    #[test]
    fn what_was_said_before_the_end_is_heard_by_who_sends_after_it() {
        let (one, other) = UnixStream::pair().unwrap();
        let (mut one, mut other) = (Stream::new(one).unwrap(), Stream::new(other).unwrap());
        // It ends with something unread, and the system tells the other side so.
        other.send(|frame| frame.extend(b"unread"));
        other.flush().unwrap();
        one.send(|frame| frame.extend(b"why"));
        one.flush().unwrap();
        drop(one);
        other.send(|frame| frame.extend(b"too late"));
        other.flush_before_receive().unwrap();
        other.receive().unwrap();
        assert_eq!(other.frame().unwrap().unwrap(), b"why");
        other.flush_before_receive().unwrap();
        assert!(matches!(other.receive(), Err(StreamError::Ended)));
    }

    #[test]
    fn a_frame_that_nobody_could_send_is_refused() {
        let (one, other) = UnixStream::pair().unwrap();
        let mut other = Stream::new(other).unwrap();
        (&one).write_all(&[0xFF; 8]).unwrap();
        other.receive().unwrap();
        assert!(matches!(other.frame(), Err(StreamError::Malformed(_))));
    }
}
