//! `lockwork lockd`: the daemon of the lock service.

pub(super) mod fence;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use lockwork_etcd::Etcd;
use lockwork_lock_protocol::decider::Settings;
use lockwork_locks::kernel::error::KernelError;
use lockwork_locks::kernel::{self, Hook, KernelDecider, interface};
use lockwork_locks::lockd::map::RACKS;
use lockwork_locks::lockd::racks::LOST_ETCD;
use lockwork_locks::lockd::records::{self, Records};
use lockwork_locks::lockd::{Lockd, Options, StartError};
use lockwork_locks::plane::{DataPlane, InKernel, InProcess};

use self::fence::{ERA, Fence};
use super::racks::{self, Found, Scribe};
use super::service::{self, DEFAULT_ADDRESS, DEFAULT_PORT};
use super::{Failure, Outcome, duration, print};

#[derive(Debug, Args)]
#[command(
    after_help = "When it serves, it prints one line that begins with 'lockd: ready on'. SIGTERM and SIGINT end it in good order.
Exit codes: 0 ended so; 2 usage; 3 an address cannot be bound, etcd does not answer, or etcd says that another lockd
decides; 6 the kernel does not take the programs (--xdp, --tc).

  lockwork lockd                                  for programs on this host
  lockwork lockd --udp 10.0.0.5:7400 --key FILE   for other hosts; a process without privileges
  sudo lockwork lockd --xdp eth0 --key FILE       in the kernel, at eth0's address
  lockwork lockd --etcd 10.0.0.7:2379             locks and names outlive the daemon
  lockwork lock backups --server 10.0.0.5:7400 --key FILE -- CMD   a client"
)]
pub(super) struct Arguments {
    /// Where to listen: the address that clients ask; not 0.0.0.0 on a host with several networks, as answers must come
    /// from the address that was asked [default: 127.0.0.1:7400; with --xdp or --tc port 7400 of the interface's IPv4
    /// address]
    #[arg(long, value_name = "HOST:PORT")]
    udp: Option<String>,
    /// Decide in the kernel with XDP on these interfaces, which lead to the clients; needs root, or CAP_BPF and
    /// CAP_NET_ADMIN
    #[arg(long, value_name = "INTERFACE", value_delimiter = ',', num_args = 1.., conflicts_with = "tc")]
    xdp: Vec<String>,
    /// The same at TC ingress, on interfaces without XDP
    #[arg(long, value_name = "INTERFACE", value_delimiter = ',', num_args = 1..)]
    tc: Vec<String>,
    /// How many locks there are, numbered from 0; 16 bytes each
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1 << 36))]
    locks: u64,
    /// How many locks there are for names beside them; 16 bytes each, and some 150 for each name in use. 0: only
    /// numbers [default: as many as --locks]
    #[arg(long, value_name = "LOCKS", value_parser = clap::value_parser!(u64).range(0..=1 << 32))]
    names: Option<u64>,
    /// Numbers beyond --locks and --names, up to 2^62, are locks too, which take no memory until they are asked for:
    /// processes of 'lockwork locks manage' keep them, or this one if there are none. Slower
    #[arg(long)]
    overflow_locks: bool,
    /// Write down in etcd who takes part, and what names mean: a lockd that is started anew at the same address goes on
    /// where this one ended, and nobody loses a lock. Without it all that lives as long as this daemon
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', num_args = 1.., value_parser = service::etcd)]
    etcd: Vec<String>,
    /// With what all keys in etcd begin; each lock service has one of its own
    #[arg(long, value_name = "PREFIX", default_value = "lockwork/")]
    etcd_prefix: String,
    /// Be one of several lockds that share the locks: the rack of this name. All have the same --etcd, --etcd-prefix
    /// and --locks, and numbered locks only. The first one decides on all locks, until 'lockwork locks racks
    /// --rebalance' gives others their parts
    #[arg(long, value_name = "NAME", requires = "etcd", conflicts_with_all = ["overflow_locks", "names"], value_parser = racks::name)]
    rack: Option<String>,
    /// For how long a session lives after its last renewal: after so long, locks of a client that died are free
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration, allow_negative_numbers = true)]
    lease: Duration,
    /// Readers do not pass a writer that waits
    #[arg(long)]
    writers_first: bool,
    /// No lockd ran here before, or all its clients are gone: let clients in at once, not only after one lease. With
    /// --etcd only the first start of all waits so
    #[arg(long)]
    fresh: bool,
    /// File with the cluster's key, 16 bytes or 32 hexadecimal digits; needed at every address that is not loopback
    /// [default: LOCKWORK_KEY, or no key]
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Where to answer GET /metrics for Prometheus
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<String>,
}

