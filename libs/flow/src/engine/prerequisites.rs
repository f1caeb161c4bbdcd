//! Conditions outside the flow, checked once everything before a node has ended and its `run_if` allows it to run. A
//! waiting node stays PENDING, and its reason names what it waits for.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;

use model::{FlowId, FlowStatus, Prerequisite, Reason, ReasonCode, SignalName};

use super::pass::Pass;
use crate::graph::NodeIndex;

/// State of prerequisites outside the flow, and the nodes that wait for them.
#[derive(Debug, Default)]
pub(super) struct PrerequisiteState {
    signals: BTreeSet<SignalName>,
    /// States of the flows that were queried.
    flows: HashMap<FlowId, AwaitedFlow>,
    /// May still name nodes that no longer wait.
    waiters: HashMap<Prerequisite, BTreeSet<NodeIndex>>,
}

/// Another flow that a node waits for.
#[derive(Debug, Clone, Copy)]
enum AwaitedFlow {
    Open,
    Finished,
    /// The flow can never be FINISHED: it ended otherwise, or does not exist.
    Impossible(Option<FlowStatus>),
}

/// Verdict on the prerequisites of a node.
pub(super) enum PrerequisiteVerdict {
    /// Nothing is missing.
    Met,
    /// A prerequisite is not met yet; the node's reason names it.
    Waits,
    /// A prerequisite can never be met.
    Impossible(Reason),
}

impl PrerequisiteState {
    pub(super) fn new(signals: BTreeSet<SignalName>) -> Self {
        Self { signals, ..Self::default() }
    }
}

impl Pass<'_, '_, '_> {
    /// Records a signal to the flow, and wakes the nodes that wait for it.
    pub(super) fn signal(&mut self, name: SignalName) {
        if self.engine.waits.signals.insert(name.clone()) {
            self.wake_waiters(&Prerequisite::Signal(name));
        }
    }

    /// Notes the state of another flow. The caller reports a flow that has not ended again when it ends.
    pub(super) fn flow_state(&mut self, flow: FlowId, status: Option<FlowStatus>) {
        let state = match status {
            Some(FlowStatus::Created | FlowStatus::Started) => return,
            Some(FlowStatus::Finished) => AwaitedFlow::Finished,
            Some(FlowStatus::Error | FlowStatus::Cancelled) | None => AwaitedFlow::Impossible(status),
        };
        self.engine.waits.flows.insert(flow, state);
        self.wake_waiters(&Prerequisite::Flow(flow));
    }

    fn wake_waiters(&mut self, prerequisite: &Prerequisite) {
        for node in self.engine.waits.waiters.remove(prerequisite).unwrap_or_default() {
            self.engine.work.push(node);
        }
    }

    /// Checks every prerequisite of `index`. A prerequisite that was met once stays met: a FINISHED flow may be run again
    /// while the node waits for something else.
    pub(super) fn check_prerequisites(&mut self, index: NodeIndex) -> PrerequisiteVerdict {
        if self.engine.node(index).prerequisites.is_empty() {
            return PrerequisiteVerdict::Met;
        }
        let prerequisites = self.engine.node(index).prerequisites.clone();
        let mut met = Vec::new();
        let mut missing = Vec::new();
        for prerequisite in prerequisites {
            let known = self.engine.node(index).prerequisites_met.contains(&prerequisite);
            match if known { Ok(true) } else { self.is_met(&prerequisite) } {
                Ok(true) => met.push(prerequisite),
                Ok(false) => missing.push(prerequisite),
                Err(why) => {
                    return PrerequisiteVerdict::Impossible(Reason::new(
                        ReasonCode::PrerequisiteImpossible,
                        why,
                    ));
                }
            }
        }
        let reason = (!missing.is_empty()).then(|| Reason::new(ReasonCode::Waiting, list(&missing)));
        let waits = reason.is_some();
        let node = self.engine.node(index);
        if node.prerequisites_met != met || (waits && node.reason != reason) {
            self.touch(index, |node| {
                node.prerequisites_met = met;
                node.reason = reason;
            });
        }
        for prerequisite in missing {
            self.engine.waits.waiters.entry(prerequisite).or_default().insert(index);
        }
        if waits { PrerequisiteVerdict::Waits } else { PrerequisiteVerdict::Met }
    }

    /// Returns true if the prerequisite is met, or the reason why it never will be.
    fn is_met(&mut self, prerequisite: &Prerequisite) -> Result<bool, String> {
        match prerequisite {
            Prerequisite::Signal(name) => Ok(self.engine.waits.signals.contains(name)),
            Prerequisite::After(time) => Ok(*time <= self.now),
            Prerequisite::Flow(id) if *id == self.engine.flow.id => {
                Err(format!("{prerequisite} is this flow itself"))
            }
            Prerequisite::Flow(id) => {
                let asks = &mut self.step.flow_queries;
                let state = self.engine.waits.flows.entry(*id).or_insert_with(|| {
                    asks.push(*id);
                    AwaitedFlow::Open
                });
                match state {
                    AwaitedFlow::Open => Ok(false),
                    AwaitedFlow::Finished => Ok(true),
                    AwaitedFlow::Impossible(Some(status)) => {
                        Err(format!("flow {id} is {}", status.display_name()))
                    }
                    AwaitedFlow::Impossible(None) => Err(format!("there is no flow {id}")),
                }
            }
        }
    }
}

/// Lists the missing prerequisites, as they were written.
fn list(missing: &[Prerequisite]) -> String {
    let mut text = String::from("for ");
    for (i, prerequisite) in missing.iter().enumerate() {
        let comma = if i == 0 { "" } else { ", " };
        // Writing to a text cannot fail.
        let _ = write!(text, "{comma}{prerequisite}");
    }
    text
}
