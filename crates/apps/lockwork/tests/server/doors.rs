//! What users with few rights, and those who are none, cannot do: keep others out, and read what is not theirs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tokio_postgres::{Client as Postgres, NoTls};

use crate::BANK;
use crate::client::{Client, startup};
use crate::faults::process::until;
use crate::folder::{Folder, command};
use crate::server::Server;

pub(crate) const PASSWORD: &str = "a good password";

/// A file of users with rights, who all have the same password.
pub(crate) fn users(folder: &Folder, all: &[(&str, &str)]) -> String {
    std::fs::create_dir_all(&folder.0).unwrap();
    let file = folder.0.join("users").to_str().unwrap().to_string();
    for (name, right) in all {
        let set = command(&["user", &file, name, "--right", right], PASSWORD);
        assert_eq!(set.0, Some(0), "{}", set.2);
    }
    file
}

pub(crate) struct Runtime(pub(crate) tokio::runtime::Runtime);

impl Runtime {
    pub(crate) fn new() -> Self {
        Self(tokio::runtime::Runtime::new().unwrap())
    }

    pub(crate) fn login(&self, server: &Server, user: &str, password: &str) -> Result<Postgres, tokio_postgres::Error> {
        let mut config = tokio_postgres::Config::new();
        config.host("127.0.0.1").port(server.port).user(user).password(password).dbname("bank");
        self.0.block_on(async {
            let (client, connection) = config.connect(NoTls).await?;
            tokio::spawn(connection);
            Ok(client)
        })
    }

    pub(crate) fn ask(&self, client: &Postgres, text: &str) -> Result<String, String> {
        let answered = self.0.block_on(client.simple_query(text));
        let messages = answered.map_err(|error| {
            let why = error.as_db_error();
            why.map_or_else(|| error.to_string(), |why| format!("{} {}", why.code().code(), why.message()))
        })?;
        let rows = messages.iter().filter_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_string),
            _ => None,
        });
        Ok(rows.collect::<Vec<_>>().join("\n"))
    }
}

/// The SQLSTATE that a login was refused with.
fn code(refused: Result<Postgres, tokio_postgres::Error>) -> String {
    let refused = refused.expect_err("it was let in");
    refused.code().unwrap_or_else(|| panic!("{refused:?}")).code().to_string()
}

#[test]
fn silent_connections_keep_nobody_out() {
    let folder = Folder::new("doors-silent");
    let file = users(&folder, &[("ann", "call")]);
    let runtime = Runtime::new();
    for words in
        [&["--init", BANK, "--users", &file, "--connections", "8"][..], &["--init", BANK, "--connections", "8"]]
    {
        let server = Server::start(words);
        let before = runtime.login(&server, "ann", PASSWORD).unwrap();
        // More than there is room for: those who say nothing, and those who never prove who they are.
        let silent: Vec<TcpStream> = (0..300)
            .map(|at| {
                let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
                if at % 2 == 0 && words.len() > 4 {
                    drop(stream.write_all(&startup("ann")));
                }
                stream
            })
            .collect();
        let all: Vec<Postgres> = (0..7).map(|_| runtime.login(&server, "ann", PASSWORD).unwrap()).collect();
        for client in all.iter().chain([&before]) {
            runtime.ask(client, "CALL transfer(1, 2, 0.00)").unwrap();
        }
        // One more is one too many, and finds a place when another one goes.
        assert_eq!(code(runtime.login(&server, "ann", PASSWORD)), "53300");
        drop(all);
        until("a place is free", || runtime.login(&server, "ann", PASSWORD).is_ok());
        drop((silent, before));
        assert_eq!(server.end(), Some(0));
    }
}

#[test]
fn silent_connections_that_take_all_files_keep_nobody_out() {
    let limited = "ulimit -n 60; exec \"$0\" serve --listen 127.0.0.1:0";
    let mut sh = Command::new("sh");
    sh.args(["-c", limited, env!("CARGO_BIN_EXE_lockwork")]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = sh.spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let port = ready.trim_end().rsplit(' ').next().unwrap().parse().unwrap();
    let silent: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    for _ in 0..10 {
        // One that comes while files are given back may have to come again.
        until("it is let in", || Client::new(port).is_ok_and(|mut client| client.query("SELECT 1").is_ok()));
    }
    drop(silent);
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_data_folder_that_others_can_read_is_told() {
    let folder = Folder::new("doors-open-folder");
    let data = folder.0.to_str().unwrap();
    assert_eq!(command(&["sql", data, "-c", "CREATE TABLE t (id BIGINT PRIMARY KEY)"], "").0, Some(0));
    let serve = || command(&["serve", "--listen", "127.0.0.1:0", "--data", data, "--engine", "nothing"], "").2;
    assert!(!serve().contains("chmod"));
    std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o755)).unwrap();
    let said = serve();
    assert!(said.contains(&format!("chmod -R go= {data}")), "{said}");
}

