//! Definitions as graphs, for drawings: what leads where, and by what.

use std::collections::{BTreeSet, VecDeque};

use model::StepName;

use crate::definition::{
    Continuation, Saga, SagaStep, StepAction, StepArm, StepWait, StepWork, TimerSpec, WorkOrder,
};
use crate::formula::Formula;
use crate::manifest::graph::before_pivot;

/// The node of the start.
pub const START: &str = ":start";
/// The node of a successful end.
pub const COMPLETED: &str = ":completed";
/// The node of another end.
pub const FAILED: &str = ":failed";
/// The node at which everything is undone.
pub const COMPENSATED: &str = ":compensated";
/// The node at which an input becomes a dead letter.
pub const DEAD_LETTER: &str = ":dead-letter";
/// The branch of the work ordered after the last compensation.
const LAST: &str = "compensated";

/// A definition as a graph.
#[derive(Debug, Clone, Default)]
pub struct DefinitionGraph<'a> {
    /// The start first, then steps, the nearest first, then ends that something leads to. Any instance can be cancelled, so
    /// the node for compensation is always included.
    pub nodes: Vec<DefinitionNode<'a>>,
    /// Edges by the node that they leave, in the order in which they are tried.
    pub edges: Vec<DefinitionEdge<'a>>,
}

/// A node.
#[derive(Debug, Clone)]
pub struct DefinitionNode<'a> {
    /// The step, or one of the names that begin with a colon.
    pub name: &'a str,
    /// Kind of the node.
    pub kind: DefinitionNodeKind,
    /// True if there is no way back once the step has succeeded.
    pub is_pivot: bool,
    /// Orders of the step, each as branch, order, and the order that undoes it.
    pub orders: Vec<(&'a str, &'a WorkOrder, Option<&'a WorkOrder>)>,
    /// How many of its branches have to succeed.
    pub needs: usize,
    /// Timers that are set there.
    pub timers: Vec<&'a str>,
}

/// Kind of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefinitionNodeKind {
    /// The start.
    Start,
    /// A step with one piece of work.
    Work,
    /// A step with several.
    Parallel,
    /// A step that waits.
    Wait,
    /// An end as it was meant.
    Completed,
    /// Another end.
    Failed,
    /// Where everything is undone.
    Compensated,
    /// Where an input becomes a dead letter.
    DeadLetter,
}

/// An edge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefinitionEdge<'a> {
    /// The node that it leaves.
    pub from: &'a str,
    /// The node that it leads to.
    pub to: &'a str,
    /// Kind of trigger that takes the edge.
    pub kind: DefinitionEdgeKind,
    /// The type of the event.
    pub event: Option<&'a str>,
    /// The condition, as it was written.
    pub condition: Option<&'a str>,
}

/// Kind of trigger that takes an edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefinitionEdgeKind {
    /// The start of an instance.
    Start,
    /// Success of work.
    Success,
    /// Failure of work.
    Failure,
    /// An event.
    Event,
    /// A timer.
    Timer,
}

