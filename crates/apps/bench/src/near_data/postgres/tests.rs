//! Tests of the baseline: with a server where there is one, and without.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lockwork_testkit::{skip, skip_optional};

use super::cluster::{Cluster, Installation, major, user_of};
use super::*;

const ROWS: u64 = 2_000;
const SEED: u64 = u64::MAX - 3;

/// The PostgreSQL server that `scripts/setup` installs together with pgbench. Where there is none, it is `None` and the
/// test is skipped; one that does not work is a failure.
fn installation() -> Option<Installation> {
    match Installation::find() {
        Err(error @ PostgresError::Absent { .. }) => {
            skip(&error.to_string());
            None
        }
        found => Some(found.expect("a server that works")),
    }
}

/// A server that a module can be compiled for. Without the server's headers, which no script installs, the module has
/// declarations of its own for PostgreSQL 15 to 17.
fn with_module() -> Option<Installation> {
    let installation = installation()?;
    if installation.headers().is_none() && !(15..=17).contains(&installation.major) {
        skip_optional(&format!("PostgreSQL {} has no headers here", installation.major));
        return None;
    }
    Some(installation)
}

#[test]
fn every_row_is_locked_in_every_way() {
    let Some(_) = with_module() else { return };
    let baseline = measure(ROWS, SEED).expect("a server that works");
    for rows in [0, MAX_ROWS + 1] {
        let error = measure(rows, SEED).expect_err("not so many").to_string();
        assert_eq!(error, format!("{rows} rows to lock in PostgreSQL; 1 to {MAX_ROWS} are possible"));
    }
    let table = baseline.to_string();
    assert_eq!(table.lines().count(), 3 + baseline.runs.len(), "{table}");
    assert!(!baseline.version.is_empty());
    assert!(baseline.settings.contains(&("fsync".into(), "off".into())), "{:?}", baseline.settings);
    assert!(baseline.clock_ns.is_some(), "{}", baseline.method);
    assert_eq!(baseline.runs.len(), 2 * 3, "{}", baseline.method);
    for Measured { lock, order, count, latency } in &baseline.runs {
        assert_eq!(*count, ROWS, "{lock}, {order}");
        match latency {
            Latency::Each(histogram) => {
                assert_eq!(histogram.count(), ROWS);
                let typical = histogram.quantile(0.5);
                assert!((10..1_000_000).contains(&typical), "{lock}, {order}: {typical} ns");
                assert!(histogram.quantile(1.0) > typical);
            }
            Latency::Mean(ns) => panic!("{lock}, {order}: only a mean, {ns} ns"),
        }
    }
}

#[test]
fn without_a_module_there_are_means() {
    let Some(installation) = installation() else { return };
    let cluster = Cluster::start(&installation, ROWS).expect("a server that works");
    let why = cluster.compile(&installation, "#error \"not today\"").expect_err("that does not compile");
    assert!(why.starts_with("cc: "), "{why}");
    let runs = Session { cluster: &cluster, rows: ROWS, seed: SEED }.means().expect("means");
    let ways: Vec<_> = runs.iter().map(|run| (run.lock, run.order, run.count)).collect();
    let expected =
        [Lock::Row, Lock::RowUnlogged].map(|lock| [Order::Sequential, Order::Random].map(|order| (lock, order, ROWS)));
    assert_eq!(ways, expected.concat());
    for run in &runs {
        assert!(matches!(run.latency, Latency::Mean(ns) if ns.is_finite() && ns < 1e6), "{run:?}");
    }
    let folder = cluster.folder().to_path_buf();
    cluster.stop().expect("it goes");
    assert!(!folder.exists());
}

#[test]
fn a_module_that_locks_nothing_is_found_out() {
    let Some(installation) = with_module() else { return };
    let cluster = Cluster::start(&installation, ROWS).expect("a server that works");
    let idle = SOURCE.replace("case ROW:", "case -1:");
    assert_ne!(idle, SOURCE);
    let module = cluster.compile(&installation, &idle).expect("a module");
    cluster.psql(&declarations(&module)).expect("it is loaded");
    let session = Session { cluster: &cluster, rows: ROWS, seed: SEED };
    let error = session.one(Lock::Row, Order::Random, ROW, 0).expect_err("no row is locked").to_string();
    assert_eq!(error, format!("PostgreSQL, row lock, random: 0 rows locked instead of {ROWS}"));
}

/// The process of the server in a folder.
fn process(folder: &Path) -> PathBuf {
    let id = fs::read_to_string(folder.join("data/postmaster.pid")).expect("it runs");
    Path::new("/proc").join(id.lines().next().expect("its number"))
}