#[test]
fn a_login_is_over_in_a_few_seconds() {
    let folder = Folder::new("doors-login");
    let server = Server::start(&["--users", &users(&folder, &[("ann", "call")])]);
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(50))).unwrap();
    stream.write_all(&startup("ann")).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains("57014") && answer.contains("the login has taken more than 10s"), "{answer}");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn one_user_leaves_places_for_others() {
    let folder = Folder::new("doors-greedy");
    let file = users(&folder, &[("greedy", "call"), ("ann", "call"), ("admin", "define")]);
    let server = Server::start(&["--init", BANK, "--users", &file, "--connections", "40"]);
    let runtime = Runtime::new();
    let mut all = Vec::new();
    let refused = loop {
        match runtime.login(&server, "greedy", PASSWORD) {
            Ok(client) => all.push(client),
            refused => break code(refused),
        }
    };
    assert_eq!((refused.as_str(), all.len()), ("53300", 36));
    let ann = runtime.login(&server, "ann", PASSWORD).unwrap();
    runtime.ask(&ann, "CALL transfer(1, 2, 0.00)").unwrap();
    let admin = runtime.login(&server, "admin", PASSWORD).unwrap();
    runtime.ask(&admin, "SELECT count(*) FROM accounts").unwrap();
    assert_eq!(server.end(), Some(0));
}

#[test]
fn sessions_of_users_that_are_changed_or_removed_end() {
    let folder = Folder::new("doors-changed");
    let file = users(&folder, &[("removed", "write"), ("changed", "write"), ("other", "write")]);
    let server = Server::start(&["--init", BANK, "--users", &file]);
    let runtime = Runtime::new();
    let all = ["removed", "changed", "other"].map(|user| runtime.login(&server, user, PASSWORD).unwrap());
    let ended = |at: usize| runtime.ask(&all[at], "SELECT balance FROM accounts WHERE id = 1").is_err();
    // A file that is wrong for a moment ends nobody's.
    let good = std::fs::read(&file).unwrap();
    std::fs::write(&file, "nonsense").unwrap();
    until("it is seen", || runtime.login(&server, "other", PASSWORD).is_err());
    std::thread::sleep(Duration::from_millis(1500));
    std::fs::write(&file, good).unwrap();
    assert!(!ended(0) && !ended(1) && !ended(2));
    assert_eq!(command(&["user", &file, "removed", "--remove"], "").0, Some(0));
    until("the one that was removed has ended", || ended(0));
    assert!(!ended(1));
    assert_eq!(command(&["user", &file, "changed", "--right", "call"], PASSWORD).0, Some(0));
    until("the one that was changed has ended", || ended(1));
    assert!(!ended(2));
    let again = runtime.login(&server, "changed", PASSWORD).unwrap();
    let refused = runtime.ask(&again, "SELECT balance FROM accounts WHERE id = 1").unwrap_err();
    assert!(refused.starts_with("42501"), "{refused}");
    let audit = std::fs::read_to_string(format!("{file}.audit")).unwrap();
    for user in ["removed", "changed"] {
        let is_line =
            |line: &&str| line.contains("\"event\":\"ended\"") && line.contains(&format!("\"user\":\"{user}\""));
        assert_eq!(audit.lines().filter(is_line).count(), 1, "{audit}");
    }
    assert_eq!(server.end(), Some(0));
}

