//! `ReportIntakeService`: what attempts report.

use std::sync::atomic::{AtomicU64, Ordering};

use proto::internal::v1::report_intake_service_server::ReportIntakeService;
use proto::internal::v1::{IncomingReport, ReportRequest, ReportResponse};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::driver::{Event, Handle};
use crate::routers::{LINK_BUFFER, LinkId};

/// Serves routers.
pub struct ReportRpc {
    driver: Handle,
    next_link: AtomicU64,
    stop: CancellationToken,
}

impl ReportRpc {
    /// Reports go to this driver; streams end when `stop` is cancelled.
    #[must_use]
    pub const fn new(driver: Handle, stop: CancellationToken) -> Self {
        Self { driver, next_link: AtomicU64::new(1), stop }
    }
}

#[tonic::async_trait]
impl ReportIntakeService for ReportRpc {
    type ReportStream = ReceiverStream<Result<ReportResponse, Status>>;

    async fn report(
        &self,
        request: Request<Streaming<ReportRequest>>,
    ) -> Result<Response<Self::ReportStream>, Status> {
        let link = LinkId(self.next_link.fetch_add(1, Ordering::Relaxed));
        let (to_router, answers) = mpsc::channel(LINK_BUFFER);
        let (outgoing, stream) = mpsc::channel(1);
        self.driver.send(Event::RouterUp(link, to_router)).await;
        let (driver, stop) = (self.driver.clone(), self.stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = serve(&driver, link, request.into_inner(), answers, outgoing) => {}
                () = stop.cancelled() => {}
            }
            driver.log_asks().link_lost(link);
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// Runs until either side of the stream ends.
async fn serve(
    driver: &Handle,
    link: LinkId,
    mut requests: Streaming<ReportRequest>,
    mut answers: mpsc::Receiver<ReportResponse>,
    outgoing: mpsc::Sender<Result<ReportResponse, Status>>,
) {
    loop {
        tokio::select! {
            request = requests.message() => match request {
                Ok(Some(ReportRequest { reports, log_answers })) => {
                    log_answers.into_iter().for_each(|answer| driver.log_asks().answered(answer));
                    if !reports.is_empty() {
                        driver.send(Event::Reports(parse(link, reports))).await;
                    }
                }
                Ok(None) => return,
                Err(status) => {
                    tracing::debug!(%status, link = link.0, "a router's stream broke off");
                    return;
                }
            },
            answer = answers.recv() => {
                let Some(answer) = answer else { return };
                if outgoing.send(Ok(answer)).await.is_err() {
                    return;
                }
            }
        }
    }
}

fn parse(link: LinkId, reports: Vec<IncomingReport>) -> Vec<(crate::run::Ack, model::NodeReport)> {
    let parse = |IncomingReport { report_id, report_json }| match serde_json::from_slice(&report_json) {
        Ok(report) => Some(((link, report_id), report)),
        Err(error) => {
            // The router has checked it. It is not acknowledged: another version of this service may read it.
            tracing::error!(%error, "a router sent a report that cannot be read");
            None
        }
    };
    reports.into_iter().filter_map(parse).collect()
}
