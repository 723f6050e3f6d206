//! What is printed and saved, experiment by experiment: one that fails, or that is interrupted, takes nothing away from
//! those before it.
//!
//! *Invariant*: `result.json` and `result.txt` are whole at all times, those of the last experiment that has ended; a
//! disk that has become full keeps what it had.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::super::{Environment, Output};
use super::super::{Failure, Outcome, print};
use super::{Experiment, Section, letter};

pub(super) struct Results {
    output: Output,
    folder: PathBuf,
    environment: Environment,
    settings: Value,
    order: Vec<Experiment>,
    /// In this order, as far as they have ended.
    sections: Vec<Section>,
    failed: Option<String>,
    /// What was printed, or would be as text.
    text: String,
    /// How the last saving went.
    saved: Outcome,
}

impl Results {
    /// Nothing yet of what will be run in this `order`.
    pub(super) fn new(output: Output, folder: PathBuf, settings: Value, order: Vec<Experiment>) -> Self {
        let environment = Environment::read();
        let (sections, failed, text) = (Vec::new(), None, String::new());
        Self { output, folder, environment, settings, order, sections, failed, text, saved: Ok(()) }
    }

    /// Says where and with which settings it begins.
    pub(super) fn begin(&mut self) -> Outcome {
        let e = &self.environment;
        let machine = format!("{}, {} cores, kernel {}, commit {}", e.cpu, e.cores, e.kernel, e.commit);
        self.say(&format!("{machine}\nsettings {}\n", self.settings))
    }

    /// Prints and saves one more experiment.
    pub(super) fn add(&mut self, section: Section) -> Outcome {
        let text = format!("\n{}", section.text);
        self.sections.push(section);
        let printed = self.say(&text);
        self.save();
        printed
    }

    /// Says how it ended; `failure` is that of the experiment after the last one that was added.
    pub(super) fn end(mut self, failure: Option<Failure>) -> Outcome {
        self.failed = failure.as_ref().map(ToString::to_string);
        self.save();
        if !self.sections.is_empty() && self.saved.is_ok() {
            let folder = self.folder.display();
            self.say(&format!("\ncharts and result.json are in {folder}\n"))?;
        }
        if self.output == Output::Json {
            print(&format!("{:#}\n", self.report()))?;
        }
        let wrong: Vec<_> = self.sections.iter().flat_map(|section| section.wrong.clone()).collect();
        let wrong = if wrong.is_empty() { None } else { Some(Failure::Check(wrong.join("; "))) };
        let failed = failure.map(|failure| {
            let number = self.sections.len();
            let name = letter(self.order[number]);
            let rest = names(&self.order[number + 1..]);
            let rest = if rest.is_empty() { String::new() } else { format!("; not run: {}", rest.join(", ")) };
            let kept = match names(&self.order[..number]).as_slice() {
                [] => String::new(),
                before => format!("; finished, printed and saved before: {}", before.join(", ")),
            };
            failure.reworded(|text| format!("experiment {name} failed: {text}{rest}{kept}"))
        });
        let saved = self.saved.err().map(|failure| {
            failure.reworded(|text| format!("results are not saved: {text}; what is printed is all there is"))
        });
        let all: Vec<_> = [failed, wrong, saved].into_iter().flatten().collect();
        let text = all.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        // The first decides how the command ends.
        all.into_iter().next().map_or(Ok(()), |failure| Err(failure.reworded(|_| text)))
    }

    fn say(&mut self, text: &str) -> Outcome {
        self.text.push_str(text);
        if self.output == Output::Text { print(text) } else { Ok(()) }
    }

    fn report(&self) -> Value {
        let ended = self.order.iter().zip(&self.sections);
        let found: serde_json::Map<_, _> =
            ended.map(|(experiment, section)| (letter(*experiment).to_string(), section.json.clone())).collect();
        let mut rest = names(&self.order[self.sections.len()..]).into_iter();
        let failed = self.failed.as_ref().map(|why| json!({ "experiment": rest.next(), "why": why }));
        json!({
            "schema": 1, "environment": self.environment, "settings": self.settings, "experiments": found,
            "failed": failed, "not_run": rest.collect::<Vec<_>>(),
        })
    }

