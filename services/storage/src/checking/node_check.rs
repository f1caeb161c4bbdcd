//! Nodes of flows, and the jobs that mirror them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use keys::ContextKey;
use kv::{Cmd, Pipeline, Value};
use model::{FlowNode, FlowStatus, JobId, NodeState, RunIf};

use super::context_check::ContextCheck;
use super::record_check::CheckedFlow;
use super::{CHECKED_AT_ONCE, FindingCode, READ_AT_ONCE};
use crate::error::Result;
use crate::scripts;

/// Nodes with something to do that are named where a flow is compared with the lists: one is enough, and some may end meanwhile.
const READY_MAX: usize = 20;

/// Nodes of a flow, as far as they were looked at.
#[derive(Default)]
struct SeenNodes {
    states: BTreeMap<JobId, NodeState>,
    /// Nodes before those that are under way and have to wait for all of them.
    depends: BTreeMap<JobId, Vec<JobId>>,
    /// Nodes that seem to break an invariant.
    suspects: BTreeSet<JobId>,
}

impl SeenNodes {
    fn add(&mut self, node: &FlowNode) {
        self.states.insert(node.job_id, node.state);
        let is_under_way = matches!(node.state, NodeState::Dispatched | NodeState::Running);
        if is_under_way && node.run_if != RunIf::AnyFailed {
            self.depends.insert(node.job_id, node.depends.clone());
        }
    }

    /// Adds those that are under way before their time, and those that have not ended with their flow.
    fn suspect(&mut self, has_ended: bool) {
        let is_open = |job: &JobId| self.states.get(job).is_some_and(|state| !state.is_end());
        let early = self.depends.iter().filter(|(_, before)| before.iter().any(is_open)).map(|(job, _)| *job);
        let open = self.states.keys().copied().filter(|job| has_ended && is_open(job));
        let suspects: Vec<JobId> = early.chain(open).collect();
        self.suspects.extend(suspects);
    }

    /// Jobs of nodes that have something to do, with spaces between.
    fn ready(&self) -> String {
        let is_ready = |state: &NodeState| {
            matches!(state, NodeState::Ready | NodeState::Dispatched | NodeState::Running)
        };
        let ready = self.states.iter().filter(|(_, state)| is_ready(state));
        ready.take(READY_MAX).map(|(job, _)| job.to_string()).collect::<Vec<_>>().join(" ")
    }
}

impl ContextCheck {
    /// Checks the nodes of a flow. Returns the jobs of some that have something to do, with spaces between.
    pub(super) async fn check_nodes(&mut self, flow: &CheckedFlow) -> Result<String> {
        if flow.is_deleting {
            return Ok(String::new());
        }
        let stored = &flow.stored;
        let mut nodes = self.read_nodes(flow).await?;
        let status = stored.flow.status;
        nodes.suspect(status.is_end());
        let (count, expected) =
            (nodes.states.len(), usize::try_from(stored.node_count).unwrap_or(usize::MAX));
        let is_miscounted = count > expected || (count != expected && status != FlowStatus::Created);
        if is_miscounted || !nodes.suspects.is_empty() {
            let suspects: Vec<JobId> = nodes.suspects.iter().copied().collect();
            self.confirm_nodes(flow, &suspects).await?;
        }
        Ok(if status == FlowStatus::Started { nodes.ready() } else { String::new() })
    }

    async fn read_nodes(&mut self, flow: &CheckedFlow) -> Result<SeenNodes> {
        let (tenant, id) = (Arc::clone(&self.tenant), flow.stored.flow.id);
        let (key, mut cursor, mut seen) = (tenant.keys.flow_nodes(id), "0".to_owned(), SeenNodes::default());
        loop {
            let query = Cmd::new("HSCAN").arg(&key).arg(&cursor).arg("COUNT").arg(READ_AT_ONCE);
            let [next, entries] = match tenant.connection.cmd(query).await {
                // The key is a finding of its own.
                Err(error) if error.code() == Some("WRONGTYPE") => return Ok(seen),
                page => page?.tuple()?,
            };
            let mut read = Vec::new();
            for (job, value) in entries.pairs()? {
                let node: serde_json::Result<FlowNode> = serde_json::from_slice(&value.bytes()?);
                match node {
                    Ok(node) if node.job_id.to_string() == job => read.push(node),
                    Ok(_) => self.note_node(flow, &job, "its number differs"),
                    Err(error) => self.note_node(flow, &job, &error.to_string()),
                }
            }
            self.compare_jobs(flow, &read, &mut seen).await?;
            cursor = next.text()?;
            if cursor == "0" {
                return Ok(seen);
            }
        }
    }

    fn note_node(&mut self, flow: &CheckedFlow, job: &str, problem: &str) {
        let key = ContextKey::FlowNodes(flow.stored.flow.id);
        self.note(FindingCode::RecordUnreadable, key.to_string(), format!("node {job}: {problem}"));
    }

    /// Compares nodes with the statuses of their jobs.
    async fn compare_jobs(&self, flow: &CheckedFlow, nodes: &[FlowNode], seen: &mut SeenNodes) -> Result<()> {
        let mut pipeline = Pipeline::new();
        for node in nodes {
            let key = self.tenant.keys.job(flow.stored.flow.caller_id, node.job_id);
            pipeline.cmd(Cmd::new("HGET").arg(&key).arg("status"));
        }
        for (node, status) in nodes.iter().zip(self.tenant.connection.pipeline(&pipeline).await?) {
            let status = status.and_then(Value::optional_text);
            if !matches!(status, Ok(Some(status)) if status == node.state.job_status()) {
                seen.suspects.insert(node.job_id);
            }
            seen.add(node);
        }
        Ok(())
    }

    async fn confirm_nodes(&mut self, flow: &CheckedFlow, suspects: &[JobId]) -> Result<()> {
        let (tenant, id) = (Arc::clone(&self.tenant), flow.stored.flow.id);
        let (record, nodes) = (tenant.keys.flow(id), tenant.keys.flow_nodes(id));
        let touched = scripts::CHECK_NODES.keys([("flow", &record), ("nodes", &nodes)]);
        // A flow with a wrong number of nodes may have no other suspects.
        let first = suspects.len().min(CHECKED_AT_ONCE);
        for some in std::iter::once(&suspects[..first]).chain(suspects[first..].chunks(CHECKED_AT_ONCE)) {
            let change = self
                .begin(&scripts::CHECK_NODES, &touched)
                .named(kv::named![flow: id.0])
                .args(some.iter().map(|job| job.0));
            self.check(change).await?;
        }
        Ok(())
    }
}
