//! Writes what is made of the decider's answers: `cargo run -p lockwork-lock-protocol --example vectors`.
//!
//! That is the golden vectors, the same for the P4 program in hardware/p4/stf, and the decision table in
//! docs/lock-service.md. Tests fail until they are written.

mod scenarios;

use lockwork_lock_protocol::export::{rows, stf};
use lockwork_lock_protocol::vectors::FOLDER;
use std::io;
use std::path::{Path, PathBuf};

/// An empty folder.
fn emptied(folder: PathBuf) -> io::Result<PathBuf> {
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn main() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let folder = emptied(FOLDER.into())?;
    for story in scenarios::all() {
        std::fs::write(folder.join(format!("{}.txt", story.name)), story.record().to_string())?;
    }
    let folder = emptied(root.join("hardware/p4/stf"))?;
    for story in scenarios::for_switches() {
        let path = folder.join(format!("{}.stf", story.name));
        std::fs::write(path, stf::stf(&story.record()).expect("made for switches"))?;
    }
    let page = root.join("docs/lock-service.md");
    let text = std::fs::read_to_string(&page)?;
    let [(before, _), (_, after)] = rows::MARKS.map(|mark| text.split_once(mark).expect("the marks of the table"));
    let [first, last] = rows::MARKS;
    std::fs::write(page, format!("{before}{first}\n{}{last}{after}", rows::markdown()))
}
