//! `lockwork sql ADDR` over TLS: what is encrypted, whom it trusts, and what it says when it does not.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};

use crate::BANK;
use crate::certificates::{Authority, Pair};
use crate::folder::{Folder, command};
use crate::server::Server;

const CALL: &str = "CALL transfer(1, 2, 1.00)";

/// A server with a certificate.
fn serve([certificate, key]: &Pair, more: &[&str]) -> Server {
    let server = Server::start(&[&["--init", BANK, "--tls-certificate", certificate, "--tls-key", key], more].concat());
    assert!(server.ready.starts_with("ready: "));
    server
}

/// Calls a procedure at a URL, with variables; gives the exit code and what is wrong.
fn call(url: &str, variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockwork"));
    for name in ["PGSSLMODE", "PGSSLROOTCERT", "SSL_CERT_FILE", "SSL_CERT_DIR", "PGPASSWORD", "LOCKWORK_PASSWORD"] {
        command.env_remove(name);
    }
    let command = command.args(["sql", url, "-c", CALL]).envs(variables.iter().copied()).stdin(Stdio::null());
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// A URL without its scheme, variables, the exit code, and words of the error.
type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], i32, &'a [&'a str]);

/// What each of some connections comes to.
fn each(server: &Server, cases: &[Case<'_>]) {
    for (place, variables, code, words) in cases {
        let url = format!("postgres://{}", place.replace("PORT", &server.port.to_string()));
        let (found, error) = call(&url, variables);
        assert_eq!(found, Some(*code), "{url} {variables:?}: {error}");
        assert!(words.iter().all(|word| error.contains(word)), "{url}: {error}");
        assert!(!error.is_empty() || *code == 0);
    }
}

#[test]
fn a_certificate_is_trusted_by_who_signed_it_and_by_its_name() {
    let folder = Folder::new("sql-tls");
    let Some(authority) = Authority::new(&folder.0.join("one")) else { return };
    let other = Authority::new(&folder.0.join("other")).unwrap();
    let (file, stranger) = (authority.file(), other.file());
    let good = serve(&authority.sign("good", "IP:127.0.0.1,DNS:localhost", "2"), &[]);
    let full = format!("127.0.0.1:PORT?sslmode=verify-full&sslrootcert={file}");
    let foreign = format!("127.0.0.1:PORT?sslmode=verify-ca&sslrootcert={stranger}");
    let require = format!("127.0.0.1:PORT?sslmode=require&sslrootcert={stranger}");
    let unsaid = format!("127.0.0.1:PORT?sslrootcert={stranger}");
    let untrusted: &[&str] = &["signed by nobody whom", "trusts\nhint: sslrootcert=FILE"];
    each(
        &good,
        &[
            (&full, &[], 0, &[]),
            (&full.replace("127.0.0.1", "localhost"), &[], 0, &[]),
            ("localhost:PORT", &[("PGSSLMODE", "verify-full"), ("PGSSLROOTCERT", &file)], 0, &[]),
            ("localhost:PORT", &[("PGSSLROOTCERT", &file)], 0, &[]),
            ("localhost:PORT?sslmode=verify-full&sslrootcert=system", &[("SSL_CERT_FILE", &file)], 0, &[]),
            // Nothing is verified.
            ("127.0.0.1:PORT", &[], 0, &[]),
            ("127.0.0.1:PORT?sslmode=require", &[], 0, &[]),
            ("127.0.0.1:PORT?sslmode=disable", &[("PGSSLMODE", "nonsense")], 0, &[]),
            // A stranger's certificate.
            (&foreign, &[], 3, untrusted),
            (&require, &[], 3, &[&stranger]),
            (&unsaid, &[], 3, untrusted),
            ("localhost:PORT?sslmode=verify-full", &[("SSL_CERT_FILE", &stranger)], 3, &["this system trusts"]),
            // What cannot be.
            ("127.0.0.1:PORT", &[("PGSSLMODE", "allow")], 2, &["sslmode is 'allow'", "hint: there are disable, pre"]),
            ("127.0.0.1:PORT?sslrootcert=/nowhere.pem", &[], 2, &["sslrootcert: /nowhere.pem: No such file"]),
            (&format!("127.0.0.1:PORT?sslrootcert={BANK}"), &[], 2, &["no certificates to trust at", "bank.sql"]),
        ],
    );
    let server = serve(&authority.sign("misnamed", "DNS:elsewhere.example", "2"), &[]);
    let any = full.replace("full", "ca");
    let misnamed = ["is for elsewhere.example, and not for '127.0.0.1'\nhint: connect by a name"];
    each(&server, &[(&full, &[], 3, &misnamed), (&any, &[], 0, &[])]);
    let server = serve(&authority.sign("expired", "IP:127.0.0.1", "-1"), &[]);
    each(
        &server,
        &[(&full, &[], 3, &["has expired"]), (&any, &[], 3, &["has expired"]), ("127.0.0.1:PORT", &[], 0, &[])],
    );
    assert_eq!((good.end(), server.end()), (Some(0), Some(0)));
}

#[test]
fn a_certificate_that_signs_itself_is_trusted_by_itself() {
    let folder = Folder::new("sql-tls-own");
    let Some(authority) = Authority::new(&folder.0) else { return };
    let named = ["-addext", "subjectAltName=IP:127.0.0.1"];
    for (name, more, code, words) in [
        // One that may sign others, and one that may not.
        ("own", &named[..], 0, ""),
        ("leaf", &[&named[..], &["-addext", "basicConstraints=critical,CA:FALSE"]].concat(), 0, ""),
        ("expired", &named, 3, "has expired"),
        ("nameless", &[], 3, "is for no name at all (subjectAltName is missing), and not for '127.0.0.1'"),
    ] {
        let pair = authority.own(name, "/CN=127.0.0.1", more);
        let pair = if name == "expired" { authority.expire(pair) } else { pair };
        let server = serve(&pair, &[]);
        let url = format!("127.0.0.1:PORT?sslrootcert={}", pair[0]);
        // One of the same name that somebody else has made.
        let false_one = authority.own("false", "/CN=127.0.0.1", &named)[0].clone();
        let why = if name == "expired" { "has expired" } else { "signed by nobody whom" };
        let deceived = format!("127.0.0.1:PORT?sslmode=verify-ca&sslrootcert={false_one}");
        each(&server, &[(&url, &[], code, &[words]), (&deceived, &[], 3, &[why])]);
    }
}

#[test]
fn a_server_without_tls_is_told_from_one_with() {
    let server = Server::start(&["--init", BANK]);
    let none = ["the server has no TLS, and sslmode is ", "hint: lockwork serve --tls-certificate", "sslmode=disable"];
    each(
        &server,
        &[
            ("127.0.0.1:PORT", &[], 0, &[]),
            ("127.0.0.1:PORT?sslmode=prefer", &[], 0, &[]),
            ("127.0.0.1:PORT?sslmode=require", &[], 3, &none),
            ("127.0.0.1:PORT?sslmode=verify-full", &[], 3, &none),
            ("127.0.0.1:PORT", &[("PGSSLMODE", "verify-ca")], 3, &none),
        ],
    );
    assert_eq!(server.end(), Some(0));
}

/// Passes on what a client and a server say; gives the first bytes of the client, and whether anything had `word` in
/// it.
fn overheard(server: &Server, word: &'static [u8], url: impl FnOnce(u16) -> String) -> (Option<i32>, Vec<u8>, bool) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, to) = (listener.local_addr().unwrap().port(), server.port);
    let wire = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(("127.0.0.1", to)).unwrap();
        let (mut from, mut back) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        let answers = std::thread::spawn(move || std::io::copy(&mut from, &mut back));
        let (mut heard, mut buffer) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = client.read(&mut buffer) {
            heard.extend_from_slice(&buffer[..count]);
            server.write_all(&buffer[..count]).unwrap();
        }
        drop(server.shutdown(std::net::Shutdown::Both));
        drop(answers.join().unwrap());
        heard
    });
    let (code, error) = call(&url(port), &[]);
    assert!(code == Some(0), "{error}");
    let heard = wire.join().unwrap();
    (code, heard[..8].to_vec(), heard.windows(word.len()).any(|part| part == word))
}

