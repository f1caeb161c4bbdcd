//! The task that reads the facts of a tenant for all who watch in this process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::broadcast;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::reading::Reading;
use super::{Changed, FactsError};

/// Changes that a watcher may fall behind before it reads alone.
const TOLD_MAX: usize = 1024;

/// Feed of a tenant's facts. It ends when nobody has it any more.
pub(super) struct Feed {
    /// Which life of the stream it reads.
    pub(super) incarnation: u64,
    shared: Arc<Shared>,
    _stop: DropGuard,
}

struct Shared(Mutex<State>);

struct State {
    /// Everything up to this sequence was told.
    reached: u64,
    /// The row of the fact of this sequence is being read, or was.
    begun: u64,
    /// Nothing once it has ended.
    told: Option<broadcast::Sender<Changed>>,
    /// Why it has ended.
    why: Option<FactsError>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells everything, until something fails.
    async fn tell(&self, reading: &mut Reading) -> FactsError {
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
            if let Some(told) = &state.told {
                // Whoever listens next begins behind it.
                let _ = told.send(Changed { fact, record });
            }
        }
    }
}

impl Feed {
    /// Begins to read for all.
    pub(super) fn start(mut reading: Reading) -> Self {
        let at = reading.position();
        let state = State {
            reached: at.sequence,
            begun: at.sequence,
            told: Some(broadcast::Sender::new(TOLD_MAX)),
            why: None,
        };
        let (shared, stop) = (Arc::new(Shared(Mutex::new(state))), CancellationToken::new());
        let (theirs, stopped) = (Arc::clone(&shared), stop.clone());
        tokio::spawn(async move {
            let why = tokio::select! {
                () = stopped.cancelled() => None,
                why = theirs.tell(&mut reading) => Some(why),
            };
            let mut state = theirs.state();
            (state.told, state.why) = (None, why);
        });
        Self { incarnation: at.incarnation, shared, _stop: stop.drop_guard() }
    }

    /// Listens from now on; gives the sequence up to which everything was told before.
    pub(super) fn subscribe(&self) -> (broadcast::Receiver<Changed>, u64) {
        let state = self.shared.state();
        let told = match &state.told {
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
        self.shared.state().told.is_none()
    }

    /// Why it has ended.
    pub(super) fn ended(&self) -> FactsError {
        self.shared.state().why.clone().unwrap_or(FactsError::Gone)
    }
}
