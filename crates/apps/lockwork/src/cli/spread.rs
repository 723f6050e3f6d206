//! `lockwork locks racks`: which rack decides on which part of the locks, and who is to.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use clap::Args;
use lockwork_etcd::Etcd;
use lockwork_lock_protocol::beyond::PARTS;
use lockwork_locks::lockd::map::{OF_PARTS, Part};
use serde_json::json;

use super::Output;
use super::progress::Live;
use super::racks::{self, Written};
use super::service::etcd;
use super::{Failure, Outcome, print};

/// How long etcd is waited for.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How often it is looked how far parts are.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
#[command(
    after_help = "A rack is a lockd with --rack NAME. The locks are divided into 64 parts: lock 17 and lock 81 are of one part.
A part moves lock by lock, when those who hold and wait have had it, and all other locks go on. To take a rack away,
spread the locks over the others, and end its lockd then.
Exit codes: 0 done; 2 usage; 3 etcd does not answer, or parts have not arrived in time (they still will).

  lockwork lockd --udp 10.0.0.5:7400 --etcd 10.0.0.7:2379 --key FILE --rack one &
  lockwork lockd --udp 10.0.0.6:7400 --etcd 10.0.0.7:2379 --key FILE --rack two &
  lockwork locks racks --etcd 10.0.0.7:2379 --rebalance one,two"
)]
pub(super) struct Arguments {
    /// The etcd of the racks
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', num_args = 1.., required = true, value_parser = etcd)]
    etcd: Vec<String>,
    /// With what all their keys begin
    #[arg(long, value_name = "PREFIX", default_value = "lockwork/")]
    etcd_prefix: String,
    /// Divide the locks evenly among these racks, and no others; as few parts as can be move
    #[arg(long, value_name = "NAMES", value_delimiter = ',', num_args = 1.., value_parser = racks::name)]
    rebalance: Vec<String>,
    /// How long to wait until all parts have arrived, after --rebalance
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = super::duration)]
    wait: Duration,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments) -> Outcome {
    let etcd = Etcd::connect(&arguments.etcd, &arguments.etcd_prefix);
    let mut written = load(&etcd, &arguments.etcd_prefix)?;
    if !arguments.rebalance.is_empty() {
        written = spread(&etcd, arguments, written)?;
    }
    print(&match arguments.output {
        Output::Text => as_text(&written),
        Output::Json => format!("{}\n", as_json(&written)),
        Output::Csv => as_csv(&written),
    })
}

fn load(etcd: &Etcd, prefix: &str) -> Result<Written, Failure> {
    let of = |wrong: String| Failure::usage(format!("in etcd --etcd-prefix {prefix} {wrong}"));
    let written = Written::load(etcd, TIMEOUT).map_err(Failure::connect)?.map_err(of)?;
    match written.parts.len() as u64 {
        PARTS => Ok(written),
        _ => Err(Failure::usage(format!(
            "in etcd --etcd-prefix {prefix} is no rack: start 'lockwork lockd' with --rack NAME and this etcd"
        ))),
    }
}

/// Who is to have a part in the end.
fn destination(part: &Part) -> &str {
    part.to.as_deref().unwrap_or(&part.owner)
}

/// Which parts have to go where, so that all `names` have as many as the others, or one more. Parts that move already
/// go where they go.
fn divide(parts: &BTreeMap<u64, Part>, names: &[String]) -> BTreeMap<u64, String> {
    let (share, more) = (PARTS as usize / names.len(), PARTS as usize % names.len());
    let count = |name: &str| parts.values().filter(|part| destination(part) == name).count();
    // Those that have most keep one more.
    let mut by_count: Vec<&String> = names.iter().collect();
    by_count.sort_by_key(|name| std::cmp::Reverse(count(name)));
    let mut room: BTreeMap<&str, usize> =
        (0..).zip(by_count).map(|(at, name)| (&name[..], share + usize::from(at < more))).collect();
    let mut homeless = Vec::new();
    for (at, part) in parts {
        match room.get_mut(destination(part)).filter(|left| **left > 0) {
            Some(left) => *left -= 1,
            None => homeless.push(*at),
        }
    }
    let mut rooms = room.into_iter().flat_map(|(name, left)| std::iter::repeat_n(name.to_string(), left));
    homeless.into_iter().map_while(|at| Some((at, rooms.next()?))).collect()
}

