//! Messages to supervisors.

use std::time::Duration;

use futures_util::future::join_all;
use model::execution::Outcome;
use model::supervision::{JobAccepted, method};
use model::{
    AttemptEnd, ContextId, FlowId, JobKey, NodeReport, Reason, ReasonCode, ReportKind, ReportSource,
    Timestamp,
};
use mycelium::{Call, CallError, RpcError};
use proto::internal::v1 as wire;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::front::Desk;
use crate::inline::Inliner;
use crate::routers::Answers;

/// How long a delivery waits for a conversation to stand.
pub(crate) const CONNECT_WAIT: Duration = Duration::from_secs(2);

/// What has to be known of an execution to report about it.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Head {
    job_key: JobKey,
    context_id: ContextId,
    flow_id: FlowId,
}

impl Head {
    fn report(self, source: &ReportSource, kind: ReportKind) -> NodeReport {
        let Self { job_key, context_id, flow_id } = self;
        NodeReport { job_key, context_id, flow_id, source: Some(source.clone()), kind }
    }
}

/// Delivers executions. When all of them were answered, refusals have been acknowledged as reports when this
/// returns; else nothing was refused yet.
pub async fn deliver(desk: &Desk, answers: &Answers, deliver: wire::Deliver) -> wire::DeliveryOutcome {
    let delivery_id = deliver.delivery_id;
    let error = match try_deliver(desk, answers, deliver).await {
        Ok(()) => String::new(),
        Err(error) => {
            desk.metrics.failed.inc();
            error
        }
    };
    wire::DeliveryOutcome { delivery_id, error }
}

async fn try_deliver(desk: &Desk, answers: &Answers, deliver: wire::Deliver) -> Result<(), String> {
    let wire::Deliver { delivery_id: _, address, topic, context_id, context_uid, nodes, timeout_millis } =
        deliver;
    let timeout = Duration::from_millis(timeout_millis);
    let deadline = Instant::now() + timeout;
    let peer = desk.peers.connected(&address, &topic, CONNECT_WAIT.min(timeout)).await;
    let peer = peer.map_err(|error| error.to_string())?;
    let source = ReportSource { address, topic };

    let mut inliner = Inliner::new(desk.store.clone(), ContextId(context_id), context_uid);
    let (mut heads, mut calls) = (Vec::with_capacity(nodes.len()), Vec::with_capacity(nodes.len()));
    for json in nodes {
        let (head, call) = call(&inliner.fill(json).await).map_err(|error| error.to_string())?;
        heads.push(head);
        calls.push(call);
    }
    let sent = tokio::time::timeout_at(deadline, peer.send_batch(calls)).await;
    let sent = sent.map_err(|_| CallError::TimedOut.to_string())?;

    let mut unanswered = None;
    let mut refusals = Vec::new();
    for (head, outcome) in heads.into_iter().zip(sent.outcomes(deadline).await) {
        match outcome.map(|result| serde_json::from_str::<JobAccepted>(result.get())) {
            Ok(Ok(accepted)) => {
                desk.metrics.accepted.inc();
                let kind = ReportKind::Accepted { supervisor: accepted.supervisor };
                // Nobody waits for this one: what follows says the same and more.
                drop(answers.report(&head.report(&source, kind)));
            }
            Ok(Err(error)) => unanswered = Some(format!("an answer to job.run cannot be read: {error}")),
            Err(error) => match refusal(&error) {
                Some(kind) => refusals.push(head.report(&source, kind)),
                None => unanswered = Some(error.to_string()),
            },
        }
    }
    if let Some(error) = unanswered {
        // The router sends all of it again, and then hears the same refusals: told now, they would be told
        // of attempts that are on their way once more.
        return Err(error);
    }
    desk.metrics.refused.inc_by(refusals.len() as u64);
    let told = refusals.iter().map(|report| answers.report(report));
    let told = told.collect::<Result<Vec<_>, _>>();
    let told = told.map_err(|not_taken| format!("a refusal could not be reported: {not_taken}"))?;
    let all_told = join_all(told).await.into_iter().all(|handled| handled.is_ok());
    if all_told { Ok(()) } else { Err("the router went away before it took a refusal".to_owned()) }
}

