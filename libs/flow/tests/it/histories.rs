//! Random flows under random histories: reports late, twice, out of order and
//! of closed attempts; refusals, timeouts, cancels, places that go and come,
//! and owners that die after any step. The world checks the invariants.

use std::collections::VecDeque;
use std::time::Duration;

use flow::{Input, NodeIndex};
use model::execution::Outcome;
use model::{FlowStatus, JobKey, NodeReport, NodeSpec, NodeState, ReportKind, RunIf};
use proptest::prelude::*;

use crate::reference;
use crate::world::{World, ended, failed, flow, rejected, report, spec, started, stopped, succeeded};

#[derive(Debug, Clone)]
struct Case {
    specs: Vec<NodeSpec>,
    outcomes: Vec<Vec<bool>>,
    seed: u64,
    budget: usize,
}

fn node(i: usize) -> impl Strategy<Value = (NodeSpec, Vec<bool>)> {
    let depends = prop::collection::btree_set(0..i.max(1), 0..=i.min(3));
    let outcomes = prop::collection::vec(prop::bool::weighted(0.6), 4);
    (depends, 0..4_usize, any::<bool>(), 0..3_u32, outcomes).prop_map(
        move |(depends, run_if, allow_failure, retries, outcomes)| {
            let names: Vec<String> = depends.iter().filter(|&&d| d < i).map(|d| format!("n{d}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let mut spec = spec(&format!("n{i}"), &names);
            spec.run_if = match RunIf::ALL[run_if] {
                RunIf::NoneFailed | RunIf::AnyFailed if names.is_empty() => RunIf::AllDone,
                run_if => run_if,
            };
            spec.allow_failure = allow_failure;
            spec.policy.retries = retries;
            (spec, outcomes)
        },
    )
}

fn case() -> impl Strategy<Value = Case> {
    (1..14_usize).prop_flat_map(|count| {
        let nodes: Vec<_> = (0..count).map(node).collect();
        (nodes, any::<u64>(), 1..6_usize).prop_map(|(nodes, seed, budget)| {
            let (specs, outcomes) = nodes.into_iter().unzip();
            Case { specs, outcomes, seed, budget }
        })
    })
}

/// Draws choices; the seed is proptest's, so that a failure repeats.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % bound
    }

    fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }
}

/// Plays a supervisor, a network and a fate around the engine.
struct Fate<'c> {
    world: World,
    dice: Dice,
    outcomes: &'c [Vec<bool>],
    /// Reports on their way, in no order.
    mail: Vec<NodeReport>,
    /// Reports that were delivered and may come again.
    past: Vec<NodeReport>,
    inputs: VecDeque<Input>,
    /// Trouble beyond what every flow has to bear without a change of its end.
    hostile: bool,
}

