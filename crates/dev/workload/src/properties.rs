//! YCSB property files: what other tools are configured with, read as they read it.
//!
//! The syntax is that of Java's `Properties.load`: `key=value`, `key: value` or `key value`, comments from `#` or `!`,
//! lines continued by a backslash, and the escapes `\t \n \r \f \uXXXX`. The meaning and the defaults are those of
//! YCSB's `CoreWorkload` (10 fields of 100 bytes, whole rows read, one field written, uniform choice), unless another
//! workload is given that the settings are laid over.
//!
//! Properties that mean nothing here become warnings; values that are not possible become errors with file and line. A
//! later setting replaces an earlier one, so `-p` wins over the file.

use crate::WorkloadError;
use crate::ycsb::{ReadScope, YcsbConfig};
use crate::zipf::Distribution;

/// One setting, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The property.
    pub key: String,
    /// Its value, as written but for escapes.
    pub value: String,
    /// The file, or `-p`.
    pub file: String,
    /// The line, from 1; for `-p`, which one it was.
    pub line: usize,
}

/// Settings in the order in which they were made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    settings: Vec<Setting>,
    overrides: usize,
}

/// What a property file asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct YcsbRun {
    /// The workload, valid.
    pub config: YcsbConfig,
    /// `operationcount`: how many operations to run.
    pub operation_count: Option<u64>,
    /// `threadcount`.
    pub thread_count: Option<u32>,
    /// What was not understood or does not matter here.
    pub warnings: Vec<String>,
}

/// The properties that mean something, for errors and warnings.
const KNOWN: &[&str] = &[
    "workload",
    "table",
    "recordcount",
    "operationcount",
    "threadcount",
    "readproportion",
    "updateproportion",
    "insertproportion",
    "scanproportion",
    "readmodifywriteproportion",
    "requestdistribution",
    "zipfianconstant",
    "fieldcount",
    "fieldlength",
    "fieldlengthdistribution",
    "readallfields",
    "writeallfields",
    "minscanlength",
    "maxscanlength",
    "scanlengthdistribution",
    "insertorder",
    "seed",
];

/// The most characters of a key or value that a message repeats.
const SHOWN: usize = 60;

/// A text as messages repeat it: cut where nobody would read on.
fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_string(),
    }
}

/// Reads the text of a property file; `file` is how errors call it. A byte order mark at its start means nothing.
///
/// # Errors
/// [`WorkloadError::Syntax`] for a `\u` without four hexadecimal digits.
pub fn parse(text: &str, file: &str) -> Result<Properties, WorkloadError> {
    let mut settings = Vec::new();
    let mut lines = (1..).zip(text.strip_prefix('\u{feff}').unwrap_or(text).lines());
    while let Some((line, first)) = lines.next() {
        let first = first.trim_start_matches(BLANKS);
        if first.is_empty() || first.starts_with(['#', '!']) {
            continue;
        }
        let mut logical = String::from(first);
        while is_continued(&logical) {
            logical.pop();
            let Some((_, next)) = lines.next() else { break };
            logical.push_str(next.trim_start_matches(BLANKS));
        }
        let (key, value) = split(&logical);
        let plain =
            |text| unescape(text).map_err(|problem| WorkloadError::Syntax { file: file.to_string(), line, problem });
        // YCSB's own readers trim: a blank behind a number is not part of it.
        let value = plain(value)?.trim_end_matches(BLANKS).to_string();
        settings.push(Setting { key: plain(key)?, value, file: file.to_string(), line });
    }
    Ok(Properties { settings, overrides: 0 })
}

const BLANKS: [char; 3] = [' ', '\t', '\u{c}'];

/// Whether a line ends in an odd number of backslashes.
fn is_continued(line: &str) -> bool {
    line.bytes().rev().take_while(|&byte| byte == b'\\').count() % 2 == 1
}

