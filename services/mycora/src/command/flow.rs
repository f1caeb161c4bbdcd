//! `mycora flow`: commands about flows.

use clap::{Args, Subcommand};
use model::Timestamp;
use proto::v1;

use super::{
    CliSession, cancel, delete, explain, graph, list, logs, nodes, outputs, report, retry, schema, signal,
    submit, validate, values, watch, watch_all,
};
use crate::failure::CliError;
use crate::output::{self, json, summary};

/// Commands about flows.
#[derive(Debug, Subcommand)]
pub enum FlowCommand {
    /// Check a flow file without submitting it; needs no coordinator
    #[command(after_help = "Example:\n  mycora flow validate flow.yaml --env LANG=C.UTF-8")]
    Validate(validate::FlowValidateArgs),
    /// Print a JSON Schema of flow files, for editors; needs no coordinator
    #[command(after_help = schema::AFTER_HELP)]
    Schema,
    /// Submit a flow file
    #[command(after_help = submit::AFTER_HELP)]
    Submit(submit::FlowSubmitArgs),
    /// List the flows of a context, newest first
    #[command(after_help = "Example:\n  mycora flow list --status failed --since 2h")]
    List(list::FlowListArgs),
    /// Show a flow with its jobs and its result
    #[command(after_help = "Example:\n  mycora --output yaml flow get 3")]
    Get(FlowArg),
    /// List the jobs of a flow
    #[command(
        name = "jobs",
        alias = "nodes",
        after_help = "Example:\n  mycora flow jobs 3 --state failed --state cancelled\n  mycora flow jobs 3 --keys"
    )]
    Nodes(nodes::FlowNodesArgs),
    /// Watch a flow until it has ended, or all flows of the context; Ctrl-C leaves them running
    #[command(after_help = watch_all::AFTER_HELP)]
    Watch(watch_all::FlowWatchArgs),
    /// Show the kept output of a flow's jobs (at most the first 10 MiB of each stream), with -f what comes as well
    #[command(after_help = logs::AFTER_HELP)]
    Logs(logs::FlowLogsArgs),
    /// List the files that the jobs of a flow made, or fetch them
    #[command(after_help = outputs::AFTER_HELP)]
    Outputs(outputs::FlowOutputsArgs),
    /// Ask to cancel a flow, or one of its jobs
    #[command(
        after_help = "Examples:\n  mycora flow cancel 3 --grace 30 --watch\n  mycora flow cancel 3 --job split"
    )]
    Cancel(cancel::FlowCancelArgs),
    /// Run an ended flow again: by default what failed and all that comes after it
    #[command(after_help = retry::AFTER_HELP)]
    Retry(retry::FlowRetryArgs),
    /// Send a signal to a flow: it meets the prerequisites of that name, now or later
    #[command(after_help = "Example:\n  mycora flow signal 3 go --payload 'approved by Anna'")]
    Signal(signal::FlowSignalArgs),
    /// Draw a flow with the states of its jobs
    #[command(after_help = "Example:\n  mycora flow graph 3 | dot -Tsvg > flow.svg")]
    Graph(graph::FlowGraphArgs),
    /// Explain the state of a job
    #[command(after_help = "Example:\n  mycora flow explain 3 merge")]
    Explain(explain::FlowExplainArgs),
    /// Report the outcome of a job's attempt that something else executes
    #[command(after_help = report::AFTER_HELP)]
    Report(report::FlowReportArgs),
    /// Remove ended flows with everything that belongs to them
    #[command(after_help = "Example:\n  mycora flow delete 3 4 5")]
    Delete(delete::FlowDeleteArgs),
}

/// A flow on the command line.
#[derive(Debug, Args)]
pub struct FlowArg {
    /// The flow's number
    #[arg(value_parser = values::id)]
    pub id: u32,
}

/// Runs a command that needs a coordinator; gives the exit code.
///
/// # Errors
/// When the coordinator cannot be reached or refuses.
pub async fn run(session: &CliSession, command: FlowCommand) -> Result<u8, CliError> {
    match command {
        FlowCommand::Validate(args) => validate::run(&args, session.global.output).map(|()| 0),
        FlowCommand::Schema => schema::run().map(|()| 0),
        FlowCommand::Submit(args) => submit::run(session, &args).await,
        FlowCommand::List(args) => list::run(session, &args).await.map(|()| 0),
        FlowCommand::Get(FlowArg { id }) => get(session, id).await.map(|()| 0),
        FlowCommand::Nodes(args) => nodes::run(session, &args).await.map(|()| 0),
        FlowCommand::Watch(args) => match args.id {
            Some(id) => watch::run(session, session.context()?, id).await,
            None => watch_all::run(session, &args).await.map(|()| 0),
        },
        FlowCommand::Logs(args) => logs::run(session, &args).await.map(|()| 0),
        FlowCommand::Outputs(args) => outputs::run(session, &args).await.map(|()| 0),
        FlowCommand::Cancel(args) => cancel::run(session, &args).await,
        FlowCommand::Retry(args) => retry::run(session, &args).await,
        FlowCommand::Signal(args) => signal::run(session, args).await.map(|()| 0),
        FlowCommand::Graph(args) => graph::run(session, &args).await.map(|()| 0),
        FlowCommand::Explain(args) => explain::run(session, args).await.map(|()| 0),
        FlowCommand::Report(args) => report::run(session, args).await.map(|()| 0),
        FlowCommand::Delete(args) => delete::run(session, &args).await,
    }
}

async fn get(session: &CliSession, id: u32) -> Result<(), CliError> {
    let context = session.context()?;
    let flow = session.clients.get_flow(context, id).await?.flow.unwrap_or_default();
    print_flow(session, context, &flow).await
}

/// Prints a flow with its nodes.
pub(super) async fn print_flow(session: &CliSession, context: u32, flow: &v1::Flow) -> Result<(), CliError> {
    let nodes = session.clients.list_nodes(context, flow.id, &[]).await?;
    print(session, flow, &nodes)
}

/// Prints a flow with these nodes.
pub(super) fn print(session: &CliSession, flow: &v1::Flow, nodes: &[v1::FlowNode]) -> Result<(), CliError> {
    output::answer(
        session.global.output,
        || json::FlowDocument::new(flow, nodes),
        || summary::flow(flow, nodes, Timestamp::now()),
    )
}