pub(super) static STOP: AtomicBool = AtomicBool::new(false);

/// SIGTERM and SIGINT end the daemon in good order.
pub(super) fn stop_on_signals() {
    extern "C" fn note(_: libc::c_int) {
        STOP.store(true, Ordering::Relaxed);
    }
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, note as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    }
}

pub(super) fn run(arguments: &Arguments) -> Outcome {
    super::create_for_owner_only();
    let (hook, interfaces) =
        if arguments.xdp.is_empty() { (Hook::Tc, &arguments.tc) } else { (Hook::Xdp, &arguments.xdp) };
    let udp = match (&arguments.udp, &interfaces[..]) {
        (Some(udp), _) => service::address(udp)?,
        (None, []) => service::address(DEFAULT_ADDRESS)?,
        (None, interfaces) => SocketAddr::from((address_of(interfaces)?, DEFAULT_PORT)),
    };
    let metrics = arguments.metrics.as_deref().map(service::address).transpose()?;
    let key = service::key(arguments.key.as_deref())?;
    let lease_ms = u32::try_from(arguments.lease.as_millis()).unwrap_or(u32::MAX);
    let writers_first = arguments.writers_first;
    // Racks have numbers only.
    let by_default = if arguments.rack.is_some() { 0 } else { arguments.locks.min(1 << 32) };
    let names = arguments.names.unwrap_or(by_default);
    let all_locks = arguments.locks + names;
    let options = Options {
        metrics,
        lease_ms,
        writers_first,
        key,
        fresh: arguments.fresh,
        names,
        beyond: arguments.overflow_locks,
        etcd: arguments.etcd.clone(),
        etcd_prefix: arguments.etcd_prefix.clone(),
        ..Options::new(udp)
    };
    if interfaces.is_empty() {
        reachable_with_key(&options)?;
        let locks = usize::try_from(all_locks).map_err(Failure::usage)?;
        let plane = InProcess::new(locks).map_err(Failure::usage)?;
        let mut lockd = bind(&options, plane)?;
        let etcd = restore(&mut lockd, arguments)?;
        return serve(lockd, &options, arguments, etcd.as_ref());
    }
    // Bound first: while another daemon has the address, no program of ours may decide in its place.
    let mut lockd = bind(&options, InKernel::new(in_kernel(&options, all_locks, interfaces)?))?;
    let etcd = restore(&mut lockd, arguments)?;
    lockd.plane_mut().attach_later(hook, interfaces);
    if etcd.as_ref().is_none_or(|kept| kept.members == 0) {
        lockd.plane_mut().attach().map_err(refused)?;
    }
    serve(lockd, &options, arguments, etcd.as_ref())
}

/// How long etcd is waited for at the start.
const ETCD_PATIENCE: Duration = Duration::from_secs(10);
/// The folder of those that decide.
const DECIDERS: &str = "deciders/";
/// Seconds after which a lockd that has died is no longer among those in etcd.
const PRESENCE: i64 = 5;
/// After so long it is certainly not, if etcd answers.
const AWAY: Duration = Duration::from_secs(PRESENCE as u64 + 3);

#[derive(Debug)]
struct InEtcd(Arc<Etcd>);

impl Records for InEtcd {
    fn put(&self, key: String, value: Vec<u8>, ticket: u64) {
        self.0.put(key, value, ticket);
    }

    fn delete(&self, key: String, ticket: u64) {
        self.0.delete(key, ticket);
    }

    fn completed(&self, tickets: &mut Vec<u64>) {
        self.0.completed(tickets);
    }

    fn why_not(&self) -> Option<String> {
        self.0.health().why
    }
}

/// Where it is written down who takes part.
struct Kept {
    /// It looks whether another lockd has begun in the place of this one.
    _fence: Fence,
    /// What it has to do with other racks is read and written as long as it is there.
    _scribe: Option<Scribe>,
    /// As long as it is there, people see this lockd in etcd.
    _etcd: Arc<Etcd>,
    /// How many were, at the start.
    members: usize,
    /// No lockd has begun with it before.
    first: bool,
}