fn call(json: &[u8]) -> Result<(Head, Call), serde_json::Error> {
    let head: Head = serde_json::from_slice(json)?;
    let raw: &RawValue = serde_json::from_slice(json)?;
    Ok((head, Call::raw(method::JOB_RUN, raw.to_owned())))
}

/// What a failed call means for its attempt; nothing when the supervisor did not answer.
fn refusal(error: &CallError) -> Option<ReportKind> {
    let rejected = |code, detail: String, lasting| {
        Some(ReportKind::Rejected { reason: Reason::new(code, detail), lasting, counts: false })
    };
    match error {
        CallError::Refused(refused) => {
            let (reason, lasting) = (refused.reason(), refused.is_lasting());
            match reason {
                "STOPPED" => Some(stopped()),
                "BLOB_MISSING" => rejected(ReasonCode::BlobMissing, detail(refused), lasting),
                "NETWORK_REFUSED" => rejected(ReasonCode::NetworkRefused, detail(refused), lasting),
                "ISOLATION_UNAVAILABLE" => {
                    rejected(ReasonCode::IsolationUnavailable, detail(refused), lasting)
                }
                "POLICY_REFUSED" => rejected(ReasonCode::PolicyRefused, detail(refused), lasting),
                // It does not even look at the job now; the delivery is tried again.
                "BUSY" | "UNAVAILABLE" => None,
                _ => rejected(ReasonCode::Refused, detail(refused), lasting),
            }
        }
        CallError::TooLarge(_) => rejected(ReasonCode::InputsTooLarge, error.to_string(), true),
        CallError::TimedOut | CallError::Closed | CallError::TooMany | CallError::Unwritable(_) => None,
    }
}

fn detail(refused: &RpcError) -> String {
    refused.message.clone()
}

/// An attempt that ended on request before it began.
pub(crate) fn stopped() -> ReportKind {
    ReportKind::Ended(Box::new(AttemptEnd {
        outcome: Outcome::Stopped,
        exit_code: None,
        reason: None,
        result: std::collections::BTreeMap::new(),
        outputs: std::collections::BTreeMap::new(),
        output_bytes: 0,
        ended: Vec::new(),
        instance: None,
        start_time: None,
        end_time: Timestamp::now(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_whether_it_may_be_tried_again() {
        let refused = |reason, lasting| CallError::Refused(RpcError::refused(reason, lasting, "why"));
        let cases = [
            (refused("KEY_CONFLICT", true), Some((ReasonCode::Refused, true))),
            (refused("QUEUE_FULL", false), Some((ReasonCode::Refused, false))),
            (refused("BLOB_MISSING", true), Some((ReasonCode::BlobMissing, true))),
            (refused("NETWORK_REFUSED", true), Some((ReasonCode::NetworkRefused, true))),
            (refused("ISOLATION_UNAVAILABLE", true), Some((ReasonCode::IsolationUnavailable, true))),
            (refused("POLICY_REFUSED", true), Some((ReasonCode::PolicyRefused, true))),
            (refused("DRAINING", false), Some((ReasonCode::Refused, false))),
            (refused("UNAVAILABLE", false), None),
            (CallError::TooLarge(9), Some((ReasonCode::InputsTooLarge, true))),
            (CallError::TimedOut, None),
            (CallError::Closed, None),
        ];
        for (error, expected) in cases {
            let got = refusal(&error).map(|kind| match kind {
                ReportKind::Rejected { reason, lasting, counts: false } => (reason.code, lasting),
                other => panic!("{other:?}"),
            });
            assert_eq!(got, expected, "{error}");
        }
        assert!(matches!(refusal(&refused("STOPPED", true)), Some(ReportKind::Ended(_))));
    }
}
