//! Servers whose older messages were damaged, and what gives them those again.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use lockwork_nats::audit::{Holding, have_all, holdings, lacking};
use lockwork_nats::local::Servers;
use lockwork_nats::repair::{Mended, repair};
use lockwork_nats::{Error, NatsJournal, Options};
use lockwork_sequencer::journal::Journal;
use lockwork_testkit::nats::{TestServers, damage};
use tempfile::TempDir;

/// Enough of these are several files of a server's, which begins another one after 8 MB.
const BYTES: usize = 500_000;

/// A message that does not get smaller: servers compress what they agree upon, and keep 8 MB of it.
fn message(number: u64) -> Vec<u8> {
    let mut random = lockwork_random::Random(number);
    std::iter::repeat_with(|| random.next_u64() as u8).take(BYTES).collect()
}

fn messages(numbers: std::ops::Range<u64>) -> Vec<Vec<u8>> {
    numbers.map(message).collect()
}

/// So many servers with forty messages, and the folder that goes with them; nothing if NATS is not installed.
fn filled(count: usize) -> Option<(Mutex<Servers>, TempDir, Options, NatsJournal)> {
    let (servers, folder) = TestServers::start(count)?.shared();
    let options = servers.lock().unwrap().options("a");
    let journal = NatsJournal::open(&options).unwrap();
    assert_eq!(journal.append(1, &messages(1..41)), (40, Ok(())));
    Some((servers, folder, options, journal))
}

fn until<T>(mut found: impl FnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        match found() {
            Ok(found) => return found,
            Err(why) => assert!(start.elapsed() < Duration::from_secs(90), "{why}"),
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Waits until what servers say is as wanted.
fn until_held(options: &Options, wanted: impl Fn(&[Holding]) -> bool) -> Vec<Holding> {
    until(|| match holdings(options) {
        Ok(held) if wanted(&held) => Ok(held),
        other => Err(format!("{other:?}")),
    })
}

/// Damages a server, and starts it again, until it is without something that nobody gives it: what it has in its log of
/// what servers agreed upon, since it last made that shorter, it puts into its files again.
fn damaged(servers: &Mutex<Servers>, options: &Options, at: usize) {
    let name = format!("nats-{}", at + 1);
    let without = || {
        let held = until_held(options, |held| held.iter().filter(|one| one.server == name).count() == 2);
        lacking(&held).get(&name).copied()
    };
    for _ in 0..10 {
        let mut held = servers.lock().unwrap();
        assert!(damage(&mut held, at) > 0);
        held.restart(at).unwrap();
        drop(held);
        let found = without();
        std::thread::sleep(Duration::from_secs(3));
        if found.is_some() && without() == found {
            return;
        }
    }
    panic!("{name} has everything again: {:?}", holdings(options));
}

/// Why nothing is mended.
fn refused(servers: &Mutex<Servers>, options: &Options) -> String {
    until(|| match repair(servers, options) {
        Err(Error::Settings(text)) => Ok(text),
        other => Err(format!("{other:?}")),
    })
}

#[test]
fn a_server_that_is_mended_has_everything_again_and_of_two_none_is_emptied() {
    let Some((servers, _folder, options, journal)) = filled(3) else { return };
    let all = until_held(&options, |held| held.iter().filter(|one| one.last == 40).count() == 3);
    assert!(lacking(&all).is_empty());
    until(|| (repair(&servers, &options) == Ok(Mended::Whole)).then_some(()).ok_or_else(|| "not all answer".into()));
    damaged(&servers, &options, 1);
    let said = until(|| match repair(&servers, &options) {
        Ok(Mended::Emptied(said)) => Ok(said),
        other => {
            // Others may not have agreed upon one that leads.
            servers.lock().unwrap().revive().unwrap();
            Err(format!("{other:?}"))
        }
    });
    assert!(said.starts_with("nats-2 is without "), "{said}");
    assert_eq!(servers.lock().unwrap().revive(), Ok(vec![1]));
    until_held(&options, |held| have_all(held, &all, 0));
    let read = |first| journal.read(first, BYTES, Duration::ZERO).map_err(|error| error.to_string());
    for number in 1..41 {
        assert_eq!(until(|| read(number)).messages[0], message(number));
    }
    // Two at a time: nothing is emptied, and what is there is still had from whoever has it.
    damaged(&servers, &options, 2);
    damaged(&servers, &options, 0);
    let text = refused(&servers, &options);
    assert!(text.contains("nats-1 is") && text.contains("nats-3 is"), "{text}");
    assert_eq!(servers.lock().unwrap().revive(), Ok(vec![]));
    let other = NatsJournal::open(&options).unwrap();
    for number in 1..41 {
        let read = until(|| other.read(number, BYTES, Duration::ZERO).map_err(|error| error.to_string()));
        assert_eq!((read.first, &read.messages[0]), (number, &message(number)));
    }
    // While the one is away that has it, a message of the second half of a file is not taken for lost.
    servers.lock().unwrap().kill(1).unwrap();
    until(|| match other.read(12, BYTES, Duration::ZERO) {
        Err(error) if error.to_string().contains("2 of 3 servers say what they have") => Ok(()),
        Err(error) => Err(error.to_string()),
        Ok(read) => panic!("from {} on there are {}", read.first, read.messages.len()),
    });
}

#[test]
fn the_only_server_is_not_emptied() {
    let Some((servers, _folder, options, journal)) = filled(1) else { return };
    until(|| (repair(&servers, &options) == Ok(Mended::Whole)).then_some(()).ok_or_else(|| "not all answer".into()));
    damaged(&servers, &options, 0);
    let text = refused(&servers, &options);
    assert!(text.contains("not enough others"), "{text}");
    assert_eq!(until(|| journal.read(1, 1, Duration::ZERO).map_err(|error| error.to_string())).messages.len(), 1);
}