impl Saga {
    /// Draws it as nodes and edges.
    #[must_use]
    pub fn graph(&self) -> DefinitionGraph<'_> {
        let mut edges = vec![DefinitionEdge {
            from: START,
            to: self.start.goto.as_str(),
            kind: DefinitionEdgeKind::Start,
            event: None,
            condition: self.start.when.as_ref().map(Formula::text),
        }];
        let mut nodes = vec![DefinitionNode {
            timers: names(&self.timers),
            ..DefinitionNode::end(START, DefinitionNodeKind::Start)
        }];
        let undone = before_pivot(self);
        let (mut open, mut seen) = (VecDeque::from([&self.start.goto]), BTreeSet::from([&self.start.goto]));
        while let Some(name) = open.pop_front() {
            let Some((name, step)) = self.steps.get_key_value(name) else { continue };
            nodes.push(DefinitionNode::of(name, step));
            let leaving = self.leaving(name, step, undone.contains(name));
            for edge in &leaving {
                if let Some(next) = self.steps.keys().find(|step| step.as_str() == edge.to)
                    && seen.insert(next)
                {
                    open.push_back(next);
                }
            }
            edges.extend(leaving);
        }
        for (name, kind) in [
            (COMPLETED, DefinitionNodeKind::Completed),
            (FAILED, DefinitionNodeKind::Failed),
            (COMPENSATED, DefinitionNodeKind::Compensated),
            (DEAD_LETTER, DefinitionNodeKind::DeadLetter),
        ] {
            if kind == DefinitionNodeKind::Compensated || edges.iter().any(|edge| edge.to == name) {
                nodes.push(self.end(name, kind));
            }
        }
        DefinitionGraph { nodes, edges }
    }

    /// The node of an end.
    fn end<'a>(&'a self, name: &'a str, kind: DefinitionNodeKind) -> DefinitionNode<'a> {
        let last = self.compensated.as_ref().filter(|_| kind == DefinitionNodeKind::Compensated);
        let orders: Vec<_> = last.map(|order| (LAST, order, None)).into_iter().collect();
        DefinitionNode { needs: orders.len(), orders, ..DefinitionNode::end(name, kind) }
    }

    /// Edges that leave a step. `can_undo` is true if it is reached while everything can be undone.
    fn leaving<'a>(
        &'a self,
        name: &'a StepName,
        step: &'a SagaStep,
        can_undo: bool,
    ) -> Vec<DefinitionEdge<'a>> {
        let edge = |arm: &'a StepArm, kind, event| DefinitionEdge {
            from: name.as_str(),
            to: target(name, &arm.then),
            kind,
            event,
            condition: arm.when.as_ref().map(Formula::text),
        };
        match &step.action {
            StepAction::Work(work) => {
                let succeeded =
                    work.on_success.iter().map(|arm| edge(arm, DefinitionEdgeKind::Success, None));
                let failed = work.on_failure.iter().map(|arm| edge(arm, DefinitionEdgeKind::Failure, None));
                let mut edges: Vec<_> = succeeded.chain(failed).collect();
                // Without a matching continuation the instance is compensated, as long as that is possible.
                if can_undo && work.on_failure.iter().all(|arm| arm.when.is_some()) {
                    let (from, to, kind) = (name.as_str(), COMPENSATED, DefinitionEdgeKind::Failure);
                    edges.push(DefinitionEdge { from, to, kind, event: None, condition: None });
                }
                edges
            }
            StepAction::Wait(wait) => {
                let all = wait.on.iter().flat_map(|(event, arms)| {
                    let kind = if self.is_raised(wait, event) {
                        DefinitionEdgeKind::Timer
                    } else {
                        DefinitionEdgeKind::Event
                    };
                    arms.iter().map(move |arm| (arm, kind, Some(event.as_str())))
                });
                all.map(|(arm, kind, event)| edge(arm, kind, event)).collect()
            }
        }
    }

    /// Returns whether a timer raises events of a type while a step waits.
    #[must_use]
    pub fn is_raised(&self, wait: &StepWait, event: &str) -> bool {
        self.timers.iter().chain(&wait.timers).any(|timer| timer.raise == event)
    }
}

impl<'a> DefinitionNode<'a> {
    const fn end(name: &'a str, kind: DefinitionNodeKind) -> Self {
        Self { name, kind, is_pivot: false, orders: Vec::new(), needs: 0, timers: Vec::new() }
    }

    fn of(name: &'a StepName, step: &'a SagaStep) -> Self {
        let node = Self { is_pivot: step.is_pivot, ..Self::end(name.as_str(), DefinitionNodeKind::Wait) };
        match &step.action {
            StepAction::Wait(wait) => Self { timers: names(&wait.timers), ..node },
            StepAction::Work(work) => Self {
                kind: if work.is_parallel { DefinitionNodeKind::Parallel } else { DefinitionNodeKind::Work },
                orders: orders(work),
                needs: work.join.needs(work.branches.len()),
                ..node
            },
        }
    }
}

fn orders(work: &StepWork) -> Vec<(&str, &WorkOrder, Option<&WorkOrder>)> {
    work.branches
        .iter()
        .map(|branch| (branch.name.as_str(), &branch.order, branch.compensate.as_ref()))
        .collect()
}

fn names(timers: &[TimerSpec]) -> Vec<&str> {
    timers.iter().map(|timer| timer.name.as_str()).collect()
}

