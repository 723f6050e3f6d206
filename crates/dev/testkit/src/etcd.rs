//! An etcd server for one test, in a temporary folder and on free ports: killed, restarted and emptied at will.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a start may take.
const START: Duration = Duration::from_secs(20);

/// One etcd server, killed on drop.
#[derive(Debug)]
pub struct Server {
    folder: TempDir,
    client_port: u16,
    peer_port: u16,
    child: Option<Child>,
}

impl Server {
    /// Starts a server. Skips the test and returns `None` if etcd is not installed.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start() -> Option<Self> {
        if Command::new("etcd").arg("--version").output().is_err() {
            crate::skip("etcd is not installed (etcd-server)");
            return None;
        }
        // Another process may take a port before etcd does.
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

    /// Returns `HOST:PORT`, which stays the same after a restart.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.client_port)
    }

    /// Kills it with SIGKILL.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("etcd is killed");
            child.wait().expect("etcd ends");
        }
    }

    /// Kills it, starts it again with its data, and waits until it answers.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        self.kill();
        assert!(self.try_restart(), "etcd does not start again");
    }

    /// Kills it, starts it again without its data, and waits until it answers.
    ///
    /// # Panics
    /// If it does not start.
    pub fn empty(&mut self) {
        self.kill();
        std::fs::remove_dir_all(self.folder.path().join("data")).expect("its data");
        self.restart();
    }

    /// Returns how many range requests it has answered since it started.
    ///
    /// # Panics
    /// If its metrics lack the number.
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

    /// Returns its HTTP answer for `path`.
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
