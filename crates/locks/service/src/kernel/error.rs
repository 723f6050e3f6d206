//! What can go wrong with eBPF programs, and what would be right.

use lockwork_lock_protocol::decider::WideLock;
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
    /// The kernel has no memory for so many.
    #[error("{locks} locks need {} MiB of kernel memory, which the kernel does not give: give fewer --locks", locks_mib(*.locks))]
    Memory {
        /// How many locks were asked for.
        locks: u32,
    },
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
    /// We are there already.
    #[error("interface '{interface}' is given twice: name each interface once")]
    Twice {
        /// Which.
        interface: String,
    },
    /// Something else is attached already.
    #[error(
        "interface '{interface}' has an XDP program of somebody else, maybe of another lockd: 'ip link show dev {interface}' and 'bpftool net' tell which; end what has put it there, or use --tc"
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
            // The verifier says EACCES.
            Some(libc::EPERM) => Self::NoPermission { what: "load eBPF programs".into() },
            Some(libc::EACCES) if is_unprivileged() => Self::NoPermission { what: "load eBPF programs".into() },
            _ => Self::Load { what: what.into(), reason: reason(&*error) },
        }
    }

    /// The maps and programs of an object with so many locks.
    pub(super) fn load_object(locks: u32, error: impl Into<Box<dyn Error>>) -> Self {
        let error = error.into();
        match errno(&*error) {
            Some(libc::ENOMEM | libc::E2BIG) => Self::Memory { locks },
            _ => Self::load("eBPF object", error),
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

fn locks_mib(locks: u32) -> u64 {
    (u64::from(locks) * size_of::<WideLock>() as u64).div_ceil(1 << 20)
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
    fn who_lacks_memory_or_rights_is_told_so() {
        let system = io::Error::from_raw_os_error;
        let error = KernelError::load_object(u32::MAX, system(libc::ENOMEM)).to_string();
        assert!(error.starts_with("4294967295 locks need 65536 MiB"), "{error}");
        let error = KernelError::load_object(1, system(libc::EPERM)).to_string();
        assert!(error.contains("load eBPF programs") && error.contains("CAP_BPF"), "{error}");
        assert!(matches!(KernelError::load("map", system(libc::EINVAL)), KernelError::Load { .. }));
    }

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
