//! A bus over a Mycelium daemon, through its JSON-RPC API.
//!
//! The daemon carries messages from node to node and authenticates their senders. It keeps them in memory
//! only, hands each over at most once, in any order, never delivers some sizes, and does nothing else while
//! a pop waits. On top of it the bus guarantees: a payload is handed to the listener once for each time that it
//! was sent, or its sender learns that it was not.
//!
//! - Every frame carries its sender's number for it, a deadline and a length ([`frame`]), and is padded
//!   to a size that arrives. Long payloads go in parts ([`reassembly`]). Plain JSON-RPC is passed through unchanged.
//! - The bus at the other end acknowledges each frame by a reply; the sender pushes it again until it has
//!   one, from the key that it sent to ([`outgoing`]). Duplicates are found by their number ([`duplicates`]).
//! - A node that does not answer is probed with one message at a time, more and more rarely; messages
//!   for other nodes are not held up ([`node_channel`]).
//! - Messages are looked for without waiting, kept in the daemon until they are persisted, then taken
//!   out and acknowledged ([`incoming`]).
//! - A daemon that is down is dialled again and again; outgoing messages wait, until their deadline
//!   ([`connection`]).
//!
//! Persisting is the task of the JSON-RPC handler: a supervisor stores a job before it answers
//! `job.run`, a coordinator an event. [`crate::BusPeers`] gives the receipt when the handler is done, and
//! the caller repeats its call until it was answered; job keys reveal repetitions, also those that this
//! bus cannot recognize because it was restarted.

mod api;
mod connection;
mod duplicates;
mod flags;
mod frame;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod incoming;
mod metrics;
mod node_channel;
mod outgoing;
mod reassembly;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::bus::{Bus, BusDestination, BusError, BusInbox, BusStatus, CLOCK_SKEW, Datagram, PublicKey};

use api::DaemonApiError;
use connection::DaemonConnection;
use incoming::TopicListeners;
use node_channel::NodeChannels;
use outgoing::{AwaitedAcks, LateAnswers, unreachable};

pub use flags::MyceliumFlags;
pub use frame::{FRAME_BYTES_MAX, MESSAGE_BYTES_MAX, PART_BYTES_MAX};
pub use metrics::Metrics;
pub use node_channel::IN_FLIGHT_MAX;

/// The default port of a daemon's API.
pub const PORT_DEFAULT: u16 = 8990;

/// Which daemon, and how it is used.
#[derive(Debug, Clone)]
pub struct Config {
    /// `ws://host:port` or `http://host:port`. A WebSocket carries more at once.
    pub url: String,
    /// Only this process uses the daemon: messages of all topics are taken with one call, and those that no one
    /// here wants are dropped. Else only topics that are listened to are touched.
    pub alone: bool,
    /// Times.
    pub timings: Timings,
}

impl Config {
    /// A daemon that others may use as well.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), alone: false, timings: Timings::default() }
    }

    /// Uses a daemon that others may use as well, by its address, over WebSocket.
    #[must_use]
    pub fn at(ip: IpAddr, port: u16) -> Self {
        Self::new(format!("ws://{}", SocketAddr::new(ip, port)))
    }
}

/// How long what may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timings {
    /// How long a payload without a deadline of its own is wanted.
    pub patience: Duration,
    /// How long a push waits for its acknowledgement, in whole seconds, before the node is taken for absent.
    pub reply_secs: u64,
    /// How long a plain payload waits for a reply, in whole seconds; it may never be answered by one.
    pub plain_reply_secs: u64,
    /// The first pause before an absent node is tried again; doubles up to [`Timings::probe_max`].
    pub probe_min: Duration,
    /// The longest.
    pub probe_max: Duration,
    /// The pause after a look for messages that found none; doubles up to [`Timings::poll_max`].
    pub poll_min: Duration,
    /// The longest.
    pub poll_max: Duration,
    /// How long a message may stay in the daemon, in front of all others, until it is persisted.
    pub hold: Duration,
    /// By how much clocks of two machines may differ: what came later than its deadline by more is dropped.
    pub clock_slack: Duration,
    /// The first pause before a daemon that is down is dialled again; doubles up to
    /// [`Timings::reconnect_max`].
    pub reconnect_min: Duration,
    /// The longest.
    pub reconnect_max: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(60),
            reply_secs: 5,
            plain_reply_secs: 2,
            probe_min: Duration::from_secs(1),
            probe_max: Duration::from_secs(30),
            poll_min: Duration::from_millis(5),
            poll_max: Duration::from_millis(50),
            hold: Duration::from_millis(100),
            clock_slack: CLOCK_SKEW,
            reconnect_min: Duration::from_millis(100),
            reconnect_max: Duration::from_secs(5),
        }
    }
}

