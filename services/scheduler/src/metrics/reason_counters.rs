//! Counters by reason code.

use std::sync::OnceLock;

use model::{NodeState, ReasonCode};
use prometheus::{IntCounter, IntCounterVec};

/// Counters of each reason code. A code has its series from its first event on, and is found by its place afterwards.
#[derive(Debug)]
pub(super) struct ReasonCounters {
    all: IntCounterVec,
    /// Value of the label `state`, where `all` has one in front of `reason`.
    state: Option<NodeState>,
    /// In the order of [`ReasonCode::ALL`].
    by_code: Vec<OnceLock<IntCounter>>,
}

impl ReasonCounters {
    /// Counters among `all`, those of nodes that end in `state` where it tells states apart.
    pub(super) fn new(all: &IntCounterVec, state: Option<NodeState>) -> Self {
        let by_code = ReasonCode::ALL.iter().map(|_| OnceLock::new()).collect();
        Self { all: all.clone(), state, by_code }
    }

    /// Counts an event.
    pub(super) fn inc(&self, code: ReasonCode) {
        let labelled = || match self.state {
            Some(state) => self.all.with_label_values(&[state.as_str(), code.as_str()]),
            None => self.all.with_label_values(&[code.as_str()]),
        };
        self.by_code[code.index()].get_or_init(labelled).inc();
    }
}
