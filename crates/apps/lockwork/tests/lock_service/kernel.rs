//! `lockwork lockd --xdp` and `--tc` as their users meet them: the daemon in one network namespace, commands in others.
//!
//! Tests whose names begin with `privileged` need root. Elsewhere they say that they are skipped.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use crate::command::run;
use lockwork_lock_protocol::packet::Key;
use lockwork_locks::namespace::{Machine, Namespace, Network, NetworkError};
use lockwork_testkit::{or_skip, skip};
use serde_json::Value;

const COMMAND: &str = env!("CARGO_BIN_EXE_lockwork");
pub(super) const SERVICE: &str = "10.76.0.1:7400";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The key that the daemon needs at an address which other hosts reach.
pub(super) const KEY: Key = Key([0x5A; 16]);

/// A file with it.
pub(super) fn key_file() -> &'static Path {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("kernel-key-{}", std::process::id()));
        std::fs::write(&path, KEY.0).expect("a file");
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("it is ours");
        path
    })
}

/// The command in a namespace, with the key.
fn within(namespace: &Namespace, line: &str) -> Command {
    let mut command = Command::new("ip");
    command.env("LOCKWORK_KEY", key_file());
    command.args(["netns", "exec", namespace.name(), COMMAND]).args(line.split_whitespace());
    command
}

/// A daemon in the decider's namespace. Dropped, it is stopped in good order, so that nothing stays attached.
pub(super) struct Daemon {
    process: Child,
    pub(super) ready: String,
}

impl Daemon {
    fn start(network: &Network, options: &str) -> Option<Self> {
        Self::start_at(network, &format!("--udp {SERVICE} {options}"))
    }

    fn start_at(network: &Network, options: &str) -> Option<Self> {
        Self::start_with(network, &format!("--fresh --locks 50 {options}"))
    }

    pub(super) fn start_with(network: &Network, options: &str) -> Option<Self> {
        let mut command = within(&network.switch, &format!("lockd {options}"));
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("ip is installed");
        let mut ready = String::new();
        BufReader::new(process.stdout.take().expect("it is piped")).read_line(&mut ready).expect("a line");
        if ready.is_empty() {
            let mut error = String::new();
            process.stderr.take().expect("it is piped").read_to_string(&mut error).expect("text");
            process.wait().expect("it has ended");
            assert!(error.contains("CAP_NET_ADMIN"), "{error}");
            skip(&error);
            return None;
        }
        Some(Self { process, ready })
    }

    /// Ends it as `kill -9` does, and gives what it wrote to standard error.
    pub(super) fn kill(mut self) -> String {
        self.process.kill().expect("it is killed");
        let mut error = String::new();
        self.process.stderr.take().expect("it is piped").read_to_string(&mut error).expect("text");
        self.process.wait().expect("it ends");
        error
    }

    /// Stops it, and gives what it wrote to standard error.
    fn stop(mut self) -> String {
        self.terminate();
        let mut error = String::new();
        self.process.stderr.take().expect("it is piped").read_to_string(&mut error).expect("text");
        assert!(self.process.wait().expect("it ends").success(), "{error}");
        error
    }

    fn terminate(&self) {
        _ = Command::new("kill").args(["-TERM", &self.process.id().to_string()]).status();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            self.terminate();
            _ = self.process.wait();
        }
    }
}

fn at(machine: &Machine, line: &str) -> Output {
    within(&machine.namespace, line).output().expect("ip is installed")
}