impl Fate<'_> {
    /// Runs until the flow has ended; fails when nothing can go on.
    fn run(&mut self) {
        self.inputs.push_back(Input::Start);
        for _ in 0..20_000 {
            let step = self.world.step(&mut self.inputs);
            for stop in &step.stops {
                if self.dice.one_in(2) {
                    self.mail.push(report(stop.job_key, stopped()));
                }
            }
            for dispatch in &step.dispatches {
                for &node in &dispatch.nodes {
                    self.execute(node);
                }
            }
            if self.world.engine.is_over() {
                return self.after_the_end();
            }
            if self.dice.one_in(7) {
                self.world.crash();
            } else if !step.more {
                self.happen();
            }
        }
        panic!("the flow does not end: {:#?}", self.world.engine.nodes());
    }

    /// A supervisor takes an attempt and will report of it.
    fn execute(&mut self, node: NodeIndex) {
        let key = self.world.engine.job_key(node);
        let tries = self.world.engine.node(node).tries as usize;
        let succeeds = self.outcomes[key.job.0 as usize - 1][tries];
        if self.dice.one_in(8) {
            let kind = if self.dice.one_in(2) { ReportKind::Returned } else { rejected(false, false) };
            self.mail.push(report(key, kind));
            return;
        }
        if self.hostile && self.dice.one_in(8) {
            // Nothing is ever heard of it but by a time limit.
            return;
        }
        if self.dice.one_in(2) {
            self.mail.push(report(key, ReportKind::Accepted { supervisor: "s".into() }));
        }
        if self.dice.one_in(2) {
            self.mail.push(report(key, started(self.world.now)));
        }
        let end = if succeeds { succeeded(&[("k", "v")]) } else { self.failure(key) };
        self.mail.push(report(key, end));
    }

    fn failure(&mut self, key: JobKey) -> ReportKind {
        match self.dice.below(4) {
            0 => ReportKind::Ended(Box::new(ended(Outcome::Lost, None))),
            1 => ReportKind::Ended(Box::new(ended(Outcome::TimedOut, None))),
            _ => failed(i32::try_from(key.attempt.0).unwrap()),
        }
    }

    /// Something happens: mail arrives, time passes, a place goes or comes, somebody cancels.
    fn happen(&mut self) {
        match self.dice.below(12) {
            0 => self.world.place.live = false,
            1 if !self.past.is_empty() => {
                let again = self.past[self.dice.below(self.past.len())].clone();
                // A duplicate of a report comes while its attempt is closed or open.
                self.inputs.push_back(Input::Report(again));
            }
            2 if self.hostile && self.dice.one_in(6) => {
                self.inputs.push_back(Input::CancelFlow { grace_secs: 5 });
            }
            3 if self.hostile && self.dice.one_in(3) => {
                let node = NodeIndex::new(self.dice.below(self.world.engine.nodes().len()));
                if !self.world.engine.node(node).state.is_end() {
                    self.inputs.push_back(Input::CancelNode(self.world.engine.node(node).job_id));
                }
            }
            _ if !self.mail.is_empty() => {
                for _ in 0..=self.dice.below(3) {
                    if !self.mail.is_empty() {
                        let at = self.dice.below(self.mail.len());
                        let report = self.mail.swap_remove(at);
                        self.past.push(report.clone());
                        self.inputs.push_back(Input::Report(report));
                    }
                }
            }
            _ => match self.world.due.filter(|&due| due > self.world.now) {
                Some(due) if self.world.place.live || self.dice.one_in(2) => self.world.now = due,
                _ => {
                    self.world.now = self.world.now + Duration::from_millis(10);
                    self.world.place.live = true;
                    self.inputs.push_back(Input::Wake);
                }
            },
        }
    }

    /// What comes too late changes nothing.
    fn after_the_end(&mut self) {
        let late: VecDeque<Input> =
            self.mail.drain(..).chain(self.past.drain(..)).map(Input::Report).collect();
        let count = late.len();
        self.world.crash();
        let mut late = late;
        let step = self.world.step(&mut late);
        assert!(step.is_unchanged() && !step.more && step.due.is_none());
        assert_eq!(step.stale.len(), count);
    }
}

fn fate(case: &Case, hostile: bool) -> Fate<'_> {
    let mut flow = flow(case.specs.len());
    flow.fail_fast = hostile && case.seed.is_multiple_of(3);
    let mut specs = case.specs.clone();
    let mut dice = Dice(case.seed | 1);
    if hostile {
        flow.deadline = dice.one_in(4).then_some(model::Timestamp::from_millis(1_000_500));
        for spec in &mut specs {
            spec.policy.timeout_result = 1 + u32::try_from(dice.below(3)).unwrap();
            spec.policy.timeout_queue = u32::try_from(dice.below(3)).unwrap();
        }
    }
    let mut world = World::new(flow, &specs);
    world.budget = case.budget;
    let (mail, past, inputs) = (Vec::new(), Vec::new(), VecDeque::new());
    Fate { world, dice, outcomes: &case.outcomes, mail, past, inputs, hostile }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_history_ends_as_the_reference_says(case in case()) {
        let mut fate = fate(&case, false);
        fate.run();
        let (states, status) = reference::interpret(&case.specs, &case.outcomes);
        for (spec, expected) in case.specs.iter().zip(states) {
            prop_assert_eq!(fate.world.state(spec.name.as_str()), expected, "{}", spec.name);
        }
        prop_assert_eq!(fate.world.status(), status);
    }

    #[test]
    fn every_hostile_history_ends(case in case()) {
        let mut fate = fate(&case, true);
        fate.run();
        let flow = fate.world.engine.flow();
        if flow.cancel_requested_time.is_some() {
            prop_assert_eq!(flow.status, FlowStatus::Cancelled);
        } else {
            let failed = fate.world.engine.nodes().iter().any(|node| {
                let deadline = node.reason.as_ref().is_some_and(|r| r.code == model::ReasonCode::Deadline);
                node.state == NodeState::Failed && (!node.allow_failure || deadline)
            });
            let expected = if failed { FlowStatus::Error } else { FlowStatus::Finished };
            prop_assert_eq!(flow.status, expected);
        }
    }
}
