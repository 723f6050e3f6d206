//! The eBPF decider against the Rust one, on the kernel's program test and between network namespaces.
//!
//! Tests whose names begin with `privileged` load programs into the kernel and need root. Elsewhere they say that
//! they are skipped.

mod frames;
mod network;
mod object;
mod race;
mod table;
mod vectors;

use lockwork_lock_protocol::decider::Settings;
use lockwork_lock_protocol::packet::Key;
use lockwork_locks::kernel::error::KernelError;
use lockwork_locks::kernel::{KernelDecider, Options};
use lockwork_testkit::skip;
use std::process::Command;

/// The decider's port in all tests.
const PORT: u16 = 7400;
const KEY: Key = Key(*b"lockwork's tests");
/// What tests need beside the decider's own programs: hardware/xdp/trial.bpf.c.
const TRIAL: &[u8] = aya::include_bytes_aligned!("../../../../../hardware/xdp/trial.bpf.o");
/// A decider that must be found out: hardware/xdp/broken.bpf.c.
const BROKEN: &[u8] = aya::include_bytes_aligned!("../../../../../hardware/xdp/broken.bpf.o");

fn options(locks: u32, key: Option<Key>, writers_first: bool) -> Options {
    Options { locks, port: PORT, address: None, beyond: false, settings: Settings { writers_first }, key }
}

/// A decider with these programs loaded, or `None` where nobody may load one.
fn load(options: &Options, object: Option<&[u8]>, programs: &[&str]) -> Option<KernelDecider> {
    let loaded = match object {
        Some(object) => KernelDecider::load_object(options, object),
        None => KernelDecider::load(options),
    };
    match loaded {
        Err(error @ KernelError::NoPermission { .. }) => {
            skip(&error.to_string());
            None
        }
        loaded => {
            let mut decider = loaded.expect("the decider loads");
            programs.iter().for_each(|program| decider.load_program(program).expect("the program loads"));
            Some(decider)
        }
    }
}

/// Runs `ip` with these words.
fn ip(words: &str) {
    let output = Command::new("ip").args(words.split(' ')).output().expect("ip (iproute2) is installed");
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
}
