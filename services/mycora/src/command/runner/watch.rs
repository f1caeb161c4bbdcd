//! `mycora runner watch`.

use clap::Args;
use model::Timestamp;
use proto::v1;
use proto::v1::watch_runners_response::Event;

use crate::clients::{ApiResponseStream, Clients};
use crate::command::CliSession;
use crate::command::resumable_watch::{self, ResumableWatch};
use crate::failure::{ApiCallError, CliError};
use crate::output::runners;

pub(super) const HELP: &str = "\
Shows each runner, then each that changes, comes alive or dies, until it is interrupted. With --output json each answer is a document on a line of its own; --from continues after one of them.

Example:
  mycora runner watch --context 1 --output json";

/// Arguments of `runner watch`.
#[derive(Debug, Args)]
pub struct RunnerWatchArgs {
    /// Go on after the answer with this `resumePosition`
    #[arg(long = "from", value_name = "POSITION", default_value = "", hide_default_value = true)]
    pub position: String,
    /// End once the present state of every runner was shown
    #[arg(long, conflicts_with = "position")]
    pub once: bool,
}

pub(super) async fn run(session: &CliSession, args: &RunnerWatchArgs) -> Result<(), CliError> {
    let runners = RunnerListWatch { context_id: session.context()?, once: args.once };
    resumable_watch::follow(session, &runners, args.position.clone()).await
}

/// The runners of a context.
struct RunnerListWatch {
    context_id: u32,
    once: bool,
}

impl ResumableWatch for RunnerListWatch {
    type Answer = v1::WatchRunnersResponse;

    async fn open(
        &self,
        clients: &Clients,
        position: &str,
    ) -> Result<ApiResponseStream<Self::Answer>, ApiCallError> {
        let (context_id, resume_position) = (self.context_id, position.to_owned());
        clients.watch_runners(v1::WatchRunnersRequest { context_id, resume_position }).await
    }

    fn position_of<'a>(&self, answer: &'a Self::Answer) -> &'a str {
        &answer.resume_position
    }

    fn line(&self, answer: &Self::Answer) -> Option<String> {
        match answer.event.as_ref()? {
            Event::Runner(runner) => Some(runners::runner_line(runner, Timestamp::now())),
            Event::Removed(v1::RemovedRunner { runner_id }) => {
                Some(format!("runner {runner_id} was deleted\n"))
            }
            Event::SnapshotEnd(_) | Event::Heartbeat(_) => None,
        }
    }

    fn is_last(&self, answer: &Self::Answer) -> bool {
        self.once && matches!(answer.event, Some(Event::SnapshotEnd(_)))
    }
}
