//! Where attempts run: the view of runners, lost runners, and reconciling attempts.

use std::collections::{BTreeMap, BTreeSet};

use flow::engine::{Engine, FlowEngineInput};
use model::{ContextId, NodeState, RunnerId, RunnerView, Timestamp};
use proto::internal::v1::StatusQuery;

use super::Driver;
use crate::liveness::RunnerKey;
use crate::loaded_flow::{AckTarget, FlowKey, LoadedFlow};

/// Attempts of one query.
const QUERY_ATTEMPTS_MAX: usize = 500;

impl Driver {
    pub(super) fn runners_changed(&mut self, views: Vec<(ContextId, RunnerView)>, gone: &[RunnerKey]) {
        let now = Timestamp::now();
        for runner in gone {
            self.runners.remove(*runner);
            self.liveness.mark_away(*runner, now);
        }
        let mut opened = BTreeSet::new();
        for (context, view) in views {
            let runner = (context, view.runner.id);
            if view.live {
                self.liveness.mark_alive(runner);
            } else {
                self.liveness.mark_away(runner, view.last_seen.unwrap_or(now).min(now));
            }
            if self.runners.update(context, view) {
                opened.insert(context);
            }
        }
        let keys: Vec<FlowKey> = self.flows.keys().copied().filter(|key| opened.contains(&key.0)).collect();
        for key in keys {
            if let Some(run) = self.flows.get_mut(&key) {
                run.push(FlowEngineInput::Wake, AckTarget::Nothing);
                self.enqueue(key);
            }
        }
    }

    /// Ends the attempts at runners that were away for too long.
    pub(super) fn lose_attempts(&mut self) {
        while let Some(runner) = self.liveness.next_lost(Timestamp::now()) {
            tracing::warn!(context = %runner.0, runner = %runner.1, "a supervisor is lost, and its attempts with it");
            let flows: Vec<FlowKey> = self
                .flows
                .iter()
                .filter(|(key, run)| key.0 == runner.0 && run.placed.values().any(|place| *place == runner.1))
                .map(|(key, _)| *key)
                .collect();
            for key in flows {
                if let Some(run) = self.flows.get_mut(&key) {
                    run.push(FlowEngineInput::SupervisorLost(runner.1), AckTarget::Nothing);
                    self.enqueue(key);
                }
            }
        }
    }

    /// Looks at the runners that a flow's attempts are at: they may be gone, or lost.
    pub(super) fn check_runners(&mut self, key: FlowKey, run: &mut LoadedFlow) {
        let runners: BTreeSet<RunnerId> = run.placed.values().copied().collect();
        for runner in runners {
            let place: RunnerKey = (key.0, runner);
            if self.liveness.is_lost(place) {
                run.push(FlowEngineInput::SupervisorLost(runner), AckTarget::Nothing);
            } else if self.runners.get(place).is_none() {
                self.liveness.mark_away(place, Timestamp::now());
            }
        }
    }

    /// Queries supervisors about the attempts that they have accepted: the previous owner may have received
    /// reports that were not stored.
    pub(super) fn reconcile(&mut self, (context, flow): FlowKey, engine: &Engine) {
        let mut by_runner: BTreeMap<RunnerId, Vec<String>> = BTreeMap::new();
        for attempt in engine.in_flight() {
            let node = engine.node(attempt.node);
            let accepted = node.supervisor.is_some() || node.state == NodeState::Running;
            if let (true, Some(runner)) = (accepted, attempt.runner) {
                by_runner.entry(runner).or_default().push(attempt.job_key.to_string());
            }
        }
        for (runner, job_keys) in by_runner {
            self.metrics.reconciled.inc_by(job_keys.len() as u64);
            for job_keys in job_keys.chunks(QUERY_ATTEMPTS_MAX) {
                self.routers.query(StatusQuery {
                    context_id: context.0,
                    flow_id: flow.0,
                    runner_id: runner.0,
                    job_keys: job_keys.to_vec(),
                });
            }
        }
    }
}
