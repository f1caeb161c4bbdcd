//! Execution of an attempt, as it is sent to a supervisor.

use std::collections::{BTreeMap, HashSet};

use model::flow::ResultMap;
use model::{Execution, FileSource, Name, NodeState, Reason, ReasonCode};

use super::Engine;
use crate::condition::EvaluationError;
use crate::graph::NodeIndex;
use crate::json_size;
use crate::plan::{ResultRef, WhenClause};

impl Engine {
    /// Everything that the current attempt of `node` needs, unrendered and with
    /// files by hash. The caller adds inlined bytes and the trace.
    #[must_use]
    pub fn execution(&self, node: NodeIndex) -> Execution {
        let place = &self.nodes[node.index()];
        let job = &*self.jobs[node.index()];
        let mut env_vars = self.flow.env_vars.clone();
        env_vars.extend(job.env_vars.iter().map(|(name, value)| (name.clone(), value.clone())));
        let made = self.graph().dependencies(node).flat_map(|before| &self.nodes[before.index()].outputs);
        let files = made
            .chain(&job.files)
            .map(|(path, blob)| (path.clone(), FileSource { blob: *blob, inline: None }))
            .collect();
        Execution {
            job_key: self.job_key(node),
            context_id: self.flow.context_id,
            flow_id: self.flow.id,
            caller_id: self.flow.caller_id,
            flow_name: self.flow.name.clone(),
            node: place.name.clone(),
            script_type: job.script_type,
            script: job.script.clone(),
            env_vars,
            files,
            outputs: job.outputs.clone(),
            inputs: self.inputs(node),
            timeout_secs: place.policy.timeout,
            priority: place.policy.priority,
            group: place.target.group.clone(),
            instance: place.target.instance,
            isolation: place.policy.isolation,
            network: place.policy.network,
            signature: job.signature.clone(),
            traceparent: None,
        }
    }

    /// The results of what completed before `node`: whole of its dependencies,
    /// of other ancestors the keys it refers to.
    fn inputs(&self, node: NodeIndex) -> BTreeMap<Name, ResultMap> {
        let mut inputs: BTreeMap<Name, ResultMap> = self
            .completed_dependencies(node)
            .map(|before| &self.nodes[before.index()])
            .map(|before| (before.name.clone(), before.result.clone()))
            .collect();
        for ResultRef { node: ancestor, key } in self.far_references(node) {
            let ancestor = &self.nodes[ancestor.index()];
            let known = inputs.entry(ancestor.name.clone()).or_default();
            if let Some(value) = ancestor.result.get(key) {
                known.insert(key.clone(), value.clone());
            }
        }
        inputs
    }

    /// How large [`Engine::inputs`] is as JSON, without building it.
    pub(super) fn inputs_bytes(&self, node: NodeIndex) -> usize {
        let near: usize = self
            .completed_dependencies(node)
            .map(|before| {
                json_size::member(
                    self.nodes[before.index()].name.as_str(),
                    self.result_bytes[before.index()] as usize,
                )
            })
            .sum();
        let far: usize = self
            .far_references(node)
            .map(|ResultRef { node: ancestor, key }| {
                let ancestor = &self.nodes[ancestor.index()];
                let value = ancestor.result.get(key).map_or(0, |value| json_size::text(value));
                json_size::member(ancestor.name.as_str(), 2 + json_size::member(key, value))
            })
            .sum();
        2 + near + far
    }

    /// Evaluates the condition of `node` once everything before it has ended: true without a condition.
    pub(super) fn condition(&self, node: NodeIndex) -> Result<bool, Reason> {
        let Some(WhenClause { condition, references }) = self.plan.when(node) else { return Ok(true) };
        if let Some(missing) = self.missing_result(references) {
            return Err(self.missing_reason(missing));
        }
        let lookup = |at: usize| {
            let ResultRef { node, key } = &references[at];
            let ancestor = &self.nodes[node.index()];
            // A result is there only when it completed.
            ancestor.result.get(key).map(String::as_str)
        };
        let failed = |error: EvaluationError| Reason::new(ReasonCode::WhenFailed, error.to_string());
        condition.holds(&self.flow, lookup).map_err(failed)
    }

    /// The first of `references` that names a key which its node completed without giving.
    pub(super) fn missing_result<'a>(&self, references: &'a [ResultRef]) -> Option<&'a ResultRef> {
        references.iter().find(|reference| {
            let ancestor = &self.nodes[reference.node.index()];
            ancestor.state == NodeState::Completed && !ancestor.result.contains_key(&reference.key)
        })
    }

    /// Why a node with such a reference cannot run.
    pub(super) fn missing_reason(&self, ResultRef { node, key }: &ResultRef) -> Reason {
        let from = &self.nodes[node.index()].name;
        Reason::new(ReasonCode::MissingResult, format!("`{from}` completed without giving `{key}`"))
    }

    fn completed_dependencies(&self, node: NodeIndex) -> impl Iterator<Item = NodeIndex> + '_ {
        self.graph()
            .dependencies(node)
            .filter(|before| self.nodes[before.index()].state == NodeState::Completed)
    }

    /// References to completed ancestors that are no dependencies.
    fn far_references(&self, node: NodeIndex) -> impl Iterator<Item = &ResultRef> {
        let references = self.plan.references(node);
        let near: HashSet<NodeIndex> =
            if references.is_empty() { HashSet::new() } else { self.graph().dependencies(node).collect() };
        references.iter().filter(move |reference| {
            self.nodes[reference.node.index()].state == NodeState::Completed
                && !near.contains(&reference.node)
        })
    }
}
