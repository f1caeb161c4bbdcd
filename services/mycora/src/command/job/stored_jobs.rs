//! `mycora job create`, `get`, `list` and `delete`: jobs that are kept.

use clap::Args;
use flow_file::{FlowFile, Uploads};
use model::Timestamp;
use proto::v1;
use uuid::Uuid;

use super::script::ScriptArgs;
use crate::command::{CliSession, submit, values};
use crate::failure::CliError;
use crate::output::{self, PageSummary, json, objects};

pub(super) const CREATE_HELP: &str = "\
A stored job belongs to no flow. Flows copy it by its number: `created_job: N` in a flow file, `created_job_id` of a node for programs.

Examples:
  mycora job create convert.py --file in.csv=data/in.csv
  mycora job create --type shell --script 'make report' --keep report.pdf";

/// Name of the job in messages until it has a number.
const NAME: &str = "job";

/// Arguments of `job create`.
#[derive(Debug, Args)]
pub struct JobCreateArgs {
    /// Script to run.
    #[command(flatten)]
    pub script: ScriptArgs,
    /// Keep this file when the script has ended; may be repeated
    #[arg(long = "keep", value_name = "NAME")]
    pub outputs: Vec<String>,
}

/// Which job.
#[derive(Debug, Args)]
pub struct JobIdArgs {
    /// The job's number among those of its actor
    #[arg(value_parser = values::id)]
    pub id: u32,
    /// The actor who owns the job [default: ourselves]
    #[arg(long, value_name = "ACTOR", value_parser = values::id)]
    pub caller: Option<u32>,
}

/// Arguments of `job delete`.
#[derive(Debug, Args)]
pub struct JobDeleteArgs {
    /// Which job.
    #[command(flatten)]
    pub job: JobIdArgs,
    /// Accepted as with every `delete`; only those of actors and contexts need it
    #[arg(long)]
    pub yes: bool,
}

/// Arguments of `job list`.
#[derive(Debug, Args)]
pub struct JobListArgs {
    /// The jobs of this flow [default: those that belong to none]
    #[arg(long, value_name = "ID", value_parser = values::id)]
    pub flow: Option<u32>,
    /// Only jobs of this actor
    #[arg(long, value_name = "ACTOR", value_parser = values::id)]
    pub caller: Option<u32>,
    /// At most this many
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

pub(super) async fn create(session: &CliSession, args: &JobCreateArgs) -> Result<(), CliError> {
    let file = described(args)?;
    let context = session.context()?;
    submit::upload(session, context, &file).await?;
    let request = v1::CreateJobRequest {
        request_id: Uuid::new_v4().to_string(),
        context_id: context,
        caller_id: session.actor(),
        spec: file.spec.nodes.first().and_then(|node| node.job.clone()),
    };
    let create = async || session.clients.create_job(&request).await;
    let answer = submit::with_uploads(session, context, &file, create).await??;
    let text = || {
        let job = answer.job.clone().unwrap_or_default();
        format!("job {} is kept; see `mycora job get {} --context {context}`\n", job.id, job.id)
    };
    output::answer(session.global.output, || json::of(&answer), text)
}

/// The job as that of a flow, which is checked here as the coordinator will.
fn described(args: &JobCreateArgs) -> Result<FlowFile, CliError> {
    let mut uploads = Uploads::default();
    let job = v1::JobSpec { outputs: args.outputs.clone(), ..args.script.job(&mut uploads)? };
    let node = v1::NodeSpec { name: NAME.to_owned(), job: Some(job), ..Default::default() };
    let mut labels = args.script.labels();
    let keeps = (0..args.outputs.len()).map(|i| format!("flow.nodes[0].job.outputs[{i}]"));
    labels.extend(keeps.map(|field| (field, "--keep".to_owned())));
    labels.push(("flow.nodes[0].job.outputs".to_owned(), "--keep".to_owned()));
    let checked = FlowFile::of_job("mycora job create", node, uploads, &labels);
    checked.map_err(|problems| CliError::Invalid(problems.to_string()))
}

pub(super) async fn get(session: &CliSession, args: &JobIdArgs) -> Result<(), CliError> {
    let request = v1::GetJobRequest {
        context_id: session.context()?,
        caller_id: args.caller.unwrap_or_default(),
        job_id: args.id,
    };
    let answer = session.clients.get_job(request).await?;
    let text = || objects::job(&answer.job.clone().unwrap_or_default());
    output::answer(session.global.output, || json::of(&answer), text)
}

pub(super) async fn list(session: &CliSession, args: &JobListArgs) -> Result<(), CliError> {
    let request = v1::ListJobsRequest {
        context_id: session.context()?,
        flow_id: args.flow.unwrap_or_default(),
        caller_id: args.caller.unwrap_or_default(),
        ..Default::default()
    };
    let answer = session.clients.list_jobs(request, args.limit).await?;
    let none = match args.flow {
        Some(_) => "there are no such jobs in that flow",
        None => "there are no such jobs outside flows; `mycora job create FILE` makes one",
    };
    let v1::ListJobsResponse { jobs, next_page_token } = &answer;
    let listed = PageSummary { count: jobs.len(), limit: args.limit, next_page_token, none };
    let text = || objects::jobs(jobs, Timestamp::now());
    output::list(session.global.output, listed, || json::of(&answer), text)
}

pub(super) async fn delete(session: &CliSession, args: &JobDeleteArgs) -> Result<(), CliError> {
    let JobIdArgs { id, caller } = &args.job;
    let request = v1::DeleteJobRequest {
        request_id: Uuid::new_v4().to_string(),
        context_id: session.context()?,
        caller_id: caller.unwrap_or_default(),
        job_id: *id,
    };
    let answer = session.clients.delete_job(&request).await?;
    output::answer(session.global.output, || json::of(&answer), || format!("job {id} is deleted\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct JobCreateLine {
        #[command(flatten)]
        args: JobCreateArgs,
    }

    fn described(arguments: &[&str]) -> Result<FlowFile, CliError> {
        super::described(
            &JobCreateLine::try_parse_from([&["create"], arguments].concat()).expect("good arguments").args,
        )
    }

    #[test]
    fn a_problem_is_reported_with_its_flag() {
        let job = ["--type", "shell", "--script", "true"];
        let refused =
            |more: &[&str]| described(&[&job, more].concat()).expect_err("something is wrong").to_string();
        assert!(refused(&["--keep", "../a"]).starts_with("mycora job create: --keep: "));
        assert!(refused(&["--env", "1A=x"]).contains("--env 1A: a variable's name is"));
        let file = described(&[&job[..], &["--keep", "a.txt", "--env", "A=1"]].concat()).expect("good");
        let spec = file.spec.nodes[0].job.clone().unwrap_or_default();
        assert_eq!((spec.outputs, spec.env_vars.len()), (vec!["a.txt".to_owned()], 1));
    }
}