/// Goes on with who is written down in etcd. The address is bound: no lockd before this one decides.
fn restore<P: DataPlane>(lockd: &mut Lockd<P>, arguments: &Arguments) -> Result<Option<Kept>, Failure> {
    if arguments.etcd.is_empty() {
        return Ok(None);
    }
    let address = lockd.address().map_err(Failure::connect)?;
    let (scribe, prefix) = share(lockd, arguments, address)?;
    let address = address.to_string();
    let etcd = Arc::new(Etcd::connect(&arguments.etcd, &prefix));
    alone(&etcd, &address, &prefix)?;
    let era = etcd.increment(ERA, ETCD_PATIENCE).map_err(Failure::connect)?;
    let mut members = Vec::new();
    for entry in etcd.load(records::MACHINES, ETCD_PATIENCE).map_err(Failure::connect)? {
        match records::member(&entry.key, &entry.value, era as u32) {
            Ok(member) => members.push(member),
            Err(wrong) => {
                return Err(Failure::usage(format!(
                    "in etcd {wrong}; is --etcd-prefix {} that of a lock service?",
                    arguments.etcd_prefix
                )));
            }
        }
    }
    let first = era == 1;
    if first {
        // They are of before etcd lost what it had, and others may be missing.
        members.clear();
    }
    let count = members.len();
    lockd.restore(Box::new(InEtcd(Arc::clone(&etcd))), era as u32, members);
    etcd.keep(format!("{DECIDERS}{address}"), format!("era {era}").into_bytes(), PRESENCE);
    let fence = Fence::start(Arc::clone(&etcd), era, address).map_err(Failure::connect)?;
    Ok(Some(Kept { _fence: fence, _scribe: scribe, _etcd: etcd, members: count, first }))
}

/// Makes it one of several, if it is to be; and with what the keys begin that are its own.
fn share<P: DataPlane>(
    lockd: &mut Lockd<P>,
    arguments: &Arguments,
    address: SocketAddr,
) -> Result<(Option<Scribe>, String), Failure> {
    let prefix = &arguments.etcd_prefix;
    let etcd = Etcd::connect(&arguments.etcd, prefix);
    let Some(name) = &arguments.rack else {
        return match etcd.load(RACKS, ETCD_PATIENCE).map_err(Failure::connect)?.is_empty() {
            true => Ok((None, prefix.clone())),
            false => Err(Failure::usage(format!(
                "in etcd --etcd-prefix {prefix} is that of racks: say which one this is, --rack NAME, or give this lockd \
                 another prefix"
            ))),
        };
    };
    if address.ip().is_unspecified() {
        return Err(Failure::usage(format!(
            "--rack: clients of other racks are told to ask {address}: give --udp the address"
        )));
    }
    let Found { map, handed } = racks::enter(&etcd, prefix, name, address, arguments.locks)?;
    let board = lockd.share(map, &handed);
    let scribe = Scribe::start(etcd, name, address, &map, board).map_err(Failure::connect)?;
    Ok((Some(scribe), format!("{prefix}rack/{name}/")))
}

/// No lockd at another address writes down its machines here: two would strike out each other's.
fn alone(etcd: &Etcd, address: &str, prefix: &str) -> Result<(), Failure> {
    let begin = Instant::now();
    let mut said = false;
    loop {
        let all = etcd.load(DECIDERS, ETCD_PATIENCE).map_err(Failure::connect)?;
        let Some(other) = all.iter().find(|entry| entry.key != address.as_bytes()) else { return Ok(()) };
        let other = String::from_utf8_lossy(&other.key);
        if begin.elapsed() > AWAY {
            return Err(Failure::Connect(format!(
                "in etcd --etcd-prefix {prefix} is that of a lockd at {other}: end it, or give this one at {address} \
                 another prefix"
            )));
        }
        if !said {
            tracing::warn!("in etcd --etcd-prefix {prefix} is that of a lockd at {other}; perhaps it has just ended");
        }
        said = true;
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn refused(error: KernelError) -> Failure {
    match error {
        KernelError::NoInterface { .. } | KernelError::Twice { .. } | KernelError::Locks => Failure::usage(error),
        _ => Failure::BackEnd(error.to_string()),
    }
}

/// At an address that other hosts reach, packets need a key: without one, every host could take and release all locks.
fn reachable_with_key(options: &Options) -> Result<(), Failure> {
    let udp = options.udp;
    if options.key.is_some() || udp.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "lockd at {udp} needs a key, because other hosts reach this address: give --key FILE (or LOCKWORK_KEY=FILE), the \
         same to all clients; make one with: {}",
        lockwork_locks::key::command(Path::new("FILE"))
    )))
}

