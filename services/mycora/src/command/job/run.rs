//! `mycora job run`: as a script is run here, but there.

use std::time::Duration;

use clap::Args;
use flow_file::{FlowFile, Uploads};
use proto::v1;
use uuid::Uuid;

use super::script::ScriptArgs;

use crate::command::logs::{LogPrinter, LogReader};
use crate::command::signing::{self, SigningArgs};
use crate::command::{CliSession, submit, validate, values, watch};
use crate::failure::CliError;
use crate::output::live::ProgressDisplay;
use crate::output::{self, OutputFormat, json, summary};

/// Shown below the options.
pub(super) const AFTER_HELP: &str = "\
Examples:
  mycora job run convert.py --file in.csv=data/in.csv --timeout 60
  mycora job run --type shell --script 'echo rows=3 >> \"$MYCORA_RESULT\"'
  mycora job run --type python - --detach < convert.py
  mycora job run convert.py --signing-key actor-1.ed25519

Exit codes: 0 the job completed, or was started with --detach; 1 it did not, or not within --wait.";

/// Default name of the job.
const NAME_DEFAULT: &str = "job";

/// Arguments of `job run`.
#[derive(Debug, Args)]
pub struct JobRunArgs {
    /// Script to run.
    #[command(flatten)]
    pub script: ScriptArgs,
    /// The name of the job and of its flow
    #[arg(long, default_value = NAME_DEFAULT)]
    pub name: String,
    /// Run time in seconds, or as 90s, 5m or 2h; 0 for no limit [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = values::secs)]
    pub timeout: Option<u32>,
    /// Let it use the network
    #[arg(long)]
    pub network: bool,
    /// Tries after the first
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub retries: u32,
    /// Run it on this runner only, by its number in `mycora runner list`
    #[arg(long, value_name = "ID", value_parser = values::id)]
    pub runner: Option<u32>,
    /// Run it on instances of this group only
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub group: String,
    /// Run it on runners with this label only
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = values::entry)]
    pub labels: Vec<(String, String)>,
    /// Wait at most this many seconds for its end [default: until it has ended]
    #[arg(long, value_name = "SECS")]
    pub wait: Option<u32>,
    /// Only start it
    #[arg(long, conflicts_with = "wait")]
    pub detach: bool,
    /// Key that signs the job.
    #[command(flatten)]
    pub signing: SigningArgs,
}

pub(super) async fn run(session: &CliSession, args: &JobRunArgs) -> Result<u8, CliError> {
    let mut file = described(args)?;
    validate::warn(&file);
    let context = session.context()?;
    signing::sign(session, &args.signing, context, &mut file).await?;
    submit::upload(session, context, &file).await?;
    let request = v1::RunJobRequest {
        request_id: Uuid::new_v4().to_string(),
        context_id: context,
        caller_id: session.actor(),
        node: file.spec.nodes.first().cloned(),
        wait_secs: 0,
    };
    let run = async || session.clients.run_job(&request).await;
    let started = submit::with_uploads(session, context, &file, run).await?;
    let started = started.map_err(|error| submit::located(&file, 0, error))?;
    let id = started.flow.as_ref().map_or(0, |flow| flow.id);
    if args.detach {
        output::answer(
            session.global.output,
            || json::of(&started),
            || {
                format!(
                    "flow {id} `{}` is started; see `mycora flow watch {id} --context {context}`\n",
                    args.name
                )
            },
        )?;
        return Ok(0);
    }
    match until_ended(session, context, id, args.wait).await? {
        Some(flow) => ended(session, context, flow).await,
        None => {
            let waited = args.wait.unwrap_or_default();
            output::note(&format!(
                "flow {id} has not ended after {waited} s; see `mycora flow watch {id} --context {context}`"
            ));
            if session.global.output != OutputFormat::Table {
                let flow = session.clients.get_flow(context, id).await?.flow.unwrap_or_default();
                ended(session, context, flow).await?;
            }
            Ok(1)
        }
    }
}

/// Shows what the job prints until it has ended; `None` when that takes too long.
async fn until_ended(
    session: &CliSession,
    context: u32,
    id: u32,
    wait: Option<u32>,
) -> Result<Option<v1::Flow>, CliError> {
    let printer = match (session.global.output, session.global.quiet) {
        (OutputFormat::Table, _) => LogPrinter::Raw,
        (OutputFormat::Json | OutputFormat::Yaml, false) => LogPrinter::Aside,
        (OutputFormat::Json | OutputFormat::Yaml, true) => LogPrinter::Nowhere,
    };
    let request =
        v1::StreamFlowLogsRequest { context_id: context, flow_id: id, follow: true, ..Default::default() };
    let mut logs = LogReader::new(&session.clients, request, printer);
    let mut progress =
        if session.global.quiet { ProgressDisplay::Silent } else { ProgressDisplay::ProblemsOnly };
    let both = async {
        let watching = watch::follow(&session.clients, context, id, &mut progress);
        tokio::try_join!(watching, logs.until_end())
    };
    let result = match wait {
        None => both.await.map(Some),
        Some(secs) => match tokio::time::timeout(Duration::from_secs(secs.into()), both).await {
            Ok(result) => result.map(Some),
            Err(_) => Ok(None),
        },
    };
    logs.end()?;
    Ok(result?.map(|(flow, ())| flow))
}

