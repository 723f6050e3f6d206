//! What other languages need of the protocol, written from the Rust code that defines it.
//!
//! Each module gives the text of one file. The file is committed, so that nobody needs Rust to use it, and a test
//! compares it with what would be written now. To write all of them anew: `WRITE_EXPORTS=1 cargo test -p
//! lockwork-lock-protocol export`.

pub mod c;
pub mod p4;
pub mod packets;
pub mod rows;
pub mod stf;

/// Compares a committed file with the text that it should have, or writes it if `WRITE_EXPORTS` is set.
#[cfg(test)]
fn check(path: &str, text: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(path);
    if std::env::var_os("WRITE_EXPORTS").is_some() {
        std::fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let differs = committed.lines().zip(text.lines()).position(|(is, should)| is != should);
    let hint = "write it anew with WRITE_EXPORTS=1 cargo test -p lockwork-lock-protocol export";
    assert!(
        committed == text,
        "{} is out of date from line {:?}; {hint}",
        path.display(),
        differs.map(|line| line + 1)
    );
}
