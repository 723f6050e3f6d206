//! Who may connect to `lockwork serve`: passwords, rights and TLS, with PostgreSQL's own client.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::BANK;
use crate::folder::{Folder, command};
use crate::server::{Server, program};

/// What psql says to a statement: whether it went well, and its output or the error.
fn psql(server: &Server, user: &str, password: &str, more: &str, statement: &str) -> Option<(bool, String)> {
    let words = format!("host=127.0.0.1 port={} user={user} dbname=bank {more}", server.port);
    let psql = program("psql")?
        .args([&words, "-X", "-A", "-t", "-w", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose", "-c", statement])
        .env("PGPASSWORD", password)
        .output()
        .unwrap();
    let (good, bytes) = if psql.status.success() { (true, psql.stdout) } else { (false, psql.stderr) };
    Some((good, String::from_utf8(bytes).unwrap().trim_end().into()))
}

/// The password of the user who has this right and its name.
fn password(right: &str) -> String {
    format!("{}-PASSWORD", right.to_uppercase())
}

/// A file of users: one for each right.
fn users(folder: &Folder) -> String {
    std::fs::create_dir_all(&folder.0).unwrap();
    let file = folder.0.join("users").to_str().unwrap().to_string();
    for right in ["call", "write", "define"] {
        let set = command(&["user", &file, right, "--right", right], &password(right));
        assert_eq!(set, (Some(0), format!("{right} may {right}\n"), String::new()));
    }
    file
}

/// Runs a command at a terminal, ends it by a signal when it asks for a password, and says what has become of both.
const AT_TERMINAL: &str = r#"
import fcntl, os, pty, signal, sys, termios
# Its side of the terminal stays open here, so that what becomes of it can be seen.
terminal, its = pty.openpty()
shown = lambda: bool(termios.tcgetattr(its)[3] & termios.ECHO)
pid = os.fork()
if pid == 0:
    os.setsid()
    fcntl.ioctl(its, termios.TIOCSCTTY, 0)
    for file in range(3):
        os.dup2(its, file)
    os.execv(sys.argv[2], sys.argv[2:])
said = b""
while b"password of" not in said or shown():
    said += os.read(terminal, 1000) if b"password of" not in said else b""
os.write(terminal, b"secret")
if sys.argv[1] == "ctrl-c":
    os.write(terminal, b"\x03")
else:
    os.kill(pid, signal.SIGTERM)
_, ended = os.waitpid(pid, 0)
print("signal", os.WTERMSIG(ended) if os.WIFSIGNALED(ended) else -1, "shown", shown())
"#;

#[test]
fn a_terminal_shows_again_what_is_typed_when_a_password_is_not_given() {
    let Some(_) = program("python3") else { return };
    let folder = Folder::new("serve-prompt");
    let file = users(&folder);
    let server = Server::start(&["--users", &file]);
    let address = format!("postgres://call@127.0.0.1:{}/bank", server.port);
    for words in [&["user", &file, "somebody"][..], &["sql", &address, "--command", "SELECT 1"]] {
        for (how, signal) in [("ctrl-c", 2), ("term", 15)] {
            let mut command = program("timeout").unwrap();
            command.args(["20", "python3", "-c", AT_TERMINAL, how, env!("CARGO_BIN_EXE_lockwork")]).args(words);
            let ran = command.env_remove("PGPASSWORD").env_remove("LOCKWORK_PASSWORD").output().unwrap();
            let said = String::from_utf8_lossy(&ran.stdout).into_owned();
            assert_eq!(said, format!("signal {signal} shown True\n"), "{words:?} {how}: {ran:?}");
        }
    }
    assert_eq!(server.end(), Some(0));
}

#[test]
fn users_prove_passwords_and_do_what_they_may() {
    let folder = Folder::new("serve-users");
    let file = users(&folder);
    let server = Server::start(&["--init", BANK, "--users", &file]);
    assert!(server.ready.starts_with("ready: in memory"), "{}", server.ready);
    let ask = |user: &str, password: &str, statement: &str| psql(&server, user, password, "sslmode=disable", statement);
    let Some(first) = ask("call", "CALL-PASSWORD", "CALL transfer(1, 2, 1.00)") else { return };
    assert_eq!(first, (true, "999.00".into()));
    let (call, select) = ("CALL transfer(1, 2, 1.00)", "SELECT balance FROM accounts WHERE id = 1");
    let create = "CREATE TABLE t (id BIGINT PRIMARY KEY)";
    let may = [("call", [true, false, false]), ("write", [true, true, false]), ("define", [true, true, true])];
    for (user, may) in may {
        for (statement, may) in [call, select, create].into_iter().zip(may) {
            let (good, said) = ask(user, &password(user), statement).unwrap();
            assert!(good == may && (may || said.contains("42501")), "{user}: {statement}: {said}");
        }
    }
    // The request ids of one user are none of another's: a call with the same id is another call.
    let id = lockwork::request_id().unwrap();
    for (user, amount, left) in [("call", "0.00", "996.00"), ("write", "25.00", "971.00")] {
        for _ in 0..2 {
            let said = ask(user, &password(user), &format!("CALL transfer(1, 2, {amount}) REQUEST '{id}'"));
            assert_eq!(said, Some((true, left.into())), "{user}");
        }
    }
    let (_, said) = ask("call", "CALL-PASSWORD", &format!("CALL transfer(1, 2, 7.00) REQUEST '{id}'")).unwrap();
    assert!(said.contains(&format!("request id {id} was used before, for a call of procedure")), "{said}");
    // Nobody learns who there is.
    for (user, password) in [("call", "call"), ("call", "WRITE-PASSWORD"), ("nobody", "CALL-PASSWORD"), ("define", "")]
    {
        let (good, said) = ask(user, password, select).unwrap();
        let told = format!("Password authentication failed for user \"{user}\"");
        assert!(!good && said.contains(if password.is_empty() { "no password supplied" } else { &told }), "{said}");
    }
    // The file is read at each login.
    assert_eq!(command(&["user", &file, "call", "--right", "write"], "new-password").0, Some(0));
    assert_eq!(command(&["user", &file, "write", "--remove"], "").1, "write is removed\n");
    assert!(ask("call", "new-password", select).unwrap().0 && !ask("write", "WRITE-PASSWORD", select).unwrap().0);
    std::fs::write(&file, "nonsense").unwrap();
    let (good, said) = ask("call", "new-password", select).unwrap();
    assert!(!good && said.contains("cannot read its users") && !said.contains(&file), "{said}");
    assert_eq!(server.end(), Some(0));
}

/// A key and a certificate that it signed itself.
fn certificate(folder: &Folder) -> Option<[String; 2]> {
    program("openssl")?;
    std::fs::create_dir_all(&folder.0).unwrap();
    let files = ["certificate.pem", "key.pem"].map(|name| folder.0.join(name).to_str().unwrap().to_string());
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"])
        .args(["-addext", "subjectAltName=IP:127.0.0.1", "-out", &files[0], "-keyout", &files[1]])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Some(files)
}

#[test]
fn connections_are_encrypted_and_logins_bound_to_them() {
    let folder = Folder::new("serve-tls");
    let Some([certificate, key]) = certificate(&folder) else { return };
    let file = users(&folder);
    let tls = ["--tls-certificate", &certificate, "--tls-key", &key];
    let server = Server::start(&[&["--init", BANK, "--users", &file], &tls[..]].concat());
    let verified = format!("sslmode=verify-full sslrootcert={certificate} channel_binding=require");
    let Some(answer) = psql(&server, "call", "CALL-PASSWORD", &verified, "CALL transfer(1, 2, 1.00)") else { return };
    assert_eq!(answer, (true, "999.00".into()));
    // From this machine also without.
    assert!(psql(&server, "call", "CALL-PASSWORD", "sslmode=disable", "CALL transfer(1, 2, 1.00)").unwrap().0);
    let (good, said) = psql(&server, "call", "WRONG", &verified, "CALL transfer(1, 2, 1.00)").unwrap();
    assert!(!good && said.contains("assword"), "{said}");
    assert_eq!(server.end(), Some(0));
    // Options that contradict each other, and keys that other users can read, are refused before the server starts.
    let open = folder.0.join("open.pem").to_str().unwrap().to_string();
    std::fs::copy(&key, &open).unwrap();
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o644)).unwrap();
    let serve = |words: &[&str]| command(&[&["serve", "--listen", "127.0.0.1:0"], words].concat(), "");
    for (words, expected) in [
        (&["--tls-certificate", &certificate, "--tls-key", &file][..], file.as_str()),
        (&["--tls-certificate", &key, "--tls-key", &key], "there is no certificate in it"),
        (&["--tls-certificate", "nowhere", "--tls-key", &key], "nowhere"),
        (&["--tls-certificate", &certificate], "--tls-key"),
        (&["--users", &open], "chmod 600"),
        (&["--tls-certificate", &certificate, "--tls-key", &open], &format!("chmod 600 {open}")),
        (&["--users", &file, "--audit", "nowhere/audit"], "nowhere/audit"),
        (&["--http", "127.0.0.1:0", "--http-token", &open], "chmod 600"),
        (&["--http-token", &file], "--http <"),
        (&["--users", "nowhere"], "nowhere"),
    ] {
        let (code, _, said) = serve(words);
        assert!(code == Some(2) && said.contains(expected), "{words:?}: {said}");
    }
}

#[test]
fn users_are_added_by_a_command_that_says_what_is_wrong() {
    let folder = Folder::new("serve-user");
    let file = users(&folder);
    assert!(Path::new(&file).is_file());
    for (words, input, expected) in [
        (&["user", &file, "ann", "--right", "all"][..], "x", "'all' is no right"),
        (&["user", &file, "ann"], "elevenchars", "at least 12 characters"),
        (&["user", &file, "an n"], "x", "is no name of a user"),
        (&["user", &file, "ann"], "\n", "a password has"),
        (&["user", &file, "ann", "--remove"], "", "has no user 'ann'"),
        (&["user", "nowhere/users", "ann"], "a good password", "nowhere/users"),
    ] {
        let (code, _, said) = command(words, input);
        assert!(code == Some(2) && said.contains(expected), "{words:?}: {said}");
    }
}