fn target<'a>(step: &'a StepName, then: &'a Continuation) -> &'a str {
    match then {
        Continuation::Goto(next) => next.as_str(),
        Continuation::Stay => step.as_str(),
        Continuation::Complete => COMPLETED,
        Continuation::Fail(_) => FAILED,
        Continuation::Compensate(_) => COMPENSATED,
        Continuation::DeadLetter(_) => DEAD_LETTER,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::manifest::{self, ManifestDefinition};

    fn saga(text: &str) -> Arc<Saga> {
        let documents = manifest::read("test.yaml", text).unwrap_or_else(|problems| panic!("{problems}"));
        match documents.into_iter().next().map(|document| document.definition) {
            Some(ManifestDefinition::Saga(saga)) => saga,
            other => panic!("no saga: {other:?}"),
        }
    }

    fn shown(graph: &DefinitionGraph<'_>) -> Vec<String> {
        let edge = |edge: &DefinitionEdge<'_>| {
            let (kind, event) = (format!("{:?}", edge.kind), edge.event.unwrap_or_default());
            let condition = edge.condition.map(|text| format!(" if {text}")).unwrap_or_default();
            format!("{} -{kind} {event}> {}{condition}", edge.from, edge.to).replace(" >", ">")
        };
        graph.edges.iter().map(edge).collect()
    }

    #[test]
    fn the_example_is_drawn() {
        let saga = saga(include_str!("manifest/example.yaml"));
        let graph = saga.graph();
        let names: Vec<_> = graph.nodes.iter().map(|node| node.name).collect();
        assert_eq!(
            names,
            [
                ":start",
                "reserve",
                "await-payment",
                "refuse",
                "ship",
                "mark-shipped",
                "receipt",
                ":completed",
                ":compensated",
                ":dead-letter"
            ]
        );
        let expected = [
            ":start -Start> reserve",
            "reserve -Success> await-payment",
            "reserve -Failure> refuse if result.code == \"declined\"",
            "reserve -Failure> :compensated",
            "await-payment -Event OrderCancelled> :compensated",
            "await-payment -Event PaymentCaptured> ship if event.data.amount_cents == state.amount_cents",
            "await-payment -Event PaymentCaptured> :dead-letter",
            "await-payment -Timer PaymentTimedOut> :compensated",
            "refuse -Success> :completed",
            "refuse -Failure> :compensated",
            "ship -Success> mark-shipped",
            "ship -Failure> :compensated",
            "mark-shipped -Success> receipt",
            "receipt -Success> :completed",
            "receipt -Failure> :completed",
        ];
        assert_eq!(shown(&graph), expected);
        let node = |name: &str| graph.nodes.iter().find(|node| node.name == name).expect("it is there");
        assert_eq!(node("await-payment").timers, ["pay-by"]);
        assert!(node("ship").is_pivot && !node("reserve").is_pivot);
        let [(branch, WorkOrder::Effect { effect, .. }, Some(WorkOrder::Effect { effect: undo, .. }))] =
            node("reserve").orders.as_slice()
        else {
            panic!("{:?}", node("reserve"))
        };
        assert_eq!(
            (*branch, effect.as_str(), undo.as_str()),
            ("reserve", "payment-reserve", "payment-release")
        );
        assert_eq!((node("reserve").kind, node("reserve").needs), (DefinitionNodeKind::Work, 1));
        let [(LAST, WorkOrder::Command { kind, .. }, None)] = node(COMPENSATED).orders.as_slice() else {
            panic!("{:?}", node(COMPENSATED))
        };
        assert_eq!((kind.as_str(), node(COMPENSATED).needs), ("Cancel", 1));
    }

    #[test]
    fn what_cannot_be_undone_any_more_does_not_lead_back() {
        let saga = saga(include_str!("manifest/example.yaml"));
        let graph = saga.graph();
        assert!(!graph.edges.iter().any(|edge| edge.from == "mark-shipped" && edge.to == COMPENSATED));
        // A node is there once, and every edge has both of its nodes.
        let names: BTreeSet<_> = graph.nodes.iter().map(|node| node.name).collect();
        assert_eq!(names.len(), graph.nodes.len());
        assert!(graph.edges.iter().all(|edge| names.contains(edge.from) && names.contains(edge.to)));
    }
}
