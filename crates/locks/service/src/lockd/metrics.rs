//! `GET /metrics` over HTTP/1.1, and nothing else.
//!
//! One thread for a few connections, each closed after its answer: scrapers come every few seconds. A request is read
//! up to its empty line, 4 KiB or one second, whichever comes first.
//!
//! *Invariant*: nobody waits for anybody else. All are served as far as their sockets go without blocking; whoever has
//! not asked, or taken the answer, within a second is dropped, and the oldest at once if there are too many.

use super::counters::{self, Counters};
use prometheus_client::encoding::prometheus_text::CONTENT_TYPE;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const MAX_REQUEST: usize = 4096;
const MAX_CONNECTIONS: usize = 16;
const TIMEOUT: Duration = Duration::from_secs(1);
/// How soon the thread notices that it has to end, in milliseconds.
const LONGEST_SLEEP_MS: libc::c_int = 100;

/// The thread; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Responder {
    pub(super) address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Responder {
    pub(super) fn start(address: SocketAddr, counters: Arc<Counters>) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let serve = move || {
            let mut connections = VecDeque::<Connection>::new();
            while !stopped.load(Ordering::Relaxed) {
                wait(&listener, &connections);
                while let Ok((stream, _)) = listener.accept() {
                    if connections.len() == MAX_CONNECTIONS {
                        connections.retain_mut(|connection| connection.step(&counters));
                    }
                    if connections.len() == MAX_CONNECTIONS {
                        connections.pop_front();
                    }
                    connections.extend(Connection::new(stream));
                }
                connections.retain_mut(|connection| connection.step(&counters));
            }
        };
        let thread = std::thread::Builder::new().name("metrics".to_string()).spawn(serve)?;
        Ok(Self { address, stop, thread: Some(thread) })
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

/// Waits until somebody comes, or one of these can go on, or for a while.
fn wait(listener: &TcpListener, connections: &VecDeque<Connection>) {
    let poll = |fd, events| libc::pollfd { fd, events, revents: 0 };
    let mut all = vec![poll(listener.as_raw_fd(), libc::POLLIN)];
    all.extend(connections.iter().map(|connection| {
        let events = if connection.answer.is_empty() { libc::POLLIN } else { libc::POLLOUT };
        poll(connection.stream.as_raw_fd(), events)
    }));
    // SAFETY: the array is as long as is said. What comes of it is found by trying.
    unsafe { libc::poll(all.as_mut_ptr(), all.len() as libc::nfds_t, LONGEST_SLEEP_MS) };
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    since: Instant,
    request: Vec<u8>,
    /// What is left of it; empty before there is one.
    answer: Vec<u8>,
}

impl Connection {
    fn new(stream: TcpStream) -> Option<Self> {
        stream.set_nonblocking(true).ok()?;
        Some(Self { stream, since: Instant::now(), request: Vec::new(), answer: Vec::new() })
    }

    /// Goes as far as it can; whether the connection stays. Whoever hangs up early wanted no answer.
    fn step(&mut self, counters: &Arc<Counters>) -> bool {
        let stays = match self.try_step(counters) {
            Ok(stays) => stays,
            Err(error) => matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        };
        stays && self.since.elapsed() < TIMEOUT
    }

    fn try_step(&mut self, counters: &Arc<Counters>) -> io::Result<bool> {
        while self.answer.is_empty() {
            let mut buffer = [0; 1024];
            let count = self.stream.read(&mut buffer)?;
            self.request.extend_from_slice(&buffer[..count]);
            let whole = self.request.windows(4).any(|bytes| bytes == b"\r\n\r\n");
            if count == 0 || whole || self.request.len() >= MAX_REQUEST {
                self.answer = answer(&self.request, counters);
            }
        }
        while !self.answer.is_empty() {
            let count = self.stream.write(&self.answer)?;
            self.answer.drain(..count);
        }
        Ok(false)
    }
}

fn answer(request: &[u8], counters: &Arc<Counters>) -> Vec<u8> {
    let line = request.split(|byte| *byte == b'\r' || *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split(|byte| *byte == b'?').next().unwrap_or_default();
    let (status, body) = match (method, path) {
        (b"GET" | b"HEAD", b"/metrics") => ("200 OK", counters::text(counters)),
        (b"GET" | b"HEAD", _) => ("404 Not Found", "there is /metrics\n".to_string()),
        _ => ("405 Method Not Allowed", "there is GET /metrics\n".to_string()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let mut answer = head.into_bytes();
    if method != b"HEAD" {
        answer.extend(body.into_bytes());
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrape(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("it is a socket");
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }

    #[test]
    fn connections_that_ask_nothing_hold_nobody_up_and_end() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let responder = Responder::start(any, Arc::new(Counters::default())).expect("there is a port");
        let idle: Vec<_> =
            (0..3 * MAX_CONNECTIONS).map(|_| TcpStream::connect(responder.address).expect("it listens")).collect();
        let start = Instant::now();
        assert!(scrape(responder.address).starts_with("HTTP/1.1 200 OK\r\n"));
        assert!(start.elapsed() < TIMEOUT / 2, "it took {:?}", start.elapsed());
        for mut stream in idle {
            stream.set_read_timeout(Some(20 * TIMEOUT)).expect("it is a socket");
            assert!(matches!(stream.read(&mut [0]), Ok(0)), "it is closed without an answer");
        }
    }
}