/// Prints how the job stands; gives the exit code.
async fn ended(session: &CliSession, context: u32, flow: v1::Flow) -> Result<u8, CliError> {
    let node = session.clients.list_nodes(context, flow.id, &[]).await?.into_iter().next();
    let exit_code = watch::exit_code(&flow);
    let answer = v1::RunJobResponse { flow: Some(flow), node };
    let node = answer.node.clone().unwrap_or_default();
    if session.global.output == OutputFormat::Table && !session.global.quiet {
        output::note(&summary::outcome(&node));
    }
    output::answer(session.global.output, || json::of(&answer), || summary::result(&node.result))?;
    Ok(exit_code)
}

/// The job as a flow of its own, checked.
fn described(args: &JobRunArgs) -> Result<FlowFile, CliError> {
    let mut uploads = Uploads::default();
    let job = args.script.job(&mut uploads)?;
    let node = v1::NodeSpec {
        name: args.name.clone(),
        target: Some(v1::Target {
            runner_id: args.runner.unwrap_or_default(),
            group: args.group.clone(),
            instance: None,
            labels: args.labels.iter().cloned().collect(),
        }),
        policy: Some(v1::NodePolicy {
            retries: args.retries,
            timeout_secs: args.timeout,
            network: args.network,
            ..Default::default()
        }),
        job: Some(job),
        ..Default::default()
    };
    let labels = labels(args);
    FlowFile::of_job("mycora job run", node, uploads, &labels)
        .map_err(|problems| CliError::Invalid(problems.to_string()))
}

/// Fields of the request, and the flags that they come from.
fn labels(args: &JobRunArgs) -> Vec<(String, String)> {
    let mut labels: Vec<(String, String)> = [
        ("flow.name", "--name"),
        ("flow.nodes[0]", ""),
        ("flow.nodes[0].name", "--name"),
        ("flow.nodes[0].target.runner_id", "--runner"),
        ("flow.nodes[0].target.group", "--group"),
        ("flow.nodes[0].target.labels", "--label"),
        ("flow.nodes[0].policy.retries", "--retries"),
        ("flow.nodes[0].policy.timeout_secs", "--timeout"),
    ]
    .map(|(field, flag)| (field.to_owned(), flag.to_owned()))
    .into();
    labels.extend(args.script.labels());
    labels
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct JobRunLine {
        #[command(flatten)]
        args: JobRunArgs,
    }

    fn typed(arguments: &[&str]) -> JobRunArgs {
        JobRunLine::try_parse_from([&["run"], arguments].concat()).expect("good arguments").args
    }

    fn refused(arguments: &[&str]) -> String {
        described(&typed(arguments)).expect_err("something is wrong").to_string()
    }

    #[test]
    fn a_problem_is_reported_with_its_flag() {
        let job = ["--type", "shell", "--script", "true"];
        let with = |more: &[&str]| refused(&[&job, more].concat());
        assert!(with(&["--name", "a b"]).starts_with("mycora job run: --name: a name is made of"));
        assert!(with(&["--retries", "101"]).contains("--retries: at most 100 are allowed, not 101"));
        assert!(with(&["--timeout", "9999999"]).contains("--timeout: at most 2592000 seconds"));
        assert!(with(&["--env", "1A=x"]).contains("--env 1A: a variable's name is"));
        assert!(with(&["--env", "A=${{ results.b.k }}"]).contains("--env A: `results.b.k` refers to `b`"));
        assert!(with(&["--file", "a=nothing.txt"]).contains("--file a: cannot read `nothing.txt`"));
        assert!(!with(&["--file", "a=nothing.txt"]).contains("flow file"));
        assert!(refused(&["--script", "true"]).contains("is not known; give --type, one of python, shell"));
        assert!(refused(&["nowhere.py"]).starts_with("nowhere.py: cannot be read"));
    }

    #[test]
    fn a_variable_that_the_script_does_not_mention_is_warned_of() {
        let run = typed(&["--type", "shell", "--script", "echo $NAME", "--env", "NAME=x", "--env", "NAEM=y"]);
        let warnings = described(&run).expect("good").warnings().expect("one").to_string();
        assert!(
            warnings.starts_with("mycora job run: --env NAEM: no script or file of the flow mentions"),
            "{warnings}"
        );
        assert_eq!(warnings.lines().count(), 1);
    }

    #[test]
    fn the_network_and_the_timeout_are_set_by_flags() {
        let file =
            described(&typed(&["--type", "shell", "--script", "true", "--network", "--timeout", "5m"]));
        let policy = file.expect("good").spec.nodes[0].policy.clone().expect("one");
        assert_eq!((policy.network, policy.timeout_secs), (true, Some(300)));
        let plain =
            described(&typed(&["--type", "shell", "--script", "true", "--timeout", "60"])).expect("good");
        let policy = plain.spec.nodes[0].policy.clone().expect("one");
        assert_eq!((policy.network, policy.timeout_secs), (false, Some(60)));
    }

    #[test]
    fn the_script_type_follows_from_the_file_extension() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("long.py");
        std::fs::write(&path, "# long\n".repeat(4000)).expect("written");
        let path = path.to_str().expect("a plain path");
        let file = described(&typed(&[path, "--label", "zone=a", "--wait", "5"])).expect("good");
        let node = &file.spec.nodes[0];
        assert_eq!((node.name.as_str(), file.uploads.len()), ("job", 1), "a long script is a blob");
        assert_eq!(node.job.as_ref().map(v1::JobSpec::script_type), Some(v1::ScriptType::Python));
        let file = described(&typed(&[path, "--type", "shell"])).expect("good");
        assert_eq!(
            file.spec.nodes[0].job.as_ref().map(v1::JobSpec::script_type),
            Some(v1::ScriptType::Shell)
        );
    }
}