/// Key and value of a logical line: the key ends at the first `=`, `:` or blank that is not escaped.
fn split(line: &str) -> (&str, &str) {
    let mut escaped = false;
    let ends = |c: char| {
        let end = !escaped && (matches!(c, '=' | ':') || BLANKS.contains(&c));
        escaped = c == '\\' && !escaped;
        end
    };
    let (key, rest) = line.split_at(line.find(ends).unwrap_or(line.len()));
    let rest = rest.trim_start_matches(BLANKS);
    (key, rest.strip_prefix(['=', ':']).unwrap_or(rest).trim_start_matches(BLANKS))
}

fn unescape(text: &str) -> Result<String, String> {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            plain.push(c);
            continue;
        }
        match chars.next() {
            Some('t') => plain.push('\t'),
            Some('n') => plain.push('\n'),
            Some('r') => plain.push('\r'),
            Some('f') => plain.push('\u{c}'),
            Some('u') => {
                let digits: String = chars.by_ref().take(4).collect();
                let hex = digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                let code = u32::from_str_radix(&digits, 16).ok().filter(|_| hex).and_then(char::from_u32);
                plain.push(code.ok_or_else(|| {
                    format!("'\\u{digits}' is no character; four hexadecimal digits follow '\\u', as in '\\u0041'")
                })?);
            }
            Some(other) => plain.push(other),
            None => {}
        }
    }
    Ok(plain)
}

impl Properties {
    /// Adds one `key=value` of the command line, which wins over all before.
    ///
    /// # Errors
    /// [`WorkloadError::Syntax`] when there is no `=` or no key; nothing is added.
    pub fn set(&mut self, setting: &str) -> Result<(), WorkloadError> {
        let line = self.overrides + 1;
        let Some((key, value)) = setting.split_once('=').filter(|(key, _)| !key.trim().is_empty()) else {
            let problem = format!("'{}' is no setting; write key=value, as in recordcount=1000", shown(setting));
            return Err(WorkloadError::Syntax { file: "-p".into(), line, problem });
        };
        self.overrides = line;
        let (key, value) = (key.trim().to_string(), value.trim().to_string());
        self.settings.push(Setting { key, value, file: "-p".into(), line });
        Ok(())
    }

    /// All settings, in the order in which they were made.
    #[must_use]
    pub fn settings(&self) -> &[Setting] {
        &self.settings
    }