#[test]
fn logins_refusals_and_definitions_are_written_down() {
    let folder = Folder::new("doors-audit");
    let file = users(&folder, &[("admin", "define"), ("ann", "call")]);
    let named = folder.0.join("named").to_str().unwrap().to_string();
    for (words, audit) in [(&[][..], format!("{file}.audit")), (&["--audit", &named], named.clone())] {
        let server = Server::start(&[&["--init", BANK, "--users", &file], words].concat());
        let runtime = Runtime::new();
        let admin = runtime.login(&server, "admin", PASSWORD).unwrap();
        let table = "CREATE TABLE t (id BIGINT PRIMARY KEY)";
        runtime.ask(&admin, table).unwrap();
        runtime.ask(&admin, table).unwrap_err();
        runtime.0.block_on(async {
            let prepared = admin.prepare("CREATE TABLE u (id BIGINT PRIMARY KEY)").await.unwrap();
            admin.execute(&prepared, &[]).await.unwrap();
        });
        runtime.ask(&admin, "SELECT count(*) FROM t").unwrap();
        assert_eq!(code(runtime.login(&server, "ann", "a wrong password")), "28P01");
        assert_eq!(server.end(), Some(0));
        let text = std::fs::read_to_string(&audit).unwrap();
        let of = |event: &str| {
            let is_one = |line: &&str| line.contains(&format!("\"event\":\"{event}\""));
            text.lines().filter(is_one).map(str::to_string).collect::<Vec<_>>()
        };
        let has =
            |line: &str, parts: &[&str]| assert!(parts.iter().all(|part| line.contains(part)), "{parts:?}: {line}");
        let [logins, refused, definitions] = ["login", "refused", "definition"].map(of);
        assert_eq!((logins.len(), refused.len(), definitions.len()), (1, 1, 3), "{text}");
        has(
            &logins[0],
            &["\"user\":\"admin\"", "\"right\":\"define\"", "\"address\":\"127.0.0.1:", "\"database\":\"bank\""],
        );
        has(&refused[0], &["\"user\":\"ann\"", "\"reason\":\"wrong password\"", "\"tls\":false"]);
        for (definition, sqlstate) in definitions.iter().zip(["00000", "42P07", "00000"]) {
            has(definition, &["CREATE TABLE", "\"user\":\"admin\"", &format!("\"sqlstate\":\"{sqlstate}\"")]);
        }
        assert_eq!(std::fs::metadata(&audit).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::remove_file(&audit).unwrap();
    }
    let server = Server::start(&["--users", &file, "--audit", "none"]);
    Runtime::new().login(&server, "ann", PASSWORD).unwrap();
    assert_eq!(server.end(), Some(0));
    assert!(!Path::new(&format!("{file}.audit")).exists() && !Path::new("none").exists());
}

#[test]
fn the_source_of_procedures_is_for_those_who_define() {
    let folder = Folder::new("doors-source");
    let file = users(&folder, &[("admin", "define"), ("ann", "call"), ("bob", "write")]);
    let server = Server::start(&["--init", BANK, "--users", &file]);
    let runtime = Runtime::new();
    let asks = [
        "SELECT prosrc FROM pg_catalog.pg_proc WHERE proname = 'transfer'",
        "SELECT pg_catalog.pg_get_functiondef(oid) FROM pg_catalog.pg_proc WHERE proname = 'transfer'",
        "EXPLAIN PROCEDURE transfer",
    ];
    // In turn: what one may see must not be kept for another.
    for (user, may) in [("admin", true), ("ann", false), ("bob", false), ("admin", true)] {
        let client = runtime.login(&server, user, PASSWORD).unwrap();
        for (ask, word) in asks.into_iter().zip(["UPDATE accounts", "UPDATE accounts", "accounts"]) {
            let answer = runtime.ask(&client, ask);
            let is_seen = answer.as_ref().is_ok_and(|text| text.contains(word));
            assert!(is_seen == may && !answer.as_ref().is_ok_and(String::is_empty), "{user}: {ask}: {answer:?}");
        }
        // What it takes and gives is for all who may call it.
        let arguments =
            "SELECT pg_catalog.pg_get_function_arguments(oid) FROM pg_catalog.pg_proc WHERE proname = 'transfer'";
        assert!(runtime.ask(&client, arguments).unwrap().contains("bigint"));
        runtime.ask(&client, "CALL transfer(1, 2, 0.00)").unwrap();
    }
    assert_eq!(server.end(), Some(0));
}

/// All files and folders below one, with their modes.
fn modes(folder: &Path, all: &mut Vec<(PathBuf, bool, u32)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let metadata = std::fs::symlink_metadata(&path).unwrap();
        all.push((path.clone(), metadata.is_dir(), metadata.mode() & 0o777));
        if metadata.is_dir() {
            modes(&path, all);
        }
    }
}

