//! The watchdog of `lockwork lock`: a process that ends the command in time when `lockwork lock` cannot do so.
//!
//! `lockwork lock` renews the lease. While it is stopped (`kill -STOP`, Ctrl-Z), nobody renews, and the service gives
//! the lock to another client after the lease. The watchdog is in a session of its own, so that what stops
//! `lockwork lock` from a terminal does not stop it.
//!
//! | process | shared page | socket |
//! |---|---|---|
//! | `lockwork lock` | writes the deadline after each renewal | holds one end; its death closes that end |
//! | command, between fork and exec | reads the deadline | sends its process number and waits for the answer |
//! | watchdog | reads the deadline, and ends the command when it has passed | holds the other end |
//!
//! The deadline is a time of CLOCK_BOOTTIME, which counts on while the machine is suspended: the time at which this
//! side stops trusting its lease, an eighth of the lease before the service ends it. Whichever of the two processes
//! finds first that the deadline has passed sends SIGTERM, and SIGCONT in case the command is stopped; SIGKILL follows
//! after the time that `--kill-after` sets, at most an eighth of the lease, so before the service ends it.
//!
//! *Invariants*: a command runs only when a watchdog watches it, and the watchdog ends when the command or
//! `lockwork lock` has ended. After the fork the watchdog makes system calls only: other threads of `lockwork lock` may
//! have held locks of the allocator.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long the command waits, before it starts, for the watchdog's answer.
static ANSWER_TIMEOUT: libc::timeval = libc::timeval { tv_sec: 5, tv_usec: 0 };

/// What `lockwork lock` and its watchdog share: until when the command may run.
#[derive(Debug)]
pub(super) struct Deadline {
    /// Nanoseconds of CLOCK_BOOTTIME.
    until: AtomicU64,
    /// Nanoseconds from the deadline to SIGKILL.
    kill_after: AtomicU64,
    /// When SIGKILL is due, in nanoseconds of CLOCK_BOOTTIME. 0 until somebody finds that the deadline has passed.
    kill_at: AtomicU64,
}

/// What is to be done about the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// Nothing before this time of CLOCK_BOOTTIME, in nanoseconds.
    At(u64),
    /// It has to be killed now.
    Kill,
}

impl Deadline {
    /// Makes one in memory that forked processes share, for the life of this process.
    pub(super) fn new(until: Duration, kill_after: Duration) -> io::Result<&'static Self> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: new memory that nothing else uses; the result is checked.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<Self>(), access, kind, -1, 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the page is aligned, large enough, never unmapped, and all zero, which is a value of these atomics.
        let deadline = unsafe { &*page.cast::<Self>() };
        deadline.kill_after.store(nanos(kill_after), Ordering::Relaxed);
        deadline.extend(until);
        Ok(deadline)
    }

    /// Moves the deadline, as the lease was renewed. Once it has passed, that changes nothing.
    pub(super) fn extend(&self, until: Duration) {
        self.until.store(nanos(until), Ordering::Release);
    }

    /// Ends the time of the command now: its lock is lost.
    pub(super) fn expire(&self) {
        self.until.fetch_min(now(), Ordering::AcqRel);
    }

    /// Whether somebody has found that the deadline has passed.
    pub(super) fn has_passed(&self) -> bool {
        self.kill_at.load(Ordering::Acquire) != 0
    }

    /// Whether the command may begin.
    fn is_open(&self) -> bool {
        !self.has_passed() && now() < self.until.load(Ordering::Acquire)
    }

    /// Ends the process if the deadline has passed: sends SIGTERM the first time, SIGKILL when that is due. Makes
    /// system calls only. Returns when something is due next, in nanoseconds of CLOCK_BOOTTIME.
    pub(super) fn enforce(&self, process: &Process) -> u64 {
        let due = self.due(now(), || {
            process.signal(libc::SIGTERM);
            // A stopped process would not see the other signal.
            process.signal(libc::SIGCONT);
        });
        match due {
            Due::At(time) => time,
            // After this nothing is left to do but to wait for its end.
            Due::Kill => {
                process.signal(libc::SIGKILL);
                u64::MAX
            }
        }
    }

    /// What is due at `now`. Calls `terminate` if the deadline has passed, and nobody has found that before.
    fn due(&self, now: u64, terminate: impl FnOnce()) -> Due {
        let mut kill_at = self.kill_at.load(Ordering::Acquire);
        if kill_at == 0 {
            let until = self.until.load(Ordering::Acquire);
            if now < until {
                return Due::At(until);
            }
            let at = until.saturating_add(self.kill_after.load(Ordering::Relaxed)).max(1);
            kill_at = match self.kill_at.compare_exchange(0, at, Ordering::AcqRel, Ordering::Acquire) {
                Err(other) => other,
                Ok(_) => {
                    if now < at {
                        terminate();
                    }
                    at
                }
            };
        }
        if now < kill_at { Due::At(kill_at) } else { Due::Kill }
    }
}

