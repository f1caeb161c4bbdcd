//! Messages to supervisors.

use std::time::Duration;

use futures_util::future::join_all;
use model::execution::Outcome;
use model::supervision::{JobAccepted, method};
use model::{
    AttemptEnd, ContextId, ExecutionHead, FlowUid, NodeReport, Reason, ReasonCode, ReportKind, ReportSource,
    Timestamp, TraceParent,
};
use mycelium::{CallError, JsonRpcCall, JsonRpcError, PayloadForm};
use proto::internal::v1 as wire;
use serde_json::value::RawValue;
use service::{Ticket, crash_point, traces};
use tokio::time::Instant;
use tracing::field::Empty;
use tracing::{Span, info_span};

use crate::error::PeerError;
use crate::inline::Inliner;
use crate::plain_delivery::{self, PlainJob, patience_with};
use crate::routers::RouterReplySender;
use crate::supervisor_api::GatewayState;

/// Maximum length of a refusal's text, in characters.
const ERROR_CHARS_MAX: usize = 600;
/// How long a delivery waits for a supervisor to be connected.
pub(crate) const CONNECT_WAIT: Duration = Duration::from_secs(2);

/// Key of deliveries that are sent in order: the executions of one flow to one address.
pub type DeliveryOrderKey = (String, Option<FlowUid>);

/// Returns the order in which a delivery is sent. A message has executions of one flow only.
#[must_use]
pub fn order_of(deliver: &wire::Deliver) -> DeliveryOrderKey {
    let first = deliver.nodes.first().and_then(|json| ExecutionHead::read(json).ok());
    (deliver.address.clone(), first.map(|head| head.job_key.flow))
}

/// Delivers executions, after those before them in their order. When all of them were answered, the router has acknowledged the
/// reports of all refusals when this returns; else no refusal was reported.
pub async fn deliver(
    state: GatewayState,
    answers: RouterReplySender,
    deliver: wire::Deliver,
    turn: Ticket<DeliveryOrderKey>,
) -> wire::DeliveryOutcome {
    let delivery_id = deliver.delivery_id;
    let span = span_of(&deliver);
    let ended = try_deliver(&state, &answers, deliver, turn).await;
    match &ended {
        Ok(refusals) => {
            span.record("refused", refusals.count);
        }
        Err(failure) => {
            span.record("error", failure.error.as_str());
            state.metrics.failed.inc();
        }
    }
    outcome(delivery_id, ended)
}

/// Begins the span of a delivery, for a collector. A delivery has executions of one step of one flow, so the first tells the
/// trace of them all; where that is not recorded, the span is disabled.
fn span_of(deliver: &wire::Deliver) -> Span {
    let first = deliver.nodes.first();
    traces::begin_below(first.and_then(|json| TraceParent::of_execution(json)), || {
        let head = first.and_then(|json| ExecutionHead::read(json).ok());
        info_span!(
            target: traces::TARGET, parent: None, "send", otel.kind = "client", context = deliver.context_id,
            flow = head.map(|head| head.flow_id.0), job_key = head.map(|head| head.job_key.to_string()),
            attempts = deliver.nodes.len(), address = deliver.address, refused = Empty, error = Empty,
        )
    })
}

/// Why a delivery failed as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct DeliveryFailure {
    /// Text for people.
    pub error: String,
    /// True when a retry cannot help.
    pub lasting: bool,
}

/// Turns the result of a delivery into the outcome for the router.
#[must_use]
pub fn outcome(delivery_id: u64, ended: Result<DeliveryRefusals, DeliveryFailure>) -> wire::DeliveryOutcome {
    match ended {
        Ok(DeliveryRefusals { count, first }) => {
            wire::DeliveryOutcome { delivery_id, refused_count: count, refusal: first, ..Default::default() }
        }
        Err(DeliveryFailure { error, lasting }) => {
            wire::DeliveryOutcome { delivery_id, error, lasting, ..Default::default() }
        }
    }
}

/// Refusals in a delivery that was answered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeliveryRefusals {
    /// Number of refused nodes.
    pub count: u32,
    /// The first refusal, with the name of its reason.
    pub first: String,
}

impl From<PeerError> for DeliveryFailure {
    fn from(error: PeerError) -> Self {
        Self { lasting: matches!(error, PeerError::Address(_)), error: error.to_string() }
    }
}

/// Makes a failure that may succeed on retry.
pub(crate) fn transient_failure(error: impl Into<String>) -> DeliveryFailure {
    DeliveryFailure { error: error.into(), lasting: false }
}

