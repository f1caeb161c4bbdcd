//! State of one connection of a stranger: what it has shown so far, and whether it has to leave.
//!
//! A stranger is a peer without a client certificate. It becomes known with the first token that is accepted on its
//! connection. Until then it is let in for [`IDENTITY_TIMEOUT`] only, and the first to go where room is short.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use model::ActorId;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::gate::methods::CALL_SECS_MAX;
use crate::lock::lock;
use crate::server::actor_connections::{ActorConnectionGuard, ActorConnections};

/// How long a connection may last without having shown an identity, from the moment that it was accepted.
pub(crate) const IDENTITY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection that was asked to leave may take to do so.
pub(crate) const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the calls of a stranger may take once its connection was asked to leave.
const CALLS_TIMEOUT: Duration = Duration::from_secs(CALL_SECS_MAX);

/// Shared state of one connection: the server, the tables that count it, and the calls on it hold it together.
#[derive(Debug)]
pub(crate) struct StrangerConnectionState {
    accepted_at: Instant,
    activity: watch::Sender<ConnectionActivity>,
    evicted: CancellationToken,
    actors: ActorConnections,
    /// Counts the connection as one of the actor's.
    of_actor: Mutex<Option<ActorConnectionGuard>>,
}

/// Progress of a connection.
#[derive(Debug, Clone, Copy, Default)]
struct ConnectionActivity {
    /// The actor whose token was accepted last.
    actor: Option<ActorId>,
    /// True when the first message has come and the handshake has not ended.
    is_greeting: bool,
    /// Calls under way.
    calls: usize,
}

/// How strongly a connection holds its place when places are short, from weak to strong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum EvictionClass {
    /// A stranger that asks for nothing now.
    Idle,
    /// A peer in the middle of a handshake, whose first message has come.
    Greeting,
    /// A stranger with calls under way.
    Calling,
    /// A known actor that asks for nothing now.
    Known(ActorId),
}

impl EvictionClass {
    /// Orders the classes: the smallest goes first.
    pub(crate) const fn rank(self) -> u8 {
        match self {
            Self::Idle => 0,
            Self::Greeting => 1,
            Self::Calling => 2,
            Self::Known(_) => 3,
        }
    }
}

/// Why a connection has to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DisconnectReason {
    /// No identity was shown in time.
    Unidentified,
    /// The connection's place was given to a newer one.
    Evicted,
}

impl DisconnectReason {
    /// Name of the reason, as a label of metrics.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Unidentified => "unidentified",
            Self::Evicted => "evicted",
        }
    }
}

/// A handshake whose first message has come, until it is dropped.
#[derive(Debug)]
pub(crate) struct HandshakeGuard(Arc<StrangerConnectionState>);

/// One call under way, until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionCallGuard(Arc<StrangerConnectionState>);

impl StrangerConnectionState {
    /// Creates the state of a connection that was accepted just now.
    pub(crate) fn accepted(actors: ActorConnections) -> Arc<Self> {
        Arc::new(Self {
            accepted_at: Instant::now(),
            activity: watch::Sender::new(ConnectionActivity::default()),
            evicted: CancellationToken::new(),
            actors,
            of_actor: Mutex::default(),
        })
    }

    /// Notes that a token of this actor was accepted; refuses it where the actor has too many connections.
    pub(crate) fn identify(&self, actor: ActorId) -> Result<(), Error> {
        {
            let mut of_actor = lock(&self.of_actor);
            if of_actor.as_ref().is_none_or(|held| held.actor != actor) {
                *of_actor = Some(self.actors.take(actor)?);
            }
        }
        self.activity.send_if_modified(|activity| activity.actor.replace(actor) != Some(actor));
        Ok(())
    }

    /// Notes that the first message of a handshake has come.
    pub(crate) fn greet(self: &Arc<Self>) -> HandshakeGuard {
        self.activity.send_modify(|activity| activity.is_greeting = true);
        HandshakeGuard(Arc::clone(self))
    }

    /// Counts a call as under way.
    pub(crate) fn begin_call(self: &Arc<Self>) -> ConnectionCallGuard {
        self.activity.send_modify(|activity| activity.calls += 1);
        ConnectionCallGuard(Arc::clone(self))
    }

    /// Takes the place of the connection away from it.
    pub(crate) fn evict(&self) {
        self.evicted.cancel();
    }

    /// Returns true when the place of the connection was taken away.
    pub(crate) fn is_evicted(&self) -> bool {
        self.evicted.is_cancelled()
    }

