//! The commands of the lock service as their users meet them: a daemon in a process of its own, and commands under its
//! locks.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::command::run;
use serde_json::Value;

/// A daemon. Dropped, it is killed.
pub(crate) struct Daemon {
    process: Child,
    output: BufReader<ChildStdout>,
    pub(crate) address: String,
    ready: String,
}

impl Daemon {
    pub(crate) fn start(options: &str) -> Self {
        Self::start_at("127.0.0.1:0", &format!("--fresh {options}"))
    }

    pub(super) fn start_at(address: &str, options: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockwork"));
        command.args(["lockd", "--udp", address]).args(options.split_whitespace());
        let mut process = command.stdout(Stdio::piped()).spawn().expect("the daemon starts");
        let mut output = BufReader::new(process.stdout.take().expect("it is piped"));
        let mut ready = String::new();
        output.read_line(&mut ready).expect("a line");
        let address = ready.strip_prefix("lockd: ready on ").and_then(|rest| rest.split(' ').next());
        let address = address.unwrap_or_else(|| panic!("no ready line: '{ready}'")).to_string();
        Self { process, output, address, ready }
    }

    /// `lockwork lock` with this service.
    pub(super) fn lock(&self, options: &str, script: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockwork"));
        command.arg("lock").args(options.split_whitespace()).args(["--server", &self.address]);
        command.args(["--", "sh", "-c", script]);
        // What is ignored stays ignored, and a shell that runs tests in the background has SIGINT ignored.
        let heard = || {
            // SAFETY: a plain system call, allowed between fork and exec.
            unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
            Ok(())
        };
        // SAFETY: as above; nothing is allocated.
        unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, heard) };
        command
    }

    pub(super) fn show(&self, lock: u64) -> Value {
        let output = run(&format!("locks show {lock} --server {} --output json", self.address));
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("one object")
    }

    /// Waits until so many hold and wait.
    pub(super) fn until(&self, lock: u64, holders: usize, waiters: usize) {
        let start = Instant::now();
        loop {
            let status = self.show(lock);
            let count = |of: &str| status[of].as_array().map(Vec::len);
            if (count("holders"), count("waiters")) == (Some(holders), Some(waiters)) {
                return;
            }
            assert!(start.elapsed() < LONG, "{status}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Daemon {
    /// Ends it as `kill -9` does.
    pub(super) fn kill(&mut self) {
        self.process.kill().expect("it is killed");
        self.process.wait().expect("it ends");
    }

    /// Its exit code, if it ends by itself in that time.
    pub(super) fn ended(&mut self, time: Duration) -> Option<i32> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().expect("it can be waited for") {
                return status.code();
            }
            if begin.elapsed() > time {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Once nobody has the address any more.
    pub(super) fn start_at_when_free(address: &str, options: &str) -> Self {
        let begin = Instant::now();
        while UdpSocket::bind(address).is_err() {
            assert!(begin.elapsed() < LONG, "somebody has {address}");
            std::thread::sleep(Duration::from_millis(1));
        }
        Self::start_at(address, options)
    }

    /// Another one in its place.
    pub(super) fn restart(&mut self, options: &str) {
        self.kill();
        *self = Self::start_at(&self.address.clone(), options);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

pub(super) const LONG: Duration = Duration::from_secs(30);

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A file of this test's own.
fn file(name: &str, content: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::write(&path, content).expect("a file");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a mode");
    path
}

/// Sends a signal by the command for it.
pub(super) fn signal(name: &str, process: &Child) {
    let status = Command::new("kill").args([name, &process.id().to_string()]).status().expect("kill is there");
    assert!(status.success());
}

pub(super) fn finish(mut process: Child) -> Output {
    let start = Instant::now();
    while process.try_wait().expect("it can be waited for").is_none() {
        assert!(start.elapsed() < LONG, "the command does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    process.wait_with_output().expect("it has ended")
}

pub(super) fn spawn(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts")
}

#[test]
fn a_command_runs_under_its_lock_with_a_token_that_grows() {
    let daemon = Daemon::start("--locks 50 --writers-first");
    assert!(daemon.ready.contains("(udp): 50 locks, writers first, lease 2000 ms, no key"), "{}", daemon.ready);
    let mut token = 0;
    for _ in 0..3 {
        let output = daemon.lock("17", "echo $LOCKWORK_LOCK $LOCKWORK_TOKEN; exit 7").output().expect("it runs");
        assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
        let line = text(&output.stdout);
        let (lock, grown) = line.trim().split_once(' ').expect("two numbers");
        let grown: u64 = grown.parse().expect("a number");
        assert!(lock == "17" && grown > token, "{line}");
        token = grown;
    }
    let killed = daemon.lock("17", "kill -9 $$").output().expect("it runs");
    assert_eq!(killed.status.code(), Some(128 + 9));
    let none = run(&format!("lock 1 --server {} -- /no/such/command", daemon.address));
    assert!(none.status.code() == Some(127) && text(&none.stderr).contains("/no/such/command"));
    let unknown = daemon.lock("50", "true").output().expect("it runs");
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("there is no lock 50: the service has 50"), "{}", text(&unknown.stderr));
}

#[test]
fn a_held_lock_is_busy_times_out_and_is_shown() {
    let daemon = Daemon::start("--locks 50");
    let holder = spawn(daemon.lock("5", "exec sleep 60"));
    daemon.until(5, 1, 0);
    for (options, message) in
        [("5 --try", "lock 5 is held by another session"), ("5 --timeout 100ms", "not granted in time")]
    {
        let refused = daemon.lock(options, "true").output().expect("it runs");
        assert_eq!(refused.status.code(), Some(1), "{options}");
        assert!(text(&refused.stderr).contains(message), "{}", text(&refused.stderr));
    }
    let waits = spawn(daemon.lock("5 --shared", "echo got it"));
    daemon.until(5, 1, 1);
    let status = daemon.show(5);
    assert!(status["holders"][0]["task"] == holder.id() && status["holders"][0]["mode"] == "exclusive", "{status}");
    assert!(status["waiters"][0]["task"] == waits.id() && status["waiters"][0]["mode"] == "shared", "{status}");
    let shown = text(&run(&format!("locks show 5 --server {}", daemon.address)).stdout);
    assert!(shown.starts_with("lock 5: exclusive, agent on machine "), "{shown}");
    let top = run(&format!("locks top --server {} --interval 50ms --output json", daemon.address));
    let top: Value = serde_json::from_slice(&top.stdout).expect("one object");
    assert!(top["busiest"][0]["lock"] == 5 && top["busiest"][0]["waiters"] == 1 && top["locks"] == 50, "{top}");
    // A signal is passed on, and the command's end is this command's.
    signal("-TERM", &holder);
    assert_eq!(finish(holder).status.code(), Some(128 + 15));
    let output = finish(waits);
    assert!(output.status.success() && text(&output.stdout) == "got it\n");
    let start = Instant::now();
    while daemon.show(5)["state"] != "free" {
        assert!(start.elapsed() < LONG, "{}", daemon.show(5));
    }
    let shown = text(&run(&format!("locks show 5 --server {}", daemon.address)).stdout);
    assert!(
        shown.starts_with("lock 5: free, no agent, ") && shown.ends_with('\n') && shown.lines().count() == 1,
        "{shown}"
    );
}

#[test]
fn who_waits_can_be_interrupted_and_waits_no_longer() {
    let daemon = Daemon::start("--locks 50");
    let holder = spawn(daemon.lock("5", "exec sleep 60"));
    daemon.until(5, 1, 0);
    let waits = spawn(daemon.lock("5", "true"));
    daemon.until(5, 1, 1);
    signal("-INT", &waits);
    assert_eq!(finish(waits).status.code(), Some(128 + 2));
    daemon.until(5, 1, 0);
    signal("-TERM", &holder);
    finish(holder);
}

/// Where a daemon's packets pass by. When the first ACQUIRE does, the process whose number comes gets SIGTERM, and its
/// packet goes on a little later.
fn relay(server: &str) -> (String, Sender<u32>) {
    use lockwork_lock_protocol::packet::{Kind, parse};
    let (number, process) = channel::<u32>();
    let bind = || UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let (clients, daemon, client) = (Arc::new(bind()), Arc::new(bind()), Arc::new(OnceLock::<SocketAddr>::new()));
    let address = clients.local_addr().expect("it is bound").to_string();
    daemon.connect(server).expect("an address");
    for socket in [&clients, &daemon] {
        socket.set_read_timeout(Some(LONG)).expect("not zero");
    }
    let back = (Arc::clone(&clients), Arc::clone(&daemon), Arc::clone(&client));
    std::thread::spawn(move || {
        let (clients, daemon, client) = back;
        let mut buffer = [0; 2048];
        while let Ok(length) = daemon.recv(&mut buffer) {
            let client = client.get().expect("it has asked");
            _ = clients.send_to(&buffer[..length], client);
        }
    });
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        let mut signalled = false;
        while let Ok((length, from)) = clients.recv_from(&mut buffer) {
            client.get_or_init(|| from);
            let acquires = parse(&buffer[..length], None).is_ok_and(|(packet, _)| packet.kind == Kind::Acquire);
            if acquires && !signalled {
                signalled = true;
                let process = process.recv().expect("the test tells").to_string();
                assert!(Command::new("kill").args(["-TERM", &process]).status().expect("kill is there").success());
                std::thread::sleep(Duration::from_millis(100));
            }
            _ = daemon.send(&buffer[..length]);
        }
    });
    (address, number)
}

#[test]
fn a_signal_before_the_command_begins_ends_it_and_the_lock_is_given_back() {
    let daemon = Daemon::start("--locks 50");
    let (address, number) = relay(&daemon.address);
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockwork"));
    command.args(["lock", "5", "--try", "--server", &address, "--", "echo", "it runs"]);
    let process = spawn(command);
    number.send(process.id()).expect("the relay waits");
    let output = finish(process);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(128 + 15), ""), "{}", text(&output.stderr));
    let start = Instant::now();
    while daemon.show(5)["state"] != "free" {
        assert!(start.elapsed() < LONG, "{}", daemon.show(5));
    }
    assert!(daemon.show(5)["token"].as_u64() > Some(0), "it was granted");
}

#[test]
fn signals_that_are_ignored_from_the_start_stay_ignored() {
    let daemon = Daemon::start("--locks 50");
    let line = format!("exec {} lock 5 --server {} -- cat", env!("CARGO_BIN_EXE_lockwork"), daemon.address);
    let mut command = Command::new("sh");
    command.args(["-c", &format!("trap '' HUP; {line}")]).stdin(Stdio::piped());
    let mut process = spawn(command);
    daemon.until(5, 1, 0);
    signal("-HUP", &process);
    std::thread::sleep(Duration::from_millis(200));
    drop(process.stdin.take());
    assert_eq!(finish(process).status.code(), Some(0));
}

#[test]
fn the_commands_exit_code_is_known_where_ends_of_children_are_ignored() {
    let daemon = Daemon::start("--locks 50");
    let mut command = daemon.lock("5", "exit 7");
    let ignore = || {
        // SAFETY: a plain system call, which is allowed between fork and exec.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        Ok(())
    };
    // SAFETY: what runs between fork and exec allocates nothing.
    let output = unsafe { command.pre_exec(ignore) }.output().expect("it runs");
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
}

#[test]
fn top_tells_how_often_is_decided_on_each_lock() {
    let daemon = Daemon::start("--locks 50");
    let holder = spawn(daemon.lock("5 --shared", "exec sleep 60"));
    daemon.until(5, 1, 0);
    let lines = format!("locks top --server {} --interval 500ms --count 3", daemon.address);
    let mut top = Command::new(env!("CARGO_BIN_EXE_lockwork"));
    top.args(lines.split(' ')).args(["--output", "json"]);
    let mut top = spawn(top);
    // Each is a reader that joins the first.
    while top.try_wait().expect("it is our child").is_none() {
        assert!(daemon.lock("5 --shared", "true").output().expect("it runs").status.success());
    }
    let output = text(&finish(top).stdout);
    let last: Value = serde_json::from_str(output.lines().last().expect("three lines")).expect("one object");
    let lock = &last["busiest"][0];
    assert!(lock["lock"] == 5 && lock["decisions_per_s"].as_f64() > Some(0.0), "{output}");
    assert!(last["grants_per_s"].as_f64() > Some(0.0) && last["decisions_per_s"].as_f64() > Some(0.0), "{output}");
    let shown = text(&run(&lines).stdout);
    assert!(shown.contains("decisions/s, ") && shown.contains("  decisions/s  "), "{shown}");
    signal("-TERM", &holder);
    finish(holder);
}

#[test]
fn the_lock_of_a_killed_holder_goes_to_who_waits_and_its_command_ends() {
    let daemon = Daemon::start("--locks 50 --lease 3s");
    let alive = file("alive", "");
    // Writes as long as it lives.
    let script = format!("while true; do echo x >> {}; sleep 0.02; done", alive.display());
    let holder = spawn(daemon.lock("5", &script));
    daemon.until(5, 1, 0);
    let waits: Vec<Child> = (0..3)
        .map(|_| spawn(daemon.lock("5", &format!("wc -c < {0}; sleep 0.1; wc -c < {0}", alive.display()))))
        .collect();
    daemon.until(5, 1, 3);
    signal("-KILL", &holder);
    finish(holder);
    for waiter in waits {
        let output = finish(waiter);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let text = text(&output.stdout);
        let mut sizes = text.split_whitespace();
        assert!(
            sizes.next().is_some_and(|size| Some(size) == sizes.next()),
            "the dead holder's command writes: {text}"
        );
    }
}

#[test]
fn a_holder_that_was_stopped_too_long_finds_its_lock_lost_and_ends_its_command() {
    let daemon = Daemon::start("--locks 50 --lease 2s");
    // With more time the command would write beside the next holder.
    let refused = daemon.lock("5 --kill-after 1s", "true").output().expect("it runs");
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("give at most 250ms"), "{}", text(&refused.stderr));
    let holder = spawn(daemon.lock("5 --kill-after 200ms", "trap '' TERM; while true; do sleep 0.05; done"));
    daemon.until(5, 1, 0);
    signal("-STOP", &holder);
    let next = daemon.lock("5 --timeout 20s", "true").output().expect("it runs");
    assert!(next.status.success(), "{}", text(&next.stderr));
    signal("-CONT", &holder);
    let output = finish(holder);
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
    let message = text(&output.stderr);
    assert!(message.contains("lock 5 is lost") && message.contains("was killed"), "{message}");
}

#[test]
fn no_service_a_busy_port_and_another_key_are_told() {
    let key = file("key", "00112233445566778899aabbccddeeff\n");
    let daemon = Daemon::start(&format!("--locks 50 --key {}", key.display()));
    assert!(daemon.ready.contains(", a key"), "{}", daemon.ready);
    let busy = run(&format!("lockd --udp {}", daemon.address));
    assert_eq!(busy.status.code(), Some(3));
    assert!(
        text(&busy.stderr).contains(&format!("cannot bind UDP address {}", daemon.address)),
        "{}",
        text(&busy.stderr)
    );

    let right = run(&format!("LOCKWORK_LOCKD={} LOCKWORK_KEY={} lock 1 -- true", daemon.address, key.display()));
    assert!(right.status.success(), "{}", text(&right.stderr));
    let other = file("other", "ffffffffffffffffffffffffffffffff");
    for line in [
        format!("lock 1 --server {} -- true", daemon.address),
        format!("lock 1 --server {} --key {} -- true", daemon.address, other.display()),
        format!("locks show 1 --server {}", daemon.address),
        format!("locks top --server {}", daemon.address),
    ] {
        let output = run(&line);
        assert_eq!(output.status.code(), Some(3), "{line}");
        assert!(text(&output.stderr).contains("with the same key?"), "{}", text(&output.stderr));
    }
    let open = file("open", "00112233445566778899aabbccddeeff\n");
    std::fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    for line in [
        format!("lockd --udp 127.0.0.1:0 --key {}", open.display()),
        format!("lock 1 --server {} --key {} -- true", daemon.address, open.display()),
    ] {
        let (output, told) = (run(&line), format!("chmod 600 {}", open.display()));
        assert!(output.status.code() == Some(2) && text(&output.stderr).contains(&told), "{}", text(&output.stderr));
    }
    let bad = file("bad", "not a key");
    let output = run(&format!("lock 1 --key {} -- true", bad.display()));
    assert!(output.status.code() == Some(2) && text(&output.stderr).contains("32 hexadecimal digits"));
    // On an address that no daemon of another test can be given.
    let closed = daemon.address.replace("127.0.0.1", "127.77.0.1");
    assert_ne!(closed, daemon.address);
    let output = run(&format!("lock 1 --server {closed} -- true"));
    let error = text(&output.stderr);
    assert!(output.status.code() == Some(3) && error.contains("the port is closed"), "{error}");
    let output = run("lock 1 --server nowhere -- true");
    assert!(output.status.code() == Some(2) && text(&output.stderr).contains("HOST:PORT"));
}

#[test]
fn a_daemon_serves_metrics_and_stops_in_good_order() {
    let mut daemon = Daemon::start("--locks 50 --metrics 127.0.0.1:0");
    let url = daemon.ready.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect("where metrics are");
    let mut stream = std::net::TcpStream::connect(url).expect("it listens");
    std::io::Write::write_all(&mut stream, b"GET /metrics HTTP/1.1\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    assert!(answer.contains("\nlockwork_lockd_locks 50\n"), "{answer}");
    let holder = spawn(daemon.lock("5", "exec sleep 60"));
    daemon.until(5, 1, 0);
    signal("-TERM", &daemon.process);
    assert!(daemon.process.wait().expect("it ends").success());
    let mut rest = String::new();
    daemon.output.read_to_string(&mut rest).expect("its output ends");
    assert_eq!(rest, "", "one line on standard output");
    let output = finish(holder);
    assert!(output.status.code() == Some(4) && text(&output.stderr).contains("is lost"), "{}", text(&output.stderr));
}

#[test]
fn an_address_that_other_hosts_reach_needs_a_key() {
    let key = file("reachable", "00112233445566778899aabbccddeeff\n");
    for line in ["lockd --fresh --udp 0.0.0.0:0", "lockd --fresh --udp [::]:0", "lockd --fresh --udp 192.0.2.1:7499"] {
        let output = run(line);
        let told = text(&output.stderr);
        assert!(output.status.code() == Some(2) && output.stdout.is_empty(), "{line}: {told}");
        assert!(told.contains("--key FILE") && told.contains("(umask 077; head -c 16 /dev/urandom"), "{line}: {told}");
    }
    // The port is taken, so each of these ends by itself when it has come so far.
    let taken = UdpSocket::bind("[::]:0").or_else(|_| UdpSocket::bind("0.0.0.0:0")).expect("a port");
    let port = taken.local_addr().expect("an address").port();
    for address in ["0.0.0.0", "127.0.0.1", "localhost"] {
        let with = if address == "0.0.0.0" { format!(" --key {}", key.display()) } else { String::new() };
        let output = run(&format!("lockd --fresh --udp {address}:{port}{with}"));
        let told = text(&output.stderr);
        assert!(output.status.code() == Some(3) && told.contains("cannot bind UDP address"), "{address}: {told}");
    }
}

#[test]
fn mistakes_are_named() {
    let key = file("mistakes", "00112233445566778899aabbccddeeff\n");
    let elsewhere = format!("lockd --udp 192.0.2.1:7499 --key {}", key.display());
    for (line, message) in [
        ("lockd --lease 1ms --udp 127.0.0.1:0", "100 ms to 1 hour"),
        ("lockd --lease soon", "such as 500ms"),
        ("lockd --lease 99999999999s", "'99999999999s' is too long"),
        ("LOCKWORK_LOCKD=foo locks top", "LOCKWORK_LOCKD: 'foo' is no address"),
        ("LOCKWORK_LOCKD=foo lock 1 -- true", "LOCKWORK_LOCKD: 'foo' is no address"),
        ("lock 1 --server foo -- true", "--server: 'foo' is no address"),
        ("LOCKWORK_KEY=/no/key locks top", "LOCKWORK_KEY: key file /no/key"),
        ("lockd --udp 7400", "HOST:PORT"),
        ("lockd --locks 0", "0 is not in"),
        ("lockd --xdp no-such-interface --udp 127.0.0.1:7499", "no-such-interface"),
        ("lockd --xdp lo --tc lo", "cannot be used with"),
        ("lockd --xdp lo --udp 0.0.0.0:7499", "the one address that clients ask"),
        ("lockd --tc lo --udp [::1]:7499", "only IPv4"),
        ("lockd --tc lo --udp 127.0.0.1:0", "the port must be given"),
        ("lock -- true", "<NAME>"),
        ("lock 1", "<COMMAND>"),
        ("lock 1 --try --timeout 1s -- true", "cannot be used with"),
        ("lock 99999999999999999999 -- true", "numbered from 0"),
        ("lock -1 -- true", "numbered from 0"),
        ("lock 1 --kill-after -1 -- true", "such as 500ms"),
        ("locks show -1", "numbered from 0"),
        ("locks top --interval 0", "at least 10ms"),
        ("locks top --count 0", "0 is not in"),
        (elsewhere.as_str(), "an interface of this machine"),
    ] {
        let output = run(line);
        let error = text(&output.stderr);
        assert!(matches!(output.status.code(), Some(2 | 3 | 6)) && error.contains(message), "{line}: {error}");
    }
}
