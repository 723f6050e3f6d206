//! `GET /metrics` over HTTP/1.1, and nothing else.
//!
//! One thread, one connection at a time, closed after the answer: scrapers come every few seconds. A request is read up
//! to its empty line, 4 KiB or one second, whichever comes first.

use super::counters::Counters;
use crate::udp::wait_for;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const MOST_REQUEST: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(1);

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
            while !stopped.load(Ordering::Relaxed) {
                let time = libc::timespec { tv_sec: 0, tv_nsec: 100_000_000 };
                wait_for(listener.as_raw_fd(), libc::POLLIN, &time);
                if let Ok((stream, _)) = listener.accept() {
                    // Whoever hangs up early wanted no answer.
                    _ = answer(stream, &counters);
                }
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

fn answer(mut stream: TcpStream, counters: &Counters) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = read_request(&mut stream)?;
    let line = request.split(|byte| *byte == b'\r' || *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split(|byte| *byte == b'?').next().unwrap_or_default();
    let (status, body) = match (method, path) {
        (b"GET" | b"HEAD", b"/metrics") => ("200 OK", counters.text()),
        (b"GET" | b"HEAD", _) => ("404 Not Found", "there is /metrics\n".to_string()),
        _ => ("405 Method Not Allowed", "there is GET /metrics\n".to_string()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    if method != b"HEAD" {
        stream.write_all(body.as_bytes())?;
    }
    stream.flush()
}

fn read_request(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let start = Instant::now();
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while request.len() < MOST_REQUEST && !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        let left = PATIENCE.checked_sub(start.elapsed()).filter(|left| !left.is_zero());
        stream.set_read_timeout(Some(left.ok_or(io::ErrorKind::TimedOut)?))?;
        match stream.read(&mut buffer)? {
            0 => break,
            count => request.extend_from_slice(&buffer[..count]),
        }
    }
    Ok(request)
}
