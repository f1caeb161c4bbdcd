//! One source of a lane: a disposable cursor, and a durable position.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use broker::{
    BrokerError, CursorError, CursorProgress, CursorSpec, CursorStart, Deliveries, PullLimit, StreamDelivery,
};
use store::RowOperation;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use workflow::cursor::{Cursor, DeliveryClass};
use workflow::instance::encode;
use workflow::subject::ConsumerSource;
use workflow::{LaneRowKey, WorkflowLane};

use super::checkpoint::{Anchor, Checkpoint, CheckpointComparison};
use super::in_flight::{InFlightBudget, InFlightGuard};
use super::rows::{LaneStore, row};
use super::{LaneEnvironment, LaneExit};
use crate::health::ImpairmentGuard;
use crate::metrics::SourceReading;

/// Messages and bytes that one pull may bring: few, since they count as bytes in flight only once they have come. They cannot be
/// counted before, since idle lanes have open pulls as well. A larger message is pulled alone.
pub(crate) const PULL: PullLimit = PullLimit { messages: 64, bytes: 256 * 1024 };
/// Largest number of unacknowledged deliveries.
const ACK_PENDING_MAX: u32 = 256;
/// How long a server waits before it redelivers an unacknowledged message.
pub const ACK_WAIT: Duration = Duration::from_secs(30);
/// Least time between notes of a position that no input's commit carries: messages that mean nothing to a lane lead to no commit.
const NOTE_EACH: Duration = Duration::from_secs(1);
/// Least time between notes of a position that moves only past messages of other sources: a quiet source among busy ones.
const PASSED_EACH: Duration = Duration::from_secs(60);

/// Event that a source brings to its owner.
pub(crate) enum SourceEvent {
    /// Cursor was made, from this checkpoint on.
    Opened(Checkpoint),
    /// A message.
    Message(Box<StreamDelivery>, InFlightGuard),
    /// Position up to which the broker found no message for this source.
    Passed(CursorProgress),
    /// Cursor is lost; the owner asks for a new one.
    Lost,
}

/// A source, for its owner.
pub struct SourceState {
    /// Source that is read.
    pub source: ConsumerSource,
    /// Stream of the source.
    pub stream: String,
    /// Consumer of the source.
    pub consumer: String,
    cursor: Option<Cursor>,
    checkpoint: Option<Checkpoint>,
    /// Anchors of messages that are not settled, and of the last one before those.
    anchors: BTreeMap<u64, Anchor>,
    /// Everything stored before this moment was delivered, in milliseconds since 1970.
    pub seen_until: u64,
    /// Position that the store is known to have.
    noted: u64,
    /// Position as far as it moved by settled messages.
    settled: u64,
    /// When a position was last noted on its own, since the lane was taken.
    noted_at: Option<Instant>,
    /// Positions that the commits of current messages carry to the store, by sequence of the message.
    notes: BTreeMap<u64, u64>,
    /// Number of messages that were not delivered yet, as of the last delivery.
    pending: u64,
    reading: SourceReading,
}

impl SourceState {
    /// A source that was not opened yet.
    #[must_use]
    pub fn new(source: ConsumerSource, stream: &str, lane: &WorkflowLane, reading: SourceReading) -> Self {
        let consumer = source.consumer(lane);
        Self {
            source,
            stream: stream.to_owned(),
            consumer,
            cursor: None,
            checkpoint: None,
            anchors: BTreeMap::new(),
            seen_until: 0,
            noted: 0,
            settled: 0,
            noted_at: None,
            notes: BTreeMap::new(),
            pending: 0,
            reading,
        }
    }

    /// Reports to metrics how much is not settled.
    fn report(&self) {
        let cursor = self.cursor.as_ref();
        let in_flight = cursor.map_or(0, |cursor| cursor.in_flight() as u64);
        let oldest = cursor.and_then(Cursor::first_in_flight).and_then(|first| self.anchors.get(&first));
        self.reading.note(self.pending + in_flight, oldest.map(|anchor| anchor.stored));
    }

    /// Notes that the cursor was opened.
    pub fn opened(&mut self, checkpoint: Checkpoint) {
        self.cursor = Some(Cursor::behind(checkpoint.position));
        self.noted = checkpoint.position;
        self.settled = checkpoint.position;
        self.anchors.clear();
        self.notes.clear();
        self.checkpoint = Some(checkpoint);
    }

