//! Plays supervisors, a network, a store and a fate around the engine.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use flow::{FlowEngineInput, FlowStepOutput, NodeIndex, NodeTransitionEvent};
use model::execution::Outcome;
use model::{FlowId, FlowStatus, JobKey, NodeReport, NodeState, ReportKind};

use crate::case::{BEGIN, Case, Dice, FINISHES_LATER, SIGNALS, end_of, signal, value};
use crate::world::{
    RUNNER, World, drained, ended, failed, flow, rejected, report, source, started, stopped, succeeded,
    vanished,
};

/// An attempt as its supervisor has it.
#[derive(Debug, Clone)]
struct Attempt {
    /// How it will end, if it is let.
    end: ReportKind,
    /// True while the attempt has not ended.
    lives: bool,
    /// Nothing is heard of it, and it hears nothing.
    is_cut_off: bool,
}

pub(crate) struct Fate<'c> {
    pub(crate) world: World,
    dice: Dice,
    case: &'c Case,
    /// Attempts that supervisors have, and had: a key is executed once.
    attempts: BTreeMap<JobKey, Attempt>,
    /// Stops on their way, in no order.
    stops: Vec<JobKey>,
    /// Reports on their way, in no order.
    mail: Vec<NodeReport>,
    /// Reports that were delivered and may come again.
    past: Vec<NodeReport>,
    inputs: VecDeque<FlowEngineInput>,
    /// Flows that were asked for and have not been told of in full.
    flow_queries: BTreeSet<FlowId>,
    signals_given: usize,
    generation: usize,
    /// Trouble beyond what every flow has to bear without a change of its end.
    hostile: bool,
}

impl<'c> Fate<'c> {
    pub(crate) fn new(case: &'c Case, hostile: bool) -> Self {
        let mut flow = flow(case.specs.len());
        flow.fail_fast = hostile && case.seed.is_multiple_of(3);
        flow.cancel_timeout_secs = 3;
        let mut specs = case.specs.clone();
        let mut dice = Dice(case.seed | 1);
        if hostile {
            flow.deadline = dice.one_in(6).then_some(BEGIN + Duration::from_millis(1500));
            for spec in &mut specs {
                spec.policy.timeout_result = 1 + u32::try_from(dice.below(3)).unwrap();
                spec.policy.timeout_queue = u32::try_from(dice.below(3)).unwrap();
                if dice.one_in(2) {
                    spec.policy.backoff.initial_secs = 0.0;
                }
            }
        }
        let mut world = World::new(flow, &specs);
        world.budget = case.budget;
        world.keeps_past = hostile;
        Self {
            world,
            dice,
            case,
            attempts: BTreeMap::new(),
            stops: Vec::new(),
            mail: Vec::new(),
            past: Vec::new(),
            inputs: VecDeque::from([FlowEngineInput::Start]),
            flow_queries: BTreeSet::new(),
            signals_given: 0,
            generation: 0,
            hostile,
        }
    }

    /// Runs until the flow has ended; fails when nothing can go on.
    pub(crate) fn run(&mut self) {
        for _ in 0..20_000 {
            if self.dice.one_in(9) {
                self.world.step_in_vain(&self.inputs);
            }
            let step = self.world.step(&mut self.inputs);
            let dies = self.dice.one_in(7);
            self.take(&step, dies);
            if self.world.engine.is_over() {
                return self.after_the_end();
            }
            if dies {
                self.world.crash();
            } else if self.hostile && self.dice.one_in(40) {
                self.go_back();
            } else if !step.more {
                self.happen();
            }
        }
        panic!("the flow does not end: {:#?}", self.world.engine.nodes());
    }

    /// Begins the next generation.
    pub(crate) fn run_again(&mut self, rerun: model::Rerun) {
        self.generation += 1;
        self.world.run_again(rerun, |_| {});
    }

    /// Carries out a step's outputs once it is stored; an owner that dies then has sent no stops.
    fn take(&mut self, step: &FlowStepOutput, dies: bool) {
        self.flow_queries.extend(&step.flow_queries);
        self.no_two_live(step);
        if !dies {
            self.stops.extend(step.stops.iter().map(|stop| stop.job_key));
        }
        for dispatch in &step.dispatches {
            for &node in &dispatch.nodes {
                self.execute(node);
            }
        }
    }

    /// A stop arrives.
    fn stop_one(&mut self) {
        if self.stops.is_empty() {
            return;
        }
        let key = self.stops.swap_remove(self.dice.below(self.stops.len()));
        if let Some(attempt) = self.attempts.get_mut(&key)
            && attempt.lives
            && !attempt.is_cut_off
        {
            attempt.lives = false;
            attempt.end = stopped();
            self.mail.push(report(key, stopped()));
        }
    }

