//! Owner of an effect's lane: takes commands into the ledger, and has each call made as its row says.
//!
//! Each open call has its own task, the only one that changes the call's row. The intent to call is committed before the call is made,
//! and its outcome afterwards, together with the result message for the saga.

mod call;
mod call_requests;
mod intake;
mod lookahead;
pub mod upstreams;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use model::{CommandId, EffectName, TenantId};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use workflow::key::StoreTable;
use workflow::ledger::{CallRow, ProviderAnswer};
use workflow::subject::ConsumerSource;
use workflow::{LaneRowKey, WorkflowLane};

use self::call::CallTask;
use self::call_requests::{CallRequestOutcome, PendingCallRequest};
use self::intake::TOGETHER_MAX;
use self::lookahead::LookaheadState;
use self::upstreams::Upstreams;
use crate::definitions::Definitions;
use crate::lane::in_flight::InFlightBudget;
use crate::lane::relay::{Relay, RelayMessage};
use crate::lane::rows::LaneStore;
use crate::lane::source::{SourceEvent, SourceReader, SourceReaderCommand, SourceState};
use crate::lane::{LaneEnvironment, LaneExit, WORKFLOW_COMMANDS, drain};
use crate::metrics::LaneCensus;
use crate::providers::CallProvider;
use crate::quotas::{LaneCallUsage, OpenCallGuard};
use crate::sagas::census;

/// Messages for one call that may wait.
const MESSAGES_MAX: usize = 8;

/// A message for the task of a call.
#[derive(Debug)]
pub enum CallMessage {
    /// Cancellation: the saga no longer wants the call.
    Cancel,
    /// Answer that came by another way than the call itself.
    Answer(ProviderAnswer),
    /// Heartbeat: what runs for the call is alive.
    Beat,
    /// Request whose sender waits for the answer.
    Request(Box<PendingCallRequest>),
}

/// Calls of a process that are open, by their commands. Cheap to clone.
#[derive(Clone, Default)]
pub struct OpenCalls(Arc<Mutex<HashMap<CommandId, mpsc::Sender<CallMessage>>>>);

impl OpenCalls {
    /// Sends a message to a call; returns whether the call is open in this process and took it.
    pub fn notify(&self, command: CommandId, message: CallMessage) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(sender) = all.get(&command) else { return false };
        // A heartbeat is dropped unless the queue is empty: another one follows, and messages that come once need the room.
        let is_dropped = matches!(message, CallMessage::Beat) && sender.capacity() < MESSAGES_MAX;
        is_dropped || sender.try_send(message).is_ok()
    }

    fn sender(&self, command: CommandId) -> Option<mpsc::Sender<CallMessage>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&command).cloned()
    }

    fn add(&self, command: CommandId) -> mpsc::Receiver<CallMessage> {
        let (sender, receiver) = mpsc::channel(MESSAGES_MAX);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(command, sender);
        receiver
    }

    fn remove(&self, command: CommandId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&command);
    }
}

/// An effect's lane that is to be owned.
pub struct EffectLane {
    /// Tenant that the lane belongs to.
    pub tenant: TenantId,
    /// Which effect.
    pub effect: EffectName,
    /// The tenant's share of turns.
    pub weight: u32,
    /// Definitions in force.
    pub definitions: Arc<Definitions>,
    /// Provider that makes the calls.
    pub provider: Arc<dyn CallProvider>,
    /// Gates of upstreams, which permit calls.
    pub upstreams: Upstreams,
    /// Open calls, by which messages reach them.
    pub calls: OpenCalls,
    /// Calls that may be open at a time, whatever the tenant's quota.
    pub calls_max: u64,
    /// Environment that the lane works in.
    pub around: LaneEnvironment,
}

/// Context that all calls of a lane share.
pub(crate) struct EffectLaneContext {
    pub(crate) rows: Arc<LaneStore>,
    pub(crate) lane: EffectLane,
    pub(crate) relay: mpsc::UnboundedSender<RelayMessage>,
    pub(crate) stop: CancellationToken,
    pub(crate) census: LaneCensus,
}

