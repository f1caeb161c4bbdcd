//! Jobs for supervisors that know nothing but JSON-RPC. Each job is sent once: such a supervisor may run a job twice that it receives
//! twice, and may answer only when the job has ended.

use std::time::Duration;

use futures_util::future::join_all;
use model::{ExecutionHead, JobKey, NodeReport, ReportKind, ReportSource};
use mycelium::{CallError, JsonRpcCall, JsonRpcPeer};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::delivery::{DeliveryFailure, DeliveryRefusals, call_error_text, refusal, transient_failure};
use crate::plain::{self, PlainAttemptState};
use crate::routers::{RouterReplySender, UnnumberedEvent};
use crate::supervisor_api::GatewayState;

/// Wait for an answer after which a job that was sent counts as accepted.
const ANSWER_WAIT: Duration = Duration::from_secs(3);
/// How long after a job's timeout its answer may come.
const ANSWER_SLACK: Duration = Duration::from_secs(120);
/// How long the answer of a job without a timeout may take.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// Event number of a late answer; no event of an attempt has it.
const LATE: u64 = u64::MAX;
/// Pause before a late answer that no router took is reported again.
const REPORT_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of times that a late answer is reported.
const REPORT_TRIES: u32 = 600;

/// The result of a call.
type PlainCallResult = Result<Box<RawValue>, CallError>;

/// Outcome of a job's delivery.
enum PlainJobOutcome {
    /// The report must be sent and acknowledged.
    Report(ReportKind),
    /// The supervisor has the job.
    Accepted,
    /// The job was not sent, and may be sent again.
    NotSent(String),
}

/// A job that is to be delivered.
pub(crate) struct PlainJob {
    /// Attempt to run.
    pub(crate) head: ExecutionHead,
    /// The call that is sent.
    pub(crate) call: JsonRpcCall,
    /// How long its answer may take.
    pub(crate) patience: Duration,
}

/// Delivers jobs to a plain supervisor. When all of them were sent, the routers have acknowledged the reports of all answers when this
/// returns.
pub(crate) async fn deliver(
    state: &GatewayState,
    answers: &RouterReplySender,
    peer: &JsonRpcPeer,
    source: &ReportSource,
    jobs: Vec<PlainJob>,
    deadline: Instant,
) -> Result<DeliveryRefusals, DeliveryFailure> {
    let jobs = jobs
        .into_iter()
        .map(|job| async move { (job.head, deliver_one(state, peer, source, job, deadline).await) });
    let (mut reports, mut not_sent, mut refused) = (Vec::new(), None, DeliveryRefusals::default());
    for (head, became) in join_all(jobs).await {
        match became {
            PlainJobOutcome::Accepted => {
                state.metrics.accepted.inc();
                let supervisor = state.peers.name_of(&source.address);
                drop(answers.report(&head.report(source, ReportKind::Accepted { supervisor })));
            }
            PlainJobOutcome::NotSent(why) => not_sent = Some(why),
            PlainJobOutcome::Report(kind) => {
                if let ReportKind::Rejected { reason, .. } = &kind {
                    if refused.count == 0 {
                        refused.first = reason.to_string();
                    }
                    refused.count += 1;
                }
                reports.push((head.job_key, head.report(source, kind)));
            }
        }
    }
    state.metrics.refused.inc_by(refused.count.into());
    // The answers are remembered, so a retry of the delivery reports them again.
    report_all(state, answers, reports).await?;
    not_sent.map_or(Ok(refused), |why| Err(transient_failure(why)))
}

async fn report_all(
    state: &GatewayState,
    answers: &RouterReplySender,
    reports: Vec<(JobKey, NodeReport)>,
) -> Result<(), DeliveryFailure> {
    let mut reported = Vec::with_capacity(reports.len());
    for (job, report) in reports {
        let handled = answers.report(&report);
        let handled = handled.map_err(|not_taken| {
            transient_failure(format!("an answer could not be reported: {not_taken}"))
        })?;
        reported.push(async move {
            let handled = handled.await.is_ok();
            if handled {
                state.sent.mark_reported(job);
            }
            handled
        });
    }
    let all = join_all(reported).await.into_iter().all(|handled| handled);
    if all { Ok(()) } else { Err(transient_failure("the router went away before it took an answer")) }
}

