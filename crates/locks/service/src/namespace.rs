//! A small network of one host: a namespace for each client machine and one for the decider, joined by veth pairs.
//!
//! Namespaces have routing tables, sockets and interfaces of their own, so packets take the way they take between
//! hosts, except for the wire. What is measured here is processors, not cables; whoever prints a figure says so.
//!
//! *Invariant*: what is made is removed: on drop (also when a thread panics), and, for a process that was killed, by
//! the next one that makes a network: names carry the process id, and nobody has that id any more. Interfaces go with
//! their namespace.
//!
//! The trade-off: the work is done by `ip` of iproute2 instead of by netlink messages of ours; it is wherever
//! namespaces are used, and where it is not, the error says so.
//!
//! Addresses are static and neighbours permanent: no ARP, no IPv6, nothing else travels while measuring. GRO is on:
//! native XDP gives a packet to a veth only if its other end polls, which it does with GRO.

use crate::kernel::interface::ask;
use std::ffi::CString;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Most machines of one network.
pub const MAX_MACHINES: u16 = 250;

/// Where `ip netns` keeps names.
const FOLDER: &str = "/run/netns";
const PREFIX: &str = "lockwork-";
/// The interface of a machine.
const UPLINK: &str = "up";

/// Why there is no network.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// Too many machines, or none.
    #[error("{0} machines; 1 to {MAX_MACHINES} are possible in one network of namespaces")]
    Machines(u16),
    /// No privileges.
    #[error("network namespaces need CAP_SYS_ADMIN and CAP_NET_ADMIN: run this as root")]
    NotPermitted,
    /// No iproute2.
    #[error("the command 'ip' is not on this machine: install iproute2")]
    NoIp,
    /// `ip` did not do it.
    #[error("ip: {0}")]
    Ip(String),
    /// The kernel did not do it.
    #[error("{0}: {1}")]
    Kernel(String, io::Error),
}

impl NetworkError {
    /// Returns whether no network can be made here at all, for want of privileges or of `ip`.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::NotPermitted | Self::NoIp)
    }
}

/// A namespace with a name. Removed on drop, and everything in it that nobody uses any more.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Its name, as `ip netns` lists it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Calls `work` on a thread that is in the namespace. Sockets made there stay there, whoever uses them later.
    ///
    /// # Errors
    /// [`NetworkError::Kernel`] if the namespace cannot be entered.
    ///
    /// # Panics
    /// If `work` does.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetworkError> {
        let entered = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let namespace = std::fs::File::open(Path::new(FOLDER).join(&self.name))?;
                // SAFETY: the descriptor is open; only this thread changes its namespace, and it ends here.
                if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
                    return Err(io::Error::last_os_error());
                }
                Ok(work())
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        entered.map_err(|error| NetworkError::Kernel(format!("namespace {}", self.name), error))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next run.
        let _ = ip(None, &format!("netns del {}\n", self.name));
    }
}

/// An end of a veth pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Number of the interface in its namespace.
    pub index: u32,
    /// Its hardware address.
    pub mac: [u8; 6],
    /// Its address.
    pub address: Ipv4Addr,
}

/// A machine's namespace, and the cable to the decider's.
#[derive(Debug)]
pub struct Machine {
    /// Where the machine is.
    pub namespace: Namespace,
    /// The cable's end there.
    pub near: End,
    /// The cable's end in the decider's namespace; the address is the same for all machines.
    pub far: End,
}

impl Machine {
    /// The interface in the machine's namespace.
    #[must_use]
    pub fn interface(&self) -> &'static str {
        UPLINK
    }
}

/// Machines around a decider.
#[derive(Debug)]
pub struct Network {
    /// Client machines; machine `n` of the lock service is at `n - 1`.
    pub machines: Vec<Machine>,
    /// Where the decider is. Its interfaces are called as [`Network::port`] says.
    pub switch: Namespace,
}

impl Network {
    /// The decider's address.
    pub const DECIDER: Ipv4Addr = Ipv4Addr::new(10, 76, 0, 1);

    /// The interface in the decider's namespace that leads to machine `number`, from 1.
    #[must_use]
    pub fn port(number: u16) -> String {
        format!("port{number}")
    }

    /// Lets machines reach each other: the kernel of the decider's namespace forwards their packets.
    ///
    /// # Errors
    /// [`NetworkError`], also where settings of the kernel cannot be written, as in some containers.
    pub fn forward(&self) -> Result<(), NetworkError> {
        const SETTING: &str = "/proc/sys/net/ipv4/ip_forward";
        let route = format!("route replace {MACHINES} via {} dev {UPLINK}\n", Self::DECIDER);
        self.machines.iter().try_for_each(|machine| ip(Some(&machine.namespace), &route))?;
        let written = self.switch.within(|| std::fs::write(SETTING, "1"))?;
        written.map_err(|error| NetworkError::Kernel(SETTING.into(), error))
    }

