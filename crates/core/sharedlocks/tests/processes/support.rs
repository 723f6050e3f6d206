//! Tables that tests make, and processes that they start: the test binary itself, run again as the test `child::child`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lockwork_sharedlocks::{Layout, Options, Placement, SharedLocks, segment};

/// Names the part that a child plays, and its arguments, separated by spaces.
pub(crate) const PART: &str = "LOCKWORK_TEST_PART";
/// What a child says begins so. All else is of the test harness.
pub(crate) const SAYS: &str = "child: ";

/// Longer than anything takes that is not broken, on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// The name of a table, which goes with it.
pub(crate) struct Name(pub(crate) String);

impl Name {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        Self(format!("test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)))
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        drop(segment::remove(&self.0));
        // What a test has made of it need not be a table any more.
        drop(std::fs::remove_file(segment::path_of(&self.0)));
    }
}

/// A table whose keys are its lines.
pub(crate) fn options(lines: u32, sessions: u16) -> Options {
    Options { layout: Layout { lines, sessions, held: lines, placement: Placement::Direct }, reserve: true }
}

/// A new table.
pub(crate) fn table(lines: u32, sessions: u16) -> (Name, SharedLocks) {
    let name = Name::new();
    let locks = SharedLocks::create(&name.0, &options(lines, sessions)).unwrap();
    (name, locks)
}

/// A process that plays a part.
pub(crate) struct Player {
    pub(crate) process: Child,
    input: Option<ChildStdin>,
    output: Option<BufReader<ChildStdout>>,
}

impl Player {
    /// Starts one that is talked with.
    pub(crate) fn talking(part: &str) -> Self {
        let mut process = command(part).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (process.stdin.take(), process.stdout.take().map(BufReader::new));
        Self { process, input, output }
    }

    /// Starts one that does its part without a word.
    pub(crate) fn silent(part: &str) -> Self {
        let process = command(part).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        Self { process, input: None, output: None }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// What it says next.
    pub(crate) fn hear(&mut self) -> String {
        let output = self.output.as_mut().unwrap();
        loop {
            let mut line = String::new();
            assert!(output.read_line(&mut line).unwrap() > 0, "the child has ended without a word");
            if let Some((_, said)) = line.trim_end().split_once(SAYS) {
                return said.to_string();
            }
        }
    }

    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.hear()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: a system call about a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.pid() as i32, signal) }, 0);
    }

    /// Kills it, and waits until it is dead.
    pub(crate) fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        self.process.wait().unwrap();
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        drop(self.input.take());
        self.process.wait().unwrap()
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn command(part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child::child", "--exact", "--ignored", "--nocapture", "--test-threads=1"]).env(PART, part);
    command
}

/// Waits until something is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < LONG, "{what} is never so");
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Numbers by chance (xorshift).
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}
