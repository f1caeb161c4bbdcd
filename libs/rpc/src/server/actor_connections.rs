//! How many connections each actor has, so that one of them leaves room for the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use model::ActorId;

use crate::error::{Error, ErrorKind, RpcReason};
use crate::lock::lock;
use crate::server::connection_state::IDENTITY_TIMEOUT;

/// Connections at once of one actor, with its certificate or with its tokens.
pub(crate) const CONNECTIONS_OF_ACTOR_MAX: usize = 256;

/// Counts the connections of each actor. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct ActorConnections(Arc<Mutex<HashMap<ActorId, usize>>>);

/// One connection of an actor, until it is dropped.
#[derive(Debug)]
pub(crate) struct ActorConnectionGuard {
    all: ActorConnections,
    pub(crate) actor: ActorId,
}

impl ActorConnections {
    /// Counts one more; refuses it where the actor has as many as it may.
    pub(crate) fn take(&self, actor: ActorId) -> Result<ActorConnectionGuard, Error> {
        let mut counts = self.counts();
        let count = counts.get(&actor).copied().unwrap_or_default();
        if count >= CONNECTIONS_OF_ACTOR_MAX {
            let message = format!("actor {actor} has as many connections to this server as it may");
            return Err(Error::new(ErrorKind::ResourceExhausted, RpcReason::LimitExceeded, message)
                .with("limit", "rpc_connections_of_actor_max")
                .with("max", CONNECTIONS_OF_ACTOR_MAX)
                .retry_after(IDENTITY_TIMEOUT));
        }
        counts.insert(actor, count + 1);
        Ok(ActorConnectionGuard { all: self.clone(), actor })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<ActorId, usize>> {
        lock(&self.0)
    }
}

impl Drop for ActorConnectionGuard {
    fn drop(&mut self) {
        let mut counts = self.all.counts();
        match counts.get_mut(&self.actor) {
            Some(count) if *count > 1 => *count -= 1,
            // Who has none is not remembered.
            _ => drop(counts.remove(&self.actor)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_actor_leaves_room_for_others() {
        let all = ActorConnections::default();
        let mut taken: Vec<_> =
            (0..CONNECTIONS_OF_ACTOR_MAX).map(|_| all.take(ActorId(7)).expect("room")).collect();
        let refused = all.take(ActorId(7)).expect_err("as many as it may");
        assert_eq!(refused.reason(), RpcReason::LimitExceeded);
        taken.push(all.take(ActorId(8)).expect("another"));
        drop(taken.remove(0));
        taken.push(all.take(ActorId(7)).expect("room again"));
        drop(taken);
        assert!(all.counts().is_empty(), "nobody is remembered");
    }
}
