//! Submission of jobs that arrived as messages: a scheduler makes a flow of each.

use std::time::Duration;

use proto::internal::v1::SubmitForRequest;
use rpc::{ErrorView, RetryAdvice};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::Code;

use crate::clients::SchedulerClient;
use crate::driver::RouterEvent;
use delivery::core::Input;
use delivery::opaque_messages::DeliveryResult;

/// How long a scheduler may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A flow to be made.
pub(crate) struct RouterSubmission {
    /// Number under which the outcome is reported.
    pub(crate) delivery: u64,
    /// Submission to send.
    pub(crate) request: Box<SubmitForRequest>,
    /// Scheduler to call; none when no scheduler is connected any more.
    pub(crate) client: Option<SchedulerClient>,
}

/// Submits each request concurrently, and reports the outcomes. Ends with its senders. The core's windows
/// bound how many there are.
pub(crate) async fn submit_all(
    mut submits: mpsc::UnboundedReceiver<RouterSubmission>,
    events: mpsc::Sender<RouterEvent>,
) {
    let mut tasks = JoinSet::new();
    while let Some(RouterSubmission { delivery, request, client }) = submits.recv().await {
        let events = events.clone();
        tasks.spawn(async move {
            let outcome = submit(*request, client).await;
            // The driver lives as long as this task.
            events.send(RouterEvent::Input(Input::Submitted(delivery, outcome))).await.ok();
        });
        while tasks.try_join_next().is_some() {}
    }
}

async fn submit(request: SubmitForRequest, client: Option<SchedulerClient>) -> DeliveryResult {
    let Some(mut client) = client else {
        return DeliveryResult::Failed("no scheduler is connected".to_owned());
    };
    match tokio::time::timeout(TIMEOUT, client.submit_for(request)).await {
        Err(_) => DeliveryResult::Failed("the scheduler took too long".to_owned()),
        Ok(Ok(answer)) => DeliveryResult::Arrived(answer.into_inner().flow.map_or(0, |flow| flow.id)),
        Ok(Err(status)) => {
            let view = ErrorView::from(&status);
            let error = match &*view.reason {
                "" => view.to_string(),
                reason => format!("{reason}: {view}"),
            };
            // A scheduler that failed internally may have made the flow all the same; a retry then returns that flow.
            let broke = matches!(status.code(), Code::Internal | Code::Unknown | Code::Cancelled);
            match RetryAdvice::of(&status) {
                RetryAdvice::Never if !broke => DeliveryResult::Refused(error),
                RetryAdvice::Never | RetryAdvice::Reread | RetryAdvice::Again { .. } => {
                    DeliveryResult::Failed(error)
                }
            }
        }
    }
}
