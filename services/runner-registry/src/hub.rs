//! The view shared by streams and calls, and the watchers of its changes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use model::{ContextId, Presence, Runner, RunnerView, Timestamp, limits};
use proto::convert::runner::wire_bytes;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::view::{ChangedRunners, RegistryView, RunnerRecordKey};

/// Runners in one part of a snapshot or of changes, which ends at [`limits::PAGE_BYTES_MAX`] as well.
pub const PART_LEN_MAX: usize = 200;

/// Bytes that a part may add to those of its runners: contexts and list framing.
const PART_OVERHEAD_BYTES: usize = 16 * PART_LEN_MAX;

/// Handle to the view. Clones share it.
#[derive(Debug, Clone)]
pub struct RunnerHub(Arc<RunnerHubInner>);

#[derive(Debug)]
struct RunnerHubInner {
    state: Mutex<RunnerHubState>,
    /// The records at the start are complete.
    loaded: watch::Sender<bool>,
    /// The next deadline may have moved closer.
    rescheduled: Notify,
    metrics: Metrics,
}

#[derive(Debug)]
struct RunnerHubState {
    view: RegistryView,
    watchers: Vec<Weak<RunnerWatcher>>,
}

/// Backlog of one watcher: the changes that it has not received yet. However slow the watcher, the backlog holds
/// each runner at most once.
#[derive(Debug, Default)]
struct RunnerWatcher {
    /// Only runners of this context.
    context: Option<ContextId>,
    dirty: Mutex<ChangedRunners>,
    wake: Notify,
}

impl RunnerWatcher {
    fn note(&self, changed: &ChangedRunners) {
        let wanted = changed.iter().filter(|key| self.context.is_none_or(|context| key.0 == context));
        lock(&self.dirty).extend(wanted);
        self.wake.notify_one();
    }
}

impl RunnerHub {
    /// Shares a view.
    #[must_use]
    pub fn new(view: RegistryView, metrics: Metrics) -> Self {
        Self(Arc::new(RunnerHubInner {
            state: Mutex::new(RunnerHubState { view, watchers: Vec::new() }),
            loaded: watch::Sender::new(false),
            rescheduled: Notify::new(),
            metrics,
        }))
    }

    /// Takes over records.
    pub fn put_records(&self, records: Vec<(ContextId, Runner)>) {
        let now = Instant::now();
        self.change(|view| {
            records.into_iter().flat_map(|(context, runner)| view.put_record(now, context, runner)).collect()
        });
        self.0.rescheduled.notify_one();
    }

    /// Removes records.
    pub fn remove_records(&self, keys: &[RunnerRecordKey]) {
        self.change(|view| keys.iter().flat_map(|key| view.remove_record(*key)).collect());
    }

    /// Removes every record but these.
    pub fn retain_records(&self, kept: &BTreeSet<RunnerRecordKey>) {
        self.change(|view| view.retain_records(kept));
    }

    /// The records at the start are complete.
    pub fn set_loaded(&self) {
        self.0.loaded.send_replace(true);
    }

    /// Returns a receiver that turns true once the initial records are complete.
    #[must_use]
    pub fn loaded(&self) -> watch::Receiver<bool> {
        self.0.loaded.subscribe()
    }

    /// Notes a supervisor's presence, or that it is gone.
    pub fn put_presence(&self, now: Instant, seen: Timestamp, address: &str, presence: Option<Presence>) {
        self.0.metrics.presences.inc();
        self.change(|view| match presence {
            Some(presence) => view.put_presence(now, seen, address, presence),
            None => view.mark_gone(address),
        });
        self.0.rescheduled.notify_one();
    }

    /// Marks supervisors as dead at their deadlines. Never ends.
    pub async fn run_expiry(&self) {
        loop {
            let deadline = lock(&self.0.state).view.next_deadline();
            let expired = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = expired => self.change(|view| view.expire(Instant::now())),
                () = self.0.rescheduled.notified() => {}
            }
        }
    }

    /// Adds the last presence of its supervisor to a record.
    #[must_use]
    pub fn describe(&self, runner: Runner) -> RunnerView {
        lock(&self.0.state).view.describe(runner)
    }

    /// Begins to watch all runners, or those of one context. The first parts are the snapshot.
    #[must_use]
    pub fn watch(&self, context: Option<ContextId>) -> RunnerSubscription {
        let mut state = lock(&self.0.state);
        let watcher = Arc::new(RunnerWatcher { context, dirty: Mutex::default(), wake: Notify::new() });
        watcher.note(&state.view.keys());
        state.watchers.push(Arc::downgrade(&watcher));
        self.0.metrics.watchers.inc();
        RunnerSubscription { hub: self.clone(), watcher }
    }

    fn change(&self, change: impl FnOnce(&mut RegistryView) -> ChangedRunners) {
        let mut state = lock(&self.0.state);
        let changed = change(&mut state.view);
        let (runners, live) = state.view.counts();
        self.0.metrics.runners.set(i64::try_from(runners).unwrap_or(i64::MAX));
        self.0.metrics.live.set(i64::try_from(live).unwrap_or(i64::MAX));
        if changed.is_empty() {
            return;
        }
        state.watchers.retain(|watcher| {
            let Some(watcher) = watcher.upgrade() else { return false };
            watcher.note(&changed);
            true
        });
    }
}

/// The changes that one watcher sees.
#[derive(Debug)]
pub struct RunnerSubscription {
    hub: RunnerHub,
    watcher: Arc<RunnerWatcher>,
}

impl RunnerSubscription {
    /// Returns the next part, if there are changes now.
    #[must_use]
    pub fn try_next(&self) -> Option<RunnerViewBatch> {
        let state = lock(&self.hub.0.state);
        let mut dirty = lock(&self.watcher.dirty);
        let (mut part, mut bytes) = (RunnerViewBatch::default(), 0);
        while part.runners.len() + part.gone.len() < PART_LEN_MAX
            && let Some(key) = dirty.first().copied()
        {
            match state.view.get(key) {
                Some(view) => {
                    let size = wire_bytes(&view);
                    if !part.is_empty() && bytes + size > limits::PAGE_BYTES_MAX {
                        break;
                    }
                    if size <= limits::GRPC_MESSAGE_BYTES_MAX - PART_OVERHEAD_BYTES {
                        bytes += size;
                        part.runners.push((key.0, view));
                    } else {
                        // The record predates the size limits. Other runners must still be sent.
                        let (context, runner) = key;
                        tracing::error!(%context, %runner, size, "a runner is too large to be sent");
                    }
                }
                None => part.gone.push(key),
            }
            dirty.pop_first();
        }
        (!part.is_empty()).then_some(part)
    }

    /// Waits for the next part. Loses nothing when dropped.
    pub async fn next(&self) -> RunnerViewBatch {
        loop {
            if let Some(part) = self.try_next() {
                return part;
            }
            self.watcher.wake.notified().await;
        }
    }
}

/// A part of a snapshot, or of changes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RunnerViewBatch {
    /// Runners that are new or look different now.
    pub runners: Vec<(ContextId, RunnerView)>,
    /// Runners whose records were removed.
    pub gone: Vec<RunnerRecordKey>,
}

impl RunnerViewBatch {
    fn is_empty(&self) -> bool {
        self.runners.is_empty() && self.gone.is_empty()
    }
}

impl Drop for RunnerSubscription {
    fn drop(&mut self) {
        self.hub.0.metrics.watchers.dec();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