    fn no_two_live(&self, step: &FlowStepOutput) {
        for change in &step.changed {
            let Some(sent) =
                change.transitions.iter().rev().find(|t| t.event == NodeTransitionEvent::Dispatch)
            else {
                continue;
            };
            let node = self.world.engine.node(change.node);
            let overlaps = self.attempts.iter().find(|(key, attempt)| {
                key.job == node.job_id && key.attempt < sent.attempt && attempt.lives && !attempt.is_cut_off
            });
            assert!(overlaps.is_none(), "I11: {overlaps:?} lives when {sent:?}");
        }
    }

    /// A supervisor gets an attempt and will report of it; one that it knows is not executed again.
    fn execute(&mut self, node: NodeIndex) {
        let key = self.world.engine.job_key(node);
        if let Some(known) = self.attempts.get(&key) {
            if !known.is_cut_off {
                let kind = if known.lives {
                    ReportKind::Accepted { supervisor: "s".into() }
                } else {
                    known.end.clone()
                };
                self.mail.push(report(key, kind));
            }
            return;
        }
        let place = key.job.0 as usize - 1;
        let (tries, deaths, spared) = {
            let node = self.world.engine.node(node);
            // Drains end nothing that deaths have not ended: they leave them their share of the budget.
            let to_die = self.case.kills[place].max(node.deaths);
            (node.tries as usize, node.deaths, node.losses + to_die < node.policy.losses_allowed())
        };
        if self.dice.one_in(8) {
            let kind = if self.dice.one_in(2) { ReportKind::Returned } else { rejected(false, false) };
            self.attempts.insert(key, Attempt { end: kind.clone(), lives: false, is_cut_off: false });
            self.mail.push(report(key, kind));
            return;
        }
        let end = if deaths < self.case.kills[place] {
            vanished()
        } else if self.dice.one_in(10) && spared {
            drained()
        } else {
            match self.case.succeeds(place, self.generation, tries) {
                true => match value(place, self.generation) {
                    Some(value) => succeeded(&[("k", &value.to_string())]),
                    None => succeeded(&[("l", "1")]),
                },
                false => self.failure(key),
            }
        };
        let is_cut_off = self.hostile && self.dice.one_in(8);
        self.attempts.insert(key, Attempt { end, lives: true, is_cut_off });
        if !is_cut_off {
            if self.dice.one_in(2) {
                self.mail.push(report(key, ReportKind::Accepted { supervisor: "s".into() }));
            }
            if self.dice.one_in(2) {
                self.mail.push(report(key, started(self.world.now)));
            }
        }
    }

    fn failure(&mut self, key: JobKey) -> ReportKind {
        match self.dice.below(5) {
            0 if self.hostile => vanished(),
            1 => ReportKind::Ended(Box::new(ended(Outcome::TimedOut, None))),
            2 => stopped(),
            _ => failed(i32::try_from(key.attempt.0).unwrap()),
        }
    }

    /// Makes one event happen: a script ends, a report arrives, time passes, a runner goes or comes, an input is given.
    fn happen(&mut self) {
        match self.dice.below(16) {
            0 => self.world.place.live = false,
            1 if !self.past.is_empty() => {
                let again = self.past[self.dice.below(self.past.len())].clone();
                // A duplicate of a report comes while its attempt is closed or open.
                self.inputs.push_back(FlowEngineInput::Report(again));
            }
            2 if self.hostile && self.dice.one_in(6) => {
                let grace_secs = u32::try_from(self.dice.below(9)).unwrap();
                self.inputs.push_back(FlowEngineInput::CancelFlow { grace_secs });
            }
            3 if self.hostile && self.dice.one_in(3) => {
                let node = NodeIndex::new(self.dice.below(self.case.specs.len()));
                self.inputs.push_back(FlowEngineInput::CancelNode(self.world.engine.node(node).job_id));
            }
            4 if self.hostile && self.dice.one_in(4) => self.lose_supervisor(),
            5 if self.hostile && self.dice.one_in(4) => self.forget_one(),
            6 => self.give_signal(),
            7 => self.answer_flow_query(),
            8 if self.hostile && self.dice.one_in(2) => self.pass(),
            9 | 10 => self.stop_one(),
            _ => self.go_on(),
        }
    }

    /// Lets the flow go on when nothing else does.
    fn go_on(&mut self) {
        let living: Vec<JobKey> = self.living().collect();
        if !living.is_empty() && self.dice.one_in(2) {
            let key = living[self.dice.below(living.len())];
            self.end(key);
        } else if !self.mail.is_empty() {
            for _ in 0..=self.dice.below(3) {
                self.deliver();
            }
        } else if living.is_empty() {
            self.give_signal();
            self.answer_flow_query();
            self.pass();
        }
    }

