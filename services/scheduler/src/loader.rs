//! Reading a flow with all its nodes, to own it.

use std::sync::Arc;
use std::time::Duration;

use flow::engine::StoredNode;
use model::{ContextId, FlowId, OwnerId};
use proto::convert;
use proto::internal::v1::{ListActiveFlowsRequest, LoadFlowRequest, TakeFlowRequest};
use tonic::{Code, Status};

use crate::clients::FlowStoreClient;
use crate::driver::{Event, Handle, StartedFlow};
use crate::error::bad_store;
use crate::run::FlowKey;

/// Between tries, while storage cannot be reached.
pub const RETRY_DELAY: Duration = Duration::from_millis(200);

/// What a reading gave.
#[derive(Debug)]
pub enum Loaded {
    /// The flow, owned by this scheduler.
    Flow(Box<StartedFlow>),
    /// It has ended, or is gone.
    Gone,
    /// It runs, and belongs to somebody else.
    Elsewhere,
}

/// Why a flow is read.
#[derive(Debug, Clone, Copy)]
pub enum Reading {
    /// To become its owner.
    TakeOver,
    /// It is ours, unless somebody else has taken it.
    Again,
}

/// Reads a flow; tries again while storage cannot be reached.
pub async fn load(mut store: FlowStoreClient, key: FlowKey, reading: Reading, owner: OwnerId) -> Loaded {
    loop {
        match try_load(&mut store, key, reading, owner).await {
            Ok(loaded) => return loaded,
            Err(status) if matches!(status.code(), Code::NotFound | Code::FailedPrecondition) => {
                return Loaded::Gone;
            }
            Err(status) => {
                tracing::warn!(context = %key.0, flow = %key.1, %status, "a flow could not be read; trying again");
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }
}

async fn try_load(
    store: &mut FlowStoreClient,
    (context, flow): FlowKey,
    reading: Reading,
    owner: OwnerId,
) -> Result<Loaded, Status> {
    if matches!(reading, Reading::TakeOver) {
        let request = TakeFlowRequest { context_id: context.0, flow_id: flow.0, owner: owner.to_string() };
        store.take_flow(request).await?;
    }
    let request = LoadFlowRequest { context_id: context.0, flow_id: flow.0 };
    let mut parts = store.load_flow(request).await?.into_inner();
    let mut record = None;
    let mut nodes = Vec::new();
    while let Some(part) = parts.message().await? {
        record = record.or(part.flow);
        for stored in part.nodes {
            nodes.push(StoredNode {
                node: serde_json::from_slice(&stored.node_json).map_err(bad_store)?,
                job: Arc::new(serde_json::from_slice(&stored.job_json).map_err(bad_store)?),
            });
        }
    }
    let record = record.ok_or_else(|| bad_store("a flow without its record"))?;
    let (mut flow, context_uid) = convert::flow::from_record(record).map_err(bad_store)?;
    flow.jobs = nodes.iter().map(|stored| stored.node.job_id).collect();
    if flow.status.is_end() {
        return Ok(Loaded::Gone);
    }
    if flow.owner != Some(owner) {
        return Ok(Loaded::Elsewhere);
    }
    Ok(Loaded::Flow(Box::new(StartedFlow { context_uid, flow, nodes })))
}

/// Takes up every flow that runs and is not here; tries until storage has told them all.
pub async fn adopt_active(mut store: FlowStoreClient, driver: &Handle) {
    while let Err(status) = list_active(&mut store, driver).await {
        tracing::warn!(%status, "the flows that run cannot be read; trying again");
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

async fn list_active(store: &mut FlowStoreClient, driver: &Handle) -> Result<(), Status> {
    let mut parts = store.list_active_flows(ListActiveFlowsRequest {}).await?.into_inner();
    while let Some(part) = parts.message().await? {
        for flow in part.flows {
            driver.send(Event::Adopt((ContextId(flow.context_id), FlowId(flow.flow_id)))).await;
        }
    }
    Ok(())
}
