//! `mycora flow`: what is asked about flows, and of them.

use clap::{Args, Subcommand, ValueEnum};
use model::Timestamp;
use proto::v1;

use super::{Session, cancel, logs, submit, watch};
use crate::failure::Failure;
use crate::flow_file::{FlowFile, Source};
use crate::output::{self, Format, json, summary};

/// Commands about flows.
#[derive(Debug, Subcommand)]
pub enum FlowCommand {
    /// Check a flow file without submitting it
    Validate(ValidateArgs),
    /// Submit a flow file
    #[command(
        after_help = "Examples:\n  mycora flow submit flow.yaml --watch\n  cat flow.yaml | mycora flow submit - --env LANG=C.UTF-8\n\nPaths in the file are relative to it; with `-`, to the working directory."
    )]
    Submit(submit::SubmitArgs),
    /// List the flows of a context, newest first
    List(ListArgs),
    /// Show a flow with its jobs and its result
    Get(FlowArg),
    /// Watch a flow until it has ended
    Watch(FlowArg),
    /// Show what the jobs of a flow print: of each attempt the last 64 KiB, with -f what comes as well
    Logs(logs::LogsArgs),
    /// Ask to cancel a flow
    Cancel(cancel::CancelArgs),
    /// Remove an ended flow with everything that belongs to it
    Delete(FlowArg),
}

/// What `flow validate` takes.
#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// The flow file, YAML or JSON; `-` for standard input
    pub file: String,
    /// Set a variable of the flow, as `submit` would
    #[arg(long, value_name = "NAME=VALUE", value_parser = env_entry)]
    pub env: Vec<(String, String)>,
}

/// What `flow list` takes.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only flows of this status
    #[arg(long, value_enum)]
    pub status: Option<StatusFilter>,
    /// At most this many
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

/// A status as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StatusFilter {
    /// Being filled.
    Created,
    /// Running.
    Started,
    /// Ended well.
    Finished,
    /// Ended with a failure.
    Error,
    /// Ended because somebody asked.
    Cancelled,
}

impl From<StatusFilter> for v1::FlowStatus {
    fn from(filter: StatusFilter) -> Self {
        match filter {
            StatusFilter::Created => Self::Created,
            StatusFilter::Started => Self::Started,
            StatusFilter::Finished => Self::Finished,
            StatusFilter::Error => Self::Error,
            StatusFilter::Cancelled => Self::Cancelled,
        }
    }
}

/// A flow on the command line.
#[derive(Debug, Args)]
pub struct FlowArg {
    /// The flow's number
    pub id: u32,
}

/// Reads `NAME=VALUE`.
pub(super) fn env_entry(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write it as NAME=VALUE".to_owned()),
    }
}

/// Checks a file; needs no coordinator.
///
/// # Errors
/// Everything that is wrong with the file.
pub fn validate(args: &ValidateArgs, format: Format) -> Result<(), Failure> {
    let file = read(&args.file, &args.env)?;
    if format == Format::Json {
        return output::print_json(&json::of(&file.spec));
    }
    let jobs = file.spec.nodes.len();
    let edges: usize = file.spec.nodes.iter().map(|node| node.depends.len()).sum();
    let uploads: u64 = file.uploads.iter().map(|upload| upload.blob.size).sum();
    output::print(&format!(
        "{}: the flow `{}` is good: {jobs} jobs, {edges} dependencies, {uploads} bytes to upload\n",
        args.file, file.spec.name
    ))
}

/// Reads and understands a flow file.
///
/// # Errors
/// Everything that is wrong with it.
pub(super) fn read(path: &str, env: &[(String, String)]) -> Result<FlowFile, Failure> {
    Source::open(path)
        .and_then(|source| FlowFile::parse(source, env))
        .map_err(|problems| Failure::Invalid(problems.to_string()))
}

/// Runs a command that needs a coordinator; gives the exit code.
///
/// # Errors
/// When the coordinator cannot be reached or refuses.
pub async fn run(session: &Session, command: FlowCommand) -> Result<u8, Failure> {
    match command {
        FlowCommand::Validate(args) => validate(&args, session.global.output).map(|()| 0),
        FlowCommand::Submit(args) => submit::run(session, &args).await,
        FlowCommand::List(args) => list(session, &args).await.map(|()| 0),
        FlowCommand::Get(FlowArg { id }) => get(session, id).await.map(|()| 0),
        FlowCommand::Watch(FlowArg { id }) => watch::run(session, session.context()?, id).await,
        FlowCommand::Logs(args) => logs::run(session, &args).await.map(|()| 0),
        FlowCommand::Cancel(args) => cancel::run(session, &args).await,
        FlowCommand::Delete(FlowArg { id }) => delete(session, id).await.map(|()| 0),
    }
}

async fn list(session: &Session, args: &ListArgs) -> Result<(), Failure> {
    let status = args.status.map_or(v1::FlowStatus::Unspecified, v1::FlowStatus::from);
    let answer = session.clients.list_flows(session.context()?, status, args.limit).await?;
    if session.global.output == Format::Json {
        return output::print_json(&json::of(&answer));
    }
    if answer.flows.is_empty() {
        output::note("there are no such flows; `mycora flow submit FILE` makes one");
        return Ok(());
    }
    output::print(&summary::flows(&answer.flows, Timestamp::now()))?;
    if !answer.next_page_token.is_empty() {
        output::note(&format!("there are more than {}; ask for them with --limit", args.limit));
    }
    Ok(())
}

async fn get(session: &Session, id: u32) -> Result<(), Failure> {
    let context = session.context()?;
    let flow = session.clients.get_flow(context, id).await?.flow.unwrap_or_default();
    print_flow(session, context, &flow).await
}

/// Prints a flow with its nodes.
pub(super) async fn print_flow(session: &Session, context: u32, flow: &v1::Flow) -> Result<(), Failure> {
    let nodes = session.clients.list_nodes(context, flow.id).await?;
    match session.global.output {
        Format::Json => output::print_json(&json::FlowDocument::new(flow, &nodes)),
        Format::Table => output::print(&summary::flow(flow, &nodes, Timestamp::now())),
    }
}

async fn delete(session: &Session, id: u32) -> Result<(), Failure> {
    let answer = session.clients.delete_flow(session.context()?, id).await?;
    match session.global.output {
        Format::Json => output::print_json(&json::of(&answer)),
        Format::Table => output::print(&format!("flow {id} is deleted\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_name_and_value() {
        assert_eq!(env_entry("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert_eq!(env_entry("A="), Ok(("A".to_owned(), String::new())));
        assert!(env_entry("A").is_err() && env_entry("=b").is_err());
    }
}