async fn deliver_one(
    state: &GatewayState,
    peer: &JsonRpcPeer,
    source: &ReportSource,
    PlainJob { head, call, patience }: PlainJob,
    deadline: Instant,
) -> PlainJobOutcome {
    match state.sent.begin(head.job_key, &source.address) {
        None => {}
        Some(PlainAttemptState::Answered(kind)) => return PlainJobOutcome::Report(*kind),
        // Later reports of the attempt make up for this one.
        Some(PlainAttemptState::Waiting | PlainAttemptState::Reported) => return PlainJobOutcome::Accepted,
    }
    let not_sent = |why: String| {
        state.sent.forget(head.job_key);
        PlainJobOutcome::NotSent(why)
    };
    let sending = peer.send_batch_until(vec![call], Some(deadline));
    let Ok(batch) = tokio::time::timeout_at(deadline, sending).await else {
        return not_sent(CallError::TimedOut.to_string());
    };
    let passage = batch.progress();
    let (answer, mut answered) = oneshot::channel();
    let until = Instant::now() + patience;
    let waiting = tokio::spawn(wait(state.clone(), source.clone(), head, batch, until, answer));
    let mut outcome =
        tokio::time::timeout_at(deadline.min(Instant::now() + ANSWER_WAIT), &mut answered).await.ok();
    if outcome.is_none() && !passage.is_sent() {
        outcome = tokio::time::timeout_at(deadline, &mut answered).await.ok();
    }
    if outcome.is_none() {
        // From here on the waiting task reports the answer itself.
        answered.close();
        outcome = answered.try_recv().ok().map(Ok);
    }
    match outcome {
        Some(Ok(outcome)) => match meaning(state, source, head, &outcome) {
            Some(kind) => {
                state.sent.answered(head.job_key, &kind);
                if let ReportKind::Accepted { .. } = kind {
                    PlainJobOutcome::Accepted
                } else {
                    PlainJobOutcome::Report(kind)
                }
            }
            None if passage.is_sent() && outcome.is_err_and(|error| is_open(&error)) => {
                PlainJobOutcome::Accepted
            }
            None => not_sent("the supervisor accepts no jobs now".to_owned()),
        },
        _ if passage.is_sent() => PlainJobOutcome::Accepted,
        _ => {
            waiting.abort();
            not_sent(CallError::TimedOut.to_string())
        }
    }
}

/// Returns true when a call ended without an answer of the supervisor, so that it may have had its effect.
fn is_open(error: &CallError) -> bool {
    matches!(error, CallError::Closed | CallError::TimedOut)
}

/// Turns an outcome into a report of its attempt; nothing when the supervisor has not decided about it.
fn meaning(
    state: &GatewayState,
    source: &ReportSource,
    head: ExecutionHead,
    outcome: &PlainCallResult,
) -> Option<ReportKind> {
    match outcome {
        Ok(answer) => {
            let kind = plain::read(answer.get(), head.job_key, &state.peers.name_of(&source.address));
            if let ReportKind::Rejected { reason, .. } = &kind {
                tracing::warn!(
                    job = %head.job_key, address = source.address, %reason,
                    "a plain supervisor's answer is unreadable"
                );
            }
            Some(kind)
        }
        Err(error) => {
            tracing::debug!(
                job = %head.job_key, error = call_error_text(error),
                "a plain supervisor did not take a job"
            );
            refusal(error)
        }
    }
}

/// Waits for the answer, however long the job takes; reports it itself when the sender of the job has stopped waiting.
async fn wait(
    state: GatewayState,
    source: ReportSource,
    head: ExecutionHead,
    batch: mycelium::json_rpc::SentBatch,
    until: Instant,
    answer: oneshot::Sender<PlainCallResult>,
) {
    let outcome = batch.outcomes(until).await.pop().unwrap_or(Err(CallError::Closed));
    let Err(outcome) = answer.send(outcome) else { return };
    let kind =
        meaning(&state, &source, head, &outcome).filter(|kind| !matches!(kind, ReportKind::Accepted { .. }));
    // A supervisor that has only accepted the job, or has not answered, yields no report, and no further answer is expected.
    let Some(kind) = kind else { return state.sent.mark_reported(head.job_key) };
    state.sent.answered(head.job_key, &kind);
    let report = head.report(&source, kind);
    let json =
        bytes::Bytes::from(serde_json::to_vec(&report).expect("a report can always be written as JSON"));
    for _ in 0..REPORT_TRIES {
        if let Ok(handled) = state.routers.send(head.job_key, LATE, UnnumberedEvent::Report(json.clone()))
            && handled.await.is_ok()
        {
            return state.sent.mark_reported(head.job_key);
        }
        tokio::time::sleep(REPORT_PAUSE).await;
    }
}

/// How long the answer to an execution may take.
///
/// # Errors
/// When the JSON is no execution. All of it is parsed: given two job keys, a foreign supervisor may use the other one.
pub(crate) fn patience_with(json: &[u8]) -> Result<Duration, serde_json::Error> {
    #[derive(Deserialize)]
    struct Timed {
        #[serde(rename = "job_key")]
        _job_key: JobKey,
        /// Time limit of the job; 0 for none.
        #[serde(default)]
        timeout_secs: u32,
    }
    Ok(match serde_json::from_slice::<Timed>(json)?.timeout_secs {
        0 => ANSWER_WAIT_MAX,
        secs => Duration::from_secs(secs.into()) + ANSWER_SLACK,
    })
}
