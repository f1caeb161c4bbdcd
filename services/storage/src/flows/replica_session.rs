//! Session of a scheduler replica: its lease, the live replicas, and the flows of it that others have touched.

use keys::FlowRef;
use model::ContextId;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{mpsc, watch};

use crate::error::{Error, Result};
use crate::flows::replicas::{LiveReplicas, ReplicaHello, ReplicaIncarnation, ReplicaLeases, owner_of};
use crate::watch::events::{EventHub, FlowHint};

/// Touched flows of one answer.
const TOUCHED_MAX: usize = 1000;

/// Event that is sent to a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReplicaEvent {
    /// Replicas that are alive.
    Replicas(LiveReplicas),
    /// Others have touched these flows of the replica.
    Touched(Vec<(ContextId, FlowRef)>),
    /// Any of its flows may have been touched.
    Resync,
}

/// Message in the stream from a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplicaHeartbeat {
    /// The replica is alive.
    Alive,
    /// The replica stops; it sends nothing more.
    Ends,
}

/// Session of one replica.
pub(crate) struct ReplicaSession {
    name: String,
    replica: ReplicaIncarnation,
    replicas: ReplicaLeases,
    live: watch::Receiver<LiveReplicas>,
    touches: Receiver<FlowHint>,
    went_back: watch::Receiver<u64>,
    out: mpsc::Sender<Result<ReplicaEvent>>,
}

impl ReplicaSession {
    /// Takes the lease. From now on, missed touches are followed by a resync.
    pub(crate) async fn begin(
        hub: &EventHub,
        replicas: &ReplicaLeases,
        ReplicaHello { name, replica, resumes: again }: ReplicaHello,
        out: mpsc::Sender<Result<ReplicaEvent>>,
    ) -> Result<Self> {
        let (touches, went_back) = (hub.touches(), hub.went_back().subscribe());
        replicas.acquire(&name, &replica, again).await?;
        let live = replicas.live();
        Ok(Self { name, replica, replicas: replicas.clone(), live, touches, went_back, out })
    }

    /// Sends events to the replica until it ends or leaves.
    ///
    /// # Errors
    /// When the lease is lost, or the replica's state is void because Redis lost changes.
    pub(crate) async fn run(&mut self, beats: &mut mpsc::Receiver<ReplicaHeartbeat>) -> Result<()> {
        let live = self.live.borrow_and_update().clone();
        self.send(ReplicaEvent::Replicas(live)).await;
        self.send(ReplicaEvent::Resync).await;
        loop {
            tokio::select! {
                biased;
                () = self.out.closed() => return Ok(()),
                changed = self.went_back.changed() => {
                    return if changed.is_ok() { Err(Error::StoreWentBack) } else { Ok(()) };
                }
                beat = beats.recv() => match beat {
                    Some(ReplicaHeartbeat::Alive) => self.beat().await?,
                    Some(ReplicaHeartbeat::Ends) => return self.replicas.release(&self.name, &self.replica).await,
                    // The stream broke: the lease ends by itself unless the replica joins again.
                    None => return Ok(()),
                },
                changed = self.live.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                    self.look_around().await?;
                }
                touch = self.touches.recv() => match touch {
                    Ok(touch) => self.touched(touch).await,
                    Err(RecvError::Lagged(_)) => self.send(ReplicaEvent::Resync).await,
                    Err(RecvError::Closed) => return Ok(()),
                },
            }
        }
    }

    async fn beat(&self) -> Result<()> {
        match self.replicas.renew(&self.name, &self.replica).await {
            // No other replica can take the lease while Redis is away; the next heartbeat shows whether it still holds.
            Err(Error::Store(error)) => {
                tracing::warn!(replica = self.name, %error, "a lease could not be renewed");
                Ok(())
            }
            result => result,
        }
    }

    async fn look_around(&mut self) -> Result<()> {
        let live = self.live.borrow_and_update().clone();
        if live.get(&self.name).is_none_or(|known| known.owner != self.replica.owner) {
            // The list may have been read just before the last heartbeat, so the lease itself is checked.
            self.beat().await?;
        }
        self.send(ReplicaEvent::Replicas(live)).await;
        Ok(())
    }

    /// Sends a touched flow, together with all others whose touches have arrived by now.
    async fn touched(&mut self, first: FlowHint) {
        let (mut flows, mut next) = (Vec::new(), Ok(first));
        let live = self.live.borrow().clone();
        loop {
            match next {
                Ok(FlowHint::Flow(context, flow))
                    if owner_of(&live, flow.uid) == Some(self.name.as_str()) =>
                {
                    flows.push((context, flow));
                }
                Ok(FlowHint::Flow(..)) => {}
                Ok(FlowHint::Any) | Err(TryRecvError::Lagged(_)) => {
                    return self.send(ReplicaEvent::Resync).await;
                }
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
            if flows.len() >= TOUCHED_MAX {
                break;
            }
            next = self.touches.try_recv();
        }
        if !flows.is_empty() {
            self.send(ReplicaEvent::Touched(flows)).await;
        }
    }

    async fn send(&self, event: ReplicaEvent) {
        // The replica may have left, which is noticed elsewhere.
        let _ = self.out.send(Ok(event)).await;
    }
}
