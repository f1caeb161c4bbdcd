//! Replay of sources from a position: asks the owner, and follows it until it has caught up.

use std::sync::Arc;
use std::time::Duration;

use ::rpc::{Error, ErrorKind, RpcReason, WatchEnded};
use broker::StreamState;
use model::{CorrelationId, Timestamp, Violations};
use proto::v1::replay_lane_response::Event;
use proto::v1::{SagaReplayDone, SagaReplayProgress};
use tonic::Status;
use workflow::lane_request::{EffectLaneRequest, RewindTarget, SagaLaneRequest, SourceRewindSpec};
use workflow::subject::ConsumerSource;
use workflow::{LaneRowKey, WorkflowLane};

use super::super::SagaApi;
use super::super::dead_letters::subject_of;
use super::super::lists::failed;
use super::super::owner_client::{store_unavailable, unavailable};
use super::super::owner_requests::OperatorRequest;
use super::super::placement::source as shown;
use super::LaneReplayAnswers;
use crate::lane::checkpoint::Checkpoint;
use crate::placement::listing::{SourceReport, reports};
use crate::sagas::{KNOWN_MILLIS, NOBODY};

/// Margin in milliseconds for reading again: applied messages have to be remembered until that has ended.
const MARGIN_MILLIS: u64 = 3_600_000;
/// Number of sequences in which a message is looked for: single messages of a stream may have been deleted.
const HOLES_MAX: u64 = 100;
/// Interval at which positions are polled: the lane's owner may be another process, which does not report them.
const LOOK: Duration = Duration::from_millis(500);

/// A source that is read again.
struct SourceReplayTarget {
    source: ConsumerSource,
    stream: &'static str,
    /// How far the source was read before, including before an earlier set-back.
    before: Checkpoint,
}

/// Sources of a lane that are read again.
pub(super) struct SourceReplay {
    api: Arc<SagaApi>,
    lane: WorkflowLane,
    targets: Vec<SourceReplayTarget>,
    to: RewindTarget,
    operator_request: OperatorRequest,
}

impl SourceReplay {
    /// Finds the sources of a lane that are to be read again: the one of this name, or all of them that may be.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for an unknown source or one that was not read that far, OUT_OF_RANGE for messages that are gone or too old,
    /// UNAVAILABLE.
    pub(super) async fn begin(
        api: &Arc<SagaApi>,
        lane: WorkflowLane,
        source: &str,
        to: RewindTarget,
        operator_request: OperatorRequest,
    ) -> Result<Self, Status> {
        let targets = targets(api, &lane, source).await?;
        for target in &targets {
            check(api, target, to).await?;
        }
        Ok(Self { api: Arc::clone(api), lane, targets, to, operator_request })
    }

    /// Asks the owner to read them again.
    async fn ask(&self) -> Result<(), Status> {
        let Self { api, lane, targets, to, operator_request } = self;
        let set_back =
            |target: &SourceReplayTarget| SourceRewindSpec { source: target.source.to_string(), to: *to };
        let sources: Vec<_> = targets.iter().map(set_back).collect();
        if sources.is_empty() {
            return Ok(());
        }
        let nobody: CorrelationId = NOBODY.parse().map_err(Error::internal)?;
        let whom = (lane, subject_of(lane, &nobody));
        match lane {
            WorkflowLane::Saga { .. } => {
                api.send_request(operator_request, "", whom, SagaLaneRequest::SetBack(sources)).await?
            }
            WorkflowLane::Effect { .. } => {
                api.send_request(operator_request, "", whom, EffectLaneRequest::SetBack(sources)).await?
            }
        };
        Ok(())
    }

    pub(super) async fn run(self, mut answers: LaneReplayAnswers) {
        if let Err(ended) = self.follow(&mut answers).await {
            answers.sender.end(ended);
        }
    }

