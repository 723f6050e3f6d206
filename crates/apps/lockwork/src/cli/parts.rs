//! `lockwork serve --partition`: which part of every table a node has, and where those of the others are.

use std::net::{IpAddr, SocketAddr, TcpListener};

use clap::Args;
use lockwork::OpenOptions;
use lockwork::divided::{DividedOptions, KEPT_BYTES, MAX_PARTS, cluster_number};

use super::Failure;
use super::serve::resolved;

/// What nodes prove to each other that they have, in the environment: what others may read on the command line is no
/// secret.
pub(super) const SECRET: &str = "LOCKWORK_PEER_SECRET";
/// What is shorter can be guessed.
const MIN_SECRET: usize = 16;

#[derive(Debug, Args)]
pub(super) struct Divided {
    /// Have a part of every table, this one from 1 to as many as --peers names: nodes with the other parts run calls
    /// together with this one. What all of them know, and nobody else, is in LOCKWORK_PEER_SECRET
    #[arg(long, value_name = "N", requires = "peers", requires = "cluster", conflicts_with = "no_leader")]
    partition: Option<u16>,
    /// Where nodes listen for each other, in the order of their parts
    #[arg(long, value_name = "HOST:PORT,..", value_delimiter = ',', requires = "partition")]
    peers: Vec<String>,
    /// Where this one listens for the others [default: where --peers has it]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = resolved, requires = "partition")]
    peer_listen: Option<SocketAddr>,
    /// Have nodes of so many parts take calls, the first ones: each for a stream of its own, which are merged. The same
    /// at all nodes
    #[arg(long, value_name = "N", default_value_t = 1, requires = "partition")]
    sequencers: u16,
}

/// A place among the nodes that have parts.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) part: u16,
    pub(super) sequencers: u16,
    addresses: Vec<String>,
    listener: TcpListener,
    cluster: [u8; 16],
    secret: Vec<u8>,
}

/// Host and port of an address.
fn split(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    (!host.is_empty()).then_some((host, port))
}

fn is_loopback(address: &str) -> bool {
    let host = split(address).map_or("", |(host, _)| host);
    let number = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || number.is_ok_and(|address| address.is_loopback())
}

/// Whether nodes of so many parts can take calls, where there are so many parts.
///
/// # Errors
/// What would be right.
pub(super) fn may_sequence(sequencers: u16, parts: usize) -> Result<(), Failure> {
    match (1..=parts).contains(&usize::from(sequencers)) {
        true => Ok(()),
        false => {
            let text = format!("--sequencers {sequencers}: there are {parts} parts, so 1 to {parts} are possible");
            Err(Failure::usage(text))
        }
    }
}

/// Nodes with parts run calls with this engine.
///
/// # Errors
/// What would be right.
pub(super) fn may_divide(engine: &str) -> Result<(), Failure> {
    match engine {
        "deterministic" => Ok(()),
        _ => Err(Failure::usage("nodes with parts have an engine of their own: leave --engine away")),
    }
}

impl Divided {
    /// The place that is wanted, if one is, in the cluster of this name. From now on the others can connect.
    ///
    /// # Errors
    /// Options that are not possible, and what the system refuses.
    pub(super) fn place(&self, cluster: &str, engine: &str) -> Result<Option<Place>, Failure> {
        let Some(number) = self.partition else { return Ok(None) };
        let (peers, count) = (&self.peers, self.peers.len());
        may_divide(engine)?;
        if count > MAX_PARTS {
            return Err(Failure::usage(format!("--peers names {count} nodes: {MAX_PARTS} are possible")));
        }
        if !(1..=count).contains(&usize::from(number)) {
            return Err(Failure::usage(format!(
                "--partition {number}: --peers names {count}, so 1 to {count} are possible"
            )));
        }
        may_sequence(self.sequencers, count)?;
        if let Some(wrong) = peers.iter().find(|peer| split(peer).is_none()) {
            return Err(Failure::usage(format!("--peers: '{wrong}' is no address: write HOST:PORT for each part")));
        }
        if let Some(twice) = peers.iter().enumerate().find(|(at, peer)| peers[..*at].contains(peer)) {
            return Err(Failure::usage(format!(
                "--peers: {} is there twice; each part has a node of its own",
                twice.1
            )));
        }
        let own = &peers[usize::from(number) - 1];
        let is_reached = !peers.iter().all(|peer| is_loopback(peer))
            || self.peer_listen.is_some_and(|listen| !listen.ip().is_loopback());
        let secret = match std::env::var(SECRET) {
            Ok(secret) if secret.len() >= MIN_SECRET => secret.into_bytes(),
            Ok(_) => return Err(Failure::usage(format!("{SECRET} has to have {MIN_SECRET} characters or more"))),
            // Whoever is on this machine can come to all nodes anyway.
            Err(std::env::VarError::NotPresent) if !is_reached => Vec::new(),
            Err(error) => {
                return Err(Failure::usage(format!("{SECRET}: {error}; nodes that other machines reach need one")));
            }
        };
        let listen = match self.peer_listen {
            Some(listen) => listen,
            None => resolved(own).map_err(|why| Failure::usage(format!("--peers: {own}: {why}")))?,
        };
        let listener = TcpListener::bind(listen)
            .map_err(|error| Failure::Connect(format!("cannot listen for other nodes at {listen}: {error}")))?;
        let (addresses, cluster) = (peers.clone(), cluster_number(cluster));
        let sequencers = self.sequencers;
        Ok(Some(Place { part: number - 1, sequencers, addresses, listener, cluster, secret }))
    }
}

impl Place {
    /// What an engine at this place needs, for one that begins.
    pub(super) fn options(&self, options: &OpenOptions) -> Result<DividedOptions, Failure> {
        let listener = self.listener.try_clone().map_err(Failure::connect)?;
        Ok(DividedOptions {
            part: self.part,
            addresses: self.addresses.clone(),
            listener,
            cluster: self.cluster,
            secret: self.secret.clone(),
            kept_bytes: KEPT_BYTES,
            pages: options.engine_options.pages,
        })
    }

    pub(super) fn describe(&self) -> String {
        format!("part {} of {}", self.part + 1, self.addresses.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_a_port() {
        assert_eq!(split("a:1"), Some(("a", 1)));
        assert_eq!(split("[::1]:70"), Some(("[::1]", 70)));
        for wrong in ["a", ":1", "a:", "a:0", "a:70000", ""] {
            assert_eq!(split(wrong), None, "{wrong}");
        }
        assert!(is_loopback("127.0.0.1:1") && is_loopback("[::1]:1") && is_loopback("localhost:1"));
        assert!(!is_loopback("10.0.0.1:1") && !is_loopback("a:1") && !is_loopback("127.0.0.1"));
    }
}