    /// The setting of this key that counts.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Setting> {
        self.settings.iter().rev().find(|setting| setting.key == key)
    }

    fn refuse<T>(&self, key: &str, expected: &str) -> Result<T, WorkloadError> {
        let (file, line, value) = match self.get(key) {
            Some(setting) => (setting.file.clone(), setting.line, shown(&setting.value)),
            None => ("default".into(), 0, String::new()),
        };
        Err(WorkloadError::Property { file, line, key: key.into(), value, expected: expected.into() })
    }

    fn number<T: std::str::FromStr>(&self, key: &str, default: T, expected: &str) -> Result<T, WorkloadError> {
        match self.get(key).map(|setting| setting.value.parse()) {
            None => Ok(default),
            Some(Ok(value)) => Ok(value),
            Some(Err(_)) => self.refuse(key, expected),
        }
    }

    fn share(&self, key: &str, default: f64) -> Result<f64, WorkloadError> {
        let expected = "a number from 0 to 1 is possible";
        let share = self.number(key, default, expected)?;
        if (0.0..=1.0).contains(&share) { Ok(share) } else { self.refuse(key, expected) }
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool, WorkloadError> {
        match self.get(key).map(|setting| setting.value.to_ascii_lowercase()).as_deref() {
            None => Ok(default),
            Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(_) => self.refuse(key, "true and false are possible"),
        }
    }

    /// Requires one of some values, if it is set at all.
    fn one_of(&self, key: &str, possible: &[&str], expected: &str) -> Result<(), WorkloadError> {
        match self.get(key) {
            Some(setting) if !possible.contains(&setting.value.as_str()) => self.refuse(key, expected),
            _ => Ok(()),
        }
    }

    /// The workload that the settings describe, with the defaults of YCSB, one operation a transaction.
    ///
    /// # Errors
    /// As [`Self::over`].
    pub fn to_run(&self) -> Result<YcsbRun, WorkloadError> {
        self.over(YcsbConfig {
            name: "ycsb".into(),
            records: 1000,
            theta: 0.99,
            distribution: Distribution::Uniform,
            fields: 10,
            field_bytes: 100,
            operations: 1,
            read: 0.95,
            update: 0.05,
            insert: 0.0,
            scan: 0.0,
            rmw: 0.0,
            min_scan: 1,
            max_scan: 1000,
            read_scope: ReadScope::Row,
            write_all_fields: false,
            ordered: false,
            partitions: 1,
            remote: 0.0,
            seed: 1,
        })
    }

    /// The workload that the settings describe where they say something, and `base` where they do not.
    ///
    /// # Errors
    /// [`WorkloadError::Property`] with file, line, key, value and what is possible.
    pub fn over(&self, base: YcsbConfig) -> Result<YcsbRun, WorkloadError> {
        self.check_fixed()?;
        let whole = "a whole number is possible";
        let at_least_1 = "a whole number from 1 is possible";
        let scan = self.share("scanproportion", base.scan)?;
        let whole_rows = self.flag("readallfields", base.read_scope == ReadScope::Row)?;
        let config = YcsbConfig {
            records: self.number("recordcount", base.records, at_least_1)?,
            theta: self.number("zipfianconstant", base.theta, "a number from 0 to below 1 is possible")?,
            distribution: self.distribution(base.distribution)?,
            fields: self.number("fieldcount", base.fields, at_least_1)?,
            field_bytes: self.number("fieldlength", base.field_bytes, at_least_1)?,
            read: self.share("readproportion", base.read)?,
            update: self.share("updateproportion", base.update)?,
            insert: self.share("insertproportion", base.insert)?,
            scan,
            rmw: self.share("readmodifywriteproportion", base.rmw)?,
            min_scan: self.number("minscanlength", base.min_scan, "a whole number from 1 to 65535 is possible")?,
            max_scan: self.number("maxscanlength", base.max_scan, "a whole number from 1 to 65535 is possible")?,
            read_scope: if whole_rows { ReadScope::Row } else { ReadScope::Field },
            write_all_fields: self.flag("writeallfields", base.write_all_fields)?,
            ordered: scan > 0.0,
            seed: self.number("seed", base.seed, whole)?,
            ..base
        };
        config.validate().map_err(|error| self.placed(error))?;
        let count = |key| self.number(key, 0, whole).map(|count: u64| self.get(key).map(|_| count));
        let operation_count = count("operationcount")?;
        let threads = self.number("threadcount", 1_u32, at_least_1)?;
        if threads == 0 {
            return self.refuse("threadcount", at_least_1);
        }
        let thread_count = self.get("threadcount").map(|_| threads);
        Ok(YcsbRun { config, operation_count, thread_count, warnings: self.warnings() })
    }

    fn distribution(&self, default: Distribution) -> Result<Distribution, WorkloadError> {
        let Some(setting) = self.get("requestdistribution") else { return Ok(default) };
        match Distribution::parse(&setting.value) {
            Some(distribution) => Ok(distribution),
            None => self.refuse("requestdistribution", "uniform, zipfian and latest are possible"),
        }
    }

    /// Properties of which only some values are supported.
    fn check_fixed(&self) -> Result<(), WorkloadError> {
        let workloads = ["site.ycsb.workloads.CoreWorkload", "com.yahoo.ycsb.workloads.CoreWorkload", "CoreWorkload"];
        self.one_of("workload", &workloads, "site.ycsb.workloads.CoreWorkload is possible")?;
        self.one_of("table", &["usertable"], "usertable is possible")?;
        self.one_of("scanlengthdistribution", &["uniform"], "uniform is possible")?;
        self.one_of("fieldlengthdistribution", &["constant"], "constant is possible")?;
        self.one_of("insertorder", &["hashed", "ordered"], "hashed and ordered are possible")
    }

    /// The error of an option, as one of the property behind it.
    fn placed(&self, error: WorkloadError) -> WorkloadError {
        let WorkloadError::Option { option, value, expected } = error else {
            // The table is as wide as these two make it.
            let key = if self.get("fieldlength").is_some() { "fieldlength" } else { "fieldcount" };
            return self.refuse::<()>(key, &error.to_string()).expect_err("it refuses");
        };
        let key = match option {
            "records" => "recordcount",
            "theta" => "zipfianconstant",
            "fields" => "fieldcount",
            "field_bytes" => "fieldlength",
            "read" => "readproportion",
            "min_scan" => "minscanlength",
            "max_scan" => "maxscanlength",
            _ => return WorkloadError::Option { option, value, expected },
        };
        let (file, line) = self.get(key).map_or(("default".into(), 0), |setting| (setting.file.clone(), setting.line));
        WorkloadError::Property { file, line, key: key.into(), value, expected }
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for Setting { key, value, file, line } in &self.settings {
            if !KNOWN.contains(&key.as_str()) {
                warnings.push(format!("{file}:{line}: property '{}' means nothing here and is ignored", shown(key)));
            } else if key == "insertorder" && value == "hashed" {
                warnings.push(format!(
                    "{file}:{line}: keys are numbered in order all the same; the popular ones are scattered among them"
                ));
            }
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;

    fn run(text: &str) -> Result<YcsbRun, WorkloadError> {
        parse(text, "w.properties")?.to_run()
    }

    #[test]
    fn the_syntax_is_that_of_java_properties() {
        let text = "# c\n! c\n\n  a = 1 \nb:2\nc 3\nd=x\\\n   y\\\n  z\ne\\=f=\\u0041\\t\\\\\nempty\ng = = h\n  # c\r\nlast=1\\";
        let properties = parse(text, "f").unwrap();
        let all: Vec<(&str, &str, usize)> =
            properties.settings().iter().map(|s| (s.key.as_str(), s.value.as_str(), s.line)).collect();
        let expected = [
            ("a", "1", 4),
            ("b", "2", 5),
            ("c", "3", 6),
            ("d", "xyz", 7),
            ("e=f", "A\t\\", 10),
            ("empty", "", 11),
            ("g", "= h", 12),
            ("last", "1", 14),
        ];
        assert_eq!(all, expected);
        for bad in ["x=\\u00", "x=\\u00zz", "\n\nx=\\ud800", "x=\\u+041"] {
            let error = parse(bad, "f").unwrap_err().to_string();
            assert!(error.starts_with("f:") && error.contains("hexadecimal"), "{error}");
        }
    }

    #[test]
    fn defaults_are_those_of_ycsb() {
        let YcsbRun { config, operation_count, thread_count, warnings } = run("").unwrap();
        assert_eq!((config.fields, config.field_bytes, config.read_scope), (10, 100, ReadScope::Row));
        assert_eq!((config.read, config.update, config.insert, config.scan, config.rmw), (0.95, 0.05, 0.0, 0.0, 0.0));
        assert_eq!((config.distribution, config.theta, config.write_all_fields), (Distribution::Uniform, 0.99, false));
        assert_eq!((operation_count, thread_count, warnings), (None, None, vec![]));
    }

    #[test]
    fn the_shipped_files_are_the_standard_workloads() {
        let files = [
            (include_str!("../ycsb/workloada"), 'a'),
            (include_str!("../ycsb/workloadb"), 'b'),
            (include_str!("../ycsb/workloadc"), 'c'),
            (include_str!("../ycsb/workloadd"), 'd'),
            (include_str!("../ycsb/workloade"), 'e'),
            (include_str!("../ycsb/workloadf"), 'f'),
        ];
        for (text, letter) in files {
            let YcsbRun { config, operation_count, warnings, .. } = run(text).unwrap();
            let preset = YcsbConfig::hobbes(letter).unwrap();
            let shares = |c: &YcsbConfig| (c.read, c.update, c.insert, c.scan, c.rmw, c.distribution, c.ordered);
            assert_eq!(shares(&config), shares(&preset), "{letter}");
            assert_eq!((config.records, operation_count, warnings), (1000, Some(1000), vec![]), "{letter}");
        }
    }

    #[test]
    fn what_is_not_set_stays_as_the_base_has_it() {
        for letter in 'a'..='f' {
            for base in [YcsbConfig::hobbes(letter).unwrap(), YcsbConfig::bionicdb(letter).unwrap()] {
                assert_eq!(Properties::default().over(base.clone()).unwrap().config, base);
                let mut properties = Properties::default();
                properties.set("recordcount=500").unwrap();
                properties.set("readallfields=true").unwrap();
                let changed = YcsbConfig { records: 500, read_scope: ReadScope::Row, ..base.clone() };
                assert_eq!(properties.over(base).unwrap().config, changed);
            }
        }
    }

    #[test]
    fn later_settings_and_the_command_line_win() {
        let mut properties = parse("recordcount=5\nrecordcount=6\nthreadcount=3", "f").unwrap();
        assert_eq!(properties.to_run().unwrap().config.records, 6);
        properties.set("recordcount=7").unwrap();
        let run = properties.to_run().unwrap();
        assert_eq!((run.config.records, run.thread_count), (7, Some(3)));
        properties.set("recordcount=x").unwrap();
        let error = properties.to_run().unwrap_err().to_string();
        assert!(error.starts_with("-p:2: property 'recordcount' is 'x'"), "{error}");
        for wrong in ["recordcount", "=1", " =1"] {
            assert!(properties.set(wrong).unwrap_err().to_string().contains("write key=value"), "{wrong}");
        }
        assert_eq!(properties.settings().len(), 5);
    }

    #[test]
    fn unknown_properties_warn_and_impossible_values_fail_with_their_place() {
        let warned = run("exporter=x\ninsertorder=hashed").unwrap().warnings;
        assert_eq!(warned.len(), 2);
        assert!(warned[0].starts_with("w.properties:1: property 'exporter'"), "{warned:?}");
        let cases = [
            ("recordcount=0", "possible"),
            ("recordcount=1e3", "whole number"),
            ("readproportion=1.5", "0 to 1"),
            ("readproportion=nan", "0 to 1"),
            ("requestdistribution=hotspot", "uniform, zipfian and latest"),
            ("fieldcount=300", "1 to 253"),
            ("fieldlength=0", "1 to 65000"),
            ("fieldlength=20000", "wide"),
            ("readallfields=yes", "true and false"),
            ("zipfianconstant=1", "below 1"),
            ("maxscanlength=0\nscanproportion=1", "1 to 65535"),
            ("maxscanlength=9000\nscanproportion=1", "block"),
            ("minscanlength=20\nmaxscanlength=10\nscanproportion=1", "1 to 10"),
            ("scanlengthdistribution=zipfian", "uniform is possible"),
            ("workload=x.TimeSeries", "CoreWorkload"),
            ("readproportion=0\nupdateproportion=0", "above 0"),
            ("threadcount=0", "from 1"),
            ("operationcount=-1", "whole number"),
            ("seed=-1", "whole number"),
        ];
        for (text, expected) in cases {
            let error = run(text).unwrap_err();
            let key = text.split('=').next().unwrap();
            let named = matches!(&error, WorkloadError::Property { key: named, line: 1, .. } if named == key);
            assert!(named && error.to_string().contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_mark_at_the_start_means_nothing_and_long_texts_are_cut() {
        let properties = parse("\u{feff}recordcount=5", "f").unwrap();
        assert_eq!(properties.to_run().unwrap().config.records, 5);
        let long = "é".repeat(100_000);
        let mut properties = parse(&format!("{long}=1\nfieldcount={long}"), "f").unwrap();
        let error = properties.to_run().unwrap_err().to_string();
        assert!(error.contains("ééé...") && error.chars().count() < 200, "{error}");
        assert!(properties.set(&long).unwrap_err().to_string().chars().count() < 200);
        properties.set("fieldcount=3").unwrap();
        assert!(properties.to_run().unwrap().warnings[0].chars().count() < 200);
    }

    #[test]
    fn any_text_gives_properties_or_an_error() {
        let mut random = random::Random::new(9);
        let alphabet: Vec<char> = "ab=: \\\t\n\r#!u0é".chars().collect();
        for _ in 0..20_000 {
            let length = random.below(30);
            let text: String = (0..length).map(|_| alphabet[random.below(alphabet.len() as u64) as usize]).collect();
            if let Ok(properties) = parse(&text, "f") {
                assert!(properties.settings().len() <= text.lines().count());
            }
        }
    }
}