struct EffectLaneOwner {
    shared: Arc<EffectLaneContext>,
    source: SourceState,
    brought: mpsc::Receiver<(usize, SourceEvent)>,
    reader: mpsc::Sender<SourceReaderCommand>,
    tasks: JoinSet<Result<(), LaneExit>>,
    lives: JoinSet<Result<(), LaneExit>>,
    /// Outcomes of requests about calls.
    backs: mpsc::UnboundedReceiver<CallRequestOutcome>,
    backs_to: mpsc::UnboundedSender<CallRequestOutcome>,
    /// True while the source is set back: it is read again from another position once its cursor is gone.
    is_setting_back: bool,
    /// Events that the source has brought and that are not taken yet, in order.
    waiting: VecDeque<SourceEvent>,
    /// Calls that are open. While there is no room for another, commands wait in their stream.
    open: LaneCallUsage,
    /// The lane's part of the bytes that may be in flight.
    share: InFlightBudget,
    /// Notified when there may be room for another call.
    freed: watch::Receiver<()>,
    /// Look-ahead for messages about open calls.
    ahead: LookaheadState,
    /// Receiver that keeps the relay's channel for aggregate commands open; effects order none.
    _commands: mpsc::UnboundedReceiver<(u64, crate::lane::relay::OutboxRow)>,
}

impl EffectLane {
    /// Takes the lane and owns it, until `stop` is cancelled or another owner takes the lane. Returns why the lane was given up:
    /// [`LaneExit::Stopped`] after `stop`. Dropping the future is as safe as a crash: the next owner resumes from the last commit.
    pub async fn own(self, stop: CancellationToken) -> LaneExit {
        let lane = WorkflowLane::Effect { tenant: self.tenant.clone(), effect: self.effect.clone() };
        let around = self.around.clone();
        let work = |rows: Arc<LaneStore>| async move {
            let (upstreams, effect) = (self.upstreams.clone(), self.effect.clone());
            let owned =
                async { EffectLaneOwner::start(self, Arc::clone(&rows), &stop).await?.run(&stop).await };
            let ended = owned.await;
            upstreams.clear_circuit_report(&effect, rows.around());
            ended
        };
        crate::lane::own(lane, around, work).await
    }
}

impl EffectLaneOwner {
    async fn start(
        lane: EffectLane,
        rows: Arc<LaneStore>,
        stop: &CancellationToken,
    ) -> Result<Self, LaneExit> {
        let (relay, messages) = mpsc::unbounded_channel();
        let (commands, ordered) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        let outgoing = Relay { rows: Arc::clone(&rows), messages, commands };
        tasks.spawn(outgoing.run());
        let source = ConsumerSource::Commands(lane.effect.clone());
        let (to, brought) = mpsc::channel(64);
        let (reader, reader_commands) = mpsc::channel(4);
        let share = rows.around().bounds.share();
        let reading = SourceReader {
            rows: Arc::clone(&rows),
            source: source.clone(),
            stream: WORKFLOW_COMMANDS.to_owned(),
            number: 0,
            since: None,
            share: share.clone(),
            to,
            commands: reader_commands,
            stop: stop.clone(),
        };
        tasks.spawn(reading.run());
        let reading = rows.around().metrics.readings.source("", &source.to_string());
        let source = SourceState::new(source, WORKFLOW_COMMANDS, &rows.lane, reading);
        let census = census::take_letters(&rows).await?;
        let census = rows.around().metrics.census.lane(&lane.tenant, &census);
        let shared = Arc::new(EffectLaneContext { rows, lane, relay, stop: stop.clone(), census });
        let (backs_to, backs) = mpsc::unbounded_channel();
        let EffectLane { definitions, tenant, calls_max, .. } = &shared.lane;
        let open = definitions.usage().lane_calls(tenant, *calls_max);
        let mut owner = Self {
            waiting: VecDeque::with_capacity(TOGETHER_MAX),
            freed: open.freed(),
            open,
            share,
            ahead: LookaheadState::new(),
            backs,
            backs_to,
            is_setting_back: false,
            shared,
            source,
            brought,
            reader,
            tasks,
            lives: JoinSet::new(),
            _commands: ordered,
        };
        owner.adopt().await?;
        Ok(owner)
    }