    /// Makes a network of `machines`, after removing what killed processes have left.
    ///
    /// # Errors
    /// [`NetworkError`]; nothing is left then.
    pub fn new(machines: u16) -> Result<Self, NetworkError> {
        static SWEPT: Once = Once::new();
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if machines == 0 || machines > MAX_MACHINES {
            return Err(NetworkError::Machines(machines));
        }
        // SAFETY: it has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            return Err(NetworkError::NotPermitted);
        }
        SWEPT.call_once(|| remove_leftovers(true));
        let prefix = format!("{PREFIX}{}-{}-", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let made = |name: String| -> Result<Namespace, NetworkError> {
            ip(None, &format!("netns add {name}\n"))?;
            Ok(Namespace { name })
        };
        let switch = made(format!("{prefix}switch"))?;
        let spaces = (1..=machines).map(|number| made(format!("{prefix}{number}")));
        let spaces = spaces.collect::<Result<Vec<_>, _>>()?;
        let (mut cables, mut ports) = (String::new(), String::from("link set dev lo up\n"));
        for (number, space) in (1..).zip(&spaces) {
            cables.push_str(&cable(&switch, space, number));
            ports.push_str(&plugged(&Self::port(number), Self::DECIDER, address(number), mac(number, 1)));
        }
        ip(None, &cables)?;
        ip(Some(&switch), &ports)?;
        for (number, space) in (1..).zip(&spaces) {
            let end = plugged(UPLINK, address(number), Self::DECIDER, mac(number, 2));
            ip(Some(space), &format!("link set dev lo up\n{end}"))?;
        }
        let far = switch.within(|| (1..=machines).map(|n| interface(&Network::port(n))).collect::<Result<Vec<_>, _>>());
        let machines = spaces.into_iter().zip(far??).zip(1..).map(|((namespace, far), number)| {
            let near =
                End { index: namespace.within(|| interface(UPLINK))??, mac: mac(number, 1), address: address(number) };
            Ok(Machine { namespace, near, far: End { index: far, mac: mac(number, 2), address: Self::DECIDER } })
        });
        Ok(Self { machines: machines.collect::<Result<_, NetworkError>>()?, switch })
    }
}

/// Where the addresses of machines are.
const MACHINES: &str = "10.76.1.0/24";

fn address(number: u16) -> Ipv4Addr {
    Ipv4Addr::new(10, 76, 1, number as u8)
}

/// A locally administered address; `end` is 1 at the machine, 2 at the decider.
fn mac(number: u16, end: u8) -> [u8; 6] {
    let [high, low] = number.to_be_bytes();
    [0x02, b'L', b'K', end, high, low]
}

fn colons(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Makes the cable of machine `number`.
fn cable(switch: &Namespace, machine: &Namespace, number: u16) -> String {
    let (near, far, port) = (colons(mac(number, 1)), colons(mac(number, 2)), Network::port(number));
    format!(
        "link add name {port} address {far} netns {} type veth peer name {UPLINK} address {near} netns {}\n",
        switch.name, machine.name
    )
}

/// Starts one end of a cable: its own address, and address and hardware address of the other end.
fn plugged(interface: &str, own: Ipv4Addr, other: Ipv4Addr, other_mac: [u8; 6]) -> String {
    let other_mac = colons(other_mac);
    format!(
        "link set dev {interface} addrgenmode none\nlink set dev {interface} up\n\
         address add {own} peer {other} dev {interface}\n\
         neighbour add {other} lladdr {other_mac} nud permanent dev {interface}\n"
    )
}

/// Lets `ip` do some lines. It has a process group of its own: Ctrl-C is for us, who clean up with its help.
fn ip(namespace: Option<&Namespace>, lines: &str) -> Result<(), NetworkError> {
    let mut command = Command::new("ip");
    command.args(namespace.iter().flat_map(|space| ["-n", &space.name])).args(["-batch", "-"]).process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => NetworkError::NoIp,
        _ => NetworkError::Kernel("ip".into(), error),
    };
    let mut child = command.spawn().map_err(failed)?;
    let written = child.stdin.take().expect("it is piped").write_all(lines.as_bytes());
    let output = child.wait_with_output().map_err(failed)?;
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("not permitted") {
        Err(NetworkError::NotPermitted)
    } else if !output.status.success() {
        Err(NetworkError::Ip(said.trim().replace('\n', "; ")))
    } else {
        written.map_err(failed)
    }
}

