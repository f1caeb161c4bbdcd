//! Random flows: what is asked of them, what their scripts do, and how they are run again.

use model::limits::{DEATHS_MAX, LOSSES_DEFAULT};
use model::{FlowId, FlowStatus, JobId, NodeSpec, Rerun, RunIf, SignalName, Timestamp};
use proptest::prelude::*;

use crate::world::spec;

/// The first moment of every world.
pub(crate) const BEGIN: Timestamp = Timestamp::from_millis(1_000_000);
/// Signals that nodes may wait for.
pub(crate) const SIGNALS: [&str; 3] = ["s0", "s1", "s2"];
/// Other flows that nodes may wait for.
pub(crate) const FINISHES: FlowId = FlowId(50);
pub(crate) const FINISHES_LATER: FlowId = FlowId(51);
pub(crate) const FAILS: FlowId = FlowId(52);
pub(crate) const NOBODY: FlowId = FlowId(53);

/// How another flow ends; nothing when there is none.
pub(crate) fn end_of(flow: FlowId) -> Option<FlowStatus> {
    match flow {
        FINISHES | FINISHES_LATER => Some(FlowStatus::Finished),
        FAILS => Some(FlowStatus::Error),
        _ => None,
    }
}

pub(crate) fn signal(i: usize) -> SignalName {
    SIGNALS[i].parse().unwrap()
}

/// Comparison in a node's `when`; the reference model reads it in this form, the engine as text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum When {
    Equal(usize, i64),
    NotEqual(usize, i64),
    Less(usize, i64),
    /// Gives a number, which is no answer.
    Number(usize),
}

impl When {
    fn text(self) -> String {
        match self {
            Self::Equal(node, value) => format!("results.n{node}.k == {value}"),
            Self::NotEqual(node, value) => format!("results[\"n{node}\"].k != {value}"),
            Self::Less(node, value) => format!("results.n{node}.k < {value} && flow.id == 1"),
            Self::Number(node) => format!("results.n{node}.k"),
        }
    }
}

/// Returns a node's result for `k` in a generation; one in four gives nothing.
pub(crate) fn value(node: usize, generation: usize) -> Option<i64> {
    let value = (node + generation) % 4;
    (value < 3).then(|| i64::try_from(value).unwrap())
}

#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// Each depends on earlier ones only.
    pub(crate) specs: Vec<NodeSpec>,
    pub(crate) whens: Vec<Option<When>>,
    /// Outcomes by node and try: true for success. The same in every generation, except that some flip after the first.
    pub(crate) outcomes: Vec<Vec<bool>>,
    /// How many attempts of a node end with their instance before the first one that is decided by its script.
    pub(crate) kills: Vec<u32>,
    pub(crate) reruns: Vec<Rerun>,
    pub(crate) seed: u64,
    pub(crate) budget: usize,
}

impl Case {
    /// Returns true if try `tries` of node `node` succeeds in `generation`, counted from 0.
    pub(crate) fn succeeds(&self, node: usize, generation: usize, tries: usize) -> bool {
        self.outcomes[node][tries] ^ (generation > 0 && (node + generation).is_multiple_of(3))
    }
}

/// The choices of one node.
#[derive(Debug, Clone)]
struct Choices {
    depends: Vec<usize>,
    run_if: usize,
    allow_failure: bool,
    retries: u32,
    outcomes: Vec<bool>,
    kills: u32,
    /// The budget for losses; nothing for a job that is not idempotent.
    losses: Option<u32>,
    when: u32,
    prerequisite: u32,
}

fn choices(i: usize) -> impl Strategy<Value = Choices> {
    let depends = prop::collection::btree_set(0..i.max(1), 0..=i.min(3));
    let outcomes = prop::collection::vec(prop::bool::weighted(0.6), 4);
    let kills = prop_oneof![8 => Just(0), 3 => 1..DEATHS_MAX, 1 => Just(DEATHS_MAX)];
    let losses =
        prop_oneof![6 => Just(Some(LOSSES_DEFAULT)), 2 => (0..5_u32).prop_map(Some), 1 => Just(None)];
    let budgets = (0..3_u32, kills, losses);
    (depends, 0..4_usize, any::<bool>(), budgets, outcomes, 0..400_u32, 0..40_u32).prop_map(
        move |(depends, run_if, allow_failure, budgets, outcomes, when, prerequisite)| Choices {
            depends: depends.into_iter().filter(|&d| d < i).collect(),
            run_if,
            allow_failure,
            retries: budgets.0,
            outcomes,
            kills: budgets.1,
            losses: budgets.2,
            when,
            prerequisite,
        },
    )
}

