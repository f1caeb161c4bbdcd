//! Jobs for supervisors that know nothing but JSON-RPC. Each is sent once: such a supervisor may run twice what it is sent twice, and
//! may answer only when the job has ended.

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

/// How long an answer is waited for before a job that was sent counts as accepted.
const ANSWER_WAIT: Duration = Duration::from_secs(3);
/// How long after a job's timeout its answer may come.
const ANSWER_SLACK: Duration = Duration::from_secs(120);
/// How long the answer of a job without a timeout may take.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// The place of a late answer among what is said of an attempt: no event has it.
const LATE: u64 = u64::MAX;
/// The pause before a late answer is told again that no router took.
const TELL_PAUSE: Duration = Duration::from_secs(1);
/// How often it is told.
const TELL_TRIES: u32 = 600;

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
    /// Which attempt.
    pub(crate) head: ExecutionHead,
    /// The call that is sent.
    pub(crate) call: JsonRpcCall,
    /// How long its answer may take.
    pub(crate) patience: Duration,
}

/// Delivers jobs to a plain supervisor. When all of them were sent, what was answered has been acknowledged as reports when this returns.
pub(crate) async fn deliver(
    desk: &GatewayState,
    answers: &RouterReplySender,
    peer: &JsonRpcPeer,
    source: &ReportSource,
    jobs: Vec<PlainJob>,
    deadline: Instant,
) -> Result<DeliveryRefusals, DeliveryFailure> {
    let jobs = jobs
        .into_iter()
        .map(|job| async move { (job.head, deliver_one(desk, peer, source, job, deadline).await) });
    let (mut reports, mut not_sent, mut refused) = (Vec::new(), None, DeliveryRefusals::default());
    for (head, became) in join_all(jobs).await {
        match became {
            PlainJobOutcome::Accepted => {
                desk.metrics.accepted.inc();
                let supervisor = desk.peers.name_of(&source.address);
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
    desk.metrics.refused.inc_by(refused.count.into());
    // What was answered is remembered, so that it is told again with the rest.
    tell_all(desk, answers, reports).await?;
    not_sent.map_or(Ok(refused), |why| Err(transient_failure(why)))
}

async fn tell_all(
    desk: &GatewayState,
    answers: &RouterReplySender,
    reports: Vec<(JobKey, NodeReport)>,
) -> Result<(), DeliveryFailure> {
    let mut told = Vec::with_capacity(reports.len());
    for (job, report) in reports {
        let handled = answers.report(&report);
        let handled = handled.map_err(|not_taken| {
            transient_failure(format!("an answer could not be reported: {not_taken}"))
        })?;
        told.push(async move {
            let handled = handled.await.is_ok();
            if handled {
                desk.sent.told(job);
            }
            handled
        });
    }
    let all = join_all(told).await.into_iter().all(|handled| handled);
    if all { Ok(()) } else { Err(transient_failure("the router went away before it took an answer")) }
}

async fn deliver_one(
    desk: &GatewayState,
    peer: &JsonRpcPeer,
    source: &ReportSource,
    PlainJob { head, call, patience }: PlainJob,
    deadline: Instant,
) -> PlainJobOutcome {
    match desk.sent.begin(head.job_key, &source.address) {
        None => {}
        Some(PlainAttemptState::Answered(kind)) => return PlainJobOutcome::Report(*kind),
        // What follows says the same and more.
        Some(PlainAttemptState::Waiting | PlainAttemptState::Reported) => return PlainJobOutcome::Accepted,
    }
    let not_sent = |why: String| {
        desk.sent.forget(head.job_key);
        PlainJobOutcome::NotSent(why)
    };
    let sending = peer.send_batch_until(vec![call], Some(deadline));
    let Ok(batch) = tokio::time::timeout_at(deadline, sending).await else {
        return not_sent(CallError::TimedOut.to_string());
    };
    let passage = batch.progress();
    let (answer, mut answered) = oneshot::channel();
    let until = Instant::now() + patience;
    let waiting = tokio::spawn(wait(desk.clone(), source.clone(), head, batch, until, answer));
    let mut outcome =
        tokio::time::timeout_at(deadline.min(Instant::now() + ANSWER_WAIT), &mut answered).await.ok();
    if outcome.is_none() && !passage.is_sent() {
        outcome = tokio::time::timeout_at(deadline, &mut answered).await.ok();
    }
    if outcome.is_none() {
        // From here on the answer is told by whoever waits for it.
        answered.close();
        outcome = answered.try_recv().ok().map(Ok);
    }
    match outcome {
        Some(Ok(outcome)) => match meaning(desk, source, head, &outcome) {
            Some(kind) => {
                desk.sent.answered(head.job_key, &kind);
                if let ReportKind::Accepted { .. } = kind {
                    PlainJobOutcome::Accepted
                } else {
                    PlainJobOutcome::Report(kind)
                }
            }
            None if passage.is_sent() && outcome.is_err_and(|error| is_open(&error)) => {
                PlainJobOutcome::Accepted
            }
            None => not_sent("the supervisor takes no jobs now".to_owned()),
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
    desk: &GatewayState,
    source: &ReportSource,
    head: ExecutionHead,
    outcome: &PlainCallResult,
) -> Option<ReportKind> {
    match outcome {
        Ok(answer) => {
            let kind = plain::read(answer.get(), head.job_key, &desk.peers.name_of(&source.address));
            if let ReportKind::Rejected { reason, .. } = &kind {
                tracing::warn!(job = %head.job_key, address = source.address, %reason, "a plain supervisor is not understood");
            }
            Some(kind)
        }
        Err(error) => {
            tracing::debug!(job = %head.job_key, error = call_error_text(error), "a plain supervisor did not take a job");
            refusal(error)
        }
    }
}

/// Waits for the answer, however long the job takes; reports it itself when the sender of the job waits no more.
async fn wait(
    desk: GatewayState,
    source: ReportSource,
    head: ExecutionHead,
    batch: mycelium::json_rpc::SentBatch,
    until: Instant,
    answer: oneshot::Sender<PlainCallResult>,
) {
    let outcome = batch.outcomes(until).await.pop().unwrap_or(Err(CallError::Closed));
    let Err(outcome) = answer.send(outcome) else { return };
    let kind =
        meaning(&desk, &source, head, &outcome).filter(|kind| !matches!(kind, ReportKind::Accepted { .. }));
    // Nothing is told, and nothing waited for any more, when it has only taken the job, or has never said anything.
    let Some(kind) = kind else { return desk.sent.told(head.job_key) };
    desk.sent.answered(head.job_key, &kind);
    let report = head.report(&source, kind);
    let json =
        bytes::Bytes::from(serde_json::to_vec(&report).expect("a report can always be written as JSON"));
    for _ in 0..TELL_TRIES {
        if let Ok(handled) = desk.routers.send(head.job_key, LATE, UnnumberedEvent::Report(json.clone()))
            && handled.await.is_ok()
        {
            return desk.sent.told(head.job_key);
        }
        tokio::time::sleep(TELL_PAUSE).await;
    }
}

/// How long the answer to an execution may take.
///
/// # Errors
/// When it is none. All of it is read: of two job keys a supervisor of others may take the other one.
pub(crate) fn patience_with(json: &[u8]) -> Result<Duration, serde_json::Error> {
    #[derive(Deserialize)]
    struct Timed {
        #[serde(rename = "job_key")]
        _job_key: JobKey,
        /// How long it may run; 0 for as long as it likes.
        #[serde(default)]
        timeout_secs: u32,
    }
    Ok(match serde_json::from_slice::<Timed>(json)?.timeout_secs {
        0 => ANSWER_WAIT_MAX,
        secs => Duration::from_secs(secs.into()) + ANSWER_SLACK,
    })
}
