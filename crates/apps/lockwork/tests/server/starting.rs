//! `lockwork serve` while it starts: it listens first, and says how far it has come.

use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::BANK;
use crate::certificates::Authority;
use crate::client::startup;
use crate::folder::{Folder, command};
use crate::server::Server;

/// Statements in a script that takes a while.
const ROWS: u64 = 100_000;
/// Within this time anything happens, also in a build without optimisation on a busy machine.
const LONG: Duration = Duration::from_secs(300);

/// A server that is killed with the test, whether or not it is ready.
struct Starting {
    child: Child,
    port: u16,
    page: String,
}

impl Starting {
    fn new(words: &[&str]) -> Self {
        let [port, page] = [free_port(), free_port()];
        let (listen, page) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{page}"));
        let mut serve = Command::new(env!("CARGO_BIN_EXE_lockwork"));
        serve.args(["serve", "--listen", &listen, "--http", &page]).args(words).stdout(Stdio::null());
        let child = serve.stderr(Stdio::null()).spawn().unwrap();
        let starting = Self { child, port, page };
        starting.until("it listens", || TcpStream::connect(("127.0.0.1", port)).ok());
        starting
    }

    fn until<T>(&self, what: &str, mut found: impl FnMut() -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = found() {
                return found;
            }
            assert!(begun.elapsed() < LONG, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The first error that a client gets, field by field; `None` if it was let in.
    fn refusal(&self) -> Option<Vec<String>> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.write_all(&startup("ann")).unwrap();
        let mut head = [0; 5];
        stream.read_exact(&mut head).unwrap();
        let mut body = vec![0; u32::from_be_bytes(head[1..].try_into().unwrap()) as usize - 4];
        stream.read_exact(&mut body).unwrap();
        let fields = body.split(|&byte| byte == 0).filter(|field| !field.is_empty());
        (head[0] == b'E').then(|| fields.map(|field| String::from_utf8_lossy(field).into_owned()).collect())
    }

    /// What /readyz answers: the status, and the text.
    fn readiness(&self) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.page).unwrap();
        write!(stream, "GET /readyz HTTP/1.1\r\nHost: {}\r\n\r\n", self.page).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap();
        (status, answer.split("\r\n\r\n").nth(1).unwrap_or_default().to_string())
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A port of one that has gone.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A folder with a script that takes a while, and its name.
fn script(folder: &Folder) -> String {
    std::fs::create_dir_all(&folder.0).unwrap();
    let mut script = String::from("CREATE TABLE a (id BIGINT PRIMARY KEY);\n");
    (0..ROWS).for_each(|id| writeln!(script, "INSERT INTO a VALUES ({id});").unwrap());
    let file = folder.0.join("init.sql");
    std::fs::write(&file, script).unwrap();
    file.to_str().unwrap().into()
}

#[test]
fn a_server_that_starts_says_so_and_how_far_it_has_come() {
    let folder = Folder::new("serve-early");
    let init = script(&folder);
    let data = folder.0.join("data").to_str().unwrap().to_string();
    let words = ["--data", &data, "--durability", "async", "--init", &init];
    let starting = Starting::new(&words);
    let fields = starting.refusal().expect("it starts");
    let expected = ["SFATAL", "C57P03", "Mthe database system is starting up"].map(str::to_string);
    assert!(expected.iter().all(|field| fields.contains(field)), "{fields:?}");
    // As soon as the script runs, its refusals say that.
    let wanted = "Drunning the statements of a new database (--init)";
    starting
        .until("the script runs", || starting.refusal().filter(|fields| fields.iter().any(|field| field == wanted)));
    let (status, text) = starting.readiness();
    assert_eq!((status, text.as_str()), (503, "starting: running the statements of a new database (--init)\n"));
    let (code, _, error) = command(&["sql", &format!("127.0.0.1:{}", starting.port), "-c", "SELECT 1"], "");
    let told = "error 57P03: the database system is starting up (running the statements";
    assert!(code == Some(3) && error.contains(told), "{error}");
    starting.until("it is ready", || Some(starting.readiness()).filter(|(status, _)| *status == 200));
    assert_eq!(starting.refusal(), None);
    drop(starting);
    // It was killed, so the log is read again.
    let starting = Starting::new(&words[..2]);
    let mut seen = Vec::new();
    starting.until("it is ready", || {
        let (status, text) = starting.readiness();
        if status == 503 && seen.last() != Some(&text) {
            seen.push(text);
        }
        (status == 200).then_some(())
    });
    let recovered =
        |text: &String| text.starts_with("recovering: recovered ") && text.contains(" %) of checkpoint and log");
    assert!(seen.iter().any(recovered), "{seen:?}");
    assert_eq!(starting.refusal(), None);
}

#[test]
fn an_address_that_is_in_use_is_found_before_anything_is_made() {
    let folder = Folder::new("serve-taken");
    let data = folder.0.to_str().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for words in [
        &["--listen", &address, "--data", data][..],
        &["--listen", "127.0.0.1:0", "--http", &address, "--data", data],
        &["--listen", &address, "--cluster", "nats://127.0.0.1:1", "--scratch", data],
    ] {
        let (code, output, error) = command(&[&["serve"], words].concat(), "");
        let told = format!("lockwork: cannot listen at {address}: Address already in use");
        assert!(code == Some(3) && output.is_empty() && error.starts_with(&told), "{words:?}: {code:?} {error}");
        assert!(error.contains("hint: end the process") && !folder.0.exists(), "{error}");
    }
}

#[test]
fn a_node_listens_before_it_reaches_the_servers_of_its_log() {
    // A server of NATS that says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("nats://{}", silent.local_addr().unwrap());
    let starting = Starting::new(&["--cluster", &url, "--allow-unsynced-log"]);
    let fields = starting.refusal().expect("it starts");
    let wanted = ["C57P03", "Mthe database system is starting up", "Dconnecting to the NATS servers of the log"];
    assert!(wanted.iter().all(|wanted| fields.iter().any(|field| field == wanted)), "{fields:?}");
    assert_eq!(starting.readiness(), (503, "starting: connecting to the NATS servers of the log\n".into()));
}

#[test]
fn a_client_that_insists_on_tls_goes_on_when_a_server_starts_or_is_full() {
    let folder = Folder::new("serve-early-tls");
    let init = script(&folder);
    let Some(authority) = Authority::new(&folder.0) else { return };
    let [certificate, key] = authority.sign("server", "IP:127.0.0.1", "2");
    let tls = ["--tls-certificate", &certificate, "--tls-key", &key];
    let starting = Starting::new(&[&tls[..], &["--init", &init]].concat());
    let full = Server::start(&[&tls[..], &["--connections", "1"]].concat());
    let _only = crate::client::Client::of(&full);
    let ready = Server::start(&[&tls[..], &["--init", BANK]].concat());
    let sql = |hosts: &[u16]| {
        let hosts: Vec<String> = hosts.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let url = format!("postgres://ann@{}/bank?sslrootcert={}", hosts.join(","), authority.file());
        command(&["sql", &url, "--output", "csv", "-c", "CALL transfer(1, 2, 1.00)"], "")
    };
    let told = starting.refusal();
    let (code, text, error) = sql(&[starting.port, ready.port]);
    assert_eq!((code, text.as_str(), error.as_str()), (Some(0), "left\n999.00\n", ""));
    assert!(told.is_some() && starting.refusal().is_some(), "it was ready too early: {told:?}");
    // This ends the search, with its reason and not for a lack of TLS.
    let (code, _, error) = sql(&[full.port, ready.port]);
    assert!(code == Some(3) && error.contains("error 53300: there are too many connections"), "{error}");
}
