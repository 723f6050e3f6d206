//! The text form of a script, parsed and performed.
//!
//! Names become numbers here: locks in the order in which the script first names them, sessions by the digits behind
//! the `s`. Everything that is wrong with a script is an error with its line and what would be right.

use super::{Capability, Event, Manager, Session};
use lockwork_locking::{LockId, LockMode, Outcome, Request};
use std::fmt::Write;

/// A script does not say what it should.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{script}.lock, line {line}: {message}")]
pub struct ScriptError {
    /// Name of the script.
    pub script: String,
    /// Line, from one.
    pub line: usize,
    /// What is wrong and what would be right.
    pub message: String,
}

/// A parsed script.
#[derive(Clone, Debug)]
pub struct Script {
    /// Name without ending.
    pub name: String,
    /// What it needs.
    pub needs: Vec<Capability>,
    pub(super) runs: Vec<Run>,
    locks: Vec<String>,
    sessions: Vec<Session>,
    ages: Vec<(Session, u64)>,
}

/// One order of steps on one fresh manager.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// The line of the permutation.
    pub(super) line: Option<usize>,
    pub(super) steps: Vec<Step>,
    pub(super) expected: Vec<String>,
}

/// One step, with its place.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) line: usize,
    pub(super) text: String,
    action: Action,
}

#[derive(Clone, Debug)]
enum Action {
    Acquire(Session, Vec<Request>, Option<u64>),
    Release(Session, Vec<LockId>),
    Crash(Session),
    Pass(u64),
}

impl Script {
    /// Every session with its age: its number unless the script gives another.
    pub(super) fn ages(&self) -> impl Iterator<Item = (Session, u64)> {
        self.sessions.iter().map(|&session| {
            let given = self.ages.iter().find(|(named, _)| *named == session);
            (session, given.map_or(u64::from(session.0), |(_, age)| *age))
        })
    }

    /// Does a step and writes down the answer as scripts do.
    pub(super) fn perform(&self, step: &Step, manager: &mut impl Manager) -> String {
        let (mut text, mut events) = match &step.action {
            Action::Acquire(session, requests, timeout_ms) => {
                let outcome = match manager.acquire(*session, requests, *timeout_ms) {
                    Outcome::Granted => "granted",
                    Outcome::Waiting => "waiting",
                    Outcome::Conflict => "conflict",
                };
                (outcome.to_string(), Vec::new())
            }
            Action::Release(session, locks) => match manager.release(*session, locks) {
                Ok(events) => ("released".to_string(), events),
                Err(super::NotHeld) => ("error".to_string(), Vec::new()),
            },
            Action::Crash(session) => ("crashed".to_string(), manager.crash(*session)),
            Action::Pass(time_ms) => ("passed".to_string(), manager.pass(*time_ms)),
        };
        events.sort_unstable();
        for Event { session, lock, granted } in events {
            let outcome = if granted { "granted" } else { "conflict" };
            let unknown = || format!("lock {}", lock.0);
            let lock = self.locks.get(lock.0 as usize).cloned().unwrap_or_else(unknown);
            write!(text, "; s{} {outcome} {lock}", session.0).expect("writing to a string succeeds");
        }
        text
    }
}

/// What is known while lines are read.
struct Parser {
    script: Script,
    named: Vec<(String, Step)>,
    line: usize,
}

/// Parses the text of script `name`.
///
/// # Errors
/// [`ScriptError`] at the first line that is not one of those in the [module documentation](super).
pub fn parse(name: &str, text: &str) -> Result<Script, ScriptError> {
    let script = Script {
        name: name.to_string(),
        needs: Vec::new(),
        runs: Vec::new(),
        locks: Vec::new(),
        sessions: Vec::new(),
        ages: Vec::new(),
    };
    let mut parser = Parser { script, named: Vec::new(), line: 0 };
    let mut plain = Run { line: None, steps: Vec::new(), expected: Vec::new() };
    let error = |line, message| ScriptError { script: name.to_string(), line, message };
    for (at, line) in text.lines().enumerate() {
        parser.line = at + 1;
        let line = line.split('#').next().unwrap_or_default().trim();
        if !line.is_empty() {
            parser.line(line, &mut plain).map_err(|message| error(at + 1, message))?;
        }
    }
    if !plain.steps.is_empty() {
        parser.script.runs.insert(0, plain);
    }
    if parser.script.runs.is_empty() {
        let message = "the script has no step that runs: add steps with '->', or a permutation";
        return Err(error(parser.line, message.to_string()));
    }
    Ok(parser.script)
}

