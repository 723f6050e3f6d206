//! What can go wrong with eBPF programs, and what would be right.

use std::error::Error;
use std::io;

/// Why there is no decider in the kernel. Nothing stays attached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// Not allowed.
    #[error("no permission to {what}: eBPF needs root, or CAP_BPF and CAP_NET_ADMIN; --udp needs neither")]
    NoPermission {
        /// To do what.
        what: String,
    },
    /// No lock was asked for.
    #[error("0 locks: give at least 1")]
    Locks,
    /// The kernel does not take the programs.
    #[error("the kernel does not load '{what}': {reason}; Linux 5.14 or newer is needed, with eBPF")]
    Load {
        /// Program or map.
        what: String,
        /// Why.
        reason: String,
    },
    /// No such interface.
    #[error("no network interface '{name}'; there are: {there}")]
    NoInterface {
        /// What was asked for.
        name: String,
        /// What there is.
        there: String,
    },
    /// Something is attached already.
    #[error(
        "interface '{interface}' has an XDP program already: remove it ('ip link set dev {interface} xdp off'), or use --tc"
    )]
    Busy {
        /// Where.
        interface: String,
    },
    /// The kernel does not attach the program.
    #[error("cannot attach to interface '{interface}': {reason}")]
    Attach {
        /// Where.
        interface: String,
        /// Why.
        reason: String,
    },
    /// A map cannot be read or written.
    #[error("map '{map}': {reason}")]
    Map {
        /// Which.
        map: &'static str,
        /// Why.
        reason: String,
    },
}

impl KernelError {
    pub(super) fn load(what: &str, error: impl Into<Box<dyn Error>>) -> Self {
        let error = error.into();
        match errno(&*error) {
            Some(libc::EPERM | libc::EACCES) if is_unprivileged() => {
                Self::NoPermission { what: format!("load '{what}'") }
            }
            _ => Self::Load { what: what.into(), reason: reason(&*error) },
        }
    }

    pub(super) fn attach(interface: &str, error: impl Into<Box<dyn Error>>) -> Self {
        let error = error.into();
        match errno(&*error) {
            Some(libc::EPERM) => Self::NoPermission { what: format!("attach to interface '{interface}'") },
            _ => Self::Attach { interface: interface.into(), reason: reason(&*error) },
        }
    }

    pub(super) fn map(map: &'static str, error: impl Error) -> Self {
        Self::Map { map, reason: reason(&error) }
    }
}

/// A program that the verifier refuses is EACCES too, so only without rights that means what it says.
fn is_unprivileged() -> bool {
    // SAFETY: it only asks.
    unsafe { libc::geteuid() != 0 }
}

/// The number of the system's error behind an error, if there is one.
pub(super) fn errno(error: &(dyn Error + 'static)) -> Option<i32> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(system) = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return Some(system);
        }
        cause = error.source();
    }
    None
}

/// An error with its causes, in one line.
pub(super) fn reason(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Some errors tell their cause already.
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_error_is_found_behind_others() {
        #[derive(Debug, thiserror::Error)]
        #[error("outside")]
        struct Outside(#[source] io::Error);
        let error = Outside(io::Error::from_raw_os_error(libc::EBUSY));
        assert_eq!(errno(&error), Some(libc::EBUSY));
        assert!(reason(&error).starts_with("outside: "));
    }
}
