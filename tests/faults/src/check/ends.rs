//! Invariants of every flow that was accepted, at the end.

use std::collections::{BTreeMap, BTreeSet};

use model::NodeState;
use model::limits::DEATHS_MAX;

use super::{Findings, jobs};
use crate::history::{Answer, FinalFlow, FinalNode, History, Line, PlannedFlow, PlannedJob};

/// Reasons for which a job fails whose script never did: what ran it was lost too often, which takes [`DEATHS_MAX`] attempts at least.
const LOSSES: [&str; 4] = ["QUARANTINED", "INSTANCE_LOST", "SUPERVISOR_LOST", "DRAINED"];

/// I1: an accepted job ends in exactly one terminal record, which states what happened.
pub(super) fn check(history: &History, found: &mut Findings) {
    let flows: BTreeMap<u32, &FinalFlow> = history.flows.iter().map(|flow| (flow.id, flow)).collect();
    let mut missed = BTreeSet::new();
    for submission in &history.submissions {
        if let Answer::Taken(id) = submission.answer
            && !flows.contains_key(&id)
            && missed.insert(id)
        {
            found.add(1, format!("flow {id} ({}) was taken and is gone", submission.flow));
        }
    }
    let ended = ended_runs(history);
    for flow in &history.flows {
        if let Some(planned) = history.planned.get(&flow.name) {
            check_flow(flow, planned, &ended, found);
        }
    }
    for watch in &history.watches {
        let status = flows.get(&watch.flow).map(|flow| &flow.status);
        if let (Some(reported), Some(is)) = (&watch.status, status)
            && reported != is
        {
            found.add(
                1,
                format!("{} was told that flow {} is {reported}; it is {is}", watch.watcher, watch.flow),
            );
        }
    }
}

/// Which attempts of which jobs came to the end of their scripts.
fn ended_runs(history: &History) -> BTreeSet<(String, u32)> {
    let jobs = jobs(history);
    let ends = history.witness.iter().filter_map(|line| match line {
        Line::End(ran) => Some((ran.job.clone(), ran.attempt)),
        _ => None,
    });
    ends.filter(|(job, _)| jobs.contains_key(job.as_str())).collect()
}

fn check_flow(
    flow: &FinalFlow,
    planned: &PlannedFlow,
    ended: &BTreeSet<(String, u32)>,
    found: &mut Findings,
) {
    if !flow.has_ended {
        found.add(1, format!("flow {} ({}) never ended: {}", flow.id, flow.name, flow.status));
        return;
    }
    let mut nodes: BTreeMap<&str, &FinalNode> = BTreeMap::new();
    for node in &flow.nodes {
        if nodes.insert(&node.name, node).is_some() {
            found.add(1, format!("{} stands twice in flow {}", node.name, flow.id));
        }
    }
    for job in &planned.jobs {
        match nodes.remove(job.name.as_str()) {
            None => found.add(1, format!("{} is missing in flow {}", job.name, flow.id)),
            Some(node) => {
                check_node(node, job, ended, found);
                check_turn(node, job, flow, planned, found);
            }
        }
    }
    for name in nodes.keys() {
        found.add(1, format!("nobody asked for {name} in flow {}", flow.id));
    }
    let all_completed = flow.nodes.iter().all(|node| node.state == NodeState::Completed);
    if all_completed != flow.status.ends_with("FINISHED") {
        found.add(1, format!("flow {} is {} with nodes {:?}", flow.id, flow.status, flow.nodes));
    }
}

/// Only what depends on something that did not complete may end without running, and nothing is cancelled here.
fn check_turn(
    node: &FinalNode,
    job: &PlannedJob,
    flow: &FinalFlow,
    planned: &PlannedFlow,
    found: &mut Findings,
) {
    let completed = |place: &usize| {
        let name = planned.jobs.get(*place).map(|before| &before.name);
        flow.nodes.iter().any(|node| Some(&node.name) == name && node.state == NodeState::Completed)
    };
    let skipped_for_nothing = node.state == NodeState::Skipped && job.depends.iter().all(completed);
    if skipped_for_nothing || node.state == NodeState::Cancelled {
        found.add(1, format!("{} is {:?} for nothing", node.name, node.state));
    }
}

fn check_node(node: &FinalNode, job: &PlannedJob, ended: &BTreeSet<(String, u32)>, found: &mut Findings) {
    let name = &node.name;
    if !node.state.is_end() {
        found.add(1, format!("{name} is {:?} in a flow that has ended", node.state));
    }
    let is_loss = LOSSES.contains(&node.reason.as_str());
    let did_end = ended.contains(&(name.clone(), node.attempt));
    match node.state {
        NodeState::Completed if job.fails => found.add(1, format!("{name} completed, and its script fails")),
        NodeState::Completed if !did_end => {
            found.add(1, format!("{name} completed in attempt {}, whose script never ended", node.attempt));
        }
        NodeState::Failed if is_loss && node.attempt >= DEATHS_MAX => {}
        NodeState::Failed if is_loss => {
            found.add(1, format!("{name} failed as {:?} in attempt {}", node.reason, node.attempt));
        }
        NodeState::Failed if !job.fails => {
            found.add(1, format!("{name} failed as {:?}, and its script does not", node.reason));
        }
        NodeState::Failed => {
            let tries = ended.iter().filter(|(job, _)| job == name).count();
            if tries <= job.retries as usize {
                found.add(10, format!("{name} failed for good after {tries} tries of {}", job.retries + 1));
            }
        }
        _ => {}
    }
}