/// The number of an interface of this thread's namespace, after switching its GRO on.
fn interface(name: &str) -> Result<u32, NetworkError> {
    let failed = |error: io::Error| NetworkError::Kernel(format!("interface {name}"), error);
    let c_name = CString::new(name).expect("our names have no zero");
    // SAFETY: the name ends with a zero.
    let index = unsafe { libc::if_nametoindex(c_name.as_ptr()) };
    if index == 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    set_gro(name).map_err(failed)?;
    Ok(index)
}

/// `struct ethtool_value` of the kernel.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// `ethtool -K NAME gro on`.
fn set_gro(name: &str) -> io::Result<()> {
    const ETHTOOL_SGRO: u32 = 0x2c;
    let mut value = EthtoolValue { command: ETHTOOL_SGRO, data: 1 };
    // SAFETY: the request points to what the command wants, which outlives the call.
    unsafe { ask(name, libc::SIOCETHTOOL, |request| request.ifr_ifru.ifru_data = (&raw mut value).cast())? };
    Ok(())
}

/// Removes namespaces of processes that are gone. `number_too`: and of one that had our number.
fn remove_leftovers(number_too: bool) {
    let Ok(entries) = std::fs::read_dir(FOLDER) else { return };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let gone = |name: &String| {
        let process = name.strip_prefix(PREFIX)?.split('-').next()?.parse::<u32>().ok()?;
        let ours = process == std::process::id();
        Some(if ours { number_too } else { !Path::new("/proc").join(process.to_string()).exists() })
    };
    // Dropped at once.
    names.filter(|name| gone(name) == Some(true)).for_each(|name| drop(Namespace { name }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockwork_testkit::or_skip;
    use std::net::UdpSocket;

    fn names() -> Vec<String> {
        let entries = std::fs::read_dir(FOLDER).into_iter().flatten();
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
    }

    #[test]
    fn no_machines_and_too_many_are_refused() {
        for count in [0, MAX_MACHINES + 1] {
            assert!(matches!(Network::new(count), Err(NetworkError::Machines(refused)) if refused == count));
        }
    }

    #[test]
    fn privileged_machines_reach_the_decider_and_nothing_is_left() {
        let Some(network) = or_skip(Network::new(2), NetworkError::is_unavailable) else { return };
        let bind = |address: Ipv4Addr| UdpSocket::bind((address, 7600)).expect("the address is there");
        let decider = network.switch.within(|| bind(Network::DECIDER)).expect("it is there");
        for machine in &network.machines {
            let client = machine.namespace.within(|| bind(machine.near.address)).expect("it is there");
            for socket in [&decider, &client] {
                socket.set_read_timeout(Some(std::time::Duration::from_secs(5))).expect("it is a socket");
            }
            client.send_to(b"ask", (Network::DECIDER, 7600)).expect("there is a route");
            let mut buffer = [0; 8];
            let (length, from) = decider.recv_from(&mut buffer).expect("it arrives");
            assert_eq!((&buffer[..length], from.ip()), (&b"ask"[..], machine.near.address.into()));
            decider.send_to(b"yes", from).expect("there is a way back");
            assert_eq!(client.recv_from(&mut buffer).expect("it arrives").0, 3);
        }
        // Among each other only when they are let.
        let sockets = [0, 1].map(|at: usize| {
            let machine = &network.machines[at];
            machine.namespace.within(|| UdpSocket::bind((machine.near.address, 7601)).expect("it is free"))
        });
        let [one, other] = sockets.map(|socket| socket.expect("it is there"));
        let to = (network.machines[1].near.address, 7601);
        let no_way = one.send_to(b"hello", to).expect_err("nobody forwards");
        assert_eq!(no_way.raw_os_error(), Some(libc::ENETUNREACH), "{no_way}");
        network.forward().expect("as root");
        network.forward().expect("once more changes nothing");
        other.set_read_timeout(Some(std::time::Duration::from_secs(5))).expect("it is a socket");
        one.send_to(b"hello", to).expect("there is a route");
        let (_, from) = other.recv_from(&mut [0; 8]).expect("it arrives");
        assert_eq!(from, one.local_addr().expect("it is bound"));
        let ours: Vec<String> = network.machines.iter().map(|machine| machine.namespace.name.clone()).collect();
        assert!(ours.iter().all(|name| names().contains(name)));
        drop(network);
        assert!(!names().iter().any(|name| ours.contains(name)));
    }

    #[test]
    fn privileged_what_a_killed_process_left_is_removed() {
        let Some(_network) = or_skip(Network::new(1), NetworkError::is_unavailable) else { return };
        // Larger than any process number can be.
        let name = format!("{PREFIX}4194305-0-switch");
        ip(None, &format!("netns add {name}\n")).expect("as root");
        remove_leftovers(false);
        assert!(!names().contains(&name));
    }
}
