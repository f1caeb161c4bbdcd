//! Jobs that come as a message become a flow: a scheduler is asked to make it.

use std::time::Duration;

use proto::internal::v1::SubmitForRequest;
use rpc::{ErrorView, Retry};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::Code;

use crate::clients::SchedulerClient;
use crate::driver::Event;
use delivery::core::Input;
use delivery::letters::Outcome;

/// How long a scheduler may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A flow to be made.
pub(crate) struct Submit {
    /// The number under which its outcome is told.
    pub(crate) delivery: u64,
    /// What is asked for.
    pub(crate) request: Box<SubmitForRequest>,
    /// Who is asked; nobody when no scheduler is there any more.
    pub(crate) client: Option<SchedulerClient>,
}

/// Asks for each, side by side, and tells what became of it. Ends when nobody gives any more. The windows of the core
/// bound how many there are.
pub(crate) async fn submit_all(mut submits: mpsc::UnboundedReceiver<Submit>, events: mpsc::Sender<Event>) {
    let mut tasks = JoinSet::new();
    while let Some(Submit { delivery, request, client }) = submits.recv().await {
        let events = events.clone();
        tasks.spawn(async move {
            let outcome = submit(*request, client).await;
            // The driver lives as long as this does.
            events.send(Event::Input(Input::Submitted(delivery, outcome))).await.ok();
        });
        while tasks.try_join_next().is_some() {}
    }
}

async fn submit(request: SubmitForRequest, client: Option<SchedulerClient>) -> Outcome {
    let Some(mut client) = client else { return Outcome::Failed("no scheduler is there".to_owned()) };
    match tokio::time::timeout(TIMEOUT, client.submit_for(request)).await {
        Err(_) => Outcome::Failed("the scheduler took too long".to_owned()),
        Ok(Ok(answer)) => Outcome::Arrived(answer.into_inner().flow.map_or(0, |flow| flow.id)),
        Ok(Err(status)) => {
            let view = ErrorView::from(&status);
            let error = match &*view.reason {
                "" => view.to_string(),
                reason => format!("{reason}: {view}"),
            };
            // What broke within the scheduler may have made the flow all the same: asked again, it says so.
            let broke = matches!(status.code(), Code::Internal | Code::Unknown | Code::Cancelled);
            match Retry::of(&status) {
                Retry::Never if !broke => Outcome::Refused(error),
                Retry::Never | Retry::Reread | Retry::Again { .. } => Outcome::Failed(error),
            }
        }
    }
}
