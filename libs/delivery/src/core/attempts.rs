//! Reports, stops and queries of single attempts.

use bytes::Bytes;
use model::execution::Outcome;
use model::{AttemptEnd, JobKey, NodeReport, ReportKind, Timestamp};
use proto::internal::v1 as wire;
use proto::v1::LogGapReason;
use tokio::time::Instant;

use super::abandonment::stop_attempt;
use super::{Core, STOPS_WAITING_MAX};
use crate::acceptances::AcceptanceReport;
use crate::reconcile::{AttemptLocation, AttemptReportMeaning};
use crate::reports::ReportOrigin;
use crate::runners::RunnerEndpoint;

impl Core {
    pub(super) fn gateway_frame(&mut self, now: Instant, frame: Option<wire::exchange_response::Frame>) {
        use wire::exchange_response::Frame;
        match frame {
            Some(Frame::Outcome(outcome)) if self.opaque_messages.is_under_way(outcome.delivery_id) => {
                self.opaque_delivered(now, outcome.delivery_id, outcome.into());
            }
            // Permanent rejections are reported per node, not as a delivery outcome.
            Some(Frame::Outcome(outcome)) => self.delivered(now, outcome),
            Some(Frame::Reports(wire::Reports { reports })) => {
                for wire::NumberedReport { report_id, report_json } in reports {
                    self.reported(now, report_id, report_json);
                }
            }
            Some(Frame::Logs(wire::Logs { logs })) => {
                let bytes: usize = logs.iter().map(|log| log.data.len()).sum();
                self.metrics.log_bytes.inc_by(bytes as u64);
                self.effects.logs.extend(logs.into_iter().map(|log| (self.gateway_epoch, log)));
            }
            Some(Frame::Dropped(outcome)) => self.context_dropped(now, &outcome),
            Some(Frame::LogRead(wire::LogOutcome { read_id, reading })) => {
                if let Some((scheduler, query_id)) = self.log_reads.answered(read_id) {
                    self.answer_log_query(&scheduler, wire::LogAnswer { query_id, reading });
                }
            }
            None => {}
        }
    }

    /// A report about an attempt came in. It is passed on, unless it is of use here only.
    fn reported(&mut self, now: Instant, report_id: u64, report_json: Bytes) {
        let NodeReport { job_key, kind, .. } = match serde_json::from_slice(&report_json) {
            Ok(report) => report,
            Err(error) => {
                // A repeated report would be just as unreadable.
                tracing::error!(%error, "a report cannot be read: it is dropped");
                self.metrics.reports_unreadable.inc();
                self.effects.handled.push(report_id);
                return;
            }
        };
        let source = match self.reconciler.classify_report(now, job_key, &kind) {
            AttemptReportMeaning::Unsolicited => ReportOrigin::Gateway(self.gateway_epoch, report_id),
            AttemptReportMeaning::Answer => ReportOrigin::Solicited(self.gateway_epoch, report_id),
            AttemptReportMeaning::Arrived(message) => {
                self.attempts.remove(&job_key);
                self.attempt_resolved(message);
                ReportOrigin::Solicited(self.gateway_epoch, report_id)
            }
            AttemptReportMeaning::Unresolved => {
                self.effects.handled.push(report_id);
                return;
            }
            AttemptReportMeaning::Abandoned(given_up) => {
                self.effects.handled.push(report_id);
                self.finish_abandoned(job_key, given_up);
                return;
            }
        };
        if let Some(number) = self.attempts.get(&job_key) {
            if kind == ReportKind::Unknown {
                // It is still on its way: the supervisor cannot know it.
                self.effects.handled.push(report_id);
                return;
            }
            let message = self.messages.get_mut(number);
            if shows_arrival(&kind)
                && let Some(node) = message.and_then(|message| message.node_mut(job_key))
            {
                node.arrived = true;
            }
        }
        if let (ReportKind::Accepted { .. }, ReportOrigin::Gateway(..)) = (&kind, source) {
            let at = now + self.settings.patience;
            let acceptance = AcceptanceReport { at, report_id, json: report_json };
            self.effects.handled.extend(self.acceptances.hold(job_key, acceptance));
            return;
        }
        self.effects.handled.extend(self.acceptances.supersede(job_key));
        self.reports.add(source, job_key.flow, report_json, &mut self.effects.report);
    }

    pub(super) fn report_handled(&mut self, report: u64) {
        match self.reports.acknowledge(report) {
            Some(ReportOrigin::Gateway(epoch, id) | ReportOrigin::Solicited(epoch, id))
                if epoch == self.gateway_epoch && self.gateway_up =>
            {
                self.effects.handled.push(id);
            }
            Some(ReportOrigin::Message(number)) => {
                if let Some(message) = self.messages.get_mut(&number) {
                    message.reports_open -= 1;
                }
                self.settle_if_through(number);
            }
            Some(ReportOrigin::Gateway(..) | ReportOrigin::Solicited(..)) | None => {}
        }
    }

