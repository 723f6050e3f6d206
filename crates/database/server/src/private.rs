//! Files with secrets, which only their owner may be able to read.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Why a file with a secret is not used.
#[derive(Debug)]
pub(crate) enum Unusable {
    /// The system's error.
    Io(io::Error),
    /// Other users of this machine can read or write it; the text says how to change that.
    Open(String),
}

/// Reads a file that nobody but its owner can read or write.
///
/// # Errors
/// The system's, and [`Unusable::Open`] with the command that mends the file's mode.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Unusable> {
    read_if(path, false)
}

/// As [`read`]. As with PostgreSQL, a file of root's may also be readable by its group: that is how systems share a TLS
/// key with the users of several services.
pub(crate) fn read_key(path: &Path) -> Result<Vec<u8>, Unusable> {
    read_if(path, true)
}

fn read_if(path: &Path, has_group: bool) -> Result<Vec<u8>, Unusable> {
    let mut file = File::open(path).map_err(Unusable::Io)?;
    let metadata = file.metadata().map_err(Unusable::Io)?;
    if metadata.is_file() {
        check(path, metadata.mode(), has_group && metadata.uid() == 0).map_err(Unusable::Open)?;
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(Unusable::Io)?;
    Ok(bytes)
}

/// Refuses a mode that lets others in. What is no file (a pipe of the shell, `<(...)`) has no name that others open.
fn check(path: &Path, mode: u32, has_group: bool) -> Result<(), String> {
    let allowed = if has_group { 0o740 } else { 0o700 };
    if mode & 0o777 & !allowed == 0 {
        return Ok(());
    }
    let path = path.display();
    Err(format!("{path} can be read or written by others than its owner (mode {:03o}): chmod 600 {path}", mode & 0o777))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_files_that_nobody_else_reads_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, "secret").unwrap();
        for (mode, is_read) in
            [(0o600, true), (0o400, true), (0o700, true), (0o604, false), (0o620, false), (0o640, false)]
        {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            match read(&path) {
                Ok(bytes) => assert!(is_read && bytes == b"secret", "{mode:o}"),
                Err(Unusable::Open(why)) => assert!(!is_read && why.contains("chmod 600 "), "{mode:o}: {why}"),
                Err(Unusable::Io(error)) => panic!("{mode:o}: {error}"),
            }
        }
        assert!(matches!(read(&folder.path().join("none")), Err(Unusable::Io(_))));
        // The group of a key of root's may read it, and only that.
        for (mode, group, is_right) in
            [(0o640, true, true), (0o640, false, false), (0o660, true, false), (0o644, true, false)]
        {
            assert_eq!(check(&path, mode, group).is_ok(), is_right, "{mode:o} {group}");
        }
    }
}
