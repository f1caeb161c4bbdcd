//! Attempts that routers want stopped: many of one supervisor in one call, retried until it has answered.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backoff::ExponentialBackoff;
use model::supervision::{JobStop, JobStopped, STATE_UNKNOWN, method};
use model::{ContextId, FlowId, JobKey, NodeReport, ReportSource};
use mycelium::{CallError, JsonRpcCall};
use proto::internal::v1 as wire;

use crate::commands::{ANSWER_TIMEOUT, SupervisorCommandError, connect};
use crate::delivery::stopped;
use crate::routers::RouterReplySender;
use crate::supervisor_api::GatewayState;

/// Attempts in one call.
const STOPS_AT_ONCE: usize = 500;
/// Maximum number of queued stops of one router. Beyond it, an unreachable supervisor keeps its attempts until it is back and
/// reports them, and is then told which of them to stop.
const WAITING_MAX: usize = 100_000;
/// Maximum calls to a supervisor for the same attempts; with the pauses between, half a minute or more.
const TRIES_MAX: u32 = 18;
/// The pauses after a call that failed, the first and the longest.
const RETRY: ExponentialBackoff =
    ExponentialBackoff::between(Duration::from_millis(100), Duration::from_secs(5));

/// Where a supervisor is reached, address and topic, and for which context.
type StopQueueKey = (String, String, ContextId);

/// Attempts that one router wants stopped. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct StopQueue(Arc<Mutex<HashMap<StopQueueKey, QueuedStops>>>);

/// Attempts at one supervisor, which a task is stopping.
type QueuedStops = BTreeMap<JobKey, QueuedStop>;

#[derive(Debug, Clone, Copy)]
struct QueuedStop {
    flow: FlowId,
    grace_secs: u32,
    tries: u32,
}

impl StopQueue {
    /// Notes an attempt; returns the key for which the caller must [`run`] now, unless a task does already.
    pub fn add(&self, stop: wire::StopAttempt) -> Option<StopQueueKey> {
        let wire::StopAttempt { address, topic, job_key, grace_secs, context_id, flow_id } = stop;
        let job_key: JobKey = match job_key.parse() {
            Ok(key) => key,
            Err(error) => {
                tracing::error!(%error, "a stop names no attempt");
                return None;
            }
        };
        let queued = QueuedStop { flow: FlowId(flow_id), grace_secs, tries: 0 };
        let place = (address, topic, ContextId(context_id));
        let mut places = self.lock();
        if places.values().map(BTreeMap::len).sum::<usize>() >= WAITING_MAX {
            tracing::warn!(%job_key, address = place.0, "too many stops are queued; this one is dropped");
            return None;
        }
        if let Some(waiting) = places.get_mut(&place) {
            waiting.insert(job_key, queued);
            return None;
        }
        places.insert(place.clone(), BTreeMap::from([(job_key, queued)]));
        Some(place)
    }

    /// Takes the next stops from the queue of one place; removes the queue when it is empty.
    fn next(&self, place: &StopQueueKey) -> Vec<(JobKey, QueuedStop)> {
        let mut places = self.lock();
        let Some(waiting) = places.get_mut(place) else { return Vec::new() };
        if waiting.is_empty() {
            places.remove(place);
            return Vec::new();
        }
        let rest = waiting.keys().nth(STOPS_AT_ONCE).copied();
        let rest = rest.map(|first| waiting.split_off(&first)).unwrap_or_default();
        std::mem::replace(waiting, rest).into_iter().collect()
    }