    /// Waits until the place of the connection was taken away. Cancel safe.
    pub(crate) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }

    /// EvictionClass of the connection to its place; nothing where it cannot be given up.
    pub(crate) fn eviction_class(&self) -> Option<EvictionClass> {
        match *self.activity.borrow() {
            ConnectionActivity { actor: Some(_), calls: 1.., .. } => None,
            ConnectionActivity { actor: Some(actor), .. } => Some(EvictionClass::Known(actor)),
            ConnectionActivity { calls: 1.., .. } => Some(EvictionClass::Calling),
            ConnectionActivity { is_greeting: true, .. } => Some(EvictionClass::Greeting),
            ConnectionActivity { .. } => Some(EvictionClass::Idle),
        }
    }

    /// Waits until the connection has to leave, and says why. Cancel safe.
    pub(crate) async fn disconnect_requested(&self) -> DisconnectReason {
        tokio::select! {
            () = self.evicted() => DisconnectReason::Evicted,
            () = tokio::time::sleep_until(self.accepted_at + IDENTITY_TIMEOUT) => {
                if self.activity.borrow().actor.is_none() {
                    return DisconnectReason::Unidentified;
                }
                self.evicted().await;
                DisconnectReason::Evicted
            }
        }
    }

    /// Waits until a connection that was asked to leave has had its time: calls of a known actor are finished, those of a
    /// stranger only where its place is not needed. Cancel safe.
    pub(crate) async fn farewell(&self, why: DisconnectReason) {
        let is_known = self.activity.borrow().actor.is_some();
        let finished = async {
            // The sender is `self`: it cannot be gone.
            drop(self.activity.subscribe().wait_for(|activity| activity.calls == 0).await);
        };
        match why {
            _ if is_known => finished.await,
            DisconnectReason::Unidentified => drop(tokio::time::timeout(CALLS_TIMEOUT, finished).await),
            DisconnectReason::Evicted => {}
        }
        tokio::time::sleep(LEAVE_TIMEOUT).await;
    }
}

impl Drop for HandshakeGuard {
    fn drop(&mut self) {
        self.0.activity.send_modify(|activity| activity.is_greeting = false);
    }
}

impl Drop for ConnectionCallGuard {
    fn drop(&mut self) {
        self.0.activity.send_modify(|activity| activity.calls -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_classed_by_what_it_has_shown() {
        let state = StrangerConnectionState::accepted(ActorConnections::default());
        assert_eq!(state.eviction_class(), Some(EvictionClass::Idle));
        let greeting = state.greet();
        assert_eq!(state.eviction_class(), Some(EvictionClass::Greeting));
        drop(greeting);
        assert_eq!(state.eviction_class(), Some(EvictionClass::Idle));
        let call = state.begin_call();
        assert_eq!(state.eviction_class(), Some(EvictionClass::Calling));
        state.identify(ActorId(7)).expect("room");
        assert_eq!(state.eviction_class(), None, "a known caller has a call under way");
        drop(call);
        assert_eq!(state.eviction_class(), Some(EvictionClass::Known(ActorId(7))));
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_leave_in_time_and_known_actors_do_not() {
        let [stranger, known] =
            [(); 2].map(|()| StrangerConnectionState::accepted(ActorConnections::default()));
        known.identify(ActorId(7)).expect("room");
        let began = Instant::now();
        assert_eq!(stranger.disconnect_requested().await, DisconnectReason::Unidentified);
        assert_eq!(began.elapsed(), IDENTITY_TIMEOUT);
        tokio::time::timeout(CALLS_TIMEOUT, known.disconnect_requested()).await.expect_err("it is known");
        known.evict();
        assert_eq!(known.disconnect_requested().await, DisconnectReason::Evicted);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_are_finished_where_there_is_room_for_them() {
        let state = StrangerConnectionState::accepted(ActorConnections::default());
        let call = state.begin_call();
        let took = async |why| {
            let began = Instant::now();
            state.farewell(why).await;
            began.elapsed()
        };
        assert_eq!(took(DisconnectReason::Unidentified).await, CALLS_TIMEOUT + LEAVE_TIMEOUT);
        assert_eq!(took(DisconnectReason::Evicted).await, LEAVE_TIMEOUT);
        state.identify(ActorId(7)).expect("room");
        let farewell = state.farewell(DisconnectReason::Evicted);
        tokio::time::timeout(2 * CALLS_TIMEOUT, farewell).await.expect_err("it has a call under way");
        drop(call);
        assert_eq!(took(DisconnectReason::Evicted).await, LEAVE_TIMEOUT);
    }
}
