//! Last presences of supervisors, for the registry.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use model::{Presence, limits};
use proto::internal::v1::ReportPresenceRequest;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Maximum age of a presence that is sent again on a new stream: an older one may not be true any more.
const FRESH: Duration = Duration::from_secs(limits::PRESENCE_INTERVAL_SECS as u64 * 3 / 2);

/// Last presence of every supervisor. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct SupervisorPresences(Arc<SupervisorPresencesInner>);

#[derive(Debug, Default)]
struct SupervisorPresencesInner {
    last: Mutex<HashMap<String, SupervisorPresenceEntry>>,
    wake: Notify,
}

#[derive(Debug)]
struct SupervisorPresenceEntry {
    json: Bytes,
    at: Instant,
    sent: bool,
}

impl SupervisorPresences {
    /// Records a supervisor's presence.
    pub fn record(&self, address: &str, presence: &Presence) {
        match serde_json::to_vec(presence) {
            Ok(json) => self.put(address, json.into()),
            Err(error) => tracing::error!(%error, "a presence cannot be written"),
        }
    }

    /// Records that a supervisor is gone.
    pub fn gone(&self, address: &str) {
        self.put(address, Bytes::new());
    }

    /// Returns when a supervisor was last heard.
    #[must_use]
    pub fn last(&self, address: &str) -> Option<Instant> {
        self.lock().get(address).map(|entry| entry.at)
    }

    /// Returns true when a supervisor has sent its presence after this moment.
    pub(crate) fn has_spoken_since(&self, address: &str, moment: Instant) -> bool {
        self.lock().get(address).is_some_and(|entry| !entry.json.is_empty() && entry.at > moment)
    }

    /// Begins a new stream: presences that are still fresh are sent again.
    pub fn begin_anew(&self) {
        let mut last = self.lock();
        last.retain(|_, entry| entry.at.elapsed() < FRESH);
        for entry in last.values_mut() {
            entry.sent = false;
        }
    }

    /// Waits until there are presences to send. Loses nothing when dropped before it is ready.
    pub async fn next(&self) -> Vec<ReportPresenceRequest> {
        loop {
            let mut presences = Vec::new();
            for (address, entry) in self.lock().iter_mut() {
                if !std::mem::replace(&mut entry.sent, true) {
                    let (address, presence_json) = (address.clone(), entry.json.clone());
                    presences.push(ReportPresenceRequest { address, presence_json });
                }
            }
            if !presences.is_empty() {
                return presences;
            }
            self.0.wake.notified().await;
        }
    }

    fn put(&self, address: &str, json: Bytes) {
        self.lock()
            .insert(address.to_owned(), SupervisorPresenceEntry { json, at: Instant::now(), sent: false });
        self.0.wake.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, SupervisorPresenceEntry>> {
        self.0.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
