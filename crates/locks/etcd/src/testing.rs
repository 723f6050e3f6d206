//! An etcd of a test's own: a data directory in a temporary folder, free ports, killed and started again at will.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// For how long a start may take.
const START: Duration = Duration::from_secs(20);

/// One etcd, ended on drop.
#[derive(Debug)]
pub struct Server {
    folder: TempDir,
    client_port: u16,
    peer_port: u16,
    child: Option<Child>,
}

impl Server {
    /// Starts one. Nothing, and the test is said to be skipped, if etcd is not installed.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start() -> Option<Self> {
        if Command::new("etcd").arg("--version").output().is_err() {
            lockwork_skip::skip("etcd is not installed (etcd-server)");
            return None;
        }
        // A port may be taken by somebody else between looking and starting.
        for _ in 0..5 {
            let folder = tempfile::Builder::new().prefix("lockwork-etcd").tempdir().expect("a temporary folder");
            let ports = free_ports();
            let mut server = Self { folder, client_port: ports[0], peer_port: ports[1], child: None };
            if server.try_restart() {
                return Some(server);
            }
        }
        panic!("etcd does not start");
    }

    /// `HOST:PORT`, the same after a restart.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.client_port)
    }

    /// Ends it as `kill -9` does.
    ///
    /// # Panics
    /// If the system does not let it be killed.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("etcd is killed");
            child.wait().expect("etcd ends");
        }
    }

    /// Starts it again with its data, and waits until it answers.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        self.kill();
        assert!(self.try_restart(), "etcd does not start again");
    }

    /// Starts it again without what it had stored, and waits until it answers.
    ///
    /// # Panics
    /// If it does not start.
    pub fn empty(&mut self) {
        self.kill();
        std::fs::remove_dir_all(self.folder.path().join("data")).expect("its data");
        self.restart();
    }

    /// How many range requests it has answered since it started.
    ///
    /// # Panics
    /// If its metrics do not have the number.
    #[must_use]
    pub fn range_requests(&self) -> u64 {
        let metrics = self.get("/metrics").expect("etcd answers");
        let is_range = |line: &&str| {
            line.starts_with("grpc_server_handled_total{") && line.contains("\"OK\"") && line.contains("\"Range\"")
        };
        let line = metrics.lines().find(is_range).expect("a counter of range requests");
        line.rsplit(' ').next().and_then(|number| number.parse::<f64>().ok()).expect("a number") as u64
    }

    fn try_restart(&mut self) -> bool {
        let client = format!("http://127.0.0.1:{}", self.client_port);
        let peer = format!("http://127.0.0.1:{}", self.peer_port);
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(self.folder.path().join("data"));
        command.args(["--name", "test", "--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("test={peer}"), "--log-level", "error"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("etcd starts");
        let begin = Instant::now();
        while begin.elapsed() < START && child.try_wait().is_ok_and(|ended| ended.is_none()) {
            if self.answers() {
                self.child = Some(child);
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        _ = child.kill();
        _ = child.wait();
        false
    }

    fn answers(&self) -> bool {
        self.get("/health").is_ok_and(|answer| answer.contains("\"health\":\"true\""))
    }

    /// What it answers to HTTP at `path`.
    fn get(&self, path: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.address())?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_ports() -> [u16; 2] {
    let held = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    held.map(|listener| listener.local_addr().expect("its address").port())
}