/// A process, which keeps its identity when its number is used again.
#[derive(Debug)]
pub(super) struct Process(OwnedFd);

impl Process {
    /// The process with this number.
    pub(super) fn open(number: libc::pid_t) -> io::Result<Self> {
        // SAFETY: a plain system call; the result is checked.
        let file = unsafe { libc::syscall(libc::SYS_pidfd_open, number, 0) };
        owned(file as libc::c_int).map(Self)
    }

    /// Sends a signal. A process that has ended gets none.
    pub(super) fn signal(&self, number: libc::c_int) {
        let info = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: a plain system call without memory of ours.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.as_raw_fd(), number, info, 0) };
    }
}

impl AsRawFd for Process {
    /// A file that can be read once the process has ended.
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The watchdog, as `lockwork lock` sees it. Dropped, it ends.
#[derive(Debug)]
pub(super) struct Watchdog {
    number: libc::pid_t,
    socket: OwnedFd,
}

impl Watchdog {
    /// Forks a watchdog, which waits for a command.
    pub(super) fn start(deadline: &'static Deadline) -> io::Result<Self> {
        let (socket, other) = pair()?;
        // SAFETY: the child makes system calls only, and never returns.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => watch(other, deadline),
            number => Ok(Self { number, socket }),
        }
    }

    /// The socket to it: for [`register`], and readable once the watchdog has ended.
    pub(super) fn socket(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Has the watchdog look at the deadline, which now is sooner.
    pub(super) fn wake(&self) {
        // SAFETY: one byte that lives during the call. If it fails, the watchdog has ended or has been told before.
        unsafe { libc::send(self.socket(), [1_u8].as_ptr().cast(), 1, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
    }

    /// Starts one for a command that runs already, and has not been waited for.
    pub(super) fn watching(deadline: &'static Deadline, command: libc::pid_t) -> io::Result<Self> {
        let watchdog = Self::start(deadline)?;
        register(watchdog.socket(), command)?;
        Ok(watchdog)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // SAFETY: a child of ours that nobody has waited for. SIGKILL ends it even while it is stopped.
        unsafe {
            libc::kill(self.number, libc::SIGKILL);
            while libc::waitpid(self.number, std::ptr::null_mut(), 0) < 0 && *libc::__errno_location() == libc::EINTR {}
        }
    }
}

/// In the command, before it begins: has the watchdog watch it. Fails if the lock's deadline has passed. Makes system
/// calls only.
pub(super) fn enter(socket: RawFd, deadline: &Deadline) -> io::Result<()> {
    // SAFETY: a plain system call.
    register(socket, unsafe { libc::getpid() })?;
    if deadline.is_open() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)) }
}

/// Sends the number of a process to the watchdog, and waits until it watches that process. Fails with EPIPE if the
/// watchdog has ended, or does not answer. Makes system calls only.
fn register(socket: RawFd, number: libc::pid_t) -> io::Result<()> {
    let bytes = number.to_ne_bytes();
    // SAFETY: the bytes live during the call.
    let sent = again(|| unsafe { libc::send(socket, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) });
    let mut answer = 0_u8;
    // SAFETY: one byte that lives during the call.
    let received = sent.and_then(|_| again(|| unsafe { libc::recv(socket, (&raw mut answer).cast(), 1, 0) }));
    if matches!(received, Ok(1)) { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EPIPE)) }
}

