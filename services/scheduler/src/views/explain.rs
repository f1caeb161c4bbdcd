//! Explains in sentences why a node is in its state, from the stored records and the registry's view.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use flow::retry::RetryCounters;
use model::limits::DEATHS_MAX;
use model::{
    ContextId, Flow, FlowId, FlowNode, FlowStatus, NodePolicy, NodeState, Prerequisite, ReasonCode,
    RunnerView, Timestamp,
};
use proto::convert;
use proto::convert::node::JobKeyPrefix;
use proto::internal::v1::ReadMessageResponse;
use proto::v1::{ExplainNodeResponse, Finding, FindingKind};
use tonic::Status;

use crate::clients::FlowStoreClient;
use crate::error::bad_store;
use crate::runners::SharedRunners;
use crate::views::node_names::NodeNames;
use crate::views::reader::FlowReader;

/// Dependencies that one sentence names.
const NAMED_MAX: usize = 10;

/// Explains nodes.
#[derive(Debug, Clone)]
pub struct Explainer {
    store: FlowStoreClient,
    runners: SharedRunners,
}

/// Everything that is looked at.
struct NodeFacts {
    now: Timestamp,
    flow: Flow,
    node: FlowNode,
    /// The nodes before it.
    before: Vec<FlowNode>,
    /// Other flows that it waits for, with their statuses; nothing for a flow that does not exist.
    flows: Vec<(FlowId, Option<FlowStatus>)>,
    message: Option<ReadMessageResponse>,
    runner: Option<RunnerView>,
}

impl Explainer {
    /// Flows are read from `store`.
    #[must_use]
    pub fn new(store: FlowStoreClient) -> Self {
        Self { store, runners: Arc::default() }
    }

    /// Shared view of runners; the caller keeps it up to date.
    #[must_use]
    pub fn runners(&self) -> SharedRunners {
        Arc::clone(&self.runners)
    }

    /// A reader of a flow.
    #[must_use]
    pub fn reader(&self, actor: model::ActorId, context_id: u32, flow_id: u32) -> FlowReader {
        FlowReader::new(self.store.clone(), actor, context_id, flow_id)
    }

    /// Explains one node of the flow that `reader` reads.
    ///
    /// # Errors
    /// NOT_FOUND for an unknown node, else as storage's.
    pub async fn explain(
        &self,
        mut reader: FlowReader,
        name: &str,
        now: Timestamp,
    ) -> Result<ExplainNodeResponse, Status> {
        let record = convert::flow::from_record(reader.record().await?).map_err(bad_store)?;
        let node = reader.node(name).await?;
        let before = reader.nodes_of(&node.depends).await?;
        let mut flows = Vec::new();
        for prerequisite in &node.prerequisites {
            if let Prerequisite::Flow(id) = prerequisite {
                flows.push((*id, status_of(&reader, *id).await?));
            }
        }
        let message = match &node.message_key {
            Some(key) if node.state == NodeState::Dispatched => found(reader.message(key.clone()).await)?,
            _ => None,
        };
        let runner = node.runner.and_then(|id| {
            // No code panics while the lock is held.
            let runners = self.runners.read().unwrap_or_else(PoisonError::into_inner);
            runners.get((reader.context, id)).cloned()
        });
        let home = JobKeyPrefix { context: record.context_uid, flow: record.flow.uid };
        let facts = NodeFacts { now, flow: record.flow, node, before, flows, message, runner };
        Ok(facts.explain(reader.context, home))
    }
}

/// Some of the nodes, each with its state.
fn named(nodes: &[&FlowNode]) -> String {
    let first =
        nodes.iter().take(NAMED_MAX).map(|node| format!("`{}` ({})", node.name, node.state.display_name()));
    let first = first.collect::<Vec<_>>().join(", ");
    match nodes.len().saturating_sub(NAMED_MAX) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

async fn status_of(reader: &FlowReader, flow: FlowId) -> Result<Option<FlowStatus>, Status> {
    let mut other = FlowReader { flow, ..reader.clone() };
    let flow = found(other.flow().await)?;
    Ok(flow.and_then(|flow| convert::enums::flow_status_from_wire(flow.status)))
}

fn found<T>(answer: Result<T, Status>) -> Result<Option<T>, Status> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(status) if status.code() == tonic::Code::NotFound => Ok(None),
        Err(status) => Err(status),
    }
}

