//! How long a short call takes over the channel, and how fast rows stream, by link; with the answers checked.
//!
//! `cargo run --release -p lockwork-neardata --example channel_rate [calls] [rows]`

#[path = "../tests/memory/mod.rs"]
mod memory;

use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockwork_neardata::channel::Traffic;
use lockwork_neardata::device::{Device, Piece, Purpose, Version};
use lockwork_neardata::link::Link;
use lockwork_neardata::process::{ProcessConfig, StorageProcess};
use lockwork_neardata::program::storage_main;
use lockwork_neardata::record::Vid;
use memory::{IMAGE_BYTES, Memory, operation};

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == "--") {
        return storage_main(|_| Ok(Arc::new(Memory::default())));
    }
    let number = |position: usize, default: u64| {
        let text = std::env::args().nth(position);
        text.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("'{text}' is no number")))
    };
    let (calls, rows) = (number(1, 20_000), number(2, 10_000_000));
    println!("{:5} {:>9} {:>12} {:>12} {:>12} {:>12}", "link", "spin", "status p50", "read p50", "rows", "flush");
    for link in Link::ALL {
        for spin in [0, 5, 20, 100].map(Duration::from_micros) {
            measure(link, spin, calls, rows);
        }
    }
    ExitCode::SUCCESS
}

fn measure(link: Link, spin: Duration, calls: u64, rows: u64) {
    let command = Command::new(std::env::current_exe().expect("this program"));
    let config = ProcessConfig { link, spin, ..ProcessConfig::new("none") };
    let storage = StorageProcess::spawn(command, config).expect("it starts");
    let image = Some(vec![7; 100].into());
    let versions = (0..500_000).map(|vid| Version { vid: Vid(vid), number: 1, created: 1, image: image.clone() });
    let versions = versions.collect::<Vec<_>>();
    let before = storage.device().traffic();
    let start = Instant::now();
    assert_eq!(storage.flush(0, &versions, 0).expect("it is served").len(), versions.len());
    let flush = rate(before, storage.device().traffic(), start.elapsed());
    let p50 = |call: &dyn Fn(u64)| {
        let mut times = (0..calls).map(|number| {
            let start = Instant::now();
            call(number);
            start.elapsed()
        });
        let mut times = times.by_ref().collect::<Vec<_>>();
        times.sort_unstable();
        times[times.len() / 2].as_nanos() as f64 / 1000.0
    };
    let status = p50(&|_| assert_eq!(storage.status().expect("it is served").versions, 500_000));
    let read = p50(&|number| {
        let vid = number * 7919 % 500_000;
        let version = storage.read(0, Vid(vid as u32), 1).expect("it is served");
        assert_eq!(version.as_ref(), Some(&versions[vid as usize]));
    });
    let (mut seen, mut sum) = (0, 0_u64);
    let before = storage.device().traffic();
    let start = Instant::now();
    let bulk = operation(Purpose::Filter, rows, 16_384, Duration::ZERO);
    let ran = storage.run(&bulk, &mut |piece| {
        if let Piece::Rows { vids, images } = piece {
            seen += vids.len() as u64;
            sum += images.chunks(IMAGE_BYTES).map(|image| u64::from(image[0])).sum::<u64>();
        }
    });
    let stream = rate(before, storage.device().traffic(), start.elapsed());
    assert_eq!((ran.expect("it is served").taken, seen), (rows, rows));
    assert_eq!(sum, (0..rows).map(|row| row & 255).sum::<u64>(), "the rows that were sent");
    let spin = format!("{} us", spin.as_micros());
    println!("{link:5} {spin:>9} {status:>9.2} us {read:>9.2} us {stream:>7.2} GB/s {flush:>7.2} GB/s");
}

fn rate(before: Traffic, after: Traffic, time: Duration) -> f64 {
    let bytes = after.to_host + after.to_storage - before.to_host - before.to_storage;
    bytes as f64 / time.as_secs_f64() / 1e9
}