    /// Notes that the cursor is gone: messages under way are delivered again.
    pub fn lost(&mut self) {
        self.cursor = None;
    }

    /// Notes a delivery.
    pub fn deliver(&mut self, message: &StreamDelivery) -> Option<DeliveryClass> {
        let delivery = self.cursor.as_mut()?.deliver(message.sequence, message.count);
        if delivery == DeliveryClass::Next {
            let (sequence, stored) = (message.sequence, message.stored_millis);
            self.anchors.insert(sequence, Anchor::of(&message.subject, &message.payload, sequence, stored));
            // Other messages stored at the same moment may still come.
            self.seen_until = self.seen_until.max(stored);
            self.pending = message.pending;
            self.report();
        }
        Some(delivery)
    }

    /// Notes how far the broker has looked: the messages that it passed over are not for this source.
    pub fn pass(&mut self, passed: CursorProgress) {
        if let Some(cursor) = &mut self.cursor {
            cursor.pass(passed.sequence, passed.count);
        }
    }

    /// The last sequence up to which everything is settled; 0 without a cursor.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.cursor.as_ref().map_or(0, Cursor::position)
    }

    /// Returns whether there is a cursor that delivers.
    #[must_use]
    pub const fn has_cursor(&self) -> bool {
        self.cursor.is_some()
    }

    /// Returns whether all of so many deliveries of its cursor have come.
    #[must_use]
    pub fn has_all(&self, delivered: u64) -> bool {
        self.cursor.as_ref().is_some_and(|cursor| cursor.deliveries() >= delivered)
    }

    /// Notes that a message is settled; with `is_noted`, its commit had the change that [`SourceState::note_with`] gave.
    pub fn settle(&mut self, sequence: u64, is_noted: bool) {
        let Some(cursor) = &mut self.cursor else { return };
        cursor.settle(sequence);
        self.settled = cursor.position();
        let note = self.notes.remove(&sequence).filter(|_| is_noted);
        self.noted = self.noted.max(note.unwrap_or_default());
        self.report();
    }

    /// The change that notes the position as it will be once `sequence` is settled; `None` where that does not move it.
    #[must_use]
    pub fn note_with(&mut self, sequence: u64) -> Option<RowOperation> {
        let mut cursor = self.cursor.clone()?;
        let note = cursor.settle(sequence).then(|| self.note_at(cursor.position())).flatten()?;
        self.notes.insert(sequence, cursor.position());
        Some(note)
    }

    /// Returns whether its position has moved since it was noted last.
    fn has_moved(&self) -> bool {
        self.cursor.as_ref().is_some_and(|cursor| cursor.position() > self.noted)
    }

    /// How long to wait before noting the position on its own; `None` where it has not moved.
    #[must_use]
    pub fn next_note(&self) -> Option<Duration> {
        let each = if self.settled > self.noted { NOTE_EACH } else { PASSED_EACH };
        let waited = self.noted_at.map_or(each, |noted_at| noted_at.elapsed());
        self.has_moved().then(|| each.saturating_sub(waited))
    }

    /// The change that notes the position, if it has moved since it was noted last.
    #[must_use]
    pub fn note(&mut self) -> Option<RowOperation> {
        let position = self.cursor.as_ref().map(Cursor::position).filter(|_| self.has_moved())?;
        self.noted = position;
        self.noted_at = Some(Instant::now());
        self.note_at(position)
    }

    fn note_at(&self, position: u64) -> Option<RowOperation> {
        let before = self.checkpoint.as_ref()?;
        let anchor = self.anchors.range(..=position).next_back().map(|(_, anchor)| *anchor).or(before.anchor);
        let again_to = before.again_to.filter(|to| *to > position);
        let noted = Checkpoint { incarnation: before.incarnation, position, anchor, since: None, again_to };
        Some(RowOperation::Put(row(&LaneRowKey::checkpoint(&self.source.to_string())), encode(&noted).into()))
    }

    /// Drops anchors that no later position can need.
    pub fn tidy(&mut self) {
        let Some(position) = self.cursor.as_ref().map(Cursor::position) else { return };
        if let Some((last, _)) = self.anchors.range(..=position).next_back() {
            let last = *last;
            self.anchors = self.anchors.split_off(&last);
        }
    }

    /// The incarnation of its stream.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.incarnation)
    }
}

/// Command from the owner of a lane to the reader of one of its sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceReaderCommand {
    /// Drop the cursor: its deliveries are out of order, and useless.
    Drop,
    /// Open a new cursor: no message of the lost one is under way any more.
    Open,
}

