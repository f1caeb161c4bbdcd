//! `ReportIntakeService`: reports of attempts, and flows that arrive as messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::{Stream, stream};
use model::{ActorId, Violations};
use proto::internal::v1::report_intake_service_server::ReportIntakeService;
use proto::internal::v1::{
    IncomingReport, ReportRequest, ReportResponse, SubmitForRequest, SubmitForResponse,
};
use proto::v1::SubmitFlowRequest;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};

use crate::changes::submit::Submitter;
use crate::driver::{Handle, SchedulerEvent};
use crate::log_reads::LogReadClient;
use crate::metrics::Metrics;
use crate::report_streams::{LINK_BUFFER, ReportStreamId};
use crate::rpc::completion::run_to_completion;

/// Serves routers.
pub struct ReportRpc {
    driver: Handle,
    submitter: Submitter,
    metrics: Arc<Metrics>,
    next_link: AtomicU64,
    stop: CancellationToken,
}

impl ReportRpc {
    /// Reports go to this driver, flows to the submitter; streams end when `stop` is cancelled.
    #[must_use]
    pub const fn new(
        driver: Handle,
        submitter: Submitter,
        metrics: Arc<Metrics>,
        stop: CancellationToken,
    ) -> Self {
        Self { driver, submitter, metrics, next_link: AtomicU64::new(1), stop }
    }
}

#[tonic::async_trait]
impl ReportIntakeService for ReportRpc {
    type ReportStream = BoxStream<ReportResponse>;

    async fn report(
        &self,
        request: Request<Streaming<ReportRequest>>,
    ) -> Result<Response<Self::ReportStream>, Status> {
        let id = ReportStreamId(self.next_link.fetch_add(1, Ordering::Relaxed));
        let (to_router, answers) = mpsc::channel(LINK_BUFFER);
        self.driver.send(SchedulerEvent::RouterUp(id, to_router)).await;
        let (driver, stop) = (self.driver.clone(), self.stop.clone());
        let link = ReportStreamReceiver {
            answers,
            _loss_guard: StreamLossGuard { of: driver.log_reads().clone(), id },
        };
        let serving = async move {
            tokio::select! {
                () = serve(&driver, id, request.into_inner()) => {}
                () = stop.cancelled() => {}
            }
            Ok(())
        };
        Ok(Response::new(Box::pin(rpc::bidirectional(link.into_stream(), serving))))
    }

    async fn submit_for(
        &self,
        request: Request<SubmitForRequest>,
    ) -> Result<Response<SubmitForResponse>, Status> {
        let (actor, submit, message_key) = parse_submission(request.into_inner())?;
        let flow = run_to_completion(self.submitter.clone().submit_for(actor, submit, message_key)).await?;
        self.metrics.flows_submitted.inc();
        Ok(Response::new(SubmitForResponse { flow: Some(flow) }))
    }
}

/// Returns the actor, its submission and the message's key. A message is one request, however often it arrives. The
/// request id is its key; after an `@` it may carry a part that distinguishes it from earlier messages of the same key.
fn parse_submission(request: SubmitForRequest) -> Result<(ActorId, SubmitFlowRequest, String), rpc::Error> {
    let SubmitForRequest { on_behalf_of, submit, message_key } = request;
    let mut violations = Violations::new();
    if on_behalf_of == 0 {
        violations.add("on_behalf_of", "name the actor whose message it is");
    }
    let submit = violations.take("submit", submit.ok_or("give the flow to submit"));
    if !message_key.starts_with(&format!("message:{on_behalf_of}:")) {
        violations.add("message_key", "the key of a message of that actor, as message:<caller>:<id>");
    }
    let submit = violations.into_result(submit).map_err(rpc::Error::invalid)?;
    let is_of_message =
        submit.request_id.strip_prefix(&message_key).is_some_and(|rest| rest.starts_with('@'));
    let request_id = if is_of_message { submit.request_id } else { message_key.clone() };
    let submit = SubmitFlowRequest { request_id, ..submit };
    Ok((ActorId(on_behalf_of), submit, message_key))
}

/// Stream of answers to a router.
struct ReportStreamReceiver {
    answers: mpsc::Receiver<ReportResponse>,
    /// Dropped after the answers, so that every query sent over the stream is sent again.
    _loss_guard: StreamLossGuard,
}

/// Guard that marks log queries sent over a stream as unsent when the stream ends.
struct StreamLossGuard {
    of: LogReadClient,
    id: ReportStreamId,
}

impl Drop for StreamLossGuard {
    fn drop(&mut self) {
        self.of.stream_lost(self.id);
    }
}

impl ReportStreamReceiver {
    fn into_stream(self) -> impl Stream<Item = ReportResponse> {
        stream::unfold(self, |mut link| async move {
            let answer = link.answers.recv().await?;
            Some((answer, link))
        })
    }
}

/// Receives a router's reports until its stream ends.
async fn serve(driver: &Handle, link: ReportStreamId, mut requests: Streaming<ReportRequest>) {
    loop {
        match requests.message().await {
            Ok(Some(ReportRequest { reports, log_answers })) => {
                log_answers.into_iter().for_each(|answer| driver.log_reads().answered(answer));
                if !reports.is_empty() {
                    driver.send(SchedulerEvent::Reports(parse(link, reports))).await;
                }
            }
            Ok(None) => return,
            Err(status) => {
                tracing::debug!(%status, link = link.0, "a router's stream broke off");
                return;
            }
        }
    }
}

fn parse(
    link: ReportStreamId,
    reports: Vec<IncomingReport>,
) -> Vec<(crate::loaded_flow::ReportAck, model::NodeReport)> {
    let parse = |IncomingReport { report_id, report_json }| match serde_json::from_slice(&report_json) {
        Ok(report) => Some(((link, report_id), report)),
        Err(error) => {
            // The router has checked the report. It is not acknowledged: another version of this service may read it.
            tracing::error!(%error, "a router sent a report that cannot be read");
            None
        }
    };
    reports.into_iter().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_its_request() {
        let submit = SubmitFlowRequest { request_id: "another".to_owned(), ..Default::default() };
        let request = SubmitForRequest {
            on_behalf_of: 12,
            submit: Some(submit),
            message_key: "message:12:101".to_owned(),
        };
        let (actor, submit, key) = parse_submission(request.clone()).expect("well-formed");
        assert_eq!((actor, &*submit.request_id, &*key), (ActorId(12), "message:12:101", "message:12:101"));
        for (given, taken) in [
            ("message:12:101@7", "message:12:101@7"),
            ("message:12:1017", "message:12:101"),
            ("message:12:1@7", "message:12:101"),
            ("", "message:12:101"),
        ] {
            let submit = SubmitFlowRequest { request_id: given.to_owned(), ..Default::default() };
            let (_, submit, _) =
                parse_submission(SubmitForRequest { submit: Some(submit), ..request.clone() }).expect(given);
            assert_eq!(submit.request_id, taken);
        }
        let of_another = SubmitForRequest { on_behalf_of: 1, ..request };
        parse_submission(of_another).expect_err("the message of somebody else");
        let error = parse_submission(SubmitForRequest::default()).expect_err("nothing is right");
        assert!(matches!(error.kind(), rpc::ErrorKind::InvalidArgument(v) if v.as_slice().len() == 3));
    }
}
