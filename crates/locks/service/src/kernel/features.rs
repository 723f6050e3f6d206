//! Whether frames that XDP sends can leave by an interface.
//!
//! A veth hands frames of XDP to its other end only if that polls, which it does with GRO or with an XDP program of its
//! own. Otherwise the kernel drops them, and no counter says so. The other end may be in another namespace, where
//! nobody can look; but the kernel keeps among the features of an interface whether it is a target of redirection, for
//! a veth according to its other end. It tells since Linux 6.3, by the generic netlink family `netdev`.

use crate::socket;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// The family that knows the other families, and its question for one.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// The question of `netdev` for an interface.
const GET_DEVICE: u8 = 1;
const INTERFACE: u16 = 1;
const XDP_FEATURES: u16 = 3;
/// The feature: frames can be redirected to it.
const TRANSMITS: u64 = 4;

/// Headers of netlink and of its generic kind.
const HEADERS: usize = 16 + 4;

/// Whether frames can be redirected to an interface; `None` if the kernel does not tell.
pub(super) fn transmits(ifindex: u32) -> Option<bool> {
    let socket = socket::open(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_GENERIC).ok()?;
    let family = ask(&socket, CONTROL, GET_FAMILY, FAMILY_NAME, b"netdev\0").ok()?;
    let family = attribute(&family, FAMILY_ID)?.try_into().map(u16::from_ne_bytes).ok()?;
    let device = ask(&socket, family, GET_DEVICE, INTERFACE, &ifindex.to_ne_bytes()).ok()?;
    let features = attribute(&device, XDP_FEATURES)?.try_into().map(u64::from_ne_bytes).ok()?;
    Some(features & TRANSMITS != 0)
}

/// A question with one attribute, and the attributes of its answer.
fn ask(socket: &OwnedFd, family: u16, command: u8, name: u16, value: &[u8]) -> io::Result<Vec<u8>> {
    let mut request = vec![0; HEADERS];
    request[4..6].copy_from_slice(&family.to_ne_bytes());
    request[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    request[16] = command;
    request[17] = 1;
    request.extend((4 + value.len() as u16).to_ne_bytes());
    request.extend(name.to_ne_bytes());
    request.extend(value);
    request.resize(request.len().next_multiple_of(4), 0);
    let length = request.len() as u32;
    request[..4].copy_from_slice(&length.to_ne_bytes());
    let mut answer = vec![0; 1 << 15];
    // SAFETY: both buffers are as long as is said, and outlive the calls. An unconnected socket sends to the kernel,
    // which has answered when the first call returns.
    let received = unsafe {
        let fd = socket.as_raw_fd();
        if libc::send(fd, request.as_ptr().cast(), request.len(), 0) < 0 {
            return Err(io::Error::last_os_error());
        }
        libc::recv(fd, answer.as_mut_ptr().cast(), answer.len(), libc::MSG_DONTWAIT)
    };
    if received < 0 {
        return Err(io::Error::last_os_error());
    }
    answer.truncate(received as usize);
    let kind = answer.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
    // An error, or the family of another question.
    if kind != Some(family) || answer.len() < HEADERS {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(answer.split_off(HEADERS))
}

/// The value of an attribute.
fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    while let Some((header, _)) = attributes.split_first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let value = attributes.get(4..length)?;
        if u16::from_ne_bytes([header[2], header[3]]) == wanted {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_is_found_behind_others_and_damaged_ones_are_none() {
        let attributes = [5, 0, 1, 0, 9, 0, 0, 0, 6, 0, 2, 0, 7, 8];
        assert_eq!(attribute(&attributes, 1), Some(&[9][..]));
        assert_eq!(attribute(&attributes, 2), Some(&[7, 8][..]));
        assert_eq!(attribute(&attributes, 3), None);
        for damaged in [&attributes[..13], &[200, 0, 2, 0], &[0, 0, 1, 0, 6, 0, 2, 0]] {
            assert_eq!(attribute(damaged, 2), None, "{damaged:?}");
        }
    }

    #[test]
    fn an_interface_that_is_not_there_tells_nothing() {
        assert_eq!(transmits(u32::MAX >> 1), None);
    }
}