fn node(i: usize, choices: &Choices, ancestors: &[usize]) -> (NodeSpec, Option<When>) {
    let names: Vec<String> = choices.depends.iter().map(|d| format!("n{d}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut spec = spec(&format!("n{i}"), &names);
    spec.run_if = match RunIf::ALL[choices.run_if] {
        RunIf::NoneFailed | RunIf::AnyFailed if names.is_empty() => RunIf::AllDone,
        run_if => run_if,
    };
    spec.allow_failure = choices.allow_failure;
    spec.policy.retries = choices.retries;
    spec.policy.idempotent = choices.losses.is_some();
    spec.policy.losses = choices.losses.unwrap_or(LOSSES_DEFAULT);
    let pick = choices.when as usize;
    let when = (!ancestors.is_empty() && pick < 160).then(|| {
        let ancestor = ancestors[(pick / 20) % ancestors.len()];
        let value = i64::try_from(pick % 5).unwrap();
        match pick % 20 {
            0..7 => When::Equal(ancestor, value),
            7..13 => When::NotEqual(ancestor, value),
            13..19 => When::Less(ancestor, value),
            _ => When::Number(ancestor),
        }
    });
    spec.when = when.map(When::text);
    let later = Timestamp::from_millis(BEGIN.as_millis() + u64::from(choices.prerequisite) * 1000);
    let prerequisites = match choices.prerequisite {
        0..3 => vec![SIGNALS[choices.prerequisite as usize].to_owned()],
        3 => vec!["signal:s0".into(), "s1".into()],
        4 => vec![format!("flow:{FINISHES}")],
        5 => vec![format!("flow:{FINISHES_LATER}"), "s2".into()],
        6 => vec![format!("flow:{FAILS}")],
        7 => vec![format!("flow:{NOBODY}"), "s1".into()],
        8 | 9 => vec![format!("after:{}", later.rfc3339())],
        10 => vec![format!("after:{}", later.rfc3339()), "s0".into()],
        _ => Vec::new(),
    };
    spec.prerequisites = prerequisites.iter().map(|text| text.parse().unwrap()).collect();
    (spec, when)
}

/// Returns all nodes before each node.
fn ancestors(choices: &[Choices]) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = Vec::new();
    for node in choices {
        let mut before: Vec<usize> =
            node.depends.iter().flat_map(|&d| all[d].iter().copied().chain([d])).collect();
        before.sort_unstable();
        before.dedup();
        all.push(before);
    }
    all
}

fn rerun(count: usize) -> impl Strategy<Value = Rerun> {
    let jobs = prop::collection::vec(1..=u32::try_from(count).unwrap(), 1..3);
    prop_oneof![
        3 => Just(Rerun::Failed),
        1 => Just(Rerun::All),
        2 => jobs.prop_map(|jobs| Rerun::From { jobs: jobs.into_iter().map(JobId).collect() }),
    ]
}

pub(crate) fn case() -> impl Strategy<Value = Case> {
    (1..14_usize).prop_flat_map(|count| {
        let nodes: Vec<_> = (0..count).map(choices).collect();
        let reruns = prop::collection::vec(rerun(count), 0..3);
        (nodes, reruns, any::<u64>(), 1..6_usize).prop_map(|(choices, reruns, seed, budget)| {
            let (specs, whens) = choices
                .iter()
                .zip(ancestors(&choices))
                .enumerate()
                .map(|(i, (choices, ancestors))| node(i, choices, &ancestors))
                .unzip();
            let (kills, outcomes) =
                choices.into_iter().map(|choices| (choices.kills, choices.outcomes)).unzip();
            Case { specs, whens, outcomes, kills, reruns, seed, budget }
        })
    })
}

/// Draws choices; the seed is proptest's, so that a failure repeats.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % bound
    }

    pub(crate) fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }
}
