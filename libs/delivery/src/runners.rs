//! Where runners are: the registry's view, as far as delivering needs it.

use std::collections::{HashMap, HashSet};

use model::{ContextId, RunnerId};
use proto::internal::v1::{GoneRunner, ViewedRunner, WatchResponse};

use crate::send_queue::RunnerRoute;

/// Where a runner's supervisor is reached, and whether it is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunnerEndpoint {
    /// Where its supervisor is reached.
    pub address: String,
    /// The topic its requests travel under.
    pub topic: String,
    /// The runner's supervisor is alive.
    pub live: bool,
}

/// All runners of all contexts.
#[derive(Debug, Default)]
pub struct RunnerEndpoints {
    places: HashMap<RunnerRoute, RunnerEndpoint>,
    /// Those that are sent no new jobs: drained, or deleted and listened to until what runs there has ended.
    closed: HashSet<RunnerRoute>,
    /// Runners that the snapshot of the present view names, until it is complete.
    named: Option<HashSet<RunnerRoute>>,
    complete: bool,
}

impl RunnerEndpoints {
    /// Begins a view: runners that its snapshot does not name are gone.
    pub fn begin_view(&mut self) {
        self.named = Some(HashSet::new());
    }

    /// Takes over runners that are new, have changed, or are gone.
    pub fn update(&mut self, part: WatchResponse) {
        let WatchResponse { runners, snapshot_end, gone } = part;
        for GoneRunner { context_id, runner_id } in gone {
            self.places.remove(&(ContextId(context_id), RunnerId(runner_id)));
            self.closed.remove(&(ContextId(context_id), RunnerId(runner_id)));
        }
        for ViewedRunner { context_id, runner } in runners {
            let Some(runner) = runner else { continue };
            let key = (ContextId(context_id), RunnerId(runner.id));
            if runner.drain_time.is_some() || runner.delete_time.is_some() {
                self.closed.insert(key);
            } else {
                self.closed.remove(&key);
            }
            let place = RunnerEndpoint { address: runner.address, topic: runner.topic, live: runner.live };
            self.places.insert(key, place);
            if let Some(named) = &mut self.named {
                named.insert(key);
            }
        }
        if snapshot_end {
            self.complete = true;
            if let Some(named) = self.named.take() {
                self.places.retain(|key, _| named.contains(key));
                self.closed.retain(|key| named.contains(key));
            }
        }
    }

    /// Returns true once the first snapshot was complete: a runner that is not known then does not exist.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.complete
    }

    /// Where a runner is, dead or alive.
    #[must_use]
    pub fn get(&self, key: RunnerRoute) -> Option<&RunnerEndpoint> {
        self.places.get(&key)
    }

    /// Returns true for a runner that is sent no new jobs.
    #[must_use]
    pub fn is_closed(&self, key: RunnerRoute) -> bool {
        self.closed.contains(&key)
    }

    /// Returns true when a message sent to the runner may arrive.
    #[must_use]
    pub fn is_live(&self, key: RunnerRoute) -> bool {
        self.places.get(&key).is_some_and(|place| place.live)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::v1::Runner;

    #[test]
    fn who_is_gone_is_forgotten() {
        let part = |ids: &[u32], gone: &[u32], snapshot_end| WatchResponse {
            runners: ids
                .iter()
                .map(|id| ViewedRunner {
                    context_id: 1,
                    runner: Some(Runner { id: *id, ..Default::default() }),
                })
                .collect(),
            snapshot_end,
            gone: gone.iter().map(|id| GoneRunner { context_id: 1, runner_id: *id }).collect(),
        };
        let mut runners = RunnerEndpoints::default();
        let known = |runners: &RunnerEndpoints| -> Vec<u32> {
            (1..=5).filter(|id| runners.get((ContextId(1), RunnerId(*id))).is_some()).collect()
        };
        runners.begin_view();
        runners.update(part(&[1, 2, 3], &[], false));
        assert!(!runners.is_complete());
        runners.update(part(&[], &[], true));
        runners.update(part(&[4], &[1], false));
        assert_eq!((known(&runners), runners.is_complete()), (vec![2, 3, 4], true));
        runners.begin_view();
        runners.update(part(&[3], &[], false));
        assert_eq!(known(&runners), [2, 3, 4], "the snapshot is not complete");
        runners.update(part(&[5], &[], true));
        assert_eq!(known(&runners), [3, 5]);
    }
}