/// The text does not say where a daemon is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a Mycelium daemon is named by ws://host:port or http://host:port, not by `{0}`")]
pub struct BadUrl(String);

/// A node of the real overlay. Ends, with everything that it does, when it is dropped.
#[derive(Debug)]
pub struct DaemonBus {
    shared: Arc<DaemonBusInner>,
    tasks: [JoinHandle<()>; 2],
}

#[derive(Debug)]
struct DaemonBusInner {
    alone: bool,
    timings: Timings,
    metrics: Metrics,
    connection: DaemonConnection,
    channels: NodeChannels,
    listeners: TopicListeners,
    acknowledgements: AwaitedAcks,
    late_answers: LateAnswers,
}

impl DaemonBus {
    /// Starts the client of a daemon, which need not be there yet. Has to be called within a Tokio runtime.
    ///
    /// # Errors
    /// [`BadUrl`].
    pub fn start(config: &Config, metrics: Metrics) -> Result<Self, BadUrl> {
        let authority = config.url.strip_prefix("ws://").or_else(|| config.url.strip_prefix("http://"));
        if authority.is_none_or(|rest| rest.trim_end_matches('/').rsplit_once(':').is_none()) {
            return Err(BadUrl(config.url.clone()));
        }
        let shared = Arc::new(DaemonBusInner {
            alone: config.alone,
            timings: config.timings,
            connection: DaemonConnection::new(config, metrics.clone()),
            channels: NodeChannels::new(config.timings, metrics.absent.clone()),
            metrics,
            listeners: TopicListeners::default(),
            acknowledgements: AwaitedAcks::default(),
            late_answers: LateAnswers::default(),
        });
        let connecting = Arc::clone(&shared);
        let connecting = tokio::spawn(async move { connecting.connection.keep().await });
        let receiving = incoming::spawn(&shared);
        Ok(Self { shared, tasks: [connecting, receiving] })
    }
}

impl Drop for DaemonBus {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl DaemonBusInner {
    fn own_key(&self) -> Option<PublicKey> {
        self.connection.status().borrow().key()
    }

    async fn key_of(&self, ip: Ipv6Addr) -> Result<PublicKey, BusError> {
        let (api, _place) = self.connection.permit(true).await;
        api.key_of(ip).await.map_err(|error| {
            self.connection.failed(&api, &error);
            match error {
                DaemonApiError::Down(problem) => BusError::Down(problem),
                _ => unreachable(BusDestination::Ip(ip), ""),
            }
        })
    }
}

#[async_trait]
impl Bus for DaemonBus {
    fn key(&self) -> Option<PublicKey> {
        self.shared.own_key()
    }

    fn kind(&self) -> &'static str {
        "mycelium"
    }

    fn status(&self) -> watch::Receiver<BusStatus> {
        self.shared.connection.status()
    }

    fn window(&self) -> usize {
        // Twice as many, so that there is always one that waits for its turn.
        IN_FLIGHT_MAX * 2
    }

    async fn key_of(&self, ip: Ipv6Addr) -> Result<PublicKey, BusError> {
        let lookup = self.shared.key_of(ip);
        let found = tokio::time::timeout(self.shared.timings.patience, lookup).await;
        found.unwrap_or_else(|_| Err(BusError::Down(self.shared.connection.problem())))
    }

    async fn send(&self, parcel: Datagram<'_>) -> Result<(), BusError> {
        self.shared.send(parcel).await
    }

    async fn ping(&self, to: BusDestination, topic: &str, deadline: Instant) -> Result<(), BusError> {
        self.shared.ping(to, topic, deadline).await
    }

    fn listen(&self, topic: &str) -> Result<BusInbox, BusError> {
        self.shared.listeners.listen(topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[tokio::test]
    async fn a_daemon_is_named_by_scheme_host_and_port() {
        let start = |url: &str| {
            let metrics = Metrics::new(&prometheus::Registry::new()).expect("new names");
            DaemonBus::start(&Config::new(url), metrics).map(drop)
        };
        let own = Config::at(Ipv4Addr::LOCALHOST.into(), PORT_DEFAULT).url;
        assert_eq!(own, "ws://127.0.0.1:8990");
        for good in [&own, "http://daemon:1/", &Config::at(Ipv6Addr::LOCALHOST.into(), 1).url] {
            assert_eq!(start(good), Ok(()));
        }
        for bad in ["", "127.0.0.1:8990", "wss://a:1", "https://a:1", "ws://a", "http://"] {
            assert_eq!(start(bad), Err(BadUrl(bad.to_owned())));
        }
    }
}