    /// Puts back stops that have to be tried again, unless a newer one has come.
    fn put_back(&self, place: &StopQueueKey, retries: Vec<(JobKey, QueuedStop)>) {
        let mut places = self.lock();
        let waiting = places.entry(place.clone()).or_default();
        for (job_key, queued) in retries {
            waiting.entry(job_key).or_insert(queued);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<StopQueueKey, QueuedStops>> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends the queued stops of one place until its queue is empty.
pub async fn run(state: GatewayState, answers: RouterReplySender, stops: StopQueue, place: StopQueueKey) {
    let mut backoff = RETRY;
    loop {
        let batch = stops.next(&place);
        if batch.is_empty() {
            return;
        }
        let Some((left, error)) = try_all(&state, &answers, &place, batch).await else {
            backoff.reset();
            continue;
        };
        let again = |stop: QueuedStop| QueuedStop { tries: stop.tries + 1, ..stop };
        let (again, given_up): (Vec<_>, Vec<_>) = left
            .into_iter()
            .map(|(key, stop)| (key, again(stop)))
            .partition(|(_, stop)| stop.tries < TRIES_MAX);
        if !given_up.is_empty() {
            tracing::warn!(address = place.0, attempts = given_up.len(), %error, "attempts were not stopped");
        }
        stops.put_back(&place, again);
        backoff.pause().await;
    }
}

/// Sends stops to a supervisor; returns those that need a retry, and why. An attempt that the supervisor had
/// never seen, and will refuse from now on, is reported as stopped; the supervisor itself reports the end of
/// every other.
async fn try_all(
    state: &GatewayState,
    answers: &RouterReplySender,
    (address, topic, context): &StopQueueKey,
    stops: Vec<(JobKey, QueuedStop)>,
) -> Option<(Vec<(JobKey, QueuedStop)>, SupervisorCommandError)> {
    let peer = match connect(state, address, topic, Some(*context)).await {
        Ok(peer) => peer,
        Err(error) => return Some((stops, error)),
    };
    let calls = stops.iter().map(|(job_key, stop)| {
        let call =
            JsonRpcCall::new(method::JOB_STOP, &JobStop { job_key: *job_key, grace_secs: stop.grace_secs })?;
        Ok(call.of_context(context.0))
    });
    let calls = match calls.collect::<Result<Vec<_>, _>>() {
        Ok(calls) => calls,
        Err(error) => return Some((stops, SupervisorCommandError::Json(error))),
    };
    let (mut left, mut why) = (Vec::new(), None);
    let outcomes = peer.call_batch(calls, ANSWER_TIMEOUT).await;
    for ((job_key, stop), outcome) in stops.into_iter().zip(outcomes) {
        match outcome.and_then(|answer| read(answer.get())) {
            Ok(outcome) if outcome.stopped && outcome.state == STATE_UNKNOWN => {
                let source = Some(ReportSource { address: address.clone(), topic: topic.clone() });
                let (context_id, flow_id) = (*context, stop.flow);
                let report = NodeReport { job_key, context_id, flow_id, source, kind: stopped() };
                if let Err(full) = answers.report(&report) {
                    tracing::debug!(%job_key, %full, "a stop could not be reported; retrying");
                    left.push((job_key, stop));
                    why.get_or_insert(SupervisorCommandError::Call(CallError::TooMany));
                }
            }
            Ok(_) => {}
            Err(CallError::Refused(refused)) if refused.is_lasting() => {
                tracing::warn!(%job_key, address, %refused, "an attempt cannot be stopped");
            }
            Err(error) => {
                left.push((job_key, stop));
                why.get_or_insert(SupervisorCommandError::Call(error));
            }
        }
    }
    why.map(|why| (left, why))
}

fn read(answer: &str) -> Result<JobStopped, CallError> {
    serde_json::from_str(answer).map_err(|error| CallError::Unwritable(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stop(job: u32, grace_secs: u32) -> wire::StopAttempt {
        let key = format!("{}-{}-{job}-1", model::ContextUid::random(), model::FlowUid::random());
        wire::StopAttempt {
            address: "a".into(),
            topic: "t".into(),
            job_key: key,
            grace_secs,
            ..Default::default()
        }
    }

    #[test]
    fn one_task_serves_a_place_until_nothing_waits() {
        let stops = StopQueue::default();
        let place = stops.add(stop(1, 5)).expect("somebody has to run");
        for job in 2..=700 {
            assert_eq!(stops.add(stop(job, 5)), None);
        }
        let first = stops.next(&place);
        assert_eq!(first.len(), STOPS_AT_ONCE);
        assert_eq!(stops.next(&place).len(), 200);
        stops.put_back(&place, first);
        assert_eq!(stops.next(&place).len(), STOPS_AT_ONCE);
        assert!(stops.next(&place).is_empty());
        assert_eq!(stops.add(stop(1, 5)), Some(place), "it begins anew");
    }

    #[test]
    fn a_newer_grace_period_stands() {
        let stops = StopQueue::default();
        let early = stop(1, 30);
        let place = stops.add(early.clone()).expect("somebody has to run");
        let taken = stops.next(&place);
        stops.add(wire::StopAttempt { grace_secs: 0, ..early });
        stops.put_back(&place, taken);
        assert_eq!(stops.next(&place)[0].1.grace_secs, 0);
    }
}