    /// Resumes the calls that are open.
    async fn adopt(&mut self) -> Result<(), LaneExit> {
        let open: Vec<(LaneRowKey, CommandId)> = self.shared.rows.all(StoreTable::EffectDue.range()).await?;
        for (_, command) in open {
            self.begin(command, None, self.open.add());
        }
        Ok(())
    }

    /// Starts the task of a call, from the row that was written just now, or from the stored one.
    fn begin(&mut self, command: CommandId, taken: Option<(CallRow, u64)>, open: OpenCallGuard) {
        let messages = self.shared.lane.calls.add(command);
        let life = CallTask::new(Arc::clone(&self.shared), command, messages, open).with_row(taken);
        self.lives.spawn(life.run());
    }

    /// Returns whether messages of the source may be taken in: each may be a command.
    fn has_room(&self) -> bool {
        let EffectLane { definitions, tenant, .. } = &self.shared.lane;
        self.is_setting_back || self.open.has_room(definitions.quotas(tenant))
    }

    async fn run(mut self, stop: &CancellationToken) -> Result<(), LaneExit> {
        if let Err(ended) = self.turns(stop).await {
            self.lives.abort_all();
            self.tasks.abort_all();
            return Err(ended);
        }
        // Calls under way may finish; the next owner resumes the others.
        while let Some(ended) = self.lives.join_next().await {
            if let Ok(Err(ended)) = ended {
                return Err(ended);
            }
        }
        if let Some(note) = self.source.note() {
            self.shared.rows.commit(Vec::new(), vec![note]).await?;
        }
        // The relay ends once the last sender of its channel is dropped.
        let Self { shared, mut tasks, .. } = self;
        let cut = shared.rows.around().cut.clone();
        drop(shared);
        drain(&mut tasks, &cut).await;
        Ok(())
    }

    async fn turns(&mut self, stop: &CancellationToken) -> Result<(), LaneExit> {
        let mut brought = Vec::with_capacity(TOGETHER_MAX);
        let mut in_force = self.shared.lane.definitions.subscribe();
        loop {
            let (has_room, is_full) = (self.has_room(), self.shared.rows.backlog().is_full());
            if has_room && !is_full && !self.waiting.is_empty() {
                self.take_in().await?;
                continue;
            }
            self.share.rest(!has_room || is_full);
            self.look_ahead_while_full(!has_room);
            // Without room one message is taken in: other messages are handled at once, and a command shows that something waits.
            let most = match has_room {
                true if is_full => 0,
                true => TOGETHER_MAX,
                false => usize::from(self.waiting.is_empty()),
            };
            // While the source is set back, the former position must not be stored again.
            let next_note = self.source.next_note().filter(|_| !self.is_setting_back);
            let retry_due = self.ahead.retry_due();
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                Some(ended) = self.lives.join_next() => match ended {
                    Ok(ended) => ended?,
                    Err(error) => return Err(LaneExit::damaged(&self.shared.rows.lane, error)),
                },
                Some(ended) = self.tasks.join_next() => match ended {
                    Ok(ended) => ended?,
                    Err(error) => return Err(LaneExit::damaged(&self.shared.rows.lane, error)),
                },
                Some(back) = self.backs.recv() => self.back(back).await?,
                Some(delivered) = self.ahead.next() => self.take_ahead(&delivered).await?,
                () = tokio::time::sleep_until(retry_due.unwrap_or_else(Instant::now)), if retry_due.is_some() => {
                    self.read_early_requests().await?;
                }
                1.. = self.brought.recv_many(&mut brought, most), if most > 0 => {
                    self.waiting.extend(brought.drain(..).map(|(_, brought)| brought));
                    self.take_in().await?;
                }
                // Other lanes of the tenant make room as well, and so does a raised quota.
                _ = self.freed.changed(), if !has_room => {}
                Ok(()) = in_force.changed(), if !has_room => {}
                () = tokio::time::sleep(next_note.unwrap_or_default()), if next_note.is_some() => {
                    let note = self.source.note();
                    self.note(note.into_iter().collect()).await?;
                }
                () = self.shared.rows.backlog().eased() => {}
            }
        }
    }
}
