//! Messages whose time is over. Nodes that may have arrived are reconciled before they are reported: see [`crate::reconcile`].

use bytes::Bytes;
use model::{JobKey, NodeReport, Reason, ReasonCode, ReportKind};
use proto::internal::v1 as wire;
use tokio::time::Instant;

use super::{Core, QUERY_ATTEMPTS_MAX};
use crate::reconcile::{AbandonedAttempt, AttemptLocation, ReconcileStep};
use crate::reports::ReportOrigin;
use crate::runners::RunnerEndpoint;
use crate::send_queue::MessageNumber;

/// Grace period of a running attempt whose message was given up, in seconds.
const GIVEN_UP_GRACE_SECS: u32 = 5;

impl Core {
    /// Reports every node that is left as undelivered, as soon as it is known not to run; the message is
    /// settled once the reports are known.
    pub(super) fn give_up(&mut self, now: Instant, number: MessageNumber, code: ReasonCode) {
        let Some(message) = self.messages.get(&number) else { return };
        let (context, runner) = message.route;
        let detail = match (&*message.last_error, self.runners.get(message.route)) {
            ("", None) => format!("context {context} has no runner {runner}"),
            ("", Some(place)) if !place.live => format!("runner {runner} is not alive"),
            ("", Some(_)) => "it waited too long in the send queue".to_owned(),
            (error, _) => error.to_owned(),
        };
        tracing::info!(message = message.name.1, %context, %runner, detail, "a message is given up");
        let reason = Reason::new(code, detail);
        self.abandon_nodes(now, number, &ReportKind::Rejected { reason, lasting: false, counts: true });
    }

    /// Hands back every node that is left of a message, when its runner is sent no new jobs and nothing of it is under way:
    /// they may go elsewhere at once.
    pub(super) fn hand_back_if_closed(&mut self, now: Instant, number: MessageNumber) {
        let Some(message) = self.messages.get(&number) else { return };
        let is_idle = message.parts.is_empty() && !message.nodes.is_empty();
        if is_idle && self.runners.is_closed(message.route) {
            let (context, runner) = message.route;
            tracing::info!(message = message.name.1, %context, %runner, "a message is handed back: no new jobs go there");
            self.abandon_nodes(now, number, &ReportKind::Returned);
        }
    }

    fn abandon_nodes(&mut self, now: Instant, number: MessageNumber, kind: &ReportKind) {
        let Some(message) = self.messages.get_mut(&number) else { return };
        self.queue.remove(&message.route, number);
        // Nodes that were reported on have arrived.
        let (arrived, nodes): (Vec<_>, Vec<_>) =
            std::mem::take(&mut message.nodes).into_iter().partition(|node| node.arrived);
        for node in arrived {
            self.attempts.remove(&node.key);
        }
        let place = message.sent_to.clone().or_else(|| self.runners.get(message.route).cloned());
        let place = place.filter(|_| message.may_have_been_sent());
        let (lane, flow) = (message.route, message.flow);
        for node in nodes {
            let Some(place) = place.clone() else {
                self.report_given_up(number, node.key, kind.clone());
                continue;
            };
            if let Some(message) = self.messages.get_mut(&number) {
                message.unresolved += 1;
            }
            let until = now + self.settings.lost_after;
            let given_up = AbandonedAttempt { message: number, kind: kind.clone(), until, stopping: false };
            self.reconciler.abandon(
                now,
                node.key,
                AttemptLocation { endpoint: place, route: lane, flow },
                given_up,
            );
        }
        self.settle_if_through(number);
    }

    /// Sends the questions and stops that are due, and reports attempts that are permanently given up.
    pub(super) fn reconcile(&mut self, now: Instant) {
        let runners = &self.runners;
        for step in self.reconciler.take_due(now, |lane| runners.is_live(lane)) {
            match step {
                ReconcileStep::Ask(key, at) => self.ask(key, &at),
                ReconcileStep::Stop(key, AttemptLocation { endpoint: place, route: lane, flow }) => {
                    let stop = stop_attempt(&place, key.to_string(), GIVEN_UP_GRACE_SECS, lane.0, flow);
                    self.stop_at(stop);
                }
                ReconcileStep::Report(key, given_up) => self.finish_abandoned(key, given_up),
            }
        }
    }

    /// Asks for an attempt, together with others of its flow at the same supervisor.
    fn ask(&mut self, key: JobKey, at: &AttemptLocation) {
        let AttemptLocation { endpoint: place, route: lane, flow } = at;
        let job_key = key.to_string();
        let fits = |query: &&mut wire::QueryAttempts| {
            (&query.address, &query.topic) == (&place.address, &place.topic)
                && (query.context_id, query.flow_id) == (lane.0.0, flow.0)
                && query.job_keys.len() < QUERY_ATTEMPTS_MAX
        };
        if let Some(query) = self.effects.query.iter_mut().rev().find(fits) {
            query.job_keys.push(job_key);
            return;
        }
        self.effects.query.push(wire::QueryAttempts {
            address: place.address.clone(),
            topic: place.topic.clone(),
            context_id: lane.0.0,
            flow_id: flow.0,
            job_keys: vec![job_key],
        });
    }

    /// Reports an attempt that was in doubt and will not run.
    pub(super) fn finish_abandoned(&mut self, key: JobKey, given_up: AbandonedAttempt) {
        let AbandonedAttempt { message: number, kind, until: _, stopping: _ } = given_up;
        self.report_given_up(number, key, kind);
        self.attempt_resolved(number);
    }

    /// Takes note that one of a message's attempts is not in doubt any more.
    pub(super) fn attempt_resolved(&mut self, number: MessageNumber) {
        if let Some(message) = self.messages.get_mut(&number) {
            message.unresolved = message.unresolved.saturating_sub(1);
        }
        self.settle_if_through(number);
    }

    fn report_given_up(&mut self, number: MessageNumber, key: JobKey, kind: ReportKind) {
        if let Some(message) = self.messages.get_mut(&number) {
            message.error = Some(match &kind {
                ReportKind::Rejected { reason, .. } => reason.to_string(),
                _ => format!("runner {} is sent no new jobs", message.route.1),
            });
        }
        self.report_own(number, key, kind);
    }

    /// Reports about a node of a message, in the router's own name.
    pub(super) fn report_own(&mut self, number: MessageNumber, key: JobKey, kind: ReportKind) {
        self.attempts.remove(&key);
        let Some(message) = self.messages.get_mut(&number) else { return };
        let (context_id, flow_id) = (message.route.0, message.flow);
        let report = NodeReport { job_key: key, context_id, flow_id, source: None, kind };
        let json = serde_json::to_vec(&report).expect("a report can always be written as JSON");
        message.reports_open += 1;
        let source = ReportOrigin::Message(number);
        self.reports.add(source, key.flow, Bytes::from(json), &mut self.effects.report);
    }
}

pub(super) fn stop_attempt(
    place: &RunnerEndpoint,
    job_key: String,
    grace_secs: u32,
    context: model::ContextId,
    flow: model::FlowId,
) -> wire::StopAttempt {
    wire::StopAttempt {
        address: place.address.clone(),
        topic: place.topic.clone(),
        job_key,
        grace_secs,
        context_id: context.0,
        flow_id: flow.0,
    }
}
