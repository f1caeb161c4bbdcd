//! Lanes as callers see them: the owner of each, and how far it has read.

use std::collections::BTreeSet;

use broker::MessageBroker;
use futures_util::StreamExt as _;
use futures_util::stream;
use model::{EffectName, SagaName, TenantId};
use store::{LaneKey, StoreError};
use workflow::instance::decode;
use workflow::subject::ConsumerSource;
use workflow::{LaneRowKey, WorkflowLane};

use crate::definitions::{ActiveSagaRef, Definitions};
use crate::lane::checkpoint::Checkpoint;
use crate::lane::rows::{OwnerRow, row};
use crate::lane::{LaneEnvironment, WORKFLOW_COMMANDS};
use crate::sagas;

/// Lanes and cursors that are looked at side by side.
const AT_ONCE: usize = 16;

/// A lane.
#[derive(Debug)]
pub(crate) struct LaneReport {
    /// The lane.
    pub(crate) lane: WorkflowLane,
    /// The last replica that took the lane and has not given it up, whether or not it lives.
    pub(crate) owner: Option<OwnerRow>,
    /// Sources that it reads.
    pub(crate) sources: Vec<SourceReport>,
}

/// A source of a lane.
#[derive(Debug)]
pub(crate) struct SourceReport {
    /// The source.
    pub(crate) source: ConsumerSource,
    /// Stream of the source.
    pub(crate) stream: &'static str,
    /// How far the source was read; `None` where it was not read yet.
    pub(crate) checkpoint: Option<Checkpoint>,
    /// Messages behind that position; `None` where the broker does not know.
    pub(crate) pending: Option<u64>,
}

/// Lanes of a tenant, in the order of their names.
pub(crate) fn lanes_of(definitions: &Definitions, tenant: &TenantId) -> Vec<WorkflowLane> {
    let in_force = definitions.in_force();
    let shards = |saga: &SagaName, shards: u8| {
        let (tenant, saga) = (tenant.clone(), saga.clone());
        (0..shards).map(move |shard| WorkflowLane::Saga { tenant: tenant.clone(), saga: saga.clone(), shard })
    };
    let sagas =
        in_force.sagas_of(tenant).flat_map(|ActiveSagaRef { name, active }| shards(name, active.shards));
    let is_for = |effect: &&EffectName| in_force.catalog.effect(effect, tenant).is_some();
    let effects = in_force.catalog.effects().filter(is_for);
    let effects =
        effects.map(|effect| WorkflowLane::Effect { tenant: tenant.clone(), effect: effect.clone() });
    let lanes: BTreeSet<_> = sagas.chain(effects).map(|lane| (lane.to_string(), lane)).collect();
    lanes.into_iter().map(|(_, lane)| lane).collect()
}

/// Reads who owns lanes and how far they have read.
///
/// # Errors
/// [`StoreError`].
pub(crate) async fn reports(
    around: &LaneEnvironment,
    definitions: &Definitions,
    lanes: Vec<WorkflowLane>,
) -> Result<Vec<LaneReport>, StoreError> {
    let reports = stream::iter(lanes).map(|lane| report(around, definitions, lane)).buffered(AT_ONCE);
    let mut reports: Vec<_> = reports.collect::<Vec<_>>().await.into_iter().collect::<Result<_, _>>()?;
    // Without a connection every one of these requests would time out.
    if around.broker.connection().borrow().connected {
        let mut queries = Vec::new();
        for LaneReport { lane, sources, .. } in &mut reports {
            for source in sources {
                let consumer = source.source.consumer(lane);
                let broker = &around.broker;
                queries.push(async move {
                    source.pending = pending(&**broker, source.stream, &consumer).await;
                });
            }
        }
        stream::iter(queries).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
    }
    Ok(reports)
}

async fn pending(broker: &dyn MessageBroker, stream: &str, consumer: &str) -> Option<u64> {
    let cursor = broker.cursor(stream, consumer).await.ok()??;
    Some(cursor.pending.saturating_add(cursor.unacknowledged as u64))
}

async fn report(
    around: &LaneEnvironment,
    definitions: &Definitions,
    lane: WorkflowLane,
) -> Result<LaneReport, StoreError> {
    let sources = match &lane {
        WorkflowLane::Saga { tenant, saga, .. } => sagas::sources(saga, &definitions.versions(tenant, saga)),
        WorkflowLane::Effect { effect, .. } => {
            vec![(ConsumerSource::Commands(effect.clone()), WORKFLOW_COMMANDS)]
        }
    };
    let checkpoints = sources.iter().map(|(source, _)| LaneRowKey::checkpoint(&source.to_string()));
    let keys: Vec<_> = std::iter::once(LaneRowKey::owner()).chain(checkpoints).map(|key| row(&key)).collect();
    let mut rows = around.store.read(&LaneKey::new(&lane.to_string()), &keys).await?.into_iter();
    let damaged = |why: String| StoreError::Damaged { why: format!("{lane}: {why}") };
    let owner = rows.next().flatten().map(|row| decode(&row.value)).transpose();
    let owner = owner.map_err(|error| damaged(error.to_string()))?;
    let mut reports = Vec::with_capacity(sources.len());
    for ((source, stream), found) in sources.into_iter().zip(rows) {
        let checkpoint = found.map(|row| decode(&row.value)).transpose();
        let checkpoint = checkpoint.map_err(|error| damaged(error.to_string()))?;
        reports.push(SourceReport { source, stream, checkpoint, pending: None });
    }
    Ok(LaneReport { owner, sources: reports, lane })
}