#[test]
fn what_a_server_makes_is_for_its_owner_only() {
    let folder = Folder::new("doors-files");
    let file = users(&folder, &[("admin", "define")]);
    let data = folder.0.join("above/data");
    // Whatever the umask lets through.
    let serve = "umask 000; exec \"$0\" serve --listen 127.0.0.1:0 \"$@\"";
    let mut sh = Command::new("sh");
    sh.args(["-c", serve, env!("CARGO_BIN_EXE_lockwork"), "--users", &file, "--init", BANK, "--data"]).arg(&data);
    let mut child = sh.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut ready = [0; 5];
    child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    let asked = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(asked.success() && child.wait().unwrap().success());
    let mut all = Vec::new();
    modes(&folder.0, &mut all);
    let names: Vec<String> = all.iter().map(|(path, ..)| path.display().to_string()).collect();
    for part in ["users", "users.secret", "users.audit", "data/FORMAT", "data/LOCK", "data/log/", "data/checkpoint"] {
        assert!(names.iter().any(|name| name.contains(part)), "{part}: {names:?}");
    }
    for (path, is_folder, mode) in all {
        assert_eq!(mode, if is_folder { 0o700 } else { 0o600 }, "{mode:o}: {}", path.display());
    }
}

#[test]
fn a_link_in_the_place_of_a_file_is_not_followed() {
    let folder = Folder::new("doors-links");
    std::fs::create_dir_all(folder.0.join("data")).unwrap();
    let (victim, data) = (folder.0.join("victim"), folder.0.join("data"));
    std::fs::write(&victim, "kept").unwrap();
    for name in ["LOCK", "FORMAT.tmp"] {
        let link = data.join(name);
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        let words = ["serve", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()];
        let (code, _, said) = if name == "LOCK" {
            command(&words, "")
        } else {
            command(&["sql", data.to_str().unwrap(), "-c", "CREATE TABLE t (id BIGINT PRIMARY KEY)"], "")
        };
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "kept", "{name}: {said}");
        assert!(name != "LOCK" || code == Some(2) && said.contains("symbolic link"), "{name}: {code:?} {said}");
        std::fs::remove_dir_all(&data).unwrap();
        std::fs::create_dir_all(&data).unwrap();
    }
}

#[test]
fn guesses_of_one_password_are_few_and_delay_nobody_else() {
    let folder = Folder::new("doors-guesses");
    let file = users(&folder, &[("ann", "call"), ("bob", "call")]);
    let server = Server::start(&["--init", BANK, "--users", &file]);
    // Each guesses as fast as it can. More than may wait at a time.
    let deadline = Instant::now() + Duration::from_secs(5);
    let (guessed, refused): (u32, u32) = std::thread::scope(|scope| {
        let all: Vec<_> = (0..100)
            .map(|_| {
                let server = &server;
                scope.spawn(move || {
                    let (mut guessed, mut refused) = (0, 0);
                    let runtime = Runtime::new();
                    while Instant::now() < deadline {
                        match code(runtime.login(server, "ann", "a wrong password")).as_str() {
                            "28P01" => guessed += 1,
                            "28000" => refused += 1,
                            other => panic!("{other}"),
                        }
                    }
                    (guessed, refused)
                })
            })
            .collect();
        // Somebody else is not in this.
        Runtime::new().login(&server, "bob", PASSWORD).unwrap();
        all.into_iter().map(|one| one.join().unwrap()).fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    });
    // 16 a second, and those that were on their way before the first was counted.
    assert!(guessed < 250 && refused > 0, "{guessed} guessed, {refused} refused");
    // The right one is late, and is let in.
    Runtime::new().login(&server, "ann", PASSWORD).unwrap();
    assert_eq!(server.end(), Some(0));
}

#[test]
fn without_users_everybody_may_do_everything() {
    let server = Server::start(&["--init", BANK]);
    let mut client = Client::of(&server);
    let source = client.query("SELECT prosrc FROM pg_catalog.pg_proc WHERE proname = 'transfer'").unwrap();
    assert!(source.contains("UPDATE accounts"), "{source}");
    assert_eq!(server.end(), Some(0));
}
