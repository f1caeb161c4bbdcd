//! Replicas of a service that send heartbeats.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use crate::StoreError;

/// Name of a replica, in bytes.
pub const REPLICA_NAME_BYTES_MAX: usize = 255;
/// Announcement of a replica, in bytes.
pub const REPLICA_ANNOUNCEMENT_BYTES_MAX: usize = 64 * 1024;

/// A replica of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    /// Name of the replica among the others.
    pub name: String,
    /// Number of the replica's process: another process of the same name has another one.
    pub session: u64,
    /// Description of itself for the other replicas.
    pub announcement: Bytes,
}

impl Replica {
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let too_large = |what: &str, size: usize, most: usize| {
            if size > most { Err(StoreError::TooLarge { what: what.to_owned(), size, most }) } else { Ok(()) }
        };
        too_large("the name of a replica, in bytes,", self.name.len(), REPLICA_NAME_BYTES_MAX)?;
        too_large(
            "the announcement of a replica, in bytes,",
            self.announcement.len(),
            REPLICA_ANNOUNCEMENT_BYTES_MAX,
        )
    }
}

/// A beat of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreHeartbeat {
    /// Replica that beats.
    pub replica: Replica,
    /// Time for which it lives without another beat; with zero it lives no longer.
    pub ttl: Duration,
    /// Takes the name from another process that has it. A process does so once, with its first heartbeat: of two processes
    /// with one name the later one wins.
    pub is_takeover: bool,
}

/// Answer to a beat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreHeartbeatReply {
    /// Replicas that live, in the order of their names.
    pub replicas: Vec<Replica>,
    /// Moment of the answer by the store's clock, in milliseconds since 1970.
    pub now: u64,
    /// Revision of the rows outside the lanes: while it is the same, none of them has changed.
    pub revision: u64,
    /// True when another process holds the name, so that the heartbeat was ignored.
    pub is_displaced: bool,
}

/// Replicas of a store that is in this process.
#[derive(Debug, Default)]
pub(crate) struct LocalReplicaRegistry(Mutex<BTreeMap<String, (Replica, u64)>>);

impl LocalReplicaRegistry {
    /// Takes a beat.
    pub(crate) fn record_heartbeat(
        &self,
        beat: &StoreHeartbeat,
        now: u64,
        revision: u64,
    ) -> Result<StoreHeartbeatReply, StoreError> {
        beat.replica.check()?;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, (_, until)| *until > now);
        let name = &beat.replica.name;
        let is_displaced = !beat.is_takeover
            && all.get(name).is_some_and(|(other, _)| other.session != beat.replica.session);
        let ttl = u64::try_from(beat.ttl.as_millis()).unwrap_or(u64::MAX);
        if !is_displaced && ttl == 0 {
            all.remove(name);
        } else if !is_displaced {
            all.insert(name.clone(), (beat.replica.clone(), now.saturating_add(ttl)));
        }
        let replicas = all.values().map(|(replica, _)| replica.clone()).collect();
        Ok(StoreHeartbeatReply { replicas, now, revision, is_displaced })
    }
}