/// Repeats a system call that a signal has interrupted; returns what it returns.
fn again(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(result) => return Ok(result),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// Two ends of a socket that keeps the bounds of messages.
fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: two numbers that live during the call; the result is checked.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let [here, there] = ends.map(|end| {
        // SAFETY: just opened, and nobody else's.
        unsafe { OwnedFd::from_raw_fd(end) }
    });
    let (time, size) = (&raw const ANSWER_TIMEOUT, size_of_val(&ANSWER_TIMEOUT) as libc::socklen_t);
    // SAFETY: a structure that lives as long as the program.
    let set = unsafe { libc::setsockopt(here.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, time.cast(), size) };
    if set == 0 { Ok((here, there)) } else { Err(io::Error::last_os_error()) }
}

/// The watchdog's life, after the fork.
fn watch(socket: OwnedFd, deadline: &Deadline) -> ! {
    let code = match watch_until_end(socket, deadline) {
        Ok(()) => 0,
        Err(_) => 1,
    };
    // SAFETY: ends this process without handlers of the one that it was forked from.
    unsafe { libc::_exit(code) }
}

fn watch_until_end(socket: OwnedFd, deadline: &Deadline) -> io::Result<()> {
    detach(socket.as_raw_fd());
    // SAFETY: a plain system call; the result is checked.
    let timer = owned(unsafe { libc::timerfd_create(libc::CLOCK_BOOTTIME, libc::TFD_CLOEXEC) })?;
    let mut command: Option<Process> = None;
    loop {
        if let Some(command) = &command {
            set_timer(&timer, deadline.enforce(command))?;
        }
        let ended = command.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let mut polls = [socket.as_raw_fd(), ended, timer.as_raw_fd()].map(readable);
        // SAFETY: three pollfds that live during the call.
        again(|| unsafe { libc::poll(polls.as_mut_ptr(), 3, -1) as isize })?;
        if polls[1].revents != 0 {
            return Ok(());
        }
        if polls[2].revents != 0 {
            // Only the deadline tells whether its time has come.
            let mut expirations = 0_u64;
            // SAFETY: eight bytes that live during the call.
            again(|| unsafe { libc::read(timer.as_raw_fd(), (&raw mut expirations).cast(), 8) })?;
        }
        if polls[0].revents == 0 {
            continue;
        }
        let mut number = [0; 4];
        // SAFETY: four bytes that live during the call.
        let received = again(|| unsafe { libc::recv(socket.as_raw_fd(), number.as_mut_ptr().cast(), 4, 0) });
        match received {
            // The deadline was changed.
            Ok(1) => continue,
            Ok(4) => {}
            // The process that renewed the lease is gone. The kernel kills the command too, unless its program runs
            // with the rights of another user.
            _ => {
                command.iter().for_each(|command| command.signal(libc::SIGKILL));
                return Ok(());
            }
        }
        command = Some(Process::open(libc::pid_t::from_ne_bytes(number))?);
        // SAFETY: one byte that lives during the call.
        again(|| unsafe { libc::send(socket.as_raw_fd(), [1_u8].as_ptr().cast(), 1, libc::MSG_NOSIGNAL) })?;
    }
}

/// Makes a process of its own out of a forked one: out of reach of terminals and their signals, without open files but
/// `keep`, so that readers of pipes do not wait for it.
fn detach(keep: RawFd) {
    let keep = keep as libc::c_uint;
    // SAFETY: plain system calls; strings that end with zero and sets that live during the calls. Failures leave the
    // process as it was, which does no harm but to its looks.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"lock-watchdog".as_ptr());
        libc::chdir(c"/".as_ptr());
        if keep > 0 {
            libc::syscall(libc::SYS_close_range, 0, keep - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, keep + 1, libc::c_uint::MAX, 0);
    }
}

