//! Look-ahead for messages about open calls, past commands for which the lane has no room.
//!
//! Commands that wait in the stream hold up the messages behind them, and those may end the very calls whose room the commands wait
//! for. So a full lane has a second cursor, which reads everything behind the first one. That cursor settles nothing: the first one
//! delivers each message again later, and the lane recognises it as handled.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use backoff::ExponentialBackoff;
use broker::{CursorSpec, CursorStart, StreamDelivery};
use model::CommandId;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use workflow::lane_request::{EffectLaneMessage, EffectLaneRequest, LaneRequestMessage};
use workflow::ledger::CallRow;
use workflow::message::EffectCommand;
use workflow::subject::ConsumerSource;
use workflow::{LaneRowKey, WorkflowLane};

use super::EffectLaneOwner;
use crate::lane::rows::LaneStore;
use crate::lane::source::PULL;
use crate::lane::{self, LaneExit, WORKFLOW_COMMANDS};

/// Remembered messages about calls whose commands still wait. Any further message waits for the first cursor.
const EARLY_MAX: usize = 10_000;
/// Time without a read after which the server deletes the second cursor.
const UNREAD: Duration = Duration::from_secs(60);

/// State of a lane's look-ahead over the messages behind those that it takes.
pub(super) struct LookaheadState {
    /// The last message that was looked at.
    seen: u64,
    brought: Option<mpsc::Receiver<StreamDelivery>>,
    /// Sequences of messages about calls whose commands were not taken yet.
    early: HashMap<CommandId, Vec<u64>>,
    early_count: usize,
    /// Messages about taken commands that could not be read yet, and when they are read again.
    unread: VecDeque<(CommandId, u64)>,
    due: Option<Instant>,
    pauses: ExponentialBackoff,
}

impl LookaheadState {
    /// Creates the state of a lane that does not read ahead.
    pub(super) fn new() -> Self {
        Self {
            seen: 0,
            brought: None,
            early: HashMap::new(),
            early_count: 0,
            unread: VecDeque::new(),
            due: None,
            pauses: lane::backoff(),
        }
    }

    /// Waits for the next message; never resolves while no look-ahead runs. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<StreamDelivery> {
        match &mut self.brought {
            Some(brought) => brought.recv().await,
            None => std::future::pending().await,
        }
    }

    /// When messages that could not be read are read again; `None` while there are none.
    pub(super) const fn retry_due(&self) -> Option<Instant> {
        self.due
    }

    fn remember(&mut self, command: CommandId, sequence: u64) {
        if self.early_count < EARLY_MAX {
            self.early_count += 1;
            self.early.entry(command).or_default().push(sequence);
        }
    }

    fn take_early(&mut self, command: CommandId) -> Vec<u64> {
        let early = self.early.remove(&command).unwrap_or_default();
        self.early_count -= early.len();
        early
    }
}

/// Reads the messages behind a position, until the lane stops or drops the receiver.
struct LookaheadReader {
    rows: Arc<LaneStore>,
    source: ConsumerSource,
    behind: u64,
    to: mpsc::Sender<StreamDelivery>,
    stop: CancellationToken,
}

impl LookaheadReader {
    async fn run(self) -> Result<(), LaneExit> {
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = self.to.closed() => {}
            () = self.read() => {}
        }
        Ok(())
    }

    fn spec(&self, behind: u64) -> CursorSpec {
        let lane = &self.rows.lane;
        let consumer = consumer(&self.source, lane);
        let filter = self.source.filter(lane.tenant());
        CursorSpec {
            description: format!("mycora {lane}, ahead in epoch {}", self.rows.epoch()),
            ack_wait: self.rows.around().ack_wait,
            inactive_after: Some(UNREAD),
            ..CursorSpec::new(WORKFLOW_COMMANDS, &consumer, &filter, CursorStart::After(behind))
        }
    }

    async fn read(&self) {
        let (mut behind, mut pauses) = (self.behind, lane::backoff());
        loop {
            let why = match self.rows.around().broker.open(&self.spec(behind)).await {
                Ok(mut deliveries) => loop {
                    match deliveries.next(PULL).await {
                        Ok(message) => {
                            behind = behind.max(message.sequence);
                            pauses.reset();
                            if self.to.send(message).await.is_err() {
                                return;
                            }
                        }
                        Err(lost) => break lost.to_string(),
                    }
                },
                Err(error) => error.to_string(),
            };
            tracing::info!(lane = %self.rows.lane, "the look-ahead cursor was lost, opening another: {why}");
            tokio::time::sleep(pauses.next_pause()).await;
        }
    }
}

/// Name of a lane's second cursor. Names of the first begin with `ef_`.
fn consumer(source: &ConsumerSource, lane: &WorkflowLane) -> String {
    source.consumer(lane).replacen("ef_", "ea_", 1)
}

