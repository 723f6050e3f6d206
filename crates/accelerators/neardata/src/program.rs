//! The storage process, as it sees itself: its arguments, its data, its host.
//!
//! The host puts the arguments after `--` ([`StorageProcess::spawn`](crate::process::StorageProcess::spawn)); what
//! stands before belongs to the program, which may be one that has other uses as well. Files come by number, as they
//! were inherited, and are closed to further children at once.
//!
//! Invariant: whatever is wrong is said in one line on standard error, which the host shows, and the exit code is not
//! zero.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::channel::StorageEnd;
use crate::device::Device;
use crate::link::Link;
use crate::serve::{Served, serve};

/// What the host tells the storage when it starts it.
#[derive(Debug)]
pub struct StorageArguments {
    /// The file with the data.
    pub data: PathBuf,
    /// How many processing elements.
    pub elements: usize,
    /// The link to the host.
    pub link: Link,
    /// Further files, by name.
    pub files: Vec<(String, OwnedFd)>,
    channel: OwnedFd,
    host: OwnedFd,
    spin: Duration,
}

impl StorageArguments {
    /// Reads arguments as the host writes them; takes the files that they name.
    ///
    /// # Errors
    /// The argument that is missing or wrong, and what it should be.
    pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, String> {
        let mut arguments = arguments.into_iter();
        let (mut data, mut elements, mut link, mut spin) = (None, None, Link::None, Duration::ZERO);
        let (mut channel, mut host, mut files, mut taken) = (None, None, Vec::new(), BTreeSet::new());
        while let Some(name) = arguments.next() {
            let name = name.to_string_lossy().into_owned();
            let Some(value) = arguments.next() else { return Err(format!("'{name}' is without a value")) };
            let text = value.to_string_lossy().into_owned();
            let wrong = |what: &str| format!("{name} {text}: {what}");
            match name.as_str() {
                "--data" => data = Some(value.into()),
                "--elements" => {
                    let number = text.parse().ok().filter(|number| (1..=1024).contains(number));
                    elements = Some(number.ok_or_else(|| wrong("a number from 1 to 1024 is possible"))?);
                }
                "--link" => link = text.parse().map_err(|error| wrong(&format!("{error}")))?,
                "--spin" => {
                    spin = Duration::from_nanos(text.parse().map_err(|_| wrong("it should be nanoseconds"))?);
                }
                "--channel" => channel = Some(inherited(&text, &mut taken).map_err(|error| wrong(&error))?),
                "--host" => host = Some(inherited(&text, &mut taken).map_err(|error| wrong(&error))?),
                "--file" => {
                    let (name, number) = text.split_once('=').ok_or_else(|| wrong("it should be NAME=NUMBER"))?;
                    files.push((name.into(), inherited(number, &mut taken).map_err(|error| wrong(&error))?));
                }
                _ => {
                    let all = "--data, --elements, --link, --spin, --channel, --host and --file";
                    return Err(format!("'{name}' is no argument; there are {all}"));
                }
            }
        }
        let missing = |name: &str| format!("{name} is missing; this program is started by its host, after '--'");
        Ok(Self {
            data: data.ok_or_else(|| missing("--data"))?,
            elements: elements.ok_or_else(|| missing("--elements"))?,
            channel: channel.ok_or_else(|| missing("--channel"))?,
            host: host.ok_or_else(|| missing("--host"))?,
            link,
            files,
            spin,
        })
    }

    /// The further file of this name.
    #[must_use]
    pub fn file(&self, name: &str) -> Option<&OwnedFd> {
        self.files.iter().find(|(other, _)| other == name).map(|(_, file)| file)
    }
}

/// Takes a file that was inherited, each once.
fn inherited(number: &str, taken: &mut BTreeSet<RawFd>) -> Result<OwnedFd, String> {
    let file =
        number.parse::<RawFd>().ok().filter(|file| *file > 2).ok_or("it should be the number of a file above 2")?;
    if !taken.insert(file) {
        return Err("the file is named twice".into());
    }
    // SAFETY: a plain system call, which fails if there is no such file.
    if unsafe { libc::fcntl(file, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(format!("the file was not inherited: {}", io::Error::last_os_error()));
    }
    // SAFETY: it is open, the host has put it here for this program to own, and it has not been taken before.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

/// The whole storage process: takes the arguments after the first `--`, opens the data, and serves the host until one
/// of them ends.
pub fn storage_main(open: impl FnOnce(&StorageArguments) -> Result<Arc<dyn Device>, String>) -> ExitCode {
    match run(open) {
        Ok(Served::ShutDown | Served::HostGone) => ExitCode::SUCCESS,
        Err(text) => {
            // The host may be gone, and the other end of this with it.
            let _ = writeln!(io::stderr(), "smart storage: {text}");
            ExitCode::FAILURE
        }
    }
}

fn run(open: impl FnOnce(&StorageArguments) -> Result<Arc<dyn Device>, String>) -> Result<Served, String> {
    let arguments = StorageArguments::parse(std::env::args_os().skip_while(|argument| argument != "--").skip(1))?;
    let device = open(&arguments)?;
    let StorageArguments { channel, host, link, spin, .. } = arguments;
    let channel = StorageEnd::attach(channel, link, spin).map_err(|error| error.to_string())?;
    serve(channel, host, device).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::IntoRawFd;

    use super::*;

    fn parse(text: &str) -> Result<StorageArguments, String> {
        StorageArguments::parse(text.split_whitespace().map(OsString::from))
    }

    #[test]
    fn arguments_that_are_wrong_are_named() {
        let number = || File::open("/dev/null").expect("every system has it").into_raw_fd();
        let whole = |link: &str, elements: u32| {
            let (channel, host, file) = (number(), number(), number());
            parse(&format!(
                "--data d --elements {elements} --link {link} --spin 5 --channel {channel} --host {host} --file a={file}"
            ))
        };
        let arguments = whole("cxl", 3).expect("they are right");
        assert_eq!((arguments.link, arguments.elements, arguments.spin), (Link::Cxl, 3, Duration::from_nanos(5)));
        assert!(arguments.file("a").is_some() && arguments.file("b").is_none());
        let wrong = |text: &str| parse(text).expect_err("they are wrong");
        assert!(whole("isdn", 3).expect_err("no link").ends_with("there are none, ccix, cxl and pcie"));
        assert_eq!(whole("none", 0).expect_err("none"), "--elements 0: a number from 1 to 1024 is possible");
        assert_eq!(wrong(""), "--data is missing; this program is started by its host, after '--'");
        assert_eq!(wrong("--data"), "'--data' is without a value");
        assert_eq!(wrong("--channel 2"), "--channel 2: it should be the number of a file above 2");
        assert!(wrong("--host 9999").starts_with("--host 9999: the file was not inherited"));
        assert!(wrong("--size 3").starts_with("'--size' is no argument; there are --data"));
        let file = number();
        assert!(wrong(&format!("--file a={file} --host {file}")).ends_with("the file is named twice"));
    }
}
