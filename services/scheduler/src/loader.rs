//! Reading flows from storage, to own them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use backoff::ExponentialBackoff;
use flow::engine::StoredNode;
use model::{ContextUid, Flow, FlowId, FlowInput, FlowStatus, FlowUid, OwnerId, SignalName};
use proto::convert;
use proto::internal::v1::{
    AwaitFlowRequest, ListActiveFlowsRequest, LoadFlowRequest, LoadFlowResponse, ReadInputsRequest,
    TakeFlowRequest,
};
use tokio::sync::Semaphore;
use tonic::{Code, Status, Streaming};

use crate::clients::FlowStoreClient;
use crate::driver::{Handle, SchedulerEvent};
use crate::error::bad_store;
use crate::loaded_flow::FlowKey;
use crate::replica;

/// Delay between tries, while storage cannot be reached.
pub const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Maximum delay, after many tries.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(2);
/// Flows that are read at the same time.
pub const LOADS_MAX: usize = 32;

/// A flow as its owner begins with it.
#[derive(Debug)]
pub struct StartedFlow {
    /// Uid of the flow's context.
    pub context_uid: ContextUid,
    /// The flow.
    pub flow: Flow,
    /// Nodes of the flow.
    pub nodes: Vec<StoredNode>,
    /// The last step that was applied, or the change of owner.
    pub last_commit: String,
    /// The signals that were given.
    pub signals: BTreeSet<SignalName>,
    /// Inputs that no step has taken up yet, oldest first.
    pub inputs: Vec<FlowInput>,
    /// The flow had another owner before, or none.
    pub taken_over: bool,
}

/// Result of a reading.
#[derive(Debug)]
pub enum FlowLoadOutcome {
    /// The flow, owned by this scheduler.
    Flow(Box<StartedFlow>),
    /// The flow has ended, or is gone.
    Gone,
    /// The flow runs, and belongs to another scheduler.
    OwnedElsewhere,
}

/// Why a flow is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowLoadReason {
    /// To become its owner.
    TakeOver,
    /// To go on: the flow is ours, unless another scheduler has taken it.
    Again,
}

/// Reads a flow; retries while storage cannot be reached or its answer cannot be read. `loads` bounds
/// how many flows are read at the same time, not counting those that wait for their next try.
pub async fn load(
    mut store: FlowStoreClient,
    key: FlowKey,
    reading: FlowLoadReason,
    owner: OwnerId,
    loads: &Semaphore,
) -> FlowLoadOutcome {
    let mut backoff = ExponentialBackoff::between(RETRY_DELAY, RETRY_DELAY_MAX);
    loop {
        let loaded = {
            // Never closed.
            let _permit = loads.acquire().await;
            try_load(&mut store, key, reading, owner).await
        };
        match loaded {
            Ok(loaded) => return loaded,
            Err(status) if is_gone(&status) => return FlowLoadOutcome::Gone,
            Err(status) => {
                tracing::warn!(context = %key.0, flow = %key.1, %status, "a flow could not be read; trying again");
                backoff.pause().await;
            }
        }
    }
}

fn is_gone(status: &Status) -> bool {
    matches!(status.code(), Code::NotFound | Code::FailedPrecondition)
}

async fn try_load(
    store: &mut FlowStoreClient,
    (context, flow): FlowKey,
    reading: FlowLoadReason,
    owner: OwnerId,
) -> Result<FlowLoadOutcome, Status> {
    if reading == FlowLoadReason::TakeOver {
        let request = TakeFlowRequest { context_id: context.0, flow_id: flow.0, owner: owner.to_string() };
        store.take_flow(request).await?;
    }
    let request = LoadFlowRequest { context_id: context.0, flow_id: flow.0, on_behalf_of: 0 };
    let parts = store.load_flow(request).await?.into_inner();
    let mut started = collect(parts).await?;
    started.taken_over = reading == FlowLoadReason::TakeOver;
    if started.flow.status.is_end() {
        return Ok(FlowLoadOutcome::Gone);
    }
    if started.flow.owner != Some(owner) {
        return Ok(FlowLoadOutcome::OwnedElsewhere);
    }
    Ok(FlowLoadOutcome::Flow(Box::new(started)))
}

