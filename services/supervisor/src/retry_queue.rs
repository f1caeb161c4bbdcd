//! Retry queue for events that could not be delivered yet, with a back-off per job.
//!
//! Later events of a job wait behind its failed one, so that its coordinator receives them in order.
//! Other jobs are not held up.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use backoff::ExponentialBackoff;
use model::JobKey;
use queue::QueueEvent;

/// Longest pause before a job's events are retried.
pub(crate) const RETRY_MAX: Duration = Duration::from_secs(2);

/// The jobs that wait.
#[derive(Default)]
pub(crate) struct RetryQueue(HashMap<JobKey, RetryingJob>);

struct RetryingJob {
    events: Vec<QueueEvent>,
    backoff: ExponentialBackoff,
    /// Time of the next retry; nothing while one is under way.
    due: Option<Instant>,
}

impl RetryQueue {
    /// Keeps an event whose job waits for a retry; returns any other.
    pub(crate) fn defer(&mut self, event: QueueEvent) -> Option<QueueEvent> {
        let Some(job) = self.0.get_mut(&event.job_key) else { return Some(event) };
        job.events.push(event);
        None
    }

    /// Records the results of a batch: `retried` are its jobs that had failed before, `failed` its events that need a retry.
    /// Returns the events that need not wait any longer.
    pub(crate) fn record_results(
        &mut self,
        retried: &[JobKey],
        failed: Vec<QueueEvent>,
        now: Instant,
    ) -> Vec<QueueEvent> {
        for key in retried {
            if let Some(job) = self.0.get_mut(key) {
                job.due = Some(now + job.backoff.next_pause());
            }
        }
        let mut done: Vec<_> = retried.to_vec();
        done.retain(|key| failed.iter().all(|event| event.job_key != *key));
        for event in failed {
            let first = || {
                let mut backoff = ExponentialBackoff::up_to(RETRY_MAX);
                RetryingJob { events: Vec::new(), due: Some(now + backoff.next_pause()), backoff }
            };
            self.0.entry(event.job_key).or_insert_with(first).events.push(event);
        }
        let mut free: Vec<_> =
            done.iter().filter_map(|key| self.0.remove(key)).flat_map(|job| job.events).collect();
        free.sort_by_key(|event| stream_order(&event.id));
        free
    }

    /// Takes out the first events of jobs that are due, `max` at most.
    pub(crate) fn due(&mut self, now: Instant, max: usize) -> Vec<QueueEvent> {
        let mut events = Vec::new();
        for job in self.0.values_mut().filter(|job| job.due.is_some_and(|due| due <= now)) {
            if events.len() >= max {
                break;
            }
            job.due = None;
            job.events.sort_by_key(|event| stream_order(&event.id));
            let count = job.events.len().min(max - events.len());
            events.extend(job.events.drain(..count));
        }
        events
    }

    /// How many events wait.
    pub(crate) fn len(&self) -> usize {
        self.0.values().map(|job| job.events.len()).sum()
    }

    /// When the next job is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.0.values().filter_map(|job| job.due).min()
    }

    /// Makes every waiting job due now.
    pub(crate) fn retry_now(&mut self, now: Instant) {
        for due in self.0.values_mut().filter_map(|job| job.due.as_mut()) {
            *due = now;
        }
    }
}

/// A stream id is two numbers; as text they would not sort.
fn stream_order(id: &str) -> (u64, u64) {
    let (millis, count) = id.split_once('-').unwrap_or((id, "0"));
    (millis.parse().unwrap_or_default(), count.parse().unwrap_or_default())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    use model::id::Uid;
    use model::{ContextId, FlowId};
    use queue::{QueueEventKind, QueuedJobOrigin};

    /// The first pause.
    const FIRST: Duration = Duration::from_millis(50);

    pub(crate) fn event(job: JobKey, number: u64) -> QueueEvent {
        QueueEvent {
            id: format!("7-{number}"),
            job_key: job,
            number,
            coordinator: Uid::random().to_string(),
            origin: QueuedJobOrigin { context_id: ContextId(1), flow_id: FlowId(1) },
            kind: QueueEventKind::Returned,
        }
    }

    pub(crate) fn key(attempt: u32) -> JobKey {
        let uid = Uid::random();
        format!("{uid}-{uid}-1-{attempt}").parse().expect("a job key")
    }

    pub(crate) fn numbers(events: &[QueueEvent]) -> Vec<u64> {
        events.iter().map(|event| event.number).collect()
    }

    #[test]
    fn a_job_waits_for_itself_and_in_its_order() {
        let (stuck, other, start) = (key(1), key(2), Instant::now());
        let mut held = RetryQueue::default();
        assert!(held.record_results(&[], vec![event(stuck, 10)], start).is_empty());
        assert!(held.defer(event(stuck, 11)).is_none(), "later events of the job wait behind it");
        assert!(held.defer(event(other, 12)).is_some(), "other jobs do not");
        held.record_results(&[], vec![event(stuck, 9)], start);

        assert!(held.due(start, 8).is_empty());
        let mut now = start + FIRST;
        assert_eq!((held.next_due(), held.len()), (Some(now), 3));
        let events = held.due(now, 2);
        assert_eq!((numbers(&events), held.next_due()), (vec![9, 10], None));
        assert!(held.record_results(&[stuck], events, now).is_empty());
        assert_eq!(held.next_due(), Some(now + FIRST * 2), "it waits longer each time");
        held.retry_now(now);
        now += FIRST;
        assert_eq!(numbers(&held.due(now, 2)), [9, 10]);
        assert_eq!(numbers(&held.record_results(&[stuck], Vec::new(), now)), [11]);
        assert!(held.defer(event(stuck, 13)).is_some() && held.len() == 0);
    }
}