/// Reads a source and passes its messages on, until `stop` is cancelled or the receiver is gone. After a lost cursor it waits until
/// the owner has none of its messages under way: their commits must not store a position of the old cursor after those of the new.
pub(crate) struct SourceReader {
    /// Rows of the lane.
    pub rows: std::sync::Arc<LaneStore>,
    /// Source that is read.
    pub source: ConsumerSource,
    /// Stream of the source.
    pub stream: String,
    /// Which of the lane's sources it is.
    pub number: usize,
    /// Where reading begins if nothing was read yet: a moment in milliseconds since 1970, or the beginning.
    pub since: Option<u64>,
    /// The source's part of the bytes that may be in flight.
    pub share: InFlightBudget,
    /// Receiver of the events.
    pub to: mpsc::Sender<(usize, SourceEvent)>,
    /// Commands of the owner.
    pub commands: mpsc::Receiver<SourceReaderCommand>,
    /// Stops the reader.
    pub stop: CancellationToken,
}

impl SourceReader {
    /// Reads.
    ///
    /// # Errors
    /// [`LaneExit`], where the lane has to be given up.
    pub(crate) async fn run(mut self) -> Result<(), LaneExit> {
        let stop = self.stop.clone();
        tokio::select! {
            () = stop.cancelled() => Ok(()),
            ended = self.read() => ended,
        }
    }

    async fn read(&mut self) -> Result<(), LaneExit> {
        // At a first start streams are created while lanes are taken: a missing stream is no impairment until that is done.
        self.rows.around().streams_made.wait().await;
        let mut pauses = super::backoff();
        let mut reason = "taken";
        // Reports that nothing can be read, as long as that is so.
        let mut lack: Option<ImpairmentGuard> = None;
        loop {
            let why = match self.open(reason).await? {
                Ok((checkpoint, mut deliveries)) => {
                    drop(lack.take());
                    if self.bring(SourceEvent::Opened(checkpoint)).await.is_err() {
                        return Ok(());
                    }
                    pauses.reset();
                    match self.pump(&mut *deliveries).await {
                        Some((kind, why)) => {
                            reason = kind;
                            why
                        }
                        None => return Ok(()),
                    }
                }
                Err(error) => {
                    reason = "failed";
                    // The former guard lives until the new one exists, so that the impairment does not flicker.
                    let impairment = self.lacking(&error);
                    drop(std::mem::replace(&mut lack, impairment));
                    error.to_string()
                }
            };
            let (lane, source) = (&self.rows.lane, &self.source);
            tracing::info!(%lane, %source, stream = self.stream, "cursor lost, opening another: {why}");
            if self.bring(SourceEvent::Lost).await.is_err() {
                return Ok(());
            }
            loop {
                match self.commands.recv().await {
                    Some(SourceReaderCommand::Open) => break,
                    // The cursor was lost on its own meanwhile.
                    Some(SourceReaderCommand::Drop) => {}
                    None => return Ok(()),
                }
            }
            tokio::time::sleep(pauses.next_pause()).await;
        }
    }

    /// Reports that nothing can be read, unless the connection is down, which is reported elsewhere. The service does not create the
    /// stream of aggregates: without it no event comes, and no timer fires.
    fn lacking(&self, error: &BrokerError) -> Option<ImpairmentGuard> {
        let why = match error {
            BrokerError::Unavailable { .. } => return None,
            BrokerError::StreamNotFound { .. } => error.to_string(),
            BrokerError::ConsumerLimitReached { .. } => {
                "it has as many consumers as it may have: raise its max_consumers, or have fewer lanes"
                    .to_owned()
            }
            // Names of consumers contain tenants, and anyone may read `/health`.
            _ => "its consumers cannot be created; the log says why".to_owned(),
        };
        Some(self.rows.around().health.begin_impairment(&format!("stream {}", self.stream), &why))
    }

