//! A subscription to a cluster: one to each primary.
//!
//! A message that is published at one node arrives at all of them. It is taken from the node that serves the channel's slot, so
//! once; and since scripts publish on channels of the slot that they change, it comes from the node that made the change.
//! A change of that node counts as a loss, since the new one may lack messages of the former one.

use std::collections::HashMap;
use std::sync::Arc;

use backoff::ExponentialBackoff;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::cluster::{Cluster, ClusterSlotMap};
use crate::endpoint::RedisAddress;
use crate::error::Error;
use crate::slot;
use crate::subscription::{KvSubscriptionEvent, RETRY_MAX, ServerSubscription, Topic};

/// Notices that were not taken yet, before the subscribing tasks are held back.
const NOTICES_BUFFER: usize = 256;

/// Passes on what its task receives. The task begins with the first call of `next` and ends when this is dropped.
pub(super) struct ClusterSubscription {
    cluster: Arc<Cluster>,
    topics: Vec<Topic>,
    begun: Option<ClusterSubscriptionHandle>,
}

struct ClusterSubscriptionHandle {
    notices: mpsc::Receiver<KvSubscriptionEvent>,
    task: AbortHandle,
}

impl Drop for ClusterSubscriptionHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl std::fmt::Debug for ClusterSubscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ClusterSubscription({}, {:?})", self.cluster.shown, self.topics)
    }
}

impl ClusterSubscription {
    pub(super) const fn new(cluster: Arc<Cluster>, topics: Vec<Topic>) -> Self {
        Self { cluster, topics, begun: None }
    }

    /// Waits for the next event, as [`crate::KvSubscription::next`] does.
    pub(super) async fn next(&mut self) -> KvSubscriptionEvent {
        let begun = self.begun.get_or_insert_with(|| {
            let (sender, notices) = mpsc::channel(NOTICES_BUFFER);
            let task = ClusterSubscriptionTask::new(Arc::clone(&self.cluster), self.topics.clone(), sender);
            ClusterSubscriptionHandle { notices, task: tokio::spawn(task.run()).abort_handle() }
        });
        match begun.notices.recv().await {
            Some(notice) => notice,
            // The runtime is ending.
            None => std::future::pending().await,
        }
    }
}

/// Event of the listener at one node.
type ClusterNodeEvent = (RedisAddress, KvSubscriptionEvent);

struct ClusterSubscriptionTask {
    cluster: Arc<Cluster>,
    topics: Vec<Topic>,
    event_sender: mpsc::Sender<KvSubscriptionEvent>,
    node_events: mpsc::Receiver<ClusterNodeEvent>,
    node_event_sender: mpsc::Sender<ClusterNodeEvent>,
    listening: HashMap<RedisAddress, ClusterNodeSubscription>,
    map: Arc<ClusterSlotMap>,
}

/// A task that listens to one node, which ends with this.
struct ClusterNodeSubscription {
    task: AbortHandle,
    is_subscribed: bool,
}

impl Drop for ClusterNodeSubscription {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ClusterSubscriptionTask {
    fn new(cluster: Arc<Cluster>, topics: Vec<Topic>, sender: mpsc::Sender<KvSubscriptionEvent>) -> Self {
        let (node_event_sender, node_events) = mpsc::channel(NOTICES_BUFFER);
        Self {
            cluster,
            topics,
            event_sender: sender,
            node_events,
            node_event_sender,
            listening: HashMap::new(),
            map: Arc::default(),
        }
    }

    async fn run(mut self) {
        let mut changes = self.cluster.changes();
        let mut backoff = ExponentialBackoff::up_to(RETRY_MAX);
        while let Err(error) = self.cluster.map().await {
            self.send(KvSubscriptionEvent::Lost(error)).await;
            backoff.pause().await;
        }
        changes.mark_unchanged();
        self.follow();
        loop {
            tokio::select! {
                biased;
                // The sender lives as long as the cluster.
                _ = changes.changed() => {
                    self.follow();
                    if self.is_any_subscribed() {
                        self.subscribed().await;
                    }
                }
                event = self.node_events.recv() => match event {
                    Some((address, notice)) => self.handle(address, notice).await,
                    None => return,
                },
            }
        }
    }

    /// Subscribes at all nodes that serve something, and at no others.
    fn follow(&mut self) {
        self.map = self.cluster.cached_map();
        let primaries = self.map.primaries();
        self.listening.retain(|known, _| primaries.iter().any(|(address, _)| address == known));
        for (address, link) in primaries {
            self.listening.entry(address.clone()).or_insert_with(|| {
                let listener = ServerSubscription::new(Arc::clone(&link.server), self.topics.clone());
                let task = tokio::spawn(listen(listener, address.clone(), self.node_event_sender.clone()));
                ClusterNodeSubscription { task: task.abort_handle(), is_subscribed: false }
            });
        }
    }

    async fn handle(&mut self, address: RedisAddress, notice: KvSubscriptionEvent) {
        let is_subscribed = self.listening.get_mut(&address).map(|listening| &mut listening.is_subscribed);
        // From one that was just left.
        let Some(is_subscribed) = is_subscribed else { return };
        match notice {
            KvSubscriptionEvent::Message { channel, payload } => {
                let serves =
                    self.map.owner(slot::of_name(&channel)).is_some_and(|(owner, _)| *owner == address);
                if serves {
                    self.send(KvSubscriptionEvent::Message { channel, payload }).await;
                }
            }
            KvSubscriptionEvent::Subscribed => {
                *is_subscribed = true;
                self.subscribed().await;
            }
            KvSubscriptionEvent::Lost(error) => {
                *is_subscribed = false;
                self.lost(error).await;
            }
            // Never comes of one node.
            KvSubscriptionEvent::Partial => {}
        }
    }

    async fn subscribed(&self) {
        self.send(KvSubscriptionEvent::Subscribed).await;
        if !self.listening.values().all(|listening| listening.is_subscribed) {
            self.send(KvSubscriptionEvent::Partial).await;
        }
    }

    async fn lost(&mut self, error: Error) {
        if self.is_any_subscribed() {
            tracing::warn!(%error, "a node of the cluster is not subscribed to until it, or its successor, is back");
            self.send(KvSubscriptionEvent::Partial).await;
        } else {
            self.send(KvSubscriptionEvent::Lost(error)).await;
        }
        if let Err(error) = self.cluster.read_after(&self.cluster.cached_map()).await {
            tracing::debug!(%error, "cannot read the primaries of the cluster");
        }
    }

    fn is_any_subscribed(&self) -> bool {
        self.listening.values().any(|listening| listening.is_subscribed)
    }

    async fn send(&self, notice: KvSubscriptionEvent) {
        // The receiver may be gone; this task is then about to end.
        let _ = self.event_sender.send(notice).await;
    }
}

async fn listen(
    mut listener: ServerSubscription,
    address: RedisAddress,
    node_event_sender: mpsc::Sender<ClusterNodeEvent>,
) {
    loop {
        let notice = listener.next().await;
        if node_event_sender.send((address.clone(), notice)).await.is_err() {
            return;
        }
    }
}