#[test]
fn a_server_goes_when_it_is_dropped() {
    let Some(installation) = installation() else { return };
    let cluster = Cluster::start(&installation, 1).expect("a server that works");
    let (folder, process) = (cluster.folder().to_path_buf(), process(cluster.folder()));
    assert_eq!(cluster.psql("SELECT 6 * 7;").expect("an answer"), "42\n");
    let error = cluster.psql("SELECT 1 / 0;").expect_err("zero").to_string();
    assert!(error.contains("division by zero"), "{error}");
    assert!(process.exists());
    drop(cluster);
    assert!(!folder.exists() && !process.exists());
}

/// Set for the process that is to be killed.
const VICTIM: &str = "LOCKWORK_TEST_POSTGRES_VICTIM";

#[test]
fn a_server_goes_with_a_process_that_is_killed() {
    let Some(installation) = installation() else { return };
    if std::env::var_os(VICTIM).is_some() {
        // A shell that runs programs in the background lets them ignore it.
        // SAFETY: a plain system call.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
        let cluster = Cluster::start(&installation, 1).expect("a server that works");
        println!("\n{}", cluster.folder().display());
        _ = cluster.psql("SELECT pg_sleep(600);");
        return;
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGKILL] {
        let mut victim = Command::new(std::env::current_exe().expect("this program"));
        let name = std::thread::current().name().expect("tests have names").to_string();
        victim.args(["--exact", &name, "--nocapture"]).env(VICTIM, "1").process_group(0);
        let mut victim = victim.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts again");
        let mut lines =
            BufReader::new(victim.stdout.take().expect("it is piped")).lines().map(|line| line.expect("text"));
        let folder = lines.find(|line| line.contains("/lockwork-postgres-")).map(PathBuf::from);
        let folder = folder.expect("it has started a server");
        let process = process(&folder);
        assert!(process.exists());
        // SAFETY: a system call; the group is that of the child, which has not been waited for.
        assert_eq!(unsafe { libc::kill(-(victim.id() as i32), signal) }, 0);
        victim.wait().expect("it ends");
        let since = Instant::now();
        while folder.exists() || process.exists() {
            assert!(since.elapsed() < Duration::from_secs(30), "{} outlives its owner", folder.display());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Programs that are there, but do not work.
#[test]
fn a_server_that_does_not_start_is_explained() {
    let folder = std::env::temp_dir().join(format!("lockwork-no-postgres-{}", std::process::id()));
    fs::create_dir(&folder).expect("a folder");
    let programs = [
        ("initdb", "echo 'initdb: error: no space here'; exit 1"),
        ("pg_isready", "exit 2"),
        ("postgres", "echo 'postgres (PostgreSQL) 99.1'"),
        ("psql", "exit 1"),
    ];
    for (name, text) in programs {
        let path = folder.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a program");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it can be run");
    }
    let installation = Installation::newest(std::slice::from_ref(&folder)).expect("all programs are there");
    let first = measure_on(&installation, ROWS, SEED).expect_err("no space").to_string();
    fs::write(folder.join("initdb"), "#!/bin/sh\nmkdir data\n").expect("a program");
    let second = measure_on(&installation, ROWS, SEED).expect_err("no server").to_string();
    fs::write(folder.join("postgres"), "#!/bin/sh\necho 'libpq is missing' >&2\nexit 127\n").expect("a program");
    let third = Installation::newest(std::slice::from_ref(&folder)).expect_err("no version").to_string();
    assert!(third.ends_with("/postgres --version: exit status: 127, libpq is missing"), "{third}");
    fs::remove_dir_all(&folder).expect("it goes");
    assert!(first.contains("did not start in") && first.ends_with(": initdb: error: no space here"), "{first}");
    assert!(second.ends_with(": postgres (PostgreSQL) 99.1"), "{second}");
    for error in [first, second] {
        let place =
            error.split(" did not start in ").nth(1).and_then(|rest| rest.split(':').next()).expect("it says where");
        assert!(place.contains("/lockwork-postgres-") && !Path::new(place).exists(), "{place}");
    }
}

#[test]
fn that_there_is_no_server_is_said() {
    let nowhere = [PathBuf::from("/nowhere"), PathBuf::from("/")];
    let error = Installation::newest(&nowhere).expect_err("no programs").to_string();
    assert!(error.contains("no PostgreSQL server here") && error.contains("package postgresql"), "{error}");
}

#[test]
fn versions_and_users_are_read() {
    assert_eq!(major("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"), Some(15));
    assert_eq!(major("postgres (PostgreSQL) 17beta2"), Some(17));
    assert_eq!(major("something else"), None);
    let users =
        "root:x:0:0:root:/root:/bin/sh\npostgresql:x:7:8::/:\npostgres:x:101:104:,,,:/var/lib:/bin/sh\nnobody:x:y:";
    assert_eq!(user_of(users, "postgres"), Some((101, 104)));
    assert_eq!(user_of(users, "nobody"), None);
    assert_eq!(user_of(users, "somebody"), None);
}
