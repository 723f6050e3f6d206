//! What `lockwork serve --http` shows: to Prometheus, to load balancers, and to people with a browser.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::BANK;
use crate::server::{Server, program};

/// A server and the address of its page.
fn watched(words: &[&str]) -> (Server, String) {
    let server = Server::start(&[&["--http", "127.0.0.1:0", "--init", BANK], words].concat());
    let page = server.ready.split("http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap().to_string();
    (server, page)
}

/// Everything that bytes are answered with.
fn sent(page: &str, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(page).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // Who answers early may have hung up.
    drop(stream.write_all(bytes));
    let mut answer = String::new();
    drop(stream.read_to_string(&mut answer));
    answer
}

fn get(page: &str, path: &str) -> String {
    sent(page, format!("GET {path} HTTP/1.1\r\nHost: {page}\r\n\r\n").as_bytes())
}

/// The value of a line of /metrics.
fn metric(text: &str, name: &str) -> f64 {
    let line =
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap_or_else(|| panic!("{text}"));
    line.parse().unwrap()
}

/// Whether psql, which the caller has found, succeeds with this statement.
fn psql(server: &Server, statement: &str) -> bool {
    let port = server.port.to_string();
    let mut psql = Command::new("psql");
    psql.args(["-h", "127.0.0.1", "-p", &port, "-X", "-c", statement, "bank"]).output().unwrap().status.success()
}

#[test]
fn what_is_done_is_counted() {
    let Some(_) = program("psql") else { return };
    let (server, page) = watched(&[]);
    assert!(get(&page, "/healthz").ends_with("alive\n") && get(&page, "/readyz").starts_with("HTTP/1.1 200 OK"));
    for (statement, good) in [
        ("CALL transfer(1, 2, 1.00)", true),
        ("CALL transfer(2, 1, 1.00)", true),
        ("CALL transfer(1, 2, 1000000.00)", false),
        ("SELECT balance FROM accounts WHERE id = 1", true),
        ("SELECT \"no\nname\" FROM accounts WHERE id = 1", false),
        ("INSERT INTO accounts VALUES (1, 987654.00)", false),
        ("INSERT INTO accounts VALUES (2, 987654.00)", false),
        ("INSERT INTO accounts VALUES (3, 98765432109876543.21)", false),
    ] {
        assert_eq!(psql(&server, statement), good, "{statement}");
    }
    // That the last one has gone is found out soon, not at once.
    let mut text = get(&page, "/metrics");
    for _ in 0..100 {
        if metric(&text, "lockwork_connections") == 0.0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
        text = get(&page, "/metrics");
    }
    for (name, value) in [
        ("lockwork_ready", 1.0),
        ("lockwork_connections", 0.0),
        ("lockwork_connections_accepted_total", 8.0),
        ("lockwork_statements_total{kind=\"call\"}", 2.0),
        ("lockwork_statements_total{kind=\"select\"}", 1.0),
        ("lockwork_failures_total{what=\"transfer\",sqlstate=\"BK001\",message=\"not enough money\"}", 1.0),
        ("lockwork_failures_total{what=\"select\",sqlstate=\"42703\",message=\"\"}", 1.0),
    ] {
        assert_eq!(metric(&text, name), value, "{name}");
    }
    assert_eq!(
        metric(&text, "lockwork_statement_duration_seconds_count"),
        metric(&text, "lockwork_statement_duration_seconds_bucket{le=\"+Inf\"}")
    );
    // A cause is its kind and table: two keys make one, and values are nobody's business here.
    let causes: Vec<&str> = text.lines().filter(|line| line.contains("failures_total{what=\"insert\"")).collect();
    assert!(causes.iter().any(|line| line.contains("23505") && line.ends_with("(accounts)\"} 2")), "{causes:?}");
    assert!(!text.contains("98765"), "{causes:?}");
    assert!(metric(&text, "lockwork_resident_memory_bytes") > 1e6 && metric(&text, "lockwork_calls_total") >= 4.0);
    let body = text.split("\r\n\r\n").nth(1).unwrap();
    let is_line = |line: &str| {
        line.starts_with("# ") || line.rsplit_once(' ').is_some_and(|(_, value)| value.parse::<f64>().is_ok())
    };
    assert!(body.lines().all(is_line), "{body}");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn odd_requests_are_answered_and_disturb_nobody() {
    let (server, page) = watched(&[]);
    let idle: Vec<_> = (0..15).map(|_| TcpStream::connect(&page).unwrap()).collect();
    for (bytes, expected) in [
        (&b"GET /nothing HTTP/1.1\r\n\r\n"[..], "HTTP/1.1 404"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n", "HTTP/1.1 405"),
        (b"HEAD / HTTP/1.1\r\n\r\n", "HTTP/1.1 200"),
        (b"nonsense\r\n\r\n", "HTTP/1.1 400"),
        (b"\xff\xfe\r\n\r\n", "HTTP/1.1 400"),
    ] {
        assert!(sent(&page, bytes).starts_with(expected), "{}", String::from_utf8_lossy(bytes));
    }
    for (host, expected) in [
        ("Host: localhost", "200"),
        ("Host: LOCALHOST:9433", "200"),
        ("Host: 127.0.0.1:1", "200"),
        ("Host: [::1]:9433", "200"),
        ("Host: attacker.example", "421"),
        ("Host: attacker.example:9433", "421"),
        ("Host: 127.0.0.1.attacker.example", "421"),
        ("Host: localhost\r\nHost: attacker.example", "421"),
    ] {
        for path in ["/", "/metrics", "/status.json", "/healthz"] {
            let answer = sent(&page, format!("GET {path} HTTP/1.1\r\n{host}\r\n\r\n").as_bytes());
            assert!(answer.starts_with(&format!("HTTP/1.1 {expected}")), "{host} {path}: {answer}");
            assert!(expected == "200" || answer.contains("ask for localhost"), "{answer}");
        }
    }
    let absolute = b"GET http://attacker.example/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert!(sent(&page, absolute).starts_with("HTTP/1.1 421"));
    let giant = [b"GET / HTTP/1.1\r\nX: ", vec![b'x'; 1 << 20].as_slice(), b"\r\n\r\n"].concat();
    assert!(!sent(&page, &giant).contains("200 OK"));
    drop(idle);
    // A client that sends nothing, sends half a request, or does not read the answer delays no other one.
    let slow: Vec<_> = (0..300)
        .map(|at| {
            let mut stream = TcpStream::connect(&page).unwrap();
            let asks: [&[u8]; 3] = [b"", b"GET / HTTP/1.1\r\nHost: x\r\n", b"GET / HTTP/1.1\r\n\r\n"];
            drop(stream.write_all(asks[at % 3]));
            stream
        })
        .collect();
    let begun = Instant::now();
    for path in ["/healthz", "/readyz", "/metrics", "/"] {
        assert!(get(&page, path).starts_with("HTTP/1.1 200"), "{path}");
    }
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    drop(slow);
    let _more: Vec<_> = (0..40).map(|_| TcpStream::connect(&page).unwrap()).collect();
    assert!(get(&page, "/healthz").ends_with("alive\n"));
    let (code, said) = refused(&["--http", "0.0.0.0:0"]);
    assert!(code == Some(2) && said.contains("can be reached from other machines"), "{said}");
    let (code, said) = refused(&["--http", &page]);
    assert!(code == Some(3) && said.contains(&page), "{said}");
    assert_eq!(server.end(), Some(0));
}

fn refused(words: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockwork"));
    let output = command.args(["serve", "--listen", "127.0.0.1:0"]).args(words).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn keys_are_shown_only_where_that_was_asked_for() {
    for (words, shown) in [(&[][..], "[[\"accounts\",null,0.5],[\"accounts\",null,0.5]]"), (&["--http-keys"], "")] {
        let (server, page) = watched(words);
        let mut client = crate::client::Client::of(&server);
        for _ in 0..130 {
            client.query("CALL transfer(1, 2, 0.01)").unwrap();
        }
        let status = get(&page, "/status.json");
        let shown = if shown.is_empty() { "[[\"accounts\",\"1\",0.5],[\"accounts\",\"2\",0.5]]" } else { shown };
        assert!(status.contains(&format!("\"hot\":{shown}")), "{words:?}: {status}");
        assert_eq!(server.end(), Some(0));
    }
}

#[test]
fn other_machines_see_the_page_with_its_token_only() {
    let Some(host) = crate::tls::far() else { return };
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "a-token-of-the-page\n").unwrap();
    std::fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let http = format!("{host}:0");
    let (code, said) = refused(&["--http", &http]);
    assert!(code == Some(2) && said.contains("--http-token FILE"), "{said}");
    let server = Server::start(&["--http", &http, "--http-token", token.to_str().unwrap()]);
    let page = server.ready.split("http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap().to_string();
    let ask = |path: &str, header: &str| {
        sent(&page, format!("GET {path} HTTP/1.1\r\nHost: {page}\r\n{header}\r\n").as_bytes())
    };
    // YTphLXRva2VuLW9mLXRoZS1wYWdl is a:a-token-of-the-page.
    let right =
        ["Authorization: Bearer a-token-of-the-page\r\n", "Authorization: Basic YTphLXRva2VuLW9mLXRoZS1wYWdl\r\n"];
    for path in ["/", "/metrics", "/status.json"] {
        for header in ["", "Authorization: Bearer a-token-of-the-pagf\r\n", "Authorization: Basic YTph\r\n"] {
            let answer = ask(path, header);
            assert!(answer.starts_with("HTTP/1.1 401") && !answer.contains("lockwork_"), "{path} {header}: {answer}");
            assert!(answer.contains("www-authenticate: Basic realm"), "{answer}");
        }
        for header in right {
            assert!(ask(path, header).starts_with("HTTP/1.1 200"), "{path} {header}");
        }
    }
    // Health checks need no token.
    assert!(ask("/healthz", "").starts_with("HTTP/1.1 200") && ask("/readyz", "").starts_with("HTTP/1.1 200"));
    assert_eq!(server.end(), Some(0));
}

#[test]
fn other_machines_ask_for_the_page_by_tls_where_there_is_a_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let authority = crate::certificates::Authority::new(folder.path());
    let (Some(authority), Some(host), Some(mut python)) = (authority, crate::tls::far(), program("python3")) else {
        return;
    };
    let token = folder.path().join("token");
    std::fs::write(&token, "a-token-of-the-page\n").unwrap();
    std::fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let [certificate, key] = authority.sign("page", &format!("IP:{host}"), "2");
    let words = ["--http", &format!("{host}:0"), "--http-token", token.to_str().unwrap()];
    let server = Server::start(&[&words[..], &["--tls-certificate", &certificate, "--tls-key", &key]].concat());
    let page = server.ready.split("https://").nth(1).and_then(|rest| rest.split('/').next()).unwrap().to_string();
    let ask = "import ssl, sys, urllib.request as r\n\
               page = r.Request(sys.argv[1], headers={'Authorization': 'Bearer a-token-of-the-page'})\n\
               opener = r.build_opener(r.ProxyHandler({}), r.HTTPSHandler(context=ssl.create_default_context(cafile=sys.argv[2])))\n\
               print(opener.open(page).read().decode())";
    let asked = python.args(["-c", ask, &format!("https://{page}/metrics"), &authority.file()]).output().unwrap();
    let answer = String::from_utf8_lossy(&asked.stdout);
    assert!(answer.contains("lockwork_ready 1"), "{answer} {}", String::from_utf8_lossy(&asked.stderr));
    assert!(!get(&page, "/metrics").contains("lockwork_"), "in the clear");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_browser_shows_what_happens() {
    let (Some(mut chromium), Some(_)) = (program("chromium"), program("psql")) else { return };
    let (server, page) = watched(&["--http-keys"]);
    assert!(!psql(&server, "CALL transfer(1, 2, 1000000.00)"), "the overdraft is accepted");
    assert!(psql(&server, &"CALL transfer(1, 2, 0.01);".repeat(130)));
    let folder = tempfile::tempdir().unwrap();
    let profile = format!("--user-data-dir={}", folder.path().display());
    let shown = chromium
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", &profile, "--dump-dom"])
        .arg(format!("http://{page}/"))
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout);
    for expected in [
        "<span id=\"state\" role=\"status\" class=\"ready\">ready</span>",
        "<td>transfer</td><td>BK001</td><td>not enough money</td><td>1</td>",
        "<td>accounts</td><td>1</td><td>50.0 %</td>",
        "<td>accounts</td><td>2</td><td>50.0 %</td>",
        "id=\"line-calls\" points=\"1",
    ] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
    assert_eq!(server.end(), Some(0));
}