    /// Asks, and waits until each of the sources is where it was before.
    async fn follow(&self, answers: &mut LaneReplayAnswers) -> Result<(), WatchEnded> {
        answers.send(Event::Progress(SagaReplayProgress::default())).await?;
        answers.with_progress(self.ask()).await??;
        while !answers.with_progress(self.has_caught_up()).await?? {
            self.api.check_running(self.lane.tenant())?;
            answers.with_progress(tokio::time::sleep(LOOK)).await?;
        }
        let lanes = vec![self.lane.clone()];
        let found = reports(self.api.app.around(), &self.api.app.definitions(), lanes).await;
        let found = found.map_err(|error| store_unavailable(&error))?;
        let is_read_again =
            |report: &SourceReport| self.targets.iter().any(|target| target.source == report.source);
        let sources = found.into_iter().flat_map(|report| report.sources).filter(is_read_again);
        let done = SagaReplayDone { sources: sources.map(shown).collect(), ..SagaReplayDone::default() };
        answers.send(Event::Done(done)).await
    }

    async fn has_caught_up(&self) -> Result<bool, Status> {
        let keys: Vec<_> =
            self.targets.iter().map(|target| LaneRowKey::checkpoint(&target.source.to_string())).collect();
        if keys.is_empty() {
            return Ok(true);
        }
        let now = self.api.reads().rows::<Checkpoint>(&self.lane, &keys).await.map_err(failed)?;
        for (target, now) in self.targets.iter().zip(now) {
            let SourceReplayTarget { before, .. } = target;
            let is_there = now
                .is_some_and(|now| now.incarnation == before.incarnation && now.position >= before.was_at());
            if !is_there && !self.has_nothing_left(target).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns true if the last message that was read before is gone, and the source has read everything that is left.
    async fn has_nothing_left(&self, target: &SourceReplayTarget) -> Result<bool, Status> {
        let SourceReplayTarget { source, stream, before } = target;
        let broker = &self.api.app.around().broker;
        let state = broker.stream(stream).await.map_err(|error| unavailable(&error))?;
        if state.is_some_and(|state| state.incarnation == before.incarnation) {
            let last = broker.message(stream, before.was_at()).await;
            if last.map_err(|error| unavailable(&error))?.is_some() {
                return Ok(false);
            }
        }
        let cursor = broker.cursor(stream, &source.consumer(&self.lane)).await;
        let cursor = cursor.map_err(|error| unavailable(&error))?;
        Ok(cursor.is_some_and(|cursor| cursor.pending == 0 && cursor.unacknowledged == 0))
    }
}

/// Finds the requested sources of a lane that were read before. Verbs are never read again.
async fn targets(
    api: &SagaApi,
    lane: &WorkflowLane,
    source: &str,
) -> Result<Vec<SourceReplayTarget>, Status> {
    let found = reports(api.app.around(), &api.app.definitions(), vec![lane.clone()]).await;
    let found = found.map_err(|error| store_unavailable(&error))?;
    let mut sources: Vec<_> = found.into_iter().flat_map(|report| report.sources).collect();
    sources.retain(|report| !matches!(report.source, ConsumerSource::Verbs(_)));
    if !source.is_empty() {
        let names: Vec<_> = sources.iter().map(|report| report.source.to_string()).collect();
        sources.retain(|report| report.source.to_string() == source);
        if sources.is_empty() {
            let why = format!("no source of the lane that may be read again: there are {}", names.join(", "));
            return Err(invalid("from_position.source", why));
        }
    }
    let target = |report: SourceReport| {
        let SourceReport { source, stream, checkpoint, pending: _ } = report;
        checkpoint.map(|before| SourceReplayTarget { source, stream, before })
    };
    Ok(sources.into_iter().filter_map(target).collect())
}

/// Checks that a position is still in the stream, and not so old that applied messages are no longer recognised.
async fn check(api: &SagaApi, target: &SourceReplayTarget, to: RewindTarget) -> Result<(), Status> {
    let SourceReplayTarget { source, stream, before } = target;
    let broker = &api.app.around().broker;
    let state = broker.stream(stream).await.map_err(|error| unavailable(&error))?;
    let state = state.ok_or_else(|| gone(format!("there is no stream {stream}")))?;
    let stored = async |sequence: u64| {
        let message = broker.message(stream, sequence).await.map_err(|error| unavailable(&error))?;
        Ok::<_, Status>(message.map(|message| message.stored_millis))
    };
    let stored = match to {
        RewindTarget::Sequence(sequence) if sequence > before.was_at() => {
            let why = format!("{source} was read to {} only", before.was_at());
            return Err(invalid("from_position.sequence", why));
        }
        RewindTarget::Sequence(sequence) => {
            if sequence < state.first_sequence {
                return Err(gone(format!("the stream {stream} begins with {}", state.first_sequence)));
            }
            let mut found = None;
            for sequence in (sequence..=state.last_sequence).take(usize::try_from(HOLES_MAX).unwrap_or(1)) {
                found = stored(sequence).await?;
                if found.is_some() {
                    break;
                }
            }
            found.ok_or_else(|| gone(format!("the stream {stream} has nothing there; give a time")))?
        }
        RewindTarget::Time(time) => {
            let first = if state.messages == 0 { None } else { stored(state.first_sequence).await? };
            if is_gone(&state, first, time, Timestamp::now().as_millis()) {
                return Err(gone(format!("the stream {stream} begins later")));
            }
            time
        }
    };
    let known_since = Timestamp::now().as_millis().saturating_sub(KNOWN_MILLIS - MARGIN_MILLIS);
    if stored < known_since {
        let days = KNOWN_MILLIS / 86_400_000;
        return Err(gone(format!("applied messages are known for {days} days, less an hour: begin later")));
    }
    Ok(())
}

/// Returns true if a stream may have lost messages of this moment or later. `first` is when its first one was stored.
fn is_gone(stream: &StreamState, first: Option<u64>, time: u64, now: u64) -> bool {
    let has_lost = stream.first_sequence > 1;
    let age = u64::try_from(stream.settings.max_age.as_millis()).unwrap_or(u64::MAX);
    // Messages younger than the stream's maximum age are still there.
    let may_be_lost = age == 0 || time < now.saturating_sub(age);
    has_lost && may_be_lost && first.is_none_or(|first| first > time)
}

fn gone(why: String) -> Status {
    Error::new(ErrorKind::OutOfRange, RpcReason::PositionGone, why).into()
}

fn invalid(field: &'static str, why: String) -> Status {
    let mut violations = Violations::new();
    violations.add(field, why);
    Error::from(violations).into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use broker::{StreamDiscard, StreamRetention, StreamSettings, StreamStorage};

    use super::*;

    #[test]
    fn what_a_stream_may_have_lost_is_gone() {
        let stream = |first_sequence, age: u64| StreamState {
            incarnation: 1,
            first_sequence,
            last_sequence: 20,
            messages: 1,
            consumers: 0,
            settings: StreamSettings {
                subjects: Vec::new(),
                retention: StreamRetention::Limits,
                storage: StreamStorage::File,
                discard: StreamDiscard::New,
                duplicate_window: Duration::ZERO,
                max_age: Duration::from_millis(age),
                max_consumers: -1,
                replicas: 1,
            },
        };
        for (first_sequence, age, first, time, expected) in [
            // The stream still has its first message.
            (1, 0, Some(500), 100, false),
            (7, 0, Some(500), 500, false),
            (7, 0, Some(500), 499, true),
            (7, 0, None, 499, true),
            // The stream was quiet, and loses no message that is this young.
            (7, 600, Some(900), 400, false),
            (7, 600, Some(900), 399, true),
        ] {
            let gone = is_gone(&stream(first_sequence, age), first, time, 1000);
            assert_eq!(gone, expected, "{first_sequence} {age} {first:?} {time}");
        }
    }
}