    fn living(&self) -> impl Iterator<Item = JobKey> + '_ {
        self.attempts.iter().filter(|(_, attempt)| attempt.lives && !attempt.is_cut_off).map(|(key, _)| *key)
    }

    fn end(&mut self, key: JobKey) {
        let attempt = self.attempts.get_mut(&key).unwrap();
        attempt.lives = false;
        let mut end = report(key, attempt.end.clone());
        end.source =
            self.dice.one_in(2).then(|| source(if self.dice.one_in(2) { "grpc://known" } else { "x" }));
        self.mail.push(end);
    }

    fn deliver(&mut self) {
        if !self.mail.is_empty() {
            let at = self.dice.below(self.mail.len());
            let report = self.mail.swap_remove(at);
            self.past.push(report.clone());
            self.inputs.push_back(FlowEngineInput::Report(report));
        }
    }

    /// Time passes; stops arrive sooner than any time limit.
    fn pass(&mut self) {
        while !self.stops.is_empty() {
            self.stop_one();
        }
        match self.world.due.filter(|&due| due > self.world.now) {
            Some(due) if self.world.place.live || self.dice.one_in(2) => self.world.now = due,
            _ => {
                self.world.now = self.world.now + Duration::from_millis(10);
                self.world.place.live = true;
                self.inputs.push_back(FlowEngineInput::Wake);
            }
        }
    }

    fn give_signal(&mut self) {
        if self.signals_given < SIGNALS.len() {
            let name = signal(self.signals_given);
            self.signals_given += 1;
            self.world.signals.insert(name.clone());
            self.inputs.push_back(FlowEngineInput::Signal(name));
        }
    }

    fn answer_flow_query(&mut self) {
        if let Some(flow) = self.flow_queries.pop_first() {
            let mut status = end_of(flow);
            if flow == FINISHES_LATER && self.dice.one_in(2) {
                self.flow_queries.insert(flow);
                status = Some(FlowStatus::Started);
            }
            self.inputs.push_back(FlowEngineInput::FlowState { flow, status });
        }
    }

    /// Nothing is heard any more of what is under way; it goes on all the same.
    fn lose_supervisor(&mut self) {
        self.attempts.values_mut().for_each(|attempt| attempt.is_cut_off |= attempt.lives);
        self.inputs.push_back(FlowEngineInput::SupervisorLost(RUNNER));
    }

    /// A supervisor loses an attempt, and says so when it is asked.
    fn forget_one(&mut self) {
        let living: Vec<JobKey> = self.living().collect();
        if !living.is_empty() {
            let key = living[self.dice.below(living.len())];
            let attempt = self.attempts.get_mut(&key).unwrap();
            attempt.lives = false;
            attempt.end = ReportKind::Unknown;
            self.mail.push(report(key, ReportKind::Unknown));
        }
    }

    /// Rolls the store back by its last steps; the flow's owner then reconciles the attempts that it finds, and
    /// messages that are in flight again arrive again.
    fn go_back(&mut self) {
        let steps = 1 + self.dice.below(4);
        self.world.go_back(steps);
        // What was said is said again by those who still have it.
        self.mail.append(&mut self.past);
        if self.world.status() == FlowStatus::Created {
            self.inputs.push_front(FlowEngineInput::Start);
        }
        let found: Vec<NodeIndex> = self.world.engine.in_flight().map(|attempt| attempt.node).collect();
        for node in found {
            self.execute(node);
        }
    }

    /// Delivers what comes too late, which changes nothing.
    fn after_the_end(&mut self) {
        let mut late: VecDeque<FlowEngineInput> =
            self.mail.drain(..).chain(self.past.drain(..)).map(FlowEngineInput::Report).collect();
        let count = late.len();
        self.world.crash();
        let step = self.world.step(&mut late);
        assert!(step.is_unchanged() && !step.more && !step.rests && step.due.is_none());
        assert_eq!(step.stale.len(), count);
        self.inputs.clear();
        self.world.forget_past();
    }

    /// How the flow must have ended by what its nodes say.
    pub(crate) fn expected_status(&self) -> FlowStatus {
        let engine = &self.world.engine;
        let failed = engine.nodes().iter().any(|node| {
            let deadline = node.reason.as_ref().is_some_and(|r| r.code == model::ReasonCode::Deadline);
            node.state == NodeState::Failed && (!node.allow_failure || deadline)
        });
        match (engine.flow().cancel_requested_time, failed) {
            (Some(_), _) => FlowStatus::Cancelled,
            (None, true) => FlowStatus::Error,
            (None, false) => FlowStatus::Finished,
        }
    }
}
