//! Attempts of removed flows: a router notifies their supervisors that the attempts are no longer needed.
//!
//! Sent once, without a retry: a supervisor that is away drops its copies when their retention time ends.

use std::collections::BTreeMap;

use model::supervision::JOBS_FORGET_MAX;
use model::{ContextId, JobKey, RunnerId};
use tokio::sync::mpsc;

/// Notices that wait for one router; beyond this number they are dropped.
pub(crate) const FORGETS_MAX: usize = 1000;
/// Approximate number of attempts in one answer.
const TOGETHER_MAX: usize = 10 * JOBS_FORGET_MAX;

/// Attempts that one supervisor may forget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ForgettableAttempts {
    /// Where their flow was.
    pub(crate) context: ContextId,
    /// The runner record that they were sent to.
    pub(crate) runner: RunnerId,
    /// At most [`JOBS_FORGET_MAX`].
    pub(crate) keys: Vec<JobKey>,
}

/// Groups the attempts of one context into notices, by their runner records.
pub(crate) fn forgettable_by_runner(
    context: ContextId,
    attempts: BTreeMap<RunnerId, Vec<JobKey>>,
) -> Vec<ForgettableAttempts> {
    let of_runner = |(runner, keys): (RunnerId, Vec<JobKey>)| {
        let parts = keys.chunks(JOBS_FORGET_MAX).map(<[JobKey]>::to_vec).collect::<Vec<_>>();
        parts.into_iter().map(move |keys| ForgettableAttempts { context, runner, keys })
    };
    attempts.into_iter().flat_map(of_runner).collect()
}

/// Receives what is queued, at least one entry, merged into as few as possible: the removal of many flows queues
/// one for each. `None` when the queue has ended. Cancel safe.
pub(crate) async fn next_forgets(
    queue: &mut mpsc::Receiver<ForgettableAttempts>,
) -> Option<Vec<ForgettableAttempts>> {
    let mut contexts: BTreeMap<ContextId, BTreeMap<RunnerId, Vec<JobKey>>> = BTreeMap::new();
    let (mut next, mut count) = (Some(queue.recv().await?), 0);
    while let Some(ForgettableAttempts { context, runner, keys }) = next {
        count += keys.len();
        contexts.entry(context).or_default().entry(runner).or_default().extend(keys);
        next = if count < TOGETHER_MAX { queue.try_recv().ok() } else { None };
    }
    Some(
        contexts
            .into_iter()
            .flat_map(|(context, attempts)| forgettable_by_runner(context, attempts))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use model::id::Uid;
    use model::{Attempt, ContextUid, FlowUid, JobId};

    use super::*;

    fn key(job: u32) -> JobKey {
        let (context, flow) = (ContextUid(Uid::from_bits(1)), FlowUid(Uid::from_bits(2)));
        JobKey { context, flow, job: JobId(job), attempt: Attempt(1) }
    }

    #[tokio::test]
    async fn notices_of_many_flows_go_together() {
        let (sender, mut queue) = mpsc::channel(FORGETS_MAX);
        let last = u32::try_from(JOBS_FORGET_MAX).expect("small");
        for job in 0..=last {
            let (context, runner) = (ContextId(1), RunnerId(job % 2 + 1));
            sender.try_send(ForgettableAttempts { context, runner, keys: vec![key(job)] }).expect("room");
        }
        let all = (0..=last).map(key).collect();
        let many = forgettable_by_runner(ContextId(2), BTreeMap::from([(RunnerId(3), all)]));
        assert_eq!(many.iter().map(|notice| notice.keys.len()).collect::<Vec<_>>(), [JOBS_FORGET_MAX, 1]);
        for notice in many {
            sender.try_send(notice).expect("room");
        }
        let together = next_forgets(&mut queue).await.expect("notices");
        let merged: Vec<_> =
            together.iter().map(|notice| (notice.context.0, notice.runner.0, notice.keys.len())).collect();
        let half = JOBS_FORGET_MAX / 2;
        assert_eq!(merged, [(1, 1, half + 1), (1, 2, half), (2, 3, JOBS_FORGET_MAX), (2, 3, 1)]);
        drop(sender);
        assert_eq!(next_forgets(&mut queue).await, None);
    }
}
