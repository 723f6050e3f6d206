//! `lockwork doctor`: what works here.

use std::io;
use std::net::{SocketAddrV4, UdpSocket};
use std::time::Duration;

use lockwork_engine::EngineKind;
use lockwork_lock_protocol::decider;
use lockwork_locks::kernel::error::KernelError;
use lockwork_locks::kernel::{self, KernelDecider};
use lockwork_locks::namespace::Network;
use lockwork_locks::xsk::{Route, Xsk};
use lockwork_memory::{Buffer, HUGE_PAGE, Pages, huge_bytes_resident, huge_page_setting};
use lockwork_neardata::storage::disk::{DirectDisk, Disk};
use lockwork_opencl::DeviceKind;
use lockwork_sharedlocks::{Layout, LockMode, Options, SharedLocks, segment};

use super::Environment;
use super::{Outcome, print};

pub(super) fn run() -> Outcome {
    let environment = Environment::read();
    let mut text = format!("lockwork {} (commit {})\n\n", env!("CARGO_PKG_VERSION"), environment.commit);
    let mut line = |what: &str, found: &str| text.push_str(&format!("  {what:<22} {found}\n"));
    line("processor", &environment.cpu);
    line("cores", &environment.cores.to_string());
    line("memory", &format!("{} MiB", environment.memory_mib));
    line("kernel", &environment.kernel);
    line("huge pages", &huge_pages());
    let names: Vec<&str> = EngineKind::CPU.iter().map(|kind| kind.name()).collect();
    line("CPU engines", &format!("ok: {}", names.join(", ")));
    for (number, found) in opencl().iter().enumerate() {
        line(if number == 0 { "OpenCL engines" } else { "" }, found);
    }
    line(
        "FPGA engine",
        &lockwork_fpga::available().map_or_else(|error| error.to_string(), |found| ok(format!("fpga: {found}"))),
    );
    for (what, found) in lock_service() {
        line(what, &found);
    }
    line("shared locks", &shared_locks().map_or_else(|error| error.to_string(), ok));
    line("smart storage", &smart_storage().map_or_else(|error| error.to_string(), ok));
    text.push_str("\nNext: lockwork demo\n");
    print(&text)
}

/// A line for each OpenCL device, or why there is none and how to get one.
fn opencl() -> Vec<String> {
    let devices = match lockwork_opencl::devices() {
        Ok(devices) => devices,
        Err(absent) => return vec![absent.to_string()],
    };
    let fallback = devices.iter().all(|device| device.kind == DeviceKind::Cpu);
    let mut lines = vec!["ok: opencl-deterministic, opencl-two-phase".to_string()];
    lines.extend(devices.iter().map(|device| {
        format!(
            "device={}: {} '{}', {} compute units, {} MiB, {} MiB in one buffer; {}, {}",
            device.number,
            device.kind.name(),
            device.name,
            device.compute_units,
            device.memory_bytes >> 20,
            device.buffer_bytes >> 20,
            device.platform,
            device.version
        )
    }));
    if fallback {
        lines.push("the CPU is the fallback: a GPU's driver brings its own platform".into());
    }
    lines
}

/// Tries the memory and the locks of the kernel that tables of shared locks need.
fn shared_locks() -> Result<&'static str, lockwork_sharedlocks::Error> {
    let name = format!("doctor-{}", std::process::id());
    let options = Options { layout: Layout::new(64, 4), ..Options::default() };
    let locks = SharedLocks::create(&name, &options)?;
    segment::remove(&name)?;
    let tried = locks.session().and_then(|mut session| session.lock(17, LockMode::Exclusive));
    tried.map(|()| "a table was made in /dev/shm, locked and removed")
}

