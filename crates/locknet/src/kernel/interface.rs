//! Network interfaces: which there are, and which driver one has.

use crate::kernel::error::KernelError;
use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The index of an interface.
pub(super) fn index(name: &str) -> Result<u32, KernelError> {
    let index = CString::new(name).map_or(0, |name| {
        // SAFETY: a string that ends in zero.
        unsafe { libc::if_nametoindex(name.as_ptr()) }
    });
    if index == 0 {
        return Err(KernelError::NoInterface { name: name.into(), there: names().join(", ") });
    }
    Ok(index)
}

fn names() -> Vec<String> {
    let mut names = Vec::new();
    // SAFETY: the kernel gives an array that ends with index 0, which is given back below and not used afterwards.
    unsafe {
        let all = libc::if_nameindex();
        let mut at = all;
        while !at.is_null() && (*at).if_index != 0 {
            names.push(CStr::from_ptr((*at).if_name).to_string_lossy().into_owned());
            at = at.add(1);
        }
        if !all.is_null() {
            libc::if_freenameindex(all);
        }
    }
    names
}

/// The driver of an interface, if it tells.
pub(super) fn driver(interface: &str) -> Option<String> {
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    const GET_DRIVER: u32 = 3;
    /// `struct ethtool_drvinfo`: the command, the driver's name in 32 bytes, and more.
    #[repr(C)]
    struct Info {
        command: u32,
        driver: [u8; 32],
        more: [u8; 160],
    }
    let mut info = Info { command: GET_DRIVER, driver: [0; 32], more: [0; 160] };
    // SAFETY: the request has a name that is shorter than its room and so ends in zero, and points to a structure of
    // the size that the command fills (196 bytes), which outlives the call.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if socket < 0 {
            return None;
        }
        let socket = OwnedFd::from_raw_fd(socket);
        let mut request: libc::ifreq = std::mem::zeroed();
        if interface.len() >= request.ifr_name.len() {
            return None;
        }
        for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = (&raw mut info).cast();
        if libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) != 0 {
            return None;
        }
    }
    let name = CStr::from_bytes_until_nul(&info.driver).ok()?;
    Some(name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_is_not_there_is_named_beside_those_that_are() {
        let error = index("lockwork-none").expect_err("there is no such interface").to_string();
        assert!(error.contains("'lockwork-none'") && error.contains("lo"), "{error}");
        assert!(index("a\0b").is_err());
    }

    #[test]
    fn an_interface_that_is_not_there_has_no_driver() {
        assert_eq!(driver("lockwork-none"), None);
        assert_eq!(driver("a name that is too long for an interface"), None);
    }
}
