//! Writes the golden vectors: `cargo run -p lockwork-lockservice --example vectors`. A test fails until they are written.

mod scenarios;

use lockwork_lockservice::vectors::FOLDER;
use std::path::Path;

fn main() -> std::io::Result<()> {
    let folder = Path::new(FOLDER);
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    std::fs::create_dir_all(folder)?;
    for story in scenarios::all() {
        std::fs::write(folder.join(format!("{}.txt", story.name)), story.record().to_string())?;
    }
    Ok(())
}