    /// Stops an attempt: here, when it has not been sent yet, and at its supervisor.
    pub(super) fn stop(&mut self, wall: Timestamp, command: wire::StopCommand) {
        let wire::StopCommand { context_id, flow_id, runner_id, job_key, grace_secs, address, topic } =
            command;
        let Ok(key) = job_key.parse::<JobKey>() else {
            tracing::error!(job_key, "a stop names no attempt");
            return;
        };
        let lane = (model::ContextId(context_id), model::RunnerId(runner_id));
        let number = self.attempts.get(&key).copied();
        let given = (!address.is_empty()).then_some(RunnerEndpoint { address, topic, live: true });
        let sent_to = || number.and_then(|number| self.messages.get(&number)?.sent_to.clone());
        if let Some(place) = given.or_else(sent_to).or_else(|| self.runners.get(lane).cloned()) {
            // The supervisor gets the stop even when the attempt still waits here: an earlier try may have arrived, or another
            // router may send it, and then the supervisor must not run it.
            self.stop_at(stop_attempt(&place, job_key, grace_secs, lane.0, model::FlowId(flow_id)));
        }
        if let Some(message) = self.reconciler.cancel(key) {
            // The attempt was being given up. From now on the supervisor reports its end.
            self.attempts.remove(&key);
            self.attempt_resolved(message);
            return;
        }
        let Some(number) = number else { return };
        let Some(message) = self.messages.get_mut(&number) else { return };
        let Some(at) = message.nodes.iter().position(|node| node.key == key) else { return };
        let node = message.nodes.remove(at);
        if message.nodes.is_empty() {
            self.queue.remove(&message.route, number);
        }
        if message.may_have_been_sent() {
            // An earlier try may have arrived; the supervisor, which has the stop, reports whether it did.
            self.attempts.remove(&key);
        } else {
            self.metrics.stops_overtook.inc();
            self.report_own(number, node.key, stopped(wall));
        }
        self.settle_if_through(number);
    }

    /// Sends a stop to its supervisor, or lets it wait for the gateway.
    pub(super) fn stop_at(&mut self, stop: wire::StopAttempt) {
        if self.gateway_up {
            self.effects.stop.push(stop);
        } else if self.stops.len() < STOPS_WAITING_MAX {
            self.stops.insert(stop.job_key.clone(), stop);
        }
    }

    /// Lets a supervisor forget attempts. Best effort: while the supervisor or the gateway cannot be reached the request is
    /// dropped, because supervisors forget attempts in time anyway.
    pub(super) fn forget_attempts(&mut self, request: wire::AttemptsForget) {
        let wire::AttemptsForget { context_id, runner_id, job_keys } = request;
        let lane = (model::ContextId(context_id), model::RunnerId(runner_id));
        let place = self.runners.get(lane).filter(|place| place.live && self.gateway_up);
        let Some(RunnerEndpoint { address, topic, live: _ }) = place.cloned() else { return };
        self.effects.forget.push(wire::ForgetAttempts { address, topic, context_id, job_keys });
    }

    /// Handles a scheduler's query about where attempts stand.
    pub(super) fn query(&mut self, now: Instant, query: wire::StatusQuery) {
        let wire::StatusQuery { context_id, flow_id, runner_id, job_keys } = query;
        let lane = (model::ContextId(context_id), model::RunnerId(runner_id));
        let Some(place) = self.runners.get(lane).cloned() else {
            tracing::debug!(context_id, runner_id, "attempts of an unknown runner were queried");
            return;
        };
        for job_key in job_keys {
            let Ok(key) = job_key.parse::<JobKey>() else {
                tracing::error!(job_key, "a query names no attempt");
                continue;
            };
            self.metrics.queries.inc();
            let at = AttemptLocation { endpoint: place.clone(), route: lane, flow: model::FlowId(flow_id) };
            if !self.reconciler.ask(now, key, at) {
                tracing::warn!(%key, "too many attempts are asked for: one is not");
            }
        }
    }
}

impl Core {
    /// A scheduler wants a piece of what an attempt printed.
    pub(super) fn log_query(&mut self, now: Instant, scheduler: &str, query: wire::LogQuery) {
        let wire::LogQuery { query_id, context_id, runner_id, job_key, offset, limit } = query;
        self.metrics.log_queries.inc();
        let lane = (model::ContextId(context_id), model::RunnerId(runner_id));
        let unreachable = match self.runners.get(lane) {
            // Whether it can be reached is the gateway's to say.
            Some(RunnerEndpoint { address, topic, live: _ }) => {
                self.numbers += 1;
                let read = wire::ReadAttemptLog {
                    read_id: self.numbers,
                    address: address.clone(),
                    topic: topic.clone(),
                    job_key,
                    offset,
                    limit,
                    context_id,
                };
                if self.log_reads.ask(now, scheduler, query_id, read) {
                    return;
                }
                "too many logs are being read".to_owned()
            }
            None if self.runners.is_complete() => format!("there is no runner {runner_id} any more"),
            None => format!("it is not known yet where runner {runner_id} is"),
        };
        let reason = LogGapReason::Unreachable.into();
        let refusal = wire::log_reading::Result::Refusal(wire::LogRefusal { reason, detail: unreachable });
        let reading = Some(wire::LogReading { result: Some(refusal) });
        self.answer_log_query(scheduler, wire::LogAnswer { query_id, reading });
    }

    fn answer_log_query(&mut self, scheduler: &str, answer: wire::LogAnswer) {
        match self.effects.log_answers.get_mut(scheduler) {
            Some(answers) => answers.push(answer),
            None => drop(self.effects.log_answers.insert(scheduler.to_owned(), vec![answer])),
        }
    }
}

/// Returns true for a report that shows that the supervisor has, or had, the attempt.
const fn shows_arrival(kind: &ReportKind) -> bool {
    match kind {
        ReportKind::Accepted { .. }
        | ReportKind::Started { .. }
        | ReportKind::Ended(_)
        | ReportKind::Returned => true,
        ReportKind::Unknown | ReportKind::Rejected { .. } => false,
    }
}

fn stopped(wall: Timestamp) -> ReportKind {
    ReportKind::Ended(Box::new(AttemptEnd::unstarted(Outcome::Stopped, None, wall)))
}
