//! `mycora flow report`: what became of a job that something else executes.

use clap::{Args, ValueEnum};
use proto::v1;
use uuid::Uuid;

use super::{CliSession, values};
use crate::failure::CliError;
use crate::output::{self, json};

/// Shown below the options.
pub(super) const AFTER_HELP: &str = "\
Examples:
  mycora flow report 3 survey --attempt 1 running --instance 'desk 4'
  mycora flow report 3 survey --attempt 1 completed --result answers=42";

/// Arguments of `flow report`.
#[derive(Debug, Args)]
pub struct FlowReportArgs {
    /// The flow's number
    #[arg(value_parser = values::id)]
    pub id: u32,
    /// The job's name
    #[arg(value_name = "JOB")]
    pub node: String,
    /// The new state of the job
    #[arg(value_enum)]
    pub state: ReportedJobState,
    /// The attempt that is meant
    #[arg(long, value_name = "N", value_parser = values::id)]
    pub attempt: u32,
    /// A part of its result; only with `completed`
    #[arg(long, value_name = "KEY=VALUE", value_parser = values::entry)]
    pub result: Vec<(String, String)>,
    /// The exit code, when there was one
    #[arg(long, value_name = "CODE", allow_negative_numbers = true)]
    pub exit_code: Option<i32>,
    /// Why it failed; only with `failed`
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub detail: String,
    /// The instance that executes it, for people
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub instance: String,
}

/// A state that can be reported, as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReportedJobState {
    /// The job has begun.
    Running,
    /// The job has ended well.
    Completed,
    /// The job has ended badly.
    Failed,
}

pub(super) async fn run(session: &CliSession, args: FlowReportArgs) -> Result<(), CliError> {
    let FlowReportArgs { id, node, state, attempt, result, exit_code, detail, instance } = args;
    let state = match state {
        ReportedJobState::Running => v1::NodeState::Running,
        ReportedJobState::Completed => v1::NodeState::Completed,
        ReportedJobState::Failed => v1::NodeState::Failed,
    };
    let context = session.context()?;
    let request = v1::UpdateNodeStatusRequest {
        request_id: Uuid::new_v4().to_string(),
        context_id: context,
        flow_id: id,
        node,
        attempt,
        state: state.into(),
        result: result.into_iter().collect(),
        exit_code,
        detail,
        instance,
    };
    let answer = session.clients.update_node(&request).await?;
    output::answer(
        session.global.output,
        || json::of(&answer),
        || {
            let node = &request.node;
            format!("flow {id} has the report; see `mycora flow explain {id} {node} --context {context}`\n")
        },
    )
}
