//! `lockwork bench locks` and `lockwork bench memory`: what is measured without engines.

use lockwork_locking::batch::{Access, CHAIN_LIMIT};
use lockwork_memory::Pages;
use serde_json::json;

use super::bench::{Arguments, empty_entry};
use super::report::{Environment, Forms, prepare_folder};
use super::run::check_memory;
use super::{Failure, Outcome, chart, locks, memory};

/// Random reads, plain and huge pages.
pub(super) fn bench_memory(arguments: &Arguments) -> Outcome {
    let threads = arguments.threads.unwrap_or(1);
    if threads == 0 || threads > lockwork_engine::contract::MAX_THREADS {
        return Err(Failure::usage(format!("--threads is {threads}; 1 to 256 are possible")));
    }
    check_memory(&format!("random reads on {threads} threads"), memory::bytes(threads), "--threads")?;
    prepare_folder(arguments.out.as_deref())?;
    let limits = [Pages::Plain, Pages::Huge].map(|pages| memory::measure(pages, threads, arguments.seed()));
    let [plain, huge] = limits;
    let (limits, environment) = ([plain?, huge?], Environment::read());
    let settings = json!({ "workload": "memory", "threads": threads, "seed": arguments.seed() });
    let report = json!({ "schema": 1, "environment": environment, "settings": settings, "limits": limits });
    let forms = Forms {
        json: format!("{report:#}\n"),
        csv: limits.iter().fold(
            "pages,dependent_ns,one_line_m_per_s,two_lines_m_per_s,sixteen_lines_m_per_s\n".to_string(),
            |text, l| {
                let (one, two, sixteen) = (l.one_line_m_per_s, l.two_lines_m_per_s, l.sixteen_lines_m_per_s);
                format!("{text}{},{:.1},{one:.2},{two:.2},{sixteen:.2}\n", l.pages, l.dependent_ns)
            },
        ),
        text: limits.iter().fold(
            format!(
                "{}, commit {}\nrandom reads of 1 GiB, {threads} cores at once, for each core\n\n\
                 pages   dependent ns   1 line M/s   2 lines M/s   16 lines M/s\n",
                environment.cpu, environment.commit
            ),
            |text, l| {
                let (one, two, sixteen) = (l.one_line_m_per_s, l.two_lines_m_per_s, l.sixteen_lines_m_per_s);
                format!("{text}{:<7} {:>12.1} {one:>12.1} {two:>13.1} {sixteen:>14.2}\n", l.pages, l.dependent_ns)
            },
        ),
        title: "memory".into(),
        unit: "random reads of one line a second, for each core",
        bars: limits.iter().map(|l| (format!("{} pages", l.pages), l.one_line_m_per_s * 1e6)).collect(),
    };
    forms.give(arguments.output, arguments.out.as_deref())
}

