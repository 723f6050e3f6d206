//! `lockwork serve` at a port of its own, for several tests.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Stdio};

/// A server that is killed if the test does not end it.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) port: u16,
    pub(crate) ready: String,
    errors: BufReader<ChildStderr>,
}

impl Server {
    pub(crate) fn start(words: &[&str]) -> Self {
        Self::start_with(words, &[])
    }

    /// With variables of its environment.
    pub(crate) fn start_with(words: &[&str], variables: &[(&str, &str)]) -> Self {
        let anywhere: &[&str] = if words.contains(&"--listen") { &[] } else { &["--listen", "127.0.0.1:0"] };
        let mut child = Command::new(env!("CARGO_BIN_EXE_lockwork"))
            .arg("serve")
            .args(anywhere)
            .args(words)
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let Some(port) = ready.trim_end().rsplit(' ').next().and_then(|port| port.parse().ok()) else {
            let mut why = String::new();
            errors.read_to_string(&mut why).unwrap();
            panic!("'{ready}' is no ready line; {why}");
        };
        Self { child, port, ready, errors }
    }

    /// Asks it to end, and gives its exit code; it has not panicked.
    pub(crate) fn end(mut self) -> Option<i32> {
        let asked = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(asked.success());
        let ended = self.child.wait().unwrap();
        let mut said = String::new();
        self.errors.read_to_string(&mut said).unwrap();
        assert!(!said.contains("panicked"), "{said}");
        ended.code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A program that `scripts/setup` installs or that every Debian has. Without it the calling test is skipped, which is a
/// failure if `LOCKWORK_SKIP` is `never`.
pub(crate) fn program(name: &str) -> Option<Command> {
    let version = if name == "openssl" { "version" } else { "--version" };
    let found = Command::new(name).arg(version).output().is_ok_and(|output| output.status.success());
    if !found {
        lockwork_testkit::skip(&format!("{name} is not in PATH; scripts/setup installs it"));
    }
    found.then(|| Command::new(name))
}
