//! The task that reads the facts of a tenant for all who watch in this process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::broadcast;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::reader::FactReader;
use super::{FactsError, InstanceChange};

/// Changes that a watcher may fall behind before it reads alone.
const TOLD_MAX: usize = 1024;

/// Feed of a tenant's facts. It ends when nobody has it any more.
pub(super) struct FactFeed {
    /// Which life of the stream it reads.
    pub(super) incarnation: u64,
    shared: Arc<FactFeedShared>,
    _stop: DropGuard,
}

struct FactFeedShared(Mutex<FactFeedState>);

struct FactFeedState {
    /// Everything up to this sequence was told.
    reached: u64,
    /// The row of the fact of this sequence is being read, or was.
    begun: u64,
    /// Nothing once it has ended.
    changes: Option<broadcast::Sender<InstanceChange>>,
    /// Why it has ended.
    why: Option<FactsError>,
}

impl FactFeedShared {
    fn state(&self) -> MutexGuard<'_, FactFeedState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells everything, until something fails.
    async fn tell(&self, reading: &mut FactReader) -> FactsError {
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
            if let Some(told) = &state.changes {
                // Whoever listens next begins behind it.
                let _ = told.send(InstanceChange { fact, record });
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
            changes: Some(broadcast::Sender::new(TOLD_MAX)),
            why: None,
        };
        let (shared, stop) = (Arc::new(FactFeedShared(Mutex::new(state))), CancellationToken::new());
        let (theirs, stopped) = (Arc::clone(&shared), stop.clone());
        tokio::spawn(async move {
            let why = tokio::select! {
                () = stopped.cancelled() => None,
                why = theirs.tell(&mut reading) => Some(why),
            };
            let mut state = theirs.state();
            (state.changes, state.why) = (None, why);
        });
        Self { incarnation: at.incarnation, shared, _stop: stop.drop_guard() }
    }

    /// Listens from now on; gives the sequence up to which everything was told before.
    pub(super) fn subscribe(&self) -> (broadcast::Receiver<InstanceChange>, u64) {
        let state = self.shared.state();
        let told = match &state.changes {
            Some(told) => told.subscribe(),
            None => broadcast::channel(1).1,
        };
        (told, state.reached)
    }

    /// The last fact whose row was read, or is being read.
    pub(super) fn begun(&self) -> u64 {
        self.shared.state().begun
    }

    /// Returns whether it tells nothing any more.
    pub(super) fn has_ended(&self) -> bool {
        self.shared.state().changes.is_none()
    }

    /// Why it has ended.
    pub(super) fn ended(&self) -> FactsError {
        self.shared.state().why.clone().unwrap_or(FactsError::Gone)
    }
}