/// Puts the parts of a flow together.
///
/// # Errors
/// As storage's; INTERNAL when what it sends cannot be read.
pub async fn collect(mut parts: Streaming<LoadFlowResponse>) -> Result<StartedFlow, Status> {
    let mut record = None;
    let mut nodes = Vec::new();
    let mut signals = BTreeSet::new();
    let mut inputs = Vec::new();
    while let Some(part) = parts.message().await? {
        record = record.or(part.flow);
        for name in part.signals {
            signals.insert(name.parse().map_err(bad_store)?);
        }
        for input in part.inputs {
            inputs.push(serde_json::from_slice(&input).map_err(bad_store)?);
        }
        for stored in part.nodes {
            nodes.push(StoredNode {
                node: serde_json::from_slice(&stored.node_json).map_err(bad_store)?,
                job: Arc::new(serde_json::from_slice(&stored.job_json).map_err(bad_store)?),
            });
        }
    }
    let record = record.ok_or_else(|| bad_store("a flow without its record"))?;
    let convert::flow::OwnedFlowRecord { mut flow, context_uid, last_commit, .. } =
        convert::flow::from_record(record).map_err(bad_store)?;
    flow.jobs = nodes.iter().map(|stored: &StoredNode| stored.node.job_id).collect();
    Ok(StartedFlow { context_uid, flow, nodes, last_commit, signals, inputs, taken_over: false })
}

/// Reads a flow's inbox after its `known` oldest entries; retries while storage
/// cannot be reached. Nothing when the flow is gone or an entry cannot be read.
pub async fn read_inbox(
    mut store: FlowStoreClient,
    (context, flow): FlowKey,
    uid: FlowUid,
    known: usize,
) -> Option<Vec<FlowInput>> {
    let mut inputs = Vec::new();
    loop {
        let request = ReadInputsRequest {
            context_id: context.0,
            flow_id: flow.0,
            flow_uid: uid.to_string(),
            known: u32::try_from(known + inputs.len()).unwrap_or(u32::MAX),
        };
        match store.read_inputs(request).await {
            Ok(answer) => {
                // Answers are limited in bytes, so only an empty one marks the end.
                let part = answer.into_inner().inputs;
                if part.is_empty() {
                    return Some(inputs);
                }
                for input in part {
                    inputs.push(serde_json::from_slice(&input).ok()?);
                }
            }
            Err(status) if is_gone(&status) => return None,
            Err(status) => {
                tracing::warn!(context = %context, flow = %flow, %status, "an inbox could not be read; trying again");
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }
}

/// Reads another flow's status and registers for a touch at its end; retries while storage cannot be
/// reached. Nothing when there is no such flow.
pub async fn await_flow(
    mut store: FlowStoreClient,
    (context, flow): FlowKey,
    uid: FlowUid,
    awaited: FlowId,
) -> Option<FlowStatus> {
    let request = AwaitFlowRequest {
        context_id: context.0,
        flow_id: flow.0,
        flow_uid: uid.to_string(),
        awaited_flow_id: awaited.0,
    };
    loop {
        match store.await_flow(request.clone()).await {
            Ok(answer) => return convert::enums::flow_status_from_wire(answer.into_inner().status),
            // The asking flow itself is gone, so the answer is not used.
            Err(status) if is_gone(&status) => return None,
            Err(status) => {
                tracing::warn!(context = %context, flow = %flow, %status, "an awaited flow could not be read; trying again");
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }
}

/// Sends the driver every flow that has something to do; retries until storage has listed them all.
pub async fn list_active(mut store: FlowStoreClient, driver: Handle) {
    while let Err(status) = try_list(&mut store, &driver).await {
        tracing::warn!(%status, "the flows that have something to do cannot be read; trying again");
        tokio::time::sleep(RETRY_DELAY).await;
    }
    driver.send(SchedulerEvent::Listed(Vec::new(), true)).await;
}

async fn try_list(store: &mut FlowStoreClient, driver: &Handle) -> Result<(), Status> {
    let mut parts = store.list_active_flows(ListActiveFlowsRequest {}).await?.into_inner();
    while let Some(part) = parts.message().await? {
        let active: Result<_, _> = part.flows.iter().map(replica::due_flow_from_wire).collect();
        driver.send(SchedulerEvent::Listed(active?, false)).await;
    }
    Ok(())
}