async fn try_deliver(
    state: &GatewayState,
    answers: &RouterReplySender,
    deliver: wire::Deliver,
    turn: Ticket<DeliveryOrderKey>,
) -> Result<DeliveryRefusals, DeliveryFailure> {
    let wire::Deliver { delivery_id: _, address, topic, context_id, context_uid, nodes, timeout_millis } =
        deliver;
    let timeout = Duration::from_millis(timeout_millis);
    let deadline = Instant::now() + timeout;
    let of = Some(ContextId(context_id));
    let peer = state.connected(&address, &topic, of, CONNECT_WAIT.min(timeout)).await?;
    state.peers.check_context(&address, ContextId(context_id))?;
    crash_point("gateway.delivering");
    let source = ReportSource { address, topic };
    let is_plain = state.peers.form(&source.address) == PayloadForm::Plain;

    let mut inliner = Inliner::new(state.store.clone(), ContextId(context_id), context_uid);
    let (mut heads, mut calls) = (Vec::with_capacity(nodes.len()), Vec::with_capacity(nodes.len()));
    let mut patiences = Vec::new();
    for json in nodes {
        if is_plain {
            patiences.push(patience_with(&json).map_err(|error| transient_failure(error.to_string()))?);
        }
        let (head, call) =
            call(&inliner.fill(json).await).map_err(|error| transient_failure(error.to_string()))?;
        heads.push(head);
        calls.push(call.of_context(context_id));
    }
    turn.wait_for_turn().await;
    if is_plain {
        // A plain supervisor may answer only with the result: later deliveries must not wait for it.
        drop(turn);
        let calls = calls.into_iter().zip(patiences);
        let jobs =
            heads.into_iter().zip(calls).map(|(head, (call, patience))| PlainJob { head, call, patience });
        return plain_delivery::deliver(state, answers, &peer, &source, jobs.collect(), deadline).await;
    }
    let sent = tokio::time::timeout_at(deadline, peer.send_batch_until(calls, Some(deadline))).await;
    let sent = sent.map_err(|_| transient_failure(CallError::TimedOut.to_string()))?;
    drop(turn);
    crash_point("gateway.sent");

    let outcomes = sent.outcomes(deadline).await;
    crash_point("gateway.answered");
    let (refusals, refused) = collect_refusals(state, answers, &source, heads.into_iter().zip(outcomes))?;
    state.metrics.refused.inc_by(refusals.len() as u64);
    let reports = refusals.iter().map(|report| answers.report(report));
    let reports = reports.collect::<Result<Vec<_>, _>>();
    let reports = reports
        .map_err(|not_taken| transient_failure(format!("a refusal could not be reported: {not_taken}")))?;
    let all_reported = join_all(reports).await.into_iter().all(|handled| handled.is_ok());
    if all_reported {
        Ok(refused)
    } else {
        Err(transient_failure("the router went away before it took a refusal"))
    }
}

/// Reports accepted executions, and returns the reports of refused ones.
///
/// # Errors
/// When a call was not answered: the router sends the whole delivery again, and then gets the same refusals. Reported now, they
/// would concern attempts that are about to be sent once more.
fn collect_refusals(
    state: &GatewayState,
    answers: &RouterReplySender,
    source: &ReportSource,
    outcomes: impl Iterator<Item = (ExecutionHead, Result<Box<RawValue>, CallError>)>,
) -> Result<(Vec<NodeReport>, DeliveryRefusals), DeliveryFailure> {
    let mut unanswered = None;
    let (mut refusals, mut refused) = (Vec::new(), DeliveryRefusals::default());
    let mut refuse = |head: &ExecutionHead, kind, text: String| {
        if refusals.is_empty() {
            refused.first = text;
        }
        refused.count += 1;
        refusals.push(head.report(source, kind));
    };
    for (head, outcome) in outcomes {
        match outcome.map(|result| serde_json::from_str::<JobAccepted>(result.get())) {
            Ok(Ok(accepted)) => {
                state.metrics.accepted.inc();
                let kind = ReportKind::Accepted { supervisor: accepted.supervisor };
                // Not awaited: later reports of the attempt make up for a lost one.
                drop(answers.report(&head.report(source, kind)));
            }
            // The supervisor has accepted the job, but its answer is unreadable: a repeated call would bring the same answer.
            Ok(Err(error)) => {
                let detail = format!(
                    "the answer to job.run cannot be read, so it is unknown whether the job ran: {error}"
                );
                let reason = Reason::new(ReasonCode::Unknown, cut(&detail));
                let text = reason.to_string();
                refuse(&head, ReportKind::Rejected { reason, lasting: true, counts: false }, text);
            }
            Err(error) => match refusal(&error) {
                Some(kind) => refuse(&head, kind, call_error_text(&error)),
                None => unanswered = Some(call_error_text(&error)),
            },
        }
    }
    match unanswered {
        Some(error) => Err(transient_failure(error)),
        None => Ok((refusals, refused)),
    }
}

fn call(json: &[u8]) -> Result<(ExecutionHead, JsonRpcCall), serde_json::Error> {
    let head = ExecutionHead::read(json)?;
    let raw: &RawValue = serde_json::from_slice(json)?;
    Ok((head, JsonRpcCall::raw(method::JOB_RUN, raw.to_owned())))
}

