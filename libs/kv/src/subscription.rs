//! Publish and subscribe: hints that may be lost.

use std::sync::Arc;
use std::time::Duration;

use backoff::ExponentialBackoff;
use futures_util::StreamExt;
use redis::aio::{PubSubSink, PubSubStream};
use tokio::sync::watch;

use crate::cluster::Cluster;
use crate::endpoint::RedisAddress;
use crate::error::{Error, Result};
use crate::server::KvServer;
use crate::subscription::cluster_subscription::ClusterSubscription;

mod cluster_subscription;

/// How often a silent subscription is checked, since a line that swallows everything looks just so.
const CHECK_INTERVAL: Duration = Duration::from_secs(15);
/// The longest pause between attempts to connect.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// Channels to listen to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Topic {
    /// One channel.
    Channel(String),
    /// Every channel that matches, as in `__keyevent@*__:lpush`.
    Pattern(String),
}

/// Event of a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvSubscriptionEvent {
    /// Subscribed, for the first time or again. Messages that were published before may have been missed: read
    /// once what the hints are about.
    Subscribed,
    /// The connection was lost; hints are missed until the next [`KvSubscriptionEvent::Subscribed`]. Of a cluster: all connections.
    /// While only some nodes are away, messages of the others still come, and each node that comes back, or its successor, causes
    /// a [`KvSubscriptionEvent::Subscribed`].
    Lost(Error),
    /// Some nodes of a cluster are not subscribed to, or not yet, and others are. Comes again with each attempt that fails, and
    /// after each [`KvSubscriptionEvent::Subscribed`] that leaves some of them out: one without it means all nodes.
    Partial,
    /// Something was published.
    Message {
        /// Name of the channel.
        channel: String,
        /// Published bytes.
        payload: Vec<u8>,
    },
}

/// A subscription that renews itself for ever.
#[derive(Debug)]
pub struct KvSubscription(KvSubscriptionKind);

#[derive(Debug)]
enum KvSubscriptionKind {
    One(ServerSubscription),
    Everywhere(ClusterSubscription),
}

impl KvSubscription {
    pub(crate) fn to_one(server: Arc<KvServer>, topics: Vec<Topic>) -> Self {
        Self(KvSubscriptionKind::One(ServerSubscription::new(server, topics)))
    }

    pub(crate) fn to_cluster(cluster: Arc<Cluster>, topics: Vec<Topic>) -> Self {
        Self(KvSubscriptionKind::Everywhere(ClusterSubscription::new(cluster, topics)))
    }

    /// Waits for the next notice. Never ends; goes on after every loss.
    ///
    /// May be dropped and called again: no notice is lost by that, except that an attempt to connect
    /// starts over.
    pub async fn next(&mut self) -> KvSubscriptionEvent {
        match &mut self.0 {
            KvSubscriptionKind::One(listener) => listener.next().await,
            KvSubscriptionKind::Everywhere(everywhere) => everywhere.next().await,
        }
    }
}

/// Listens to one server.
struct ServerSubscription {
    server: Arc<KvServer>,
    topics: Vec<Topic>,
    open: Option<PubSubConnection>,
    backoff: ExponentialBackoff,
    retrying: bool,
    moves: watch::Receiver<Option<RedisAddress>>,
}

struct PubSubConnection {
    sink: PubSubSink,
    stream: PubSubStream,
}

impl std::fmt::Debug for ServerSubscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ServerSubscription({}, {:?})", self.server.shown, self.topics)
    }
}

impl ServerSubscription {
    fn new(server: Arc<KvServer>, topics: Vec<Topic>) -> Self {
        let moves = server.address_changes();
        Self {
            server,
            topics,
            open: None,
            backoff: ExponentialBackoff::up_to(RETRY_MAX),
            retrying: false,
            moves,
        }
    }

    /// Waits for the next event, as [`KvSubscription::next`] does.
    async fn next(&mut self) -> KvSubscriptionEvent {
        loop {
            let Some(open) = &mut self.open else {
                if self.retrying {
                    self.backoff.pause().await;
                }
                self.retrying = true;
                match self.connect().await {
                    Ok(open) => {
                        (self.open, self.retrying) = (Some(open), false);
                        self.backoff.reset();
                        return KvSubscriptionEvent::Subscribed;
                    }
                    Err(error) => return KvSubscriptionEvent::Lost(error),
                }
            };
            let message = tokio::select! {
                biased;
                message = tokio::time::timeout(CHECK_INTERVAL, open.stream.next()) => message,
                Ok(()) = self.moves.changed() => return self.lost("another server took its place".to_owned()),
            };
            match message {
                Ok(Some(message)) => {
                    return KvSubscriptionEvent::Message {
                        channel: message.get_channel_name().to_owned(),
                        payload: message.get_payload_bytes().to_vec(),
                    };
                }
                Ok(None) => return self.lost("the connection was closed".to_owned()),
                Err(_) => {
                    let patience = self.server.options.response_timeout;
                    let answer = tokio::time::timeout(patience, open.sink.ping::<redis::Value>()).await;
                    match answer {
                        Ok(Ok(_)) => {}
                        Ok(Err(error)) => return self.lost(error.to_string()),
                        Err(_) => return self.lost("no answer to a ping".to_owned()),
                    }
                }
            }
        }
    }

    fn lost(&mut self, reason: String) -> KvSubscriptionEvent {
        self.open = None;
        KvSubscriptionEvent::Lost(Error::Unreachable { endpoint: self.server.shown.clone(), reason })
    }

    async fn connect(&mut self) -> Result<PubSubConnection> {
        let failed = |error: &redis::RedisError| Error::of_connecting(&self.server.shown, error);
        let client = self.server.client(0).await?;
        self.moves.mark_unchanged();
        let patience = self.server.options.connect_timeout;
        let work = async {
            let (mut sink, stream) = client.get_async_pubsub().await.map_err(|error| failed(&error))?.split();
            for topic in &self.topics {
                match topic {
                    Topic::Channel(name) => sink.subscribe(name).await,
                    Topic::Pattern(pattern) => sink.psubscribe(pattern).await,
                }
                .map_err(|error| failed(&error))?;
            }
            Ok(PubSubConnection { sink, stream })
        };
        tokio::time::timeout(patience, work).await.unwrap_or_else(|_| {
            Err(Error::Unreachable {
                endpoint: self.server.shown.clone(),
                reason: format!("no connection within {patience:?}"),
            })
        })
    }
}
