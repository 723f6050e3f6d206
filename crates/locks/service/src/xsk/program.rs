//! The XDP program of an AF_XDP socket: datagrams to one UDP port go into the socket, everything else to the network
//! stack.
//!
//! Sixteen instructions, so they are written here and given to the kernel by hand. *Invariant*: whoever drops a
//! [`Program`] has taken it off its interface.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const XDP_PASS: i32 = 2;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
const BPF_REDIRECT_MAP: i32 = 51;

/// An instruction.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Instruction {
    code: u8,
    /// Destination below, source above.
    registers: u8,
    offset: i16,
    value: i32,
}

const fn instruction(code: u8, to: u8, from: u8, offset: i16, value: i32) -> Instruction {
    Instruction { code, registers: to | from << 4, offset, value }
}

const fn set(to: u8, value: i32) -> Instruction {
    instruction(0xb7, to, 0, 0, value)
}

const fn copy(to: u8, from: u8) -> Instruction {
    instruction(0xbf, to, from, 0, 0)
}

const BYTE: u8 = 0x71;
const HALF: u8 = 0x69;
const WORD: u8 = 0x61;

const fn load(size: u8, to: u8, from: u8, offset: i16) -> Instruction {
    instruction(size, to, from, offset, 0)
}

/// Where a frame that is for somebody else goes on.
fn unless_equal(register: u8, value: i32, distance: usize) -> Instruction {
    instruction(0x55, register, 0, distance as i16, value)
}

/// The first bytes of a frame are in register 2 when it is looked at.
fn filter(map: &OwnedFd, port: u16) -> Vec<Instruction> {
    let be = |value: u16| i32::from(value.to_be());
    let tests = [
        // IPv4 without options, UDP, the port; a fragment has no port, or not a whole datagram.
        (HALF, 12, be(0x0800)),
        (BYTE, 14, 0x45),
        (BYTE, 23, 17),
        (HALF, 36, be(port)),
    ];
    let redirect = [
        load(WORD, 2, 6, 16),
        instruction(0x18, 1, 1, 0, map.as_raw_fd()),
        instruction(0, 0, 0, 0, 0),
        set(3, XDP_PASS),
        instruction(0x85, 0, 0, 0, BPF_REDIRECT_MAP),
        instruction(0x95, 0, 0, 0, 0),
    ];
    let mut program = vec![copy(6, 1), load(WORD, 2, 1, 0), load(WORD, 3, 1, 4), copy(4, 2)];
    program.push(instruction(0x07, 4, 0, 0, 42));
    // Shorter than the headers.
    program.push(instruction(0x2d, 4, 3, (2 * tests.len() + redirect.len()) as i16, 0));
    for (at, (size, offset, value)) in tests.into_iter().enumerate() {
        program.push(load(size, 5, 2, offset));
        program.push(unless_equal(5, value, 2 * (tests.len() - 1 - at) + redirect.len()));
    }
    program.extend(redirect);
    program.extend(PASS);
    program
}

/// Lets a frame through.
const PASS: [Instruction; 2] = [set(0, XDP_PASS), instruction(0x95, 0, 0, 0, 0)];

/// `bpf(2)`. The attributes are those of the command, padding included.
fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<libc::c_int> {
    // SAFETY: the kernel reads so many bytes; pointers among them are to memory that the callers below keep.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as libc::c_int) }
}

fn new_fd<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the commands that this is called with give a new descriptor.
    bpf(command, attributes).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
}

#[repr(C)]
struct MapUpdate {
    map: u32,
    zero: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgramLoad {
    kind: u32,
    instructions: u32,
    at: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach: u32,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach: u32,
    flags: u32,
}

/// A program on an interface of the thread's namespace. Dropped, it is taken off.
#[derive(Debug)]
pub(super) struct Program {
    // Everything else lives as long as it does.
    _link: OwnedFd,
}

impl Program {
    /// Gives datagrams to `port` to the AF_XDP socket `socket`, which is bound to queue 0 of the interface.
    ///
    /// # Errors
    /// The kernel's: no permission, or another program is on the interface.
    pub(super) fn into_socket(interface: u32, socket: &OwnedFd, port: u16) -> io::Result<Self> {
        let create = MapCreate { kind: BPF_MAP_TYPE_XSKMAP, key_bytes: 4, value_bytes: 4, entries: 1 };
        let map = new_fd(BPF_MAP_CREATE, &create)?;
        let (queue, value) = (0_u32, socket.as_raw_fd() as u32);
        let address = |value: &u32| std::ptr::from_ref(value) as u64;
        let map_fd = map.as_raw_fd() as u32;
        let update = MapUpdate { map: map_fd, zero: 0, key: address(&queue), value: address(&value), flags: 0 };
        bpf(BPF_MAP_UPDATE_ELEM, &update)?;
        Self::attach(interface, &filter(&map, port))
    }

    fn attach(interface: u32, instructions: &[Instruction]) -> io::Result<Self> {
        let load = ProgramLoad {
            kind: BPF_PROG_TYPE_XDP,
            instructions: instructions.len() as u32,
            at: instructions.as_ptr() as u64,
            license: c"MIT OR Apache-2.0".as_ptr() as u64,
            log_level: 0,
            log_bytes: 0,
            log: 0,
            kernel: 0,
            flags: 0,
            name: *b"lockwork_socket\0",
            interface: 0,
            attach: BPF_XDP,
        };
        let program = new_fd(BPF_PROG_LOAD, &load)?;
        let link = |flags| {
            let program = program.as_raw_fd() as u32;
            new_fd(BPF_LINK_CREATE, &LinkCreate { program, interface, attach: BPF_XDP, flags })
        };
        let link = link(XDP_FLAGS_DRV_MODE).or_else(|error| match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => link(XDP_FLAGS_SKB_MODE),
            _ => Err(error),
        });
        Ok(Self { _link: link? })
    }
}
