//! Which plan is faster, by measurement.
//!
//! Planning a dependency graph costs more than executing a short transaction, so whether several workers beat one
//! depends on the procedures, the machine and the number of workers. Results are the same either way, so the engine
//! simply tries both: each plan once at first, then the one that took less time for a transaction, and every so often
//! the other, in case things have changed.

use std::time::Duration;

use crate::contract::ConflictPlan;

/// Parts shorter than this say nothing about speed.
const MIN_TRANSACTIONS: usize = 64;
/// One part in so many goes to the plan that seems slower.
const PROBE_EVERY: u32 = 64;
/// The weight of the latest measurement.
const WEIGHT: f64 = 0.25;

/// See the module.
#[derive(Debug)]
pub(super) struct Tuner {
    wanted: ConflictPlan,
    /// Nanoseconds a transaction, by plan; `None`: not tried yet.
    graph: Option<f64>,
    in_order: Option<f64>,
    turn: u32,
}

impl Tuner {
    pub(super) fn new(wanted: ConflictPlan) -> Self {
        Self { wanted, graph: None, in_order: None, turn: 0 }
    }

    /// Whether one plan is wanted whatever it costs.
    pub(super) fn is_told(&self) -> bool {
        self.wanted != ConflictPlan::Measured
    }

    /// The plan for the next part: never [`ConflictPlan::Measured`].
    pub(super) fn choose(&mut self) -> ConflictPlan {
        if self.wanted != ConflictPlan::Measured {
            return self.wanted;
        }
        let (Some(graph), Some(in_order)) = (self.graph, self.in_order) else {
            return if self.in_order.is_none() { ConflictPlan::InOrder } else { ConflictPlan::Graph };
        };
        self.turn = (self.turn + 1) % PROBE_EVERY;
        if (graph < in_order) == (self.turn != 0) { ConflictPlan::Graph } else { ConflictPlan::InOrder }
    }

    /// Takes note of what a part of `transactions` took under `plan`.
    pub(super) fn learn(&mut self, plan: ConflictPlan, transactions: usize, took: Duration) {
        if transactions < MIN_TRANSACTIONS {
            return;
        }
        let measured = took.as_nanos() as f64 / transactions as f64;
        let known = if plan == ConflictPlan::Graph { &mut self.graph } else { &mut self.in_order };
        *known = Some(known.map_or(measured, |known| known + WEIGHT * (measured - known)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds 640 parts to a tuner and counts those that it gave to the graph.
    fn graphs(tuner: &mut Tuner, graph_ns: u64, in_order_ns: u64) -> usize {
        let part = |tuner: &mut Tuner| {
            let plan = tuner.choose();
            let ns = if plan == ConflictPlan::Graph { graph_ns } else { in_order_ns };
            tuner.learn(plan, 100, Duration::from_nanos(100 * ns));
            plan == ConflictPlan::Graph
        };
        (0..640).filter(|_| part(tuner)).count()
    }

    #[test]
    fn the_faster_plan_runs_and_the_other_is_probed() {
        let mut tuner = Tuner::new(ConflictPlan::Measured);
        assert!((5..20).contains(&graphs(&mut tuner, 500, 140)));
        // Things change: it finds out.
        assert!(graphs(&mut tuner, 100, 300) > 500);
    }

    #[test]
    fn a_wanted_plan_is_kept_and_short_parts_teach_nothing() {
        assert_eq!(graphs(&mut Tuner::new(ConflictPlan::InOrder), 1, 1000), 0);
        assert_eq!(graphs(&mut Tuner::new(ConflictPlan::Graph), 1000, 1), 640);
        let mut tuner = Tuner::new(ConflictPlan::Measured);
        tuner.learn(ConflictPlan::InOrder, 10, Duration::from_nanos(1));
        assert_eq!(tuner.in_order, None);
    }
}