impl NodeFacts {
    fn explain(&self, context: ContextId, home: JobKeyPrefix) -> ExplainNodeResponse {
        let findings: Vec<Finding> = [
            self.flow_state(),
            self.dependencies(),
            self.prerequisites(),
            self.back_off(),
            self.routing(),
            self.liveness(context),
            self.delivery(),
            self.attempt(),
            self.limits(),
        ]
        .into_iter()
        .flatten()
        .collect();
        let (name, state) = (&self.node.name, self.node.state.display_name());
        let why = findings.iter().find(|finding| finding.blocks).map(|finding| finding.detail.clone());
        let why = why.or_else(|| self.node.reason.as_ref().map(ToString::to_string));
        let summary = match why {
            Some(why) => format!("`{name}` is {state}: {why}"),
            None => format!("`{name}` is {state}"),
        };
        let mut names = NodeNames::default();
        names.remember(&self.before);
        let node = names.to_wire(std::slice::from_ref(&self.node), home).pop();
        ExplainNodeResponse { node, summary, findings }
    }

    fn is_under_way(&self) -> bool {
        matches!(self.node.state, NodeState::Dispatched | NodeState::Running)
    }

    fn flow_state(&self) -> Option<Finding> {
        let Flow { id, status, cancel_requested_time, .. } = &self.flow;
        let blocks = *status == FlowStatus::Created;
        let detail = match (status, cancel_requested_time) {
            (FlowStatus::Created, _) => format!("flow {id} was not started yet"),
            (FlowStatus::Started, Some(time)) => {
                format!("flow {id} is being cancelled since {}", time.rfc3339())
            }
            _ => format!("flow {id} is {}", status.display_name()),
        };
        Some(finding(FindingKind::Flow, blocks, detail))
    }

    fn dependencies(&self) -> Option<Finding> {
        if self.before.is_empty() {
            return None;
        }
        let waits = self.node.state == NodeState::Pending;
        let (ended, open): (Vec<&FlowNode>, Vec<_>) =
            self.before.iter().partition(|before| before.state.is_end());
        let detail = if open.is_empty() {
            format!("everything before it has ended: {}", named(&ended))
        } else {
            format!("waits for {}", named(&open))
        };
        Some(finding(FindingKind::Dependencies, waits && !open.is_empty(), detail))
    }

    fn prerequisites(&self) -> Option<Finding> {
        if self.node.prerequisites.is_empty() {
            return None;
        }
        let waits = self.node.state == NodeState::Pending;
        let mut blocks = false;
        let mut parts = Vec::new();
        for prerequisite in &self.node.prerequisites {
            let met = self.node.prerequisites_met.contains(prerequisite);
            let part = match prerequisite {
                _ if met => format!("{prerequisite} is met"),
                Prerequisite::Signal(name) => format!("waits for the signal `{name}`"),
                Prerequisite::After(time) if *time <= self.now => format!("{prerequisite} has come"),
                Prerequisite::After(time) => {
                    format!("waits until {}, {} from now", time.rfc3339(), span(time.since(self.now)))
                }
                Prerequisite::Flow(id) => match self.flows.iter().find(|(known, _)| known == id) {
                    Some((_, Some(status))) => {
                        format!("waits for flow {id}, which is {}", status.display_name())
                    }
                    _ => format!("waits for flow {id}, which does not exist"),
                },
            };
            blocks |= !met && part.starts_with("waits");
            parts.push(part);
        }
        Some(finding(FindingKind::Prerequisites, waits && blocks, parts.join("; ")))
    }

    fn back_off(&self) -> Option<Finding> {
        let until = self.node.not_before_time.filter(|_| self.node.state == NodeState::Ready)?;
        let why = self.node.reason.as_ref().map(|reason| reason.detail.clone()).unwrap_or_default();
        let blocks = until > self.now;
        let detail = if blocks {
            format!("the next try is {} from now, after: {why}", span(until.since(self.now)))
        } else {
            "the wait between tries is over".to_owned()
        };
        Some(finding(FindingKind::BackOff, blocks, detail))
    }

    fn routing(&self) -> Option<Finding> {
        match (self.node.state, &self.node.reason, self.node.runner) {
            (NodeState::Ready, Some(reason), _) if reason.code == ReasonCode::NoLiveRunner => {
                Some(finding(FindingKind::Routing, true, reason.detail.clone()))
            }
            (_, _, Some(runner)) => {
                let record = self.runner.as_ref().map(|view| &view.runner).filter(|_| self.is_under_way());
                let closed = record.and_then(|record| match (record.deleted_at, record.drained_at) {
                    (Some(time), _) => Some(format!("was deleted at {}", time.rfc3339())),
                    (None, Some(time)) => Some(format!("is drained since {}", time.rfc3339())),
                    (None, None) => None,
                });
                let detail = match closed {
                    Some(closed) => format!(
                        "sent to runner {runner}, which {closed}: what its supervisor has accepted ends there"
                    ),
                    None => format!("sent to runner {runner}"),
                };
                Some(finding(FindingKind::Routing, false, detail))
            }
            _ => None,
        }
    }

