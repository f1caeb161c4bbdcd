//! Start events of jobs, held back for a moment: a start and an end that are sent together travel as one report all the way.
//!
//! No start waits while no batch is in flight. Under load, a short job has ended before the batch ahead of it was answered.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use model::JobKey;
use queue::{QueueEvent, QueueEventKind};

/// How long a start waits at most.
const PATIENCE: Duration = Duration::from_millis(5);

/// The starts that wait.
#[derive(Default)]
pub(crate) struct DelayedStarts {
    events: HashMap<JobKey, QueueEvent>,
    /// When each start has waited long enough, in that order. Starts that were sent meanwhile are skipped.
    due: VecDeque<(Instant, JobKey)>,
}

impl DelayedStarts {
    /// Keeps a start; puts anything else into `waiting`, behind the start of its job.
    pub(crate) fn sort(&mut self, event: QueueEvent, now: Instant, waiting: &mut VecDeque<QueueEvent>) {
        // A job whose start is sent again has two start events.
        waiting.extend(self.events.remove(&event.job_key));
        if matches!(event.kind, QueueEventKind::Started { .. }) {
            self.due.push_back((now + PATIENCE, event.job_key));
            self.events.insert(event.job_key, event);
        } else {
            waiting.push_back(event);
        }
    }

    /// Removes and returns the starts that have waited long enough.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<QueueEvent> {
        let mut events = Vec::new();
        while let Some((due, key)) = self.due.front()
            && (*due <= now || !self.events.contains_key(key))
        {
            events.extend(self.events.remove(key));
            self.due.pop_front();
        }
        events
    }

    /// Removes and returns all starts.
    pub(crate) fn all(&mut self) -> Vec<QueueEvent> {
        let due = std::mem::take(&mut self.due);
        due.into_iter().filter_map(|(_, key)| self.events.remove(&key)).collect()
    }

    /// Returns when the first start has waited long enough; that start may have been sent already.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.due.front().map(|(due, _)| *due)
    }

    /// Returns the number of waiting starts.
    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retry_queue::tests::{event, key, numbers};

    fn started(job: JobKey, number: u64) -> QueueEvent {
        let (instance, time) = ("rhai:default:1".to_owned(), model::Timestamp::now());
        let kind = QueueEventKind::Started { instance, time, queued_time: None };
        QueueEvent { kind, ..event(job, number) }
    }

    #[test]
    fn a_start_waits_for_its_end_and_not_for_long() {
        let (mut starts, mut waiting, now) = (DelayedStarts::default(), VecDeque::new(), Instant::now());
        let (short, long) = (key(1), key(2));
        starts.sort(started(long, 1), now, &mut waiting);
        starts.sort(started(short, 2), now, &mut waiting);
        assert!(waiting.is_empty() && starts.due(now).is_empty());
        starts.sort(event(short, 3), now, &mut waiting);
        assert_eq!(numbers(waiting.make_contiguous()), [2, 3], "each job's in their order");
        assert_eq!((starts.len(), starts.next_due()), (1, Some(now + PATIENCE)));
        assert_eq!(numbers(&starts.due(now + PATIENCE)), [1]);
        assert_eq!((starts.len(), starts.next_due()), (0, None));
        starts.sort(event(long, 4), now, &mut waiting);
        assert_eq!(numbers(waiting.make_contiguous()), [2, 3, 4]);
    }

    #[test]
    fn a_start_that_is_reported_again_is_not_lost() {
        let (mut starts, mut waiting, now) = (DelayedStarts::default(), VecDeque::new(), Instant::now());
        let job = key(1);
        starts.sort(started(job, 1), now, &mut waiting);
        starts.sort(started(job, 2), now + PATIENCE, &mut waiting);
        assert_eq!(numbers(waiting.make_contiguous()), [1]);
        starts.sort(started(key(2), 3), now + PATIENCE, &mut waiting);
        assert_eq!(numbers(&starts.all()), [2, 3], "all, in the order in which they came");
        assert_eq!((starts.len(), starts.next_due()), (0, None));
    }
}
