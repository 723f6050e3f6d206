//! Network interfaces: which there are, and which driver and address one has.

use crate::kernel::error::KernelError;
use crate::socket;
use std::ffi::{CStr, CString};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;

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
    const GET_DRIVER: u32 = 3;
    /// `struct ethtool_drvinfo`: the command, the driver's name in 32 bytes, and more.
    #[repr(C)]
    struct Info {
        command: u32,
        driver: [u8; 32],
        more: [u8; 160],
    }
    let mut info = Info { command: GET_DRIVER, driver: [0; 32], more: [0; 160] };
    // SAFETY: the request points to a structure of the size that the command fills (196 bytes), which outlives it.
    unsafe { ask(interface, libc::SIOCETHTOOL, |request| request.ifr_ifru.ifru_data = (&raw mut info).cast()).ok()? };
    let name = CStr::from_bytes_until_nul(&info.driver).ok()?;
    Some(name.to_string_lossy().into_owned())
}

/// The first IPv4 address of an interface, if it has one.
///
/// # Errors
/// [`KernelError::NoInterface`].
pub fn address(interface: &str) -> Result<Option<Ipv4Addr>, KernelError> {
    index(interface)?;
    // SAFETY: this request has no pointer.
    let Ok(answer) = (unsafe { ask(interface, libc::SIOCGIFADDR, |_| {}) }) else { return Ok(None) };
    // SAFETY: the kernel has filled in an address, and all bytes of one are initialised.
    let address = unsafe { answer.ifr_ifru.ifru_addr };
    let [_, _, a, b, c, d, ..] = address.sa_data.map(|byte| byte as u8);
    Ok((libc::c_int::from(address.sa_family) == libc::AF_INET).then(|| Ipv4Addr::new(a, b, c, d)))
}

/// What the kernel makes of a request about an interface.
///
/// # Errors
/// What the kernel says, and that the name is too long for one.
///
/// # Safety
/// What `fill` puts into the request must be what the command wants.
pub(crate) unsafe fn ask(
    interface: &str,
    command: libc::c_ulong,
    fill: impl FnOnce(&mut libc::ifreq),
) -> io::Result<libc::ifreq> {
    let socket = socket::open(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    // SAFETY: all bytes zero is a request without a name.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    if interface.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    request.ifr_name.iter_mut().zip(interface.bytes()).for_each(|(to, byte)| *to = byte as libc::c_char);
    fill(&mut request);
    // SAFETY: the request has a name; the caller answers for the rest.
    match unsafe { libc::ioctl(socket.as_raw_fd(), command as _, &raw mut request) } {
        0 => Ok(request),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_is_not_there_is_named_beside_those_that_are() {
        let error = index("lockwork-none").expect_err("there is no such interface").to_string();
        assert!(error.contains("'lockwork-none'") && error.contains("lo"), "{error}");
        let error = index("a\0b").expect_err("no name has a zero byte");
        assert!(matches!(&error, KernelError::NoInterface { name, .. } if name == "a\0b"), "{error}");
    }

    #[test]
    fn loopback_has_its_address_and_what_is_not_there_has_none() {
        assert_eq!(address("lo").expect("it is there"), Some(Ipv4Addr::LOCALHOST));
        assert!(matches!(address("lockwork-none"), Err(KernelError::NoInterface { .. })));
    }

    #[test]
    fn an_interface_that_is_not_there_has_no_driver() {
        assert_eq!(driver("lockwork-none"), None);
        assert_eq!(driver("a name that is too long for an interface"), None);
    }
}
