//! The task that reads one context's stream for all who watch it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use model::limits;
use tokio::sync::{mpsc, oneshot};

use crate::error::{Error, Result};
use crate::events::{Entry, Hub, Position, READ_MAX, Subject, Wake};
use crate::store::{Tenant, lock};

/// The pause after a failed read.
const RETRY: Duration = Duration::from_millis(200);

/// What an event takes besides its text, about.
const ENTRY_BYTES: usize = 96;

/// Events that were read together.
pub(crate) type Batch = Arc<[Entry]>;

fn bytes_of(batch: &[Entry]) -> usize {
    batch.iter().map(|entry| entry.event.len() + ENTRY_BYTES).sum()
}

/// Up to where a tailer has sent everything; nothing before the first read.
type Reached = Arc<Mutex<Option<Position>>>;

/// A tailer as the hub knows it.
#[derive(Debug)]
pub(crate) struct Tailer {
    pub(crate) wake: Arc<Wake>,
    reached: Reached,
    commands: mpsc::UnboundedSender<Command>,
}

/// What a tailer is told.
enum Command {
    /// Somebody wants what comes.
    Join(Watcher, oneshot::Sender<Result<Position>>),
    /// Somebody left.
    Leave,
}

/// Somebody who is sent events.
struct Watcher {
    subject: Option<Subject>,
    batches: mpsc::Sender<Batch>,
    /// Bytes of the batches that it has not taken.
    backlog: Arc<AtomicUsize>,
    end: Arc<OnceLock<End>>,
}

/// Why a watcher is sent nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// It did not keep up.
    Slow,
    /// The stream is not the one that it was watching.
    Gone,
}

/// A watcher's side.
pub(crate) struct Membership {
    batches: mpsc::Receiver<Batch>,
    backlog: Arc<AtomicUsize>,
    reached: Reached,
    end: Arc<OnceLock<End>>,
    commands: mpsc::UnboundedSender<Command>,
}

impl Membership {
    /// The next events, for a watcher that was sent everything up to `at`.
    ///
    /// # Errors
    /// When there will be no more: too slow, or the stream is another one.
    pub(crate) async fn next(&mut self, at: Position) -> Result<Batch> {
        match self.batches.recv().await {
            Some(batch) => {
                self.backlog.fetch_sub(bytes_of(&batch), Ordering::Relaxed);
                Ok(batch)
            }
            None if self.end.get() == Some(&End::Slow) => Err(Error::TooSlow { resume: at }),
            None => Err(Error::PositionGone),
        }
    }
}

impl Membership {
    /// Up to where the stream was read without anything left to take: from there a watcher may resume, also
    /// when nothing was for it for a long time.
    pub(crate) fn idle_position(&self) -> Option<Position> {
        // Sent first, noted then: whatever is before this place was sent, and taken if nothing waits now.
        let reached = *lock(&self.reached);
        if self.batches.is_empty() { reached } else { None }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.batches.close();
        // The tailer may have ended already.
        let _ = self.commands.send(Command::Leave);
    }
}

impl Hub {
    /// Joins a context's tailer, which begins when it has to. Everything after the position that is given
    /// will be sent.
    pub(crate) async fn join(
        &self,
        tenant: &Arc<Tenant>,
        subject: Option<Subject>,
    ) -> Result<(Position, Membership)> {
        let (sender, batches) = mpsc::channel(limits::WATCH_BUFFER);
        let backlog = Arc::new(AtomicUsize::new(0));
        let end = Arc::new(OnceLock::new());
        let (reply, answer) = oneshot::channel();
        let watcher =
            Watcher { subject, batches: sender, backlog: Arc::clone(&backlog), end: Arc::clone(&end) };
        let (commands, reached) = {
            let mut tailers = lock(self.tailers());
            let tailer = tailers.entry(tenant.id).or_insert_with(|| self.start(tenant));
            // A tailer leaves the map before it ends, so this one still listens.
            let _ = tailer.commands.send(Command::Join(watcher, reply));
            (tailer.commands.clone(), Arc::clone(&tailer.reached))
        };
        let membership = Membership { batches, backlog, reached, end, commands };
        let position = answer.await.unwrap_or(Err(Error::PositionGone))?;
        Ok((position, membership))
    }

