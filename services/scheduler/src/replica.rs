//! Replica session of the scheduler: its lease, which others live, and which flows they touch.
//!
//! Heartbeats that renew the lease go through the driver: a driver that hangs loses the lease, and other replicas
//! take over its flows.

use std::time::Duration;

use backoff::ExponentialBackoff;
use model::{ContextId, FlowId, FlowUid, OwnerId, Timestamp, limits};
use proto::internal::v1::join_response::News;
use proto::internal::v1::{ActiveFlow, JoinHello, JoinRequest, JoinResponse};
use rpc::RECONNECT_MAX;
use service::ReadinessCondition;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::clients::FlowStoreClient;
use crate::driver::{Handle, SchedulerEvent};
use crate::error::bad_store;
use crate::loaded_flow::FlowKey;

/// Several beats may be late before the lease ends.
const BEAT: Duration = Duration::from_millis(limits::LEASE_SECS as u64 * 1000 / 5);

/// How the others know this scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulerIdentity {
    /// Name of the replica: the same after a restart, different for each replica.
    pub name: String,
    /// Owner id of this start of the replica.
    pub owner: OwnerId,
    /// Address for routers; empty: in this process.
    pub address: String,
}

/// Something to do with a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueFlow {
    /// Key of the flow.
    pub key: FlowKey,
    /// Uid of the flow, which determines its owner.
    pub uid: FlowUid,
    /// Due time; nothing for now.
    pub due: Option<Timestamp>,
}

/// From the wire.
///
/// # Errors
/// The uid cannot be read.
pub fn due_flow_from_wire(flow: &ActiveFlow) -> Result<DueFlow, Status> {
    Ok(DueFlow {
        key: (ContextId(flow.context_id), FlowId(flow.flow_id)),
        uid: flow.flow_uid.parse().map_err(bad_store)?,
        due: (flow.due_millis > 0).then(|| Timestamp::from_millis(flow.due_millis)),
    })
}

/// Holds the lease until `stop` and forwards storage's events to the driver; `held` is met while the session's stream is open.
/// Ends the lease on return.
pub async fn hold_lease(
    mut store: FlowStoreClient,
    identity: SchedulerIdentity,
    (driver, held): (Handle, ReadinessCondition),
    stop: CancellationToken,
) {
    let mut backoff = ExponentialBackoff::up_to(RECONNECT_MAX);
    // State in memory is valid only if the lease never ended since it was read.
    let mut again = false;
    loop {
        let mut joined = false;
        let joining = join(&mut store, (&identity, again), (&driver, &held), &stop, &mut joined).await;
        again |= joined;
        if let Err(status) = &joining {
            held.unmet(status.message());
        }
        match joining {
            Ok(()) => return,
            Err(status) if status.code() == Code::Aborted => {
                tracing::warn!(%status, "the state in memory is void and is discarded");
                driver.send(SchedulerEvent::Invalidate).await;
                again = false;
            }
            Err(status) => tracing::warn!(%status, "the lease is not being held"),
        }
        if joined {
            backoff.reset();
        }
        tokio::select! {
            () = backoff.pause() => {}
            () = stop.cancelled() => return,
        }
    }
}

/// One stream. `Ok` after `stop`.
async fn join(
    store: &mut FlowStoreClient,
    (identity, again): (&SchedulerIdentity, bool),
    (driver, held): (&Handle, &ReadinessCondition),
    stop: &CancellationToken,
    joined: &mut bool,
) -> Result<(), Status> {
    let (requests, outgoing) = mpsc::channel(4);
    let SchedulerIdentity { name, owner, address } = identity.clone();
    let hello = JoinHello { name, owner: owner.to_string(), address, again };
    // The channel is empty: there is room.
    let _ = requests.send(JoinRequest { hello: Some(hello) }).await;
    let mut answers = store.join(ReceiverStream::new(outgoing)).await?.into_inner();
    let mut beats = tokio::time::interval_at(tokio::time::Instant::now() + BEAT, BEAT);
    beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut pulse: Option<oneshot::Receiver<()>> = None;
    loop {
        tokio::select! {
            answer = answers.message() => {
                let answer = answer?.ok_or_else(|| Status::unavailable("storage ended the stream"))?;
                if !std::mem::replace(joined, true) {
                    held.met();
                }
                take(driver, answer).await?;
            }
            _ = beats.tick(), if pulse.is_none() => {
                let (answer, answered) = oneshot::channel();
                driver.send(SchedulerEvent::LivenessProbe(answer)).await;
                pulse = Some(answered);
            }
            beaten = async { pulse.as_mut().expect("the condition says so").await }, if pulse.is_some() => {
                pulse = None;
                if beaten.is_ok() {
                    // A full channel means that storage does not read, and the lease will end.
                    let _ = requests.try_send(JoinRequest { hello: None });
                }
            }
            () = stop.cancelled() => {
                // Storage ends the lease when it sees the end of our half, and then the stream.
                drop(requests);
                while answers.message().await?.is_some() {}
                return Ok(());
            }
        }
    }
}

async fn take(driver: &Handle, answer: JoinResponse) -> Result<(), Status> {
    match answer.news {
        Some(News::Replicas(replicas)) => driver.send(SchedulerEvent::Replicas(replicas.names)).await,
        Some(News::Touched(touched)) => {
            for flow in &touched.flows {
                driver.send(SchedulerEvent::Touched(due_flow_from_wire(flow)?)).await;
            }
        }
        Some(News::Resync(_)) => driver.send(SchedulerEvent::Resync).await,
        None => {}
    }
    Ok(())
}
