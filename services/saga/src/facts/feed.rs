//! The task that reads the facts of a tenant for all who watch in this process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::broadcast;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::reader::FactReader;
use super::{FactsError, InstanceChange};

/// Changes that a watcher may fall behind before it reads alone.
const LAG_MAX: usize = 1024;

/// Feed of a tenant's facts. Its task ends when the feed is dropped.
pub(super) struct FactFeed {
    /// Which life of the stream it reads.
    pub(super) incarnation: u64,
    shared: Arc<FactFeedShared>,
    _stop: DropGuard,
}

struct FactFeedShared(Mutex<FactFeedState>);

struct FactFeedState {
    /// Everything up to this sequence was sent to subscribers.
    reached: u64,
    /// Sequence of the last fact whose row is being read, or was.
    begun: u64,
    /// `None` once the feed has ended.
    changes: Option<broadcast::Sender<InstanceChange>>,
    /// Why it has ended.
    why: Option<FactsError>,
}

impl FactFeedShared {
    fn state(&self) -> MutexGuard<'_, FactFeedState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends every change to the subscribers, until a read fails.
    async fn publish(&self, reading: &mut FactReader) -> FactsError {
        loop {
            let fact = match reading.next().await {
                Ok(fact) => fact,
                Err(error) => return error,
            };
            self.state().begun = fact.sequence;
            let record = match reading.record(&fact).await {
                Ok(record) => record,
                Err(error) => return error.into(),
            };
            let mut state = self.state();
            state.reached = fact.sequence;
            if let Some(sender) = &state.changes {
                // Without a subscriber the change is dropped: the next one begins behind `reached`.
                let _ = sender.send(InstanceChange { fact, record });
            }
        }
    }
}

impl FactFeed {
    /// Begins to read for all.
    pub(super) fn start(mut reading: FactReader) -> Self {
        let at = reading.position();
        let state = FactFeedState {
            reached: at.sequence,
            begun: at.sequence,
            changes: Some(broadcast::Sender::new(LAG_MAX)),
            why: None,
        };
        let (shared, stop) = (Arc::new(FactFeedShared(Mutex::new(state))), CancellationToken::new());
        let (theirs, stopped) = (Arc::clone(&shared), stop.clone());
        tokio::spawn(async move {
            let why = tokio::select! {
                () = stopped.cancelled() => None,
                why = theirs.publish(&mut reading) => Some(why),
            };
            let mut state = theirs.state();
            (state.changes, state.why) = (None, why);
        });
        Self { incarnation: at.incarnation, shared, _stop: stop.drop_guard() }
    }

    /// Subscribes to changes from now on; also gives the sequence up to which everything was sent before.
    pub(super) fn subscribe(&self) -> (broadcast::Receiver<InstanceChange>, u64) {
        let state = self.shared.state();
        let changes = match &state.changes {
            Some(sender) => sender.subscribe(),
            None => broadcast::channel(1).1,
        };
        (changes, state.reached)
    }

    /// The last fact whose row was read, or is being read.
    pub(super) fn begun(&self) -> u64 {
        self.shared.state().begun
    }

    /// Returns whether the feed has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.shared.state().changes.is_none()
    }

    /// Why it has ended.
    pub(super) fn ended(&self) -> FactsError {
        self.shared.state().why.clone().unwrap_or(FactsError::Gone)
    }
}
