//! `lockwork lockd`: the daemon of the lock service.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use lockwork_locknet::kernel::error::KernelError;
use lockwork_locknet::kernel::{self, Hook, KernelDecider};
use lockwork_locknet::lockd::{Lockd, Options, StartError};
use lockwork_locknet::plane::{DataPlane, InKernel, InProcess};
use lockwork_lockservice::decider::Settings;

use super::service::{self, DEFAULT_ADDRESS, duration};
use super::{Failure, Outcome, print};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Where to listen; not 0.0.0.0 on a host with several networks, as answers must come from the address that was
    /// asked
    #[arg(long, value_name = "HOST:PORT", default_value = DEFAULT_ADDRESS)]
    udp: String,
    /// Decide in the kernel with XDP on these interfaces, which lead to the clients; needs root
    #[arg(long, value_name = "INTERFACE", num_args = 1.., conflicts_with = "tc")]
    xdp: Vec<String>,
    /// Decide in the kernel at TC ingress of these interfaces; needs root
    #[arg(long, value_name = "INTERFACE", num_args = 1..)]
    tc: Vec<String>,
    /// How many locks there are, numbered from 0; 16 bytes each
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1 << 36))]
    locks: u64,
    /// For how long a session lives after its last renewal: after so long, locks of a client that died are free
    #[arg(long, default_value = "2s", value_parser = duration)]
    lease: Duration,
    /// Readers do not pass a writer that waits
    #[arg(long)]
    writers_first: bool,
    /// No lockd ran here before, or all its clients are gone: let clients in at once, not only after one lease
    #[arg(long)]
    fresh: bool,
    /// File with the cluster's key [default: LOCKWORK_KEY, or no key]
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Where to answer GET /metrics for Prometheus
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<String>,
}

static STOP: AtomicBool = AtomicBool::new(false);

/// SIGTERM and SIGINT end the daemon in good order.
fn stop_on_signals() {
    extern "C" fn note(_: libc::c_int) {
        STOP.store(true, Ordering::Relaxed);
    }
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, note as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    }
}

pub(super) fn run(arguments: &Arguments) -> Outcome {
    let udp = service::address(&arguments.udp)?;
    let metrics = arguments.metrics.as_deref().map(service::address).transpose()?;
    let key = service::key(arguments.key.as_deref())?;
    let lease_ms = u32::try_from(arguments.lease.as_millis()).unwrap_or(u32::MAX);
    let writers_first = arguments.writers_first;
    let options = Options { metrics, lease_ms, writers_first, key, fresh: arguments.fresh, ..Options::new(udp) };
    let locks = usize::try_from(arguments.locks).map_err(Failure::usage)?;
    let (hook, interfaces) =
        if arguments.xdp.is_empty() { (Hook::Tc, &arguments.tc) } else { (Hook::Xdp, &arguments.xdp) };
    if interfaces.is_empty() {
        return serve(&options, InProcess::new(locks).map_err(Failure::usage)?, arguments.locks);
    }
    serve(&options, in_kernel(&options, udp, arguments.locks, hook, interfaces)?, arguments.locks)
}

fn in_kernel(
    options: &Options,
    udp: SocketAddr,
    locks: u64,
    hook: Hook,
    interfaces: &[String],
) -> Result<InKernel, Failure> {
    let refused = |error: KernelError| match error {
        KernelError::NoInterface { .. } | KernelError::Locks => Failure::usage(error),
        _ => Failure::BackEnd(error.to_string()),
    };
    let SocketAddr::V4(address) = udp else {
        return Err(Failure::usage(format!(
            "--udp {udp}: the decider in the kernel knows only IPv4; give such an address"
        )));
    };
    if udp.port() == 0 {
        return Err(Failure::usage("--udp: with --xdp or --tc the port must be given, as the kernel has to know it"));
    }
    let kernel = kernel::Options {
        locks: u32::try_from(locks)
            .map_err(|_| Failure::usage(format!("--locks {locks}: in the kernel at most 2^32 - 1")))?,
        port: udp.port(),
        address: Some(*address.ip()).filter(|ip| !ip.is_unspecified()),
        settings: Settings { writers_first: options.writers_first },
        key: options.key,
    };
    let mut decider = KernelDecider::load(&kernel).map_err(refused)?;
    for interface in interfaces {
        let attached = decider.attach(hook, interface).map_err(refused)?;
        eprintln!("lockd: {} on {interface}", attached.mode);
    }
    Ok(InKernel::new(decider))
}

fn serve(options: &Options, plane: impl DataPlane, locks: u64) -> Outcome {
    let name = plane.name();
    let mut lockd = Lockd::bind(options, plane).map_err(|error| match error {
        StartError::Lease(_) => Failure::usage(error),
        _ => Failure::Connect(error.to_string()),
    })?;
    stop_on_signals();
    let address = lockd.address().map_err(Failure::connect)?;
    let metrics = lockd.metrics_address().map_or(String::new(), |at| format!(", metrics on http://{at}/metrics"));
    let key = if options.key.is_some() { "a key" } else { "no key" };
    let order = if options.writers_first { "writers first" } else { "readers first" };
    let lease_ms = options.lease_ms;
    print(&format!(
        "lockd: ready on {address} ({name}): {locks} locks, {order}, lease {lease_ms} ms, {key}{metrics}\n"
    ))?;
    if !options.fresh {
        eprintln!(
            "lockd: clients come in after {lease_ms} ms, when leases of a lockd before have ended (--fresh: at once)"
        );
    }
    lockd.run(&STOP).map_err(Failure::connect)?;
    eprintln!("lockd: stopped; all sessions have ended");
    Ok(())
}
