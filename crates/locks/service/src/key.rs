//! The cluster's key in a file.
//!
//! 32 hexadecimal digits, with or without white space around them, or exactly 16 bytes. Everybody who can read it can
//! take and release every lock, so a file that others may read is refused. As with TLS keys of PostgreSQL, a file of
//! root's may be readable by its group.

use lockwork_lock_protocol::packet::Key;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A key file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// It cannot be read.
    #[error("key file {path}: {error}{}", hint(path, error))]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// Others than its owner can read or write it.
    #[error("key file {path} can be read or written by others than its owner (mode {mode:03o}): chmod 600 {path}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It holds something else.
    #[error("key file {path}: {found}; it must hold 32 hexadecimal digits, or exactly 16 bytes")]
    Form {
        /// The file.
        path: PathBuf,
        /// What it holds instead.
        found: String,
    },
}

/// How to make a file that is not there.
fn hint(path: &Path, error: &std::io::Error) -> String {
    if error.kind() != std::io::ErrorKind::NotFound {
        return String::new();
    }
    format!("; make one with: {}", command(path))
}

/// The shell command that makes a key file which only its owner can read.
#[must_use]
pub fn command(path: &Path) -> String {
    format!("(umask 077; head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \\n' > {})", path.display())
}

/// More than a key with white space around it needs.
const MOST: u64 = 4096;

/// Reads a key file.
///
/// # Errors
/// [`KeyError`] if it cannot be read, others can read it, or it holds no key.
pub fn read(path: &Path) -> Result<Key, KeyError> {
    let unreadable = |error| KeyError::Read { path: path.to_path_buf(), error };
    let form = |found| KeyError::Form { path: path.to_path_buf(), found };
    let file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    // What is no file (a pipe of the shell, `<(...)`) has no name that others open.
    if metadata.is_file() && !is_private(metadata.mode(), metadata.uid()) {
        return Err(KeyError::Open { path: path.to_path_buf(), mode: metadata.mode() & 0o777 });
    }
    let mut bytes = Vec::new();
    let length = file.take(MOST + 1).read_to_end(&mut bytes).map_err(unreadable)? as u64;
    if length > MOST {
        return Err(form(format!("it has more than {MOST} bytes")));
    }
    parse(&bytes).map_err(form)
}

/// Whether only the owner can read a file of this mode; a file of root may be readable by its group.
fn is_private(mode: u32, owner: u32) -> bool {
    let allowed = if owner == 0 { 0o740 } else { 0o700 };
    mode & 0o777 & !allowed == 0
}

fn parse(bytes: &[u8]) -> Result<Key, String> {
    if let Ok(key) = <[u8; 16]>::try_from(bytes) {
        return Ok(Key(key));
    }
    let text = bytes.trim_ascii();
    if let Some(at) = text.iter().position(|byte| !byte.is_ascii_hexdigit()) {
        let byte = text[at].escape_ascii();
        return Err(format!("byte {} of {} is '{byte}', no hexadecimal digit", at + 1, text.len()));
    }
    if text.len() != 32 {
        return Err(format!("it has {} hexadecimal digits", text.len()));
    }
    let digit = |byte: u8| (byte as char).to_digit(16).unwrap_or_default() as u8;
    Ok(Key(std::array::from_fn(|at| digit(text[2 * at]) << 4 | digit(text[2 * at + 1]))))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn digits_and_bytes_are_keys_and_the_rest_is_refused_by_name() {
        let key = Key(std::array::from_fn(|at| at as u8 * 17));
        assert_eq!(parse(b"00112233445566778899aabbccddeeff\n").unwrap(), key);
        assert_eq!(parse(b" 00112233445566778899AABBCCDDEEFF").unwrap(), key);
        assert_eq!(parse(&key.0).unwrap(), key);
        assert_eq!(parse(b"0011").unwrap_err(), "it has 4 hexadecimal digits");
        assert_eq!(parse(b"").unwrap_err(), "it has 0 hexadecimal digits");
        let message = parse(b"00112233445566778899aabbccddeefg").unwrap_err();
        assert_eq!(message, "byte 32 of 32 is 'g', no hexadecimal digit");
    }

    #[test]
    fn a_file_that_others_read_is_refused() {
        let path = std::env::temp_dir().join(format!("lockwork-key-{}", std::process::id()));
        std::fs::write(&path, "00112233445566778899aabbccddeeff\n").unwrap();
        for (mode, is_used) in [(0o600, true), (0o400, true), (0o620, false), (0o604, false), (0o644, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            match read(&path) {
                Ok(_) => assert!(is_used, "{mode:o}"),
                Err(error) => {
                    assert!(!is_used && error.to_string().contains("chmod 600 "), "{mode:o}: {error}");
                }
            }
        }
        for (mode, owner, is_right) in [(0o640, 0, true), (0o640, 1000, false), (0o660, 0, false), (0o644, 0, false)] {
            assert_eq!(is_private(mode, owner), is_right, "{mode:o} {owner}");
        }
        std::fs::remove_file(&path).unwrap();
        let message = read(&path).unwrap_err().to_string();
        assert!(message.contains("lockwork-key-") && message.contains("(umask 077; head -c 16"), "{message}");
    }

    #[test]
    fn what_is_there_and_no_key_is_not_to_be_made_and_is_not_read_for_ever() {
        for (path, says) in [("/", "directory"), ("/dev/zero", "more than 4096 bytes"), ("/dev/null", "0 hexadecimal")]
        {
            let message = read(Path::new(path)).unwrap_err().to_string();
            assert!(message.contains(says) && !message.contains("urandom"), "{message}");
        }
    }
}