fn spread(etcd: &Etcd, arguments: &Arguments, mut written: Written) -> Result<Written, Failure> {
    let (names, prefix) = (&arguments.rebalance, &arguments.etcd_prefix);
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            return Err(Failure::usage(format!("--rebalance: '{name}' stands there twice")));
        }
        if !written.racks.contains_key(name) {
            let all = written.racks.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            return Err(Failure::usage(format!("--rebalance: no rack is called '{name}'; there are: {all}")));
        }
    }
    if names.len() as u64 > PARTS {
        return Err(Failure::usage(format!("--rebalance: {} racks, and the locks have {PARTS} parts", names.len())));
    }
    let (began, live) = (Instant::now(), Live::new(["parts"]));
    loop {
        // A part that moves elsewhere has to arrive there first.
        for (at, to) in divide(&written.parts, names) {
            let part = &written.parts[&at];
            if part.to.is_none() {
                let (key, new) = (format!("{OF_PARTS}{at}"), part.leaving(&to).to_string());
                etcd.replace(&key, Some(&part.to_string()), &new, TIMEOUT).map_err(Failure::connect)?;
            }
        }
        written = load(etcd, prefix)?;
        let moving = written.parts.values().filter(|part| part.to.is_some()).count();
        if moving == 0 && divide(&written.parts, names).is_empty() {
            return Ok(written);
        }
        if began.elapsed() > arguments.wait {
            return Err(Failure::Connect(format!(
                "{moving} parts have not arrived in {} s; they go on moving: do their lockds run, and are locks of theirs \
                 held? (lockwork locks racks shows how far they are)",
                arguments.wait.as_secs()
            )));
        }
        live.show(0, &format!("{} of {PARTS} are where they should be", PARTS as usize - moving));
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Of a rack: parts that it decides on, parts that leave it, and parts that come to it.
fn counts(written: &Written, name: &str) -> [usize; 3] {
    let count = |is: &dyn Fn(&Part) -> bool| written.parts.values().filter(|part| is(part)).count();
    [
        count(&|part| part.owner == name && part.to.is_none()),
        count(&|part| part.owner == name && part.to.is_some()),
        count(&|part| part.to.as_deref() == Some(name)),
    ]
}

fn as_text(written: &Written) -> String {
    let mut text = format!("{:<32} {:<24} {:>6} {:>8} {:>8}\n", "rack", "address", "parts", "leaving", "coming");
    for (name, address) in &written.racks {
        let [parts, leaving, coming] = counts(written, name);
        _ = writeln!(text, "{name:<32} {:<24} {parts:>6} {leaving:>8} {coming:>8}", address.to_string());
    }
    text
}

fn as_csv(written: &Written) -> String {
    let mut text = "rack,address,parts,leaving,coming\n".to_string();
    for (name, address) in &written.racks {
        let [parts, leaving, coming] = counts(written, name);
        _ = writeln!(text, "{name},{address},{parts},{leaving},{coming}");
    }
    text
}

fn as_json(written: &Written) -> serde_json::Value {
    let racks = written.racks.iter().map(|(name, address)| {
        let [parts, leaving, coming] = counts(written, name);
        json!({ "rack": name, "address": address.to_string(), "parts": parts, "leaving": leaving, "coming": coming })
    });
    let parts = written.parts.iter().map(|(at, part)| json!({ "part": at, "rack": part.owner, "to": part.to }));
    json!({ "racks": racks.collect::<Vec<_>>(), "parts": parts.collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(owners: &[(&str, u64)]) -> BTreeMap<u64, Part> {
        let names = owners.iter().flat_map(|(name, count)| std::iter::repeat_n(*name, *count as usize));
        let part = |name: &str| Part { generation: 0, owner: name.to_string(), token: 0, to: None };
        (0..).zip(names.map(part)).collect()
    }

    #[test]
    fn parts_are_divided_evenly_and_as_few_as_can_be_move() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        for (owners, racks, moves) in [
            (&[("a", 64)][..], &["a"][..], 0),
            (&[("a", 64)], &["a", "b"], 32),
            (&[("a", 64)], &["b"], 64),
            (&[("a", 32), ("b", 32)], &["a", "b"], 0),
            (&[("a", 32), ("b", 32)], &["b", "a", "c"], 21),
            (&[("a", 21), ("b", 22), ("c", 21)], &["a", "b", "c"], 0),
            (&[("a", 21), ("b", 22), ("c", 21)], &["a", "c"], 22),
        ] {
            let mut parts = all(owners);
            let moved = divide(&parts, &names(racks));
            assert_eq!(moved.len(), moves, "{owners:?} {racks:?}");
            for (at, to) in moved {
                parts.get_mut(&at).unwrap().to = Some(to);
            }
            let counts: Vec<usize> =
                racks.iter().map(|name| parts.values().filter(|part| destination(part) == *name).count()).collect();
            assert_eq!(counts.iter().sum::<usize>(), 64);
            assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
            assert!(divide(&parts, &names(racks)).is_empty(), "it is so now");
        }
    }
}