#[test]
fn nobody_on_the_way_reads_what_is_sent_and_a_login_is_bound_to_the_certificate() {
    let folder = Folder::new("sql-tls-users");
    let Some(authority) = Authority::new(&folder.0) else { return };
    let users = folder.0.join("users").to_str().unwrap().to_string();
    assert_eq!(command(&["user", &users, "ann", "--right", "call"], "secret-secret").0, Some(0));
    let server = serve(&authority.sign("good", "IP:127.0.0.1", "2"), &["--users", &users]);
    // SSLRequest, whose answer decides.
    let asked = [0, 0, 0, 8, 4, 210, 22, 47];
    let url = |words: &str| format!("postgres://ann:secret-secret@127.0.0.1:PORT/bank{words}");
    for (words, is_asked, is_heard) in [("?sslmode=disable", false, true), ("", true, false)] {
        let (_, first, heard) = overheard(&server, b"transfer", |port| url(words).replace("PORT", &port.to_string()));
        assert_eq!((first == asked, heard), (is_asked, is_heard), "{words}");
    }
    let file = authority.file();
    each(
        &server,
        &[
            (&format!("ann:secret-secret@127.0.0.1:PORT?channel_binding=require&sslrootcert={file}"), &[], 0, &[]),
            ("ann:secret-secret@127.0.0.1:PORT?channel_binding=require", &[], 0, &[]),
            ("ann:secret-secret@127.0.0.1:PORT?channel_binding=require&sslmode=disable", &[], 3, &["channel binding"]),
            ("ann:wrong@127.0.0.1:PORT?sslmode=require", &[], 2, &["28P01"]),
        ],
    );
    assert_eq!(server.end(), Some(0));
}