/// Turns a failed call into the report for its attempt; nothing when the supervisor did not answer.
pub(crate) fn refusal(error: &CallError) -> Option<ReportKind> {
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
                "SIGNATURE_REFUSED" => rejected(ReasonCode::SignatureRefused, detail(refused), lasting),
                // A full store counts as a full disk: the attempt waits for room, which counts as no try.
                "DISK_FULL" | "STORE_FULL" => rejected(ReasonCode::DiskFull, detail(refused), lasting),
                // The supervisor has not looked at the job; the delivery is tried again.
                "BUSY" | "UNAVAILABLE" => None,
                // A supervisor that rejects the envelope has not seen the job either. The failed delivery names the reason.
                "WRONG_DESTINATION" | "ENVELOPE_EXPIRED" | "BAD_TIMES" | "BAD_CERTIFICATE" | "TOO_MUCH" => {
                    None
                }
                _ => rejected(ReasonCode::Refused, detail(refused), lasting),
            }
        }
        CallError::TooLarge(_) => rejected(ReasonCode::InputsTooLarge, error.to_string(), true),
        CallError::TimedOut | CallError::Closed | CallError::TooMany | CallError::Unwritable(_) => None,
    }
}

/// A failed call for people, with the name of the reason when there is one.
pub(crate) fn call_error_text(error: &CallError) -> String {
    match error {
        CallError::Refused(refused) => refused_text(refused),
        other => other.to_string(),
    }
}

/// A refusal for people, with the name of its reason when there is one.
pub(crate) fn refused_text(refused: &JsonRpcError) -> String {
    match refused.reason() {
        "" => cut(&format!("refused: {refused}")),
        reason => cut(&format!("{reason}: {}", refused.message)),
    }
}

/// Cuts foreign text. It is kept with messages and nodes, so its length must be bounded.
pub(crate) fn cut(text: &str) -> String {
    text.chars().take(ERROR_CHARS_MAX).collect()
}

fn detail(refused: &JsonRpcError) -> String {
    cut(&refused.message)
}

/// An attempt that ended on request before it began.
pub(crate) fn stopped() -> ReportKind {
    ReportKind::Ended(Box::new(AttemptEnd::unstarted(Outcome::Stopped, None, Timestamp::now())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_envelope_is_a_failed_delivery_with_the_reason() {
        use envelope::Refusal;
        let own = || "own".to_owned();
        let refusals = [
            Refusal::WrongDestination { to: own(), own: own() },
            Refusal::Expired(Timestamp::from_millis(1)),
            Refusal::BadTimes,
            Refusal::BadCertificate("it is over"),
            Refusal::TooMuch,
        ];
        for refusal_kind in refusals {
            assert!(refusal_kind.is_reported());
            let error = JsonRpcError::refused(refusal_kind.code(), false, refusal_kind.to_string());
            let error = CallError::Refused(error);
            assert_eq!(refusal(&error), None, "the job was not looked at");
            assert!(call_error_text(&error).starts_with(refusal_kind.code()), "{}", call_error_text(&error));
        }
    }

    #[test]
    fn the_text_of_a_refusal_is_bounded() {
        let long = "x".repeat(100_000);
        for reason in ["POLICY_REFUSED", ""] {
            let error = CallError::Refused(JsonRpcError::refused(reason, true, long.clone()));
            assert_eq!(call_error_text(&error).chars().count(), ERROR_CHARS_MAX);
            let Some(ReportKind::Rejected { reason, .. }) = refusal(&error) else { panic!("a refusal") };
            assert_eq!(reason.detail.chars().count(), ERROR_CHARS_MAX);
        }
    }

    #[test]
    fn refusals_show_whether_a_retry_may_succeed() {
        let refused = |reason, lasting| CallError::Refused(JsonRpcError::refused(reason, lasting, "why"));
        let cases = [
            (refused("KEY_CONFLICT", true), Some((ReasonCode::Refused, true))),
            (refused("QUEUE_FULL", false), Some((ReasonCode::Refused, false))),
            (refused("BLOB_MISSING", true), Some((ReasonCode::BlobMissing, true))),
            (refused("NETWORK_REFUSED", true), Some((ReasonCode::NetworkRefused, true))),
            (refused("ISOLATION_UNAVAILABLE", true), Some((ReasonCode::IsolationUnavailable, true))),
            (refused("POLICY_REFUSED", true), Some((ReasonCode::PolicyRefused, true))),
            (refused("SIGNATURE_REFUSED", true), Some((ReasonCode::SignatureRefused, true))),
            (refused("DRAINING", false), Some((ReasonCode::Refused, false))),
            (refused("DISK_FULL", false), Some((ReasonCode::DiskFull, false))),
            (refused("STORE_FULL", false), Some((ReasonCode::DiskFull, false))),
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