    fn start(&self, tenant: &Arc<Tenant>) -> Tailer {
        let (commands, inbox) = mpsc::unbounded_channel();
        let (wake, reached) = (Arc::new(Wake::default()), Reached::default());
        let task = Task {
            hub: self.clone(),
            tenant: Arc::clone(tenant),
            wake: Arc::clone(&wake),
            inbox,
            watchers: Vec::new(),
            at: None,
            reached: Arc::clone(&reached),
            missed: 0,
        };
        tokio::spawn(task.run());
        Tailer { wake, reached, commands }
    }
}

struct Task {
    hub: Hub,
    tenant: Arc<Tenant>,
    wake: Arc<Wake>,
    inbox: mpsc::UnboundedReceiver<Command>,
    watchers: Vec<Watcher>,
    /// What was read and sent; nothing before the first read.
    at: Option<Position>,
    reached: Reached,
    missed: u64,
}

impl Task {
    async fn run(mut self) {
        loop {
            tokio::select! {
                command = self.inbox.recv() => match command {
                    Some(Command::Join(watcher, reply)) => self.admit(watcher, reply).await,
                    Some(Command::Leave) => self.watchers.retain(|watcher| !watcher.batches.is_closed()),
                    None => return,
                },
                () = self.wake.notify.notified() => {
                    if let Err(error) = self.read_on().await {
                        tracing::warn!(context = %self.tenant.id, %error, "reading events failed, trying again");
                        tokio::time::sleep(RETRY).await;
                        self.wake.notify.notify_one();
                    }
                }
            }
            if self.watchers.is_empty() && self.leave_map() {
                return;
            }
        }
    }

    async fn admit(&mut self, watcher: Watcher, reply: oneshot::Sender<Result<Position>>) {
        let at = match self.at {
            Some(at) => Ok(at),
            None => self.tenant.last_position().await,
        };
        if let Ok(at) = &at {
            self.at = Some(*at);
            self.watchers.push(watcher);
        }
        // Whoever asked may have given up.
        let _ = reply.send(at);
    }

    async fn read_on(&mut self) -> Result<()> {
        let missed = self.wake.missed.load(Ordering::SeqCst);
        if missed != self.missed {
            if let Some(at) = self.at
                && !self.tenant.has_position(at).await?
            {
                self.end_all(End::Gone);
                self.at = None;
                *lock(&self.reached) = None;
            }
            self.missed = missed;
        }
        while let Some(at) = self.at {
            let batch: Batch = self.tenant.events_after(at, READ_MAX).await?.into();
            let Some(last) = batch.last() else { return Ok(()) };
            self.at = Some(last.position);
            self.send(&batch);
            *lock(&self.reached) = self.at;
            if batch.len() < READ_MAX {
                return Ok(());
            }
        }
        Ok(())
    }

    /// A watcher is sent only what is for it, so that what it has not taken holds nothing else, and is ended
    /// when that is more than its buffer.
    fn send(&mut self, batch: &Batch) {
        self.watchers.retain(|watcher| {
            let batch = match watcher.subject {
                None => Arc::clone(batch),
                wanted => {
                    let is_for = |entry: &&Entry| entry.is_context || entry.subject == wanted;
                    batch.iter().filter(is_for).cloned().collect()
                }
            };
            if batch.is_empty() {
                return !watcher.batches.is_closed();
            }
            let bytes = bytes_of(&batch);
            let waiting = watcher.backlog.fetch_add(bytes, Ordering::Relaxed);
            let is_full = waiting > 0 && waiting + bytes > limits::PAGE_BYTES_MAX;
            match watcher.batches.try_reserve() {
                Ok(place) if !is_full => {
                    place.send(batch);
                    true
                }
                Err(mpsc::error::TrySendError::Closed(())) => false,
                Ok(_) | Err(mpsc::error::TrySendError::Full(())) => {
                    // Set before the channel closes, so that its reader finds the reason.
                    let _ = watcher.end.set(End::Slow);
                    false
                }
            }
        });
    }

    fn end_all(&mut self, end: End) {
        for watcher in self.watchers.drain(..) {
            let _ = watcher.end.set(end);
        }
    }

    /// Ends unless somebody joined meanwhile: joining happens under the same lock.
    fn leave_map(&mut self) -> bool {
        let mut tailers = lock(self.hub.tailers());
        if self.inbox.is_empty() {
            tailers.remove(&self.tenant.id);
            return true;
        }
        false
    }
}