/// An address of this machine outside the loopback network; finding it sends no packet. A machine without a network has
/// none, and no script can give it one, so a skip for that reason is never a failure.
pub(crate) fn far() -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    match socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr()) {
        Ok(address) if !address.ip().is_loopback() => Some(address.ip().to_string()),
        found => {
            lockwork_testkit::skip_optional(&format!("this machine has no route beyond loopback: {found:?}"));
            None
        }
    }
}

#[test]
fn another_machine_has_to_prove_who_it_is() {
    let folder = Folder::new("sql-tls-far");
    let (Some(authority), Some(host)) = (Authority::new(&folder.0), far()) else { return };
    let users = folder.0.join("users").to_str().unwrap().to_string();
    assert_eq!(command(&["user", &users, "ann", "--right", "call"], "secret-secret").0, Some(0));
    let more = ["--users", &users, "--listen", &format!("{host}:0")];
    let server = serve(&authority.sign("good", &format!("IP:{host}"), "2"), &more);
    let url = format!("ann:secret-secret@{host}:PORT");
    let file = authority.file();
    let sure = format!("{url}?sslrootcert={file}");
    each(
        &server,
        &[
            (&sure, &[], 0, &[]),
            (&url, &[("PGSSLROOTCERT", &file)], 0, &[]),
            (&url, &[], 3, &["signed by nobody whom this system trusts"]),
            (&format!("{url}?sslmode=prefer"), &[], 0, &[]),
            // The server does not let anybody in who can be read.
            (&format!("{url}?sslmode=disable"), &[], 2, &["28000"]),
        ],
    );
    assert_eq!(server.end(), Some(0));
}
