//! What is heard of supervisors, for the registry.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use model::{Presence, limits};
use proto::internal::v1::ReportPresenceRequest;
use tokio::sync::Notify;
use tokio::time::Instant;

/// What was heard longer ago is not told again on a new stream: it may not be true any more.
const FRESH: Duration = Duration::from_secs(limits::PRESENCE_INTERVAL_SECS as u64 * 3 / 2);

/// The last word of every supervisor. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Heard(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    last: Mutex<HashMap<String, Word>>,
    wake: Notify,
}

#[derive(Debug)]
struct Word {
    json: Bytes,
    at: Instant,
    told: bool,
}

impl Heard {
    /// A supervisor said how it is.
    pub fn presence(&self, address: &str, presence: &Presence) {
        match serde_json::to_vec(presence) {
            Ok(json) => self.put(address, json.into()),
            Err(error) => tracing::error!(%error, "a presence cannot be written"),
        }
    }

    /// A supervisor is not there.
    pub fn gone(&self, address: &str) {
        self.put(address, Bytes::new());
    }

    /// When a supervisor was last heard.
    #[must_use]
    pub fn last(&self, address: &str) -> Option<Instant> {
        self.lock().get(address).map(|word| word.at)
    }

    /// Whether a supervisor said after this moment how it is.
    pub(crate) fn has_spoken_since(&self, address: &str, moment: Instant) -> bool {
        self.lock().get(address).is_some_and(|word| !word.json.is_empty() && word.at > moment)
    }

    /// A new stream: what is still fresh is told again.
    pub fn begin_anew(&self) {
        let mut last = self.lock();
        last.retain(|_, word| word.at.elapsed() < FRESH);
        for word in last.values_mut() {
            word.told = false;
        }
    }

    /// Waits until there is something to tell. Loses nothing when dropped before it is ready.
    pub async fn next(&self) -> Vec<ReportPresenceRequest> {
        loop {
            let mut news = Vec::new();
            for (address, word) in self.lock().iter_mut() {
                if !std::mem::replace(&mut word.told, true) {
                    let (address, presence_json) = (address.clone(), word.json.clone());
                    news.push(ReportPresenceRequest { address, presence_json });
                }
            }
            if !news.is_empty() {
                return news;
            }
            self.0.wake.notified().await;
        }
    }

    fn put(&self, address: &str, json: Bytes) {
        self.lock().insert(address.to_owned(), Word { json, at: Instant::now(), told: false });
        self.0.wake.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Word>> {
        self.0.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