    fn liveness(&self, context: ContextId) -> Option<Finding> {
        let id = self.node.runner.filter(|_| self.is_under_way())?;
        let Some(view) = &self.runner else {
            return Some(finding(
                FindingKind::Liveness,
                true,
                format!("context {context} has no runner {id}"),
            ));
        };
        // `last_seen` of a live runner is not updated with every presence, so it is left out.
        let detail = match (view.live, view.last_seen) {
            (true, _) => format!("runner {id} is alive"),
            (false, None) => format!("runner {id} was never heard; its attempts are lost when it stays away"),
            (false, Some(time)) => format!(
                "runner {id} is not alive, last heard {} ago; its attempts are lost when it stays away",
                span(self.now.since(time))
            ),
        };
        Some(finding(FindingKind::Liveness, !view.live, detail))
    }

    fn delivery(&self) -> Option<Finding> {
        let message = self.message.as_ref()?;
        let key = self.node.message_key.as_deref().unwrap_or_default();
        let ReadMessageResponse { status, transport_status, router, error, created_millis } = message;
        let age = span(self.now.since(Timestamp::from_millis(*created_millis)));
        let held = if router.is_empty() {
            "no router has taken it yet".to_owned()
        } else {
            format!("router `{router}` has it, in turn with what else goes to that runner")
        };
        let (blocks, detail) = match status.as_str() {
            "dispatched" => (true, format!("{key} is {transport_status} since {age}: {held}")),
            "error" => (true, format!("{key} could not be delivered: {error}")),
            _ => (false, format!("{key} was delivered")),
        };
        Some(finding(FindingKind::Delivery, blocks, detail))
    }

    fn attempt(&self) -> Option<Finding> {
        if !self.is_under_way() {
            return None;
        }
        let FlowNode {
            attempt, supervisor, instance, start_time, expired_time, cancel_requested_time, ..
        } = &self.node;
        let mut detail = format!("attempt {attempt}");
        match (supervisor, instance, start_time) {
            (_, Some(instance), Some(time)) => {
                detail.push_str(&format!(" runs on {instance} since {}", span(self.now.since(*time))));
            }
            (Some(supervisor), ..) => {
                detail.push_str(&format!(" waits in the queue of supervisor {supervisor}"))
            }
            _ => detail.push_str(" was not accepted by a supervisor yet"),
        }
        if expired_time.is_some() {
            detail.push_str("; it was given up and is being stopped");
        } else if cancel_requested_time.is_some() {
            detail.push_str("; it was cancelled and is being stopped");
        }
        Some(finding(FindingKind::Attempt, self.node.state == NodeState::Dispatched, detail))
    }

    fn limits(&self) -> Option<Finding> {
        if self.node.state.is_end() {
            return None;
        }
        let FlowNode { tries, policy, .. } = &self.node;
        let left = policy.retries.saturating_sub(*tries);
        let mut parts = vec![format!("{left} of {} retries left", policy.retries)];
        parts.push(losses_left(policy, RetryCounters::of(&self.node)));
        for (what, secs) in [
            ("run time", policy.timeout),
            ("ready to started", policy.timeout_queue),
            ("dispatched to accepted", policy.timeout_ack),
            ("dispatched to ended", policy.timeout_result),
        ] {
            if secs > 0 {
                parts.push(format!("{what} at most {secs} s"));
            }
        }
        if let Some(deadline) = self.flow.deadline {
            parts.push(format!("the flow's deadline is {}", deadline.rfc3339()));
        }
        Some(finding(FindingKind::Limits, false, parts.join("; ")))
    }
}

/// Describes how many more lost attempts are followed by another one, and how earlier ones were lost.
fn losses_left(policy: &NodePolicy, spent: RetryCounters) -> String {
    if !policy.idempotent {
        return "not run again after a loss (`idempotent: false`)".to_owned();
    }
    let allowed = policy.losses_allowed();
    let mut text = format!("{} of {allowed} losses left", allowed.saturating_sub(spent.lost()));
    let (deaths, others) = (spent.deaths, spent.losses);
    if deaths > 0 {
        text += &format!(", {deaths} of {DEATHS_MAX} deaths");
    }
    if others > 0 {
        text += &format!(", {others} lost with a supervisor or a drain");
    }
    text
}

fn finding(kind: FindingKind, blocks: bool, detail: String) -> Finding {
    Finding { kind: kind.into(), blocks, detail }
}

/// A length of time, as exact as it matters.
fn span(length: Duration) -> String {
    match length.as_secs() {
        0 => format!("{} ms", length.as_millis()),
        secs @ 1..=119 => format!("{secs} s"),
        secs @ 120..=7199 => format!("{} min", secs / 60),
        secs => format!("{} h", secs / 3600),
    }
}