/// Lock managers, one after the other on the same requests.
pub(super) fn bench_locks(arguments: &Arguments) -> Outcome {
    let writes = match arguments.mix.as_str() {
        "a" => 0.5,
        "b" => 0.05,
        other => return Err(Failure::usage(format!("no mix is called '{other}'; there are a and b"))),
    };
    let most = u64::from(u32::MAX) - 1;
    let records = arguments.records.unwrap_or(1_000_000);
    let batch = arguments.batch.unwrap_or(131_072) as u64;
    let transactions = arguments.txns.unwrap_or(8_388_608) as u64;
    let ranges =
        [("--records", records, most), ("--batch", batch, u64::from(CHAIN_LIMIT)), ("--txns", transactions, most)];
    for (option, value, most) in ranges {
        if value == 0 || value > most {
            return Err(Failure::usage(format!("{option} is {value}; 1 to {most} are possible")));
        }
    }
    // Shared with the random reads; two forms of every request; words, queues and checks of every record.
    let bytes = memory::bytes(1) + u128::from(transactions) * 24 + u128::from(records) * 48;
    check_memory(&format!("{transactions} locks on {records} records"), bytes, "--txns or --records")?;
    let batch = batch.min(transactions);
    let settings = locks::Settings {
        records: records as u32,
        transactions: transactions as u32,
        batch: batch as u32,
        theta: arguments.theta.unwrap_or(0.5),
        writes,
        seed: arguments.seed(),
    };
    type Measure = fn(&locks::Settings, &[Access]) -> Result<locks::Measured, Failure>;
    let managers = arguments.manager.iter().map(|name| match name.as_str() {
        "queue" => Ok((name, locks::queue as Measure)),
        "batch" => Ok((name, locks::batch as Measure)),
        "" => Err(empty_entry("--manager", "--manager queue,batch")),
        other => Err(Failure::usage(format!("no lock manager is called '{other}'; there are queue and batch"))),
    });
    let managers: Vec<(&String, Measure)> = managers.collect::<Result<_, _>>()?;
    prepare_folder(arguments.out.as_deref())?;
    let accesses = locks::stream(&settings)?;
    let limit = memory::measure(Pages::Huge, 1, arguments.seed())?.one_line_m_per_s * 1e6;
    let mut runs: Vec<(String, locks::Measured)> = Vec::new();
    for (manager, measure) in managers {
        let mut rounds = (0..3).map(|_| measure(&settings, &accesses)).collect::<Result<Vec<_>, _>>()?;
        rounds.sort_by(|a, b| a.rate.total_cmp(&b.rate));
        let wrong = rounds.iter().find_map(|round| round.wrong.clone());
        runs.push((manager.clone(), locks::Measured { rate: rounds[1].rate, wrong }));
    }
    let environment = Environment::read();
    let objects: Vec<_> = runs
        .iter()
        .map(|(manager, locks::Measured { rate, wrong })| {
            json!({
                "manager": manager, "throughput_locks_per_s": rate, "share_of_line_reads": rate / limit,
                "verified": wrong.is_none()
            })
        })
        .collect();
    let effective = json!({
        "workload": "locks", "mix": arguments.mix, "theta": settings.theta, "records": records, "batch": batch,
        "transactions": transactions, "seed": arguments.seed(), "line_reads_per_s": limit
    });
    let report = json!({ "schema": 1, "environment": environment, "settings": effective, "runs": objects });
    let forms = Forms {
        json: format!("{report:#}\n"),
        csv: {
            let head = "manager,throughput_locks_per_s,share_of_line_reads,verified\n".to_string();
            runs.iter().fold(head, |text, (manager, locks::Measured { rate, wrong })| {
                format!("{text}{manager},{rate:.0},{:.3},{}\n", rate / limit, wrong.is_none())
            })
        },
        text: runs.iter().fold(
            format!(
                "{}, commit {}\nmix {}, theta {}, {records} records, batch {batch}, {transactions} locks, seed {}; \
                 one core; median of 3\nindependent random line reads: {}/s\n\n",
                environment.cpu,
                environment.commit,
                arguments.mix,
                settings.theta,
                arguments.seed(),
                chart::grouped(limit)
            ),
            |text, (manager, locks::Measured { rate, wrong })| {
                format!(
                    "{text}{manager:<8} {:>14} locks/s   {:.2} of the line reads   {}\n",
                    chart::grouped(*rate),
                    rate / limit,
                    wrong.as_ref().map_or_else(|| "verified".to_string(), |wrong| format!("WRONG: {wrong}"))
                )
            },
        ),
        title: format!("locks, mix {}, theta {}", arguments.mix, settings.theta),
        unit: "locks a second on one core",
        bars: runs.iter().map(|(manager, measured)| (manager.clone(), measured.rate)).collect(),
    };
    forms.give(arguments.output, arguments.out.as_deref())?;
    runs.into_iter().try_for_each(|(manager, measured)| measured.verified(&manager).map(drop))
}
