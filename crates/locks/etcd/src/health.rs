//! Whether etcd answers: for metrics, for people, and an event whenever it changes.

use crate::locked;
use std::sync::Mutex;
use std::time::Instant;

/// Whether etcd answers.
#[derive(Clone, Debug)]
pub struct Health {
    /// The last attempts of every kind have succeeded.
    pub reachable: bool,
    /// Since when it is so.
    pub since: Instant,
    /// Why not. Nothing while it is reachable.
    pub why: Option<String>,
}

/// What is done with etcd: each may fail alone, such as writing when etcd's space is full.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    Ping,
    Writes,
    Leases,
}

/// How it goes with etcd.
#[derive(Debug)]
pub(crate) struct Watch {
    endpoints: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Why each part failed last; nothing if it did not.
    troubles: [Option<String>; 3],
    /// Nothing is known before the first answer.
    reachable: Option<bool>,
    since: Instant,
}

impl Watch {
    pub(crate) fn new(endpoints: String) -> Self {
        let state = State { troubles: [const { None }; 3], reachable: None, since: Instant::now() };
        Self { endpoints, state: Mutex::new(state) }
    }

    pub(crate) fn note<T>(&self, part: Part, outcome: &Result<T, String>) {
        match outcome {
            Ok(_) => self.change(part, None),
            Err(why) => self.failed(part, why),
        }
    }

    pub(crate) fn failed(&self, part: Part, why: &str) {
        self.change(part, Some(why.to_string()));
    }

    fn change(&self, part: Part, trouble: Option<String>) {
        let mut state = locked(&self.state);
        state.troubles[part as usize] = trouble;
        let reachable = state.troubles.iter().all(Option::is_none);
        if state.reachable == Some(reachable) {
            return;
        }
        match state.why() {
            Some(why) => tracing::warn!("etcd at {}: {why}; trying on", self.endpoints),
            None if state.reachable == Some(false) => {
                let silent = state.since.elapsed();
                tracing::info!("etcd at {} answers again after {:.1} s", self.endpoints, silent.as_secs_f64());
            }
            None => {}
        }
        state.reachable = Some(reachable);
        state.since = Instant::now();
    }

    pub(crate) fn health(&self) -> Health {
        let state = locked(&self.state);
        let reachable = state.reachable == Some(true);
        let why = state.why().or_else(|| (!reachable).then(|| "it has not answered yet".to_string()));
        Health { reachable, since: state.since, why }
    }
}

impl State {
    fn why(&self) -> Option<String> {
        self.troubles.iter().flatten().next().cloned()
    }
}
