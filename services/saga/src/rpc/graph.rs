//! Definitions as nodes and edges, with the place of an instance.

use std::collections::BTreeSet;

use ::rpc::Error;
use model::{BlobHash, CorrelationId, SagaName, SagaStatus, TenantId};
use proto::convert::saga::{InstanceName, name, tenant};
use proto::required::missing;
use proto::v1;
use proto::v1::{GetSagaGraphRequest, GetSagaGraphResponse};
use tonic::Status;
use workflow::definition::WorkOrder;
use workflow::graph::{
    COMPENSATED, COMPLETED, DefinitionEdge, DefinitionEdgeKind, DefinitionGraph, DefinitionNode,
    DefinitionNodeKind, FAILED, START,
};
use workflow::instance::{CommandPurpose, CorrelationEntry, CorrelationRecord};
use workflow::step::JournalRow;
use workflow::{LaneRowKey, WorkflowLane};

use super::instances::{FoundInstance, no_instance};
use super::lists::failed;
use super::wire::{self, count};
use super::{SagaApi, SagaCaller};
use crate::definitions::TenantDefinition;
use crate::reads::{RowReadError, RowReader, read};

/// Rows of a journal that are read at once.
const ROWS: usize = 100;

/// Describes a definition as nodes and edges.
pub(super) async fn graph(
    api: &SagaApi,
    caller: &SagaCaller,
    request: GetSagaGraphRequest,
) -> Result<GetSagaGraphResponse, Status> {
    let mut violations = missing(&request);
    let GetSagaGraphRequest { tenant_id, saga, correlation_id, definition_hash } = request;
    let tenant = tenant(&tenant_id, api.has_tenants(), &mut violations);
    let saga: Option<SagaName> = name("saga", &saga, &mut violations);
    let correlation: Option<CorrelationId> = name("correlation_id", &correlation_id, &mut violations);
    let hash: Option<BlobHash> = name("definition_hash", &definition_hash, &mut violations);
    if !correlation_id.is_empty() && !definition_hash.is_empty() {
        violations.add("definition_hash", "is not given with a correlation: an instance has its own");
    }
    let (tenant, saga) = violations.into_result(tenant.zip(saga)).map_err(Error::from)?;
    api.read(caller, &tenant).await?;
    let reads = api.reads();
    let Some(correlation) = correlation else {
        let all = reads.definitions().in_force().definitions_named(&tenant, &saga);
        let is_wanted =
            |found: &TenantDefinition| hash.map_or(found.in_force, |hash| found.saga.hash == hash);
        let found = all.into_iter().find(is_wanted);
        let found = found.ok_or_else(|| Error::not_found(format!("definition of saga {saga}")))?;
        return Ok(answer(&found, &found.saga.graph(), None));
    };
    let name = InstanceName { tenant: tenant.clone(), saga: saga.clone(), correlation };
    let instance = reads.instance(name).await?;
    let gone = || no_instance(&saga, &instance.name.correlation);
    let hash = instance.record.definition().ok_or_else(gone)?;
    let found = definition_of(&reads, &tenant, &saga, hash).await?;
    let steps = visited(&reads, &instance.lane, &instance.name.correlation).await.map_err(failed)?;
    Ok(answer(&found, &found.saga.graph(), Some((&instance, &steps))))
}

/// The definition of an instance, which may be none of the tenant's current versions.
async fn definition_of(
    reads: &RowReader,
    tenant: &TenantId,
    saga: &SagaName,
    hash: BlobHash,
) -> Result<TenantDefinition, Status> {
    let all = reads.definitions().in_force().definitions_named(tenant, saga);
    let is_applied = all.iter().any(|found| found.is_applied);
    match all.into_iter().find(|found| found.saga.hash == hash) {
        Some(found) => Ok(found),
        None => {
            let saga = reads.definition(hash).await.map_err(failed)?;
            Ok(TenantDefinition { saga, in_force: false, is_applied })
        }
    }
}

/// Steps at which an instance was, as far as its journal is kept.
async fn visited(
    reads: &RowReader,
    lane: &WorkflowLane,
    correlation: &CorrelationId,
) -> Result<BTreeSet<String>, RowReadError> {
    let (mut range, mut steps) = (LaneRowKey::journal_of(correlation), BTreeSet::new());
    loop {
        let found = reads.scan(lane, &range, ROWS).await?;
        for (key, row) in &found.rows {
            let row: JournalRow = read(lane, key, row)?;
            steps.insert(row.step.to_string());
            if row.status == SagaStatus::Compensating {
                steps.insert(COMPENSATED.to_owned());
            }
        }
        match found.rest() {
            Some(rest) => range.start = rest,
            None => return Ok(steps),
        }
    }
}