impl Parser {
    fn line(&mut self, line: &str, plain: &mut Run) -> Result<(), String> {
        let (head, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match head {
            "needs" => self.needs(rest),
            "age" => self.age(rest),
            "step" => {
                let (name, step) = rest.split_once(':').ok_or("a step is 'step NAME: SESSION ACTION ...'")?;
                let step = self.step(step.trim())?;
                self.named.push((name.trim().to_string(), step));
                Ok(())
            }
            "permutation" => self.permutation(rest),
            _ => {
                let (step, expected) = line.split_once("->").ok_or("the step has no answer: add '-> ANSWER'")?;
                plain.steps.push(self.step(step.trim())?);
                plain.expected.push(expected.trim().to_string());
                Ok(())
            }
        }
    }

    fn needs(&mut self, names: &str) -> Result<(), String> {
        for name in names.split_whitespace() {
            let found = Capability::ALL.iter().find(|(_, known)| *known == name).ok_or_else(|| {
                let known: Vec<_> = Capability::ALL.iter().map(|(_, known)| *known).collect();
                format!("there is no capability '{name}': there are {}", known.join(", "))
            })?;
            self.script.needs.push(found.0);
        }
        Ok(())
    }

    fn age(&mut self, text: &str) -> Result<(), String> {
        let wrong = || format!("'{text}' is not an age: write 'age s1 10', with a number from 1");
        let (session, age) = text.split_once(char::is_whitespace).ok_or_else(wrong)?;
        let age: u64 = age.trim().parse().map_err(|_| wrong())?;
        if age == 0 {
            return Err(wrong());
        }
        let session = self.session(session)?;
        self.script.ages.push((session, age));
        Ok(())
    }

    fn permutation(&mut self, text: &str) -> Result<(), String> {
        let (names, answers) =
            text.split_once("->").ok_or("a permutation is 'permutation NAME ... -> ANSWER | ...'")?;
        let mut steps = Vec::new();
        for name in names.split_whitespace() {
            let step = self.named.iter().find(|(known, _)| known == name).ok_or_else(|| {
                let known: Vec<_> = self.named.iter().map(|(known, _)| known.as_str()).collect();
                format!("there is no step '{name}': there are {}", known.join(", "))
            })?;
            steps.push(step.1.clone());
        }
        let expected: Vec<_> = answers.split('|').map(|answer| answer.trim().to_string()).collect();
        if expected.len() != steps.len() {
            return Err(format!("{} steps need as many answers, there are {}", steps.len(), expected.len()));
        }
        self.script.runs.push(Run { line: Some(self.line), steps, expected });
        Ok(())
    }

    fn step(&mut self, text: &str) -> Result<Step, String> {
        let words: Vec<_> = text.split_whitespace().collect();
        let action = match words[..] {
            ["pass", time] => Action::Pass(number(time)?),
            [session, "crash"] => Action::Crash(self.session(session)?),
            [session, "release", ref locks @ ..] if !locks.is_empty() => {
                Action::Release(self.session(session)?, locks.iter().map(|lock| self.lock(lock)).collect())
            }
            [session, "acquire", ref pairs @ .., "within", time] => {
                Action::Acquire(self.session(session)?, self.requests(pairs)?, Some(number(time)?))
            }
            [session, "acquire", ref pairs @ ..] => {
                Action::Acquire(self.session(session)?, self.requests(pairs)?, None)
            }
            _ => return Err(format!("'{text}' is not a step: there are acquire, release, crash and pass")),
        };
        Ok(Step { line: self.line, text: text.to_string(), action })
    }

    fn requests(&mut self, pairs: &[&str]) -> Result<Vec<Request>, String> {
        if pairs.is_empty() || !pairs.len().is_multiple_of(2) {
            return Err("acquire needs a lock and a mode, or several of both: 'acquire a shared b exclusive'".into());
        }
        let request = |pair: &[&str]| {
            let mode = match pair[1] {
                "shared" => LockMode::Shared,
                "exclusive" => LockMode::Exclusive,
                "intent" => LockMode::IntentExclusive,
                other => return Err(format!("'{other}' is not a mode: there are shared, exclusive and intent")),
            };
            Ok(Request { id: self.lock(pair[0]), mode })
        };
        pairs.chunks(2).map(request).collect()
    }

    fn lock(&mut self, name: &str) -> LockId {
        let known = self.script.locks.iter().position(|known| known == name);
        let at = known.unwrap_or_else(|| {
            self.script.locks.push(name.to_string());
            self.script.locks.len() - 1
        });
        LockId(at as u64)
    }

    fn session(&mut self, name: &str) -> Result<Session, String> {
        let number = name.strip_prefix('s').and_then(|digits| digits.parse().ok()).filter(|number| *number > 0);
        let session = number.map(Session).ok_or_else(|| format!("'{name}' is not a session: write s1, s2, ..."))?;
        if !self.script.sessions.contains(&session) {
            self.script.sessions.push(session);
        }
        Ok(session)
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("'{text}' is not a number of milliseconds"))
}