impl EffectLaneOwner {
    /// Reads ahead while commands wait for room, and until the source has come as far.
    pub(super) fn look_ahead_while_full(&mut self, is_full: bool) {
        let waits = is_full && !self.waiting.is_empty();
        match &self.ahead.brought {
            None if waits => {
                let (to, brought) = mpsc::channel(16);
                self.ahead.brought = Some(brought);
                let lane = &self.shared.lane;
                tracing::info!(lane = %self.shared.rows.lane, "the limit of open calls is reached; commands wait");
                let reading = LookaheadReader {
                    rows: Arc::clone(&self.shared.rows),
                    source: ConsumerSource::Commands(lane.effect.clone()),
                    behind: self.source.position().max(self.ahead.seen),
                    to,
                    stop: self.shared.stop.clone(),
                };
                self.tasks.spawn(reading.run());
            }
            Some(_) if !is_full && self.source.position() >= self.ahead.seen => {
                self.ahead = LookaheadState::new();
            }
            _ => {}
        }
    }

    /// Applies a message that was read ahead to its call, if that is open; remembers it for later if the call's command still waits.
    pub(super) async fn take_ahead(&mut self, delivered: &StreamDelivery) -> Result<(), LaneExit> {
        self.ahead.seen = self.ahead.seen.max(delivered.sequence);
        delivered.receipt.ack();
        let read = self.read(&delivered.subject, &delivered.payload)?;
        // The first cursor makes a dead letter of it later.
        let Ok(read) = read else { return Ok(()) };
        if let Some(command) = self.about(&read)
            && !self.do_ahead(command, read, delivered.stored_millis).await?
        {
            self.ahead.remember(command, delivered.sequence);
        }
        Ok(())
    }

    /// Handles the remembered messages about calls whose commands have now been taken.
    pub(super) async fn handle_early_requests(&mut self, taken: &[CommandId]) -> Result<(), LaneExit> {
        for command in taken {
            let early = self.ahead.take_early(*command);
            self.ahead.unread.extend(early.into_iter().map(|sequence| (*command, sequence)));
        }
        self.read_early_requests().await
    }

    /// Reads the remembered messages about taken commands and handles them; where one cannot be read, soon again. The first cursor may
    /// have to wait for the end of the very call that such a message cancels.
    pub(super) async fn read_early_requests(&mut self) -> Result<(), LaneExit> {
        while let Some((command, sequence)) = self.ahead.unread.pop_front() {
            let found = self.shared.rows.around().broker.message(WORKFLOW_COMMANDS, sequence).await;
            match found {
                Ok(Some(message)) => {
                    if let Ok(read) = self.read(&message.subject, &message.payload)? {
                        self.do_ahead(command, read, message.stored_millis).await?;
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    let pause = self.ahead.pauses.next_pause();
                    tracing::info!(lane = %self.shared.rows.lane, "message {sequence} cannot be read, retrying in {pause:?}: {error}");
                    self.ahead.unread.push_front((command, sequence));
                    self.ahead.due = Some(Instant::now() + pause);
                    return Ok(());
                }
            }
        }
        self.ahead.due = None;
        self.ahead.pauses.reset();
        Ok(())
    }

    /// The call that a message is about, unless it orders it or is for another lane.
    fn about(&self, read: &EffectLaneMessage) -> Option<CommandId> {
        match read {
            EffectLaneMessage::Command(EffectCommand { command_id, cancel: true, .. }) => Some(*command_id),
            EffectLaneMessage::Request(LaneRequestMessage {
                word: EffectLaneRequest::Call { command, .. },
                lane,
                ..
            }) => (*lane == self.shared.rows.lane.to_string()).then_some(*command),
            EffectLaneMessage::Command(_) | EffectLaneMessage::Request(_) => None,
        }
    }

    /// Applies a message to its call; returns whether the ledger has that call.
    async fn do_ahead(
        &mut self,
        command: CommandId,
        read: EffectLaneMessage,
        stored_millis: u64,
    ) -> Result<bool, LaneExit> {
        let rows = Arc::clone(&self.shared.rows);
        let Some(known) = rows.get(&LaneRowKey::effect(command)).await? else { return Ok(false) };
        match read {
            EffectLaneMessage::Command(taken_back) => {
                let known: CallRow = rows.decode(&known)?;
                // A cancellation with another payload becomes a dead letter when the first cursor delivers it.
                if known.is_same(&taken_back) {
                    self.cancel(&known, None).await?;
                }
            }
            EffectLaneMessage::Request(request) => self.handle_request_ahead(request, stored_millis).await?,
        }
        Ok(true)
    }
}