/// The node at which an instance is.
fn place(record: &CorrelationRecord) -> &str {
    match &record.entry {
        CorrelationEntry::Live(instance) => {
            match (instance.status, instance.stuck.as_ref().map(|stuck| stuck.purpose)) {
                (SagaStatus::Compensating, _) | (_, Some(CommandPurpose::Undo | CommandPurpose::Last)) => {
                    COMPENSATED
                }
                _ => instance.step.as_str(),
            }
        }
        CorrelationEntry::Ended(tombstone) => match tombstone.status {
            SagaStatus::Completed => COMPLETED,
            SagaStatus::Failed => FAILED,
            SagaStatus::Compensated => COMPENSATED,
            _ => tombstone.step.as_str(),
        },
        CorrelationEntry::Awaited(_) => START,
    }
}

fn answer(
    found: &TenantDefinition,
    graph: &DefinitionGraph<'_>,
    instance: Option<(&FoundInstance, &BTreeSet<String>)>,
) -> GetSagaGraphResponse {
    let mut nodes: Vec<_> = graph.nodes.iter().map(node).collect();
    if let Some((instance, steps)) = instance {
        let place = place(&instance.record);
        let undo: BTreeSet<_> = instance
            .record
            .instance()
            .map(|instance| instance.stack.iter().map(|done| done.step.as_str()).collect())
            .unwrap_or_default();
        for node in &mut nodes {
            node.current = node.name == place;
            node.visited = node.current || node.name == START || steps.contains(&node.name);
            node.to_undo = undo.contains(node.name.as_str());
        }
    }
    GetSagaGraphResponse {
        definition: Some(super::definitions::definition(found)),
        saga: instance.and_then(|(instance, _)| wire::saga::saga(instance.whose(), &instance.record)),
        nodes,
        edges: graph.edges.iter().map(edge).collect(),
    }
}

fn node(node: &DefinitionNode<'_>) -> v1::SagaGraphNode {
    v1::SagaGraphNode {
        name: node.name.to_owned(),
        kind: kind(node.kind).into(),
        pivot: node.is_pivot,
        orders: node.orders.iter().map(|(branch, order, undo)| self::order(branch, order, *undo)).collect(),
        needed_count: count(node.needs),
        timers: node.timers.iter().map(|timer| (*timer).to_owned()).collect(),
        current: false,
        visited: false,
        to_undo: false,
    }
}

const fn kind(kind: DefinitionNodeKind) -> v1::SagaNodeKind {
    match kind {
        DefinitionNodeKind::Start => v1::SagaNodeKind::Start,
        DefinitionNodeKind::Work => v1::SagaNodeKind::Work,
        DefinitionNodeKind::Parallel => v1::SagaNodeKind::Parallel,
        DefinitionNodeKind::Wait => v1::SagaNodeKind::Wait,
        DefinitionNodeKind::Completed => v1::SagaNodeKind::Completed,
        DefinitionNodeKind::Failed => v1::SagaNodeKind::Failed,
        DefinitionNodeKind::Compensated => v1::SagaNodeKind::Compensated,
        DefinitionNodeKind::DeadLetter => v1::SagaNodeKind::DeadLetter,
    }
}

fn order(branch: &str, order: &WorkOrder, undo: Option<&WorkOrder>) -> v1::SagaGraphOrder {
    let branch = branch.to_owned();
    let compensation = undo.map(|undo| match undo {
        WorkOrder::Effect { effect, .. } => effect.to_string(),
        WorkOrder::Command { aggregate, kind, .. } => format!("{aggregate}/{kind}"),
    });
    let base = v1::SagaGraphOrder {
        branch,
        compensation: compensation.unwrap_or_default(),
        ..v1::SagaGraphOrder::default()
    };
    match order {
        WorkOrder::Effect { effect, .. } => v1::SagaGraphOrder { effect: effect.to_string(), ..base },
        WorkOrder::Command { aggregate, kind, .. } => {
            v1::SagaGraphOrder { aggregate_type: aggregate.clone(), command_type: kind.clone(), ..base }
        }
    }
}

fn edge(edge: &DefinitionEdge<'_>) -> v1::SagaGraphEdge {
    let DefinitionEdge { from, to, kind, event, condition } = *edge;
    let kind = match kind {
        DefinitionEdgeKind::Start => v1::SagaEdgeKind::Start,
        DefinitionEdgeKind::Success => v1::SagaEdgeKind::Success,
        DefinitionEdgeKind::Failure => v1::SagaEdgeKind::Failure,
        DefinitionEdgeKind::Event => v1::SagaEdgeKind::Event,
        DefinitionEdgeKind::Timer => v1::SagaEdgeKind::Timer,
    };
    v1::SagaGraphEdge {
        from_node: from.to_owned(),
        to_node: to.to_owned(),
        kind: kind.into(),
        event_type: event.unwrap_or_default().to_owned(),
        condition: condition.unwrap_or_default().to_owned(),
    }
}