fn show(machine: &Machine, lock: u64) -> Value {
    let output = at(machine, &format!("locks show {lock} --server {SERVICE} --output json"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one object")
}

fn serves(hook: &str, name: &str) {
    let Some(network) = or_skip(Network::new(2), NetworkError::is_unavailable) else { return };
    let ports = [1, 2].map(Network::port).join(" ");
    let Some(daemon) = Daemon::start(&network, &format!("--writers-first --{hook} {ports}")) else { return };
    let decides = format!("lockd: ready on {SERVICE} ({name} on port1, {name} on port2): 50 locks, writers first");
    assert!(daemon.ready.starts_with(&decides), "{}", daemon.ready);
    let [here, there] = &network.machines[..] else { panic!("two machines") };
    // Whoever holds the lock asks, from where it is, who does; and another machine finds it busy.
    let inner = format!("{COMMAND} locks show 5 --server {SERVICE} --output json");
    let held = at(here, &format!("lock 5 --server {SERVICE} -- {inner}"));
    assert!(held.status.success(), "{}", text(&held.stderr));
    let held: Value = serde_json::from_slice(&held.stdout).expect("one object");
    assert!(held["state"] == "exclusive" && held["holders"][0]["mode"] == "exclusive", "{held}");
    let mut holder = within(&here.namespace, &format!("lock 6 --server {SERVICE} -- cat"));
    let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("ip is installed");
    // The line comes back when the lock is held.
    let mut input = holder.stdin.take().expect("it is piped");
    input.write_all(b"held\n").expect("it reads");
    let mut line = String::new();
    BufReader::new(holder.stdout.take().expect("it is piped")).read_line(&mut line).expect("it writes");
    assert_eq!(line, "held\n");
    let busy = at(there, &format!("lock 6 --server {SERVICE} --try -- true"));
    assert_eq!(busy.status.code(), Some(1), "{}", text(&busy.stderr));
    let status = show(there, 6);
    assert_eq!(status["holders"].as_array().map(Vec::len), Some(1), "{status}");
    let waits =
        within(&there.namespace, &format!("lock 6 --server {SERVICE} -- echo mine")).stdout(Stdio::piped()).spawn();
    drop(input);
    let output = waits.expect("ip is installed").wait_with_output().expect("it ends");
    assert!(output.status.success() && text(&output.stdout) == "mine\n");
    assert!(holder.wait().expect("it ends").success());
    // What the kernel decides on is part of the rates.
    let top = within(&there.namespace, &format!("locks top --server {SERVICE} --interval 500ms --output json"));
    let mut top = { top }.stdout(Stdio::piped()).spawn().expect("ip is installed");
    while top.try_wait().expect("it is our child").is_none() {
        assert!(at(here, &format!("lock 6 --server {SERVICE} -- true")).status.success());
    }
    let top = text(&top.wait_with_output().expect("it has ended").stdout);
    let rates: Value = serde_json::from_str(&top).expect("one object");
    assert!(rates["decisions_per_s"].as_f64() > Some(0.0) && rates["grants_per_s"].is_null(), "{rates}");
    let shown = text(&at(there, &format!("locks show 7 --server {SERVICE}")).stdout);
    assert!(shown.starts_with("lock 7: free, no agent, incarnation 0, token "), "{shown}");
    let noted = daemon.stop();
    let attached = |port: &str| noted.contains(&format!(" {name} on {port}\n"));
    assert!(attached("port1") && attached("port2"), "{noted}");
}

#[test]
fn privileged_commands_in_namespaces_are_served_by_native_xdp() {
    serves("xdp", "native XDP");
}

#[test]
fn privileged_commands_in_namespaces_are_served_by_tc() {
    serves("tc", "TC ingress");
}

/// Runs `ip` in a namespace.
fn ip(namespace: &Namespace, line: &str) {
    let output = Command::new("ip").args(["-n", namespace.name()]).args(line.split(' ')).output();
    let output = output.expect("ip is installed");
    assert!(output.status.success(), "ip {line}: {}", text(&output.stderr));
}

#[test]
fn privileged_a_machine_whose_hardware_address_changes_is_reached_again() {
    let Some(network) = or_skip(Network::new(2), NetworkError::is_unavailable) else { return };
    let Some(_daemon) = Daemon::start(&network, "--xdp port1 port2 --lease 2s") else { return };
    let [here, there] = &network.machines[..] else { panic!("two machines") };
    let mut holder = within(&here.namespace, &format!("lock 6 --server {SERVICE} -- cat"));
    let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("ip is installed");
    let mut input = holder.stdin.take().expect("it is piped");
    input.write_all(b"held\n").expect("it reads");
    BufReader::new(holder.stdout.take().expect("it is piped")).read_line(&mut String::new()).expect("it writes");
    let (other, own) = ("02:4c:4b:09:09:09", here.near.address);
    ip(&here.namespace, &format!("link set dev {} address {other}", here.interface()));
    let far = here.far.mac.map(|byte| format!("{byte:02x}")).join(":");
    let (decider, uplink) = (here.far.address, here.interface());
    ip(&here.namespace, &format!("neighbour replace {decider} lladdr {far} nud permanent dev {uplink}"));
    ip(&network.switch, &format!("neighbour replace {own} lladdr {other} nud permanent dev port1"));
    // It renews its session in this time.
    std::thread::sleep(std::time::Duration::from_secs(2));
    // The kernel sends the request on to the holder's machine.
    let busy = at(there, &format!("lock 6 --server {SERVICE} --timeout 1s -- true"));
    assert_eq!(busy.status.code(), Some(1), "{}", text(&busy.stderr));
    let waits = within(&there.namespace, &format!("lock 6 --server {SERVICE} --timeout 10s -- echo mine"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("ip is installed");
    let start = std::time::Instant::now();
    while show(there, 6)["waiters"].as_array().map(Vec::len) != Some(1) {
        assert!(start.elapsed().as_secs() < 10, "the request does not arrive: {}", show(there, 6));
    }
    drop(input);
    assert_eq!(text(&waits.wait_with_output().expect("it ends").stdout), "mine\n");
    assert!(holder.wait().expect("it ends").success());
}

#[test]
fn privileged_the_address_that_the_kernel_looks_for_is_one_that_packets_can_have() {
    let Some(network) = or_skip(Network::new(2), NetworkError::is_unavailable) else { return };
    let Some(daemon) = Daemon::start_at(&network, "--xdp port1 port2") else { return };
    assert!(daemon.ready.starts_with("lockd: ready on 10.76.0.1:7400 (native XDP on port1, "), "{}", daemon.ready);
    let output = at(&network.machines[0], "lock 1 --server 10.76.0.1:7400 -- true");
    assert!(output.status.success(), "{}", text(&output.stderr));
    ip(&network.switch, "link add bare type veth peer name bare2");
    for (options, error) in [
        ("--udp 127.0.0.1:7401 --xdp port1", "such as 10.76.0.1:7401"),
        ("--udp 0.0.0.0:7401 --tc port1", "the one address that clients ask"),
        ("--tc bare", "interface 'bare' has no IPv4 address"),
        ("--udp 127.0.0.1:7401 --tc bare", "such as HOST:7401"),
        ("--tc port1 lo", "'port1' has address 10.76.0.1, and 'lo' has 127.0.0.1"),
    ] {
        let output = within(&network.switch, &format!("lockd --locks 50 {options}")).output().expect("it runs");
        let told = text(&output.stderr);
        assert!(output.status.code() == Some(2) && told.contains(error), "{options}: {told}");
    }
    // Nobody serves other hosts without a key.
    for options in ["--xdp port1 port2", "--udp 10.76.0.1:7401 --tc port1"] {
        let mut open = within(&network.switch, &format!("lockd --locks 50 {options}"));
        let output = open.env_remove("LOCKWORK_KEY").output().expect("it runs");
        let told = text(&output.stderr);
        assert!(output.status.code() == Some(2) && told.contains("--key FILE"), "{options}: {told}");
    }
    // A second daemon by mistake decides on nothing.
    let second = within(&network.switch, "lockd --locks 50 --tc port1").output().expect("it runs");
    let told = text(&second.stderr);
    assert!(second.status.code() == Some(3) && told.contains("cannot bind UDP address 10.76.0.1:7400"), "{told}");
    assert!(!told.contains("TC ingress"), "{told}");
}

#[test]
fn privileged_interfaces_that_are_not_there_or_without_native_xdp_are_told() {
    let Some(network) = or_skip(Network::new(2), NetworkError::is_unavailable) else { return };
    // Loopback has no XDP of its own.
    let Some(daemon) = Daemon::start(&network, "--xdp lo") else { return };
    assert!(daemon.ready.contains("(generic XDP on lo)"), "{}", daemon.ready);
    let output = within(&network.switch, &format!("lock 1 --server {SERVICE} -- true")).output().expect("it runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let noted = daemon.stop();
    assert!(noted.contains(" generic XDP (the driver has no native XDP) on lo\n"), "{noted}");
    for hook in ["xdp", "tc"] {
        let line = format!("lockd --udp {SERVICE} --locks 50 --{hook} port1 no-such-one");
        let output = within(&network.switch, &line).output().expect("it runs");
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("'no-such-one'") && error.contains("port1") && output.stdout.is_empty(), "{error}");
    }
    // What was attached first is not any more.
    let Some(daemon) = Daemon::start(&network, "--xdp port1") else { return };
    assert!(daemon.ready.contains("(native XDP on port1)"), "{}", daemon.ready);
}

#[test]
fn privileged_without_rights_the_error_says_which_are_needed() {
    // SAFETY: it has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        let output = run("lockd --udp 127.0.0.1:7411 --locks 50 --xdp lo");
        refused(&output);
        return;
    }
    // A copy where everybody may run it.
    let copy = std::env::temp_dir().join(format!("lockwork-nobody-{}", std::process::id()));
    std::fs::copy(COMMAND, &copy).expect("there is room");
    let ids = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut command = Command::new("setpriv");
    command.args(ids).arg(&copy).args("lockd --udp 127.0.0.1:7411 --locks 50 --xdp lo".split(' '));
    let output = command.output();
    std::fs::remove_file(&copy).expect("it is there");
    match output {
        Ok(output) => refused(&output),
        Err(error) => skip(&format!("setpriv: {error}")),
    }
}

fn refused(output: &Output) {
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(6), "{error}");
    assert!(error.contains("CAP_NET_ADMIN") && error.contains("root") && output.stdout.is_empty(), "{error}");
}
