//! What those who ask the page of other machines have to know.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::private::{self, Unusable};

/// The shortest token, in bytes.
const SHORTEST: usize = 16;
const LONGEST: usize = 1024;

/// A token of a file.
#[derive(Clone)]
pub struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").finish_non_exhaustive()
    }
}

/// Why a file holds no token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The system refuses.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// Others than its owner can read it; the text says how to change that.
    #[error("{0}")]
    Open(String),
    /// It holds something else.
    #[error(
        "{0} holds no token: {SHORTEST} to {LONGEST} visible ASCII characters; (umask 077; openssl rand -hex 32 > {0}) \
         makes one"
    )]
    Form(String),
}

impl Token {
    /// Reads a token, without the white space around it.
    ///
    /// # Errors
    /// The file cannot be read, others can read it, or it holds no token.
    pub fn open(path: &Path) -> Result<Self, TokenError> {
        let name = || path.display().to_string();
        let bytes = private::read(path).map_err(|why| match why {
            Unusable::Io(error) => TokenError::Io { path: name(), error },
            Unusable::Open(why) => TokenError::Open(why),
        })?;
        let token = bytes.trim_ascii();
        let is_token = (SHORTEST..=LONGEST).contains(&token.len()) && token.iter().all(u8::is_ascii_graphic);
        let token = std::str::from_utf8(token).ok().filter(|_| is_token);
        token.map(|token| Self(token.into())).ok_or_else(|| TokenError::Form(name()))
    }

    /// Whether it is in a header, as RFC 6750 has it, or as the password of RFC 7617, which browsers ask for.
    pub(super) fn is_in(&self, header: &str) -> bool {
        let Some((scheme, given)) = header.split_once(' ') else { return false };
        let given = given.trim();
        if scheme.eq_ignore_ascii_case("bearer") {
            return self.is(given.as_bytes());
        }
        let decoded = STANDARD.decode(given).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"));
        let password = |pair: Vec<u8>| pair.splitn(2, |byte| *byte == b':').nth(1).map(<[u8]>::to_vec);
        decoded.and_then(password).is_some_and(|password| self.is(&password))
    }

    /// Compares in a time that does not tell how much is right.
    fn is(&self, given: &[u8]) -> bool {
        let differ = |(a, b): (&u8, &u8)| std::hint::black_box(a ^ b);
        given.len() == self.0.len()
            && given.iter().zip(self.0.as_bytes()).map(differ).fold(0, |all, one| all | one) == 0
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_is_read_from_a_private_file_and_found_in_headers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let write = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            Token::open(&path)
        };
        for text in ["", "short", "0123456789abcde", "0123456789 abcdef", "0123456789abcdéf", &"x".repeat(1025)] {
            let refused = write(text, 0o600).unwrap_err();
            assert!(matches!(refused, TokenError::Form(_)) && refused.to_string().contains("openssl"), "{text}");
        }
        assert!(write("0123456789abcdef", 0o644).unwrap_err().to_string().contains("chmod 600"));
        let token = write(" 0123456789abcdef\n", 0o600).unwrap();
        let basic = |pair: &str| format!("Basic {}", STANDARD.encode(pair));
        for good in ["Bearer 0123456789abcdef", "bearer  0123456789abcdef", &basic(":0123456789abcdef")] {
            assert!(token.is_in(good), "{good}");
        }
        for bad in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer 0123456789abcdeg",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "Digest 0123456789abcdef",
            "Basic 0123456789abcdef",
            &basic("0123456789abcdef"),
            &basic("0123456789abcdef:x"),
        ] {
            assert!(!token.is_in(bad), "{bad}");
        }
        assert!(!format!("{token:?}").contains("0123"));
    }
}