/// The IPv4 address that all of these interfaces have.
fn address_of(interfaces: &[String]) -> Result<Ipv4Addr, Failure> {
    let mut known: Option<(&str, Ipv4Addr)> = None;
    for name in interfaces {
        let address = interface::address(name).map_err(refused)?.ok_or_else(|| {
            let port = DEFAULT_PORT;
            Failure::usage(format!(
                "interface '{name}' has no IPv4 address: say which one clients ask, --udp HOST:{port}"
            ))
        })?;
        match known {
            Some((other, first)) if first != address => {
                return Err(Failure::usage(format!(
                    "interface '{other}' has address {first}, and '{name}' has {address}: say which one clients ask, such \
                     as --udp {first}:{DEFAULT_PORT}"
                )));
            }
            _ => known = Some((name, address)),
        }
    }
    known.map(|(_, address)| address).ok_or_else(|| Failure::usage("no interface is given"))
}

/// The programs, loaded and not attached: only packets to the daemon's address are theirs.
fn in_kernel(options: &Options, locks: u64, interfaces: &[String]) -> Result<KernelDecider, Failure> {
    let udp = options.udp;
    let wrong = |what: &str| Err(Failure::usage(format!("--udp {udp}: {what}")));
    let SocketAddr::V4(address) = udp else {
        return wrong("the decider in the kernel knows only IPv4; give such an address");
    };
    let address = *address.ip();
    if udp.port() == 0 {
        return wrong("with --xdp or --tc the port must be given, as the kernel has to know it");
    }
    if address.is_unspecified() {
        return wrong("with --xdp or --tc give the one address that clients ask, or leave --udp out");
    }
    for name in interfaces {
        let own = interface::address(name).map_err(refused)?;
        if address.is_loopback() && !own.is_some_and(|own| own.is_loopback()) {
            let right = own.map_or_else(|| "HOST".to_string(), |own| own.to_string());
            return wrong(&format!(
                "no packet to this address comes in by '{name}'; give the one that clients ask, such as {right}:{}",
                udp.port()
            ));
        }
    }
    reachable_with_key(options)?;
    let kernel = kernel::Options {
        locks: u32::try_from(locks).map_err(|_| {
            Failure::usage(format!("--locks and --names are {locks}: with --xdp or --tc at most {}", u32::MAX))
        })?,
        port: udp.port(),
        address: Some(address),
        beyond: options.beyond,
        settings: Settings { writers_first: options.writers_first },
        key: options.key,
    };
    KernelDecider::load(&kernel).map_err(refused)
}

fn bind<P: DataPlane>(options: &Options, plane: P) -> Result<Lockd<P>, Failure> {
    Lockd::bind(options, plane).map_err(|error| match error {
        StartError::Bind { .. } => Failure::connect(error),
        _ => Failure::usage(error),
    })
}

fn serve(mut lockd: Lockd<impl DataPlane>, options: &Options, arguments: &Arguments, etcd: Option<&Kept>) -> Outcome {
    let name = lockd.plane().name();
    stop_on_signals();
    let address = lockd.address().map_err(Failure::connect)?;
    let metrics = lockd.metrics_address().map_or(String::new(), |at| format!(", metrics on http://{at}/metrics"));
    let key = if options.key.is_some() { "a key" } else { "no key" };
    let kept = if options.etcd.is_empty() { String::new() } else { format!(" in etcd at {}", options.etcd.join(",")) };
    let names = if options.names == 0 { String::new() } else { format!(", {} locks for names{kept}", options.names) };
    let beyond = if options.beyond { ", and locks beyond" } else { "" };
    let order = if options.writers_first { "writers first" } else { "readers first" };
    let (lease_ms, locks) = (options.lease_ms, arguments.locks);
    let rack = arguments.rack.as_ref().map_or(String::new(), |name| format!("rack {name}, its part of "));
    let goes_on = etcd.map_or(String::new(), |kept| format!(", {} machines from before", kept.members));
    print(&format!(
        "lockd: ready on {address} ({name}): {rack}{locks} locks{beyond}, {order}, lease {lease_ms} ms, \
         {key}{goes_on}{names}{metrics}\n"
    ))?;
    if !options.fresh && etcd.is_none_or(|kept| kept.first) {
        let after_ms = u64::from(lease_ms) + arguments.rack.as_ref().map_or(0, |_| LOST_ETCD.as_millis() as u64);
        tracing::info!(
            "clients come in after {after_ms} ms, when leases of a lockd before have ended (--fresh: at once)"
        );
    }
    lockd.run(&STOP).map_err(Failure::connect)?;
    if let Some(why) = fence::why() {
        lockd.end_sessions();
        return Err(Failure::Connect(why.to_string()));
    }
    match etcd {
        None => tracing::info!("stopped; all sessions have ended"),
        Some(_) => tracing::info!("stopped; the next one at {address} goes on, if it begins before leases end"),
    }
    Ok(())
}
