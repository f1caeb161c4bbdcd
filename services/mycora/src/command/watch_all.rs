//! `mycora flow watch --all`.

use clap::Args;
use model::limits;
use proto::v1;
use proto::v1::watch_flows_response::Event;

use super::resumable_watch::{self, ResumableWatch};
use super::{CliSession, values};
use crate::clients::{ApiResponseStream, Clients};
use crate::failure::{ApiCallError, CliError};
use crate::output::summary;

/// Text that ends the help of `flow watch`.
pub(super) const AFTER_HELP: &str = "\
With --all it shows each flow of the context that has not ended, then each that changes or is deleted, until it is interrupted. With --output json each answer is a document on a line of its own; --from continues after one of them.

Examples:
  mycora flow watch 3
  mycora flow watch --all --name nightly- --output json";

/// Arguments of `flow watch`.
#[derive(Debug, Args)]
pub struct FlowWatchArgs {
    /// The flow's number
    #[arg(value_parser = values::id, required_unless_present = "all")]
    pub id: Option<u32>,
    /// Watch all flows of the context
    #[arg(long, conflicts_with = "id")]
    pub all: bool,
    /// With --all, only flows of this actor
    #[arg(long, value_name = "ACTOR", value_parser = values::id, conflicts_with = "id")]
    pub caller: Option<u32>,
    /// With --all, only flows whose name begins with this
    #[arg(
        long,
        alias = "name-prefix",
        value_name = "PREFIX",
        default_value = "",
        hide_default_value = true,
        value_parser = prefix,
        conflicts_with = "id"
    )]
    pub name: String,
    /// With --all, begin with those that have ended as well
    #[arg(long, conflicts_with = "id")]
    pub ended: bool,
    /// Go on after the answer with this `resumePosition`
    #[arg(
        long = "from",
        value_name = "POSITION",
        default_value = "",
        hide_default_value = true,
        conflicts_with = "id"
    )]
    pub position: String,
    /// End once the present state of every flow was shown
    #[arg(long, conflicts_with_all = ["id", "position"])]
    pub once: bool,
}

fn prefix(text: &str) -> Result<String, String> {
    let max = limits::NAME_CHARS_MAX;
    if text.chars().count() > max {
        Err(format!("has at most {max} characters"))
    } else {
        Ok(text.to_owned())
    }
}

/// Follows the flows of the context.
pub(super) async fn run(session: &CliSession, args: &FlowWatchArgs) -> Result<(), CliError> {
    let snapshot = if args.ended { v1::FlowSnapshot::Unspecified } else { v1::FlowSnapshot::Open };
    let request = v1::WatchFlowsRequest {
        context_id: session.context()?,
        caller_id: args.caller.unwrap_or_default(),
        name_prefix: args.name.clone(),
        snapshot: snapshot.into(),
        resume_position: String::new(),
    };
    resumable_watch::follow(session, &FlowListWatch { request, once: args.once }, args.position.clone()).await
}

/// The flows of a context that match.
struct FlowListWatch {
    request: v1::WatchFlowsRequest,
    once: bool,
}

impl ResumableWatch for FlowListWatch {
    type Answer = v1::WatchFlowsResponse;

    async fn open(
        &self,
        clients: &Clients,
        position: &str,
    ) -> Result<ApiResponseStream<Self::Answer>, ApiCallError> {
        let resume_position = position.to_owned();
        clients.watch_flows(v1::WatchFlowsRequest { resume_position, ..self.request.clone() }).await
    }

    fn position_of<'a>(&self, answer: &'a Self::Answer) -> &'a str {
        &answer.resume_position
    }

    fn line(&self, answer: &Self::Answer) -> Option<String> {
        match answer.event.as_ref()? {
            Event::Flow(flow) => Some(summary::flow_line(flow)),
            Event::Removed(v1::RemovedFlow { flow_id }) => Some(format!("flow {flow_id} was deleted\n")),
            Event::SnapshotEnd(_) | Event::Heartbeat(_) => None,
        }
    }

    fn is_last(&self, answer: &Self::Answer) -> bool {
        self.once && matches!(answer.event, Some(Event::SnapshotEnd(_)))
    }
}
