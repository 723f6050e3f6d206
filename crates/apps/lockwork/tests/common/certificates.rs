//! Certificates that openssl makes, good ones and bad ones, for several tests.

use std::path::{Path, PathBuf};

use crate::server::program;

/// An authority, and what it signs, in a folder that is there.
pub(crate) struct Authority {
    folder: PathBuf,
}

/// A certificate and its key.
pub(crate) type Pair = [String; 2];

impl Authority {
    /// Nothing where there is no openssl.
    pub(crate) fn new(folder: &Path) -> Option<Self> {
        program("openssl")?;
        std::fs::create_dir_all(folder).unwrap();
        let authority = Self { folder: folder.into() };
        authority.own("authority", "/CN=an authority", &[]);
        Some(authority)
    }

    /// Its own certificate.
    pub(crate) fn file(&self) -> String {
        self.path("authority.pem")
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().into()
    }

    /// A certificate that signs itself, as `openssl req -x509` makes them: one of an authority.
    pub(crate) fn own(&self, name: &str, subject: &str, more: &[&str]) -> Pair {
        let [certificate, key] = [self.path(&format!("{name}.pem")), self.path(&format!("{name}-key.pem"))];
        let made = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", subject];
        openssl(&[&made, more, &["-out", &certificate, "-keyout", &key]].concat());
        [certificate, key]
    }

    /// The same as one that has ended.
    pub(crate) fn expire(&self, [certificate, key]: Pair) -> Pair {
        let expired = format!("{certificate}.expired");
        openssl(&["x509", "-in", &certificate, "-signkey", &key, "-days", "-1", "-out", &expired]);
        [expired, key]
    }

    /// One for these names (`IP:127.0.0.1,DNS:localhost`) that ends in so many days.
    pub(crate) fn sign(&self, name: &str, names: &str, days: &str) -> Pair {
        let [certificate, key] = [self.path(&format!("{name}.pem")), self.path(&format!("{name}-key.pem"))];
        let (request, names) = (self.path(&format!("{name}.csr")), format!("subjectAltName={names}"));
        let asked = ["req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=a server", "-addext", &names];
        openssl(&[&asked[..], &["-out", &request, "-keyout", &key]].concat());
        let [by, by_key] = [self.file(), self.path("authority-key.pem")];
        let signed = ["x509", "-req", "-in", &request, "-CA", &by, "-CAkey", &by_key, "-CAcreateserial", "-days", days];
        openssl(&[&signed[..], &["-copy_extensions", "copy", "-out", &certificate]].concat());
        [certificate, key]
    }
}

fn openssl(words: &[&str]) {
    let made = program("openssl").unwrap().args(words).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}