/// A poll for what can be read from a file, or for nothing if its number is negative.
pub(super) const fn readable(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Has a timer expire at a time of CLOCK_BOOTTIME, in nanoseconds; never if that is centuries away.
fn set_timer(timer: &OwnedFd, at: u64) -> io::Result<()> {
    // A time of zero would switch the timer off.
    let (at, zero) = (at.clamp(1, i64::MAX as u64), libc::timespec { tv_sec: 0, tv_nsec: 0 });
    let at = libc::timespec { tv_sec: (at / 1_000_000_000) as _, tv_nsec: (at % 1_000_000_000) as _ };
    let time = libc::itimerspec { it_interval: zero, it_value: at };
    let absolute = libc::TFD_TIMER_ABSTIME;
    // SAFETY: a structure that lives during the call.
    match unsafe { libc::timerfd_settime(timer.as_raw_fd(), absolute, &raw const time, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn owned(file: RawFd) -> io::Result<OwnedFd> {
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

/// Nanoseconds of CLOCK_BOOTTIME.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes into a structure that lives during the call. Every Linux with pidfd_open has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::Command;

    const SECOND: Duration = Duration::from_secs(1);

    fn after(time: Duration) -> Duration {
        Duration::from_nanos(now()) + time
    }

    #[test]
    fn a_command_is_terminated_once_at_its_deadline_and_killed_after_the_grace_time() {
        let deadline = Deadline::new(Duration::from_nanos(1000), Duration::from_nanos(100)).expect("memory");
        let mut terminated = 0;
        let mut due = |now| deadline.due(now, || terminated += 1);
        assert_eq!([due(0), due(999)], [Due::At(1000); 2]);
        assert_eq!([due(1000), due(1099)], [Due::At(1100); 2]);
        assert_eq!([due(1100), due(5000)], [Due::Kill; 2]);
        assert_eq!(terminated, 1);
        // A renewal that comes too late changes nothing.
        deadline.extend(Duration::from_nanos(9000));
        assert!(deadline.has_passed());
        assert_eq!(deadline.due(5000, || panic!("a second time")), Due::Kill);
    }

    #[test]
    fn a_watchdog_kills_a_stopped_command_at_its_deadline_and_ends() {
        let deadline = Deadline::new(after(SECOND / 5), SECOND / 10).expect("memory");
        let mut command = Command::new("sleep").arg("60").spawn().expect("it starts");
        let watchdog = Watchdog::watching(deadline, command.id() as libc::pid_t).expect("it is watched");
        let process = Process::open(command.id() as libc::pid_t).expect("it runs");
        process.signal(libc::SIGSTOP);
        assert_eq!(command.wait().expect("it ends").signal(), Some(libc::SIGTERM));
        assert!(deadline.has_passed());
        let mut poll = [readable(watchdog.socket())];
        // SAFETY: one pollfd that lives during the call.
        assert_eq!(unsafe { libc::poll(poll.as_mut_ptr(), 1, 30_000) }, 1, "the watchdog has ended");
    }

    #[test]
    fn a_deadline_that_is_extended_leaves_the_command_alone() {
        let deadline = Deadline::new(after(SECOND / 5), SECOND / 10).expect("memory");
        let mut command = Command::new("sleep").arg("1").spawn().expect("it starts");
        let _watchdog = Watchdog::watching(deadline, command.id() as libc::pid_t).expect("it is watched");
        deadline.extend(after(60 * SECOND));
        assert!(command.wait().expect("it ends").success());
    }

    #[test]
    fn nothing_begins_after_its_deadline() {
        let deadline = Deadline::new(after(Duration::ZERO), 60 * SECOND).expect("memory");
        let watchdog = Watchdog::start(deadline).expect("it starts");
        let mut command = Command::new("sleep");
        let socket = watchdog.socket();
        // SAFETY: what runs between fork and exec makes system calls only.
        unsafe { command.arg("60").pre_exec(move || enter(socket, deadline)) };
        // Either it finds that itself, or SIGTERM ends it before.
        if let Ok(mut command) = command.spawn() {
            assert_eq!(command.wait().expect("it ends").signal(), Some(libc::SIGTERM));
        }
    }
}