    /// Saves everything once more, so that what failed before can succeed now.
    fn save(&mut self) {
        let report = format!("{:#}\n", self.report());
        let charts = self.sections.iter().flat_map(|section| &section.charts);
        let charts = charts.map(|(name, svg)| (name.as_str(), svg.as_str()));
        let mut files =
            [("result.json", report.as_str()), ("result.txt", self.text.as_str())].into_iter().chain(charts);
        self.saved = files.try_for_each(|(name, content)| replace(&self.folder, name, content));
    }
}

/// Writes a file and puts it in the place of the one that was there.
fn replace(folder: &Path, name: &str, content: &str) -> Outcome {
    let (path, new) = (folder.join(name), folder.join(format!(".{name}.new")));
    std::fs::write(&new, content).and_then(|()| std::fs::rename(&new, &path)).map_err(|error| {
        // What there is of it is of no use.
        drop(std::fs::remove_file(&new));
        Failure::usage(format!("{}: {error}", path.display()))
    })
}

fn names(experiments: &[Experiment]) -> Vec<String> {
    experiments.iter().map(|experiment| letter(*experiment).to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(text: &str) -> Section {
        let charts = vec![("chart.svg".into(), "<svg/>".into())];
        Section { text: text.into(), json: json!({ "says": text }), charts, wrong: Vec::new() }
    }

    fn results(name: &str) -> (Results, PathBuf) {
        let folder = std::env::temp_dir().join(format!("lockwork-results-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let order = vec![Experiment::A, Experiment::B, Experiment::C];
        (Results::new(Output::Csv, folder.clone(), json!({}), order), folder)
    }

    fn saved(folder: &Path) -> Value {
        serde_json::from_slice(&std::fs::read(folder.join("result.json")).expect("a file")).expect("JSON")
    }

    #[test]
    fn wrong_data_are_not_called_verified() {
        assert_eq!(super::super::verdict(&[], "all is there"), "verified: all is there\n");
        assert_eq!(super::super::verdict(&["a".into(), "b".into()], "all is there"), "WRONG: a; b\n");
        let (mut results, folder) = results("wrong");
        results
            .add(Section { wrong: vec!["one row too many".into()], ..section("first") })
            .expect("nothing is printed");
        let failure = results.end(None).expect_err("a check failed");
        assert_eq!((failure.to_string().as_str(), failure.exit_code()), ("one row too many", 1));
        std::fs::remove_dir_all(folder).expect("it goes");
    }

    #[test]
    fn what_has_ended_is_kept_when_a_later_experiment_fails() {
        let (mut results, folder) = results("kept");
        results.begin().expect("nothing is printed");
        results.add(section("first")).expect("nothing is printed");
        let report = saved(&folder);
        assert!(report["experiments"]["a"]["says"] == "first" && report["failed"].is_null(), "{report}");
        assert_eq!(report["not_run"], json!(["b", "c"]));
        let failure = results.end(Some(Failure::BackEnd("nobody is there".into()))).expect_err("b failed");
        let text = "experiment b failed: nobody is there; not run: c; finished, printed and saved before: a";
        assert_eq!((failure.to_string().as_str(), failure.exit_code()), (text, 6));
        let report = saved(&folder);
        assert!(report["experiments"]["a"]["says"] == "first" && report["experiments"]["b"].is_null(), "{report}");
        assert_eq!(report["failed"], json!({ "experiment": "b", "why": "nobody is there" }));
        assert_eq!(report["not_run"], json!(["c"]));
        assert!(std::fs::read_to_string(folder.join("result.txt")).expect("a file").contains("\nfirst"));
        assert!(folder.join("chart.svg").is_file());
        std::fs::remove_dir_all(folder).expect("it goes");
    }

    #[test]
    fn a_folder_that_takes_nothing_more_is_told_of_and_keeps_what_it_has() {
        let (mut results, folder) = results("full");
        results.add(section("first")).expect("nothing is printed");
        // Nothing can be written in the place of this one.
        std::fs::create_dir(folder.join(".result.json.new")).expect("a folder");
        results.add(section("second")).expect("nothing is printed");
        assert!(saved(&folder)["experiments"]["b"].is_null());
        let failure = results.end(None).expect_err("not saved");
        let text = failure.to_string();
        assert!(text.starts_with("results are not saved: ") && text.contains("/result.json: "), "{text}");
        assert_eq!(failure.exit_code(), 2);
        std::fs::remove_dir_all(folder).expect("it goes");
    }
}
