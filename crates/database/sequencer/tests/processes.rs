//! Two processes and one directory.

mod common;

use std::process::Command;
use std::sync::Arc;

use common::*;
use lockwork_engine::EngineKind;
use lockwork_sequencer::Error;
use lockwork_sequencer::io::Disk;

const SECOND: &str = "LOCKWORK_SECOND_PROCESS";

#[test]
fn second() {
    let Ok(path) = std::env::var(SECOND) else { return };
    match open_with(Arc::new(Disk::new()), path.as_ref(), options(), EngineKind::SERIAL) {
        Ok(_) => println!("opened"),
        Err(error @ Error::Locked { .. }) => println!("refused: {error}"),
        Err(error) => println!("other: {error}"),
    }
}

#[test]
fn the_second_process_is_refused_with_the_number_of_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let ask = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "second", "--nocapture"]).env(SECOND, path);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let (sequencer, _) = open_with(Arc::new(Disk::new()), path, options(), EngineKind::SERIAL).unwrap();
    furnish(&sequencer).unwrap();
    let digest = sequencer.digest().unwrap();
    let refused = format!("is in use by process {}; one process at a time can open it", std::process::id());
    let answer = ask();
    assert!(answer.contains(&refused), "{answer}");
    sequencer.call_batch(batch(&[(1, 0, vec![1])])).unwrap();
    drop(sequencer);
    assert!(ask().contains("opened"));
    let (sequencer, _) = open_with(Arc::new(Disk::new()), path, options(), EngineKind::SERIAL).unwrap();
    assert_eq!(sequencer.digest().unwrap(), digest);
}