    /// Passes messages on until the cursor is lost; gives the reason, for metrics and for people, or `None` if the receiver is gone.
    async fn pump(&mut self, deliveries: &mut dyn Deliveries) -> Option<(&'static str, String)> {
        let mut passed = deliveries.progress();
        loop {
            tokio::select! {
                command = self.commands.recv() => {
                    command?;
                    return Some(("disorder", "its deliveries were out of order".to_owned()));
                }
                Ok(()) = passed.changed() => {
                    let passed = *passed.borrow_and_update();
                    self.bring(SourceEvent::Passed(passed)).await.ok()?;
                }
                message = next(&self.share, deliveries) => match message {
                    Ok(message) => {
                        service::crash_point("event.pulled");
                        let in_flight = self.share.take(message.payload.len()).await;
                        self.bring(SourceEvent::Message(Box::new(message), in_flight)).await.ok()?;
                    }
                    Err(lost) => return Some((reason_of(&lost), lost.to_string())),
                }
            }
        }
    }

    async fn bring(&self, brought: SourceEvent) -> Result<(), ()> {
        self.to.send((self.number, brought)).await.map_err(|_| ())
    }

    /// Opens the cursor, behind the messages that were read.
    async fn open(
        &self,
        why: &str,
    ) -> Result<Result<(Checkpoint, Box<dyn Deliveries>), BrokerError>, LaneExit> {
        let LaneEnvironment { broker, metrics, ack_wait, .. } = self.rows.around();
        let stream = match broker.stream(&self.stream).await {
            Ok(Some(stream)) => stream,
            Ok(None) => return Ok(Err(BrokerError::StreamNotFound { stream: self.stream.clone() })),
            Err(error) => return Ok(Err(error)),
        };
        let key = LaneRowKey::checkpoint(&self.source.to_string());
        let kept = self.rows.get(&key).await?;
        let kept: Option<Checkpoint> = kept.map(|row| self.rows.decode(&row)).transpose()?;
        let at_anchor = match kept.as_ref().and_then(|kept| kept.anchor) {
            Some(anchor) => match broker.message(&self.stream, anchor.sequence).await {
                Ok(message) => message,
                Err(error) => return Ok(Err(error)),
            },
            None => None,
        };
        let (lane, source) = (&self.rows.lane, &self.source);
        let checkpoint = match &kept {
            None => Checkpoint::new(stream.incarnation, self.since),
            Some(kept) => match kept.compare(&stream, at_anchor.as_ref()) {
                CheckpointComparison::GoesOn => kept.clone(),
                CheckpointComparison::Expired(gone) => {
                    metrics.events_expired.inc_by(gone);
                    tracing::error!(%lane, %source, stream = self.stream, gone, "messages are gone before they were read");
                    kept.clone()
                }
                CheckpointComparison::WentBack(loss) => {
                    metrics.stream_went_back(&self.stream, loss);
                    let why = loss.as_str();
                    tracing::error!(%lane, %source, stream = self.stream, why, "the stream went back: {loss}; it is read again");
                    kept.back(stream.incarnation)
                }
            },
        };
        // Commits even without a change: a former owner is fenced here, before it can take the consumer from its successor.
        let note = (kept.as_ref() != Some(&checkpoint))
            .then(|| RowOperation::Put(row(&key), encode(&checkpoint).into()));
        self.rows.commit(Vec::new(), note.into_iter().collect()).await?;
        let start = match checkpoint.since {
            Some(since) if checkpoint.position == 0 => CursorStart::Since(since),
            _ => CursorStart::After(checkpoint.position),
        };
        let consumer = self.source.consumer(lane);
        if let Err(error) = broker.delete_cursor(&self.stream, &consumer).await {
            return Ok(Err(error));
        }
        service::crash_point("lane.cursor_deleted");
        let spec = CursorSpec {
            description: format!("mycora {lane}, epoch {}", self.rows.epoch()),
            max_ack_pending: ACK_PENDING_MAX,
            ack_wait: *ack_wait,
            ..CursorSpec::new(&self.stream, &consumer, &source.filter(lane.tenant()), start)
        };
        metrics.cursor_resets.with_label_values(&[why]).inc();
        Ok(broker.open(&spec).await.map(|deliveries| (checkpoint, deliveries)))
    }
}

/// Pulls the next message once there is room for one. Cancel-safe.
async fn next(
    share: &InFlightBudget,
    deliveries: &mut dyn Deliveries,
) -> Result<StreamDelivery, CursorError> {
    share.ready().await;
    deliveries.next(PULL).await
}

/// Reason why deliveries ended, as metrics name it.
const fn reason_of(lost: &CursorError) -> &'static str {
    match lost {
        CursorError::Disconnected { .. } => "disconnected",
        CursorError::Deleted { .. } => "deleted",
        CursorError::Silent { .. } => "silent",
        CursorError::Refused { .. } => "refused",
    }
}