/// Tries how the storage of the near-data engine would reach a file in the folder for temporary files.
fn smart_storage() -> io::Result<String> {
    let folder = std::env::temp_dir();
    let file = folder.join(format!("lockwork-doctor-{}", std::process::id()));
    let described = DirectDisk::open(&file).map(|disk| disk.describe());
    // There is none if it could not be made.
    drop(std::fs::remove_file(&file));
    match described {
        Ok(way) => Ok(format!("a file in {} is reached by {way}", folder.display())),
        Err(error) => Err(io::Error::new(
            error.kind(),
            format!("no file in {} ({error}); set TMPDIR to a folder that can be written", folder.display()),
        )),
    }
}

/// Tries what the lock service and its benchmark can use: what it is, and what came of it.
fn lock_service() -> [(&'static str, String); 5] {
    let udp = udp().map_or_else(|error| format!("a packet to 127.0.0.1 does not come back: {error}"), ok);
    let settings = decider::Settings { writers_first: false };
    let options = kernel::Options { locks: 1, port: 7400, address: None, beyond: false, settings, key: None };
    let in_kernel = |names: &[&str], what: &str| {
        let mut decider = KernelDecider::load(&options)?;
        names.iter().try_for_each(|name| decider.load_program(name))?;
        Ok(ok(format!("the kernel takes the programs, so lockd {what} works")))
    };
    let absent = |error: KernelError| error.to_string();
    let xdp = in_kernel(&["lockwork_xdp", "lockwork_xdp_redirecting"], "--xdp").unwrap_or_else(absent);
    let tc = in_kernel(&["lockwork_tc"], "--tc").unwrap_or_else(absent);
    let (namespaces, af_xdp) = match Network::new(1) {
        Ok(network) => {
            (ok("two were made, joined and removed, so lockwork-bench lock-service works"), af_xdp(&network))
        }
        Err(error) => (error.to_string(), "not tried, as that needs network namespaces".into()),
    };
    [
        ("lock service, UDP", udp),
        ("lock service, XDP", xdp),
        ("lock service, TC", tc),
        ("network namespaces", namespaces),
        ("AF_XDP sockets", af_xdp),
    ]
}

fn ok(what: impl std::fmt::Display) -> String {
    format!("ok: {what}")
}

/// Sends a packet to itself.
fn udp() -> io::Result<&'static str> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    socket.send_to(b"lockwork", socket.local_addr()?)?;
    socket.recv_from(&mut [0; 8])?;
    Ok("lockd and its clients need no rights")
}

/// Opens a socket between namespaces.
fn af_xdp(network: &Network) -> String {
    let machine = &network.machines[0];
    let (near, far) = (machine.near, machine.far);
    let route = Route {
        interface: near.index,
        mac: near.mac,
        address: SocketAddrV4::new(near.address, 7400),
        peer_mac: far.mac,
        peer: SocketAddrV4::new(Network::DECIDER, 7400),
    };
    match machine.namespace.within(|| Xsk::open(route)) {
        Ok(Ok(_)) => ok("one was opened, so lockwork-bench lock-service --client afxdp works"),
        Ok(Err(error)) => format!("none can be opened: {error}; they need Linux 5.4 or newer with CONFIG_XDP_SOCKETS"),
        Err(error) => error.to_string(),
    }
}

/// Tries for a huge page and says what came of it.
fn huge_pages() -> String {
    let setting = huge_page_setting().unwrap_or_else(|| "absent".into());
    let Ok(buffer) = Buffer::zeroed(8 * HUGE_PAGE, Pages::Huge, "a trial of huge pages") else {
        return "no memory for a trial".into();
    };
    let before = huge_bytes_resident();
    for page in 0..8 {
        // SAFETY: the buffer is eight huge pages long.
        unsafe { buffer.as_ptr().add(page * HUGE_PAGE).write_volatile(1) };
    }
    match (before, huge_bytes_resident()) {
        (Some(before), Some(after)) if after > before => format!("ok: given on request (setting '{setting}')"),
        (Some(_), Some(_)) => format!(
            "not given (setting '{setting}'): random reads cost about 1.5 times as much. Enable them with \
             'echo madvise > /sys/kernel/mm/transparent_hugepage/enabled' as root"
        ),
        _ => format!("unknown: the kernel does not tell (setting '{setting}')"),
    }
}
